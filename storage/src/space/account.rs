//! Counters of blocks, and reservations: promises that blocks will be there when dirty data is written.
//!
//! `available = free - reserved` is one atomic, so that a reservation is one compare-and-swap. It stays >= 0 as long as
//! every allocation is covered by a reservation or by surplus taken here; then `free >= reserved`: a promise is always
//! kept. An allocation lowers `available` at once and the reservation behind it is returned a moment later
//! ([`super::SpaceManager::unreserve`]), so for that moment others may see less than there is, never more.
//!
//! [`super::SpaceManager::reserve_forced`] skips the check, for callers that checked just before: two of them at once may
//! take `available` below what growth may have, by what one operation needs. The emergency reserve absorbs that.
//!
//! The **emergency reserve** is what growth may not touch: on a full device deletes, truncates, snapshot removal and the
//! commit itself still find blocks for the tree nodes they copy.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use thiserror::Error;

/// Smallest and largest emergency reserve, in blocks.
const EMERGENCY_BLOCKS_MIN: u64 = 512;
const EMERGENCY_BLOCKS_MAX: u64 = 65536;

/// What a reservation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Makes the store fuller: may not take the emergency reserve.
    Growth,
    /// Makes the store emptier, or must succeed: may take everything.
    Release,
}

/// The store is full for this class of reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the store is full: {wanted} blocks wanted, {available} available")]
pub struct NoSpace {
    /// Blocks asked for.
    pub wanted: u64,
    /// Blocks that this class could have had.
    pub available: u64,
}

/// A look at the counters, in blocks; not a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceStatistics {
    /// All that can ever be allocated.
    pub total: u64,
    /// Neither durable, nor allocated, nor pinned.
    pub free: u64,
    /// Promised, not yet allocated.
    pub reserved: u64,
    /// Freed by the commit being written.
    pub pinned: u64,
    /// The emergency reserve.
    pub emergency: u64,
    /// What growth can still reserve.
    pub available_for_growth: u64,
}

/// Blocks that growth may not touch on a store of `total` blocks: 1/64 of it, at least 512 and at most 65536
/// (256 MiB), but never more than an eighth of a tiny (test) store.
pub const fn emergency_blocks(total: u64) -> u64 {
    let share = total / 64;
    let share = if share < EMERGENCY_BLOCKS_MIN { EMERGENCY_BLOCKS_MIN } else { share };
    let share = if share > EMERGENCY_BLOCKS_MAX { EMERGENCY_BLOCKS_MAX } else { share };
    if share > total / 8 { total / 8 } else { share }
}

pub(super) struct Account {
    total: u64,
    emergency: u64,
    free: AtomicU64,
    reserved: AtomicU64,
    pinned: AtomicU64,
    available: AtomicI64,
    /// Free blocks in quads: the only ones that tree nodes can use.
    quad_blocks: AtomicU64,
    /// Part of `reserved` that is for tree nodes.
    node_blocks: AtomicU64,
}

impl Account {
    pub(super) fn new(total: u64, free: u64) -> Self {
        assert!(free <= total);
        Self {
            total,
            emergency: emergency_blocks(total),
            free: AtomicU64::new(free),
            reserved: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            available: AtomicI64::new(free as i64),
            quad_blocks: AtomicU64::new(0),
            node_blocks: AtomicU64::new(0),
        }
    }

    /// How many free blocks lie in quads now.
    pub(super) fn set_quad_blocks(&self, blocks: u64) {
        self.quad_blocks.store(blocks, Ordering::Release);
    }

    /// A part of what is reserved is for tree nodes from now on, or no longer.
    pub(super) fn note_nodes(&self, before: u64, after: u64) {
        if after > before {
            self.node_blocks.fetch_add(after - before, Ordering::AcqRel);
        } else {
            let held = self.node_blocks.fetch_sub(before - after, Ordering::AcqRel);
            assert!(held >= before - after, "more node blocks were returned than noted");
        }
    }

    /// Would taking `wanted` blocks out of quads break the promise that every tree node finds one?
    pub(super) fn is_tight(&self, wanted: u64) -> bool {
        let promised = self.node_blocks.load(Ordering::Acquire) + self.emergency;
        self.quad_blocks.load(Ordering::Acquire) < promised + wanted + 8
    }

    pub(super) fn try_reserve(&self, blocks: u64, class: Class) -> Result<(), NoSpace> {
        let floor = self.floor(class);
        let wanted = i64::try_from(blocks).unwrap_or(i64::MAX);
        let lower =
            |available: i64| available.checked_sub(wanted).filter(|&rest| blocks == 0 || rest >= floor);
        match self.available.fetch_update(Ordering::AcqRel, Ordering::Acquire, lower) {
            Ok(_) => {
                self.reserved.fetch_add(blocks, Ordering::AcqRel);
                Ok(())
            }
            Err(available) => Err(NoSpace { wanted: blocks, available: above(available, floor) }),
        }
    }

