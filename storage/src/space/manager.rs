//! Allocation: who gets which blocks.
//!
//! Next-fit: the search goes on where the last one ended (or at the caller's hint), so that what is written together
//! lies together. One mutex guards the bitmaps; it is taken per allocation window, not per extent. Counters are atomics
//! and need no lock.

use super::account::Account;
use super::bitmap::Bitmap;
use super::commit::Pending;
use super::{Class, Geometry, NoSpace, Run, SpaceError, SpaceStatistics};
use crate::format::group::{GROUP_BLOCKS, SLOTS, StoreId};
use parking_lot::Mutex;
use std::ops::Range;

/// Groups searched for a run of the wanted length before a shorter one will do.
const GROUPS_PER_SEARCH: usize = 8;

/// The space of a store. Shared by all subvolumes and the commit.
pub struct SpaceManager {
    pub(super) geometry: Geometry,
    pub(super) store: StoreId,
    pub(super) account: Account,
    pub(super) inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) groups: Vec<Group>,
    /// Generation of the last durable commit.
    pub(super) committed: u64,
    pub(super) pending: Option<Pending>,
    /// Block at which the next search without a hint begins.
    pub(super) rover: u64,
    /// Free quads of all groups.
    quads: u64,
}

pub(super) struct Group {
    pub(super) durable: Bitmap,
    pub(super) live: Bitmap,
    /// Free blocks in `live`.
    pub(super) free: usize,
    /// Slot that holds `durable` on the device; a commit writes the other.
    pub(super) slot: usize,
    /// Commits that must write this group even if nothing changed: its other slot holds something that a later
    /// superblock would make count (see `load`).
    pub(super) rewrites_due: u8,
    /// No free run is longer than this; spares exact searches the groups they have searched in vain.
    longest: usize,
    /// Free quads in `live`: see [`Bitmap::quads`].
    quads: usize,
}

impl Group {
    pub(super) fn new(durable: Bitmap, slot: usize, rewrites_due: u8) -> Self {
        let (live, free) = (durable.clone(), durable.count_free());
        let quads = live.quads(0..GROUP_BLOCKS as usize);
        Self { durable, live, free, slot, rewrites_due, longest: GROUP_BLOCKS as usize, quads }
    }

    /// Makes blocks free in `live`.
    pub(super) fn give(&mut self, range: Range<usize>) {
        self.free += range.len();
        self.longest = GROUP_BLOCKS as usize;
        self.quads -= self.live.quads(range.clone());
        self.live.clear(range.clone());
        self.quads += self.live.quads(range);
    }

    fn take(&mut self, range: Range<usize>) {
        self.free -= range.len();
        self.quads -= self.live.quads(range.clone());
        self.live.set(range.clone());
        self.quads += self.live.quads(range);
    }
}

impl Inner {
    /// Marks blocks of a group used.
    pub(super) fn take(&mut self, account: &Account, group: usize, range: Range<usize>) {
        self.change_quads(account, group, |group| group.take(range));
    }

    /// Marks blocks of a group free.
    pub(super) fn give(&mut self, account: &Account, group: usize, range: Range<usize>) {
        self.change_quads(account, group, |group| group.give(range));
    }

    fn change_quads(&mut self, account: &Account, group: usize, change: impl FnOnce(&mut Group)) {
        let group = &mut self.groups[group];
        let before = group.quads as u64;
        change(group);
        self.quads = self.quads - before + group.quads as u64;
        account.set_quad_blocks(self.quads * 4);
    }
}

impl SpaceManager {
    pub(super) fn from_groups(
        geometry: Geometry,
        store: StoreId,
        committed: u64,
        groups: Vec<Group>,
    ) -> Self {
        let free = groups.iter().map(|group| group.free as u64).sum();
        let rover = geometry.group(0).start;
        let quads = groups.iter().map(|group| group.quads as u64).sum();
        let account = Account::new(geometry.usable_blocks(), free);
        account.set_quad_blocks(quads * 4);
        Self {
            geometry,
            store,
            account,
            inner: Mutex::new(Inner { groups, committed, pending: None, rover, quads }),
        }
    }

    /// The areas of the device.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Takes a run of at most `blocks_max` blocks near block `hint`; shorter if there is nothing longer nearby,
    /// `None` if nothing is free at all. Does not look at reservations: the caller has reserved before, and returns the
    /// reservation of what it got.
    pub fn allocate(&self, blocks_max: u64, hint: Option<u64>) -> Option<Run> {
        self.take_run(1, blocks_max, hint)
    }

