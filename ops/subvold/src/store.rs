//! The store's file or device: made if it is missing, refused if it holds something else, locked for this process.

use crate::arguments::Settings;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use subvol_storage::device::{AlignedBuffer, Contents, Device, FileDevice, FileOptions, detect};
use subvol_storage::limits::{BLOCK_BYTES, NODE_BYTES};
use subvol_storage::store::StoreError;
use subvol_storage::store::open::format;
use subvol_storage::store::superblock_slots::read_superblock;
use subvol_storage::transaction::commit::list_roots;
use subvol_storage::tree::{Node, NodeCache};
use subvol_storage::types::SubvolumeId;

/// Size of the log ring of a new store, and its share of a small one.
const RING_BYTES: u64 = 256 << 20;
const RING_BYTES_MIN: u64 = 1 << 20;
const RING_SHARE: u64 = 16;
/// A smaller store has no room for anything beside its own structures.
const STORE_BYTES_MIN: u64 = 32 << 20;

/// A store that can be served.
pub struct Prepared {
    /// Its device.
    pub device: Arc<dyn Device>,
    /// Volumes whose log is to be thrown away.
    pub discard_logs: BTreeSet<SubvolumeId>,
}

/// Opens the store, formatting what is missing or empty.
pub fn prepare(settings: &Settings) -> Result<Prepared> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&settings.data)
        .with_context(|| format!("the folder {} cannot be made", settings.data.display()))?;
    let path = &settings.store;
    let device: Arc<dyn Device> = match detect(path)? {
        Contents::Missing => {
            let size = settings.size / BLOCK_BYTES * BLOCK_BYTES;
            check_size(path, size)?;
            let device = FileDevice::create(path, size, FileOptions::default())?;
            make(path, &device)?;
            Arc::new(device)
        }
        Contents::Empty { .. } => {
            let device = open(path)?;
            check_size(path, device.size())?;
            make(path, &device)?;
            Arc::new(device)
        }
        Contents::Occupied { first_used, .. } => {
            let device = open(path)?;
            check_store(settings, &device, first_used)?;
            Arc::new(device)
        }
    };
    let discard_logs = find_volumes(&*device, settings)?;
    Ok(Prepared { device, discard_logs })
}

fn open(path: &Path) -> Result<FileDevice> {
    FileDevice::open(path, FileOptions::default())
        .context("the store cannot be opened (does another subvold serve it?)")
}

fn check_size(path: &Path, size: u64) -> Result<()> {
    if size < STORE_BYTES_MIN {
        bail!("{} has {size} bytes; a store needs at least {STORE_BYTES_MIN}", path.display());
    }
    Ok(())
}

fn make(path: &Path, device: &FileDevice) -> Result<()> {
    let ring = (device.size() / RING_SHARE).clamp(RING_BYTES_MIN, RING_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
    println!("subvold: making a new store in {} ({} MiB)", path.display(), device.size() >> 20);
    format(device, random_identity()?, ring)
        .with_context(|| format!("{} cannot be made a store", path.display()))
}

fn random_identity() -> Result<[u8; 16]> {
    let mut identity = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut identity))
        .context("no random numbers from /dev/urandom")?;
    Ok(identity)
}

fn check_store(settings: &Settings, device: &dyn Device, first_used: u64) -> Result<()> {
    let path = &settings.store;
    match read_superblock(device, settings.accept_older_superblock) {
        Ok(_) => Ok(()),
        Err(StoreError::Superblock(
            error @ subvol_storage::format::superblock::SuperblockError::NotAStore,
        )) => {
            bail!(
                "{} holds something else (its byte {first_used} is not zero): {error}. Nothing was changed. \
                 Choose another file, or clear its first MiB if what it holds may go",
                path.display()
            )
        }
        Err(error) => Err(error).with_context(|| format!("the store in {} cannot be served", path.display())),
    }
}

/// The numbers of the volumes that are named `VOLUME`, `TENANT/VOLUME` or by number.
fn find_volumes(device: &dyn Device, settings: &Settings) -> Result<BTreeSet<SubvolumeId>> {
    let names = &settings.discard_log;
    if names.is_empty() {
        return Ok(BTreeSet::new());
    }
    let superblock = read_superblock(device, settings.accept_older_superblock)?;
    let listing = list_roots(
        &superblock,
        |missing| {
            let mut bytes = AlignedBuffer::zeroed(NODE_BYTES);
            device.read(missing.pointer.address, &mut bytes)?;
            let node = Node::decode(&bytes, &missing.pointer, missing.owner).map_err(|error| {
                StoreError::Failed(format!("a node of the root tree is damaged: {error}"))
            })?;
            Ok(Arc::new(node))
        },
        &NodeCache::new(1 << 20),
    )?;
    let tenant_of =
        |id| listing.tenants.iter().find(|(tenant, _)| *tenant == id).map(|(_, item)| item.name.as_str());
    let mut found = BTreeSet::new();
    for name in names {
        let (tenant, volume) = match name.split_once('/') {
            Some((tenant, volume)) => (Some(tenant), volume),
            None => (None, name.as_str()),
        };
        let matches: Vec<SubvolumeId> = listing
            .subvolumes
            .iter()
            .filter(|(id, root)| {
                let named =
                    root.name == volume && tenant.is_none_or(|tenant| tenant_of(root.tenant) == Some(tenant));
                named || (tenant.is_none() && volume.parse() == Ok(*id))
            })
            .map(|(id, _)| *id)
            .collect();
        match matches.as_slice() {
            [] => bail!("--discard-log {name}: there is no such volume"),
            [one] => drop(found.insert(*one)),
            _ => bail!("--discard-log {name}: several tenants have one; write TENANT/{volume}"),
        }
    }
    Ok(found)
}
