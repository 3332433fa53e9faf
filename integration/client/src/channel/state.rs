//! Requests between callers and the driver: slots, queues, what is owed.
//!
//! Invariants:
//! - a request id names a slot and its occupant; an answer to an id that is not owed breaks the protocol;
//! - at most `wire_limit` requests are unanswered on the connection, whoever asked;
//! - a slot whose caller has gone is kept while its answer is owed (the server still counts it) and freed with it;
//! - nothing here waits or does I/O: both sides hold the lock for a few moments only.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use subvol_protocol::attributes::Lineage;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::limits::MAX_IN_FLIGHT;
use subvol_protocol::request::{
    FileRequest, HandleRef, InodeRef, OperationId, Request, RequestEnvelope, SessionRequest,
};
use subvol_protocol::response::{FileResponse, Response};
use tokio::time::Instant;

use super::handles::{Handles, Outgoing, ServerHandle};
use super::settle::{Circumstances, settle};
use super::window::OperationWindow;
use crate::error::{ClientError, Result};
use crate::limits::{PING_SLOT, SLOT_BITS};
use crate::wire::Wire;

/// An answer with its bytes.
#[derive(Debug)]
pub(crate) struct Reply {
    pub response: Response,
    pub payload: Bytes,
}

/// Wakers collected under the lock and woken after it.
pub(super) type Wakers = Vec<Waker>;

/// Who waits for a slot's answer.
#[derive(Debug)]
enum Outcome {
    /// A caller that has been told nothing yet.
    Waiting(Option<Waker>),
    /// The answer, for the caller to take.
    Ready(Result<Reply>),
    /// Nobody any more.
    Abandoned,
    /// The library: a close nobody waits for.
    Closing,
    /// The library: opening this handle again.
    Reopening(u64),
}

#[derive(Debug)]
struct Slot {
    /// 0 when free.
    id: u64,
    envelope: RequestEnvelope,
    payload: Bytes,
    outcome: Outcome,
    /// Sent on this connection and unanswered.
    due: bool,
    sends: u32,
    refusals: u32,
    deadline: Instant,
    presented: Option<Lineage>,
    /// Holds one of the permits.
    permit: bool,
}

/// Work of the library itself.
#[derive(Debug)]
enum Background {
    Close(u64),
    Reopen(u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    slots: Vec<Slot>,
    free: Vec<u16>,
    last_id: u64,
    unsent: VecDeque<u64>,
    /// Waiting for their handle to be opened again.
    parked: Vec<u64>,
    background: VecDeque<Background>,
    wire_in_flight: u32,
    wire_limit: u32,
    window: OperationWindow,
    client_id: [u8; 16],
    max_sends: u32,
    pub handles: Handles,
    /// The epoch of the volume on this connection.
    epoch: u64,
    pub connected: bool,
    /// The server announced its end: nothing more is sent on this connection.
    pub draining: bool,
    /// No user is left, or the channel was closed.
    pub closed: bool,
    /// The driver is gone; nothing will be answered any more.
    pub ended: bool,
    /// The driver, when it sleeps.
    pub driver: Option<Waker>,
    /// Permits and places in the window to give back once the lock is released.
    pub returned: Returned,
}

/// What became free under the lock.
#[derive(Debug, Default)]
pub(super) struct Returned {
    pub permits: usize,
    pub window: bool,
}

/// Why a request was not taken.
pub(super) enum NotTaken {
    /// The window of operation ids is full; here it is back.
    WindowFull(Request, Bytes),
    /// There is no driver.
    Closed,
}

impl State {
    pub fn new(client_id: [u8; 16], max_sends: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            last_id: 0,
            unsent: VecDeque::new(),
            parked: Vec::new(),
            background: VecDeque::new(),
            wire_in_flight: 0,
            wire_limit: 1,
            window: OperationWindow::new(MAX_IN_FLIGHT),
            client_id,
            max_sends,
            handles: Handles::default(),
            epoch: 0,
            connected: false,
            draining: false,
            closed: false,
            ended: false,
            driver: None,
            returned: Returned::default(),
        }
    }

    fn index_of(&self, id: u64) -> Option<usize> {
        let index = (id & PING_SLOT) as usize;
        self.slots.get(index).filter(|slot| slot.id == id && id != 0).map(|_| index)
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let index = self.index_of(id)?;
        self.slots.get_mut(index)
    }

