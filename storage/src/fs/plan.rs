//! A planned operation: everything it will change, found out by pure reads before anything is changed.
//!
//! Invariants: planning changes nothing, so it may stop anywhere with `Missing` and be run again; executing a plan
//! cannot fail; the keys of `mutations` are distinct; a plan is executed against exactly the state it was made from.

use crate::format::key::Key;
use crate::fs::pages::Below;
use crate::tree::{ItemValue, Mutation};
use crate::types::{DeviceRange, InodeNumber};
use bytes::Bytes;
use smallvec::SmallVec;

/// Everything an operation changes.
#[derive(Debug, Default)]
pub struct Plan {
    /// Items put and deleted.
    pub mutations: Vec<Mutation>,
    /// Change of the subvolume's bytes in use.
    pub bytes: i64,
    /// Change of the subvolume's inodes in use.
    pub inodes: i64,
    /// Identifiers used, from `Resolved::next_id` on.
    pub ids_used: u64,
    /// Changes of the dirty pages, in order.
    pub pages: Vec<PageEffect>,
    /// Device blocks that the tree no longer refers to, with the generation they were written in.
    pub released: Vec<Released>,
    /// Device blocks newly referred to (preallocation), taken from the allocator by the executor beforehand.
    pub preallocate: Vec<PreallocateRequest>,
    /// Blocks for which the executor reserves space beforehand: pages that become dirty here and will need a new
    /// device block at writeback. Not counted: pages over preallocated space, and `preallocate`, which is taken at once.
    pub reserve_blocks: u64,
    /// Device blocks that the tree newly refers to although this plan did not take them from the allocator: extents
    /// that the log names. Replay marks them as allocated.
    pub claimed: Vec<DeviceRange>,
    /// Inodes whose unlogged data must enter the log before this record (promise S3: a file renamed over another
    /// is complete old or complete new).
    pub log_data_first: SmallVec<[InodeNumber; 2]>,
    /// Inodes changed: their handles' last change is this operation.
    pub touched: SmallVec<[InodeNumber; 4]>,
    /// The operation needs no record and changes nothing (rename onto itself, empty write).
    pub no_change: bool,
    /// The inode the operation made or acted on, for the reply.
    pub inode: InodeNumber,
    /// An inode whose last name went: `None`, or the inode and whether it stays as an orphan.
    pub unnamed: Option<(InodeNumber, bool)>,
}

/// Blocks that lost their last reference in this tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Where.
    pub range: DeviceRange,
    /// Transaction that wrote them.
    pub generation: u64,
}

/// File blocks that get preallocated extents. The executor allocates and inserts the extent items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreallocateRequest {
    /// Whose.
    pub inode: InodeNumber,
    /// First file byte; multiple of 4096.
    pub offset: u64,
    /// Bytes; multiple of 4096.
    pub length: u64,
}

/// A change of the in-memory pages of a file.
#[derive(Clone, Debug)]
pub enum PageEffect {
    /// Blocks that were not dirty become dirty, all zeros for now. Comes before `Base` and `Write` of them.
    Dirty {
        /// Whose.
        inode: InodeNumber,
        /// First block (offset / 4096).
        from: u64,
        /// The block after the last.
        to: u64,
        /// What the tree maps there.
        below: Below,
    },
    /// The bytes stand at this offset from now on; all blocks are dirty (before, or by `Dirty`).
    Write {
        /// Whose.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A dirty block that will be changed in part gets these contents first (read from its extent).
    Base {
        /// Whose.
        inode: InodeNumber,
        /// Which block (offset / 4096).
        block: u64,
        /// Its contents.
        contents: PageBytes,
    },
    /// Bytes of an in-memory block become zero.
    Zero {
        /// Whose.
        inode: InodeNumber,
        /// First byte; the range lies in one block that is dirty.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Dirty blocks are dropped, and what is there on the device need not be logged any more.
    Discard {
        /// Whose.
        inode: InodeNumber,
        /// First block.
        from: u64,
        /// First block that stays; `u64::MAX` = all.
        to: u64,
    },
}

/// Contents of one block.
pub type PageBytes = std::sync::Arc<[u8; crate::limits::BLOCK]>;

impl Plan {
    /// Adds a put.
    pub fn put(&mut self, key: Key, value: impl Into<ItemValue>) {
        self.mutations.push(Mutation::put(key, value.into()));
    }

    /// Adds a delete of an item that is there.
    pub fn delete(&mut self, key: Key) {
        self.mutations.push(Mutation::delete(key));
    }
}
