//! A server of the protocol in a few lines: answers plausibly, remembers what it was asked, and misbehaves on request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use subvol_protocol::attributes::{
    Attributes, DirectoryEntry, FileKind, Lineage, Timestamp, VolumeStatistics,
};
use subvol_protocol::codec;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::frame::{DecodeLimits, FrameDecoder};
use subvol_protocol::limits::ServerLimits;
use subvol_protocol::request::{
    FileRequest, HandleRef, OperationId, Request, RequestEnvelope, SessionRequest,
};
use subvol_protocol::response::{FileResponse, Push, Response, SessionResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::{Client, ClientBuilder, Retries, Timeouts, Volume};

/// What the server does with a request.
pub enum Act {
    /// Answers.
    Normal,
    /// Answers this.
    Say(Response),
    /// Nothing, until a `Release`.
    Hold,
    /// Answers this one and all held ones, newest first.
    Release,
    /// Closes the connection.
    Drop,
    /// Does it, remembers the outcome, and closes the connection.
    DoAndDrop,
    /// Sends these bytes.
    Raw(Vec<u8>),
    /// Answers, then sends this.
    Push(Push),
    /// Sends this, then answers.
    PushFirst(Push),
}

/// A request as it arrived.
pub struct Seen {
    pub connection: u32,
    pub envelope: RequestEnvelope,
    pub payload: Bytes,
}

impl Seen {
    pub fn file(&self) -> Option<&FileRequest> {
        match &self.envelope.request {
            Request::File(request) => Some(request),
            _ => None,
        }
    }

    pub fn name(&self) -> &'static str {
        self.envelope.request.name()
    }
}

type Policy = Box<dyn FnMut(&Seen, &mut World) -> Act + Send>;

/// The server's memory. It outlives connections; a restart is a new epoch.
pub struct World {
    pub connections: u32,
    pub seen: Vec<(u32, RequestEnvelope)>,
    /// Changes executed, repeats not counted.
    pub executed: u32,
    outcomes: HashMap<OperationId, Response>,
    pub epoch: u64,
    /// What was written in epochs before this one is lost.
    pub lost_before: u64,
    pub limits: ServerLimits,
    /// Refuses new connections.
    pub deaf: bool,
    next_inode: u64,
    /// By connection.
    handles: HashMap<(u32, u64), u64>,
    next_handle: u64,
    pub stale_inodes: Vec<u64>,
    pub content: Vec<u8>,
    log_transid: u64,
    pub entries: Vec<DirectoryEntry>,
    /// Milliseconds of silence that leases survive.
    pub silence: u32,
}

impl World {
    fn ticket(&mut self) -> Lineage {
        self.log_transid += 1;
        Lineage { epoch: self.epoch, transid: 1, log_transid: self.log_transid }
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.seen.iter().map(|(_, envelope)| envelope.request.name()).collect()
    }

    pub fn count(&self, name: &str) -> usize {
        self.names().iter().filter(|seen| **seen == name).count()
    }

    pub fn restart(&mut self) {
        self.epoch += 1;
        self.lost_before = self.epoch;
        self.outcomes.clear();
    }

    fn open(&mut self, connection: u32, inode: u64) -> u64 {
        self.next_handle += 1;
        self.handles.insert((connection, self.next_handle), inode);
        self.next_handle
    }

    fn execute(&mut self, seen: &Seen) -> (Response, Bytes) {
        if let Some(operation) = seen.envelope.operation {
            if let Some(outcome) = self.outcomes.get(&operation) {
                return (outcome.clone(), Bytes::new());
            }
            self.executed += 1;
        }
        let (response, payload) = match &seen.envelope.request {
            Request::Session(request) => (self.session(request), Bytes::new()),
            Request::File(request) => match self.file(seen, request) {
                Ok((answer, bytes)) => (Response::File(answer), bytes),
                Err(error) => (Response::Error(error), Bytes::new()),
            },
            Request::Compound { steps } => {
                let results = steps.iter().map(|step| Ok(self.file(seen, step)?.0)).collect();
                (Response::Compound { results }, Bytes::new())
            }
            Request::Admin(_) => (Response::Error(ErrorCode::PermissionDenied.into()), Bytes::new()),
        };
        if let Some(operation) = seen.envelope.operation {
            self.outcomes.insert(operation, response.clone());
        }
        (response, payload)
    }

