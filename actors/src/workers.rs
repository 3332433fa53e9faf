//! Threads for what blocks: device reads of operations, background writes of file data, the catalog.
//!
//! Invariants: an event loop never waits for a device; jobs of one pool start in the order they were given; the number of
//! jobs is bounded by the permits of the operations behind them.

use crate::runtime;
use crate::server::StartError;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads and a queue.
pub struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Workers {
    /// Starts `count` threads.
    pub fn start(name: &str, count: usize) -> Result<Self, StartError> {
        let queue = Arc::new(Queue::default());
        let threads = (0..count)
            .map(|index| {
                let queue = Arc::clone(&queue);
                runtime::thread(&format!("{name}-{index}"), move || queue.work())
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { queue, threads })
    }

    /// Runs a job on one of the threads.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.queue.state.lock().jobs.push_back(Box::new(job));
        self.queue.wake.notify_one();
    }

    /// Runs a job on one of the threads and waits for it without blocking. `None` if the server is stopping.
    pub async fn ask<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.run(move || {
            let _ = answer.send(job());
        });
        answered.await.ok()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.wake.notify_all();
        for thread in self.threads.drain(..) {
            // The last owner may be a job of this pool; a thread cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Queue {
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                if state.closed {
                    return;
                }
                self.wake.wait(&mut state);
            };
            drop(state);
            job();
        }
    }
}
