//! How a server is to run. Plain values; reading them from files and arguments is the binary's business.

use crate::limits;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use subvol_storage::device::Device;
use subvol_storage::store::CacheSizes;
use subvol_storage::types::SubvolumeId;

/// Everything [`crate::Server::start`] needs to know.
#[derive(Clone)]
pub struct ServerOptions {
    /// Folder of the catalog, its export and the first token. Made if it is missing.
    pub data: PathBuf,
    /// The formatted store.
    pub device: Arc<dyn Device>,
    /// Sizes of the caches.
    pub caches: CacheSizes,
    /// Subvolumes whose log is thrown away instead of replayed.
    pub discard_logs: BTreeSet<SubvolumeId>,
    /// Go back to an older superblock when the other one is damaged.
    pub accept_older_superblock: bool,
    /// Where to listen for TCP. The first that works is reported; port 0 takes any.
    pub tcp: Option<SocketAddr>,
    /// Go on without TCP if its port is taken.
    pub tcp_optional: bool,
    /// Where to put the unix socket.
    pub unix: Option<PathBuf>,
    /// Event loops for subvolumes; 0 = one per core.
    pub threads: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Time between commits.
    pub commit_interval: Duration,
    /// How long files without names wait after a start.
    pub orphan_grace: Duration,
    /// When a subvolume without connections leaves memory.
    pub unload_after: Duration,
    /// A recall has to be acknowledged within this time.
    pub recall_time: Duration,
    /// A client that hears nothing for so long drops what it keeps; the server waits longer.
    pub lease_silence: Duration,
    /// Inodes and locks of a client whose connection ended are kept for so long.
    pub client_grace: Duration,
    /// After a start, only those who had locks before get them for so long.
    pub lock_grace: Duration,
    /// Switches for measurements.
    pub bench: BenchOptions,
}

impl ServerOptions {
    /// The usual values for a store on this device with its catalog in this folder; listening nowhere yet.
    pub fn new(data: PathBuf, device: Arc<dyn Device>) -> Self {
        Self {
            data,
            device,
            caches: CacheSizes::default(),
            discard_logs: BTreeSet::new(),
            accept_older_superblock: false,
            tcp: None,
            tcp_optional: false,
            unix: None,
            threads: 0,
            connections: limits::CONNECTIONS_MAX,
            commit_interval: limits::COMMIT_INTERVAL,
            orphan_grace: limits::ORPHAN_GRACE,
            unload_after: limits::UNLOAD_AFTER,
            recall_time: limits::RECALL_TIME,
            lease_silence: limits::LEASE_SILENCE,
            client_grace: limits::CLIENT_GRACE,
            lock_grace: limits::LOCK_GRACE,
            bench: BenchOptions::default(),
        }
    }
}

/// Ways of doing things that are slower on purpose, to measure by how much. Never set in service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BenchOptions {
    /// How an fsync finds out that there is nothing to do.
    pub committed_check: CommittedCheck,
    /// When a rename pins its log.
    pub pin_point: PinPoint,
}

/// How an fsync finds out that its handle is durable already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommittedCheck {
    /// The session reads two atomics.
    #[default]
    AtomicRead,
    /// The session asks the subvolume's actor.
    AskActor,
}

/// When a rename keeps its log's open generation from closing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinPoint {
    /// Right before the first record, after everything slow.
    #[default]
    BeforeFirstRecord,
    /// When the request arrives; held through its block fetches.
    OnArrival,
}
