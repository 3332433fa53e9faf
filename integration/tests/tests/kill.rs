//! kill -9 of the real server under load, again and again (promises S1, S2, S3, S6 and the exactness of S8's numbers).
//!
//! Two kinds of clients work meanwhile. **Judged** ones do random operations, each on a volume of its own, and stop when the server dies; a
//! fresh client then reads the whole volume and the model's oracle decides whether a crash may have left it so. **Survivors** use the
//! library's reconnecting: they live through all kills and check by themselves that nothing happened twice and nothing fsynced is lost.
//!
//! A run that had no effect does not pass: an fsync must have returned, and kills must have met operations under way.
//!
//! The long form: `SOAK_ROUNDS=50 cargo test -p subvol-tests --release -- --ignored --nocapture soak_kill`. `SEED` repeats the choices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use subvol_client::{Client, ErrorCode, OpenOptions, RenameMode, Volume, VolumeRef};
use subvol_model::{DurabilityOracle, Model, Op, Time, Tree};
use subvol_tests::apply::is_connection_lost;
use subvol_tests::image::{Walk, image_of, recount};
use subvol_tests::server::open_or_create;
use subvol_tests::{Performer, Random, Server, Setup, eventually, next_operation, soon, within};

/// Judged clients at a time.
const JUDGED: usize = 3;
/// Kills that a volume of a judged client lives through with changes going on.
const LIVES: u32 = 2;
/// By then files without names are freed: the server waits a minute for their clients after a start.
const ORPHAN_BOUND: Duration = Duration::from_secs(100);

#[derive(Default)]
struct Totals {
    operations: AtomicU64,
    fsyncs: AtomicU64,
    /// Judged clients that a kill met in the middle of an operation.
    interrupted: AtomicU64,
    losses_told: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_break_no_promise() {
    run("kill", 5).await;
}

#[ignore = "long: SOAK_ROUNDS rounds"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_kill() {
    run("soak_kill", subvol_tests::number_from_environment("SOAK_ROUNDS", 50)).await;
}

async fn run(name: &str, rounds: u64) {
    let mut random = Random::from_environment(name);
    let walk = Walk::from_now();
    let totals = Arc::new(Totals::default());
    let mut server = Server::start(Setup::default());
    let stop = Arc::new(AtomicBool::new(false));
    let survivors = [
        tokio::spawn(keep_a_ledger(server.volume("ledger").await, Arc::clone(&stop), Arc::clone(&totals))),
        tokio::spawn(move_a_file(server.volume("moves").await, Arc::clone(&stop))),
        tokio::spawn(make_directories(server.volume("directories").await, Arc::clone(&stop))),
    ];
    let mut volumes: Vec<Judged> = Vec::new();
    let mut finished: Vec<(String, Tree)> = Vec::new();
    for round in 0..rounds {
        let client = server.mortal_client().await;
        while volumes.len() < JUDGED {
            volumes.push(Judged::new(format!("judged-{round}-{}", volumes.len())));
        }
        let mut tasks = Vec::new();
        for judged in volumes.drain(..) {
            let volume = open_or_create(&client, &judged.name).await;
            tasks.push(tokio::spawn(judged.work(
                Performer::new(volume),
                random.split(),
                Arc::clone(&totals),
            )));
        }
        tokio::time::sleep(Duration::from_millis(150 + random.below(1500))).await;
        tokio::task::block_in_place(|| server.kill());
        for task in tasks {
            // All must have stopped before the next server answers anybody.
            volumes
                .push(soon("a judged client ends when the server is killed", task).await.expect("no panic"));
        }
        // Sometimes it dies again on the way up.
        if random.chance(1, 4) {
            tokio::task::block_in_place(|| server.restart());
            tokio::task::block_in_place(|| server.kill());
        }
        tokio::task::block_in_place(|| server.restart());
        let fresh = server.client().await;
        for judged in &mut volumes {
            judged.judge(&fresh, walk).await;
        }
        for (name, expected) in &finished {
            let volume =
                soon("opening", fresh.open_subvolume(name)).await.expect("a volume that was committed");
            let image = soon("reading", image_of(&volume, walk)).await.expect("a readable volume");
            let difference = expected.diff(&image);
            assert!(difference.is_empty(), "{name}, which nobody touched, changed: {difference:#?}");
            volume.close().await;
        }
        let (old, young) = volumes.drain(..).partition(|judged: &Judged| judged.lives > LIVES);
        volumes = young;
        for judged in old {
            finished.push((judged.name, judged.image));
        }
        while finished.len() > 4 {
            let (name, _) = finished.remove(0);
            remove(&fresh, &name).await;
        }
        fresh.close().await;
        client.close().await;
    }
    stop.store(true, Ordering::SeqCst);
    for survivor in survivors {
        within(Duration::from_secs(120), "a survivor ends", survivor).await.expect("no panic");
    }
    let fresh = server.client().await;
    let names =
        volumes.iter().map(|judged| judged.name.clone()).chain(finished.into_iter().map(|(name, _)| name));
    check_leaks(&fresh, names, walk).await;
    fresh.close().await;
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    eprintln!(
        "{name}: {rounds} kills, {} operations, {} fsyncs returned, {} clients interrupted, {} losses told",
        count(&totals.operations),
        count(&totals.fsyncs),
        count(&totals.interrupted),
        count(&totals.losses_told)
    );
    assert!(count(&totals.fsyncs) > rounds, "hardly an fsync returned: this run proves nothing");
    assert!(
        count(&totals.interrupted) > rounds / 2,
        "hardly a kill met work under way: this run proves nothing"
    );
    assert!(server.terminate().success());
}

