//! What a device can suffer. Errors can be cloned, because one failed write is reported to every handle concerned.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A read.
    Read,
    /// A write that waits for a flush.
    Write,
    /// A write that is durable at its return.
    DurableWrite,
    /// A flush of everything written.
    Flush,
    /// A hint that a range is not needed.
    Discard,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::DurableWrite => "durable write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// Why the device did not do it.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system or the hardware refused. Offset and length are 0 for a flush.
    #[error("device {operation} of {length} bytes at byte {offset} failed: {source}")]
    Io {
        /// What was being done.
        operation: Operation,
        /// Byte address.
        offset: u64,
        /// Bytes of the whole request.
        length: u64,
        /// The system's word.
        source: Arc<io::Error>,
    },
    /// The range does not lie on the device: a damaged address, or a device that shrank.
    #[error(
        "device {operation} of {length} bytes at byte {offset} is past the end of the device ({size} bytes)"
    )]
    OutOfRange {
        /// What was being done.
        operation: Operation,
        /// Byte address.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of the device.
        size: u64,
    },
    /// An earlier flush or durable write failed; nothing can be promised until the store is opened again.
    #[error(
        "device {operation} refused: an earlier flush failed, open the store again after checking the device"
    )]
    Latched {
        /// What was refused.
        operation: Operation,
    },
    /// Somebody else holds the lock of the file, or has mounted the block device.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The file or block device.
        path: PathBuf,
    },
    /// Could not be opened, created, sized or locked.
    #[error("cannot {action} {}: {source}", path.display())]
    Open {
        /// "open", "create", ...
        action: &'static str,
        /// The file or block device.
        path: PathBuf,
        /// The system's word.
        source: Arc<io::Error>,
    },
    /// A directory, pipe, socket or character device.
    #[error("{} is neither a regular file nor a block device", path.display())]
    NotStorage {
        /// The path.
        path: PathBuf,
    },
    /// The wanted I/O engine does not work on this system.
    #[error(
        "io_uring was asked for but cannot be used here: {source}; choose the engine \"auto\" or \"threads\""
    )]
    EngineUnavailable {
        /// The system's word.
        source: Arc<io::Error>,
    },
}

impl DeviceError {
    /// An [`DeviceError::Io`] from the system's error.
    pub fn io(operation: Operation, offset: u64, length: usize, source: io::Error) -> Self {
        Self::Io { operation, offset, length: length as u64, source: Arc::new(source) }
    }

    /// The errno of the system, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Open { source, .. } | Self::EngineUnavailable { source } => {
                source.raw_os_error()
            }
            _ => None,
        }
    }
}
