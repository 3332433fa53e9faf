//! Data of files on its way out of memory: writeback to extents, data records for fsync, closing generations.

use super::Subvolume;
use crate::error::EngineResult;
use crate::fs::extents::{Extent, Mapping};
use crate::fs::replay_data::unlogged_data;
use crate::fs::writeback::plan_writeback;
use crate::limits::{LOG_BACKLOG_BYTES, LOG_INLINE_DATA_MAX};
use crate::log::generation::{ClosedGeneration, Pinned};
use crate::log::record;
use crate::space::{Run, RunList};
use crate::store::data_write::DataWrite;
use crate::types::{InodeNumber, LogTransid};
use std::sync::Arc;

/// Most pages that one step of writeback takes, so that the owner stays responsive.
const WRITEBACK_BLOCKS_PER_STEP: u64 = 512;

/// Extents of a transaction that are remembered before the written ones among them are looked for.
pub(super) const WRITES_SWEPT_AT_MIN: usize = 256;

/// What an fsync needs now.
#[derive(Debug)]
pub struct Closed {
    /// Durability of this generation is durability of everything so far.
    pub ticket: LogTransid,
    /// To be handed to the log writer, in this order.
    pub generations: Vec<ClosedGeneration>,
}

/// How far a writeback got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritebackProgress {
    /// Nothing is dirty any more.
    Done,
    /// Some pages are left; call again.
    More,
}

impl Subvolume {
    /// Puts everything of the inode that is neither durable nor in the log into the log's open generation (S2).
    pub fn log_inode_data(&mut self, inode: InodeNumber) -> EngineResult<()> {
        if !self.has_unlogged_data(inode) {
            return Ok(());
        }
        if self.pages.unlogged_bytes(inode) > LOG_INLINE_DATA_MAX as u64 {
            while self.write_back_step(inode)? == WritebackProgress::More {}
        }
        let unlogged = unlogged_data(&self.view_now(), inode)?;
        // Records alone make a subvolume dirty: the next commit moves the log's tail past them, so it must say that it
        // covers them, or the records after them would follow a gap.
        self.join();
        let mut newest = self.log.progress().newest();
        for extent in &unlogged.extents {
            newest = self.log_extent(inode, extent);
        }
        for (offset, data) in &unlogged.data {
            newest = self.log.append(|out, sequence| {
                record::append_inline_data(out, sequence, inode, *offset, data);
            });
        }
        self.pages.mark_logged(inode);
        self.note_change(inode, newest);
        Ok(())
    }

    /// Makes everything acknowledged so far ready for the log writer. The caller hands over the generations, and waits
    /// until the log's progress reaches the ticket.
    pub fn close_log(&mut self) -> Result<Closed, Pinned> {
        let (ticket, generations) = self.log.close()?;
        Ok(Closed { ticket, generations })
    }

    /// Generations that should be written now, without a flush, so that no fsync has much to write (S5).
    pub fn take_backlog(&mut self) -> Vec<ClosedGeneration> {
        if self.log.pending_bytes() < LOG_BACKLOG_BYTES {
            return Vec::new();
        }
        self.log.close().map(|(_, generations)| generations).unwrap_or_default()
    }

    /// Turns some dirty pages of an inode into extents.
    pub fn write_back_step(&mut self, inode: InodeNumber) -> EngineResult<WritebackProgress> {
        self.store.check_writable()?;
        if self.pages.file(inode).is_none_or(|file| file.is_empty()) {
            return Ok(WritebackProgress::Done);
        }
        self.join();
        let mut taken = RunList::new();
        let mut window = std::mem::take(&mut self.space.window);
        let space = self.store.space();
        let mut allocate = |blocks: u64| {
            // Reserved when the page became dirty, so this must not fail.
            let run = window.take(space, blocks)?;
            taken.push(run);
            Some((run.address(), run.blocks))
        };
        let planned = plan_writeback(&self.view_now(), inode, WRITEBACK_BLOCKS_PER_STEP, &mut allocate);
        self.space.window = window;
        let ready = planned.and_then(|plan| {
            let prepared = self.tree.prepare(&self.view_now().nodes, &plan.mutations)?;
            Ok((plan, prepared))
        });
        let (plan, prepared) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                taken.iter().for_each(|run| self.store.space().release_unwritten(run));
                return Err(error);
            }
        };
        taken.iter().for_each(|run| self.space.allocated.push(run));
        self.tree.apply(&prepared, self.transid, &plan.mutations, &mut self.space.superseded);
        for released in &plan.released {
            self.space.released.push(Run::of_bytes(released.range.address, released.range.length));
        }
        for write in plan.writes {
            let blocks = write.blocks.into_iter().map(|(_, page)| page).collect();
            let write =
                DataWrite::new(write.address, write.generation, write.buffer, blocks, self.store.in_flight());
            self.writes.insert(write.address, Arc::clone(&write));
            self.new_writes.push(write);
        }
        self.pages.complete_writeback(inode, &plan.taken);
        self.balance_reservation();
        let left = self.pages.file(inode).is_some_and(|file| !file.is_empty());
        Ok(if left { WritebackProgress::More } else { WritebackProgress::Done })
    }

    /// Turns some dirty pages of any inode into extents.
    pub fn write_back_any(&mut self) -> EngineResult<WritebackProgress> {
        let Some(inode) = self.pages.dirty_inodes().next() else { return Ok(WritebackProgress::Done) };
        self.write_back_step(inode)?;
        let left = self.pages.dirty_pages() > 0;
        Ok(if left { WritebackProgress::More } else { WritebackProgress::Done })
    }

    /// Extents made since the last call: somebody should write them soon, so that a commit has little to write.
    pub fn take_new_writes(&mut self) -> Vec<Arc<DataWrite>> {
        // What is written holds no memory worth keeping, and the log only needs to know that a flush is due. Looked for
        // whenever the table has doubled, so that the search costs a constant per extent.
        if self.writes.len() >= self.writes_swept_at {
            self.writes.retain(|_, write| !write.is_written());
            self.writes_swept_at = (2 * self.writes.len()).max(WRITES_SWEPT_AT_MIN);
        }
        std::mem::take(&mut self.new_writes)
    }

    fn log_extent(&mut self, inode: InodeNumber, extent: &Extent) -> LogTransid {
        let Mapping::Regular { address, generation, checksums } = &extent.mapping else {
            panic!("only regular extents are logged as extents");
        };
        let sums: Vec<u8> = checksums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let newest = self.log.append(|out, sequence| {
            record::append_extent_data(out, sequence, inode, extent.offset, *address, *generation, &sums);
        });
        let end = address + extent.length;
        let mut found = false;
        for writes in [&self.writes, &self.previous_writes] {
            // The extent may be a part of what is written as one, or several neighbours may have been joined.
            let near =
                writes.range(..end).rev().take_while(|(_, write)| write.address + write.length > *address);
            for (_, write) in near {
                self.log.attach_extent(Arc::clone(write));
                found = true;
            }
        }
        if !found {
            self.log.attach_flush();
        }
        newest
    }
}
