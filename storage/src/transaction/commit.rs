//! Writing a commit: from the frozen subvolumes to a durable superblock.
//!
//! # Order on the device, and why
//! 1. data extents, tree nodes, root tree, references tree: to blocks that no durable state refers to;
//! 2. bitmaps, into the slot of each group that does not count yet;
//! 3. flush: from here on everything that superblock N names is on the device;
//! 4. superblock N, into the older slot, durable;
//! 5. only now are the blocks freed in N reusable (unpin), and only now may the log's tail move.
//!
//! A crash before 4 returns leaves N - 1 (or N, if the superblock made it) whole, with all log records since: the tail of
//! N - 1's superblock still names them. A failure at any step latches the store: the superblock may be durable or not,
//! and only a restart can tell.

use super::metrics::CommitSample;
use super::nodes::NodeWrites;
use crate::error::Corruption;
use crate::format::key::{ItemKind, Key};
use crate::format::root_item::{RootItem, TenantItem};
use crate::format::superblock::{LogTail, Superblock, assert_monotonic};
use crate::limits::{NODE_BYTES, REFERENCES_TREE_OWNER, ROOT_TREE_OWNER, TENANT_DIRECTORY};
use crate::space::{Run, RunList};
use crate::store::data_write::DataWrite;
use crate::store::superblock_slots::write_superblock;
use crate::store::{Store, StoreError};
use crate::subvolume::Frozen;
use crate::tree::{ItemValue, Mutation, Superseded, Tree};
use crate::types::{SubvolumeId, TenantId};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A change of the root tree besides the frozen subvolumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootChange {
    /// A tenant is new or has other limits.
    PutTenant(TenantId, TenantItem),
    /// A tenant is gone.
    RemoveTenant(TenantId),
    /// A subvolume is gone: its tree is empty or was never written.
    RemoveSubvolume(SubvolumeId),
}

/// What a commit consists of.
pub struct CommitInput {
    /// Frozen subvolumes, all of this transaction.
    pub frozen: Vec<Frozen>,
    /// Other changes.
    pub changes: Vec<RootChange>,
    /// The ring's head before the first freeze: every batch before it is covered.
    pub log_tail: LogTail,
}

/// The committer's own state. One per store.
pub struct Committer {
    store: Arc<Store>,
    root_tree: Tree,
    references: Option<Tree>,
    superblock: Superblock,
    recovered_epoch: u64,
}

/// A durable superblock whose freed blocks are not unpinned yet. Must be finished.
#[must_use = "blocks stay pinned until the commit is finished"]
pub struct SuperDurable {
    sample: CommitSample,
}

impl Committer {
    /// The committer of a store whose newest superblock this is.
    pub fn new(store: Arc<Store>, superblock: Superblock) -> Self {
        let root_tree = match superblock.root_tree {
            Some(pointer) => Tree::open(ROOT_TREE_OWNER, pointer),
            None => Tree::empty(ROOT_TREE_OWNER, superblock.generation + 1),
        };
        let references = superblock.references_tree.map(|pointer| Tree::open(REFERENCES_TREE_OWNER, pointer));
        let recovered_epoch = superblock.recovered_epoch;
        Self { store, root_tree, references, superblock, recovered_epoch }
    }

    /// The newest superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Replay is complete: the next superblock says that this epoch may serve clients.
    pub fn mark_recovered(&mut self) {
        self.recovered_epoch = self.superblock.server_epoch;
    }

    /// Steps 1 to 4. On an error the store is latched.
    pub fn write(&mut self, input: CommitInput) -> Result<SuperDurable, StoreError> {
        if let Some(reason) = self.store.failure() {
            return Err(StoreError::Failed(reason));
        }
        let result = self.write_all(input);
        if let Err(error) = &result {
            self.store.fail(error);
        }
        result
    }

    /// Step 5. The caller measures how long it takes.
    pub fn finish(&mut self, durable: SuperDurable) -> CommitSample {
        let mut sample = durable.sample;
        let unpinned = self.store.space().finish_commit(sample.transid);
        self.store.set_durable(sample.transid);
        self.store.ring().move_tail(self.superblock.log_tail);
        sample.unpinned_ranges = unpinned.ranges as u64;
        sample.unpinned_blocks = unpinned.blocks;
        sample
    }

