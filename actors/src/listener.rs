//! Accepting connections: TCP and a unix socket, with a limit and a clear answer above it.

use crate::limits::BACKLOG;
use crate::runtime;
use crate::server::{Shared, StartError};
use crate::session::connection::serve;
use crate::session::socket::Socket;
use bytes::BytesMut;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subvol_protocol::codec;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::response::Response;
use tokio::net::{TcpListener, TcpSocket, UnixListener};

/// Pause after a failed accept: the usual reason is too many open files, and trying at once does not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of the path that fit a socket's address.
const PATH_MAX: usize = 107;

/// Where the server listens.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// TCP.
    pub tcp: Option<SocketAddr>,
    /// Unix socket.
    pub unix: Option<PathBuf>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Begins to listen. Called on the control loop.
pub fn start(shared: &Arc<Shared>) -> Result<Addresses, StartError> {
    let mut addresses = Addresses::default();
    if let Some(path) = &shared.options.unix {
        let listener = bind_unix(path)?;
        addresses.unix = Some(path.clone());
        accept_all(shared, Listener::Unix(listener));
    }
    if let Some(address) = shared.options.tcp {
        match bind_tcp(address) {
            Ok(listener) => {
                addresses.tcp = listener.local_addr().ok();
                accept_all(shared, Listener::Tcp(listener));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && shared.options.tcp_optional => {
                tracing::warn!(%address, "the port is taken: only the unix socket is served");
            }
            Err(error) => return Err(StartError::Listen { address: address.to_string(), source: error }),
        }
    }
    Ok(addresses)
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Binds the socket, taking away one that a server left behind which is no more.
fn bind_unix(path: &Path) -> Result<UnixListener, StartError> {
    let fail = |source: io::Error| StartError::Listen { address: path.display().to_string(), source };
    if path.as_os_str().len() > PATH_MAX {
        return Err(fail(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path of a unix socket has at most 107 bytes; choose a shorter one with --unix",
        )));
    }
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(fail(io::Error::new(io::ErrorKind::AlreadyExists, "something else has this name")));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(fail(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")));
        }
        std::fs::remove_file(path).map_err(fail)?;
    }
    UnixListener::bind(path).map_err(fail)
}

fn accept_all(shared: &Arc<Shared>, listener: Listener) {
    let shared = Arc::clone(shared);
    runtime::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener) => accepted,
                () = shared.stop_accepting.notified() => break,
            };
            if shared.stopping.load(Ordering::Acquire) {
                break;
            }
            match accepted {
                Ok(socket) => admit(&shared, socket),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
}

async fn accept(listener: &Listener) -> io::Result<Socket> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Replies are written in batches already; waiting for more would only delay them.
            stream.set_nodelay(true)?;
            Ok(Socket::Tcp(stream))
        }
        Listener::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
    }
}

fn admit(shared: &Arc<Shared>, socket: Socket) {
    let before = shared.counters.sessions.fetch_add(1, Ordering::AcqRel);
    if before < shared.options.connections as u64 {
        serve(shared, socket);
        return;
    }
    shared.counters.sessions.fetch_sub(1, Ordering::AcqRel);
    let error = WireError::new(ErrorCode::TooManyRequests, "the server has no room for another connection");
    let mut answer = BytesMut::new();
    if codec::encode(&mut answer, 0, &Response::Error(error), &[]).is_ok() {
        // A new socket has room for so little; if not, the peer learns it from the end of the connection.
        let _ = socket.try_write(&answer);
    }
}
