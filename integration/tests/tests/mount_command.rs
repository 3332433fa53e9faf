//! The command `subvol mount` as users and `mount(8)` call it: in the background, by its other name, with its options; and what it says of
//! mounts whose server is away.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use subvol_tests::mount::is_mounted;
use subvol_tests::{Server, Setup, Tool, binaries, process};

/// Unmounts whatever happens, so that a test that fails leaves nothing behind.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0) {
            let _ = Command::new(binaries::subvol()).args(["umount", "--lazy"]).arg(self.0).status();
        }
    }
}

fn ends_well(mut command: Command) {
    command.stdin(Stdio::null());
    let mut child = process::spawn(command).expect("started");
    let status =
        process::wait(&mut child, Duration::from_secs(20)).expect("it does not wait for the mount's end");
    assert!(status.success(), "{status}");
}

#[test]
fn an_fstab_line_mounts_in_the_background_and_its_options_count() {
    let server = Server::start(Setup::default());
    Tool::beside(&server).ok(["volume", "create", "work"]);
    let folder = tempfile::tempdir().expect("a folder");
    let (directory, log) = (folder.path().join("on"), folder.path().join("log"));
    std::fs::create_dir(&directory).expect("a directory");
    let _unmounted = Unmounted(&directory);
    let helper = folder.path().join("mount.fuse.subvol");
    symlink(binaries::subvol(), &helper).expect("a link");
    let mut command = Command::new(helper);
    let options = format!(
        "rw,nofail,_netdev,locks=local,server={},access_log={}",
        server.socket().display(),
        log.display()
    );
    command.arg("work").arg(&directory).args(["-n", "-o", &options]);
    ends_well(command);
    assert!(is_mounted(&directory), "it is mounted when the command returns");
    std::fs::write(directory.join("file"), "text").expect("written");
    let listed = Tool::beside(&server).json(["mount", "list", "--json"]);
    let mounts = listed["mounts"].as_array().expect("a list");
    let ours = mounts.iter().find(|mount| mount["directory"] == directory.to_str().expect("text"));
    let report = &ours.expect("listed")["report"];
    assert_eq!((&report["form"], &report["connected"]), (&"remote".into(), &true.into()), "{report}");
    let mut command = Command::new(binaries::subvol());
    command.arg("umount").arg(&directory);
    ends_well(command);
    assert!(!is_mounted(&directory));
    let process = format!("/proc/{}/cmdline", report["process"]);
    let until = Instant::now() + Duration::from_secs(10);
    // Of a process that ended and that nobody has waited for, an empty line is left.
    while std::fs::read(&process).is_ok_and(|line| !line.is_empty()) {
        assert!(Instant::now() < until, "the process of the mount goes on without it");
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = std::fs::read_to_string(log).expect("a log");
    let operations: Vec<String> = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["operation"].to_string())
        .collect();
    assert!(operations.iter().any(|name| name == "\"Write\""), "{operations:?}");
}

#[test]
fn a_mount_whose_server_is_away_is_listed_without_waiting_for_it() {
    let mut server = Server::start(Setup::default());
    let tool = Tool::beside(&server);
    tool.ok(["volume", "create", "work"]);
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().to_str().expect("text");
    let _unmounted = Unmounted(folder.path());
    tool.ok(["mount", "work", directory]);
    server.kill();
    let since = Instant::now();
    let listed = tool.ok(["mount", "list"]);
    assert!(since.elapsed() < Duration::from_secs(20), "it waited for the server");
    let line = listed.lines().find(|line| line.contains(directory)).expect("listed");
    assert!(line.contains("does not answer"), "{line}");
    tool.ok(["umount", "--lazy", directory]);
    assert!(!is_mounted(folder.path()));
}

#[test]
fn what_cannot_be_mounted_is_said_by_the_command_itself() {
    let server = Server::start(Setup::default());
    let tool = Tool::beside(&server);
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().to_str().expect("text");
    tool.run(["mount", "nothing", directory]).failure(1, "nothing");
    tool.ok(["volume", "create", "work"]);
    tool.run(["mount", "work", "/dev/null/no"]).failure(1, "must be an existing directory");
    tool.run(["mount", "work", directory, "-o", "quickly"]).failure(2, "quickly");
    assert!(!is_mounted(folder.path()));
}
