//! What can be wrong with the space of a store. None of these is "full": that is [`super::NoSpace`], or `None`.

use super::Run;
use crate::device::DeviceError;
use crate::format::group::SlotProblem;
use std::fmt;
use thiserror::Error;

/// What was found in a bitmap slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Whole, of this generation.
    Whole(u64),
    /// Not to be believed.
    Broken(SlotProblem),
}

impl fmt::Display for SlotState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(generation) => write!(formatter, "generation {generation}"),
            Self::Broken(problem) => problem.fmt(formatter),
        }
    }
}

/// Why the space of a store cannot be used, or a change of it was refused. A refused change changed nothing.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is smaller than when it was formatted.
    #[error("the device has {size} bytes, the store was made for {expected}")]
    DeviceTooSmall {
        /// Bytes of the device.
        size: u64,
        /// Bytes of the geometry.
        expected: u64,
    },
    /// It is not certain which slot of a group is the newest that counts, or that slot is damaged.
    #[error(
        "the free-space bitmap of group {group} is damaged (slot 0: {}; slot 1: {}; the superblock is of \
         generation {generation}); run `check --repair`", slots[0], slots[1]
    )]
    BitmapDamaged {
        /// Number of the group.
        group: u64,
        /// Generation of the superblock.
        generation: u64,
        /// What was found.
        slots: [SlotState; 2],
    },
    /// A whole slot says what cannot be: its own blocks, or blocks past the end, are free.
    #[error("the free-space bitmap of group {group} gives away its own blocks; run `check --repair`")]
    BitmapImpossible {
        /// Number of the group.
        group: u64,
    },
    /// Blocks that are no allocatable blocks of one group: a damaged address.
    #[error("blocks {}..{} do not lie in a group", .run.start, .run.end())]
    OutsideGroups {
        /// The blocks.
        run: Run,
    },
    /// A block is twice in a list of blocks freed or allocated by one transaction: freed twice.
    #[error("block {block} is listed twice by one transaction")]
    ListedTwice {
        /// The block.
        block: u64,
    },
    /// A transaction allocated blocks that the durable state uses, or that nobody was given.
    #[error("blocks {}..{} were not given to this transaction", .run.start, .run.end())]
    NotAllocated {
        /// The blocks.
        run: Run,
    },
    /// A transaction freed blocks that are not in use.
    #[error("blocks {}..{} are freed but not in use", .run.start, .run.end())]
    NotInUse {
        /// The blocks.
        run: Run,
    },
    /// Replay refers to blocks that the durable state uses for something else.
    #[error("blocks {}..{} of the log are used by the committed state", .run.start, .run.end())]
    ClaimedDurable {
        /// The blocks.
        run: Run,
    },
    /// Replay refers to blocks twice.
    #[error("blocks {}..{} of the log are claimed twice", .run.start, .run.end())]
    ClaimedTwice {
        /// The blocks.
        run: Run,
    },
}