    fn occupy(
        &mut self,
        envelope: RequestEnvelope,
        payload: Bytes,
        outcome: Outcome,
        deadline: Instant,
    ) -> u64 {
        let index = self.free.pop().unwrap_or(self.slots.len() as u16);
        self.last_id += 1;
        let id = self.last_id << SLOT_BITS | u64::from(index);
        let permit = matches!(outcome, Outcome::Waiting(_));
        let slot = Slot {
            id,
            envelope,
            payload,
            outcome,
            due: false,
            sends: 0,
            refusals: 0,
            deadline,
            presented: None,
            permit,
        };
        match self.slots.get_mut(usize::from(index)) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        // Permits and the wire's limit bound the occupants.
        assert!((self.slots.len() as u64) < PING_SLOT, "more requests under way than the limits allow");
        id
    }

    fn vacate(&mut self, id: u64) {
        let Some(index) = self.index_of(id) else { return };
        let Some(slot) = self.slots.get_mut(index) else { return };
        assert!(!slot.due, "a slot whose answer is owed was freed");
        slot.id = 0;
        slot.payload = Bytes::new();
        slot.outcome = Outcome::Abandoned;
        let envelope = std::mem::replace(&mut slot.envelope, Request::Session(SessionRequest::Ping).into());
        self.returned.permits += usize::from(std::mem::take(&mut slot.permit));
        self.free.push(index as u16);
        if let Some(operation) = envelope.operation {
            self.returned.window |= self.window.done(operation.sequence);
        }
    }

    /// Takes a request in. The caller holds a permit, which is the slot's from now on.
    pub fn submit(&mut self, request: Request, payload: Bytes, deadline: Instant) -> Result<u64, NotTaken> {
        if self.closed || self.ended {
            return Err(NotTaken::Closed);
        }
        let operation = if request.is_changing() {
            match self.window.next() {
                Some(sequence) => Some(OperationId { client: self.client_id, sequence }),
                None => return Err(NotTaken::WindowFull(request, payload)),
            }
        } else {
            None
        };
        let id =
            self.occupy(RequestEnvelope { operation, request }, payload, Outcome::Waiting(None), deadline);
        self.unsent.push_back(id);
        Ok(id)
    }

    /// The caller looks for its answer.
    pub fn poll(&mut self, id: u64, waker: &Waker) -> Option<Result<Reply>> {
        let Some(slot) = self.slot(id) else { return Some(Err(ClientError::Closed)) };
        match &mut slot.outcome {
            Outcome::Waiting(Some(kept)) => {
                kept.clone_from(waker);
                None
            }
            Outcome::Waiting(none) => {
                *none = Some(waker.clone());
                None
            }
            Outcome::Ready(_) => {
                let Outcome::Ready(result) = std::mem::replace(&mut slot.outcome, Outcome::Abandoned) else {
                    return None;
                };
                // Timed out but still owed: the server counts it, so the slot stays.
                if !slot.due {
                    self.vacate(id);
                }
                Some(result)
            }
            _ => Some(Err(ClientError::Closed)),
        }
    }

    /// The caller gave up.
    pub fn abandon(&mut self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        let due = slot.due;
        let outcome = std::mem::replace(&mut slot.outcome, Outcome::Abandoned);
        match outcome {
            Outcome::Ready(Ok(reply)) => self.close_unclaimed(&reply.response),
            Outcome::Waiting(_) if !due => self.forget_unsent(id),
            _ => {}
        }
        if !due {
            self.vacate(id);
        }
    }

    fn forget_unsent(&mut self, id: u64) {
        self.unsent.retain(|&waiting| waiting != id);
        self.parked.retain(|&waiting| waiting != id);
    }

    /// An answer nobody takes may have opened a handle.
    fn close_unclaimed(&mut self, response: &Response) {
        match response {
            Response::File(answer) => {
                if let Some(handle) = answer.handle() {
                    self.close_in_background(handle);
                }
            }
            Response::Compound { results } => {
                for handle in results.iter().flatten().filter_map(FileResponse::handle) {
                    self.close_in_background(handle);
                }
            }
            _ => {}
        }
    }

