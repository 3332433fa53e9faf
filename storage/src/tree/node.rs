//! A node in memory: a leaf's items, or an internal node's keys and children, and where it was written.
//!
//! Invariants:
//! - a node is changed only by the tree that made it, in the generation that made it, while nobody else holds it and
//!   it has no address; afterwards it is immutable except that its address is assigned once;
//! - the key of a child is not above any key below that child, and above every key below the child before it;
//! - children are one level below; internal nodes are never empty, and a leaf only if it is the root;
//! - a node with an address has only children with addresses: they are assigned bottom-up.

use super::leaf::Leaf;
use crate::format::key::Key;
use crate::format::node::{
    BlockPointer, CHILD_BYTES, CHILDREN_MAX, LEVEL_MAX, NodeEntry, NodeError, NodeReader, NodeWriter,
    SLOT_BYTES,
};
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an item of a leaf, or a child of an internal node, takes there in bytes.
pub(super) const CHILD_ENTRY_BYTES: usize = SLOT_BYTES + CHILD_BYTES;

/// See the module.
pub struct Node {
    generation: u64,
    level: u8,
    /// Address on the device, 0 until the committer has assigned it. The committer may run in another thread.
    location: AtomicU64,
    pub(super) body: Body,
}

/// What a node holds.
pub(super) enum Body {
    Leaf(Leaf),
    Internal(Internal),
}

/// Children of an internal node, each with the lower bound of the keys below it.
pub(super) struct Internal {
    pub keys: Vec<Key>,
    pub children: Vec<Child>,
}

/// A node as its parent knows it.
#[derive(Clone)]
pub(super) enum Child {
    /// Written; to be found in the cache or fetched.
    OnDisk(BlockPointer),
    /// Not known to be durable yet, or not released yet.
    InMemory(Arc<Node>),
}

impl Node {
    pub(super) fn leaf(generation: u64, leaf: Leaf) -> Self {
        Self { generation, level: 0, location: AtomicU64::new(0), body: Body::Leaf(leaf) }
    }

    pub(super) fn internal(generation: u64, level: u8, internal: Internal) -> Self {
        assert!(level > 0 && level <= LEVEL_MAX, "a tree of {level} levels");
        Self { generation, level, location: AtomicU64::new(0), body: Body::Internal(internal) }
    }

    /// Builds the node that `pointer` promises in the tree of `owner` out of the bytes found there.
    pub fn decode(bytes: &[u8], pointer: &BlockPointer, owner: u64) -> Result<Self, NodeError> {
        let entries = NodeReader::open(bytes, pointer, owner)?;
        let count = entries.slot_count();
        let mut leaf = Leaf::default();
        let mut internal = Internal { keys: Vec::new(), children: Vec::new() };
        if pointer.level == 0 {
            leaf = Leaf::with_capacity(count, entries.data_bytes());
        } else {
            internal = Internal { keys: Vec::with_capacity(count), children: Vec::with_capacity(count) };
        }
        for entry in entries {
            match entry? {
                (key, NodeEntry::Item(value)) => leaf.push(&key, value),
                (key, NodeEntry::Child(child)) => {
                    internal.keys.push(key);
                    internal.children.push(Child::OnDisk(child));
                }
            }
        }
        let body = if pointer.level == 0 { Body::Leaf(leaf) } else { Body::Internal(internal) };
        let location = AtomicU64::new(pointer.address);
        Ok(Self { generation: pointer.generation, level: pointer.level, location, body })
    }

    /// Fills `bytes` (16 KiB) with the node as it goes to the device. The node and its children have addresses.
    pub fn encode_into(&self, bytes: &mut [u8], owner: u64) {
        let own = self.pointer().expect("a node is encoded after its address was assigned");
        let mut writer = NodeWriter::new(bytes, self.len());
        match &self.body {
            Body::Leaf(leaf) => leaf.iter().for_each(|(key, value)| writer.item(&key, value)),
            Body::Internal(internal) => {
                for (key, child) in internal.keys.iter().zip(&internal.children) {
                    let child = child.pointer().expect("addresses are assigned children first");
                    writer.child(key, &child);
                }
            }
        }
        writer.finish(&own, owner);
    }

    /// Transaction that made the node.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// 0 = leaf.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// First byte on the device, once assigned.
    pub fn address(&self) -> Option<u64> {
        // Acquire pairs with the release in `assign`.
        let address = self.location.load(Ordering::Acquire);
        (address != 0).then_some(address)
    }

    /// Where the node is on the device, once assigned.
    pub fn pointer(&self) -> Option<BlockPointer> {
        let address = self.address()?;
        Some(BlockPointer { address, generation: self.generation, level: self.level })
    }

    /// Gives the node its address; once only.
    pub fn assign(&self, address: u64) {
        assert_ne!(address, 0, "address 0 means none");
        let before = self.location.swap(address, Ordering::AcqRel);
        assert_eq!(before, 0, "a node is written at one address only");
    }

