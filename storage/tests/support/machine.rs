//! A server without threads, actors or clock: one store on a recording device, some subvolumes, the log ring and the
//! committer, driven by the model's operations. Everything that a real server does in the background is a call here,
//! so a test decides what happens between two operations and every run repeats exactly.

use super::translate::{bytes, kind, refusal, rename_mode, special, text, time, timestamp, xattr_mode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use subvol_model::{Content, Kind, ModelError, Node, Op, Time, Tree, pattern};
use subvol_storage::device::{Device, MemoryDevice, RecordingDevice};
use subvol_storage::error::{EngineResult, FsError};
use subvol_storage::format::item::file_type;
use subvol_storage::format::superblock::LogTail;
use subvol_storage::fs::read::ReadSegment;
use subvol_storage::fs::seek::{Seek, SeekKind};
use subvol_storage::limits::{BLOCK_BYTES, IO_BYTES_MAX, ROOT_INODE};
use subvol_storage::log::generation::ClosedGeneration;
use subvol_storage::log::replay::{ReplayReport, Retry, commit_all, with_fetches};
use subvol_storage::log::ring::{LogRing, RingError};
use subvol_storage::operation::{AttributeChange, Operation, Place};
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
    handles: BTreeMap<String, InodeNumber>,
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
        Ok(Self { device, store, committer, ring, volumes, report, fsyncs: 0, commits: 0, frozen: None, switched: None })
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

    // ---- operations -------------------------------------------------------------------------------------------

    /// Does one operation of the model; a full store or damage is a failure of the test.
    pub fn apply(&mut self, volume: usize, op: &Op, now: Time) -> Result<(), ModelError> {
        match self.try_apply(volume, op, now) {
            Ok(()) => Ok(()),
            Err(Answer::No(error)) => Err(error),
            Err(Answer::Broken(reason)) => panic!("{op:?}: {reason}"),
        }
    }

    /// The same; damage is an answer.
    pub fn try_apply(&mut self, volume: usize, op: &Op, now: Time) -> Result<(), Answer> {
        let operation = match op {
            Op::Open { handle, path } => {
                let inode = self.resolve(volume, path)?;
                self.open_handle(volume, handle, inode)?;
                return Ok(());
            }
            Op::OpenUnnamed { handle, directory, mode } => {
                let parent = self.resolve(volume, directory)?;
                self.call(volume, |engine| engine.view().directory(parent))?;
                let mode = file_type::REGULAR | mode;
                let create = Operation::CreateUnnamed { mode, uid: 0, gid: 0 };
                let inode = self.run(volume, &create, now)?;
                self.open_handle(volume, handle, inode)?;
                return Ok(());
            }
            Op::CloseHandle { handle } => {
                let inode = self.volumes[volume].handles.remove(handle).ok_or(ModelError::BadHandle)?;
                self.close(volume, inode);
                return Ok(());
            }
            Op::Fsync { path } | Op::Fdatasync { path } => {
                let inode = self.resolve(volume, path)?;
                self.try_fsync(volume, inode)?;
                return Ok(());
            }
            Op::FsyncHandle { handle } => {
                let inode = self.handle(volume, handle)?;
                self.try_fsync(volume, inode)?;
                return Ok(());
            }
            Op::Sync => {
                self.try_commit().map_err(broken)?;
                return Ok(());
            }
            Op::Evict { path } => {
                self.resolve(volume, path)?;
                return Ok(());
            }
            _ => self.translate(volume, op)?,
        };
        for operation in pieces(operation) {
            self.run(volume, &operation, now)?;
        }
        Ok(())
    }

    fn translate(&mut self, volume: usize, op: &Op) -> Result<Operation, Answer> {
        let none = AttributeChange::default();
        Ok(match op {
            Op::Create { path, mode } => self.make(volume, path, file_type::REGULAR | mode, 0, "")?,
            Op::Mkdir { path, mode } => self.make(volume, path, file_type::DIRECTORY | mode, 0, "")?,
            Op::Symlink { path, target } => self.make(volume, path, file_type::SYMLINK | 0o777, 0, target)?,
            Op::Mknod { path, kind, mode } => {
                let (kind, rdev) = special(*kind);
                self.make(volume, path, kind | mode, rdev, "")?
            }
            Op::Link { existing, path } => {
                let inode = self.resolve(volume, existing)?;
                Operation::Link { inode, place: self.place(volume, path)? }
            }
            Op::LinkHandle { handle, path } => {
                let inode = self.handle(volume, handle)?;
                Operation::Link { inode, place: self.place(volume, path)? }
            }
            Op::Unlink { path } => Operation::Unlink { place: self.place(volume, path)? },
            Op::Rmdir { path } => Operation::RemoveDirectory { place: self.place(volume, path)? },
            Op::Rename { from, to, mode } => {
                let from = self.place(volume, from)?;
                Operation::Rename { from, to: self.place(volume, to)?, mode: rename_mode(*mode) }
            }
            Op::Write { path, offset, length, seed } => {
                let inode = self.resolve(volume, path)?;
                write(inode, *offset, *length, *seed)
            }
            Op::WriteHandle { handle, offset, length, seed } => {
                let inode = self.handle(volume, handle)?;
                write(inode, *offset, *length, *seed)
            }
            Op::Append { path, length, seed } => {
                let inode = self.resolve(volume, path)?;
                let item = self.call(volume, |engine| engine.attributes(inode))?;
                let offset = if item.is_regular() { item.size } else { 0 };
                write(inode, offset, *length, *seed)
            }
            Op::Truncate { path, size } => {
                self.change(volume, path, AttributeChange { size: Some(*size), ..none })?
            }
            Op::Allocate { path, offset, length, keep_size } => Operation::Allocate {
                inode: self.resolve(volume, path)?,
                offset: *offset,
                length: *length,
                keep_size: *keep_size,
            },
            Op::Punch { path, offset, length } => {
                Operation::PunchHole { inode: self.resolve(volume, path)?, offset: *offset, length: *length }
            }
            Op::ZeroRange { path, offset, length, keep_size } => Operation::ZeroRange {
                inode: self.resolve(volume, path)?,
                offset: *offset,
                length: *length,
                keep_size: *keep_size,
            },
            Op::SetXattr { path, name, value, mode } => Operation::SetXattr {
                inode: self.resolve(volume, path)?,
                name: bytes(name),
                value: value.clone().into(),
                mode: xattr_mode(*mode),
            },
            Op::RemoveXattr { path, name } => {
                Operation::RemoveXattr { inode: self.resolve(volume, path)?, name: bytes(name) }
            }
            Op::Chmod { path, mode } => {
                self.change(volume, path, AttributeChange { mode: Some(*mode), ..none })?
            }
            Op::Chown { path, uid, gid } => {
                self.change(volume, path, AttributeChange { uid: Some(*uid), gid: Some(*gid), ..none })?
            }
            Op::SetTimes { path, atime, mtime } => {
                let (atime, mtime) = (atime.map(timestamp), mtime.map(timestamp));
                self.change(volume, path, AttributeChange { atime, mtime, ..none })?
            }
            _ => panic!("{op:?} is no engine operation"),
        })
    }

    fn change(&mut self, volume: usize, path: &str, change: AttributeChange) -> Result<Operation, Answer> {
        Ok(Operation::SetAttributes { inode: self.resolve(volume, path)?, change })
    }

    fn make(&mut self, volume: usize, path: &str, mode: u32, rdev: u64, target: &str) -> Result<Operation, Answer> {
        let place = self.place(volume, path)?;
        Ok(Operation::Create { place, mode, uid: 0, gid: 0, rdev, target: bytes(target) })
    }

    /// Runs an engine operation. On a full store it commits and tries again, as a server does, before it gives up.
    pub fn run(&mut self, volume: usize, operation: &Operation, now: Time) -> Result<InodeNumber, Fault> {
        let mut commits = 0;
        loop {
            match self.call(volume, |engine| engine.execute(operation, timestamp(now), None, 0)) {
                Err(Fault::Refused(FsError::NoSpace)) if commits < 2 => {
                    self.commit();
                    commits += 1;
                }
                other => return other.map(|done| done.inode),
            }
        }
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

    pub fn resolve(&mut self, volume: usize, path: &str) -> Result<InodeNumber, Fault> {
        let mut inode = ROOT_INODE;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            (inode, _) = self.call(volume, |engine| engine.lookup(inode, name.as_bytes()))?;
        }
        Ok(inode)
    }

    fn place(&mut self, volume: usize, path: &str) -> Result<Place, Fault> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.resolve(volume, parent)?;
        // A path is resolved, its directory included, before the next one is looked at.
        self.call(volume, |engine| engine.view().directory(parent))?;
        Ok(Place { parent, name: bytes(name) })
    }

    fn handle(&self, volume: usize, handle: &str) -> Result<InodeNumber, ModelError> {
        self.volumes[volume].handles.get(handle).copied().ok_or(ModelError::BadHandle)
    }

    fn open_handle(&mut self, volume: usize, handle: &str, inode: InodeNumber) -> Result<(), Fault> {
        self.call(volume, |engine| engine.open_inode(inode))?;
        if let Some(old) = self.volumes[volume].handles.insert(handle.to_owned(), inode) {
            self.close(volume, old);
        }
        Ok(())
    }

    fn close(&mut self, volume: usize, inode: InodeNumber) {
        self.volumes[volume].engine.close_inode(inode);
    }

    // ---- durability -------------------------------------------------------------------------------------------

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
            while self.call(volume, Subvolume::prepare_freeze).expect("reserved") == WritebackProgress::More {}
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

    // ---- background -------------------------------------------------------------------------------------------

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

    // ---- looking ----------------------------------------------------------------------------------------------

    /// An image of a subvolume's namespace.
    pub fn tree(&mut self, volume: usize) -> Tree {
        self.try_tree(volume).unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// The same; damage is an answer.
    pub fn try_tree(&mut self, volume: usize) -> Result<Tree, Fault> {
        let mut tree = Tree::default();
        let mut seen = BTreeMap::new();
        let root = self.node(volume, ROOT_INODE)?;
        tree.insert("", root);
        let mut open = vec![(String::new(), ROOT_INODE)];
        while let Some((path, directory)) = open.pop() {
            let mut after = 0;
            loop {
                let batch = self.call(volume, |engine| engine.read_directory(directory, after, 64, true))?;
                if !batch.end && batch.entries.is_empty() {
                    return Err(Fault::Broken(format!("no progress in the directory {path}")));
                }
                for entry in &batch.entries {
                    after = entry.cookie;
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                    let node = match seen.get(&entry.inode) {
                        Some(node) => Node::clone(node),
                        None => self.node(volume, entry.inode)?,
                    };
                    if node.nlink > 1 {
                        seen.insert(entry.inode, node.clone());
                    }
                    if node.kind == Kind::Directory {
                        open.push((path.clone(), entry.inode));
                    }
                    if tree.insert(&path, node).is_some() {
                        return Err(Fault::Broken(format!("{path} is listed twice")));
                    }
                }
                if batch.end {
                    break;
                }
            }
        }
        Ok(tree)
    }

    fn node(&mut self, volume: usize, inode: InodeNumber) -> Result<Node, Fault> {
        let item = self.call(volume, |engine| engine.attributes(inode))?;
        let kind = kind(&item);
        let mut xattrs = BTreeMap::new();
        if item.xattrs > 0 {
            for name in self.call(volume, |engine| engine.list_xattrs(inode))? {
                let value = self.call(volume, |engine| engine.get_xattr(inode, &name))?;
                xattrs.insert(text(&name), value.to_vec());
            }
        }
        let target = match kind {
            Kind::Symlink => Some(text(&self.call(volume, |engine| engine.read_link(inode))?)),
            _ => None,
        };
        let content = match kind {
            Kind::File => Some(self.content(volume, inode, item.size)?),
            _ => None,
        };
        Ok(Node {
            identity: inode,
            kind,
            mode: item.mode & 0o7777,
            uid: item.uid,
            gid: item.gid,
            nlink: item.nlink,
            size: item.size,
            blocks: Some(item.blocks),
            atime: time(item.atime),
            mtime: time(item.mtime),
            ctime: time(item.ctime),
            xattrs,
            target,
            content,
        })
    }

    /// All bytes of a file, found as a client that skips holes finds them.
    fn content(&mut self, volume: usize, inode: InodeNumber, size: u64) -> Result<Content, Fault> {
        let mut content = Content::default();
        content.resize(size);
        let mut at = 0;
        while at < size {
            let data = match self.call(volume, |engine| engine.seek(inode, at, SeekKind::Data)) {
                Ok(Seek::Found(data)) => data,
                Ok(Seek::From(later)) => {
                    at = later;
                    continue;
                }
                Err(Fault::Refused(FsError::NoMoreData)) => break,
                Err(other) => return Err(other),
            };
            let mut end = data;
            loop {
                match self.call(volume, |engine| engine.seek(inode, end, SeekKind::Hole))? {
                    Seek::Found(hole) => {
                        end = hole;
                        break;
                    }
                    Seek::From(later) => end = later,
                }
            }
            at = data;
            while at < end {
                let bytes = self.read(volume, inode, at, (end - at).min(IO_BYTES_MAX as u64) as usize)?;
                content.write(at, &bytes);
                at += bytes.len() as u64;
            }
        }
        Ok(content)
    }

    /// Up to `length` bytes.
    pub fn read(&mut self, volume: usize, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<u8>, Fault> {
        let plan = self.call(volume, |engine| engine.plan_read(inode, offset, length))?;
        let mut out = Vec::with_capacity(plan.length);
        for segment in plan.segments {
            match segment {
                ReadSegment::Zeros(count) => out.resize(out.len() + count, 0),
                ReadSegment::Memory { page, from, to } => out.extend_from_slice(&page[from..to]),
                ReadSegment::Device { pointer, skip, length } => {
                    let pages = self.store.read_data(&pointer).map_err(|e| Fault::Broken(e.to_string()))?;
                    let wanted = out.len() + length;
                    let block = BLOCK_BYTES as usize;
                    out.extend_from_slice(&pages[skip / block][skip % block..]);
                    pages[skip / block + 1..].iter().for_each(|page| out.extend_from_slice(&page[..]));
                    out.truncate(wanted);
                }
            }
        }
        assert_eq!(out.len(), plan.length, "a read's pieces and its length");
        Ok(out)
    }

    /// Numbers of the subvolumes.
    pub fn ids(&self) -> BTreeSet<SubvolumeId> {
        self.volumes.iter().map(|volume| volume.engine.id()).collect()
    }
}

fn broken(error: StoreError) -> Fault {
    Fault::Broken(error.to_string())
}

fn write(inode: InodeNumber, offset: u64, length: u64, seed: u32) -> Operation {
    let data = pattern::bytes(seed, offset, length as usize).into();
    Operation::Write { inode, offset, data, length, clear_set_id: false }
}

/// A large write as the kernel would send it.
fn pieces(operation: Operation) -> Vec<Operation> {
    let Operation::Write { inode, offset, data, length, clear_set_id } = operation else { return vec![operation] };
    if length <= IO_BYTES_MAX as u64 {
        return vec![Operation::Write { inode, offset, data, length, clear_set_id }];
    }
    let starts = (0..data.len()).step_by(IO_BYTES_MAX);
    let piece = |start: usize| {
        let data = data.slice(start..data.len().min(start + IO_BYTES_MAX));
        let (offset, length) = (offset + start as u64, data.len() as u64);
        Operation::Write { inode, offset, data, length, clear_set_id }
    };
    starts.map(piece).collect()
}

/// Why an operation of the model was not done.
#[derive(Debug)]
pub enum Answer {
    /// Refused, in the model's words.
    No(ModelError),
    /// Damage.
    Broken(String),
}

impl From<ModelError> for Answer {
    fn from(error: ModelError) -> Self {
        Self::No(error)
    }
}

impl From<Fault> for Answer {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(error) => Self::No(refusal(error)),
            Fault::Broken(reason) => Self::Broken(reason),
        }
    }
}

const _: () = assert!(BLOCK_BYTES == subvol_model::BLOCK);
