//! Starts, stops and what a server finds: its own store and others', a lost catalog, logs to be thrown away.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use subvol_client::{ErrorCode, OpenOptions};
use subvol_tests::server::Refused;
use subvol_tests::{Server, Setup, Tool, soon};

fn store(server: &Server) -> PathBuf {
    server.data().join("store.img")
}

fn refused(server: &mut Server) -> Refused {
    let refused = server.try_start().expect_err("this must not start");
    assert!(!refused.status.success(), "it exits with {}:\n{}", refused.status, refused.output);
    assert!(refused.status.code().is_some(), "it ends by itself, not by {}", refused.status);
    assert!(!refused.output.contains("panicked"), "{}", refused.output);
    refused
}

fn says(refused: &Refused, part: &str) {
    let output = refused.output.to_lowercase();
    assert!(output.contains(part), "{part:?} is not in:\n{}", refused.output);
}

#[test]
fn the_folder_of_a_server_is_for_its_owner() {
    let mut server = Server::start(Setup::default());
    let token = std::fs::metadata(server.token_file()).expect("default.token");
    assert_eq!(token.permissions().mode() & 0o7777, 0o600, "the token is its owner's only");
    assert!(std::fs::metadata(server.socket()).expect("the socket").file_type().is_socket());
    let image = std::fs::metadata(store(&server)).expect("the store");
    assert_eq!(image.len(), 1 << 30);
    assert_eq!(image.permissions().mode() & 0o077, 0, "the store is its owner's only");
    use std::os::unix::fs::MetadataExt;
    assert!(image.blocks() * 512 < 512 << 20, "the store is sparse");
    assert!(Tool::beside(&server).ok(["status"]).contains("writable"), "found without any configuration");
    assert!(server.terminate().success());
    assert!(!server.socket().exists(), "a server that stopped leaves no socket behind");
}

#[test]
fn a_second_server_on_the_same_store_is_refused() {
    let first = Server::start(Setup::default());
    let tool = Tool::beside(&first);
    tool.ok(["volume", "create", "v"]);
    let mut second = Server::at(Setup::default(), first.data().into());
    // The harness would take the first server's answers for the second's.
    second.setup_mut().socket = Some(first.beside().join("second.sock"));
    let refusal = refused(&mut second);
    says(&refusal, "in use");
    tool.run_with(["write", "v:/f"], b"undisturbed").success();
    tool.ok(["fsync", "v:/f"]);
    assert_eq!(tool.ok(["cat", "v:/f"]), "undisturbed");
}

#[test]
fn a_killed_server_leaves_nothing_that_blocks_the_next() {
    let mut server = Server::start(Setup::default());
    let token = server.token();
    for _ in 0..3 {
        server.kill();
        assert!(server.socket().exists(), "the socket of a killed server stays behind");
        server.restart();
    }
    assert_eq!(server.token(), token, "the token stays");
}

#[test]
fn what_is_no_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("subvold-data");
    std::fs::create_dir(&data).expect("a folder");
    let foreign: Vec<u8> = (0..8_u32 << 20).map(|at| (at % 251) as u8).collect();
    std::fs::write(data.join("store.img"), &foreign).expect("a file");
    let refusal = refused(&mut Server::at(Setup::default(), data.clone()));
    says(&refusal, "store.img");
    assert!(
        std::fs::read(data.join("store.img")).expect("the file") == foreign,
        "somebody's file was changed"
    );
}

/// Changes every superblock and makes its checksum right again.
fn change_superblocks(path: &Path, change: impl Fn(&mut [u8])) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).expect("the store");
    let mut changed = 0;
    for address in (0..1 << 20).step_by(4096) {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, address).expect("a block");
        if block.starts_with(b"SUBVOLD\x01") {
            change(&mut block);
            let checksum = crc32c::crc32c(&block[12..]);
            block[8..12].copy_from_slice(&checksum.to_le_bytes());
            file.write_all_at(&block, address).expect("a block");
            changed += 1;
        }
    }
    assert!(changed > 0, "no superblock in {}", path.display());
}

