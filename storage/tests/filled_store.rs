//! A full store (promise S8): ENOSPC comes before the acknowledgement, deleting always works, and every block comes back.

mod support;

use subvol_model::{Kind, Model, ModelError, Op, Time};
use support::check::{check_all, check_volume};
use support::machine::{Machine, NO_CACHES, SMALL_CACHES, formatted};

struct Filler {
    machine: Machine,
    model: Model,
    now: u64,
    refused: u64,
}

impl Filler {
    fn new(bytes: u64) -> Self {
        let machine = Machine::open(formatted(bytes, 256 << 10, 1), SMALL_CACHES).expect("a sound store");
        Self { machine, model: Model::default(), now: 0, refused: 0 }
    }

    /// Does an operation on both sides; on a full store the model is left alone. Did it work?
    fn step(&mut self, op: &Op) -> bool {
        self.now += 1;
        let now = Time::from(self.now);
        match self.machine.apply(0, op, now) {
            Err(ModelError::NoSpace) => {
                self.refused += 1;
                false
            }
            answer => {
                assert_eq!(answer, self.model.apply(op, now), "{op:?}");
                true
            }
        }
    }

    fn must(&mut self, op: &Op) {
        assert!(self.step(op), "{op:?} must work on a full store");
    }

    /// What was acknowledged is there, now and after the commit and a restart.
    fn verify(&mut self) {
        let difference = self.model.tree().diff(&self.machine.tree(0));
        assert!(difference.is_empty(), "{difference:#?}");
        let lines = check_volume(&self.machine, 0);
        assert!(lines.is_empty(), "{lines:#?}");
        self.machine.commit();
        let lines = check_all(&mut self.machine);
        assert!(lines.is_empty(), "{lines:#?}");
        let mut again = Machine::open(self.machine.crash(), NO_CACHES).expect("a full store opens");
        let difference = self.model.tree().diff(&again.tree(0));
        assert!(difference.is_empty(), "after a restart: {difference:#?}");
    }

    fn remove(&mut self, keep: impl Fn(usize) -> bool) {
        let tree = self.model.tree();
        let mut paths: Vec<_> = tree.iter().filter(|(path, _)| !path.is_empty()).collect();
        paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
        for (index, (path, node)) in paths.into_iter().enumerate() {
            let path = path.to_owned();
            match node.kind {
                _ if keep(index) => {}
                Kind::Directory => self.must(&Op::Rmdir { path }),
                _ => self.must(&Op::Unlink { path }),
            }
        }
    }
}

/// Files of `size` bytes until the store is full.
fn fill(filler: &mut Filler, prefix: &str, size: u64) -> u64 {
    for number in 0.. {
        let path = format!("{prefix}{number}");
        if !filler.step(&Op::create(&path)) {
            return number;
        }
        if size > 0 && !filler.step(&Op::write(&path, 0, size, &path)) {
            return number;
        }
        // As a server does it: dirty data does not pile up for ever.
        if filler.machine.volumes[0].engine.dirty_bytes() > 1 << 20 {
            filler.machine.write_back(0);
        }
    }
    unreachable!("a store of finite size")
}

/// Fills, deletes everything on the full store, and counts the blocks.
fn round(bytes: u64, sizes: &[u64]) {
    let mut filler = Filler::new(bytes);
    filler.machine.commit();
    let free = filler.machine.store.space().statistics().free;
    for turn in 0..2 {
        let mut files = 0;
        for &size in sizes {
            files += fill(&mut filler, &format!("t{turn}s{size}-"), size);
        }
        assert!(filler.refused > 0 && files > 10, "{files} files of {sizes:?}, {} refused", filler.refused);
        filler.verify();
        filler.remove(|_| false);
        filler.machine.reclaim(0);
        filler.machine.commit();
        filler.machine.commit();
        assert_eq!(filler.machine.store.space().statistics().free, free, "{sizes:?}: every block comes back");
        assert_eq!(filler.machine.volumes[0].engine.account().usage(), Default::default());
        filler.verify();
    }
}

#[test]
fn large_files_fill_it_and_all_blocks_come_back() {
    round(24 << 20, &[1 << 20, 300_000, 5000]);
}

#[test]
fn small_files_fill_it_and_all_blocks_come_back() {
    round(16 << 20, &[5000]);
}

#[test]
fn empty_and_inline_files_fill_it_and_all_blocks_come_back() {
    round(12 << 20, &[100, 0]);
}

/// Every second block free and none of them in a row: data goes into pieces, and tree nodes, which need four blocks in a
/// row, must still find room for every delete and every commit.
#[test]
fn a_fragmented_store_still_fills_and_empties() {
    let mut filler = Filler::new(24 << 20);
    filler.machine.commit();
    let free = filler.machine.store.space().statistics().free;
    fill(&mut filler, "a", 4096);
    filler.machine.commit();
    filler.remove(|index| index % 2 == 0);
    filler.machine.reclaim(0);
    filler.machine.commit();
    filler.verify();
    fill(&mut filler, "b", 40_000);
    fill(&mut filler, "c", 4096);
    filler.verify();
    filler.remove(|index| index % 3 == 0);
    filler.machine.commit();
    fill(&mut filler, "d", 9000);
    filler.verify();
    filler.remove(|_| false);
    filler.machine.reclaim(0);
    filler.machine.commit();
    filler.machine.commit();
    assert_eq!(filler.machine.store.space().statistics().free, free);
}

/// Overwriting, preallocated space, fsync, truncation, renames over files: on a full store each either works or is
/// refused before it is acknowledged; nothing acknowledged is ever lost.
#[test]
fn a_full_store_keeps_its_word() {
    let mut filler = Filler::new(20 << 20);
    filler.must(&Op::create("reserved"));
    filler.must(&Op::Allocate { path: "reserved".into(), offset: 0, length: 600_000, keep_size: false });
    filler.must(&Op::create("other"));
    filler.must(&Op::write("other", 0, 400_000, "other"));
    filler.machine.commit();
    fill(&mut filler, "f", 100_000);
    fill(&mut filler, "g", 4096);
    filler.machine.commit();
    for number in 0..100 {
        // In place: no block is needed.
        let offset = number * 5000 % 500_000;
        filler.step(&Op::write("reserved", offset, 5000, &format!("{number}")));
        filler.step(&Op::write("other", offset % 300_000, 20_000, &format!("{number}")));
        filler.step(&Op::fsync("other"));
        filler.step(&Op::create(&format!("n{number}")));
        if number % 10 == 9 {
            filler.must(&Op::Truncate { path: format!("f{}", number / 10), size: 5000 });
            filler.must(&Op::Punch { path: "other".into(), offset: number * 1000, length: 9000 });
            filler.machine.freeze();
        }
    }
    filler.must(&Op::rename("f1", "f2"));
    assert!(filler.refused > 0);
    filler.verify();
    filler.remove(|_| false);
    filler.verify();
}
