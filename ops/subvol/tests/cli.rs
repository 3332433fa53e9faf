//! The command line as a script uses it: arguments in, output and exit code out, against a server in memory.

mod fake;

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fake::Fake;
use tempfile::TempDir;

struct Bench {
    folder: TempDir,
    fake: Fake,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let fake = Fake::start(&folder.path().join("s"));
        let bench = Self { folder, fake };
        bench.ok(&["volume", "create", "v", "--max-bytes", "1G"], "");
        bench
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("text").to_owned()
    }

    fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_subvol"))
            .env("SUBVOLD_SERVER", self.path("s"))
            .env_remove("SUBVOLD_TOKEN_FILE")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
        child.wait_with_output().expect("ended")
    }

    fn ok(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments, "");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        errors
    }
}

#[test]
fn files_by_name() {
    let bench = Bench::new();
    bench.ok(&["mkdir", "-p", "v:/a/b"], "");
    bench.ok(&["write", "v:/a/b/f"], "hello\n");
    bench.ok(&["write", "--append", "--fsync", "v:/a/b/f"], "world\n");
    assert_eq!(bench.ok(&["cat", "v:/a/b/f"], ""), "hello\nworld\n");
    bench.ok(&["write", "v:/a/b/f"], "short");
    assert_eq!(bench.ok(&["cat", "v:/a/b/f", "v:/a/b/f"], ""), "shortshort");
    bench.ok(&["chmod", "u=rw,go=", "v:/a/b/f"], "");
    bench.ok(&["chown", "7:8", "v:/a/b/f"], "");
    bench.ok(&["ln", "v:/a/b/f", "v:/a/hard"], "");
    bench.ok(&["ln", "-s", "b/f", "v:/a/soft"], "");
    let listing = bench.ok(&["ls", "-l", "v:/a"], "");
    assert!(listing.contains("-rw------- 2 7 8 5 "), "{listing}");
    assert!(listing.contains(" soft -> b/f\n"), "{listing}");
    assert_eq!(bench.ok(&["ls", "v:/a"], ""), "b\nhard\nsoft\n");
    assert_eq!(bench.ok(&["ls", "-R", "v:/"], ""), "v:/:\na\n\nv:/a:\nb\nhard\nsoft\n\nv:/a/b:\nf\n");
    bench.ok(&["mv", "v:/a/hard", "v:/a/b"], "");
    assert_eq!(bench.ok(&["ls", "v:/a/b"], ""), "f\nhard\n");
    bench.ok(&["write", "v:/other"], "other");
    bench.ok(&["mv", "--exchange", "v:/other", "v:/a/b/f"], "");
    assert_eq!(bench.ok(&["cat", "v:/a/b/f"], ""), "other");
    bench.fails(&["mv", "--no-replace", "v:/other", "v:/a/b/f"], 1);
    bench.ok(&["truncate", "2", "v:/other"], "");
    assert_eq!(bench.ok(&["cat", "v:/other"], ""), "sh");
    bench.ok(&["xattr", "set", "v:/other", "user.k", "value"], "");
    assert_eq!(bench.ok(&["xattr", "get", "v:/other", "user.k"], ""), "value");
    assert_eq!(bench.ok(&["xattr", "list", "v:/other"], ""), "user.k\n");
    bench.ok(&["xattr", "remove", "v:/other", "user.k"], "");
    bench.ok(&["fsync", "v:/other", "v:/a"], "");
    bench.ok(&["sync", "v:"], "");
    bench.ok(&["sync"], "");
    let errors = bench.fails(&["rm", "v:/a", "v:/missing", "v:/other"], 1);
    assert!(errors.contains("by -r") && errors.contains("v:/missing"), "{errors}");
    bench.fails(&["stat", "v:/other"], 1);
    bench.ok(&["rm", "-r", "-f", "v:/a", "v:/missing"], "");
    assert_eq!(bench.ok(&["ls", "v:/"], ""), "");
}

#[test]
fn json_and_exit_codes() {
    let bench = Bench::new();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let arguments: Vec<&str> = [&["--json"], arguments].concat();
        serde_json::from_str(&bench.ok(&arguments, "")).expect("one document")
    };
    bench.ok(&["write", "v:/f"], "12345");
    assert_eq!(json(&["stat", "v:/f"])["size"], 5);
    assert_eq!(json(&["ls", "v:/"])["name"], "f");
    assert_eq!(json(&["volume", "list"])["volumes"][0]["max_bytes"], serde_json::Value::Null);
    assert_eq!(json(&["df"])["volumes"][0]["used_bytes"], 4096);
    assert_eq!(json(&["status"])["store"]["memory_bytes"], 1 << 20);
    assert!(bench.ok(&["df", "-i", "v:"], "").starts_with("VOLUME"));
    bench.fails(&["ls", "/no/volume"], 2);
    bench.fails(&["volume", "set", "v"], 2);
    bench.fails(&["rm", "-r", "v:/"], 2);
    bench.fails(&["mv", "v:/f", "w:/f"], 2);
    let errors = bench.fails(&["ls", "nope:/"], 1);
    assert!(errors.contains("no such volume"), "{errors}");
    let errors = bench.fails(&["--server", "subvol://127.0.0.1:1", "ls", "v:/"], 2);
    assert!(errors.contains("--token-file"), "{errors}");
    let errors = bench.fails(&["--server", "/nonexistent/socket", "ls", "v:/"], 1);
    assert!(errors.contains("check that the server runs"), "{errors}");
}

