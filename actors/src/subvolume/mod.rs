//! The actor that owns a subvolume: nobody else touches its tree, its log or its numbers.
//!
//! Each message is handled to its end, without waiting. What has to wait (a block that is not in memory, a commit, a flush)
//! parks the one request and lets the others go on; the completion comes as a message and runs it again.
//!
//! - [`job`]: a request and how far it got; [`run`]: running, parking, answering
//! - [`queries`], [`changes`], [`sync`]: one function per kind of request
//! - [`fetch`]: blocks from the device; [`commits`]: freezing for a commit; [`background`]: writeback, freeing, unloading;
//!   [`removal`]: emptying a removed volume
//! - [`lease_table`], [`leases`]: who keeps what, and who has to drop it; [`lock_table`], [`locks`]: locks

mod background;
mod changes;
mod commits;
pub mod convert;
mod fetch;
mod free_queue;
pub mod job;
mod lease_table;
mod leases;
mod lock_table;
mod locks;
mod queries;
mod removal;
mod run;
mod sync;

pub use commits::{CommitDurable, Freeze};
pub use removal::Remove;
pub use run::Resume;

use crate::limits::CLOSES_PER_MESSAGE;
use crate::metrics::{VolumeGauge, count};
use crate::options::PinPoint;
use crate::runtime::{self, Actor, Arbiter, Context, Handler, Mailbox, messages};
use crate::server::Shared;
use crate::session::Session;
use background::Background;
use free_queue::FreeQueue;
use job::Job;
use run::Parked;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use subvol_protocol::request::FileRequest;
use subvol_protocol::response::{Response, SessionResponse};
use subvol_storage::limits::ROOT_INODE;
use subvol_storage::subvolume::Subvolume;
use subvol_storage::types::{InodeNumber, Limits, Timestamp};

/// Requests of one session that arrived together.
pub struct Requests {
    /// Whose.
    pub session: Arc<Session>,
    /// Which, in their order.
    pub jobs: Vec<Job>,
}

/// A session that moved here wants its volume.
pub struct AttachSession {
    /// Which.
    pub session: Arc<Session>,
    /// The request to answer.
    pub request_id: u64,
}

/// A connection ended: its handles are gone.
pub struct SessionEnded {
    /// Whose.
    pub session: Arc<Session>,
}

/// New limits; part of the next commit.
pub struct SetLimits {
    /// The limits.
    pub limits: Limits,
    /// Told when the next commit will contain them.
    pub done: tokio::sync::oneshot::Sender<()>,
}

/// Nobody used the volume for a while: leave memory if nothing is under way.
pub struct Unload;

messages!(Requests, AttachSession, SessionEnded, SetLimits, Unload);

/// See the module.
pub struct SubvolumeRoot {
    shared: Arc<Shared>,
    mailbox: Mailbox<Self>,
    subvolume: Subvolume,
    /// Around everything it does, so that every event in the log names tenant and subvolume.
    span: tracing::Span,
    gauge: Arc<VolumeGauge>,
    /// The time of the requests being handled.
    now: Timestamp,
    operations: u64,
    parked: FxHashMap<u64, Parked>,
    next_token: u64,
    /// Sessions whose jobs may no longer be held back, and whether they are being looked at.
    freed: VecDeque<u64>,
    freeing: bool,
    /// Block reads under way, and the bytes kept for those who wait for them.
    fetching: usize,
    staged_bytes: u64,
    /// Inodes to be freed or trimmed by background steps.
    free: FreeQueue,
    /// Orphans are listed from here on.
    scan: Option<InodeNumber>,
    /// Orphans found while their clients may still come back and open them again; `None` once they may not.
    grace: Option<Vec<InodeNumber>>,
    background: Background,
    /// Extents handed to the data writers and not yet on the device, in bytes.
    in_flight: u64,
    /// What the server-wide counter contains of this subvolume.
    counted_dirty: u64,
    freeze: Option<commits::Freezing>,
    removal: Option<removal::Removal>,
    leases: lease_table::LeaseTable,
    lease_clients: Vec<leases::LeaseClient>,
    looking_for_late: bool,
    locks: lock_table::LockTable,
}

impl SubvolumeRoot {
    /// Starts the actor of a subvolume on its arbiter.
    pub fn start(
        shared: Arc<Shared>,
        arbiter: &Arbiter,
        subvolume: Subvolume,
        gauge: Arc<VolumeGauge>,
    ) -> Mailbox<Self> {
        Mailbox::start(arbiter, move |mailbox| {
            // Files without names stay for a while after a start: their clients may come back and open them again.
            let grace = shared.options.orphan_grace.saturating_sub(shared.started.elapsed());
            runtime::later(&mailbox, grace, background::GraceOver);
            let removal = removal::Removal::of(&subvolume);
            let span =
                tracing::info_span!("subvolume", tenant = subvolume.tenant(), subvolume = subvolume.id());
            let mut root = Self {
                shared,
                mailbox,
                subvolume,
                span,
                gauge,
                now: runtime::now(),
                operations: 0,
                parked: FxHashMap::default(),
                next_token: 1,
                freed: VecDeque::new(),
                freeing: false,
                fetching: 0,
                staged_bytes: 0,
                free: FreeQueue::default(),
                scan: Some(0),
                grace: Some(Vec::new()),
                background: Background::default(),
                in_flight: 0,
                counted_dirty: 0,
                freeze: None,
                removal,
                leases: lease_table::LeaseTable::default(),
                lease_clients: Vec::new(),
                looking_for_late: false,
                locks: lock_table::LockTable::default(),
            };
            root.after_messages();
            root
        })
    }

