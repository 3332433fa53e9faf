//! Replay: from the last durable commit to the last durable fsync.
//!
//! # Steps
//! 1. **Follow the chain** from the superblock's tail: each batch must have the expected sequence number, its
//!    predecessor's checksum, this store's identity and an epoch not newer than the superblock's. The first that has not
//!    ends the log; that is no error, since a torn batch was never acknowledged.
//! 2. **Verify extents** of batches that may not have been flushed (later than the newest `flushed_through`): a batch whose
//!    extents are torn was never acknowledged either, and ends the log.
//! 3. **Claim** the blocks of all logged extents, before anything is allocated.
//! 4. **Apply** records in order, each subvolume from its own `covered_sequence` on. A record that cannot be applied is an
//!    error that names the subvolume: nothing is skipped silently, and an explicit discard tells what is lost.
//! 5. **Commit** now and then, so that memory stays bounded, and at the end. A crash at any point repeats from the last
//!    commit: nothing reachable was overwritten.

use crate::device::AlignedBuffer;
use crate::error::{DataPointer, EngineError};
use crate::format::log_batch::{self, BatchHead, Part, WRAP};
use crate::format::superblock::{LogTail, Superblock};
use crate::fs::block_ranges::BlockRanges;
use crate::limits::{BLOCK, BLOCK_BYTES, WRITEBACK_START_BYTES};
use crate::log::record::{Body, Record, RecordReader};
use crate::space::Run;
use crate::store::data_write::DataWrite;
use crate::store::{Store, StoreError};
use crate::subvolume::{Subvolume, WritebackProgress};
use crate::transaction::commit::{CommitInput, Committer};
use crate::types::SubvolumeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// New batches get numbers this far behind the last one that was read, so that a batch that was refused (its extents
/// were torn) can never look like the successor.
const SEQUENCE_GAP: u64 = 1 << 20;

/// What replay found and did.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// Batches of the chain.
    pub batches: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Records applied.
    pub applied: u64,
    /// Records that a commit had covered.
    pub covered: u64,
    /// Records of subvolumes that no longer exist.
    pub orphaned: u64,
    /// Records discarded on explicit demand, by subvolume.
    pub discarded: BTreeMap<SubvolumeId, u64>,
    /// Why the chain ended.
    pub end: String,
    /// Commits made on the way, the last included.
    pub commits: u64,
    /// Subvolumes that records were applied to.
    pub subvolumes: BTreeSet<SubvolumeId>,
}

/// Subvolumes opened by replay, with what must survive it: ledger and recovered log position.
pub struct Replayed {
    /// What happened.
    pub report: ReplayReport,
    /// The subvolumes with records, as they are now (clean).
    pub subvolumes: Vec<Subvolume>,
}

/// Replays the ring and commits, on the way too whenever `commit_every_bytes` of it are replayed. `discard` names
/// subvolumes whose records are thrown away.
pub fn replay(
    store: &Arc<Store>,
    committer: &mut Committer,
    discard: &BTreeSet<SubvolumeId>,
    commit_every_bytes: u64,
) -> Result<Replayed, StoreError> {
    let superblock = *committer.superblock();
    let mut run = Replay {
        store,
        superblock,
        discard,
        report: ReplayReport::default(),
        claimed: BlockRanges::default(),
        subvolumes: BTreeMap::new(),
        since_commit: 0,
        commit_every_bytes,
    };
    let end = run.find_end()?;
    let end = run.verify_and_claim(end)?;
    run.apply_all(&end, committer)?;
    let mut head = end;
    head.sequence += SEQUENCE_GAP;
    head.chain = !head.chain;
    committer.mark_recovered();
    run.commit(committer, head)?;
    for (first, after) in run.claimed.iter() {
        store.space().release_unwritten(Run::new(first, after - first));
    }
    let subvolumes = run.subvolumes.into_values().collect();
    Ok(Replayed { report: run.report, subvolumes })
}

struct Replay<'a> {
    store: &'a Arc<Store>,
    superblock: Superblock,
    discard: &'a BTreeSet<SubvolumeId>,
    report: ReplayReport,
    claimed: BlockRanges,
    subvolumes: BTreeMap<SubvolumeId, Subvolume>,
    since_commit: u64,
    commit_every_bytes: u64,
}

