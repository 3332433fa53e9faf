//! The persistent copy-on-write B+tree that subvolumes, the root tree and the references tree consist of.
//!
//! One owner changes a [`Tree`]; no locks. A change is made in two steps: [`Tree::prepare`] sees to it that all nodes
//! concerned are in memory, or says which one is [`Missing`], and changes nothing; [`Tree::apply`] cannot fail.
//!
//! Nodes of the current generation are changed in place, all others are copied first. So [`Tree::freeze`] is O(1):
//! it hands the root to the committer, which gives addresses to and writes the nodes that have none, bottom-up, in
//! another thread, while the tree goes on in the next generation. When that commit is durable,
//! [`Tree::release_written`] lets go of the written nodes, which from then on live in the [`NodeCache`] only.
//!
//! ```text
//! apply* ── freeze ──> FrozenTree ── assign + encode ──> durable
//!   │          │                                            │
//!   │          └─ apply* (next generation) ─────────── release_written
//!   └─ Superseded ────────────── resolve (after the commit of the generation before) ──> blocks to free
//! ```
//!
//! Invariants, asserted in release too: the generation of a tree never falls, grows only at a freeze, and is above
//! that of everything frozen; `dirty_nodes` is the number of nodes made since the last freeze; every node that left
//! the tree and was or will be written is in `Superseded` once. Nothing here reads a device.

mod apply;
mod cache;
mod check;
mod frozen;
mod leaf;
mod node;
mod prepare;
mod read;
mod superseded;
#[cfg(test)]
mod tests;

pub use crate::format::node::{BlockPointer, NodeError};
pub use cache::{Gathered, NodeCache};
pub use check::{CheckError, TreeVisitor};
pub use frozen::FrozenTree;
pub use node::Node;
pub use prepare::Prepared;
pub use superseded::{Superseded, SupersededNode};

use crate::format::key::Key;
use leaf::Leaf;
use node::Child;
use read::Reader;
use smallvec::SmallVec;
use std::ops::ControlFlow;
use std::sync::Arc;
use thiserror::Error;

/// Value of an item: most are small enough not to need the heap. At most [`crate::limits::ITEM_BYTES_MAX`] bytes.
pub type ItemValue = SmallVec<[u8; 256]>;

/// A node must be read from the device first. Nothing was changed; read it, put it into the source, call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("tree node at device byte {} of owner {owner} is not in memory", pointer.address)]
pub struct Missing {
    /// Where it is and what must be found there.
    pub pointer: BlockPointer,
    /// The tree's owner, which the node must name.
    pub owner: u64,
}

/// Where nodes on the device are found in memory.
pub trait NodeSource {
    /// The node, if it is in memory. It is the one that was decoded for exactly this pointer.
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>>;
}

impl<N: NodeSource + ?Sized> NodeSource for &N {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        (**self).cached(pointer)
    }
}

/// One change of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Which item.
    pub key: Key,
    /// What happens to it.
    pub change: Change,
}

/// What happens to an item.
#[expect(
    clippy::large_enum_variant,
    reason = "most mutations are puts of small values: a box would cost an allocation each"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is inserted, or replaced.
    Put(ItemValue),
    /// It is removed; it must exist.
    Delete,
}

impl Mutation {
    /// Inserts or replaces an item.
    pub fn put(key: Key, value: ItemValue) -> Self {
        Self { key, change: Change::Put(value) }
    }

    /// Removes an item that exists.
    pub fn delete(key: Key) -> Self {
        Self { key, change: Change::Delete }
    }
}

/// See the module.
pub struct Tree {
    owner: u64,
    root: Child,
    /// Generation of the youngest node.
    generation: u64,
    /// Everything up to this generation was frozen, or was on the device when the tree was opened.
    frozen_through: u64,
    dirty_nodes: u64,
}

impl Tree {
    /// A new tree: one empty leaf of `generation`, not written yet.
    ///
    /// `owner` is named in every node; trees that share nodes must share it.
    pub fn empty(owner: u64, generation: u64) -> Self {
        assert!(generation > 0, "generations count from 1");
        let root = Child::InMemory(Arc::new(Node::leaf(generation, Leaf::default())));
        Self { owner, root, generation, frozen_through: generation - 1, dirty_nodes: 1 }
    }

