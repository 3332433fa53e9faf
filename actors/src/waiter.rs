//! Who waits for durability, and how they are told: a client directly, an actor that continues a request, a task.
//!
//! Invariant: every waiter is told exactly once; dropping one untold tells it that the server failed, so that no client
//! waits for ever.

use crate::runtime::Mailbox;
use crate::session::Session;
use crate::subvolume::{Resume, SubvolumeRoot};
use std::sync::Arc;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::response::Response;
use subvol_storage::types::TransactionId;

/// What a waiter is told: the newest durable transaction, or that nothing more will become durable.
pub type Outcome = Result<TransactionId, Failed>;

/// The store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// See the module.
pub struct Waiter(Option<Kind>);

enum Kind {
    Reply { session: Arc<Session>, request_id: u64, response: Response },
    Resume { root: Mailbox<SubvolumeRoot>, token: u64 },
    Task(tokio::sync::oneshot::Sender<Outcome>),
}

impl Waiter {
    /// A client that gets this answer.
    pub fn reply(session: Arc<Session>, request_id: u64, response: Response) -> Self {
        Self(Some(Kind::Reply { session, request_id, response }))
    }

    /// A request inside a subvolume that goes on.
    pub fn resume(root: Mailbox<SubvolumeRoot>, token: u64) -> Self {
        Self(Some(Kind::Resume { root, token }))
    }

    /// A task.
    pub fn task() -> (Self, tokio::sync::oneshot::Receiver<Outcome>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (Self(Some(Kind::Task(sender))), receiver)
    }

    /// Tells it.
    pub fn tell(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: Outcome) {
        match self.0.take() {
            None => {}
            Some(Kind::Reply { session, request_id, response }) => {
                match outcome {
                    Ok(_) => session.reply(request_id, &response),
                    Err(Failed) => session.reply_error(request_id, ErrorCode::Io),
                }
                session.outbox.wake();
            }
            Some(Kind::Resume { root, token }) => root.send(Resume { token, durable: Some(outcome.is_ok()) }),
            Some(Kind::Task(sender)) => drop(sender.send(outcome)),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.finish(Err(Failed));
    }
}
