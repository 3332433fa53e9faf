//! Which subvolumes are in memory, where they live, and who holds them there.
//!
//! Invariants: a subvolume has at most one actor; a dirty subvolume is in memory (so a commit always finds it); attaching
//! and unloading decide under one lock, so nobody attaches to an actor that is about to end; a volume that is being
//! removed cannot be attached to.

use crate::metrics::VolumeGauge;
use crate::runtime::{Arbiter, Mailbox};
use crate::server::Shared;
use crate::subvolume::{SubvolumeRoot, Unload};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use subvol_storage::format::root_item::root_flags;
use subvol_storage::log::generation::LogProgress;
use subvol_storage::store::account::Account;
use subvol_storage::subvolume::{RootDescription, Subvolume};
use subvol_storage::types::SubvolumeId;

/// See the module.
#[derive(Default)]
pub struct Registry {
    live: Mutex<FxHashMap<SubvolumeId, Arc<Volume>>>,
    /// Opened by replay: they know results of operations and what survived, so they are kept until somebody attaches.
    replayed: Mutex<FxHashMap<SubvolumeId, Subvolume>>,
}

/// A subvolume in memory, seen from outside of its actor.
pub struct Volume {
    /// Its number.
    pub id: SubvolumeId,
    /// Its actor.
    pub mailbox: Mailbox<SubvolumeRoot>,
    /// Where the actor lives; connections to it move there.
    pub arbiter: Arbiter,
    /// What is durable.
    pub progress: Arc<LogProgress>,
    /// Usage and limits.
    pub account: Arc<Account>,
    /// Its numbers.
    pub gauge: Arc<VolumeGauge>,
    removing: AtomicBool,
    /// Milliseconds of uptime when the last connection left.
    idle_since: AtomicU64,
}

/// Why a volume cannot be attached to or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// There is none of this number (any more).
    Unknown,
    /// Somebody is attached.
    InUse,
}

/// Keeps a volume in memory while a connection is attached to it.
pub struct Attachment {
    volume: Arc<Volume>,
    shared: Arc<Shared>,
}

impl Attachment {
    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.volume.idle_since.store(self.shared.uptime_milliseconds(), Ordering::Relaxed);
        self.volume.gauge.attached.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Registry {
    /// With what replay opened.
    pub fn new(replayed: Vec<Subvolume>) -> Self {
        let replayed = replayed.into_iter().map(|subvolume| (subvolume.id(), subvolume)).collect();
        Self { live: Mutex::default(), replayed: Mutex::new(replayed) }
    }

    /// The volume, if it is in memory.
    pub fn find(&self, id: SubvolumeId) -> Option<Arc<Volume>> {
        self.live.lock().get(&id).cloned()
    }

    /// All volumes in memory.
    pub fn all(&self) -> Vec<Arc<Volume>> {
        self.live.lock().values().cloned().collect()
    }

    /// Volumes in memory.
    pub fn count(&self) -> usize {
        self.live.lock().len()
    }

    /// Brings a volume into memory for a connection. Nothing is read from the device.
    pub fn attach(&self, shared: &Arc<Shared>, id: SubvolumeId) -> Result<Attachment, Unavailable> {
        let mut live = self.live.lock();
        let volume = match live.get(&id) {
            Some(volume) if volume.removing.load(Ordering::Acquire) => return Err(Unavailable::Unknown),
            Some(volume) => Arc::clone(volume),
            None => {
                let root = shared.store.root(id).ok_or(Unavailable::Unknown)?;
                if root.flags & root_flags::DYING != 0 {
                    return Err(Unavailable::Unknown);
                }
                let subvolume = self
                    .replayed
                    .lock()
                    .remove(&id)
                    .unwrap_or_else(|| Subvolume::open(Arc::clone(&shared.store), id, &root));
                insert(&mut live, shared, subvolume)
            }
        };
        volume.gauge.attached.fetch_add(1, Ordering::AcqRel);
        Ok(Attachment { volume, shared: Arc::clone(shared) })
    }

    /// A new volume; the caller commits before it tells anybody. It is in the running transaction when this returns, and
    /// the lock makes a commit that wants to freeze it wait until it can be found.
    pub fn create(&self, shared: &Arc<Shared>, id: SubvolumeId, description: RootDescription) -> Arc<Volume> {
        let mut live = self.live.lock();
        let subvolume = Subvolume::create(Arc::clone(&shared.store), id, description);
        insert(&mut live, shared, subvolume)
    }

    /// The volume in memory, without a connection: for limits, removal and the like.
    pub fn load(&self, shared: &Arc<Shared>, id: SubvolumeId) -> Option<Arc<Volume>> {
        let mut live = self.live.lock();
        if let Some(volume) = live.get(&id) {
            return Some(Arc::clone(volume));
        }
        let root = shared.store.root(id)?;
        let replayed = self.replayed.lock().remove(&id);
        let subvolume = replayed.unwrap_or_else(|| Subvolume::open(Arc::clone(&shared.store), id, &root));
        Some(insert(&mut live, shared, subvolume))
    }

    /// Nobody can attach to it from now on, if nobody is attached.
    pub fn begin_removal(&self, shared: &Arc<Shared>, id: SubvolumeId) -> Result<Arc<Volume>, Unavailable> {
        let volume = self.load(shared, id).ok_or(Unavailable::Unknown)?;
        let _live = self.live.lock();
        if volume.gauge.attached.load(Ordering::Acquire) > 0 {
            return Err(Unavailable::InUse);
        }
        if volume.removing.swap(true, Ordering::AcqRel) {
            return Err(Unavailable::Unknown);
        }
        Ok(volume)
    }

    /// The actor of a clean volume wants to end: allowed if nobody is attached. It must end then.
    pub fn unload(&self, id: SubvolumeId) -> bool {
        let mut live = self.live.lock();
        let idle = live.get(&id).is_some_and(|volume| volume.gauge.attached.load(Ordering::Acquire) == 0);
        if idle {
            live.remove(&id);
        }
        idle
    }

    /// Asks volumes that nobody used for `after` to leave memory.
    pub fn sweep(&self, now_milliseconds: u64, after: Duration) {
        let after = after.as_millis() as u64;
        for volume in self.live.lock().values() {
            let idle_since = volume.idle_since.load(Ordering::Relaxed);
            let idle = volume.gauge.attached.load(Ordering::Acquire) == 0
                && !volume.removing.load(Ordering::Acquire)
                && now_milliseconds.saturating_sub(idle_since) >= after;
            if idle {
                volume.mailbox.send(Unload);
            }
        }
    }
}

fn insert(
    live: &mut FxHashMap<SubvolumeId, Arc<Volume>>,
    shared: &Arc<Shared>,
    subvolume: Subvolume,
) -> Arc<Volume> {
    let id = subvolume.id();
    let arbiter = shared.arbiter_of(id).clone();
    let progress = Arc::clone(subvolume.progress());
    let account = Arc::clone(subvolume.account());
    let gauge = Arc::new(VolumeGauge::default());
    let removing = subvolume.description().flags & root_flags::DYING != 0;
    let mailbox = SubvolumeRoot::start(Arc::clone(shared), &arbiter, subvolume, Arc::clone(&gauge));
    let volume = Arc::new(Volume {
        id,
        mailbox,
        arbiter,
        progress,
        account,
        gauge,
        removing: AtomicBool::new(removing),
        idle_since: AtomicU64::new(shared.uptime_milliseconds()),
    });
    live.insert(id, Arc::clone(&volume));
    volume
}
