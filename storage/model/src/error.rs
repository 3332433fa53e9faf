//! Errors of the model: one per errno a file operation can end with.

use thiserror::Error;

/// Why an operation was refused. A refused operation has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum ModelError {
    /// A name or an inode does not exist.
    #[error("ENOENT: no such file or directory")]
    NotFound,
    /// The new name is taken, or an attribute exists already (create mode).
    #[error("EEXIST: exists already")]
    Exists,
    /// A component that has to be a directory is none.
    #[error("ENOTDIR: not a directory")]
    NotDirectory,
    /// A file operation met a directory.
    #[error("EISDIR: is a directory")]
    IsDirectory,
    /// The directory to remove or to replace has entries.
    #[error("ENOTEMPTY: directory not empty")]
    NotEmpty,
    /// An argument makes no sense: zero length, a directory moved below itself, data of a special file.
    #[error("EINVAL: invalid argument")]
    InvalidArgument,
    /// A name above [`crate::Limits::name`] bytes, or a symbolic link's target above its limit.
    #[error("ENAMETOOLONG: name too long")]
    NameTooLong,
    /// The link count is at its limit.
    #[error("EMLINK: too many links")]
    TooManyLinks,
    /// The extended attribute is not there.
    #[error("ENODATA: no such attribute")]
    NoData,
    /// Above the largest file size.
    #[error("EFBIG: file too large")]
    FileTooBig,
    /// No space on the device. The model itself never gives it; it is here for systems that translate into it.
    #[error("ENOSPC: no space left")]
    NoSpace,
    /// The byte or inode limit of the subvolume.
    #[error("EDQUOT: limit reached")]
    QuotaExceeded,
    /// Not allowed for this kind of file: a hard link to a directory.
    #[error("EPERM: not permitted")]
    NotPermitted,
    /// The root, `.` or `..` cannot be moved or removed.
    #[error("EBUSY: busy")]
    Busy,
    /// No such open handle.
    #[error("EBADF: bad handle")]
    BadHandle,
    /// Not defined for this kind of file: the mode of a symbolic link.
    #[error("EOPNOTSUPP: not supported")]
    NotSupported,
    /// The name of an extended attribute is empty or too long.
    #[error("ERANGE: out of range")]
    OutOfRange,
    /// The value of an extended attribute is too large.
    #[error("E2BIG: too big")]
    TooBig,
}

impl ModelError {
    /// The number Linux gives the error on x86-64 and aarch64.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::TooBig => 7,
            Self::BadHandle => 9,
            Self::Busy => 16,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::InvalidArgument => 22,
            Self::FileTooBig => 27,
            Self::NoSpace => 28,
            Self::TooManyLinks => 31,
            Self::OutOfRange => 34,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::NoData => 61,
            Self::NotSupported => 95,
            Self::QuotaExceeded => 122,
        }
    }
}
