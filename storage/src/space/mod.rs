//! Free space: which blocks of the device are used, who may take how many, and when a freed block may be used again.
//!
//! # Two views
//! Every block has two bits in memory. `durable` is what the last durable commit says, and what its bitmap slots on
//! the device say. `live` is `durable`, plus what was allocated since, plus what was freed since and is still
//! **pinned**: a block freed in transaction N is referenced by the durable state until the superblock of N is
//! durable, and a crash before that goes back to it. So
//! - allocation takes only blocks free in `live`, and asserts that they are free in `durable` and not pinned;
//! - commit N writes `durable + allocated by N - freed by N`, nothing of N+1 which is running already;
//! - [`SpaceManager::finish_commit`] makes that the new `durable` and unpins what N freed.
//!
//! # Who does what
//! `run` lists of blocks · `geometry` areas of the device · `bitmap` one group's bits · `account` counters and
//! reservations · `manager` allocation · `commit` the steps of a commit · `load` slots on the device ·
//! `window` allocation without a lock · `unpin` other ways to unpin, for comparison only.

mod account;
mod bitmap;
mod commit;
mod error;
mod geometry;
mod load;
mod manager;
mod run;
#[cfg(test)]
mod tests;
mod unpin;
mod window;

pub use account::{Class, NoSpace, SpaceStatistics, emergency_blocks};
pub use commit::{BitmapImages, Unpinned};
pub use error::{SlotState, SpaceError};
pub use geometry::{
    GROUP_BLOCKS_MIN, Geometry, GeometryError, HEAD_BYTES, RING_BYTES_MIN, SUPERBLOCK_ADDRESSES,
};
pub use manager::SpaceManager;
pub use run::{Run, RunList, SortedRuns};
pub use unpin::{PinnedRanges, UnpinStrategy};
pub use window::{AllocationWindow, WINDOW_BLOCKS_MAX, WINDOW_BLOCKS_MIN};
