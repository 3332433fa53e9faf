//! The log writer: one thread that writes the closed generations of all subvolumes to the ring, in shared batches.
//!
//! Group commit without a timer: while one batch is on its way to the device, the next one gathers. Invariants:
//! - generations of one subvolume are written in the order they were handed over; between subvolumes a batch takes one
//!   generation from each in turn, so a tenant with much to write delays nobody by more than its share of a batch;
//! - a generation that refers to extents is taken only when these are on the device; other threads write them, so one
//!   tenant's data never makes another tenant's fsync long (S5);
//! - a waiter is told only after everything handed over before it is durable, by flush or by a commit;
//! - a device error is final: the store fails, every waiter is told so.

use crate::metrics::{Fallback, count};
use crate::runtime::{self, Mailbox};
use crate::server::Shared;
use crate::transaction_manager::CommitReason;
use crate::waiter::Waiter;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use subvol_storage::format::log_batch::batch_bytes;
use subvol_storage::limits::{BLOCK, LOG_BATCH_BYTES_MAX};
use subvol_storage::log::generation::{ClosedGeneration, LogProgress};
use subvol_storage::log::ring::{LogRing, RingError};
use subvol_storage::store::data_write::DataWrite;
use subvol_storage::types::{LogTransid, SubvolumeId};

/// While the ring is full: how long to wait for a commit before looking again.
const FULL_RING_PAUSE: Duration = Duration::from_millis(100);

/// What subvolumes hand over and the thread takes.
#[derive(Default)]
pub struct LogQueue {
    state: Mutex<State>,
    wake: Condvar,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct State {
    queues: FxHashMap<SubvolumeId, Queue>,
    /// Subvolumes whose fsync waits, in turn. A number whose queue is gone is skipped.
    urgent: VecDeque<SubvolumeId>,
    /// Subvolumes with something to write, in turn.
    turn: VecDeque<SubvolumeId>,
    closed: bool,
    /// A commit ended since the thread looked last.
    committed: bool,
    /// Extents could not be written: nothing is worth waiting for any more.
    failed: bool,
}

#[derive(Default)]
struct Queue {
    generations: VecDeque<ClosedGeneration>,
    waiters: Vec<Waiting>,
}

struct Waiting {
    ticket: LogTransid,
    progress: Arc<LogProgress>,
    waiter: Waiter,
}

/// What the thread does next.
struct Batch {
    generations: Vec<ClosedGeneration>,
    waiting: Vec<Waiting>,
}

impl LogQueue {
    /// Hands generations over, in order, with whoever waits for `ticket`.
    pub fn submit(
        &self,
        subvolume: SubvolumeId,
        generations: Vec<ClosedGeneration>,
        waiter: Option<(LogTransid, Arc<LogProgress>, Waiter)>,
    ) {
        let bytes: usize = generations.iter().map(|generation| generation.bytes.len()).sum();
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let State { queues, urgent, turn, .. } = &mut *state;
        let queue = queues.entry(subvolume).or_default();
        if waiter.is_some() && queue.waiters.is_empty() {
            urgent.push_back(subvolume);
        } else if queue.generations.is_empty() && queue.waiters.is_empty() {
            turn.push_back(subvolume);
        }
        queue.generations.extend(generations);
        let waiting = waiter.map(|(ticket, progress, waiter)| Waiting { ticket, progress, waiter });
        queue.waiters.extend(waiting);
        drop(state);
        self.wake.notify_one();
    }

    /// Hands over generations as [`Self::submit`] does, and has the extents that they refer to written by threads that write
    /// for fsyncs only. They are taken into a batch once these are on the device.
    pub fn submit_with_extents(
        shared: &Arc<Shared>,
        subvolume: SubvolumeId,
        generations: Vec<ClosedGeneration>,
        waiter: Option<(LogTransid, Arc<LogProgress>, Waiter)>,
    ) {
        let extents: Vec<Arc<DataWrite>> = generations
            .iter()
            .flat_map(|generation| &generation.extents)
            .filter(|extent| !extent.is_written())
            .cloned()
            .collect();
        shared.log.submit(subvolume, generations, waiter);
        if extents.is_empty() {
            return;
        }
        let on_thread = Arc::clone(shared);
        shared.fsync_writers.run(move || {
            let written = DataWrite::write_all(&extents, &on_thread.store.data_sink());
            if let Err(error) = &written {
                on_thread.store.fail(error);
            }
            on_thread.log.extents_written(written.is_err());
        });
    }

    /// Extents that a generation refers to are on the device, or never will be.
    fn extents_written(&self, failed: bool) {
        self.state.lock().failed |= failed;
        self.wake.notify_one();
    }

    /// Bytes that wait for the ring.
    pub fn waiting_bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// A commit ended: the ring may have room, and waiters may be served.
    pub fn committed(&self) {
        self.state.lock().committed = true;
        self.wake.notify_one();
    }

    /// Ends the thread once everything is written.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_one();
    }

    /// Waits for work, and takes at most `most` bytes of batch; `None` at the end.
    fn next(&self, most: usize) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            if state.urgent.is_empty() && state.turn.is_empty() {
                if state.closed {
                    return None;
                }
            } else {
                let batch = gather(&mut state, most);
                if !batch.generations.is_empty() || !batch.waiting.is_empty() {
                    return Some(batch);
                }
                if state.urgent.is_empty() && state.turn.is_empty() {
                    continue;
                }
                // Everything there waits for its extents.
            }
            self.wake.wait(&mut state);
        }
    }
}

