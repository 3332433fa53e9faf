//! Decoded nodes that are on the device, shared by all trees of a store, bounded in bytes.
//!
//! Invariants: a node is kept under its address and generation, so a block that is freed and written anew is never
//! confused with what was there before; a cached node holds no other node.
//!
//! Any node may be pushed out at any time, also right after it was inserted: see [`Gathered`].

use super::NodeSource;
use super::node::Node;
use crate::format::node::BlockPointer;
use crate::hash::MixState;
use crate::limits::NODE_BYTES;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// See the module. A cache miss is no error: the node is read again.
pub struct NodeCache {
    nodes: Cache<BlockPointer, Arc<Node>, MemoryWeighter, MixState>,
}

#[derive(Clone)]
struct MemoryWeighter;

impl Weighter<BlockPointer, Arc<Node>> for MemoryWeighter {
    fn weight(&self, _: &BlockPointer, node: &Arc<Node>) -> u64 {
        node.memory_bytes() as u64
    }
}

impl NodeCache {
    /// An empty cache that holds nodes of `capacity_bytes` together.
    pub fn new(capacity_bytes: u64) -> Self {
        let items = (capacity_bytes as usize / NODE_BYTES).max(16);
        let nodes =
            Cache::with(items, capacity_bytes, MemoryWeighter, MixState::default(), Default::default());
        Self { nodes }
    }

    /// Keeps a node that was read from the device or has been written to it.
    pub fn insert(&self, node: &Arc<Node>) {
        let pointer = node.pointer().expect("only nodes with an address are cached");
        self.nodes.insert(pointer, node.detached());
    }

    /// Forgets a node, if it is there: its block was freed.
    pub fn remove(&self, pointer: &BlockPointer) {
        self.nodes.remove(pointer);
    }

    /// Memory held by the nodes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.nodes.weight()
    }
}

impl NodeSource for NodeCache {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        self.nodes.get(pointer)
    }
}

/// The cache, and in front of it the nodes that were fetched for one operation.
///
/// Without it two operations, or one that needs more nodes than the cache keeps, could push out each other's nodes
/// and fetch them again for ever: a node that was fetched stays until the operation has run.
pub struct Gathered<'a> {
    cache: &'a NodeCache,
    fetched: FxHashMap<BlockPointer, Arc<Node>>,
}

impl<'a> Gathered<'a> {
    /// Nothing fetched yet.
    pub fn new(cache: &'a NodeCache) -> Self {
        Self { cache, fetched: FxHashMap::default() }
    }

    /// Keeps a node that was just read, here and in the cache.
    pub fn insert(&mut self, node: &Arc<Node>) {
        self.cache.insert(node);
        let pointer = node.pointer().expect("a node that was read has an address");
        self.fetched.insert(pointer, Arc::clone(node));
    }
}

impl NodeSource for Gathered<'_> {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        if !self.fetched.is_empty()
            && let Some(node) = self.fetched.get(pointer)
        {
            return Some(Arc::clone(node));
        }
        self.cache.cached(pointer)
    }
}
