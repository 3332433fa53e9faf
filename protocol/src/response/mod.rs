//! Everything a server can answer or push: one [`Response`] enum by family, and one [`Push`] enum.
//!
//! Compatibility rule as for requests: variants are only appended, fields never change.

mod admin;
mod file;
mod session;

use bincode::{Decode, Encode};

pub use admin::{
    AdminResponse, StatusReport, StoreStatus, TenantSummary, UnpinSample, VolumeStatus, VolumeSummary,
};
pub use file::FileResponse;
pub use session::SessionResponse;

use crate::error::WireError;
use crate::limits::MAX_REASON;
use crate::name::{Name, Text};

/// The outcome of one step of a compound request.
pub type StepResult = Result<FileResponse, WireError>;

/// The answer to the request with the same request id.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Response {
    /// It failed. With request id 0 the error is about the connection, which the server closes.
    Error(WireError),
    /// Answer to a session request.
    Session(SessionResponse),
    /// Answer to an administration request.
    Admin(AdminResponse),
    /// Answer to a file request.
    File(FileResponse),
    /// Answer to a compound request: one result for each step that ran. Only the last can be an error, and then the steps behind it
    /// did not run.
    Compound {
        /// The results in the order of the steps.
        results: Vec<StepResult>,
    },
}

impl From<WireError> for Response {
    fn from(error: WireError) -> Self {
        Self::Error(error)
    }
}

/// What a server says unasked, with request id 0. A client ignores pushes it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Push {
    /// The server stops: it answers what it has, refuses the rest with `ShuttingDown`, and closes the connection.
    Shutdown {
        /// Why, for people.
        reason: Text<MAX_REASON>,
        /// Milliseconds until it closes.
        grace_milliseconds: u32,
    },
    /// Give up what is kept of these things, then say so with `AcknowledgeRecalls`. Only sent after `BeginLeases`.
    Recall {
        /// The number to acknowledge.
        recall: u64,
        /// What changed, at most [`crate::limits::MAX_RECALL_TARGETS`]. Empty: everything that is kept.
        targets: Vec<RecallTarget>,
    },
}

/// One thing that changed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RecallTarget {
    /// The inode: its attributes, extended attributes and data. Of a directory with a name: its attributes and listing.
    pub inode: u64,
    /// An entry of the directory `inode`, present or absent.
    pub name: Option<Name>,
}
