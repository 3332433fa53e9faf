//! What a file looks like from outside: attributes, times, kinds, directory entries, and the lineage of a change.
//!
//! Invariants: a decoded [`Timestamp`] has less than 10^9 nanoseconds; a decoded [`FileKind`] is one of the seven kinds.

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};

use crate::limits::MAX_NAME;
use crate::name::Name;

/// The type bits of a mode, as everywhere in POSIX.
pub const MODE_TYPE_MASK: u32 = 0o170_000;
/// The bits of a mode that `SetAttributes` may change.
pub const MODE_PERMISSION_MASK: u32 = 0o7_777;

/// The attributes of an inode at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Attributes {
    /// Inode number; never 0, never reused within its volume.
    pub inode: u64,
    /// Type bits and permission bits, as `st_mode`.
    pub mode: u32,
    /// Number of names; a directory has 2 and one more per subdirectory.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a character or block device, as Linux encodes it in 32 bits; else 0.
    pub rdev: u32,
    /// Bytes of a file or of a link's target; number of entries of a directory.
    pub size: u64,
    /// Allocated blocks of 4096 bytes. `st_blocks`, which counts 512-byte units, is eight times this.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Grows with every change of content or attributes; equal versions mean an unchanged file.
    pub version: u64,
}

impl Attributes {
    /// The kind that the type bits of the mode name, or `None` for bits that name none.
    #[must_use]
    pub const fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// `st_blocks`: allocated space in units of 512 bytes.
    #[must_use]
    pub const fn blocks_of_512(&self) -> u64 {
        self.blocks.saturating_mul(8)
    }
}

/// A moment: seconds since 1970 in UTC, negative before it, and nanoseconds after that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub seconds: i64,
    /// 0 to 999 999 999.
    pub nanoseconds: u32,
}

impl<Context> Decode<Context> for Timestamp {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let seconds = i64::decode(decoder)?;
        let nanoseconds = u32::decode(decoder)?;
        if nanoseconds >= 1_000_000_000 {
            return Err(DecodeError::Other("a timestamp with a second or more of nanoseconds"));
        }
        Ok(Self { seconds, nanoseconds })
    }
}
bincode::impl_borrow_decode!(Timestamp);

/// A time to set: the given one, or the server's own clock when the operation executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This moment.
    To(Timestamp),
}

/// The seven kinds of inode. One byte on the wire, with the numbers of `d_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A named pipe.
    Fifo = 1,
    /// A character device.
    CharacterDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A socket.
    Socket = 12,
}

impl FileKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Fifo,
        Self::CharacterDevice,
        Self::Directory,
        Self::BlockDevice,
        Self::Regular,
        Self::Symlink,
        Self::Socket,
    ];

    /// The kind of a number of `d_type`.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Fifo,
            2 => Self::CharacterDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The kind that the type bits of a mode name.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        // The type bits of a mode are d_type shifted by twelve; bits above them mean nothing and are refused with the rest.
        if mode & !(MODE_TYPE_MASK | MODE_PERMISSION_MASK) != 0 {
            return None;
        }
        Self::from_number((mode >> 12) as u8)
    }

    /// The type bits of a mode.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

impl Encode for FileKind {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (*self as u8).encode(encoder)
    }
}

impl<Context> Decode<Context> for FileKind {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        Self::from_number(u8::decode(decoder)?).ok_or(DecodeError::Other("an unknown kind of file"))
    }
}
bincode::impl_borrow_decode!(FileKind);

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DirectoryEntry {
    /// Position of this entry: pass it as `after_cookie` to continue behind it. Stable, never reused, larger than 256.
    pub cookie: u64,
    /// Inode number.
    pub inode: u64,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Name.
    pub name: Name,
    /// Present when asked for.
    pub attributes: Option<Attributes>,
}

impl DirectoryEntry {
    /// Bytes this entry takes in a body. The server adds these up to stop before [`crate::limits::MAX_DIRECTORY_BYTES`].
    #[must_use]
    pub fn encoded_length(&self) -> usize {
        let attributes = if self.attributes.is_some() { ATTRIBUTES_LENGTH } else { 0 };
        ENTRY_OVERHEAD + self.name.as_bytes().len() + attributes
    }
}

/// Bytes of an encoded entry without its name and attributes: cookie, inode, kind, length of the name, whether attributes follow.
const ENTRY_OVERHEAD: usize = 8 + 8 + 1 + 8 + 1;
/// Bytes of the longest encoded entry.
pub const MAX_ENTRY_LENGTH: usize = ENTRY_OVERHEAD + MAX_NAME + ATTRIBUTES_LENGTH;

/// Bytes of encoded [`Attributes`]: there is nothing of variable length in them.
pub const ATTRIBUTES_LENGTH: usize = 8 + 5 * 4 + 2 * 8 + 4 * 12 + 8;

/// A point in the history of a volume's state.
///
/// A reply to a change carries the point at which it landed (then called its **ticket**). The change is durable once the server has
/// committed transaction `transid`, or has made log transaction `log_transid` durable in the same `epoch`. A new epoch begins when the
/// server starts again after it may have lost changes that were not durable. So a client that presents a point of an older epoch to
/// `Fsync` or `Close` learns whether what it wrote survived, instead of a success that covers only what was written later.
///
/// Ordered by epoch, then transaction, then log transaction: the larger is the newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Lineage {
    /// Number of the volume's current life; see above.
    pub epoch: u64,
    /// The transaction that was running.
    pub transid: u64,
    /// The log transaction that was open; numbered from 1.
    pub log_transid: u64,
}

/// The lineage point at which a change landed.
pub type Ticket = Lineage;

/// The numbers of `statfs` for one volume, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct VolumeStatistics {
    /// Unit of allocation in bytes.
    pub block_size: u32,
    /// The longest name in bytes.
    pub max_name: u32,
    /// Bytes this volume may use at most: its limit, its tenant's limit or the store, whichever is least.
    pub total_bytes: u64,
    /// Bytes it uses now.
    pub used_bytes: u64,
    /// Bytes it can still write.
    pub available_bytes: u64,
    /// Inodes it may have at most; [`crate::limits::UNLIMITED`] for no limit.
    pub total_inodes: u64,
    /// Inodes it has now.
    pub used_inodes: u64,
}
