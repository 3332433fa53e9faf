//! What all subvolumes of a store share: device, space, caches, data in flight, the ring's positions, the latch.
//!
//! Invariants: [`Store::running`] is the transaction that a clean subvolume joins with its next change; a subvolume is
//! in the dirty set of a transaction iff it changed in it; once failed, a store stays failed: nothing is written to
//! the device any more and every change is refused.

pub mod account;
pub mod data_write;
pub mod open;
pub mod superblock_slots;

use crate::device::{Device, DeviceError};
use crate::error::{Corruption, DataPointer, EngineResult, FsError};
use crate::format::root_item::RootItem;
use crate::format::superblock::Superblock;
use crate::fs::data_cache::DataCache;
use crate::fs::plan::PageBytes;
use crate::fs::read::verify_blocks;
use crate::limits::{BLOCK, NODE_BYTES};
use crate::log::ring::RingPositions;
use crate::space::SpaceManager;
use crate::tree::{Missing, Node, NodeCache};
use crate::types::{LogTransid, ServerEpoch, SubvolumeId, TenantId, TransactionId};
use account::Account;
use data_write::{DataSink, InFlight};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use thiserror::Error;

/// What never changes while a store is open.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Random identity of the store.
    pub device_id: [u8; 16],
    /// This start of a server.
    pub epoch: ServerEpoch,
    /// The start before.
    pub previous_epoch: ServerEpoch,
    /// The newest transaction that was durable when this epoch began.
    pub recovered_generation: TransactionId,
    /// First byte of the log ring.
    pub ring_offset: u64,
}

/// Sizes of the caches, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct CacheSizes {
    /// Clean tree nodes.
    pub nodes: u64,
    /// Clean file data.
    pub data: u64,
}

impl Default for CacheSizes {
    fn default() -> Self {
        Self { nodes: 256 << 20, data: 512 << 20 }
    }
}

