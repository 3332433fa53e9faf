//! A server without threads, actors or clock: one store on a recording device, some subvolumes, the log ring and the
//! committer, driven by the model's operations. Everything that a real server does in the background is a call here,
//! so a test decides what happens between two operations and every run repeats exactly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use subvol_storage::device::{Device, MemoryDevice, RecordingDevice};
use subvol_storage::error::{EngineResult, FsError};
use subvol_storage::format::superblock::LogTail;
use subvol_storage::log::generation::ClosedGeneration;
use subvol_storage::log::replay::{ReplayReport, Retry, commit_all, with_fetches};
use subvol_storage::log::ring::{LogRing, RingError};
use subvol_storage::store::data_write::DataWrite;
use subvol_storage::store::open::{OpenOptions, OpenStore, format, open};
use subvol_storage::store::{CacheSizes, Store, StoreError};
use subvol_storage::subvolume::{Frozen, RootDescription, Subvolume, WritebackProgress};
use subvol_storage::transaction::commit::{CommitInput, Committer};
use subvol_storage::types::{InodeNumber, SubvolumeId, Timestamp};

/// Caches that keep nothing: every clean node and block is read from the device each time it is needed.
pub const NO_CACHES: CacheSizes = CacheSizes { nodes: 1, data: 1 };
/// Caches that keep everything of a small store.
pub const SMALL_CACHES: CacheSizes = CacheSizes { nodes: 4 << 20, data: 1 << 20 };

/// An operation was not done.
#[derive(Debug)]
pub enum Fault {
    /// Refused with an errno.
    Refused(FsError),
    /// The store has damage or failed.
    Broken(String),
}

/// A subvolume and the handles that a client holds.
pub struct Volume {
    pub engine: Subvolume,
    pub handles: BTreeMap<String, InodeNumber>,
}

/// See the module.
pub struct Machine {
    pub device: Arc<RecordingDevice>,
    pub store: Arc<Store>,
    pub committer: Committer,
    pub ring: LogRing,
    pub volumes: Vec<Volume>,
    pub report: ReplayReport,
    pub fsyncs: u64,
    pub commits: u64,
    /// A commit in flight; whoever needs another one finishes it first.
    pub frozen: Option<FrozenCommit>,
    /// A commit that newcomers do not join any more, and whose subvolumes are not frozen yet.
    switched: Option<(u64, LogTail)>,
}

/// A commit whose subvolumes are frozen and whose first byte is not written yet.
pub struct FrozenCommit {
    transid: u64,
    frozen: Vec<Frozen>,
    tail: LogTail,
}

/// A formatted device with `volumes` empty subvolumes of tenant 1.
pub fn formatted(bytes: u64, ring_bytes: u64, volumes: usize) -> MemoryDevice {
    let device = MemoryDevice::new(bytes);
    format(&device, [7; 16], ring_bytes).expect("a device large enough");
    let mut machine = Machine::open(device, SMALL_CACHES).expect("an empty store");
    for number in 0..volumes {
        machine.add_volume(&format!("v{number}"));
    }
    machine.commit();
    machine.device.image_at(machine.device.position())
}

impl Machine {
    /// Starts a server on a device, which replays the log.
    pub fn open(device: MemoryDevice, caches: CacheSizes) -> Result<Self, StoreError> {
        Self::open_with(device, &OpenOptions { caches, ..OpenOptions::default() })
    }

    /// The same, with all options.
    pub fn open_with(device: MemoryDevice, options: &OpenOptions) -> Result<Self, StoreError> {
        Self::open_through(device, options, |recording| recording)
    }