    fn write_all(&mut self, input: CommitInput) -> Result<SuperDurable, StoreError> {
        let transid = self.superblock.generation + 1;
        let store = Arc::clone(&self.store);
        let mut sample =
            CommitSample { transid, subvolumes: input.frozen.len() as u64, ..CommitSample::default() };
        let mut allocated = RunList::new();
        let mut freed = RunList::new();
        let mut nodes = NodeWrites::default();
        let mut mutations = Vec::new();
        let mut writes: Vec<Arc<DataWrite>> = Vec::new();
        let mut roots: Vec<(SubvolumeId, RootItem)> = Vec::new();
        for mut frozen in input.frozen {
            assert_eq!(frozen.transid, transid, "subvolume {} froze for another commit", frozen.subvolume);
            nodes.add(&store, &frozen.tree, &mut allocated)?;
            store.space().unreserve(frozen.reserved_blocks);
            store.space().note_nodes(frozen.reserved_blocks, 0);
            frozen.root.root = Some(frozen.tree.root_pointer());
            mutations.push(put_root(frozen.subvolume, &frozen.root));
            allocated.append(&mut frozen.allocated);
            freed.append(&mut frozen.released);
            free_nodes(frozen.superseded, &mut freed);
            writes.append(&mut frozen.writes);
            roots.push((frozen.subvolume, frozen.root));
        }
        for change in &input.changes {
            self.add_change(change, &mut mutations, &mut freed)?;
        }
        let mut superseded = Superseded::new(0);
        self.apply_to_root_tree(transid, &mutations, &mut superseded)?;
        let frozen_root = self.root_tree.freeze();
        nodes.add(&store, &frozen_root, &mut allocated)?;
        free_nodes(superseded, &mut freed);

        sample.data_bytes = DataWrite::write_all(&writes, &store.data_sink())?;
        nodes.write(&store)?;
        sample.nodes = nodes.count();
        let bitmaps = store.space().begin_commit(transid, allocated, freed)?;
        store.device().write_many(&bitmaps.requests())?;
        store.device().flush()?;

        let ids = store.next_ids();
        let superblock = Superblock {
            generation: transid,
            root_tree: Some(frozen_root.root_pointer()),
            references_tree: self.references.as_mut().map(|tree| tree.freeze().root_pointer()),
            log_tail: input.log_tail,
            next_subvolume_id: ids.subvolume,
            next_tenant_id: ids.tenant,
            recovered_epoch: self.recovered_epoch,
            ..self.superblock
        };
        assert_monotonic(&self.superblock, &superblock);
        write_superblock(store.device(), &superblock)?;
        self.superblock = superblock;

        nodes.cache(&store);
        self.root_tree.release_written();
        store.with_roots(|table| {
            table.extend(roots);
            for change in &input.changes {
                if let RootChange::RemoveSubvolume(id) = change {
                    table.remove(id);
                }
            }
        });
        Ok(SuperDurable { sample })
    }

    fn add_change(
        &self,
        change: &RootChange,
        mutations: &mut Vec<Mutation>,
        freed: &mut RunList,
    ) -> Result<(), StoreError> {
        match change {
            RootChange::PutTenant(id, tenant) => {
                let value = ItemValue::from_slice(&tenant.to_bytes());
                mutations.push(Mutation::put(tenant_key(*id), value));
            }
            RootChange::RemoveTenant(id) => {
                if self.root_item(&tenant_key(*id))?.is_some() {
                    mutations.push(Mutation::delete(tenant_key(*id)));
                }
            }
            RootChange::RemoveSubvolume(id) => {
                let key = root_key(*id);
                // A subvolume may be frozen in the same commit that removes it.
                let frozen = mutations.iter().position(|mutation| mutation.key == key);
                let item = match frozen {
                    Some(index) => match mutations.remove(index).change {
                        crate::tree::Change::Put(value) => Some(value),
                        crate::tree::Change::Delete => None,
                    },
                    None => self.root_item(&key)?,
                };
                if let Some(root) =
                    item.map(|value| RootItem::parse(&key, &value)).transpose()?.and_then(|item| item.root)
                {
                    assert_eq!(root.level, 0, "subvolume {id} is removed although its tree is not empty");
                    freed.push(Run::of_bytes(root.address, NODE_BYTES as u64));
                }
                if self.root_item(&key)?.is_some() {
                    mutations.push(Mutation::delete(key));
                }
            }
        }
        Ok(())
    }

