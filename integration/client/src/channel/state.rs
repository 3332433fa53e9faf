//! Requests between callers and the driver: slots, queues, what is owed.
//!
//! Invariants:
//! - a request id names a slot and its occupant; an answer to an id that is not owed breaks the protocol;
//! - at most `wire_limit` requests are unanswered on the connection, whoever asked;
//! - a slot whose caller has gone is kept while its answer is owed (the server still counts it) and freed with it;
//! - nothing here waits or does I/O: both sides hold the lock for a few moments only.

mod answers;
mod connection;
mod sending;
mod unasked;

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use subvol_protocol::attributes::Lineage;
use subvol_protocol::limits::MAX_IN_FLIGHT;
use subvol_protocol::request::{FileRequest, OperationId, Request, RequestEnvelope, SessionRequest};
use subvol_protocol::response::{FileResponse, Response};
use tokio::time::Instant;

use super::events::LeaseEvent;
use super::handles::{Handles, ServerHandle};
use super::window::OperationWindow;
use crate::error::{ClientError, Result};
use crate::limits::{PING_SLOT, SLOT_BITS};

/// An answer with its bytes.
#[derive(Debug)]
pub(crate) struct Reply {
    pub response: Response,
    pub payload: Bytes,
}

/// The number of the wait, if the request waits for a lock: as long as that takes.
pub(super) const fn waits_for_lock(request: &Request) -> Option<u64> {
    match request {
        Request::File(FileRequest::Lock { wait, .. }) => *wait,
        _ => None,
    }
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
    /// Nobody: the server was told something.
    Telling,
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
    /// When it was sent last.
    sent: Instant,
    sends: u32,
    refusals: u32,
    deadline: Instant,
    presented: Option<Lineage>,
    /// Holds one of the permits.
    permit: bool,
    /// Of the subscriber: sent before all others, and given up when the connection is lost.
    urgent: bool,
}

/// Work of the library itself.
#[derive(Debug)]
enum Background {
    Close(u64),
    Reopen(u64),
    Tell(Box<FileRequest>),
}

/// After a connection broke with requests under way, the next one begins with the oldest of them alone. If that is the one that breaks
/// connections, only it is counted and given up; otherwise it would take all others with it.
#[derive(Debug, PartialEq, Eq)]
enum Probe {
    None,
    /// The next request is the probe.
    Wanted,
    /// This request is under way.
    Out(u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    slots: Vec<Slot>,
    free: Vec<u16>,
    last_id: u64,
    unsent: VecDeque<u64>,
    urgent: VecDeque<u64>,
    /// Waiting for their handle to be opened again.
    parked: Vec<u64>,
    background: VecDeque<Background>,
    wire_in_flight: u32,
    wire_limit: u32,
    probe: Probe,
    window: OperationWindow,
    client_id: [u8; 16],
    max_sends: u32,
    pub handles: Handles,
    /// The epoch of the volume on this connection.
    epoch: u64,
    pub connected: bool,
    /// The server announced its end: nothing more is sent on this connection.
    pub draining: bool,
    /// The server ended this client's leases, and will shut the connection.
    pub fenced: bool,
    /// No user is left, or the channel was closed.
    pub closed: bool,
    /// The driver is gone; nothing will be answered any more.
    pub ended: bool,
    /// The driver, when it sleeps.
    pub driver: Option<Waker>,
    /// Somebody follows the events.
    pub has_subscriber: bool,
    pub events: VecDeque<LeaseEvent>,
    pub event_waker: Option<Waker>,
    /// The subscriber claims its things again; the others wait.
    pub recovering: bool,
    /// The subscriber has seen the newest `Regained`.
    seen_regained: bool,
    /// The server refused this client, and the subscriber is told so.
    refused: bool,
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
    WindowFull(Box<(Request, Bytes)>),
    /// There is no driver.
    Closed,
    /// It is for one connection only, and there is none.
    NotConnected,
}

impl State {
    pub fn new(client_id: [u8; 16], max_sends: u32, by_inode: bool) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            last_id: 0,
            unsent: VecDeque::new(),
            urgent: VecDeque::new(),
            parked: Vec::new(),
            background: VecDeque::new(),
            wire_in_flight: 0,
            wire_limit: 1,
            probe: Probe::None,
            window: OperationWindow::new(MAX_IN_FLIGHT),
            client_id,
            max_sends,
            handles: Handles::new(by_inode),
            epoch: 0,
            connected: false,
            draining: false,
            fenced: false,
            closed: false,
            ended: false,
            driver: None,
            has_subscriber: false,
            events: VecDeque::new(),
            event_waker: None,
            recovering: false,
            seen_regained: false,
            refused: false,
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
            sent: deadline,
            sends: 0,
            refusals: 0,
            deadline,
            presented: None,
            permit,
            urgent: false,
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

    /// Takes a request in. The caller holds a permit, which is the slot's from now on unless the request is urgent.
    pub fn submit(
        &mut self,
        request: Request,
        payload: Bytes,
        deadline: Instant,
        urgent: bool,
    ) -> Result<u64, NotTaken> {
        if self.closed || self.ended {
            return Err(NotTaken::Closed);
        }
        if urgent && !self.connected {
            return Err(NotTaken::NotConnected);
        }
        let operation = if request.is_changing() {
            match self.window.next() {
                Some(sequence) => Some(OperationId { client: self.client_id, sequence }),
                None => return Err(NotTaken::WindowFull(Box::new((request, payload)))),
            }
        } else {
            None
        };
        let id =
            self.occupy(RequestEnvelope { operation, request }, payload, Outcome::Waiting(None), deadline);
        if urgent {
            if let Some(slot) = self.slot(id) {
                (slot.urgent, slot.permit) = (true, false);
            }
            self.urgent.push_back(id);
        } else {
            self.unsent.push_back(id);
        }
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
        let wait = if due { waits_for_lock(&slot.envelope.request) } else { None };
        let outcome = std::mem::replace(&mut slot.outcome, Outcome::Abandoned);
        match outcome {
            Outcome::Ready(Ok(reply)) => self.close_unclaimed(&reply.response),
            Outcome::Waiting(_) if !due => self.forget_unsent(id),
            _ => {}
        }
        if let Some(wait) = wait {
            self.tell_in_background(FileRequest::CancelLock { wait });
        }
        if !due {
            self.vacate(id);
        }
    }

    fn forget_unsent(&mut self, id: u64) {
        self.unsent.retain(|&waiting| waiting != id);
        self.urgent.retain(|&waiting| waiting != id);
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

    /// Something waits for a connection.
    pub fn wants_connection(&self) -> bool {
        !self.unsent.is_empty() || self.keeps_connection()
    }

    /// The server owes answers.
    pub const fn is_owed(&self) -> bool {
        self.wire_in_flight > 0
    }

    /// Nothing is owed and nothing is left to send.
    pub fn is_idle(&self) -> bool {
        self.wire_in_flight == 0
            && self.unsent.is_empty()
            && self.urgent.is_empty()
            && self.background.is_empty()
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
}
