//! A connection's bytes: frames in, replies out, as one poll-driven machine without a task or buffer per direction.
//!
//! Invariants: output goes before input, so a peer that does not read its replies is not read from either; a connection
//! without traffic holds no buffer; a peer that takes nothing for [`STALLED_PEER_TIME`] is dropped, and one that is slow for
//! [`SLOW_PEER_TIME`] while others wait for the bytes of its replies; what leaves this event loop and enters another one takes its unread bytes along.

use super::Session;
use super::outbox::Outgoing;
use super::permits::{Budget, Permit};
use super::socket::{DetachedSocket, Socket};
use crate::limits::{
    OUTBOX_BYTES_MAX, READ_CHUNK, REQUESTS_PER_BATCH, SLOW_PEER_BYTES, SLOW_PEER_TIME, STALLED_PEER_TIME,
};
use bytes::{Buf as _, BytesMut};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use subvol_protocol::frame::{DecodeLimits, Frame, FrameDecoder, FrameError};
use tokio::time::{Instant, Sleep};

/// How long the last words to a peer may take.
const LAST_WORDS_TIME: Duration = Duration::from_secs(2);

/// What a connection wants attention for.
pub enum Event {
    /// Complete frames.
    Frames(Vec<Frame>),
    /// The bytes are no frames.
    Broken(FrameError),
    /// The peer is gone.
    Closed,
    /// The server wants to stop.
    ShutDown,
    /// All replies are written and no request is under way.
    Drained,
}

/// See the module.
pub struct Stream {
    socket: Socket,
    parts: Parts,
    stalled: Option<Stall>,
}

/// A peer whose socket is full.
struct Stall {
    /// End of the current look at it.
    window: Pin<Box<Sleep>>,
    /// Bytes it took since the look began.
    taken: usize,
    /// When it took the last byte.
    progress: Instant,
}

impl Stall {
    fn new() -> Self {
        let window = Box::pin(tokio::time::sleep(SLOW_PEER_TIME));
        Self { window, taken: 0, progress: Instant::now() }
    }

    /// Whether the peer is to be dropped. Registers for the next look.
    fn is_over(&mut self, permits: &[Permit], context: &mut Context<'_>) -> bool {
        while self.window.as_mut().poll(context).is_ready() {
            let slow = self.taken < SLOW_PEER_BYTES && permits.iter().any(Permit::is_wanted);
            if slow || self.progress.elapsed() >= STALLED_PEER_TIME {
                return true;
            }
            self.taken = 0;
            self.window.as_mut().reset(Instant::now() + SLOW_PEER_TIME);
        }
        false
    }
}

/// What moves with a connection.
pub struct Parts {
    session: Arc<Session>,
    decoder: FrameDecoder,
    input: BytesMut,
    output: Outgoing,
    broken: Option<FrameError>,
    told_shutdown: bool,
    /// End when nothing is under way any more.
    pub draining: bool,
}

impl Stream {
    /// A new connection.
    pub fn new(socket: Socket, session: Arc<Session>) -> Self {
        let parts = Parts {
            session,
            decoder: FrameDecoder::new(DecodeLimits::UNAUTHENTICATED),
            input: BytesMut::new(),
            output: Outgoing::default(),
            broken: None,
            told_shutdown: false,
            draining: false,
        };
        Self { socket, parts, stalled: None }
    }

    /// Takes the connection out of this event loop.
    pub fn detach(self) -> io::Result<(DetachedSocket, Parts)> {
        Ok((self.socket.detach()?, self.parts))
    }

    /// Puts it into this one.
    pub fn attach(socket: DetachedSocket, parts: Parts) -> io::Result<Self> {
        Ok(Self { socket: socket.attach()?, parts, stalled: None })
    }

    /// The peer is known now.
    pub fn trust(&mut self) {
        self.parts.decoder.set_limits(DecodeLimits::FULL);
    }

    /// No further requests are taken; ends with [`Event::Drained`].
    pub fn drain(&mut self) {
        self.parts.draining = true;
    }

