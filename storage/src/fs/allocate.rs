//! `fallocate`: allocating, punching holes, zeroing ranges.
//!
//! One plan covers its whole range and is atomic; its size grows with the number of extents and dirty pages in the
//! range. So that one call does not stop a subvolume for long, the caller cuts a range into [`step_length`] pieces, each
//! an operation of its own with its own record. The pieces of one request are then atomic each and in order, but not
//! together: what other file systems do as well, which run such a request in several transactions. Replay gets the
//! pieces as they were run and never cuts again: its state may be more or less fragmented.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, inode_flags};
use crate::format::key::{ItemKind, Key};
use crate::fs::extents::{Extent, ExtentChange, Mapping, extents_in};
use crate::fs::inode_set::InodeSet;
use crate::fs::plan::{Plan, PreallocateRequest};
use crate::fs::resize::{discard, unmap, zero_part};
use crate::fs::view::View;
use crate::fs::write::{check_regular, range_end};
use crate::limits::{BLOCK_BYTES, EXTENT_BYTES_MAX, EXTENTS_PER_STEP};
use crate::tree::{Change, ItemValue, Mutation};
use crate::types::{DeviceRange, InodeNumber, TransactionId};
use rustc_hash::FxHashMap;
use zerocopy::IntoBytes;

/// Most bytes that one piece allocates: on a device in fragments of 1 MiB that makes [`EXTENTS_PER_STEP`] items.
const ALLOCATED_PER_STEP: u64 = EXTENTS_PER_STEP as u64 * EXTENT_BYTES_MAX;

/// Plans an allocation: blocks of the range that are not mapped get preallocated space; all others stay.
///
/// Errors: `NotFound`; `IsDirectory`, `InvalidArgument` (not a regular file, nothing asked for); `FileTooBig`; `TrimFirst`.
pub fn plan_allocate(
    view: &View<'_>,
    inode: InodeNumber,
    offset: u64,
    length: u64,
    keep_size: bool,
) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    let end = check(&inodes.get(inode)?, offset, length)?;
    let item = inodes.edit(inode)?;
    grow(view, inode, item, end, keep_size)?;
    let mut plan = Plan { inode, ..Plan::default() };
    let (from, to) = (offset / BLOCK_BYTES * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES));
    let (extents, _) = extents_in(view, inode, from, to, usize::MAX)?;
    let mut position = from;
    for extent in &extents {
        request_clean(view, inode, position, extent.offset, &mut plan);
        position = extent.end();
    }
    request_clean(view, inode, position, to, &mut plan);
    let bytes: u64 = plan.preallocate.iter().map(|request| request.length).sum();
    map(item, bytes, &mut plan)?;
    inodes.finish(&mut plan);
    Ok(plan)
}

/// Plans a hole: whole blocks of the range are unmapped, the rest of it is zeroed; the size stays.
///
/// Errors: `NotFound`; `IsDirectory`, `InvalidArgument` (not a regular file, nothing asked for); `FileTooBig`.
pub fn plan_punch(view: &View<'_>, inode: InodeNumber, offset: u64, length: u64) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    let end = check(&inodes.get(inode)?, offset, length)?;
    let mut plan = Plan { inode, ..Plan::default() };
    let range = Range::new(offset, end);
    let mut change = ExtentChange::new(inode);
    change.load(view, range.outer_from, range.outer_to, usize::MAX)?;
    for (from, to) in range.parts() {
        zero_part(view, inode, &mut change, from, to, &mut plan)?;
    }
    let (from, to) = range.whole();
    let removed =
        change.remove(from, to) + discard(view, inode, from / BLOCK_BYTES, to / BLOCK_BYTES, &mut plan);
    change.finish(&mut plan);
    let item = inodes.edit(inode)?;
    (item.mtime, item.ctime) = (view.resolved.now, view.resolved.now);
    unmap(inode, item, removed, &mut plan)?;
    inodes.finish(&mut plan);
    Ok(plan)
}

