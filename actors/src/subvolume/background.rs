//! Work that nobody waits for: dirty data and log records on their way out, freeing, and requests that were held back until
//! there is less of it.
//!
//! Invariants: a step is short, and between two steps every message that waits gets its turn; nothing is lost if a step
//! never runs (orphans are on the device, dirty data is the commit's business too).

use super::SubvolumeRoot;
use super::fetch::Target;
use super::job::Stop;
use super::run::Why;
use crate::limits::{
    BACKGROUND_PAUSE, DIRTY_BYTES_MAX, DIRTY_SHARE_MIN, LOG_QUEUE_BYTES_MAX, ORPHANS_PER_LIST,
    WRITEBACK_STEPS,
};
use crate::log_writer::LogQueue;
use crate::runtime::{self, Context, Handler, messages};
use crate::transaction_manager::CommitReason;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subvol_storage::error::EngineResult;
use subvol_storage::format::item::inode_flags;
use subvol_storage::limits::WRITEBACK_START_BYTES;
use subvol_storage::store::data_write::DataWrite;
use subvol_storage::subvolume::WritebackProgress;
use subvol_storage::types::InodeNumber;

/// Pause when a step could not run for want of space.
const NO_SPACE_PAUSE: Duration = Duration::from_millis(100);

/// Do a step.
pub struct Step;

/// The grace time is over: free what has no name and is not open.
pub struct GraceOver;

/// Extents reached the device, or never will.
struct DataWritten {
    bytes: u64,
}

messages!(Step, GraceOver, DataWritten);

/// What is scheduled.
#[derive(Debug, Default)]
pub struct Background {
    scheduled: bool,
    fetching: bool,
    /// The list of orphans is being read.
    scanning: bool,
    /// Writeback met a block that cannot be read: it is the next freeze's business.
    write_back_stopped: bool,
}

impl SubvolumeRoot {
    pub(super) fn has_background_work(&self) -> bool {
        !self.free.is_empty()
            || self.scan.is_some()
            || self.removal.as_ref().is_some_and(super::removal::Removal::has_work)
            || self.wants_write_back()
            || self.parked.values().any(|parked| matches!(parked.why, Why::Dirty | Why::Trim))
    }

    fn wants_write_back(&self) -> bool {
        !self.background.write_back_stopped && self.subvolume.dirty_bytes() > WRITEBACK_START_BYTES
    }

    pub(super) fn schedule_background(&mut self) {
        self.schedule_after(BACKGROUND_PAUSE);
    }

    fn schedule_after(&mut self, pause: Duration) {
        if !self.background.scheduled && !self.background.fetching {
            self.background.scheduled = true;
            runtime::later(&self.mailbox, pause, Step);
        }
    }

    /// Frees an inode without names in the background.
    pub(super) fn free_later(&mut self, inode: InodeNumber) {
        self.free.push(inode);
    }

    /// Frees what lies past the end of a file in the background, if the operation left any.
    pub(super) fn trim_later(&mut self, inode: InodeNumber) {
        let pending = |flags: u64| flags & inode_flags::TRIM_PENDING != 0;
        if self.subvolume.attributes(inode).is_ok_and(|item| pending(item.flags)) {
            self.free.push(inode);
        }
    }

    /// Does the log writer have so much to write that no more records may pile up? Not of a failed store: nothing drains
    /// any more, and who waited would wait for ever instead of seeing the error.
    pub(super) fn is_log_congested(&self) -> bool {
        self.shared.log.waiting_bytes() > LOG_QUEUE_BYTES_MAX && self.shared.store.failure().is_none()
    }

    /// Must writes of this subvolume wait for its data to reach the device? Not of a failed store, as above.
    pub(super) fn is_over_share(&self) -> bool {
        if self.shared.counters.dirty_bytes.load(Ordering::Relaxed) < DIRTY_BYTES_MAX {
            return false;
        }
        let share = DIRTY_BYTES_MAX / self.shared.registry.count().max(1) as u64;
        self.dirty_bytes() > share.max(DIRTY_SHARE_MIN) && self.shared.store.failure().is_none()
    }

    /// Turns dirty pages into extents when there are many, and gives new extents to the data writers.
    pub(super) fn write_back(&mut self) {
        for _ in 0..WRITEBACK_STEPS {
            if self.background.fetching || !self.wants_write_back() {
                break;
            }
            match self.subvolume.write_back_any() {
                Ok(WritebackProgress::More) => {}
                Ok(WritebackProgress::Done) => break,
                Err(error) => {
                    self.write_back_needs(error.into());
                    break;
                }
            }
        }
        let writes = self.subvolume.take_new_writes();
        if writes.is_empty() {
            return;
        }
        let bytes: u64 = writes.iter().map(|write| write.length).sum();
        self.in_flight += bytes;
        self.shared.wrote_back(bytes);
        let store = Arc::clone(&self.shared.store);
        let mailbox = self.mailbox.clone();
        self.shared.writers.run(move || {
            if let Err(error) = DataWrite::write_all(&writes, &store.data_sink()) {
                store.fail(&error);
            }
            mailbox.send(DataWritten { bytes });
        });
    }

