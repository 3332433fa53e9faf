//! File data and the log: what an fsync must put into it, and how replay takes it out again.
//!
//! An fsync logs the extents that were written back in transactions not yet durable, then the bytes of dirty pages: in
//! this order, since a page may cover a part of such an extent. Replay maps the extents and fills pages in the same
//! order. An extent may be in the tree already (its commit became durable after the fsync): then it stays as it is.

use crate::error::{Corruption, EngineError, EngineResult, FsError};
use crate::format::item::InodeItem;
use crate::format::key::{ItemKind, Key};
use crate::fs::extents::{Checksums, Extent, ExtentChange, Mapping, map_range};
use crate::fs::plan::Plan;
use crate::fs::resize::discard;
use crate::fs::view::View;
use crate::fs::write::fill_pages;
use crate::limits::{BLOCK_BYTES, EXTENT_BYTES_MAX};
use crate::types::{DeviceRange, InodeNumber, TransactionId};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// What the log must hold for an inode's data to be durable, in the order in which it is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnloggedData {
    /// Regular extents; their data must be on the device before the log refers to it.
    pub extents: Vec<Extent>,
    /// File offset and bytes: data of inline extents, then of dirty pages.
    pub data: Vec<(u64, Bytes)>,
}

/// The data of an inode that is neither durable nor in the log.
pub fn unlogged_data(view: &View<'_>, inode: InodeNumber) -> EngineResult<UnloggedData> {
    let mut unlogged = UnloggedData::default();
    let Some(file) = view.pages.file(inode) else { return Ok(unlogged) };
    for (from, to) in file.unlogged_extents().iter() {
        for extent in map_range(view, inode, from * BLOCK_BYTES, to * BLOCK_BYTES)? {
            match &extent.mapping {
                Mapping::Regular { .. } => unlogged.extents.push(extent),
                Mapping::Inline { data, .. } => unlogged.data.push((0, Bytes::copy_from_slice(data))),
                Mapping::Hole | Mapping::Preallocated { .. } => {}
            }
        }
    }
    unlogged.data.append(&mut view.pages.unlogged_runs(inode));
    Ok(unlogged)
}

/// Plans the mapping of a logged extent over its range, which loses what it had. `plan.claimed` are the device blocks
/// that the tree did not refer to before; the part of the extent past the end of the file, or all of it when the inode is
/// gone, is not claimed. Times and size stay: operation records set them.
///
/// Errors: `Corrupt` (an extent that cannot be, or whose blocks the file maps elsewhere).
pub fn plan_insert_extent(
    view: &View<'_>,
    inode: InodeNumber,
    offset: u64,
    checksums: &[u32],
    address: u64,
    length: u64,
    generation: TransactionId,
) -> EngineResult<Plan> {
    let odd = |reason: &str| Corruption {
        address,
        what: format!("logged extent of inode {inode} at byte {offset}"),
        reason: reason.to_owned(),
    };
    let aligned = [offset, address, length].iter().all(|value| value % BLOCK_BYTES == 0);
    let sound = aligned && address > 0 && (1..=EXTENT_BYTES_MAX).contains(&length);
    let ends = offset.checked_add(length).zip(address.checked_add(length));
    if !sound || ends.is_none() || checksums.len() as u64 != length / BLOCK_BYTES {
        return Err(odd("lengths that do not fit each other").into());
    }
    let mut plan = Plan { inode, ..Plan::default() };
    let Some(mut item) = living(view, inode)? else {
        plan.no_change = true;
        return Ok(plan);
    };
    let end = (offset + length).min(item.size.next_multiple_of(BLOCK_BYTES));
    if end <= offset {
        plan.no_change = true;
        return Ok(plan);
    }
    let mapping = Mapping::Regular { address, generation, checksums: Checksums::from_slice(checksums) };
    let extent = Extent { offset, length, mapping }.slice(offset, end);
    let mut change = ExtentChange::new(inode);
    change.load(view, offset, end, usize::MAX)?;
    let mut mapped = 0;
    let mut position = offset;
    let mut claim = |from: u64, to: u64| {
        if from < to {
            plan.claimed.push(DeviceRange { address: address + (from - offset), length: to - from });
        }
    };
    for part in change.take(offset, end) {
        mapped += part.length / BLOCK_BYTES;
        let Some(device) = part.device() else { continue };
        let same = address + (part.offset - offset);
        if device.range.address == same {
            // The same blocks: written in place into preallocated space, or in the tree already.
            claim(position, part.offset);
            position = part.end();
        } else if device.range.address < address + extent.length
            && address < device.range.address + part.length
        {
            return Err(odd("its device blocks are mapped at another place of the file").into());
        } else {
            change.release(device);
        }
    }
    claim(position, end);
    change.insert(extent);
    let pages = discard(view, inode, offset / BLOCK_BYTES, end / BLOCK_BYTES, &mut plan);
    change.finish(&mut plan);
    count(inode, &mut item, (end - offset) / BLOCK_BYTES - mapped - pages, &mut plan);
    Ok(plan)
}

/// Plans logged bytes into pages. Blocks past the end of the file are left out; in its last block the bytes past the end
/// count, since they are the zeros of a truncation whose block was written back before. Times and size stay.
pub fn plan_insert_data(
    view: &View<'_>,
    inode: InodeNumber,
    offset: u64,
    bytes: &Bytes,
) -> EngineResult<Plan> {
    let mut plan = Plan { inode, ..Plan::default() };
    let item = living(view, inode)?;
    let left = item.map_or(0, |item| item.size.next_multiple_of(BLOCK_BYTES).saturating_sub(offset));
    let bytes = bytes.slice(..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
    let Some(mut item) = item.filter(|_| !bytes.is_empty()) else {
        plan.no_change = true;
        return Ok(plan);
    };
    let before = item.blocks;
    fill_pages(view, inode, &mut item, offset, &bytes, &mut plan)?;
    if item.blocks != before {
        put(inode, &item, &mut plan);
    }
    Ok(plan)
}

/// The inode, if it is there and has data.
fn living(view: &View<'_>, inode: InodeNumber) -> EngineResult<Option<InodeItem>> {
    match view.inode(inode) {
        Ok(item) => Ok(item.is_regular().then_some(item)),
        Err(EngineError::Refused(FsError::NotFound)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Counts blocks newly mapped.
fn count(inode: InodeNumber, item: &mut InodeItem, blocks: u64, plan: &mut Plan) {
    if blocks > 0 {
        item.blocks = item.blocks.saturating_add(blocks);
        plan.bytes += (blocks * BLOCK_BYTES) as i64;
        put(inode, item, plan);
    }
}

fn put(inode: InodeNumber, item: &InodeItem, plan: &mut Plan) {
    plan.put(Key::new(inode, ItemKind::Inode, 0), item.to_disk().as_bytes());
    plan.touched.push(inode);
}
