//! `cargo xtask soak programs [--only NAME] [DIR]`: real programs on mounts of a real server, or on a directory.
//!
//! The programs and their verification are in the whole-product tests; this makes sure that they are installed and names the mount.

use crate::{cargo, run as run_step, tools};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// The long runs on mounts.
pub enum MountRun<'a> {
    /// All programs, or one.
    Programs {
        /// The one.
        only: Option<&'a str>,
    },
    /// pjdfstest once, fsx with ten seeds.
    Conformance,
}

/// Runs on mounts of every kind; with a directory, there (it can be a mount that is there already).
pub fn run(root: &Path, run: &MountRun<'_>, directory: Option<&Path>) -> Result<()> {
    tools::install_for_soak()?;
    let (test, name) = match run {
        MountRun::Programs { .. } => ("mount_programs", "soak_programs"),
        MountRun::Conformance => ("mount_conformance", "soak_conformance"),
    };
    let mut command = test_command(root, test, name);
    if let MountRun::Programs { only: Some(program) } = run {
        command.env("SOAK_ONLY", program);
    }
    match directory {
        Some(directory) => {
            let full = directory.canonicalize().with_context(|| directory.display().to_string())?;
            if !full.is_dir() {
                bail!("{} is not a directory", full.display());
            }
            command.env("SUBVOL_TEST_DIR", full);
        }
        None => {
            run_step(&mut cargo(root, &["build", "--release", "--locked", "-p", "subvold", "-p", "subvol"]))?;
            command.env("SUBVOLD_BIN_DIR", root.join("target/release"));
        }
    }
    run_step(&mut command)
}

fn test_command(root: &Path, test: &str, name: &str) -> Command {
    let mut command =
        cargo(root, &["test", "--release", "--locked", "-p", "subvol-tests", "--test", test, "--"]);
    command.args(["--ignored", "--nocapture", name]);
    command
}
