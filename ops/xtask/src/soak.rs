//! `cargo xtask soak`: long runs whose short forms are in the tests. Each has a documented result in
//! `ops/docs/operations.md`.

mod programs;

use crate::{cargo, run as run_step};
use anyhow::Result;
use clap::{Args, ValueEnum};
use programs::MountRun;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    /// Which run
    #[arg(value_enum)]
    run: Run,
    /// Rounds, where the run has rounds
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Of the run `programs`, only this one
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// For `programs` and `conformance`: a directory to work in, for instance a mount, instead of mounts of a new server
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Run {
    /// kill -9 of the real server under load, again and again
    Kill,
    /// All sequences of three operations, crashed everywhere
    Enumerate,
    /// Replay of a ring of 1 GiB
    Ring,
    /// 50 000 files copied in and out, with a kill -9 in between
    Tree,
    /// 10 000 idle connections
    Idle,
    /// dbench's load with 1, 8 and 16 clients for 60 seconds each
    Dbench,
    /// Real programs on mounts: git, SQLite, PostgreSQL, cargo, npm, rsync, tar, stress-ng
    Programs,
    /// pjdfstest, and fsx with ten seeds, on mounts
    Conformance,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    let rounds = options.rounds.to_string();
    let directory = options.directory.as_deref();
    let (package, test) = match options.run {
        Run::Programs => {
            let only = options.only.as_deref();
            return programs::run(root, &MountRun::Programs { only }, directory);
        }
        Run::Conformance => return programs::run(root, &MountRun::Conformance, directory),
        Run::Kill => ("subvol-tests", "soak_kill"),
        Run::Enumerate => ("subvol-storage", "soak_enumerate"),
        Run::Ring => ("subvol-storage", "soak_ring"),
        Run::Tree => ("subvol-tests", "soak_tree"),
        Run::Idle => ("subvol-tests", "soak_idle"),
        Run::Dbench => ("subvol-tests", "soak_dbench"),
    };
    run_step(&mut cargo(root, &["build", "--release", "--locked", "-p", "subvold", "-p", "subvol"]))?;
    let mut command = cargo(root, &["test", "--release", "--locked", "-p", package, "--"]);
    command.args(["--ignored", "--nocapture", test]);
    command.env("SUBVOLD_BIN_DIR", root.join("target/release")).env("SOAK_ROUNDS", rounds);
    run_step(&mut command)
}
