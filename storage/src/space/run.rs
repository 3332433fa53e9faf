//! Runs of blocks, and lists of them.
//!
//! A [`RunList`] is what a subvolume collects while it works: appending is all it does. [`SortedRuns`] is what a commit
//! works with: sorted, disjoint, and neighbours merged. Getting from one to the other finds blocks listed twice, which
//! is how a double free shows.

use super::SpaceError;
use crate::limits::BLOCK_BYTES;

/// A contiguous range of blocks of the device, counted in blocks of 4096 bytes from byte 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Run {
    /// `blocks` blocks from block `start`.
    pub const fn new(start: u64, blocks: u64) -> Self {
        Self { start, blocks }
    }

    /// The run of a byte range; both multiples of 4096.
    pub fn of_bytes(address: u64, length: u64) -> Self {
        assert!(address.is_multiple_of(BLOCK_BYTES) && length.is_multiple_of(BLOCK_BYTES));
        Self { start: address / BLOCK_BYTES, blocks: length / BLOCK_BYTES }
    }

    /// First block past the run.
    pub const fn end(self) -> u64 {
        self.start + self.blocks
    }

    /// Byte address on the device.
    pub const fn address(self) -> u64 {
        self.start * BLOCK_BYTES
    }

    /// Length in bytes.
    pub const fn length(self) -> u64 {
        self.blocks * BLOCK_BYTES
    }

    /// Cuts off the first `blocks` blocks (at most all of them) and returns them.
    pub fn take_front(&mut self, blocks: u64) -> Self {
        let taken = blocks.min(self.blocks);
        let front = Self::new(self.start, taken);
        *self = Self::new(self.start + taken, self.blocks - taken);
        front
    }
}

/// Runs in the order they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunList {
    runs: Vec<Run>,
    blocks: u64,
}

impl RunList {
    /// An empty list.
    pub const fn new() -> Self {
        Self { runs: Vec::new(), blocks: 0 }
    }

    /// Adds a run. One that continues the last run is merged with it, so sequential work stays short.
    pub fn push(&mut self, run: Run) {
        if run.blocks == 0 {
            return;
        }
        self.blocks += run.blocks;
        match self.runs.last_mut() {
            Some(last) if last.end() == run.start => last.blocks += run.blocks,
            _ => self.runs.push(run),
        }
    }

    /// Adds all runs of another list, whose order is kept: sorted pieces sort fast.
    pub fn append(&mut self, other: &mut Self) {
        self.runs.append(&mut other.runs);
        self.blocks += std::mem::take(&mut other.blocks);
    }

    /// Number of blocks, those listed twice counted twice.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs in the order they came.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().copied()
    }

    /// Sorts and merges. Fails when a block is listed twice, naming it.
    pub fn into_sorted_merged(self) -> Result<SortedRuns, SpaceError> {
        let Self { mut runs, blocks } = self;
        // The stable sort takes sorted pieces as they are: a commit's list is a chain of those.
        runs.sort_by_key(|run| run.start);
        let mut merged = 0;
        for index in 1..runs.len() {
            let (last, run) = (runs[merged], runs[index]);
            if run.start < last.end() {
                return Err(SpaceError::ListedTwice { block: run.start });
            }
            if run.start == last.end() {
                runs[merged].blocks += run.blocks;
            } else {
                merged += 1;
                runs[merged] = run;
            }
        }
        runs.truncate(merged + 1);
        Ok(SortedRuns { runs, blocks })
    }
}

impl FromIterator<Run> for RunList {
    fn from_iter<I: IntoIterator<Item = Run>>(runs: I) -> Self {
        let mut list = Self::new();
        runs.into_iter().for_each(|run| list.push(run));
        list
    }
}

/// Sorted, disjoint runs with a gap between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedRuns {
    runs: Vec<Run>,
    blocks: u64,
}

impl SortedRuns {
    /// The runs, ascending.
    pub fn as_slice(&self) -> &[Run] {
        &self.runs
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The first block of `run` that is in the list.
    pub fn first_common(&self, run: Run) -> Option<u64> {
        let index = self.runs.partition_point(|one| one.end() <= run.start);
        self.runs.get(index).filter(|one| one.start < run.end()).map(|one| one.start.max(run.start))
    }
}

impl From<SortedRuns> for RunList {
    fn from(sorted: SortedRuns) -> Self {
        Self { runs: sorted.runs, blocks: sorted.blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(runs: &[(u64, u64)]) -> Result<SortedRuns, SpaceError> {
        runs.iter().map(|&(start, blocks)| Run::new(start, blocks)).collect::<RunList>().into_sorted_merged()
    }

    #[test]
    fn lists_are_sorted_and_merged() {
        let runs = sorted(&[(10, 2), (0, 3), (12, 1), (3, 1), (20, 5)]).expect("disjoint");
        assert_eq!(runs.as_slice(), [Run::new(0, 4), Run::new(10, 3), Run::new(20, 5)]);
        assert_eq!(runs.blocks(), 12);
        assert_eq!(runs.first_common(Run::new(4, 7)), Some(10));
        assert_eq!(runs.first_common(Run::new(22, 1)), Some(22));
        assert_eq!(runs.first_common(Run::new(13, 7)), None);
        assert!(sorted(&[]).expect("empty").is_empty());
    }

    #[test]
    fn a_block_listed_twice_is_found() {
        assert!(matches!(sorted(&[(5, 3), (0, 6)]), Err(SpaceError::ListedTwice { block: 5 })));
        assert!(matches!(sorted(&[(5, 3), (5, 3)]), Err(SpaceError::ListedTwice { block: 5 })));
    }
}
