//! Operations on names: create, link, remove, and the lives of handles and files without a name.

use crate::content::Content;
use crate::error::ModelError;
use crate::filesystem::{Body, Inode, Last, Model};
use crate::operation::SpecialKind;
use crate::ranges::Ranges;
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

fn empty_file() -> Body {
    Body::File { content: Content::default(), mapped: Ranges::default() }
}

impl Model {
    pub(crate) fn create(&mut self, path: &str, mode: u32, now: Time) -> Result<(), ModelError> {
        self.add(path, Inode::new(empty_file(), mode, 1, now), now)
    }

    pub(crate) fn mknod(
        &mut self,
        path: &str,
        kind: SpecialKind,
        mode: u32,
        now: Time,
    ) -> Result<(), ModelError> {
        self.add(path, Inode::new(Body::Special(kind), mode, 1, now), now)
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str, now: Time) -> Result<(), ModelError> {
        // The kernel reads the target before it looks at the path.
        if target.is_empty() {
            return Err(ModelError::NotFound);
        }
        if target.len() > self.limits.target {
            return Err(ModelError::NameTooLong);
        }
        self.add(path, Inode::new(Body::Symlink(target.into()), 0o777, 1, now), now)
    }

    pub(crate) fn mkdir(&mut self, path: &str, mode: u32, now: Time) -> Result<(), ModelError> {
        let (parent, name) = self.free_name(path)?;
        if self.inode(parent).nlink >= self.limits.links {
            return Err(ModelError::TooManyLinks);
        }
        let body = Body::Directory { entries: BTreeMap::new(), parent };
        let mut inode = Inode::new(body, mode, 2, now);
        self.inherit(parent, &mut inode);
        let inode = self.new_inode(inode)?;
        self.insert_entry(parent, name, inode, now);
        self.inode_mut(parent).nlink += 1;
        Ok(())
    }

    /// What a new inode gets from a directory with set-group-id: its group, and a directory also the bit.
    fn inherit(&self, parent: u64, inode: &mut Inode) {
        let parent = self.inode(parent);
        if parent.mode & 0o2000 != 0 {
            inode.gid = parent.gid;
            inode.mode |= if inode.is_directory() { 0o2000 } else { 0 };
        }
    }

    pub(crate) fn link(&mut self, existing: &str, path: &str, now: Time) -> Result<(), ModelError> {
        let inode = self.resolve(existing)?;
        self.add_link(inode, path, now)
    }

    pub(crate) fn link_handle(&mut self, handle: &str, path: &str, now: Time) -> Result<(), ModelError> {
        let inode = self.handle(handle)?;
        self.add_link(inode, path, now)
    }

    fn add_link(&mut self, number: u64, path: &str, now: Time) -> Result<(), ModelError> {
        let (parent, name) = self.free_name(path)?;
        let inode = self.inode(number);
        if inode.is_directory() {
            return Err(ModelError::NotPermitted);
        }
        if inode.nlink == 0 && !inode.linkable {
            return Err(ModelError::NotFound);
        }
        if inode.nlink >= self.limits.links {
            return Err(ModelError::TooManyLinks);
        }
        self.insert_entry(parent, name, number, now);
        let inode = self.inode_mut(number);
        inode.nlink += 1;
        inode.linkable = false;
        inode.ctime = now;
        Ok(())
    }

    pub(crate) fn unlink(&mut self, path: &str, now: Time) -> Result<(), ModelError> {
        let (parent, last) = self.resolve_parent(path)?;
        let Last::Name(name) = last else {
            return Err(ModelError::IsDirectory);
        };
        let number = self.lookup(parent, name)?.ok_or(ModelError::NotFound)?;
        if self.inode(number).is_directory() {
            return Err(ModelError::IsDirectory);
        }
        self.remove_entry(parent, name, now);
        self.drop_link(number, now);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, path: &str, now: Time) -> Result<(), ModelError> {
        let (parent, last) = self.resolve_parent(path)?;
        let name = match last {
            Last::Root => return Err(ModelError::Busy),
            Last::Dot => return Err(ModelError::InvalidArgument),
            Last::DotDot => return Err(ModelError::NotEmpty),
            Last::Name(name) => name,
        };
        let number = self.lookup(parent, name)?.ok_or(ModelError::NotFound)?;
        if !self.directory(number)?.is_empty() {
            return Err(ModelError::NotEmpty);
        }
        self.remove_entry(parent, name, now);
        self.inode_mut(parent).nlink -= 1;
        self.drop_link(number, now);
        Ok(())
    }

