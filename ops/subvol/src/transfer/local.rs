//! Making files in local directories, by directory descriptors and names.
//!
//! Invariants: no path below the given directory is walked twice, and no link is followed, so a tree that is changed meanwhile (or by the
//! volume's owner on purpose) cannot lead a copy out of its directory; a directory gets its times and permissions when the last thing in
//! it is done, so deepest first.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use subvol_client::FileKind;

use super::Xattrs;
use super::facts::{Facts, decode_device};
use super::report::Report;
use crate::show::escaped;

/// An open local directory that is being filled.
#[derive(Debug)]
pub struct LocalDirectory {
    fd: OwnedFd,
    /// For messages.
    shown: String,
    /// To be set at the end; `None` leaves the directory as it is.
    facts: Option<Facts>,
    report: Arc<Report>,
    /// Keeps the directory above unfinished.
    _parent: Option<Arc<Self>>,
}

fn permissions(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & 0o7777)
}

/// Only the superuser can give files away.
fn keeps_owner() -> bool {
    rustix::process::geteuid().is_root()
}

/// The owner to set, if any. The highest number means "leave it" to the kernel.
fn owner(facts: &Facts) -> Option<(Option<Uid>, Option<Gid>)> {
    let known = |number: u32| number != u32::MAX;
    keeps_owner().then(|| {
        (
            known(facts.uid).then(|| Uid::from_raw(facts.uid)),
            known(facts.gid).then(|| Gid::from_raw(facts.gid)),
        )
    })
}