    /// The tree on the device with this root; nothing is read.
    pub fn open(owner: u64, root: BlockPointer) -> Self {
        let generation = root.generation;
        Self { owner, root: Child::OnDisk(root), generation, frozen_through: generation, dirty_nodes: 0 }
    }

    /// Owner named in every node.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Nodes that the next freeze will hand over to be written.
    pub fn dirty_nodes(&self) -> u64 {
        self.dirty_nodes
    }

    /// Levels of the tree; 1 = a single leaf.
    pub fn height(&self) -> u64 {
        let level = match &self.root {
            Child::OnDisk(pointer) => pointer.level,
            Child::InMemory(node) => node.level(),
        };
        u64::from(level) + 1
    }

    /// A copy of the item's value.
    pub fn get(&self, nodes: &(impl NodeSource + ?Sized), key: &Key) -> Result<Option<ItemValue>, Missing> {
        self.get_with(nodes, key, ItemValue::from_slice)
    }

    /// What `found` makes of the item's value, if there is such an item.
    pub fn get_with<R>(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        key: &Key,
        found: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Missing> {
        self.reader(nodes).get(key, found)
    }

    /// Visits the items from `from` to `to_inclusive` in order until `visit` breaks.
    ///
    /// On [`Missing`] some items may have been visited already; the next call starts over.
    pub fn scan(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        from: &Key,
        to_inclusive: &Key,
        mut visit: impl FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Missing> {
        if from > to_inclusive {
            return Ok(());
        }
        self.reader(nodes).scan(&self.root, from, to_inclusive, &mut visit).map(|_| ())
    }

    /// The item with the greatest key not above `key`.
    pub fn floor(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        key: &Key,
    ) -> Result<Option<(Key, ItemValue)>, Missing> {
        self.floor_with(nodes, key, |key, value| (*key, ItemValue::from_slice(value)))
    }

    /// What `found` makes of the item with the greatest key not above `key`.
    pub fn floor_with<R>(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        key: &Key,
        mut found: impl FnMut(&Key, &[u8]) -> R,
    ) -> Result<Option<R>, Missing> {
        let mut result = None;
        self.reader(nodes).floor(&self.root, key, &mut |key, value| result = Some(found(key, value)))?;
        Ok(result)
    }

    /// The item with the smallest key not below `key`.
    pub fn ceiling(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        key: &Key,
    ) -> Result<Option<(Key, ItemValue)>, Missing> {
        self.ceiling_with(nodes, key, |key, value| (*key, ItemValue::from_slice(value)))
    }

    /// What `found` makes of the item with the smallest key not below `key`.
    pub fn ceiling_with<R>(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        key: &Key,
        mut found: impl FnMut(&Key, &[u8]) -> R,
    ) -> Result<Option<R>, Missing> {
        let mut result = None;
        self.scan(nodes, key, &Key::LAST, |key, value| {
            result = Some(found(key, value));
            ControlFlow::Break(())
        })?;
        Ok(result)
    }

    /// Hands the present state to a committer and goes on in the next generation. O(1).
    pub fn freeze(&mut self) -> FrozenTree {
        self.frozen_through = self.generation;
        self.dirty_nodes = 0;
        FrozenTree::new(self.owner, self.root.clone())
    }

    /// Lets go of all nodes that have an address. To be called when the commit that gave it is durable and has put
    /// them into the cache: before, a lookup would find them neither there nor on the device.
    pub fn release_written(&mut self) {
        release(&mut self.root, self.frozen_through);
    }

    fn reader<'a, N: NodeSource + ?Sized>(&'a self, nodes: &'a N) -> Reader<'a, N> {
        Reader { root: &self.root, owner: self.owner, nodes }
    }
}

/// Turns written children into pointers, looking only below nodes that were made after the last freeze: all older
/// ones are written themselves, or are being written and stay as they are.
fn release(child: &mut Child, frozen_through: u64) {
    if let Some(pointer) = child.pointer() {
        *child = Child::OnDisk(pointer);
        return;
    }
    let Child::InMemory(node) = child else { return };
    if node.generation() <= frozen_through {
        return;
    }
    // Somebody else may hold the node to read it; then its children are let go with it, a commit later.
    if let Some(node::Body::Internal(internal)) = Arc::get_mut(node).map(|node| &mut node.body) {
        internal.children.iter_mut().for_each(|child| release(child, frozen_through));
    }
}
