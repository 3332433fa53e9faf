//! The disk layout of a tree node: 16 KiB, little-endian, checked completely before anything in it is believed.
//!
//! ```text
//! 0         64                                  data_start                        16384
//! | header  | slot 0 | slot 1 | ... | slot n-1 | zeros | data n-1 | ... | data 1 | data 0 |
//! ```
//!
//! Invariants of a valid node, all enforced by [`NodeReader`]:
//! - the checksum covers everything after itself; address, generation, level and owner are those that the parent
//!   (or the root item) names, so a block that was written elsewhere, or not at all, is found out;
//! - keys grow strictly; kinds are known;
//! - the data of slot 0 ends at the end of the node, the data of every further slot ends where that of the slot
//!   before it begins, the last one begins at `data_start`, and all between slots and data is zero. So nothing
//!   overlaps, no stale memory reaches the device, and one content has exactly one encoding;
//! - a leaf's values have at most [`ITEM_BYTES_MAX`] bytes; every datum of an internal node is one child pointer,
//!   there is at least one, and no child is younger than its parent.
//!
//! Bytes come from a device that may lie: nothing here panics on them.

mod error;

pub use error::NodeError;

use crate::format::key::{ItemKind, Key};
use crate::limits::{BLOCK_BYTES, ITEM_BYTES_MAX, NODE_BYTES};
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First four bytes of every node: "svnd".
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"svnd");
/// Size of the header, in bytes.
pub const HEADER_BYTES: usize = 64;
/// Size of one slot, in bytes; an item costs this and its value.
pub const SLOT_BYTES: usize = 24;
/// Size of a child pointer in an internal node, in bytes.
pub const CHILD_BYTES: usize = 16;
/// What slots and data of a node may take together, in bytes.
pub const NODE_CAPACITY: usize = NODE_BYTES - HEADER_BYTES;
/// Most children of an internal node.
pub const CHILDREN_MAX: usize = NODE_CAPACITY / (SLOT_BYTES + CHILD_BYTES);
/// Highest level of a node. A leaf is at 0; nodes are at least half full when they split, so 2^64 items stay below it.
pub const LEVEL_MAX: u8 = 15;

const _: () = {
    assert!(size_of::<NodeHeader>() == HEADER_BYTES);
    assert!(size_of::<NodeSlot>() == SLOT_BYTES);
    assert!(size_of::<NodeChild>() == CHILD_BYTES);
    assert!(NODE_BYTES <= u16::MAX as usize, "offsets within a node are 16 bits wide");
    // A split by bytes puts at most half and one item on the left side: that must fit.
    assert!((NODE_CAPACITY + SLOT_BYTES + ITEM_BYTES_MAX) / 2 + SLOT_BYTES + ITEM_BYTES_MAX <= NODE_CAPACITY);
};

/// The first 64 bytes of a node.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NodeHeader {
    magic: U32,
    /// crc32c of bytes 8 .. 16384.
    checksum: U32,
    /// Where this node was meant to be written: finds misdirected writes and reads.
    address: U64,
    /// Transaction that wrote it: finds a write that never happened, when an older node is still there.
    generation: U64,
    /// Tree that wrote it.
    owner: U64,
    count: U16,
    data_start: U16,
    level: u8,
    reserved: [u8; 27],
}

/// Key of one item, and where in the node its data is.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NodeSlot {
    inode: U64,
    offset: U64,
    kind: u8,
    reserved: u8,
    data_offset: U16,
    data_length: U16,
    padding: U16,
}

/// Datum of a slot in an internal node; the child's level is one less than the node's.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NodeChild {
    address: U64,
    generation: U64,
}

/// Where a node is, and what must be found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockPointer {
    /// First byte on the device; a multiple of 4096, never 0.
    pub address: u64,
    /// Transaction that wrote the node.
    pub generation: u64,
    /// 0 = leaf.
    pub level: u8,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEntry<'a> {
    /// Value of a leaf's item.
    Item(&'a [u8]),
    /// Child of an internal node.
    Child(BlockPointer),
}

/// A node whose header passed every check; the slots are checked while they are read.
pub struct NodeReader<'a> {
    bytes: &'a [u8],
    slots: &'a [NodeSlot],
    generation: u64,
    level: u8,
    index: usize,
    previous: Option<Key>,
    data_end: usize,
}

