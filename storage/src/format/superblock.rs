//! The superblock: the one block that says what is the current state of the store.
//!
//! Two slots are written in turn, each 4 KiB with its own checksum and address. The newest sound slot, by
//! (generation, server epoch), is the truth. Invariants: a slot is only written after everything it points to has
//! been flushed; the other slot is intact meanwhile, so a torn write falls back to the state before.

use crate::limits::BLOCK;
use crate::tree::BlockPointer;
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every superblock.
pub const MAGIC: [u8; 8] = *b"SUBVOLD\x01";
/// Version of the disk format that this engine writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 1;

/// A tree root as it stands on disk; address 0 = an empty tree.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskPointer {
    address: U64,
    generation: U64,
    level: u8,
    reserved: [u8; 7],
}

impl From<Option<BlockPointer>> for DiskPointer {
    fn from(pointer: Option<BlockPointer>) -> Self {
        pointer.map_or_else(Self::default, |pointer| Self {
            address: U64::new(pointer.address),
            generation: U64::new(pointer.generation),
            level: pointer.level,
            reserved: [0; 7],
        })
    }
}

impl From<DiskPointer> for Option<BlockPointer> {
    fn from(disk: DiskPointer) -> Self {
        (disk.address.get() != 0).then(|| BlockPointer {
            address: disk.address.get(),
            generation: disk.generation.get(),
            level: disk.level,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskSuperblock {
    magic: [u8; 8],
    checksum: U32,
    format_version: U32,
    address: U64,
    device_id: [u8; 16],
    generation: U64,
    server_epoch: U64,
    device_bytes: U64,
    ring_offset: U64,
    ring_bytes: U64,
    root_tree: DiskPointer,
    references_tree: DiskPointer,
    log_tail_sequence: U64,
    log_tail_offset: U64,
    log_tail_chain: U32,
    reserved: U32,
    next_subvolume_id: U64,
    next_tenant_id: U64,
    previous_epoch: U64,
    previous_epoch_generation: U64,
    recovered_epoch: U64,
    features: U64,
}
/// All fields lie in one sector: a torn write leaves the old superblock or the new one.
const _: () = assert!(size_of::<DiskSuperblock>() <= 512);
/// The checksum covers the block from here on.
const CHECKED_FROM: usize = 12;

/// Where replay of the log starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTail {
    /// Sequence number that the batch there must have.
    pub sequence: u64,
    /// Byte offset within the ring; multiple of 4096.
    pub offset: u64,
    /// Checksum of the batch before, which the batch there must name.
    pub chain: u32,
}

/// The superblock in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random identity of the store, made at format time.
    pub device_id: [u8; 16],
    /// The newest durable transaction.
    pub generation: u64,
    /// The newest start of a server.
    pub server_epoch: u64,
    /// Size the store was formatted for, in bytes.
    pub device_bytes: u64,
    /// First byte of the log ring.
    pub ring_offset: u64,
    /// Size of the log ring, in bytes.
    pub ring_bytes: u64,
    /// Root of the root tree.
    pub root_tree: Option<BlockPointer>,
    /// Root of the references tree.
    pub references_tree: Option<BlockPointer>,
    /// Where replay starts.
    pub log_tail: LogTail,
    /// Next subvolume number.
    pub next_subvolume_id: u64,
    /// Next tenant number.
    pub next_tenant_id: u64,
    /// The last epoch before this one that served clients (promise S6: its tickets can be judged).
    pub previous_epoch: u64,
    /// The newest transaction that was durable when that epoch ended.
    pub previous_epoch_generation: u64,
    /// The newest epoch that finished its replay, so that it may have served clients.
    pub recovered_epoch: u64,
    /// Feature bits; an unknown one is refused.
    pub features: u64,
}

/// Why a block is not a superblock that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// Nothing of ours.
    #[error("no subvold store here")]
    NotAStore,
    /// Ours, but damaged.
    #[error("the superblock is damaged (checksum or address)")]
    Damaged,
    /// One slot is damaged and the other may be older.
    #[error(
        "the superblock slot at byte {address} is damaged; the other one holds transaction {other}, which may be older \
         than what was acknowledged. Restore the device, or start with --accept-older-superblock to go back to it"
    )]
    SlotDamaged {
        /// The damaged slot.
        address: u64,
        /// Generation of the other slot.
        other: u64,
    },
    /// Ours, of another version.
    #[error("the store has format version {0}; this server reads version {FORMAT_VERSION} only")]
    OtherVersion(u32),
    /// Ours, with features that this server does not know.
    #[error("the store uses unknown features {0:#x}; use a newer server")]
    UnknownFeatures(u64),
}

impl Superblock {
    /// The block for the slot at `address`.
    pub fn encode(&self, address: u64, out: &mut [u8]) {
        assert_eq!(out.len(), BLOCK);
        let mut disk = DiskSuperblock {
            magic: MAGIC,
            checksum: U32::new(0),
            format_version: U32::new(FORMAT_VERSION),
            address: U64::new(address),
            device_id: self.device_id,
            generation: U64::new(self.generation),
            server_epoch: U64::new(self.server_epoch),
            device_bytes: U64::new(self.device_bytes),
            ring_offset: U64::new(self.ring_offset),
            ring_bytes: U64::new(self.ring_bytes),
            root_tree: self.root_tree.into(),
            references_tree: self.references_tree.into(),
            log_tail_sequence: U64::new(self.log_tail.sequence),
            log_tail_offset: U64::new(self.log_tail.offset),
            log_tail_chain: U32::new(self.log_tail.chain),
            reserved: U32::new(0),
            next_subvolume_id: U64::new(self.next_subvolume_id),
            next_tenant_id: U64::new(self.next_tenant_id),
            previous_epoch: U64::new(self.previous_epoch),
            previous_epoch_generation: U64::new(self.previous_epoch_generation),
            recovered_epoch: U64::new(self.recovered_epoch),
            features: U64::new(self.features),
        };
        out.fill(0);
        out[..size_of::<DiskSuperblock>()].copy_from_slice(disk.as_bytes());
        disk.checksum = U32::new(crc32c::crc32c(&out[CHECKED_FROM..]));
        out[..size_of::<DiskSuperblock>()].copy_from_slice(disk.as_bytes());
    }

