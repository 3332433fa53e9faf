//! Every known crash case (S1 to S3, I1 to I9): crashed after its last call, at every write and flush before it in every
//! way the device may have left it, torn in the last log batch, and again within the replay.

mod support;

use std::sync::Mutex;
use subvol_model::cases::{Case, all};
use subvol_model::script::Step;
use subvol_model::{DurabilityOracle, Op, Time};
use subvol_storage::device::MemoryDevice;
use support::check::check_all;
use support::crash::{Counts, Depth, PROGRAM, Run, THOROUGH, in_parallel, sound};
use support::machine::{Machine, NO_CACHES, SMALL_CACHES, formatted};

/// Large programs are looked at less closely, or a single one would take minutes.
fn depth(case: &Case) -> Depth {
    if case.steps().len() < 200 {
        return THOROUGH;
    }
    Depth {
        seeds: &[0, 1, 2],
        replay_every: 9,
        replay_seeds: 2,
        life_every: 9,
        caches: SMALL_CACHES,
        ..THOROUGH
    }
}

fn run(case: &Case, start: &MemoryDevice) -> Counts {
    let mut run = Run::new(start.fork(), depth(case));
    run.furnish_bystander();
    let steps = case.steps();
    let crashes = steps.iter().filter(|step| **step == Step::Crash).count();
    let mut crashed = 0;
    for step in &steps {
        match step {
            Step::Do(op) => run.step(op),
            Step::Crash => {
                crashed += 1;
                after_the_last_call(case, &mut run, crashed == crashes);
            }
        }
    }
    run.counts
}

/// The crash that the case is about: everything that was not flushed is gone.
fn after_the_last_call(case: &Case, run: &mut Run, last: bool) {
    let image = run.machine.crash();
    run.examine(image.fork(), "crash after the last call");
    let mut machine = Machine::open(image, run.depth.caches).expect("it opened a moment ago");
    let tree = machine.tree(PROGRAM);
    let prefix = run.oracle.check(&tree).expect("it was allowed a moment ago");
    if last {
        if let Err(lines) = case.verify(&tree) {
            panic!("{}", lines.join("\n"));
        }
        cleanup(case, &mut machine);
        return;
    }
    run.oracle = DurabilityOracle::new(run.oracle.recovered(&tree, prefix));
    machine.device.restart();
    run.machine = machine;
}

fn cleanup(case: &Case, machine: &mut Machine) {
    machine.reclaim(PROGRAM);
    for step in case.cleanup_steps() {
        let Step::Do(op) = step else { panic!("no crash in a cleanup") };
        machine
            .apply(PROGRAM, &op, Time::from(5000))
            .unwrap_or_else(|error| panic!("cleanup {op:?}: {error}"));
    }
    machine.commit();
    sound(machine, "after the cleanup");
    assert!(case.cleanup.is_empty() || machine.tree(PROGRAM).len() == 1, "the cleanup empties the root");
}

#[test]
fn every_case_at_every_crash_point() {
    let cases = all();
    let start = formatted(128 << 20, 4 << 20, 2);
    let next = Mutex::new(cases.iter());
    let failures = Mutex::new(Vec::new());
    let counts = in_parallel(|_, _| {
        let mut counts = Counts::default();
        loop {
            let Some(case) = next.lock().expect("no panic holds it").next() else { return counts };
            let work = std::panic::AssertUnwindSafe(|| run(case, &start));
            match std::panic::catch_unwind(work) {
                Ok(found) => {
                    assert!(found.images > 0, "case {}: nothing was looked at", case.number);
                    counts.add(&found);
                }
                Err(reason) => {
                    let line = reason
                        .downcast_ref::<String>()
                        .cloned()
                        .or_else(|| reason.downcast_ref::<&str>().map(|line| (*line).to_owned()))
                        .unwrap_or_default();
                    let line = format!("case {} ({}): {line}", case.number, case.name);
                    failures.lock().expect("no panic holds it").push(line);
                }
            }
        }
    });
    println!("{counts:?}");
    let failures = failures.into_inner().expect("no panic holds it");
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
    counts.assert_not_vacuous();
    assert_eq!(counts.programs, cases.len() as u64);
    assert!(counts.replay_images > 0 && counts.lives > 0);
}

/// A crash in the very first start of a store, and a store that was never written to.
#[test]
fn an_untouched_store_survives_crashes_of_its_starts() {
    let mut image = formatted(16 << 20, 256 << 10, 2);
    for start in 0..20 {
        let mut machine = Machine::open(image.fork(), NO_CACHES).expect("a sound store");
        let lines = check_all(&mut machine);
        assert!(lines.is_empty(), "start {start}: {lines:#?}");
        for at in 0..=machine.device.position() {
            for seed in 0..8 {
                let crashed = machine.device.crash_image(at, seed);
                let mut again = Machine::open(crashed, NO_CACHES)
                    .unwrap_or_else(|error| panic!("start {start}, event {at}, image {seed}: {error}"));
                sound(&mut again, "a start after a crashed start");
            }
        }
        let op = Op::create(&format!("f{start}"));
        machine.apply(PROGRAM, &op, Time::from(start)).expect("works");
        machine.apply(PROGRAM, &Op::fsync("/"), Time::from(start)).expect("works");
        image = machine.crash();
    }
}
