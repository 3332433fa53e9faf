//! Random programs crashed at random moments: with writeback, backlog, commits in flight and rings so small that they
//! wrap and fill all the time. Promises S1 to S3, invariants I1 to I9.
//!
//! More of them: `SUBVOL_CASES=100000 cargo test -p subvol-storage --release --test crash_random`.

mod support;

use proptest::prelude::*;
use std::sync::Mutex;
use subvol_model::{Op, Time, strategy};
use support::crash::{Counts, Depth, PROGRAM, QUICK, Run};
use support::machine::{NO_CACHES, formatted};

static TOTAL: Mutex<Option<(Counts, Seen)>> = Mutex::new(None);

/// What must have happened in some of the runs, or the test tests nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    fsyncs_in_flight: u64,
    wraps: u64,
    full_rings: u64,
}

/// Looks at some events only; which ones follows from the number of images so far.
const DEPTH: Depth = Depth {
    seeds: &[0, 2, 3, 4],
    boundaries_only: false,
    replay_every: 61,
    replay_seeds: 3,
    life_every: 17,
    caches: NO_CACHES,
};

fn between(run: &mut Run, what: u8) {
    let from = run.machine.device.position();
    match what {
        0..=2 => run.machine.write_back(PROGRAM),
        3 | 4 => run.machine.write_backlog(PROGRAM),
        5 => run.machine.reclaim(PROGRAM),
        6 => run.machine.freeze(),
        7 => run.machine.switch(),
        8 | 9 => run.machine.finish(),
        _ => {}
    }
    run.look(from);
}

/// An fsync of something that exists.
fn fsync(run: &Run, index: usize) -> Op {
    let tree = run.oracle.model().tree();
    let path = tree.iter().nth(index * 7 % tree.len()).map_or("", |(path, _)| path);
    Op::fsync(path)
}

fn step(run: &mut Run, seen: &mut Seen, op: &Op) {
    let (commits, fsyncs) = (run.machine.commits, run.machine.fsyncs);
    let head = run.machine.store.ring().head().offset;
    let in_flight = run.machine.frozen.is_some();
    run.try_step(op);
    let fsynced = run.machine.fsyncs > fsyncs;
    seen.fsyncs_in_flight += u64::from(fsynced && in_flight && run.machine.frozen.is_some());
    seen.wraps += u64::from(run.machine.store.ring().head().offset < head);
    seen.full_rings += u64::from(fsynced && run.machine.commits > commits);
}

fn run(program: &[Op], background: &[u8], ring_bytes: u64) -> Result<(), TestCaseError> {
    let mut run = Run::new(formatted(24 << 20, ring_bytes, 2), DEPTH);
    run.furnish_bystander();
    let mut seen = Seen::default();
    for (index, op) in program.iter().enumerate() {
        let what = background.get(index).copied().unwrap_or(99);
        between(&mut run, what);
        if (10..14).contains(&what) {
            let op = fsync(&run, index + usize::from(what));
            step(&mut run, &mut seen, &op);
        }
        step(&mut run, &mut seen, op);
    }
    let from = run.machine.device.position();
    run.machine.finish();
    run.look(from);
    run.look_now();
    let mut total = TOTAL.lock().expect("no panic holds it");
    let (counts, all) = total.get_or_insert_default();
    counts.add(&run.counts);
    all.fsyncs_in_flight += seen.fsyncs_in_flight;
    all.wraps += seen.wraps;
    all.full_rings += seen.full_rings;
    Ok(())
}