    /// The superblock in the block read from `address`.
    pub fn decode(address: u64, block: &[u8]) -> Result<Self, SuperblockError> {
        let mut disk = DiskSuperblock::new_zeroed();
        let Some(head) = block.get(..size_of::<DiskSuperblock>()).filter(|_| block.len() == BLOCK) else {
            return Err(SuperblockError::NotAStore);
        };
        disk.as_mut_bytes().copy_from_slice(head);
        if disk.magic != MAGIC {
            return Err(SuperblockError::NotAStore);
        }
        if crc32c::crc32c(&block[CHECKED_FROM..]) != disk.checksum.get() || disk.address.get() != address {
            return Err(SuperblockError::Damaged);
        }
        if disk.format_version.get() != FORMAT_VERSION {
            return Err(SuperblockError::OtherVersion(disk.format_version.get()));
        }
        if disk.features.get() != 0 {
            return Err(SuperblockError::UnknownFeatures(disk.features.get()));
        }
        Ok(Self {
            device_id: disk.device_id,
            generation: disk.generation.get(),
            server_epoch: disk.server_epoch.get(),
            device_bytes: disk.device_bytes.get(),
            ring_offset: disk.ring_offset.get(),
            ring_bytes: disk.ring_bytes.get(),
            root_tree: disk.root_tree.into(),
            references_tree: disk.references_tree.into(),
            log_tail: LogTail {
                sequence: disk.log_tail_sequence.get(),
                offset: disk.log_tail_offset.get(),
                chain: disk.log_tail_chain.get(),
            },
            next_subvolume_id: disk.next_subvolume_id.get(),
            next_tenant_id: disk.next_tenant_id.get(),
            previous_epoch: disk.previous_epoch.get(),
            previous_epoch_generation: disk.previous_epoch_generation.get(),
            recovered_epoch: disk.recovered_epoch.get(),
            features: disk.features.get(),
        })
    }

    /// Which of two sound slots is the truth.
    pub const fn is_newer_than(&self, other: &Self) -> bool {
        self.generation > other.generation
            || self.generation == other.generation && self.server_epoch > other.server_epoch
    }
}

/// The superblock of a change, compared with the one before: what must never happen. Asserted before each write.
pub fn assert_monotonic(old: &Superblock, new: &Superblock) {
    assert_eq!(old.device_id, new.device_id, "a superblock of another store");
    assert!(new.is_newer_than(old), "superblocks must grow: {old:?} then {new:?}");
    assert!(new.server_epoch >= old.server_epoch, "the server epoch must not fall");
    assert!(new.log_tail.sequence >= old.log_tail.sequence, "the log's tail must not move back");
    assert!(new.next_subvolume_id >= old.next_subvolume_id && new.next_tenant_id >= old.next_tenant_id);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            device_id: [7; 16],
            generation: 5,
            server_epoch: 2,
            device_bytes: 1 << 30,
            ring_offset: 1 << 20,
            ring_bytes: 4 << 20,
            root_tree: Some(BlockPointer { address: 4096 * 77, generation: 5, level: 1 }),
            references_tree: None,
            log_tail: LogTail { sequence: 9, offset: 8192, chain: 1 },
            next_subvolume_id: 300,
            next_tenant_id: 4,
            previous_epoch: 1,
            previous_epoch_generation: 4,
            recovered_epoch: 2,
            features: 0,
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut block = vec![0; BLOCK];
        sample().encode(65536, &mut block);
        assert_eq!(Superblock::decode(65536, &block), Ok(sample()));
        assert_eq!(Superblock::decode(131_072, &block), Err(SuperblockError::Damaged));
        for bit in 0..BLOCK * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(65536, &block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn other_versions_and_features_are_named() {
        let mut block = vec![0; BLOCK];
        let mut future = sample();
        future.features = 2;
        future.encode(65536, &mut block);
        assert_eq!(Superblock::decode(65536, &block), Err(SuperblockError::UnknownFeatures(2)));
        sample().encode(65536, &mut block);
        block[12..16].copy_from_slice(&9u32.to_le_bytes());
        let sum = crc32c::crc32c(&block[CHECKED_FROM..]);
        block[8..12].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::decode(65536, &block), Err(SuperblockError::OtherVersion(9)));
        assert_eq!(Superblock::decode(65536, &[0; BLOCK]), Err(SuperblockError::NotAStore));
        assert_eq!(Superblock::decode(65536, b"short"), Err(SuperblockError::NotAStore));
    }

    #[test]
    #[should_panic(expected = "superblocks must grow")]
    fn an_older_superblock_is_never_written() {
        let mut older = sample();
        older.generation = 4;
        assert_monotonic(&sample(), &older);
    }
}