    /// Closes a handle, unless that is under way.
    pub fn close_in_background(&mut self, number: u64) {
        let connected = self.connected;
        match self.handles.get_mut(number) {
            Some(handle) if !handle.closing => {
                if connected && !matches!(handle.server, ServerHandle::Dead(_)) {
                    handle.closing = true;
                    self.background.push_back(Background::Close(number));
                } else {
                    // The server closed it with the connection.
                    self.handles.remove(number);
                }
            }
            _ => {}
        }
    }

    /// A new connection is up.
    pub fn connected(&mut self, wire_limit: u32, window: u32, epoch: u64) {
        self.connected = true;
        self.draining = false;
        self.wire_limit = wire_limit;
        self.window.set_limit(window);
        // It may have grown.
        self.returned.window = true;
        self.epoch = epoch;
        self.background.extend(self.handles.to_reopen().map(Background::Reopen));
    }

    /// The connection is gone: what it owes is to be sent again, in the order it was asked.
    pub fn connection_lost(&mut self) {
        self.connected = false;
        self.draining = false;
        self.wire_in_flight = 0;
        // Closes that were to come are done: the server closed everything.
        for work in std::mem::take(&mut self.background) {
            if let Background::Close(number) = work {
                self.handles.remove(number);
            }
        }
        let mut again = std::mem::take(&mut self.parked);
        let mut over = Vec::new();
        for slot in &mut self.slots {
            let was_due = std::mem::take(&mut slot.due);
            match &slot.outcome {
                _ if slot.id == 0 => {}
                Outcome::Waiting(_) if was_due => again.push(slot.id),
                Outcome::Waiting(_) | Outcome::Ready(_) => {}
                Outcome::Abandoned | Outcome::Closing | Outcome::Reopening(_) => over.push(slot.id),
            }
        }
        for id in over {
            let closes = self.slot(id).and_then(|slot| match &slot.envelope.request {
                Request::File(FileRequest::Close { handle: HandleRef::Explicit(number), .. }) => {
                    Some(*number)
                }
                _ => None,
            });
            if let Some(number) = closes {
                self.handles.remove(number);
            }
            again.retain(|&waiting| waiting != id);
            self.unsent.retain(|&waiting| waiting != id);
            self.vacate(id);
        }
        self.handles.connection_lost();
        again.sort_unstable();
        for id in again.into_iter().rev() {
            self.unsent.push_front(id);
        }
    }

