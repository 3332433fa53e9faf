//! The log ring on the device: where closed generations of all subvolumes are written in batches.
//!
//! One owner (the log writer) appends; commits move the tail. Invariants: a batch is written at the head only if it
//! does not reach the tail; the head moves only after the write returned; `acknowledge` is called only when everything
//! written before is flushed. A failed write or flush is final: nothing is acknowledged after it.

use crate::device::{AlignedBuffer, DeviceError};
use crate::format::log_batch::{self, BatchHead, Part, WRAP};
use crate::format::superblock::LogTail;
use crate::limits::{BLOCK, BLOCK_BYTES, LOG_BATCH_BYTES_MAX};
use crate::log::generation::{ClosedGeneration, LogProgress};
use crate::store::Store;
use crate::store::data_write::DataWrite;
use crate::types::LogTransid;
use parking_lot::Mutex;
use std::sync::Arc;
use thiserror::Error;

/// Smallest ring: room for some batches of the largest size would be nice, but small test stores have less.
pub const RING_BYTES_MIN: u64 = 256 * 1024;

/// The buffer that batches are put together in begins with this size and grows to the largest batch that comes.
const SCRATCH_BYTES_MIN: usize = 64 * 1024;

/// Why a batch was not written.
#[derive(Debug, Error)]
pub enum RingError {
    /// The ring has no room before its tail; a commit makes some.
    #[error("the log ring is full until the next commit")]
    Full,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Positions that the log writer and the committer share.
#[derive(Debug)]
pub struct RingPositions {
    ring_bytes: u64,
    /// (tail, head): replay starts at the tail, the next batch goes to the head.
    positions: Mutex<(LogTail, LogTail)>,
}

impl RingPositions {
    /// Both at the same place: an empty ring.
    pub fn new(ring_bytes: u64, at: LogTail) -> Self {
        Self { ring_bytes, positions: Mutex::new((at, at)) }
    }

    /// Where the next batch will go. Taken before a freeze starts, it is the tail that the commit may set: every batch
    /// before it holds only records that the commit covers.
    pub fn head(&self) -> LogTail {
        self.positions.lock().1
    }

    /// Where replay starts.
    pub fn tail(&self) -> LogTail {
        self.positions.lock().0
    }

    /// Replay has read up to here: the next batch goes there.
    pub fn set_head(&self, head: LogTail) {
        let mut positions = self.positions.lock();
        assert!(head.sequence >= positions.1.sequence, "the log's head must not move back");
        positions.1 = head;
    }

    /// A commit is durable whose superblock names this tail.
    pub fn move_tail(&self, tail: LogTail) {
        let mut positions = self.positions.lock();
        assert!(tail.sequence >= positions.0.sequence, "the log's tail must not move back");
        assert!(tail.sequence <= positions.1.sequence, "the log's tail must not pass its head");
        positions.0 = tail;
    }

    /// Bytes between tail and head.
    pub fn used(&self) -> u64 {
        let (tail, head) = *self.positions.lock();
        used_between(self.ring_bytes, &tail, &head)
    }

    /// Size of the ring in bytes.
    pub fn size(&self) -> u64 {
        self.ring_bytes
    }
}

fn used_between(ring_bytes: u64, tail: &LogTail, head: &LogTail) -> u64 {
    if head.sequence == tail.sequence {
        0
    } else if head.offset > tail.offset {
        head.offset - tail.offset
    } else {
        ring_bytes - tail.offset + head.offset
    }
}

/// The writing end of the ring.
pub struct LogRing {
    store: Arc<Store>,
    shared: Arc<RingPositions>,
    flushed_through: u64,
    /// Generations written but not yet flushed.
    unflushed: Vec<(Arc<LogProgress>, LogTransid)>,
    needs_flush: bool,
    scratch: AlignedBuffer,
}

/// What a batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchReport {
    /// Bytes written to the ring.
    pub ring_bytes: u64,
    /// Bytes of extents written.
    pub extent_bytes: u64,
    /// Is everything so far durable?
    pub flushed: bool,
}

impl LogRing {
    /// The writing end at the head of the store's ring.
    pub fn new(store: Arc<Store>) -> Self {
        let shared = Arc::clone(store.ring());
        let flushed_through = shared.head().sequence.saturating_sub(1);
        Self {
            store,
            shared,
            flushed_through,
            unflushed: Vec::new(),
            needs_flush: false,
            scratch: AlignedBuffer::zeroed(SCRATCH_BYTES_MIN),
        }
    }

    /// How many of these generations fit one batch (at least one).
    pub fn batch_size(&self, generations: &[ClosedGeneration]) -> usize {
        let mut lengths = Vec::new();
        for generation in generations {
            lengths.push(generation.bytes.len());
            if log_batch::batch_bytes(lengths.iter().copied()) > LOG_BATCH_BYTES_MAX {
                break;
            }
        }
        if log_batch::batch_bytes(lengths.iter().copied()) > LOG_BATCH_BYTES_MAX && lengths.len() > 1 {
            lengths.pop();
        }
        lengths.len()
    }

