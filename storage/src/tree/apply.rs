//! The second half of a change: copying what must be copied, splitting, merging. It cannot fail.
//!
//! Rules:
//! - a node of the current generation is changed in place (or, if somebody else holds it, cloned: it was never
//!   written, so nothing is superseded), any other is copied and the old one superseded;
//! - a node that an item does not fit into is split; one that a delete empties is removed; one that a delete leaves
//!   less than a quarter full is merged with a neighbour if both together fill at most three quarters, so that the
//!   next few inserts do not split them again;
//! - a merge is an optimisation: a neighbour that is not in memory is left alone. A path that is not in memory is a
//!   broken promise of [`Tree::prepare`]'s caller and panics, because half of the batch may have been applied.

use super::leaf::Leaf;
use super::node::{Body, CHILD_ENTRY_BYTES, Child, Internal, Node};
use super::{Change, Mutation, NodeSource, Prepared, Superseded, Tree};
use crate::format::key::Key;
use crate::format::node::{CHILDREN_MAX, NODE_CAPACITY};
use std::sync::Arc;

/// A delete that leaves a node with less than this looks for a merge.
pub(super) const MERGE_BELOW_BYTES: usize = NODE_CAPACITY / 4;
/// Two nodes are merged if they fill at most this together.
pub(super) const MERGED_BYTES_MAX: usize = NODE_CAPACITY / 4 * 3;

const _: () = assert!(MERGED_BYTES_MAX / CHILD_ENTRY_BYTES < CHILDREN_MAX);

impl Tree {
    /// Makes the changes that were prepared, in `generation`; what they leave behind goes to `superseded`.
    ///
    /// Between `prepare` and `apply` the tree must not have been released; further batches may have been applied.
    pub fn apply(
        &mut self,
        prepared: &Prepared,
        generation: u64,
        mutations: &[Mutation],
        superseded: &mut Superseded,
    ) {
        assert!(generation > self.frozen_through, "generation {generation} is frozen already");
        assert!(generation >= self.generation, "generations do not fall");
        assert!(
            generation == self.generation || self.dirty_nodes == 0,
            "a new generation starts with a freeze"
        );
        if mutations.is_empty() {
            return;
        }
        self.generation = generation;
        let mut editor = Editor { nodes: prepared, generation, superseded, dirty_nodes: self.dirty_nodes };
        for mutation in mutations {
            match &mutation.change {
                Change::Put(value) => {
                    if let Some((bound, right)) = editor.put(&mut self.root, &mutation.key, value) {
                        editor.grow(&mut self.root, bound, right);
                    }
                }
                Change::Delete => {
                    editor.delete(&mut self.root, &mutation.key);
                    editor.shrink(&mut self.root);
                }
            }
        }
        self.dirty_nodes = editor.dirty_nodes;
    }
}

struct Editor<'a> {
    nodes: &'a Prepared,
    generation: u64,
    superseded: &'a mut Superseded,
    dirty_nodes: u64,
}

