//! Many requests at once: order, batching, limits.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use subvol_protocol::request::{FileRequest, WritePosition};

use super::fake::{Act, Fake};
use super::soon;
use crate::{OpenFlags, OpenOptions, Timeouts};

#[tokio::test]
async fn answers_in_any_order_reach_their_callers() {
    let fake = Fake::start(|seen, _| match seen.file() {
        Some(FileRequest::Lookup { name, .. }) if name.as_bytes() == b"z" => Act::Release,
        Some(_) => Act::Hold,
        None => Act::Normal,
    });
    let volume = fake.volume().await;
    let inodes = volume.inodes();
    let names: Vec<String> = ('a'..='z').map(String::from).collect();
    let found = soon(try_join_all(names.iter().map(|name| inodes.lookup(256, name)))).await.unwrap();
    for (name, found) in names.iter().zip(found) {
        assert_eq!(found.inode, 1000 + u64::from(name.as_bytes()[0]));
    }
}

#[tokio::test]
async fn more_requests_than_the_server_allows_wait_their_turn() {
    let mut open = 0;
    let fake = Fake::start(move |seen, _| match seen.file() {
        None => Act::Normal,
        Some(_) => {
            open += 1;
            assert!(open <= 4, "more than the limit were unanswered");
            if open == 4 {
                open = 0;
                Act::Release
            } else {
                Act::Hold
            }
        }
    });
    fake.world.lock().limits.max_in_flight = 4;
    let volume = fake.volume().await;
    let inodes = volume.inodes();
    let all = soon(join_all((0..400).map(|_| inodes.lookup(256, "a")))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(inodes.channel.usage(), (0, 256));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_share_a_volume() {
    let fake = Fake::normal();
    let volume = fake.volume().await;
    let tasks = (0..16).map(|_| {
        let volume = volume.clone();
        tokio::spawn(async move {
            for _ in 0..200 {
                volume.inodes().lookup(256, "a").await.unwrap();
            }
        })
    });
    for task in soon(join_all(tasks)).await {
        task.unwrap();
    }
    assert_eq!(volume.inodes().channel.usage(), (0, 256));
}

#[tokio::test]
async fn large_reads_and_writes_are_cut_and_put_together() {
    let fake = Fake::normal();
    let content: Vec<u8> = (0..5_000_001_u32).map(|i| (i % 251) as u8).collect();
    fake.world.lock().content.clone_from(&content);
    let volume = fake.volume().await;
    let file = volume.open_inode(300, OpenFlags::READ).await.unwrap();
    assert!(soon(file.read_to_end()).await.unwrap() == content);
    assert!(soon(file.read_at(1_000_000, 3_000_000)).await.unwrap() == content[1_000_000..4_000_000]);
    assert_eq!(soon(file.read_at(5_000_000, 4_000_000)).await.unwrap().len(), 1);
    let mut buffer = [0; 7];
    assert_eq!(file.read_into(4_999_999, &mut buffer).await.unwrap(), 2);
    soon(file.write_at(10, &content)).await.unwrap();
    let world = fake.world.lock();
    let mut offsets: Vec<u64> = world
        .seen
        .iter()
        .filter_map(|(_, envelope)| match envelope.request {
            subvol_protocol::request::Request::File(FileRequest::Write {
                position: WritePosition::At(offset),
                ..
            }) => Some(offset),
            _ => None,
        })
        .collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [10, 10 + (1 << 20), 10 + (2 << 20), 10 + (3 << 20), 10 + (4 << 20)]);
}

#[tokio::test]
async fn a_slow_server_slows_its_clients_and_loses_nothing() {
    let mut first = true;
    let fake = Fake::start(move |seen, _| {
        // The server does not read for a while, so the socket and the client's buffers fill up.
        if std::mem::take(&mut first) && seen.name() == "Write" {
            std::thread::sleep(Duration::from_millis(100));
        }
        Act::Normal
    });
    let volume = fake.volume().await;
    let file = volume.open("f", OpenOptions::new().write(true)).await.unwrap();
    let payload = Bytes::from(vec![7; 300_000]);
    let writes = (0..300).map(|_| file.write_bytes_at(0, payload.clone()));
    assert!(soon(join_all(writes)).await.iter().all(Result::is_ok));
    assert_eq!(fake.world.lock().executed, 300);
}

#[tokio::test]
async fn a_request_without_an_answer_times_out_and_its_slot_comes_back() {
    let fake = Fake::start(|seen, _| match seen.file() {
        Some(FileRequest::Lookup { name, .. }) if name.as_bytes() == b"b" => Act::Release,
        Some(_) => Act::Hold,
        None => Act::Normal,
    });
    let patience = Duration::from_millis(100);
    let builder = fake.builder().timeouts(Timeouts { request: patience, ..Timeouts::default() });
    let volume = fake.volume_of(builder).await;
    let error = soon(volume.inodes().lookup(256, "a")).await.unwrap_err();
    assert_eq!(error.errno(), 110, "{error}");
    assert_eq!(volume.inodes().channel.usage(), (1, 255), "the answer is still owed");
    soon(volume.inodes().lookup(256, "b")).await.unwrap();
    assert_eq!(volume.inodes().channel.usage(), (0, 256));
}
