//! Changing the size of a file.
//!
//! Invariant kept here: mapped bytes past the end of a file are zero (only preallocated space and, while
//! `TRIM_PENDING`, whole blocks that nobody may reach lie beyond it). So growing changes nothing but a number.

use crate::error::{Corruption, EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, damaged, inode_flags};
use crate::format::key::{ItemKind, Key};
use crate::fs::extents::{ExtentChange, Mapping, stored_block};
use crate::fs::orphan::{ORPHAN_TRIM, orphan_key};
use crate::fs::pages::Below;
use crate::fs::plan::{PageEffect, Plan};
use crate::fs::view::View;
use crate::fs::write::check_regular;
use crate::limits::{BLOCK_BYTES, EXTENTS_PER_STEP, FILE_BYTES_MAX};
use crate::types::InodeNumber;

/// Plans a change of size; `item` gets the new size, blocks and flags, the caller puts it and sees to the times.
///
/// A shrink, also one to the present size, frees what is mapped past the end. With more than [`EXTENTS_PER_STEP`]
/// extents there, the rest is left to [`crate::fs::reclaim::plan_trim_step`]: `TRIM_PENDING` and an orphan item say so.
///
/// Errors: `IsDirectory`, `InvalidArgument` (not a regular file); `FileTooBig`; `TrimFirst` (growing while blocks past
/// the end wait to be freed).
pub fn plan_resize(
    view: &View<'_>,
    inode: InodeNumber,
    item: &mut InodeItem,
    new_size: u64,
    plan: &mut Plan,
) -> EngineResult<()> {
    check_regular(item)?;
    if new_size > FILE_BYTES_MAX {
        return Err(FsError::FileTooBig.into());
    }
    let pending = item.flags & inode_flags::TRIM_PENDING != 0;
    if new_size > item.size {
        if pending {
            return Err(EngineError::TrimFirst(inode));
        }
        item.size = new_size;
        return Ok(());
    }
    let end = new_size.next_multiple_of(BLOCK_BYTES);
    let cuts_block = new_size < item.size && new_size < end;
    let mut change = ExtentChange::new(inode);
    let from = if cuts_block { end - BLOCK_BYTES } else { end };
    let complete = change.load(view, from, u64::MAX, EXTENTS_PER_STEP)?;
    if cuts_block {
        zero_part(view, inode, &mut change, new_size, end, plan)?;
    }
    let removed = change.remove(end, u64::MAX) + discard(view, inode, end / BLOCK_BYTES, u64::MAX, plan);
    change.finish(plan);
    unmap(inode, item, removed, plan)?;
    item.size = new_size;
    // An inode without names has its orphan item already, and keeps it.
    if complete && pending {
        item.flags &= !inode_flags::TRIM_PENDING;
        if item.nlink > 0 {
            plan.delete(orphan_key(inode));
        }
    } else if !complete && !pending {
        item.flags |= inode_flags::TRIM_PENDING;
        if item.nlink > 0 {
            plan.put(orphan_key(inode), [ORPHAN_TRIM].as_slice());
        }
    }
    Ok(())
}

/// Counts blocks that are no longer mapped.
pub(super) fn unmap(
    inode: InodeNumber,
    item: &mut InodeItem,
    blocks: u64,
    plan: &mut Plan,
) -> Result<(), Corruption> {
    let left = item.blocks.checked_sub(blocks);
    let key = Key::new(inode, ItemKind::Inode, 0);
    item.blocks = left.ok_or_else(|| damaged(&key, "inode that counts fewer blocks than it maps"))?;
    plan.bytes -= (blocks * BLOCK_BYTES) as i64;
    Ok(())
}

/// Drops dirty pages; answers how many of them were the only reason for their block to count as mapped.
pub(super) fn discard(view: &View<'_>, inode: InodeNumber, from: u64, to: u64, plan: &mut Plan) -> u64 {
    match view.pages.file(inode) {
        Some(file) if from < to => {
            plan.pages.push(PageEffect::Discard { inode, from, to });
            file.over_holes(from, to)
        }
        _ => 0,
    }
}

/// Zeroes bytes of one block, which `change` has loaded. Stored data becomes a dirty page, except inline data, which is
/// shortened where it stands: that works on a full device too.
pub(super) fn zero_part(
    view: &View<'_>,
    inode: InodeNumber,
    change: &mut ExtentChange,
    from: u64,
    to: u64,
    plan: &mut Plan,
) -> EngineResult<()> {
    let block = from / BLOCK_BYTES;
    let start = block * BLOCK_BYTES;
    assert!(from < to && to <= start + BLOCK_BYTES, "bytes of one block");
    let zero = PageEffect::Zero { inode, offset: from, length: to - from };
    if view.pages.page(inode, block).is_some() {
        plan.pages.push(zero);
        return Ok(());
    }
    for extent in change.parts(start, start + BLOCK_BYTES) {
        match &extent.mapping {
            Mapping::Hole | Mapping::Preallocated { .. } => {}
            Mapping::Inline { data, .. } => {
                let mut data = data.clone();
                let length = data.len();
                let (from, to) = ((from as usize).min(length), (to as usize).min(length));
                if from == to {
                    continue;
                }
                data[from..to].fill(0);
                if to == length {
                    data.truncate(from);
                }
                change.take(start, start + BLOCK_BYTES);
                let mapping = Mapping::Inline { data, generation: view.transid };
                change.insert(crate::fs::extents::Extent { mapping, ..extent });
            }
            Mapping::Regular { .. } => {
                plan.pages.push(PageEffect::Dirty {
                    inode,
                    from: block,
                    to: block + 1,
                    below: Below::Extent,
                });
                if let Some(contents) = stored_block(view, inode, &extent, block)? {
                    plan.pages.push(PageEffect::Base { inode, block, contents });
                }
                plan.pages.push(zero.clone());
                plan.reserve_blocks += 1;
            }
        }
    }
    Ok(())
}
