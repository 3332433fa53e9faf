//! Clean file blocks in memory, shared by all subvolumes of a store, bounded in bytes.
//!
//! Invariant: a block is kept under its address and the generation it was written in, so a block that was freed and
//! written anew is never confused with what was there before. Only verified or just written contents are inserted.

use crate::fs::plan::PageBytes;
use crate::fs::view::BlockSource;
use crate::hash::MixState;
use crate::limits::{BLOCK, BLOCK_BYTES};
use crate::types::TransactionId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

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
    blocks: Cache<(u64, TransactionId), PageBytes, BlockWeighter, MixState>,
}

impl DataCache {
    /// An empty cache that takes `capacity_bytes` of memory at most.
    pub fn new(capacity_bytes: u64) -> Self {
        let items = (capacity_bytes as usize / BLOCK).max(16);
        Self {
            blocks: Cache::with(
                items,
                capacity_bytes,
                BlockWeighter,
                MixState::default(),
                Default::default(),
            ),
        }
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

#[cfg(test)]
mod capacity_tests {
    use super::*;
    use std::sync::Arc;

    /// Regular addresses all fell into one shard once, and the cache kept an eighth of what it should.
    #[test]
    fn regular_addresses_fill_the_whole_cache() {
        for stride in [BLOCK_BYTES, 4 * BLOCK_BYTES, 1 << 20] {
            let cache = DataCache::new(8 << 20);
            for index in 0..4096 {
                cache.insert((1 << 30) + index * stride, 7, Arc::new([0; BLOCK]));
            }
            let kept = cache.memory_bytes();
            assert!(kept > 6 << 20, "{kept} bytes are kept of blocks {stride} bytes apart");
        }
    }
}
