//! The operations that change a subvolume, as values.
//!
//! Invariant: an operation's effect is a pure function of (tree, dirty data, operation, [`Resolved`]). So the log
//! stores the operation and its `Resolved`, and replay runs the same functions in the same order.

use crate::types::{InodeNumber, Timestamp};
use bytes::Bytes;

/// What is not decided by the operation itself; recorded in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Time of the operation.
    pub now: Timestamp,
    /// First identifier that the operation may use.
    pub next_id: u64,
    /// Unlink, rmdir, rename over a victim: must an inode that loses its last name stay as an orphan because somebody
    /// has it open? (Decided by the open counts when it first runs, by the record on replay.)
    pub keep_orphan: bool,
}

/// A directory entry's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Inode number of the directory.
    pub parent: InodeNumber,
    /// Name in it, 1 to 255 bytes without `/` and NUL, not `.` or `..`.
    pub name: Bytes,
}

/// What a rename does when the target name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RenameMode {
    /// It is replaced.
    Replace = 0,
    /// The rename is refused with EEXIST.
    NoReplace = 1,
    /// The two names change places; the target must exist.
    Exchange = 2,
    /// As `Replace`, and a whiteout (a character device with number 0, no permissions, owner 0) takes the old name.
    Whiteout = 3,
    /// As `NoReplace`, and a whiteout takes the old name.
    WhiteoutNoReplace = 4,
}

impl RenameMode {
    /// Does a new inode take the old name?
    pub const fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }
}

/// What setting an extended attribute expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum XattrMode {
    /// Create or replace.
    Any = 0,
    /// EEXIST when it exists.
    Create = 1,
    /// ENODATA when it does not.
    Replace = 2,
}

/// New attributes; `None` = leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends.
    pub size: Option<u64>,
    /// Last access ("now" is resolved by the caller).
    pub atime: Option<Timestamp>,
    /// Last change of data.
    pub mtime: Option<Timestamp>,
}

/// An operation that changes a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new inode of any kind with a name. Takes two identifiers: inode number, then entry id.
    Create {
        /// Where.
        place: Place,
        /// Type bits and permissions.
        mode: u32,
        /// Taken off the permissions, unless the directory has a default access list.
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory's is inherited (set-group-id).
        gid: u32,
        /// Device number, for devices.
        rdev: u64,
        /// Target, for symbolic links; else empty.
        target: Bytes,
    },
    /// A new regular file without a name (`O_TMPFILE`): an orphan from birth. Takes one identifier.
    CreateUnnamed {
        /// The directory it is made in: nothing of it changes, but its group and default access list are inherited.
        parent: InodeNumber,
        /// Type bits (regular) and permissions.
        mode: u32,
        /// Taken off the permissions, unless the directory has a default access list.
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory's is inherited (set-group-id).
        gid: u32,
    },
    /// One more name of an inode (not of a directory); also the first of an unnamed one. Takes one identifier.
    Link {
        /// The inode.
        inode: InodeNumber,
        /// The new name.
        place: Place,
    },
    /// Removes a name of anything but a directory.
    Unlink {
        /// The name.
        place: Place,
    },
    /// Removes an empty directory.
    RemoveDirectory {
        /// The name.
        place: Place,
    },
    /// Moves a name. Takes one identifier, an exchange two, one that leaves a whiteout three.
    Rename {
        /// The old name.
        from: Place,
        /// The new name.
        to: Place,
        /// What about an existing target.
        mode: RenameMode,
    },
    /// Changes attributes; with a size also the data, with a mode also the access control list.
    SetAttributes {
        /// The inode.
        inode: InodeNumber,
        /// What changes.
        change: AttributeChange,
    },
    /// Data was written: the record tells place, length and time; the bytes go to the log only by fsync.
    Write {
        /// The inode.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// The bytes; empty on replay (`length` counts).
        data: Bytes,
        /// Number of bytes.
        length: u64,
        /// Clear set-user-id, and set-group-id where the group may execute (the writer is not privileged).
        clear_set_id: bool,
    },
    /// Allocates space so that later writes cannot meet ENOSPC.
    Allocate {
        /// The inode.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// Bytes, > 0.
        length: u64,
        /// Do not change the size.
        keep_size: bool,
    },
    /// Frees whole blocks and zeroes partial ones; the size stays.
    PunchHole {
        /// The inode.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// Bytes, > 0.
        length: u64,
    },
    /// The range reads zero and stays (or becomes) allocated.
    ZeroRange {
        /// The inode.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// Bytes, > 0.
        length: u64,
        /// Do not change the size.
        keep_size: bool,
    },
    /// Sets an extended attribute; the access control list also sets the permissions.
    SetXattr {
        /// The inode.
        inode: InodeNumber,
        /// Name with its namespace, 1 to 255 bytes.
        name: Bytes,
        /// Value, up to 64 KiB.
        value: Bytes,
        /// Expectation.
        mode: XattrMode,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        inode: InodeNumber,
        /// Its name.
        name: Bytes,
    },
}
