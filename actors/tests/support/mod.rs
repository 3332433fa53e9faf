//! A server in this process and a client that speaks raw frames: what the tests of this crate need.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part of it, and a test may panic")]

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use subvol_actors::{Server, ServerHandle, ServerOptions};
use subvol_protocol::codec::{self, ServerMessage, decode_from_server};
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::frame::{DecodeLimits, FrameDecoder};
use subvol_protocol::limits::{PROTOCOL_VERSION, UNLIMITED};
use subvol_protocol::name::{Label, Name, Text};
use subvol_protocol::request::*;
use subvol_protocol::response::*;
use subvol_protocol::token::Token;
use subvol_storage::device::{Device, FaultyDevice, MemoryDevice};
use subvol_storage::store::open::format;

pub const MIB: u64 = 1 << 20;
/// No answer takes so long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A device in memory that can misbehave, and a folder.
pub struct Place {
    pub folder: tempfile::TempDir,
    pub device: Arc<FaultyDevice<Arc<MemoryDevice>>>,
}

impl Place {
    pub fn new(bytes: u64) -> Self {
        Self::with_ring(bytes, bytes / 16)
    }

    pub fn with_ring(bytes: u64, ring: u64) -> Self {
        let memory = Arc::new(MemoryDevice::new(bytes));
        format(&*memory, [7; 16], ring).expect("formatted");
        Self { folder: tempfile::tempdir().expect("a folder"), device: Arc::new(FaultyDevice::new(memory)) }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub fn options(&self) -> ServerOptions {
        let device: Arc<dyn Device> = self.device.clone();
        let mut options = ServerOptions::new(self.folder.path().to_owned(), device);
        options.unix = Some(self.socket());
        options.threads = 2;
        options
    }

    pub fn start(&self) -> ServerHandle {
        Server::start(self.options()).expect("started")
    }

    /// As after `kill -9`: what was not written is gone.
    pub fn kill(&self, server: ServerHandle) {
        self.device.cut_power();
        drop(server);
        self.device.restore();
    }

    pub fn token(&self, tenant: &str) -> Token {
        let text = std::fs::read(self.folder.path().join(format!("{tenant}.token"))).expect("a token");
        Token::new(text.trim_ascii()).expect("a token")
    }

    /// An administrator.
    pub fn admin(&self) -> Client {
        let mut client = Client::connect(&self.socket());
        client.hello();
        client.session(SessionRequest::Authenticate { credentials: Credentials::UnixPeer }).expect("admin");
        client
    }

    /// The default tenant, with a new volume of this name if there is none.
    pub fn volume(&self, name: &str) -> Client {
        let mut client = self.tenant("default");
        match client.create_volume(name, UNLIMITED, UNLIMITED) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.code, ErrorCode::Exists),
        }
        client.attach(name).expect("attached");
        client
    }

    pub fn tenant(&self, tenant: &str) -> Client {
        let mut client = Client::connect(&self.socket());
        client.hello();
        client.log_in(self.token(tenant)).expect("logged in");
        client
    }
}

/// A connection.
pub struct Client {
    pub stream: UnixStream,
    decoder: FrameDecoder,
    input: BytesMut,
    next: u64,
    pub client_id: [u8; 16],
    ready: VecDeque<(u64, Response, Bytes)>,
    pub pushes: Vec<Push>,
}

pub type Outcome<T> = Result<T, WireError>;

pub fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

pub const ROOT: InodeRef = InodeRef::Explicit(256);