/// A sound batch.
struct Batch {
    head: BatchHead,
    bytes: AlignedBuffer,
    next: LogTail,
}

impl Replay<'_> {
    /// Follows the chain to its end. Returns the position after the last sound batch, and remembers in the report how
    /// far a flush is known to have reached.
    fn find_end(&mut self) -> Result<LogTail, StoreError> {
        let mut at = self.superblock.log_tail;
        let mut seen = 0;
        loop {
            match self.read(&at)? {
                Ok(batch) => {
                    seen += batch.bytes.len() as u64;
                    at = batch.next;
                    self.report.batches += 1;
                    // A chain longer than the ring would go round for ever; sequence numbers make it impossible.
                    assert!(
                        seen <= 2 * self.superblock.ring_bytes,
                        "the log's chain is longer than its ring"
                    );
                }
                Err(reason) => {
                    self.report.end = reason.to_owned();
                    self.report.bytes = seen;
                    return Ok(at);
                }
            }
        }
    }

    /// Ends the chain before the first batch whose extents are torn, and claims the blocks of the others.
    fn verify_and_claim(&mut self, end: LogTail) -> Result<LogTail, StoreError> {
        let flushed_through = self.flushed_through(&end)?;
        let mut at = self.superblock.log_tail;
        while at.sequence < end.sequence {
            let batch = self.reread(&at)?;
            let mut extents = Vec::new();
            self.for_each_record(&batch, |_, record| {
                if let Body::ExtentData { inode, offset, address, generation, checksums } = &record.body {
                    extents.push(DataPointer {
                        inode: *inode,
                        file_offset: *offset,
                        address: *address,
                        length: checksums.len() as u64 * BLOCK_BYTES,
                        generation: *generation,
                        checksums: checksums.clone(),
                    });
                }
                Ok(())
            })?;
            if at.sequence > flushed_through {
                for extent in &extents {
                    if matches!(self.store.read_data(extent), Err(StoreError::Corrupt(_))) {
                        self.report.end =
                            format!("batch {} refers to data that was not written", at.sequence);
                        return Ok(at);
                    }
                }
            }
            for extent in &extents {
                self.claim(extent)?;
            }
            at = batch.next;
        }
        Ok(end)
    }

    fn flushed_through(&self, end: &LogTail) -> Result<u64, StoreError> {
        let mut at = self.superblock.log_tail;
        let mut flushed = 0;
        while at.sequence < end.sequence {
            let batch = self.reread(&at)?;
            flushed = flushed.max(batch.head.flushed_through);
            at = batch.next;
        }
        Ok(flushed)
    }

    fn claim(&mut self, extent: &DataPointer) -> Result<(), StoreError> {
        for index in 0..extent.length / BLOCK_BYTES {
            let run = Run::new(extent.address / BLOCK_BYTES + index, 1);
            // Written in place into preallocated space of the durable tree, or logged twice.
            if self.store.space().is_durable(run) || self.claimed.contains(run.start) {
                continue;
            }
            self.store.space().claim(run)?;
            self.claimed.insert(run.start, run.end());
        }
        Ok(())
    }

    fn apply_all(&mut self, end: &LogTail, committer: &mut Committer) -> Result<(), StoreError> {
        let mut at = self.superblock.log_tail;
        while at.sequence < end.sequence {
            let batch = self.reread(&at)?;
            let parts = log_batch::parts(&batch.head, &batch.bytes)
                .ok_or_else(|| StoreError::Replay(format!("batch {} has lying lengths", at.sequence)))?;
            let ours = batch.head.epoch == self.store.identity().previous_epoch;
            for part in &parts {
                self.apply_part(part, ours)?;
            }
            self.since_commit += batch.bytes.len() as u64;
            at = batch.next;
            self.store.ring().set_head(at);
            if self.since_commit >= self.commit_every_bytes && at.sequence < end.sequence {
                self.commit(committer, at)?;
            }
        }
        Ok(())
    }

    fn apply_part(&mut self, part: &Part<'_>, previous_epoch: bool) -> Result<(), StoreError> {
        let id = part.subvolume;
        if !self.subvolumes.contains_key(&id) {
            let Some(root) = self.store.root(id) else {
                self.report.orphaned += u64::from(part.records);
                return Ok(());
            };
            let subvolume = Subvolume::open(Arc::clone(self.store), id, &root);
            self.subvolumes.insert(id, subvolume);
        }
        let Some(subvolume) = self.subvolumes.get_mut(&id) else { return Ok(()) };
        if self.discard.contains(&id) {
            *self.report.discarded.entry(id).or_default() += u64::from(part.records);
            return Ok(());
        }
        let mut applied = false;
        for record in RecordReader::new(part.bytes) {
            let record = record.map_err(|error| explain(id, None, &error))?;
            if record.sequence <= subvolume.last_sequence() {
                self.report.covered += 1;
                continue;
            }
            if record.sequence != subvolume.last_sequence() + 1 {
                let missing = format!("records from {} on are missing", subvolume.last_sequence() + 1);
                return Err(explain(id, Some(&record), &missing));
            }
            apply(self.store, subvolume, &record, &mut self.claimed)?;
            applied = true;
            self.report.applied += 1;
            self.report.subvolumes.insert(id);
        }
        // What a commit covered is judged by its transaction; its number may belong to an earlier opening of the log.
        if previous_epoch && applied {
            subvolume.note_recovered(part.log_transid);
        }
        while subvolume.dirty_bytes() > WRITEBACK_START_BYTES {
            with_fetches(self.store, subvolume, Subvolume::write_back_any)?;
            DataWrite::write_all(&subvolume.take_new_writes(), &self.store.data_sink())?;
        }
        Ok(())
    }

    fn commit(&mut self, committer: &mut Committer, tail: LogTail) -> Result<(), StoreError> {
        self.store.ring().set_head(tail);
        commit_all(self.store, committer, self.subvolumes.values_mut(), tail)?;
        self.since_commit = 0;
        self.report.commits += 1;
        Ok(())
    }

    fn for_each_record(
        &self,
        batch: &Batch,
        mut visit: impl FnMut(SubvolumeId, &Record) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let parts = log_batch::parts(&batch.head, &batch.bytes)
            .ok_or_else(|| StoreError::Replay(format!("batch {} has lying lengths", batch.head.sequence)))?;
        for part in parts {
            let covered = match self.store.root(part.subvolume) {
                Some(root) if !self.discard.contains(&part.subvolume) => root.covered_sequence,
                _ => continue,
            };
            for record in RecordReader::new(part.bytes) {
                let record = record.map_err(|error| explain(part.subvolume, None, &error))?;
                if record.sequence > covered {
                    visit(part.subvolume, &record)?;
                }
            }
        }
        Ok(())
    }

    fn reread(&self, at: &LogTail) -> Result<Batch, StoreError> {
        self.read(at)?.map_err(|reason| {
            StoreError::Replay(format!(
                "batch {} was sound a moment ago and is not now: {reason}",
                at.sequence
            ))
        })
    }

    /// The batch at a position, or why there is none.
    fn read(&self, at: &LogTail) -> Result<Result<Batch, &'static str>, StoreError> {
        let room = self.superblock.ring_bytes - at.offset;
        let address = self.superblock.ring_offset + at.offset;
        let mut first = AlignedBuffer::zeroed(BLOCK);
        self.store.device().read(address, &mut first)?;
        let Some(length) = log_batch::claimed_length(&first, room) else {
            return Ok(Err("no batch follows"));
        };
        let mut bytes = first;
        if length > BLOCK {
            bytes = AlignedBuffer::zeroed(length);
            self.store.device().read(address, &mut bytes)?;
        }
        let Some((head, checksum)) = log_batch::decode(&bytes) else {
            return Ok(Err("the batch that follows is torn or damaged"));
        };
        if head.sequence != at.sequence || head.chain != at.chain {
            return Ok(Err("what follows is of an earlier round"));
        }
        if head.device_id != self.superblock.device_id || head.epoch > self.superblock.server_epoch {
            return Ok(Err("what follows belongs to another store or epoch"));
        }
        let mut offset = at.offset + length as u64;
        if offset == self.superblock.ring_bytes || head.flags & WRAP != 0 {
            offset = 0;
        }
        let next = LogTail { sequence: at.sequence + 1, offset, chain: checksum };
        Ok(Ok(Batch { head, bytes, next }))
    }
}

