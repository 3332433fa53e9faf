//! fsync and commits: what waits for what, and what is told after a crash.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subvol_actors::{CommittedCheck, PinPoint, Server, ServerHandle};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{AdminRequest, FileRef, FileRequest, HandleRef, InodeRef, OpenFlags, Request};
use subvol_protocol::response::{AdminResponse, FileResponse, Response};
use subvol_storage::device::Operations;
use support::*;

/// S5: an fsync never waits for a commit in progress.
#[test]
fn fsync_goes_on_while_a_commit_cannot_write() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (_, handle) = client.create("a");
    client.write(handle, 0, b"first").expect("written");
    let gate = Arc::new(Gate::default());
    let ring_end = server.store().space().geometry().ring().end;
    place.device.add(gate.rule(Operations::PLAIN_WRITES).within(ring_end..u64::MAX));
    gate.close();
    let mut admin = place.admin();
    let sync = admin.send(&Request::Admin(AdminRequest::SyncStore).into(), &[]);
    gate.wait_for_one();
    let durable = server.store().durable();
    for round in 0..20u8 {
        client.write(handle, 0, &[round; 100]).expect("written");
        client.fsync(handle).expect("durable");
        client.create(&format!("file {round}"));
    }
    assert_eq!(server.store().durable(), durable, "the commit is still held, and yet all fsyncs returned");
    gate.open();
    let (response, _) = admin.wait(sync);
    assert_eq!(response, Response::Admin(AdminResponse::StoreSynced { transid: durable + 1 }));
    server.shutdown().expect("committed");
}

/// S5: an fsync never waits for another tenant's data. The data of one volume's fsync is held on its way to the device; the
/// fsyncs of another volume return all the same, and the held one returns once its data is there.
#[test]
fn an_fsync_does_not_wait_for_the_data_of_another_volume() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut large = place.volume("large");
    let mut small = place.volume("small");
    let (_, large_handle) = large.create("a");
    let (_, small_handle) = small.create("a");
    large.write(large_handle, 0, &vec![7; 512 * 1024]).expect("written");
    let gate = Arc::new(Gate::default());
    let ring_end = server.store().space().geometry().ring().end;
    place.device.add(gate.rule(Operations::PLAIN_WRITES).within(ring_end..u64::MAX));
    gate.close();
    let held = large.send(&fsync_request(large_handle).into(), &[]);
    gate.wait_for_one();
    for round in 0..20u8 {
        small.write(small_handle, 0, &[round; 100]).expect("written");
        small.fsync(small_handle).expect("durable");
    }
    assert_eq!(
        server.shared().counters.log.flushes.load(Ordering::Relaxed),
        20,
        "none of them is the held one's"
    );
    gate.open();
    let (response, _) = large.wait(held);
    assert!(matches!(response, Response::File(FileResponse::Synced { .. })), "{response:?}");
    server.shutdown().expect("committed");
}

/// A volume with so many files that what one file needs is not what another needs, and cold caches.
fn cold_volume(place: &Place, pin_point: PinPoint) -> ServerHandle {
    let server = place.start();
    let mut client = place.volume("v");
    for number in 0..3000 {
        client.create(&format!("file {number}"));
    }
    server.shutdown().expect("committed");
    let mut options = place.options();
    options.bench.pin_point = pin_point;
    Server::start(options).expect("started")
}

