//! A unix socket between a client and the server that can lose replies, cut connections and turn newcomers away.
//!
//! With it a test holds the server at the worst moment: the request was executed and nobody knows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// The proxy; stops with the last clone.
#[derive(Clone, Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    swallowing: AtomicBool,
    swallowed: AtomicU64,
    refusing: AtomicBool,
    /// Connections end when this number changes.
    cut: watch::Sender<u64>,
    listener: tokio::task::AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.listener.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Proxy {
    /// Listens on `path` for connections to `server`.
    ///
    /// # Panics
    /// If the path cannot be used.
    #[must_use]
    pub fn start(path: &Path, server: &Path) -> Self {
        let listener = UnixListener::bind(path).expect("the proxy's socket");
        let server = server.to_path_buf();
        let path = path.to_path_buf();
        let shared = Arc::new_cyclic(|weak: &std::sync::Weak<Shared>| {
            let weak = weak.clone();
            let task = tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let Some(shared) = weak.upgrade() else { return };
                    if shared.refusing.load(Ordering::SeqCst) {
                        continue;
                    }
                    let Ok(upstream) = UnixStream::connect(&server).await else { continue };
                    let cut = shared.cut.subscribe();
                    tokio::spawn(carry(client, upstream, shared, cut));
                }
            });
            Shared {
                path,
                swallowing: AtomicBool::new(false),
                swallowed: AtomicU64::new(0),
                refusing: AtomicBool::new(false),
                cut: watch::channel(0).0,
                listener: task.abort_handle(),
            }
        });
        Self { shared }
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// From now on replies of the server vanish; or no more.
    pub fn swallow_replies(&self, on: bool) {
        self.shared.swallowing.store(on, Ordering::SeqCst);
    }

    /// Bytes of replies that vanished.
    #[must_use]
    pub fn swallowed(&self) -> u64 {
        self.shared.swallowed.load(Ordering::SeqCst)
    }

    /// From now on new connections are closed at once; or no more.
    pub fn refuse(&self, on: bool) {
        self.shared.refusing.store(on, Ordering::SeqCst);
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|generation| *generation += 1);
    }
}

async fn carry(client: UnixStream, upstream: UnixStream, shared: Arc<Shared>, mut cut: watch::Receiver<u64>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = upstream.into_split();
    let requests = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let replies = async {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = from_server.read(&mut chunk).await?;
            if length == 0 {
                return Ok::<(), std::io::Error>(());
            }
            if shared.swallowing.load(Ordering::SeqCst) {
                shared.swallowed.fetch_add(length as u64, Ordering::SeqCst);
            } else {
                to_client.write_all(chunk.get(..length).unwrap_or_default()).await?;
            }
        }
    };
    // Whichever ends first ends both: the sockets are dropped.
    tokio::select! {
        _ = requests => {}
        _ = replies => {}
        _ = cut.changed() => {}
    }
}
