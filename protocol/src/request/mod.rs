//! Everything a client can ask: one [`Request`] enum, by family, in an envelope that makes retries safe.
//!
//! Compatibility rule: variants are only ever appended, and the fields of a variant never change. A new need is a new variant behind a
//! feature bit of `Hello`. Invariant: [`RequestEnvelope::validate`] has accepted a request before any part of the server acts on it.

mod admin;
mod coherence;
mod file;
mod session;
mod validate;
mod values;

use bincode::{Decode, Encode};

pub use admin::AdminRequest;
pub use coherence::{LockFamily, LockKind, LockRange};
pub use file::FileRequest;
pub use session::{Credentials, Features, SessionRequest, VolumeRef};
pub use values::{
    Create, FileRef, HandleRef, InodeRef, NewKind, OpenFlags, RenameMode, SeekTarget, SetAttributes,
    WritePosition, XattrMode,
};

/// A request with what is needed to retry it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RequestEnvelope {
    /// Present on a changing request that the client will repeat, with the same id, if the connection breaks before the reply.
    pub operation: Option<OperationId>,
    /// The request.
    pub request: Request,
}

impl From<Request> for RequestEnvelope {
    fn from(request: Request) -> Self {
        Self { operation: None, request }
    }
}

impl From<FileRequest> for RequestEnvelope {
    fn from(request: FileRequest) -> Self {
        Request::File(request).into()
    }
}

/// Names one operation of one client, for ever. The server keeps the outcome of the newest
/// [`crate::limits::OPERATION_WINDOW`] sequences of a client and volume: a repeated id gets the first outcome and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct OperationId {
    /// The client's id, as in its `Hello`.
    pub client: [u8; 16],
    /// Grows by one with each operation; starts at 1.
    pub sequence: u64,
}

/// One request, by family.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Request {
    /// About the connection itself.
    Session(SessionRequest),
    /// About tenants, volumes and the store.
    Admin(AdminRequest),
    /// About files and directories of the attached volume.
    File(FileRequest),
    /// Several file requests in one trip: run in order, stopped at the first error. Not atomic: the steps before an error stay done.
    Compound {
        /// 1 to 32 steps; at most one carries a payload to the server and at most one brings one back.
        steps: Vec<FileRequest>,
    },
}

impl Request {
    /// The name of the request, for logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Session(request) => request.name(),
            Self::Admin(request) => request.name(),
            Self::File(request) => request.name(),
            Self::Compound { .. } => "Compound",
        }
    }

    /// Whether it changes anything that lasts. Only file and compound requests are recognised by their operation id; repeating an
    /// administration request gives `Exists` or `UnknownVolume`, which tells its caller enough.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        match self {
            Self::Session(_) => false,
            Self::Admin(request) => request.is_changing(),
            Self::File(request) => request.is_changing(),
            Self::Compound { steps } => steps.iter().any(FileRequest::is_changing),
        }
    }
}
