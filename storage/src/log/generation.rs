//! The log of one subvolume in memory: which records wait, in which generation, and what is durable.
//!
//! See [`crate::log`] for the states and invariants.

use crate::limits::LOG_BACKLOG_BYTES;
use crate::store::data_write::DataWrite;
use crate::types::{LogTransid, ServerEpoch, SubvolumeId, TransactionId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What sessions read without asking the subvolume's owner (the lockless committed check).
#[derive(Debug)]
pub struct LogProgress {
    /// Server epoch of the numbers below.
    pub epoch: ServerEpoch,
    committed: AtomicU64,
    newest: AtomicU64,
}

impl LogProgress {
    /// The newest durable generation.
    pub fn committed(&self) -> LogTransid {
        self.committed.load(Ordering::Acquire)
    }

    /// The newest generation that holds a record.
    pub fn newest(&self) -> LogTransid {
        self.newest.load(Ordering::Acquire)
    }

    /// Is every operation of the subvolume that was acknowledged before this call durable (promise S2), and the change
    /// made in `last_change` too?
    pub fn is_durable(&self, last_change: LogTransid) -> bool {
        let committed = self.committed();
        last_change <= committed && self.newest() <= committed
    }

    /// Generation `transid` and all before it became durable.
    pub fn advance(&self, transid: LogTransid) {
        self.committed.fetch_max(transid, Ordering::AcqRel);
    }
}

/// A generation on its way to the ring.
#[derive(Debug)]
pub struct ClosedGeneration {
    /// Whose.
    pub subvolume: SubvolumeId,
    /// Its number.
    pub log_transid: LogTransid,
    /// Its records.
    pub bytes: Vec<u8>,
    /// How many.
    pub records: u32,
    /// Extents the records refer to.
    pub extents: Vec<Arc<DataWrite>>,
    /// The records refer to extents that are written but perhaps not flushed.
    pub needs_flush: bool,
    /// Where its durability is told.
    pub progress: Arc<LogProgress>,
}

#[derive(Debug, Default)]
struct Segment {
    log_transid: LogTransid,
    bytes: Vec<u8>,
    records: u32,
    extents: Vec<Arc<DataWrite>>,
    needs_flush: bool,
}

/// Keeps the open generation from closing; see [`SubvolumeLog::pin`]. Dropping it releases, on every path.
#[derive(Debug)]
#[must_use = "a pin that is dropped at once pins nothing"]
pub struct LogPin(Arc<AtomicU32>);

impl Drop for LogPin {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a log pin was released twice");
    }
}

/// The log of one subvolume.
#[derive(Debug)]
pub struct SubvolumeLog {
    subvolume: SubvolumeId,
    next_sequence: u64,
    /// Generations kept by a freeze, oldest first; then the open one.
    segments: VecDeque<Segment>,
    pins: Arc<AtomicU32>,
    frozen: Option<(TransactionId, LogTransid)>,
    handed_over: LogTransid,
    progress: Arc<LogProgress>,
    pending_bytes: usize,
}

/// The generation cannot close now: a pin is held. Try again when it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned;

impl SubvolumeLog {
    /// The log of a subvolume whose tree covers `covered_sequence`. `first` is 1, or where its log ended when it was
    /// closed before in this epoch.
    pub fn new(subvolume: SubvolumeId, epoch: ServerEpoch, covered_sequence: u64, first: LogTransid) -> Self {
        assert!(first > 0, "generations count from 1; 0 means none");
        let open = Segment { log_transid: first, ..Segment::default() };
        Self {
            subvolume,
            next_sequence: covered_sequence + 1,
            segments: VecDeque::from([open]),
            pins: Arc::new(AtomicU32::new(0)),
            frozen: None,
            handed_over: first - 1,
            progress: Arc::new(LogProgress {
                epoch,
                committed: AtomicU64::new(first - 1),
                newest: AtomicU64::new(first - 1),
            }),
            pending_bytes: 0,
        }
    }

