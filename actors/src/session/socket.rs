//! A TCP or unix connection with one face: ready to read, ready to write, try it, move it to another thread.

use bytes::BytesMut;
use std::io;
use std::task::{Context, Poll};
use tokio::net::{TcpStream, UnixStream};

/// A connection bound to the event loop of this thread.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

/// A connection between two event loops.
#[derive(Debug)]
pub enum DetachedSocket {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// Unix.
    Unix(std::os::unix::net::UnixStream),
}

impl Socket {
    /// Ready when a read may give something.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    /// Ready when a write may take something.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(context),
            Self::Unix(stream) => stream.poll_write_ready(context),
        }
    }

    /// Reads what is there into the free room of the buffer.
    pub fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            Self::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    /// Writes what fits.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// User and group of the other end, as the kernel knows them; only of unix sockets.
    pub fn peer(&self) -> Option<(u32, u32)> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(stream) => stream.peer_cred().ok().map(|peer| (peer.uid(), peer.gid())),
        }
    }

    /// Takes the connection out of this event loop.
    pub fn detach(self) -> io::Result<DetachedSocket> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(DetachedSocket::Tcp),
            Self::Unix(stream) => stream.into_std().map(DetachedSocket::Unix),
        }
    }
}

impl DetachedSocket {
    /// Puts the connection into the event loop of this thread.
    pub fn attach(self) -> io::Result<Socket> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Socket::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Socket::Unix),
        }
    }
}