    /// Items of a leaf, or children.
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => leaf.len(),
            Body::Internal(internal) => internal.children.len(),
        }
    }

    /// Whether this is the root leaf of an empty tree.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the entries take in the node on disk, in bytes; at most [`crate::format::node::NODE_CAPACITY`].
    pub fn used_bytes(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => leaf.used(),
            Body::Internal(internal) => internal.children.len() * CHILD_ENTRY_BYTES,
        }
    }

    /// Memory held, children not counted, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.body {
                Body::Leaf(leaf) => leaf.memory_bytes(),
                Body::Internal(internal) => {
                    internal.keys.capacity() * size_of::<Key>()
                        + internal.children.capacity() * size_of::<Child>()
                }
            }
    }

    /// Items of a leaf in order; nothing for an internal node.
    pub fn items(&self) -> impl Iterator<Item = (Key, &[u8])> {
        let leaf = match &self.body {
            Body::Leaf(leaf) => Some(leaf),
            Body::Internal(_) => None,
        };
        leaf.into_iter().flat_map(Leaf::iter)
    }

    /// Children of an internal node in order, `None` for one without an address yet; nothing for a leaf.
    pub fn child_pointers(&self) -> impl Iterator<Item = Option<BlockPointer>> {
        let children = match &self.body {
            Body::Leaf(_) => [].as_slice(),
            Body::Internal(internal) => &internal.children,
        };
        children.iter().map(Child::pointer)
    }

    /// The node as a cache may keep it: without holding other nodes in memory. All children have addresses.
    ///
    /// A cached internal node that held its children would keep the whole tree below it in memory, uncounted.
    pub fn detached(self: &Arc<Self>) -> Arc<Self> {
        let Body::Internal(internal) = &self.body else { return Arc::clone(self) };
        if internal.children.iter().all(|child| matches!(child, Child::OnDisk(_))) {
            return Arc::clone(self);
        }
        let on_disk = |child: &Child| {
            Child::OnDisk(child.pointer().expect("a written node has children with addresses"))
        };
        let children = internal.children.iter().map(on_disk).collect();
        let body = Body::Internal(Internal { keys: internal.keys.clone(), children });
        let location = AtomicU64::new(self.address().unwrap_or(0));
        Arc::new(Self { generation: self.generation, level: self.level, location, body })
    }

    /// A copy that belongs to `generation` and has no address.
    pub(super) fn copy(&self, generation: u64) -> Self {
        let body = match &self.body {
            Body::Leaf(leaf) => Body::Leaf(leaf.copy()),
            Body::Internal(internal) => Body::Internal(internal.copy()),
        };
        Self { generation, level: self.level, location: AtomicU64::new(0), body }
    }
}

impl Child {
    /// Where the child is on the device; `None` as long as it has no address.
    pub fn pointer(&self) -> Option<BlockPointer> {
        match self {
            Self::OnDisk(pointer) => Some(*pointer),
            Self::InMemory(node) => node.pointer(),
        }
    }
}

impl Internal {
    /// Index of the child below which a key stands or would stand. Keys below the first bound belong to child 0.
    pub fn child_for(&self, key: &Key) -> usize {
        self.keys.partition_point(|bound| bound <= key).saturating_sub(1)
    }

    /// Adds a child that was split off at its left neighbour. When it does not fit, the right part is returned.
    ///
    /// As in leaves, a child behind all others gets a node of its own, so that appending leaves full nodes behind.
    pub fn insert(&mut self, index: usize, key: Key, child: Child) -> Option<Internal> {
        let count = self.children.len();
        if count < CHILDREN_MAX {
            self.keys.insert(index, key);
            self.children.insert(index, child);
            return None;
        }
        if index == count {
            return Some(Internal { keys: vec![key], children: vec![child] });
        }
        let middle = count / 2;
        let mut right =
            Internal { keys: self.keys.split_off(middle), children: self.children.split_off(middle) };
        let (part, index) = if index <= middle { (self, index) } else { (&mut right, index - middle) };
        part.keys.insert(index, key);
        part.children.insert(index, child);
        Some(right)
    }

    pub fn remove(&mut self, index: usize) {
        self.keys.remove(index);
        self.children.remove(index);
    }

    /// Takes over all children of `left`, whose keys are all smaller.
    pub fn absorb_left(&mut self, left: &Internal) {
        self.keys.splice(..0, left.keys.iter().copied());
        self.children.splice(..0, left.children.iter().cloned());
    }

    /// Takes over all children of `right`, whose keys are all larger.
    pub fn absorb_right(&mut self, right: &Internal) {
        self.keys.extend_from_slice(&right.keys);
        self.children.extend_from_slice(&right.children);
    }

    fn copy(&self) -> Self {
        let mut keys = Vec::with_capacity(self.keys.len() + 1);
        keys.extend_from_slice(&self.keys);
        let mut children = Vec::with_capacity(self.children.len() + 1);
        children.extend_from_slice(&self.children);
        Self { keys, children }
    }
}
