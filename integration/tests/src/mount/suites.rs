//! Public conformance suites on a directory: pjdfstest (what POSIX says about calls) and fsx (data against a copy in memory).
//!
//! Both are installed by `cargo xtask test`; their settings stand beside the tests of this crate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::command::{Outcome, has, run};

/// What the kernel's btrfs passes with the fewest features that make sense on Linux.
pub const PASSED_AT_LEAST: u64 = 349;
const PJDFSTEST_BOUND: Duration = Duration::from_secs(280);
const FSX_BOUND: Duration = Duration::from_secs(600);

/// The sums of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Cases that hold.
    pub passed: u64,
    /// Cases that do not.
    pub failed: u64,
    /// Cases that do not apply.
    pub skipped: u64,
}

/// Runs pjdfstest in a directory; every case that applies must hold.
///
/// # Panics
/// If one does not, or if too few apply.
pub fn pjdfstest(directory: &Path) {
    let Outcome { code, output } = run_pjdfstest(directory, &[]);
    let sums = sums_of(&output)
        .unwrap_or_else(|| panic!("pjdfstest ended with {code:?} and without sums:\n{output}"));
    eprintln!("pjdfstest: {sums:?}");
    assert!(sums.failed == 0 && code == Some(0), "{sums:?}\n{}", failures_of(&output));
    assert!(sums.passed >= PASSED_AT_LEAST, "{sums:?}: too few cases apply:\n{output}");
}

/// Runs the cases that match one of the patterns; all, if there are none.
///
/// # Panics
/// If it is not installed.
#[must_use]
pub fn run_pjdfstest(directory: &Path, patterns: &[&str]) -> Outcome {
    assert!(has("pjdfstest"), "pjdfstest is missing: run `cargo xtask test`, which installs it");
    assert!(rustix::process::geteuid().is_root(), "pjdfstest changes users: run it as root");
    // Renames and links between file systems need a second one.
    let second = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let mut command = Command::new("pjdfstest");
    command.arg("-c").arg(settings("pjdfstest.toml")).arg("-p").arg(directory).arg("-s").arg(second.path());
    command.args(patterns);
    run(command, PJDFSTEST_BOUND)
}

/// Runs fsx on a file of a directory.
///
/// # Panics
/// If fsx finds a fault.
pub fn fsx(directory: &Path, seed: u64, operations: u64) {
    assert!(has("fsx"), "fsx is missing: run `cargo xtask test`, which installs it");
    // What it saves of a failed run must not lie on the file system that failed.
    let artifacts = tempfile::Builder::new().prefix("fsx-").tempdir().expect("a folder");
    let mut command = Command::new("fsx");
    command.arg("-f").arg(settings("fsx.toml")).arg("-P").arg(artifacts.path());
    command.args(["-N", &operations.to_string(), "-S", &seed.to_string()]);
    command.arg(directory.join(format!("fsx-{seed}")));
    let outcome = run(command, FSX_BOUND);
    if outcome.code != Some(0) {
        let kept = artifacts.keep();
        let tail: Vec<&str> = outcome.output.lines().rev().take(60).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        panic!("fsx, seed {seed}: {:?}; files in {}\n{}", outcome.code, kept.display(), tail.join("\n"));
    }
}

fn settings(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The numbers of the last line; `None` if it did not come so far.
fn sums_of(output: &str) -> Option<Sums> {
    let line = output.lines().rev().find(|line| line.contains("Summary"))?;
    let words: Vec<&str> =
        line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let before = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
    };
    Some(Sums { failed: before("failed")?, skipped: before("skipped")?, passed: before("passed")? })
}

/// Names and reasons of what failed.
fn failures_of(output: &str) -> String {
    let mut lines = output.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line.contains("FAILED") || line.contains("PASSED UNEXPECTEDLY") {
            found.push(line.to_owned());
            let indented = |line: &&str| line.starts_with(['\t', ' ']) && !line.contains("::");
            while let Some(reason) = lines.next_if(indented) {
                found.push(reason.to_owned());
            }
        }
    }
    found.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read() {
        let output = "rename::x   FAILED\n\tleft: 1\nlink::y  ok\n\nSummary: 1 failed, 16 skipped, 381 passed, 0 expected failures, 398 total\n";
        assert_eq!(sums_of(output), Some(Sums { passed: 381, failed: 1, skipped: 16 }));
        assert_eq!(failures_of(output), "rename::x   FAILED\n\tleft: 1");
        assert_eq!(sums_of("Error: no folder"), None);
    }
}
