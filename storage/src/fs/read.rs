//! Reading file data: what of a range is in memory, and what must come from the device.
//!
//! A read never asks to be run again for data: the caller reads the device pieces, verifies them with
//! [`verify_blocks`] and puts everything together. (A tree node may still be `Missing`.)

use crate::error::{Corruption, DataPointer, EngineResult, FsError};
use crate::fs::extents::{Extent, Mapping, inline_page, map_range};
use crate::fs::plan::PageBytes;
use crate::fs::view::View;
use crate::limits::{BLOCK, BLOCK_BYTES, IO_BYTES_MAX};
use crate::types::InodeNumber;
use std::sync::Arc;

/// A range of file bytes in pieces, in order and without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadPlan {
    /// The pieces.
    pub segments: Vec<ReadSegment>,
    /// Bytes of all pieces; fewer than asked for at the end of the file or beyond [`IO_BYTES_MAX`].
    pub length: usize,
}

/// Where a piece of a range comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadSegment {
    /// This many zeros.
    Zeros(usize),
    /// Bytes `from` up to, not including, `to` of a block in memory.
    Memory {
        /// The block.
        page: PageBytes,
        /// First byte.
        from: usize,
        /// The byte after the last.
        to: usize,
    },
    /// Whole blocks to read from the device, of which a part is wanted.
    Device {
        /// What to read and its checksums.
        pointer: DataPointer,
        /// Bytes at its beginning that are not wanted.
        skip: usize,
        /// Bytes wanted.
        length: usize,
    },
}

/// Plans a read.
///
/// Errors: `NotFound`; `IsDirectory`, `InvalidArgument` (not a regular file).
pub fn plan_read(view: &View<'_>, inode: InodeNumber, offset: u64, length: usize) -> EngineResult<ReadPlan> {
    let item = view.inode(inode)?;
    if item.is_directory() {
        return Err(FsError::IsDirectory.into());
    }
    if !item.is_regular() {
        return Err(FsError::InvalidArgument.into());
    }
    let left = item.size.saturating_sub(offset);
    let length = left.min(length.min(IO_BYTES_MAX) as u64) as usize;
    if length == 0 {
        return Ok(ReadPlan::default());
    }
    let end = offset + length as u64;
    let first = offset / BLOCK_BYTES;
    let last = end.div_ceil(BLOCK_BYTES);
    let pages = view.pages.file(inode);
    let all_dirty = pages.is_some_and(|file| file.range(first, last).count() as u64 == last - first);
    let stored =
        if all_dirty { Vec::new() } else { map_range(view, inode, first * BLOCK_BYTES, last * BLOCK_BYTES)? };
    let mut builder = Builder { inode, from: offset, to: end, segments: Vec::new(), run: None };
    if all_dirty {
        for (block, page) in pages.into_iter().flat_map(|file| file.range(first, last)) {
            builder.memory(block, Arc::clone(page.bytes()));
        }
    }
    for extent in &stored {
        for block in extent.block()..extent.end_block() {
            if let Some(page) = pages.and_then(|file| file.page(block)) {
                builder.memory(block, Arc::clone(page.bytes()));
                continue;
            }
            match &extent.mapping {
                Mapping::Hole | Mapping::Preallocated { .. } => builder.zeros(block),
                Mapping::Inline { data, .. } => builder.memory(block, inline_page(data)),
                Mapping::Regular { address, generation, .. } => {
                    let address = address + (block * BLOCK_BYTES - extent.offset);
                    match view.blocks.block(address, *generation) {
                        Some(page) => builder.memory(block, page),
                        None => builder.device(block, extent),
                    }
                }
            }
        }
        builder.end_run();
    }
    Ok(ReadPlan { segments: builder.segments, length })
}

/// Do the bytes read for a pointer have its checksums? The error names the first block that does not.
pub fn verify_blocks(pointer: &DataPointer, bytes: &[u8]) -> Result<(), Corruption> {
    let damaged = |index: usize, reason: String| Corruption {
        address: pointer.address + (index * BLOCK) as u64,
        what: format!(
            "data of inode {} at byte {}",
            pointer.inode,
            pointer.file_offset.saturating_add((index * BLOCK) as u64)
        ),
        reason,
    };
    let blocks = bytes.len() / BLOCK;
    if bytes.len() as u64 != pointer.length
        || pointer.checksums.len() != blocks
        || !bytes.len().is_multiple_of(BLOCK)
    {
        let counted = pointer.checksums.len();
        let reason =
            format!("{} bytes for an extent of {} with {counted} checksums", bytes.len(), pointer.length);
        return Err(damaged(0, reason));
    }
    for (index, (block, &expected)) in bytes.chunks_exact(BLOCK).zip(&pointer.checksums).enumerate() {
        let found = crc32c::crc32c(block);
        if found != expected {
            return Err(damaged(index, format!("checksum {found:#010x} instead of {expected:#010x}")));
        }
    }
    Ok(())
}

/// The blocks read for a pointer: device address and contents of each, for the cache.
pub fn split_blocks(pointer: &DataPointer, bytes: &[u8]) -> impl Iterator<Item = (u64, PageBytes)> {
    let address = pointer.address;
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    blocks.iter().enumerate().map(move |(index, block)| (address + (index * BLOCK) as u64, Arc::new(*block)))
}

struct Builder {
    inode: InodeNumber,
    /// The wanted file bytes.
    from: u64,
    to: u64,
    segments: Vec<ReadSegment>,
    /// Blocks (from, to) of one extent that must be read together.
    run: Option<(u64, u64, Extent)>,
}

impl Builder {
    /// The wanted part of some blocks: bytes to skip at their beginning, and its end.
    fn wanted(&self, block: u64, end_block: u64) -> (usize, usize) {
        let start = block * BLOCK_BYTES;
        let end = end_block * BLOCK_BYTES;
        ((self.from.max(start) - start) as usize, (self.to.min(end) - start) as usize)
    }

    fn zeros(&mut self, block: u64) {
        self.end_run();
        let (from, to) = self.wanted(block, block + 1);
        match self.segments.last_mut() {
            Some(ReadSegment::Zeros(length)) => *length += to - from,
            _ => self.segments.push(ReadSegment::Zeros(to - from)),
        }
    }

    fn memory(&mut self, block: u64, page: PageBytes) {
        self.end_run();
        let (from, to) = self.wanted(block, block + 1);
        self.segments.push(ReadSegment::Memory { page, from, to });
    }

    fn device(&mut self, block: u64, extent: &Extent) {
        match &mut self.run {
            Some((_, to, _)) => *to = block + 1,
            None => self.run = Some((block, block + 1, extent.clone())),
        }
    }

    /// Closes a run of device blocks: at the end of its extent, and before anything in memory.
    fn end_run(&mut self) {
        let Some((block, end_block, extent)) = self.run.take() else { return };
        let part = extent.slice(block * BLOCK_BYTES, end_block * BLOCK_BYTES);
        let Some(pointer) = part.pointer(self.inode) else { return };
        let (skip, end) = self.wanted(block, end_block);
        self.segments.push(ReadSegment::Device { pointer, skip, length: end - skip });
    }
}