#[test]
fn another_format_version_is_refused_and_told() {
    let mut server = Server::start(Setup::default());
    assert!(server.terminate().success());
    change_superblocks(&store(&server), |block| block[12..16].copy_from_slice(&77_u32.to_le_bytes()));
    let refusal = refused(&mut server);
    says(&refusal, "version 77");
    change_superblocks(&store(&server), |block| block[12..16].copy_from_slice(&1_u32.to_le_bytes()));
    server.restart();
}

#[test]
fn a_damaged_superblock_is_told_and_only_accepted_on_demand() {
    use std::os::unix::fs::FileExt;
    let mut server = Server::start(Setup::default());
    let tool = Tool::beside(&server);
    tool.ok(["volume", "create", "v"]);
    tool.run_with(["write", "v:/f"], b"kept").success();
    // Two commits, so that either superblock knows the file.
    tool.ok(["sync"]);
    tool.ok(["mkdir", "v:/d"]);
    assert!(server.terminate().success());
    let file = std::fs::File::options().read(true).write(true).open(store(&server)).expect("the store");
    let slots: Vec<u64> = (0..1_u64 << 20)
        .step_by(4096)
        .filter(|address| {
            let mut magic = [0; 8];
            file.read_exact_at(&mut magic, *address).is_ok() && &magic == b"SUBVOLD\x01"
        })
        .collect();
    assert_eq!(slots.len(), 2, "{slots:?}");
    let flip = |address: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, address + 100).expect("a byte");
        file.write_all_at(&[!byte[0]], address + 100).expect("a byte");
    };
    for slot in &slots {
        flip(*slot);
        // Going back silently could lose what was acknowledged.
        says(&refused(&mut server), "damaged");
        server.setup_mut().arguments = vec!["--accept-older-superblock".into()];
        server.restart();
        assert_eq!(tool.ok(["cat", "v:/f"]), "kept");
        assert!(server.terminate().success());
        server.setup_mut().arguments.clear();
        // Serving it has written both superblocks anew.
        server.restart();
        assert!(server.terminate().success());
    }
    flip(slots[0]);
    flip(slots[1]);
    server.setup_mut().arguments = vec!["--accept-older-superblock".into()];
    says(&refused(&mut server), "damaged");
    flip(slots[0]);
    flip(slots[1]);
    server.setup_mut().arguments.clear();
    server.restart();
    assert_eq!(tool.ok(["cat", "v:/f"]), "kept");
}

