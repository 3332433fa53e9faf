//! A set of block numbers kept as sorted, merged, half-open ranges, so that a terabyte of preallocation is one entry.
//!
//! Invariant: ranges are non-empty, disjoint and not adjacent.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64` in ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    runs: BTreeMap<u64, u64>,
    count: u64,
}

impl Ranges {
    /// Number of members.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of members inside `range`.
    pub fn count_in(&self, range: Range<u64>) -> u64 {
        self.overlapping(&range).map(|(start, end)| end.min(range.end) - start.max(range.start)).sum()
    }

    /// Whether `value` is a member.
    pub fn contains(&self, value: u64) -> bool {
        self.runs.range(..=value).next_back().is_some_and(|(_, end)| *end > value)
    }

    /// All ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(start, end)| *start..*end)
    }

    /// Adds all of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Neighbours that touch are swallowed too, hence the closed bounds.
        let touching: Vec<(u64, u64)> = self
            .runs
            .range(..=end)
            .rev()
            .take_while(|(_, run_end)| **run_end >= start)
            .map(|(run_start, run_end)| (*run_start, *run_end))
            .collect();
        for (run_start, run_end) in touching {
            self.runs.remove(&run_start);
            self.count -= run_end - run_start;
            start = start.min(run_start);
            end = end.max(run_end);
        }
        self.runs.insert(start, end);
        self.count += end - start;
    }

    /// Takes all of `range` out.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let hit: Vec<(u64, u64)> = self.overlapping(&range).collect();
        for (start, end) in hit {
            self.runs.remove(&start);
            self.count -= end - start;
            for (part_start, part_end) in [(start, end.min(range.start)), (start.max(range.end), end)] {
                if part_start < part_end {
                    self.runs.insert(part_start, part_end);
                    self.count += part_end - part_start;
                }
            }
        }
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let start = range.start;
        self.runs
            .range(..range.end)
            .rev()
            .take_while(move |(_, end)| **end > start)
            .map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_plain_set() {
        let (mut ranges, mut plain) = (Ranges::default(), BTreeSet::new());
        let mut state = 1_u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = (state >> 33) % 60;
            let range = start..start + (state >> 45) % 9;
            if state >> 63 == 0 {
                ranges.insert(range.clone());
                plain.extend(range.clone());
            } else {
                ranges.remove(range.clone());
                plain.retain(|value| !range.contains(value));
            }
            assert_eq!(ranges.count(), plain.len() as u64);
            assert_eq!(
                ranges.iter().flatten().collect::<Vec<_>>(),
                plain.iter().copied().collect::<Vec<_>>()
            );
            assert_eq!(ranges.count_in(10..30), plain.range(10..30).count() as u64);
            assert_eq!(ranges.contains(start), plain.contains(&start));
            let runs: Vec<_> = ranges.iter().collect();
            assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "adjacent runs must be merged");
        }
    }
}
