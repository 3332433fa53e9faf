//! Bounded exhaustive programs (as CrashMonkey's ACE makes them): every sequence of one and two operations with every
//! choice of what is made durable between and after. Each is crashed at every write and flush since its last operation
//! began; the crashes before that belong to the shorter programs.
//!
//! Three operations are far too many to run at once. A sample of them:
//!
//! ```text
//! SUBVOL_STEP=20011 SUBVOL_FIRST=0 cargo test -p subvol-storage --release --test crash_enumerated -- --ignored
//! ```
//! runs every 20011th of some 5 * 10^8, from number `SUBVOL_FIRST` on.

mod support;

use subvol_model::Model;
use subvol_model::enumerate::{Program, programs};
use subvol_storage::device::MemoryDevice;
use support::crash::{Counts, Depth, QUICK, Run, Setups, in_parallel};
use support::machine::formatted;

/// After the crashes of one program in this many, life goes on.
const LIFE_EVERY: usize = 32;

/// Where a program's last operation begins: at the last change, which something that makes it durable may follow.
fn last_operation(program: &Program) -> usize {
    program.body.iter().rposition(|op| !op.changes_nothing()).expect("a program has an operation")
}

fn run(program: &Program, device: MemoryDevice, model: Model, life: bool) -> Counts {
    let mut run = Run::with_model(device, model, Depth { life_every: u64::from(life), ..QUICK });
    let last = last_operation(program);
    for (index, op) in program.body.iter().enumerate() {
        run.watching = index >= last;
        run.step(op);
    }
    // Nothing to see on the device is a crash point too.
    if run.counts.images == 0 {
        run.look_now();
    }
    run.counts
}

fn run_all(length: usize, first: usize, step: usize) -> Counts {
    let start = {
        let mut run = Run::new(formatted(8 << 20, 256 << 10, 2), QUICK);
        run.furnish_bystander();
        run.machine.crash()
    };
    let counts = in_parallel(|number, workers| {
        let (mut counts, mut setups) = (Counts::default(), Setups::default());
        for (index, program) in programs(length).enumerate().skip(first).step_by(step) {
            if index / step % workers != number {
                continue;
            }
            let (device, model) = setups.get(&start, &program.setup);
            let work = std::panic::AssertUnwindSafe(|| {
                run(&program, device, model, (index / step).is_multiple_of(LIFE_EVERY))
            });
            match std::panic::catch_unwind(work) {
                Ok(found) => counts.add(&found),
                Err(reason) => {
                    eprintln!("program {index} of length {length}: {:?}", program.body);
                    std::panic::resume_unwind(reason);
                }
            }
        }
        counts
    });
    println!("length {length}, every {step}: {counts:?}");
    counts
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_program_of_one_operation() {
    let counts = run_all(1, 0, 1);
    counts.assert_not_vacuous();
    assert!(counts.lives > 0);
    assert_eq!(counts.programs, subvol_model::enumerate::count(1) as u64);
}

#[test]
fn every_program_of_two_operations() {
    let step = number("SUBVOL_STEP", 1);
    let counts = run_all(2, 0, step);
    counts.assert_not_vacuous();
    let all = subvol_model::enumerate::count(2);
    assert_eq!(counts.programs, all.div_ceil(step) as u64);
}

#[test]
#[ignore = "hours; see the head of the file"]
fn soak_enumerate() {
    let counts = run_all(3, number("SUBVOL_FIRST", 0), number("SUBVOL_STEP", 20_011));
    counts.assert_not_vacuous();
}