    /// Log records that pile up go to the ring without a flush, so that no fsync finds much to write (S5).
    pub(super) fn hand_over_backlog(&mut self) {
        if self.is_log_congested() {
            return;
        }
        let generations = self.subvolume.take_backlog();
        if !generations.is_empty() {
            LogQueue::submit_with_extents(&self.shared, self.subvolume.id(), generations, None);
        }
    }

    pub(super) fn background_fetched(&mut self) {
        self.background.fetching = false;
        self.background_step();
    }

    /// A block that writeback needs cannot be read, or a commit says that it may try again.
    pub(super) fn stop_write_back(&mut self, stop: bool) {
        self.background.write_back_stopped = stop;
    }

    fn write_back_needs(&mut self, stop: Stop) {
        match stop {
            Stop::Fetch(fetch) => {
                self.background.fetching = true;
                self.fetch(Target::WriteBack, fetch);
            }
            Stop::NoSpace => self.background_needs(Stop::NoSpace),
            _ => self.stop_write_back(true),
        }
    }

    pub(super) fn write_back_fetched(&mut self) {
        self.background.fetching = false;
    }

    /// A block that freeing needs is damaged: the inode in front is left alone, the rest goes on.
    pub(super) fn give_up_background(&mut self) {
        self.background.fetching = false;
        if std::mem::take(&mut self.background.scanning) {
            self.scan = None;
        } else if self.free.pop_front().is_none()
            && let Some(removal) = &mut self.removal
        {
            removal.give_up();
        }
    }

    fn background_needs(&mut self, stop: Stop) {
        match stop {
            Stop::Fetch(fetch) => {
                self.background.fetching = true;
                self.fetch(Target::Background, fetch);
            }
            Stop::NoSpace => {
                self.shared.request_commit(CommitReason::NoSpace);
                self.schedule_after(NO_SPACE_PAUSE);
            }
            Stop::Trim(inode) => self.free.push_front(inode),
            _ if self.shared.store.failure().is_some() => {
                self.free.clear();
                self.scan = None;
                self.removal = None;
            }
            _ => self.give_up_background(),
        }
    }

    fn background_step(&mut self) {
        self.run_parked(Why::Dirty);
        if let Err(error) = self.free_step() {
            self.background_needs(error.into());
        } else if self.free.is_empty()
            && let Err(stop) = self.removal_step()
        {
            self.background_needs(stop);
        }
        self.run_parked(Why::Trim);
    }

    fn free_step(&mut self) -> EngineResult<()> {
        if let Some(after) = self.scan {
            self.background.scanning = true;
            let found = self.subvolume.orphans(after, ORPHANS_PER_LIST)?;
            self.background.scanning = false;
            self.scan = found.last().copied().filter(|_| found.len() == ORPHANS_PER_LIST);
            match &mut self.grace {
                Some(waiting) => waiting.extend(found),
                None => self.free.extend(found),
            }
        }
        let Some(inode) = self.free.front() else { return Ok(()) };
        if !self.free_some(inode)? {
            self.free.pop_front();
        }
        Ok(())
    }

    /// One step for one inode. Returns whether more is left.
    pub(super) fn free_some(&mut self, inode: InodeNumber) -> EngineResult<bool> {
        use subvol_storage::error::{EngineError, FsError};
        let item = match self.subvolume.attributes(inode) {
            Err(EngineError::Refused(FsError::NotFound)) => return Ok(false),
            other => other?,
        };
        if item.flags & inode_flags::TRIM_PENDING != 0 {
            return self.subvolume.trim_step(inode);
        }
        if item.nlink > 0 || self.subvolume.is_open(inode) {
            return Ok(false);
        }
        self.subvolume.reclaim_step(inode)
    }
}

impl Handler<Step> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, _: Step, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.now = runtime::now();
        self.background.scheduled = false;
        if !self.background.fetching {
            self.background_step();
        }
        self.after_messages();
    }
}

impl Handler<GraceOver> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, _: GraceOver, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.free.extend(self.grace.take().into_iter().flatten());
        self.after_messages();
    }
}

impl Handler<DataWritten> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: DataWritten, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.now = runtime::now();
        self.in_flight -= message.bytes;
        self.run_parked(Why::Dirty);
        self.after_messages();
    }
}
