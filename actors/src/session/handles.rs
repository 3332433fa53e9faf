//! Open handles of one connection. The subvolume's actor opens and closes them; the session reads them for the fsync that
//! needs no message. Both run on one thread, so the lock is never contended.

use crate::limits::HANDLES_MAX;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use subvol_protocol::request::OpenFlags;
use subvol_storage::subvolume::InodeTicket;
use subvol_storage::types::InodeNumber;

/// An open file or directory.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Which.
    pub inode: InodeNumber,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Whether file data may have been lost with a change of it (directories have none).
    pub is_directory: bool,
    /// What tells whether its changes are durable.
    pub ticket: Arc<InodeTicket>,
}

/// All handles of a connection. Numbers are never used again.
#[derive(Debug, Default)]
pub struct Handles {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    handles: FxHashMap<u64, Handle>,
}

impl Handles {
    /// Is there room for one more?
    pub fn has_room(&self) -> bool {
        self.table.lock().handles.len() < HANDLES_MAX
    }

    /// Adds a handle and returns its number.
    pub fn insert(&self, handle: Handle) -> u64 {
        let mut table = self.table.lock();
        table.next += 1;
        let number = table.next;
        table.handles.insert(number, handle);
        number
    }

    /// The handle of this number.
    pub fn get(&self, number: u64) -> Option<Handle> {
        self.table.lock().handles.get(&number).cloned()
    }

    /// Runs `look` on the handle of this number.
    pub fn with<T>(&self, number: u64, look: impl FnOnce(&Handle) -> T) -> Option<T> {
        self.table.lock().handles.get(&number).map(look)
    }

    /// Removes a handle.
    pub fn remove(&self, number: u64) -> Option<Handle> {
        self.table.lock().handles.remove(&number)
    }

    /// Removes as many as there are, at most `most`.
    pub fn take_some(&self, most: usize) -> Vec<Handle> {
        let mut table = self.table.lock();
        table.handles.extract_if(|_, _| true).take(most).map(|(_, handle)| handle).collect()
    }
}