#[test]
fn a_tenants_token_goes_where_it_was_told_to() {
    let bench = Bench::new();
    assert_eq!(bench.ok(&["tenant", "add", "t"], ""), "secret-of-the-tenant\n");
    let file = bench.path("token");
    let printed = bench.ok(&["tenant", "add", "t", "--token-out", &file], "");
    assert!(!printed.contains("secret"), "{printed}");
    assert_eq!(fs::read_to_string(&file).expect("written"), "secret-of-the-tenant\n");
    assert_eq!(fs::metadata(&file).expect("there").mode() & 0o777, 0o600);
    bench.fails(&["tenant", "add", "t", "--token-out", &file], 1);
    let other = bench.path("other");
    bench.fails(&["tenant", "add", "taken", "--token-out", &other], 1);
    assert!(!Path::new(&other).exists());
}

fn fill(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).expect("made");
    fs::create_dir(root.join("empty")).expect("made");
    for number in 0..300 {
        fs::write(root.join(format!("sub/file{number}")), vec![number as u8; number]).expect("written");
    }
    fs::write(root.join("sub/deep/large"), vec![3; 700_000]).expect("written");
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"odd\xff\n")), b"odd").expect("written");
    fs::hard_link(root.join("sub/file7"), root.join("sub/deep/again")).expect("linked");
    symlink("sub/file8", root.join("link")).expect("linked");
    fs::set_permissions(root.join("sub/file9"), fs::Permissions::from_mode(0o4755)).expect("set");
    let sparse = fs::File::create(root.join("sparse")).expect("made");
    sparse.set_len(5 << 20).expect("grown");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 3 << 20).expect("written");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_500_000_000, 987_654_321);
    for path in ["sub/file1", "sub/deep", "sub", "empty", ""] {
        fs::File::open(root.join(path)).and_then(|file| file.set_modified(old)).expect("set");
    }
}

/// Everything that must survive a copy, sorted.
fn picture(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut ahead = vec![root.to_owned()];
    while let Some(path) = ahead.pop() {
        let metadata = fs::symlink_metadata(&path).expect("there");
        let content = if metadata.is_dir() {
            ahead.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("an entry").path()));
            String::new()
        } else if metadata.is_symlink() {
            format!("{:?}", fs::read_link(&path).expect("a link"))
        } else {
            let bytes = fs::read(&path).expect("read");
            format!("{} {}", bytes.len(), bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>())
        };
        let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
        lines.push(format!(
            "{:?} {:o} {links} {}:{} {}.{} {content}",
            path.strip_prefix(root).expect("below"),
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            if metadata.is_symlink() { 0 } else { metadata.mtime() },
            if metadata.is_symlink() { 0 } else { metadata.mtime_nsec() },
        ));
    }
    lines.sort();
    lines
}

#[test]
fn a_tree_goes_into_a_volume_and_back() {
    let bench = Bench::new();
    let (from, to) = (bench.folder.path().join("from"), bench.folder.path().join("to"));
    fill(&from);
    let summary = bench.ok(&["put", "-r", &bench.path("from"), "v:/tree"], "");
    assert!(summary.contains(" 0 failures") && summary.contains("303 files"), "{summary}");
    let executed = bench.fake.executed("v");
    assert!(executed < 1300, "{executed} steps for 300 files: not one trip each");
    bench.ok(&["get", "-r", "v:/tree", &bench.path("to")], "");
    assert_eq!(picture(&from), picture(&to));
    assert!(fs::metadata(to.join("sparse")).expect("there").blocks() < 1000);
    let stat: serde_json::Value =
        serde_json::from_str(&bench.ok(&["--json", "stat", "v:/tree/sparse"], "")).expect("json");
    assert_eq!(stat["allocated"], 4096);
    // Over what is there, in both directions.
    bench.ok(&["put", "-r", "-T", &bench.path("from"), "v:/tree"], "");
    bench.ok(&["get", "-r", "-T", "v:/tree", &bench.path("to")], "");
    assert_eq!(picture(&from), picture(&to));
    // Into a directory by its own name.
    bench.ok(&["put", "-r", &bench.path("from"), "v:/tree/empty"], "");
    assert_eq!(bench.ok(&["ls", "v:/tree/empty"], ""), "from\n");
    assert!(bench.ok(&["ls", "v:/tree"], "").contains("odd\\xff\\x0a\n"));
    // The root's content.
    let all = bench.path("all");
    bench.ok(&["get", "-r", "v:/", &all], "");
    assert!(Path::new(&all).join("tree/sub/file299").exists());
}

