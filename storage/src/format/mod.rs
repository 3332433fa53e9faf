//! The disk format: fixed little-endian layouts and nothing else. `ops/docs/format.md` is its document.

pub mod group;
pub mod item;
pub mod key;
pub mod log_batch;
pub mod node;
pub mod root_item;
pub mod superblock;