#[test]
fn a_lost_catalog_is_rebuilt_from_the_store_and_told() {
    let mut server = Server::start(Setup::default());
    let tool = Tool::beside(&server);
    tool.ok(["volume", "create", "v", "--max-bytes", "1M"]);
    tool.run_with(["write", "v:/f"], b"still here").success();
    tool.ok(["tenant", "add", "red", "--token-out", "red.token"]);
    assert!(server.terminate().success());
    let mut folders: Vec<PathBuf> = std::fs::read_dir(server.data())
        .expect("the data folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir())
        .collect();
    assert_eq!(folders.len(), 1, "the catalog is the one folder: {folders:?}");
    std::fs::remove_dir_all(folders.remove(0)).expect("the catalog");
    server.restart();
    let output = server.output().to_lowercase();
    assert!(output.contains("catalog") && output.contains("rebuilt"), "{output}");
    let tool = Tool::beside(&server);
    assert_eq!(tool.ok(["cat", "v:/f"]), "still here");
    let free = tool.json(["df", "v:"]);
    assert_eq!(free["volumes"][0]["total_bytes"], 1 << 20, "{free}");
    let tenants = tool.json(["tenant", "list"]).to_string();
    assert!(tenants.contains("\"red\""), "{tenants}");
    assert!(server.terminate().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_loses_nothing_that_was_acknowledged() {
    let mut server = Server::start(Setup::default());
    let volume = server.volume("v").await;
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = soon("opening", volume.open("f", options)).await.expect("a file");
    soon("writing", file.write_at(0, b"never fsynced")).await.expect("a write");
    soon("mkdir", volume.mkdir_all("a/b/c")).await.expect("directories");
    soon("writing", volume.write("a/b/c/large", vec![7; 20 << 20])).await.expect("a file");
    let status = tokio::task::block_in_place(|| server.terminate());
    assert!(status.success(), "{status}");
    tokio::task::block_in_place(|| server.restart());
    // The same client goes on, and nothing was lost: so its fsync succeeds.
    soon("fsync", file.sync()).await.expect("nothing was lost");
    assert_eq!(&soon("reading", file.read_to_end()).await.expect("the file")[..], b"never fsynced");
    let large = soon("reading", volume.read("a/b/c/large")).await.expect("the file");
    assert!(large.len() == 20 << 20 && large.iter().all(|byte| *byte == 7));
    soon("closing", file.close()).await.expect("nothing was lost");
    volume.close().await;
    assert!(tokio::task::block_in_place(|| server.terminate()).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_discarded_log_loses_what_only_the_log_had_and_says_so() {
    let mut server = Server::start(Setup::default());
    let (discarded, kept) = (server.volume("discarded").await, server.volume("kept").await);
    for volume in [&discarded, &kept] {
        soon("writing", volume.write("committed", "old")).await.expect("a file");
    }
    // One commit is for the whole store.
    soon("sync", kept.sync()).await.expect("a commit");
    for volume in [&discarded, &kept] {
        soon("writing", volume.write("logged", "new")).await.expect("a file");
        soon("fsync", volume.fsync("logged")).await.expect("an fsync");
    }
    let number = discarded.subvolume();
    tokio::task::block_in_place(|| {
        server.kill();
        server.setup_mut().arguments = vec!["--discard-log".into(), number.to_string().into()];
        server.restart();
        server.setup_mut().arguments.clear();
    });
    let output = server.output();
    assert!(output.to_lowercase().contains("discard"), "{output}");
    let fresh = server.volume("discarded").await;
    let lost = soon("reading", fresh.read("logged")).await;
    assert_eq!(lost.err().and_then(|error| error.code()), Some(ErrorCode::NotFound));
    assert_eq!(&soon("reading", fresh.read("committed")).await.expect("committed")[..], b"old");
    let other = server.volume("kept").await;
    assert_eq!(&soon("reading", other.read("logged")).await.expect("another volume's log")[..], b"new");
    soon("writing", fresh.write("logged", "again")).await.expect("life goes on");
    soon("fsync", fresh.fsync("logged")).await.expect("life goes on");
    tokio::task::block_in_place(|| {
        server.kill();
        server.restart();
    });
    let fresh = server.volume("discarded").await;
    assert_eq!(&soon("reading", fresh.read("logged")).await.expect("logged")[..], b"again");
}

#[test]
fn usage_and_limits_survive_kills_and_stops() {
    let mut server = Server::start(Setup::default());
    let tool = Tool::beside(&server);
    tool.ok(["volume", "create", "v", "--max-bytes", "1M", "--max-inodes", "10"]);
    tool.ok(["mkdir", "v:/d"]);
    tool.run_with(["write", "--fsync", "v:/d/f"], &[1; 50_000]).success();
    let facts = || {
        let free = tool.json(["df", "v:"])["volumes"][0].clone();
        ["total_bytes", "used_bytes", "available_bytes", "total_inodes", "used_inodes"]
            .map(|key| free[key].clone())
    };
    let before = facts();
    assert_eq!(before[1], 53_248);
    server.kill();
    server.restart();
    assert_eq!(facts(), before, "after kill -9");
    assert!(server.terminate().success());
    server.restart();
    assert_eq!(facts(), before, "after a stop");
    tool.run_with(["write", "v:/g"], &[1; 1 << 20]).failure(1, "limit in bytes");
    tool.ok(["volume", "set", "v", "--max-inodes", "2"]);
    server.kill();
    server.restart();
    tool.run(["mkdir", "v:/e"]).failure(1, "limit in inodes");
}

#[test]
fn wrong_arguments_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::at(Setup::default(), folder.path().join("data"));
    server.setup_mut().arguments = vec!["--no-such-option".into()];
    let refusal = refused(&mut server);
    says(&refusal, "--no-such-option");
    assert!(!folder.path().join("data").exists(), "nothing is made for a wrong command line");
    let file = folder.path().join("a-file");
    std::fs::write(&file, b"x").expect("a file");
    let refusal = refused(&mut Server::at(Setup::default(), file));
    says(&refusal, "a-file");
}