    /// Writes these generations as one batch, in their order; with `flush` everything written so far becomes durable
    /// and is told to its [`LogProgress`]. On [`RingError::Full`] nothing happened.
    pub fn write(&mut self, generations: &[ClosedGeneration], flush: bool) -> Result<BatchReport, RingError> {
        let mut report = BatchReport::default();
        let live: Vec<&ClosedGeneration> =
            generations.iter().filter(|generation| generation.records > 0).collect();
        let length = if live.is_empty() {
            0
        } else {
            log_batch::batch_bytes(live.iter().map(|generation| generation.bytes.len()))
        };
        if length > LOG_BATCH_BYTES_MAX {
            // Records that had to stay together are too many for a batch: a commit covers them instead.
            return Err(RingError::Full);
        }
        if length > 0 {
            self.make_room(length as u64)?;
            let extents: Vec<Arc<DataWrite>> =
                live.iter().flat_map(|generation| generation.extents.iter().cloned()).collect();
            if !extents.is_empty() {
                report.extent_bytes = DataWrite::write_all(&extents, &self.store.data_sink())?;
                // A durable write makes only itself durable; these need a flush (O_DSYNC and FUA do not cover them).
                self.needs_flush = true;
            }
            self.needs_flush |= live.iter().any(|generation| generation.needs_flush);
            self.append(&live, length, flush && !self.needs_flush)?;
            report.ring_bytes = length as u64;
            if !flush || self.needs_flush {
                self.needs_flush = true;
            }
            let told =
                live.iter().map(|generation| (Arc::clone(&generation.progress), generation.log_transid));
            self.unflushed.extend(told);
        }
        if flush {
            if self.needs_flush {
                self.store.device().flush()?;
            }
            self.acknowledge();
            report.flushed = true;
        }
        Ok(report)
    }

    fn acknowledge(&mut self) {
        self.needs_flush = false;
        self.flushed_through = self.shared.head().sequence - 1;
        for (progress, transid) in self.unflushed.drain(..) {
            progress.advance(transid);
        }
    }

    /// Makes sure that `length` bytes fit at the head, wrapping if they do not fit before the ring's end.
    fn make_room(&mut self, length: u64) -> Result<(), RingError> {
        let (tail, head) = *self.shared.positions.lock();
        let size = self.shared.ring_bytes;
        let free = size - used_between(size, &tail, &head);
        let to_end = size - head.offset;
        // One block stays free so that a full ring and an empty one differ.
        let needed = if length <= to_end { length } else { to_end + length };
        if needed + BLOCK_BYTES > free || length > size / 2 {
            return Err(RingError::Full);
        }
        if length > to_end {
            if to_end > 0 {
                self.write_wrap(head)?;
            } else {
                self.shared.positions.lock().1.offset = 0;
            }
        }
        Ok(())
    }

    fn write_wrap(&mut self, at: LogTail) -> Result<(), RingError> {
        let head = self.batch_head(&at, WRAP, 0);
        let mut block = AlignedBuffer::zeroed(BLOCK);
        let chain = log_batch::encode(&head, std::iter::empty(), &mut block);
        self.store.device().write(self.store.identity().ring_offset + at.offset, &block)?;
        self.needs_flush = true;
        self.shared.positions.lock().1 = LogTail { sequence: at.sequence + 1, offset: 0, chain };
        Ok(())
    }

    fn batch_head(&self, at: &LogTail, flags: u32, parts: u32) -> BatchHead {
        BatchHead {
            sequence: at.sequence,
            epoch: self.store.identity().epoch,
            flushed_through: self.flushed_through,
            chain: at.chain,
            flags,
            parts,
            device_id: self.store.identity().device_id,
        }
    }

    fn append(&mut self, live: &[&ClosedGeneration], length: usize, durable: bool) -> Result<(), RingError> {
        let at = self.shared.head();
        let head = self.batch_head(&at, 0, live.len() as u32);
        let parts = live.iter().map(|generation| Part {
            subvolume: generation.subvolume,
            log_transid: generation.log_transid,
            records: generation.records,
            bytes: &generation.bytes,
        });
        if self.scratch.len() < length {
            self.scratch = AlignedBuffer::zeroed(length.next_power_of_two());
        }
        let batch = &mut self.scratch[..length];
        let chain = log_batch::encode(&head, parts, batch);
        let address = self.store.identity().ring_offset + at.offset;
        if durable {
            self.store.device().write_durable(address, batch)?;
        } else {
            self.store.device().write(address, batch)?;
        }
        let mut offset = at.offset + length as u64;
        if offset == self.shared.ring_bytes {
            offset = 0;
        }
        self.shared.positions.lock().1 = LogTail { sequence: at.sequence + 1, offset, chain };
        Ok(())
    }
}
