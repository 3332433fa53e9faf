//! What commits did, for the status: counts and a bounded history. Times come from the caller; the engine has no clock.

use std::collections::VecDeque;

/// Commits remembered one by one.
pub const HISTORY: usize = 256;

/// One commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitSample {
    /// Its transaction.
    pub transid: u64,
    /// Subvolumes frozen for it.
    pub subvolumes: u64,
    /// Tree nodes written.
    pub nodes: u64,
    /// Bytes of file data written by the commit itself.
    pub data_bytes: u64,
    /// Ranges unpinned.
    pub unpinned_ranges: u64,
    /// Blocks unpinned.
    pub unpinned_blocks: u64,
    /// Freezing, in nanoseconds.
    pub freeze_nanoseconds: u64,
    /// Writing and flushing, in nanoseconds.
    pub write_nanoseconds: u64,
    /// Unpinning, in nanoseconds.
    pub unpin_nanoseconds: u64,
}

impl CommitSample {
    /// From the decision to the end, in nanoseconds.
    pub const fn total_nanoseconds(&self) -> u64 {
        self.freeze_nanoseconds + self.write_nanoseconds + self.unpin_nanoseconds
    }
}

/// All commits since the start.
#[derive(Clone, Debug, Default)]
pub struct CommitHistory {
    /// How many.
    pub count: u64,
    /// Their total time, in nanoseconds.
    pub total_nanoseconds: u64,
    /// The longest, in nanoseconds.
    pub longest_nanoseconds: u64,
    /// The newest [`HISTORY`], oldest first.
    pub newest: VecDeque<CommitSample>,
}

impl CommitHistory {
    /// Adds a commit.
    pub fn add(&mut self, sample: CommitSample) {
        let total = sample.total_nanoseconds();
        self.count += 1;
        self.total_nanoseconds += total;
        self.longest_nanoseconds = self.longest_nanoseconds.max(total);
        if self.newest.len() == HISTORY {
            self.newest.pop_front();
        }
        self.newest.push_back(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_bounded() {
        let mut history = CommitHistory::default();
        for transid in 0..HISTORY as u64 + 10 {
            history.add(CommitSample { transid, write_nanoseconds: transid, ..CommitSample::default() });
        }
        assert_eq!((history.count, history.newest.len()), (HISTORY as u64 + 10, HISTORY));
        assert_eq!(history.newest[0].transid, 10);
        assert_eq!(history.longest_nanoseconds, HISTORY as u64 + 9);
    }
}
