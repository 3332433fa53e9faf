//! A server in memory behind a unix socket, so that the command line is tested from its arguments to its output.
//!
//! It knows one tenant, trusts everybody, and keeps nothing.

pub mod tree;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use subvol_client::protocol::codec;
use subvol_client::protocol::frame::{DecodeLimits, FrameDecoder};
use subvol_client::protocol::limits::ServerLimits;
use subvol_client::protocol::request::{
    AdminRequest, Features, FileRequest, Request, RequestEnvelope, SessionRequest,
};
use subvol_client::protocol::response::{
    AdminResponse, Response, SessionResponse, StatusReport, StoreStatus,
};
use subvol_client::{ErrorCode, Label, Lineage, Token, UNLIMITED, VolumeRef, VolumeSummary};
use tree::{ROOT, Tree};

type Volumes = Arc<Mutex<BTreeMap<Label, (u64, Arc<Mutex<Tree>>)>>>;

/// A running server. It ends with the test's process.
pub struct Fake {
    volumes: Volumes,
}

impl Fake {
    /// Listens at a path.
    pub fn start(socket: &Path) -> Self {
        let listener = UnixListener::bind(socket).expect("a free path");
        let volumes = Volumes::default();
        let shared = Arc::clone(&volumes);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let volumes = Arc::clone(&shared);
                std::thread::spawn(move || {
                    Session { volumes, tree: None, handles: BTreeMap::new() }.serve(stream)
                });
            }
        });
        Self { volumes }
    }

    /// Requests that a volume executed.
    pub fn executed(&self, volume: &str) -> u64 {
        let volumes = self.volumes.lock().expect("no panic");
        let (_, tree) = volumes.get(&Label::new(volume).expect("a name")).expect("a volume");
        tree.lock().expect("no panic").executed
    }
}

struct Session {
    volumes: Volumes,
    tree: Option<Arc<Mutex<Tree>>>,
    handles: BTreeMap<u64, u64>,
}

impl Session {
    fn serve(mut self, mut stream: UnixStream) {
        let mut decoder = FrameDecoder::new(DecodeLimits::FULL);
        let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
        let mut chunk = vec![0; 64 * 1024];
        loop {
            while let Some(frame) = decoder.decode(&mut input).expect("frames") {
                let envelope: RequestEnvelope = codec::decode(&frame).expect("a request");
                let (response, payload) = match envelope.validate(frame.payload.len()) {
                    Ok(()) => self.answer(envelope.request, &frame.payload),
                    Err(error) => (error.into(), Bytes::new()),
                };
                codec::encode(&mut output, frame.header.request_id, &response, &payload).expect("encoded");
            }
            if stream.write_all(&output).is_err() {
                return;
            }
            output.clear();
            match stream.read(&mut chunk) {
                Ok(read) if read > 0 => input.extend_from_slice(&chunk[..read]),
                _ => return,
            }
        }
    }

    fn answer(&mut self, request: Request, payload: &Bytes) -> (Response, Bytes) {
        let response = match request {
            Request::Session(request) => self.session(request),
            Request::Admin(request) => {
                self.admin(request).unwrap_or_else(|error| Response::Error(error.into()))
            }
            Request::File(request) => {
                let (mut results, bytes) = self.steps(&[request], payload);
                return match results.pop() {
                    Some(Ok(response)) => (Response::File(response), bytes),
                    Some(Err(error)) => (Response::Error(error), Bytes::new()),
                    None => (Response::Error(ErrorCode::Internal.into()), Bytes::new()),
                };
            }
            Request::Compound { steps } => {
                let (results, bytes) = self.steps(&steps, payload);
                return (Response::Compound { results }, bytes);
            }
        };
        (response, Bytes::new())
    }

    fn steps(&mut self, steps: &[FileRequest], payload: &Bytes) -> (Vec<subvol_client::StepResult>, Bytes) {
        match &self.tree {
            Some(tree) => tree.lock().expect("no panic").compound(steps, payload, &mut self.handles),
            None => (vec![Err(ErrorCode::NotAttached.into())], Bytes::new()),
        }
    }

    fn session(&mut self, request: SessionRequest) -> Response {
        Response::Session(match request {
            SessionRequest::Hello { .. } => SessionResponse::HelloOk {
                version: 1,
                features: Features::NONE,
                server_epoch: 1,
                limits: ServerLimits::FULL,
            },
            SessionRequest::Authenticate { .. } => {
                SessionResponse::AuthOk { tenant: Label::new("default").ok(), admin: true }
            }
            SessionRequest::Attach { volume: VolumeRef::Name(name), .. } => {
                let volumes = self.volumes.lock().expect("no panic");
                let Some((subvolume, tree)) = volumes.get(&name) else {
                    return Response::Error(ErrorCode::UnknownVolume.into());
                };
                self.tree = Some(Arc::clone(tree));
                SessionResponse::Attached {
                    subvolume: *subvolume,
                    root: ROOT,
                    lineage: Lineage { epoch: 1, transid: 1, log_transid: 1 },
                    read_only: false,
                    statistics: tree.lock().expect("no panic").statistics(),
                }
            }
            SessionRequest::Attach { .. } => return Response::Error(ErrorCode::UnknownVolume.into()),
            SessionRequest::Ping => SessionResponse::Pong,
            SessionRequest::Goodbye => SessionResponse::Farewell,
        })
    }

    fn admin(&mut self, request: AdminRequest) -> Result<Response, ErrorCode> {
        let mut volumes = self.volumes.lock().expect("no panic");
        Ok(Response::Admin(match request {
            AdminRequest::VolumeCreate { name, .. } => {
                if volumes.contains_key(&name) {
                    return Err(ErrorCode::Exists);
                }
                let subvolume = volumes.len() as u64 + 1;
                volumes.insert(name, (subvolume, Arc::new(Mutex::new(Tree::new()))));
                AdminResponse::VolumeCreated { subvolume }
            }
            AdminRequest::VolumeList { .. } => {
                let summary = |(name, (subvolume, _)): (&Label, &(u64, _))| VolumeSummary {
                    tenant: Label::new("default").expect("a name"),
                    name: name.clone(),
                    subvolume: *subvolume,
                    used_bytes: 4096,
                    max_bytes: UNLIMITED,
                    used_inodes: 1,
                    max_inodes: 10,
                    attached: 0,
                };
                AdminResponse::Volumes { volumes: volumes.iter().map(summary).collect(), more: false }
            }
            AdminRequest::VolumeRemove { volume: VolumeRef::Name(name), .. } => {
                volumes.remove(&name).ok_or(ErrorCode::UnknownVolume)?;
                AdminResponse::Done
            }
            AdminRequest::TenantAdd { name } if name.as_str() == "taken" => return Err(ErrorCode::Exists),
            AdminRequest::TenantAdd { .. } => AdminResponse::TenantToken {
                tenant: 2,
                token: Token::new("secret-of-the-tenant").expect("a token"),
            },
            AdminRequest::Status { .. } => AdminResponse::Status(Box::new(StatusReport {
                store: Some(StoreStatus { memory_bytes: 1 << 20, ..StoreStatus::default() }),
                volumes: Vec::new(),
            })),
            AdminRequest::SyncStore => AdminResponse::StoreSynced { transid: 7 },
            _ => return Err(ErrorCode::NotSupported),
        }))
    }
}