impl LocalDirectory {
    /// A directory that the user named; a link to it is followed.
    ///
    /// # Errors
    /// Opening.
    pub fn existing(path: &Path, report: Arc<Report>) -> io::Result<Arc<Self>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let shown = path.display().to_string();
        Ok(Arc::new(Self { fd, shown, facts: None, report, _parent: None }))
    }

    /// Also gives this directory facts at the end.
    pub fn with_facts(self: &Arc<Self>, facts: Facts, xattrs: &Xattrs) -> io::Result<Arc<Self>> {
        let made = Self {
            fd: self.fd.try_clone()?,
            shown: self.shown.clone(),
            facts: Some(facts),
            report: Arc::clone(&self.report),
            _parent: Some(Arc::clone(self)),
        };
        set_xattrs_of(&made.fd, xattrs)?;
        Ok(Arc::new(made))
    }

    /// Makes a directory here, or takes the one that is there.
    ///
    /// # Errors
    /// Making and opening; `NotADirectory` if something else has the name.
    pub fn directory(self: &Arc<Self>, name: &[u8], facts: Facts, xattrs: &Xattrs) -> io::Result<Arc<Self>> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        set_xattrs_of(&fd, xattrs)?;
        Ok(Arc::new(Self {
            fd,
            shown: format!("{}/{}", self.shown, escaped(name)),
            facts: Some(facts),
            report: Arc::clone(&self.report),
            _parent: Some(Arc::clone(self)),
        }))
    }

    /// Makes an empty regular file, in place of whatever but a directory has the name.
    ///
    /// # Errors
    /// Making, or removing what was there.
    pub fn create(&self, name: &[u8]) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = self.replacing(name, || rustix::fs::openat(&self.fd, name, flags, mode))?;
        Ok(fd.into())
    }

    /// Makes a whole small file.
    ///
    /// # Errors
    /// Making, writing, setting its facts.
    pub fn small_file(&self, name: &[u8], bytes: &[u8], facts: &Facts, xattrs: &Xattrs) -> io::Result<()> {
        use std::io::Write;
        let mut file = self.create(name)?;
        file.write_all(bytes)?;
        finish_file(&file, facts, xattrs)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Making it, setting its facts.
    pub fn symlink(&self, name: &[u8], target: &[u8], facts: &Facts, xattrs: &Xattrs) -> io::Result<()> {
        self.replacing(name, || rustix::fs::symlinkat(target, &self.fd, name))?;
        self.finish_name(name, facts, xattrs)
    }

    /// Makes a pipe, a socket or a device.
    ///
    /// # Errors
    /// Making it, setting its facts.
    pub fn special(&self, name: &[u8], facts: &Facts, xattrs: &Xattrs) -> io::Result<()> {
        let kind = match facts.kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharacterDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => return Err(Errno::INVAL.into()),
        };
        let device = decode_device(facts.rdev);
        self.replacing(name, || rustix::fs::mknodat(&self.fd, name, kind, permissions(0o600), device))?;
        self.finish_name(name, facts, xattrs)
    }

    /// Gives a file a further name.
    ///
    /// # Errors
    /// Linking.
    pub fn hard_link(&self, name: &[u8], first: &Self, first_name: &[u8]) -> io::Result<()> {
        // Linking a file to itself would begin with its removal.
        if let (Ok(one), Ok(other)) = (
            rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW),
            rustix::fs::statat(&first.fd, first_name, AtFlags::SYMLINK_NOFOLLOW),
        ) && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
        {
            return Ok(());
        }
        self.replacing(name, || rustix::fs::linkat(&first.fd, first_name, &self.fd, name, AtFlags::empty()))
    }

    fn replacing<T>(&self, name: &[u8], make: impl Fn() -> rustix::io::Result<T>) -> io::Result<T> {
        match make() {
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?;
                Ok(make()?)
            }
            other => Ok(other?),
        }
    }

    /// Facts of what cannot be opened.
    fn finish_name(&self, name: &[u8], facts: &Facts, xattrs: &Xattrs) -> io::Result<()> {
        if let Some((uid, gid)) = owner(facts) {
            rustix::fs::chownat(&self.fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if !xattrs.is_empty() {
            // There is no call by directory and name; the last component is not followed here.
            let mut path = format!("/proc/self/fd/{}/", self.fd.as_raw_fd()).into_bytes();
            path.extend_from_slice(name);
            set_xattrs(xattrs, |key, value| rustix::fs::lsetxattr(&*path, key, value, XattrFlags::empty()))?;
        }
        if facts.kind != FileKind::Symlink {
            // What we just made; should somebody have put a link there, the kernel would follow it, hence the check.
            let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                return Err(io::Error::other("somebody replaced it meanwhile"));
            }
            rustix::fs::chmodat(&self.fd, name, permissions(facts.permissions), AtFlags::empty())?;
        }
        rustix::fs::utimensat(&self.fd, name, &facts.times(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

impl Drop for LocalDirectory {
    fn drop(&mut self) {
        let Some(facts) = &self.facts else { return };
        let owned = match owner(facts) {
            Some((uid, gid)) => rustix::fs::fchown(&self.fd, uid, gid).map_err(io::Error::from),
            None => Ok(()),
        };
        if let Err(error) = owned.and_then(|()| finish_fd(&self.fd, facts)) {
            self.report.failed(&self.shown, &error);
        }
    }
}

/// Gives an open file its facts.
///
/// # Errors
/// Setting them; the rest is set in any case after a failed extended attribute.
pub fn finish_file(file: &File, facts: &Facts, xattrs: &Xattrs) -> io::Result<()> {
    // A change of owner drops capabilities, which are an extended attribute, and set-id bits; anything may change times.
    if let Some((uid, gid)) = owner(facts) {
        rustix::fs::fchown(file, uid, gid)?;
    }
    let xattrs = set_xattrs_of(file, xattrs);
    finish_fd(file, facts)?;
    xattrs
}

fn finish_fd(fd: &impl std::os::fd::AsFd, facts: &Facts) -> io::Result<()> {
    rustix::fs::fchmod(fd, permissions(facts.permissions))?;
    rustix::fs::futimens(fd, &facts.times())?;
    Ok(())
}

fn set_xattrs_of(fd: &impl std::os::fd::AsFd, xattrs: &Xattrs) -> io::Result<()> {
    set_xattrs(xattrs, |name, value| rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()))
}

/// Sets all; the first error, with its name.
fn set_xattrs(xattrs: &Xattrs, set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>) -> io::Result<()> {
    let mut result = Ok(());
    for (name, value) in xattrs {
        if let Err(error) = set(name, value)
            && result.is_ok()
        {
            let error = io::Error::from(error);
            let text = format!("the extended attribute {}: {error}", escaped(name));
            result = Err(io::Error::new(error.kind(), text));
        }
    }
    result
}
