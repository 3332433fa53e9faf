//! The nodes that copy-on-write left behind: what a transaction may free once it is durable.
//!
//! A node can be superseded while the committer of the transaction before is still to give it an address; such a
//! node is kept until [`Superseded::resolve`], which runs after that commit ended.
//!
//! Nodes shared with a snapshot are not freed but lose one reference, and each child or extent below them gains one.
//! For that they are kept too; which are shared is decided by generation: everything up to the last snapshot.
//!
//! Invariant: every written (or to be written) node that left the tree is in here exactly once; a node that was made
//! and dropped within one generation is not.

use super::node::Node;
use crate::format::node::BlockPointer;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub struct Superseded {
    shared_through: u64,
    entries: Vec<Entry>,
}

enum Entry {
    Written(BlockPointer),
    Node(Arc<Node>),
}

/// A node that left its tree.
pub struct SupersededNode {
    /// Where it is on the device.
    pub pointer: BlockPointer,
    /// The node itself, if it may be shared with a snapshot.
    pub shared: Option<Arc<Node>>,
}

impl Superseded {
    /// Nothing superseded yet; nodes of generations up to `shared_through` may be shared (0: none is).
    pub fn new(shared_through: u64) -> Self {
        Self { shared_through, entries: Vec::new() }
    }

    /// Nodes in here.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no node is in here.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The nodes with their addresses. Panics if a commit that was to write one of them has not assigned addresses.
    pub fn resolve(self) -> impl Iterator<Item = SupersededNode> {
        let shared_through = self.shared_through;
        self.entries.into_iter().map(move |entry| match entry {
            Entry::Written(pointer) => SupersededNode { pointer, shared: None },
            Entry::Node(node) => {
                let pointer = node.pointer().expect("superseded nodes are resolved after their commit ended");
                let shared = (node.generation() <= shared_through).then_some(node);
                SupersededNode { pointer, shared }
            }
        })
    }

    pub(super) fn push(&mut self, node: &Arc<Node>) {
        self.entries.push(match node.pointer() {
            Some(pointer) if node.generation() > self.shared_through => Entry::Written(pointer),
            _ => Entry::Node(Arc::clone(node)),
        });
    }
}
