//! Locks of a volume's inodes, without actors: byte ranges as in POSIX, and whole files as of `flock`.
//!
//! An owner is a client's slot and the number that client gives it. Invariants: two held locks of different owners and one family never
//! overlap unless both are `Read`; those of one owner never overlap; waiters are served in their order, each as soon as nothing held is
//! in its way.

use super::lease_table::Slot;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use subvol_protocol::request::{LockFamily, LockKind, LockRange};
use subvol_storage::types::InodeNumber;

/// Locks of one inode that are held or waited for; more are refused.
pub const LOCKS_PER_INODE: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    slot: Slot,
    lock: LockRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    slot: Slot,
    lock: LockRange,
    wait: u64,
    token: u64,
}

#[derive(Debug, Default)]
struct InodeLocks {
    held: Vec<Held>,
    waiting: VecDeque<Waiting>,
}

/// What became of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is held now (or given up).
    Granted,
    /// Somebody is in the way.
    Blocked,
    /// Waiting would never end.
    Deadlock,
    /// The inode has too many.
    TooMany,
}

/// See the module.
#[derive(Debug, Default)]
pub struct LockTable {
    inodes: FxHashMap<InodeNumber, InodeLocks>,
}

fn blocks(held: &Held, slot: Slot, lock: &LockRange) -> bool {
    held.lock.family == lock.family
        && (held.slot != slot || held.lock.owner != lock.owner)
        && (held.lock.kind == LockKind::Write || lock.kind == LockKind::Write)
        && held.lock.overlaps(lock)
}

impl InodeLocks {
    fn blocker(&self, slot: Slot, lock: &LockRange) -> Option<&Held> {
        if lock.kind == LockKind::Unlock {
            return None;
        }
        self.held.iter().find(|held| blocks(held, slot, lock))
    }

    /// Puts a lock in; what its owner had there goes.
    fn apply(&mut self, slot: Slot, lock: &LockRange) {
        let mut pieces = Vec::new();
        self.held.retain(|held| {
            let same = held.slot == slot && held.lock.owner == lock.owner && held.lock.family == lock.family;
            if !same || !held.lock.overlaps(lock) {
                return true;
            }
            pieces.extend(held.lock.without(lock).map(|lock| Held { lock, ..*held }));
            false
        });
        self.held.append(&mut pieces);
        if lock.kind == LockKind::Unlock {
            return;
        }
        let mut added = Held { slot, lock: *lock };
        // Neighbours of the same kind become one, or a file locked byte by byte would fill the table.
        self.held.retain(|held| {
            let touches = held.slot == slot
                && held.lock.owner == lock.owner
                && held.lock.family == lock.family
                && held.lock.kind == lock.kind
                && (held.lock.last.checked_add(1) == Some(added.lock.start)
                    || added.lock.last.checked_add(1) == Some(held.lock.start));
            if touches {
                added.lock.start = added.lock.start.min(held.lock.start);
                added.lock.last = added.lock.last.max(held.lock.last);
            }
            !touches
        });
        self.held.push(added);
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Grants what can be granted now, in order.
    fn serve(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        loop {
            let before = tokens.len();
            let mut rest = VecDeque::new();
            while let Some(waiting) = self.waiting.pop_front() {
                if self.blocker(waiting.slot, &waiting.lock).is_some() {
                    rest.push_back(waiting);
                } else {
                    self.apply(waiting.slot, &waiting.lock);
                    tokens.push(waiting.token);
                }
            }
            self.waiting = rest;
            // A grant that weakens its owner's lock makes way for one that was passed over.
            if tokens.len() == before {
                return tokens;
            }
        }
    }
}

impl LockTable {
    /// Asks for a lock. On success the second part has the jobs whose wait is over.
    pub fn lock(&mut self, slot: Slot, lock: &LockRange, waits: bool) -> (Outcome, Vec<u64>) {
        let locks = self.inodes.entry(lock.inode).or_default();
        let outcome = if locks.blocker(slot, lock).is_some() {
            if waits && lock.family == LockFamily::Range && self.would_deadlock(slot, lock) {
                (Outcome::Deadlock, Vec::new())
            } else {
                (Outcome::Blocked, Vec::new())
            }
        } else if lock.kind != LockKind::Unlock && locks.held.len() + locks.waiting.len() >= LOCKS_PER_INODE {
            (Outcome::TooMany, Vec::new())
        } else {
            locks.apply(slot, lock);
            (Outcome::Granted, locks.serve())
        };
        self.tidy(lock.inode);
        outcome
    }

