//! Starting and stopping a server, and what its parts share.

use crate::limits::{FETCH_THREADS, FSYNC_WRITER_THREADS, SERVER_BYTES_MAX, SHUTDOWN_GRACE, WRITER_THREADS};
use crate::listener::{self, Addresses};
use crate::log_writer::{self, LogQueue};
use crate::metrics::Counters;
use crate::options::ServerOptions;
use crate::registry::Registry;
use crate::runtime::{self, Arbiter, Loops, Mailbox};
use crate::session::Session;
use crate::session::permits::Budget;
use crate::tenants::Tenants;
use crate::tenants::catalog::CatalogError;
use crate::transaction_manager::{CommitReason, RequestCommit, TransactionManager};
use crate::waiter::Waiter;
use crate::workers::Workers;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use subvol_protocol::error::WireError;
use subvol_storage::format::root_item::root_flags;
use subvol_storage::log::replay::ReplayReport;
use subvol_storage::store::open::{OpenOptions, open};
use subvol_storage::store::{Store, StoreError};
use subvol_storage::transaction::metrics::CommitHistory;
use subvol_storage::types::SubvolumeId;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The data folder cannot be used.
    #[error("{path:?} cannot be used: {source}")]
    Data {
        /// Folder or file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The catalog cannot be used, not even after moving it aside.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The system's word.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
    /// The event loops did not start.
    #[error("the event loops did not start; see the log")]
    Runtime,
    /// The system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
    /// The first tenant of a new store could not be made.
    #[error("the first tenant could not be made: {0}")]
    FirstTenant(WireError),
}

impl StartError {
    pub(crate) fn data(path: &Path, source: io::Error) -> Self {
        Self::Data { path: path.to_owned(), source }
    }
}

/// The last commit failed: what was not durable before is lost with the process.
#[derive(Debug, thiserror::Error)]
#[error("the last commit failed: {0}; changes that were not synced may be lost")]
pub struct ShutdownError(String);

/// What all parts of a server share.
pub struct Shared {
    /// How it runs.
    pub options: ServerOptions,
    /// The store.
    pub store: Arc<Store>,
    /// When it started.
    pub started: Instant,
    /// Numbers for the status.
    pub counters: Counters,
    /// Commits so far.
    pub history: Mutex<CommitHistory>,
    /// Volumes in memory.
    pub registry: Registry,
    /// Tenants.
    pub tenants: Tenants,
    /// The way to the log writer.
    pub log: LogQueue,
    /// Threads that read blocks.
    pub fetchers: Workers,
    /// Threads that write data, and the catalog.
    pub writers: Workers,
    /// Threads that write data that an fsync waits for.
    pub fsync_writers: Workers,
    /// Bytes under way of everybody.
    pub budget: Arc<Budget>,
    /// The way to the transaction manager.
    pub transactions: OnceLock<Mailbox<TransactionManager>>,
    /// Open connections.
    pub sessions: Mutex<FxHashMap<u64, Arc<Session>>>,
    /// No new connections.
    pub stopping: AtomicBool,
    /// Wakes the listeners to see that.
    pub stop_accepting: tokio::sync::Notify,
    arbiters: Vec<Arbiter>,
}

impl Shared {
    /// Milliseconds since the start.
    pub fn uptime_milliseconds(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Where a subvolume lives.
    pub fn arbiter_of(&self, id: SubvolumeId) -> &Arbiter {
        // Numbers are given out in turn, so neighbours go to different threads.
        let index = (id as usize) % self.arbiters.len();
        &self.arbiters[index]
    }
}

/// Waits for SIGTERM or SIGINT.
pub struct StopSignal(std::sync::mpsc::Receiver<&'static str>);

impl StopSignal {
    /// Returns the signal's name when one comes.
    pub fn wait(self) -> &'static str {
        self.0.recv().unwrap_or("the event loop ended")
    }
}

/// Starts servers.
pub struct Server;

/// A running server. Dropping it ends the server like a crash; [`ServerHandle::shutdown`] is the orderly way.
pub struct ServerHandle {
    shared: Arc<Shared>,
    loops: Loops,
    threads: Vec<JoinHandle<()>>,
    addresses: Addresses,
    replay: ReplayReport,
}

impl Server {
    /// Opens the store, replays its log, and serves. Returns when connections are accepted.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: ServerOptions) -> Result<ServerHandle, StartError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&options.data)
            .map_err(|error| StartError::data(&options.data, error))?;
        let open_options = OpenOptions {
            caches: options.caches,
            discard_logs: options.discard_logs.clone(),
            accept_older_superblock: options.accept_older_superblock,
            ..OpenOptions::default()
        };
        let opened = open(Arc::clone(&options.device), &open_options)?;
        let store = opened.store;
        let replay = opened.replayed.report;
        report_replay(&replay, &store);
        let roots = store.roots();
        let tenants = Tenants::load(&options.data, opened.tenants, &roots)?;
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let loops = Loops::start(threads)?;
        let shared = Arc::new(Shared {
            options,
            store,
            started: Instant::now(),
            counters: Counters::default(),
            history: Mutex::default(),
            registry: Registry::new(opened.replayed.subvolumes),
            tenants,
            log: LogQueue::default(),
            fetchers: Workers::start("fetch", FETCH_THREADS)?,
            writers: Workers::start("write", WRITER_THREADS)?,
            fsync_writers: Workers::start("fsync", FSYNC_WRITER_THREADS)?,
            budget: Budget::new(SERVER_BYTES_MAX),
            transactions: OnceLock::new(),
            sessions: Mutex::default(),
            stopping: AtomicBool::new(false),
            stop_accepting: tokio::sync::Notify::new(),
            arbiters: loops.workers().to_vec(),
        });
        let (manager, committer) =
            TransactionManager::start(Arc::clone(&shared), loops.control(), opened.committer)?;
        let _ = shared.transactions.set(manager);
        let for_log = Arc::clone(&shared);
        let log = runtime::thread("log", move || log_writer::run(&for_log))?;
        let mut handle = ServerHandle {
            shared: Arc::clone(&shared),
            loops,
            threads: vec![log, committer],
            addresses: Addresses::default(),
            replay,
        };
        for (id, root) in roots {
            if root.flags & root_flags::DYING != 0 {
                shared.registry.load(&shared, id);
            }
        }
        handle.addresses = serve(&shared, handle.loops.control())?;
        Ok(handle)
    }
}