/// Plans a zeroed range: it reads zero and all its blocks are mapped, whole blocks to preallocated space.
///
/// Errors: as [`plan_allocate`].
pub fn plan_zero(
    view: &View<'_>,
    inode: InodeNumber,
    offset: u64,
    length: u64,
    keep_size: bool,
) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    let end = check(&inodes.get(inode)?, offset, length)?;
    let item = inodes.edit(inode)?;
    grow(view, inode, item, end, keep_size)?;
    let mut plan = Plan { inode, ..Plan::default() };
    let range = Range::new(offset, end);
    let mut change = ExtentChange::new(inode);
    change.load(view, range.outer_from, range.outer_to, usize::MAX)?;
    for (from, to) in range.parts() {
        zero_part(view, inode, &mut change, from, to, &mut plan)?;
    }
    // Blocks that are mapped before: they stay mapped. The others are new.
    let pages = view.pages.file(inode);
    let over_holes =
        pages.map_or(0, |file| file.over_holes(range.outer_from / BLOCK_BYTES, range.outer_to / BLOCK_BYTES));
    let mut holes = 0;
    let (from, to) = range.whole();
    for part in change.parts(range.outer_from, range.outer_to) {
        if part.mapping == Mapping::Hole {
            holes += part.length / BLOCK_BYTES;
        }
        if matches!(part.mapping, Mapping::Preallocated { .. }) {
            continue;
        }
        // Data of a partial block stays; a hole there is filled.
        let hole = part.mapping == Mapping::Hole;
        let (first, last) = (part.offset.max(from).min(part.end()), part.end().min(to).max(part.offset));
        if hole {
            request_clean(view, inode, part.offset, first, &mut plan);
        }
        if first < last {
            change.remove(first, last);
            request(inode, first, last, &mut plan);
        }
        if hole {
            request_clean(view, inode, last.max(first), part.end(), &mut plan);
        }
    }
    discard(view, inode, from / BLOCK_BYTES, to / BLOCK_BYTES, &mut plan);
    change.finish(&mut plan);
    map(item, (holes - over_holes) * BLOCK_BYTES, &mut plan)?;
    inodes.finish(&mut plan);
    Ok(plan)
}

/// How much of a range one operation should take: up to [`EXTENTS_PER_STEP`] extents and as many dirty pages, and, if
/// it `allocates`, 2 GiB. More than 0; a range that is refused anyway comes back as it is.
pub fn step_length(
    view: &View<'_>,
    inode: InodeNumber,
    offset: u64,
    length: u64,
    allocates: bool,
) -> EngineResult<u64> {
    let Ok(end) = range_end(offset, length) else { return Ok(length) };
    let mut end = end;
    if allocates {
        end = end.min((offset / BLOCK_BYTES * BLOCK_BYTES).saturating_add(ALLOCATED_PER_STEP));
    }
    let from = offset / BLOCK_BYTES;
    let pages = view.pages.file(inode);
    if let Some((block, _)) =
        pages.and_then(|file| file.range(from, end.div_ceil(BLOCK_BYTES)).nth(EXTENTS_PER_STEP))
    {
        end = end.min(block * BLOCK_BYTES);
    }
    let (extents, complete) = extents_in(view, inode, from * BLOCK_BYTES, end, EXTENTS_PER_STEP)?;
    if let Some(last) = extents.last()
        && !complete
    {
        end = end.min(last.end());
    }
    Ok(end - offset)
}

/// Takes space for the preallocations of a plan and puts their items into it, in place of items that the plan removes
/// at the same offset. `allocate` is asked for a number of blocks and answers a run of at most as many: address, blocks.
///
/// Answers the ranges taken, and whether all was found; if not, or if the plan is not executed after all (`Missing`),
/// the caller gives the ranges back and drops the plan.
pub fn fulfil_preallocations(
    plan: &mut Plan,
    transid: TransactionId,
    allocate: &mut dyn FnMut(u64) -> Option<(u64, u64)>,
) -> (Vec<DeviceRange>, bool) {
    let mut taken = Vec::new();
    if plan.preallocate.is_empty() {
        return (taken, true);
    }
    let mut places: FxHashMap<Key, usize> =
        plan.mutations.iter().enumerate().map(|(index, mutation)| (mutation.key, index)).collect();
    for request in &plan.preallocate {
        let mut offset = request.offset;
        let end = request.offset + request.length;
        while offset < end {
            let wanted = (end - offset) / BLOCK_BYTES;
            let Some((address, blocks)) = allocate(wanted) else { return (taken, false) };
            assert!(blocks > 0 && blocks <= wanted, "asked for {wanted} blocks, got {blocks}");
            let length = blocks * BLOCK_BYTES;
            taken.push(DeviceRange { address, length });
            let mapping = Mapping::Preallocated { address, generation: transid };
            let key = Key::new(request.inode, ItemKind::Extent, offset);
            let mutation =
                Mutation { key, change: Change::Put(Extent { offset, length, mapping }.to_value()) };
            match places.insert(key, plan.mutations.len()) {
                Some(index) => {
                    places.insert(key, index);
                    plan.mutations[index] = mutation;
                }
                None => plan.mutations.push(mutation),
            }
            offset += length;
        }
    }
    (taken, true)
}