    /// A job waits for a lock that [`Self::lock`] found blocked.
    pub fn wait(&mut self, slot: Slot, lock: LockRange, wait: u64, token: u64) {
        self.inodes.entry(lock.inode).or_default().waiting.push_back(Waiting { slot, lock, wait, token });
    }

    /// Takes a wait back. Returns the job that waited.
    pub fn cancel(&mut self, slot: Slot, wait: u64) -> Option<u64> {
        let (&inode, locks) = self.inodes.iter_mut().find(|(_, locks)| {
            locks.waiting.iter().any(|waiting| waiting.slot == slot && waiting.wait == wait)
        })?;
        let at = locks.waiting.iter().position(|waiting| waiting.slot == slot && waiting.wait == wait)?;
        let waiting = locks.waiting.remove(at)?;
        self.tidy(inode);
        Some(waiting.token)
    }

    /// The first lock in the way.
    pub fn test(&self, slot: Slot, lock: &LockRange) -> Option<LockRange> {
        self.inodes.get(&lock.inode)?.blocker(slot, lock).map(|held| held.lock)
    }

    /// A client stops waiting. Returns the jobs that waited.
    pub fn stop_waiting(&mut self, slot: Slot) -> Vec<u64> {
        let mut stopped = Vec::new();
        self.inodes.retain(|_, locks| {
            locks.waiting.retain(|waiting| {
                if waiting.slot == slot {
                    stopped.push(waiting.token);
                }
                waiting.slot != slot
            });
            !locks.is_empty()
        });
        stopped
    }

    /// A client is gone: its locks are free. Returns the jobs whose wait is over.
    pub fn remove(&mut self, slot: Slot) -> Vec<u64> {
        let mut served = Vec::new();
        self.inodes.retain(|_, locks| {
            let before = locks.held.len();
            locks.held.retain(|held| held.slot != slot);
            if locks.held.len() < before {
                served.extend(locks.serve());
            }
            !locks.is_empty()
        });
        served
    }

    fn tidy(&mut self, inode: InodeNumber) {
        if self.inodes.get(&inode).is_some_and(InodeLocks::is_empty) {
            self.inodes.remove(&inode);
        }
    }

