//! The model file system: state, name resolution, dispatch and the questions a test may ask.
//!
//! Rules it fixes (each is exact, errors and their order follow Linux):
//! * final components that are symbolic links are never followed, other components must be directories;
//! * a refused operation changes nothing;
//! * a directory's link count is 2 + its subdirectories, its size the number of its entries;
//! * inode numbers are never reused; the root is [`ROOT`];
//! * usage counts `4096 * mapped blocks` and inodes without the root; a file without names counts until its last
//!   handle is closed;
//! * a handle may be opened on anything; operations on data refuse what is no regular file;
//! * trailing slashes in paths carry no meaning.
//!
//! Times (`now` comes from the caller):
//!
//! | operation | the file | the parent(s) |
//! |---|---|---|
//! | create, mkdir, mknod, symlink | atime mtime ctime | mtime ctime |
//! | unnamed file | atime mtime ctime | - |
//! | link, unlink | ctime | mtime ctime |
//! | rmdir | ctime | mtime ctime |
//! | rename, exchange | ctime of moved and replaced | mtime ctime of both |
//! | rename onto the same inode | - | - |
//! | write, append (length > 0), truncate, allocate, punch, zero range | mtime ctime | - |
//! | xattrs, chmod, chown | ctime | - |
//! | set times | ctime, and what is given (nothing if nothing is) | - |

use crate::content::Content;
use crate::error::ModelError;
use crate::operation::{Op, SpecialKind};
use crate::ranges::Ranges;
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Inode number of the root directory.
pub const ROOT: u64 = 256;

/// Limits the model enforces. A test sets them to those of the system it compares with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest name, bytes.
    pub name: usize,
    /// Longest target of a symbolic link, bytes.
    pub target: usize,
    /// Highest link count.
    pub links: u32,
    /// Largest file, bytes.
    pub file_size: u64,
    /// Longest name of an extended attribute, bytes.
    pub xattr_name: usize,
    /// Largest value of an extended attribute, bytes.
    pub xattr_value: usize,
    /// Usage limit in bytes.
    pub bytes: u64,
    /// Usage limit in inodes.
    pub inodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            name: 255,
            target: 4095,
            links: u32::MAX,
            file_size: i64::MAX as u64,
            xattr_name: 255,
            xattr_value: 65_536,
            bytes: u64::MAX,
            inodes: u64::MAX,
        }
    }
}

/// What a subvolume uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// 4096 times the mapped blocks of all files.
    pub bytes: u64,
    /// Inodes without the root.
    pub inodes: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    File { content: Content, mapped: Ranges },
    Directory { entries: BTreeMap<String, u64>, parent: u64 },
    Symlink(String),
    Special(SpecialKind),
}

#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub body: Body,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub opens: u32,
    /// Made without a name, so that it may get one although its link count is zero.
    pub linkable: bool,
}

impl Inode {
    pub(crate) fn new(body: Body, mode: u32, nlink: u32, now: Time) -> Self {
        let (uid, gid, opens, linkable) = (0, 0, 0, false);
        let xattrs = BTreeMap::new();
        Self { body, mode, uid, gid, nlink, atime: now, mtime: now, ctime: now, xattrs, opens, linkable }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }
}

/// The in-memory file system. Clones are independent and share what has not changed.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) inodes: BTreeMap<u64, Arc<Inode>>,
    pub(crate) handles: BTreeMap<String, u64>,
    pub(crate) next: u64,
    pub(crate) limits: Limits,
    pub(crate) mapped_blocks: u64,
    pub(crate) entries: usize,
    /// Inodes the current or last operation changed, in order of change, with repetitions.
    pub(crate) touched: Vec<u64>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new(Limits::default(), Time::default())
    }
}

/// The last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last<'a> {
    /// The path is the root.
    Root,
    Dot,
    DotDot,
    Name(&'a str),
}

impl Model {
    /// An empty file system: a root of mode 755 made at `now`.
    pub fn new(limits: Limits, now: Time) -> Self {
        let body = Body::Directory { entries: BTreeMap::new(), parent: ROOT };
        let root = Inode::new(body, crate::operation::DIRECTORY_MODE, 2, now);
        Self {
            inodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            handles: BTreeMap::new(),
            next: ROOT + 1,
            limits,
            mapped_blocks: 0,
            entries: 0,
            touched: Vec::new(),
        }
    }