    /// Takes a run of exactly `blocks` blocks; `None` if there is no free run as long. Reservations as in
    /// [`SpaceManager::allocate`].
    pub fn allocate_exact_len(&self, blocks: u64, hint: Option<u64>) -> Option<Run> {
        self.take_run(blocks, blocks, hint)
    }

    /// Takes a run of `least..=wanted` blocks for a window. `covered` of them the caller has reserved; what goes beyond
    /// comes from the surplus that nobody was promised, so a large window never eats another's reservation.
    pub(super) fn refill(&self, covered: u64, least: u64, wanted: u64, hint: Option<u64>) -> Option<Run> {
        let surplus = self.account.take_surplus(wanted.saturating_sub(covered));
        let run = self.take_run(least, covered + surplus, hint);
        self.account.return_surplus(surplus);
        run
    }

    fn take_run(&self, least: u64, wanted: u64, hint: Option<u64>) -> Option<Run> {
        assert!(least > 0 && least <= wanted, "a run of {least} to {wanted} blocks");
        let least = usize::try_from(least).ok().filter(|&least| least as u64 <= GROUP_BLOCKS)?;
        let wanted = wanted.min(GROUP_BLOCKS) as usize;
        let mut inner = self.inner.lock();
        let (group, range) = if least == 1 && self.account.is_tight(wanted as u64) {
            // Leave quads to tree nodes as long as there is anything else.
            self.search_fragment(&inner, wanted).or_else(|| self.search(&mut inner, 1, wanted, hint))?
        } else {
            self.search(&mut inner, least, wanted, hint)?
        };
        Some(self.hand_out(&mut inner, group, range))
    }

    /// Takes a run for at most `nodes_max` tree nodes of four blocks each, in whole quads; `None` if there is none.
    /// Reservations as in [`SpaceManager::allocate`].
    pub fn allocate_nodes(&self, nodes_max: u64) -> Option<Run> {
        let wanted = usize::try_from(nodes_max).unwrap_or(usize::MAX).min(GROUP_BLOCKS as usize / 4);
        let mut inner = self.inner.lock();
        let mut best: Option<(usize, Range<usize>)> = None;
        for index in 0..inner.groups.len() {
            if inner.groups[index].quads == 0 {
                continue;
            }
            let Some(found) = inner.groups[index].live.find_quads(wanted) else { continue };
            let longer = best.as_ref().is_none_or(|(_, range)| range.len() < found.len());
            if longer {
                best = Some((index, found));
            }
            if best.as_ref().is_some_and(|(_, range)| range.len() >= wanted * 4) {
                break;
            }
        }
        let (group, range) = best?;
        Some(self.hand_out(&mut inner, group, range))
    }

