//! Bitmap slots on the device: writing them at format time, and deciding at start which of the two counts.
//!
//! # The rule
//! The superblock of generation N is written only after the bitmaps of N were flushed, and a commit overwrites only the
//! slot that does not count. So at start with superblock N:
//! - **current** = the whole slot with the largest generation g <= N. No such slot: damaged.
//! - The other slot is *explained* if it is
//!   - whole and older than g (the ordinary case);
//!   - of a generation above N, whole or torn: a commit that never got its superblock. Its header is one sector, so its
//!     generation can be trusted even when the rest is torn (`SlotProblem::Torn`);
//!   - torn, with a header older than g: it was being overwritten by such a commit and the header had not arrived;
//!   - broken with an unknown generation while g = N: nothing newer than N can count.
//! - Otherwise the other slot may be the newest that counts, rotted. Using the older one would hand out blocks in use,
//!   so this is an error that names the group: [`SpaceError::BitmapDamaged`]. A torn write cannot cause it.
//!
//! A slot above N, or a broken one, must not stay: a later superblock would make its generation count, or make it
//! unexplained. Such groups are written by the next commit whether they change or not (`rewrites_due`).

use super::bitmap::Bitmap;
use super::manager::Group;
use super::{Geometry, SlotState, SortedRuns, SpaceError, SpaceManager};
use crate::device::{AlignedBuffer, Device, ReadRequest, WriteRequest};
use crate::format::group::{self, BITMAP_BYTES, GROUP_BLOCKS, SLOTS, SlotPlace, SlotProblem, StoreId};
use crate::limits::BLOCK;

/// Groups whose slots are read or written at once.
const GROUPS_PER_BATCH: usize = 64;
/// Generation that a freshly formatted store starts with.
const FIRST_GENERATION: u64 = 1;

impl SpaceManager {
    /// Writes the bitmaps of an empty store and flushes. Slot 0 of every group counts, with generation 1; slot 1 is
    /// whole too, with generation 0, so that an unreadable slot is never an ordinary thing.
    pub fn format(device: &dyn Device, geometry: Geometry, store: StoreId) -> Result<Self, SpaceError> {
        check_size(device, &geometry)?;
        let groups: Vec<Group> =
            (0..geometry.groups()).map(|index| Group::new(empty(&geometry, index), 0, 0)).collect();
        for first in (0..groups.len()).step_by(GROUPS_PER_BATCH) {
            let batch = first..groups.len().min(first + GROUPS_PER_BATCH);
            let buffers: Vec<(u64, AlignedBuffer)> = batch
                .map(|index| {
                    let mut buffer = AlignedBuffer::zeroed(SLOTS * BLOCK);
                    let bitmap = groups[index].durable.to_bytes();
                    for (slot, bytes) in buffer.chunks_exact_mut(BLOCK).enumerate() {
                        let place = place(&geometry, store, index, slot);
                        group::encode(&place, FIRST_GENERATION - slot as u64, &bitmap, bytes);
                    }
                    (geometry.slot_address(index, 0), buffer)
                })
                .collect();
            let writes: Vec<_> =
                buffers.iter().map(|(offset, data)| WriteRequest { offset: *offset, data }).collect();
            device.write_many(&writes)?;
        }
        device.flush()?;
        Ok(Self::from_groups(geometry, store, FIRST_GENERATION, groups))
    }

    /// Reads the bitmaps that count for a superblock of `generation`, by the rule at the head of this file.
    pub fn load(
        device: &dyn Device,
        geometry: Geometry,
        store: StoreId,
        generation: u64,
    ) -> Result<Self, SpaceError> {
        check_size(device, &geometry)?;
        let mut groups = Vec::with_capacity(geometry.groups());
        let mut buffers: Vec<_> =
            (0..GROUPS_PER_BATCH).map(|_| AlignedBuffer::zeroed(SLOTS * BLOCK)).collect();
        for first in (0..geometry.groups()).step_by(GROUPS_PER_BATCH) {
            let batch = first..geometry.groups().min(first + GROUPS_PER_BATCH);
            let mut reads: Vec<_> = batch
                .clone()
                .zip(&mut buffers)
                .map(|(index, buffer)| ReadRequest { offset: geometry.slot_address(index, 0), buffer })
                .collect();
            device.read_many(&mut reads)?;
            for (index, buffer) in batch.zip(&buffers) {
                groups.push(read_group(&geometry, store, generation, index, buffer)?);
            }
        }
        Ok(Self::from_groups(geometry, store, generation, groups))
    }

    /// For repair: a manager whose durable state is exactly `used` (the blocks that a walk of all trees of `generation`
    /// found), whatever the slots hold. Nothing is written here; the next two commits write every group.
    pub fn rebuild(
        geometry: Geometry,
        store: StoreId,
        generation: u64,
        used: &SortedRuns,
    ) -> Result<Self, SpaceError> {
        let mut bitmaps: Vec<_> = (0..geometry.groups()).map(|index| empty(&geometry, index)).collect();
        for &run in used.as_slice() {
            let (index, range) = geometry.locate(run).ok_or(SpaceError::OutsideGroups { run })?;
            bitmaps[index].set(range);
        }
        let groups = bitmaps.into_iter().map(|bitmap| Group::new(bitmap, 0, SLOTS as u8)).collect();
        Ok(Self::from_groups(geometry, store, generation, groups))
    }
}