    fn root_item(&self, key: &Key) -> Result<Option<ItemValue>, StoreError> {
        loop {
            match self.root_tree.get(self.store.nodes(), key) {
                Ok(value) => return Ok(value),
                Err(missing) => drop(self.store.read_node(&missing)?),
            }
        }
    }

    fn apply_to_root_tree(
        &mut self,
        transid: u64,
        mutations: &[Mutation],
        superseded: &mut Superseded,
    ) -> Result<(), StoreError> {
        let mut gathered = crate::tree::Gathered::new(self.store.nodes());
        let prepared = loop {
            match self.root_tree.prepare(&gathered, mutations) {
                Ok(prepared) => break prepared,
                Err(missing) => gathered.insert(&self.store.read_node(&missing)?),
            }
        };
        self.root_tree.apply(&prepared, transid, mutations, superseded);
        Ok(())
    }
}

fn free_nodes(superseded: Superseded, freed: &mut RunList) {
    for node in superseded.resolve() {
        freed.push(Run::of_bytes(node.pointer.address, NODE_BYTES as u64));
    }
}

fn put_root(subvolume: SubvolumeId, root: &RootItem) -> Mutation {
    Mutation::put(root_key(subvolume), ItemValue::from_slice(&root.to_bytes()))
}

/// Key of a subvolume's item in the root tree.
pub fn root_key(subvolume: SubvolumeId) -> Key {
    Key::new(subvolume, ItemKind::Root, 0)
}

/// Key of a tenant's item in the root tree.
pub fn tenant_key(tenant: TenantId) -> Key {
    Key::new(TENANT_DIRECTORY, ItemKind::Tenant, tenant)
}

/// Subvolumes and tenants as a root tree lists them.
#[derive(Debug, Default)]
pub struct RootListing {
    /// Subvolumes.
    pub subvolumes: Vec<(SubvolumeId, RootItem)>,
    /// Tenants.
    pub tenants: Vec<(TenantId, TenantItem)>,
}

/// Reads the whole root tree of a superblock.
pub fn list_roots(
    superblock: &Superblock,
    mut fetch: impl FnMut(&crate::tree::Missing) -> Result<Arc<crate::tree::Node>, StoreError>,
    cache: &crate::tree::NodeCache,
) -> Result<RootListing, StoreError> {
    let Some(pointer) = superblock.root_tree else { return Ok(RootListing::default()) };
    let tree = Tree::open(ROOT_TREE_OWNER, pointer);
    let mut gathered = crate::tree::Gathered::new(cache);
    loop {
        let mut listing = RootListing::default();
        let mut broken: Option<Corruption> = None;
        let scanned = tree.scan(&gathered, &Key::FIRST, &Key::LAST, |key, bytes| {
            let parsed = match key.kind {
                ItemKind::Root => {
                    RootItem::parse(key, bytes).map(|root| listing.subvolumes.push((key.inode, root)))
                }
                ItemKind::Tenant => {
                    TenantItem::parse(key, bytes).map(|tenant| listing.tenants.push((key.offset, tenant)))
                }
                _ => Err(crate::format::item::damaged(key, "unexpected item in the root tree")),
            };
            match parsed {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    broken = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        match (scanned, broken) {
            (_, Some(error)) => return Err(error.into()),
            (Ok(()), None) => return Ok(listing),
            (Err(missing), None) => gathered.insert(&fetch(&missing)?),
        }
    }
}
