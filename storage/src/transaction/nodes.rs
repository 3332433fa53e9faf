//! Giving tree nodes their addresses and writing them, children first, in runs as long as the free space allows.

use crate::device::{AlignedBuffer, WriteRequest};
use crate::limits::{BLOCK_BYTES, NODE_BYTES};
use crate::space::RunList;
use crate::store::{Store, StoreError};
use crate::tree::{FrozenTree, Node};
use std::sync::Arc;

/// Most nodes in one run: 1 MiB.
const NODES_PER_RUN: u64 = 64;
const NODE_BLOCKS: u64 = NODE_BYTES as u64 / BLOCK_BYTES;

/// Nodes that lie one after the other.
struct NodeRun {
    address: u64,
    /// Each with the owner that its block names.
    nodes: Vec<(Arc<Node>, u64)>,
}

/// Nodes with addresses, ready to be written.
#[derive(Default)]
pub struct NodeWrites {
    runs: Vec<NodeRun>,
    count: u64,
}

impl NodeWrites {
    /// Gives every unwritten node of the tree an address; the blocks are added to `allocated`.
    pub fn add(
        &mut self,
        store: &Store,
        tree: &FrozenTree,
        allocated: &mut RunList,
    ) -> Result<(), StoreError> {
        let nodes = tree.unwritten();
        let mut rest = nodes.as_slice();
        while !rest.is_empty() {
            let Some(run) = store.space().allocate_nodes(NODES_PER_RUN.min(rest.len() as u64)) else {
                // Reserved, in quads, when the nodes became dirty: a broken invariant.
                return Err(StoreError::Failed("no room for tree nodes".to_owned()));
            };
            allocated.push(run);
            let (now, later) = rest.split_at((run.blocks / NODE_BLOCKS) as usize);
            let mut placed = Vec::with_capacity(now.len());
            for (index, node) in now.iter().enumerate() {
                node.assign(run.address() + index as u64 * NODE_BYTES as u64);
                placed.push((Arc::clone(node), tree.owner()));
            }
            self.count += now.len() as u64;
            self.runs.push(NodeRun { address: run.address(), nodes: placed });
            rest = later;
        }
        Ok(())
    }

    /// Number of nodes.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Writes them all, some runs at a time so that memory stays bounded.
    pub fn write(&self, store: &Store) -> Result<(), StoreError> {
        for chunk in self.runs.chunks(16) {
            let buffers: Vec<(u64, AlignedBuffer)> = chunk
                .iter()
                .map(|run| {
                    let mut buffer = AlignedBuffer::zeroed(run.nodes.len() * NODE_BYTES);
                    for ((node, owner), bytes) in run.nodes.iter().zip(buffer.chunks_exact_mut(NODE_BYTES)) {
                        node.encode_into(bytes, *owner);
                    }
                    (run.address, buffer)
                })
                .collect();
            let writes: Vec<WriteRequest<'_>> =
                buffers.iter().map(|(offset, data)| WriteRequest { offset: *offset, data }).collect();
            store.device().write_many(&writes)?;
        }
        Ok(())
    }

    /// Puts them into the cache: their trees will let go of them.
    pub fn cache(&self, store: &Store) {
        for (node, _) in self.runs.iter().flat_map(|run| &run.nodes) {
            store.nodes().insert(node);
        }
    }
}
