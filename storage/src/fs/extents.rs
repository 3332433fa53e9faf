//! What a file's extent items map, and how one plan changes them.
//!
//! Invariants: extents of a file do not overlap and start at multiples of 4096; an inline extent stands at offset 0 and
//! maps the first block; all changes of one file in one plan go through one [`ExtentChange`], so that no item is
//! changed twice. There are no bookends: a device block is released as soon as the file no longer maps it. Nothing is
//! merged on disk.

use crate::error::{Corruption, DataPointer, EngineError, EngineResult};
use crate::format::item::{ExtentItem, ExtentKind, damaged};
use crate::format::key::{ItemKind, Key};
use crate::fs::plan::{PageBytes, Plan, Released};
use crate::fs::view::View;
use crate::limits::{BLOCK, BLOCK_BYTES};
use crate::tree::{ItemValue, Mutation};
use crate::types::{DeviceRange, InodeNumber, TransactionId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// crc32c of each block of an extent.
pub type Checksums = SmallVec<[u32; 8]>;

/// A range of file blocks and what they are mapped to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First file byte; multiple of 4096.
    pub offset: u64,
    /// File bytes; multiple of 4096 (an inline extent maps one whole block).
    pub length: u64,
    /// To what.
    pub mapping: Mapping,
}

/// What a range of file blocks is mapped to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Nothing; reads give zeros. Only between extents, never stored.
    Hole,
    /// The data stands in the item; what it lacks to a block is zeros.
    Inline {
        /// The data, at most [`crate::limits::INLINE_BYTES_MAX`] bytes.
        data: SmallVec<[u8; 64]>,
        /// Transaction that wrote it.
        generation: TransactionId,
    },
    /// The data stands on the device.
    Regular {
        /// First device byte.
        address: u64,
        /// Transaction that wrote it.
        generation: TransactionId,
        /// crc32c of each block.
        checksums: Checksums,
    },
    /// Device space without data; reads give zeros.
    Preallocated {
        /// First device byte.
        address: u64,
        /// Transaction that allocated it.
        generation: TransactionId,
    },
}

impl Extent {
    /// The extent in an item.
    pub fn parse(key: &Key, bytes: &[u8]) -> Result<Self, Corruption> {
        let item = ExtentItem::parse(key, bytes)?;
        let (address, generation) = (item.address, item.generation);
        if item.kind == ExtentKind::Inline {
            if key.offset != 0 {
                return Err(damaged(key, "inline extent past the first block"));
            }
            let mapping = Mapping::Inline { data: SmallVec::from_slice(item.tail), generation };
            return Ok(Self { offset: 0, length: BLOCK_BYTES, mapping });
        }
        if address == 0 || address.checked_add(item.length).is_none() {
            return Err(damaged(key, "extent at an impossible device address"));
        }
        let mapping = match item.kind {
            ExtentKind::Preallocated => Mapping::Preallocated { address, generation },
            _ => {
                let (words, _) = item.tail.as_chunks::<4>();
                let checksums = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
                Mapping::Regular { address, generation, checksums }
            }
        };
        Ok(Self { offset: key.offset, length: item.length, mapping })
    }

    /// The bytes of the item; not for holes.
    pub fn to_value(&self) -> ItemValue {
        let mut tail = SmallVec::<[u8; 64]>::new();
        let (kind, length, address, generation) = match &self.mapping {
            Mapping::Hole => panic!("a hole has no item"),
            Mapping::Inline { data, generation } => {
                tail.extend_from_slice(data);
                (ExtentKind::Inline, data.len() as u64, 0, *generation)
            }
            Mapping::Regular { address, generation, checksums } => {
                checksums.iter().for_each(|checksum| tail.extend_from_slice(&checksum.to_le_bytes()));
                (ExtentKind::Regular, self.length, *address, *generation)
            }
            Mapping::Preallocated { address, generation } => {
                (ExtentKind::Preallocated, self.length, *address, *generation)
            }
        };
        let mut value = ItemValue::new();
        ExtentItem { kind, length, address, generation, tail: &tail }.write_to(&mut value);
        value
    }

    /// First file byte after it.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// First file block.
    pub fn block(&self) -> u64 {
        self.offset / BLOCK_BYTES
    }

    /// The file block after the last.
    pub fn end_block(&self) -> u64 {
        self.end() / BLOCK_BYTES
    }

    /// Device blocks and the generation they were written in; `None` for holes and inline data.
    pub fn device(&self) -> Option<Released> {
        match self.mapping {
            Mapping::Hole | Mapping::Inline { .. } => None,
            Mapping::Regular { address, generation, .. } | Mapping::Preallocated { address, generation } => {
                Some(Released { range: DeviceRange { address, length: self.length }, generation })
            }
        }
    }

    /// Is it preallocated space that no snapshot shares, so that data may be written into it?
    pub fn takes_data_in_place(&self, shared_through: TransactionId) -> bool {
        matches!(self.mapping, Mapping::Preallocated { generation, .. } if generation > shared_through)
    }

