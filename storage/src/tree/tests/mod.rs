//! Tests of the tree against a sorted map, on a device that is a map of blocks.
//!
//! [`Store`] plays everything around a tree: the device, a cache that is too small, the owner that fetches what is
//! missing and runs the call again, and the committer, whose steps interleave with further changes.

mod hostile;
mod model;
mod shape;
mod sharing;

use super::*;
use crate::format::key::ItemKind;
use crate::limits::NODE_BYTES;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

pub const OWNER: u64 = 300;

/// A commit that was started: the tree, and what the transaction superseded.
struct Commit {
    frozen: FrozenTree,
    unwritten: Vec<Arc<Node>>,
    freed: Vec<u64>,
    assigned: bool,
}

pub struct Store {
    pub tree: Tree,
    pub model: BTreeMap<Key, Vec<u8>>,
    pub superseded: Superseded,
    pub generation: u64,
    /// Nodes that the device was asked for.
    pub misses: Cell<u64>,
    cache: NodeCache,
    staged: RefCell<FxHashMap<BlockPointer, Arc<Node>>>,
    device: BTreeMap<u64, Vec<u8>>,
    next_address: u64,
    commit: Option<Commit>,
}

impl NodeSource for Store {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        self.staged.borrow().get(pointer).cloned().or_else(|| self.cache.cached(pointer))
    }
}

/// Reads from the device whatever it is asked for.
struct Direct<'a>(&'a Store);

impl NodeSource for Direct<'_> {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        Some(self.0.read(pointer))
    }
}

/// What a walk finds.
#[derive(Default)]
pub struct Census {
    pub items: Vec<(Key, Vec<u8>)>,
    /// (address, generation, level, bytes used) of each node.
    pub nodes: Vec<(Option<u64>, u64, u8, usize)>,
}

impl TreeVisitor for Census {
    fn node(&mut self, node: &Node) {
        self.nodes.push((node.address(), node.generation(), node.level(), node.used_bytes()));
    }

    fn item(&mut self, key: &Key, value: &[u8]) {
        self.items.push((*key, value.to_vec()));
    }
}

/// The key number `number` of the tests, in the order of numbers: runs of 16 offsets, 4 kinds, then the next inode.
pub fn key(number: u64) -> Key {
    let kinds = [ItemKind::Inode, ItemKind::EntryByName, ItemKind::EntryByIndex, ItemKind::Extent];
    Key::new(256 + (number >> 6), kinds[(number >> 4) as usize & 3], number & 15)
}

pub fn value(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| (seed.wrapping_mul(31) + index * 7) as u8).collect()
}

pub fn put(key: Key, value: &[u8]) -> Mutation {
    Mutation::put(key, ItemValue::from_slice(value))
}

pub fn delete(key: Key) -> Mutation {
    Mutation::delete(key)
}

impl Store {
    pub fn new(cache_bytes: u64) -> Self {
        Self {
            tree: Tree::empty(OWNER, 1),
            model: BTreeMap::new(),
            superseded: Superseded::default(),
            generation: 1,
            misses: Cell::new(0),
            cache: NodeCache::new(cache_bytes),
            staged: RefCell::default(),
            device: BTreeMap::new(),
            next_address: 4096,
            commit: None,
        }
    }

    fn read(&self, pointer: &BlockPointer) -> Arc<Node> {
        let bytes = &self.device[&pointer.address];
        Arc::new(Node::decode(bytes, pointer, OWNER).expect("what was written is valid"))
    }

    /// Runs a call until nothing is missing.
    pub fn run<R>(&self, mut call: impl FnMut(&Self) -> Result<R, Missing>) -> R {
        loop {
            match call(self) {
                Ok(result) => {
                    self.staged.borrow_mut().clear();
                    return result;
                }
                Err(Missing { pointer, owner }) => {
                    assert_eq!(owner, OWNER);
                    self.misses.set(self.misses.get() + 1);
                    let node = self.read(&pointer);
                    self.cache.insert(&node);
                    let before = self.staged.borrow_mut().insert(pointer, node);
                    assert!(before.is_none(), "the same node was fetched twice for one call");
                }
            }
        }
    }

