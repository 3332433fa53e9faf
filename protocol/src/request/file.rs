//! Requests about files and directories of the attached volume. Each may stand alone or be a step of a compound request.
//!
//! Offsets and lengths are in bytes; an offset plus its length never exceeds 2^63-1. Permissions are the front end's matter: the
//! server trusts a tenant with all of the tenant's own files.

use bincode::{Decode, Encode};

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
        }
    }

    /// Whether it changes the volume, so that an operation id makes sense. Opening counts only if it truncates.
    #[must_use]
    pub const fn is_changing(&self) -> bool {
        match self {
            Self::Create(_)
            | Self::CreateUnnamed { .. }
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
