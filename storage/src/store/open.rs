//! Formatting a device and opening a store: superblock, space map, roots, replay.

use super::account::Account;
use super::superblock_slots::{clear_superblocks, read_superblock, write_superblock};
use super::{CacheSizes, Parts, Store, StoreError};
use crate::device::{AlignedBuffer, Device};
use crate::format::superblock::{LogTail, Superblock};
use crate::limits::{FIRST_SUBVOLUME_ID, REPLAY_COMMIT_BYTES};
use crate::log::replay::{Replayed, replay};
use crate::space::{Geometry, SpaceManager};
use crate::transaction::commit::{Committer, list_roots};
use crate::tree::{Node, NodeCache};
use crate::types::{SubvolumeId, TenantId, Usage};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of the ring that are zeroed with one write.
const ZERO_CHUNK_BYTES: usize = 1 << 20;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Sizes of the caches.
    pub caches: CacheSizes,
    /// Subvolumes whose log is to be thrown away instead of replayed.
    pub discard_logs: BTreeSet<SubvolumeId>,
    /// Go back to an older superblock when the other one is damaged.
    pub accept_older_superblock: bool,
    /// Replayed log that makes a commit on the way due, in bytes.
    pub replay_commit_bytes: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            caches: CacheSizes::default(),
            discard_logs: BTreeSet::new(),
            accept_older_superblock: false,
            replay_commit_bytes: REPLAY_COMMIT_BYTES,
        }
    }
}

/// An open store: what is shared, the committer, what replay found, and the tenants' names.
pub struct OpenStore {
    /// What all subvolumes share.
    pub store: Arc<Store>,
    /// The committer.
    pub committer: Committer,
    /// Replay's result.
    pub replayed: Replayed,
    /// Tenants as the device knows them.
    pub tenants: Vec<(TenantId, crate::format::root_item::TenantItem)>,
}

/// Writes an empty store over the device. `device_id` is random. The ring is written with zeros once: a host file
/// system would otherwise journal every first write to it.
pub fn format(device: &dyn Device, device_id: [u8; 16], ring_bytes: u64) -> Result<(), StoreError> {
    let geometry = Geometry::new(device.size(), ring_bytes)?;
    clear_superblocks(device)?;
    let zeros = AlignedBuffer::zeroed(ZERO_CHUNK_BYTES);
    let ring = geometry.ring();
    let mut at = ring.start;
    while at < ring.end {
        let length = (ring.end - at).min(ZERO_CHUNK_BYTES as u64);
        device.write(at, &zeros[..length as usize])?;
        at += length;
    }
    SpaceManager::format(device, geometry, device_id)?;
    device.flush()?;
    let superblock = Superblock {
        device_id,
        generation: 1,
        server_epoch: 0,
        device_bytes: device.size(),
        ring_offset: ring.start,
        ring_bytes,
        root_tree: None,
        references_tree: None,
        log_tail: LogTail { sequence: 1, offset: 0, chain: 0 },
        next_subvolume_id: FIRST_SUBVOLUME_ID,
        next_tenant_id: 1,
        previous_epoch: 0,
        previous_epoch_generation: 0,
        recovered_epoch: 0,
        features: 0,
    };
    write_superblock(device, &superblock)
}

/// Opens a store: begins a new epoch, replays the log and commits.
pub fn open(device: Arc<dyn Device>, options: &OpenOptions) -> Result<OpenStore, StoreError> {
    let found = read_superblock(&*device, options.accept_older_superblock)?;
    if device.size() < found.device_bytes {
        return Err(StoreError::Failed(format!(
            "the store was made for {} bytes but the device has only {}; was the file cut?",
            found.device_bytes,
            device.size()
        )));
    }
    let geometry = Geometry::new(found.device_bytes, found.ring_bytes)?;
    let space = SpaceManager::load(&*device, geometry, found.device_id, found.generation)?;
    let superblock = next_epoch(&found);
    write_superblock(&*device, &superblock)?;

    let reader = Arc::clone(&device);
    let listing = list_roots(
        &superblock,
        |missing| {
            let mut bytes = AlignedBuffer::zeroed(crate::limits::NODE_BYTES);
            reader.read(missing.pointer.address, &mut bytes)?;
            let node = Node::decode(&bytes, &missing.pointer, missing.owner).map_err(|error| {
                crate::error::Corruption {
                    address: missing.pointer.address,
                    what: "node of the root tree".to_owned(),
                    reason: error.to_string(),
                }
            })?;
            Ok(Arc::new(node))
        },
        &NodeCache::new(16 << 20),
    )?;
    let mut usage: FxHashMap<TenantId, Usage> = FxHashMap::default();
    for (_, root) in &listing.subvolumes {
        let used = usage.entry(root.tenant).or_default();
        used.bytes += root.usage.bytes;
        used.inodes += root.usage.inodes;
    }
    let mut tenants: FxHashMap<TenantId, Arc<Account>> = FxHashMap::default();
    for (id, tenant) in &listing.tenants {
        let used = usage.remove(id).unwrap_or_default();
        tenants.insert(*id, Arc::new(Account::new(used, tenant.limits)));
    }
    for (id, used) in usage {
        tenants.insert(id, Arc::new(Account::new(used, Default::default())));
    }
    let store = Arc::new(Store::new(Parts {
        device,
        recovered_generation: superblock.previous_epoch_generation,
        superblock,
        space,
        roots: listing.subvolumes.into_iter().collect(),
        tenants,
        caches: options.caches,
    }));
    let mut committer = Committer::new(Arc::clone(&store), superblock);
    let replayed = replay(&store, &mut committer, &options.discard_logs, options.replay_commit_bytes)?;
    Ok(OpenStore { store, committer, replayed, tenants: listing.tenants })
}

/// The superblock of a new start. An epoch whose replay did not finish served nobody: the one before it stays the one
/// whose tickets clients may still hold.
fn next_epoch(found: &Superblock) -> Superblock {
    let served = found.recovered_epoch == found.server_epoch;
    Superblock {
        server_epoch: found.server_epoch + 1,
        previous_epoch: if served { found.server_epoch } else { found.previous_epoch },
        previous_epoch_generation: if served { found.generation } else { found.previous_epoch_generation },
        ..*found
    }
}
