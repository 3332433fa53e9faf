//! The steps of a commit: what its bitmaps are, and when what it freed may be used again.
//!
//! ```text
//! begin_commit(N)  -> images of every group that changes, into the slot that does not count
//!     caller: write images, data, nodes; flush; superblock N; flush
//! finish_commit(N) -> durable := the images; blocks freed by N leave `live` (unpinned)
//! abort_commit()   -> the images are forgotten, the lists go back to the caller
//! ```
//! Why a group that an aborted commit wrote must be written again by the next: its idle slot now holds generation N,
//! and would count as soon as any superblock of a generation >= N is durable, although its contents belong to no
//! commit. The same holds for slots that a crash left behind, see `load`.
//!
//! If the *superblock* of N failed, it may be durable all the same. Then neither finish nor abort is right: the store
//! must stop writing and be opened again.

use super::bitmap::Bitmap;
use super::manager::Inner;
use super::{Geometry, Run, RunList, SortedRuns, SpaceError, SpaceManager};
use crate::device::{AlignedBuffer, WriteRequest};
use crate::format::group::{self, SlotPlace};
use crate::limits::BLOCK;
use std::ops::Range;

/// A commit between its begin and its end.
pub(super) struct Pending {
    pub(super) generation: u64,
    pub(super) allocated: SortedRuns,
    /// Pinned.
    pub(super) freed: SortedRuns,
    /// The bitmaps it writes, by group, ascending.
    next: Vec<(usize, Bitmap)>,
}

/// The bitmap slots that a commit writes.
#[derive(Debug)]
pub struct BitmapImages {
    /// The commit.
    pub generation: u64,
    /// Byte address and contents (4096 bytes) of each slot.
    pub slots: Vec<(u64, AlignedBuffer)>,
    /// Runs that this commit frees, after merging.
    pub freed_ranges: usize,
}

impl BitmapImages {
    /// The writes, for [`crate::device::Device::write_many`].
    pub fn requests(&self) -> Vec<WriteRequest<'_>> {
        self.slots.iter().map(|(offset, data)| WriteRequest { offset: *offset, data }).collect()
    }
}

/// What a finished commit made free. The caller times the call: the engine has no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpinned {
    /// Runs, after merging.
    pub ranges: usize,
    /// Blocks.
    pub blocks: u64,
}

impl SpaceManager {
    /// Prepares commit `generation`: durable + `allocated` - `freed`; a block in both is free afterwards. `allocated`
    /// holds what the transaction refers to, not what windows still hold. On an error nothing has changed.
    ///
    /// Panics if a commit is pending, or if `generation` is not newer than the last.
    pub fn begin_commit(
        &self,
        generation: u64,
        allocated: RunList,
        freed: RunList,
    ) -> Result<BitmapImages, SpaceError> {
        let (allocated, freed) = (allocated.into_sorted_merged()?, freed.into_sorted_merged()?);
        let mut inner = self.inner.lock();
        assert!(inner.pending.is_none(), "commit {generation} begins within another");
        assert!(generation > inner.committed, "commit {generation} after commit {}", inner.committed);
        let next = self.next_bitmaps(&inner, &allocated, &freed)?;
        let slots =
            next.iter().map(|(index, bitmap)| self.image(&inner, *index, generation, bitmap)).collect();
        self.account.set_pinned(freed.blocks());
        let images = BitmapImages { generation, slots, freed_ranges: freed.len() };
        inner.pending = Some(Pending { generation, allocated, freed, next });
        Ok(images)
    }