    /// The same; `wrap` puts something between the store and the device.
    pub fn open_through(
        device: MemoryDevice,
        options: &OpenOptions,
        wrap: impl FnOnce(Arc<RecordingDevice>) -> Arc<dyn Device>,
    ) -> Result<Self, StoreError> {
        let device = Arc::new(RecordingDevice::new(device));
        let OpenStore { store, committer, replayed, .. } = open(wrap(Arc::clone(&device)), options)?;
        let mut replayed_volumes: BTreeMap<SubvolumeId, Subvolume> =
            replayed.subvolumes.into_iter().map(|subvolume| (subvolume.id(), subvolume)).collect();
        let mut volumes = Vec::new();
        for (id, root) in store.roots() {
            let engine = replayed_volumes
                .remove(&id)
                .unwrap_or_else(|| Subvolume::open(Arc::clone(&store), id, &root));
            volumes.push(Volume { engine, handles: BTreeMap::new() });
        }
        let ring = LogRing::new(Arc::clone(&store));
        let report = replayed.report;
        Ok(Self {
            device,
            store,
            committer,
            ring,
            volumes,
            report,
            fsyncs: 0,
            commits: 0,
            frozen: None,
            switched: None,
        })
    }

    /// A new empty subvolume; it exists after the next commit.
    pub fn add_volume(&mut self, name: &str) {
        let description = RootDescription {
            tenant: 1,
            name: name.to_owned(),
            flags: 0,
            limits: Default::default(),
            origin: 0,
            created: Timestamp::default(),
            root_uid: 0,
            root_gid: 0,
            last_snapshot_generation: 0,
        };
        let id = self.store.take_subvolume_id();
        let engine = Subvolume::create(Arc::clone(&self.store), id, description);
        self.volumes.push(Volume { engine, handles: BTreeMap::new() });
    }

    /// What a crash right now leaves, without anything that was not flushed.
    pub fn crash(&self) -> MemoryDevice {
        self.device.crash_image(self.device.position(), 0)
    }

    /// Tree nodes and data extents that were not in memory when they were needed.
    pub fn fetched(&self) -> (u64, u64) {
        let counters = &self.store.counters;
        (counters.nodes_read.load(Ordering::Relaxed), counters.extents_read.load(Ordering::Relaxed))
    }

    /// Runs an engine call until everything it needs is in memory.
    pub fn call<R>(
        &mut self,
        volume: usize,
        mut call: impl FnMut(&mut Subvolume) -> EngineResult<R>,
    ) -> Result<R, Fault> {
        let engine = &mut self.volumes[volume].engine;
        loop {
            match with_fetches(&self.store, engine, &mut call) {
                Ok(value) => return Ok(value),
                Err(Retry::Refused(error)) => return Err(Fault::Refused(error)),
                Err(Retry::Store(error)) => return Err(Fault::Broken(error.to_string())),
                Err(Retry::TrimFirst(inode)) => {
                    while with_fetches(&self.store, engine, |engine| engine.trim_step(inode))
                        .map_err(|error| Fault::Broken(format!("{error:?}")))?
                    {}
                }
            }
        }
    }

    /// Makes an inode and all operations before durable.
    pub fn fsync(&mut self, volume: usize, inode: InodeNumber) {
        self.try_fsync(volume, inode).expect("data in memory can be logged");
    }

    /// The same; a failure is an answer.
    pub fn try_fsync(&mut self, volume: usize, inode: InodeNumber) -> Result<(), Fault> {
        self.call(volume, |engine| engine.log_inode_data(inode))?;
        let closed = self.volumes[volume].engine.close_log().expect("nothing is pinned");
        self.write_log(closed.generations, true).map_err(broken)?;
        let progress = self.volumes[volume].engine.progress();
        assert!(progress.committed() >= closed.ticket, "an fsync returned before its records were durable");
        self.fsyncs += 1;
        Ok(())
    }