/// Begins a rename whose first block fetch is held, and tells whether an fsync returns meanwhile.
fn fsync_passes_a_held_rename(pin_point: PinPoint) -> bool {
    let place = Place::new(256 * MIB);
    let server = cold_volume(&place, pin_point);
    let mut one = place.volume("v");
    let mut other = place.volume("v");
    let inode = other.lookup("file 2999").expect("there");
    let flags = OpenFlags::READ.with(OpenFlags::WRITE);
    let open = FileRequest::Open { inode: InodeRef::Explicit(inode), flags };
    let Ok(FileResponse::Opened { handle, .. }) = other.file(open) else { panic!("not opened") };
    other.write(handle, 0, b"warm").expect("written");
    other.fsync(handle).expect("durable");

    let gate = Arc::new(Gate::default());
    place.device.add(gate.rule(Operations::READS));
    gate.close();
    let rename = one.send(&rename_request("file 7", "moved").into(), &[]);
    gate.wait_for_one();
    other.write(handle, 0, b"more").expect("written");
    let fsync = other.send(&fsync_request(handle).into(), &[]);
    other.stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.receive())).is_ok();
    gate.open();
    one.wait(rename);
    if !passed {
        other.stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        file_response(other.wait(fsync).0).expect("durable once the pin is gone");
    }
    assert!(one.lookup("moved").is_ok());
    server.shutdown().expect("committed");
    passed
}

#[test]
fn a_slow_rename_holds_back_no_fsync() {
    assert!(fsync_passes_a_held_rename(PinPoint::BeforeFirstRecord));
}

#[test]
fn pinning_on_arrival_would() {
    assert!(!fsync_passes_a_held_rename(PinPoint::OnArrival));
}

#[test]
fn an_fsync_of_a_durable_handle_costs_no_message() {
    let place = Place::new(256 * MIB);
    for check in [CommittedCheck::AtomicRead, CommittedCheck::AskActor] {
        let mut options = place.options();
        options.bench.committed_check = check;
        let server = Server::start(options).expect("started");
        let mut client = place.volume("v");
        let (_, handle) = client.create(&format!("{check:?}"));
        client.write(handle, 0, b"data").expect("written");
        client.fsync(handle).expect("durable");
        let counters = &server.shared().counters;
        let messages = counters.messages.load(Ordering::Relaxed);
        let fast = counters.fsync_fast.load(Ordering::Relaxed);
        for _ in 0..100 {
            client.fsync(handle).expect("durable");
        }
        let (sent, answered) = match check {
            CommittedCheck::AtomicRead => (0, 100),
            CommittedCheck::AskActor => (100, 0),
        };
        assert_eq!(counters.messages.load(Ordering::Relaxed) - messages, sent);
        assert_eq!(counters.fsync_fast.load(Ordering::Relaxed) - fast, answered);
        // S2: any operation of the volume that is not durable ends the short way.
        client.create(&format!("{check:?} other"));
        client.fsync(handle).expect("durable");
        assert_eq!(counters.messages.load(Ordering::Relaxed) - messages, sent + 2);
        server.shutdown().expect("committed");
    }
}

/// S6: a retried request takes effect once, also across a restart.
#[test]
fn a_retry_after_a_crash_repeats_the_outcome() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let id = client.client_id;
    let create = with_id(create_request("a"), id, 1);
    let Ok(FileResponse::Created { attributes, handle: Some(handle), .. }) =
        file_response(client.call(&create, &[]).0)
    else {
        panic!("not created")
    };
    let append = FileRequest::Write {
        file: FileRef::inode(attributes.inode),
        position: subvol_protocol::request::WritePosition::Append,
    };
    let append = with_id(append, id, 2);
    file_response(client.call(&append, b"12345").0).expect("written");
    let rename = with_id(rename_request("a", "b"), id, 3);
    file_response(client.call(&rename, &[]).0).expect("renamed");
    client.fsync(handle).expect("durable");
    place.kill(server);

    let server = place.start();
    let mut client = place.volume("v");
    for _ in 0..2 {
        match file_response(client.call(&create, &[]).0) {
            Ok(FileResponse::Created { attributes: again, created: true, handle: Some(_), .. }) => {
                assert_eq!(again.inode, attributes.inode);
            }
            other => panic!("{other:?}"),
        }
        match file_response(client.call(&append, b"12345").0) {
            Ok(FileResponse::Written { written: 5, position: 0, size: 5, .. }) => {}
            other => panic!("{other:?}"),
        }
        let renamed = file_response(client.call(&rename, &[]).0).expect("renamed, once");
        assert!(matches!(renamed, FileResponse::Renamed { inode, .. } if inode == attributes.inode));
    }
    assert_eq!(code(client.lookup("a")), ErrorCode::NotFound);
    assert_eq!(client.lookup("b"), Ok(attributes.inode));
    server.shutdown().expect("committed");
}

