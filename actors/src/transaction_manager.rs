//! The transaction manager: decides when to commit and walks one commit at a time through its states.
//!
//! ```text
//!  wanted ─► Freezing: every dirty root is asked, and answers at its next message boundary
//!         ─► Writing: on the committer's own thread ─► SuperDurable, unpinned ─► Complete: roots and waiters are told
//! ```
//! Invariants: the ring's head is taken before the transaction is switched; a request that arrives while a commit is
//! under way is served by the next one, because the present one may have frozen without it; nobody waits for a commit
//! except who asked for one. A failed commit latches the store and tells all waiters.

use crate::limits::COMMIT_BYTES;
use crate::runtime::{self, Actor, Arbiter, Context, Handler, Mailbox, messages};
use crate::server::Shared;
use crate::subvolume::{CommitDurable, Freeze};
use crate::waiter::{Failed, Waiter};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use subvol_storage::store::StoreError;
use subvol_storage::subvolume::Frozen;
use subvol_storage::transaction::commit::{CommitInput, Committer, RootChange};
use subvol_storage::transaction::metrics::CommitSample;
use subvol_storage::transaction::state::TransactionState;
use subvol_storage::types::{SubvolumeId, TransactionId};

/// Why a commit is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitReason {
    /// It is time.
    Timer,
    /// Much file data was written.
    DirtyBytes,
    /// The log ring is half full.
    RingHalfFull,
    /// The log ring is full.
    RingFull,
    /// A client asked for a sync.
    Sync,
    /// Volumes, tenants or limits changed.
    Administration,
    /// Freed space is needed.
    NoSpace,
    /// A removed volume is empty.
    Removal,
    /// The server stops.
    Shutdown,
}

/// Asks for a commit that contains everything acknowledged before.
pub struct RequestCommit {
    /// Why.
    pub reason: CommitReason,
    /// Who waits for it.
    pub waiter: Option<Waiter>,
    /// Changes of the root tree that belong to it.
    pub changes: Vec<RootChange>,
}

/// A root's answer to [`Freeze`].
pub struct FreezeResult {
    /// Who.
    pub subvolume: SubvolumeId,
    /// Its state, or nothing if the store failed.
    pub frozen: Option<Box<Frozen>>,
}

struct Written {
    result: Result<CommitSample, StoreError>,
}

/// Time to look whether a commit is due.
pub struct Tick;

messages!(RequestCommit, FreezeResult, Written, Tick);

/// See the module.
pub struct TransactionManager {
    shared: Arc<Shared>,
    committer: Sender<CommitInput>,
    current: Option<Commit>,
    wanted: Option<CommitReason>,
    waiters: Vec<Waiter>,
    changes: Vec<RootChange>,
}

struct Commit {
    state: TransactionState,
    transid: TransactionId,
    reason: CommitReason,
    awaited: BTreeSet<SubvolumeId>,
    members: BTreeSet<SubvolumeId>,
    input: CommitInput,
    waiters: Vec<Waiter>,
    started: Instant,
    freeze_nanoseconds: u64,
}

impl TransactionManager {
    /// Starts the manager on the control loop and the committer's thread.
    pub fn start(
        shared: Arc<Shared>,
        control: &Arbiter,
        committer: Committer,
    ) -> Result<(Mailbox<Self>, std::thread::JoinHandle<()>), crate::server::StartError> {
        let (sender, receiver) = channel();
        let (tell_mailbox, mailbox_told) = channel::<Mailbox<Self>>();
        let thread = runtime::thread("committer", move || {
            if let Ok(manager) = mailbox_told.recv() {
                commit_all(committer, &receiver, &manager);
            }
        })?;
        let interval = shared.options.commit_interval;
        let mailbox = Mailbox::start(control, move |mailbox| {
            let ticker = mailbox.clone();
            runtime::spawn(async move {
                let mut clock = tokio::time::interval(interval);
                clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    clock.tick().await;
                    if ticker.is_closed() {
                        break;
                    }
                    ticker.send(Tick);
                }
            });
            Self {
                shared,
                committer: sender,
                current: None,
                wanted: None,
                waiters: Vec::new(),
                changes: Vec::new(),
            }
        });
        let _ = tell_mailbox.send(mailbox.clone());
        Ok((mailbox, thread))
    }

    fn begin_if_wanted(&mut self) {
        let Some(reason) = self.wanted.filter(|_| self.current.is_none()) else { return };
        self.wanted = None;
        let store = Arc::clone(&self.shared.store);
        if store.failure().is_some() {
            self.waiters.drain(..).for_each(|waiter| waiter.tell(Err(Failed)));
            return;
        }
        if !store.is_dirty() && self.changes.is_empty() {
            // Everything acknowledged is in a durable transaction.
            let durable = store.durable();
            self.waiters.drain(..).for_each(|waiter| waiter.tell(Ok(durable)));
            return;
        }
        // First the head: every batch before it then holds only records that this commit covers.
        let log_tail = store.ring().head();
        let (transid, members) = store.switch_transaction();
        tracing::debug!(transid, ?reason, subvolumes = members.len(), "a commit begins");
        let mut commit = Commit {
            state: TransactionState::Running,
            transid,
            reason,
            awaited: members.clone(),
            members,
            input: CommitInput { frozen: Vec::new(), changes: std::mem::take(&mut self.changes), log_tail },
            waiters: std::mem::take(&mut self.waiters),
            started: Instant::now(),
            freeze_nanoseconds: 0,
        };
        commit.state.step(TransactionState::Freezing);
        for &id in &commit.members {
            let volume = self.shared.registry.find(id).expect("a dirty subvolume is in memory");
            volume.mailbox.send(Freeze { transid });
        }
        self.shared.counters.written_back.store(0, Ordering::Relaxed);
        self.current = Some(commit);
        self.write_if_frozen();
    }

    fn write_if_frozen(&mut self) {
        let Some(commit) = &mut self.current else { return };
        if commit.state != TransactionState::Freezing || !commit.awaited.is_empty() {
            return;
        }
        commit.state.step(TransactionState::Writing);
        commit.freeze_nanoseconds = nanoseconds_since(commit.started);
        let tail = commit.input.log_tail;
        let empty = CommitInput { frozen: Vec::new(), changes: Vec::new(), log_tail: tail };
        let input = std::mem::replace(&mut commit.input, empty);
        if self.committer.send(input).is_err() {
            self.abort();
        }
    }

    fn abort(&mut self) {
        let Some(mut commit) = self.current.take() else { return };
        commit.state.step(TransactionState::Aborted);
        tracing::error!(transid = commit.transid, "the commit was aborted");
        let waiting = commit.waiters.into_iter().chain(self.waiters.drain(..));
        waiting.for_each(|waiter| waiter.tell(Err(Failed)));
        self.shared.log.committed();
    }

    fn complete(&mut self, mut sample: CommitSample) {
        let Some(mut commit) = self.current.take() else { return };
        commit.state.step(TransactionState::SuperDurable);
        sample.freeze_nanoseconds = commit.freeze_nanoseconds;
        tracing::debug!(transid = commit.transid, reason = ?commit.reason, ?sample, "a commit is durable");
        self.shared.history.lock().add(sample);
        for &id in &commit.members {
            if let Some(volume) = self.shared.registry.find(id) {
                volume.mailbox.send(CommitDurable { transid: commit.transid });
            }
        }
        commit.state.step(TransactionState::Complete);
        self.shared.log.committed();
        commit.waiters.into_iter().for_each(|waiter| waiter.tell(Ok(commit.transid)));
    }
}

