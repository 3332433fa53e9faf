//! Public conformance suites on mounts of every kind.
//!
//! The long form: `cargo xtask soak conformance`.

use std::time::Duration;

use subvol_tests::mount::{self, Kind, suites};
use subvol_tests::number_from_environment;

#[test]
fn pjdfstest_finds_no_fault() {
    mount::each(|mount| suites::pjdfstest(mount.directory()));
}

/// 200 000 operations, another seed on each kind of mount.
#[test]
fn fsx_finds_no_fault() {
    mount::each_within(Duration::from_secs(900), |mount| {
        let seed = if mount.kind() == Kind::Remote { 2 } else { 1 };
        fsx(mount.directory(), &[seed]);
    });
}

#[ignore = "long: ten seeds"]
#[test]
fn soak_conformance() {
    mount::each_within(Duration::from_secs(3600), |mount| {
        suites::pjdfstest(mount.directory());
        let first = number_from_environment("SEED", 100);
        for seed in (first..first + 10).step_by(2) {
            fsx(mount.directory(), &[seed, seed + 1]);
        }
    });
}

fn fsx(directory: &std::path::Path, seeds: &[u64]) {
    let operations = number_from_environment("FSX_OPERATIONS", 200_000);
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(move || suites::fsx(directory, *seed, operations));
        }
    });
}
