//! Three ways to unpin the blocks that a commit freed, side by side. For the benchmark only: the store itself always
//! makes the linear pass ([`super::SpaceManager::finish_commit`] does the same steps under its lock).
//!
//! The two others keep pinned ranges in an ordered tree, merged as they come, and take them out one by one. Collecting
//! is measured apart from unpinning.

use super::bitmap::Bitmap;
use super::{Geometry, Run, RunList, SortedRuns, SpaceError};
use std::collections::BTreeMap;

/// How to unpin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnpinStrategy {
    /// Runs collected in a list, sorted and merged once, cleared in one pass.
    LinearPass,
    /// An ordered tree; each step takes the first element out and goes on with the next.
    NextElement,
    /// An ordered tree; each step searches the first range from the root, clears it, and searches it again to remove it.
    SearchPerExtent,
}

/// Pinned ranges in the form that a strategy works on, and the bitmaps they are cleared from.
pub struct PinnedRanges {
    geometry: Geometry,
    live: Vec<Bitmap>,
    pinned: Pinned,
}

enum Pinned {
    List(SortedRuns),
    Tree { ranges: BTreeMap<u64, u64>, search: bool },
}

impl PinnedRanges {
    /// Collects `runs` (disjoint, in any order) the way the strategy would during a transaction, and marks them used.
    pub fn collect(strategy: UnpinStrategy, geometry: Geometry, runs: &RunList) -> Result<Self, SpaceError> {
        let mut live = vec![Bitmap::new(); geometry.groups()];
        for run in runs.iter() {
            let (group, range) = geometry.locate(run).ok_or(SpaceError::OutsideGroups { run })?;
            live[group].set(range);
        }
        let pinned = match strategy {
            UnpinStrategy::LinearPass => Pinned::List(runs.clone().into_sorted_merged()?),
            UnpinStrategy::NextElement => Pinned::Tree { ranges: tree(runs), search: false },
            UnpinStrategy::SearchPerExtent => Pinned::Tree { ranges: tree(runs), search: true },
        };
        Ok(Self { geometry, live, pinned })
    }

    /// Number of ranges after merging.
    pub fn ranges(&self) -> usize {
        match &self.pinned {
            Pinned::List(runs) => runs.len(),
            Pinned::Tree { ranges, .. } => ranges.len(),
        }
    }

    /// Unpins everything; this is what is measured. Returns the number of ranges.
    pub fn unpin(&mut self) -> usize {
        let (geometry, live) = (&self.geometry, &mut self.live);
        let mut clear = |run: Run| {
            if let Some((group, range)) = geometry.locate(run) {
                live[group].clear(range);
            }
        };
        match &mut self.pinned {
            Pinned::List(runs) => {
                let runs = std::mem::take(runs);
                runs.as_slice().iter().for_each(|run| clear(*run));
                runs.len()
            }
            Pinned::Tree { ranges, search: false } => {
                let ranges = std::mem::take(ranges);
                let count = ranges.len();
                // Taking a tree apart in order visits each node once.
                ranges.into_iter().for_each(|(start, blocks)| clear(Run::new(start, blocks)));
                count
            }
            Pinned::Tree { ranges, search: true } => {
                let (mut count, mut position) = (0, 0);
                while let Some((&start, &blocks)) = ranges.range(position..).next() {
                    clear(Run::new(start, blocks));
                    ranges.remove(&start);
                    position = start + blocks;
                    count += 1;
                }
                count
            }
        }
    }

    /// Blocks still marked used; 0 after [`PinnedRanges::unpin`].
    pub fn used_blocks(&self) -> u64 {
        let bits = self.live.len() as u64 * crate::format::group::GROUP_BLOCKS;
        bits - self.live.iter().map(|bitmap| bitmap.count_free() as u64).sum::<u64>()
    }
}

/// Ranges merged with their neighbours as they come.
fn tree(runs: &RunList) -> BTreeMap<u64, u64> {
    let mut ranges = BTreeMap::new();
    for run in runs.iter() {
        let (mut start, mut end) = (run.start, run.end());
        if let Some((&before, &blocks)) = ranges.range(..start).next_back()
            && before + blocks == start
        {
            ranges.remove(&before);
            start = before;
        }
        if let Some(blocks) = ranges.remove(&end) {
            end += blocks;
        }
        ranges.insert(start, end - start);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_strategies_unpin_the_same() {
        let geometry = Geometry::new(600 << 20, 65536).expect("large enough");
        let first = geometry.group(0).start;
        let runs: RunList = (0..20_000u64)
            .map(|number| number * 7919 % 20_000)
            .map(|number| {
                Run::new(first + 2 + number * 5 % 30_000 + number * 5 / 30_000 * 32256, 1 + number % 5)
            })
            .collect();
        let mut counts = Vec::new();
        for strategy in
            [UnpinStrategy::LinearPass, UnpinStrategy::NextElement, UnpinStrategy::SearchPerExtent]
        {
            let mut pinned = PinnedRanges::collect(strategy, geometry, &runs).expect("inside the groups");
            assert_eq!(pinned.used_blocks(), runs.blocks());
            let ranges = pinned.ranges();
            assert_eq!(pinned.unpin(), ranges);
            assert_eq!(pinned.used_blocks(), 0);
            counts.push(ranges);
        }
        assert!(counts[0] > 10_000 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    }
}
