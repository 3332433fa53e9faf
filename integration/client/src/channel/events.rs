//! What the server says unasked, and what happens to the connection, for the one who keeps things under leases.
//!
//! After a loss the subscriber drops what it kept, and on the new connection claims again what it holds. Until it says
//! [`LeaseEvents::resume`], nothing else is sent: a request that the server answers without knowing what this client holds could be wrong.

use std::future::poll_fn;

use bytes::Bytes;
use subvol_protocol::request::{FileRequest, Request};
use subvol_protocol::response::{FileResponse, RecallTarget, Response};

use super::Channel;
use super::state::State;
use crate::error::{ClientError, Result};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Give these up, then acknowledge. Answers that came before it were handed out before it.
    Recall {
        /// The number to acknowledge.
        recall: u64,
        /// What; empty for everything.
        targets: Vec<RecallTarget>,
    },
    /// The connection is gone, or the server was silent for too long: what is kept must be dropped now.
    Lost,
    /// There is a new connection, for the subscriber alone until it resumes.
    Regained {
        /// Whether answers grant leases.
        granted: bool,
        /// The server started anew since.
        restarted: bool,
    },
}

/// The subscriber's end. One per channel. Dropping it ends the subscription: recalls are then acknowledged by the library, because
/// nothing is kept any more.
#[derive(Debug)]
pub struct LeaseEvents {
    channel: Channel,
}

impl LeaseEvents {
    pub(crate) fn subscribe(channel: Channel) -> Self {
        channel.shared().with_state(State::subscribe);
        Self { channel }
    }

    /// The next event; `None` when there will be none, because the channel was closed or the server takes this client no more. One caller
    /// at a time.
    pub async fn next(&self) -> Option<LeaseEvent> {
        poll_fn(|context| self.channel.shared().with_state(|state| state.next_event(context.waker()))).await
    }

    /// Asks before all others; fails when the connection is lost once more.
    ///
    /// # Errors
    /// The server's, and those of a connection.
    pub async fn recover(&self, request: FileRequest) -> Result<FileResponse> {
        let name = request.name();
        let reply = self.channel.send_as(Request::File(request), Bytes::new(), true).await?;
        match reply.response {
            Response::File(answer) => Ok(answer),
            _ => Err(ClientError::unexpected(name)),
        }
    }

    /// Everything is claimed again: other requests go on. Does nothing if the connection that the last `Regained` told of is lost again:
    /// the next one has a `Regained` of its own.
    pub fn resume(&self) {
        self.channel.shared().with_state(State::resume);
        self.channel.shared().wake_driver();
    }

    /// Whether there is a connection and the server is heard of.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.channel.shared().with_state(|state| state.connected)
    }

    /// Whether answers grant leases now.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        self.channel.shared().with_state(|state| state.connected && !state.recovering)
            && self.channel.greeting().leases.is_some_and(|leases| leases.granted)
    }

    /// Tells something whose answer nobody needs, without waiting for a turn. Answers to recalls and
    /// cancelled waits are dropped with their connection; other things are told on the next one, before anything is claimed there.
    pub fn tell(&self, request: FileRequest) {
        self.channel.tell(request);
    }
}

impl Drop for LeaseEvents {
    fn drop(&mut self) {
        self.channel.shared().with_state(State::unsubscribe);
        self.channel.shared().wake_driver();
    }
}
