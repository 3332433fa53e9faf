//! Events of leases: their order, what waits for them, and what ends them.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{FileRequest, Request};
use subvol_protocol::response::{Push, RecallTarget, Response};

use super::fake::{Act, Fake, Seen, quick_retries};
use super::{eventually, soon};
use crate::{ClientError, LeaseEvent, LeaseEvents, Timeouts, Volume};

fn recall(number: u64) -> Push {
    Push::Recall { recall: number, targets: vec![RecallTarget { inode: 300, name: None }] }
}

fn acknowledged(fake: &Fake) -> Vec<u64> {
    let world = fake.world.lock();
    let all = world.seen.iter().filter_map(|(_, envelope)| match &envelope.request {
        Request::File(FileRequest::AcknowledgeRecalls { recalls }) => Some(recalls.clone()),
        _ => None,
    });
    all.flatten().collect()
}

async fn leased(fake: &Fake) -> (Volume, LeaseEvents) {
    let volume = fake.volume_of(fake.builder().leases(true)).await;
    let events = volume.lease_events();
    (volume, events)
}

async fn expect_lost_and_regained(events: &LeaseEvents) {
    assert_eq!(soon(events.next()).await, Some(LeaseEvent::Lost));
    assert!(matches!(soon(events.next()).await, Some(LeaseEvent::Regained { granted: true, .. })));
}

/// Breaks the connection at each `StatFs`.
fn breaking(seen: &Seen) -> Act {
    if seen.name() == "StatFs" && seen.connection < 4 { Act::Drop } else { Act::Normal }
}

#[tokio::test]
async fn leases_are_begun_before_anything_else_on_every_connection() {
    let fake = Fake::start(|seen, _| if seen.connection == 2 { breaking(seen) } else { Act::Normal });
    let volume = fake.volume_of(fake.builder().leases(true)).await;
    assert!(volume.lease_terms().is_some_and(|terms| terms.granted && !terms.resumed));
    let _ = soon(volume.statfs()).await;
    assert!(volume.lease_terms().is_some_and(|terms| terms.resumed), "without a subscriber nothing waits");
    assert_eq!(fake.world.lock().names(), ["BeginLeases", "StatFs", "BeginLeases", "StatFs"]);
}

#[tokio::test]
async fn a_recall_reaches_the_subscriber_and_its_acknowledgement_the_server() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "Lookup" => Act::Push(recall(7)),
        // Before the greeting is complete.
        "BeginLeases" => Act::PushFirst(recall(1)),
        _ => Act::Normal,
    });
    let (volume, events) = leased(&fake).await;
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    loop {
        match soon(events.next()).await {
            Some(LeaseEvent::Recall { recall: 7, targets }) => {
                assert_eq!(targets, [RecallTarget { inode: 300, name: None }]);
                break;
            }
            // Whether the subscriber was there when it came is a matter of time; both ways it is answered.
            Some(LeaseEvent::Recall { recall: 1, .. }) => volume.inodes().acknowledge_in_background(1),
            other => panic!("{other:?}"),
        }
    }
    eventually("the early one is answered", || acknowledged(&fake) == [1]).await;
    volume.inodes().acknowledge_in_background(7);
    eventually("it is acknowledged", || acknowledged(&fake) == [1, 7]).await;
}

#[tokio::test]
async fn without_a_subscriber_recalls_are_acknowledged_because_nothing_is_kept() {
    let fake =
        Fake::start(|seen, _| if seen.name() == "Lookup" { Act::Push(recall(7)) } else { Act::Normal });
    let (volume, events) = leased(&fake).await;
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    assert!(acknowledged(&fake).is_empty());
    drop(events);
    eventually("what was not taken is acknowledged", || acknowledged(&fake) == [7]).await;
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    eventually("so is what comes later", || acknowledged(&fake) == [7, 7]).await;
}

#[tokio::test]
async fn after_a_loss_others_wait_until_everything_is_claimed_again() {
    let mut broken = false;
    let fake = Fake::start(move |seen, _| match seen.name() {
        "Lookup" if !std::mem::replace(&mut broken, true) => Act::Drop,
        _ => Act::Normal,
    });
    fake.world.lock().stale_inodes = vec![301];
    let (volume, events) = leased(&fake).await;
    // More than may be under way at a time: what claims things must not need a turn of theirs.
    let others = tokio::spawn({
        let volume = volume.clone();
        async move { join_all((0..400).map(|_| volume.inodes().lookup(256, "a"))).await }
    });
    expect_lost_and_regained(&events).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!others.is_finished());
    let gone = soon(volume.inodes().recovering().reclaim_inodes(&[300, 301])).await.unwrap();
    assert_eq!(gone, [301]);
    let before = fake.world.lock().seen.iter().filter(|(connection, _)| *connection > 2).count();
    assert_eq!(before, 2, "BeginLeases and ReclaimInodes only");
    events.resume();
    assert!(soon(others).await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test]
