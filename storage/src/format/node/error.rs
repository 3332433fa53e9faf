//! Why the bytes of a tree node are refused. Each check of [`super::NodeReader`] has its own reason, so that a report
//! of damage tells a misdirected write from a lost one, and both from a flipped bit.

use crate::limits::NODE_BYTES;
use thiserror::Error;

/// What is wrong with the bytes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// Not 16 KiB.
    #[error("{found} bytes instead of {NODE_BYTES}")]
    Length {
        /// Bytes given.
        found: usize,
    },
    /// Not a node.
    #[error("magic {found:#010x} is not that of a tree node")]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// Damaged.
    #[error("checksum {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// As it stands in the header.
        found: u32,
        /// Of the bytes given.
        computed: u32,
    },
    /// Written for another place.
    #[error("node of address {found} where {expected} was to be")]
    Address {
        /// The address in the header.
        found: u64,
        /// The address in the pointer.
        expected: u64,
    },
    /// Written at another time.
    #[error("generation {found} instead of {expected}")]
    Generation {
        /// The generation in the header.
        found: u64,
        /// The generation in the pointer.
        expected: u64,
    },
    /// Written by another tree.
    #[error("owner {found} instead of {expected}")]
    Owner {
        /// The owner in the header.
        found: u64,
        /// The owner of the tree that reads.
        expected: u64,
    },
    /// At another height of the tree.
    #[error("level {found} instead of {expected}")]
    Level {
        /// The level in the header.
        found: u8,
        /// The level in the pointer.
        expected: u8,
    },
    /// An internal node without children, or more slots than fit.
    #[error("a count of {count} slots is impossible")]
    Count {
        /// Slots, as the header says.
        count: u16,
    },
    /// A field that this version writes as zero is not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A kind of item that this version does not know.
    #[error("slot {slot} has the unknown kind {kind}")]
    Kind {
        /// Index of the slot.
        slot: usize,
        /// The number read.
        kind: u8,
    },
    /// Keys do not grow.
    #[error("the key of slot {slot} is not above the one before it")]
    Order {
        /// Index of the slot.
        slot: usize,
    },
    /// Data out of bounds, overlapping, with gaps, or of an impossible length.
    #[error("the data of slot {slot} is not where it must be")]
    Data {
        /// Index of the slot.
        slot: usize,
    },
    /// A child pointer that cannot be.
    #[error("slot {slot} has an impossible child")]
    Child {
        /// Index of the slot.
        slot: usize,
    },
}
