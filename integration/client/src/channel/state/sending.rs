//! From the queues into the wire's buffers.

use bytes::Bytes;
use subvol_protocol::request::{FileRequest, HandleRef, InodeRef, RequestEnvelope};
use subvol_protocol::response::{FileResponse, Response};
use tokio::time::Instant;

use super::super::handles::{Instead, Outgoing};
use super::{Background, Outcome, Probe, Reply, State, Wakers, waits_for_lock};
use crate::error::ClientError;
use crate::wire::Wire;

impl State {
    /// Something could be sent now.
    pub fn has_work(&self) -> bool {
        let ahead = !self.background.is_empty() || !self.urgent.is_empty();
        !self.draining && self.wire_in_flight < self.wire_limit && (ahead || self.may_send_ordinary())
    }

    /// There is an ordinary request, and neither the subscriber nor the oldest one keeps it back.
    fn may_send_ordinary(&self) -> bool {
        !self.unsent.is_empty() && !self.recovering && !matches!(self.probe, Probe::Out(_))
    }

    /// Encodes what may be sent into the wire's buffers.
    pub fn fill(&mut self, wire: &mut Wire, now: Instant, wakers: &mut Wakers) {
        while self.has_work() && wire.has_room() {
            let id = match self.background.pop_front() {
                Some(work) => match self.begin(work, now) {
                    Some(id) => id,
                    None => continue,
                },
                // Ordinary ones only come to their turn if they may be sent: that is what there is work means then.
                None => match self.urgent.pop_front().or_else(|| self.unsent.pop_front()) {
                    Some(id) => id,
                    None => return,
                },
            };
            self.send(id, now, wire, wakers);
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
            Background::Tell(request) => (*request, Outcome::Telling),
        };
        Some(self.occupy(request.into(), Bytes::new(), outcome, now))
    }

    /// Queues a request on the wire, or settles it here if it cannot be sent.
    fn send(&mut self, id: u64, now: Instant, wire: &mut Wire, wakers: &mut Wakers) {
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
            Outgoing::Not(Instead::Wait) => {
                self.parked.push(id);
                return;
            }
            Outgoing::Not(Instead::Refused(error)) => {
                let result = Ok(Reply { response: Response::Error(error), payload: Bytes::new() });
                self.settle(id, result, wakers);
                return;
            }
            Outgoing::Not(Instead::NothingToClose) => {
                let response = Response::File(FileResponse::Closed);
                self.settle(id, Ok(Reply { response, payload: Bytes::new() }), wakers);
                return;
            }
        };
        match queued {
            Ok(()) => {
                slot.due = true;
                slot.sent = now;
                slot.sends = slot.sends.saturating_add(1);
                // A wait for a lock is silent for as long as it takes: it would only keep the others back.
                let ordinary = !slot.urgent && waits_for_lock(&slot.envelope.request).is_none();
                if self.probe == Probe::Wanted && ordinary && matches!(slot.outcome, Outcome::Waiting(_)) {
                    self.probe = Probe::Out(id);
                }
                self.wire_in_flight += 1;
            }
            Err(error) => self.settle(id, Err(ClientError::Argument(error.to_string())), wakers),
        }
    }
}