async fn resuming_after_a_loss_that_was_not_seen_does_nothing() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "ReclaimInodes" if seen.connection == 3 => Act::Drop,
        _ => breaking(seen),
    });
    let (volume, events) = leased(&fake).await;
    let waiting = tokio::spawn({
        let volume = volume.clone();
        async move { volume.statfs().await }
    });
    expect_lost_and_regained(&events).await;
    let failed = soon(volume.inodes().recovering().reclaim_inodes(&[300])).await;
    assert!(
        matches!(failed, Err(ClientError::Interrupted)),
        "it is claimed anew, not sent again: {failed:?}"
    );
    eventually("there is a new connection", || fake.world.lock().connections == 4).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    events.resume();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished(), "the resume was meant for a connection that is gone");
    expect_lost_and_regained(&events).await;
    events.resume();
    let _ = soon(waiting).await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_is_kept_alive_and_a_silent_one_is_lost() {
    let silent = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let fake = Fake::start({
        let silent = silent.clone();
        move |seen, _| {
            let silent = silent.load(std::sync::atomic::Ordering::Relaxed) && seen.connection == 2;
            if seen.name() == "Ping" && silent { Act::Hold } else { Act::Normal }
        }
    });
    fake.world.lock().silence = 300;
    let (_volume, events) = leased(&fake).await;
    let quiet = tokio::time::timeout(Duration::from_millis(900), events.next()).await;
    assert!(quiet.is_err(), "a living server is not lost: {quiet:?}");
    silent.store(true, std::sync::atomic::Ordering::Relaxed);
    let start = Instant::now();
    assert_eq!(soon(events.next()).await, Some(LeaseEvent::Lost));
    assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
    assert!(
        matches!(soon(events.next()).await, Some(LeaseEvent::Regained { .. })),
        "nobody else asked for it"
    );
}

/// Frames that have waited for a client that was stopped say nothing about the server of now.
#[tokio::test]
async fn a_client_that_was_stopped_drops_what_it_kept() {
    let fake = Fake::normal();
    fake.world.lock().silence = 300;
    let (_volume, events) = leased(&fake).await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    // Stops the whole runtime.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(soon(events.next()).await, Some(LeaseEvent::Lost));
}

#[tokio::test]
async fn a_fenced_client_loses_its_leases_at_once_and_repeats_its_request() {
    let mut fenced = false;
    let fake = Fake::start(move |seen, _| {
        let first = seen.name() == "Create" && !std::mem::replace(&mut fenced, true);
        if first { Act::Say(Response::Error(ErrorCode::Fenced.into())) } else { Act::Normal }
    });
    let (volume, events) = leased(&fake).await;
    let kind = crate::NewKind::Directory;
    let created =
        tokio::spawn(async move { volume.inodes().create(256, "d", kind, 0o755, (0, 0), true, None).await });
    expect_lost_and_regained(&events).await;
    events.resume();
    soon(created).await.unwrap().unwrap();
    assert_eq!(fake.world.lock().executed, 1);
}

#[tokio::test]
async fn a_refused_client_is_told_and_does_not_hammer_the_server() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "Attach" if seen.connection > 2 => Act::Say(Response::Error(ErrorCode::UnknownVolume.into())),
        _ => breaking(seen),
    });
    let (volume, events) = leased(&fake).await;
    assert!(soon(volume.statfs()).await.is_err());
    assert_eq!(soon(events.next()).await, Some(LeaseEvent::Lost));
    assert_eq!(soon(events.next()).await, None);
    let connections = fake.world.lock().connections;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fake.world.lock().connections, connections);
}

#[tokio::test]
async fn what_was_forgotten_is_told_again_on_the_next_connection_and_first() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "ForgetInodes" | "AcknowledgeRecalls" if seen.connection == 2 => Act::Hold,
        _ => breaking(seen),
    });
    let (volume, events) = leased(&fake).await;
    volume.inodes().forget_in_background(300);
    volume.inodes().acknowledge_in_background(9);
    eventually("both arrive", || fake.world.lock().seen.len() == 3).await;
    let breaks = tokio::spawn(async move { volume.statfs().await });
    expect_lost_and_regained(&events).await;
    events.resume();
    eventually("it is told", || fake.world.lock().count("ForgetInodes") == 2).await;
    let world = fake.world.lock();
    let second: Vec<_> =
        world.seen.iter().filter(|(connection, _)| *connection == 3).map(|(_, e)| e.request.name()).collect();
    assert_eq!(second.get(..2), Some(&["BeginLeases", "ForgetInodes"][..]));
    assert_eq!(world.count("AcknowledgeRecalls"), 1, "the recall went with its connection");
    breaks.abort();
}

#[tokio::test]
async fn a_hard_client_waits_for_its_server() {
    let fake = Fake::start(|seen, _| if seen.connection == 2 { breaking(seen) } else { Act::Normal });
    let builder = fake.builder().retries(quick_retries(2)).hard(true).timeouts(Timeouts {
        request: Duration::from_millis(50),
        connect: Duration::from_millis(200),
        silence: Duration::from_secs(5),
    });
    let volume = fake.volume_of(builder).await;
    fake.world.lock().deaf = true;
    let waiting = tokio::spawn({
        let volume = volume.clone();
        async move { volume.statfs().await }
    });
    eventually("it arrives", || fake.world.lock().count("StatFs") == 1).await;
    // Given up while there is no connection: its place is free at once.
    let given_up = tokio::time::timeout(Duration::from_millis(100), volume.inodes().lookup(256, "a")).await;
    assert!(given_up.is_err());
    assert_eq!(volume.inodes().channel.usage(), (1, 255));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    fake.world.lock().deaf = false;
    let error = soon(waiting).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotSupported), "this fake's answer");
}