    fn session(&self, request: &SessionRequest) -> Response {
        Response::Session(match request {
            SessionRequest::Hello { features, .. } => SessionResponse::HelloOk {
                version: 1,
                features: *features,
                server_epoch: self.epoch,
                limits: self.limits,
            },
            SessionRequest::Authenticate { .. } => SessionResponse::AuthOk { tenant: None, admin: true },
            SessionRequest::Attach { .. } => SessionResponse::Attached {
                subvolume: 5,
                root: 256,
                lineage: Lineage { epoch: self.epoch, transid: 1, log_transid: 1 },
                read_only: false,
                statistics: VolumeStatistics {
                    block_size: 4096,
                    max_name: 255,
                    total_bytes: 0,
                    used_bytes: 0,
                    available_bytes: 0,
                    total_inodes: 0,
                    used_inodes: 0,
                },
            },
            SessionRequest::Ping => SessionResponse::Pong,
            SessionRequest::Goodbye => SessionResponse::Farewell,
        })
    }

    fn check(&self, lineage: Option<Lineage>) -> Result<(), WireError> {
        match lineage {
            Some(lineage) if lineage.epoch < self.lost_before => Err(ErrorCode::StaleLineage.into()),
            _ => Ok(()),
        }
    }

    fn file(&mut self, seen: &Seen, request: &FileRequest) -> Result<(FileResponse, Bytes), WireError> {
        let connection = seen.connection;
        if let Some(HandleRef::Explicit(handle)) = crate::channel::handle_of(request)
            && !self.handles.contains_key(&(connection, handle))
        {
            return Err(ErrorCode::StaleHandle.into());
        }
        let answer = match request {
            FileRequest::Create(create) => {
                self.next_inode += 1;
                let inode = self.next_inode;
                let handle = create.open.map(|_| self.open(connection, inode));
                let attributes = attributes(inode, create.kind.file_kind());
                FileResponse::Created { attributes, handle, created: true, ticket: self.ticket() }
            }
            FileRequest::Open { inode, .. } => {
                let subvol_protocol::request::InodeRef::Explicit(inode) = *inode else {
                    return Err(ErrorCode::InvalidArgument.into());
                };
                if self.stale_inodes.contains(&inode) {
                    return Err(ErrorCode::StaleInode.into());
                }
                let handle = self.open(connection, inode);
                FileResponse::Opened {
                    handle,
                    attributes: attributes(inode, FileKind::Regular),
                    ticket: None,
                }
            }
            FileRequest::Close { handle, lineage } => {
                if let HandleRef::Explicit(handle) = handle {
                    self.handles.remove(&(connection, *handle));
                }
                self.check(*lineage)?;
                FileResponse::Closed
            }
            FileRequest::Lookup { name, .. } => {
                if name.as_bytes() == b"missing" {
                    return Err(ErrorCode::NotFound.into());
                }
                let inode = 1000 + u64::from(name.as_bytes().last().copied().unwrap_or(0));
                FileResponse::Entry { attributes: attributes(inode, FileKind::Regular), ticket: None }
            }
            FileRequest::Unlink { .. } | FileRequest::RemoveDirectory { .. } => {
                FileResponse::Removed { inode: 9, links: 0, ticket: self.ticket() }
            }
            FileRequest::Write { .. } | FileRequest::WriteUnprivileged { .. } => {
                let written = seen.payload.len() as u32;
                FileResponse::Written {
                    written,
                    position: 0,
                    size: u64::from(written),
                    ticket: self.ticket(),
                }
            }
            FileRequest::Read { offset, length, .. } => {
                let start = (*offset as usize).min(self.content.len());
                let end = (start + *length as usize).min(self.content.len());
                let bytes = Bytes::copy_from_slice(&self.content[start..end]);
                let end_of_file = end == self.content.len();
                return Ok((FileResponse::Read { length: bytes.len() as u32, end_of_file }, bytes));
            }
            FileRequest::GetAttributes { file } => {
                let root = *file == subvol_protocol::request::FileRef::inode(256);
                let kind = if root { FileKind::Directory } else { FileKind::Regular };
                let size = self.content.len() as u64;
                FileResponse::Attributes { attributes: Attributes { size, ..attributes(300, kind) } }
            }
            FileRequest::Fsync { lineage, .. } | FileRequest::SyncVolume { lineage } => {
                self.check(*lineage)?;
                let durable = Lineage { epoch: self.epoch, transid: 9, log_transid: self.log_transid };
                FileResponse::Synced { durable }
            }
            FileRequest::ReadDirectory { after_cookie, max_entries, .. } => {
                let behind = self.entries.iter().filter(|entry| entry.cookie > *after_cookie);
                let entries: Vec<_> = behind.take(*max_entries as usize).cloned().collect();
                let end = entries.len() < *max_entries as usize;
                FileResponse::Directory { entries, end }
            }
            FileRequest::ResolvePath { components, .. } => {
                let walk = components.iter().take_while(|name| !name.as_bytes().starts_with(b"missing"));
                let found = walk.map(|name| {
                    let kind = match name.as_bytes() {
                        [b'l', ..] => FileKind::Symlink,
                        [b'f', ..] => FileKind::Regular,
                        _ => FileKind::Directory,
                    };
                    attributes(1000 + u64::from(name.as_bytes().last().copied().unwrap_or(0)), kind)
                });
                let mut found: Vec<_> = found.collect();
                let end = found.iter().position(|a| a.kind() != Some(FileKind::Directory));
                found.truncate(end.map_or(found.len(), |end| end + 1));
                FileResponse::Path { found }
            }
            FileRequest::BeginLeases => FileResponse::LeasesBegun {
                granted: true,
                recall_milliseconds: 10_000,
                silence_milliseconds: self.silence,
                resumed: connection > 2,
            },
            FileRequest::ReclaimInodes { inodes } => {
                let lost = inodes.iter().copied().filter(|inode| self.stale_inodes.contains(inode));
                FileResponse::Reclaimed { lost: lost.collect() }
            }
            FileRequest::ForgetInodes { .. }
            | FileRequest::AcknowledgeRecalls { .. }
            | FileRequest::Lock { .. }
            | FileRequest::CancelLock { .. } => FileResponse::Noted,
            FileRequest::TestLock { lock } => FileResponse::LockFound { blocker: Some(*lock) },
            FileRequest::ListDirectory { up_to, .. } => {
                FileResponse::Listed { entries: self.entries.clone(), end: true, up_to: *up_to }
            }
            FileRequest::ReadLink { .. } => FileResponse::Link {
                target: subvol_protocol::name::LinkTarget::new("../target/file").map_err(WireError::from)?,
            },
            _ => return Err(ErrorCode::NotSupported.into()),
        };
        Ok((answer, Bytes::new()))
    }
}

