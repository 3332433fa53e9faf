//! What several clients of one volume need of each other: locks, and the answers to recalls.
//!
//! How leases and locks live and end is a state machine, written down in `protocol.md` under "Leases" and "Locks".

use bincode::{Decode, Encode};

/// The two families of locks. They do not see each other, as on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum LockFamily {
    /// Byte ranges of `fcntl`, also those of open file descriptions (they differ in their owner only).
    Range,
    /// Whole files of `flock`.
    Flock,
}

/// What a lock keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum LockKind {
    /// Shared: keeps out `Write`.
    Read,
    /// Exclusive: keeps out both.
    Write,
    /// No lock: gives up what the owner has in the range.
    Unlock,
}

/// A lock of a range of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct LockRange {
    /// The inode.
    pub inode: u64,
    /// Which family.
    pub family: LockFamily,
    /// Which kind.
    pub kind: LockKind,
    /// Whose: a number that the client gives each of its owners (a process's table of files, an open file).
    pub owner: u64,
    /// First byte; 0 for `Flock`.
    pub start: u64,
    /// Last byte; 2^63-1 for "to the end" and for `Flock`.
    pub last: u64,
    /// The process, told to those who ask who is in their way.
    pub process: u32,
}
