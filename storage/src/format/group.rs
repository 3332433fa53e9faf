//! Disk layout of a free-space bitmap slot, and how a slot is judged.
//!
//! A group is 32256 blocks (126 MiB). Its blocks 0 and 1 are two slots of 4096 bytes: a 64-byte header and one bit per
//! block, 1 = used, block `n` of the group in bit `n % 8` of byte `n / 8`. The bits of the slots themselves, and of
//! blocks past the end of a short last group, are 1.
//!
//! Two checksums, because a slot torn by a crash is ordinary and a slot that rotted is not, and only the header's
//! generation can tell them apart: the header checksum covers the first 64 bytes (one sector, never torn), the slot
//! checksum all 4096. What the header proves is used in `space/load.rs`.

use crate::limits::BLOCK;
use std::fmt;
use std::mem::{offset_of, size_of};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of bitmap in a slot.
pub const BITMAP_BYTES: usize = 4032;
/// Blocks of a full group, the two slots included.
pub const GROUP_BLOCKS: u64 = BITMAP_BYTES as u64 * 8;
/// Slots of a group, at its first blocks.
pub const SLOTS: usize = 2;
/// First bytes of a slot.
pub const MAGIC: [u8; 8] = *b"SVBITMAP";

/// Identity of a store, random at format time: a bitmap of the store that lived here before must not be believed.
pub type StoreId = [u8; 16];

/// A bitmap slot as it stands on the device.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskSlot {
    magic: [u8; 8],
    /// crc32c of the slot, with this field and the next as zeros.
    slot_checksum: U32,
    /// crc32c of the first 64 bytes, with this field as zeros and `slot_checksum` as it is.
    header_checksum: U32,
    /// Byte address of this slot.
    address: U64,
    /// Commit that wrote it.
    generation: U64,
    /// The store it belongs to.
    owner: StoreId,
    /// Number of the group.
    group: U64,
    /// Bits that are 1, those of the slots and of missing blocks included.
    used: U32,
    reserved: U32,
    bitmap: [u8; BITMAP_BYTES],
}

/// Bytes of header before the bitmap.
const HEADER_BYTES: usize = offset_of!(DiskSlot, bitmap);

const _: () = {
    assert!(size_of::<DiskSlot>() == BLOCK);
    assert!(HEADER_BYTES == 64);
    assert!(offset_of!(DiskSlot, slot_checksum) == 8);
    assert!(offset_of!(DiskSlot, header_checksum) == 12);
    assert!(offset_of!(DiskSlot, address) == 16);
    assert!(offset_of!(DiskSlot, generation) == 24);
    assert!(offset_of!(DiskSlot, owner) == 32);
    assert!(offset_of!(DiskSlot, group) == 48);
    assert!(offset_of!(DiskSlot, used) == 56);
    assert!(GROUP_BLOCKS == 32256);
};

/// Where a slot lies and whose it is: what the reader knows before it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// The store.
    pub owner: StoreId,
    /// Number of the group.
    pub group: u64,
    /// Byte address of the slot.
    pub address: u64,
}

/// Why a slot is not believed. Every variant but [`SlotProblem::Torn`] leaves its generation unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlotProblem {
    /// Not a bitmap slot at all (zeros, or something else was written here).
    #[error("no bitmap is there")]
    Magic,
    /// The header itself is damaged.
    #[error("header checksum is {found:#010x}, should be {expected:#010x}")]
    Header {
        /// Computed from what was read.
        expected: u32,
        /// Stored.
        found: u32,
    },
    /// A whole slot of another place: a misdirected write.
    #[error("holds the slot of byte {found}")]
    Address {
        /// Address in the header.
        found: u64,
    },
    /// A whole slot of another store, left from before the device was formatted.
    #[error("belongs to another store")]
    Owner,
    /// A whole slot of another group.
    #[error("holds group {found}")]
    Group {
        /// Number in the header.
        found: u64,
    },
    /// The header is whole, the rest is not.
    #[error("generation {generation} is torn or damaged ({})", Reason(*checksum))]
    Torn {
        /// Generation in the header, which can be trusted.
        generation: u64,
        /// Expected and found checksum; `None` = the checksum is right, but the number of used blocks is not.
        checksum: Option<(u32, u32)>,
    },
}

struct Reason(Option<(u32, u32)>);

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((expected, found)) => {
                write!(formatter, "checksum is {found:#010x}, should be {expected:#010x}")
            }
            None => formatter.write_str("its count of used blocks is wrong"),
        }
    }
}

/// Fills `slot` (4096 bytes) with a slot of `generation`.
pub fn encode(place: &SlotPlace, generation: u64, bitmap: &[u8; BITMAP_BYTES], slot: &mut [u8]) {
    let (disk, rest) = DiskSlot::mut_from_prefix(slot).expect("a slot buffer of 4096 bytes");
    assert!(rest.is_empty(), "a slot buffer of 4096 bytes");
    disk.magic = MAGIC;
    disk.address = U64::new(place.address);
    disk.generation = U64::new(generation);
    disk.owner = place.owner;
    disk.group = U64::new(place.group);
    disk.used = U32::new(count_used(bitmap));
    disk.reserved = U32::ZERO;
    disk.bitmap = *bitmap;
    disk.slot_checksum = U32::new(slot_checksum(disk));
    disk.header_checksum = U32::new(header_checksum(disk));
}