impl Editor<'_> {
    /// The child as a node that may be changed.
    fn writable<'c>(&mut self, child: &'c mut Child) -> &'c mut Node {
        match &*child {
            Child::InMemory(node) if node.generation() == self.generation => {
                assert!(node.address().is_none(), "a node of the current generation was written");
            }
            Child::InMemory(node) => {
                let copy = self.supersede(node);
                *child = Child::InMemory(copy);
            }
            Child::OnDisk(pointer) => {
                let Some(node) = self.nodes.cached(pointer) else {
                    panic!("the node at {} was not prepared", pointer.address)
                };
                *child = Child::InMemory(self.supersede(&node));
            }
        }
        let Child::InMemory(node) = child else { unreachable!("it was just put into memory") };
        if Arc::get_mut(node).is_none() {
            *node = Arc::new(node.copy(self.generation));
        }
        Arc::get_mut(node).expect("nobody else holds a new node")
    }

    /// A copy in the current generation of a node of an older one.
    fn supersede(&mut self, node: &Arc<Node>) -> Arc<Node> {
        assert!(node.generation() < self.generation, "a node from the future");
        self.superseded.push(node);
        self.dirty_nodes += 1;
        Arc::new(node.copy(self.generation))
    }

    /// Returns the node that was split off to the right, with the lower bound of its keys.
    fn put(&mut self, child: &mut Child, key: &Key, value: &[u8]) -> Option<(Key, Child)> {
        let node = self.writable(child);
        let level = node.level();
        let right = match &mut node.body {
            Body::Leaf(leaf) => Node::leaf(self.generation, leaf.put(key, value)?),
            Body::Internal(internal) => {
                let index = internal.child_for(key);
                // Only the first child can get a key below its bound.
                if *key < internal.keys[index] {
                    internal.keys[index] = *key;
                }
                let (bound, right) = self.put(&mut internal.children[index], key, value)?;
                Node::internal(self.generation, level, internal.insert(index + 1, bound, right)?)
            }
        };
        self.dirty_nodes += 1;
        Some((first_key(&right), Child::InMemory(Arc::new(right))))
    }

    /// Puts a new root above a root that was split.
    fn grow(&mut self, root: &mut Child, bound: Key, right: Child) {
        let Child::InMemory(left) = &*root else { unreachable!("a root that was split is in memory") };
        let level = left.level() + 1;
        let internal = Internal { keys: vec![first_key(left), bound], children: vec![root.clone(), right] };
        self.dirty_nodes += 1;
        *root = Child::InMemory(Arc::new(Node::internal(self.generation, level, internal)));
    }

    /// Returns what the node uses afterwards, in bytes.
    fn delete(&mut self, child: &mut Child, key: &Key) -> usize {
        let node = self.writable(child);
        match &mut node.body {
            Body::Leaf(leaf) => leaf.remove(key),
            Body::Internal(internal) => {
                let index = internal.child_for(key);
                let used = self.delete(&mut internal.children[index], key);
                if used == 0 {
                    // It is of the current generation, since something was just deleted below it.
                    internal.remove(index);
                    self.dirty_nodes -= 1;
                } else if used < MERGE_BELOW_BYTES {
                    self.merge(internal, index);
                }
            }
        }
        node.used_bytes()
    }

    /// Merges the child at `index`, which is of the current generation, with a neighbour that is in memory.
    fn merge(&mut self, parent: &mut Internal, index: usize) {
        let used = |node: &Node| node.used_bytes();
        let own = match &parent.children[index] {
            Child::InMemory(node) => used(node),
            Child::OnDisk(_) => return,
        };
        let fits = |node: &Arc<Node>| used(node) + own <= MERGED_BYTES_MAX;
        if let Some(left) =
            index.checked_sub(1).and_then(|left| self.peek(&parent.children[left])).filter(fits)
        {
            match (&mut self.writable(&mut parent.children[index]).body, &left.body) {
                (Body::Leaf(node), Body::Leaf(left)) => node.absorb_left(left),
                (Body::Internal(node), Body::Internal(left)) => node.absorb_left(left),
                _ => unreachable!("neighbours are of one level"),
            }
            // The bound of the left one holds for both.
            parent.keys.remove(index);
            parent.children.remove(index - 1);
            self.dismiss(&left);
        } else if let Some(right) =
            parent.children.get(index + 1).and_then(|right| self.peek(right)).filter(fits)
        {
            match (&mut self.writable(&mut parent.children[index]).body, &right.body) {
                (Body::Leaf(node), Body::Leaf(right)) => node.absorb_right(right),
                (Body::Internal(node), Body::Internal(right)) => node.absorb_right(right),
                _ => unreachable!("neighbours are of one level"),
            }
            parent.remove(index + 1);
            self.dismiss(&right);
        }
    }

    /// Takes levels off as long as the root has a single child, and puts an empty leaf where nothing is left.
    fn shrink(&mut self, root: &mut Child) {
        while let Some(node) = self.peek(root) {
            let Body::Internal(internal) = &node.body else { return };
            *root = match internal.children.as_slice() {
                [] => {
                    self.dirty_nodes += 1;
                    Child::InMemory(Arc::new(Node::leaf(self.generation, Leaf::default())))
                }
                [only] => only.clone(),
                _ => return,
            };
            self.dismiss(&node);
        }
    }

    fn peek(&self, child: &Child) -> Option<Arc<Node>> {
        match child {
            Child::InMemory(node) => Some(Arc::clone(node)),
            Child::OnDisk(pointer) => self.nodes.cached(pointer),
        }
    }

    /// Accounts for a node that is no longer part of the tree.
    fn dismiss(&mut self, node: &Arc<Node>) {
        if node.generation() == self.generation {
            self.dirty_nodes -= 1;
        } else {
            self.superseded.push(node);
        }
    }
}

fn first_key(node: &Node) -> Key {
    match &node.body {
        Body::Leaf(leaf) => leaf.key(0),
        Body::Internal(internal) => internal.keys[0],
    }
}