    pub(crate) fn open(&mut self, handle: &str, number: u64) {
        // Count the new handle first: opening a file again under the name of its last handle must not free it.
        self.inode_mut(number).opens += 1;
        if self.handles.contains_key(handle) {
            self.close(handle).expect("the handle was found");
        }
        self.handles.insert(handle.into(), number);
    }

    pub(crate) fn open_unnamed(
        &mut self,
        handle: &str,
        directory: &str,
        mode: u32,
        now: Time,
    ) -> Result<(), ModelError> {
        let parent = self.resolve(directory)?;
        self.directory(parent)?;
        let mut inode = Inode::new(empty_file(), mode, 0, now);
        inode.linkable = true;
        self.inherit(parent, &mut inode);
        let number = self.new_inode(inode)?;
        self.open(handle, number);
        Ok(())
    }

    pub(crate) fn close(&mut self, handle: &str) -> Result<(), ModelError> {
        let number = self.handles.remove(handle).ok_or(ModelError::BadHandle)?;
        self.inode_mut(number).opens -= 1;
        self.free_if_unused(number);
        Ok(())
    }

    /// The parent and the name of a path that must not exist yet.
    fn free_name<'a>(&self, path: &'a str) -> Result<(u64, &'a str), ModelError> {
        let (parent, last) = self.resolve_parent(path)?;
        let Last::Name(name) = last else {
            return Err(ModelError::Exists);
        };
        match self.lookup(parent, name)? {
            Some(_) => Err(ModelError::Exists),
            None => Ok((parent, name)),
        }
    }

    fn add(&mut self, path: &str, mut inode: Inode, now: Time) -> Result<(), ModelError> {
        let (parent, name) = self.free_name(path)?;
        self.inherit(parent, &mut inode);
        let number = self.new_inode(inode)?;
        self.insert_entry(parent, name, number, now);
        Ok(())
    }

    fn new_inode(&mut self, inode: Inode) -> Result<u64, ModelError> {
        if self.usage().inodes >= self.limits.inodes {
            return Err(ModelError::QuotaExceeded);
        }
        let number = self.next;
        self.next += 1;
        self.inodes.insert(number, Arc::new(inode));
        self.touched.push(number);
        Ok(number)
    }

    pub(crate) fn insert_entry(&mut self, directory: u64, name: &str, number: u64, now: Time) {
        let inode = self.inode_mut(directory);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::Directory { entries, .. } = &mut inode.body else {
            unreachable!("the caller resolved a directory");
        };
        let old = entries.insert(name.into(), number);
        assert!(old.is_none(), "an entry is never overwritten silently");
        self.entries += 1;
    }

    pub(crate) fn remove_entry(&mut self, directory: u64, name: &str, now: Time) {
        let inode = self.inode_mut(directory);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::Directory { entries, .. } = &mut inode.body else {
            unreachable!("the caller resolved a directory");
        };
        let old = entries.remove(name);
        assert!(old.is_some(), "the caller looked the entry up");
        self.entries -= 1;
    }

    /// One name less; a directory loses its name and its own `.` at once.
    pub(crate) fn drop_link(&mut self, number: u64, now: Time) {
        let inode = self.inode_mut(number);
        inode.nlink = if inode.is_directory() { 0 } else { inode.nlink - 1 };
        inode.ctime = now;
        self.free_if_unused(number);
    }

    fn free_if_unused(&mut self, number: u64) {
        let inode = self.inode(number);
        if inode.nlink > 0 || inode.opens > 0 {
            return;
        }
        if let Body::File { mapped, .. } = &inode.body {
            self.mapped_blocks -= mapped.count();
        }
        self.inodes.remove(&number);
    }
}
