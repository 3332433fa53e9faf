//! A device that fails: whatever fails, nothing is acknowledged afterwards, the store accepts no change and writes no
//! superblock any more, and a restart finds everything that was acknowledged before (promises S2 and S7).

mod support;

use std::sync::Arc;
use subvol_model::{DurabilityOracle, Model, ModelError, Op, Time};
use subvol_storage::device::{Action, FaultRule, FaultyDevice, Operations};
use subvol_storage::error::FsError;
use subvol_storage::store::open::OpenOptions;
use support::crash::{PROGRAM, sound};
use support::machine::{Machine, SMALL_CACHES, formatted};
use support::operate::Answer;

const EIO: i32 = 5;

fn program() -> Vec<Op> {
    vec![
        Op::mkdir("d"),
        Op::create("d/f"),
        Op::write("d/f", 0, 3000, "A"),
        Op::fsync("d/f"),
        Op::create("g"),
        Op::write("g", 0, 120_000, "B"),
        Op::fsync("g"),
        Op::Sync,
        Op::write("g", 50_000, 60_000, "C"),
        Op::rename("d/f", "f"),
        Op::fsync("/"),
        Op::fsync("g"),
        Op::Sync,
        Op::create("h"),
        Op::fsync("h"),
    ]
}

/// Runs the program on a device that fails at the `skip`-th access of these kinds. Did it?
fn run(operations: Operations, action: Action, skip: u64) -> bool {
    let what = format!("{action:?} after {skip} of {operations:?}");
    let start = formatted(16 << 20, 256 << 10, 2);
    let mut faulty = None;
    let options = OpenOptions { caches: SMALL_CACHES, ..OpenOptions::default() };
    let opened = Machine::open_through(start, &options, |recording| {
        let device = Arc::new(FaultyDevice::new(recording));
        faulty = Some(Arc::clone(&device));
        device
    });
    let mut machine = opened.expect("no fault yet");
    let faulty = faulty.expect("it was wrapped");
    faulty.add(FaultRule::new(operations, action.clone()).skip(skip).times(1));
    let mut oracle = DurabilityOracle::new(Model::default());
    let mut failed = false;
    for (now, op) in (1_u64..).zip(program()) {
        let now = Time::from(now);
        oracle.sent(&op, now);
        match machine.try_apply(PROGRAM, &op, now) {
            Ok(()) => {
                assert!(!failed, "{what}: {op:?} succeeded after the failure");
                oracle.acknowledge(&op, now).expect("the model agrees");
            }
            Err(Answer::Broken(_)) => {
                failed = true;
                break;
            }
            Err(Answer::No(error)) => panic!("{what}: {op:?}: {error}"),
        }
    }
    if !failed {
        return false;
    }
    assert!(machine.store.failure().is_some(), "{what}: the store is latched");
    let superblock = *machine.committer.superblock();
    let again = machine.call(PROGRAM, |engine| {
        let operation = subvol_storage::operation::Operation::CreateUnnamed {
            parent: subvol_storage::limits::ROOT_INODE,
            mode: 0o100_600,
            umask: 0,
            uid: 0,
            gid: 0,
        };
        engine.execute(&operation, Default::default(), None, 0)
    });
    assert!(matches!(again, Err(support::machine::Fault::Refused(FsError::Io))), "{what}: {again:?}");
    assert!(
        machine.try_apply(PROGRAM, &Op::fsync("/"), Time::from(99)).is_err(),
        "{what}: an fsync of lost data"
    );
    assert!(machine.try_commit().is_err(), "{what}: a commit after a failure");
    assert_eq!(*machine.committer.superblock(), superblock, "{what}");
    for seed in 0..6 {
        let image = machine.device.crash_image(machine.device.position(), seed);
        let mut after = Machine::open(image, SMALL_CACHES).unwrap_or_else(|error| panic!("{what}: {error}"));
        sound(&mut after, &what);
        oracle.check(&after.tree(PROGRAM)).unwrap_or_else(|violation| panic!("{what}: {violation}"));
    }
    true
}

#[test]
fn nothing_acknowledged_is_lost_whatever_fails() {
    let mut failures = 0;
    for operations in [Operations::WRITES, Operations::FLUSHES] {
        for action in [Action::Fail(EIO), Action::FailAfterDoing(EIO), Action::FailForGood(EIO)] {
            let count = (0..).take_while(|&skip| run(operations, action.clone(), skip)).count();
            assert!(count > 2, "{operations:?} {action:?}: {count}");
            failures += count;
        }
    }
    println!("{failures} failures");
}

/// A model error that the engine cannot give here; keeps the translation honest.
#[test]
fn a_refusal_is_no_failure() {
    let mut machine = Machine::open(formatted(16 << 20, 256 << 10, 1), SMALL_CACHES).expect("a sound store");
    assert_eq!(machine.apply(0, &Op::fsync("missing"), Time::from(1)), Err(ModelError::NotFound));
    assert!(machine.store.failure().is_none());
}
