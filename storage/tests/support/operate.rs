//! The model's operations, done by the engine: paths are looked up, handles kept, a full store is tried again after a
//! commit as a server does it.

use super::machine::{Fault, Machine, broken};
use super::translate::{bytes, refusal, rename_mode, special, timestamp, xattr_mode};
use subvol_model::{ModelError, Op, Time, pattern};
use subvol_storage::error::FsError;
use subvol_storage::format::item::file_type;
use subvol_storage::limits::{IO_BYTES_MAX, ROOT_INODE};
use subvol_storage::operation::{AttributeChange, Operation, Place};
use subvol_storage::types::InodeNumber;

impl Machine {
    /// Does one operation of the model; a full store or damage is a failure of the test.
    pub fn apply(&mut self, volume: usize, op: &Op, now: Time) -> Result<(), ModelError> {
        match self.try_apply(volume, op, now) {
            Ok(()) => Ok(()),
            Err(Answer::No(error)) => Err(error),
            Err(Answer::Broken(reason)) => panic!("{op:?}: {reason}"),
        }
    }

    /// The same; damage is an answer.
    pub fn try_apply(&mut self, volume: usize, op: &Op, now: Time) -> Result<(), Answer> {
        let operation = match op {
            Op::Open { handle, path } => {
                let inode = self.resolve(volume, path)?;
                self.open_handle(volume, handle, inode)?;
                return Ok(());
            }
            Op::OpenUnnamed { handle, directory, mode } => {
                let parent = self.resolve(volume, directory)?;
                let mode = file_type::REGULAR | mode;
                let create = Operation::CreateUnnamed { parent, mode, umask: 0, uid: 0, gid: 0 };
                let inode = self.run(volume, &create, now)?;
                self.open_handle(volume, handle, inode)?;
                return Ok(());
            }
            Op::CloseHandle { handle } => {
                let inode = self.volumes[volume].handles.remove(handle).ok_or(ModelError::BadHandle)?;
                self.close(volume, inode);
                return Ok(());
            }
            Op::Fsync { path } | Op::Fdatasync { path } => {
                let inode = self.resolve(volume, path)?;
                self.try_fsync(volume, inode)?;
                return Ok(());
            }
            Op::FsyncHandle { handle } => {
                let inode = self.handle(volume, handle)?;
                self.try_fsync(volume, inode)?;
                return Ok(());
            }
            Op::Sync => {
                self.try_commit().map_err(broken)?;
                return Ok(());
            }
            Op::Evict { path } => {
                self.resolve(volume, path)?;
                return Ok(());
            }
            _ => self.translate(volume, op)?,
        };
        for operation in pieces(operation) {
            self.run(volume, &operation, now)?;
        }
        Ok(())
    }

    fn translate(&mut self, volume: usize, op: &Op) -> Result<Operation, Answer> {
        let none = AttributeChange::default();
        Ok(match op {
            Op::Create { path, mode } => self.make(volume, path, file_type::REGULAR | mode, 0, "")?,
            Op::Mkdir { path, mode } => self.make(volume, path, file_type::DIRECTORY | mode, 0, "")?,
            Op::Symlink { path, target } => self.make(volume, path, file_type::SYMLINK | 0o777, 0, target)?,
            Op::Mknod { path, kind, mode } => {
                let (kind, rdev) = special(*kind);
                self.make(volume, path, kind | mode, rdev, "")?
            }
            Op::Link { existing, path } => {
                let inode = self.resolve(volume, existing)?;
                Operation::Link { inode, place: self.place(volume, path)? }
            }
            Op::LinkHandle { handle, path } => {
                let inode = self.handle(volume, handle)?;
                Operation::Link { inode, place: self.place(volume, path)? }
            }
            Op::Unlink { path } => Operation::Unlink { place: self.place(volume, path)? },
            Op::Rmdir { path } => Operation::RemoveDirectory { place: self.place(volume, path)? },
            Op::Rename { from, to, mode } => {
                let from = self.place(volume, from)?;
                Operation::Rename { from, to: self.place(volume, to)?, mode: rename_mode(*mode) }
            }
            Op::Write { path, offset, length, seed } => {
                let inode = self.resolve(volume, path)?;
                write(inode, *offset, *length, *seed)
            }
            Op::WriteHandle { handle, offset, length, seed } => {
                let inode = self.handle(volume, handle)?;
                write(inode, *offset, *length, *seed)
            }
            Op::Append { path, length, seed } => {
                let inode = self.resolve(volume, path)?;
                let item = self.call(volume, |engine| engine.attributes(inode))?;
                let offset = if item.is_regular() { item.size } else { 0 };
                write(inode, offset, *length, *seed)
            }
            Op::Truncate { path, size } => {
                self.change(volume, path, AttributeChange { size: Some(*size), ..none })?
            }
            Op::Allocate { path, offset, length, keep_size } => Operation::Allocate {
                inode: self.resolve(volume, path)?,
                offset: *offset,
                length: *length,
                keep_size: *keep_size,
            },
            Op::Punch { path, offset, length } => {
                Operation::PunchHole { inode: self.resolve(volume, path)?, offset: *offset, length: *length }
            }
            Op::ZeroRange { path, offset, length, keep_size } => Operation::ZeroRange {
                inode: self.resolve(volume, path)?,
                offset: *offset,
                length: *length,
                keep_size: *keep_size,
            },
            Op::SetXattr { path, name, value, mode } => Operation::SetXattr {
                inode: self.resolve(volume, path)?,
                name: bytes(name),
                value: value.clone().into(),
                mode: xattr_mode(*mode),
            },
            Op::RemoveXattr { path, name } => {
                Operation::RemoveXattr { inode: self.resolve(volume, path)?, name: bytes(name) }
            }
            Op::Chmod { path, mode } => {
                self.change(volume, path, AttributeChange { mode: Some(*mode), ..none })?
            }
            Op::Chown { path, uid, gid } => {
                self.change(volume, path, AttributeChange { uid: Some(*uid), gid: Some(*gid), ..none })?
            }
            Op::SetTimes { path, atime, mtime } => {
                let (atime, mtime) = (atime.map(timestamp), mtime.map(timestamp));
                self.change(volume, path, AttributeChange { atime, mtime, ..none })?
            }
            _ => panic!("{op:?} is no engine operation"),
        })
    }

