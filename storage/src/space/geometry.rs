//! What lies where on the device: superblocks in the first MiB, then the log ring, then groups to the end.
//!
//! Everything follows from two numbers, the size at format time and the size of the ring; both are in the superblock.

use super::Run;
use crate::format::group::{GROUP_BLOCKS, SLOTS};
use crate::limits::{BLOCK_BYTES, NODE_BYTES};
use std::ops::Range;
use thiserror::Error;

/// Bytes before the log ring; holds the superblock slots and is otherwise zero.
pub const HEAD_BYTES: u64 = 1 << 20;
/// Byte addresses of the two superblock slots: far apart, so that one bad area does not take both.
pub const SUPERBLOCK_ADDRESSES: [u64; 2] = [65536, 131_072];
/// Smallest log ring, in bytes.
pub const RING_BYTES_MIN: u64 = 64 * 1024;
/// Smallest last group worth its bitmap, in blocks; a shorter rest of the device stays unused.
pub const GROUP_BLOCKS_MIN: u64 = 64;

const _: () = {
    assert!(HEAD_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(SUPERBLOCK_ADDRESSES[0].is_multiple_of(BLOCK_BYTES) && SUPERBLOCK_ADDRESSES[0] > 0);
    assert!(SUPERBLOCK_ADDRESSES[1].is_multiple_of(BLOCK_BYTES));
    assert!(SUPERBLOCK_ADDRESSES[1] - SUPERBLOCK_ADDRESSES[0] >= BLOCK_BYTES);
    assert!(SUPERBLOCK_ADDRESSES[1] + BLOCK_BYTES <= HEAD_BYTES);
    assert!(GROUP_BLOCKS_MIN > SLOTS as u64 + NODE_BYTES as u64 / BLOCK_BYTES);
};

/// Why a device cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// No room for one group.
    #[error("a device of {size} bytes is too small: with this log it needs at least {needed} bytes")]
    TooSmall {
        /// Bytes of the device.
        size: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The ring is too small or not in blocks.
    #[error("a log of {bytes} bytes is not possible: use a multiple of 4096, at least 65536")]
    Ring {
        /// Bytes asked for.
        bytes: u64,
    },
}

/// The areas of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    device_bytes: u64,
    ring_bytes: u64,
    first_group_block: u64,
    groups: usize,
    last_group_blocks: u64,
}

impl Geometry {
    /// The layout of a device of `device_bytes` with a log ring of `ring_bytes`.
    pub fn new(device_bytes: u64, ring_bytes: u64) -> Result<Self, GeometryError> {
        if !ring_bytes.is_multiple_of(BLOCK_BYTES) || ring_bytes < RING_BYTES_MIN {
            return Err(GeometryError::Ring { bytes: ring_bytes });
        }
        let needed = (HEAD_BYTES + GROUP_BLOCKS_MIN * BLOCK_BYTES).saturating_add(ring_bytes);
        if device_bytes < needed {
            return Err(GeometryError::TooSmall { size: device_bytes, needed });
        }
        let first_group_block = (HEAD_BYTES + ring_bytes) / BLOCK_BYTES;
        let blocks = device_bytes / BLOCK_BYTES - first_group_block;
        let (full, rest) = (blocks / GROUP_BLOCKS, blocks % GROUP_BLOCKS);
        let (groups, last_group_blocks) =
            if rest >= GROUP_BLOCKS_MIN { (full + 1, rest) } else { (full, GROUP_BLOCKS) };
        // A device of 2^63 bytes has 2^36 groups; their bitmaps would not fit in memory long before.
        let groups = usize::try_from(groups).map_err(|_| GeometryError::Ring { bytes: ring_bytes })?;
        Ok(Self { device_bytes, ring_bytes, first_group_block, groups, last_group_blocks })
    }

