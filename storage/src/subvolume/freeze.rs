//! Handing the present state to a commit and going on.
//!
//! The freeze itself is O(1) in the size of the tree. Before it all dirty pages must have become extents, which is
//! O(dirty ranges) and kept short by background writeback; both halves are called by the owner between two messages.

use super::{Subvolume, WritebackProgress};
use crate::error::EngineResult;
use crate::format::root_item::RootItem;
use crate::log::generation::Pinned;
use crate::space::RunList;
use crate::store::data_write::DataWrite;
use crate::tree::{FrozenTree, Superseded};
use crate::types::{Limits, SubvolumeId, TenantId, Timestamp, TransactionId};
use std::sync::Arc;

/// What a subvolume is besides its tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootDescription {
    /// Whose it is.
    pub tenant: TenantId,
    /// Name within the tenant.
    pub name: String,
    /// Bits of [`crate::format::root_item::root_flags`].
    pub flags: u64,
    /// Limits.
    pub limits: Limits,
    /// What it is a snapshot of, or 0.
    pub origin: SubvolumeId,
    /// When it was made.
    pub created: Timestamp,
    /// Owner of the root directory of a new one.
    pub root_uid: u32,
    /// Group of the root directory of a new one.
    pub root_gid: u32,
    /// Blocks born after this transaction are not shared.
    pub last_snapshot_generation: u64,
}

impl RootDescription {
    pub(super) fn of(root: &RootItem) -> Self {
        Self {
            tenant: root.tenant,
            name: root.name.clone(),
            flags: root.flags,
            limits: root.limits,
            origin: root.origin,
            created: root.created,
            root_uid: 0,
            root_gid: 0,
            last_snapshot_generation: root.last_snapshot_generation,
        }
    }
}

/// A subvolume's state at a point in time, for the committer.
pub struct Frozen {
    /// Whose.
    pub subvolume: SubvolumeId,
    /// The transaction it belongs to.
    pub transid: TransactionId,
    /// The tree.
    pub tree: FrozenTree,
    /// Extents of this transaction that may not be written yet.
    pub writes: Vec<Arc<DataWrite>>,
    /// Blocks handed out for them.
    pub allocated: RunList,
    /// Blocks of data that the tree let go of.
    pub released: RunList,
    /// Nodes that left the tree.
    pub superseded: Superseded,
    /// Blocks reserved for the tree's unwritten nodes.
    pub reserved_blocks: u64,
    /// The root item to be; its root address comes from the committer.
    pub root: RootItem,
}

impl Subvolume {
    /// Turns some dirty pages into extents; [`Self::freeze`] needs that none is left. May end with `Missing`.
    pub fn prepare_freeze(&mut self) -> EngineResult<WritebackProgress> {
        self.write_back_any()
    }

    /// Hands over the state of transaction `transid` and goes on in the next. All pages were written back.
    pub fn freeze(&mut self, transid: TransactionId) -> Result<Frozen, Pinned> {
        assert!(self.dirty && self.transid == transid, "subvolume {} is not dirty in {transid}", self.id);
        assert_eq!(self.pages.dirty_pages(), 0, "a freeze with dirty pages");
        assert!(self.frozen.is_none(), "the commit before is not finished");
        let covered_sequence = self.log.freeze(transid)?;
        self.space.window.give_back(self.store.space());
        self.pages.freeze();
        let reserved_blocks = self.space.reserved_blocks;
        self.space.reserved_blocks = 0;
        assert_eq!(
            reserved_blocks, self.space.node_blocks,
            "without dirty pages only nodes are reserved for"
        );
        self.space.node_blocks = 0;
        self.previous_writes = std::mem::take(&mut self.writes);
        self.new_writes.clear();
        let writes = self.previous_writes.values().cloned().collect();
        self.frozen = Some(transid);
        self.dirty = false;
        let description = &self.description;
        let root = RootItem {
            root: None,
            tenant: description.tenant,
            flags: description.flags,
            next_id: self.next_id,
            usage: self.account.usage(),
            limits: self.account.limits(),
            covered_sequence,
            last_snapshot_generation: description.last_snapshot_generation,
            origin: description.origin,
            created: description.created,
            name: description.name.clone(),
        };
        let shared_through = description.last_snapshot_generation;
        Ok(Frozen {
            subvolume: self.id,
            transid,
            tree: self.tree.freeze(),
            writes,
            allocated: std::mem::take(&mut self.space.allocated),
            released: std::mem::take(&mut self.space.released),
            superseded: std::mem::replace(&mut self.space.superseded, Superseded::new(shared_through)),
            reserved_blocks,
            root,
        })
    }

    /// The commit that it was frozen for is durable: written nodes may leave memory, covered records are dropped.
    pub fn commit_durable(&mut self, transid: TransactionId) {
        if self.frozen != Some(transid) {
            return;
        }
        self.frozen = None;
        self.tree.release_written();
        self.pages.commit_durable();
        self.previous_writes.clear();
        self.log.commit_durable(transid);
        let newest = self.log.progress().newest();
        for (&inode, open) in &self.open {
            let unlogged = self.has_unlogged_data(inode);
            if !unlogged {
                open.ticket.changed(0, false);
            }
        }
        tracing::trace!(subvolume = self.id, transid, newest, "commit is durable");
    }

    /// Adds bits of [`crate::format::root_item::root_flags`]; part of the root item of the next commit.
    pub fn add_flags(&mut self, flags: u64) {
        self.description.flags |= flags;
        self.join();
    }

    /// New limits; part of the root item of the next commit.
    pub fn set_limits(&mut self, limits: Limits) {
        self.account.set_limits(limits);
        self.description.limits = limits;
        self.join();
    }
}