fn explain(id: SubvolumeId, record: Option<&Record>, why: &dyn std::fmt::Display) -> StoreError {
    let at = record
        .map_or_else(String::new, |record| format!(" at record {} ({:?})", record.sequence, record.body));
    StoreError::Replay(format!(
        "the log of subvolume {id} cannot be replayed{at}: {why}; start with --discard-log {id} to give up what it \
         holds since the last commit"
    ))
}

fn apply(
    store: &Arc<Store>,
    subvolume: &mut Subvolume,
    record: &Record,
    claimed: &mut BlockRanges,
) -> Result<(), StoreError> {
    loop {
        match with_fetches(store, subvolume, |subvolume| subvolume.apply_record(record, claimed)) {
            Err(Retry::TrimFirst(inode)) => {
                while with_fetches(store, subvolume, |subvolume| subvolume.trim_step(inode))? {}
            }
            Err(Retry::Refused(why)) => return Err(explain(subvolume.id(), Some(record), &why)),
            Err(Retry::Store(error)) => return Err(error),
            Ok(()) => return Ok(()),
        }
    }
}

/// How a call that had all its blocks ended without success.
#[derive(Debug)]
pub enum Retry {
    /// The inode must be trimmed first.
    TrimFirst(u64),
    /// Refused.
    Refused(crate::error::FsError),
    /// The store cannot go on.
    Store(StoreError),
}