/// One generation of each subvolume in turn, as long as they fit, and the waiters that these satisfy. Those whose fsync
/// waits come first, and then only one more generation of the others goes along: records that nobody waits for must not
/// make an fsync long (S5), nor may fsyncs keep them waiting for ever. Subvolumes whose next generation waits for its
/// extents keep their place.
fn gather(state: &mut State, most: usize) -> Batch {
    let mut held = Held::default();
    let batch = gather_ready(state, most, &mut held);
    held.urgent.into_iter().rev().for_each(|id| state.urgent.push_front(id));
    held.turn.into_iter().rev().for_each(|id| state.turn.push_front(id));
    batch
}

/// Subvolumes that were passed over.
#[derive(Default)]
struct Held {
    urgent: Vec<SubvolumeId>,
    turn: Vec<SubvolumeId>,
}

/// May this generation be written: are its extents on the device, or does it not matter any more?
fn is_ready(generation: &ClosedGeneration) -> bool {
    generation.extents.iter().all(|extent| extent.is_written())
        || generation.progress.committed() >= generation.log_transid
}

fn gather_ready(state: &mut State, most: usize, held: &mut Held) -> Batch {
    let mut batch = Batch { generations: Vec::new(), waiting: Vec::new() };
    loop {
        let (id, is_urgent) = match (state.urgent.pop_front(), state.turn.front()) {
            (Some(id), _) => (id, true),
            (None, Some(&id)) => {
                state.turn.pop_front();
                (id, false)
            }
            (None, None) => return batch,
        };
        let Some(queue) = state.queues.get_mut(&id) else { continue };
        if !state.failed && queue.generations.front().is_some_and(|next| !is_ready(next)) {
            if is_urgent { &mut held.urgent } else { &mut held.turn }.push(id);
            continue;
        }
        if let Some(next) = queue.generations.pop_front() {
            let waiting = batch.generations.iter().chain([&next]);
            let bytes = batch_bytes(waiting.map(|generation| generation.bytes.len()));
            if !batch.generations.is_empty() && bytes > most {
                queue.generations.push_front(next);
                let line = if is_urgent { &mut state.urgent } else { &mut state.turn };
                line.push_front(id);
                return batch;
            }
            batch.generations.push(next);
        }
        if queue.generations.is_empty() {
            batch.waiting.append(&mut queue.waiters);
            state.queues.remove(&id);
        } else {
            let line = if is_urgent { &mut state.urgent } else { &mut state.turn };
            line.push_back(id);
        }
        if !is_urgent && !batch.waiting.is_empty() {
            return batch;
        }
    }
}

/// The thread.
pub fn run(shared: &Arc<Shared>) {
    runtime::favour_this_thread();
    let mut ring = LogRing::new(Arc::clone(&shared.store));
    let queue = &shared.log;
    // A small ring takes no batch of the largest size, but what it consists of one by one.
    let half = usize::try_from(shared.store.ring().size() / 2).unwrap_or(usize::MAX);
    let most = LOG_BATCH_BYTES_MAX.min(half.saturating_sub(BLOCK));
    while let Some(batch) = queue.next(most) {
        let bytes: usize = batch.generations.iter().map(|generation| generation.bytes.len()).sum();
        let written = write(shared, &mut ring, batch);
        queue.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if !written {
            break;
        }
    }
    // After a failure: whoever still comes is told so.
    let mut state = queue.state.lock();
    state.closed = true;
    queue.bytes.store(0, Ordering::Release);
    state.queues.clear();
    state.urgent.clear();
    state.turn.clear();
}

/// Writes a batch and tells its waiters. Returns whether the log goes on.
fn write(shared: &Arc<Shared>, ring: &mut LogRing, mut batch: Batch) -> bool {
    let mut waited = false;
    loop {
        // A commit may have covered them meanwhile.
        batch.generations.retain(|generation| generation.progress.committed() < generation.log_transid);
        tell_durable(shared, &mut batch.waiting);
        if batch.generations.is_empty() && batch.waiting.is_empty() {
            return true;
        }
        if let Some(reason) = shared.store.failure() {
            tracing::error!(%reason, "the log is not written any more");
            return false;
        }
        let flush = !batch.waiting.is_empty();
        match ring.write(&batch.generations, flush) {
            Ok(report) => {
                let log = &shared.counters.log;
                count(&log.batches);
                log.generations.fetch_add(batch.generations.len() as u64, Ordering::Relaxed);
                log.bytes.fetch_add(report.ring_bytes, Ordering::Relaxed);
                if flush {
                    count(&log.flushes);
                }
                tell_durable(shared, &mut batch.waiting);
                assert!(
                    batch.waiting.is_empty(),
                    "a flush did not satisfy an fsync that was handed over before it"
                );
                let used = shared.store.ring();
                if used.used() > used.size() / 2 {
                    shared.request_commit(CommitReason::RingHalfFull);
                }
                return true;
            }
            Err(RingError::Full) => {
                if !waited {
                    waited = true;
                    shared.counters.fell_back(Fallback::RingFull);
                    tracing::warn!("the log ring is full; fsyncs wait for a commit");
                }
                shared.request_commit(CommitReason::RingFull);
                let mut state = shared.log.state.lock();
                if state.closed && shared.transactions.get().is_none_or(Mailbox::is_closed) {
                    tracing::warn!("the log ring is full and nobody commits any more");
                    return false;
                }
                if !state.committed {
                    shared.log.wake.wait_for(&mut state, FULL_RING_PAUSE);
                }
                state.committed = false;
            }
            Err(RingError::Device(error)) => {
                shared.store.fail(&error);
                return false;
            }
        }
    }
}

fn tell_durable(shared: &Shared, waiting: &mut Vec<Waiting>) {
    let durable = shared.store.durable();
    for told in waiting.extract_if(.., |waiting| waiting.progress.committed() >= waiting.ticket) {
        count(&shared.counters.log.waiters);
        told.waiter.tell(Ok(durable));
    }
}
