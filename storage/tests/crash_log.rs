//! The log ring under pressure: intermediate commits within a replay, generations too large for the ring, many wraps,
//! batches that were never flushed, a log given up, and (at length) a ring of 1 GiB.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use subvol_model::{Op, Time};
use subvol_storage::device::{Device, FileDevice, FileOptions};
use subvol_storage::log::ring::LogRing;
use subvol_storage::operation::{Operation, Place};
use subvol_storage::store::data_write::DataWrite;
use subvol_storage::store::open::{OpenOptions, OpenStore, format, open};
use subvol_storage::subvolume::{RootDescription, Subvolume};
use subvol_storage::types::Timestamp;
use support::check::check_all;
use support::crash::{Counts, Depth, PROGRAM, QUICK, Run, sound};
use support::machine::{Machine, NO_CACHES, SMALL_CACHES, formatted};

fn small_commits() -> OpenOptions {
    OpenOptions { caches: NO_CACHES, replay_commit_bytes: 4096, ..OpenOptions::default() }
}

/// A log with everything in it: large and small data, renames over files, orphans, preallocation.
fn busy(run: &mut Run) {
    run.watching = false;
    run.step(&Op::mkdir("d"));
    for round in 0..12_u64 {
        let (file, target) = (format!("d/f{}", round % 5), format!("t{}", round % 3));
        if !run.oracle.model().exists(&file) {
            run.step(&Op::create(&file));
        }
        run.step(&Op::write(&file, round * 1000, 3000 + round * 9000, &format!("{round}")));
        run.step(&Op::Allocate {
            path: file.clone(),
            offset: 300_000,
            length: 50_000,
            keep_size: round % 2 == 0,
        });
        run.step(&Op::fsync(&file));
        run.step(&Op::rename(&file, &target));
        run.step(&Op::Truncate { path: target.clone(), size: round * 4000 });
        run.step(&Op::write(&target, 310_000, 5000, "in place"));
        run.step(&Op::fsync(&target));
        if round % 4 == 3 {
            run.step(&Op::Unlink { path: target });
        }
    }
    run.step(&Op::fsync("/"));
    run.watching = true;
}

#[test]
fn replay_commits_on_the_way_and_survives_crashes_there() {
    let mut run = Run::new(formatted(64 << 20, 2 << 20, 2), QUICK);
    run.furnish_bystander();
    busy(&mut run);
    let image = run.machine.crash();
    let mut machine = Machine::open_with(image, &small_commits()).expect("the store opens");
    assert!(machine.report.commits > 10, "{:?}", machine.report);
    sound(&mut machine, "a replay with many commits");
    let tree = machine.tree(PROGRAM);
    run.oracle.check(&tree).unwrap_or_else(|violation| panic!("{violation}"));
    let plain = Machine::open(run.machine.crash(), SMALL_CACHES).expect("the store opens").tree(PROGRAM);
    assert_eq!(plain.diff(&tree), Vec::<String>::new(), "commits on the way change nothing");
    for at in 0..=machine.device.position() {
        for seed in [0, 1, 3] {
            let what = format!("crash at event {at} of the replay, image {seed}");
            let image = machine.device.crash_image(at, seed);
            let mut again =
                Machine::open_with(image, &small_commits()).unwrap_or_else(|e| panic!("{what}: {e}"));
            sound(&mut again, &what);
            assert_eq!(tree.diff(&again.tree(PROGRAM)), Vec::<String>::new(), "{what}");
        }
    }
}

/// Records of one generation larger than half the ring cannot be written at all: a commit takes their place, and the
/// fsync still keeps its word.
#[test]
fn a_generation_larger_than_the_ring_waits_for_a_commit() {
    let mut run = Run::new(formatted(32 << 20, 64 << 10, 2), Depth { boundaries_only: false, ..QUICK });
    run.furnish_bystander();
    let commits = run.machine.commits;
    for number in 0..600 {
        run.step(&Op::create(&format!("a-name-of-some-length-{number}")));
    }
    run.step(&Op::fsync("/"));
    assert!(run.machine.commits > commits, "the ring cannot have taken it");
    run.step(&Op::write("a-name-of-some-length-7", 0, 30_000, "A"));
    run.step(&Op::fsync("a-name-of-some-length-7"));
}

