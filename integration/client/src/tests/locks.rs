//! Locks: they may wait for longer than requests, and are not waited for by those who went away.

use std::time::Duration;

use futures_util::future::join_all;
use subvol_protocol::request::{FileRequest, LockFamily, LockKind, LockRange, Request};

use super::fake::{Act, Fake};
use super::{eventually, soon};
use crate::Timeouts;

const fn range(kind: LockKind) -> LockRange {
    LockRange { inode: 300, family: LockFamily::Range, kind, owner: 1, start: 0, last: 99, process: 1 }
}

/// Holds locks that may wait until `TestLock` is asked.
fn busy() -> Fake {
    Fake::start(|seen, _| match seen.file() {
        Some(FileRequest::Lock { wait: Some(_), .. }) => Act::Hold,
        Some(FileRequest::TestLock { .. }) => Act::Release,
        _ => Act::Normal,
    })
}

#[tokio::test]
async fn a_wait_for_a_lock_is_not_cut_short() {
    let fake = busy();
    let request = Duration::from_millis(50);
    let volume = fake
        .volume_of(fake.builder().leases(true).timeouts(Timeouts { request, ..Timeouts::default() }))
        .await;
    let waiting = tokio::spawn({
        let inodes = volume.inodes().clone();
        async move { inodes.lock(range(LockKind::Write), Some(1), false).await }
    });
    tokio::time::sleep(4 * request).await;
    assert!(!waiting.is_finished());
    assert_eq!(
        soon(volume.inodes().test_lock(range(LockKind::Read))).await.unwrap(),
        Some(range(LockKind::Read))
    );
    soon(waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_wait_that_is_given_up_is_cancelled() {
    let fake = busy();
    let volume = fake.volume_of(fake.builder().leases(true)).await;
    let waiting = tokio::spawn({
        let inodes = volume.inodes().clone();
        async move { inodes.lock(range(LockKind::Write), Some(17), false).await }
    });
    eventually("it arrives", || fake.world.lock().count("Lock") == 1).await;
    waiting.abort();
    eventually("it is cancelled", || fake.world.lock().count("CancelLock") == 1).await;
    let world = fake.world.lock();
    let cancelled = world.seen.last().map(|(_, envelope)| &envelope.request);
    assert_eq!(cancelled, Some(&Request::File(FileRequest::CancelLock { wait: 17 })));
}

/// Waits take part of the turns only: whoever gives a lock back needs one.
#[tokio::test]
async fn many_waits_leave_room_for_others() {
    let fake = busy();
    let volume = fake.volume_of(fake.builder().leases(true).max_in_flight(8)).await;
    let inodes = volume.inodes();
    let waiting = tokio::spawn({
        let inodes = inodes.clone();
        async move { join_all((0..20).map(|wait| inodes.lock(range(LockKind::Write), Some(wait), false))).await }
    });
    eventually("some arrive", || fake.world.lock().count("Lock") == 4).await;
    soon(inodes.lock(range(LockKind::Unlock), None, false)).await.unwrap();
    while !waiting.is_finished() {
        soon(inodes.test_lock(range(LockKind::Read))).await.unwrap();
    }
    assert!(soon(waiting).await.unwrap().iter().all(Result::is_ok));
}