impl Client {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self {
            stream,
            decoder: FrameDecoder::new(DecodeLimits::FULL),
            input: BytesMut::new(),
            next: 1,
            client_id: [9; 16],
            ready: VecDeque::new(),
            pushes: Vec::new(),
        }
    }

    /// Sends without waiting; returns the request's id.
    pub fn send(&mut self, envelope: &RequestEnvelope, payload: &[u8]) -> u64 {
        let id = self.next;
        self.next += 1;
        let mut out = BytesMut::new();
        codec::encode(&mut out, id, envelope, payload).expect("encoded");
        self.stream.write_all(&out).expect("sent");
        id
    }

    /// Sends many in one write.
    pub fn send_all(&mut self, requests: impl IntoIterator<Item = FileRequest>) -> Vec<u64> {
        let mut out = BytesMut::new();
        let mut ids = Vec::new();
        for request in requests {
            codec::encode(&mut out, self.next, &RequestEnvelope::from(request), &[]).expect("encoded");
            ids.push(self.next);
            self.next += 1;
        }
        self.stream.write_all(&out).expect("sent");
        ids
    }

    /// The next answer, whichever it is; `None` at the end of the connection.
    pub fn receive(&mut self) -> Option<(u64, Response, Bytes)> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        loop {
            while let Some(frame) = self.decoder.decode(&mut self.input).expect("a frame") {
                match decode_from_server(frame).expect("a message") {
                    ServerMessage::Response { request_id, response, payload } => {
                        return Some((request_id, response, payload));
                    }
                    ServerMessage::Push(push) => self.pushes.push(push),
                }
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// The answer to this request.
    pub fn wait(&mut self, id: u64) -> (Response, Bytes) {
        if let Some(index) = self.ready.iter().position(|(ready, _, _)| *ready == id) {
            let (_, response, payload) = self.ready.remove(index).expect("there");
            return (response, payload);
        }
        let mut others = VecDeque::new();
        loop {
            let (other, response, payload) = self.receive().expect("the connection is open");
            if other == id {
                self.ready.append(&mut others);
                return (response, payload);
            }
            others.push_back((other, response, payload));
        }
    }

    pub fn call(&mut self, envelope: &RequestEnvelope, payload: &[u8]) -> (Response, Bytes) {
        let id = self.send(envelope, payload);
        self.wait(id)
    }

    pub fn session(&mut self, request: SessionRequest) -> Outcome<SessionResponse> {
        match self.call(&Request::Session(request).into(), &[]).0 {
            Response::Session(response) => Ok(response),
            Response::Error(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub fn admin(&mut self, request: AdminRequest) -> Outcome<AdminResponse> {
        match self.call(&Request::Admin(request).into(), &[]).0 {
            Response::Admin(response) => Ok(response),
            Response::Error(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub fn file(&mut self, request: FileRequest) -> Outcome<FileResponse> {
        self.file_with(request, &[]).map(|(response, _)| response)
    }

    pub fn file_with(&mut self, request: FileRequest, payload: &[u8]) -> Outcome<(FileResponse, Bytes)> {
        let (response, data) = self.call(&request.into(), payload);
        file_response(response).map(|response| (response, data))
    }

    pub fn hello(&mut self) -> SessionResponse {
        self.hello_with(Features::NONE)
    }

    pub fn hello_with(&mut self, features: Features) -> SessionResponse {
        let hello = SessionRequest::Hello {
            protocol_version: PROTOCOL_VERSION,
            features,
            client_id: self.client_id,
            client_name: Text::new("test"),
        };
        self.session(hello).expect("greeted")
    }

    pub fn log_in(&mut self, token: Token) -> Outcome<SessionResponse> {
        self.session(SessionRequest::Authenticate { credentials: Credentials::Token(token) })
    }

    pub fn attach(&mut self, volume: &str) -> Outcome<SessionResponse> {
        self.attach_to(VolumeRef::Name(label(volume)), None)
    }

    pub fn attach_to(&mut self, volume: VolumeRef, tenant: Option<Label>) -> Outcome<SessionResponse> {
        self.session(SessionRequest::Attach { volume, tenant, read_only: false })
    }

    pub fn create_volume(&mut self, name: &str, max_bytes: u64, max_inodes: u64) -> Outcome<u64> {
        let create = AdminRequest::VolumeCreate { tenant: None, name: label(name), max_bytes, max_inodes };
        match self.admin(create)? {
            AdminResponse::VolumeCreated { subvolume } => Ok(subvolume),
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self) -> StatusReport {
        match self.admin(AdminRequest::Status { tenant: None, volume: None }).expect("a report") {
            AdminResponse::Status(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    pub fn store_status(&mut self) -> StoreStatus {
        self.status().store.expect("an administrator asks")
    }

    /// Creates a regular file in the root directory and opens it.
    pub fn create(&mut self, file: &str) -> (u64, u64) {
        match self.file(create_request(file)).expect("created") {
            FileResponse::Created { attributes, handle, .. } => (attributes.inode, handle.expect("opened")),
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, handle: u64, offset: u64, data: &[u8]) -> Outcome<FileResponse> {
        let write = FileRequest::Write { file: FileRef::handle(handle), position: WritePosition::At(offset) };
        self.file_with(write, data).map(|(response, _)| response)
    }

    pub fn read(&mut self, file: FileRef, offset: u64, length: u32) -> Outcome<Bytes> {
        self.file_with(FileRequest::Read { file, offset, length }, &[]).map(|(_, data)| data)
    }

    pub fn fsync(&mut self, handle: u64) -> Outcome<FileResponse> {
        self.file(fsync_request(handle))
    }

    pub fn rename(&mut self, from: &str, to: &str) -> Outcome<FileResponse> {
        self.file(rename_request(from, to))
    }

    pub fn lookup(&mut self, file: &str) -> Outcome<u64> {
        match self.file(FileRequest::Lookup { parent: ROOT, name: name(file) })? {
            FileResponse::Entry { attributes, .. } => Ok(attributes.inode),
            other => panic!("{other:?}"),
        }
    }
}

pub fn file_response(response: Response) -> Outcome<FileResponse> {
    match response {
        Response::File(response) => Ok(response),
        Response::Error(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

pub fn create_request(file: &str) -> FileRequest {
    FileRequest::Create(Create {
        parent: ROOT,
        name: name(file),
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 1,
        gid: 1,
        exclusive: true,
        open: Some(OpenFlags::READ.with(OpenFlags::WRITE)),
    })
}

pub fn fsync_request(handle: u64) -> FileRequest {
    FileRequest::Fsync { file: FileRef::handle(handle), data_only: false, lineage: None }
}

pub fn rename_request(from: &str, to: &str) -> FileRequest {
    FileRequest::Rename {
        parent: ROOT,
        name: name(from),
        new_parent: ROOT,
        new_name: name(to),
        mode: RenameMode::Replace,
    }
}

pub fn code<T: std::fmt::Debug>(outcome: Outcome<T>) -> ErrorCode {
    outcome.expect_err("refused").code
}

/// Holds accesses of a device until it is opened.
#[derive(Default)]
pub struct Gate {
    closed: std::sync::Mutex<bool>,
    changed: std::sync::Condvar,
    held: std::sync::atomic::AtomicUsize,
}

impl Gate {
    pub fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.changed.notify_all();
    }

    /// Waits until somebody is held.
    pub fn wait_for_one(&self) {
        let start = std::time::Instant::now();
        while self.held.load(std::sync::atomic::Ordering::Acquire) == 0 {
            assert!(start.elapsed() < PATIENCE, "nothing reached the gate");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn rule(
        self: &Arc<Self>,
        operations: subvol_storage::device::Operations,
    ) -> subvol_storage::device::FaultRule {
        use std::sync::atomic::Ordering;
        use subvol_storage::device::{Action, FaultRule};
        let gate = Arc::clone(self);
        FaultRule::new(
            operations,
            Action::Call(Arc::new(move |_| {
                let mut closed = gate.closed.lock().unwrap();
                gate.held.fetch_add(1, Ordering::AcqRel);
                while *closed {
                    closed = gate.changed.wait(closed).unwrap();
                }
                gate.held.fetch_sub(1, Ordering::AcqRel);
                Ok(())
            })),
        )
    }
}

pub fn with_id(request: FileRequest, client: [u8; 16], sequence: u64) -> RequestEnvelope {
    RequestEnvelope { operation: Some(OperationId { client, sequence }), request: Request::File(request) }
}
