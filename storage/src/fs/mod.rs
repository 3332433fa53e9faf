//! File operations: each file plans one kind of operation or answers one kind of question.
//!
//! Planning reads a [`view::View`] and returns a [`plan::Plan`]; [`crate::subvolume::Subvolume`] executes plans.

pub mod acl;
#[cfg(test)]
mod acl_tests;
pub mod allocate;
pub mod attributes;
pub mod block_ranges;
pub mod create;
pub mod data_cache;
pub mod directory;
pub mod dispatch;
pub mod extents;
pub mod inode_set;
pub mod link;
pub mod lookup;
pub mod names;
pub mod orphan;
pub mod pages;
pub mod path;
pub mod plan;
pub mod read;
pub mod reclaim;
pub mod rename;
pub mod replay_data;
pub mod resize;
pub mod seek;
pub mod unlink;
pub mod view;
pub mod write;
pub mod writeback;
pub mod xattr;

#[cfg(test)]
mod data_bench;
#[cfg(test)]
mod data_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod rename_tests;
#[cfg(test)]
mod test_support;
