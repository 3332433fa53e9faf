//! Serving one connection: sends what is queued, hands out answers and recalls in the order they come, and watches for signs of life.
//!
//! Invariants: it sleeps only when nothing came in meanwhile and nothing can be sent; it never holds the lock while it waits, and wakes
//! callers outside of it; with a subscriber, a server that cannot be shown to have been there for as long as leases survive is lost.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use subvol_protocol::codec::ServerMessage;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{Request, SessionRequest};
use subvol_protocol::response::{Push, RecallTarget, Response};
use tokio::time::{Instant, Interval, timeout};

use super::Shared;
use super::driver::ticker;
use super::events::LeaseEvent;
use super::state::{Reply, Wakers};
use crate::error::{ClientError, Result};
use crate::limits::{FAREWELL, KEEP_ALIVE_PART, PING_SLOT, PROBE, SHUTDOWN_SLACK, SLOT_BITS};
use crate::wire::Wire;

/// Why serving a connection ended.
pub(super) enum Ended {
    /// No user is left and everything is said.
    Finished,
    /// The connection is lost, after this many answers.
    Lost { cause: ClientError, answers: u64 },
}

/// Serves one connection until it is lost or nobody is left.
pub(super) async fn serve(shared: &Shared, wire: Wire) -> Ended {
    let mut service = Service {
        shared,
        wire,
        ticker: ticker(shared),
        answers: 0,
        started: Instant::now(),
        last_sign: Instant::now(),
        proof: shared.greeting().leases.map_or_else(Instant::now, |leases| leases.asked),
        silence: shared.greeting().leases.filter(|leases| leases.granted).map(|leases| leases.silence),
        drained: shared.greeting().leases.map_or_else(Instant::now, |leases| leases.asked),
        pinged_at: None,
        fresh: true,
        pinged: false,
        pings: 0,
        gone_by: None,
        finish_by: None,
        wakers: Wakers::new(),
        received: Vec::new(),
    };
    let result = poll_fn(|context| service.poll(context)).await;
    match result {
        Ok(()) => {
            // The server closes the handles either way; saying so spares it the error of a broken connection.
            let goodbye = Request::Session(SessionRequest::Goodbye).into();
            let wire = &mut service.wire;
            if wire.queue(PING_SLOT, &goodbye, &Bytes::new()).is_ok() {
                let _ = timeout(FAREWELL, poll_fn(|context| wire.poll_write(context))).await;
            }
            Ended::Finished
        }
        Err(cause) => Ended::Lost { cause, answers: service.answers },
    }
}

/// What was read.
enum Item {
    Answer(u64, Result<Reply>),
    Recall(u64, Vec<RecallTarget>),
}

struct Service<'a> {
    shared: &'a Shared,
    wire: Wire,
    ticker: Interval,
    answers: u64,
    started: Instant,
    /// When the server was last heard of, or last owed nothing.
    last_sign: Instant,
    /// The newest time at which the server is known to have served this connection: when a request was sent that it answered, or when
    /// the socket was last found empty before something came. Not when it was read: a client that was stopped reads what has waited for
    /// it longer than the server has.
    proof: Instant,
    /// When the socket was last found empty.
    drained: Instant,
    /// With leases: after so long without a frame they are lost.
    silence: Option<Duration>,
    /// The keep-alive that is owed: its id and when it was sent.
    pinged_at: Option<(u64, Instant)>,
    /// Nothing was read yet, but the greeting may have left whole frames behind.
    fresh: bool,
    pinged: bool,
    pings: u64,
    /// When a server that announced its end is left.
    gone_by: Option<Instant>,
    /// When the closing channel stops waiting for answers.
    finish_by: Option<Instant>,
    wakers: Wakers,
    received: Vec<Item>,
}