    /// Is it ending?
    pub fn is_draining(&self) -> bool {
        self.parts.draining
    }

    /// Waits for the next event, writing what is to be written meanwhile.
    pub async fn next(&mut self) -> Event {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Waits for byte permits, writing what is to be written meanwhile. `None`: the peer is gone.
    pub async fn permit(&mut self, budgets: &[Arc<Budget>; 3], bytes: u64) -> Option<Permit> {
        poll_fn(|context| {
            if self.poll_flush(context).is_err() {
                return Poll::Ready(None);
            }
            Permit::take(budgets, bytes, context.waker())
                .map_or(Poll::Pending, |permit| Poll::Ready(Some(permit)))
        })
        .await
    }

    /// Writes what is there and gives up after a while.
    pub async fn last_words(&mut self) {
        let flushed = poll_fn(|context| match self.poll_flush(context) {
            Ok(()) if !self.parts.output.buffer.is_empty() => Poll::Pending,
            _ => Poll::Ready(()),
        });
        let _ = tokio::time::timeout(LAST_WORDS_TIME, flushed).await;
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if self.poll_flush(context).is_err() {
            return Poll::Ready(Event::Closed);
        }
        let parts = &mut self.parts;
        if parts.session.shutting_down.load(Ordering::Acquire) && !parts.told_shutdown {
            parts.told_shutdown = true;
            return Poll::Ready(Event::ShutDown);
        }
        if parts.draining
            && parts.output.buffer.is_empty()
            && parts.session.in_flight.load(Ordering::Acquire) == 0
            && parts.session.outbox.waiting() == 0
        {
            return Poll::Ready(Event::Drained);
        }
        self.poll_input(context)
    }

    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let parts = &mut self.parts;
        loop {
            let mut frames = Vec::new();
            while frames.len() < REQUESTS_PER_BATCH && !parts.input.is_empty() && parts.broken.is_none() {
                match parts.decoder.decode(&mut parts.input) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(error) => parts.broken = Some(error),
                }
            }
            if !frames.is_empty() {
                return Poll::Ready(Event::Frames(frames));
            }
            if let Some(error) = parts.broken {
                return Poll::Ready(Event::Broken(error));
            }
            if parts.output.buffer.len() + parts.session.outbox.waiting() > OUTBOX_BYTES_MAX {
                // The output is blocked: its readiness wakes this task.
                return Poll::Pending;
            }
            match self.socket.poll_read_ready(context) {
                Poll::Pending => {
                    if parts.input.is_empty() {
                        parts.input = BytesMut::new();
                        parts.session.outbox.shrink();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Closed),
                Poll::Ready(Ok(())) => {}
            }
            if parts.input.is_empty() {
                parts.input.reserve(READ_CHUNK);
            }
            match self.socket.try_read(&mut parts.input) {
                Ok(0) => return Poll::Ready(Event::Closed),
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(_) => return Poll::Ready(Event::Closed),
            }
        }
    }

    /// Writes until everything is written or the socket is full; registers for both to change.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let output = &mut self.parts.output;
        loop {
            if output.buffer.is_empty() {
                self.stalled = None;
                match self.parts.session.outbox.take(context.waker()) {
                    Some(more) => *output = more,
                    None => {
                        *output = Outgoing::default();
                        return Ok(());
                    }
                }
            }
            match self.socket.poll_write_ready(context) {
                Poll::Pending => {
                    let stall = self.stalled.get_or_insert_with(Stall::new);
                    return match stall.is_over(&output.permits, context) {
                        true => Err(io::ErrorKind::TimedOut.into()),
                        false => Ok(()),
                    };
                }
                Poll::Ready(ready) => ready?,
            }
            match self.socket.try_write(&output.buffer) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    output.buffer.advance(count);
                    if let Some(stall) = &mut self.stalled {
                        stall.taken += count;
                        stall.progress = Instant::now();
                    }
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