    /// Would an owner that waits for this lock wait for itself? Follows who waits for whom.
    fn would_deadlock(&self, slot: Slot, lock: &LockRange) -> bool {
        let mut seen = FxHashSet::default();
        let mut ahead = self.in_the_way(slot, lock);
        while let Some(owner) = ahead.pop() {
            if owner == (slot, lock.owner) {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for locks in self.inodes.values() {
                for waiting in &locks.waiting {
                    if (waiting.slot, waiting.lock.owner) == owner && waiting.lock.family == LockFamily::Range
                    {
                        ahead.extend(self.in_the_way(waiting.slot, &waiting.lock));
                    }
                }
            }
        }
        false
    }

    fn in_the_way(&self, slot: Slot, lock: &LockRange) -> Vec<(Slot, u64)> {
        let held = self.inodes.get(&lock.inode).into_iter().flat_map(|locks| &locks.held);
        held.filter(|held| blocks(held, slot, lock)).map(|held| (held.slot, held.lock.owner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn range(owner: u64, kind: LockKind, start: u64, last: u64) -> LockRange {
        LockRange { inode: 300, family: LockFamily::Range, kind, owner, start, last, process: 1 }
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut table = LockTable::default();
        assert_eq!(table.lock(0, &range(1, LockKind::Read, 0, 9), false).0, Outcome::Granted);
        assert_eq!(table.lock(1, &range(1, LockKind::Read, 5, 9), false).0, Outcome::Granted);
        assert_eq!(table.lock(1, &range(1, LockKind::Write, 9, 20), false).0, Outcome::Blocked);
        assert_eq!(table.test(1, &range(1, LockKind::Write, 9, 20)), Some(range(1, LockKind::Read, 0, 9)));
        assert_eq!(table.lock(1, &range(1, LockKind::Write, 10, 20), false).0, Outcome::Granted);
        let flock = LockRange { family: LockFamily::Flock, ..range(9, LockKind::Write, 0, i64::MAX as u64) };
        assert_eq!(table.lock(2, &flock, false).0, Outcome::Granted, "another family");
    }

    #[test]
    fn waiters_are_served_in_order_when_the_way_is_free() {
        let mut table = LockTable::default();
        table.lock(0, &range(1, LockKind::Write, 0, 9), false);
        for (owner, token) in [(2, 20), (3, 30)] {
            let lock = range(owner, LockKind::Write, 0, 9);
            assert_eq!(table.lock(0, &lock, true).0, Outcome::Blocked);
            table.wait(0, lock, token, token);
        }
        assert_eq!(table.cancel(1, 20), None, "another client's");
        assert_eq!(table.lock(0, &range(1, LockKind::Unlock, 0, 9), false), (Outcome::Granted, vec![20]));
        assert_eq!(table.cancel(0, 30), Some(30));
        assert_eq!(table.remove(0), Vec::<u64>::new());
        assert!(table.inodes.is_empty());
    }

    #[test]
    fn two_that_wait_for_each_other_are_told() {
        let mut table = LockTable::default();
        table.lock(0, &range(1, LockKind::Write, 0, 0), false);
        table.lock(1, &range(1, LockKind::Write, 1, 1), false);
        let first = range(1, LockKind::Write, 1, 1);
        assert_eq!(table.lock(0, &first, true).0, Outcome::Blocked);
        table.wait(0, first, 1, 1);
        assert_eq!(table.lock(1, &range(1, LockKind::Write, 0, 0), true).0, Outcome::Deadlock);
        assert_eq!(
            table.lock(1, &range(1, LockKind::Write, 0, 0), false).0,
            Outcome::Blocked,
            "not without waiting"
        );
        assert_eq!(table.stop_waiting(0), [1]);
    }

    fn requests() -> impl Strategy<Value = Vec<(u8, u64, u8, u64, u64)>> {
        prop::collection::vec((0..2_u8, 1..3_u64, 0..3_u8, 0..12_u64, 0..6_u64), 1..60)
    }

    proptest! {
        /// Against a table of bytes, each with its readers and its writer.
        #[test]
        fn ranges_behave_like_single_bytes(requests in requests()) {
            let mut table = LockTable::default();
            let mut bytes: Vec<FxHashMap<(u8, u64), LockKind>> = vec![FxHashMap::default(); 20];
            for (slot, owner, kind, start, length) in requests {
                let kind = [LockKind::Read, LockKind::Write, LockKind::Unlock][usize::from(kind)];
                let lock = range(owner, kind, start, start + length);
                let covered = start as usize..=(start + length) as usize;
                let free = kind == LockKind::Unlock || bytes[covered.clone()].iter().all(|byte| {
                    byte.iter().all(|(&who, &held)| {
                        who == (slot, owner) || (held == LockKind::Read && kind == LockKind::Read)
                    })
                });
                let expected = if free { Outcome::Granted } else { Outcome::Blocked };
                prop_assert_eq!(table.lock(slot, &lock, false).0, expected);
                if free {
                    for byte in &mut bytes[covered] {
                        match kind {
                            LockKind::Unlock => drop(byte.remove(&(slot, owner))),
                            kind => drop(byte.insert((slot, owner), kind)),
                        }
                    }
                }
                for (at, byte) in bytes.iter().enumerate() {
                    let others = byte.iter().any(|(&who, _)| who != (9, 9));
                    let probe = range(9, LockKind::Write, at as u64, at as u64);
                    prop_assert_eq!(table.test(9, &probe).is_some(), others);
                }
            }
        }
    }
}
