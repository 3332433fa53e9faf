//! Random programs on the whole engine against the model: the same answers, the same tree after every operation, sound
//! items, exact usage and space, whatever runs in the background and however little fits into memory.

mod support;

use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use subvol_model::{Model, Op, Time, strategy};
use support::check::{check_all, check_volume};
use support::machine::{Machine, NO_CACHES, SMALL_CACHES, formatted};

static NODES_FETCHED: AtomicU64 = AtomicU64::new(0);
static DATA_FETCHED: AtomicU64 = AtomicU64::new(0);
static FROZEN_STEPS: AtomicU64 = AtomicU64::new(0);

/// What happens between two operations.
#[derive(Clone, Copy, Debug)]
enum Background {
    Nothing,
    WriteBack,
    Backlog,
    Reclaim,
    Commit,
    Switch,
    Freeze,
    Finish,
}

/// Numbers, because a failing case is printed.
const BACKGROUND: [Background; 21] = {
    use Background::{Backlog, Commit, Finish, Freeze, Nothing, Reclaim, Switch, WriteBack};
    [
        Nothing, Nothing, Nothing, Nothing, Nothing, Nothing, Nothing, Nothing, WriteBack, WriteBack,
        WriteBack, WriteBack, Backlog, Backlog, Reclaim, Reclaim, Commit, Switch, Switch, Freeze, Finish,
    ]
};

struct Pair {
    machine: Machine,
    model: Model,
}

impl Pair {
    fn between(&mut self, what: Background) {
        match what {
            Background::Nothing => {}
            Background::WriteBack => self.machine.write_back(0),
            Background::Backlog => self.machine.write_backlog(0),
            Background::Reclaim => self.machine.reclaim(0),
            Background::Commit => self.machine.commit(),
            Background::Switch => self.machine.switch(),
            Background::Freeze => self.machine.freeze(),
            Background::Finish => self.machine.finish(),
        }
    }

    fn step(&mut self, op: &Op, now: Time) -> Result<(), TestCaseError> {
        let expected = self.model.apply(op, now);
        let answer = self.machine.apply(0, op, now);
        prop_assert_eq!(answer, expected, "{:?}", op);
        let difference = self.model.tree().diff(&self.machine.tree(0));
        prop_assert!(difference.is_empty(), "after {:?}: {:#?}", op, difference);
        let lines = check_volume(&self.machine, 0);
        prop_assert!(lines.is_empty(), "after {:?}: {:#?}", op, lines);
        FROZEN_STEPS.fetch_add(u64::from(self.machine.frozen.is_some()), Ordering::Relaxed);
        Ok(())
    }
}

fn run(program: &[Op], between: &[usize], tiny: bool) -> Result<(), TestCaseError> {
    let caches = if tiny { NO_CACHES } else { SMALL_CACHES };
    let mut machine = Machine::open(formatted(48 << 20, 1 << 20, 1), caches).expect("a sound store");
    let free = machine.store.space().statistics().free;
    machine.commit();
    let pair = &mut Pair { model: Model::default(), machine };
    if between.first().is_some_and(|number| number % 7 == 0) {
        furnish(pair)?;
    }
    for (index, op) in program.iter().enumerate() {
        if let Some(what) = between.get(index) {
            pair.between(BACKGROUND[*what]);
        }
        pair.step(op, Time::from(1 + index as u64))?;
    }
    pair.machine.finish();
    let (nodes, data) = pair.machine.fetched();
    NODES_FETCHED.fetch_add(nodes, Ordering::Relaxed);
    DATA_FETCHED.fetch_add(data, Ordering::Relaxed);
    remove_everything(pair)?;
    prop_assert_eq!(pair.machine.store.space().statistics().free, free, "every block comes back");
    Ok(())
}

/// Enough names for a tree of two levels: in a single leaf little can go missing.
fn furnish(pair: &mut Pair) -> Result<(), TestCaseError> {
    let now = Time::from(1);
    let mut ops = vec![Op::mkdir("base")];
    ops.extend((0..120).map(|number| Op::create(&format!("base/a-rather-long-name-of-a-file-{number}"))));
    for op in ops {
        prop_assert_eq!(pair.machine.apply(0, &op, now), pair.model.apply(&op, now));
    }
    pair.machine.commit();
    Ok(())
}

fn remove_everything(pair: &mut Pair) -> Result<(), TestCaseError> {
    let now = Time::from(1_000_000);
    for handle in pair.model.handles().map(str::to_owned).collect::<Vec<_>>() {
        pair.step(&Op::CloseHandle { handle }, now)?;
    }
    pair.machine.reclaim(0);
    let usage = pair.machine.volumes[0].engine.account().usage();
    prop_assert_eq!((usage.bytes, usage.inodes), (pair.model.usage().bytes, pair.model.usage().inodes));
    let tree = pair.model.tree();
    let mut paths: Vec<_> = tree.iter().filter(|(path, _)| !path.is_empty()).collect();
    paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
    for (path, node) in paths {
        let path = path.to_owned();
        let directory = node.kind == subvol_model::Kind::Directory;
        pair.step(&if directory { Op::Rmdir { path } } else { Op::Unlink { path } }, now)?;
    }
    pair.machine.reclaim(0);
    pair.machine.commit();
    pair.machine.commit();
    let lines = check_all(&mut pair.machine);
    prop_assert!(lines.is_empty(), "{:#?}", lines);
    prop_assert_eq!(pair.machine.volumes[0].engine.account().usage(), Default::default());
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("SUBVOL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 4000, ..ProptestConfig::default() }
}

#[test]
fn random_programs_agree_with_the_model() {
    let program = (strategy::program(10..=80), prop::collection::vec(0..BACKGROUND.len(), 80), any::<bool>());
    proptest!(config(1000), |((program, between, tiny) in program)| run(&program, &between, tiny)?);
    let fetched = [&NODES_FETCHED, &DATA_FETCHED, &FROZEN_STEPS].map(|count| count.load(Ordering::Relaxed));
    println!("nodes, extents fetched; operations with a commit in flight: {fetched:?}");
    assert!(fetched.iter().all(|&count| count > 500), "nothing went missing: {fetched:?}");
}
