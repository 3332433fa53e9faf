//! One test for each promise of `ops/docs/semantics.md`, on the real server. Each quotes the words it holds the server to; the document
//! must contain them. (Random and exhaustive tests of the same promises are in `kill.rs`, `cases.rs`, `exactly_once.rs` and in the engine.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use subvol_client::{
    AttributeChange, ErrorCode, Limits, OpenOptions, RenameMode, SetTime, Timestamp, VolumeRef, XattrMode,
};
use subvol_tests::process::limit_file_size;
use subvol_tests::{Server, Setup, soon, within};

const DOCUMENT: &str = include_str!("../../../ops/docs/semantics.md");

/// The document says so.
fn quote(promise: &str) {
    let plain = |text: &str| text.replace("**", "").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain(DOCUMENT).contains(&plain(promise)), "semantics.md does not say: {promise}");
}

fn kill_and_restart(server: &mut Server) {
    tokio::task::block_in_place(|| {
        server.kill();
        server.restart();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_a_crash_leaves_an_exact_prefix() {
    quote(
        "After a crash a subvolume's namespace and attributes equal the state after an exact prefix of its acknowledged \
         operations, never shorter than the last commit nor than the last returned fsync of anything in it.",
    );
    let mut server = Server::start(Setup::default());
    for round in 0..4_u32 {
        let name = format!("v{round}");
        let volume = server.volume(&name).await;
        // Operation number n makes d<n> and gives the root the mode n: an image tells exactly how many there were.
        let (total, synced) = (200 + round * 50, 100 + round * 30);
        for number in 0..total {
            soon("mkdir", volume.mkdir(format!("d{number}"))).await.expect("a directory");
            soon("chmod", volume.chmod("", 0o1000 | number)).await.expect("a mode");
            if number + 1 == synced {
                // Of one directory: the promise is about anything in it.
                soon("fsync", volume.fsync("d3")).await.expect("an fsync");
            }
        }
        kill_and_restart(&mut server);
        let fresh = server.volume(&name).await;
        let names = soon("listing", fresh.list("")).await.expect("a list");
        let mut numbers: Vec<u32> = names
            .iter()
            .map(|entry| {
                String::from_utf8_lossy(entry.name.as_bytes())
                    .trim_start_matches('d')
                    .parse()
                    .expect("a number")
            })
            .collect();
        numbers.sort_unstable();
        let count = numbers.len() as u32;
        assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "a hole in the history");
        assert!(count >= synced, "{count} of {synced} fsynced operations are there");
        let mode = soon("looking", fresh.stat("")).await.expect("the root").mode & 0o777;
        // The mode is of the last directory, or of the one before it if the crash fell between the two.
        let after = [count.wrapping_sub(1), count.wrapping_sub(2)].map(|number| number & 0o777);
        assert!(after.contains(&mode), "{count} directories, but the mode of number {mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_fsync_covers_the_file_and_all_names_and_attributes() {
    quote(
        "fsync(file or directory) makes durable: the file's data and size, and every namespace and attribute operation of \
         that subvolume acknowledged before it (so all its names, all ancestors, all xattrs).",
    );
    quote("`fdatasync` may leave out times. `sync` is a commit of everything.");
    let mut server = Server::start(Setup::default());
    let volume = server.volume("v").await;
    let sizes = [0_usize, 1, 100, 4096, 5000, 40_000, 3 << 20];
    soon("mkdir", volume.mkdir_all("top/middle")).await.expect("directories");
    soon("rename", volume.rename("top", "renamed", RenameMode::Replace)).await.expect("a rename");
    soon("symlink", volume.symlink("target", "renamed/link")).await.expect("a link");
    soon("writing", volume.write("other", "not fsynced itself")).await.expect("a file");
    soon("xattr", volume.set_xattr("other", "user.k", "v", XattrMode::Any)).await.expect("an xattr");
    soon("chmod", volume.chmod("other", 0o600)).await.expect("a mode");
    for size in sizes {
        let path = format!("renamed/middle/f{size}");
        soon("writing", volume.write(&path, vec![7; size])).await.expect("a file");
        soon("link", volume.link(&path, format!("second-{size}"))).await.expect("a link");
        let time = Timestamp { seconds: 1000, nanoseconds: 5 };
        soon("times", volume.set_times(&path, None, Some(SetTime::To(time)))).await.expect("times");
        soon("fsync", volume.fsync(&path)).await.expect("an fsync");
    }
    let file = volume.open("renamed/middle/data", OpenOptions::new().write(true).create(true));
    let file = soon("opening", file).await.expect("a file");
    soon("writing", file.write_at(0, &[9; 10_000])).await.expect("a write");
    soon("fdatasync", file.sync_data()).await.expect("an fdatasync");
    kill_and_restart(&mut server);
    let fresh = server.volume("v").await;
    for size in sizes {
        let path = format!("renamed/middle/f{size}");
        let bytes = soon("reading", fresh.read(&path)).await.expect("a fsynced file");
        assert!(bytes.len() == size && bytes.iter().all(|byte| *byte == 7), "{path}: {} bytes", bytes.len());
        let found = soon("looking", fresh.stat(format!("second-{size}"))).await.expect("its other name");
        assert_eq!(found.links, 2);
        assert_eq!((found.mtime.seconds, found.mtime.nanoseconds), (1000, 5), "{path}");
    }
    let data = soon("reading", fresh.read("renamed/middle/data")).await.expect("an fdatasynced file");
    assert!(data.len() == 10_000 && data.iter().all(|byte| *byte == 9));
    assert_eq!(soon("looking", fresh.read_link("renamed/link")).await.expect("a link").as_bytes(), b"target");
    assert_eq!(soon("xattr", fresh.get_xattr("other", "user.k")).await.expect("another file's xattr"), b"v");
    assert_eq!(soon("looking", fresh.stat("other")).await.expect("it").mode & 0o7777, 0o600);
    assert!(!soon("looking", fresh.exists("top")).await.expect("an answer"));

    soon("writing", fresh.write("a", vec![1; 2 << 20])).await.expect("a file");
    soon("writing", fresh.write("b", vec![2; 100])).await.expect("a file");
    soon("sync", fresh.sync()).await.expect("a sync");
    kill_and_restart(&mut server);
    let fresh = server.volume("v").await;
    assert!(soon("reading", fresh.read("a")).await.expect("a").iter().all(|byte| *byte == 1));
    assert_eq!(soon("reading", fresh.read("b")).await.expect("b").len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_other_files_show_nothing_that_was_not_written_to_them() {
    quote(
        "is as of the last commit or newer; never bytes that were not written to that file; gaps read as zeros.",
    );
    quote("A file renamed over another is complete old or complete new, never empty, also without fsync.");
    let mut server = Server::start(Setup::default());
    for round in 0..4_u8 {
        let name = format!("v{round}");
        let volume = server.volume(&name).await;
        // What the store's blocks hold from now on must never show in another file.
        soon("writing", volume.write("secret", vec![0xee; 4 << 20])).await.expect("a file");
        soon("writing", volume.write("committed", vec![1; 50_000])).await.expect("a file");
        soon("writing", volume.write("replaced", vec![1; 300_000])).await.expect("a file");
        soon("sync", volume.sync()).await.expect("a commit");
        soon("removing", volume.unlink("secret")).await.expect("a removal");
        soon("sync", volume.sync()).await.expect("a commit");
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = soon("opening", volume.open("gaps", options)).await.expect("a file");
        for piece in 0..20_u64 {
            soon("writing", file.write_at(piece * 100_000, &[2; 5000])).await.expect("a write");
        }
        let file = soon("opening", volume.open("committed", options)).await.expect("a file");
        soon("writing", file.write_at(20_000, &[2; 10_000])).await.expect("a write");
        soon("writing", volume.write("new", vec![2; 300_000])).await.expect("a file");
        soon("rename", volume.rename("new", "replaced", RenameMode::Replace)).await.expect("a rename");
        soon("mkdir", volume.mkdir("marker")).await.expect("a directory");
        if round % 2 == 0 {
            soon("fsync", volume.fsync("marker")).await.expect("an fsync of something else");
        }
        kill_and_restart(&mut server);
        let fresh = server.volume(&name).await;
        if soon("looking", fresh.exists("gaps")).await.expect("an answer") {
            let bytes = soon("reading", fresh.read("gaps")).await.expect("a file");
            for (at, byte) in bytes.iter().enumerate() {
                let written = at % 100_000 < 5000;
                assert!(*byte == 0 || *byte == 2 && written, "byte {at} of a file is {byte:#x}");
            }
        }
        let bytes = soon("reading", fresh.read("committed")).await.expect("a committed file");
        assert_eq!(bytes.len(), 50_000);
        for (at, byte) in bytes.iter().enumerate() {
            let rewritten = (20_000..30_000).contains(&at);
            assert!(*byte == 1 || *byte == 2 && rewritten, "byte {at} of a committed file is {byte:#x}");
        }
        let bytes = soon("reading", fresh.read("replaced")).await.expect("a replaced file");
        assert_eq!(bytes.len(), 300_000, "round {round}");
        let is = |value: u8| bytes.iter().all(|byte| *byte == value);
        assert!(is(1) || is(2), "round {round}: neither complete old nor complete new");
        if round % 2 == 0 {
            assert!(is(2), "round {round}: the rename was made durable by a later fsync");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s5_an_fsync_waits_for_nobody_else() {
    quote("It never waits for a commit in progress, a timer, a quota count, or another tenant's data.");
    quote("The exception is counted by reason in `status`: a log ring that is full until the next commit.");
    let server = Server::start(Setup { store_bytes: 8 << 30, ..Setup::default() });
    let client = server.client().await;
    let admin = client.admin();
    let (quiet, busy) = (server.volume("quiet").await, server.volume("busy").await);
    let (stop, committing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let during = Arc::new(AtomicU64::new(0));
    let fsyncs = {
        let (stop, committing, during) = (Arc::clone(&stop), Arc::clone(&committing), Arc::clone(&during));
        tokio::spawn(async move {
            let options = OpenOptions::new().write(true).create(true);
            let file = soon("opening", quiet.open("f", options)).await.expect("a file");
            let mut worst = Duration::ZERO;
            let mut count = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                let (start, before) = (Instant::now(), committing.load(Ordering::SeqCst));
                soon("writing", file.write_at(count % 100 * 4096, &[1; 4096])).await.expect("a write");
                soon("fsync", file.sync()).await.expect("an fsync");
                worst = worst.max(start.elapsed());
                count += 1;
                if before && committing.load(Ordering::SeqCst) {
                    during.fetch_add(1, Ordering::SeqCst);
                }
            }
            (count, worst)
        })
    };
    let mut commits = Vec::new();
    for round in 0..4_u64 {
        // Another one's data and many names, then a commit of it all.
        for file in 0..24 {
            soon("writing", busy.write(format!("f{round}-{file}"), vec![3; 4 << 20])).await.expect("a file");
        }
        for number in 0..500 {
            soon("mkdir", busy.mkdir(format!("d{round}-{number}"))).await.expect("a directory");
        }
        committing.store(true, Ordering::SeqCst);
        let start = Instant::now();
        soon("a commit", admin.sync_store()).await.expect("a commit");
        commits.push(start.elapsed());
        committing.store(false, Ordering::SeqCst);
    }
    stop.store(true, Ordering::SeqCst);
    let (count, worst) = soon("the fsyncs end", fsyncs).await.expect("no panic");
    let during = during.load(Ordering::SeqCst);
    eprintln!("{count} fsyncs, slowest {worst:?}, {during} of them whole within commits of {commits:?}");
    assert!(count > 20, "{count} fsyncs beside the load");
    // One that waited for commits could never begin and end within one.
    let long: Duration = commits.iter().sum();
    assert!(during >= 2 || long < Duration::from_millis(200), "{during} fsyncs within {long:?} of commits");
    let store = soon("status", admin.status(None)).await.expect("status").store.expect("an administrator's");
    let waited: u64 = store.fallbacks.iter().map(|(_, count)| count).sum();
    assert_eq!(waited, 0, "{:?}", store.fallbacks);
    assert!(store.commits >= 4, "{} commits", store.commits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6_a_lost_change_is_told_and_a_retry_is_done_once() {
    quote(
        "A request retried after a lost connection takes effect once, also across a restart of the server while its record \
         is in the log.",
    );
    quote(
        "When a restarted server lost acknowledged state that was never made durable, the client's next fsync or close on it \
         fails (lineage check); it never claims success.",
    );
    let mut server = Server::start(Setup::default());
    let volume = server.volume("v").await;
    let mut told = 0;
    for round in 0..4 {
        let path = format!("f{round}");
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = soon("opening", volume.open(&path, options)).await.expect("a file");
        soon("writing", file.write_at(0, b"old")).await.expect("a write");
        soon("fsync", file.sync()).await.expect("an fsync");
        soon("writing", file.write_at(0, b"new")).await.expect("a write");
        kill_and_restart(&mut server);
        let synced = soon("fsync", file.sync()).await;
        let bytes = soon("reading", volume.read(&path)).await.expect("the file");
        match synced {
            Ok(()) => assert_eq!(&bytes[..], b"new", "success was claimed for lost data"),
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::StaleLineage), "{error}");
                assert_eq!(&bytes[..], b"old");
                told += 1;
            }
        }
        soon("fsync", file.sync()).await.expect("told once");
        // The same client goes on, over all restarts, and each of its changes is done once.
        soon("renaming", volume.rename(&path, format!("g{round}"), RenameMode::NoReplace))
            .await
            .expect("once");
        soon("fsync", volume.fsync("")).await.expect("an fsync");
    }
    assert!(told > 0, "no kill lost anything: this run proves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_failed_write_is_told_to_every_handle_and_latches_the_store() {
    quote(
        "A failed data write is reported to every open handle; it is never swallowed, and a retry never claims lost data \
         durable.",
    );
    quote(
        "A device error latches the store: it is read-only, every change and every fsync fails, until it is opened again.",
    );
    let mut server = Server::start(Setup { survives_file_limit: true, ..Setup::default() });
    let volume = server.volume("v").await;
    let options = OpenOptions::new().read(true).write(true).create(true);
    let first = soon("opening", volume.open("f", options)).await.expect("a file");
    let second = soon("opening", volume.open("f", options)).await.expect("a file");
    soon("writing", first.write_at(0, b"old")).await.expect("a write");
    soon("fsync", first.sync()).await.expect("an fsync");
    // From here on the device refuses every write.
    limit_file_size(server.pid(), Some(1)).expect("a limit");
    soon("writing", first.write_at(0, b"new")).await.expect("a write into memory");
    for (file, what) in
        [(&first, "first"), (&second, "second"), (&first, "first, again"), (&second, "second, again")]
    {
        let told = soon("fsync", file.sync()).await;
        let error = told.err().unwrap_or_else(|| panic!("{what} handle: success was claimed"));
        assert!([5, 30].contains(&error.errno()), "{what} handle: {error}");
    }
    // The device works again, but what was lost is not taken for durable.
    limit_file_size(server.pid(), None).expect("no limit");
    for what in ["a change", "an fsync"] {
        let result = match what {
            "a change" => soon(what, volume.mkdir("d")).await.map(drop),
            _ => soon(what, first.sync()).await,
        };
        let error = result.err().unwrap_or_else(|| panic!("{what} succeeded on a failed store"));
        assert!([5, 30].contains(&error.errno()), "{what}: {error}");
    }
    let client = server.client().await;
    let store = soon("status", client.admin().status(None)).await.expect("status").store.expect("the store");
    assert!(store.read_only, "the store should say that it is read-only");
    assert!(soon("reading", volume.lookup("f")).await.is_ok(), "reading goes on");
    kill_and_restart(&mut server);
    let fresh = server.volume("v").await;
    assert_eq!(&soon("reading", fresh.read("f")).await.expect("the file")[..], b"old");
    soon("mkdir", fresh.mkdir("d")).await.expect("a store that was opened again can be changed");
    soon("fsync", fresh.fsync("d")).await.expect("an fsync");
    // The old client's handle still owes its report or has given it; it does not claim success for `new`.
    soon("fsync", fresh.fsync("f")).await.expect("an fsync");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_a_tenant_sees_nothing_of_another_and_limits_are_exact() {
    quote("A tenant sees, names and measures nothing of another;");
    quote("quotas in bytes and inodes are exact and enforced before the reply;");
    quote("deletes always work, also on a full device and at a full quota.");
    let server = Server::start(Setup::default());
    let client = server.client().await;
    let admin = client.admin();
    let red = soon("adding", admin.tenant_add("red")).await.expect("a tenant");
    let blue = soon("adding", admin.tenant_add("blue")).await.expect("a tenant");
    let connect = async |token| {
        let builder = subvol_client::ClientBuilder::new(server.address()).token(token).owner(0, 0);
        soon("connecting", builder.connect()).await.expect("a connection")
    };
    let (red, blue) = (connect(red.token).await, connect(blue.token).await);
    let limits = Limits { max_bytes: Some(10 * 4096), max_inodes: Some(8) };
    let number = soon("creating", red.admin().volume_create("secret", limits)).await.expect("a volume");
    let volume = soon("opening", red.open_subvolume("secret")).await.expect("a volume");

    // Names nothing: by name, by number, and one that does not exist at all are the same to it.
    let unknown = soon("opening", blue.open_subvolume("nothing-here")).await.expect_err("nobody's");
    for foreign in
        [VolumeRef::Id(number), VolumeRef::Name(subvol_client::Label::new("secret").expect("a label"))]
    {
        let told =
            soon("opening", blue.open_volume(foreign.clone(), false)).await.expect_err("another tenant's");
        assert_eq!(told.code(), unknown.code(), "{foreign:?}: {told}");
        let told = soon("removing", blue.admin().volume_remove(foreign.clone()))
            .await
            .expect_err("another tenant's");
        assert_eq!(told.code(), unknown.code(), "{foreign:?}: {told}");
        let told =
            soon("status", blue.admin().status(Some(foreign.clone()))).await.expect_err("another tenant's");
        assert_eq!(told.code(), unknown.code(), "{foreign:?}: {told}");
    }
    assert!(soon("listing", blue.admin().volume_list()).await.expect("a list").is_empty());
    let report = soon("status", blue.admin().status(None)).await.expect("status");
    assert!(report.store.is_none() && report.volumes.is_empty(), "{report:?}");

    // Many at once: the limit is met exactly, whoever comes first.
    let mut writers = Vec::new();
    for number in 0..30_u64 {
        let volume = volume.clone();
        writers.push(tokio::spawn(async move {
            let path = format!("f{number}");
            let options = OpenOptions::new().write(true).create_new(true);
            match soon("opening", volume.open(&path, options)).await {
                Ok(file) => (true, soon("writing", file.write_at(0, &[1; 2 * 4096])).await.is_ok()),
                Err(error) => {
                    assert_eq!(error.code(), Some(ErrorCode::QuotaInodes), "{error}");
                    (false, false)
                }
            }
        }));
    }
    let (mut made, mut written) = (0, 0);
    for writer in writers {
        let (file, data) = within(Duration::from_secs(60), "a writer", writer).await.expect("no panic");
        made += u64::from(file);
        written += u64::from(data);
    }
    let statistics = soon("statfs", volume.statfs()).await.expect("statistics");
    assert_eq!((made, written), (8, 5));
    assert_eq!((statistics.used_inodes, statistics.used_bytes), (8, 10 * 4096));
    assert_eq!((statistics.total_inodes, statistics.total_bytes), (8, 10 * 4096));
    assert_eq!(statistics.available_bytes, 0);
    // At the full limits everything can be removed, cut and changed in place.
    let names = soon("listing", volume.list("")).await.expect("a list");
    let path = |index: usize| names[index].name.as_bytes().to_vec();
    let change = AttributeChange { permissions: Some(0o600), ..AttributeChange::default() };
    soon("chmod", volume.set_attributes(path(0), change)).await.expect("no growth");
    soon("truncate", volume.truncate(path(0), 0)).await.expect("no growth");
    soon("remove_all", volume.remove_all("")).await.expect("deletes always work");
    let statistics = soon("statfs", volume.statfs()).await.expect("statistics");
    assert_eq!((statistics.used_inodes, statistics.used_bytes), (0, 0));
}
