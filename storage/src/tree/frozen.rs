//! A tree at one point in time, on its way to the device.
//!
//! The committer calls, in this order: [`FrozenTree::unwritten`]; [`Node::assign`] for each; [`Node::encode_into`] for
//! each; after the writes, [`super::NodeCache::insert`] for each; [`FrozenTree::root_pointer`] for the root item.
//!
//! Invariant: children come before their parents, and a node that has an address has no child without one.

use super::node::{Body, Child, Node};
use crate::format::node::BlockPointer;
use std::sync::Arc;

/// See the module.
pub struct FrozenTree {
    owner: u64,
    pub(super) root: Child,
}

impl FrozenTree {
    pub(super) fn new(owner: u64, root: Child) -> Self {
        Self { owner, root }
    }

    /// Owner to be named in every node.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// All nodes without an address, children before parents.
    pub fn unwritten(&self) -> Vec<Arc<Node>> {
        let mut nodes = Vec::new();
        collect(&self.root, &mut nodes);
        nodes
    }

    /// Where the root is. Panics before it has an address.
    pub fn root_pointer(&self) -> BlockPointer {
        self.root.pointer().expect("the root of a frozen tree is asked for after addresses were assigned")
    }
}

fn collect(child: &Child, nodes: &mut Vec<Arc<Node>>) {
    let Child::InMemory(node) = child else { return };
    if node.address().is_some() {
        return;
    }
    if let Body::Internal(internal) = &node.body {
        internal.children.iter().for_each(|child| collect(child, nodes));
    }
    nodes.push(Arc::clone(node));
}
