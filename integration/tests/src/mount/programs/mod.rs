//! Real programs on a mount, each with a verification of its own.
//!
//! The short ones are tests; all of them are `cargo xtask soak programs [--only NAME] [DIR]`.

mod builds;
mod copies;
mod databases;
mod git;
mod postgres;
mod stress;

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::MountUnderTest;

/// A program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// What it is called by.
    pub name: &'static str,
    /// Short enough for every test run.
    pub is_short: bool,
    /// Uses and judges it; panics on a fault.
    run: fn(&MountUnderTest),
}

/// All programs, the short ones first.
pub const ALL: [Program; 9] = [
    Program { name: "git", is_short: true, run: git::run },
    Program {
        name: "sqlite",
        is_short: true,
        run: |mount| databases::sqlite(mount.directory(), mount.directory()),
    },
    Program { name: "rsync", is_short: true, run: copies::rsync },
    Program { name: "tar", is_short: true, run: copies::tar },
    Program { name: "cargo", is_short: true, run: builds::cargo },
    Program { name: "npm", is_short: false, run: builds::npm },
    Program { name: "postgres", is_short: false, run: postgres::run },
    Program { name: "stress", is_short: false, run: stress::run },
    // Last: it takes all the inodes and the room that it gets.
    Program { name: "stress-names", is_short: false, run: stress::names },
];

pub use databases::sqlite;

/// Runs one program in a mount.
///
/// # Panics
/// If there is no such program, or if it finds a fault.
pub fn run(name: &str, mount: &MountUnderTest) {
    let program = ALL.iter().find(|program| program.name == name);
    let program =
        program.unwrap_or_else(|| panic!("{name} is none of {:?}", ALL.map(|program| program.name)));
    let start = Instant::now();
    (program.run)(mount);
    eprintln!("{name}: {:.1} s", start.elapsed().as_secs_f64());
}

/// A new folder for a program in the mount.
fn folder(mount: &MountUnderTest, name: &str) -> PathBuf {
    let folder = mount.path(name);
    std::fs::create_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}

/// The workspace, whose repository is the one that git clones.
fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}
