//! Allocation without a lock: a subvolume holds a window of blocks and hands them out itself.
//!
//! Windows grow from 256 blocks (1 MiB) to 4096 (16 MiB) while their owner keeps coming back, as far as there is space
//! that nobody was promised. What a window holds is used in memory only: a crash gives it back by itself.
//!
//! Use one window for data and another for tree nodes: nodes need 4 blocks in a row, and keep finding them where other
//! nodes were freed, but not among the single blocks that small files leave.

use super::{Run, SpaceManager};

/// First size of a window, in blocks.
pub const WINDOW_BLOCKS_MIN: u64 = 256;
/// Largest size of a window, in blocks.
pub const WINDOW_BLOCKS_MAX: u64 = 4096;

/// Blocks that one owner may use. Give the rest back with [`AllocationWindow::give_back`]; a window that is dropped keeps
/// its blocks out of use until the store is opened again.
#[derive(Debug)]
pub struct AllocationWindow {
    rest: Run,
    next_blocks: u64,
}

impl AllocationWindow {
    /// A window that holds nothing yet.
    pub const fn new() -> Self {
        Self { rest: Run::new(0, 0), next_blocks: WINDOW_BLOCKS_MIN }
    }

    /// Takes up to `blocks_max` blocks in a row, which the caller has reserved (and unreserves now); fewer where the
    /// window or the free run ends. `None` only if no block is free.
    pub fn take(&mut self, space: &SpaceManager, blocks_max: u64) -> Option<Run> {
        assert!(blocks_max > 0, "an allocation of nothing");
        if self.rest.blocks == 0 {
            self.refill(space, blocks_max, 1)?;
        }
        Some(self.rest.take_front(blocks_max))
    }

    /// Takes exactly `blocks` blocks in a row, which the caller has reserved (and unreserves now). `None` if no free run
    /// is as long.
    pub fn take_exact(&mut self, space: &SpaceManager, blocks: u64) -> Option<Run> {
        assert!(blocks > 0, "an allocation of nothing");
        if self.rest.blocks < blocks {
            let rest = self.rest.take_front(self.rest.blocks);
            space.release_unwritten(rest);
            self.refill(space, blocks, blocks)?;
        }
        Some(self.rest.take_front(blocks))
    }

    /// Blocks not handed out.
    pub fn held(&self) -> u64 {
        self.rest.blocks
    }

    /// Gives back what was not handed out: the owner is idle, or the store is nearly full.
    pub fn give_back(&mut self, space: &SpaceManager) {
        space.release_unwritten(self.rest);
        *self = Self::new();
    }

    fn refill(&mut self, space: &SpaceManager, covered: u64, least: u64) -> Option<()> {
        let hint = (self.rest.start > 0).then_some(self.rest.end());
        let wanted = self.next_blocks.max(covered);
        self.rest = space.refill(covered, least, wanted, hint)?;
        self.next_blocks = (self.next_blocks * 2).min(WINDOW_BLOCKS_MAX);
        Some(())
    }
}

impl Default for AllocationWindow {
    fn default() -> Self {
        Self::new()
    }
}