    /// The log writer: batches, a commit when the ring is full, and the latch when the device fails.
    fn write_log(&mut self, mut generations: Vec<ClosedGeneration>, flush: bool) -> Result<(), StoreError> {
        if let Some(reason) = self.store.failure() {
            return Err(StoreError::Failed(reason));
        }
        loop {
            let count = self.ring.batch_size(&generations);
            let last = count == generations.len();
            match self.ring.write(&generations[..count], flush && last) {
                Ok(_) if last => return Ok(()),
                Ok(_) => drop(generations.drain(..count)),
                Err(RingError::Full) => {
                    self.try_commit()?;
                    generations.retain(|generation| generation.progress.committed() < generation.log_transid);
                }
                Err(RingError::Device(error)) => {
                    self.store.fail(&error);
                    return Err(error.into());
                }
            }
        }
    }

    /// A whole commit.
    pub fn commit(&mut self) {
        self.try_commit().expect("a commit works");
    }

    /// The same; a failure is an answer.
    pub fn try_commit(&mut self) -> Result<(), StoreError> {
        self.finish();
        let tail = self.store.ring().head();
        let engines = self.volumes.iter_mut().map(|volume| &mut volume.engine);
        commit_all(&self.store, &mut self.committer, engines, tail)?;
        self.commits += 1;
        Ok(())
    }

    /// The very beginning of a commit: from here on a subvolume that was clean joins the next one. Those that are in it
    /// go on in it until they are frozen.
    pub fn switch(&mut self) {
        if self.switched.is_none() {
            self.finish();
            let tail = self.store.ring().head();
            let (transid, _) = self.store.switch_transaction();
            self.switched = Some((transid, tail));
        }
    }

    /// The first half of a commit: every subvolume that is in it hands over its state and goes on.
    pub fn freeze(&mut self) {
        self.switch();
        let Some((transid, tail)) = self.switched.take() else { return };
        let mut frozen = Vec::new();
        for volume in 0..self.volumes.len() {
            let engine = &self.volumes[volume].engine;
            if !engine.is_dirty() || engine.transid() != transid {
                continue;
            }
            while self.call(volume, Subvolume::prepare_freeze).expect("reserved") == WritebackProgress::More {
            }
            frozen.push(self.volumes[volume].engine.freeze(transid).expect("nothing is pinned"));
        }
        self.frozen = Some(FrozenCommit { transid, frozen, tail });
    }

    /// The second half, if the first one was done.
    pub fn finish(&mut self) {
        if self.switched.is_some() {
            self.freeze();
        }
        let Some(FrozenCommit { transid, frozen, tail }) = self.frozen.take() else { return };
        let durable = self
            .committer
            .write(CommitInput { frozen, changes: Vec::new(), log_tail: tail })
            .expect("the device works");
        self.committer.finish(durable);
        for volume in &mut self.volumes {
            volume.engine.commit_durable(transid);
        }
        self.commits += 1;
    }

    /// One step of background writeback of a subvolume.
    pub fn write_back(&mut self, volume: usize) {
        self.call(volume, Subvolume::write_back_any).expect("space was reserved");
        let writes = self.volumes[volume].engine.take_new_writes();
        DataWrite::write_all(&writes, &self.store.data_sink()).expect("the device works");
    }

    /// Hands all waiting records to the log writer, without a flush.
    pub fn write_backlog(&mut self, volume: usize) {
        let closed = self.volumes[volume].engine.close_log().expect("nothing is pinned");
        self.write_log(closed.generations, false).expect("the device works");
    }

    /// Frees everything that nobody can reach.
    pub fn reclaim(&mut self, volume: usize) {
        let orphans = self.call(volume, |engine| engine.orphans(0, usize::MAX)).expect("a sound tree");
        for inode in orphans {
            let item = self.call(volume, |engine| engine.attributes(inode)).expect("an orphan has an inode");
            if item.nlink > 0 {
                while self.call(volume, |engine| engine.trim_step(inode)).expect("works") {}
            } else if !self.volumes[volume].engine.is_open(inode) {
                while self.call(volume, |engine| engine.reclaim_step(inode)).expect("works") {}
            }
        }
    }
}

/// A failure as the answer of a call.
pub fn broken(error: StoreError) -> Fault {
    Fault::Broken(error.to_string())
}
