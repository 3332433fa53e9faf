//! Answers to file requests. Every answer to a change carries the ticket of that change, to be kept until an fsync covers it.

use bincode::{Decode, Encode};

use crate::attributes::{Attributes, DirectoryEntry, Lineage, Ticket, VolumeStatistics};
use crate::name::{LinkTarget, XattrNames, XattrValue};
use crate::request::LockRange;

/// Answer to a file request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum FileResponse {
    /// A change without more to tell.
    Done {
        /// Where it landed.
        ticket: Ticket,
    },
    /// To `Lookup` and `Link`.
    Entry {
        /// Of the entry's inode.
        attributes: Attributes,
        /// Where a new link landed; `None` after a look-up.
        ticket: Option<Ticket>,
    },
    /// To `Create` and `CreateUnnamed`.
    Created {
        /// Of the inode.
        attributes: Attributes,
        /// The handle, if it was to be opened.
        handle: Option<u64>,
        /// False if a file of that name existed and was taken.
        created: bool,
        /// Where it landed.
        ticket: Ticket,
    },
    /// To `Unlink` and `RemoveDirectory`.
    Removed {
        /// The inode that lost a name.
        inode: u64,
        /// The names it still has.
        links: u32,
        /// Where it landed.
        ticket: Ticket,
    },
    /// To `Rename`.
    Renamed {
        /// The inode that moved.
        inode: u64,
        /// The inode that lost its name (`Replace`) or moved the other way (`Exchange`).
        replaced: Option<u64>,
        /// Where it landed.
        ticket: Ticket,
    },
    /// To `ReadLink`.
    Link {
        /// The target.
        target: LinkTarget,
    },
    /// To `GetAttributes`.
    Attributes {
        /// The attributes.
        attributes: Attributes,
    },
    /// To `SetAttributes`.
    AttributesSet {
        /// The attributes after the change.
        attributes: Attributes,
        /// Where it landed.
        ticket: Ticket,
    },
    /// To `ReadDirectory`.
    Directory {
        /// In the order of their cookies.
        entries: Vec<DirectoryEntry>,
        /// There was nothing behind the last one.
        end: bool,
    },
    /// To `GetXattr`.
    Xattr {
        /// The value.
        value: XattrValue,
    },
    /// To `ListXattrs`.
    XattrNames {
        /// All names.
        names: XattrNames,
    },
    /// To `StatFs`.
    Statistics {
        /// The numbers.
        statistics: VolumeStatistics,
    },
    /// To `ResolvePath`.
    Path {
        /// Of each component that was found; fewer than asked for if the walk ended early.
        found: Vec<Attributes>,
    },
    /// To `Open`.
    Opened {
        /// The handle: valid on this connection until `Close` or its end.
        handle: u64,
        /// Of the file, after a truncation.
        attributes: Attributes,
        /// Where the truncation landed.
        ticket: Option<Ticket>,
    },
    /// To `Close`.
    Closed,
    /// To `Read`. The payload holds the bytes.
    Read {
        /// Bytes of payload.
        length: u32,
        /// The read reached the end of the file.
        end_of_file: bool,
    },
    /// To `Write`.
    Written {
        /// Bytes written: all of the payload, or there would be an error.
        written: u32,
        /// Where the first of them went.
        position: u64,
        /// The file's size now.
        size: u64,
        /// Where it landed.
        ticket: Ticket,
    },
    /// To `Seek`.
    Found {
        /// The offset.
        offset: u64,
    },
    /// To `Fsync` and `SyncVolume`.
    Synced {
        /// Everything up to this point is durable.
        durable: Lineage,
    },
    /// To `ListDirectory`.
    Listed {
        /// In the order of their cookies.
        entries: Vec<DirectoryEntry>,
        /// There was nothing behind the last one, up to the bound.
        end: bool,
        /// The bound, to be given with the next part.
        up_to: u64,
    },
    /// To `BeginLeases`.
    LeasesBegun {
        /// Whether this connection gets leases. Not when too many clients of the volume have them: what is read must then be asked
        /// for again each time.
        granted: bool,
        /// Milliseconds in which a recall has to be acknowledged; a holder that is later is cut off.
        recall_milliseconds: u32,
        /// Milliseconds of silence after which a client must treat its leases as lost; less than the server waits.
        silence_milliseconds: u32,
        /// The server remembers this client: its inodes and locks are still held.
        resumed: bool,
    },
    /// To `ReclaimInodes`.
    Reclaimed {
        /// Those that no longer exist.
        lost: Vec<u64>,
    },
    /// To what has no more to tell.
    Noted,
    /// To `TestLock`.
    LockFound {
        /// The first lock in the way; `None` if the lock could be had.
        blocker: Option<LockRange>,
    },
}

impl FileResponse {
    /// The ticket of the change, if it was one.
    #[must_use]
    pub const fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Done { ticket }
            | Self::Created { ticket, .. }
            | Self::Removed { ticket, .. }
            | Self::Renamed { ticket, .. }
            | Self::AttributesSet { ticket, .. }
            | Self::Written { ticket, .. } => Some(*ticket),
            Self::Entry { ticket, .. } | Self::Opened { ticket, .. } => *ticket,
            _ => None,
        }
    }

    /// The inode that a later step of a compound means by `FromStep`.
    #[must_use]
    pub fn inode(&self) -> Option<u64> {
        match self {
            Self::Entry { attributes, .. } | Self::Created { attributes, .. } => Some(attributes.inode),
            Self::Path { found } => found.last().map(|attributes| attributes.inode),
            _ => None,
        }
    }

    /// The handle that a later step of a compound means by `FromStep`.
    #[must_use]
    pub const fn handle(&self) -> Option<u64> {
        match self {
            Self::Created { handle, .. } => *handle,
            Self::Opened { handle, .. } => Some(*handle),
            _ => None,
        }
    }
}