    /// The part of it in a range of file bytes (multiples of 4096) that it overlaps.
    pub fn slice(&self, from: u64, to: u64) -> Self {
        let (from, to) = (from.max(self.offset), to.min(self.end()));
        assert!(from < to, "an empty part of an extent");
        let skipped = from - self.offset;
        let mapping = match &self.mapping {
            Mapping::Regular { address, generation, checksums } => {
                let first = (skipped / BLOCK_BYTES) as usize;
                let count = ((to - from) / BLOCK_BYTES) as usize;
                Mapping::Regular {
                    address: address + skipped,
                    generation: *generation,
                    checksums: Checksums::from_slice(&checksums[first..first + count]),
                }
            }
            Mapping::Preallocated { address, generation } => {
                Mapping::Preallocated { address: address + skipped, generation: *generation }
            }
            whole => whole.clone(),
        };
        Self { offset: from, length: to - from, mapping }
    }

    /// Where a regular extent must be read; `None` for all others.
    pub fn pointer(&self, inode: InodeNumber) -> Option<DataPointer> {
        let Mapping::Regular { address, generation, ref checksums } = self.mapping else { return None };
        Some(DataPointer {
            inode,
            file_offset: self.offset,
            address,
            length: self.length,
            generation,
            checksums: checksums.to_vec(),
        })
    }
}

/// The bytes of inline data as a whole block.
pub fn inline_page(data: &[u8]) -> PageBytes {
    let mut page = [0; BLOCK];
    page[..data.len()].copy_from_slice(data);
    Arc::new(page)
}

/// The stored contents of one block of an extent; `None` = zeros. The block is read first (`MissingData`) if it is not
/// in memory.
pub fn stored_block(
    view: &View,
    inode: InodeNumber,
    extent: &Extent,
    block: u64,
) -> EngineResult<Option<PageBytes>> {
    match &extent.mapping {
        Mapping::Hole | Mapping::Preallocated { .. } => Ok(None),
        Mapping::Inline { data, .. } => Ok(Some(inline_page(data))),
        Mapping::Regular { address, generation, .. } => {
            let offset = block * BLOCK_BYTES;
            if let Some(page) = view.blocks.block(address + (offset - extent.offset), *generation) {
                return Ok(Some(page));
            }
            match extent.slice(offset, offset + BLOCK_BYTES).pointer(inode) {
                Some(pointer) => Err(EngineError::MissingData(Box::new(pointer))),
                None => Ok(None),
            }
        }
    }
}

/// The extents that overlap a range of file bytes, whole and in order, the first `max` of them; and whether that is all.
pub fn extents_in(
    view: &View,
    inode: InodeNumber,
    from: u64,
    to: u64,
    max: usize,
) -> EngineResult<(Vec<Extent>, bool)> {
    let mut found: Vec<Extent> = Vec::new();
    if from >= to {
        return Ok((found, true));
    }
    let key = |offset| Key::new(inode, ItemKind::Extent, offset);
    let mut broken = None;
    let mut complete = true;
    let mut add = |key: &Key, bytes: &[u8]| match Extent::parse(key, bytes) {
        Ok(extent) if found.last().is_some_and(|last| last.end() > extent.offset) => {
            broken = Some(damaged(key, "extent that overlaps the one before"));
            ControlFlow::Break(())
        }
        Ok(extent) if extent.end() <= from => ControlFlow::Continue(()),
        Ok(_) if found.len() == max => {
            complete = false;
            ControlFlow::Break(())
        }
        Ok(extent) => {
            found.push(extent);
            ControlFlow::Continue(())
        }
        Err(error) => {
            broken = Some(error);
            ControlFlow::Break(())
        }
    };
    let mut stopped = false;
    view.tree.floor_with(&view.nodes, &key(from), |found, bytes| {
        if found.inode == inode && found.kind == ItemKind::Extent {
            stopped = add(found, bytes).is_break();
        }
    })?;
    if !stopped {
        view.scan(&key(from + 1), &key(to - 1), add)?;
    }
    match broken {
        Some(error) => Err(error.into()),
        None => Ok((found, complete)),
    }
}

/// What a range of file bytes (multiples of 4096) is mapped to, without gaps, cut to the range.
pub fn map_range(view: &View, inode: InodeNumber, from: u64, to: u64) -> EngineResult<Vec<Extent>> {
    let (extents, _) = extents_in(view, inode, from, to, usize::MAX)?;
    Ok(with_holes(extents.iter(), from, to))
}

/// Cuts extents to a range and puts holes between them.
fn with_holes<'a>(extents: impl Iterator<Item = &'a Extent>, from: u64, to: u64) -> Vec<Extent> {
    let mut parts = Vec::new();
    let mut position = from;
    let hole = |from, to| Extent { offset: from, length: to - from, mapping: Mapping::Hole };
    for extent in extents {
        if extent.offset > position {
            parts.push(hole(position, extent.offset));
        }
        let part = extent.slice(from, to);
        position = part.end();
        parts.push(part);
    }
    if position < to {
        parts.push(hole(position, to));
    }
    parts
}

