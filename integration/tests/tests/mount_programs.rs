//! Real programs on mounts of every kind: the short ones as tests, all of them as the soak run.
//!
//! The long form: `cargo xtask soak programs [--only NAME] [DIR]`.

use std::time::Duration;

use subvol_tests::mount::{self, programs};

#[test]
fn git() {
    mount::each(|mount| programs::run("git", mount));
}

#[test]
fn sqlite() {
    mount::each(|mount| programs::run("sqlite", mount));
}

#[test]
fn sqlite_through_two_mounts() {
    mount::each_pair(|one, two| programs::sqlite(one.directory(), two.directory()));
}

#[test]
fn rsync() {
    mount::each(|mount| programs::run("rsync", mount));
}

#[test]
fn tar() {
    mount::each(|mount| programs::run("tar", mount));
}

#[test]
fn cargo() {
    mount::each(|mount| programs::run("cargo", mount));
}

#[ignore = "long: all programs, or the one that SOAK_ONLY names"]
#[test]
fn soak_programs() {
    let only = std::env::var("SOAK_ONLY").ok();
    for program in programs::ALL {
        if only.as_deref().is_none_or(|name| name == program.name) {
            mount::each_within(Duration::from_secs(1800), |mount| programs::run(program.name, mount));
        }
    }
    if let Some(name) = only {
        assert!(programs::ALL.iter().any(|program| program.name == name), "there is no program {name}");
    }
}