pub fn attributes(inode: u64, kind: FileKind) -> Attributes {
    let now = Timestamp::default();
    Attributes {
        inode,
        mode: kind.mode_bits() | 0o755,
        links: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        version: 1,
    }
}

/// A running fake server.
pub struct Fake {
    folder: tempfile::TempDir,
    pub world: Arc<Mutex<World>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Starts a server whose doings `policy` decides, for all but session requests.
    pub fn start(policy: impl FnMut(&Seen, &mut World) -> Act + Send + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let world = Arc::new(Mutex::new(World {
            connections: 0,
            seen: Vec::new(),
            executed: 0,
            outcomes: HashMap::new(),
            epoch: 1,
            lost_before: 0,
            limits: ServerLimits::FULL,
            deaf: false,
            next_inode: 256,
            handles: HashMap::new(),
            next_handle: 0,
            stale_inodes: Vec::new(),
            content: Vec::new(),
            log_transid: 1,
            entries: Vec::new(),
            silence: 5000,
        }));
        let listener = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let policy: Arc<Mutex<Policy>> = Arc::new(Mutex::new(Box::new(policy)));
        let shared = Arc::clone(&world);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = {
                    let mut world = shared.lock();
                    if world.deaf {
                        continue;
                    }
                    world.connections += 1;
                    world.connections
                };
                tokio::spawn(serve(stream, number, Arc::clone(&shared), Arc::clone(&policy)));
            }
        });
        Self { folder, world, task }
    }

    pub fn normal() -> Self {
        Self::start(|_, _| Act::Normal)
    }

    pub fn builder(&self) -> ClientBuilder {
        let address = format!("subvol+unix://{}/s", self.folder.path().display());
        Client::builder(&address).expect("an address").retries(quick_retries(5)).timeouts(Timeouts {
            connect: Duration::from_secs(2),
            request: Duration::from_secs(10),
            silence: Duration::from_secs(5),
        })
    }

    pub async fn volume(&self) -> Volume {
        self.volume_of(self.builder()).await
    }

    pub async fn volume_of(&self, builder: ClientBuilder) -> Volume {
        let client = builder.connect().await.expect("the fake accepts everybody");
        client.open_subvolume("v").await.expect("the fake has every volume")
    }
}