/// Every batch wraps the ring sooner or later; the ones before the tail are stale and sound, and must not be followed.
#[test]
fn the_ring_goes_round_many_times() {
    let mut counts = Counts::default();
    for seed in 0..3 {
        let depth = Depth { seeds: &[0, 2, 3], boundaries_only: false, life_every: 40, ..QUICK };
        let mut run = Run::new(formatted(32 << 20, 64 << 10, 2), depth);
        run.furnish_bystander();
        run.step(&Op::create("f"));
        let (mut wraps, mut head) = (0, 0);
        for round in 0..120_u64 {
            let length = (round * 7919 + seed * 104_729) % 12_000 + 1;
            run.step(&Op::write("f", round * 500 % 40_000, length, &format!("{round}")));
            // Only some are looked at, or this takes minutes.
            run.watching = round % 6 == seed;
            run.step(&Op::fsync("f"));
            if round % 17 == 16 {
                run.machine.commit();
            }
            let now = run.machine.store.ring().head().offset;
            wraps += u64::from(now < head);
            head = now;
        }
        assert!(wraps > 5, "{wraps} wraps");
        counts.add(&run.counts);
    }
    counts.assert_not_vacuous();
}

/// Batches written without a flush are promises to nobody: any of them may be there or not, but never a later one
/// without an earlier one.
#[test]
fn a_backlog_without_a_flush_is_a_prefix() {
    let depth = Depth { seeds: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], boundaries_only: false, ..QUICK };
    let mut run = Run::new(formatted(32 << 20, 1 << 20, 2), depth);
    run.furnish_bystander();
    for round in 0..10 {
        run.step(&Op::create(&format!("f{round}")));
        run.step(&Op::write(&format!("f{round}"), 0, 50_000, "A"));
        let from = run.machine.device.position();
        run.machine.write_back(PROGRAM);
        run.machine.write_backlog(PROGRAM);
        run.look(from);
        run.look_now();
    }
    run.step(&Op::fsync("f3"));
    assert!(run.counts.images > 200 && run.counts.replays > 50, "{:?}", run.counts);
}

/// A log that cannot be replayed can be given up for one subvolume; it says what is lost, and the others lose nothing.
#[test]
fn a_log_is_discarded_for_one_subvolume_only() {
    let mut machine = Machine::open(formatted(32 << 20, 1 << 20, 2), SMALL_CACHES).expect("a sound store");
    for volume in 0..2 {
        let now = Time::from(1);
        machine.apply(volume, &Op::create("committed"), now).expect("works");
    }
    machine.commit();
    for volume in 0..2 {
        for op in [Op::create("logged"), Op::write("logged", 0, 100_000, "A"), Op::fsync("logged")] {
            machine.apply(volume, &op, Time::from(2)).expect("works");
        }
    }
    let given_up = machine.volumes[0].engine.id();
    let discard_logs = BTreeSet::from([given_up]);
    let options = OpenOptions { discard_logs, caches: SMALL_CACHES, ..OpenOptions::default() };
    let mut machine = Machine::open_with(machine.crash(), &options).expect("opens");
    assert_eq!(machine.report.discarded.get(&given_up), Some(&3), "{:?}", machine.report);
    assert_eq!(machine.report.discarded.len(), 1);
    assert_eq!(machine.report.applied, 3);
    sound(&mut machine, "after the discard");
    let names = |machine: &mut Machine, volume| {
        machine.tree(volume).iter().map(|(p, _)| p.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut machine, 0), ["", "committed"]);
    assert_eq!(names(&mut machine, 1), ["", "committed", "logged"]);
    // What comes after does not collide with what was given up, in any later replay.
    machine.apply(0, &Op::create("new"), Time::from(3)).expect("works");
    machine.apply(0, &Op::fsync("new"), Time::from(3)).expect("works");
    let mut machine = Machine::open(machine.crash(), SMALL_CACHES).expect("opens");
    assert_eq!(names(&mut machine, 0), ["", "committed", "new"]);
    let lines = check_all(&mut machine);
    assert!(lines.is_empty(), "{lines:#?}");
}

fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

/// Fills a ring of 1 GiB on a file and replays it; the second half runs in a child, whose peak of memory is its own.
///
/// ```text
/// cargo test -p subvol-storage --release --test crash_log -- --ignored a_full_ring --nocapture
/// ```
#[test]
#[ignore = "writes 3 GiB to a temporary file"]
fn soak_ring() {
    let file = std::env::var_os("SUBVOL_REPLAY").map(std::path::PathBuf::from);
    if let Some(path) = file {
        let started = std::time::Instant::now();
        let device: Arc<dyn Device> =
            Arc::new(FileDevice::open(&path, FileOptions::default()).expect("opens"));
        let caches = SMALL_CACHES;
        let opened = open(device, &OpenOptions { caches, ..OpenOptions::default() }).expect("replays");
        let report = opened.replayed.report;
        let peak = peak_memory_bytes();
        println!("{} bytes, {} records, {:?}, peak {peak}", report.bytes, report.applied, started.elapsed());
        assert!(report.bytes > 900 << 20, "{report:?}");
        assert!(peak < 512 << 20, "replay took {peak} bytes of memory");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.img");
    let device = FileDevice::create(&path, 6 << 30, FileOptions::default()).expect("a file");
    format(&device, [3; 16], 1 << 30).expect("formatted");
    let device: Arc<dyn Device> = Arc::new(device);
    fill_the_ring(device);
    let test = "soak_ring";
    let status = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env("SUBVOL_REPLAY", &path)
        .status()
        .expect("starts");
    assert!(status.success());
}

fn fill_the_ring(device: Arc<dyn Device>) {
    let OpenStore { store, mut committer, .. } = open(device, &OpenOptions::default()).expect("opens");
    let id = store.take_subvolume_id();
    let description = RootDescription {
        tenant: 1,
        name: "v".to_owned(),
        flags: 0,
        limits: Default::default(),
        origin: 0,
        created: Timestamp::default(),
        root_uid: 0,
        root_gid: 0,
        last_snapshot_generation: 0,
    };
    let mut subvolume = Subvolume::create(Arc::clone(&store), id, description);
    let tail = store.ring().head();
    subvol_storage::log::replay::commit_all(&store, &mut committer, [&mut subvolume].into_iter(), tail)
        .expect("commits");
    let mut ring = LogRing::new(Arc::clone(&store));
    for number in 0_u64.. {
        let place = Place { parent: 256, name: format!("f{number}").into() };
        let create = Operation::Create {
            place,
            mode: 0o100_644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: bytes::Bytes::new(),
        };
        let inode = subvolume.execute(&create, Timestamp::default(), None, 0).expect("created").inode;
        let data = bytes::Bytes::from(vec![number as u8 | 1; 28_000]);
        let write = Operation::Write { inode, offset: 0, length: 28_000, data, clear_set_id: false };
        subvolume.execute(&write, Timestamp::default(), None, 0).expect("written");
        subvolume.log_inode_data(inode).expect("logged");
        // As a server does it: dirty data does not pile up for ever.
        while subvolume.dirty_bytes() > 8 << 20 {
            subvolume.write_back_any().expect("in memory");
            DataWrite::write_all(&subvolume.take_new_writes(), &store.data_sink()).expect("written");
        }
        if number % 32 == 31 {
            let closed = subvolume.close_log().expect("not pinned");
            if ring.write(&closed.generations, number % 1024 == 1023).is_err() {
                return;
            }
        }
    }
}