/// S6: a server that lost what it had acknowledged says so at the next fsync.
#[test]
fn lost_changes_are_told_once_they_matter() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (inode, handle) = client.create("a");
    let kept = client.write(handle, 0, b"kept").expect("written").ticket();
    client.file(FileRequest::SyncVolume { lineage: None }).expect("committed");
    let lost = client.write(handle, 0, b"lost").expect("written").ticket();
    place.kill(server);

    let server = place.start();
    let mut client = place.volume("v");
    let flags = OpenFlags::READ.with(OpenFlags::WRITE);
    let open = FileRequest::Open { inode: InodeRef::Explicit(inode), flags };
    let Ok(FileResponse::Opened { handle, .. }) = client.file(open) else { panic!("not opened") };
    let fsync = |lineage| FileRequest::Fsync { file: FileRef::handle(handle), data_only: false, lineage };
    assert!(client.file(fsync(kept)).is_ok(), "what a commit had is not lost");
    assert_eq!(code(client.file(fsync(lost))), ErrorCode::StaleLineage);
    assert_eq!(code(client.file(FileRequest::SyncVolume { lineage: lost })), ErrorCode::StaleLineage);
    assert!(client.file(fsync(None)).is_ok());
    let close = FileRequest::Close { handle: HandleRef::Explicit(handle), lineage: lost };
    assert_eq!(code(client.file(close)), ErrorCode::StaleLineage);
    assert_eq!(&client.read(FileRef::inode(inode), 0, 10).expect("read")[..], b"kept");
    server.shutdown().expect("committed");
}

/// A ring that is full waits for a commit and goes on; nothing is lost.
#[test]
fn a_full_ring_falls_back_to_a_commit() {
    let place = Place::with_ring(256 * MIB, 256 * 1024);
    let mut options = place.options();
    options.commit_interval = Duration::from_secs(3600);
    let server = Server::start(options).expect("started");
    let mut client = place.volume("v");
    let (inode, handle) = client.create("a");
    for round in 0..60u8 {
        client.write(handle, 0, &vec![round; 30_000]).expect("written");
        client.fsync(handle).expect("durable");
    }
    assert!(server.shared().history.lock().count > 2, "the ring asked for commits");
    place.kill(server);
    let server = place.start();
    let mut client = place.volume("v");
    assert_eq!(&client.read(FileRef::inode(inode), 0, 30_000).expect("read")[..], &vec![59; 30_000][..]);
    server.shutdown().expect("committed");
}

/// S7: after a device error nothing is claimed durable any more.
#[test]
fn a_failed_device_is_told_to_every_handle() {
    use subvol_storage::device::{Action, FaultRule};
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (_, one) = client.create("a");
    let (_, other) = client.create("b");
    client.write(one, 0, b"data").expect("written");
    client.write(other, 0, b"data").expect("written");
    place.device.add(FaultRule::new(Operations::WRITES | Operations::FLUSHES, Action::FailForGood(5)));
    assert_eq!(code(client.fsync(one)), ErrorCode::Io);
    assert_eq!(code(client.fsync(other)), ErrorCode::Io);
    assert_eq!(code(client.fsync(one)), ErrorCode::Io, "a retry does not claim lost data durable");
    assert_eq!(code(client.write(one, 0, b"more")), ErrorCode::Io);
    assert_eq!(&client.read(FileRef::handle(one), 0, 10).expect("still readable")[..], b"data");
    let close = FileRequest::Close { handle: HandleRef::Explicit(other), lineage: None };
    assert_eq!(code(client.file(close)), ErrorCode::Io);
    assert!(server.shutdown().is_err());
}
