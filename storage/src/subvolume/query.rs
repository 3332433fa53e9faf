//! Questions that change nothing.

use super::Subvolume;
use crate::error::EngineResult;
use crate::format::item::InodeItem;
use crate::fs::view::View;
use crate::fs::{directory, lookup, path, read, seek, xattr};
use crate::types::{InodeNumber, OperationId};
use bytes::Bytes;

impl Subvolume {
    /// What planning may look at, at this moment.
    pub fn view(&self) -> View<'_> {
        self.view_now()
    }

    /// Is it unknown whether the operation with this id took effect, because results of its age were let go of?
    pub fn has_expired(&self, id: &OperationId) -> bool {
        self.ledger.has_expired(id)
    }

    /// Attributes of an inode.
    pub fn attributes(&self, inode: InodeNumber) -> EngineResult<InodeItem> {
        self.view_now().inode(inode)
    }

    /// The inode that a name stands for.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> EngineResult<(InodeNumber, InodeItem)> {
        lookup::lookup(&self.view_now(), parent, name)
    }

    /// Entries of a directory after a cookie.
    pub fn read_directory(
        &self,
        directory: InodeNumber,
        after_cookie: u64,
        max_entries: usize,
        with_attributes: bool,
    ) -> EngineResult<directory::DirectoryBatch> {
        directory::read_directory(&self.view_now(), directory, after_cookie, max_entries, with_attributes)
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, inode: InodeNumber) -> EngineResult<Bytes> {
        lookup::read_link(&self.view_now(), inode)
    }

    /// Value of an extended attribute.
    pub fn get_xattr(&self, inode: InodeNumber, name: &[u8]) -> EngineResult<Bytes> {
        xattr::get_xattr(&self.view_now(), inode, name)
    }

    /// Names of the extended attributes.
    pub fn list_xattrs(&self, inode: InodeNumber) -> EngineResult<Vec<Bytes>> {
        xattr::list_xattrs(&self.view_now(), inode)
    }

    /// What of a file is in memory and what must be read from where.
    pub fn plan_read(&self, inode: InodeNumber, offset: u64, length: usize) -> EngineResult<read::ReadPlan> {
        read::plan_read(&self.view_now(), inode, offset, length)
    }

    /// The next data or hole from an offset.
    pub fn seek(&self, inode: InodeNumber, offset: u64, kind: seek::SeekKind) -> EngineResult<seek::Seek> {
        seek::seek(&self.view_now(), inode, offset, kind)
    }

    /// One path of an inode, for messages.
    pub fn path_of(&self, inode: InodeNumber) -> EngineResult<Option<Vec<u8>>> {
        path::path_of(&self.view_now(), inode)
    }
}