fn check_size(device: &dyn Device, geometry: &Geometry) -> Result<(), SpaceError> {
    let (size, expected) = (device.size(), geometry.device_bytes());
    if size < expected { Err(SpaceError::DeviceTooSmall { size, expected }) } else { Ok(()) }
}

/// Nothing used but what can never be allocated: the slots, and blocks past the end.
fn empty(geometry: &Geometry, index: usize) -> Bitmap {
    let mut bitmap = Bitmap::new();
    bitmap.set(0..SLOTS);
    bitmap.set(geometry.group(index).blocks as usize..GROUP_BLOCKS as usize);
    bitmap
}

fn place(geometry: &Geometry, owner: StoreId, index: usize, slot: usize) -> SlotPlace {
    SlotPlace { owner, group: index as u64, address: geometry.slot_address(index, slot) }
}

fn read_group(
    geometry: &Geometry,
    store: StoreId,
    superblock: u64,
    index: usize,
    slots: &[u8],
) -> Result<Group, SpaceError> {
    let decoded: [Result<(u64, &[u8; BITMAP_BYTES]), SlotProblem>; SLOTS] = std::array::from_fn(|slot| {
        group::decode(&place(geometry, store, index, slot), &slots[slot * BLOCK..(slot + 1) * BLOCK])
    });
    let states = decoded.map(|slot| match slot {
        Ok((generation, _)) => SlotState::Whole(generation),
        Err(problem) => SlotState::Broken(problem),
    });
    let damaged = || SpaceError::BitmapDamaged { group: index as u64, generation: superblock, slots: states };
    let current = (0..SLOTS)
        .filter_map(|slot| match decoded[slot] {
            Ok((generation, bitmap)) if generation <= superblock => Some((generation, slot, bitmap)),
            _ => None,
        })
        .max_by_key(|(generation, ..)| *generation);
    let (generation, slot, bitmap) = current.ok_or_else(damaged)?;
    let rewrite = match judge_other(states[1 - slot], generation, superblock) {
        Other::Fine => 0,
        Other::MustGo => 1,
        Other::Unexplained => return Err(damaged()),
    };
    let bitmap = Bitmap::from_bytes(bitmap);
    let blocks = geometry.group(index).blocks as usize;
    if !bitmap.all_used(0..SLOTS) || !bitmap.all_used(blocks..GROUP_BLOCKS as usize) {
        return Err(SpaceError::BitmapImpossible { group: index as u64 });
    }
    if rewrite > 0 {
        tracing::info!(group = index, other = %states[1 - slot], "a bitmap of an unfinished commit is ignored");
    }
    Ok(Group::new(bitmap, slot, rewrite))
}

#[derive(Debug, PartialEq, Eq)]
enum Other {
    /// Whole and older.
    Fine,
    /// Explained by an unfinished commit; the next commit must overwrite it.
    MustGo,
    /// May be the one that counts.
    Unexplained,
}

/// Judges the slot beside the current one, by the rule at the head of this file.
fn judge_other(other: SlotState, current: u64, superblock: u64) -> Other {
    match other {
        SlotState::Whole(generation) if generation < current => Other::Fine,
        SlotState::Whole(generation) | SlotState::Broken(SlotProblem::Torn { generation, .. })
            if generation > superblock =>
        {
            Other::MustGo
        }
        SlotState::Broken(SlotProblem::Torn { generation, .. }) if generation < current => Other::MustGo,
        SlotState::Broken(SlotProblem::Torn { .. }) | SlotState::Whole(_) => Other::Unexplained,
        SlotState::Broken(_) if current == superblock => Other::MustGo,
        SlotState::Broken(_) => Other::Unexplained,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_case_by_case() {
        let torn = |generation| SlotState::Broken(SlotProblem::Torn { generation, checksum: None });
        let unknown = SlotState::Broken(SlotProblem::Magic);
        for (other, current, superblock, expected) in [
            (SlotState::Whole(3), 5, 9, Other::Fine),
            (SlotState::Whole(10), 5, 9, Other::MustGo),
            (SlotState::Whole(5), 5, 9, Other::Unexplained),
            (torn(10), 5, 9, Other::MustGo),
            (torn(3), 5, 9, Other::MustGo),
            (torn(5), 5, 9, Other::Unexplained),
            (torn(7), 5, 9, Other::Unexplained),
            (torn(9), 5, 9, Other::Unexplained),
            (unknown, 9, 9, Other::MustGo),
            (unknown, 8, 9, Other::Unexplained),
        ] {
            assert_eq!(judge_other(other, current, superblock), expected, "{other} {current} {superblock}");
        }
    }
}