/// Judges the slot read from `place`: its generation and bitmap, or why it is not believed.
pub fn decode<'a>(place: &SlotPlace, slot: &'a [u8]) -> Result<(u64, &'a [u8; BITMAP_BYTES]), SlotProblem> {
    let Ok(disk) = DiskSlot::ref_from_bytes(slot) else {
        return Err(SlotProblem::Magic);
    };
    if disk.magic != MAGIC {
        return Err(SlotProblem::Magic);
    }
    let (expected, found) = (header_checksum(disk), disk.header_checksum.get());
    if expected != found {
        return Err(SlotProblem::Header { expected, found });
    }
    if disk.owner != place.owner {
        return Err(SlotProblem::Owner);
    }
    if disk.group.get() != place.group {
        return Err(SlotProblem::Group { found: disk.group.get() });
    }
    if disk.address.get() != place.address {
        return Err(SlotProblem::Address { found: disk.address.get() });
    }
    let generation = disk.generation.get();
    let (expected, found) = (slot_checksum(disk), disk.slot_checksum.get());
    if expected != found {
        return Err(SlotProblem::Torn { generation, checksum: Some((expected, found)) });
    }
    if disk.used.get() != count_used(&disk.bitmap) {
        return Err(SlotProblem::Torn { generation, checksum: None });
    }
    Ok((generation, &disk.bitmap))
}

fn count_used(bitmap: &[u8; BITMAP_BYTES]) -> u32 {
    bitmap.chunks_exact(8).map(|word| word.iter().map(|byte| byte.count_ones()).sum::<u32>()).sum()
}

fn slot_checksum(disk: &DiskSlot) -> u32 {
    let bytes = disk.as_bytes();
    let head = crc32c::crc32c(&bytes[..offset_of!(DiskSlot, slot_checksum)]);
    let head = crc32c::crc32c_append(head, &[0; 8]);
    crc32c::crc32c_append(head, &bytes[offset_of!(DiskSlot, address)..])
}

fn header_checksum(disk: &DiskSlot) -> u32 {
    let bytes = disk.as_bytes();
    let head = crc32c::crc32c(&bytes[..offset_of!(DiskSlot, header_checksum)]);
    let head = crc32c::crc32c_append(head, &[0; 4]);
    crc32c::crc32c_append(head, &bytes[offset_of!(DiskSlot, address)..HEADER_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: SlotPlace = SlotPlace { owner: [7; 16], group: 3, address: 0x10_0000 };

    fn slot() -> Vec<u8> {
        let mut bitmap = [0; BITMAP_BYTES];
        bitmap[0] = 3;
        bitmap[4031] = 0x80;
        let mut bytes = vec![0xee; BLOCK];
        encode(&PLACE, 42, &bitmap, &mut bytes);
        bytes
    }

    #[test]
    fn a_slot_comes_back() {
        let bytes = slot();
        let (generation, bitmap) = decode(&PLACE, &bytes).expect("a whole slot");
        assert_eq!((generation, bitmap[0], bitmap[1], bitmap[4031]), (42, 3, 0, 0x80));
    }

    #[test]
    fn every_flipped_bit_is_seen_and_the_generation_is_trusted_only_below_a_whole_header() {
        for bit in 0..BLOCK * 8 {
            let mut bytes = slot();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let problem = decode(&PLACE, &bytes).expect_err("a flipped bit is seen");
            match problem {
                SlotProblem::Torn { generation, .. } => {
                    assert!(bit / 8 >= HEADER_BYTES, "bit {bit}: {problem}");
                    assert_eq!(generation, 42);
                }
                SlotProblem::Magic => assert!(bit / 8 < 8),
                other => assert!(matches!(other, SlotProblem::Header { .. }), "bit {bit}: {other}"),
            }
        }
    }

    #[test]
    fn a_slot_of_somewhere_else_is_named() {
        let bytes = slot();
        let at = |place| decode(&place, &bytes).err();
        assert_eq!(at(SlotPlace { owner: [8; 16], ..PLACE }), Some(SlotProblem::Owner));
        assert_eq!(at(SlotPlace { group: 4, ..PLACE }), Some(SlotProblem::Group { found: 3 }));
        assert_eq!(at(SlotPlace { address: 0, ..PLACE }), Some(SlotProblem::Address { found: 0x10_0000 }));
        assert_eq!(decode(&PLACE, &[0; BLOCK]).err(), Some(SlotProblem::Magic));
        assert_eq!(decode(&PLACE, &[]).err(), Some(SlotProblem::Magic));
    }
}