async fn remove(client: &Client, name: &str) {
    let volume = subvol_client::Label::new(name).expect("a label");
    eventually("the volume is let go and removed", async || {
        match client.admin().volume_remove(VolumeRef::Name(volume.clone())).await {
            Ok(()) => true,
            Err(error) if error.code() == Some(ErrorCode::Busy) => false,
            Err(error) => panic!("removing {name}: {error}"),
        }
    })
    .await;
}

/// A volume with its history.
struct Judged {
    name: String,
    oracle: DurabilityOracle,
    /// Kills so far.
    lives: u32,
    image: Tree,
}

impl Judged {
    fn new(name: String) -> Self {
        Self { name, oracle: DurabilityOracle::new(Model::default()), lives: 0, image: Tree::default() }
    }

    async fn work(mut self, mut performer: Performer, mut random: Random, totals: Arc<Totals>) -> Self {
        let now = Time::default();
        loop {
            let op = next_operation(self.oracle.model(), &mut random);
            let expected = self.oracle.model().clone().apply(&op, now);
            self.oracle.sent(&op, now);
            match (soon("an operation", performer.apply(&op)).await, expected) {
                (Ok(()), Ok(())) => {
                    self.oracle.acknowledge(&op, now).expect("it succeeded on a copy");
                    totals.operations.fetch_add(1, Ordering::Relaxed);
                    let syncs = matches!(
                        op,
                        Op::Fsync { .. } | Op::Fdatasync { .. } | Op::FsyncHandle { .. } | Op::Sync
                    );
                    totals.fsyncs.fetch_add(u64::from(syncs), Ordering::Relaxed);
                }
                (Err(error), _) if is_connection_lost(&error) => {
                    totals.interrupted.fetch_add(1, Ordering::Relaxed);
                    return self;
                }
                (Err(error), Err(refusal)) if error.errno() == refusal.errno() => self.oracle.refused(),
                (got, expected) => panic!("{}: {op:?} gave {got:?}, the model says {expected:?}", self.name),
            }
        }
    }

    async fn judge(&mut self, client: &Client, walk: Walk) {
        // A recovered model knows how many blocks are mapped, not always which: their number is judged in the first life only.
        let compared = Walk { blocks: self.lives == 0, ..walk };
        let volume = soon("opening", client.open_subvolume(&self.name)).await.expect("an old volume");
        let image = soon("reading", image_of(&volume, compared)).await.expect("a readable volume");
        let prefix = match self.oracle.check(&image) {
            Ok(prefix) => prefix,
            Err(violation) => panic!(
                "{}, life {}: {violation}\nacknowledged {} operations",
                self.name,
                self.lives,
                self.oracle.acknowledged()
            ),
        };
        let recovered = self.oracle.recovered(&image, prefix);
        self.oracle = DurabilityOracle::new(recovered);
        self.lives += 1;
        let image = soon("reading", image_of(&volume, walk)).await.expect("a readable volume");
        self.check_numbers(&volume, &image).await;
        self.image = image;
        volume.close().await;
    }

    /// Usage is not below a recount. It may be above it for a minute: files that lost their last name since the last commit wait for
    /// their clients again.
    async fn check_numbers(&self, volume: &Volume, image: &Tree) -> bool {
        let (bytes, inodes) = recount(image);
        let statistics = soon("statfs", volume.statfs()).await.expect("statistics");
        let used = (statistics.used_bytes, statistics.used_inodes);
        assert!(
            used.0 >= bytes && used.1 >= inodes,
            "{}: used {used:?}, recount {:?}",
            self.name,
            (bytes, inodes)
        );
        used == (bytes, inodes)
    }
}

