//! Running the log's records again after a crash.
//!
//! The state before the first record is exactly the tree of the last durable commit, and records run through the same
//! planning as when they first ran, with the times, identifiers and decisions of the record. What was never logged
//! (data of files that nobody fsynced, background reclaiming) is missing, and planning is right from any state.

use super::Subvolume;
use crate::error::{EngineError, EngineResult, FsError};
use crate::fs::allocate::drop_preallocations;
use crate::fs::block_ranges::BlockRanges;
use crate::fs::dispatch::plan_operation;
use crate::fs::plan::Plan;
use crate::fs::replay_data::{plan_insert_data, plan_insert_extent};
use crate::limits::BLOCK_BYTES;
use crate::log::record::{Body, Record};
use crate::operation::{Operation, Resolved};
use crate::space::Class;
use crate::types::{LogTransid, Timestamp};

impl Subvolume {
    /// Number of the newest record that the subvolume contains.
    pub fn last_sequence(&self) -> u64 {
        self.log.last_sequence()
    }

    /// Applies the record that follows [`Self::last_sequence`]. `claimed` are the blocks of logged extents that no tree
    /// refers to yet.
    pub fn apply_record(&mut self, record: &Record, claimed: &mut BlockRanges) -> EngineResult<()> {
        assert_eq!(record.sequence, self.last_sequence() + 1, "records are replayed in order");
        self.join();
        let view = self.view_with(record.resolved, true);
        let mut plan = match &record.body {
            Body::Operation(operation) => plan_operation(&view, operation)?,
            Body::InlineData { inode, offset, data } => plan_insert_data(&view, *inode, *offset, data)?,
            Body::ExtentData { inode, offset, address, generation, checksums } => {
                let length = checksums.len() as u64 * BLOCK_BYTES;
                plan_insert_extent(&view, *inode, *offset, checksums, *address, length, *generation)?
            }
        };
        if !plan.no_change {
            if matches!(record.body, Body::Operation(_)) {
                // What the operation used then is used up, even if it needs less now.
                self.next_id = self.next_id.max(record.resolved.next_id);
            }
            let ready = self.make_ready(&mut plan, Class::Release, false);
            let prepared = match (ready, &record.body) {
                (Err(EngineError::Refused(FsError::NoSpace)), Body::Operation(operation)) => {
                    tracing::warn!(
                        subvolume = self.id,
                        record = record.sequence,
                        "no room to preallocate space again; it stays a hole"
                    );
                    plan = plan_operation(&self.view_with(record.resolved, true), operation)?;
                    drop_preallocations(&mut plan)?;
                    self.make_ready(&mut plan, Class::Release, false)?
                }
                (ready, _) => ready?,
            };
            let next_id = self.next_id;
            self.carry_out(&plan, &prepared);
            self.next_id = next_id.max(record.resolved.next_id + plan.ids_used);
            for range in &plan.claimed {
                let first = range.address / BLOCK_BYTES;
                claimed.remove(first, first + range.length / BLOCK_BYTES);
            }
            self.remember(record, &plan);
        }
        self.log.resume_after(record.sequence);
        Ok(())
    }

    /// The newest generation of the previous epoch's log that was replayed: promise S6 judges tickets by it.
    pub fn note_recovered(&mut self, log_transid: LogTransid) {
        self.recovered_log_transid = self.recovered_log_transid.max(log_transid);
    }

    /// Was a change with this ticket lost? `data`: the change was file data, which the log holds only after an fsync.
    pub fn has_lost(&self, ticket: &super::Ticket, data: bool) -> bool {
        let identity = self.store.identity();
        if ticket.epoch == identity.epoch {
            return false;
        }
        let judged = ticket.epoch == identity.previous_epoch;
        let committed = judged && ticket.transid <= identity.recovered_generation;
        let logged = judged && !data && ticket.log_transid <= self.recovered_log_transid;
        !(committed || logged)
    }

    fn remember(&mut self, record: &Record, plan: &Plan) {
        let Some(id) = &record.operation_id else { return };
        let detail = match &record.body {
            Body::Operation(Operation::Write { offset, .. }) => *offset,
            _ => 0,
        };
        self.ledger.remember(id, plan.inode, detail);
    }

    /// Frees some blocks past the end of an inode whose trim is pending. Returns whether more is left.
    pub fn trim_step(&mut self, inode: u64) -> EngineResult<bool> {
        self.background(|view| crate::fs::reclaim::plan_trim_step(view, inode))?;
        let item = match self.view_now().inode(inode) {
            Ok(item) => item,
            Err(EngineError::Refused(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(item.flags & crate::format::item::inode_flags::TRIM_PENDING != 0)
    }

    /// Frees a part of an inode without names. Returns whether more is left.
    pub fn reclaim_step(&mut self, inode: u64) -> EngineResult<bool> {
        assert!(!self.is_open(inode), "an open inode is not reclaimed");
        let done = self.background(|view| crate::fs::reclaim::plan_reclaim_step(view, inode))?;
        Ok(done)
    }

    /// Inodes that wait for [`Self::reclaim_step`] or [`Self::trim_step`], from the one after `after` on.
    pub fn orphans(&self, after: u64, max: usize) -> EngineResult<Vec<u64>> {
        crate::fs::reclaim::list_orphans(&self.view_now(), after, max)
    }

    /// A step that frees what nobody can reach. It needs no record: after a crash the orphan is still there, and its
    /// blocks are intact, because nothing is reused before the commit that frees it is durable.
    fn background(
        &mut self,
        make: impl FnOnce(&crate::fs::view::View<'_>) -> EngineResult<Plan>,
    ) -> EngineResult<bool> {
        self.store.check_writable()?;
        self.join();
        let resolved = Resolved { now: Timestamp::default(), next_id: self.next_id, keep_orphan: false };
        let mut plan = make(&self.view_with(resolved, false))?;
        if plan.no_change {
            return Ok(false);
        }
        let prepared = self.make_ready(&mut plan, Class::Release, false)?;
        self.carry_out(&plan, &prepared);
        Ok(plan.inodes == 0)
    }
}
