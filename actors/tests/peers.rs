//! Peers that are strange, slow, many or gone.

mod support;

use bytes::BytesMut;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::frame::{self, FrameType};
use subvol_protocol::limits::MAX_IN_FLIGHT;
use subvol_protocol::request::*;
use subvol_protocol::response::{FileResponse, Push, Response, SessionResponse};
use support::*;

#[test]
fn what_comes_too_early_is_refused_by_name() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = Client::connect(&place.socket());
    assert_eq!(code(client.session(SessionRequest::Ping)), ErrorCode::OutOfOrder);
    client.hello();
    assert_eq!(code(client.file(FileRequest::StatFs)), ErrorCode::NotAuthenticated);
    assert_eq!(code(client.admin(AdminRequest::SyncStore)), ErrorCode::NotAuthenticated);
    assert_eq!(code(client.attach("v")), ErrorCode::NotAuthenticated);
    client.log_in(place.token("default")).expect("logged in");
    assert_eq!(code(client.file(FileRequest::StatFs)), ErrorCode::NotAttached);
    assert_eq!(code(client.attach("v")), ErrorCode::UnknownVolume);
    client.create_volume("v", u64::MAX, u64::MAX).expect("created");
    client.attach("v").expect("attached");
    assert_eq!(code(client.attach("v")), ErrorCode::OutOfOrder, "once per connection");
    client.file(FileRequest::StatFs).expect("numbers");
    assert_eq!(client.session(SessionRequest::Goodbye), Ok(SessionResponse::Farewell));
    assert!(client.receive().is_none(), "the connection ends");
    server.shutdown().expect("stopped");
}

#[test]
fn wrong_tokens_are_slow_and_end_the_connection() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = Client::connect(&place.socket());
    client.hello();
    let begun = Instant::now();
    for _ in 0..3 {
        let token = subvol_protocol::token::Token::new(b"guess").expect("a token");
        assert_eq!(code(client.log_in(token)), ErrorCode::NotAuthenticated);
    }
    assert!(begun.elapsed() > Duration::from_millis(600));
    assert!(client.receive().is_none());
    server.shutdown().expect("stopped");
}

#[test]
fn hostile_frames_cost_their_sender_the_connection_and_nobody_else_anything() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut good = place.volume("v");
    let mut huge = BytesMut::new();
    frame::encode(&mut huge, FrameType::Request, 1, &[0; 100_000], &[]).expect("encoded");
    let mut broken = BytesMut::new();
    frame::encode(&mut broken, FrameType::Request, 1, b"body", &[]).expect("encoded");
    broken[33] ^= 1;
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &huge, &broken, &[0; 64]] {
        let mut stream = UnixStream::connect(place.socket()).expect("connected");
        stream
            .write_all(bytes)
            .or_else(|error| match error.kind() {
                std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => Ok(()),
                _ => Err(error),
            })
            .expect("sent");
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        // What was not read by the server resets the connection, which may cost the answer.
        let _ = stream.read_to_end(&mut answer);
        good.file(FileRequest::StatFs).expect("others are served");
    }
    // A sound frame with nonsense in it costs only that request.
    let mut frame_bytes = BytesMut::new();
    frame::encode(&mut frame_bytes, FrameType::Request, 77, &[0xff; 30], &[]).expect("encoded");
    good.stream.write_all(&frame_bytes).expect("sent");
    let (response, _) = good.wait(77);
    assert!(matches!(response, Response::Error(error) if error.code == ErrorCode::BadFrame));
    let nonsense =
        FileRequest::Allocate { file: FileRef::inode(256), offset: u64::MAX, length: 5, keep_size: false };
    assert_eq!(code(good.file(nonsense)), ErrorCode::FileTooBig);
    server.shutdown().expect("stopped");
}

#[test]
fn a_peer_that_vanishes_gives_its_handles_back() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let open = OpenFlags::READ.with(OpenFlags::WRITE);
    let unnamed = FileRequest::CreateUnnamed { parent: ROOT, permissions: 0o600, uid: 0, gid: 0, open };
    client.file(unnamed).expect("created");
    let used = |client: &mut Client| match client.file(FileRequest::StatFs) {
        Ok(FileResponse::Statistics { statistics }) => statistics.used_inodes,
        other => panic!("{other:?}"),
    };
    assert_eq!(used(&mut client), 1);
    drop(client);
    let mut client = place.volume("v");
    let begun = Instant::now();
    while used(&mut client) != 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "the unnamed file was not freed");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.shutdown().expect("stopped");
}

#[test]
fn a_slow_reader_is_not_read_from_and_holds_back_nobody() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut slow = place.volume("v");
    let (inode, handle) = slow.create("large");
    slow.write(handle, 0, &vec![7; 1 << 20]).expect("written");
    let read = FileRequest::Read { file: FileRef::inode(inode), offset: 0, length: 1 << 20 };
    let ids = slow.send_all((0..200).map(|_| read.clone()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(server.shared().budget.used() <= 8 << 20, "what one connection has under way is bounded");
    let mut other = place.volume("v");
    for _ in 0..50 {
        assert_eq!(other.read(FileRef::inode(inode), 0, 1 << 20).expect("read").len(), 1 << 20);
    }
    for id in ids {
        assert_eq!(slow.wait(id).1.len(), 1 << 20);
    }
    // A permit goes back after its reply was written, which the reader of the last byte does not see.
    let begun = Instant::now();
    while server.shared().budget.used() != 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "permits were not given back");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.shutdown().expect("stopped");
}

#[test]
fn one_request_too_many_is_answered() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let gate = std::sync::Arc::new(Gate::default());
    place.device.add(gate.rule(subvol_storage::device::Operations::WRITES));
    gate.close();
    let mut ids = Vec::new();
    for number in 0..MAX_IN_FLIGHT {
        let (_, handle) = if number == 0 { client.create("a") } else { (0, 1) };
        ids.push(client.send(&fsync_request(handle).into(), &[]));
    }
    gate.wait_for_one();
    let over = client.send(&FileRequest::StatFs.into(), &[]);
    assert_eq!(code(file_response(client.wait(over).0)), ErrorCode::TooManyRequests);
    gate.open();
    for id in ids {
        file_response(client.wait(id).0).expect("durable");
    }
    client.file(FileRequest::StatFs).expect("room again");
    server.shutdown().expect("stopped");
}

#[test]
fn a_stopping_server_says_so_and_keeps_what_it_acknowledged() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    client.create("a");
    let stopping = std::thread::spawn(move || server.shutdown());
    while client.receive().is_some() {}
    assert!(matches!(client.pushes.as_slice(), [Push::Shutdown { .. }]));
    stopping.join().expect("no panic").expect("committed");
    let server = place.start();
    assert!(place.volume("v").lookup("a").is_ok());
    server.shutdown().expect("stopped");
}