/// After the grace for files without names, usage equals a recount: nothing leaked.
async fn check_leaks(client: &Client, names: impl IntoIterator<Item = String>, walk: Walk) {
    for name in names {
        let volume = soon("opening", client.open_subvolume(&name)).await.expect("a volume");
        let image = soon("reading", image_of(&volume, walk)).await.expect("a readable volume");
        let expected = recount(&image);
        let start = Instant::now();
        loop {
            let statistics = soon("statfs", volume.statfs()).await.expect("statistics");
            let used = (statistics.used_bytes, statistics.used_inodes);
            if used == expected {
                break;
            }
            assert!(start.elapsed() < ORPHAN_BOUND, "{name}: used {used:?}, recount {expected:?}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        volume.close().await;
    }
}

/// Appends numbered records and syncs now and then. What was synced must stay; nothing may be there twice.
async fn keep_a_ledger(volume: Volume, stop: Arc<AtomicBool>, totals: Arc<Totals>) {
    let options = OpenOptions::new().read(true).append(true).create(true);
    let file = soon("opening the ledger", volume.open("ledger", options)).await.expect("the ledger");
    let (mut durable, mut pending) = (BTreeSet::new(), Vec::new());
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let appended = within(Duration::from_secs(120), "an append", file.append(record(number))).await;
        appended.unwrap_or_else(|error| panic!("record {number}: {error}"));
        pending.push(number);
        if number.is_multiple_of(7) {
            match within(Duration::from_secs(120), "a sync", file.sync()).await {
                Ok(()) => durable.extend(pending.drain(..)),
                Err(error) if error.is_lost_changes() => {
                    // Some of them may be there; none is promised.
                    pending.clear();
                    totals.losses_told.fetch_add(1, Ordering::Relaxed);
                    check_ledger(&file, &durable).await;
                }
                Err(error) => panic!("sync after record {number}: {error}"),
            }
        }
    }
    check_ledger(&file, &durable).await;
    assert!(!durable.is_empty());
}

fn record(number: u64) -> Vec<u8> {
    format!("{number:015}\n").into_bytes()
}

async fn check_ledger(file: &subvol_client::File, durable: &BTreeSet<u64>) {
    let bytes = soon("reading the ledger", file.read_to_end()).await.expect("the ledger");
    assert!(bytes.len().is_multiple_of(16), "the ledger ends in a part of a record");
    let records: Vec<u64> = bytes
        .chunks(16)
        .filter(|record| record.iter().any(|byte| *byte != 0))
        .map(|record| {
            let text = String::from_utf8_lossy(record);
            text.trim().parse().unwrap_or_else(|_| panic!("no record: {text:?}"))
        })
        .collect();
    let increasing = records.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(increasing, "a record is there twice or out of order: {records:?}");
    let found: BTreeSet<u64> = records.into_iter().collect();
    let missing: Vec<&u64> = durable.difference(&found).take(10).collect();
    assert!(missing.is_empty(), "synced records are gone: {missing:?}");
}

/// Renames one file on and on, each step made durable: a rename that was sent twice must not miss its file.
async fn move_a_file(volume: Volume, stop: Arc<AtomicBool>) {
    let patience = Duration::from_secs(120);
    soon("creating", volume.write("n0", "the one")).await.expect("a file");
    soon("syncing", volume.sync()).await.expect("a sync");
    let inode = soon("looking", volume.lookup("n0")).await.expect("the file").inode;
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        let (from, to) = (format!("n{number}"), format!("n{}", number + 1));
        let renamed = within(patience, "a rename", volume.rename(&from, &to, RenameMode::NoReplace)).await;
        renamed.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        number += 1;
        match within(patience, "an fsync", volume.fsync("")).await {
            Ok(()) => {}
            // The rename was acknowledged and lost: it is still to be done.
            Err(error) if error.is_lost_changes() => {
                let there = within(patience, "looking", volume.exists(&to)).await.expect("an answer");
                if !there {
                    number -= 1;
                }
            }
            Err(error) => panic!("fsync after {to}: {error}"),
        }
    }
    let names = soon("listing", volume.list("")).await.expect("a list");
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(names[0].name.as_bytes(), format!("n{number}").as_bytes());
    assert_eq!(names[0].inode, inode);
}

/// Makes directories that must be new: a `mkdir` that was sent twice must not find its own.
async fn make_directories(volume: Volume, stop: Arc<AtomicBool>) {
    let patience = Duration::from_secs(120);
    let (mut durable, mut pending, mut number) = (Vec::new(), Vec::new(), 0_u64);
    while !stop.load(Ordering::SeqCst) {
        let name = format!("d{number}");
        let made = within(patience, "a mkdir", volume.mkdir(&name)).await;
        made.unwrap_or_else(|error| panic!("{name}: {error}"));
        pending.push(name);
        number += 1;
        if number.is_multiple_of(5) {
            match within(patience, "an fsync", volume.fsync("")).await {
                Ok(()) => durable.append(&mut pending),
                Err(error) if error.is_lost_changes() => pending.clear(),
                Err(error) => panic!("fsync: {error}"),
            }
        }
    }
    let names = soon("listing", volume.list("")).await.expect("a list");
    let names: BTreeSet<&[u8]> = names.iter().map(|entry| entry.name.as_bytes()).collect();
    let missing: Vec<&String> = durable.iter().filter(|name| !names.contains(name.as_bytes())).collect();
    assert!(missing.is_empty(), "fsynced directories are gone: {missing:?}");
}
