//! What planning an operation may look at: the subvolume's tree, its dirty pages and the block caches.
//!
//! Invariant: a view changes nothing. Whatever is not in memory makes the call end with `Missing` or `MissingData`.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{EntryItem, InodeItem};
use crate::format::key::{ItemKind, Key};
use crate::fs::pages::PageTable;
use crate::fs::plan::PageBytes;
use crate::limits::NAME_BYTES_MAX;
use crate::operation::Resolved;
use crate::tree::{BlockPointer, ItemValue, Node, NodeCache, NodeSource, Tree};
use crate::types::{InodeNumber, TransactionId};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Tree nodes in memory: the shared cache and what was fetched for an operation that is being run again (so that the
/// cache cannot evict it before it is used).
pub struct Nodes<'a> {
    /// The shared cache.
    pub cache: &'a NodeCache,
    /// Fetched for this subvolume, by address.
    pub staged: &'a FxHashMap<u64, Arc<Node>>,
}

impl NodeSource for Nodes<'_> {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        if !self.staged.is_empty()
            && let Some(node) = self.staged.get(&pointer.address)
            // The block may have been freed and used again since it was staged.
            && node.pointer() == Some(*pointer)
        {
            return Some(Arc::clone(node));
        }
        self.cache.cached(pointer)
    }
}

/// File blocks in memory that are not dirty: data on its way to the device, the data cache, and what was fetched for
/// an operation that is being run again.
pub trait BlockSource {
    /// Contents of the block at a device address, written in this generation.
    fn block(&self, address: u64, generation: TransactionId) -> Option<PageBytes>;
}

/// What planning may look at.
pub struct View<'a> {
    /// The subvolume's tree.
    pub tree: &'a Tree,
    /// Its nodes.
    pub nodes: Nodes<'a>,
    /// Its dirty pages.
    pub pages: &'a PageTable,
    /// Clean file blocks.
    pub blocks: &'a dyn BlockSource,
    /// Running transaction.
    pub transid: TransactionId,
    /// Time, identifiers and decisions of the operation (for reads: only `now` matters).
    pub resolved: Resolved,
    /// Is this a replay? Then writes carry no data and quotas were checked before.
    pub replay: bool,
}

impl View<'_> {
    /// The value of an item.
    pub fn get(&self, key: &Key) -> EngineResult<Option<ItemValue>> {
        Ok(self.tree.get(&self.nodes, key)?)
    }

    /// Calls `visit` for every item from `from` to `to` (inclusive), in order, until it breaks.
    pub fn scan(
        &self,
        from: &Key,
        to: &Key,
        visit: impl FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> EngineResult<()> {
        Ok(self.tree.scan(&self.nodes, from, to, visit)?)
    }

    /// The inode; `NotFound` when there is none.
    pub fn inode(&self, inode: InodeNumber) -> EngineResult<InodeItem> {
        let key = Key::new(inode, ItemKind::Inode, 0);
        let parsed = self.tree.get_with(&self.nodes, &key, |bytes| InodeItem::parse(&key, bytes))?;
        match parsed {
            None => Err(FsError::NotFound.into()),
            Some(item) => Ok(item?),
        }
    }

    /// The inode, which must be a directory.
    pub fn directory(&self, inode: InodeNumber) -> EngineResult<InodeItem> {
        let item = self.inode(inode)?;
        if item.is_directory() { Ok(item) } else { Err(FsError::NotDirectory.into()) }
    }

    /// The entry with this name, if there is one.
    pub fn entry(&self, parent: InodeNumber, name: &[u8]) -> EngineResult<Option<FoundEntry>> {
        let base = name_slot(name);
        let from = Key::new(parent, ItemKind::EntryByName, base);
        let to = Key::new(parent, ItemKind::EntryByName, base | SLOT_PROBES);
        let mut found = None;
        let mut broken = None;
        self.scan(&from, &to, |key, bytes| match EntryItem::parse(key, bytes) {
            Ok(entry) if entry.name == name => {
                found = Some(FoundEntry {
                    inode: entry.inode,
                    entry_id: entry.other,
                    slot: key.offset,
                    mode_type: entry.mode_type,
                });
                ControlFlow::Break(())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                broken = Some(error);
                ControlFlow::Break(())
            }
        })?;
        match broken {
            Some(error) => Err(error.into()),
            None => Ok(found),
        }
    }
}

/// A directory entry that was looked up by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    /// The inode it stands for.
    pub inode: InodeNumber,
    /// Its entry id (= cookie, = offset of the by-index item and of the back reference).
    pub entry_id: u64,
    /// Offset of the by-name item.
    pub slot: u64,
    /// `st_mode` type bits.
    pub mode_type: u32,
}

/// Low bits of a hash slot: names with an equal hash take successive probes.
pub const SLOT_PROBES: u64 = 0xff;

/// First hash slot of a name: 52 bits of hash (the top 4 bits stay clear so that `slot << 4 | piece` fits), 8 of probe.
pub fn name_slot(name: &[u8]) -> u64 {
    (xxhash_rust::xxh3::xxh3_64(name) >> 4) & !SLOT_PROBES
}

/// Is this a name that a directory entry may have?
pub fn check_name(name: &[u8]) -> Result<(), EngineError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|&byte| byte == b'/' || byte == 0)
    {
        return Err(FsError::InvalidArgument.into());
    }
    Ok(())
}
