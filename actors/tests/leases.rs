//! Leases and locks between connections: who is told, who waits, and what becomes of clients that go.

mod support;

use std::time::{Duration, Instant};
use subvol_actors::{LocalReply, Server, ServerHandle, ServerOptions};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::limits::MAX_FILE_SIZE;
use subvol_protocol::request::{
    Features, FileRef, FileRequest, InodeRef, LockFamily, LockKind, LockRange, Request, SessionRequest,
    SetAttributes,
};
use subvol_protocol::response::{FileResponse, Push, RecallTarget, Response};
use support::{Client, MIB, Place, code, create_request, name};

const ROOT: u64 = 256;

/// A connection with leases; `id` is the client's own.
fn leased(place: &Place, id: u8) -> Client {
    drop(place.volume("v"));
    let mut client = Client::connect(&place.socket());
    client.client_id = [id; 16];
    client.hello_with(Features::LEASES);
    client.log_in(place.token("default")).expect("logged in");
    client.attach("v").expect("attached");
    begin(&mut client);
    client
}

fn begin(client: &mut Client) -> bool {
    match client.file(FileRequest::BeginLeases).expect("leases") {
        FileResponse::LeasesBegun { granted: true, resumed, .. } => resumed,
        other => panic!("{other:?}"),
    }
}

fn start(place: &Place, change: impl FnOnce(&mut ServerOptions)) -> ServerHandle {
    let mut options = place.options();
    change(&mut options);
    Server::start(options).expect("started")
}

fn chmod(inode: u64) -> FileRequest {
    FileRequest::SetAttributes(SetAttributes {
        permissions: Some(0o600),
        ..SetAttributes::none(FileRef::inode(inode))
    })
}

/// The next recall that this client receives.
fn recall(client: &mut Client) -> (u64, Vec<RecallTarget>) {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        client.session(SessionRequest::Ping).expect("alive");
        match client.pushes.pop() {
            Some(Push::Recall { recall, targets }) => return (recall, targets),
            Some(other) => panic!("no recall but {other:?}"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no recall")
}

fn no_recall(client: &mut Client) {
    client.session(SessionRequest::Ping).expect("alive");
    assert_eq!(client.pushes, []);
}

fn acknowledge(client: &mut Client, recall: u64) {
    client.file(FileRequest::AcknowledgeRecalls { recalls: vec![recall] }).expect("noted");
}

#[test]
fn a_change_is_answered_when_the_others_have_dropped_what_it_made_untrue() {
    let place = Place::new(256 * MIB);
    let _server = place.start();
    let (mut a, mut b) = (leased(&place, 1), leased(&place, 2));
    let (inode, _) = a.create("f");
    b.lookup("f").expect("found");
    let change = a.send(&chmod(inode).into(), &[]);
    let (number, targets) = recall(&mut b);
    assert_eq!(targets, [RecallTarget { inode, name: None }]);
    // Whoever asks now sees the change, though its author has no answer yet.
    let FileResponse::Attributes { attributes } =
        b.file(FileRequest::GetAttributes { file: FileRef::inode(inode) }).expect("read")
    else {
        panic!("no attributes")
    };
    assert_eq!(attributes.mode & 0o7777, 0o600);
    a.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
    let silent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| a.receive()));
    assert!(silent.is_err(), "the answer came before the acknowledgement");
    a.stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    acknowledge(&mut b, number);
    assert!(matches!(a.wait(change).0, Response::File(FileResponse::AttributesSet { .. })));
}

#[test]
fn names_are_recalled_one_by_one_and_absent_ones_too() {
    let place = Place::new(256 * MIB);
    let _server = place.start();
    let (mut a, mut b) = (leased(&place, 1), leased(&place, 2));
    assert_eq!(code(b.lookup("later")), ErrorCode::NotFound);
    let change = a.send(&create_request("later").into(), &[]);
    let (number, targets) = recall(&mut b);
    assert_eq!(targets, [RecallTarget { inode: ROOT, name: Some(name("later")) }]);
    acknowledge(&mut b, number);
    a.wait(change);
    // What nobody keeps costs nobody anything.
    let change = a.send(&create_request("other").into(), &[]);
    let (number, _) = recall(&mut b);
    acknowledge(&mut b, number);
    a.wait(change);
    no_recall(&mut a);
}

#[test]
fn a_directory_that_changes_itself_keeps_its_names_leased() {
    let place = Place::new(256 * MIB);
    let _server = place.start();
    let (mut a, mut b) = (leased(&place, 1), leased(&place, 2));
    assert_eq!(code(b.lookup("later")), ErrorCode::NotFound);
    let change = a.send(&chmod(ROOT).into(), &[]);
    let (number, targets) = recall(&mut b);
    assert_eq!(targets, [RecallTarget { inode: ROOT, name: None }]);
    acknowledge(&mut b, number);
    a.wait(change);
    let change = a.send(&create_request("later").into(), &[]);
    let (number, targets) = recall(&mut b);
    assert_eq!(targets, [RecallTarget { inode: ROOT, name: Some(name("later")) }]);
    acknowledge(&mut b, number);
    a.wait(change);
}

#[test]
fn a_client_that_does_not_answer_is_cut_off() {
    let place = Place::new(256 * MIB);
    let _server = start(&place, |options| options.recall_time = Duration::from_millis(300));
    let (mut a, mut b) = (leased(&place, 1), leased(&place, 2));
    let (inode, _) = a.create("f");
    b.lookup("f").expect("found");
    let since = Instant::now();
    a.file(chmod(inode)).expect("in the end");
    assert!(since.elapsed() >= Duration::from_millis(250), "it had its time");
    while b.receive().is_some() {}
    assert!(matches!(b.pushes[..], [Push::Recall { .. }, Push::Shutdown { .. }]), "{:?}", b.pushes);
    assert!(begin_again(&place), "its inodes are still its own");
}

