//! stress-ng: every call it knows that concerns file systems, at once, with its own verification.

use std::process::Command;
use std::time::Duration;

use super::folder;
use crate::mount::MountUnderTest;
use crate::mount::command::{has, run as run_command};

/// Stressors of the class that say nothing about a file system under load: events of inotify must come within a fixed time.
const NOT_OURS: &str = "inotify,binderfs";

/// Every stressor of its class "filesystem", all at once, for a minute.
pub(super) fn run(mount: &MountUnderTest) {
    let path = folder(mount, "stress");
    stress(&path, &["--class", "filesystem", "--all", "1", "--exclude", NOT_OURS, "--timeout", "60s"]);
}

/// Those that make, rename, link and remove names, several of each.
pub(super) fn names(mount: &MountUnderTest) {
    let path = folder(mount, "stress-names");
    stress(
        &path,
        &[
            "--dentry",
            "2",
            "--dir",
            "2",
            "--dirdeep",
            "1",
            "--link",
            "2",
            "--symlink",
            "2",
            "--rename",
            "2",
            "--filename",
            "1",
            "--lockofd",
            "2",
            "--flock",
            "2",
            "--lockf",
            "2",
            "--xattr",
            "2",
            "--timeout",
            "30s",
        ],
    );
}

fn stress(path: &std::path::Path, words: &[&str]) {
    assert!(has("stress-ng"), "stress-ng is missing: `cargo xtask soak programs` installs it");
    let mut command = Command::new("stress-ng");
    command.arg("--temp-path").arg(path).args(["--verify", "--metrics-brief", "--oomable"]).args(words);
    let outcome = run_command(command, Duration::from_secs(300));
    assert_eq!(outcome.code, Some(0), "stress-ng {words:?}:\n{}", outcome.output);
    assert!(!outcome.output.contains("fail:"), "{}", outcome.output);
    eprintln!("{}", outcome.output);
}
