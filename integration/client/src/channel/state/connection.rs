//! What a connection's beginning and end, and time, do to the requests.
//!
//! Invariant: after [`State::connection_lost`] nothing is owed; whatever was is queued again in the order it was asked, or given up.

use std::time::Duration;

use subvol_protocol::request::{FileRequest, HandleRef, Request};
use tokio::time::Instant;

use super::super::events::LeaseEvent;
use super::{Background, Outcome, Probe, State, Wakers};
use crate::error::ClientError;

impl State {
    /// A new connection is up.
    pub fn connected(&mut self, wire_limit: u32, window: u32, epoch: u64) {
        self.connected = true;
        self.draining = false;
        self.fenced = false;
        self.wire_limit = wire_limit;
        self.window.set_limit(window);
        // It may have grown.
        self.returned.window = true;
        self.epoch = epoch;
        let was_sent = |id: &u64| {
            self.index_of(*id).and_then(|at| self.slots.get(at)).is_some_and(|slot| slot.sends > 0)
        };
        self.probe = if self.unsent.iter().any(was_sent) { Probe::Wanted } else { Probe::None };
        self.background.extend(self.handles.to_reopen().map(Background::Reopen));
    }

    /// The connection is gone: what it owes is to be sent again, in the order it was asked.
    pub fn connection_lost(&mut self, wakers: &mut Wakers) {
        if self.connected {
            let _ = self.event(LeaseEvent::Lost, wakers);
        }
        self.connected = false;
        self.draining = false;
        self.wire_in_flight = 0;
        // Closes that were to come are done: the server closed everything.
        let queued = std::mem::take(&mut self.background);
        for work in &queued {
            if let Background::Close(number) = work {
                self.handles.remove(*number);
            }
        }
        self.background = self.to_tell_again(queued);
        let mut again = std::mem::take(&mut self.parked);
        let mut over = Vec::new();
        for slot in &mut self.slots {
            let was_due = std::mem::take(&mut slot.due);
            match &slot.outcome {
                _ if slot.id == 0 => {}
                Outcome::Waiting(_) if slot.urgent => {}
                Outcome::Waiting(_) if was_due => again.push(slot.id),
                Outcome::Waiting(_) | Outcome::Ready(_) => {}
                Outcome::Abandoned | Outcome::Closing | Outcome::Reopening(_) | Outcome::Telling => {
                    over.push(slot.id);
                }
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
            self.forget_unsent(id);
            self.vacate(id);
        }
        self.fail_urgent(wakers);
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
        self.urgent.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.id != 0) {
            if let Outcome::Waiting(waker) = &mut slot.outcome {
                wakers.extend(waker.take());
                slot.outcome = Outcome::Ready(Err(error.clone()));
            }
        }
    }

    /// Fails what has waited too long.
    pub fn expire(&mut self, now: Instant, patience: Duration, wakers: &mut Wakers) {
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

    /// Goes on with all requests: the oldest one takes long, but it does not break the connection.
    pub fn end_probe(&mut self) {
        self.probe = Probe::None;
    }
}