#[test]
fn one_bad_file_does_not_stop_the_others() {
    let bench = Bench::new();
    let folder = bench.folder.path().join("from");
    fs::create_dir(&folder).expect("made");
    fs::write(folder.join("good"), b"good").expect("written");
    fs::write(folder.join("taken"), b"taken").expect("written");
    bench.ok(&["mkdir", "-p", "v:/to/from/taken"], "");
    let errors = bench.fails(&["put", "-r", &bench.path("from"), "v:/to"], 1);
    assert!(errors.contains("taken: a directory has its name"), "{errors}");
    assert_eq!(bench.ok(&["cat", "v:/to/from/good"], ""), "good");
    bench.fails(&["put", &bench.path("from"), "v:/to"], 2);
    bench.fails(&["get", "v:/to", &bench.path("x")], 1);
}

#[test]
fn benches_run_and_clean_up() {
    let bench = Bench::new();
    let load = bench.path("load");
    fs::write(
        &load,
        r#"Deltree "\clients\client1" NT_STATUS_OK
Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1" 0x1 0x2 1 NT_STATUS_OK
Close 1 NT_STATUS_OK
NTCreateX "\clients\client1\A" 0x40 0x1 2 NT_STATUS_OBJECT_NAME_NOT_FOUND
NTCreateX "\clients\client1\A" 0x40 0x2 2 NT_STATUS_OK
WriteX 2 0 5000 5000 NT_STATUS_OK
ReadX 2 0 6000 5000 NT_STATUS_OK
LockX 2 0 1 NT_STATUS_OK
UnlockX 2 0 1 NT_STATUS_OK
QUERY_FILE_INFORMATION 2 258 NT_STATUS_OK
SET_FILE_INFORMATION 2 1004 NT_STATUS_OK
Flush 2 NT_STATUS_OK
Close 2 NT_STATUS_OK
NTCreateX "\clients\client1\A" 0x0 0x1 3 NT_STATUS_OK
Close 3 NT_STATUS_OK
Rename "\clients\client1\A" "\clients\client1\B" NT_STATUS_OK
QUERY_PATH_INFORMATION "\clients\client1\B" 1004 NT_STATUS_OK
FIND_FIRST "\clients\client1\*" 260 1366 1 NT_STATUS_OK
QUERY_FS_INFORMATION 1 NT_STATUS_OK
Unlink "\clients\client1\B" 0x6 NT_STATUS_OK
"#,
    )
    .expect("written");
    let dbench = ["bench", "dbench", "--loadfile", &load, "--clients", "3", "--seconds", "0.3"];
    let table = bench.ok(&[&dbench[..], &["--volumes", "2", "--warmup", "0.1", "--strict"]].concat(), "");
    for wanted in ["NTCreateX", "Flush: p50", "0 errors", "Throughput ", "3 clients  3 procs  max_latency="] {
        assert!(table.contains(wanted), "{wanted}: {table}");
    }
    // What the load file expects wrongly is counted and fatal.
    fs::write(&load, "Unlink \"\\none\" 0x6 NT_STATUS_OK\n").expect("written");
    bench.fails(&dbench, 1);
    fs::write(&load, "Unlink \"\\none\" NT_STATUS_OK\n").expect("written");
    assert!(bench.fails(&dbench, 1).contains("line 1: Unlink takes 2 arguments"));
    for kind in ["create", "lookup", "getattr", "fsync"] {
        let arguments =
            ["bench", "ops", "--kind", kind, "--clients", "2", "--depth", "3", "--seconds", "0.1"];
        let text = bench.ok(&[&arguments[..], &["--files", "20"]].concat(), "");
        assert!(text.contains("/s, 2 clients") && text.contains("p99"), "{text}");
    }
    bench.ok(&["bench", "idle-volumes", "--count", "3", "--used", "--settle", "0"], "");
    let raw = bench.path("raw");
    bench.ok(&["bench", "raw-device", &raw, "--seconds", "0.1", "--size", "1M", "--buffered"], "");
    assert!(!Path::new(&raw).exists());
    let left = bench.ok(&["volume", "list"], "");
    assert!(!left.contains("bench-"), "{left}");
}