    fn search_fragment(&self, inner: &Inner, wanted: usize) -> Option<(usize, Range<usize>)> {
        inner
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.free > group.quads * 4)
            .find_map(|(index, group)| Some((index, group.live.find_fragment(wanted)?)))
    }

    fn hand_out(&self, inner: &mut Inner, group: usize, range: Range<usize>) -> Run {
        let run = Run::new(self.geometry.group(group).start + range.start as u64, range.len() as u64);
        // The promise behind everything: what the durable state refers to, or goes back to in a crash, is never
        // handed out. Kept in release builds: handing it out would destroy data without a trace.
        assert!(
            inner.groups[group].durable.all_free(range.clone()),
            "allocating {run:?}, which is in durable use"
        );
        if let Some(pending) = &inner.pending {
            assert_eq!(pending.freed.first_common(run), None, "allocating {run:?}, which is pinned");
        }
        inner.take(&self.account, group, range);
        inner.rover = run.end();
        self.account.took(run.blocks);
        run
    }

    /// The first free run of `wanted` blocks from the hint on, or the longest one seen of at least `least`.
    fn search(
        &self,
        inner: &mut Inner,
        least: usize,
        wanted: usize,
        hint: Option<u64>,
    ) -> Option<(usize, Range<usize>)> {
        let position = hint.unwrap_or(inner.rover);
        let (first, offset) = self
            .geometry
            .locate(Run::new(position, 1))
            .map_or((0, SLOTS), |(group, range)| (group, range.start));
        let count = inner.groups.len();
        let mut best: Option<(usize, Range<usize>)> = None;
        let mut searched = 0;
        // The group of the hint is visited twice: from the hint on, and in the end before it.
        for step in 0..=count {
            let index = (first + step) % count;
            let end = self.geometry.group(index).blocks as usize;
            let area = match step {
                0 => offset..end,
                _ if step == count => SLOTS..offset,
                _ => SLOTS..end,
            };
            let group = &mut inner.groups[index];
            if group.free < least || group.longest < least {
                continue;
            }
            let found = group.live.find_run(area.start, area.end, wanted);
            let length = found.as_ref().map_or(0, Range::len);
            if area == (SLOTS..end) && length < wanted {
                group.longest = length;
            }
            if length >= wanted {
                return found.map(|range| (index, range));
            }
            if length >= least && best.as_ref().is_none_or(|(_, range)| range.len() < length) {
                best = found.map(|range| (index, range));
            }
            searched += 1;
            if best.is_some() && searched >= GROUPS_PER_SEARCH {
                break;
            }
        }
        best
    }

    /// Marks exactly these blocks as allocated: the log being replayed refers to them. Must come before any other
    /// allocation, which could take them.
    pub fn claim(&self, run: Run) -> Result<(), SpaceError> {
        let (index, range) = self.geometry.locate(run).ok_or(SpaceError::OutsideGroups { run })?;
        let mut inner = self.inner.lock();
        let group = &inner.groups[index];
        if !group.durable.all_free(range.clone()) {
            return Err(SpaceError::ClaimedDurable { run });
        }
        if !group.live.all_free(range.clone()) {
            return Err(SpaceError::ClaimedTwice { run });
        }
        inner.take(&self.account, index, range);
        self.account.took(run.blocks);
        Ok(())
    }

    /// Gives back blocks that were allocated and that nothing refers to: no tree, no log record, no commit. They can
    /// be used again at once.
    pub fn release_unwritten(&self, run: Run) {
        if run.blocks == 0 {
            return;
        }
        let Some((index, range)) = self.geometry.locate(run) else {
            panic!("giving back {run:?}, which is not in a group");
        };
        let mut inner = self.inner.lock();
        if let Some(pending) = &inner.pending {
            let referred = pending.allocated.first_common(run).or(pending.freed.first_common(run));
            assert_eq!(referred, None, "giving back {run:?}, which belongs to commit {}", pending.generation);
        }
        let group = &inner.groups[index];
        assert!(group.live.all_used(range.clone()), "giving back {run:?}, which is not allocated");
        assert!(group.durable.all_free(range.clone()), "giving back {run:?}, which is in durable use");
        inner.give(&self.account, index, range);
        self.account.gave(run.blocks);
    }

    /// Whether the last durable commit uses all of these blocks; `false` for blocks outside the groups.
    pub fn is_durable(&self, run: Run) -> bool {
        self.geometry
            .locate(run)
            .is_some_and(|(group, range)| self.inner.lock().groups[group].durable.all_used(range))
    }

    /// Promises `blocks` blocks, or says that the store is full for this class. One atomic operation.
    pub fn try_reserve(&self, blocks: u64, class: Class) -> Result<(), NoSpace> {
        self.account.try_reserve(blocks, class)
    }

    /// Promises `blocks` blocks that the caller has seen to be [`Self::available`] just before. Two callers at once may
    /// promise a few blocks more than growth may have; the emergency reserve covers them.
    pub fn reserve_forced(&self, blocks: u64) {
        self.account.reserve_forced(blocks);
    }

    /// A part of what the caller holds reserved is for tree nodes: it was `before` blocks, it is `after` now.
    pub fn note_nodes(&self, before: u64, after: u64) {
        self.account.note_nodes(before, after);
    }

    /// Blocks that this class can still have.
    pub fn available(&self, class: Class) -> u64 {
        self.account.available(class)
    }

    /// Returns a promise: the blocks were allocated, or are not needed. Panics if more is returned than was promised.
    pub fn unreserve(&self, blocks: u64) {
        self.account.unreserve(blocks);
    }

    /// Blocks that growth can still reserve.
    pub fn available_for_growth(&self) -> u64 {
        self.account.available_for_growth()
    }

    /// The counters.
    pub fn statistics(&self) -> SpaceStatistics {
        self.account.statistics()
    }

    /// Generation of the last commit that [`SpaceManager::finish_commit`] was told of, or that was loaded.
    pub fn committed_generation(&self) -> u64 {
        self.inner.lock().committed
    }
}