    /// What follows every batch of messages: data and log records on their way, numbers published.
    fn after_messages(&mut self) {
        self.write_back();
        self.hand_over_backlog();
        self.publish();
        if self.has_background_work() {
            self.schedule_background();
        }
    }

    fn publish(&mut self) {
        let gauge = &self.gauge;
        let transid = if self.subvolume.is_dirty() { self.subvolume.transid() } else { 0 };
        gauge.transid.store(transid, Ordering::Relaxed);
        gauge.log_transid.store(self.subvolume.log_transid(), Ordering::Relaxed);
        gauge.log_backlog.store(self.subvolume.log_backlog_bytes() as u64, Ordering::Relaxed);
        gauge.pinned_blocks.store(self.subvolume.pinned_blocks(), Ordering::Relaxed);
        let orphans = self.free.len() + self.grace.as_ref().map_or(0, Vec::len);
        gauge.orphans.store(orphans as u64, Ordering::Relaxed);
        gauge.operations.store(self.operations, Ordering::Relaxed);
        let dirty = self.dirty_bytes();
        if dirty != self.counted_dirty {
            gauge.dirty_bytes.store(dirty, Ordering::Relaxed);
            let total = &self.shared.counters.dirty_bytes;
            total.fetch_add(dirty.wrapping_sub(self.counted_dirty), Ordering::Relaxed);
            self.counted_dirty = dirty;
        }
    }

    /// Data that is not on the device.
    fn dirty_bytes(&self) -> u64 {
        self.subvolume.dirty_bytes() + self.in_flight
    }
}

impl Actor for SubvolumeRoot {
    type Context = Context<Self>;
}

impl Handler<Requests> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, requests: Requests, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        count(&self.shared.counters.messages);
        self.shared.counters.requests.fetch_add(requests.jobs.len() as u64, Ordering::Relaxed);
        self.now = runtime::now();
        let pin_on_arrival = self.shared.options.bench.pin_point == PinPoint::OnArrival;
        for mut job in requests.jobs {
            if pin_on_arrival {
                let renames =
                    job.ask.steps.as_slice().iter().any(|step| matches!(step, FileRequest::Rename { .. }));
                job.state.pin = renames.then(|| self.subvolume.pin_log());
            }
            self.arrive(job);
        }
        requests.session.outbox.wake();
        self.after_messages();
    }
}

impl Handler<AttachSession> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: AttachSession, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        let session = message.session;
        let read_only = session.attached.get().is_some_and(|attached| attached.read_only)
            || self.shared.store.failure().is_some();
        let statistics = convert::statistics(
            &self.shared.store,
            self.subvolume.account(),
            self.subvolume.tenant_account(),
        );
        let response = Response::Session(SessionResponse::Attached {
            subvolume: self.subvolume.id(),
            root: ROOT_INODE,
            lineage: convert::lineage(self.subvolume.ticket()),
            read_only,
            statistics,
        });
        session.reply(message.request_id, &response);
        session.outbox.wake();
    }
}

impl Handler<SessionEnded> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: SessionEnded, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        if !message.session.ended.swap(true, Ordering::Relaxed) {
            self.lease_session_ended(&message.session);
        }
        let handles = message.session.handles.take_some(CLOSES_PER_MESSAGE);
        let more = handles.len() == CLOSES_PER_MESSAGE;
        for handle in handles {
            self.close_inode(handle.inode);
        }
        if more {
            // Each may free a file: others get their turn in between.
            self.mailbox.send(message);
        }
        self.after_messages();
    }
}

impl Handler<SetLimits> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: SetLimits, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        if self.removal.is_some() {
            // A change between the last commit and the end of this actor would be dirty without an owner. Who asked sees
            // that nobody answered.
            return;
        }
        self.subvolume.set_limits(message.limits);
        let _ = message.done.send(());
        self.after_messages();
    }
}

impl Handler<Unload> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, _: Unload, context: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        let busy = self.subvolume.is_dirty()
            || self.subvolume.is_frozen()
            || self.subvolume.open_inodes() > 0
            || !self.parked.is_empty()
            || self.fetching > 0
            || self.in_flight > 0
            || self.removal.is_some()
            || self.has_background_work();
        if !busy && self.shared.registry.unload(self.subvolume.id()) {
            tracing::debug!(subvolume = self.subvolume.id(), "an idle volume leaves memory");
            runtime::stop(context);
        }
    }
}