/// Client 2 connects once more; tells whether the server remembers it.
fn begin_again(place: &Place) -> bool {
    let mut client = Client::connect(&place.socket());
    client.client_id = [2; 16];
    client.hello_with(Features::LEASES);
    client.log_in(place.token("default")).expect("logged in");
    client.attach("v").expect("attached");
    begin(&mut client)
}

#[test]
fn an_inode_that_is_known_stays_without_a_name_until_it_is_forgotten() {
    let place = Place::new(256 * MIB);
    let _server = place.start();
    let (mut a, mut b) = (leased(&place, 1), place.volume("v"));
    let (inode, handle) = b.create("f");
    b.write(handle, 0, b"kept").expect("written");
    a.lookup("f").expect("found");
    let unlink =
        b.send(&FileRequest::Unlink { parent: InodeRef::Explicit(ROOT), name: name("f") }.into(), &[]);
    let (number, _) = recall(&mut a);
    acknowledge(&mut a, number);
    b.wait(unlink);
    b.session(SessionRequest::Goodbye).expect("gone");
    assert_eq!(&a.read(FileRef::inode(inode), 0, 10).expect("still there")[..], b"kept");
    a.file(FileRequest::ForgetInodes { inodes: vec![inode] }).expect("noted");
    assert_eq!(code(a.read(FileRef::inode(inode), 0, 10)), ErrorCode::StaleInode);
    let FileResponse::Reclaimed { lost } =
        a.file(FileRequest::ReclaimInodes { inodes: vec![inode, ROOT] }).expect("answered")
    else {
        panic!("no answer")
    };
    assert_eq!(lost, [inode]);
}

const fn lock(inode: u64, kind: LockKind, owner: u64) -> LockRange {
    LockRange { inode, family: LockFamily::Range, kind, owner, start: 0, last: MAX_FILE_SIZE, process: 7 }
}

const fn ask(lock: LockRange, wait: Option<u64>) -> FileRequest {
    FileRequest::Lock { lock, wait, reclaim: false }
}

#[test]
fn locks_wait_are_cancelled_and_go_with_their_client() {
    let place = Place::new(256 * MIB);
    let _server = start(&place, |options| options.lock_grace = Duration::ZERO);
    let (mut a, mut b) = (leased(&place, 1), leased(&place, 2));
    let (inode, _) = a.create("f");
    let write = |owner| lock(inode, LockKind::Write, owner);
    a.file(ask(write(1), None)).expect("free");
    assert_eq!(code(b.file(ask(write(1), None))), ErrorCode::LockConflict);
    let found = b.file(FileRequest::TestLock { lock: write(1) }).expect("answered");
    assert_eq!(found, FileResponse::LockFound { blocker: Some(write(1)) });
    let waiting = b.send(&ask(write(1), Some(77)).into(), &[]);
    b.file(FileRequest::CancelLock { wait: 77 }).expect("noted");
    assert!(matches!(b.wait(waiting).0, Response::Error(error) if error.code == ErrorCode::Interrupted));
    let waiting = b.send(&ask(write(1), Some(78)).into(), &[]);
    a.session(SessionRequest::Goodbye).expect("gone");
    assert_eq!(b.wait(waiting).0, Response::File(FileResponse::Noted));
}

#[test]
fn after_a_restart_those_who_had_locks_come_first() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut a = leased(&place, 1);
    let (inode, handle) = a.create("f");
    a.fsync(handle).expect("durable");
    place.kill(server);
    let _server = start(&place, |options| options.lock_grace = Duration::from_millis(600));
    let (mut a, mut b) = (leased(&place, 1), leased(&place, 2));
    let since = Instant::now();
    let other = b.send(&ask(lock(inode, LockKind::Write, 1), None).into(), &[]);
    let lock = lock(inode, LockKind::Write, 1);
    a.file(FileRequest::Lock { lock, wait: None, reclaim: true }).expect("its own");
    assert!(matches!(b.wait(other).0, Response::Error(error) if error.code == ErrorCode::LockConflict));
    assert!(since.elapsed() >= Duration::from_millis(100), "it had to wait for those who come back");
}

#[test]
fn leases_need_their_feature() {
    let place = Place::new(256 * MIB);
    let _server = place.start();
    let mut client = place.volume("v");
    assert_eq!(code(client.file(FileRequest::BeginLeases)), ErrorCode::OutOfOrder);
}

#[test]
fn a_local_session_is_a_client_like_others() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut other = leased(&place, 2);
    let (inode, _) = other.create("f");
    let local = server.attach_local("v", false).expect("attached");
    let ask = |id, request| local.submit(vec![(id, Request::File(request), bytes::Bytes::new())]);
    let next = || {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(replies) = local.take(std::task::Waker::noop()) {
                return replies;
            }
            assert!(Instant::now() < until, "no answer");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    ask(1, FileRequest::BeginLeases);
    assert!(matches!(next()[..], [LocalReply::Answer { id: 1, .. }]));
    ask(2, FileRequest::GetAttributes { file: FileRef::inode(inode) });
    assert!(matches!(
        next()[..],
        [LocalReply::Answer { id: 2, response: Response::File(FileResponse::Attributes { .. }), .. }]
    ));
    let change = other.send(&chmod(inode).into(), &[]);
    let LocalReply::Push(Push::Recall { recall, .. }) = next().remove(0) else { panic!("no recall") };
    ask(3, FileRequest::AcknowledgeRecalls { recalls: vec![recall] });
    other.wait(change);
    assert!(server.attach_local("nobody/v", false).is_err() && server.attach_local("w", false).is_err());
}