    fn next_bitmaps(
        &self,
        inner: &Inner,
        allocated: &SortedRuns,
        freed: &SortedRuns,
    ) -> Result<Vec<(usize, Bitmap)>, SpaceError> {
        let mut touched: Vec<usize> =
            (0..inner.groups.len()).filter(|&index| inner.groups[index].rewrites_due > 0).collect();
        for run in allocated.as_slice().iter().chain(freed.as_slice()) {
            let (index, _) = self.geometry.locate(*run).ok_or(SpaceError::OutsideGroups { run: *run })?;
            if touched.last() != Some(&index) {
                touched.push(index);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        let mut next: Vec<_> =
            touched.into_iter().map(|index| (index, inner.groups[index].durable.clone())).collect();
        let mut cursor = 0;
        for_each_range(&self.geometry, allocated.as_slice(), |run, index, range| {
            let group = &inner.groups[index];
            let bitmap = at(&mut next, &mut cursor, index);
            if !group.live.all_used(range.clone()) || !bitmap.all_free(range.clone()) {
                return Err(SpaceError::NotAllocated { run });
            }
            bitmap.set(range);
            Ok(())
        })?;
        cursor = 0;
        for_each_range(&self.geometry, freed.as_slice(), |run, index, range| {
            let bitmap = at(&mut next, &mut cursor, index);
            if !bitmap.all_used(range.clone()) {
                return Err(SpaceError::NotInUse { run });
            }
            bitmap.clear(range);
            Ok(())
        })?;
        Ok(next)
    }

    fn image(&self, inner: &Inner, index: usize, generation: u64, bitmap: &Bitmap) -> (u64, AlignedBuffer) {
        let address = self.geometry.slot_address(index, 1 - inner.groups[index].slot);
        let mut buffer = AlignedBuffer::zeroed(BLOCK);
        let place = SlotPlace { owner: self.store, group: index as u64, address };
        group::encode(&place, generation, &bitmap.to_bytes(), &mut buffer);
        (address, buffer)
    }

    /// The runs that the pending commit frees. Discard them after the superblock is durable and *before*
    /// [`SpaceManager::finish_commit`]: afterwards they may hold new data already.
    pub fn pending_freed(&self) -> Vec<Run> {
        self.inner
            .lock()
            .pending
            .as_ref()
            .map(|pending| pending.freed.as_slice().to_vec())
            .unwrap_or_default()
    }

    /// The superblock of `generation` is durable: what it freed can be used again. One pass over the sorted runs, which
    /// clears whole words; no search. Panics if another commit or none is pending.
    pub fn finish_commit(&self, generation: u64) -> Unpinned {
        let mut inner = self.inner.lock();
        let pending = inner.pending.take();
        let Some(pending) = pending.filter(|pending| pending.generation == generation) else {
            panic!("commit {generation} is finished but was not begun");
        };
        inner.committed = generation;
        // What was used before is used again first: on a sparse file new blocks cost the host a journal commit, which
        // every fsync of the store then waits for, and the file grows without need.
        if let Some(first) = pending.freed.as_slice().first() {
            inner.rover = inner.rover.min(first.start);
        }
        for (index, bitmap) in pending.next {
            let group = &mut inner.groups[index];
            group.durable = bitmap;
            group.slot = 1 - group.slot;
            group.rewrites_due = group.rewrites_due.saturating_sub(1);
        }
        let unpinned = for_each_range(&self.geometry, pending.freed.as_slice(), |_, index, range| {
            inner.give(&self.account, index, range);
            Ok(())
        });
        assert!(unpinned.is_ok(), "the runs were located at the begin");
        self.account.gave(pending.freed.blocks());
        self.account.set_pinned(0);
        Unpinned { ranges: pending.freed.len(), blocks: pending.freed.blocks() }
    }

    /// The commit did not happen, and its superblock was **not** written. Returns its lists (allocated, freed), for the
    /// commit that will hold its changes; the freed blocks stay in use until then. Panics if no commit is pending.
    pub fn abort_commit(&self) -> (RunList, RunList) {
        let mut inner = self.inner.lock();
        let Some(pending) = inner.pending.take() else {
            panic!("no commit to abort");
        };
        for (index, _) in pending.next {
            let group = &mut inner.groups[index];
            group.rewrites_due = group.rewrites_due.max(1);
        }
        self.account.set_pinned(0);
        (pending.allocated.into(), pending.freed.into())
    }
}

/// Calls `visit(run, group, range within it)` for runs in order.
fn for_each_range(
    geometry: &Geometry,
    runs: &[Run],
    mut visit: impl FnMut(Run, usize, Range<usize>) -> Result<(), SpaceError>,
) -> Result<(), SpaceError> {
    runs.iter().try_for_each(|&run| {
        let (index, range) = geometry.locate(run).ok_or(SpaceError::OutsideGroups { run })?;
        visit(run, index, range)
    })
}

/// The bitmap of `group`, whose number only grows from call to call: the cursor never goes back.
fn at<'a>(next: &'a mut [(usize, Bitmap)], cursor: &mut usize, group: usize) -> &'a mut Bitmap {
    while next[*cursor].0 < group {
        *cursor += 1;
    }
    assert_eq!(next[*cursor].0, group, "every touched group has a bitmap");
    &mut next[*cursor].1
}