    /// Promises blocks without asking; see [`super::SpaceManager::reserve_forced`].
    pub(super) fn reserve_forced(&self, blocks: u64) {
        self.available.fetch_sub(i64::try_from(blocks).unwrap_or(i64::MAX), Ordering::AcqRel);
        self.reserved.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Blocks that this class can still have.
    ///
    /// Whatever grows also makes tree nodes dirty, so it is refused when single free blocks are left but no quads: on a
    /// store full of small files of which every second one was deleted, a commit would find no room for a node.
    pub(super) fn available(&self, class: Class) -> u64 {
        // The last blocks are the committer's: the root tree's nodes are reserved by nobody.
        let floor = self.floor(class).max(self.emergency as i64 / 8);
        let nodes = self.node_blocks.load(Ordering::Acquire);
        let in_quads = self.quad_blocks.load(Ordering::Acquire) as i64 - nodes as i64;
        above(self.available.load(Ordering::Acquire), floor).min(above(in_quads, floor))
    }

    pub(super) fn unreserve(&self, blocks: u64) {
        let before = self.reserved.fetch_sub(blocks, Ordering::AcqRel);
        assert!(before >= blocks, "{blocks} blocks unreserved, {before} are reserved");
        self.available.fetch_add(blocks as i64, Ordering::AcqRel);
    }

    /// Takes up to `wanted` blocks that nobody was promised, and says how many. They are part of the next
    /// [`Account::took`], or go back with [`Account::return_surplus`].
    pub(super) fn take_surplus(&self, wanted: u64) -> u64 {
        let floor = self.floor(Class::Growth);
        let mut taken = 0;
        let lower = |available: i64| {
            taken = above(available, floor).min(wanted);
            Some(available - taken as i64)
        };
        // The closure never refuses, so neither does the update.
        let _ = self.available.fetch_update(Ordering::AcqRel, Ordering::Acquire, lower);
        taken
    }

    pub(super) fn return_surplus(&self, blocks: u64) {
        self.available.fetch_add(blocks as i64, Ordering::AcqRel);
    }

    /// `blocks` were allocated.
    pub(super) fn took(&self, blocks: u64) {
        let before = self.free.fetch_sub(blocks, Ordering::AcqRel);
        assert!(before >= blocks, "{blocks} blocks allocated, {before} are free");
        self.available.fetch_sub(blocks as i64, Ordering::AcqRel);
    }

    /// `blocks` are free again.
    pub(super) fn gave(&self, blocks: u64) {
        let after = self.free.fetch_add(blocks, Ordering::AcqRel) + blocks;
        assert!(after <= self.total, "{after} blocks free of {}", self.total);
        self.available.fetch_add(blocks as i64, Ordering::AcqRel);
    }

    pub(super) fn set_pinned(&self, blocks: u64) {
        self.pinned.store(blocks, Ordering::Release);
    }

    pub(super) fn available_for_growth(&self) -> u64 {
        above(self.available.load(Ordering::Acquire), self.floor(Class::Growth))
    }

    pub(super) fn statistics(&self) -> SpaceStatistics {
        SpaceStatistics {
            total: self.total,
            free: self.free.load(Ordering::Acquire),
            reserved: self.reserved.load(Ordering::Acquire),
            pinned: self.pinned.load(Ordering::Acquire),
            emergency: self.emergency,
            available_for_growth: self.available_for_growth(),
        }
    }

    fn floor(&self, class: Class) -> i64 {
        match class {
            Class::Growth => self.emergency as i64,
            Class::Release => 0,
        }
    }
}

fn above(available: i64, floor: i64) -> u64 {
    u64::try_from(available - floor).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_stops_at_the_emergency_reserve_and_release_does_not() {
        let account = Account::new(64_000, 2000);
        assert_eq!(account.available_for_growth(), 1000);
        assert_eq!(account.try_reserve(1001, Class::Growth), Err(NoSpace { wanted: 1001, available: 1000 }));
        account.try_reserve(1000, Class::Growth).expect("exactly what is left");
        assert!(account.try_reserve(1, Class::Growth).is_err());
        account.try_reserve(0, Class::Growth).expect("nothing is always there");
        account.try_reserve(1000, Class::Release).expect("the emergency reserve");
        assert!(account.try_reserve(1, Class::Release).is_err());
        assert_eq!(account.take_surplus(10), 0);
        account.took(1500);
        account.unreserve(2000);
        assert_eq!(account.statistics().free, 500);
        assert_eq!(account.available_for_growth(), 0);
        account.gave(1500);
        assert_eq!(account.take_surplus(10), 10);
        account.return_surplus(10);
        assert_eq!(account.available_for_growth(), 1000);
        assert!(account.try_reserve(u64::MAX, Class::Release).is_err());
    }

    #[test]
    fn the_emergency_reserve_scales() {
        assert_eq!(emergency_blocks(100), 12);
        assert_eq!(emergency_blocks(5000), 512);
        assert_eq!(emergency_blocks(64 * 1000), 1000);
        assert_eq!(emergency_blocks(1 << 40), 65536);
    }
}
