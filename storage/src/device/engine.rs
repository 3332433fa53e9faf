//! How a batch of transfers reaches the kernel: an io_uring, or threads where it is forbidden (containers often
//! block it). Both block until nothing of the batch is in flight any more, also on errors.

use super::threads::ThreadEngine;
use super::transfer::Transfer;
use super::uring::UringEngine;
use super::{DeviceError, IoEngine, Operation};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// The first failure of a batch.
pub(super) struct Failure {
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) error: io::Error,
}

impl Failure {
    pub(super) fn of(transfer: &Transfer<'_>, error: io::Error) -> Self {
        Self { operation: transfer.operation(), offset: transfer.start(), length: transfer.length(), error }
    }
}

impl From<Failure> for DeviceError {
    fn from(failure: Failure) -> Self {
        Self::io(failure.operation, failure.offset, failure.length, failure.error)
    }
}

/// The way to the kernel that works here.
pub(super) enum Engine {
    Uring(UringEngine),
    Threads(ThreadEngine),
}

impl Engine {
    /// The wanted engine, or with [`IoEngine::Auto`] the better one that works.
    pub(super) fn open(wanted: IoEngine, file: &Arc<File>) -> Result<Self, DeviceError> {
        match wanted {
            IoEngine::Threads => Ok(Self::Threads(ThreadEngine::new(file))),
            IoEngine::Uring => match UringEngine::new() {
                Ok(engine) => Ok(Self::Uring(engine)),
                Err(error) => Err(DeviceError::EngineUnavailable { source: Arc::new(error) }),
            },
            IoEngine::Auto => match UringEngine::new() {
                Ok(engine) => Ok(Self::Uring(engine)),
                Err(error) => {
                    tracing::info!(%error, "io_uring does not work here, using threads");
                    Ok(Self::Threads(ThreadEngine::new(file)))
                }
            },
        }
    }

    /// Runs all transfers to their end. A single one goes straight to the system call.
    pub(super) fn run(&self, file: &File, transfers: &mut [Transfer<'_>]) -> Result<(), Failure> {
        match transfers {
            [] => Ok(()),
            [single] => single.run(file).map_err(|error| Failure::of(single, error)),
            _ => match self {
                Self::Uring(engine) => engine.run(file, transfers),
                Self::Threads(engine) => engine.run(file, transfers),
            },
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Uring(_) => "io_uring",
            Self::Threads(_) => "threads",
        }
    }
}
