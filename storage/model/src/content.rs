//! The bytes of a file, sparse: what is not kept reads as zero.
//!
//! Invariants: no kept block is all zero, and no byte at or past `size` is kept. Two contents that read the same are
//! therefore equal field by field.

use crate::{BLOCK, pattern};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

const BLOCK_BYTES: usize = BLOCK as usize;
type Block = [u8; BLOCK_BYTES];
static ZERO: Block = [0; BLOCK_BYTES];

/// Size and bytes of a regular file. Clones share blocks.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

impl Content {
    /// A file of exactly these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets the size: cuts bytes away or adds zeros.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            let old = self.size;
            self.zero(size, old - size);
        }
        self.size = size;
    }

    /// Puts `bytes` at `offset`, growing the file where they end past it.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        for (index, within, length) in pieces(offset, bytes.len() as u64) {
            let from = (at - offset) as usize;
            self.block_mut(index)[within..within + length].copy_from_slice(&bytes[from..from + length]);
            self.drop_zero_block(index);
            at += length as u64;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    /// Puts the pattern of `seed` into `length` bytes at `offset`.
    pub fn write_pattern(&mut self, offset: u64, length: u64, seed: u32) {
        for (index, within, length) in pieces(offset, length) {
            let at = index * BLOCK + within as u64;
            pattern::fill(seed, at, &mut self.block_mut(index)[within..within + length]);
        }
        if length > 0 {
            self.size = self.size.max(offset + length);
        }
    }

    /// Makes `length` bytes at `offset` read as zero; the size stays.
    pub fn zero(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        // Only kept blocks are visited, so cutting a terabyte hole is cheap.
        let touched: Vec<u64> =
            self.blocks.range(offset / BLOCK..end.div_ceil(BLOCK)).map(|(i, _)| *i).collect();
        for index in touched {
            let start = index * BLOCK;
            let from = offset.saturating_sub(start).min(BLOCK) as usize;
            let to = (end - start).min(BLOCK) as usize;
            self.block_mut(index)[from..to].fill(0);
            self.drop_zero_block(index);
        }
    }

    /// The byte at `offset`; zero in holes and past the end.
    pub fn byte(&self, offset: u64) -> u8 {
        self.blocks.get(&(offset / BLOCK)).map_or(0, |block| block[(offset % BLOCK) as usize])
    }

    /// Up to `length` bytes at `offset`, fewer at the end of the file.
    pub fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = offset.saturating_add(length).min(self.size);
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset) as usize);
        for (index, within, length) in pieces(offset, end.saturating_sub(offset)) {
            bytes.extend_from_slice(&self.block(index)[within..within + length]);
        }
        bytes
    }

    /// The block of that index; zeros where none is kept.
    pub fn block(&self, index: u64) -> &[u8; BLOCK_BYTES] {
        self.blocks.get(&index).map_or(&ZERO, |block| block)
    }

    /// Indexes of the blocks that hold something other than zeros, in order.
    pub fn kept_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }

    /// First offset where the two differ, counting a difference in size as one at the smaller size.
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        let mut indexes: Vec<u64> = self.kept_blocks().chain(other.kept_blocks()).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let by_byte = indexes.into_iter().find_map(|index| {
            let (left, right) = (self.block(index), other.block(index));
            let within = left.iter().zip(right).position(|(a, b)| a != b)?;
            Some(index * BLOCK + within as u64)
        });
        let by_size = (self.size != other.size).then(|| self.size.min(other.size));
        by_byte.into_iter().chain(by_size).min()
    }

    /// A hash of size and bytes, for digests and short messages (64-bit FNV-1a; not against malice).
    pub fn hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        self.size.to_le_bytes().into_iter().for_each(&mut add);
        for (index, block) in &self.blocks {
            index.to_le_bytes().into_iter().for_each(&mut add);
            block.iter().copied().for_each(&mut add);
        }
        hash
    }

    fn block_mut(&mut self, index: u64) -> &mut Block {
        Arc::make_mut(self.blocks.entry(index).or_insert_with(|| Arc::new(ZERO)))
    }

    fn drop_zero_block(&mut self, index: u64) {
        if *self.block(index) == ZERO {
            self.blocks.remove(&index);
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes, hash {:016x})", self.size, self.hash())
    }
}

/// Cuts a byte range at block borders: (block index, offset within it, length).
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % BLOCK;
        let piece = (BLOCK - within).min(end - at);
        let item = (at / BLOCK, within as usize, piece as usize);
        at += piece;
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_vector() {
        let (mut content, mut plain) = (Content::default(), Vec::<u8>::new());
        let mut state = 7_u64;
        for step in 0..600_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (offset, length) = ((state >> 20) % 20_000, (state >> 40) % 9000);
            let end = (offset + length) as usize;
            match step % 4 {
                0 => {
                    content.write_pattern(offset, length, step);
                    if length > 0 {
                        plain.resize(plain.len().max(end), 0);
                        pattern::fill(step, offset, &mut plain[offset as usize..end]);
                    }
                }
                1 => {
                    content.zero(offset, length);
                    let limit = plain.len();
                    plain[(offset as usize).min(limit)..end.min(limit)].fill(0);
                }
                2 => {
                    content.resize(offset);
                    plain.resize(offset as usize, 0);
                }
                _ => {
                    let bytes = vec![(step % 3) as u8; 5000];
                    content.write(offset, &bytes);
                    plain.resize(plain.len().max(offset as usize + 5000), 0);
                    plain[offset as usize..offset as usize + 5000].copy_from_slice(&bytes);
                }
            }
            assert_eq!(content.read(0, u64::MAX), plain);
            assert_eq!(content, Content::from_bytes(&plain), "two contents that read the same are equal");
            assert_eq!(content.first_difference(&Content::from_bytes(&plain)), None);
        }
    }

    #[test]
    fn the_first_difference_is_found() {
        let mut left = Content::default();
        left.write_pattern(0, 10_000, 1);
        let mut right = left.clone();
        right.resize(9000);
        assert_eq!(left.first_difference(&right), Some(9000));
        right.zero(5000, 1);
        assert_eq!(left.first_difference(&right), Some(5000));
        let mut longer = right.clone();
        longer.resize(1 << 40);
        assert_eq!(longer.first_difference(&right), Some(9000));
    }
}
