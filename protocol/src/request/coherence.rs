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

impl LockRange {
    /// Whether the two have a byte in common.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// What is left of this one, before and behind, when the bytes of another are taken out of it.
    pub fn without(self, other: &Self) -> impl Iterator<Item = Self> {
        let before =
            (self.start < other.start).then(|| Self { last: self.last.min(other.start - 1), ..self });
        let behind = (self.last > other.last).then(|| Self { start: self.start.max(other.last + 1), ..self });
        before.into_iter().chain(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_taken_out_leave_what_is_around_them() {
        let range = |start, last| LockRange {
            inode: 1,
            family: LockFamily::Range,
            kind: LockKind::Read,
            owner: 1,
            start,
            last,
            process: 1,
        };
        let left =
            |other| range(10, 20).without(&other).map(|piece| (piece.start, piece.last)).collect::<Vec<_>>();
        assert_eq!(left(range(12, 15)), [(10, 11), (16, 20)]);
        assert_eq!(left(range(0, 10)), [(11, 20)]);
        assert_eq!(left(range(20, u64::MAX)), [(10, 19)]);
        assert_eq!(left(range(0, u64::MAX)), []);
        assert!(range(10, 20).overlaps(&range(20, 21)) && !range(10, 20).overlaps(&range(21, 30)));
    }
}
