//! The front end: requests of the kernel become requests to the server, and what other clients change is dropped in time.
//!
//! One event loop on one thread; every request that has to wait is a task of its own. Invariants: every request gets one answer, also when
//! it is interrupted; no answer lets the kernel keep what a recall has overtaken ([`recalls`]); notifications leave from a thread of their
//! own ([`notifier`]).
//!
//! - [`serve`]: the loop; `dispatch`: one request
//! - `names`, `attributes`, `data`, `listing`, `xattrs`, `locks`, `opening`: the operations
//! - [`inodes`], [`held_locks`]: what is remembered; `coherence`: recalls, loss and return of the connection

mod attributes;
mod coherence;
mod data;
mod dispatch;
pub mod held_locks;
pub mod inodes;
mod listing;
mod locks;
mod names;
pub mod notifier;
mod opening;
pub mod recalls;
mod xattrs;

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use subvol_protocol::request::{FileRequest, LockRange};
use subvol_protocol::response::FileResponse;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;
use zerocopy::{Immutable, IntoBytes};

use crate::backend::{Answer, Backend, Failure};
use crate::counters::{Counters, add};
use crate::kernel::device::{Device, ReadBuffer, ReadOutcome};
use crate::kernel::reply::Validity;
use crate::limits::{FORGET_PAUSE, FORGETS_AT_ONCE, LEASED_SECONDS, REQUESTS_IN_A_ROW};
use held_locks::HeldLocks;
use inodes::{Inodes, Node};
use notifier::Notifier;
use opening::Handles;
use recalls::Recalls;

/// How a mount behaves.
#[derive(Clone, Debug, Default)]
pub struct FrontOptions {
    /// For people: what is mounted.
    pub source: String,
    /// `remote` or `local`.
    pub form: &'static str,
    /// Locks count within this mount only; opening and closing then cost nothing.
    pub local_locks: bool,
    /// Every answer is written here.
    pub access_log: Option<PathBuf>,
}

/// Errno numbers this front end makes itself.
pub(crate) mod errno {
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const EEXIST: i32 = 17;
    pub const EINVAL: i32 = 22;
    pub const ENOTTY: i32 = 25;
    pub const ERANGE: i32 = 34;
    pub const ENOSYS: i32 = 38;
    pub const ENODATA: i32 = 61;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
}

/// What a handler answers with.
pub(crate) struct Output {
    head: SmallVec<[u8; 160]>,
    data: Bytes,
    /// Inodes that the answer names; taken back if the kernel does not take it.
    named: SmallVec<[u64; 1]>,
}

impl Output {
    pub(crate) fn empty() -> Self {
        Self { head: SmallVec::new(), data: Bytes::new(), named: SmallVec::new() }
    }

    pub(crate) fn of<T: IntoBytes + Immutable>(value: &T) -> Self {
        Self { head: SmallVec::from_slice(value.as_bytes()), ..Self::empty() }
    }

    pub(crate) fn and<T: IntoBytes + Immutable>(mut self, value: &T) -> Self {
        self.head.extend_from_slice(value.as_bytes());
        self
    }

    pub(crate) fn naming(mut self, inode: u64) -> Self {
        self.named.push(inode);
        self
    }

    pub(crate) fn bytes(data: Bytes) -> Self {
        Self { data, ..Self::empty() }
    }
}

/// Result of a handler.
pub(crate) type Outcome = Result<Output, Failure>;

/// See the module.
pub(crate) struct Front<B> {
    device: Device,
    backend: Rc<B>,
    options: FrontOptions,
    inodes: RefCell<Inodes>,
    recalls: RefCell<Recalls>,
    handles: RefCell<Handles>,
    locks: RefCell<HeldLocks>,
    under_way: RefCell<FxHashMap<u64, Waiting>>,
    counters: Counters,
    notifier: Notifier,
    /// Seconds for which the kernel may keep what is leased.
    leased_seconds: Cell<u64>,
    /// Wakes the housekeeping after requests.
    woken: Notify,
}

/// A request whose answer is awaited.
struct Waiting {
    task: AbortHandle,
    /// The lock it waits for: such a wait may be ended at any time.
    lock: Option<LockRange>,
    interrupted: bool,
}

/// Serves a mounted file system until it is unmounted, or until the volume is gone for good.
///
/// Must run inside a `LocalSet` on a single thread.
///
/// # Errors
/// Those of the device and of threads.
pub async fn serve<B: Backend>(device: Device, backend: Rc<B>, options: FrontOptions) -> io::Result<()> {
    let (notifier, finished) = Notifier::start(device.clone())?;
    let root = backend.root();
    let front = Rc::new(Front {
        counters: Counters::new(options.access_log.as_deref())?,
        device: device.clone(),
        backend,
        options,
        inodes: RefCell::new(Inodes::new(root)),
        recalls: RefCell::default(),
        handles: RefCell::default(),
        locks: RefCell::default(),
        under_way: RefCell::default(),
        notifier,
        leased_seconds: Cell::new(LEASED_SECONDS),
        woken: Notify::new(),
    });
    let helpers = [
        tokio::task::spawn_local(coherence::follow_events(Rc::clone(&front))),
        tokio::task::spawn_local(acknowledge(Rc::clone(&front), finished)),
        tokio::task::spawn_local(housekeeping(Rc::clone(&front))),
    ];
    let result = read_requests(&front).await;
    helpers.iter().for_each(tokio::task::JoinHandle::abort);
    for (_, waiting) in front.under_way.borrow_mut().drain() {
        waiting.task.abort();
    }
    front.counters.flush_log();
    result
}

