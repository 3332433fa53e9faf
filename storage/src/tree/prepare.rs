//! The first half of a change: all nodes that it will touch are brought together, or the first missing one is named.
//!
//! The nodes are held in [`Prepared`] until the change was made: the cache is shared with other trees, which may push
//! any node out of it between the two halves.
//!
//! For every key that is its path. A delete may also leave a node so empty that it is merged: then a sibling is
//! needed, and if the parent may become too empty by that, one of the parent's, and so on. Estimates err towards
//! bringing a sibling that is not needed, and never bring more than two for each node of the paths.

use super::apply::{MERGE_BELOW_BYTES, MERGED_BYTES_MAX};
use super::leaf::Leaf;
use super::node::{Body, CHILD_ENTRY_BYTES, Child, Internal, Node};
use super::read::{Held, Reader};
use super::{Change, Missing, Mutation, NodeSource, Tree};
use crate::format::node::{BlockPointer, SLOT_BYTES};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// The nodes on the device that a change touches, held in memory for it.
#[derive(Default)]
pub struct Prepared {
    nodes: FxHashMap<BlockPointer, Arc<Node>>,
}

impl NodeSource for Prepared {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        if self.nodes.is_empty() {
            return None;
        }
        self.nodes.get(pointer).cloned()
    }
}

impl Tree {
    /// Brings together everything that [`Tree::apply`] of these mutations touches; changes nothing.
    ///
    /// Keys of one batch are distinct, in any order.
    pub fn prepare(
        &self,
        nodes: &(impl NodeSource + ?Sized),
        mutations: &[Mutation],
    ) -> Result<Prepared, Missing> {
        let mut sorted: SmallVec<[&Mutation; 16]> = mutations.iter().collect();
        sorted.sort_unstable_by_key(|mutation| mutation.key);
        let distinct = sorted.windows(2).all(|pair| pair[0].key < pair[1].key);
        assert!(distinct, "two mutations of one item in a batch");
        let mut preparation = Preparation { reader: self.reader(nodes), prepared: Prepared::default() };
        if !sorted.is_empty() {
            preparation.visit(&self.root, &sorted)?;
        }
        Ok(preparation.prepared)
    }
}

struct Preparation<'a, N: ?Sized> {
    reader: Reader<'a, N>,
    prepared: Prepared,
}

impl<N: NodeSource + ?Sized> Preparation<'_, N> {
    fn hold<'c>(&mut self, child: &'c Child) -> Result<Held<'c>, Missing> {
        let held = self.reader.load(child)?;
        if let (Held::Shared(node), Child::OnDisk(pointer)) = (&held, child) {
            self.prepared.nodes.insert(*pointer, Arc::clone(node));
        }
        Ok(held)
    }

    /// Goes down to all the keys (sorted, at least one). Returns the least number of bytes that the node may use
    /// in between if that can make it merge, `None` if it cannot.
    fn visit(&mut self, child: &Child, mutations: &[&Mutation]) -> Result<Option<usize>, Missing> {
        let node = self.hold(child)?;
        let removed = match &node.body {
            Body::Leaf(leaf) => mutations.iter().map(|mutation| removed_bytes(leaf, mutation)).sum(),
            // Each child that may merge may do so with both of its neighbours.
            Body::Internal(internal) => self.visit_children(internal, mutations)? * 2 * CHILD_ENTRY_BYTES,
        };
        let least = node.used_bytes().saturating_sub(removed);
        Ok((removed > 0 && least < MERGE_BELOW_BYTES).then_some(least))
    }

    /// Returns how many children may merge.
    fn visit_children(&mut self, internal: &Internal, mutations: &[&Mutation]) -> Result<usize, Missing> {
        let mut merging = 0;
        let mut rest = mutations;
        while let Some(first) = rest.first() {
            let index = internal.child_for(&first.key);
            let end = match internal.keys.get(index + 1) {
                Some(bound) => rest.partition_point(|mutation| mutation.key < *bound),
                None => rest.len(),
            };
            let (mine, others) = rest.split_at(end);
            if let Some(least) = self.visit(&internal.children[index], mine)? {
                merging += 1;
                self.hold_siblings(internal, index, least)?;
            }
            rest = others;
        }
        Ok(merging)
    }

    /// In the order in which `apply` tries them: the left one, and the right one if the left one does not do.
    fn hold_siblings(&mut self, internal: &Internal, index: usize, least: usize) -> Result<(), Missing> {
        // A node that is emptied goes without a merge.
        if least == 0 {
            return Ok(());
        }
        if index > 0 && self.hold(&internal.children[index - 1])?.used_bytes() + least <= MERGED_BYTES_MAX {
            return Ok(());
        }
        match internal.children.get(index + 1) {
            Some(right) => self.hold(right).map(|_| ()),
            None => Ok(()),
        }
    }
}

fn removed_bytes(leaf: &Leaf, mutation: &Mutation) -> usize {
    match (&mutation.change, leaf.find(&mutation.key)) {
        (Change::Delete, Ok(index)) => SLOT_BYTES + leaf.value(index).len(),
        _ => 0,
    }
}
