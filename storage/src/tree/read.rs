//! Reading a tree: point lookups, ranges, and the nearest item below or above a key.
//!
//! A node that is neither held by the tree nor by the source stops the read with [`Missing`]. Nothing is copied or
//! allocated on the way; nodes of the source are held only while they are looked at.
//!
//! A leaf may be empty (the root of an empty tree), and one that the device made up may be too: reads step over it.

use super::leaf::Leaf;
use super::node::{Body, Child, Internal, Node};
use super::{Missing, NodeSource};
use crate::format::key::Key;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

/// A node that the tree holds, or that the source handed out.
pub(super) enum Held<'a> {
    Borrowed(&'a Node),
    Shared(Arc<Node>),
}

impl Deref for Held<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        match self {
            Self::Borrowed(node) => node,
            Self::Shared(node) => node,
        }
    }
}

/// A tree as a reader sees it.
pub(super) struct Reader<'a, N: ?Sized> {
    pub root: &'a Child,
    pub owner: u64,
    pub nodes: &'a N,
}

impl<N: NodeSource + ?Sized> Reader<'_, N> {
    pub fn load<'c>(&self, child: &'c Child) -> Result<Held<'c>, Missing> {
        match child {
            Child::InMemory(node) => Ok(Held::Borrowed(node)),
            Child::OnDisk(pointer) => match self.nodes.cached(pointer) {
                Some(node) => Ok(Held::Shared(node)),
                None => Err(Missing { pointer: *pointer, owner: self.owner }),
            },
        }
    }

    pub fn get<R>(&self, key: &Key, found: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Missing> {
        let leaf_get = |leaf: &Leaf| leaf.find(key).ok().map(|index| found(leaf.value(index)));
        let mut held: Arc<Node>;
        let mut child = self.root;
        loop {
            let node: &Node = match self.load(child)? {
                Held::Borrowed(node) => node,
                Held::Shared(node) => {
                    held = node;
                    &held
                }
            };
            match &node.body {
                Body::Leaf(leaf) => return Ok(leaf_get(leaf)),
                Body::Internal(internal) => child = &internal.children[internal.child_for(key)],
            }
        }
    }

    pub fn scan(
        &self,
        child: &Child,
        from: &Key,
        to: &Key,
        visit: &mut impl FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Missing> {
        let node = self.load(child)?;
        match &node.body {
            Body::Leaf(leaf) => {
                let first = leaf.find(from).unwrap_or_else(|index| index);
                for index in first..leaf.len() {
                    let key = leaf.key(index);
                    if key > *to || visit(&key, leaf.value(index)).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Body::Internal(internal) => {
                let first = internal.child_for(from);
                for (bound, child) in internal.keys.iter().zip(&internal.children).skip(first) {
                    if bound > to || self.scan(child, from, to, visit)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Hands out the item with the greatest key not above `key`; whether there is one.
    pub fn floor(
        &self,
        child: &Child,
        key: &Key,
        found: &mut impl FnMut(&Key, &[u8]),
    ) -> Result<bool, Missing> {
        let node = self.load(child)?;
        let internal: &Internal = match &node.body {
            Body::Internal(internal) => internal,
            Body::Leaf(leaf) => {
                let end = leaf.find(key).map_or_else(|index| index, |index| index + 1);
                if end > 0 {
                    found(&leaf.key(end - 1), leaf.value(end - 1));
                }
                return Ok(end > 0);
            }
        };
        for child in internal.children[..=internal.child_for(key)].iter().rev() {
            if self.floor(child, key, found)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