    /// What sessions may read.
    pub fn progress(&self) -> &Arc<LogProgress> {
        &self.progress
    }

    /// Number of the open generation (`log_transid`).
    pub fn open_transid(&self) -> LogTransid {
        self.open().log_transid
    }

    /// Number of the newest record.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Bytes of records that are not in the ring.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Keeps the open generation from closing until the pin is dropped. Take it right before the first record, after
    /// everything slow: until it is released, every fsync of the subvolume waits.
    pub fn pin(&self) -> LogPin {
        self.pins.fetch_add(1, Ordering::AcqRel);
        LogPin(Arc::clone(&self.pins))
    }

    /// Is a pin held?
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Appends one record, written by `write` for the sequence number it is given.
    pub fn append(&mut self, write: impl FnOnce(&mut Vec<u8>, u64)) -> LogTransid {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        // A generation must fit a batch; what must stay together holds a pin.
        if self.open().bytes.len() >= LOG_BACKLOG_BYTES && !self.is_pinned() {
            let next = self.open().log_transid + 1;
            self.segments.push_back(Segment { log_transid: next, ..Segment::default() });
        }
        let open = self.segments.back_mut().expect("the open generation exists");
        let before = open.bytes.len();
        write(&mut open.bytes, sequence);
        assert!(open.bytes.len() > before, "a record has bytes");
        open.records += 1;
        self.pending_bytes += open.bytes.len() - before;
        let transid = open.log_transid;
        self.progress.newest.store(transid, Ordering::Release);
        transid
    }

    /// An extent that the record just appended refers to.
    pub fn attach_extent(&mut self, extent: Arc<DataWrite>) {
        self.segments.back_mut().expect("the open generation exists").extents.push(extent);
    }

    /// The record just appended refers to an extent that is written but perhaps not flushed.
    pub fn attach_flush(&mut self) {
        self.segments.back_mut().expect("the open generation exists").needs_flush = true;
    }

    /// Replay continues the numbering where the log ended.
    pub fn resume_after(&mut self, sequence: u64) {
        assert!(sequence >= self.last_sequence(), "record numbers must not go back");
        self.next_sequence = sequence + 1;
    }

    /// Closes everything that waits. Returns the generation whose durability means that all operations so far are
    /// durable, and the parts to hand to the log writer in this order (none, if all is handed over already: then the
    /// caller still needs a flush unless `committed` has reached the ticket).
    pub fn close(&mut self) -> Result<(LogTransid, Vec<ClosedGeneration>), Pinned> {
        if self.is_pinned() {
            return Err(Pinned);
        }
        let mut closed = Vec::new();
        if self.open().records > 0 {
            let next = self.open().log_transid + 1;
            self.segments.push_back(Segment { log_transid: next, ..Segment::default() });
        }
        while self.segments.len() > 1 {
            let segment = self.segments.pop_front().expect("more than one");
            assert_eq!(segment.log_transid, self.next_to_hand_over(&segment), "generations close in order");
            self.handed_over = segment.log_transid;
            closed.push(ClosedGeneration {
                subvolume: self.subvolume,
                log_transid: segment.log_transid,
                bytes: segment.bytes,
                records: segment.records,
                extents: segment.extents,
                needs_flush: segment.needs_flush,
                progress: Arc::clone(&self.progress),
            });
        }
        self.pending_bytes = 0;
        Ok((self.progress.newest(), closed))
    }

    fn next_to_hand_over(&self, segment: &Segment) -> LogTransid {
        // Generations that a commit covered were dropped without being handed over, so numbers may skip forward.
        assert!(segment.log_transid > self.handed_over, "a generation is handed over once");
        segment.log_transid
    }