    /// Does one operation at time `now`. On an error nothing has changed.
    pub fn apply(&mut self, op: &Op, now: Time) -> Result<(), ModelError> {
        self.touched.clear();
        match op {
            Op::Create { path, mode } => self.create(path, *mode, now),
            Op::Mkdir { path, mode } => self.mkdir(path, *mode, now),
            Op::Mknod { path, kind, mode } => self.mknod(path, *kind, *mode, now),
            Op::Symlink { path, target } => self.symlink(path, target, now),
            Op::Link { existing, path } => self.link(existing, path, now),
            Op::LinkHandle { handle, path } => self.link_handle(handle, path, now),
            Op::Unlink { path } => self.unlink(path, now),
            Op::Rmdir { path } => self.rmdir(path, now),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode, now),
            Op::Write { path, offset, length, seed } => {
                let inode = self.resolve(path)?;
                self.write(inode, *offset, *length, *seed, now)
            }
            Op::WriteHandle { handle, offset, length, seed } => {
                let inode = self.handle(handle)?;
                self.write(inode, *offset, *length, *seed, now)
            }
            Op::Append { path, length, seed } => {
                let inode = self.resolve(path)?;
                let offset = self.file(inode)?.0.size();
                self.write(inode, offset, *length, *seed, now)
            }
            Op::Truncate { path, size } => self.truncate(path, *size, now),
            Op::Allocate { path, offset, length, keep_size } => {
                self.allocate(path, *offset, *length, *keep_size, now)
            }
            Op::Punch { path, offset, length } => self.punch(path, *offset, *length, now),
            Op::ZeroRange { path, offset, length, keep_size } => {
                self.zero_range(path, *offset, *length, *keep_size, now)
            }
            Op::SetXattr { path, name, value, mode } => self.set_xattr(path, name, value, *mode, now),
            Op::RemoveXattr { path, name } => self.remove_xattr(path, name, now),
            Op::Chmod { path, mode } => self.chmod(path, *mode, now),
            Op::Chown { path, uid, gid } => self.chown(path, *uid, *gid, now),
            Op::SetTimes { path, atime, mtime } => self.set_times(path, *atime, *mtime, now),
            Op::Open { handle, path } => {
                let inode = self.resolve(path)?;
                self.open(handle, inode);
                Ok(())
            }
            Op::OpenUnnamed { handle, directory, mode } => self.open_unnamed(handle, directory, *mode, now),
            Op::CloseHandle { handle } => self.close(handle),
            Op::FsyncHandle { handle } => self.handle(handle).map(|_| ()),
            Op::Fsync { path } | Op::Fdatasync { path } | Op::Evict { path } => {
                self.resolve(path).map(|_| ())
            }
            Op::Sync => Ok(()),
        }
    }

    /// Current usage.
    pub fn usage(&self) -> Usage {
        Usage { bytes: self.mapped_blocks * crate::BLOCK, inodes: self.inodes.len() as u64 - 1 }
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of names, over all directories.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Number of inodes that have no name and live by an open handle.
    pub fn orphans(&self) -> usize {
        self.inodes.values().filter(|inode| inode.nlink == 0).count()
    }

    /// Names of the open handles.
    pub fn handles(&self) -> impl Iterator<Item = &str> {
        self.handles.keys().map(String::as_str)
    }

    /// Whether a path names anything.
    pub fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_ok()
    }

    /// The model's inode number of a path.
    pub fn inode_of(&self, path: &str) -> Result<u64, ModelError> {
        self.resolve(path)
    }

    /// The model's inode number of an open handle.
    pub fn inode_of_handle(&self, handle: &str) -> Result<u64, ModelError> {
        self.handle(handle)
    }

    /// Bytes of a regular file, fewer than `length` at its end.
    pub fn read(&self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, ModelError> {
        Ok(self.file(self.resolve(path)?)?.0.read(offset, length))
    }

    /// Names of a directory in byte order.
    pub fn list(&self, path: &str) -> Result<Vec<String>, ModelError> {
        Ok(self.directory(self.resolve(path)?)?.keys().cloned().collect())
    }

    /// What a crash with everything durable leaves: handles are gone, and with them the files without a name.
    pub fn close_all(&mut self) {
        for handle in self.handles.keys().cloned().collect::<Vec<_>>() {
            self.close(&handle).expect("the handle was listed");
        }
    }

    pub(crate) fn inode(&self, number: u64) -> &Inode {
        self.inodes.get(&number).expect("an entry or a handle keeps its inode alive")
    }

    pub(crate) fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.touched.push(number);
        Arc::make_mut(self.inodes.get_mut(&number).expect("an entry or a handle keeps its inode alive"))
    }

    pub(crate) fn directory(&self, number: u64) -> Result<&BTreeMap<String, u64>, ModelError> {
        match &self.inode(number).body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(ModelError::NotDirectory),
        }
    }

    pub(crate) fn file(&self, number: u64) -> Result<(&Content, &Ranges), ModelError> {
        match &self.inode(number).body {
            Body::File { content, mapped } => Ok((content, mapped)),
            Body::Directory { .. } => Err(ModelError::IsDirectory),
            Body::Symlink(_) | Body::Special(_) => Err(ModelError::InvalidArgument),
        }
    }

    pub(crate) fn parent_of(&self, directory: u64) -> u64 {
        match self.inode(directory).body {
            Body::Directory { parent, .. } => parent,
            _ => unreachable!("only directories have one parent"),
        }
    }

    pub(crate) fn handle(&self, handle: &str) -> Result<u64, ModelError> {
        self.handles.get(handle).copied().ok_or(ModelError::BadHandle)
    }

    pub(crate) fn resolve(&self, path: &str) -> Result<u64, ModelError> {
        let (parent, last) = self.resolve_parent(path)?;
        match last {
            Last::Root | Last::Dot => Ok(parent),
            Last::DotDot => Ok(self.parent_of(parent)),
            Last::Name(name) => self.lookup(parent, name)?.ok_or(ModelError::NotFound),
        }
    }

    /// The directory that holds the last component, and that component. The directory is checked to be one.
    pub(crate) fn resolve_parent<'a>(&self, path: &'a str) -> Result<(u64, Last<'a>), ModelError> {
        let mut at = ROOT;
        let mut components = path.split('/').filter(|component| !component.is_empty()).peekable();
        while let Some(component) = components.next() {
            let last = components.peek().is_none();
            self.directory(at)?;
            match component {
                "." if last => return Ok((at, Last::Dot)),
                ".." if last => return Ok((at, Last::DotDot)),
                name if last => return Ok((at, Last::Name(name))),
                "." => {}
                ".." => at = self.parent_of(at),
                name => at = self.lookup(at, name)?.ok_or(ModelError::NotFound)?,
            }
        }
        Ok((ROOT, Last::Root))
    }

    pub(crate) fn lookup(&self, directory: u64, name: &str) -> Result<Option<u64>, ModelError> {
        let entries = self.directory(directory)?;
        if name.len() > self.limits.name {
            return Err(ModelError::NameTooLong);
        }
        Ok(entries.get(name).copied())
    }
}
