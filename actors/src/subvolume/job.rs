//! One request inside a subvolume: what was asked, how far it got, and why it waits.
//!
//! Invariant: a job can be run again from where it stopped. A step that took effect is never executed a second time: its
//! result is in `results`, or, while its reply still needs a block, in `executed`.

use crate::session::Session;
use crate::session::permits::Permit;
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::request::{FileRef, FileRequest, HandleRef, InodeRef, OpenFlags, OperationId};
use subvol_protocol::response::{FileResponse, StepResult};
use subvol_storage::error::{DataPointer, EngineError};
use subvol_storage::fs::read::ReadSegment;
use subvol_storage::log::generation::{ClosedGeneration, LogPin};
use subvol_storage::subvolume::Done;
use subvol_storage::tree::Missing;
use subvol_storage::types::{InodeNumber, LogTransid};

/// What a session sends: one request.
pub struct Job {
    /// What was asked.
    pub ask: Ask,
    /// Bytes permitted; given back with the reply.
    pub permit: Option<Permit>,
    /// Where it stands.
    pub state: Progress,
}

/// What was asked, which never changes.
pub struct Ask {
    /// Who asked.
    pub session: Arc<Session>,
    /// Under which number.
    pub request_id: u64,
    /// For retries.
    pub operation: Option<OperationId>,
    /// What.
    pub steps: Steps,
    /// Bytes to write.
    pub payload: Bytes,
}

/// A job while one of its steps runs.
pub struct Run<'a> {
    /// What was asked.
    pub ask: &'a Ask,
    /// Where it stands.
    pub state: &'a mut Progress,
    /// Which step.
    pub index: usize,
}

/// One file request or several.
pub enum Steps {
    /// Alone.
    One(FileRequest),
    /// A compound.
    Many(Vec<FileRequest>),
}

impl Steps {
    /// All of them.
    pub fn as_slice(&self) -> &[FileRequest] {
        match self {
            Self::One(request) => std::slice::from_ref(request),
            Self::Many(requests) => requests,
        }
    }
}

/// How far a job got.
#[derive(Default)]
pub struct Progress {
    /// Results of the steps that ran.
    pub results: Vec<StepResult>,
    /// The present step's operation has taken effect.
    pub executed: Option<Done>,
    /// The bytes of a read.
    pub data: Vec<ReadSegment>,
    /// Held from the arrival on; only in measurements.
    pub pin: Option<LogPin>,
    /// Recalls that the answer waits for.
    pub recalls: Option<u64>,
    /// The step that failed, while the answer waits for what the steps before it changed.
    pub failed: Option<WireError>,
    /// Where the present step's search goes on.
    pub seek_from: Option<u64>,
    /// Commits forced for space.
    pub commits: u32,
    /// Runs after fetches.
    pub fetches: u32,
    /// A block that failed its check once: (address, generation).
    pub suspect: Option<(u64, u64)>,
}

/// Blocks to be read before a job can go on.
#[derive(Debug)]
pub enum Fetch {
    /// A tree node.
    Node(Missing),
    /// File data.
    Data(Vec<DataPointer>),
}

/// Why a step did not end with a result.
pub enum Stop {
    /// It failed.
    Error(WireError),
    /// Blocks are needed.
    Fetch(Fetch),
    /// A background step has to make progress first.
    Trim(InodeNumber),
    /// The store is full.
    NoSpace,
    /// Too much data is on its way to the device.
    Dirty,
    /// A pin keeps the log from closing.
    Pinned,
    /// It was busy long enough: others first.
    Turn,
    /// Somebody holds the lock.
    Lock {
        /// The client's number of the wait.
        wait: u64,
    },
    /// The server has just started: those who had locks before come first.
    LockGrace {
        /// For so long.
        rest: std::time::Duration,
    },
    /// Its result counts once the log is durable.
    Log {
        /// The result.
        response: Box<FileResponse>,
        /// It counts when this generation of the log is durable.
        ticket: LogTransid,
        /// To be handed to the log writer.
        generations: Vec<ClosedGeneration>,
    },
    /// Its result counts once everything is committed.
    Commit {
        /// The result.
        response: Box<FileResponse>,
    },
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Self {
        use subvol_storage::error::FsError;
        match error {
            EngineError::Missing(missing) => Self::Fetch(Fetch::Node(missing)),
            EngineError::MissingData(pointer) => Self::Fetch(Fetch::Data(vec![*pointer])),
            EngineError::TrimFirst(inode) => Self::Trim(inode),
            EngineError::Refused(FsError::NoSpace) => Self::NoSpace,
            EngineError::Refused(refused) => Self::Error(super::convert::refusal(refused)),
            EngineError::Corrupt(corruption) => {
                tracing::error!(%corruption, "a damaged item");
                Self::Error(WireError::new(ErrorCode::Corrupt, &corruption.to_string()))
            }
        }
    }
}

