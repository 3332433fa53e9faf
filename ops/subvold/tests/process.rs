//! The server as a process: signals, a second server, things that are no store.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_subvold"));
    command
        .current_dir(folder)
        .args(["--size", "64M", "--listen", "127.0.0.1:0"])
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts a server and waits until it listens.
fn start(folder: &Path, words: &[&str]) -> Child {
    let mut child = command(folder, words).spawn().expect("started");
    let begun = Instant::now();
    while !folder.join("subvold-data/subvold.sock").exists() {
        if let Some(status) = child.try_wait().unwrap() {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("{status}: {error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn stop(child: Child, signal: rustix::process::Signal) -> Output {
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, signal).expect("sent");
    child.wait_with_output().expect("ended")
}

fn refusal(folder: &Path, words: &[&str]) -> String {
    let output = command(folder, words).output().expect("ran");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_signal_ends_it_in_order_and_it_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let child = start(folder.path(), &[]);
        // The socket is there a moment before the signals are; an early one would end it the hard way.
        std::thread::sleep(Duration::from_millis(300));
        let output = stop(child, signal);
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        for part in ["unix socket", "tcp", "volume create", "committing and stopping"] {
            assert!(told.contains(part), "{part} is missing in {told}");
        }
        assert!(!folder.path().join("subvold-data/subvold.sock").exists());
    }
    let token = folder.path().join("subvold-data/default.token");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(token).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn after_a_kill_it_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(folder.path(), &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    // The dead server's socket is still there.
    let mut child = command(folder.path(), &[]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none(), "it serves");
    assert!(stop(child, rustix::process::Signal::TERM).status.success());
}

#[test]
fn it_refuses_what_it_must_not_touch() {
    let folder = tempfile::tempdir().unwrap();
    let child = start(folder.path(), &[]);
    assert!(refusal(folder.path(), &[]).contains("another"), "a second server");
    assert!(stop(child, rustix::process::Signal::TERM).status.success());

    let other = folder.path().join("other.img");
    let mut bytes = vec![0; 64 << 20];
    bytes[510] = 0x55;
    std::fs::write(&other, &bytes).unwrap();
    assert!(refusal(folder.path(), &["--store", "other.img"]).contains("something else"));
    assert_eq!(std::fs::read(&other).unwrap(), bytes, "nothing was changed");

    std::fs::write(folder.path().join("bad.toml"), "colour = 'red'\n").unwrap();
    assert!(refusal(folder.path(), &["--config", "bad.toml"]).contains("bad.toml"));
    assert!(refusal(folder.path(), &["--discard-log", "nothing"]).contains("no such volume"));
    let output = command(folder.path(), &["--frobnicate"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a wrong argument: {output:?}");
}