/// Checks the whole of a node that `expected` points to in the tree of `owner`.
pub fn verify(bytes: &[u8], expected: &BlockPointer, owner: u64) -> Result<(), NodeError> {
    NodeReader::open(bytes, expected, owner)?.try_for_each(|entry| entry.map(|_| ()))
}

/// crc32c of the part of a node that the checksum covers; anything shorter than that field has that of nothing.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes.get(8..).unwrap_or_default())
}

impl<'a> NodeReader<'a> {
    /// Checks everything of a node but its slots, which the iteration checks one by one.
    pub fn open(bytes: &'a [u8], expected: &BlockPointer, owner: u64) -> Result<Self, NodeError> {
        let length = NodeError::Length { found: bytes.len() };
        if bytes.len() != NODE_BYTES {
            return Err(length);
        }
        let (header, rest) = NodeHeader::ref_from_prefix(bytes).map_err(|_| length)?;
        if header.magic.get() != NODE_MAGIC {
            return Err(NodeError::Magic { found: header.magic.get() });
        }
        let (found, computed) = (header.checksum.get(), checksum(bytes));
        if found != computed {
            return Err(NodeError::Checksum { found, computed });
        }
        header.matches(expected, owner)?;
        let count = header.count.get();
        if header.level > 0 && (count == 0 || usize::from(count) > CHILDREN_MAX) {
            return Err(NodeError::Count { count });
        }
        let (slots, _) = <[NodeSlot]>::ref_from_prefix_with_elems(rest, usize::from(count))
            .map_err(|_| NodeError::Count { count })?;
        let slots_end = HEADER_BYTES + SLOT_BYTES * slots.len();
        let data_start = usize::from(header.data_start.get());
        let last = slots.len().saturating_sub(1);
        if data_start != slots.last().map_or(NODE_BYTES, |slot| usize::from(slot.data_offset.get())) {
            return Err(NodeError::Data { slot: last });
        }
        let gap = bytes.get(slots_end..data_start).ok_or(NodeError::Data { slot: last })?;
        if header.reserved != [0; 27] || gap.iter().any(|byte| *byte != 0) {
            return Err(NodeError::Reserved);
        }
        Ok(Self {
            bytes,
            slots,
            generation: expected.generation,
            level: expected.level,
            index: 0,
            previous: None,
            data_end: NODE_BYTES,
        })
    }

    /// Slots of the node.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// All data of the node together, in bytes.
    pub fn data_bytes(&self) -> usize {
        NODE_BYTES - self.slots.last().map_or(NODE_BYTES, |slot| usize::from(slot.data_offset.get()))
    }

    fn check(&mut self, slot: &NodeSlot, index: usize) -> Result<(Key, NodeEntry<'a>), NodeError> {
        let kind = ItemKind::from_u8(slot.kind).ok_or(NodeError::Kind { slot: index, kind: slot.kind })?;
        let key = Key::new(slot.inode.get(), kind, slot.offset.get());
        if self.previous.is_some_and(|previous| previous >= key) {
            return Err(NodeError::Order { slot: index });
        }
        if slot.reserved != 0 || slot.padding.get() != 0 {
            return Err(NodeError::Reserved);
        }
        let start = usize::from(slot.data_offset.get());
        if start + usize::from(slot.data_length.get()) != self.data_end {
            return Err(NodeError::Data { slot: index });
        }
        let data = self.bytes.get(start..self.data_end).ok_or(NodeError::Data { slot: index })?;
        self.previous = Some(key);
        self.data_end = start;
        if self.level == 0 {
            let fits = data.len() <= ITEM_BYTES_MAX;
            return if fits {
                Ok((key, NodeEntry::Item(data)))
            } else {
                Err(NodeError::Data { slot: index })
            };
        }
        let child = NodeChild::read_from_bytes(data).map_err(|_| NodeError::Data { slot: index })?;
        let (address, generation) = (child.address.get(), child.generation.get());
        if address == 0 || !address.is_multiple_of(BLOCK_BYTES) || generation > self.generation {
            return Err(NodeError::Child { slot: index });
        }
        Ok((key, NodeEntry::Child(BlockPointer { address, generation, level: self.level - 1 })))
    }
}

