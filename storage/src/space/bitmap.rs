//! One bit per block of a group, 1 = used; everything works on whole 64-bit words.

use crate::format::group::{BITMAP_BYTES, GROUP_BLOCKS};
use std::ops::Range;

const BITS: usize = GROUP_BLOCKS as usize;
const WORDS: usize = BITMAP_BYTES / 8;

const _: () = assert!(WORDS * 64 == BITS);

/// The bits of one group.
#[derive(Clone, PartialEq, Eq)]
pub struct Bitmap {
    words: Box<[u64; WORDS]>,
}

impl Bitmap {
    /// All free.
    pub fn new() -> Self {
        Self { words: Box::new([0; WORDS]) }
    }

    /// From the layout on disk: little-endian words.
    pub fn from_bytes(bytes: &[u8; BITMAP_BYTES]) -> Self {
        let mut bitmap = Self::new();
        let (chunks, _) = bytes.as_chunks::<8>();
        bitmap.words.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u64::from_le_bytes(*chunk));
        bitmap
    }

    /// The layout on disk.
    pub fn to_bytes(&self) -> [u8; BITMAP_BYTES] {
        let mut bytes = [0; BITMAP_BYTES];
        let (chunks, _) = bytes.as_chunks_mut::<8>();
        self.words.iter().zip(chunks).for_each(|(word, chunk)| *chunk = word.to_le_bytes());
        bytes
    }

    /// Marks a range used.
    pub fn set(&mut self, range: Range<usize>) {
        for (index, mask) in masks(range) {
            self.words[index] |= mask;
        }
    }

    /// Marks a range free.
    pub fn clear(&mut self, range: Range<usize>) {
        for (index, mask) in masks(range) {
            self.words[index] &= !mask;
        }
    }

    /// Whether every block of the range is used.
    pub fn all_used(&self, range: Range<usize>) -> bool {
        masks(range).all(|(index, mask)| self.words[index] & mask == mask)
    }

    /// Whether every block of the range is free.
    pub fn all_free(&self, range: Range<usize>) -> bool {
        masks(range).all(|(index, mask)| self.words[index] & mask == 0)
    }

    /// Number of free blocks.
    pub fn count_free(&self) -> usize {
        self.words.iter().map(|word| word.count_zeros() as usize).sum()
    }

    /// The first free run at or after `from` that begins before `end`, cut at `end`.
    pub fn next_free_run(&self, from: usize, end: usize) -> Option<Range<usize>> {
        let start = self.find(from, end, |word| !word)?;
        let stop = self.find(start, end, |word| word).unwrap_or(end);
        Some(start..stop)
    }

    /// A free run within `from..end` of `wanted` blocks, or else the longest shorter one. Takes the first that is
    /// long enough, so that allocations made one after the other lie one after the other.
    pub fn find_run(&self, from: usize, end: usize, wanted: usize) -> Option<Range<usize>> {
        let mut best: Option<Range<usize>> = None;
        let mut position = from;
        while let Some(run) = self.next_free_run(position, end) {
            if run.len() >= wanted {
                return Some(run.start..run.start + wanted);
            }
            position = run.end;
            if best.as_ref().is_none_or(|best| best.len() < run.len()) {
                best = Some(run);
            }
        }
        best
    }

    /// Free *quads* (four free blocks in a row, the first a multiple of four: room for a tree node) among those that the
    /// range touches.
    pub fn quads(&self, range: Range<usize>) -> usize {
        if range.is_empty() {
            return 0;
        }
        let words = range.start / 64..range.end.div_ceil(64);
        words.map(|index| free_quads(self.words[index]).count_ones() as usize).sum()
    }

    /// The first run of free quads, at most `wanted` of them, as blocks.
    pub fn find_quads(&self, wanted: usize) -> Option<Range<usize>> {
        let mut best: Option<Range<usize>> = None;
        let mut run = 0..0;
        for (index, &word) in self.words.iter().enumerate() {
            let mut quads = free_quads(word);
            while quads != 0 {
                let start = index * 64 + quads.trailing_zeros() as usize;
                quads &= quads - 1;
                run = if run.end == start { run.start..start + 4 } else { start..start + 4 };
                if run.len() >= wanted * 4 {
                    return Some(run);
                }
                if best.as_ref().is_none_or(|best| best.len() < run.len()) {
                    best = Some(run.clone());
                }
            }
        }
        best
    }

    /// The first free blocks that belong to no free quad, at most `wanted` of them in a row.
    pub fn find_fragment(&self, wanted: usize) -> Option<Range<usize>> {
        let (index, fragments) = self.words.iter().enumerate().find_map(|(index, &word)| {
            let fragments = !word & !(free_quads(word) * 0xf);
            (fragments != 0).then_some((index, fragments))
        })?;
        let first = fragments.trailing_zeros() as usize;
        let length = ((fragments >> first).trailing_ones() as usize).min(wanted);
        Some(index * 64 + first..index * 64 + first + length)
    }

    /// The first bit at or after `from` that is 1 in `view` of its word.
    fn find(&self, from: usize, end: usize, view: impl Fn(u64) -> u64) -> Option<usize> {
        if from >= end {
            return None;
        }
        let mut mask = !0 << (from % 64);
        for (index, &word) in self.words.iter().enumerate().skip(from / 64) {
            if index * 64 >= end {
                return None;
            }
            let hits = view(word) & mask;
            if hits != 0 {
                return Some(index * 64 + hits.trailing_zeros() as usize).filter(|&bit| bit < end);
            }
            mask = !0;
        }
        None
    }
}