impl From<WireError> for Stop {
    fn from(error: WireError) -> Self {
        Self::Error(error)
    }
}

impl From<ErrorCode> for Stop {
    fn from(code: ErrorCode) -> Self {
        Self::Error(code.into())
    }
}

/// Result of a step.
pub type Step = Result<FileResponse, Stop>;

impl Run<'_> {
    /// The inode that a reference means.
    pub fn inode(&self, reference: InodeRef) -> Result<InodeNumber, WireError> {
        self.ask.inode(&self.state.results, reference)
    }

    /// The number of a handle that a reference means.
    pub fn handle_number(&self, reference: HandleRef) -> Result<u64, WireError> {
        self.ask.handle_number(&self.state.results, reference)
    }

    /// The inode of a file and the flags of its handle, if it is named by one.
    pub fn file(&self, reference: FileRef) -> Result<(InodeNumber, Option<OpenFlags>), WireError> {
        self.ask.file(&self.state.results, reference)
    }
}

impl Ask {
    fn inode(&self, results: &[StepResult], reference: InodeRef) -> Result<InodeNumber, WireError> {
        match reference {
            InodeRef::Explicit(number) => Ok(number),
            InodeRef::FromStep(step) => {
                let step = usize::from(step);
                let asked = self.steps.as_slice().get(step);
                let result = results.get(step);
                match (asked, result) {
                    (
                        Some(FileRequest::ResolvePath { components, .. }),
                        Some(Ok(FileResponse::Path { found })),
                    ) if found.len() < components.len() => Err(ErrorCode::NotFound.into()),
                    (_, Some(Ok(response))) => response.inode().ok_or_else(|| ErrorCode::Internal.into()),
                    _ => Err(ErrorCode::Internal.into()),
                }
            }
        }
    }

    fn handle_number(&self, results: &[StepResult], reference: HandleRef) -> Result<u64, WireError> {
        match reference {
            HandleRef::Explicit(number) => Ok(number),
            HandleRef::FromStep(step) => results
                .get(usize::from(step))
                .and_then(|result| result.as_ref().ok())
                .and_then(FileResponse::handle)
                .ok_or_else(|| ErrorCode::Internal.into()),
        }
    }

    fn file(
        &self,
        results: &[StepResult],
        reference: FileRef,
    ) -> Result<(InodeNumber, Option<OpenFlags>), WireError> {
        match reference {
            FileRef::Inode(inode) => Ok((self.inode(results, inode)?, None)),
            FileRef::Handle(handle) => {
                let number = self.handle_number(results, handle)?;
                let found = self.session.handles.with(number, |handle| (handle.inode, Some(handle.flags)));
                found.ok_or_else(|| ErrorCode::StaleHandle.into())
            }
        }
    }

    /// Inodes that the job names. Changes of one connection that share one keep their order even when the first has to
    /// wait for a block; all others may pass.
    pub fn footprint(&self) -> SmallVec<[InodeNumber; 4]> {
        let mut inodes = SmallVec::new();
        let explicit = |reference: &InodeRef| match reference {
            InodeRef::Explicit(number) => Some(*number),
            InodeRef::FromStep(_) => None,
        };
        let of_file = |reference: &FileRef| self.file(&[], *reference).ok().map(|(inode, _)| inode);
        for step in self.steps.as_slice() {
            use FileRequest as R;
            match step {
                R::Lookup { parent, .. }
                | R::CreateUnnamed { parent, .. }
                | R::CreateUnnamedMasked { parent, .. }
                | R::Unlink { parent, .. }
                | R::RemoveDirectory { parent, .. } => inodes.extend(explicit(parent)),
                R::Create(create) | R::CreateMasked { create, .. } => inodes.extend(explicit(&create.parent)),
                R::Link { file, parent, .. } => {
                    inodes.extend(of_file(file));
                    inodes.extend(explicit(parent));
                }
                R::Rename { parent, new_parent, .. } => {
                    inodes.extend(explicit(parent));
                    inodes.extend(explicit(new_parent));
                }
                R::SetXattr { inode, .. } | R::RemoveXattr { inode, .. } | R::Open { inode, .. } => {
                    inodes.extend(explicit(inode));
                }
                R::SetAttributes(change) => inodes.extend(of_file(&change.file)),
                R::Write { file, .. }
                | R::WriteUnprivileged { file, .. }
                | R::Allocate { file, .. }
                | R::PunchHole { file, .. }
                | R::ZeroRange { file, .. } => inodes.extend(of_file(file)),
                _ => {}
            }
        }
        inodes
    }

    /// Does it change anything?
    pub fn is_changing(&self) -> bool {
        self.steps.as_slice().iter().any(FileRequest::is_changing)
    }
}