#[test]
fn random_programs_crashed_at_every_event() {
    let cases = std::env::var("SUBVOL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(250);
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 1000,
        ..ProptestConfig::default()
    };
    let ring = prop_oneof![Just(64_u64 << 10), Just(128 << 10), Just(1 << 20)];
    let input = (strategy::program(10..=60), prop::collection::vec(0..20_u8, 60), ring);
    proptest!(config, |((program, background, ring) in input)| run(&program, &background, ring)?);
    let (counts, seen) = TOTAL.lock().expect("no panic holds it").expect("a case ran");
    println!("{counts:?} {seen:?}");
    counts.assert_not_vacuous();
    assert!(counts.replay_images > 0 && counts.lives > 0);
    assert!(seen.fsyncs_in_flight > 0, "no fsync met a commit in flight: {seen:?}");
    assert!(seen.wraps > 0 && seen.full_rings > 0, "no ring wrapped or filled: {seen:?}");
}

/// An fsync of data that was written back for a commit which never became durable: the ring alone must bring it back,
/// and it must bring back also what was changed after the freeze.
#[test]
fn fsync_while_a_commit_is_in_flight() {
    for (large, crash_in_commit) in [(false, false), (true, false), (false, true), (true, true)] {
        let length = if large { 200_000 } else { 5000 };
        let mut run =
            Run::new(formatted(24 << 20, 1 << 20, 2), Depth { seeds: &[0, 1, 2, 3, 4, 5, 6], ..QUICK });
        run.depth.boundaries_only = false;
        run.furnish_bystander();
        run.step(&Op::create("f"));
        run.step(&Op::write("f", 0, length, "before"));
        run.step(&Op::create("g"));
        run.step(&Op::write("g", 0, length, "other"));
        run.machine.freeze();
        run.step(&Op::write("f", 2000, 3000, "after"));
        run.step(&Op::rename("f", "h"));
        run.step(&Op::fsync("h"));
        run.step(&Op::write("h", 0, 10, "lost"));
        let replays = run.counts.replays;
        assert!(replays > 0, "the crash after the fsync was replayed");
        if crash_in_commit {
            let from = run.machine.device.position();
            run.machine.finish();
            run.look(from);
            run.look_now();
            run.step(&Op::fsync("g"));
        }
    }
}

/// A file fsynced before and after a commit that covers the first fsync, and again while the next is in flight: no
/// record is applied twice and none is lost.
#[test]
fn fsyncs_around_every_commit() {
    let mut run = Run::new(formatted(24 << 20, 256 << 10, 2), Depth { seeds: &[0, 2, 3], ..QUICK });
    run.furnish_bystander();
    run.step(&Op::create("f"));
    for round in 0..12_u64 {
        run.step(&Op::write("f", round * 3000, 4000 + round * 5000, &format!("{round}")));
        match round % 4 {
            0 => run.machine.freeze(),
            1 => run.machine.write_back(PROGRAM),
            2 => run.machine.finish(),
            _ => run.machine.commit(),
        }
        run.step(&Op::fsync("f"));
        run.step(&Op::Truncate { path: "f".into(), size: round * 2500 });
        if round % 3 == 0 {
            run.step(&Op::fsync("/"));
        }
    }
    assert!(run.counts.replays > 20, "{:?}", run.counts);
    let now = Time::from(run.now);
    assert_eq!(run.machine.apply(PROGRAM, &Op::Unlink { path: "f".into() }, now), Ok(()));
}

/// Fault found by the random programs: an fsync while a commit is in flight logs what that commit holds, and is the only
/// thing that happens to the subvolume before the next commit. That commit moved the log's tail past the record without
/// covering it, and every later record followed a gap: the store did not open again.
#[test]
fn the_commit_after_an_fsync_without_a_change_covers_its_record() {
    let mut run = Run::new(formatted(24 << 20, 1 << 20, 2), Depth { boundaries_only: false, ..QUICK });
    run.furnish_bystander();
    run.step(&Op::create("e"));
    run.step(&Op::write("e", 0, 4067, "A"));
    run.machine.freeze();
    run.step(&Op::fsync("e"));
    run.machine.finish();
    run.machine.commit();
    run.step(&Op::create("c"));
    run.step(&Op::fsync("c"));
    assert!(run.counts.replays > 0);
}