    /// Transaction `transid` takes the tree: records so far are covered by it once it is durable. They stay until
    /// then, in a generation of their own.
    pub fn freeze(&mut self, transid: TransactionId) -> Result<u64, Pinned> {
        if self.is_pinned() {
            return Err(Pinned);
        }
        assert!(self.frozen.is_none(), "the commit before is not finished");
        let covers = self.open().log_transid;
        self.frozen = Some((transid, covers));
        // Always a new number, also when no record waits: a ticket of this generation is covered, a later one is not.
        if self.open().records > 0 {
            self.segments.push_back(Segment { log_transid: covers + 1, ..Segment::default() });
        } else {
            self.segments.back_mut().expect("the open generation exists").log_transid = covers + 1;
        }
        Ok(self.last_sequence())
    }

    /// Transaction `transid` is durable: what it covers needs no log any more.
    pub fn commit_durable(&mut self, transid: TransactionId) {
        let Some((frozen, covers)) = self.frozen.take() else { return };
        assert_eq!(frozen, transid, "commits finish in order");
        while self.segments.len() > 1 && self.segments[0].log_transid <= covers {
            let dropped = self.segments.pop_front().expect("more than one");
            self.pending_bytes -= dropped.bytes.len();
        }
        self.progress.advance(covers);
    }

    fn open(&self) -> &Segment {
        self.segments.back().expect("the open generation exists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> SubvolumeLog {
        SubvolumeLog::new(256, 1, 10, 1)
    }

    fn record(log: &mut SubvolumeLog) -> LogTransid {
        log.append(|out, sequence| out.extend_from_slice(&sequence.to_le_bytes()))
    }

    #[test]
    fn generations_close_in_order_and_numbers_start_at_one() {
        let mut log = log();
        assert_eq!(record(&mut log), 1);
        let (ticket, parts) = log.close().expect("not pinned");
        assert_eq!((ticket, parts.len(), parts[0].log_transid, parts[0].records), (1, 1, 1, 1));
        assert_eq!(parts[0].bytes, 11u64.to_le_bytes());
        assert_eq!(record(&mut log), 2);
        assert!(!log.progress().is_durable(1));
        log.progress().advance(1);
        // S2: the change of generation 1 is durable, but a later operation of the subvolume is not.
        assert!(!log.progress().is_durable(1));
        log.progress().advance(2);
        assert!(log.progress().is_durable(2));
        let (ticket, parts) = log.close().expect("not pinned");
        assert_eq!((ticket, parts.len()), (2, 1));
        let (ticket, parts) = log.close().expect("not pinned");
        assert_eq!((ticket, parts.len()), (2, 0));
    }

    #[test]
    fn a_pin_keeps_the_generation_open_and_dropping_it_releases() {
        let mut log = log();
        record(&mut log);
        let pin = log.pin();
        assert_eq!(log.close().map(|_| ()), Err(Pinned));
        assert_eq!(log.freeze(5), Err(Pinned));
        drop(pin);
        assert!(log.close().is_ok());
    }

    #[test]
    fn records_stay_until_the_commit_that_covers_them_is_durable() {
        let mut log = log();
        record(&mut log);
        assert_eq!(log.freeze(5), Ok(11));
        assert_eq!(record(&mut log), 2);
        // An fsync while commit 5 is in flight must carry the records that commit 5 covers too.
        let (ticket, parts) = log.close().expect("not pinned");
        assert_eq!(ticket, 2);
        assert_eq!(parts.iter().map(|part| part.log_transid).collect::<Vec<_>>(), [1, 2]);
        log.commit_durable(5);
        assert_eq!(log.progress().committed(), 1);
    }

    #[test]
    fn covered_records_are_dropped_and_their_tickets_become_durable() {
        let mut log = log();
        record(&mut log);
        log.freeze(5).expect("not pinned");
        log.commit_durable(5);
        assert_eq!(log.pending_bytes(), 0);
        assert!(log.progress().is_durable(1));
        assert_eq!(record(&mut log), 2);
        let (ticket, parts) = log.close().expect("not pinned");
        assert_eq!((ticket, parts.len(), parts[0].log_transid), (2, 1, 2));
        assert_eq!(parts[0].bytes, 12u64.to_le_bytes());
    }
}
