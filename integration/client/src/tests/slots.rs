//! Futures that are dropped: nothing leaks, nothing is closed twice.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::fake::{Act, Fake};
use super::{eventually, soon};
use crate::{OpenFlags, OpenOptions, Timeouts};

#[tokio::test]
async fn dropped_futures_do_not_leak_slots() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "Lookup" => Act::Hold,
        "StatFs" => Act::Release,
        _ => Act::Normal,
    });
    let volume = fake.volume().await;
    let inodes = volume.inodes();
    for round in 0..5 {
        // Some are dropped before they are sent, some after.
        let mut calls: Vec<_> = (0..200).map(|_| Box::pin(inodes.lookup(256, "a"))).collect();
        for call in &mut calls {
            assert!(call.now_or_never_by_ref().is_none());
        }
        if round % 2 == 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(calls);
        let _ = soon(volume.statfs()).await;
        let channel = &inodes.channel;
        eventually("all slots are free", || channel.usage() == (0, 256)).await;
    }
}

trait NowOrNever {
    type Output;
    fn now_or_never_by_ref(&mut self) -> Option<Self::Output>;
}

impl<F: Future + Unpin> NowOrNever for F {
    type Output = F::Output;
    fn now_or_never_by_ref(&mut self) -> Option<F::Output> {
        self.now_or_never()
    }
}

#[tokio::test]
async fn a_handle_whose_opening_was_given_up_is_closed() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "Open" => Act::Hold,
        "StatFs" => Act::Release,
        _ => Act::Normal,
    });
    let volume = fake.volume().await;
    let opening = tokio::spawn({
        let volume = volume.clone();
        async move { volume.open_inode(300, OpenFlags::READ).await }
    });
    eventually("the open arrives", || fake.world.lock().count("Open") == 1).await;
    opening.abort();
    let _ = soon(volume.statfs()).await;
    eventually("its handle is closed", || fake.world.lock().count("Close") == 1).await;
    eventually("nothing is left", || volume.inodes().channel.usage() == (0, 256)).await;
    assert_eq!(volume.inodes().channel.open_handles(), 0);
}

#[tokio::test]
async fn a_close_that_was_given_up_happens_once() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "Close" => Act::Hold,
        "StatFs" => Act::Release,
        _ => Act::Normal,
    });
    let volume = fake.volume().await;
    let open = || volume.open("f", OpenOptions::new().read(true));
    // Given up before it is sent: the background does it.
    let file = open().await.unwrap();
    assert!(file.close().now_or_never().is_none());
    // Given up while its answer is owed: it is not repeated.
    let file = open().await.unwrap();
    let closing = tokio::spawn(file.close());
    eventually("both closes arrive", || fake.world.lock().count("Close") == 2).await;
    closing.abort();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let _ = soon(volume.statfs()).await;
    eventually("nothing is open", || volume.inodes().channel.open_handles() == 0).await;
    assert_eq!(fake.world.lock().count("Close"), 2);
    eventually("nothing is left", || volume.inodes().channel.usage() == (0, 256)).await;
}

#[tokio::test]
async fn waiting_for_a_turn_also_times_out() {
    let fake = Fake::start(|seen, _| if seen.file().is_some() { Act::Hold } else { Act::Normal });
    let timeouts = Timeouts { request: Duration::from_millis(100), ..Timeouts::default() };
    let volume = fake.volume_of(fake.builder().timeouts(timeouts).max_in_flight(4)).await;
    let inodes = volume.inodes();
    let results = soon(join_all((0..20).map(|_| inodes.lookup(256, "a")))).await;
    assert!(results.into_iter().all(|result| result.is_err_and(|error| error.errno() == 110)));
}
