//! The shortest way through the whole server, and what survives its end.

mod support;

use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{FileRef, FileRequest, InodeRef, OpenFlags};
use subvol_protocol::response::FileResponse;
use support::{MIB, Place, code, create_request};

#[test]
fn create_write_fsync_rename_kill_replay() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (small, handle) = client.create("small");
    client.write(handle, 0, b"hello").expect("written");
    client.fsync(handle).expect("durable");
    assert_eq!(&client.read(FileRef::handle(handle), 1, 100).expect("read")[..], b"ello");
    let (large, handle) = client.create("large");
    client.write(handle, 10, &vec![3; 300_000]).expect("written");
    client.rename("small", "renamed").expect("renamed");
    client.fsync(handle).expect("durable");
    client.create("lost");
    assert_eq!(code(client.file(create_request("large"))), ErrorCode::Exists);
    place.kill(server);

    let server = place.start();
    assert_eq!(server.replay().subvolumes.len(), 1);
    let mut client = place.volume("v");
    assert_eq!(client.lookup("renamed"), Ok(small));
    assert_eq!(client.lookup("large"), Ok(large));
    assert_eq!(code(client.lookup("small")), ErrorCode::NotFound);
    assert_eq!(code(client.lookup("lost")), ErrorCode::NotFound);
    assert_eq!(&client.read(FileRef::inode(small), 0, 100).expect("read")[..], b"hello");
    let read = client.read(FileRef::inode(large), 0, 1 << 20).expect("read");
    assert!(read.len() == 300_010 && read[..10] == [0; 10] && read[10..].iter().all(|&byte| byte == 3));
    server.shutdown().expect("committed");
}

#[test]
fn an_orderly_end_loses_nothing() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (inode, handle) = client.create("a");
    client.write(handle, 0, b"never synced").expect("written");
    server.shutdown().expect("committed");
    let server = place.start();
    let mut client = place.volume("v");
    assert_eq!(client.lookup("a"), Ok(inode));
    assert_eq!(&client.read(FileRef::inode(inode), 0, 100).expect("read")[..], b"never synced");
    drop(server);
}

#[test]
fn a_handle_reaches_a_file_that_lost_its_name() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (_, handle) = client.create("a");
    client.write(handle, 0, b"still here").expect("written");
    let unlink = FileRequest::Unlink { parent: support::ROOT, name: support::name("a") };
    assert!(matches!(client.file(unlink), Ok(FileResponse::Removed { links: 0, .. })));
    assert_eq!(&client.read(FileRef::handle(handle), 0, 100).expect("read")[..], b"still here");
    let close =
        FileRequest::Close { handle: subvol_protocol::request::HandleRef::Explicit(handle), lineage: None };
    assert_eq!(client.file(close.clone()), Ok(FileResponse::Closed));
    assert_eq!(code(client.file(close)), ErrorCode::StaleHandle);
    server.shutdown().expect("committed");
}

/// What is half freed must not come back: replay would meet a whole file and free it at once.
#[test]
fn a_file_that_is_being_freed_cannot_be_opened_or_changed_by_number() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (inode, handle) = client.create("a");
    for block in 0..2100 {
        client.write(handle, block * 8192, &[1; 4096]).expect("written");
    }
    client.fsync(handle).expect("more extents than a step frees");
    let close =
        FileRequest::Close { handle: subvol_protocol::request::HandleRef::Explicit(handle), lineage: None };
    assert_eq!(client.file(close), Ok(FileResponse::Closed));
    let file = InodeRef::Explicit(inode);
    let ids = client.send_all([
        FileRequest::Unlink { parent: support::ROOT, name: support::name("a") },
        FileRequest::Open { inode: file, flags: OpenFlags::READ },
        FileRequest::PunchHole { file: FileRef::inode(inode), offset: 0, length: 4096 },
    ]);
    assert!(support::file_response(client.wait(ids[0]).0).is_ok());
    assert_eq!(code(support::file_response(client.wait(ids[1]).0)), ErrorCode::StaleInode);
    assert_eq!(code(support::file_response(client.wait(ids[2]).0)), ErrorCode::StaleInode);
    server.shutdown().expect("committed");
}

/// A file without a name that no handle reaches would cost its tenant an inode until the next start.
#[test]
fn a_file_that_cannot_be_opened_is_not_made() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (inode, _) = client.create("a");
    let open = || FileRequest::Open { inode: InodeRef::Explicit(inode), flags: OpenFlags::READ };
    let mut left = subvol_actors::limits::HANDLES_MAX - 1;
    while left > 0 {
        let batch = left.min(128);
        for id in client.send_all((0..batch).map(|_| open())) {
            assert!(support::file_response(client.wait(id).0).is_ok());
        }
        left -= batch;
    }
    let unnamed = FileRequest::CreateUnnamed {
        parent: support::ROOT,
        permissions: 0o600,
        uid: 0,
        gid: 0,
        open: OpenFlags::WRITE,
    };
    assert_eq!(code(client.file(unnamed)), ErrorCode::TooManyRequests);
    assert_eq!(code(client.file(support::create_request("b"))), ErrorCode::TooManyRequests);
    assert_eq!(code(client.lookup("b")), ErrorCode::NotFound);
    match client.file(FileRequest::StatFs) {
        Ok(FileResponse::Statistics { statistics }) => assert_eq!(statistics.used_inodes, 1),
        other => panic!("{other:?}"),
    }
    server.shutdown().expect("committed");
}