async fn read_requests<B: Backend>(front: &Rc<Front<B>>) -> io::Result<()> {
    // An unmounted device shows an error and nothing else.
    let interest = Interest::READABLE | Interest::ERROR;
    // SAFETY: the device owns its descriptor and is kept by this function until the registration is dropped.
    let device = unsafe { AsyncFd::register_with_interest(front.device.clone(), interest) }?;
    let mut buffer = ReadBuffer::new();
    loop {
        let mut ready = device.ready(interest).await?;
        let mut emptied = false;
        for _ in 0..REQUESTS_IN_A_ROW {
            match front.device.read(&mut buffer)? {
                ReadOutcome::Request(incoming) => front.take(incoming),
                ReadOutcome::Malformed(malformed) => {
                    tracing::warn!(?malformed, "a request of the kernel is not understood");
                    if malformed.unique != 0 {
                        let errno = if malformed.unknown { errno::ENOSYS } else { errno::EIO };
                        front.device.refuse(malformed.unique, errno);
                    }
                }
                ReadOutcome::Empty => {
                    emptied = true;
                    break;
                }
                ReadOutcome::Unmounted => return Ok(()),
            }
        }
        if emptied {
            ready.clear_ready();
        } else {
            drop(ready);
            tokio::task::yield_now().await;
        }
        front.woken.notify_one();
    }
}

/// Says that a recall was worked off once the kernel dropped what it named.
async fn acknowledge<B: Backend>(front: Rc<Front<B>>, mut finished: UnboundedReceiver<u64>) {
    while let Some(recall) = finished.recv().await {
        front.acknowledge(recall);
    }
}

/// What is done now and then, while there is something to do: an idle mount sleeps.
async fn housekeeping<B: Backend>(front: Rc<Front<B>>) {
    loop {
        front.woken.notified().await;
        tokio::time::sleep(FORGET_PAUSE).await;
        while front.inodes.borrow().waiting() > 0 {
            front.tell_forgotten();
        }
        front.counters.flush_log();
    }
}

impl<B: Backend> Front<B> {
    fn inode(&self, nodeid: u64) -> u64 {
        self.inodes.borrow().inode(nodeid)
    }

    /// Runs `work` on what is remembered of an inode.
    fn with_node<T>(&self, inode: u64, work: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.inodes.borrow_mut().get_mut(inode).map(work)
    }

    /// How long the kernel may keep an entry of `parent` with this inode, asked for at `since`.
    fn validity(&self, parent: u64, inode: u64, since: u64) -> Validity {
        if !self.backend.has_leases() {
            return Validity::NONE;
        }
        let recalls = self.recalls.borrow();
        let seconds = |inode| if recalls.is_fresh(inode, since) { self.leased_seconds.get() } else { 0 };
        Validity { entry: seconds(parent), attributes: seconds(inode) }
    }

    /// Whether what was asked at `since` is known for sure.
    fn is_sure(&self, inode: u64, since: u64) -> bool {
        self.backend.has_leases() && self.recalls.borrow().is_fresh(inode, since)
    }

    async fn ask(&self, request: FileRequest) -> Result<FileResponse, Failure> {
        Ok(self.ask_with(request, Bytes::new()).await?.0)
    }

    async fn ask_with(&self, request: FileRequest, payload: Bytes) -> Answer {
        add(&self.counters.round_trips, 1);
        self.backend.call(request, payload).await
    }

    /// Tells the server what the kernel forgot.
    fn tell_forgotten(self: &Rc<Self>) {
        let inodes = self.inodes.borrow_mut().take_forgotten(FORGETS_AT_ONCE);
        if inodes.is_empty() {
            return;
        }
        add(&self.counters.round_trips, 1);
        let told = self.backend.call(FileRequest::ForgetInodes { inodes: inodes.clone() }, Bytes::new());
        let front = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let _ = told.await;
            front.inodes.borrow_mut().told(&inodes);
        });
    }

    fn acknowledge(&self, recall: u64) {
        self.backend.tell(FileRequest::AcknowledgeRecalls { recalls: vec![recall] });
    }
}

/// A change of inodes under way; see [`Recalls`].
pub(crate) struct Changing<B: Backend> {
    front: Rc<Front<B>>,
    inodes: SmallVec<[u64; 2]>,
}

impl<B: Backend> Front<B> {
    fn changing(self: &Rc<Self>, inodes: &[u64]) -> Changing<B> {
        self.recalls.borrow_mut().begin(inodes);
        Changing { front: Rc::clone(self), inodes: SmallVec::from_slice(inodes) }
    }
}

impl<B: Backend> Drop for Changing<B> {
    fn drop(&mut self) {
        let drops = self.front.recalls.borrow_mut().end(&self.inodes);
        if !drops.is_empty() {
            self.front.drop_targets(&drops, None);
        }
    }
}
