//! Replies on their way to one connection: any thread appends, the connection's task takes everything at once and writes.
//!
//! Invariants: replies are whole frames; the lock is held for one encoding at most; [`Outbox::wake`] is called after the
//! last append of a batch, so that a batch costs one wake-up and one write; an idle outbox holds no buffer.

use super::permits::Permit;
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::task::Waker;
use subvol_protocol::codec::{self, Message};
use subvol_protocol::error::WireError;
use subvol_protocol::response::{Push, Response};
use subvol_storage::fs::read::ReadSegment;

/// See the module.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buffer: BytesMut,
    permits: Vec<Permit>,
    waker: Option<Waker>,
    closed: bool,
    /// Of a session without a socket: replies as they are.
    local: Option<Vec<LocalReply>>,
}

/// What a session without a socket is told.
#[derive(Debug)]
pub enum LocalReply {
    /// The answer to the request of this number.
    Answer {
        /// The number.
        id: u64,
        /// The answer.
        response: Response,
        /// The bytes of a read.
        data: Bytes,
    },
    /// What the server says unasked.
    Push(Push),
}

/// What a connection has to write now.
#[derive(Default)]
pub struct Outgoing {
    /// Frames.
    pub buffer: BytesMut,
    /// Given back once they are written: bytes for a reader that does not read stay counted.
    pub permits: Vec<Permit>,
}

impl Outbox {
    /// Of a session without a socket.
    pub fn local() -> Self {
        Self { state: Mutex::new(State { local: Some(Vec::new()), ..State::default() }) }
    }

    /// Whether it is one of a session without a socket.
    pub fn is_local(&self) -> bool {
        self.state.lock().local.is_some()
    }

    /// Takes what a session without a socket was told, or registers the task to be woken for more.
    pub fn take_local(&self, waker: &Waker) -> Option<Vec<LocalReply>> {
        let mut state = self.state.lock();
        state.permits.clear();
        match &mut state.local {
            Some(replies) if !replies.is_empty() => Some(std::mem::take(replies)),
            _ => {
                if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                    state.waker = Some(waker.clone());
                }
                None
            }
        }
    }

    /// Appends an answer.
    pub fn push_answer(
        &self,
        request_id: u64,
        response: &Response,
        payload: &[ReadSegment],
        permit: Option<Permit>,
    ) {
        {
            let mut state = self.state.lock();
            if let Some(local) = &mut state.local {
                let mut data = BytesMut::with_capacity(payload.iter().map(segment_length).sum());
                payload.iter().for_each(|segment| append(&mut data, segment));
                let (response, data) = (response.clone(), data.freeze());
                local.push(LocalReply::Answer { id: request_id, response, data });
                return;
            }
        }
        self.push(request_id, response, payload, permit);
    }

    /// Appends what nobody asked for.
    pub fn push_unasked(&self, push: &Push) {
        {
            let mut state = self.state.lock();
            if let Some(local) = &mut state.local {
                local.push(LocalReply::Push(push.clone()));
                return;
            }
        }
        self.push(0, push, &[], None);
    }

    /// Appends a message with the bytes of a read. An answer that is too large for a frame becomes an error, so that its
    /// caller never waits for ever.
    fn push<M: Message>(
        &self,
        request_id: u64,
        message: &M,
        payload: &[ReadSegment],
        permit: Option<Permit>,
    ) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let length = payload.iter().map(segment_length).sum();
        match codec::encode_head(&mut state.buffer, request_id, message, length) {
            Ok(()) => payload.iter().for_each(|segment| append(&mut state.buffer, segment)),
            Err(error) => {
                tracing::error!(%error, "a reply could not be encoded");
                let answer = Response::Error(WireError::from(error));
                codec::encode_head(&mut state.buffer, request_id, &answer, 0)
                    .expect("an error always fits a frame");
            }
        }
        state.permits.extend(permit);
    }

    /// Tells the connection that there is something to write.
    pub fn wake(&self) {
        let waker = self.state.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().buffer.len()
    }

    /// Takes all that waits, or registers the task to be woken for more.
    pub fn take(&self, waker: &Waker) -> Option<Outgoing> {
        let mut state = self.state.lock();
        if state.buffer.is_empty() {
            if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                state.waker = Some(waker.clone());
            }
            return None;
        }
        let permits = std::mem::take(&mut state.permits);
        Some(Outgoing { buffer: state.buffer.split(), permits })
    }

    /// Gives an empty buffer's memory back when the connection goes idle.
    pub fn shrink(&self) {
        let mut state = self.state.lock();
        if state.buffer.is_empty() {
            state.buffer = BytesMut::new();
        }
    }

    /// The peer is gone: whatever waits or comes is dropped.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.buffer = BytesMut::new();
        state.permits = Vec::new();
        state.waker = None;
    }
}

/// Bytes of a piece of a read.
pub fn segment_length(segment: &ReadSegment) -> usize {
    match segment {
        ReadSegment::Zeros(length) | ReadSegment::Device { length, .. } => *length,
        ReadSegment::Memory { from, to, .. } => to - from,
    }
}

fn append(buffer: &mut BytesMut, segment: &ReadSegment) {
    match segment {
        ReadSegment::Zeros(length) => buffer.put_bytes(0, *length),
        ReadSegment::Memory { page, from, to } => buffer.extend_from_slice(&page[*from..*to]),
        ReadSegment::Device { .. } => panic!("a read is answered only when all of it is in memory"),
    }
}
