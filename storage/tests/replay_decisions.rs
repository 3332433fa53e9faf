//! Decisions that replay must not take anew: it may find less than there was, because data that nobody fsynced was never
//! logged.

use bytes::Bytes;
use std::sync::Arc;
use subvol_storage::device::{Device, MemoryDevice};
use subvol_storage::limits::ROOT_INODE;
use subvol_storage::log::replay::{commit_all, with_fetches};
use subvol_storage::log::ring::LogRing;
use subvol_storage::operation::{AttributeChange, Operation, Place, RenameMode, XattrMode};
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

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// user::rwx, user:1000:rw-, group::r-x, mask::rwx, other::---
fn access_list() -> Bytes {
    const NOBODY: u32 = u32::MAX;
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1_u16, 7_u16, NOBODY), (2, 6, 1000), (4, 5, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)]
    {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value.into()
}

/// Everything about these inodes that access lists, masks and whiteouts decide.
fn described(store: &Arc<Store>, subvolume: &mut Subvolume, inodes: &[u64]) -> String {
    let mut lines = String::new();
    for &inode in inodes {
        let item = with_fetches(store, subvolume, |s| s.attributes(inode)).expect("there");
        let mut lists = Vec::new();
        for name in [ACCESS, DEFAULT] {
            lists.push(with_fetches(store, subvolume, |s| s.get_xattr(inode, name)).ok());
        }
        lines += &format!("{item:?} {lists:?}\n");
    }
    lines
}

/// What a new inode inherits, and the inode that a rename leaves behind, are found out by replay from the operation alone.
#[test]
fn inherited_lists_and_whiteouts_are_the_same_after_replay() {
    let mut rig = rig(64 << 20);
    let make = |parent: u64, name: &'static str, mode: u32| Operation::Create {
        place: Place { parent, name: Bytes::from_static(name.as_bytes()) },
        mode,
        umask: 0o027,
        uid: 3,
        gid: 4,
        rdev: 0,
        target: Bytes::new(),
    };
    let directory = rig.run(&make(ROOT_INODE, "d", 0o040_777));
    let change = AttributeChange { mode: Some(0o2750), gid: Some(77), ..AttributeChange::default() };
    rig.run(&Operation::SetAttributes { inode: directory, change });
    let set = |inode, name| Operation::SetXattr {
        inode,
        name: Bytes::from_static(name),
        value: access_list(),
        mode: XattrMode::Any,
    };
    rig.run(&set(directory, DEFAULT));
    let file = rig.run(&make(directory, "f", 0o100_666));
    let below = rig.run(&make(directory, "below", 0o040_777));
    let deep = rig.run(&make(below, "deep", 0o100_640));
    let unnamed =
        Operation::CreateUnnamed { parent: directory, mode: 0o100_666, umask: 0o027, uid: 3, gid: 4 };
    let unnamed = rig.run(&unnamed);
    let plain = rig.run(&make(ROOT_INODE, "plain", 0o100_666));
    rig.run(&set(plain, ACCESS));
    let change = AttributeChange { mode: Some(0o604), ..AttributeChange::default() };
    rig.run(&Operation::SetAttributes { inode: plain, change });
    let whiteout = |from, to, mode| Operation::Rename { from: place(from), to: place(to), mode };
    rig.create("victim");
    rig.run(&whiteout("plain", "victim", RenameMode::Whiteout));
    rig.run(&whiteout("d", "moved", RenameMode::WhiteoutNoReplace));
    let last = rig.create("last");

    let mut inodes = vec![ROOT_INODE, directory, file, below, deep, unnamed, plain, last];
    for name in [b"plain".as_slice(), b"d"] {
        let (inode, item) =
            with_fetches(&rig.store, &mut rig.subvolume, |s| s.lookup(ROOT_INODE, name)).expect("a whiteout");
        assert_eq!((item.mode, item.rdev, item.uid, item.gid, item.nlink), (0o020_000, 0, 0, 0, 1));
        inodes.push(inode);
    }
    let before = described(&rig.store, &mut rig.subvolume, &inodes);
    let usage = rig.subvolume.account().usage();
    rig.fsync(last);
    let opened = rig.crash().expect("replays");
    let mut subvolume = opened.replayed.subvolumes.into_iter().next().expect("one");
    assert_eq!(described(&opened.store, &mut subvolume, &inodes), before);
    assert_eq!(subvolume.account().usage(), usage);
    for (name, inode) in [(b"victim".as_slice(), plain), (b"moved", directory)] {
        let found = with_fetches(&opened.store, &mut subvolume, |s| s.lookup(ROOT_INODE, name));
        assert_eq!(found.expect("there").0, inode);
    }
    let mut attributes =
        |inode| with_fetches(&opened.store, &mut subvolume, |s| s.attributes(inode)).expect("there");
    assert_eq!(attributes(file).mode, 0o100_660, "the list, not the mask");
    assert_eq!((attributes(file).gid, attributes(below).mode & 0o2000), (77, 0o2000), "set-group-id");
    assert_eq!(attributes(deep).mode, 0o100_640, "inherited over two levels");
    assert_eq!(attributes(plain).mode, 0o100_604, "the last change counts");
}
