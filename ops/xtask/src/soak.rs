//! `cargo xtask soak`: long runs whose short forms are in the tests. Each has a documented result in
//! `ops/docs/operations.md`.

use crate::{cargo, run as run_step};
use anyhow::Result;
use clap::{Args, ValueEnum};
use std::path::Path;

#[derive(Args)]
pub struct Options {
    /// Which run
    #[arg(value_enum)]
    run: Run,
    /// Rounds, where the run has rounds
    #[arg(long, default_value_t = 50)]
    rounds: u32,
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
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    let rounds = options.rounds.to_string();
    let (package, test) = match options.run {
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
