//! `cargo xtask test`: what continuous integration runs, from a fresh clone on a fresh machine.

use crate::{cargo, run as run_step};
use anyhow::{Result, bail};
use clap::Args;
use std::path::Path;
use std::process::Stdio;

#[derive(Args)]
pub struct Options {
    /// Do not install anything; fail if something is missing
    #[arg(long)]
    no_install: bool,
    /// Only the checks (formatting, lints, documentation, dependencies), not the tests
    #[arg(long)]
    checks_only: bool,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    if !options.no_install {
        crate::tools::install_for_tests()?;
    }
    checks(root)?;
    if options.checks_only {
        return Ok(());
    }
    tests(root)
}

fn checks(root: &Path) -> Result<()> {
    run_step(&mut cargo(root, &["fmt", "--all", "--check"]))?;
    crate::tidy::run(root)?;
    run_step(
        cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
            .env("CARGO_TERM_COLOR", "never"),
    )?;
    let mut docs = cargo(root, &["doc", "--workspace", "--no-deps", "--locked"]);
    run_step(docs.env("RUSTDOCFLAGS", "-D warnings"))?;
    run_step(&mut cargo(root, &["deny", "--locked", "check", "bans", "licenses", "sources"]))?;
    advisories(root)
}

/// The advisory database lives elsewhere on the network: without it the rest of the checks still counts.
fn advisories(root: &Path) -> Result<()> {
    let fetched = cargo(root, &["deny", "fetch", "db"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if fetched {
        return run_step(&mut cargo(root, &["deny", "--locked", "check", "advisories"]));
    }
    eprintln!("the advisory database cannot be reached: advisories were NOT checked");
    Ok(())
}

fn tests(root: &Path) -> Result<()> {
    if !Path::new("/usr/share/dbench/client.txt").exists() {
        bail!("dbench's load file is missing: install Debian's package dbench, or run without --no-install");
    }
    // The whole-product tests start these binaries.
    run_step(&mut cargo(root, &["build", "--release", "--locked", "-p", "subvold", "-p", "subvol"]))?;
    let mut all = cargo(root, &["test", "--workspace", "--locked"]);
    run_step(all.env("SUBVOLD_BIN_DIR", root.join("target/release")))
}
