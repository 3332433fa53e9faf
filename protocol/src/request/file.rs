//! Requests about files and directories of the attached volume. Each may stand alone or be a step of a compound request.
//!
//! Offsets and lengths are in bytes; an offset plus its length never exceeds 2^63-1. Permissions are the front end's matter: the
//! server trusts a tenant with all of the tenant's own files.

use bincode::{Decode, Encode};

use super::coherence::LockRange;
use super::values::{
    Create, FileRef, HandleRef, InodeRef, OpenFlags, RenameMode, SeekTarget, SetAttributes, WritePosition,
    XattrMode,
};
use crate::attributes::Lineage;
use crate::name::{Name, XattrName, XattrValue};

/// About files and directories.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum FileRequest {
    /// Finds an entry. Reply: `Entry`.
    Lookup {
        /// The directory.
        parent: InodeRef,
        /// The name.
        name: Name,
    },
    /// Makes an inode with a name. Reply: `Created`.
    Create(Create),
    /// Makes an open regular file without a name (`O_TMPFILE`); it is gone with its last handle unless linked. Reply: `Created`.
    CreateUnnamed {
        /// The directory whose group rule and limits apply.
        parent: InodeRef,
        /// Permission bits (07777).
        permissions: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// How to open it.
        open: OpenFlags,
    },
    /// Gives an inode that is not a directory one more name. Reply: `Entry`, with a ticket.
    Link {
        /// The inode.
        file: FileRef,
        /// The directory.
        parent: InodeRef,
        /// The new name.
        name: Name,
    },
    /// Removes a name of anything but a directory. Reply: `Removed`.
    Unlink {
        /// The directory.
        parent: InodeRef,
        /// The name.
        name: Name,
    },
    /// Removes an empty directory. Reply: `Removed`.
    RemoveDirectory {
        /// The directory it is in.
        parent: InodeRef,
        /// Its name.
        name: Name,
    },
    /// Moves a name. Reply: `Renamed`.
    Rename {
        /// The directory it is in.
        parent: InodeRef,
        /// Its name.
        name: Name,
        /// The directory it goes to.
        new_parent: InodeRef,
        /// Its new name.
        new_name: Name,
        /// What about a taken name.
        mode: RenameMode,
    },
    /// Reads a symbolic link's target. Reply: `Link`.
    ReadLink {
        /// The link.
        inode: InodeRef,
    },
    /// Reads attributes. Reply: `Attributes`.
    GetAttributes {
        /// Which file.
        file: FileRef,
    },
    /// Changes attributes; also cuts or grows files. Reply: `AttributesSet`.
    SetAttributes(SetAttributes),
    /// Reads a part of a directory, without `.` and `..`. Reply: `Directory`.
    ReadDirectory {
        /// The directory.
        inode: InodeRef,
        /// Start behind the entry with this cookie; 0 for the beginning.
        after_cookie: u64,
        /// At most this many entries, 1 to 1024; the reply may be shorter without being the end.
        max_entries: u32,
        /// Each with its attributes.
        with_attributes: bool,
    },
    /// Reads an extended attribute. Reply: `Xattr`.
    GetXattr {
        /// Which file.
        inode: InodeRef,
        /// Which attribute.
        name: XattrName,
    },
    /// Sets an extended attribute. Reply: `Done`.
    SetXattr {
        /// Which file.
        inode: InodeRef,
        /// Which attribute.
        name: XattrName,
        /// Its value.
        value: XattrValue,
        /// What about an existing one.
        mode: XattrMode,
    },
    /// Lists the names of extended attributes. Reply: `XattrNames`.
    ListXattrs {
        /// Which file.
        inode: InodeRef,
    },
    /// Removes an extended attribute. Reply: `Done`.
    RemoveXattr {
        /// Which file.
        inode: InodeRef,
        /// Which attribute.
        name: XattrName,
    },
    /// Usage and limits of the attached volume. Reply: `Statistics`.
    StatFs,
    /// Walks a path in one trip: looks up each component in the inode before. Follows no symbolic link: the walk ends early, without
    /// an error, behind the first component that is missing or is not a directory. Reply: `Path`.
    ResolvePath {
        /// Where to begin.
        base: InodeRef,
        /// 1 to 64 names.
        components: Vec<Name>,
    },
    /// Opens a file or directory. Reply: `Opened`.
    Open {
        /// Which.
        inode: InodeRef,
        /// How.
        flags: OpenFlags,
    },
    /// Closes a handle. An error tells of lost writes; the handle is closed in any case. Reply: `Closed`.
    Close {
        /// Which.
        handle: HandleRef,
        /// The newest ticket of what the client changed through it; see `Fsync`.
        lineage: Option<Lineage>,
    },
    /// Reads bytes. Reply: `Read` and the bytes as payload; fewer than asked for only at the end of the file.
    Read {
        /// From which file.
        file: FileRef,
        /// From which byte.
        offset: u64,
        /// How many, at most 1 MiB.
        length: u32,
    },
    /// Writes the request's payload. Reply: `Written`.
    Write {
        /// Into which file.
        file: FileRef,
        /// Where.
        position: WritePosition,
    },
    /// Reserves space for a range; what was there stays, what was not reads as zeros. Reply: `Done`.
    Allocate {
        /// In which file.
        file: FileRef,
        /// From which byte.
        offset: u64,
        /// How many, not 0.
        length: u64,
        /// Leave the file's size as it is.
        keep_size: bool,
    },
    /// Frees a range's space; it reads as zeros. The size stays. Reply: `Done`.
    PunchHole {
        /// In which file.
        file: FileRef,
        /// From which byte.
        offset: u64,
        /// How many, not 0.
        length: u64,
    },
    /// Makes a range read as zeros, keeping its space. Reply: `Done`.
    ZeroRange {
        /// In which file.
        file: FileRef,
        /// From which byte.
        offset: u64,
        /// How many, not 0.
        length: u64,
        /// Leave the file's size as it is.
        keep_size: bool,
    },
    /// Finds data or a hole. Reply: `Found`, or `SeekNoData`.
    Seek {
        /// In which file.
        file: FileRef,
        /// From which byte.
        offset: u64,
        /// What.
        target: SeekTarget,
    },
    /// Makes durable: this file's data and size, and every namespace and attribute change of the volume acknowledged before.
    /// Reply: `Synced`.
    Fsync {
        /// Which file or directory.
        file: FileRef,
        /// Times may stay behind.
        data_only: bool,
        /// The newest ticket of what the client changed. The server answers `StaleLineage` if that was lost in a restart, rather
        /// than a success that does not cover it.
        lineage: Option<Lineage>,
    },
    /// Makes the whole attached volume durable, all data included. Reply: `Synced`.
    SyncVolume {
        /// As for `Fsync`.
        lineage: Option<Lineage>,
    },
    /// As `Create`, with the creator's file mode creation mask: it is taken off the permissions, or, in a directory with a default
    /// ACL, ignored in favour of that list. Opens nothing. Reply: `Created`.
    CreateMasked {
        /// What to create; `open` is `None`.
        create: Create,
        /// The mask (0777).
        umask: u32,
    },
    /// As `CreateUnnamed`, with a mask as for `CreateMasked`, and without a handle: the file lives as long as a client with leases
    /// knows it. Needs `BeginLeases`. Reply: `Created`.
    CreateUnnamedMasked {
        /// The directory whose group rule, default ACL and limits apply.
        parent: InodeRef,
        /// Permission bits (07777).
        permissions: u32,
        /// The mask (0777).
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// As `Write`, for a writer that may not keep set-id bits and capabilities: they go in the same step. Reply: `Written`.
    WriteUnprivileged {
        /// Into which file.
        file: FileRef,
        /// Where.
        position: WritePosition,
    },
    /// As `ReadDirectory`, of entries up to a cookie only. What is renamed during a listing gets a larger cookie, so a listing that
    /// began with this bound ends (a listing that renames what it finds would never). Reply: `Listed`.
    ListDirectory {
        /// The directory.
        inode: InodeRef,
        /// Start behind the entry with this cookie; 0 for the beginning.
        after_cookie: u64,
        /// The largest cookie to be listed; 0 for the largest of now, which the reply tells.
        up_to: u64,
        /// At most this many entries, 1 to 1024; the reply may be shorter without being the end.
        max_entries: u32,
        /// Each with its attributes.
        with_attributes: bool,
    },
    /// From now on replies grant leases to this connection, see "Leases". Needs the feature `LEASES`. Reply: `LeasesBegun`.
    BeginLeases,
    /// After `BeginLeases` on a new connection: inodes that the client still uses, so that they stay even without a name.
    /// Reply: `Reclaimed`.
    ReclaimInodes {
        /// At most [`crate::limits::MAX_INODE_LIST`].
        inodes: Vec<u64>,
    },
    /// The client no longer uses these inodes and has dropped what it kept of them. Reply: `Noted`.
    ForgetInodes {
        /// At most [`crate::limits::MAX_INODE_LIST`].
        inodes: Vec<u64>,
    },
    /// What these recalls named is no longer kept. Reply: `Noted`.
    AcknowledgeRecalls {
        /// Numbers of the pushes, at most [`crate::limits::MAX_INODE_LIST`].
        recalls: Vec<u64>,
    },
    /// Takes, changes or gives up a lock. Needs `BeginLeases`. Reply: `Noted`; `LockConflict` if somebody is in the way and
    /// `wait` is `None`; `Deadlock`; `Interrupted` by `CancelLock`.
    Lock {
        /// The lock.
        lock: LockRange,
        /// Wait until it can be had. The number, chosen by the client, is for `CancelLock`.
        wait: Option<u64>,
        /// It was held before the server restarted; given back before others get locks.
        reclaim: bool,
    },
    /// Ends a wait for a lock, if it still waits. Reply: `Noted`.
    CancelLock {
        /// The number of the wait.
        wait: u64,
    },
    /// Who is in the way of this lock? Reply: `LockFound`.
    TestLock {
        /// The lock.
        lock: LockRange,
    },
}

