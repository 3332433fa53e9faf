//! Batches of transfers over a few threads doing `pread` and `pwrite`: for systems without io_uring.
//!
//! Invariant that the one `unsafe` rests on: [`ThreadEngine::run`] returns only when every job of its batch has been
//! run and dropped, so the borrowed memory outlives its use by the workers.

use super::engine::Failure;
use super::transfer::Transfer;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Worker threads of a device.
const WORKERS: usize = 8;

pub(super) struct ThreadEngine {
    queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
}

struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// One transfer of a batch, its lifetime erased.
struct Job {
    transfer: &'static mut Transfer<'static>,
    batch: Arc<Batch>,
}

/// Counts a batch down.
struct Batch {
    state: Mutex<BatchState>,
    finished: Condvar,
}

struct BatchState {
    remaining: usize,
    failure: Option<Failure>,
}

impl ThreadEngine {
    pub(super) fn new(file: &Arc<File>) -> Self {
        let state = Mutex::new(QueueState { jobs: VecDeque::new(), closed: false });
        let queue = Arc::new(Queue { state, changed: Condvar::new() });
        let workers = (0..WORKERS)
            .filter_map(|number| {
                let (queue, file) = (Arc::clone(&queue), Arc::clone(file));
                // A system short of threads gets fewer workers; with none the caller does the work itself.
                std::thread::Builder::new()
                    .name(format!("device-{number}"))
                    .spawn(move || work(&queue, &file))
                    .inspect_err(|error| tracing::warn!(%error, "cannot start a device thread"))
                    .ok()
            })
            .collect();
        Self { queue, workers }
    }

    /// Runs all transfers to their end; the first failure is returned after the last one has ended.
    pub(super) fn run(&self, file: &File, transfers: &mut [Transfer<'_>]) -> Result<(), Failure> {
        if self.workers.is_empty() {
            return transfers
                .iter_mut()
                .try_for_each(|one| one.run(file).map_err(|error| Failure::of(one, error)));
        }
        let state = Mutex::new(BatchState { remaining: transfers.len(), failure: None });
        let batch = Arc::new(Batch { state, finished: Condvar::new() });
        {
            let mut queue = self.queue.state.lock();
            for transfer in transfers.iter_mut() {
                // SAFETY: this function does not return before `remaining` is 0, and a worker lowers it only after
                // its last use of the transfer (or while unwinding, when it has lost it). Nothing between here and
                // the wait below can panic or return.
                let transfer = unsafe {
                    std::mem::transmute::<&mut Transfer<'_>, &'static mut Transfer<'static>>(transfer)
                };
                queue.jobs.push_back(Job { transfer, batch: Arc::clone(&batch) });
            }
        }
        self.queue.changed.notify_all();
        let mut state = batch.state.lock();
        while state.remaining > 0 {
            batch.finished.wait(&mut state);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so; there is nothing to save here.
            let _ = worker.join();
        }
    }
}

fn work(queue: &Queue, file: &File) {
    loop {
        let job = {
            let mut state = queue.state.lock();
            loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                if state.closed {
                    return;
                }
                queue.changed.wait(&mut state);
            }
        };
        let Job { transfer, batch } = job;
        let mut countdown = Countdown { batch, failure: None };
        countdown.failure = transfer.run(file).err().map(|error| Failure::of(transfer, error));
    }
}

/// Tells the batch on every way out, also while unwinding: its caller would wait for ever otherwise.
struct Countdown {
    batch: Arc<Batch>,
    failure: Option<Failure>,
}

impl Drop for Countdown {
    fn drop(&mut self) {
        let mut state = self.batch.state.lock();
        state.remaining -= 1;
        if std::thread::panicking() && state.failure.is_none() {
            let error = std::io::Error::other("a device thread panicked");
            state.failure = Some(Failure { operation: super::Operation::Write, offset: 0, length: 0, error });
        }
        if let Some(failure) = self.failure.take() {
            state.failure.get_or_insert(failure);
        }
        if state.remaining == 0 {
            self.batch.finished.notify_all();
        }
    }
}
