//! Peers that lie, stall, vanish and come in thousands, while an honest client works undisturbed and the server's memory stays bounded.
//!
//! The long form holds 10 000 idle connections: `cargo test -p subvol-tests --release -- --ignored soak_idle`.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use subvol_client::OpenOptions;
use subvol_client::protocol::codec::{self, ServerMessage};
use subvol_client::protocol::error::ErrorCode;
use subvol_client::protocol::frame::{self, FrameType};
use subvol_client::protocol::limits::{HEADER_LENGTH, MAX_BODY, MAX_IN_FLIGHT, MAX_PAYLOAD};
use subvol_client::protocol::name::Name;
use subvol_client::protocol::request::{
    Create, FileRef, FileRequest, InodeRef, NewKind, Request, RequestEnvelope, SessionRequest, WritePosition,
};
use subvol_client::protocol::response::{FileResponse, Response};
use subvol_tests::raw::Raw;
use subvol_tests::{Random, Server, Setup, Tool, soon};

/// What the server may need at most for a hundred bad connections and an honest one.
const MEMORY_BOUND: u64 = 700 << 20;

/// An honest client at work in the background; its slowest operation is kept.
struct Honest {
    stop: Arc<AtomicBool>,
    slowest: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<u64>,
}

impl Honest {
    async fn start(server: &Server) -> Self {
        let volume = server.volume("honest").await;
        let (stop, slowest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, worst) = (Arc::clone(&stop), Arc::clone(&slowest));
        let task = tokio::spawn(async move {
            let mut rounds = 0_u64;
            while !stopped.load(Ordering::SeqCst) {
                let start = Instant::now();
                let path = format!("f{}", rounds % 20);
                let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
                let file = soon("an honest open", volume.open(&path, options)).await.expect("a file");
                let text = Bytes::from(format!("round {rounds}"));
                soon("an honest write", file.write_bytes_at(0, text.clone())).await.expect("a write");
                soon("an honest fsync", file.sync()).await.expect("an fsync");
                assert_eq!(soon("an honest read", file.read_to_end()).await.expect("a read"), text);
                soon("an honest close", file.close()).await.expect("a close");
                worst.fetch_max(start.elapsed().as_millis() as u64, Ordering::SeqCst);
                rounds += 1;
            }
            rounds
        });
        Self { stop, slowest, task }
    }

    async fn finish(self) {
        self.stop.store(true, Ordering::SeqCst);
        let rounds = soon("the honest client ends", self.task).await.expect("no error");
        let slowest = self.slowest.load(Ordering::SeqCst);
        eprintln!("honest client: {rounds} rounds, slowest {slowest} ms");
        assert!(rounds > 5, "the honest client hardly worked: {rounds} rounds");
        assert!(slowest < 10_000, "the honest client once waited {slowest} ms");
    }
}

fn request(id: u64, envelope: &RequestEnvelope, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    codec::encode(&mut out, id, envelope, payload).expect("within the limits");
    out
}

/// Bytes that no honest client sends.
fn bad_bytes(random: &mut Random) -> Vec<u8> {
    let good = request(1, &Request::Session(SessionRequest::Ping).into(), &[]).to_vec();
    let mut bytes = good.clone();
    match random.below(10) {
        0 => return random_bytes(random, 5000),
        1 => {
            // A flipped bit.
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        2 => bytes.truncate(random.below(bytes.len() as u64) as usize),
        3 => bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes()),
        4 => bytes[20..24].copy_from_slice(&u32::MAX.to_le_bytes()),
        5 => {
            // The largest body allowed at all, claimed and begun.
            bytes[16..20].copy_from_slice(&(MAX_BODY as u32).to_le_bytes());
            bytes.extend(random_bytes(random, 3000));
        }
        6 => {
            // A sound frame around nonsense, in which lengths claim everything.
            let mut body = random_bytes(random, 64);
            body[..4].copy_from_slice(&(random.below(5) as u32).to_le_bytes());
            body.extend(u64::MAX.to_le_bytes());
            let mut out = BytesMut::new();
            frame::encode(&mut out, FrameType::Request, 7, &body, &[]).expect("within the limits");
            return out.to_vec();
        }
        7 => bytes[4..6].copy_from_slice(&2_u16.to_le_bytes()),
        8 => bytes[8..16].fill(0),
        _ => {
            return [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 2, 0, 1, 0]][random.below(2) as usize]
                .into();
        }
    }
    if random.chance(1, 3) {
        bytes.extend(good);
    }
    bytes
}