    pub fn apply(&mut self, mutations: &[Mutation]) {
        let prepared = self.run(|store| store.tree.prepare(store, mutations));
        self.tree.apply(&prepared, self.generation, mutations, &mut self.superseded);
        for mutation in mutations {
            match &mutation.change {
                Change::Put(value) => drop(self.model.insert(mutation.key, value.to_vec())),
                Change::Delete => drop(self.model.remove(&mutation.key)),
            }
        }
    }

    pub fn freeze(&mut self) {
        self.finish();
        let expected = self.tree.dirty_nodes();
        let frozen = self.tree.freeze();
        let unwritten = frozen.unwritten();
        assert_eq!(unwritten.len() as u64, expected, "dirty nodes are the ones to be written");
        let superseded = std::mem::take(&mut self.superseded);
        let freed = superseded.resolve().map(|node| node.pointer.address).collect();
        self.generation += 1;
        self.commit = Some(Commit { frozen, unwritten, freed, assigned: false });
    }

    pub fn assign(&mut self) {
        let Some(commit) = self.commit.as_mut().filter(|commit| !commit.assigned) else { return };
        for node in &commit.unwritten {
            node.assign(self.next_address);
            self.next_address += NODE_BYTES as u64;
        }
        commit.assigned = true;
    }

    /// Brings a commit that was started to its end, and checks what is on the device after it.
    pub fn finish(&mut self) {
        self.assign();
        let Some(commit) = self.commit.take() else { return };
        for node in &commit.unwritten {
            let mut bytes = vec![0xee; NODE_BYTES];
            node.encode_into(&mut bytes, OWNER);
            let again = Node::decode(&bytes, &node.pointer().expect("assigned"), OWNER).expect("valid");
            let mut twice = vec![0x11; NODE_BYTES];
            again.encode_into(&mut twice, OWNER);
            assert!(bytes == twice, "decoding and encoding changes nothing");
            let before = self.device.insert(node.address().expect("assigned"), bytes);
            assert!(before.is_none());
            self.cache.insert(node);
        }
        for address in &commit.freed {
            assert!(self.device.remove(address).is_some(), "a node is superseded once");
        }
        self.tree.release_written();
        let mut census = Census::default();
        commit.frozen.check(&Direct(self), &mut census).expect("a valid tree");
        let live: BTreeSet<u64> = census.nodes.iter().filter_map(|node| node.0).collect();
        assert_eq!(live.len(), census.nodes.len(), "every node has its own address");
        assert!(live.iter().eq(self.device.keys()), "every block is live or was superseded");
        assert!(live.contains(&commit.frozen.root_pointer().address));
    }

    /// As after a restart: everything is on the device, and nothing in memory.
    pub fn reopen(&mut self, cache_bytes: u64) {
        self.freeze();
        self.assign();
        let commit = self.commit.as_ref().expect("just started");
        let root = commit.frozen.root_pointer();
        self.finish();
        self.cache = NodeCache::new(cache_bytes);
        self.tree = Tree::open(OWNER, root);
    }

    pub fn census(&self) -> Census {
        let mut census = Census::default();
        self.tree.check(&Direct(self), &mut census).expect("a valid tree");
        census
    }

    /// Compares everything with the model and with counts made anew.
    pub fn check(&self) {
        let census = self.census();
        let model = self.model.iter().map(|(key, value)| (*key, value.clone()));
        assert!(census.items.iter().cloned().eq(model), "the items are those of the model");
        let current = |generation: u64| generation > self.tree.frozen_through;
        let dirty = census.nodes.iter().filter(|node| current(node.1)).count();
        assert_eq!(dirty as u64, self.tree.dirty_nodes(), "dirty nodes");
        if let Some(commit) = &self.commit {
            let mut frozen = Census::default();
            commit.frozen.check(&Direct(self), &mut frozen).expect("a valid tree");
            let kept = census.nodes.len() - dirty;
            assert_eq!(
                kept + self.superseded.len(),
                frozen.nodes.len(),
                "frozen nodes are live or superseded"
            );
        }
        for node in census.nodes.iter().filter(|node| node.2 > 0) {
            assert!(node.3 > 0, "no internal node is empty");
        }
    }

    pub fn get(&self, key: &Key) -> Option<ItemValue> {
        self.run(|store| store.tree.get(store, key))
    }
}