impl From<Retry> for StoreError {
    fn from(retry: Retry) -> Self {
        match retry {
            Retry::TrimFirst(inode) => Self::Replay(format!("inode {inode} must be trimmed first")),
            Retry::Refused(why) => Self::Replay(format!("refused: {why}")),
            Retry::Store(error) => error,
        }
    }
}

/// Runs an engine call again and again, fetching what it misses, until it has an answer.
pub fn with_fetches<R>(
    store: &Arc<Store>,
    subvolume: &mut Subvolume,
    mut call: impl FnMut(&mut Subvolume) -> Result<R, EngineError>,
) -> Result<R, Retry> {
    let result = loop {
        match call(subvolume) {
            Ok(value) => break Ok(value),
            Err(EngineError::Missing(missing)) => match store.read_node(&missing) {
                Ok(node) => subvolume.stage_node(node),
                Err(error) => break Err(Retry::Store(error)),
            },
            Err(EngineError::MissingData(pointer)) => match store.read_data(&pointer) {
                Ok(pages) => subvolume.stage_data(&pointer, pages),
                Err(error) => break Err(Retry::Store(error)),
            },
            Err(EngineError::TrimFirst(inode)) => break Err(Retry::TrimFirst(inode)),
            Err(EngineError::Refused(why)) => break Err(Retry::Refused(why)),
            Err(EngineError::Corrupt(corruption)) => break Err(Retry::Store((*corruption).into())),
        }
    };
    subvolume.clear_staged();
    result
}

/// Freezes and commits these subvolumes, blocking: for replay, tools and tests. The log's tail moves to `tail`.
pub fn commit_all<'a>(
    store: &Arc<Store>,
    committer: &mut Committer,
    subvolumes: impl Iterator<Item = &'a mut Subvolume>,
    tail: LogTail,
) -> Result<(), StoreError> {
    // A commit that failed never became durable, and no other can come after it.
    if let Some(reason) = store.failure() {
        return Err(StoreError::Failed(reason));
    }
    let mut all: Vec<&mut Subvolume> = subvolumes.collect();
    for subvolume in &mut all {
        while with_fetches(store, subvolume, Subvolume::prepare_freeze)? == WritebackProgress::More {}
    }
    let (transid, dirty) = store.switch_transaction();
    let mut frozen = Vec::new();
    for subvolume in all.iter_mut().filter(|subvolume| subvolume.is_dirty()) {
        assert!(dirty.contains(&subvolume.id()));
        let state =
            subvolume.freeze(transid).map_err(|_| StoreError::Replay("a log is pinned".to_owned()))?;
        frozen.push(state);
    }
    assert_eq!(frozen.len(), dirty.len(), "every dirty subvolume takes part in a commit");
    let durable = committer.write(CommitInput { frozen, changes: Vec::new(), log_tail: tail })?;
    committer.finish(durable);
    for subvolume in all {
        subvolume.commit_durable(transid);
    }
    Ok(())
}
