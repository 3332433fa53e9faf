//! What goes between the subscriber of lease events and the server beside requests and answers: events, and requests nobody waits for.
//!
//! Invariants: without a subscriber nothing is held back and every recall is acknowledged at once, because nothing is kept; a
//! [`LeaseEvent::Lost`] replaces all events before it; others wait (`recovering`) until the subscriber that has seen the newest
//! [`LeaseEvent::Regained`] says so.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use subvol_protocol::limits::MAX_INODE_LIST;
use subvol_protocol::request::{FileRequest, Request};

use super::super::events::LeaseEvent;
use super::{Background, Outcome, State, Wakers};
use crate::error::ClientError;
use crate::limits::MAX_EVENTS;

/// An answer to a recall and the end of a wait mean nothing on the next connection: both went with this one.
const fn outlives_connection(request: &FileRequest) -> bool {
    !matches!(request, FileRequest::AcknowledgeRecalls { .. } | FileRequest::CancelLock { .. })
}

impl State {
    /// From now on there is a subscriber.
    pub fn subscribe(&mut self) {
        self.has_subscriber = true;
    }

    /// The subscriber is gone, and with it whatever it kept.
    pub fn unsubscribe(&mut self) {
        self.has_subscriber = false;
        self.recovering = false;
        self.event_waker = None;
        for event in std::mem::take(&mut self.events) {
            if let LeaseEvent::Recall { recall, .. } = event {
                self.tell_in_background(FileRequest::AcknowledgeRecalls { recalls: vec![recall] });
            }
        }
    }

    /// Tells the subscriber. `false`: the server recalls more at once than it can have granted.
    pub fn event(&mut self, event: LeaseEvent, wakers: &mut Wakers) -> bool {
        if !self.has_subscriber {
            if let LeaseEvent::Recall { recall, .. } = event {
                self.tell_in_background(FileRequest::AcknowledgeRecalls { recalls: vec![recall] });
            }
            return true;
        }
        match event {
            // What was recalled on a connection that is gone is dropped with everything else.
            LeaseEvent::Lost => {
                self.events.clear();
                self.seen_regained = false;
                self.recovering = true;
            }
            LeaseEvent::Regained { .. } => {
                self.seen_regained = false;
                self.recovering = true;
                self.refused = false;
            }
            LeaseEvent::Recall { .. } => {}
        }
        self.events.push_back(event);
        // Behind the wakers of the answers that came before.
        wakers.extend(self.event_waker.take());
        self.events.len() < MAX_EVENTS
    }

    /// The subscriber looks for an event; none will come when the server refuses this client or the channel has ended.
    pub fn next_event(&mut self, waker: &Waker) -> Poll<Option<LeaseEvent>> {
        match self.events.pop_front() {
            Some(event) => {
                self.seen_regained |= matches!(event, LeaseEvent::Regained { .. });
                Poll::Ready(Some(event))
            }
            None if self.ended || self.refused => Poll::Ready(None),
            None => {
                self.event_waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// The subscriber has claimed everything again. One that has not seen the newest `Regained` speaks of a connection that is gone.
    pub fn resume(&mut self) {
        if self.seen_regained {
            self.recovering = false;
        }
    }

    /// The server takes this client no more: the connection is not kept up for the subscriber alone.
    pub fn refuse(&mut self, wakers: &mut Wakers) {
        if self.has_subscriber {
            self.refused = true;
            wakers.extend(self.event_waker.take());
        }
    }

    /// The connection is kept up although nobody waits for an answer: who keeps things under leases wants to hear of recalls.
    pub const fn keeps_connection(&self) -> bool {
        self.has_subscriber && !self.refused && !self.closed
    }

    /// Tells the server something whose answer nobody needs. Lists of numbers are put together: recalls and forgotten inodes come in
    /// swarms.
    pub fn tell_in_background(&mut self, request: FileRequest) {
        if self.closed || self.ended || (!self.connected && !outlives_connection(&request)) {
            return;
        }
        if let Some(Background::Tell(last)) = self.background.back_mut() {
            match (&mut **last, &request) {
                (
                    FileRequest::AcknowledgeRecalls { recalls: kept },
                    FileRequest::AcknowledgeRecalls { recalls: more },
                )
                | (FileRequest::ForgetInodes { inodes: kept }, FileRequest::ForgetInodes { inodes: more })
                    if kept.len() + more.len() <= MAX_INODE_LIST =>
                {
                    kept.extend_from_slice(more);
                    return;
                }
                _ => {}
            }
        }
        self.background.push_back(Background::Tell(Box::new(request)));
    }

    /// What was told and has to be told again on the next connection, in the same order: an unlock or a forgotten inode that got lost
    /// would stay with a server that remembers this client. It goes before whatever is claimed again there, so it undoes nothing of it.
    pub(super) fn to_tell_again(&self, queued: VecDeque<Background>) -> VecDeque<Background> {
        let slots = self.slots.iter().filter(|slot| slot.id != 0 && matches!(slot.outcome, Outcome::Telling));
        let mut under_way: Vec<_> = slots.map(|slot| (slot.id, &slot.envelope.request)).collect();
        under_way.sort_unstable_by_key(|(id, _)| *id);
        let under_way = under_way.into_iter().filter_map(|(_, request)| match request {
            Request::File(request) => Some(Box::new(request.clone())),
            _ => None,
        });
        let queued = queued.into_iter().filter_map(|work| match work {
            Background::Tell(request) => Some(request),
            Background::Close(_) | Background::Reopen(_) => None,
        });
        let again = under_way.chain(queued).filter(|request| outlives_connection(request));
        again.map(Background::Tell).collect()
    }

    /// Fails what the subscriber asked on the connection that is gone: it claims everything again on the next one.
    pub(super) fn fail_urgent(&mut self, wakers: &mut Wakers) {
        self.urgent.clear();
        let mut failed = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.id != 0 && slot.urgent) {
            if let Outcome::Waiting(waker) = &mut slot.outcome {
                wakers.extend(waker.take());
                slot.outcome = Outcome::Ready(Err(ClientError::Interrupted));
                failed.push(slot.id);
            }
        }
        for id in failed {
            self.forget_unsent(id);
        }
    }

    /// Puts a request that is to be sent once more to the front of its queue. Those ahead of others must stay so, or they would wait for
    /// the others' turn, which comes only after them.
    pub(super) fn queue_again(&mut self, id: u64) {
        let ahead =
            self.slot(id).is_some_and(|slot| slot.urgent || !matches!(slot.outcome, Outcome::Waiting(_)));
        if ahead {
            self.urgent.push_front(id);
        } else {
            self.unsent.push_front(id);
        }
    }
}
