//! Walking a whole tree for `check` and for tests: every node, every item, in order, with all that a node alone
//! cannot know checked: bounds of the parent against keys of the child, levels, generations, empty nodes.
//!
//! What is not checked here: whether two trees use one block, and whether the space map agrees; visitors do that.

use super::node::{Body, Node};
use super::read::Reader;
use super::{FrozenTree, Missing, NodeSource, Tree};
use crate::format::key::Key;
use thiserror::Error;

/// What is told about each node and item of a tree.
pub trait TreeVisitor {
    /// A node, before what is below it.
    fn node(&mut self, node: &Node);
    /// An item; keys grow.
    fn item(&mut self, key: &Key, value: &[u8]);
}

/// Why a walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CheckError {
    /// A node is not in memory. A walk starts over, so its source had better read what it does not have.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A key stands outside the bounds that its parents set.
    #[error("key {key:?} of the node at {address:?} is outside its bounds")]
    Bounds {
        /// Address of the node, if it has one.
        address: Option<u64>,
        /// The key.
        key: Key,
    },
    /// A node without entries that is not the root.
    #[error("the node at {address:?} is empty")]
    Empty {
        /// Address of the node, if it has one.
        address: Option<u64>,
    },
    /// A node at the wrong height, or younger than its parent.
    #[error("the node at {address:?} does not belong below its parent")]
    Parent {
        /// Address of the node, if it has one.
        address: Option<u64>,
    },
}

impl Tree {
    /// Walks the whole tree.
    pub fn check(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        visitor: &mut impl TreeVisitor,
    ) -> Result<(), CheckError> {
        walk(&self.reader(nodes), visitor)
    }
}

impl FrozenTree {
    /// Walks the whole tree.
    pub fn check(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        visitor: &mut impl TreeVisitor,
    ) -> Result<(), CheckError> {
        walk(&Reader { root: &self.root, owner: self.owner(), nodes }, visitor)
    }
}

fn walk<N: NodeSource + ?Sized>(
    reader: &Reader<'_, N>,
    visitor: &mut impl TreeVisitor,
) -> Result<(), CheckError> {
    let root = reader.load(reader.root)?;
    visitor.node(&root);
    walk_below(reader, &root, Bounds { from: &Key::FIRST, end: None }, visitor)
}

/// Where the keys below a node must be.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    from: &'a Key,
    /// The first key that must not occur any more; `None` at the right edge of the tree.
    end: Option<&'a Key>,
}

fn walk_below<N: NodeSource + ?Sized>(
    reader: &Reader<'_, N>,
    node: &Node,
    bounds: Bounds<'_>,
    visitor: &mut impl TreeVisitor,
) -> Result<(), CheckError> {
    let check = |key: &Key| match key < bounds.from || bounds.end.is_some_and(|end| key >= end) {
        true => Err(CheckError::Bounds { address: node.address(), key: *key }),
        false => Ok(()),
    };
    let internal = match &node.body {
        Body::Internal(internal) => internal,
        Body::Leaf(leaf) => {
            for (key, value) in leaf.iter() {
                check(&key)?;
                visitor.item(&key, value);
            }
            return Ok(());
        }
    };
    for (index, (bound, child)) in internal.keys.iter().zip(&internal.children).enumerate() {
        check(bound)?;
        let child = reader.load(child)?;
        let address = child.address();
        if child.level() + 1 != node.level() || child.generation() > node.generation() {
            return Err(CheckError::Parent { address });
        }
        if child.is_empty() {
            return Err(CheckError::Empty { address });
        }
        visitor.node(&child);
        let end = internal.keys.get(index + 1).or(bounds.end);
        walk_below(reader, &child, Bounds { from: bound, end }, visitor)?;
    }
    Ok(())
}
