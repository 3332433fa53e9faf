//! The test operations: what a program of any test consists of.
//!
//! Paths are relative to the root of the subvolume (`a/b`; `/` or the empty path is the root itself). No operation
//! follows a symbolic link. Handles are names that live from `Open` or `OpenUnnamed` until `CloseHandle`; opening
//! under a name in use closes the old handle first.

use crate::time::Time;

/// How a rename treats its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RenameMode {
    /// An existing destination is replaced.
    Replace,
    /// An existing destination is an error.
    NoReplace,
    /// The two names swap what they name.
    Exchange,
}

/// What an extended attribute's previous existence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// The kinds of file that hold no data of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialKind {
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device of that number.
    Character(u32),
    /// Block device of that number.
    Block(u32),
}

/// One operation of a test program. Lengths and offsets are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are named after what they are")]
pub enum Op {
    /// An empty regular file; the name must be free.
    Create { path: String, mode: u32 },
    /// An empty directory.
    Mkdir { path: String, mode: u32 },
    /// A pipe, socket or device.
    Mknod { path: String, kind: SpecialKind, mode: u32 },
    /// A symbolic link.
    Symlink { path: String, target: String },
    /// A further name for an existing file.
    Link { existing: String, path: String },
    /// Removes the name of anything but a directory.
    Unlink { path: String },
    /// Removes an empty directory.
    Rmdir { path: String },
    /// Moves a name.
    Rename { from: String, to: String, mode: RenameMode },
    /// Writes the pattern of `seed` at `offset`.
    Write { path: String, offset: u64, length: u64, seed: u32 },
    /// Writes the pattern of `seed` at the end.
    Append { path: String, length: u64, seed: u32 },
    /// Sets the size.
    Truncate { path: String, size: u64 },
    /// Allocates the blocks of a range; grows the file unless `keep_size`.
    Allocate { path: String, offset: u64, length: u64, keep_size: bool },
    /// Makes a range a hole; the size stays.
    Punch { path: String, offset: u64, length: u64 },
    /// Makes a range read as zeros with its blocks allocated; grows the file unless `keep_size`.
    ZeroRange { path: String, offset: u64, length: u64, keep_size: bool },
    /// Sets an extended attribute.
    SetXattr { path: String, name: String, value: Vec<u8>, mode: XattrMode },
    /// Removes an extended attribute.
    RemoveXattr { path: String, name: String },
    /// Sets the permission bits (the low twelve).
    Chmod { path: String, mode: u32 },
    /// Sets the owner.
    Chown { path: String, uid: u32, gid: u32 },
    /// Sets the times that are given.
    SetTimes { path: String, atime: Option<Time>, mtime: Option<Time> },
    /// Opens anything that has a name.
    Open { handle: String, path: String },
    /// A new file without a name, to be given one by `LinkHandle` (`O_TMPFILE`).
    OpenUnnamed { handle: String, directory: String, mode: u32 },
    /// Gives an open file a name.
    LinkHandle { handle: String, path: String },
    /// As `Write`, by handle.
    WriteHandle { handle: String, offset: u64, length: u64, seed: u32 },
    /// As `Fsync`, by handle.
    FsyncHandle { handle: String },
    /// Closes a handle; a file without names goes with its last one.
    CloseHandle { handle: String },
    /// Makes one file or directory durable.
    Fsync { path: String },
    /// As `Fsync`, times may be left out.
    Fdatasync { path: String },
    /// Commits everything.
    Sync,
    /// Drops the inode from every cache; no change of what can be seen.
    Evict { path: String },
}

/// Permission bits of files that a test makes without saying which.
pub const FILE_MODE: u32 = 0o644;
/// Permission bits of directories that a test makes without saying which.
pub const DIRECTORY_MODE: u32 = 0o755;

impl Op {
    /// `Create` with [`FILE_MODE`].
    pub fn create(path: &str) -> Self {
        Self::Create { path: path.into(), mode: FILE_MODE }
    }

    /// `Mkdir` with [`DIRECTORY_MODE`].
    pub fn mkdir(path: &str) -> Self {
        Self::Mkdir { path: path.into(), mode: DIRECTORY_MODE }
    }

    /// `Rename` that replaces.
    pub fn rename(from: &str, to: &str) -> Self {
        Self::Rename { from: from.into(), to: to.into(), mode: RenameMode::Replace }
    }

    /// `Write` of the pattern with that name.
    pub fn write(path: &str, offset: u64, length: u64, pattern: &str) -> Self {
        Self::Write { path: path.into(), offset, length, seed: crate::pattern::seed(pattern) }
    }

    /// `Fsync`.
    pub fn fsync(path: &str) -> Self {
        Self::Fsync { path: path.into() }
    }

    /// Whether the operation only makes durable or drops caches, so nothing that can be seen changes.
    pub fn changes_nothing(&self) -> bool {
        matches!(
            self,
            Self::FsyncHandle { .. }
                | Self::Fsync { .. }
                | Self::Fdatasync { .. }
                | Self::Sync
                | Self::Evict { .. }
                | Self::Open { .. }
        )
    }

    /// The paths an operation names, the one it makes last.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Self::Link { existing, path } => vec![existing, path],
            Self::Rename { from, to, .. } => vec![from, to],
            Self::Create { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Mknod { path, .. }
            | Self::Symlink { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::Write { path, .. }
            | Self::Append { path, .. }
            | Self::Truncate { path, .. }
            | Self::Allocate { path, .. }
            | Self::Punch { path, .. }
            | Self::ZeroRange { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::SetTimes { path, .. }
            | Self::Open { path, .. }
            | Self::LinkHandle { path, .. }
            | Self::Fsync { path }
            | Self::Fdatasync { path }
            | Self::Evict { path } => vec![path],
            Self::OpenUnnamed { directory, .. } => vec![directory],
            Self::WriteHandle { .. } | Self::FsyncHandle { .. } | Self::CloseHandle { .. } | Self::Sync => {
                vec![]
            }
        }
    }
}

/// The parent's path of a path; the root's own parent is the root.
pub fn parent(path: &str) -> &str {
    path.rfind('/').map_or("", |at| &path[..at])
}
