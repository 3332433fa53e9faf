//! Numbers for the status report: counters that only grow, and per-volume gauges that their owner publishes.
//!
//! Nobody asks an actor for its numbers: a status report must not wait behind a busy tenant, nor make it busier.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counters of the whole server since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Fsyncs answered by a session alone.
    pub fsync_fast: AtomicU64,
    /// Fsyncs that went to the subvolume's actor.
    pub fsync_message: AtomicU64,
    /// Messages from sessions to subvolumes.
    pub messages: AtomicU64,
    /// Requests in them.
    pub requests: AtomicU64,
    /// Open connections.
    pub sessions: AtomicU64,
    /// Dirty file data of all subvolumes, in bytes.
    pub dirty_bytes: AtomicU64,
    /// File data turned into extents since the last commit, in bytes.
    pub written_back: AtomicU64,
    /// What the log writer did.
    pub log: LogCounters,
    /// How often an fsync had to wait for a commit, by [`Fallback`].
    pub fallbacks: [AtomicU64; Fallback::ALL.len()],
}

/// Counters of the log writer.
#[derive(Debug, Default)]
pub struct LogCounters {
    /// Batches written.
    pub batches: AtomicU64,
    /// Generations in them.
    pub generations: AtomicU64,
    /// Bytes in them.
    pub bytes: AtomicU64,
    /// Device flushes (or durable writes).
    pub flushes: AtomicU64,
    /// Fsyncs that these flushes answered.
    pub waiters: AtomicU64,
}

/// Why an fsync waited for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The log ring had no room before its tail.
    RingFull,
    /// A forced commit had to free space before the operation could run.
    NoSpace,
}

impl Fallback {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::RingFull, Self::NoSpace];

    /// For the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "the log ring was full",
            Self::NoSpace => "space had to be freed by a commit",
        }
    }
}

impl Counters {
    /// Counts a fallback.
    pub fn fell_back(&self, reason: Fallback) {
        self.fallbacks[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Numbers of one volume, written by its actor after each batch of messages, read by status reports.
#[derive(Debug, Default)]
pub struct VolumeGauge {
    /// The transaction that its changes belong to; 0 while it has none that is not committed.
    pub transid: AtomicU64,
    /// The open generation of its log.
    pub log_transid: AtomicU64,
    /// Bytes of records not in the ring.
    pub log_backlog: AtomicU64,
    /// Dirty file data.
    pub dirty_bytes: AtomicU64,
    /// Blocks freed but not reusable.
    pub pinned_blocks: AtomicU64,
    /// Inodes that wait to be freed.
    pub orphans: AtomicU64,
    /// Operations executed.
    pub operations: AtomicU64,
    /// Connections attached.
    pub attached: AtomicU32,
}
