//! Lost connections: sending again, exactly once, bounded.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::name::Text;
use subvol_protocol::response::{Push, Response};

use super::fake::{Act, Fake, Seen, quick_retries};
use super::{eventually, soon};
use crate::{ClientError, NewKind, OpenOptions, Timeouts, Volume};

async fn create(volume: &Volume, name: &str) -> Result<u64, ClientError> {
    let outcome = volume.inodes().create(256, name, NewKind::Regular, 0o644, (0, 0), true, None).await;
    outcome.map(|outcome| outcome.attributes.inode)
}

fn first_time(mut what: impl FnMut(&Seen) -> bool) -> impl FnMut(&Seen) -> bool {
    let mut done = false;
    move |seen| !done && what(seen) && !std::mem::replace(&mut done, true)
}

/// S6: "A request retried after a lost connection takes effect once."
#[tokio::test]
async fn a_change_whose_answer_was_lost_takes_effect_once() {
    let mut hit = first_time(|seen| seen.name() == "Create");
    let fake = Fake::start(move |seen, _| if hit(seen) { Act::DoAndDrop } else { Act::Normal });
    let volume = fake.volume().await;
    soon(create(&volume, "a")).await.unwrap();
    let world = fake.world.lock();
    assert_eq!((world.count("Create"), world.executed), (2, 1));
    let operations: Vec<_> = world.seen.iter().map(|(_, envelope)| envelope.operation).collect();
    assert!(operations[0].is_some() && operations[0] == operations[1], "the same id both times");
}

#[tokio::test]
async fn everything_in_flight_is_sent_again_in_order() {
    let mut count = 0;
    let fake = Fake::start(move |seen, _| {
        if seen.name() != "Create" || seen.connection > 2 {
            return Act::Normal;
        }
        count += 1;
        // Some were done, some were only received, some were never read.
        match count {
            1..20 => Act::Normal,
            20..30 => Act::Hold,
            _ => Act::DoAndDrop,
        }
    });
    let volume = fake.volume().await;
    let names: Vec<String> = (0..100).map(|i| format!("f{i}")).collect();
    let made = soon(join_all(names.iter().map(|name| create(&volume, name)))).await;
    let mut inodes: Vec<u64> = made.into_iter().map(Result::unwrap).collect();
    inodes.sort_unstable();
    inodes.dedup();
    assert_eq!(inodes.len(), 100);
    let world = fake.world.lock();
    assert_eq!(world.executed, 100);
    let again: Vec<u64> = world
        .seen
        .iter()
        .filter(|(connection, _)| *connection == 3)
        .filter_map(|(_, envelope)| envelope.operation.map(|operation| operation.sequence))
        .collect();
    assert!(again.is_sorted(), "{again:?}");
}

#[tokio::test]
async fn reads_carry_no_operation_id_and_are_repeated_as_they_are() {
    let mut hit = first_time(|seen| seen.name() == "Lookup");
    let fake = Fake::start(move |seen, _| if hit(seen) { Act::Drop } else { Act::Normal });
    let volume = fake.volume().await;
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    assert!(fake.world.lock().seen.iter().all(|(_, envelope)| envelope.operation.is_none()));
}

#[tokio::test]
async fn attempts_are_bounded_and_the_error_says_what_to_do() {
    let fake = Fake::start(|seen, world| {
        if seen.file().is_some() {
            world.deaf = true;
            return Act::Drop;
        }
        Act::Normal
    });
    let volume = fake.volume_of(fake.builder().retries(quick_retries(3))).await;
    let error = soon(create(&volume, "a")).await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { attempts: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("check that the server runs"), "{error}");
    assert_eq!(error.errno(), 5);
    // A later request is another chance, not the old verdict.
    fake.world.lock().deaf = false;
    let second = soon(volume.inodes().statfs()).await.unwrap_err();
    assert!(matches!(second, ClientError::Lost { .. }), "the fake drops it again: {second:?}");
}

#[tokio::test]
async fn a_request_that_kills_every_connection_is_not_sent_for_ever() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "StatFs" => Act::Drop,
        _ => Act::Normal,
    });
    let volume = fake.volume_of(fake.builder().retries(quick_retries(4))).await;
    let (killed, fine) = soon(async {
        let pinging = async {
            let mut fine = 0;
            // Its answers count as progress, so only the killer's own count of sends ends it.
            for _ in 0..50 {
                fine += u32::from(volume.inodes().lookup(256, "a").await.is_ok());
            }
            fine
        };
        tokio::join!(volume.statfs(), pinging)
    })
    .await;
    assert!(matches!(killed, Err(ClientError::Lost { .. })), "{killed:?}");
    assert_eq!(fine, 50);
    assert!(fake.world.lock().count("StatFs") <= 5);
}

#[tokio::test]
async fn handles_are_opened_again_and_translated() {
    let mut hit = first_time(|seen| seen.name() == "Write");
    let fake = Fake::start(move |seen, _| if hit(seen) { Act::DoAndDrop } else { Act::Normal });
    let volume = fake.volume().await;
    let files = [
        volume.open("fa", OpenOptions::new().write(true).create(true)).await.unwrap(),
        volume.open("fb", OpenOptions::new().write(true).truncate(true)).await.unwrap(),
    ];
    soon(files[0].write_at(0, b"x")).await.unwrap();
    soon(files[1].write_at(0, b"y")).await.unwrap();
    soon(files[0].sync()).await.unwrap();
    for file in files {
        soon(file.close()).await.unwrap();
    }
    let world = fake.world.lock();
    // The create, the truncating open and the two writes; opening again does not truncate again.
    assert_eq!(world.executed, 4, "{:?}", world.seen);
    assert_eq!(volume.inodes().channel.open_handles(), 0);
}

