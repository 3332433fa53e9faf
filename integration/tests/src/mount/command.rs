//! Programs and scripts that work on a mount, and that must end well and in time.
//!
//! Invariant: a script that does not end is killed with everything it started, so that the mount can be taken away.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process;

/// How long one script may take, unless it says otherwise.
pub const SCRIPT_BOUND: Duration = Duration::from_secs(180);

/// How a script ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` after a signal or after the bound.
    pub code: Option<i32>,
    /// Standard output and standard error, as they came.
    pub output: String,
}

/// Runs a bash script in a folder with variables; it must succeed. Gives what it printed.
///
/// # Panics
/// If it fails or does not end.
pub fn script(folder: &Path, variables: &[(&str, &Path)], text: &str) -> String {
    let outcome = try_script(folder, variables, text);
    assert_eq!(outcome.code, Some(0), "this script failed:\n{text}\nit printed:\n{}", outcome.output);
    outcome.output
}

/// As [`script`], for scripts that may fail.
///
/// # Panics
/// If bash is missing.
pub fn try_script(folder: &Path, variables: &[(&str, &Path)], text: &str) -> Outcome {
    // Which command failed is the first thing to know.
    let text = format!("trap 'echo \"failed: $BASH_COMMAND\"' ERR\n{text}");
    let mut command = Command::new("bash");
    command.args(["-Eeuo", "pipefail", "-c", &text]).current_dir(folder).envs(variables.iter().copied());
    run(command, SCRIPT_BOUND)
}

/// Runs a program.
///
/// # Panics
/// If it cannot be started.
pub fn run(mut command: Command, bound: Duration) -> Outcome {
    let shown = format!("{command:?}");
    let mut file: File = tempfile::tempfile().expect("a temporary file");
    let copy = || Stdio::from(file.try_clone().expect("a file"));
    command.stdin(Stdio::null()).stdout(copy()).stderr(copy());
    // Messages are read by tests, and users' settings must not count.
    command.env("LC_ALL", "C").env("NO_COLOR", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").process_group(0);
    let mut child = process::spawn(command).unwrap_or_else(|error| panic!("{shown}: {error}"));
    let status = process::wait(&mut child, bound);
    if status.is_none() {
        let group = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = child.wait();
    }
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file");
    let mut output = String::from_utf8_lossy(&bytes).into_owned();
    if status.is_none() {
        output.push_str(&format!("\n(not done after {bound:?})"));
    }
    Outcome { code: status.and_then(|status| status.code()), output }
}

/// Whether a program can be found.
#[must_use]
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