    /// Size of the device it was made for, in bytes.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Bytes of the log ring on the device.
    pub fn ring(&self) -> Range<u64> {
        HEAD_BYTES..HEAD_BYTES + self.ring_bytes
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// All blocks of a group, its slots included.
    pub fn group(&self, group: usize) -> Run {
        assert!(group < self.groups, "group {group} of {}", self.groups);
        let blocks = if group + 1 == self.groups { self.last_group_blocks } else { GROUP_BLOCKS };
        Run::new(self.first_group_block + group as u64 * GROUP_BLOCKS, blocks)
    }

    /// Byte address of a bitmap slot (0 or 1) of a group.
    pub fn slot_address(&self, group: usize, slot: usize) -> u64 {
        assert!(slot < SLOTS, "slot {slot}");
        (self.group(group).start + slot as u64) * BLOCK_BYTES
    }

    /// Blocks that can be allocated: all of all groups but the slots.
    pub fn usable_blocks(&self) -> u64 {
        (self.groups as u64 - 1) * GROUP_BLOCKS + self.last_group_blocks - (self.groups * SLOTS) as u64
    }

    /// Group and range within it of a run that lies wholly in the allocatable blocks of one group.
    pub fn locate(&self, run: Run) -> Option<(usize, Range<usize>)> {
        let relative = run.start.checked_sub(self.first_group_block)?;
        let group = usize::try_from(relative / GROUP_BLOCKS).ok().filter(|&group| group < self.groups)?;
        let start = (relative % GROUP_BLOCKS) as usize;
        let end = u64::checked_add(start as u64, run.blocks)?;
        (run.blocks > 0 && start >= SLOTS && end <= self.group(group).blocks)
            .then_some((group, start..end as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_without_overlap() {
        for size in
            [(1 << 20) + 65536 + 64 * 4096, 200 << 20, 1 << 40, (1 << 20) + 65536 + 126 * (1 << 20) + 4096]
        {
            let geometry = Geometry::new(size, 65536).expect("large enough");
            assert_eq!(geometry.ring(), HEAD_BYTES..HEAD_BYTES + 65536);
            let mut end = geometry.ring().end / BLOCK_BYTES;
            for group in 0..geometry.groups() {
                let blocks = geometry.group(group);
                assert_eq!(blocks.start, end);
                assert!(blocks.blocks >= GROUP_BLOCKS_MIN);
                end = blocks.end();
            }
            assert!(end * BLOCK_BYTES <= size && size - end * BLOCK_BYTES < GROUP_BLOCKS_MIN * BLOCK_BYTES);
        }
    }

    #[test]
    fn runs_are_located_only_inside_the_blocks_of_one_group() {
        let geometry = Geometry::new(200 << 20, 65536).expect("large enough");
        let (first, second) = (geometry.group(0), geometry.group(1));
        assert_eq!(geometry.locate(Run::new(first.start + 2, 1)), Some((0, 2..3)));
        assert_eq!(geometry.locate(Run::new(second.start + 5, 7)), Some((1, 5..12)));
        for (start, blocks) in
            [(0, 1), (first.start, 1), (first.start + 1, 2), (second.start - 1, 2), (second.end() - 1, 2)]
        {
            assert_eq!(geometry.locate(Run::new(start, blocks)), None, "{start} {blocks}");
        }
        assert_eq!(geometry.locate(Run::new(first.start + 2, 0)), None);
        assert_eq!(geometry.locate(Run::new(u64::MAX, u64::MAX)), None);
    }

    #[test]
    fn what_is_too_small_is_refused() {
        assert!(matches!(Geometry::new(1 << 20, 65536), Err(GeometryError::TooSmall { .. })));
        assert!(matches!(Geometry::new(1 << 30, 4096), Err(GeometryError::Ring { .. })));
        assert!(matches!(Geometry::new(1 << 30, 65537), Err(GeometryError::Ring { .. })));
        assert!(matches!(Geometry::new(1 << 30, !4095), Err(GeometryError::TooSmall { .. })));
    }
}