/// The changes that one plan makes to the extents of one file.
pub struct ExtentChange {
    inode: InodeNumber,
    /// Offsets of the items that were loaded.
    before: Vec<u64>,
    /// Loaded or new extents by offset, and whether the item must be written.
    after: BTreeMap<u64, (Extent, bool)>,
    released: Vec<Released>,
}

impl ExtentChange {
    /// Nothing loaded yet.
    pub fn new(inode: InodeNumber) -> Self {
        Self { inode, before: Vec::new(), after: BTreeMap::new(), released: Vec::new() }
    }

    /// Loads the extents that overlap a range, `max` at most; all loads come before the first change. Were it all?
    pub fn load(&mut self, view: &View, from: u64, to: u64, max: usize) -> EngineResult<bool> {
        let (extents, complete) = extents_in(view, self.inode, from, to, max)?;
        for extent in extents {
            // A long extent is found again by each of several ranges.
            if self.before.last().is_none_or(|&last| last < extent.offset) {
                self.before.push(extent.offset);
                self.after.insert(extent.offset, (extent, false));
            }
        }
        Ok(complete)
    }

    /// What a loaded range (multiples of 4096) is mapped to now, without gaps, cut to the range.
    pub fn parts(&self, from: u64, to: u64) -> Vec<Extent> {
        if from >= to {
            return Vec::new();
        }
        let before = self.after.range(..from).next_back().filter(|(_, (extent, _))| extent.end() > from);
        let extents = before.into_iter().chain(self.after.range(from..to)).map(|(_, (extent, _))| extent);
        with_holes(extents, from, to)
    }

    /// Unmaps a range (multiples of 4096) and releases its device blocks. Answers the number of blocks unmapped.
    pub fn remove(&mut self, from: u64, to: u64) -> u64 {
        let mut blocks = 0;
        for part in self.take(from, to) {
            blocks += part.length / BLOCK_BYTES;
            if let Some(released) = part.device() {
                self.release(released);
            }
        }
        blocks
    }

    /// Unmaps a range (multiples of 4096); the device blocks go to the caller, who maps or releases each of them.
    pub fn take(&mut self, from: u64, to: u64) -> Vec<Extent> {
        let mut taken = Vec::new();
        if from >= to {
            return taken;
        }
        let before = self.after.range(..from).next_back().filter(|(_, (extent, _))| extent.end() > from);
        let offsets: SmallVec<[u64; 8]> =
            before.into_iter().chain(self.after.range(from..to)).map(|(&offset, _)| offset).collect();
        for offset in offsets {
            let Some((extent, _)) = self.after.remove(&offset) else { continue };
            if extent.offset < from {
                self.after.insert(extent.offset, (extent.slice(extent.offset, from), true));
            }
            if extent.end() > to {
                self.after.insert(to, (extent.slice(to, extent.end()), true));
            }
            let inside = extent.offset >= from && extent.end() <= to;
            taken.push(if inside { extent } else { extent.slice(from, to) });
        }
        taken
    }

    /// Maps a range that is unmapped now.
    pub fn insert(&mut self, extent: Extent) {
        let before = self.after.range(..extent.end()).next_back();
        assert!(before.is_none_or(|(_, (before, _))| before.end() <= extent.offset), "overlapping extents");
        self.after.insert(extent.offset, (extent, true));
    }

    /// Device blocks that nothing in this tree refers to any more.
    pub fn release(&mut self, released: Released) {
        match self.released.last_mut() {
            Some(last)
                if last.generation == released.generation
                    && last.range.address + last.range.length == released.range.address =>
            {
                last.range.length += released.range.length;
            }
            _ => self.released.push(released),
        }
    }

    /// The mutations and the released blocks, for a plan.
    pub fn finish(self, plan: &mut Plan) {
        let (mut mutations, mut released) = self.into_parts();
        plan.mutations.append(&mut mutations);
        plan.released.append(&mut released);
    }

    /// The mutations and the released blocks.
    pub fn into_parts(self) -> (Vec<Mutation>, Vec<Released>) {
        let key = |offset| Key::new(self.inode, ItemKind::Extent, offset);
        let gone = self.before.iter().filter(|offset| !self.after.contains_key(offset));
        let mut mutations: Vec<_> = gone.map(|&offset| Mutation::delete(key(offset))).collect();
        let written = self.after.values().filter(|(_, written)| *written);
        mutations.extend(written.map(|(extent, _)| Mutation::put(key(extent.offset), extent.to_value())));
        (mutations, self.released)
    }
}

/// Recounts a file's mapped blocks, for checks: extents, and dirty pages over holes. Must equal
/// [`crate::format::item::InodeItem::blocks`]. Reads all extents of the file.
pub fn recount(view: &View, inode: InodeNumber) -> EngineResult<u64> {
    let (extents, _) = extents_in(view, inode, 0, u64::MAX, usize::MAX)?;
    let stored: u64 = extents.iter().map(|extent| extent.length / BLOCK_BYTES).sum();
    Ok(stored + view.pages.file(inode).map_or(0, |file| file.over_holes(0, u64::MAX)))
}
