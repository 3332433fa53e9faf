//! Numbers with a name: the identifiers and small values that every part of the engine shares.

use zerocopy::little_endian::{I64, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of an inode within its subvolume; never reused.
pub type InodeNumber = u64;
/// Number of a subvolume within the store; never reused.
pub type SubvolumeId = u64;
/// Number of a tenant within the store; never reused.
pub type TenantId = u64;
/// Number of a transaction of the whole store, also called generation.
pub type TransactionId = u64;
/// Number of a generation of one subvolume's log, from 1; 0 = none.
pub type LogTransid = u64;
/// Number of a start of a server on this store, from 1; written into the superblock before anything else.
pub type ServerEpoch = u64;

/// A point in time, as POSIX keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC; negative before.
    pub seconds: i64,
    /// 0 ..= 999_999_999.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// A time of seconds and nanoseconds.
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        Self { seconds, nanoseconds }
    }
}

/// [`Timestamp`] as it stands on disk: 12 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskTimestamp {
    seconds: I64,
    nanoseconds: U32,
}

impl From<Timestamp> for DiskTimestamp {
    fn from(time: Timestamp) -> Self {
        Self { seconds: I64::new(time.seconds), nanoseconds: U32::new(time.nanoseconds) }
    }
}

impl From<DiskTimestamp> for Timestamp {
    fn from(time: DiskTimestamp) -> Self {
        Self { seconds: time.seconds.get(), nanoseconds: time.nanoseconds.get() }
    }
}

/// Name of a request that may be sent twice: who sent it and the sender's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperationId {
    /// The client's random identity.
    pub client: [u8; 16],
    /// The client's number of the operation, growing.
    pub sequence: u64,
}

/// Bytes and inodes in use, or a limit on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// 4096 times the mapped file blocks.
    pub bytes: u64,
    /// Inodes, the root directory not counted.
    pub inodes: u64,
}

/// Limits of a subvolume or tenant; `None` = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes that may be mapped.
    pub max_bytes: Option<u64>,
    /// Most inodes there may be.
    pub max_inodes: Option<u64>,
}

/// A range of bytes on the device; both multiples of the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceRange {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}