impl Service<'_> {
    /// Ready with `Ok` when nobody is left, with the cause when the connection is lost.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            let (finished, drained) = self.fill();
            self.wake();
            if finished {
                return Poll::Ready(Ok(()));
            }
            if drained {
                return Poll::Ready(Err(ClientError::Protocol("the server is shutting down".into())));
            }
            let written = self.wire.poll_write(context)?;
            let mut heard = false;
            if self.wire.poll_read(context)?.is_ready() || std::mem::take(&mut self.fresh) {
                heard = true;
                self.take_frames()?;
            } else if self.silence.is_some() {
                self.drained = Instant::now();
            }
            while self.ticker.poll_tick(context).is_ready() {
                self.tick()?;
            }
            if heard {
                continue;
            }
            // Asleep only if nothing came in meanwhile: a caller that queues after this finds the waker and uses it.
            let can_send = self.wire.has_room() || written.is_ready();
            // The keep-alive that the tick may have queued.
            let unwritten = written.is_ready() && !self.wire.is_flushed();
            let sleep = self.shared.with_state(|state| {
                if unwritten || (can_send && state.has_work()) || (state.closed && self.finish_by.is_none()) {
                    return false;
                }
                state.driver = Some(context.waker().clone());
                true
            });
            if sleep {
                return Poll::Pending;
            }
        }
    }

    fn wake(&mut self) {
        self.wakers.drain(..).for_each(std::task::Waker::wake);
    }

    /// Queues what can be sent. Returns whether everything is over, and whether a stopping server owes nothing more.
    fn fill(&mut self) -> (bool, bool) {
        let now = Instant::now();
        let Self { shared, wire, wakers, finish_by, .. } = self;
        let mut owed = true;
        let outcome = shared.with_state(|state| {
            state.fill(wire, now, wakers);
            owed = state.is_owed();
            if state.closed {
                let by = *finish_by.get_or_insert(now + FAREWELL);
                // Callers that still wait are told by the end of the driver.
                if (state.is_idle() && wire.is_flushed()) || now >= by {
                    return (true, false);
                }
            }
            (false, state.draining && !owed)
        });
        if !owed {
            self.last_sign = now;
        }
        outcome
    }

    /// Hands out everything that was read, under one lock.
    fn take_frames(&mut self) -> Result<()> {
        self.last_sign = Instant::now();
        self.proof = self.proof.max(self.drained);
        self.pinged = false;
        let mut end = None;
        let broken = loop {
            let received = match self.wire.next_frame() {
                Ok(Some(received)) => received,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            let id = received.request_id;
            match received.message {
                Ok(ServerMessage::Push(Push::Recall { recall, targets })) => {
                    self.received.push(Item::Recall(recall, targets));
                }
                Ok(ServerMessage::Push(push)) => {
                    if let Push::Shutdown { grace_milliseconds, reason } = push {
                        tracing::debug!(%reason, grace_milliseconds, "the server is stopping");
                        let grace = Duration::from_millis(grace_milliseconds.into()) + SHUTDOWN_SLACK;
                        end = Some(self.last_sign + grace);
                    }
                }
                // Without a request id it is about the connection, which the server closes.
                Ok(ServerMessage::Response { response: Response::Error(error), .. }) if id == 0 => {
                    break Some(ClientError::Server(error));
                }
                // A sign of life, and nothing else.
                Ok(ServerMessage::Response { .. }) if id & PING_SLOT == PING_SLOT => {
                    if let Some((_, sent)) = self.pinged_at.take_if(|(owed, _)| *owed == id) {
                        self.proof = self.proof.max(sent);
                    }
                }
                Ok(ServerMessage::Response { response, payload, .. }) => {
                    self.received.push(Item::Answer(id, Ok(Reply { response, payload })));
                }
                Err(error) if id == 0 => break Some(ClientError::Protocol(error.to_string())),
                Err(error) => {
                    self.received.push(Item::Answer(id, Err(ClientError::Protocol(error.to_string()))));
                }
            }
        };
        let Self { shared, received, wakers, answers, proof, .. } = self;
        let mut stranger = None;
        let (mut too_many, mut fenced) = (false, false);
        shared.with_state(|state| {
            // In the order of arrival: an answer behind a recall is granted anew, one before it is not.
            for item in received.drain(..) {
                match item {
                    // Only owed answers are progress: a server that makes some up must not get endless attempts.
                    Item::Answer(id, result) => match state.answered(id, result, wakers) {
                        Some(sent) => {
                            *answers += 1;
                            *proof = sent.max(*proof);
                        }
                        None => stranger = Some(id),
                    },
                    Item::Recall(recall, targets) => {
                        too_many |= !state.event(LeaseEvent::Recall { recall, targets }, wakers);
                    }
                }
            }
            fenced = state.fenced;
            if end.is_some() {
                state.draining = true;
            }
        });
        self.wake();
        self.gone_by = end.or(self.gone_by);
        if too_many {
            return Err(ClientError::Protocol("more recalls than there can be leases".into()));
        }
        if fenced && broken.is_none() {
            // What is kept is to be dropped now, not when the server gets round to closing.
            return Err(ClientError::Server(ErrorCode::Fenced.into()));
        }
        match (broken, stranger) {
            (Some(error), _) => Err(error),
            (None, Some(id)) => {
                Err(ClientError::Protocol(format!("an answer to request {id}, which was not asked")))
            }
            (None, None) => Ok(()),
        }
    }

    /// Looks at the deadlines and for signs of life.
    fn tick(&mut self) -> Result<()> {
        let now = Instant::now();
        let Self { shared, wakers, started, .. } = self;
        let (in_use, owed, subscribed) = shared.with_state(|state| {
            if now.saturating_duration_since(*started) >= PROBE {
                state.end_probe();
            }
            if state.is_in_use() {
                state.expire(now, shared.settings.timeouts.request, wakers);
            }
            (state.is_in_use(), state.is_owed(), state.has_subscriber)
        });
        self.wake();
        let leases = self.silence.filter(|_| subscribed);
        if !in_use && self.gone_by.is_none() && leases.is_none() {
            return Ok(());
        }
        if self.gone_by.is_some_and(|by| now >= by) {
            return Err(ClientError::Protocol("the server is shutting down".into()));
        }
        let silence = self.shared.settings.timeouts.silence;
        let quiet = now.saturating_duration_since(self.last_sign);
        if owed && quiet >= silence {
            return Err(ClientError::Timeout { operation: "Any request", after: quiet, changing: false });
        }
        if let Some(silence) = leases {
            let quiet = now.saturating_duration_since(self.proof);
            if quiet >= silence {
                return Err(ClientError::Timeout {
                    operation: "Keeping leases",
                    after: quiet,
                    changing: false,
                });
            }
            if quiet >= silence / KEEP_ALIVE_PART && self.pinged_at.is_none() {
                let id = self.ping()?;
                self.pinged_at = Some((id, now));
            }
        }
        // Asked for a sign of life half-way: a long fsync is silent, a dead server too.
        if owed && !self.pinged && quiet >= silence / 2 && self.wire.has_room() {
            self.ping()?;
        }
        Ok(())
    }

    /// Asks for a sign of life; gives the request's id.
    fn ping(&mut self) -> Result<u64> {
        self.pinged = true;
        self.pings += 1;
        let ping = Request::Session(SessionRequest::Ping).into();
        let id = self.pings << SLOT_BITS | PING_SLOT;
        self.wire
            .queue(id, &ping, &Bytes::new())
            .map_err(|error| ClientError::Argument(error.to_string()))?;
        Ok(id)
    }
}
