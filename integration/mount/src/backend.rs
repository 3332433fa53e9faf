//! What the front end needs of a way to reach a volume: requests, answers, and what the server says unasked.
//!
//! There are two: over a connection ([`crate::remote`]), and inside the server's own process. Both live on the event loop of the front
//! end, so nothing here has to cross threads.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use subvol_protocol::request::FileRequest;
use subvol_protocol::response::{FileResponse, RecallTarget};

/// Why a request has no answer: the errno to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub i32);

/// An answer, with the bytes of a read.
pub type Answer = Result<(FileResponse, Bytes), Failure>;

/// What the server says unasked.
#[derive(Debug)]
pub enum Event {
    /// Give these up, then acknowledge.
    Recall {
        /// The number to acknowledge.
        recall: u64,
        /// What; empty for everything.
        targets: Vec<RecallTarget>,
    },
    /// The connection is gone, or silent for too long: everything that is kept must be dropped.
    Lost,
    /// There is a new connection. Inodes and locks have to be claimed again with [`Backend::recover`], then [`Backend::resume`].
    Regained {
        /// Whether replies grant leases.
        leases: bool,
        /// The server started anew: changes that were not durable may be lost.
        restarted: bool,
    },
    /// Nothing more will come: the volume is gone or the credentials are.
    Ended,
}

/// A way to a volume.
pub trait Backend: 'static {
    /// The inode of the root directory.
    fn root(&self) -> u64;

    /// Whether replies grant leases now.
    fn has_leases(&self) -> bool;

    /// Whether requests reach the server now, as far as is known.
    fn is_connected(&self) -> bool;

    /// Asks. Dropping the future gives up waiting; the request may still be done.
    fn call(self: &Rc<Self>, request: FileRequest, payload: Bytes) -> impl Future<Output = Answer> + 'static;

    /// Tells something whose answer nobody needs.
    fn tell(self: &Rc<Self>, request: FileRequest);

    /// As [`Self::call`], before all others after a loss of the connection.
    fn recover(self: &Rc<Self>, request: FileRequest) -> impl Future<Output = Answer> + 'static;

    /// All is claimed again: others go on.
    fn resume(&self);

    /// The next event.
    fn next_event(self: &Rc<Self>) -> impl Future<Output = Event> + 'static;
}
