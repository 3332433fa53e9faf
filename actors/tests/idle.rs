//! What an idle connection costs. In a process of its own: it measures the memory of the whole process.

mod support;
use bytes::BytesMut;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use subvol_protocol::codec;
use subvol_protocol::request::*;
use support::*;

/// Ten thousand connections that do nothing cost little. Fewer where the system allows fewer.
#[test]
fn idle_connections_cost_little() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    // Both ends are in this process.
    let count = 10_000.min((files.saturating_sub(500) / 2) as usize);
    if count < 10_000 {
        eprintln!("only {count} connections: the limit of open files is {files}");
    }
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut admin = place.admin();
    let before = admin.store_status().memory_bytes;
    let mut idle = Vec::new();
    for _ in 0..count {
        let mut stream = UnixStream::connect(place.socket()).expect("connected");
        let mut out = BytesMut::new();
        let hello = SessionRequest::Hello {
            protocol_version: 1,
            features: Features::NONE,
            client_id: [1; 16],
            client_name: "idle".into(),
        };
        codec::encode(&mut out, 1, &RequestEnvelope::from(Request::Session(hello)), &[]).expect("encoded");
        let credentials = Credentials::Token(place.token("default"));
        let log_in = Request::Session(SessionRequest::Authenticate { credentials });
        codec::encode(&mut out, 2, &RequestEnvelope::from(log_in), &[]).expect("encoded");
        stream.write_all(&out).expect("sent");
        idle.push(stream);
    }
    let begun = Instant::now();
    let status = loop {
        let status = admin.store_status();
        if status.sessions == count as u64 + 1 && begun.elapsed() > Duration::from_millis(500) {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{} sessions", status.sessions);
        std::thread::sleep(Duration::from_millis(50));
    };
    let each = status.memory_bytes.saturating_sub(before) / count as u64;
    eprintln!("{count} idle connections, {each} bytes each");
    assert!(each < 8192, "an idle connection costs {each} bytes");
    let mut busy = place.volume("v");
    let begun = Instant::now();
    for number in 0..200 {
        busy.create(&format!("{number}"));
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(idle);
    server.shutdown().expect("stopped");
}
