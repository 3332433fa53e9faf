//! Operations on attributes: mode, owner, times, extended attributes.

use crate::error::ModelError;
use crate::filesystem::{Body, Model};
use crate::operation::XattrMode;
use crate::time::Time;

const PERMISSIONS: u32 = 0o7777;

impl Model {
    pub(crate) fn chmod(&mut self, path: &str, mode: u32, now: Time) -> Result<(), ModelError> {
        let number = self.resolve(path)?;
        if matches!(self.inode(number).body, Body::Symlink(_)) {
            return Err(ModelError::NotSupported);
        }
        let inode = self.inode_mut(number);
        inode.mode = mode & PERMISSIONS;
        inode.ctime = now;
        Ok(())
    }

    pub(crate) fn chown(&mut self, path: &str, uid: u32, gid: u32, now: Time) -> Result<(), ModelError> {
        let number = self.resolve(path)?;
        let inode = self.inode_mut(number);
        (inode.uid, inode.gid, inode.ctime) = (uid, gid, now);
        // Linux takes rights that were given to the old owner; set-group-id only where it means a right.
        if !inode.is_directory() {
            let group = if inode.mode & 0o010 != 0 { 0o2000 } else { 0 };
            inode.mode &= !(0o4000 | group);
        }
        Ok(())
    }

    pub(crate) fn set_times(
        &mut self,
        path: &str,
        atime: Option<Time>,
        mtime: Option<Time>,
        now: Time,
    ) -> Result<(), ModelError> {
        let number = self.resolve(path)?;
        if atime.into_iter().chain(mtime).any(|time| time.nanoseconds >= 1_000_000_000) {
            return Err(ModelError::InvalidArgument);
        }
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        let inode = self.inode_mut(number);
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        inode.ctime = now;
        Ok(())
    }

    pub(crate) fn set_xattr(
        &mut self,
        path: &str,
        name: &str,
        value: &[u8],
        mode: XattrMode,
        now: Time,
    ) -> Result<(), ModelError> {
        if name.is_empty() || name.len() > self.limits.xattr_name {
            return Err(ModelError::OutOfRange);
        }
        if value.len() > self.limits.xattr_value {
            return Err(ModelError::TooBig);
        }
        let number = self.resolve(path)?;
        match (mode, self.inode(number).xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(ModelError::Exists),
            (XattrMode::Replace, false) => return Err(ModelError::NoData),
            _ => {}
        }
        let inode = self.inode_mut(number);
        inode.xattrs.insert(name.into(), value.into());
        inode.ctime = now;
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, path: &str, name: &str, now: Time) -> Result<(), ModelError> {
        let number = self.resolve(path)?;
        if name.is_empty() || name.len() > self.limits.xattr_name {
            return Err(ModelError::OutOfRange);
        }
        if !self.inode(number).xattrs.contains_key(name) {
            return Err(ModelError::NoData);
        }
        let inode = self.inode_mut(number);
        inode.xattrs.remove(name);
        inode.ctime = now;
        Ok(())
    }
}
