//! Operations on the data of regular files, and which blocks they map.
//!
//! Blocks: a write maps what it touches, allocation and zero range map their whole range, a punch unmaps whole blocks,
//! a truncation (also one to the same size) unmaps everything wholly past the new size, growing maps nothing.

use crate::BLOCK;
use crate::content::Content;
use crate::error::ModelError;
use crate::filesystem::{Body, Model};
use crate::ranges::Ranges;
use crate::time::Time;
use std::ops::Range;

impl Model {
    pub(crate) fn write(
        &mut self,
        number: u64,
        offset: u64,
        length: u64,
        seed: u32,
        now: Time,
    ) -> Result<(), ModelError> {
        self.file(number)?;
        if length == 0 {
            return Ok(());
        }
        let end = self.end_of(offset, length)?;
        let touched = offset / BLOCK..end.div_ceil(BLOCK);
        self.check_bytes(number, touched.clone())?;
        self.change(number, now, |content, mapped| {
            mapped.insert(touched);
            content.write_pattern(offset, length, seed);
        });
        Ok(())
    }

    pub(crate) fn truncate(&mut self, path: &str, size: u64, now: Time) -> Result<(), ModelError> {
        let number = self.resolve(path)?;
        self.file(number)?;
        if size > self.limits.file_size {
            return Err(ModelError::FileTooBig);
        }
        self.change(number, now, |content, mapped| {
            if size <= content.size() {
                mapped.remove(size.div_ceil(BLOCK)..u64::MAX);
            }
            content.resize(size);
        });
        Ok(())
    }

    pub(crate) fn allocate(
        &mut self,
        path: &str,
        offset: u64,
        length: u64,
        keep_size: bool,
        now: Time,
    ) -> Result<(), ModelError> {
        let (number, end) = self.range(path, offset, length)?;
        let touched = offset / BLOCK..end.div_ceil(BLOCK);
        self.check_bytes(number, touched.clone())?;
        self.change(number, now, |content, mapped| {
            mapped.insert(touched);
            grow(content, end, keep_size);
        });
        Ok(())
    }

    pub(crate) fn punch(
        &mut self,
        path: &str,
        offset: u64,
        length: u64,
        now: Time,
    ) -> Result<(), ModelError> {
        let (number, end) = self.range(path, offset, length)?;
        self.change(number, now, |content, mapped| {
            content.zero(offset, length);
            let whole = offset.div_ceil(BLOCK)..end / BLOCK;
            mapped.remove(whole);
        });
        Ok(())
    }

    pub(crate) fn zero_range(
        &mut self,
        path: &str,
        offset: u64,
        length: u64,
        keep_size: bool,
        now: Time,
    ) -> Result<(), ModelError> {
        let (number, end) = self.range(path, offset, length)?;
        let touched = offset / BLOCK..end.div_ceil(BLOCK);
        self.check_bytes(number, touched.clone())?;
        self.change(number, now, |content, mapped| {
            content.zero(offset, length);
            mapped.insert(touched);
            grow(content, end, keep_size);
        });
        Ok(())
    }

    /// The file and the end of a range that must not be empty.
    fn range(&self, path: &str, offset: u64, length: u64) -> Result<(u64, u64), ModelError> {
        let number = self.resolve(path)?;
        self.file(number)?;
        if length == 0 {
            return Err(ModelError::InvalidArgument);
        }
        Ok((number, self.end_of(offset, length)?))
    }

    fn end_of(&self, offset: u64, length: u64) -> Result<u64, ModelError> {
        let end = offset.checked_add(length).ok_or(ModelError::FileTooBig)?;
        if end > self.limits.file_size { Err(ModelError::FileTooBig) } else { Ok(end) }
    }

    fn check_bytes(&self, number: u64, blocks: Range<u64>) -> Result<(), ModelError> {
        let (_, mapped) = self.file(number)?;
        let more = (blocks.end - blocks.start) - mapped.count_in(blocks);
        let after = (self.mapped_blocks + more).saturating_mul(BLOCK);
        // What maps nothing new is allowed also above a limit that was lowered later.
        if more > 0 && after > self.limits.bytes { Err(ModelError::QuotaExceeded) } else { Ok(()) }
    }

    fn change(&mut self, number: u64, now: Time, change: impl FnOnce(&mut Content, &mut Ranges)) {
        let inode = self.inode_mut(number);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::File { content, mapped } = &mut inode.body else {
            unreachable!("the caller checked that it is a file");
        };
        let before = mapped.count();
        change(content, mapped);
        let after = mapped.count();
        self.mapped_blocks = self.mapped_blocks - before + after;
    }
}

fn grow(content: &mut Content, end: u64, keep_size: bool) {
    if !keep_size && end > content.size() {
        content.resize(end);
    }
}
