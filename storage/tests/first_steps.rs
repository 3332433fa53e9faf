//! The shortest way through everything: create, write, fsync, rename, crash, replay.

use bytes::Bytes;
use std::sync::Arc;
use subvol_storage::device::{Device, MemoryDevice};
use subvol_storage::fs::read::ReadSegment;
use subvol_storage::limits::ROOT_INODE;
use subvol_storage::log::replay::{commit_all, with_fetches};
use subvol_storage::log::ring::LogRing;
use subvol_storage::operation::{Operation, Place, RenameMode};
use subvol_storage::store::open::{OpenOptions, format, open};
use subvol_storage::subvolume::{RootDescription, Subvolume};
use subvol_storage::types::Timestamp;

const NOW: Timestamp = Timestamp::new(1_000, 5);

fn place(name: &'static str) -> Place {
    Place { parent: ROOT_INODE, name: Bytes::from_static(name.as_bytes()) }
}

fn description() -> RootDescription {
    RootDescription {
        tenant: 1,
        name: "v".to_owned(),
        flags: 0,
        limits: Default::default(),
        origin: 0,
        created: NOW,
        root_uid: 0,
        root_gid: 0,
        last_snapshot_generation: 0,
    }
}

fn contents(subvolume: &mut Subvolume, inode: u64, length: usize) -> Vec<u8> {
    let store = Arc::clone(subvolume.store());
    let plan = with_fetches(&store, subvolume, |s| s.plan_read(inode, 0, length)).expect("readable");
    let mut out = Vec::new();
    for segment in plan.segments {
        match segment {
            ReadSegment::Zeros(count) => out.extend(vec![0; count]),
            ReadSegment::Memory { page, from, to } => out.extend_from_slice(&page[from..to]),
            ReadSegment::Device { pointer, skip, length } => {
                let pages = store.read_data(&pointer).expect("sound");
                let all: Vec<u8> = pages.iter().flat_map(|page| page.iter().copied()).collect();
                out.extend_from_slice(&all[skip..skip + length]);
            }
        }
    }
    out
}

fn create(subvolume: &mut Subvolume, name: &'static str) -> u64 {
    let operation = Operation::Create {
        place: place(name),
        mode: 0o100_644,
        umask: 0,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: Bytes::new(),
    };
    subvolume.execute(&operation, NOW, None, 0).expect("created").inode
}

fn write(subvolume: &mut Subvolume, inode: u64, offset: u64, data: Vec<u8>) {
    let length = data.len() as u64;
    let operation = Operation::Write { inode, offset, data: Bytes::from(data), length, clear_set_id: false };
    subvolume.execute(&operation, NOW, None, 0).expect("written");
}

fn fsync(subvolume: &mut Subvolume, ring: &mut LogRing, inode: u64) {
    subvolume.log_inode_data(inode).expect("in memory");
    let closed = subvolume.close_log().expect("not pinned");
    ring.write(&closed.generations, true).expect("written");
    assert!(subvolume.progress().committed() >= closed.ticket);
}

#[test]
fn create_write_fsync_rename_crash_replay() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    format(&*device, [1; 16], 4 << 20).expect("formatted");
    let device: Arc<dyn Device> = device;
    let mut opened = open(Arc::clone(&device), &OpenOptions::default()).expect("opened");
    let store = opened.store;
    let mut committer = opened.committer;
    assert!(opened.replayed.subvolumes.pop().is_none());
    let free_at_start = store.space().statistics().free;
    let id = store.take_subvolume_id();
    let mut subvolume = Subvolume::create(Arc::clone(&store), id, description());
    let tail = store.ring().head();
    commit_all(&store, &mut committer, [&mut subvolume].into_iter(), tail).expect("committed");

    let mut ring = LogRing::new(Arc::clone(&store));
    let small = create(&mut subvolume, "small");
    write(&mut subvolume, small, 0, vec![7; 100]);
    fsync(&mut subvolume, &mut ring, small);
    let large = create(&mut subvolume, "large");
    write(&mut subvolume, large, 10, vec![9; 300_000]);
    let rename = Operation::Rename { from: place("small"), to: place("renamed"), mode: RenameMode::Replace };
    subvolume.execute(&rename, NOW, None, 0).expect("renamed");
    fsync(&mut subvolume, &mut ring, large);
    create(&mut subvolume, "lost");
    drop((subvolume, ring, committer, store));

    let opened = open(Arc::clone(&device), &OpenOptions::default()).expect("replayed");
    assert_eq!(opened.replayed.report.subvolumes.len(), 1, "{:?}", opened.replayed.report);
    let store = opened.store;
    let mut committer = opened.committer;
    let mut subvolume = opened.replayed.subvolumes.into_iter().next().expect("one");
    let lookup = |subvolume: &mut Subvolume, name: &[u8]| {
        with_fetches(&store, subvolume, |s| s.lookup(ROOT_INODE, name))
            .map(|(inode, item)| (inode, item.size))
    };
    assert_eq!(lookup(&mut subvolume, b"renamed").expect("there"), (small, 100));
    assert_eq!(lookup(&mut subvolume, b"large").expect("there"), (large, 300_010));
    assert!(lookup(&mut subvolume, b"small").is_err());
    assert!(lookup(&mut subvolume, b"lost").is_err());
    assert_eq!(contents(&mut subvolume, small, 200), vec![7; 100]);
    let mut expected = vec![0; 10];
    expected.extend(vec![9; 300_000]);
    assert_eq!(contents(&mut subvolume, large, 1 << 20), expected);

    // Everything can be removed, and every block comes back.
    for name in ["renamed", "large"] {
        let unlink = Operation::Unlink { place: place(name) };
        with_fetches(&store, &mut subvolume, |s| s.execute(&unlink, NOW, None, 0)).expect("unlinked");
    }
    for _ in 0..2 {
        let tail = store.ring().head();
        commit_all(&store, &mut committer, [&mut subvolume].into_iter(), tail).expect("committed");
    }
    let blocks_of_two_trees = 8;
    assert_eq!(store.space().statistics().free, free_at_start + 4 - blocks_of_two_trees);
    assert_eq!(subvolume.account().usage(), Default::default());
}
