//! Rename in its three modes. The order of the checks is that of Linux, since tests compare errors.

use crate::error::ModelError;
use crate::filesystem::{Body, Last, Model, ROOT};
use crate::operation::RenameMode;
use crate::time::Time;

impl Model {
    pub(crate) fn rename(
        &mut self,
        from: &str,
        to: &str,
        mode: RenameMode,
        now: Time,
    ) -> Result<(), ModelError> {
        let (old_parent, old_last) = self.resolve_parent(from)?;
        let (new_parent, new_last) = self.resolve_parent(to)?;
        let Last::Name(old_name) = old_last else {
            return Err(ModelError::Busy);
        };
        let Last::Name(new_name) = new_last else {
            let no_replace = mode == RenameMode::NoReplace;
            return Err(if no_replace { ModelError::Exists } else { ModelError::Busy });
        };
        let source = self.lookup(old_parent, old_name)?.ok_or(ModelError::NotFound)?;
        let target = self.lookup(new_parent, new_name)?;
        match mode {
            RenameMode::NoReplace if target.is_some() => return Err(ModelError::Exists),
            RenameMode::Exchange if target.is_none() => return Err(ModelError::NotFound),
            _ => {}
        }
        if self.is_at_or_above(source, new_parent) {
            return Err(ModelError::InvalidArgument);
        }
        if target.is_some_and(|target| self.is_at_or_above(target, old_parent)) {
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange { ModelError::InvalidArgument } else { ModelError::NotEmpty });
        }
        if target == Some(source) {
            return Ok(());
        }
        let source_is_directory = self.inode(source).is_directory();
        let target_is_directory = target.is_some_and(|target| self.inode(target).is_directory());
        if mode != RenameMode::Exchange && target.is_some() {
            match (source_is_directory, target_is_directory) {
                (true, false) => return Err(ModelError::NotDirectory),
                (false, true) => return Err(ModelError::IsDirectory),
                _ => {}
            }
        }
        if old_parent != new_parent {
            let full = |parent| self.inode(parent).nlink >= self.limits.links;
            let into_new = source_is_directory && !target_is_directory && full(new_parent);
            let into_old = mode == RenameMode::Exchange && !source_is_directory && target_is_directory;
            if into_new || (into_old && full(old_parent)) {
                return Err(ModelError::TooManyLinks);
            }
        }
        if mode == RenameMode::Exchange {
            let target = target.expect("checked above");
            self.move_entry(old_parent, old_name, source, None, now);
            self.move_entry(new_parent, new_name, target, Some((old_parent, old_name)), now);
            self.place(source, new_parent, new_name, now);
            return Ok(());
        }
        if let Some(target) = target {
            if target_is_directory && !self.directory(target)?.is_empty() {
                return Err(ModelError::NotEmpty);
            }
            self.move_entry(new_parent, new_name, target, None, now);
            self.drop_link(target, now);
        }
        self.move_entry(old_parent, old_name, source, Some((new_parent, new_name)), now);
        Ok(())
    }

    /// Takes an entry out and, if a place is given, puts it there; link counts of the parents follow.
    fn move_entry(&mut self, parent: u64, name: &str, number: u64, to: Option<(u64, &str)>, now: Time) {
        self.remove_entry(parent, name, now);
        if self.inode(number).is_directory() {
            self.inode_mut(parent).nlink -= 1;
        }
        if let Some((new_parent, new_name)) = to {
            self.place(number, new_parent, new_name, now);
        }
    }

    fn place(&mut self, number: u64, new_parent: u64, new_name: &str, now: Time) {
        self.insert_entry(new_parent, new_name, number, now);
        let inode = self.inode_mut(number);
        inode.ctime = now;
        if let Body::Directory { parent, .. } = &mut inode.body {
            *parent = new_parent;
            self.inode_mut(new_parent).nlink += 1;
        }
    }

    /// Whether `inode` is `directory` itself or one of its ancestors.
    fn is_at_or_above(&self, inode: u64, directory: u64) -> bool {
        let mut at = directory;
        loop {
            if at == inode {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.parent_of(at);
        }
    }
}
