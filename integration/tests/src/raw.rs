//! A connection without the client library: frames as a test writes them, one blocking socket.
//!
//! Invariant: reads and writes give up after [`BOUND`]; an answer that the protocol does not allow is a panic, the end of the connection
//! an error.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use subvol_protocol::attributes::Lineage;
use subvol_protocol::codec::{self, ServerMessage};
use subvol_protocol::error::WireError;
use subvol_protocol::frame::{DecodeLimits, FrameDecoder};
use subvol_protocol::limits::PROTOCOL_VERSION;
use subvol_protocol::name::{Label, Text};
use subvol_protocol::request::{
    Credentials, Features, FileRequest, OperationId, Request, RequestEnvelope, SessionRequest, VolumeRef,
};
use subvol_protocol::response::{FileResponse, Response, SessionResponse};
use subvol_protocol::token::Token;

/// Patience of one read or write.
pub const BOUND: Duration = Duration::from_secs(30);

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A connection.
pub struct Raw {
    socket: Socket,
    buffer: BytesMut,
    decoder: FrameDecoder,
    last_id: u64,
}

impl Raw {
    fn new(socket: Socket) -> Self {
        Self { socket, buffer: BytesMut::new(), decoder: FrameDecoder::new(DecodeLimits::FULL), last_id: 0 }
    }

    /// Connects to a unix socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(BOUND))?;
        socket.set_write_timeout(Some(BOUND))?;
        Ok(Self::new(Socket::Unix(socket)))
    }

    /// Connects by TCP.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tcp(address: std::net::SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, BOUND)?;
        socket.set_read_timeout(Some(BOUND))?;
        socket.set_write_timeout(Some(BOUND))?;
        Ok(Self::new(Socket::Tcp(socket)))
    }

    /// Other patience for reads.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_read_timeout(&self, bound: Duration) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(socket) => socket.set_read_timeout(Some(bound)),
            Socket::Tcp(socket) => socket.set_read_timeout(Some(bound)),
        }
    }

    /// Other patience for writes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_write_timeout(&self, bound: Duration) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(socket) => socket.set_write_timeout(Some(bound)),
            Socket::Tcp(socket) => socket.set_write_timeout(Some(bound)),
        }
    }

    /// Sends any bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.socket {
            Socket::Unix(socket) => socket.write_all(bytes),
            Socket::Tcp(socket) => socket.write_all(bytes),
        }
    }

    /// Reads some bytes; 0 at the end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read_bytes(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.socket {
            Socket::Unix(socket) => socket.read(into),
            Socket::Tcp(socket) => socket.read(into),
        }
    }

    /// Encodes and sends a request; gives its id.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If the request cannot be encoded.
    pub fn send(&mut self, envelope: &RequestEnvelope, payload: &[u8]) -> io::Result<u64> {
        self.last_id += 1;
        let mut out = BytesMut::new();
        codec::encode(&mut out, self.last_id, envelope, payload).expect("a request within the limits");
        self.send_bytes(&out)?;
        Ok(self.last_id)
    }

    /// The next message of the server.
    ///
    /// # Errors
    /// `UnexpectedEof` when the server has closed; the kernel's.
    ///
    /// # Panics
    /// If the server breaks the protocol.
    pub fn receive(&mut self) -> io::Result<ServerMessage> {
        loop {
            if let Some(frame) = self.decoder.decode(&mut self.buffer).expect("a sound frame of the server") {
                return Ok(codec::decode_from_server(frame).expect("a sound message of the server"));
            }
            let mut chunk = [0; 16 * 1024];
            match self.read_bytes(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.buffer.extend_from_slice(&chunk[..length]),
            }
        }
    }

    /// Sends a request and waits for its answer, skipping pushes.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn ask(&mut self, envelope: &RequestEnvelope, payload: &[u8]) -> io::Result<(Response, Bytes)> {
        let id = self.send(envelope, payload)?;
        loop {
            if let ServerMessage::Response { request_id, response, payload } = self.receive()? {
                assert!(request_id == id || request_id == 0, "answer to {request_id}, asked {id}");
                return Ok((response, payload));
            }
        }
    }

    /// Says hello; gives the server's epoch.
    ///
    /// # Errors
    /// As [`Self::receive`]; `Other` if the server refuses.
    pub fn hello(&mut self, client_id: [u8; 16]) -> io::Result<u64> {
        let hello = SessionRequest::Hello {
            protocol_version: PROTOCOL_VERSION,
            features: Features::NONE,
            client_id,
            client_name: Text::new("subvol-tests"),
        };
        match self.session(hello)? {
            SessionResponse::HelloOk { server_epoch, .. } => Ok(server_epoch),
            other => panic!("Hello was answered with {other:?}"),
        }
    }

    /// Hello and authentication.
    ///
    /// # Errors
    /// As [`Self::hello`].
    pub fn introduce(&mut self, client_id: [u8; 16], token: &Token) -> io::Result<()> {
        self.hello(client_id)?;
        let credentials = Credentials::Token(token.clone());
        match self.session(SessionRequest::Authenticate { credentials })? {
            SessionResponse::AuthOk { .. } => Ok(()),
            other => panic!("Authenticate was answered with {other:?}"),
        }
    }

    /// Attaches a volume of the caller's tenant; gives root inode and lineage.
    ///
    /// # Errors
    /// As [`Self::hello`].
    pub fn attach(&mut self, volume: &str) -> io::Result<(u64, Lineage)> {
        let volume = VolumeRef::Name(Label::new(volume).expect("a volume's name"));
        match self.session(SessionRequest::Attach { volume, tenant: None, read_only: false })? {
            SessionResponse::Attached { root, lineage, .. } => Ok((root, lineage)),
            other => panic!("Attach was answered with {other:?}"),
        }
    }

    /// A session request.
    ///
    /// # Errors
    /// As [`Self::hello`].
    pub fn session(&mut self, request: SessionRequest) -> io::Result<SessionResponse> {
        match self.ask(&Request::Session(request).into(), &[])?.0 {
            Response::Session(answer) => Ok(answer),
            Response::Error(error) => Err(io::Error::other(error)),
            other => panic!("a session request was answered with {other:?}"),
        }
    }

    /// A file request, perhaps with an operation id.
    ///
    /// # Errors
    /// As [`Self::receive`]; the server's refusal is inside.
    pub fn file(
        &mut self,
        operation: Option<OperationId>,
        request: FileRequest,
        payload: &[u8],
    ) -> io::Result<Result<FileResponse, WireError>> {
        let envelope = RequestEnvelope { operation, request: Request::File(request) };
        match self.ask(&envelope, payload)?.0 {
            Response::File(answer) => Ok(Ok(answer)),
            Response::Error(error) => Ok(Err(error)),
            other => panic!("a file request was answered with {other:?}"),
        }
    }
}
