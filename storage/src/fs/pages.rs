//! Dirty file data in memory: whole 4 KiB pages by inode and block, and what of it the log does not hold yet.
//!
//! Invariants, asserted: a page is counted once in the totals; `Page::below` tells what the tree maps at its block for
//! as long as the page lives (whatever changes the tree below a page drops the page); bytes past the end of the file
//! are zero; a file with nothing dirty and nothing unlogged has no entry, so idle files cost no memory.

use crate::fs::block_ranges::BlockRanges;
use crate::fs::plan::{PageBytes, PageEffect};
use crate::limits::{BLOCK, BLOCK_BYTES};
use crate::types::{InodeNumber, TransactionId};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

static ZEROS: LazyLock<PageBytes> = LazyLock::new(|| Arc::new([0; BLOCK]));

/// The page of zeros that all holes share.
pub fn zero_page() -> PageBytes {
    Arc::clone(&ZEROS)
}

/// What the tree maps at the block of a dirty page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// Nothing: the page itself is why the block counts as mapped.
    Hole,
    /// An extent that is replaced at writeback: the page needs a new device block.
    Extent,
    /// Preallocated space that the page is written into: no new device block.
    InPlace,
}

/// A dirty block.
#[derive(Clone, Debug)]
pub struct Page {
    bytes: PageBytes,
    /// Bytes from, to that changed since they were last logged.
    unlogged: Option<(u16, u16)>,
    below: Below,
}

impl Page {
    /// Its contents.
    pub fn bytes(&self) -> &PageBytes {
        &self.bytes
    }

    /// What the tree maps at its block.
    pub fn below(&self) -> Below {
        self.below
    }

    /// Does it need a new device block at writeback?
    pub fn reserved(&self) -> bool {
        self.below != Below::InPlace
    }

    /// Bytes from, to changed; answers how many more are unlogged.
    fn change_unlogged(&mut self, from: usize, to: usize) -> u64 {
        let before = self.unlogged_bytes();
        let (from, to) = (from as u16, to as u16);
        let joined = self.unlogged.map_or((from, to), |(first, last)| (from.min(first), to.max(last)));
        self.unlogged = Some(joined);
        self.unlogged_bytes() - before
    }

    fn unlogged_bytes(&self) -> u64 {
        self.unlogged.map_or(0, |(from, to)| u64::from(to - from))
    }
}

/// What is in memory of one file.
#[derive(Debug, Default)]
pub struct FilePages {
    pages: BTreeMap<u64, Page>,
    /// Dirty blocks with unlogged bytes: an fsync looks at these only, however many others are dirty.
    unlogged_blocks: BTreeSet<u64>,
    /// Written back in the running transaction and not in the log.
    unlogged_extents: BlockRanges,
    /// The same of the transaction whose commit is in flight: until it is durable, an fsync must log them.
    unlogged_previous: BlockRanges,
    unlogged_bytes: u64,
}

impl FilePages {
    /// The page of a block, if it is dirty.
    pub fn page(&self, block: u64) -> Option<&Page> {
        self.pages.get(&block)
    }

    /// The dirty pages from block `from` up to, not including, `to`.
    pub fn range(&self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = (u64, &Page)> {
        // An empty range given backwards would panic in the map.
        self.pages.range(from.min(to)..to).map(|(&block, page)| (block, page))
    }

    /// Number of dirty pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Is no page dirty?
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Pages in a range of blocks that are the only reason for their block to count as mapped.
    pub fn over_holes(&self, from: u64, to: u64) -> u64 {
        self.range(from, to).filter(|(_, page)| page.below == Below::Hole).count() as u64
    }

    /// Blocks that were written back in a transaction that is not durable, and are not in the log.
    pub fn unlogged_extents(&self) -> BlockRanges {
        let mut all = self.unlogged_previous.clone();
        all.absorb(self.unlogged_extents.clone());
        all
    }

    fn is_idle(&self) -> bool {
        self.pages.is_empty() && self.unlogged_extents.is_empty() && self.unlogged_previous.is_empty()
    }
}

/// The dirty data of a subvolume.
#[derive(Debug, Default)]
pub struct PageTable {
    files: FxHashMap<InodeNumber, FilePages>,
    /// Files with dirty pages: a freeze finds them without looking at the others.
    dirty_files: BTreeSet<InodeNumber>,
    dirty_pages: u64,
    reserved_pages: u64,
    shared_through: TransactionId,
}

impl PageTable {
    /// What is in memory of a file; `None` when it is idle.
    pub fn file(&self, inode: InodeNumber) -> Option<&FilePages> {
        self.files.get(&inode)
    }