/// The repeated outcome of a create carries the number that the lost connection gave the handle.
#[tokio::test]
async fn the_handle_of_a_repeated_create_is_opened_again() {
    let mut hit = first_time(|seen| seen.name() == "Create");
    let fake = Fake::start(move |seen, _| if hit(seen) { Act::DoAndDrop } else { Act::Normal });
    let volume = fake.volume().await;
    let file = soon(volume.open("f", OpenOptions::new().write(true).create(true))).await.unwrap();
    soon(file.write_at(0, b"x")).await.unwrap();
    soon(file.close()).await.unwrap();
    assert_eq!(fake.world.lock().names(), ["Create", "Create", "Open", "Write", "Close"]);
}

#[tokio::test]
async fn a_stopping_server_is_left_and_found_again() {
    let mut hit = first_time(|seen| seen.name() == "Lookup");
    let fake = Fake::start(move |seen, _| {
        if hit(seen) {
            return Act::Push(Push::Shutdown { reason: Text::new("update"), grace_milliseconds: 10_000 });
        }
        Act::Normal
    });
    let volume = fake.volume().await;
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    let start = Instant::now();
    soon(volume.inodes().lookup(256, "b")).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "the grace time is the server's, not ours to wait");
    // The client's own connection, the volume's first and second.
    assert_eq!(fake.world.lock().connections, 3);
}

#[tokio::test]
async fn a_request_refused_by_a_stopping_server_is_repeated_after_reconnect() {
    let mut hit = first_time(|seen| seen.name() == "Create");
    let fake = Fake::start(move |seen, _| {
        if hit(seen) { Act::Say(Response::Error(ErrorCode::ShuttingDown.into())) } else { Act::Normal }
    });
    let volume = fake.volume().await;
    soon(create(&volume, "a")).await.unwrap();
    assert_eq!(fake.world.lock().executed, 1);
}

#[tokio::test]
async fn a_silent_server_is_replaced() {
    let mut hit = first_time(|seen| seen.name() == "Lookup");
    let fake = Fake::start(move |seen, _| {
        if hit(seen) {
            return Act::Hold;
        }
        // Not even a sign of life on the first connection of the volume.
        if seen.name() == "Ping" && seen.connection == 2 { Act::Hold } else { Act::Normal }
    });
    let silence = Duration::from_millis(200);
    let volume = fake.volume_of(fake.builder().timeouts(Timeouts { silence, ..Timeouts::default() })).await;
    let start = Instant::now();
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    assert!(start.elapsed() >= silence);
    assert_eq!(fake.world.lock().connections, 3);
}

#[tokio::test]
async fn a_busy_server_that_still_answers_pings_is_kept() {
    let mut pings = 0;
    let fake = Fake::start(move |seen, _| match seen.name() {
        "Lookup" => Act::Hold,
        "Ping" => {
            pings += 1;
            if pings == 4 { Act::Release } else { Act::Normal }
        }
        _ => Act::Normal,
    });
    let silence = Duration::from_millis(100);
    let volume = fake.volume_of(fake.builder().timeouts(Timeouts { silence, ..Timeouts::default() })).await;
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    assert_eq!(fake.world.lock().connections, 2, "no reconnect");
}

#[tokio::test]
async fn an_idle_client_does_not_reconnect() {
    let fake = Fake::start(|seen, _| if seen.name() == "StatFs" { Act::Drop } else { Act::Normal });
    let volume = fake.volume_of(fake.builder().retries(quick_retries(1))).await;
    let _ = soon(volume.statfs()).await;
    let connections = fake.world.lock().connections;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fake.world.lock().connections, connections);
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
}

#[tokio::test]
async fn closing_says_goodbye_and_ends_what_waits() {
    let fake = Fake::start(|seen, _| if seen.name() == "Lookup" { Act::Hold } else { Act::Normal });
    let volume = fake.volume().await;
    let file = volume.open("f", OpenOptions::new().create(true).write(true)).await.unwrap();
    drop(file);
    let waiting = tokio::spawn({
        let volume = volume.clone();
        async move { volume.inodes().lookup(256, "a").await }
    });
    tokio::task::yield_now().await;
    let after = volume.clone();
    soon(volume.close()).await;
    assert!(matches!(soon(waiting).await.unwrap(), Err(ClientError::Closed)));
    assert!(matches!(soon(after.statfs()).await, Err(ClientError::Closed)));
    assert_eq!(fake.world.lock().count("Close"), 1);
}

#[tokio::test]
async fn dropping_every_user_ends_the_connection() {
    let fake = Fake::start(|_, _| Act::Normal);
    let volume = fake.volume().await;
    let file = volume.open("f", OpenOptions::new().create(true).write(true)).await.unwrap();
    drop(volume);
    drop(file);
    eventually("the dropped file is closed", || fake.world.lock().count("Close") == 1).await;
}