    fn change(&mut self, volume: usize, path: &str, change: AttributeChange) -> Result<Operation, Answer> {
        Ok(Operation::SetAttributes { inode: self.resolve(volume, path)?, change })
    }

    fn make(
        &mut self,
        volume: usize,
        path: &str,
        mode: u32,
        rdev: u64,
        target: &str,
    ) -> Result<Operation, Answer> {
        let place = self.place(volume, path)?;
        Ok(Operation::Create { place, mode, umask: 0, uid: 0, gid: 0, rdev, target: bytes(target) })
    }

    /// Runs an engine operation. On a full store it commits and tries again, as a server does, before it gives up.
    pub fn run(&mut self, volume: usize, operation: &Operation, now: Time) -> Result<InodeNumber, Fault> {
        let mut commits = 0;
        loop {
            match self.call(volume, |engine| engine.execute(operation, timestamp(now), None, 0)) {
                Err(Fault::Refused(FsError::NoSpace)) if commits < 2 => {
                    self.commit();
                    commits += 1;
                }
                other => return other.map(|done| done.inode),
            }
        }
    }

    pub fn resolve(&mut self, volume: usize, path: &str) -> Result<InodeNumber, Fault> {
        let mut inode = ROOT_INODE;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            (inode, _) = self.call(volume, |engine| engine.lookup(inode, name.as_bytes()))?;
        }
        Ok(inode)
    }

    fn place(&mut self, volume: usize, path: &str) -> Result<Place, Fault> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.resolve(volume, parent)?;
        // A path is resolved, its directory included, before the next one is looked at.
        self.call(volume, |engine| engine.view().directory(parent))?;
        Ok(Place { parent, name: bytes(name) })
    }

    fn handle(&self, volume: usize, handle: &str) -> Result<InodeNumber, ModelError> {
        self.volumes[volume].handles.get(handle).copied().ok_or(ModelError::BadHandle)
    }

    fn open_handle(&mut self, volume: usize, handle: &str, inode: InodeNumber) -> Result<(), Fault> {
        self.call(volume, |engine| engine.open_inode(inode))?;
        if let Some(old) = self.volumes[volume].handles.insert(handle.to_owned(), inode) {
            self.close(volume, old);
        }
        Ok(())
    }

    fn close(&mut self, volume: usize, inode: InodeNumber) {
        self.volumes[volume].engine.close_inode(inode);
    }
}

fn write(inode: InodeNumber, offset: u64, length: u64, seed: u32) -> Operation {
    let data = pattern::bytes(seed, offset, length as usize).into();
    Operation::Write { inode, offset, data, length, clear_set_id: false }
}

/// A large write as the kernel would send it.
fn pieces(operation: Operation) -> Vec<Operation> {
    let Operation::Write { inode, offset, data, length, clear_set_id } = operation else {
        return vec![operation];
    };
    if length <= IO_BYTES_MAX as u64 {
        return vec![Operation::Write { inode, offset, data, length, clear_set_id }];
    }
    let starts = (0..data.len()).step_by(IO_BYTES_MAX);
    let piece = |start: usize| {
        let data = data.slice(start..data.len().min(start + IO_BYTES_MAX));
        let (offset, length) = (offset + start as u64, data.len() as u64);
        Operation::Write { inode, offset, data, length, clear_set_id }
    };
    starts.map(piece).collect()
}

/// Why an operation of the model was not done.
#[derive(Debug)]
pub enum Answer {
    /// Refused, in the model's words.
    No(ModelError),
    /// Damage.
    Broken(String),
}

impl From<ModelError> for Answer {
    fn from(error: ModelError) -> Self {
        Self::No(error)
    }
}

impl From<Fault> for Answer {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(error) => Self::No(refusal(error)),
            Fault::Broken(reason) => Self::Broken(reason),
        }
    }
}
