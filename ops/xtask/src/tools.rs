//! Programs that the tests use and that do not come with the toolchain: which, and how they get onto a machine.
//!
//! Invariant: what is installed already is left alone, so a machine without a network can run the tests if it has everything.

use crate::run as run_step;
use anyhow::Result;
use std::process::{Command, Stdio};

/// Debian packages of the tests. dbench brings its load; the others are programs that work on a mount.
const FOR_TESTS: [&str; 7] = ["dbench", "git", "sqlite3", "rsync", "acl", "attr", "procps"];
/// Debian packages of the long runs only.
const FOR_SOAK: [&str; 3] = ["postgresql-15", "stress-ng", "npm"];
/// Crate, version, and a call that succeeds if it is installed.
const CRATES: [(&str, &str, &[&str]); 3] = [
    ("cargo-deny", "^0.20", &["cargo", "deny", "--version"]),
    ("pjdfstest", "=0.2.2", &["pjdfstest", "--version"]),
    ("fsx", "=0.3.2", &["fsx", "--version"]),
];

/// Installs what `cargo xtask test` uses.
pub fn install_for_tests() -> Result<()> {
    packages(&FOR_TESTS)?;
    for (name, version, probe) in CRATES {
        let installed = probe.split_first().is_some_and(|(program, words)| responds(program, words));
        if !installed {
            run_step(Command::new("cargo").args(["install", name, "--locked", "--version", version]))?;
        }
    }
    Ok(())
}

/// Installs what the long runs use besides.
pub fn install_for_soak() -> Result<()> {
    install_for_tests()?;
    packages(&FOR_SOAK)
}

fn packages(wanted: &[&str]) -> Result<()> {
    let missing: Vec<&&str> = wanted.iter().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    run_step(Command::new("apt-get").args(["update", "-qq"]))?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    run_step(install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(missing))
}

/// As a package, or as a program of that name from elsewhere.
fn is_installed(package: &str) -> bool {
    responds("dpkg", &["-s", package]) || (package != "dbench" && responds(package, &["--version"]))
}

fn responds(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    let quiet = command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