/// Makes the first tenant if there is none, then listens.
fn serve(shared: &Arc<Shared>, control: &Arbiter) -> Result<Addresses, StartError> {
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let shared = Arc::clone(shared);
    control.run(move || {
        runtime::spawn(async move {
            let made = shared.tenants.first_start(&shared).await.map_err(StartError::FirstTenant);
            let _ = tell.send(made.and_then(|()| listener::start(&shared)));
        });
    });
    told.recv().map_err(|_| StartError::Runtime)?
}

fn report_replay(report: &ReplayReport, store: &Store) {
    for (subvolume, records) in &report.discarded {
        tracing::warn!(subvolume, records, "log records were discarded on demand: these changes are lost");
    }
    tracing::info!(
        epoch = store.identity().epoch,
        transid = store.durable(),
        batches = report.batches,
        applied = report.applied,
        covered = report.covered,
        end = %report.end,
        "the store is open"
    );
}

impl ServerHandle {
    /// Where it listens.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// What was found in the log.
    pub fn replay(&self) -> &ReplayReport {
        &self.replay
    }

    /// The store, for tests and measurements.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// What the parts share, for tests and measurements.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// SIGTERM and SIGINT no longer end the process but are told to whoever waits.
    ///
    /// # Errors
    /// The system refuses to deliver signals.
    pub fn stop_signal(&self) -> Result<StopSignal, StartError> {
        use tokio::signal::unix::{SignalKind, signal};
        let (tell, told) = std::sync::mpsc::channel();
        let (registered, answer) = std::sync::mpsc::sync_channel(1);
        self.loops.control().run(move || {
            let signals = signal(SignalKind::terminate())
                .and_then(|terminate| Ok((terminate, signal(SignalKind::interrupt())?)));
            match signals {
                Err(error) => drop(registered.send(Err(error))),
                Ok((mut terminate, mut interrupt)) => {
                    let _ = registered.send(Ok(()));
                    runtime::spawn(async move {
                        let name = tokio::select! {
                            _ = terminate.recv() => "SIGTERM",
                            _ = interrupt.recv() => "SIGINT",
                        };
                        let _ = tell.send(name);
                    });
                }
            }
        });
        answer.recv().map_err(|_| StartError::Runtime)?.map_err(StartError::Thread)?;
        Ok(StopSignal(told))
    }

    /// Stops accepting, lets requests under way finish, commits, and ends.
    ///
    /// # Errors
    /// The last commit failed.
    pub fn shutdown(mut self) -> Result<(), ShutdownError> {
        self.stop_sessions();
        let (waiter, told) = Waiter::task();
        self.shared.request(RequestCommit {
            reason: CommitReason::Shutdown,
            waiter: Some(waiter),
            changes: Vec::new(),
        });
        let committed = matches!(told.blocking_recv(), Ok(Ok(_)));
        self.end();
        if committed {
            tracing::info!(transid = self.shared.store.durable(), "everything is committed");
            return Ok(());
        }
        let reason = self.shared.store.failure().unwrap_or_else(|| "it was not carried out".to_owned());
        Err(ShutdownError(reason))
    }

    fn stop_sessions(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.stop_accepting.notify_waiters();
        let sessions: Vec<Arc<Session>> = self.shared.sessions.lock().values().cloned().collect();
        sessions.iter().for_each(|session| session.shut_down());
        drop(sessions);
        let deadline = Instant::now() + SHUTDOWN_GRACE;
        while !self.shared.sessions.lock().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.log.close();
        self.loops.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // Sessions hold their volumes, volumes hold the server.
        self.shared.sessions.lock().clear();
        if let Some(path) = self.addresses.unix.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.end();
    }
}
