//! Writeback: dirty pages become extents.
//!
//! Neither usage nor `InodeItem::blocks` change, since pages count from the write on. Space is taken only after all
//! reads have succeeded: a call that ends with `Missing` has taken nothing. (Nor must the caller lose what was taken if
//! `Tree::prepare` of the mutations is `Missing`: it fetches the node and prepares again, with the same plan.)

use crate::device::AlignedBuffer;
use crate::error::{EngineResult, FsError};
use crate::fs::extents::{Checksums, Extent, ExtentChange, Mapping};
use crate::fs::pages::{Below, Page};
use crate::fs::plan::{PageBytes, Released};
use crate::fs::view::View;
use crate::limits::{BLOCK, BLOCK_BYTES, EXTENT_BYTES_MAX, INLINE_BYTES_MAX};
use crate::tree::Mutation;
use crate::types::{InodeNumber, TransactionId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Most blocks of one extent.
const EXTENT_BLOCKS_MAX: u64 = EXTENT_BYTES_MAX / BLOCK_BYTES;

/// What a writeback changes and writes.
#[derive(Debug, Default)]
pub struct WritebackPlan {
    /// Extent items.
    pub mutations: Vec<Mutation>,
    /// Device blocks that the tree no longer refers to.
    pub released: Vec<Released>,
    /// Data to write to the device, before anything that refers to it.
    pub writes: Vec<ExtentWrite>,
    /// Blocks whose pages leave the table: [`crate::fs::pages::PageTable::complete_writeback`].
    pub taken: Vec<u64>,
}

/// An extent on its way to the device.
#[derive(Debug)]
pub struct ExtentWrite {
    /// Device byte.
    pub address: u64,
    /// The running transaction, in which it is written.
    pub generation: TransactionId,
    /// The bytes.
    pub buffer: AlignedBuffer,
    /// The same by file block: they must stay readable until they are written.
    pub blocks: Vec<(u64, PageBytes)>,
}

/// Plans the writeback of the first `max_blocks` dirty pages of a file. `allocate` is asked for a number of blocks and
/// answers a run of at most as many: address, blocks. When it has no more, the plan covers what it gave; every run that
/// it gave is in the plan.
///
/// Errors: `NoSpace` (nothing could be written back at all).
pub fn plan_writeback(
    view: &View<'_>,
    inode: InodeNumber,
    max_blocks: u64,
    allocate: &mut dyn FnMut(u64) -> Option<(u64, u64)>,
) -> EngineResult<WritebackPlan> {
    let Some(file) = view.pages.file(inode).filter(|file| !file.is_empty()) else {
        return Ok(WritebackPlan::default());
    };
    let item = view.inode(inode)?;
    let mut change = ExtentChange::new(inode);
    if item.size <= INLINE_BYTES_MAX as u64
        && file.len() == 1
        && let Some(page) = file.page(0).filter(|page| page.below() != Below::InPlace)
    {
        change.load(view, 0, BLOCK_BYTES, usize::MAX)?;
        return Ok(inline(view, item.size as usize, page, change));
    }
    let pages = || file.range(0, u64::MAX).take(usize::try_from(max_blocks).unwrap_or(usize::MAX));
    let runs = runs(pages().map(|(block, _)| block));
    for &(from, to) in &runs {
        change.load(view, from * BLOCK_BYTES, to * BLOCK_BYTES, usize::MAX)?;
    }
    let targets = find_targets(view, &change, &runs, allocate);
    if targets.is_empty() && !runs.is_empty() {
        return Err(FsError::NoSpace.into());
    }
    let mut plan = WritebackPlan::default();
    for target in targets {
        let pages = file.range(target.block, target.block + target.blocks);
        let write = extent_write(view, target.address, pages);
        let (offset, length) = (target.block * BLOCK_BYTES, target.blocks * BLOCK_BYTES);
        if target.in_place {
            // The device blocks stay the file's own; only what the item says about them changes.
            change.take(offset, offset + length);
        } else {
            change.remove(offset, offset + length);
        }
        let checksums: Checksums = write.buffer.chunks_exact(BLOCK).map(crc32c::crc32c).collect();
        let mapping = Mapping::Regular { address: write.address, generation: write.generation, checksums };
        change.insert(Extent { offset, length, mapping });
        plan.taken.extend(target.block..target.block + target.blocks);
        plan.writes.push(write);
    }
    (plan.mutations, plan.released) = change.into_parts();
    Ok(plan)
}

/// A small file goes into its extent item.
fn inline(view: &View<'_>, size: usize, page: &Page, mut change: ExtentChange) -> WritebackPlan {
    change.remove(0, BLOCK_BYTES);
    let data = SmallVec::from_slice(&page.bytes()[..size]);
    let mapping = Mapping::Inline { data, generation: view.transid };
    change.insert(Extent { offset: 0, length: BLOCK_BYTES, mapping });
    let (mutations, released) = change.into_parts();
    WritebackPlan { mutations, released, writes: Vec::new(), taken: vec![0] }
}

/// Blocks in a row, as first block and block after the last.
fn runs(blocks: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((_, end)) if *end == block => *end += 1,
            _ => runs.push((block, block + 1)),
        }
    }
    runs
}

/// File blocks that become one extent, and where it goes.
struct Target {
    block: u64,
    blocks: u64,
    address: u64,
    in_place: bool,
}

fn find_targets(
    view: &View<'_>,
    change: &ExtentChange,
    runs: &[(u64, u64)],
    allocate: &mut dyn FnMut(u64) -> Option<(u64, u64)>,
) -> Vec<Target> {
    let shared = view.pages.shared_through();
    let mut targets = Vec::new();
    // Blocks that need space; those of one run and of several replaced extents are written together.
    let mut homeless: Vec<(u64, u64)> = Vec::new();
    for &(from, to) in runs {
        for part in change.parts(from * BLOCK_BYTES, to * BLOCK_BYTES) {
            if part.takes_data_in_place(shared)
                && let Some(device) = part.device()
            {
                let mut block = part.block();
                while block < part.end_block() {
                    let blocks = EXTENT_BLOCKS_MAX.min(part.end_block() - block);
                    let address = device.range.address + (block - part.block()) * BLOCK_BYTES;
                    targets.push(Target { block, blocks, address, in_place: true });
                    block += blocks;
                }
            } else {
                match homeless.last_mut() {
                    Some((_, end)) if *end == part.block() => *end = part.end_block(),
                    _ => homeless.push((part.block(), part.end_block())),
                }
            }
        }
    }
    for (mut block, end) in homeless {
        while block < end {
            let wanted = EXTENT_BLOCKS_MAX.min(end - block);
            let Some((address, blocks)) = allocate(wanted) else { return targets };
            assert!(blocks > 0 && blocks <= wanted, "asked for {wanted} blocks, got {blocks}");
            targets.push(Target { block, blocks, address, in_place: false });
            block += blocks;
        }
    }
    targets
}

fn extent_write<'a>(
    view: &View<'_>,
    address: u64,
    pages: impl DoubleEndedIterator<Item = (u64, &'a Page)>,
) -> ExtentWrite {
    let blocks: Vec<(u64, PageBytes)> =
        pages.map(|(block, page)| (block, Arc::clone(page.bytes()))).collect();
    let mut buffer = AlignedBuffer::zeroed(blocks.len() * BLOCK);
    for (bytes, (_, page)) in buffer.chunks_exact_mut(BLOCK).zip(&blocks) {
        bytes.copy_from_slice(page.as_slice());
    }
    ExtentWrite { address, generation: view.transid, buffer, blocks }
}