/// A store cannot be opened, or failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No usable superblock.
    #[error("{0}")]
    Superblock(#[from] crate::format::superblock::SuperblockError),
    /// The bitmaps are damaged.
    #[error(transparent)]
    Space(#[from] crate::space::SpaceError),
    /// A layout that cannot be.
    #[error(transparent)]
    Geometry(#[from] crate::space::GeometryError),
    /// A damaged block.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The log cannot be replayed.
    #[error("{0}")]
    Replay(String),
    /// The store failed before and accepts no change.
    #[error("the store failed and is read-only: {0}; restart the server after the device works again")]
    Failed(String),
}

/// See the module.
pub struct Store {
    device: Arc<dyn Device>,
    identity: Identity,
    space: SpaceManager,
    nodes: NodeCache,
    data: DataCache,
    in_flight: InFlight,
    ring: Arc<RingPositions>,
    running: Mutex<Running>,
    running_transid: AtomicU64,
    durable: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
    roots: RwLock<FxHashMap<SubvolumeId, RootItem>>,
    tenants: RwLock<FxHashMap<TenantId, Arc<Account>>>,
    next_ids: Mutex<NextIds>,
    /// Where the logs of subvolumes that were closed in this epoch go on: a ticket names one moment only.
    log_transids: Mutex<FxHashMap<SubvolumeId, LogTransid>>,
    /// Counters for the status.
    pub counters: Counters,
}

#[derive(Debug, Default)]
struct Running {
    transid: TransactionId,
    dirty: BTreeSet<SubvolumeId>,
}

/// Next numbers to give out; never reused.
#[derive(Clone, Copy, Debug)]
pub struct NextIds {
    /// Next subvolume.
    pub subvolume: SubvolumeId,
    /// Next tenant.
    pub tenant: TenantId,
}

/// Numbers that only ever grow.
#[derive(Debug, Default)]
pub struct Counters {
    /// Tree nodes read from the device.
    pub nodes_read: AtomicU64,
    /// Data extents read from the device.
    pub extents_read: AtomicU64,
    /// Blocks that failed their check.
    pub corruptions: AtomicU64,
}

/// Everything [`Store::new`] needs.
pub struct Parts {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The superblock as it is now on the device.
    pub superblock: Superblock,
    /// The newest transaction that was durable before this server started.
    pub recovered_generation: TransactionId,
    /// The space map.
    pub space: SpaceManager,
    /// Subvolumes.
    pub roots: FxHashMap<SubvolumeId, RootItem>,
    /// Tenants' accounts.
    pub tenants: FxHashMap<TenantId, Arc<Account>>,
    /// Cache sizes.
    pub caches: CacheSizes,
}

impl Store {
    /// A store in this state; its ring is empty at the superblock's tail.
    pub fn new(parts: Parts) -> Self {
        let superblock = &parts.superblock;
        let running = superblock.generation + 1;
        Self {
            device: parts.device,
            identity: Identity {
                device_id: superblock.device_id,
                epoch: superblock.server_epoch,
                previous_epoch: superblock.previous_epoch,
                recovered_generation: parts.recovered_generation,
                ring_offset: superblock.ring_offset,
            },
            space: parts.space,
            nodes: NodeCache::new(parts.caches.nodes),
            data: DataCache::new(parts.caches.data),
            in_flight: InFlight::default(),
            ring: Arc::new(RingPositions::new(superblock.ring_bytes, superblock.log_tail)),
            running: Mutex::new(Running { transid: running, dirty: BTreeSet::new() }),
            running_transid: AtomicU64::new(running),
            durable: AtomicU64::new(superblock.generation),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            roots: RwLock::new(parts.roots),
            tenants: RwLock::new(parts.tenants),
            next_ids: Mutex::new(NextIds {
                subvolume: superblock.next_subvolume_id,
                tenant: superblock.next_tenant_id,
            }),
            log_transids: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// The first generation for a subvolume's log that is opened now.
    pub fn first_log_transid(&self, subvolume: SubvolumeId) -> LogTransid {
        self.log_transids.lock().get(&subvolume).copied().unwrap_or(1)
    }

    pub(crate) fn close_log(&self, subvolume: SubvolumeId, next: LogTransid) {
        self.log_transids.lock().insert(subvolume, next);
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// What never changes.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The space map.
    pub fn space(&self) -> &SpaceManager {
        &self.space
    }

    /// Clean nodes.
    pub fn nodes(&self) -> &NodeCache {
        &self.nodes
    }

    /// Clean data.
    pub fn data(&self) -> &DataCache {
        &self.data
    }

    /// Data on its way.
    pub fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Where extents go.
    pub fn data_sink(&self) -> DataSink<'_> {
        DataSink { device: self.device(), in_flight: &self.in_flight, cache: &self.data }
    }

    /// Positions in the log ring.
    pub fn ring(&self) -> &Arc<RingPositions> {
        &self.ring
    }

    /// The running transaction.
    pub fn running(&self) -> TransactionId {
        self.running_transid.load(Ordering::Acquire)
    }

    /// The newest durable transaction.
    pub fn durable(&self) -> TransactionId {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn set_durable(&self, transid: TransactionId) {
        self.durable.store(transid, Ordering::Release);
    }

    /// A subvolume that was clean starts to change; returns the transaction it is now dirty in.
    pub fn join(&self, subvolume: SubvolumeId) -> TransactionId {
        let mut running = self.running.lock();
        running.dirty.insert(subvolume);
        running.transid
    }

    /// Is anything dirty in the running transaction?
    pub fn is_dirty(&self) -> bool {
        !self.running.lock().dirty.is_empty()
    }

    /// Ends the running transaction for newcomers: whoever is clean joins the next one from here on. Returns its number
    /// and the subvolumes that must be frozen for it.
    pub fn switch_transaction(&self) -> (TransactionId, BTreeSet<SubvolumeId>) {
        let mut running = self.running.lock();
        let ended = running.transid;
        assert!(ended == self.durable() + 1, "one commit at a time: {ended} after {}", self.durable());
        running.transid += 1;
        self.running_transid.store(running.transid, Ordering::Release);
        (ended, std::mem::take(&mut running.dirty))
    }

    /// Latches the store: no change is accepted and nothing is written from now on.
    pub fn fail(&self, reason: &dyn std::fmt::Display) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            tracing::error!(%reason, "the store failed and is read-only from now on");
            *failure = Some(reason.to_string());
        }
        self.failed.store(true, Ordering::Release);
    }

    /// Why the store failed, if it did.
    pub fn failure(&self) -> Option<String> {
        if self.failed.load(Ordering::Acquire) { self.failure.lock().clone() } else { None }
    }

    /// Refuses when the store failed.
    pub fn check_writable(&self) -> EngineResult<()> {
        if self.failed.load(Ordering::Acquire) { Err(FsError::Io.into()) } else { Ok(()) }
    }

    /// Reads a tree node and puts it into the cache.
    pub fn read_node(&self, missing: &Missing) -> Result<Arc<Node>, StoreError> {
        let pointer = missing.pointer;
        let mut bytes = crate::device::AlignedBuffer::zeroed(NODE_BYTES);
        self.counters.nodes_read.fetch_add(1, Ordering::Relaxed);
        self.device.read(pointer.address, &mut bytes)?;
        let node = Node::decode(&bytes, &pointer, missing.owner).map_err(|error| {
            self.counters.corruptions.fetch_add(1, Ordering::Relaxed);
            Corruption {
                address: pointer.address,
                what: format!("tree node of level {} of tree {}", pointer.level, missing.owner),
                reason: error.to_string(),
            }
        })?;
        let node = Arc::new(node);
        self.nodes.insert(&node);
        Ok(node)
    }

    /// Reads an extent, checks it and puts it into the cache.
    pub fn read_data(&self, pointer: &DataPointer) -> Result<Vec<PageBytes>, StoreError> {
        let mut bytes = crate::device::AlignedBuffer::zeroed(pointer.length as usize);
        self.counters.extents_read.fetch_add(1, Ordering::Relaxed);
        self.device.read(pointer.address, &mut bytes)?;
        if let Err(corruption) = verify_blocks(pointer, &bytes) {
            self.counters.corruptions.fetch_add(1, Ordering::Relaxed);
            return Err(corruption.into());
        }
        let mut pages = Vec::with_capacity(bytes.len() / BLOCK);
        for (index, block) in bytes.chunks_exact(BLOCK).enumerate() {
            let page: [u8; BLOCK] = block.try_into().expect("chunks of this size");
            let page = PageBytes::new(page);
            let address = pointer.address + (index * BLOCK) as u64;
            self.data.insert(address, pointer.generation, Arc::clone(&page));
            pages.push(page);
        }
        Ok(pages)
    }

    /// What the root tree says of a subvolume.
    pub fn root(&self, subvolume: SubvolumeId) -> Option<RootItem> {
        self.roots.read().get(&subvolume).cloned()
    }

    /// All subvolumes and what the root tree says of them, in order of their numbers.
    pub fn roots(&self) -> Vec<(SubvolumeId, RootItem)> {
        let mut roots: Vec<_> = self.roots.read().iter().map(|(&id, root)| (id, root.clone())).collect();
        roots.sort_unstable_by_key(|(id, _)| *id);
        roots
    }

    /// Runs `change` on the table of subvolumes (the committer: what became durable; a creator: a new name).
    pub fn with_roots<R>(&self, change: impl FnOnce(&mut FxHashMap<SubvolumeId, RootItem>) -> R) -> R {
        change(&mut self.roots.write())
    }

    /// The account of a tenant; made on first use.
    pub fn tenant_account(&self, tenant: TenantId) -> Arc<Account> {
        if let Some(account) = self.tenants.read().get(&tenant) {
            return Arc::clone(account);
        }
        let mut tenants = self.tenants.write();
        let account = tenants
            .entry(tenant)
            .or_insert_with(|| Arc::new(Account::new(Default::default(), Default::default())));
        Arc::clone(account)
    }

    /// A number for a new subvolume.
    pub fn take_subvolume_id(&self) -> SubvolumeId {
        let mut next = self.next_ids.lock();
        next.subvolume += 1;
        next.subvolume - 1
    }

    /// A number for a new tenant.
    pub fn take_tenant_id(&self) -> TenantId {
        let mut next = self.next_ids.lock();
        next.tenant += 1;
        next.tenant - 1
    }

    /// The next numbers, for the superblock.
    pub fn next_ids(&self) -> NextIds {
        *self.next_ids.lock()
    }
}
