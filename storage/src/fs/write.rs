//! Writing file data into dirty pages.
//!
//! A write maps blocks at once (in memory), so quotas are exact before the reply; it gets device blocks at writeback.
//! Pages are whole blocks: what a partial write leaves of a block is read first. Nothing beyond the end of the file
//! needs to be read, because mapped bytes there are zero.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, inode_flags};
use crate::fs::attributes::without_set_id;
use crate::fs::extents::{Extent, Mapping, map_range, stored_block};
use crate::fs::inode_set::InodeSet;
use crate::fs::pages::Below;
use crate::fs::plan::{PageEffect, Plan};
use crate::fs::view::View;
use crate::limits::{BLOCK_BYTES, FILE_BYTES_MAX, IO_BYTES_MAX};
use crate::types::InodeNumber;
use bytes::Bytes;

/// Plans a write of `length` bytes. On replay there are no bytes: only size, times and mode change; the data comes in
/// records of its own, if it was ever logged.
///
/// Errors: `NotFound`; `IsDirectory`, `InvalidArgument` (not a regular file; more than [`IO_BYTES_MAX`] bytes; `data` of
/// another length); `FileTooBig`.
pub fn plan_write(
    view: &View<'_>,
    inode: InodeNumber,
    offset: u64,
    data: &Bytes,
    length: u64,
    clear_set_id: bool,
) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    let mut plan = Plan { inode, ..Plan::default() };
    check_regular(&inodes.get(inode)?)?;
    if length == 0 {
        plan.no_change = true;
        return Ok(plan);
    }
    let end = range_end(offset, length)?;
    if !view.replay && (data.len() as u64 != length || length > IO_BYTES_MAX as u64) {
        return Err(FsError::InvalidArgument.into());
    }
    let item = inodes.edit(inode)?;
    if end > item.size && item.flags & inode_flags::TRIM_PENDING != 0 {
        return Err(EngineError::TrimFirst(inode));
    }
    if !view.replay {
        fill_pages(view, inode, item, offset, data, &mut plan)?;
    }
    item.size = item.size.max(end);
    (item.mtime, item.ctime) = (view.resolved.now, view.resolved.now);
    if clear_set_id {
        item.mode = without_set_id(item.mode);
    }
    inodes.finish(&mut plan);
    Ok(plan)
}

/// Is it a file with data?
pub(super) fn check_regular(item: &InodeItem) -> EngineResult<()> {
    match item.is_regular() {
        true => Ok(()),
        false if item.is_directory() => Err(FsError::IsDirectory.into()),
        false => Err(FsError::InvalidArgument.into()),
    }
}

/// End of a range that must lie within the largest file.
pub(super) fn range_end(offset: u64, length: u64) -> EngineResult<u64> {
    offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX).ok_or(FsError::FileTooBig.into())
}

/// Puts bytes into pages: makes the blocks dirty, completes partial ones, counts blocks newly mapped. `item.size` is the
/// size before the write.
pub(super) fn fill_pages(
    view: &View<'_>,
    inode: InodeNumber,
    item: &mut InodeItem,
    offset: u64,
    data: &Bytes,
    plan: &mut Plan,
) -> EngineResult<()> {
    let end = offset + data.len() as u64;
    let (first, last) = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
    let dirty = view.pages.file(inode).map_or(0, |file| file.range(first, last).count() as u64);
    if dirty < last - first {
        for extent in map_range(view, inode, first * BLOCK_BYTES, last * BLOCK_BYTES)? {
            let mapped = dirty_blocks(view, inode, &extent, plan);
            item.blocks = item.blocks.saturating_add(mapped);
            plan.bytes += (mapped * BLOCK_BYTES) as i64;
            for block in edges(first, last) {
                let inside = extent.block() <= block && block < extent.end_block();
                if inside
                    && view.pages.page(inode, block).is_none()
                    && keeps_bytes(block, offset, end, item.size)
                    && let Some(contents) = stored_block(view, inode, &extent, block)?
                {
                    plan.pages.push(PageEffect::Base { inode, block, contents });
                }
            }
        }
    }
    plan.pages.push(PageEffect::Write { inode, offset, data: data.clone() });
    Ok(())
}

/// First and last block, once if they are the same.
fn edges(first: u64, last: u64) -> impl Iterator<Item = u64> {
    [Some(first), (last - 1 > first).then_some(last - 1)].into_iter().flatten()
}

/// Does a write leave bytes of the block that may not be zero?
fn keeps_bytes(block: u64, offset: u64, end: u64, size: u64) -> bool {
    let start = block * BLOCK_BYTES;
    let used = size.min(start + BLOCK_BYTES);
    start < used && (offset > start || end < used)
}

/// Makes the blocks of an extent (or hole) dirty that are not; answers how many of them were not mapped before.
fn dirty_blocks(view: &View<'_>, inode: InodeNumber, extent: &Extent, plan: &mut Plan) -> u64 {
    let below = match extent.mapping {
        Mapping::Hole => Below::Hole,
        _ if extent.takes_data_in_place(view.pages.shared_through()) => Below::InPlace,
        _ => Below::Extent,
    };
    let mut blocks = 0;
    let mut clean = |from: u64, to: u64| {
        if from < to {
            plan.pages.push(PageEffect::Dirty { inode, from, to, below });
            blocks += to - from;
        }
    };
    let (first, end) = (extent.block(), extent.end_block());
    let mut from = first;
    for (block, _) in view.pages.file(inode).into_iter().flat_map(|file| file.range(first, end)) {
        clean(from, block);
        from = block + 1;
    }
    clean(from, end);
    if below != Below::InPlace {
        plan.reserve_blocks += blocks;
    }
    if below == Below::Hole { blocks } else { 0 }
}