pub fn quick_retries(attempts: u32) -> Retries {
    Retries {
        first_connection: 1,
        attempts,
        first_wait: Duration::from_millis(2),
        longest_wait: Duration::from_millis(10),
    }
}

async fn serve(
    mut stream: UnixStream,
    connection: u32,
    world: Arc<Mutex<World>>,
    policy: Arc<Mutex<Policy>>,
) {
    let mut decoder = FrameDecoder::new(DecodeLimits::FULL);
    let mut input = BytesMut::new();
    let mut held: Vec<(u64, Seen)> = Vec::new();
    loop {
        while let Some(frame) = decoder.decode(&mut input).expect("the client sends sound frames") {
            let envelope: RequestEnvelope = codec::decode(&frame).expect("the client sends sound messages");
            envelope.validate(frame.payload.len()).expect("the client sends valid requests");
            let id = frame.header.request_id;
            let seen = Seen { connection, envelope, payload: frame.payload };
            let mut output = BytesMut::new();
            let mut close = false;
            {
                let world = &mut *world.lock();
                let session = matches!(seen.envelope.request, Request::Session(_));
                if !session {
                    world.seen.push((connection, seen.envelope.clone()));
                }
                let act = policy.lock()(&seen, world);
                let mut answer = |id: u64, seen: &Seen, output: &mut BytesMut| {
                    let (response, payload) = world.execute(seen);
                    codec::encode(output, id, &response, &payload).expect("it fits");
                };
                match act {
                    Act::Normal => answer(id, &seen, &mut output),
                    Act::Say(response) => codec::encode(&mut output, id, &response, &[]).expect("it fits"),
                    Act::Hold => held.push((id, seen)),
                    Act::Release => {
                        answer(id, &seen, &mut output);
                        while let Some((id, seen)) = held.pop() {
                            answer(id, &seen, &mut output);
                        }
                    }
                    Act::Drop => close = true,
                    Act::DoAndDrop => {
                        answer(id, &seen, &mut BytesMut::new());
                        close = true;
                    }
                    Act::Raw(bytes) => output.extend_from_slice(&bytes),
                    Act::PushFirst(push) => {
                        codec::encode(&mut output, 0, &push, &[]).expect("it fits");
                        answer(id, &seen, &mut output);
                    }
                    Act::Push(push) => {
                        answer(id, &seen, &mut output);
                        codec::encode(&mut output, 0, &push, &[]).expect("it fits");
                    }
                }
            }
            if stream.write_all(&output).await.is_err() || close {
                return;
            }
        }
        if !matches!(stream.read_buf(&mut input).await, Ok(1..)) {
            return;
        }
    }
}