impl FileRequest {
    /// The name of the request, for logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Lookup { .. } => "Lookup",
            Self::Create(_) => "Create",
            Self::CreateUnnamed { .. } => "CreateUnnamed",
            Self::Link { .. } => "Link",
            Self::Unlink { .. } => "Unlink",
            Self::RemoveDirectory { .. } => "RemoveDirectory",
            Self::Rename { .. } => "Rename",
            Self::ReadLink { .. } => "ReadLink",
            Self::GetAttributes { .. } => "GetAttributes",
            Self::SetAttributes(_) => "SetAttributes",
            Self::ReadDirectory { .. } => "ReadDirectory",
            Self::GetXattr { .. } => "GetXattr",
            Self::SetXattr { .. } => "SetXattr",
            Self::ListXattrs { .. } => "ListXattrs",
            Self::RemoveXattr { .. } => "RemoveXattr",
            Self::StatFs => "StatFs",
            Self::ResolvePath { .. } => "ResolvePath",
            Self::Open { .. } => "Open",
            Self::Close { .. } => "Close",
            Self::Read { .. } => "Read",
            Self::Write { .. } => "Write",
            Self::Allocate { .. } => "Allocate",
            Self::PunchHole { .. } => "PunchHole",
            Self::ZeroRange { .. } => "ZeroRange",
            Self::Seek { .. } => "Seek",
            Self::Fsync { .. } => "Fsync",
            Self::SyncVolume { .. } => "SyncVolume",
            Self::CreateMasked { .. } => "CreateMasked",
            Self::CreateUnnamedMasked { .. } => "CreateUnnamedMasked",
            Self::WriteUnprivileged { .. } => "WriteUnprivileged",
            Self::ListDirectory { .. } => "ListDirectory",
            Self::BeginLeases => "BeginLeases",
            Self::ReclaimInodes { .. } => "ReclaimInodes",
            Self::ForgetInodes { .. } => "ForgetInodes",
            Self::AcknowledgeRecalls { .. } => "AcknowledgeRecalls",
            Self::Lock { .. } => "Lock",
            Self::CancelLock { .. } => "CancelLock",
            Self::TestLock { .. } => "TestLock",
        }
    }

    /// Whether it changes the volume, so that an operation id makes sense. Opening counts only if it truncates.
    #[must_use]
    pub const fn is_changing(&self) -> bool {
        match self {
            Self::Create(_)
            | Self::CreateUnnamed { .. }
            | Self::CreateMasked { .. }
            | Self::CreateUnnamedMasked { .. }
            | Self::WriteUnprivileged { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::RemoveDirectory { .. }
            | Self::Rename { .. }
            | Self::SetAttributes(_)
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Write { .. }
            | Self::Allocate { .. }
            | Self::PunchHole { .. }
            | Self::ZeroRange { .. } => true,
            Self::Open { flags, .. } => flags.contains(OpenFlags::TRUNCATE),
            _ => false,
        }
    }

    /// Whether its reply names an inode that a later step may use.
    #[must_use]
    pub const fn gives_inode(&self) -> bool {
        matches!(
            self,
            Self::Lookup { .. }
                | Self::Create(_)
                | Self::CreateUnnamed { .. }
                | Self::CreateMasked { .. }
                | Self::CreateUnnamedMasked { .. }
                | Self::Link { .. }
                | Self::ResolvePath { .. }
        )
    }

    /// Whether its reply names a handle that a later step may use.
    #[must_use]
    pub const fn gives_handle(&self) -> bool {
        match self {
            Self::Open { .. } | Self::CreateUnnamed { .. } => true,
            Self::Create(create) => create.open.is_some(),
            _ => false,
        }
    }
}
