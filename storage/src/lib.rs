//! The storage engine of subvold: synchronous, without actors, without a clock and without randomness.
//!
//! Order of dependencies, lowest first: `limits`, `types` → `format` → `device` → `space`, `tree` → `operation`, `fs`
//! → `log` → `subvolume` → `transaction`, `store`. A subvolume is a value that one owner changes; everything shared
//! between owners (device, caches, space, data in flight) lives in [`store::Store`].

pub mod device;
pub mod error;
pub mod format;
pub mod fs;
mod hash;
pub mod limits;
pub mod log;
pub mod operation;
pub mod space;
pub mod store;
pub mod subvolume;
pub mod transaction;
pub mod tree;
pub mod types;
