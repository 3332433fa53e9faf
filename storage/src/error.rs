//! The engine's errors: what an operation can answer, and what a store can suffer.
//!
//! [`EngineError::Missing`] and [`EngineError::MissingData`] are not failures: the operation changed nothing,
//! the caller fetches the block and runs it again.

use crate::types::InodeNumber;
use thiserror::Error;

/// Why an operation was refused; each has one errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists already")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("the directory is not empty")]
    NotEmpty,
    /// EINVAL
    #[error("invalid argument")]
    InvalidArgument,
    /// ENAMETOOLONG
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// EMLINK
    #[error("too many names for one inode")]
    TooManyLinks,
    /// EPERM
    #[error("the operation is not permitted on this kind of inode")]
    NotPermitted,
    /// EFBIG
    #[error("past the largest file size")]
    FileTooBig,
    /// ENOSPC
    #[error("the store is full; delete something or grow it")]
    NoSpace,
    /// EDQUOT, bytes
    #[error("the limit on bytes is reached; delete something or raise the limit")]
    QuotaBytes,
    /// EDQUOT, inodes
    #[error("the limit on inodes is reached; delete something or raise the limit")]
    QuotaInodes,
    /// ENODATA
    #[error("no such extended attribute")]
    NoXattr,
    /// E2BIG
    #[error("the extended attribute is larger than 64 KiB")]
    XattrTooBig,
    /// ENXIO
    #[error("no data or hole past this offset")]
    NoMoreData,
    /// EIO
    #[error("the store failed; see the server's log")]
    Io,
    /// EROFS
    #[error("read-only")]
    ReadOnly,
    /// EOPNOTSUPP
    #[error("not supported")]
    NotSupported,
}

/// A device block that failed its check, and what it belonged to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("damaged block at device byte {address} ({what}): {reason}")]
pub struct Corruption {
    /// Address of the block or extent.
    pub address: u64,
    /// What it holds: "tree node", "data of inode 300 at byte 8192", ...
    pub what: String,
    /// What is wrong with it.
    pub reason: String,
}

/// File data that must be read from the device before the operation can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPointer {
    /// Whose data.
    pub inode: InodeNumber,
    /// Where in the file, in bytes.
    pub file_offset: u64,
    /// Where on the device.
    pub address: u64,
    /// Bytes; multiple of 4096, at most [`crate::limits::EXTENT_BYTES_MAX`].
    pub length: u64,
    /// Generation the extent was written in.
    pub generation: u64,
    /// crc32c of each 4096-byte block.
    pub checksums: Vec<u32>,
}

/// Answer of an engine call that did not succeed (yet).
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EngineError {
    /// A tree node is not in memory: fetch it and run the call again.
    #[error("a tree node is not in memory")]
    Missing(crate::tree::Missing),
    /// File data is not in memory: fetch it and run the call again.
    #[error("file data is not in memory")]
    MissingData(Box<DataPointer>),
    /// The inode has blocks past its end that a background step must free first: run
    /// [`crate::subvolume::Subvolume::trim_step`] for it, then the call again.
    #[error("inode {0} is being trimmed")]
    TrimFirst(InodeNumber),
    /// Refused.
    #[error(transparent)]
    Refused(#[from] FsError),
    /// An item of the tree cannot be understood.
    #[error(transparent)]
    Corrupt(Box<Corruption>),
}

impl From<crate::tree::Missing> for EngineError {
    fn from(missing: crate::tree::Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<Corruption> for EngineError {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}

/// Result of an engine call.
pub type EngineResult<T> = Result<T, EngineError>;