/// The committer's thread: writes what it is given, one commit after the other, until the manager is gone.
fn commit_all(
    mut committer: Committer,
    inputs: &Receiver<CommitInput>,
    manager: &Mailbox<TransactionManager>,
) {
    while let Ok(input) = inputs.recv() {
        let begun = Instant::now();
        let result = committer.write(input).map(|durable| {
            let write_nanoseconds = nanoseconds_since(begun);
            let unpin = Instant::now();
            let mut sample = committer.finish(durable);
            sample.write_nanoseconds = write_nanoseconds;
            sample.unpin_nanoseconds = nanoseconds_since(unpin);
            sample
        });
        manager.send(Written { result });
    }
}

fn nanoseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Actor for TransactionManager {
    type Context = Context<Self>;
}

impl Handler<RequestCommit> for TransactionManager {
    type Result = ();

    fn handle(&mut self, request: RequestCommit, _: &mut Context<Self>) {
        self.wanted = Some(request.reason);
        self.waiters.extend(request.waiter);
        self.changes.extend(request.changes);
        self.begin_if_wanted();
    }
}

impl Handler<FreezeResult> for TransactionManager {
    type Result = ();

    fn handle(&mut self, result: FreezeResult, _: &mut Context<Self>) {
        let Some(commit) = &mut self.current else { return };
        let Some(frozen) = result.frozen else {
            self.abort();
            return;
        };
        assert!(commit.awaited.remove(&result.subvolume), "subvolume {} froze twice", result.subvolume);
        commit.input.frozen.push(*frozen);
        self.write_if_frozen();
    }
}

impl Handler<Written> for TransactionManager {
    type Result = ();

    fn handle(&mut self, written: Written, _: &mut Context<Self>) {
        match written.result {
            Ok(sample) => self.complete(sample),
            Err(error) => {
                tracing::error!(%error, "a commit failed");
                self.abort();
            }
        }
        self.begin_if_wanted();
    }
}

impl Handler<Tick> for TransactionManager {
    type Result = ();

    fn handle(&mut self, _: Tick, _: &mut Context<Self>) {
        self.shared.registry.sweep(self.shared.uptime_milliseconds(), self.shared.options.unload_after);
        if self.wanted.is_none() {
            self.wanted = Some(CommitReason::Timer);
        }
        self.begin_if_wanted();
    }
}

impl Shared {
    /// Asks for a commit without waiting for it. Requests coalesce.
    pub fn request_commit(&self, reason: CommitReason) {
        self.request(RequestCommit { reason, waiter: None, changes: Vec::new() });
    }

    /// Commits and waits.
    pub async fn commit(
        &self,
        reason: CommitReason,
        changes: Vec<RootChange>,
    ) -> Result<TransactionId, Failed> {
        let (waiter, told) = Waiter::task();
        self.request(RequestCommit { reason, waiter: Some(waiter), changes });
        told.await.unwrap_or(Err(Failed))
    }

    /// Hands a request to the transaction manager.
    pub fn request(&self, request: RequestCommit) {
        if let Some(manager) = self.transactions.get() {
            manager.send(request);
        }
    }

    /// Hands a frozen state to the transaction manager.
    pub fn froze(&self, result: FreezeResult) {
        if let Some(manager) = self.transactions.get() {
            manager.send(result);
        }
    }

    /// File data became extents: when there is much of it, a commit is due.
    pub fn wrote_back(&self, bytes: u64) {
        let before = self.counters.written_back.fetch_add(bytes, Ordering::Relaxed);
        if before < COMMIT_BYTES && before + bytes >= COMMIT_BYTES {
            self.request_commit(CommitReason::DirtyBytes);
        }
    }
}