impl<'a> Iterator for NodeReader<'a> {
    type Item = Result<(Key, NodeEntry<'a>), NodeError>;

    /// The next slot. After an error nothing that was read before it may be believed either.
    fn next(&mut self) -> Option<Self::Item> {
        let slot = *self.slots.get(self.index)?;
        self.index += 1;
        Some(self.check(&slot, self.index - 1))
    }
}

impl NodeHeader {
    fn matches(&self, expected: &BlockPointer, owner: u64) -> Result<(), NodeError> {
        if self.address.get() != expected.address {
            return Err(NodeError::Address { found: self.address.get(), expected: expected.address });
        }
        if self.generation.get() != expected.generation {
            return Err(NodeError::Generation {
                found: self.generation.get(),
                expected: expected.generation,
            });
        }
        if self.owner.get() != owner {
            return Err(NodeError::Owner { found: self.owner.get(), expected: owner });
        }
        if self.level != expected.level || self.level > LEVEL_MAX {
            return Err(NodeError::Level { found: self.level, expected: expected.level });
        }
        Ok(())
    }
}

/// Writes one node: entries in the order of their keys, then [`NodeWriter::finish`].
///
/// The caller keeps the invariants of this file; what would not fit panics, since it is not outside input.
pub struct NodeWriter<'a> {
    bytes: &'a mut [u8],
    index: usize,
    count: usize,
    data_start: usize,
}

impl<'a> NodeWriter<'a> {
    /// Starts a node of `count` slots in a buffer of 16 KiB, whatever it holds.
    pub fn new(bytes: &'a mut [u8], count: usize) -> Self {
        assert_eq!(bytes.len(), NODE_BYTES, "a node is written into a buffer of its size");
        Self { bytes, index: 0, count, data_start: NODE_BYTES }
    }

    /// Adds an item of a leaf.
    pub fn item(&mut self, key: &Key, value: &[u8]) {
        assert!(value.len() <= ITEM_BYTES_MAX, "item of {} bytes", value.len());
        self.push(key, value);
    }

    /// Adds a child of an internal node.
    pub fn child(&mut self, key: &Key, child: &BlockPointer) {
        assert!(child.address != 0 && child.address.is_multiple_of(BLOCK_BYTES), "child without an address");
        let child = NodeChild { address: child.address.into(), generation: child.generation.into() };
        self.push(key, child.as_bytes());
    }

    fn push(&mut self, key: &Key, data: &[u8]) {
        let slots_end = HEADER_BYTES + SLOT_BYTES * self.count;
        let start = self.data_start - data.len();
        assert!(self.index < self.count && start >= slots_end, "the node overflows");
        self.bytes[start..self.data_start].copy_from_slice(data);
        let slot = NodeSlot {
            inode: key.inode.into(),
            offset: key.offset.into(),
            kind: key.kind as u8,
            reserved: 0,
            data_offset: (start as u16).into(),
            data_length: (data.len() as u16).into(),
            padding: 0.into(),
        };
        let slot_start = HEADER_BYTES + SLOT_BYTES * self.index;
        self.bytes[slot_start..slot_start + SLOT_BYTES].copy_from_slice(slot.as_bytes());
        self.data_start = start;
        self.index += 1;
    }

    /// Completes the node as the one that `own` points to in the tree of `owner`.
    pub fn finish(self, own: &BlockPointer, owner: u64) {
        assert_eq!(self.index, self.count, "as many entries as announced");
        assert!(own.level <= LEVEL_MAX && own.address != 0 && own.address.is_multiple_of(BLOCK_BYTES));
        self.bytes[HEADER_BYTES + SLOT_BYTES * self.count..self.data_start].fill(0);
        let mut header = NodeHeader {
            magic: NODE_MAGIC.into(),
            checksum: 0.into(),
            address: own.address.into(),
            generation: own.generation.into(),
            owner: owner.into(),
            count: (self.count as u16).into(),
            data_start: (self.data_start as u16).into(),
            level: own.level,
            reserved: [0; 27],
        };
        self.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        header.checksum = checksum(self.bytes).into();
        self.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    }
}
