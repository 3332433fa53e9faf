//! A set of file blocks, kept as ranges that neither touch nor overlap.

use std::collections::BTreeMap;

/// See the module. Empty sets own no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRanges {
    /// First block → the block after the last.
    ranges: BTreeMap<u64, u64>,
}

impl BlockRanges {
    /// Adds the blocks from `from` up to, not including, `to`.
    pub fn insert(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        while let Some((&start, &end)) = self.ranges.range(..=to).next_back()
            && end >= from
        {
            self.ranges.remove(&start);
            from = from.min(start);
            to = to.max(end);
        }
        self.ranges.insert(from, to);
    }

    /// Takes out the blocks from `from` up to, not including, `to`.
    pub fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        while let Some((&start, &end)) = self.ranges.range(..to).next_back()
            && end > from
        {
            self.ranges.remove(&start);
            if start < from {
                self.ranges.insert(start, from);
            }
            if end > to {
                self.ranges.insert(to, end);
            }
        }
    }

    /// Adds all blocks of another set.
    pub fn absorb(&mut self, other: Self) {
        if self.ranges.is_empty() {
            *self = other;
        } else {
            other.iter().for_each(|(from, to)| self.insert(from, to));
        }
    }

    /// The ranges in order: first block, and the block after the last.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&from, &to)| (from, to))
    }

    /// Is this block in the set?
    pub fn contains(&self, block: u64) -> bool {
        self.ranges.range(..=block).next_back().is_some_and(|(_, &end)| end > block)
    }

    /// Are there no blocks?
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_hold_the_blocks_of_a_plain_set(
            steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u64..12), 0..40)
        ) {
            let mut ranges = BlockRanges::default();
            let mut plain = [false; 64];
            for (add, from, length) in steps {
                let to = from + length;
                if add { ranges.insert(from, to) } else { ranges.remove(from, to) }
                plain[from as usize..to as usize].fill(add);
                let mut found = [false; 64];
                let mut last = None;
                for (from, to) in ranges.iter() {
                    prop_assert!(from < to && last.is_none_or(|last| last < from));
                    last = Some(to);
                    found[from as usize..to as usize].fill(true);
                }
                prop_assert_eq!(found, plain);
            }
        }
    }
}
