//! A real tree of files goes into a volume and comes back the same: content, modes, times, owners, links, holes, odd names; also after
//! a commit and kill -9. The long form has 50 000 names: `cargo test -p subvol-tests --release -- --ignored soak_tree`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use subvol_tests::local_tree::{count, differences, generate, sources};
use subvol_tests::{Random, Server, Setup, Tool};

#[test]
fn a_real_tree_survives_put_sync_kill_and_get() {
    round_trip("tree", 10_000);
}

#[ignore = "long: 50 000 names"]
#[test]
fn soak_tree() {
    round_trip("soak_tree", 50_000);
}

fn round_trip(name: &str, names: u64) {
    let mut random = Random::from_environment(name);
    let made = tempfile::Builder::new().prefix("subvold-tree-").tempdir().expect("a temporary folder");
    let (mut roots, found) = sources(names * 9 / 10);
    let generated = made.path().join("generated");
    generate(&generated, (names.saturating_sub(found)).max(names / 20), &mut random);
    roots.push(generated);
    let total: u64 = roots.iter().map(|root| 1 + count(root)).sum();
    assert!(total >= names, "{total} names");

    let setup = Setup { store_bytes: 8 << 30, ..Setup::default() };
    let mut server = Server::start(setup);
    let tool = Tool::beside(&server);
    tool.ok(["volume", "create", "tree"]);
    tool.ok(["mkdir", "tree:/in"]);
    let mut put: Vec<OsString> = vec!["put".into(), "-r".into()];
    put.extend(roots.iter().map(|root| root.clone().into_os_string()));
    put.push("tree:/in".into());
    tool.ok(&put);
    compare(&tool, &roots, &made.path().join("before"));

    let usage = numbers(&tool);
    tool.ok(["sync", "tree:/"]);
    server.kill();
    server.restart();
    assert_eq!(numbers(&tool), usage, "usage after kill -9 and restart");
    compare(&tool, &roots, &made.path().join("after"));

    // A second put replaces every file with the same: nothing may be left over, nothing counted twice.
    tool.ok(&put);
    assert_eq!(numbers(&tool), usage, "usage after the same files were put again");
    tool.ok(["rm", "-r", "tree:/in"]);
    assert_eq!(numbers(&tool), (0, 0), "usage of the emptied volume");
    assert!(server.terminate().success());
    eprintln!("{name}: {total} names");
}

fn numbers(tool: &Tool) -> (u64, u64) {
    let answer = tool.json(["df", "tree:"]);
    let volume = &answer["volumes"][0];
    let number = |key: &str| volume[key].as_u64().unwrap_or_else(|| panic!("{key} in {answer}"));
    (number("used_bytes"), number("used_inodes"))
}

fn compare(tool: &Tool, roots: &[PathBuf], into: &Path) {
    std::fs::create_dir(into).expect("a directory");
    let words: Vec<OsString> = vec!["get".into(), "-r".into(), "-T".into(), "tree:/in".into(), into.into()];
    tool.ok(&words);
    for root in roots {
        let copy = into.join(root.file_name().expect("a name"));
        let lines = differences(root, &copy);
        assert!(lines.is_empty(), "{}:\n{}", root.display(), lines.join("\n"));
    }
    let copies = std::fs::read_dir(into).expect("a directory").count();
    assert_eq!(copies, roots.len(), "nothing else came back");
    std::fs::remove_dir_all(into).expect("the copy");
}
