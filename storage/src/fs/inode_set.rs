//! The inodes that one plan changes, each loaded once and written once.
//!
//! One operation can reach an inode by several ways: both parents of a rename are one directory, the directory that is
//! moved is also the one whose link count changes. Separate copies would overwrite each other's changes and put the
//! same key into a plan twice.
//!
//! Invariants: a member's item holds every change made so far; [`InodeSet::finish`] emits one mutation per changed
//! member and raises its version by exactly one, however often it was changed.

use crate::error::{EngineResult, FsError};
use crate::format::item::{InodeItem, damaged};
use crate::format::key::{ItemKind, Key};
use crate::fs::plan::Plan;
use crate::fs::view::View;
use crate::types::InodeNumber;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

/// See the module.
pub struct InodeSet<'v, 'a> {
    view: &'v View<'a>,
    members: SmallVec<[Member; 4]>,
}

struct Member {
    inode: InodeNumber,
    item: InodeItem,
    changed: bool,
}

impl<'v, 'a> InodeSet<'v, 'a> {
    /// An empty set over the state of `view`.
    pub fn new(view: &'v View<'a>) -> Self {
        Self { view, members: SmallVec::new() }
    }

    /// The inode with the changes made so far; `NotFound` when there is none.
    pub fn get(&mut self, inode: InodeNumber) -> EngineResult<InodeItem> {
        let index = self.position(inode)?;
        Ok(self.members[index].item)
    }

    /// The inode, to be changed: gets a new version.
    pub fn edit(&mut self, inode: InodeNumber) -> EngineResult<&mut InodeItem> {
        let index = self.position(inode)?;
        let member = &mut self.members[index];
        member.changed = true;
        Ok(&mut member.item)
    }

    /// A directory that names can be added to: `NotDirectory` when it is none, `NotFound` when it was removed and only
    /// an open handle keeps it. A name in such a directory could never be reached or removed again.
    pub fn live_directory(&mut self, inode: InodeNumber) -> EngineResult<InodeItem> {
        let item = self.get(inode)?;
        if !item.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        if item.nlink == 0 {
            return Err(FsError::NotFound.into());
        }
        Ok(item)
    }

    /// Adds an inode that this plan makes.
    pub fn add(&mut self, inode: InodeNumber, item: InodeItem) {
        assert!(self.members.iter().all(|member| member.inode != inode), "inode {inode} is made twice");
        self.members.push(Member { inode, item, changed: true });
    }

    /// Forgets an inode: the plan deletes it by other means.
    pub fn forget(&mut self, inode: InodeNumber) {
        self.members.retain(|member| member.inode != inode);
    }

    /// A name was added to the directory: one entry more, times of now.
    pub fn name_added(&mut self, directory: InodeNumber, is_directory: bool) -> EngineResult<()> {
        let now = self.view.resolved.now;
        let item = self.edit(directory)?;
        item.size += 1;
        item.nlink += u32::from(is_directory);
        (item.mtime, item.ctime) = (now, now);
        Ok(())
    }

    /// A name was taken from the directory: one entry less, times of now.
    pub fn name_removed(&mut self, directory: InodeNumber, is_directory: bool) -> EngineResult<()> {
        let now = self.view.resolved.now;
        let item = self.edit(directory)?;
        let size = item.size.checked_sub(1);
        // 2 stand for the directory's own name and its `.`; they are no subdirectories.
        let nlink = item.nlink.checked_sub(u32::from(is_directory)).filter(|&nlink| nlink >= 2);
        let (Some(size), Some(nlink)) = (size, nlink) else {
            let key = Key::new(directory, ItemKind::Inode, 0);
            return Err(damaged(&key, "directory that counts fewer entries than it has").into());
        };
        (item.size, item.nlink) = (size, nlink);
        (item.mtime, item.ctime) = (now, now);
        Ok(())
    }

    /// Writes the changed inodes into the plan.
    pub fn finish(self, plan: &mut Plan) {
        for member in self.members {
            if member.changed {
                let mut item = member.item;
                item.version = item.version.wrapping_add(1);
                plan.put(Key::new(member.inode, ItemKind::Inode, 0), item.to_disk().as_bytes());
                plan.touched.push(member.inode);
            }
        }
    }

    fn position(&mut self, inode: InodeNumber) -> EngineResult<usize> {
        if let Some(index) = self.members.iter().position(|member| member.inode == inode) {
            return Ok(index);
        }
        let item = self.view.inode(inode)?;
        self.members.push(Member { inode, item, changed: false });
        Ok(self.members.len() - 1)
    }
}