    /// Fails everything that waits.
    pub fn fail_all(&mut self, error: &ClientError, wakers: &mut Wakers) {
        assert!(self.wire_in_flight == 0, "requests were failed while the connection owed answers");
        self.unsent.clear();
        self.parked.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.id != 0) {
            if let Outcome::Waiting(waker) = &mut slot.outcome {
                wakers.extend(waker.take());
                slot.outcome = Outcome::Ready(Err(error.clone()));
            }
        }
    }

    /// Something waits for a connection.
    pub fn wants_connection(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Something could be sent now.
    pub fn has_work(&self) -> bool {
        !self.draining
            && self.wire_in_flight < self.wire_limit
            && !(self.unsent.is_empty() && self.background.is_empty())
    }

    /// The server owes answers.
    pub const fn is_owed(&self) -> bool {
        self.wire_in_flight > 0
    }

    /// Nothing is owed and nothing is left to send.
    pub fn is_idle(&self) -> bool {
        self.wire_in_flight == 0 && self.unsent.is_empty() && self.background.is_empty()
    }

    /// Somebody waits, so deadlines matter.
    pub fn is_in_use(&self) -> bool {
        self.free.len() < self.slots.len()
    }

    /// Requests that are in slots, for tests of leaks.
    #[cfg(test)]
    pub fn occupied(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Encodes what may be sent into the wire's buffers.
    pub fn fill(&mut self, wire: &mut Wire, now: Instant, wakers: &mut Wakers) {
        while self.has_work() && wire.has_room() {
            let id = match self.background.pop_front() {
                Some(work) => match self.begin(work, now) {
                    Some(id) => id,
                    None => continue,
                },
                None => match self.unsent.pop_front() {
                    Some(id) => id,
                    None => return,
                },
            };
            self.send(id, wire, wakers);
        }
    }

    /// Gives the library's own work a slot.
    fn begin(&mut self, work: Background, now: Instant) -> Option<u64> {
        let (request, outcome) = match work {
            Background::Close(number) => {
                let handle = HandleRef::Explicit(number);
                (FileRequest::Close { handle, lineage: None }, Outcome::Closing)
            }
            Background::Reopen(number) => {
                let handle = self.handles.get_mut(number)?;
                let inode = InodeRef::Explicit(handle.inode);
                (FileRequest::Open { inode, flags: handle.flags }, Outcome::Reopening(number))
            }
        };
        Some(self.occupy(request.into(), Bytes::new(), outcome, now))
    }

    fn send(&mut self, id: u64, wire: &mut Wire, wakers: &mut Wakers) {
        let Some(index) = self.index_of(id) else { return };
        let Some(slot) = self.slots.get_mut(index) else { return };
        let queued = match self.handles.translate(&slot.envelope.request) {
            Outgoing::AsIs => {
                slot.presented = None;
                wire.queue(id, &slot.envelope, &slot.payload)
            }
            Outgoing::Translated(request, presented) => {
                slot.presented = presented;
                let envelope = RequestEnvelope { operation: slot.envelope.operation, request };
                wire.queue(id, &envelope, &slot.payload)
            }
            Outgoing::Wait => {
                self.parked.push(id);
                return;
            }
            Outgoing::Refused(error) => {
                let result = Ok(Reply { response: Response::Error(error), payload: Bytes::new() });
                self.settle(id, result, wakers);
                return;
            }
            Outgoing::NothingToClose => {
                let response = Response::File(FileResponse::Closed);
                self.settle(id, Ok(Reply { response, payload: Bytes::new() }), wakers);
                return;
            }
        };
        match queued {
            Ok(()) => {
                slot.due = true;
                slot.sends += 1;
                self.wire_in_flight += 1;
            }
            Err(error) => self.settle(id, Err(ClientError::Argument(error.to_string())), wakers),
        }
    }

    /// Takes in an answer. `false`: no such answer is owed.
    #[must_use]
    pub fn answered(&mut self, id: u64, result: Result<Reply>, wakers: &mut Wakers) -> bool {
        let max_refusals = self.max_sends;
        let Some(slot) = self.slot(id).filter(|slot| slot.due) else { return false };
        slot.due = false;
        let abandoned = matches!(slot.outcome, Outcome::Abandoned | Outcome::Ready(_));
        let refusals = slot.refusals;
        self.wire_in_flight -= 1;
        if let Ok(Reply { response: Response::Error(error), .. }) = &result {
            match error.code {
                // It was not done, and will be on the next connection.
                ErrorCode::ShuttingDown => {
                    self.draining = true;
                    if !abandoned {
                        self.unsent.push_back(id);
                        return true;
                    }
                }
                // The limit of the hello was kept, so the server allows less at times. Each such answer is a whole trip, so there is
                // no hurry in asking again.
                ErrorCode::TooManyRequests if !abandoned && refusals < max_refusals => {
                    if let Some(slot) = self.slot(id) {
                        slot.refusals += 1;
                    }
                    self.wire_limit = self.wire_in_flight.max(1);
                    self.unsent.push_front(id);
                    return true;
                }
                _ => {}
            }
        }
        self.settle(id, result, wakers);
        true
    }

    /// Works an answer into handles and history and gives it to who waits.
    fn settle(&mut self, id: u64, mut result: Result<Reply>, wakers: &mut Wakers) {
        let Some(index) = self.index_of(id) else { return };
        let Some(slot) = self.slots.get_mut(index) else { return };
        let mut reopen = VecDeque::new();
        if let Outcome::Reopening(number) = slot.outcome {
            self.reopened(id, number, result);
            return;
        }
        let circumstances =
            Circumstances { presented: slot.presented, resent: slot.sends > 1, epoch: self.epoch };
        let again = match (&slot.envelope.request, &mut result) {
            (Request::File(step), Ok(reply)) => {
                settle_one(&mut self.handles, step, reply, &circumstances, &mut reopen)
            }
            (Request::File(FileRequest::Close { handle: HandleRef::Explicit(number), .. }), Err(_)) => {
                self.handles.remove(*number);
                false
            }
            (Request::Compound { steps }, Ok(Reply { response: Response::Compound { results }, .. })) => {
                if results.len() > steps.len() {
                    result = Err(ClientError::unexpected("Compound"));
                } else {
                    let steps = steps.as_slice();
                    let _ = settle(&mut self.handles, steps, results, &circumstances, &mut reopen);
                }
                false
            }
            _ => false,
        };
        for number in reopen {
            self.background.push_back(Background::Reopen(number));
        }
        if again && matches!(slot.outcome, Outcome::Waiting(_)) {
            self.unsent.push_front(id);
            return;
        }
        match &mut slot.outcome {
            Outcome::Waiting(waker) => {
                wakers.extend(waker.take());
                slot.outcome = Outcome::Ready(result.and_then(|reply| match reply.response {
                    Response::Error(error) => Err(ClientError::Server(error)),
                    response => Ok(Reply { response, payload: reply.payload }),
                }));
            }
            // It timed out and its caller has not looked yet: the time-out stays the answer, and the caller frees the slot.
            Outcome::Ready(_) => {
                if let Ok(reply) = &result {
                    self.close_unclaimed(&reply.response);
                }
            }
            Outcome::Abandoned | Outcome::Closing | Outcome::Reopening(_) => {
                match &result {
                    Ok(Reply { response: Response::Error(error), .. })
                        if matches!(slot.outcome, Outcome::Closing) =>
                    {
                        tracing::warn!(%error, "a file that was dropped without close could not be closed cleanly");
                    }
                    Ok(reply) => {
                        self.close_unclaimed(&reply.response);
                    }
                    Err(_) => {}
                }
                self.vacate(id);
            }
        }
    }

    /// The answer to opening a handle again.
    fn reopened(&mut self, id: u64, number: u64, result: Result<Reply>) {
        let server = match result {
            Ok(Reply { response: Response::File(FileResponse::Opened { handle, .. }), .. }) => {
                ServerHandle::Live(handle)
            }
            Ok(Reply { response: Response::Error(error), .. }) => ServerHandle::Dead(error),
            Ok(_) | Err(_) => ServerHandle::Dead(ErrorCode::StaleHandle.into()),
        };
        self.vacate(id);
        if let Some(handle) = self.handles.get_mut(number) {
            handle.server = server;
        }
        // Those of other handles are parked again when their turn comes.
        let mut again = std::mem::take(&mut self.parked);
        again.sort_unstable();
        for id in again.into_iter().rev() {
            self.unsent.push_front(id);
        }
    }

    /// Fails what has waited too long.
    pub fn expire(&mut self, now: Instant, patience: std::time::Duration, wakers: &mut Wakers) {
        let mut unsent = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.id != 0 && slot.deadline <= now) {
            let Outcome::Waiting(waker) = &mut slot.outcome else { continue };
            wakers.extend(waker.take());
            slot.outcome = Outcome::Ready(Err(ClientError::Timeout {
                operation: slot.envelope.request.name(),
                after: patience,
                changing: slot.envelope.request.is_changing(),
            }));
            if !slot.due {
                unsent.push(slot.id);
            }
        }
        for id in unsent {
            self.forget_unsent(id);
        }
    }

    /// Fails what was sent on too many connections: a request that kills its server must not do so for ever.
    pub fn fail_resent(&mut self, error: &ClientError, wakers: &mut Wakers) {
        let max_sends = self.max_sends;
        let mut failed = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.id != 0 && !slot.due && slot.sends >= max_sends)
        {
            let Outcome::Waiting(waker) = &mut slot.outcome else { continue };
            wakers.extend(waker.take());
            slot.outcome = Outcome::Ready(Err(error.clone()));
            failed.push(slot.id);
        }
        for id in failed {
            self.forget_unsent(id);
        }
    }
}

/// [`settle`] for a request that stands alone.
fn settle_one(
    handles: &mut Handles,
    step: &FileRequest,
    reply: &mut Reply,
    circumstances: &Circumstances,
    reopen: &mut VecDeque<u64>,
) -> bool {
    let placeholder = Response::File(FileResponse::Closed);
    let steps = std::slice::from_ref(step);
    match std::mem::replace(&mut reply.response, placeholder) {
        Response::File(answer) => {
            let mut result = [Ok(answer)];
            let again = settle(handles, steps, &mut result, circumstances, reopen);
            let [result] = result;
            if let Ok(answer) = result {
                reply.response = Response::File(answer);
            }
            again
        }
        Response::Error(error) => {
            let _ = settle(handles, steps, &mut [Err(error.clone())], circumstances, reopen);
            reply.response = Response::Error(error);
            false
        }
        other => {
            reply.response = other;
            false
        }
    }
}
