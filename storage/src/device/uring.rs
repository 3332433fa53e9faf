//! Batches of transfers over io_uring.
//!
//! The engine owns nothing past a call: `run` returns only when every request it submitted has completed, because
//! the kernel writes into memory that belongs to the caller. If the kernel refuses to go on while requests are in
//! flight, there is no safe way out and the process aborts.
//!
//! A small pool of rings, each behind a mutex: several threads (log writer, commit, block fetches) do batches at once,
//! and a batch keeps its ring to itself.

use super::engine::Failure;
use super::transfer::{Memory, Step, Transfer};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests in flight per ring.
const QUEUE_DEPTH: u32 = 64;
/// Batches that may run at once.
const RINGS: usize = 4;

pub(super) struct UringEngine {
    rings: Vec<Mutex<IoUring>>,
    next: AtomicUsize,
}

impl UringEngine {
    /// Fails where io_uring is missing, forbidden, or too old for plain reads and writes (5.6).
    pub(super) fn new() -> io::Result<Self> {
        let rings =
            (0..RINGS).map(|_| IoUring::new(QUEUE_DEPTH).map(Mutex::new)).collect::<io::Result<Vec<_>>>()?;
        let mut probe = Probe::new();
        rings[0].lock().submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { rings, next: AtomicUsize::new(0) })
    }

    /// Runs all transfers to their end; the first failure is returned after the last completion.
    pub(super) fn run(&self, file: &File, transfers: &mut [Transfer<'_>]) -> Result<(), Failure> {
        let mut ring = self.ring();
        let guard = AbortOnUnwind;
        let result = Batch { ring: &mut ring, file, transfers, in_flight: 0, failure: None }.run();
        std::mem::forget(guard);
        result
    }

    fn ring(&self) -> MutexGuard<'_, IoUring> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (0..RINGS)
            .find_map(|index| self.rings[(first + index) % RINGS].try_lock())
            .unwrap_or_else(|| self.rings[first % RINGS].lock())
    }
}

/// A panic between a submission and its completion would free memory that the kernel still writes to.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

struct Batch<'b, 'm> {
    ring: &'b mut IoUring,
    file: &'b File,
    transfers: &'b mut [Transfer<'m>],
    in_flight: u32,
    failure: Option<Failure>,
}

impl Batch<'_, '_> {
    fn run(mut self) -> Result<(), Failure> {
        let mut next = 0;
        let mut again: Vec<usize> = Vec::new();
        loop {
            // After a failure nothing new is started; what is in flight is waited for.
            while self.failure.is_none() && self.in_flight < QUEUE_DEPTH {
                let index = match again.pop() {
                    Some(index) => index,
                    None if next < self.transfers.len() => {
                        next += 1;
                        next - 1
                    }
                    None => break,
                };
                if self.transfers[index].length() > 0 {
                    self.push(index);
                }
            }
            if self.in_flight == 0 {
                return self.failure.map_or(Ok(()), Err);
            }
            self.submit();
            self.reap(&mut again);
        }
    }

    fn push(&mut self, index: usize) {
        let entry = self.entry(index);
        // SAFETY: the memory of the entry belongs to `transfers[index]`, which is borrowed until `run` returns, and
        // `run` returns only when nothing is in flight. The file is borrowed as long.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "at most {QUEUE_DEPTH} requests are in flight, so the queue has room");
        self.in_flight += 1;
    }

    fn entry(&mut self, index: usize) -> squeue::Entry {
        let descriptor = types::Fd(self.file.as_raw_fd());
        let transfer = &mut self.transfers[index];
        let position = transfer.position();
        // The kernel takes 32-bit lengths; what is longer comes back short and goes on.
        let limit = |length: usize| length.min(1 << 30) as u32;
        let entry = match transfer.rest() {
            Memory::Read(buffer) => opcode::Read::new(descriptor, buffer.as_mut_ptr(), limit(buffer.len()))
                .offset(position)
                .build(),
            Memory::Write(data) => {
                opcode::Write::new(descriptor, data.as_ptr(), limit(data.len())).offset(position).build()
            }
        };
        entry.user_data(index as u64)
    }

    fn submit(&mut self) {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            // Interrupted, out of memory for the moment, or completions must be taken first: reap, then try again.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
                ) =>
            {
                std::thread::yield_now();
            }
            Err(error) => {
                tracing::error!(%error, "io_uring stopped working with requests in flight");
                std::process::abort();
            }
        }
    }

    fn reap(&mut self, again: &mut Vec<usize>) {
        for completion in self.ring.completion() {
            self.in_flight -= 1;
            let index = completion.user_data() as usize;
            let outcome = match completion.result() {
                negative if negative < 0 => Err(io::Error::from_raw_os_error(-negative)),
                bytes => Ok(bytes as usize),
            };
            match self.transfers[index].advance(outcome) {
                Step::Finished => {}
                Step::Again => again.push(index),
                Step::Failed(error) => {
                    let failure = Failure::of(&self.transfers[index], error);
                    self.failure.get_or_insert(failure);
                }
            }
        }
    }
}