    /// The page of a block, if it is dirty.
    pub fn page(&self, inode: InodeNumber, block: u64) -> Option<&Page> {
        self.files.get(&inode)?.page(block)
    }

    /// Inodes with dirty pages, in their order.
    pub fn dirty_inodes(&self) -> impl Iterator<Item = InodeNumber> + '_ {
        self.dirty_files.iter().copied()
    }

    /// Number of dirty pages.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty_pages
    }

    /// Dirty pages in bytes.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_pages * BLOCK_BYTES
    }

    /// Dirty pages that will need a new device block at writeback.
    pub fn reserved_pages(&self) -> u64 {
        self.reserved_pages
    }

    /// Extents of this generation or an older one may be shared with a snapshot.
    pub fn shared_through(&self) -> TransactionId {
        self.shared_through
    }

    /// A snapshot was taken of this generation (or the subvolume opened with one). Preallocated space of it is not
    /// written in place any more: two clones would write different data into one block. All pages were written back.
    pub fn set_shared_through(&mut self, generation: TransactionId) {
        assert_eq!(self.dirty_pages, 0, "dirty pages at a snapshot");
        self.shared_through = self.shared_through.max(generation);
    }

    /// Bytes of dirty pages of an inode that changed since they were last logged.
    pub fn unlogged_bytes(&self, inode: InodeNumber) -> u64 {
        self.files.get(&inode).map_or(0, |file| file.unlogged_bytes)
    }

    /// The unlogged bytes of dirty pages, in order: file offset and bytes, one piece a page.
    pub fn unlogged(&self, inode: InodeNumber) -> impl Iterator<Item = (u64, &[u8])> {
        let file = self.files.get(&inode);
        let blocks =
            file.into_iter().flat_map(|file| file.unlogged_blocks.iter().map(move |&block| (file, block)));
        blocks.filter_map(|(file, block)| {
            let page = file.pages.get(&block)?;
            let (from, to) = page.unlogged?;
            Some((block * BLOCK_BYTES + u64::from(from), &page.bytes[usize::from(from)..usize::from(to)]))
        })
    }

    /// The unlogged bytes of dirty pages, in order, adjacent ones joined: file offset and bytes.
    pub fn unlogged_runs(&self, inode: InodeNumber) -> Vec<(u64, Bytes)> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (offset, piece) in self.unlogged(inode) {
            match runs.last_mut() {
                Some((start, run)) if *start + run.len() as u64 == offset => run.extend_from_slice(piece),
                _ => runs.push((offset, piece.to_vec())),
            }
        }
        runs.into_iter().map(|(offset, run)| (offset, run.into())).collect()
    }

    /// All data of the inode is in the log now (or in records of the open generation).
    pub fn mark_logged(&mut self, inode: InodeNumber) {
        self.change(inode, |file| {
            for block in std::mem::take(&mut file.unlogged_blocks) {
                let page = file.pages.get_mut(&block).expect("a block with unlogged bytes is dirty");
                page.unlogged = None;
            }
            file.unlogged_bytes = 0;
            file.unlogged_extents = BlockRanges::default();
            file.unlogged_previous = BlockRanges::default();
        });
    }

    /// The transaction was frozen: what was written back in it waits for its commit.
    pub fn freeze(&mut self) {
        for file in self.files.values_mut() {
            let extents = std::mem::take(&mut file.unlogged_extents);
            file.unlogged_previous.absorb(extents);
        }
    }

    /// The commit that was in flight is durable.
    pub fn commit_durable(&mut self) {
        self.files.retain(|_, file| {
            file.unlogged_previous = BlockRanges::default();
            !file.is_idle()
        });
    }

    /// The pages of these blocks were given extents and leave the table; the caller keeps their bytes readable until
    /// they are on the device.
    pub fn complete_writeback(&mut self, inode: InodeNumber, taken: &[u64]) {
        let mut removed = Vec::with_capacity(taken.len());
        self.change(inode, |file| {
            for &block in taken {
                let page = file.pages.remove(&block).expect("a page that is written back is dirty");
                file.unlogged_bytes -= page.unlogged_bytes();
                file.unlogged_blocks.remove(&block);
                if page.unlogged.is_some() {
                    file.unlogged_extents.insert(block, block + 1);
                }
                removed.push(page);
            }
        });
        removed.iter().for_each(|page| self.uncount(page));
    }

    /// Makes one change of a plan.
    pub fn apply(&mut self, effect: &PageEffect) {
        match effect {
            PageEffect::Dirty { inode, from, to, below } => self.dirty(*inode, *from, *to, *below),
            PageEffect::Base { inode, block, contents } => {
                self.page_mut(*inode, *block).bytes = Arc::clone(contents);
            }
            PageEffect::Write { inode, offset, data } => self.write(*inode, *offset, data),
            PageEffect::Zero { inode, offset, length } => self.zero(*inode, *offset, *length as usize),
            PageEffect::Discard { inode, from, to } => self.discard(*inode, *from, *to),
        }
    }

    fn dirty(&mut self, inode: InodeNumber, from: u64, to: u64, below: Below) {
        let file = self.files.entry(inode).or_default();
        for block in from..to {
            let page = Page { bytes: zero_page(), unlogged: None, below };
            assert!(
                file.pages.insert(block, page).is_none(),
                "block {block} of inode {inode} is dirty already"
            );
        }
        if from < to {
            self.dirty_files.insert(inode);
        }
        self.dirty_pages += to - from;
        if below != Below::InPlace {
            self.reserved_pages += to - from;
        }
    }

    fn write(&mut self, inode: InodeNumber, offset: u64, data: &[u8]) {
        let file = self.files.get_mut(&inode).expect("a written file has dirty pages");
        let first_length = (BLOCK - (offset % BLOCK_BYTES) as usize).min(data.len());
        let (mut piece, mut rest) = data.split_at(first_length);
        let mut position = offset;
        while !piece.is_empty() {
            let page = file.pages.get_mut(&(position / BLOCK_BYTES)).expect("a written page is dirty");
            let from = (position % BLOCK_BYTES) as usize;
            match <&[u8; BLOCK]>::try_from(piece) {
                // Not through `make_mut`: it would copy the old contents first.
                Ok(whole) => match Arc::get_mut(&mut page.bytes) {
                    Some(bytes) => bytes.copy_from_slice(whole),
                    None => page.bytes = Arc::new(*whole),
                },
                Err(_) => Arc::make_mut(&mut page.bytes)[from..from + piece.len()].copy_from_slice(piece),
            }
            file.unlogged_bytes += page.change_unlogged(from, from + piece.len());
            file.unlogged_blocks.insert(position / BLOCK_BYTES);
            position += piece.len() as u64;
            (piece, rest) = rest.split_at(rest.len().min(BLOCK));
        }
    }

    /// The zeros count as unlogged although replay runs the operation that made them: an extent below, written back but
    /// not logged yet, is logged after that operation and would bring the old bytes back.
    fn zero(&mut self, inode: InodeNumber, offset: u64, length: usize) {
        let file = self.files.get_mut(&inode).expect("a changed file has dirty pages");
        let page = file.pages.get_mut(&(offset / BLOCK_BYTES)).expect("a changed page is dirty");
        let from = (offset % BLOCK_BYTES) as usize;
        Arc::make_mut(&mut page.bytes)[from..from + length].fill(0);
        file.unlogged_bytes += page.change_unlogged(from, from + length);
        if page.unlogged.is_some() {
            file.unlogged_blocks.insert(offset / BLOCK_BYTES);
        }
    }

    fn discard(&mut self, inode: InodeNumber, from: u64, to: u64) {
        let mut removed = Vec::new();
        self.change(inode, |file| {
            while let Some((&block, _)) = file.pages.range(from.min(to)..to).next() {
                if let Some(page) = file.pages.remove(&block) {
                    file.unlogged_bytes -= page.unlogged_bytes();
                    file.unlogged_blocks.remove(&block);
                    removed.push(page);
                }
            }
            file.unlogged_extents.remove(from, to);
            file.unlogged_previous.remove(from, to);
        });
        removed.iter().for_each(|page| self.uncount(page));
    }

    fn uncount(&mut self, page: &Page) {
        self.dirty_pages -= 1;
        self.reserved_pages -= u64::from(page.reserved());
    }

    fn page_mut(&mut self, inode: InodeNumber, block: u64) -> &mut Page {
        let file = self.files.get_mut(&inode).expect("a changed file has dirty pages");
        file.pages.get_mut(&block).expect("a changed page is dirty")
    }

    /// Changes a file's entry, if there is one, and removes it when nothing is left in it.
    fn change(&mut self, inode: InodeNumber, change: impl FnOnce(&mut FilePages)) {
        if let Some(file) = self.files.get_mut(&inode) {
            change(file);
            if file.pages.is_empty() {
                self.dirty_files.remove(&inode);
            }
            if file.is_idle() {
                self.files.remove(&inode);
            }
        }
    }
}