impl Default for Bitmap {
    fn default() -> Self {
        Self::new()
    }
}

/// Bit 4n is 1 where bits 4n to 4n + 3 of the word are all 0.
const fn free_quads(word: u64) -> u64 {
    !(word | word >> 1 | word >> 2 | word >> 3) & 0x1111_1111_1111_1111
}

/// The words of a range, each with the bits of the range in it.
fn masks(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    assert!(range.start <= range.end && range.end <= BITS, "blocks {range:?} of a group");
    let words = if range.is_empty() { 0..0 } else { range.start / 64..range.end.div_ceil(64) };
    words.map(move |index| {
        let low = range.start.saturating_sub(index * 64);
        let high = (range.end - index * 64).min(64);
        (index, (!0 >> (64 - (high - low))) << low)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = Range<usize>> {
        (0..600usize, 0..300usize).prop_map(|(start, length)| start..start + length)
    }

    proptest! {
        #[test]
        fn words_behave_like_single_bits(
            changes in proptest::collection::vec((any::<bool>(), range()), 0..30),
            probe in range(),
            wanted in 1..200usize,
        ) {
            let (mut bitmap, mut model) = (Bitmap::new(), vec![false; BITS]);
            for (used, range) in changes {
                if used { bitmap.set(range.clone()) } else { bitmap.clear(range.clone()) }
                model[range].fill(used);
            }
            prop_assert_eq!(bitmap.count_free(), model.iter().filter(|used| !**used).count());
            prop_assert_eq!(bitmap.all_used(probe.clone()), model[probe.clone()].iter().all(|used| *used));
            prop_assert_eq!(bitmap.all_free(probe.clone()), model[probe.clone()].iter().all(|used| !*used));
            let runs: Vec<_> = {
                let (mut runs, mut position) = (Vec::new(), probe.start);
                while position < probe.end {
                    let length = model[position..probe.end].iter().take_while(|used| !**used).count();
                    if length > 0 { runs.push(position..position + length) }
                    position += length.max(1);
                }
                runs
            };
            prop_assert_eq!(bitmap.next_free_run(probe.start, probe.end), runs.first().cloned());
            let expected = match runs.iter().find(|run| run.len() >= wanted) {
                Some(run) => Some(run.start..run.start + wanted),
                None => runs.iter().rev().max_by_key(|run| run.len()).cloned(),
            };
            prop_assert_eq!(bitmap.find_run(probe.start, probe.end, wanted), expected);
            prop_assert!(Bitmap::from_bytes(&bitmap.to_bytes()) == bitmap);
            let quads: Vec<usize> = (0..BITS).step_by(4).filter(|&at| !model[at..at + 4].contains(&true)).collect();
            prop_assert_eq!(bitmap.quads(0..BITS), quads.len());
            let found = bitmap.find_quads(wanted.div_ceil(4)).unwrap_or_default();
            prop_assert!(found.clone().step_by(4).all(|at| quads.contains(&at)));
            prop_assert_eq!(found.is_empty(), quads.is_empty());
            let fragment = (0..BITS).find(|at| !model[*at] && !quads.contains(&(at / 4 * 4)));
            let found = bitmap.find_fragment(wanted);
            prop_assert_eq!(found.as_ref().map(|run| run.start), fragment);
            prop_assert!(found.unwrap_or_default().all(|at| !model[at] && !quads.contains(&(at / 4 * 4))));
        }
    }

    #[test]
    fn the_last_blocks_of_a_group_count_too() {
        let mut bitmap = Bitmap::new();
        bitmap.set(0..BITS);
        assert_eq!((bitmap.count_free(), bitmap.next_free_run(0, BITS)), (0, None));
        bitmap.clear(BITS - 1..BITS);
        assert_eq!(bitmap.next_free_run(5, BITS), Some(BITS - 1..BITS));
        assert_eq!(bitmap.to_bytes()[BITMAP_BYTES - 1], 0x7f);
    }
}
