//! Decisions that replay must not take anew: it may find less than there was, because data that nobody fsynced was never
//! logged.

use bytes::Bytes;
use std::sync::Arc;
use subvol_storage::device::{Device, MemoryDevice};
use subvol_storage::limits::ROOT_INODE;
use subvol_storage::log::replay::{commit_all, with_fetches};
use subvol_storage::log::ring::LogRing;
use subvol_storage::operation::{AttributeChange, Operation, Place};
use subvol_storage::store::data_write::DataWrite;
use subvol_storage::store::open::{OpenOptions, OpenStore, format, open};
use subvol_storage::store::{Store, StoreError};
use subvol_storage::subvolume::{RootDescription, Subvolume, WritebackProgress};
use subvol_storage::types::Timestamp;

const NOW: Timestamp = Timestamp::new(1_000, 5);

struct Rig {
    device: Arc<dyn Device>,
    store: Arc<Store>,
    subvolume: Subvolume,
    ring: LogRing,
}

/// A store of this size with one committed subvolume.
fn rig(bytes: u64) -> Rig {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    format(&*device, [1; 16], 8 << 20).expect("formatted");
    let OpenStore { store, mut committer, .. } =
        open(Arc::clone(&device), &OpenOptions::default()).expect("opened");
    let description = RootDescription {
        tenant: 1,
        name: "v".to_owned(),
        flags: 0,
        limits: Default::default(),
        origin: 0,
        created: NOW,
        root_uid: 0,
        root_gid: 0,
        last_snapshot_generation: 0,
    };
    let id = store.take_subvolume_id();
    let mut subvolume = Subvolume::create(Arc::clone(&store), id, description);
    let tail = store.ring().head();
    commit_all(&store, &mut committer, [&mut subvolume].into_iter(), tail).expect("committed");
    let ring = LogRing::new(Arc::clone(&store));
    Rig { device, store, subvolume, ring }
}

impl Rig {
    fn run(&mut self, operation: &Operation) -> u64 {
        let done = with_fetches(&self.store, &mut self.subvolume, |s| s.execute(operation, NOW, None, 0));
        done.expect("done").inode
    }

    fn create(&mut self, name: &'static str) -> u64 {
        self.run(&Operation::Create {
            place: place(name),
            mode: 0o100_644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Bytes::new(),
        })
    }

    fn write(&mut self, inode: u64, offset: u64, length: usize) {
        let data = Bytes::from(vec![0xa5; length]);
        let length = length as u64;
        self.run(&Operation::Write { inode, offset, data, length, clear_set_id: false });
    }

    fn write_back(&mut self) {
        while with_fetches(&self.store, &mut self.subvolume, Subvolume::write_back_any).expect("written back")
            == WritebackProgress::More
        {}
        DataWrite::write_all(&self.subvolume.take_new_writes(), &self.store.data_sink()).expect("written");
    }

    fn fsync(&mut self, inode: u64) {
        with_fetches(&self.store, &mut self.subvolume, |s| s.log_inode_data(inode)).expect("logged");
        let closed = self.subvolume.close_log().expect("not pinned");
        for generation in closed.generations {
            self.ring.write(&[generation], true).expect("written");
        }
        assert!(self.subvolume.progress().committed() >= closed.ticket);
    }

    fn crash(self) -> Result<OpenStore, StoreError> {
        let device = Arc::clone(&self.device);
        drop(self);
        open(device, &OpenOptions::default())
    }
}

fn place(name: &'static str) -> Place {
    Place { parent: ROOT_INODE, name: Bytes::from_static(name.as_bytes()) }
}

/// A file in thousands of pieces stays as an orphan when it is unlinked, since it cannot be freed at once. Its data was
/// never logged, so replay finds a small file, freed it at once, and met the next record of it without an inode: the store
/// did not open any more.
#[test]
fn an_inode_that_stayed_because_of_its_size_stays_in_replay() {
    let mut rig = rig(256 << 20);
    let large = rig.create("large");
    for piece in 0..2600 {
        rig.write(large, piece * 8192, 4096);
    }
    rig.write_back();
    rig.run(&Operation::Unlink { place: place("large") });
    let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
    rig.run(&Operation::SetAttributes { inode: large, change });
    let other = rig.create("other");
    rig.fsync(other);
    let opened = rig.crash().expect("replays");
    let mut subvolume = opened.replayed.subvolumes.into_iter().next().expect("one");
    assert_eq!(subvolume.orphans(0, 10).expect("listed"), [large]);
    let found = with_fetches(&opened.store, &mut subvolume, |s| s.lookup(ROOT_INODE, b"other"));
    assert_eq!(found.expect("there").0, other);
    while with_fetches(&opened.store, &mut subvolume, |s| s.reclaim_step(large)).expect("freed") {}
    assert_eq!(subvolume.account().usage().inodes, 1);
}

/// Space that was preallocated and then filled is named by the log as extents, whose blocks replay sets apart before it runs
/// any record. On a nearly full device the allocation's own record found no room then, and the store did not open.
#[test]
fn preallocated_and_filled_space_replays_on_a_full_device() {
    let mut rig = rig(96 << 20);
    let free = rig.store.space().statistics().available_for_growth * 4096;
    let length = free / 3 * 2 / (1 << 20) * (1 << 20);
    let file = rig.create("file");
    rig.run(&Operation::Allocate { inode: file, offset: 0, length, keep_size: false });
    let filled = length - (1 << 20);
    for at in (0..filled).step_by(1 << 20) {
        rig.write(file, at, 1 << 20);
        rig.write_back();
    }
    rig.fsync(file);
    let opened = rig.crash().expect("replays");
    let mut subvolume = opened.replayed.subvolumes.into_iter().next().expect("one");
    let item = with_fetches(&opened.store, &mut subvolume, |s| s.attributes(file)).expect("there");
    assert_eq!(item.size, length);
    assert!(item.blocks * 4096 >= filled, "{} blocks", item.blocks);
    assert_eq!(subvolume.account().usage().bytes, item.blocks * 4096);
    let plan = with_fetches(&opened.store, &mut subvolume, |s| s.plan_read(file, filled - 4096, 4096));
    let segments = format!("{:?}", plan.expect("readable").segments);
    assert!(!segments.contains("Zeros"), "the fsynced data is there: {segments}");
}
