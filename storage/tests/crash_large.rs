//! Work that does not fit into one step: files in thousands of pieces that are cut or removed, inodes with thousands of
//! attributes. The rest is done in the background, and a crash may come between any two steps.

mod support;

use subvol_model::{Op, Time, XattrMode};
use subvol_storage::limits::EXTENTS_PER_STEP;
use support::crash::{Depth, PROGRAM, QUICK, Run};
use support::machine::{Machine, SMALL_CACHES, formatted};

const PIECES: u64 = EXTENTS_PER_STEP as u64 + 300;

/// A file whose every second block is mapped: one extent each.
fn in_pieces(run: &mut Run, path: &str) {
    run.watching = false;
    run.step(&Op::create(path));
    for piece in 0..PIECES {
        run.step(&Op::write(path, piece * 8192, 4096, "A"));
        if piece % 256 == 255 {
            while run.machine.volumes[PROGRAM].engine.dirty_bytes() > 0 {
                run.machine.write_back(PROGRAM);
            }
        }
    }
    run.step(&Op::Sync);
    run.watching = true;
}

fn start() -> Run {
    let depth =
        Depth { seeds: &[0, 2, 3], boundaries_only: true, life_every: 5, caches: SMALL_CACHES, ..QUICK };
    let mut run = Run::new(formatted(64 << 20, 1 << 20, 2), depth);
    run.furnish_bystander();
    run
}

/// Background steps one by one, a commit after each, crashes everywhere.
fn in_steps(run: &mut Run, mut step: impl FnMut(&mut Machine) -> bool) -> usize {
    let mut steps = 0;
    loop {
        let more = step(&mut run.machine);
        steps += 1;
        let from = run.machine.device.position();
        run.machine.freeze();
        run.machine.finish();
        run.look(from);
        run.look_now();
        if !more {
            return steps;
        }
    }
}

#[test]
fn a_file_in_pieces_is_cut_in_steps() {
    let mut run = start();
    in_pieces(&mut run, "f");
    run.step(&Op::create("g"));
    let inode = run.machine.resolve(PROGRAM, "f").expect("exists");
    run.step(&Op::Truncate { path: "f".into(), size: 10_000 });
    // Everybody sees the new size and no block past it, at once and after a crash.
    run.step(&Op::fsync("g"));
    let steps =
        in_steps(&mut run, |machine| machine.call(PROGRAM, |engine| engine.trim_step(inode)).expect("works"));
    assert!(steps >= 1, "{steps} steps");
    run.step(&Op::Truncate { path: "f".into(), size: 100_000 });
    run.step(&Op::fsync("f"));
    assert!(run.counts.replays > 0 && run.counts.images > 10, "{:?}", run.counts);
}

/// Growing again while blocks past the end wait: they must never come back as data.
#[test]
fn a_file_that_grows_while_it_is_cut_shows_zeros() {
    let mut run = start();
    in_pieces(&mut run, "f");
    run.step(&Op::Truncate { path: "f".into(), size: 5000 });
    run.step(&Op::Truncate { path: "f".into(), size: PIECES * 8192 });
    run.step(&Op::fsync("f"));
    run.step(&Op::Truncate { path: "f".into(), size: 0 });
    run.step(&Op::write("f", 50_000, 5000, "B"));
    run.step(&Op::fsync("f"));
    assert!(run.counts.replays > 0, "{:?}", run.counts);
}

#[test]
fn a_file_in_pieces_is_removed_in_steps() {
    let mut run = start();
    in_pieces(&mut run, "f");
    let inode = run.machine.resolve(PROGRAM, "f").expect("exists");
    run.step(&Op::Unlink { path: "f".into() });
    run.step(&Op::fsync("/"));
    let steps = in_steps(&mut run, |machine| {
        machine.call(PROGRAM, |engine| engine.reclaim_step(inode)).expect("works")
    });
    assert!(steps >= 2, "{steps} steps");
    assert_eq!(run.machine.volumes[PROGRAM].engine.account().usage(), Default::default());
}

/// Punched, zeroed and renamed over while in pieces.
#[test]
fn ranges_of_a_file_in_pieces() {
    let mut run = start();
    in_pieces(&mut run, "f");
    run.step(&Op::create("g"));
    run.step(&Op::write("g", 0, 70_000, "new"));
    run.step(&Op::Punch { path: "f".into(), offset: 1000, length: PIECES * 8192 - 5000 });
    run.step(&Op::fsync("f"));
    run.step(&Op::rename("g", "f"));
    run.step(&Op::fsync("/"));
    assert!(run.counts.replays > 0, "{:?}", run.counts);
}

#[test]
fn an_inode_with_thousands_of_attributes() {
    let mut run = start();
    run.watching = false;
    run.step(&Op::create("f"));
    for number in 0..EXTENTS_PER_STEP + 200 {
        let name = format!("user.{number}");
        let value = vec![1; if number % 500 == 0 { 9000 } else { 9 }];
        run.step(&Op::SetXattr { path: "f".into(), name, value, mode: XattrMode::Create });
    }
    run.watching = true;
    run.depth.life_every = 0;
    run.step(&Op::fsync("f"));
    let inode = run.machine.resolve(PROGRAM, "f").expect("exists");
    run.step(&Op::Unlink { path: "f".into() });
    run.step(&Op::fsync("/"));
    in_steps(&mut run, |machine| machine.call(PROGRAM, |engine| engine.reclaim_step(inode)).expect("works"));
    let now = Time::from(run.now);
    assert_eq!(run.machine.apply(PROGRAM, &Op::create("f"), now), Ok(()));
}
