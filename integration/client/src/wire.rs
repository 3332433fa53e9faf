//! A socket that carries frames: connecting, batched writing, reading.
//!
//! Invariants: frames queued between two writes leave in one vectored write; a payload above [`COPY_PAYLOAD_BELOW`] is never copied;
//! after an error the wire is given up, because where the next frame begins is unknown.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use subvol_protocol::address::{Address, Endpoint};
use subvol_protocol::codec::{self, CodecError, ServerMessage};
use subvol_protocol::frame::{DecodeLimits, FrameDecoder};
use subvol_protocol::request::RequestEnvelope;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::error::{ClientError, Result};
use crate::limits::{COPY_PAYLOAD_BELOW, MAX_ENCODED_AHEAD, MAX_SLICES, RECEIVE_BUFFER};

/// A stream socket of either kind.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl Socket {
    fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }
}

/// One received frame: which request it answers, and what it says or why that cannot be understood.
pub(crate) struct Received {
    pub request_id: u64,
    pub message: Result<ServerMessage, CodecError>,
}

/// A connected socket with its buffers.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: Socket,
    decoder: FrameDecoder,
    input: BytesMut,
    /// What goes out before `tail`.
    output: VecDeque<Bytes>,
    tail: BytesMut,
    queued: usize,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::Io`] that names the address and what to check.
    pub async fn connect(address: &Address) -> Result<Self> {
        let socket = match &address.endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
                stream.map(Socket::Tcp)
            }
            Endpoint::Unix { path } => UnixStream::connect(path).await.map(Socket::Unix),
        };
        let socket = socket.map_err(|error| {
            ClientError::io(
                format!("connecting to {address}; check that the server runs and the address is right"),
                error,
            )
        })?;
        Ok(Self {
            socket,
            decoder: FrameDecoder::new(DecodeLimits::FULL),
            input: BytesMut::with_capacity(RECEIVE_BUFFER),
            output: VecDeque::new(),
            tail: BytesMut::new(),
            queued: 0,
        })
    }

    /// There is room for more to be encoded ahead of the socket.
    pub const fn has_room(&self) -> bool {
        self.queued < MAX_ENCODED_AHEAD
    }

    /// Everything queued has been handed to the kernel.
    pub const fn is_flushed(&self) -> bool {
        self.queued == 0
    }

    /// Queues a request.
    ///
    /// # Errors
    /// It is too large; nothing is queued then.
    pub fn queue(
        &mut self,
        request_id: u64,
        envelope: &RequestEnvelope,
        payload: &Bytes,
    ) -> Result<(), CodecError> {
        let before = self.tail.len();
        codec::encode_head(&mut self.tail, request_id, envelope, payload.len())?;
        self.queued += self.tail.len() - before + payload.len();
        if payload.len() <= COPY_PAYLOAD_BELOW {
            self.tail.extend_from_slice(payload);
        } else {
            self.output.push_back(self.tail.split().freeze());
            self.output.push_back(payload.clone());
        }
        Ok(())
    }

    /// Writes until everything is out or the socket is full.
    pub fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.queued > 0 {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let chunks = self.output.iter().map(Bytes::as_ref).chain([self.tail.as_ref()]);
            for (slice, chunk) in slices.iter_mut().zip(chunks) {
                *slice = IoSlice::new(chunk);
            }
            let written = ready!(self.socket.poll_write(context, &slices))
                .map_err(|error| ClientError::io("writing to the server", error))?;
            if written == 0 {
                return Poll::Ready(Err(ClientError::io(
                    "writing to the server",
                    io::ErrorKind::WriteZero.into(),
                )));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        self.queued -= written;
        while let Some(front) = self.output.front_mut() {
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.output.pop_front();
        }
        self.tail.advance(written);
    }

    /// Reads what there is, up to a buffer full.
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.input.capacity() == self.input.len() {
            self.input.reserve(RECEIVE_BUFFER);
        }
        let read = std::pin::pin!(self.socket.read_buf(&mut self.input));
        match ready!(read.poll(context)) {
            Ok(0) => Poll::Ready(Err(ClientError::io(
                "the server closed the connection",
                io::ErrorKind::UnexpectedEof.into(),
            ))),
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(ClientError::io("reading from the server", error))),
        }
    }

    /// The next frame of what was read, if a whole one is there.
    ///
    /// # Errors
    /// [`ClientError::Protocol`]: the bytes are no frame.
    pub fn next_frame(&mut self) -> Result<Option<Received>> {
        let frame =
            self.decoder.decode(&mut self.input).map_err(|error| ClientError::Protocol(error.to_string()))?;
        Ok(frame.map(|frame| Received {
            request_id: frame.header.request_id,
            message: codec::decode_from_server(frame),
        }))
    }
}
