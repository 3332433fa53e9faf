//! Locks that this mount holds: to release them when their file closes, and to claim them again from a restarted server.
//!
//! Invariant: of one owner and family, ranges of an inode do not overlap; the newest lock wins, as in POSIX.

use rustc_hash::FxHashMap;
use subvol_protocol::request::{LockFamily, LockKind, LockRange};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    lock: LockRange,
    /// The handle through which it was taken.
    handle: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct HeldLocks {
    inodes: FxHashMap<u64, Vec<Held>>,
}

impl HeldLocks {
    /// The server granted this (or took it back: `Unlock`).
    pub fn granted(&mut self, lock: &LockRange, handle: u64) {
        let held = self.inodes.entry(lock.inode).or_default();
        let mut pieces = Vec::new();
        held.retain(|old| {
            let same = old.lock.owner == lock.owner && old.lock.family == lock.family;
            if !same || !old.lock.overlaps(lock) {
                return true;
            }
            pieces.extend(old.lock.without(lock).map(|lock| Held { lock, ..*old }));
            false
        });
        held.append(&mut pieces);
        if lock.kind != LockKind::Unlock {
            held.push(Held { lock: *lock, handle });
        }
        if held.is_empty() {
            self.inodes.remove(&lock.inode);
        }
    }

    /// Whether an owner has ranges of an inode.
    #[must_use]
    pub fn has_ranges(&self, inode: u64, owner: u64) -> bool {
        self.inodes.get(&inode).is_some_and(|held| {
            held.iter().any(|held| held.lock.owner == owner && held.lock.family == LockFamily::Range)
        })
    }

    /// Whether the owner of a lock has any of its family on the inode.
    #[must_use]
    pub fn has_any(&self, lock: &LockRange) -> bool {
        self.inodes.get(&lock.inode).is_some_and(|held| {
            held.iter().any(|held| held.lock.owner == lock.owner && held.lock.family == lock.family)
        })
    }

    /// Owners and families with locks taken through a handle.
    #[must_use]
    pub fn of_handle(&self, inode: u64, handle: u64) -> Vec<(u64, LockFamily)> {
        let mut found: Vec<_> = self
            .inodes
            .get(&inode)
            .into_iter()
            .flatten()
            .filter(|held| held.handle == handle)
            .map(|held| (held.lock.owner, held.lock.family))
            .collect();
        found.dedup();
        found
    }

    /// All locks, to be claimed again.
    #[must_use]
    pub fn all(&self) -> Vec<LockRange> {
        self.inodes.values().flatten().map(|held| held.lock).collect()
    }

    /// This one could not be claimed again.
    pub fn lost(&mut self, lock: &LockRange) {
        self.granted(&LockRange { kind: LockKind::Unlock, ..*lock }, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn lock(owner: u64, kind: LockKind, start: u64, last: u64) -> LockRange {
        LockRange { inode: 300, family: LockFamily::Range, kind, owner, start, last, process: 1 }
    }

    #[test]
    fn a_lock_in_the_middle_splits_the_one_around_it() {
        let mut held = HeldLocks::default();
        held.granted(&lock(1, LockKind::Write, 0, 99), 7);
        held.granted(&lock(1, LockKind::Unlock, 10, 19), 7);
        held.granted(&lock(2, LockKind::Read, 10, 19), 8);
        let mut all: Vec<_> = held.all().iter().map(|lock| (lock.owner, lock.start, lock.last)).collect();
        all.sort_unstable();
        assert_eq!(all, [(1, 0, 9), (1, 20, 99), (2, 10, 19)]);
        assert!(held.has_ranges(300, 1) && !held.has_ranges(300, 3));
        assert_eq!(held.of_handle(300, 8), [(2, LockFamily::Range)]);
        held.granted(&lock(1, LockKind::Unlock, 0, i64::MAX as u64), 7);
        held.lost(&lock(2, LockKind::Read, 10, 19));
        assert!(held.all().is_empty());
    }
}
