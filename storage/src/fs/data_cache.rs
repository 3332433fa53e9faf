//! Clean file blocks in memory, shared by all subvolumes of a store, bounded in bytes.
//!
//! Invariant: a block is kept under its address and the generation it was written in, so a block that was freed and
//! written anew is never confused with what was there before. Only verified or just written contents are inserted.

use crate::fs::plan::PageBytes;
use crate::fs::view::BlockSource;
use crate::limits::{BLOCK, BLOCK_BYTES};
use crate::types::TransactionId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use rustc_hash::FxBuildHasher;

/// Memory of an entry beside its contents: key, counts, hash table slots, in bytes (rounded up).
const OVERHEAD_BYTES: u64 = 128;

#[derive(Clone)]
struct BlockWeighter;

impl Weighter<(u64, TransactionId), PageBytes> for BlockWeighter {
    fn weight(&self, _: &(u64, TransactionId), _: &PageBytes) -> u64 {
        BLOCK_BYTES + OVERHEAD_BYTES
    }
}

/// See the module. A miss is no error: the block is read again.
pub struct DataCache {
    blocks: Cache<(u64, TransactionId), PageBytes, BlockWeighter, FxBuildHasher>,
}

impl DataCache {
    /// An empty cache that takes `capacity_bytes` of memory at most.
    pub fn new(capacity_bytes: u64) -> Self {
        let items = (capacity_bytes as usize / BLOCK).max(16);
        Self { blocks: Cache::with(items, capacity_bytes, BlockWeighter, FxBuildHasher, Default::default()) }
    }

    /// Keeps the contents of the block at this device address, written in this generation.
    pub fn insert(&self, address: u64, generation: TransactionId, contents: PageBytes) {
        self.blocks.insert((address, generation), contents);
    }

    /// Forgets a block, if it is there: it was freed.
    pub fn remove(&self, address: u64, generation: TransactionId) {
        self.blocks.remove(&(address, generation));
    }

    /// Memory held, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.blocks.weight()
    }
}

impl BlockSource for DataCache {
    fn block(&self, address: u64, generation: TransactionId) -> Option<PageBytes> {
        self.blocks.get(&(address, generation))
    }
}
