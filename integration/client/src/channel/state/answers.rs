//! From an answer to who waits for it, by way of handles and history.

use std::collections::VecDeque;

use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{FileRequest, HandleRef, Request};
use subvol_protocol::response::{FileResponse, Response};
use tokio::time::Instant;

use super::super::handles::{Handles, ServerHandle};
use super::super::settle::{Circumstances, settle};
use super::{Background, Outcome, Probe, Reply, State, Wakers};
use crate::error::{ClientError, Result};

impl State {
    /// Takes in an answer; gives the time its request was sent. `None`: no such answer is owed.
    #[must_use]
    pub fn answered(&mut self, id: u64, result: Result<Reply>, wakers: &mut Wakers) -> Option<Instant> {
        let max_refusals = self.max_sends;
        let slot = self.slot(id).filter(|slot| slot.due)?;
        slot.due = false;
        let sent = slot.sent;
        let stays = !slot.urgent && matches!(slot.outcome, Outcome::Waiting(_));
        let abandoned = matches!(slot.outcome, Outcome::Abandoned | Outcome::Ready(_));
        let refusals = slot.refusals;
        self.wire_in_flight -= 1;
        if self.probe == Probe::Out(id) {
            self.probe = Probe::None;
        }
        if let Ok(Reply { response: Response::Error(error), .. }) = &result {
            match error.code {
                // It was not done, and will be on the next connection.
                ErrorCode::ShuttingDown | ErrorCode::Fenced => {
                    self.draining = true;
                    self.fenced |= error.code == ErrorCode::Fenced;
                    if !abandoned {
                        // The end of the connection decides about the library's own and the subscriber's.
                        if stays {
                            self.unsent.push_back(id);
                        }
                        return Some(sent);
                    }
                }
                // The limit of the hello was kept, so the server allows less at times. Each such answer is a whole trip, so there is
                // no hurry in asking again.
                ErrorCode::TooManyRequests if !abandoned && refusals < max_refusals => {
                    if let Some(slot) = self.slot(id) {
                        slot.refusals += 1;
                    }
                    self.wire_limit = self.wire_in_flight.max(1);
                    self.queue_again(id);
                    return Some(sent);
                }
                _ => {}
            }
        }
        self.settle(id, result, wakers);
        Some(sent)
    }

    /// Works an answer into handles and history and gives it to who waits.
    pub(super) fn settle(&mut self, id: u64, mut result: Result<Reply>, wakers: &mut Wakers) {
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
            self.queue_again(id);
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
            Outcome::Abandoned | Outcome::Closing | Outcome::Reopening(_) | Outcome::Telling => {
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
