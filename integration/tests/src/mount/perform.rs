//! Does the model's operations on a directory by system calls.
//!
//! Paths are taken as the model takes them: a symbolic link at the end is not followed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use subvol_model::{Op, RenameMode, SpecialKind, Time, XattrMode, pattern};

/// The open handles of a program, through whichever directory they were opened.
#[derive(Debug, Default)]
pub struct Performer {
    /// With the directory each was opened through: two mounts are two devices, between which nothing can be linked.
    handles: BTreeMap<String, (PathBuf, File)>,
}

impl Performer {
    /// Does one operation below a directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn apply(&mut self, root: &Path, op: &Op) -> io::Result<()> {
        let at = |path: &str| place(root, path);
        match op {
            Op::Create { path, mode } => {
                File::options().write(true).create_new(true).mode(*mode).open(at(path))?;
                chmod(&at(path), *mode)
            }
            Op::Mkdir { path, mode } => {
                rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode))?;
                chmod(&at(path), *mode)
            }
            Op::Mknod { path, kind, mode } => {
                let (kind, number) = match *kind {
                    SpecialKind::Fifo => (FileType::Fifo, 0),
                    SpecialKind::Socket => (FileType::Socket, 0),
                    SpecialKind::Character(number) => (FileType::CharacterDevice, number),
                    SpecialKind::Block(number) => (FileType::BlockDevice, number),
                };
                // The kernel's packing of small device numbers: 12 bits of major above 8 bits of minor.
                let number = rustix::fs::makedev(number >> 8 & 0xfff, number & 0xff);
                rustix::fs::mknodat(CWD, at(path), kind, Mode::from_raw_mode(*mode), number)?;
                chmod(&at(path), *mode)
            }
            Op::Symlink { path, target } => symlink(target, at(path)),
            Op::Link { existing, path } => {
                Ok(rustix::fs::linkat(CWD, at(existing), CWD, at(path), AtFlags::empty())?)
            }
            Op::Unlink { path } => Ok(rustix::fs::unlink(at(path))?),
            Op::Rmdir { path } => Ok(rustix::fs::rmdir(at(path))?),
            Op::Rename { from, to, mode } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                super::expect::rename(&at(from), &at(to), flags)
            }
            Op::Write { path, offset, length, seed } => {
                writer(&at(path))?.write_all_at(&pattern::bytes(*seed, *offset, *length as usize), *offset)
            }
            Op::Append { path, length, seed } => {
                let mut file = File::options().append(true).open(at(path))?;
                let size = file.metadata()?.len();
                file.write_all(&pattern::bytes(*seed, size, *length as usize))
            }
            Op::Truncate { path, size } => writer(&at(path))?.set_len(*size),
            Op::Allocate { path, offset, length, keep_size } => {
                allocate(&at(path), keeping(*keep_size), *offset, *length)
            }
            Op::Punch { path, offset, length } => {
                allocate(&at(path), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, *offset, *length)
            }
            Op::ZeroRange { path, offset, length, keep_size } => {
                allocate(&at(path), FallocateFlags::ZERO_RANGE | keeping(*keep_size), *offset, *length)
            }
            Op::SetXattr { path, name, value, mode } => {
                let flags = match mode {
                    XattrMode::Any => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                Ok(rustix::fs::lsetxattr(at(path), name.as_str(), value, flags)?)
            }
            Op::RemoveXattr { path, name } => Ok(rustix::fs::lremovexattr(at(path), name.as_str())?),
            Op::Chmod { path, mode } => chmod(&at(path), *mode),
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                Ok(rustix::fs::chownat(CWD, at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
            }
            Op::SetTimes { path, atime, mtime } => {
                let times = Timestamps { last_access: timespec(*atime), last_modification: timespec(*mtime) };
                Ok(rustix::fs::utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            Op::Open { handle, path } => {
                let file = File::options().read(true).write(true).open(at(path))?;
                self.handles.insert(handle.clone(), (root.to_path_buf(), file));
                Ok(())
            }
            Op::OpenUnnamed { handle, directory, mode } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::open(at(directory), flags, Mode::from_raw_mode(*mode))?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(*mode))?;
                self.handles.insert(handle.clone(), (root.to_path_buf(), file.into()));
                Ok(())
            }
            Op::LinkHandle { handle, path } => {
                let (opened, file) = self.open(handle)?;
                let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
                Ok(rustix::fs::linkat(CWD, own, CWD, place(opened, path), AtFlags::SYMLINK_FOLLOW)?)
            }
            Op::WriteHandle { handle, offset, length, seed } => {
                self.file(handle)?.write_all_at(&pattern::bytes(*seed, *offset, *length as usize), *offset)
            }
            Op::FsyncHandle { handle } => self.file(handle)?.sync_all(),
            Op::CloseHandle { handle } => {
                self.handles.remove(handle).map(drop).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
            }
            Op::Fsync { path } => File::open(at(path))?.sync_all(),
            Op::Fdatasync { path } => File::open(at(path))?.sync_data(),
            Op::Sync => Ok(rustix::fs::syncfs(File::open(root)?.as_fd())?),
            Op::Evict { path } => std::fs::symlink_metadata(at(path)).map(drop),
        }
    }

    fn open(&self, handle: &str) -> io::Result<&(PathBuf, File)> {
        self.handles.get(handle).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn file(&self, handle: &str) -> io::Result<&File> {
        self.open(handle).map(|(_, file)| file)
    }
}

/// A path of the model below a directory.
#[must_use]
pub fn place(root: &Path, path: &str) -> PathBuf {
    if path.is_empty() { root.to_path_buf() } else { root.join(path) }
}

/// The file creation mask must not count.
fn chmod(path: &Path, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

fn writer(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

fn allocate(path: &Path, flags: FallocateFlags, offset: u64, length: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(writer(path)?, flags, offset, length)?)
}

const fn keeping(size: bool) -> FallocateFlags {
    if size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() }
}

fn timespec(time: Option<Time>) -> Timespec {
    match time {
        Some(time) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    }
}