/// Gives up the preallocations of a plan: their blocks stay (or become) holes. For replay on a full device: the blocks of
/// logged extents are set apart there before records run, so an allocation that was later filled would need room twice.
/// Space that was only promised is not part of what a crash must keep; data is.
pub fn drop_preallocations(plan: &mut Plan) -> EngineResult<()> {
    let requests = std::mem::take(&mut plan.preallocate);
    let dropped: u64 = requests.iter().map(|request| request.length).sum();
    let Some(inode) = requests.first().map(|request| request.inode) else { return Ok(()) };
    let key = Key::new(inode, ItemKind::Inode, 0);
    for mutation in plan.mutations.iter_mut().filter(|mutation| mutation.key == key) {
        if let Change::Put(value) = &mut mutation.change {
            let mut item = InodeItem::parse(&key, value)?;
            item.blocks -= dropped / BLOCK_BYTES;
            *value = ItemValue::from_slice(item.to_disk().as_bytes());
        }
    }
    plan.bytes -= dropped as i64;
    Ok(())
}

/// Checks a request; answers the end of its range.
fn check(item: &InodeItem, offset: u64, length: u64) -> EngineResult<u64> {
    check_regular(item)?;
    if length == 0 {
        return Err(FsError::InvalidArgument.into());
    }
    range_end(offset, length)
}

/// Size and times of a file whose range up to `end` is mapped.
fn grow(
    view: &View<'_>,
    inode: InodeNumber,
    item: &mut InodeItem,
    end: u64,
    keep_size: bool,
) -> EngineResult<()> {
    if item.flags & inode_flags::TRIM_PENDING != 0 && end > item.size {
        return Err(EngineError::TrimFirst(inode));
    }
    if !keep_size {
        item.size = item.size.max(end);
    }
    (item.mtime, item.ctime) = (view.resolved.now, view.resolved.now);
    Ok(())
}

/// Counts bytes newly mapped. The largest file has one byte less than `bytes` can count, its blocks one byte more: a
/// request for all of them must not wrap into a negative change of usage.
fn map(item: &mut InodeItem, bytes: u64, plan: &mut Plan) -> EngineResult<()> {
    plan.bytes = i64::try_from(bytes).map_err(|_| FsError::NoSpace)?;
    item.blocks = item.blocks.checked_add(bytes / BLOCK_BYTES).ok_or(FsError::NoSpace)?;
    Ok(())
}

/// Asks for space for an unmapped range, except where dirty pages map it.
fn request_clean(view: &View<'_>, inode: InodeNumber, from: u64, to: u64, plan: &mut Plan) {
    if from >= to {
        return;
    }
    let mut position = from;
    let file = view.pages.file(inode);
    for (block, _) in file.into_iter().flat_map(|file| file.range(from / BLOCK_BYTES, to / BLOCK_BYTES)) {
        request(inode, position, block * BLOCK_BYTES, plan);
        position = (block + 1) * BLOCK_BYTES;
    }
    request(inode, position, to, plan);
}

fn request(inode: InodeNumber, from: u64, to: u64, plan: &mut Plan) {
    if from >= to {
        return;
    }
    match plan.preallocate.last_mut() {
        Some(last) if last.offset + last.length == from => last.length += to - from,
        _ => plan.preallocate.push(PreallocateRequest { inode, offset: from, length: to - from }),
    }
}

/// A range of bytes, by blocks.
struct Range {
    offset: u64,
    end: u64,
    /// The blocks it touches, in bytes.
    outer_from: u64,
    outer_to: u64,
}

impl Range {
    fn new(offset: u64, end: u64) -> Self {
        let outer_from = offset / BLOCK_BYTES * BLOCK_BYTES;
        Self { offset, end, outer_from, outer_to: end.next_multiple_of(BLOCK_BYTES) }
    }

    /// The blocks wholly in it, in bytes; may be empty.
    fn whole(&self) -> (u64, u64) {
        let from = self.offset.next_multiple_of(BLOCK_BYTES);
        (from, (self.end / BLOCK_BYTES * BLOCK_BYTES).max(from))
    }

    /// What it touches of blocks that are only partly in it: at most two pieces.
    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (from, to) = self.whole();
        let head = (self.offset, self.end.min(from));
        let tail = (to.max(self.offset), self.end);
        let tail = if self.offset < from && self.end <= from { (0, 0) } else { tail };
        [head, tail].into_iter().filter(|(from, to)| from < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_whole_blocks_cover_a_range_once() {
        const B: u64 = BLOCK_BYTES;
        for (offset, end) in [
            (0, B),
            (1, 2),
            (1, B),
            (0, 1),
            (B - 1, B + 1),
            (B, 3 * B),
            (1, 3 * B - 1),
            (B, B + 5),
            (5, 2 * B),
        ] {
            let range = Range::new(offset, end);
            let (from, to) = range.whole();
            let parts: u64 = range.parts().map(|(from, to)| to - from).sum();
            assert_eq!(parts + (to - from), end - offset, "{offset}..{end}");
            for (from, to) in range.parts() {
                assert!(from >= offset && to <= end && from / B == (to - 1) / B, "{offset}..{end}");
            }
        }
    }
}
