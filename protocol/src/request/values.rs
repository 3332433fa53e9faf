//! What file requests are made of: references to inodes and handles, flags, modes, and the two requests with many fields.
//!
//! Nothing here is judged alone: whether a flag is known and a reference goes back to an earlier step is for `validate`.

use bincode::{Decode, Encode};

use crate::attributes::{FileKind, SetTime};
use crate::name::{LinkTarget, Name};

/// An inode of the attached volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum InodeRef {
    /// By number, not 0.
    Explicit(u64),
    /// The inode that an earlier step of the same compound found or made.
    FromStep(u8),
}

/// An open handle of this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum HandleRef {
    /// By number, as the reply to `Open` or `Create` gave it.
    Explicit(u64),
    /// The handle that an earlier step of the same compound opened.
    FromStep(u8),
}

/// A file, by handle or by inode. A handle also reaches a file without names, and gets told of lost writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum FileRef {
    /// By inode.
    Inode(InodeRef),
    /// By handle.
    Handle(HandleRef),
}

impl FileRef {
    /// An inode by its number.
    #[must_use]
    pub const fn inode(number: u64) -> Self {
        Self::Inode(InodeRef::Explicit(number))
    }

    /// A handle by its number.
    #[must_use]
    pub const fn handle(number: u64) -> Self {
        Self::Handle(HandleRef::Explicit(number))
    }
}

/// How a file is opened. Unknown bits are refused: a flag that is not understood may be one that matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Reads are allowed.
    pub const READ: Self = Self(1);
    /// Writes are allowed.
    pub const WRITE: Self = Self(2);
    /// Every write goes to the end of the file.
    pub const APPEND: Self = Self(4);
    /// Cut the file to nothing when opening; needs `WRITE`.
    pub const TRUNCATE: Self = Self(8);
    /// Fail with `NotDirectory` unless it is a directory.
    pub const DIRECTORY: Self = Self(16);
    /// Each write is durable, with all its metadata, before its reply (`O_SYNC`).
    pub const SYNC: Self = Self(32);
    /// Each write is durable, as by `fdatasync`, before its reply (`O_DSYNC`).
    pub const DATA_SYNC: Self = Self(64);
    /// Every known flag.
    pub const ALL: Self = Self(127);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What to create.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum NewKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(LinkTarget),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with this device number.
    CharacterDevice(u32),
    /// A block device with this device number.
    BlockDevice(u32),
}

impl NewKind {
    /// The kind of the inode.
    #[must_use]
    pub const fn file_kind(&self) -> FileKind {
        match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::CharacterDevice(_) => FileKind::CharacterDevice,
            Self::BlockDevice(_) => FileKind::BlockDevice,
        }
    }
}

/// A new inode with a name.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Create {
    /// The directory.
    pub parent: InodeRef,
    /// The name.
    pub name: Name,
    /// What to create.
    pub kind: NewKind,
    /// Permission bits (07777); the type bits follow from `kind` and are 0 here.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group; of a directory with the set-group-id bit the group is inherited instead.
    pub gid: u32,
    /// A taken name is `Exists`. If not set, an existing regular file is taken as it is (`O_CREAT` without `O_EXCL`); only for
    /// regular files.
    pub exclusive: bool,
    /// Open it as well, in the same step; only for regular files.
    pub open: Option<OpenFlags>,
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAttributes {
    /// Which file.
    pub file: FileRef,
    /// Permission bits (07777).
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Cut or grow a regular file to this many bytes; what is new reads as zeros.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

impl SetAttributes {
    /// A change of nothing, to be filled in.
    #[must_use]
    pub const fn none(file: FileRef) -> Self {
        Self { file, permissions: None, uid: None, gid: None, size: None, atime: None, mtime: None }
    }
}

/// What a rename does about a taken target name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum RenameMode {
    /// Replaces it, if the kinds agree.
    Replace,
    /// Fails with `Exists`.
    NoReplace,
    /// Swaps the two; both must exist.
    Exchange,
    /// As `Replace`, and leaves a whiteout (a character device with number 0) at the old name, in one step.
    Whiteout,
    /// As `NoReplace`, and leaves a whiteout.
    WhiteoutNoReplace,
}

/// What setting an extended attribute does about an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum XattrMode {
    /// Creates or replaces.
    Any,
    /// `Exists` if there is one.
    Create,
    /// `XattrNotFound` if there is none.
    Replace,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum WritePosition {
    /// At this byte.
    At(u64),
    /// At the end of the file, found and extended in one step.
    Append,
}

/// What `Seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum SeekTarget {
    /// The next byte of data.
    Data,
    /// The next hole; the end of the file counts as one.
    Hole,
}