fn random_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let length = 64 + random.below(most) as usize;
    random.bytes(length)
}

/// Every way in: before hello, before authentication, attached.
fn connect(server: &Server, stage: u64, by_tcp: bool) -> std::io::Result<Raw> {
    let mut raw = if by_tcp { Raw::tcp(server.tcp())? } else { Raw::unix(&server.socket())? };
    if stage >= 1 {
        raw.hello([7; 16])?;
    }
    if stage >= 2 {
        raw = if by_tcp { Raw::tcp(server.tcp())? } else { Raw::unix(&server.socket())? };
        raw.introduce([7; 16], &server.token())?;
        if stage >= 3 {
            raw.attach("honest")?;
        }
    }
    Ok(raw)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_disturbs_nobody() {
    let mut random = Random::from_environment("hostile");
    let server = Arc::new(Server::start(Setup::default()));
    let honest = Honest::start(&server).await;
    let mut attackers = Vec::new();
    for number in 0..8 {
        let (server, mut random) = (Arc::clone(&server), random.split());
        attackers.push(std::thread::spawn(move || {
            for round in 0..40 {
                let stage = random.below(4);
                let mut raw =
                    connect(&server, stage, (number + round) % 2 == 0).expect("the server takes connections");
                raw.set_read_timeout(Duration::from_millis(50)).expect("a timeout");
                let bytes = bad_bytes(&mut random);
                // The server may have closed already.
                let _ = raw.send_bytes(&bytes);
                let mut answer = [0; 4096];
                loop {
                    match raw.read_bytes(&mut answer) {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
            }
        }));
    }
    tokio::task::block_in_place(|| {
        for attacker in attackers {
            attacker.join().expect("an attacker");
        }
    });
    honest.finish().await;
    let memory = server.resident_bytes();
    assert!(memory < MEMORY_BOUND, "{} MiB after the attack", memory >> 20);
}

/// Asks and expects an error with a code, or the end of the connection where `may_close`.
fn expect_error(raw: &mut Raw, bytes: &[u8], code: ErrorCode, closes: bool, what: &str) {
    raw.send_bytes(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    match raw.receive() {
        Ok(ServerMessage::Response { response: Response::Error(error), request_id, .. }) => {
            assert_eq!(error.code, code, "{what}: {error}");
            assert_eq!(request_id == 0, closes, "{what}: id 0 says that the connection ends");
        }
        other => panic!("{what}: {other:?}"),
    }
    if closes {
        let end = raw.receive();
        assert!(end.is_err(), "{what}: the connection goes on with {end:?}");
    } else {
        let pong = raw.session(SessionRequest::Ping);
        assert!(pong.is_ok(), "{what}: the connection should go on: {pong:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_lie_gets_its_error() {
    let server = Server::start(Setup::default());
    drop(server.volume("honest").await);
    let ping = request(9, &Request::Session(SessionRequest::Ping).into(), &[]).to_vec();
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = ping.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let too_large = (MAX_BODY as u32 + 1).to_le_bytes();
    let frames: [(&str, Vec<u8>, ErrorCode); 6] = [
        ("a stranger's magic", changed(0, b"GET"), ErrorCode::BadFrame),
        ("a newer frame version", changed(3, &[9]), ErrorCode::UnsupportedVersion),
        ("an unknown type", changed(4, &[77, 0]), ErrorCode::BadFrame),
        ("reserved bits", changed(24, &[1]), ErrorCode::BadFrame),
        ("a body above the limit", changed(16, &too_large), ErrorCode::TooLarge),
        ("a wrong checksum", changed(28, &[0, 0, 0, 0]), ErrorCode::BadFrame),
    ];
    tokio::task::block_in_place(|| {
        for (what, bytes, code) in &frames {
            for stage in [0, 2, 3] {
                let mut raw = connect(&server, stage, false).expect("a connection");
                expect_error(&mut raw, bytes, *code, true, what);
            }
        }
        // Before authentication a payload and a large body are lies as well.
        let mut early = connect(&server, 1, false).expect("a connection");
        let claim = changed(16, &8192_u32.to_le_bytes());
        expect_error(&mut early, &claim, ErrorCode::TooLarge, true, "a large body before authentication");
        let mut early = connect(&server, 1, false).expect("a connection");
        let claim = changed(20, &1_u32.to_le_bytes());
        expect_error(&mut early, &claim, ErrorCode::TooLarge, true, "a payload before authentication");
        // A sound frame around nonsense costs only that request.
        let mut raw = connect(&server, 3, false).expect("a connection");
        let mut nonsense = BytesMut::new();
        frame::encode(&mut nonsense, FrameType::Request, 77, &[0xff; 40], &[]).expect("a frame");
        expect_error(&mut raw, &nonsense, ErrorCode::BadFrame, false, "nonsense in a sound frame");
        let lookup =
            FileRequest::Lookup { parent: InodeRef::Explicit(1), name: Name::new("x").expect("a name") };
        let answer = raw.file(None, lookup, &[]).expect("an answer");
        assert!(
            matches!(&answer, Err(error) if error.code.errno() == 116 || error.code.errno() == 2),
            "{answer:?}"
        );
        let stale = FileRequest::Read { file: FileRef::handle(123_456), offset: 0, length: 10 };
        let answer = raw.file(None, stale, &[]).expect("an answer");
        assert!(matches!(&answer, Err(error) if error.code == ErrorCode::StaleHandle), "{answer:?}");
        let far = FileRequest::Write { file: FileRef::inode(256), position: WritePosition::At(u64::MAX - 1) };
        let answer = raw.file(None, far, b"xx").expect("an answer");
        assert!(answer.is_err(), "{answer:?}");
        let answer = raw.session(SessionRequest::Attach {
            volume: subvol_client::VolumeRef::Id(u64::MAX),
            tenant: None,
            read_only: false,
        });
        assert!(answer.is_err(), "a second attach: {answer:?}");
        assert!(raw.session(SessionRequest::Ping).is_ok(), "the connection goes on");
    });
}

/// Writes a megabyte and gives the file's inode.
fn megabyte(raw: &mut Raw, root: u64) -> u64 {
    let create = FileRequest::Create(Create {
        parent: InodeRef::Explicit(root),
        name: Name::new("megabyte").expect("a name"),
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        exclusive: false,
        open: None,
    });
    let Ok(FileResponse::Created { attributes, .. }) = raw.file(None, create, &[]).expect("an answer") else {
        panic!("no file was made");
    };
    let write = FileRequest::Write { file: FileRef::inode(attributes.inode), position: WritePosition::At(0) };
    let written = raw.file(None, write, &vec![7; MAX_PAYLOAD]).expect("an answer");
    assert!(written.is_ok(), "{written:?}");
    attributes.inode
}

/// Asks for as many megabytes as may be asked for at a time, and fetches none.
fn stuff(raw: &mut Raw, inode: u64) {
    raw.set_write_timeout(Duration::from_millis(200)).expect("a timeout");
    for _ in 0..MAX_IN_FLIGHT - 1 {
        let file = FileRef::inode(inode);
        let read = FileRequest::Read { file, offset: 0, length: MAX_PAYLOAD as u32 };
        if raw.send(&read.into(), &[]).is_err() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_cost_bounded_memory_and_slow_nobody_else() {
    const TENANTS: usize = 6;
    const PEERS: usize = 10;
    let server = Server::start(Setup::default());
    let honest = Honest::start(&server).await;
    let client = server.client().await;
    let before = server.resident_bytes();
    let mut peers = Vec::new();
    for number in 0..TENANTS {
        let tenant =
            soon("adding", client.admin().tenant_add(&format!("slow-{number}"))).await.expect("a tenant");
        let admin = client
            .admin()
            .for_tenant(Some(subvol_client::Label::new(&format!("slow-{number}")).expect("a label")));
        soon("creating", admin.volume_create("v", subvol_client::Limits::default())).await.expect("a volume");
        tokio::task::block_in_place(|| {
            let mut connections: Vec<Raw> = (0..PEERS)
                .map(|_| {
                    let mut raw = Raw::unix(&server.socket()).expect("a connection");
                    raw.introduce([9; 16], &tenant.token).expect("authenticated");
                    raw
                })
                .collect();
            let roots: Vec<u64> =
                connections.iter_mut().map(|raw| raw.attach("v").expect("attached").0).collect();
            let inode = megabyte(&mut connections[0], roots[0]);
            connections.iter_mut().for_each(|raw| stuff(raw, inode));
            peers.append(&mut connections);
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let with = server.resident_bytes();
    eprintln!(
        "{} peers that read nothing: {} MiB before, {} MiB with",
        peers.len(),
        before >> 20,
        with >> 20
    );
    assert!(with < MEMORY_BOUND, "{} MiB for {} peers that read nothing", with >> 20, peers.len());

    // Somebody of another tenant moves megabytes as if nobody else were there.
    let volume = server.volume("large").await;
    let start = Instant::now();
    soon("an honest write of 16 MiB", volume.write("large", vec![3; 16 << 20])).await.expect("a write");
    let read = soon("an honest read of 16 MiB", volume.read("large")).await.expect("a read");
    assert!(read.len() == 16 << 20 && read.iter().all(|byte| *byte == 3));
    let took = start.elapsed();
    eprintln!("16 MiB written and read beside them in {took:?}");
    assert!(took < Duration::from_secs(10), "slow readers of other tenants cost {took:?}");
    honest.finish().await;

    // One that reads after all gets what it asked for, or was told to go.
    let mut raw = peers.pop().expect("a peer");
    tokio::task::block_in_place(|| {
        for number in 0..10 {
            match raw.receive() {
                Ok(ServerMessage::Response {
                    response: Response::File(FileResponse::Read { length, .. }),
                    payload,
                    ..
                }) => {
                    assert_eq!(length as usize, payload.len());
                    assert!(payload.iter().all(|byte| *byte == 7));
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                other => panic!("read {number}: {other:?}"),
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_vanish_in_the_middle_leave_nothing() {
    let mut random = Random::from_environment("vanish");
    let server = Server::start(Setup::default());
    let honest = Honest::start(&server).await;
    tokio::task::block_in_place(|| {
        let mut raw = connect(&server, 2, false).expect("a connection");
        let (root, _) = raw.attach("honest").expect("attached");
        let inode = megabyte(&mut raw, root);
        for _ in 0..120 {
            let mut raw = connect(&server, 3, false).expect("a connection");
            let write = FileRequest::Write { file: FileRef::inode(inode), position: WritePosition::At(0) };
            let frame = request(5, &write.into(), &vec![9; MAX_PAYLOAD]);
            // All but a part of the payload: the write must not happen.
            let cut = HEADER_LENGTH + 40 + random.below(MAX_PAYLOAD as u64 - 100) as usize;
            raw.send_bytes(&frame[..cut]).expect("the server reads");
            drop(raw);
        }
        let read = FileRequest::Read { file: FileRef::inode(inode), offset: 0, length: MAX_PAYLOAD as u32 };
        let (response, payload) = raw.ask(&read.into(), &[]).expect("an answer");
        assert!(matches!(response, Response::File(FileResponse::Read { .. })), "{response:?}");
        assert!(payload.iter().all(|byte| *byte == 7), "a part of a write was done");
    });
    honest.finish().await;
    let memory = server.resident_bytes();
    assert!(memory < MEMORY_BOUND, "{} MiB", memory >> 20);
    let tool = Tool::beside(&server);
    let start = Instant::now();
    // The server notices that they are gone.
    while tool.json(["status"])["store"]["sessions"].as_u64().is_none_or(|sessions| sessions > 5) {
        assert!(start.elapsed() < Duration::from_secs(30), "vanished connections are still counted");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections() {
    idle(1000).await;
}

#[ignore = "long: 10 000 connections"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_idle() {
    idle(10_000).await;
}

async fn idle(wanted: u64) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("the own hard limit");
    // Some stay for the test itself.
    let wanted = wanted.min(limit.maximum.unwrap_or(u64::MAX).saturating_sub(200));
    let server = Server::start(Setup::default());
    let honest = Honest::start(&server).await;
    let before = server.resident_bytes();
    let token = server.token();
    let mut idle = Vec::new();
    tokio::task::block_in_place(|| {
        for number in 0..wanted {
            let mut raw =
                Raw::unix(&server.socket()).unwrap_or_else(|error| panic!("connection {number}: {error}"));
            raw.introduce([3; 16], &token).unwrap_or_else(|error| panic!("connection {number}: {error}"));
            raw.attach("honest").unwrap_or_else(|error| panic!("connection {number}: {error}"));
            idle.push(raw);
        }
    });
    let with = server.resident_bytes();
    let each = with.saturating_sub(before) / wanted;
    eprintln!(
        "{wanted} idle connections: {} MiB before, {} MiB with, {each} bytes each",
        before >> 20,
        with >> 20
    );
    assert!(each < 64 << 10, "{each} bytes for an idle connection");
    // The first still works.
    tokio::task::block_in_place(|| {
        let pong = idle.first_mut().expect("a connection").session(SessionRequest::Ping);
        assert!(pong.is_ok(), "{pong:?}");
    });
    honest.finish().await;
}
