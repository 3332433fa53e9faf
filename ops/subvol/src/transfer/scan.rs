//! A local tree as a stream of items, directories before what is in them. Blocking; runs on a thread of its own.
//!
//! Invariants: a directory's number is its place among all directories sent; a regular file is judged by what was opened, not by what
//! was listed; a file's second name is sent without its content.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustc_hash::FxHashSet;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use subvol_client::FileKind;

use super::facts::Facts;
use super::report::Report;
use super::{SMALL, Xattrs};

/// Where an item goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Into what the caller named.
    Given(u64),
    /// Into the directory that was sent with this number.
    Directory(usize),
}

/// One thing to be made.
#[derive(Debug)]
pub struct Item {
    pub path: PathBuf,
    pub parent: Parent,
    /// `None`: the item is the given parent itself.
    pub name: Option<Vec<u8>>,
    pub facts: Facts,
    pub xattrs: Xattrs,
    /// Device and inode number of a file with several names.
    pub identity: Option<(u64, u64)>,
    pub content: Content,
}

/// What is in it.
#[derive(Debug)]
pub enum Content {
    /// Nothing, or nothing that has to be moved.
    Empty,
    /// All of a small file.
    Bytes(Bytes),
    /// A file that is large or has holes.
    File(File),
    /// A link's target.
    Target(Vec<u8>),
    /// Another name of a file that was sent before.
    Again,
}

/// Scans trees one after another.
pub struct Scanner<'a> {
    report: &'a Report,
    directories: usize,
    seen: FxHashSet<(u64, u64)>,
    list: Vec<u8>,
}

impl<'a> Scanner<'a> {
    pub fn new(report: &'a Report) -> Self {
        Self { report, directories: 0, seen: FxHashSet::default(), list: vec![0; 64 * 1024] }
    }

    /// Sends the tree at `path` until `send` says no. A link at `path` itself is followed, those below are not.
    pub fn scan(
        &mut self,
        path: &Path,
        parent: u64,
        name: Option<Vec<u8>>,
        send: &mut dyn FnMut(Item) -> bool,
    ) -> bool {
        let kind = match fs::metadata(path) {
            Ok(metadata) => FileKind::from_mode(metadata.mode()),
            Err(error) => {
                self.report.failed(path.display(), &error);
                return true;
            }
        };
        let mut ahead = vec![(path.to_owned(), Parent::Given(parent), name, kind)];
        let mut follow = true;
        while let Some((path, parent, name, kind)) = ahead.pop() {
            let item = self.item(path, parent, name, kind, follow);
            follow = false;
            let item = match item {
                Ok(item) => item,
                Err((path, error)) => {
                    self.report.failed(path.display(), &error);
                    continue;
                }
            };
            let directory = (item.facts.kind == FileKind::Directory).then(|| item.path.clone());
            if !send(item) {
                return false;
            }
            if let Some(path) = directory {
                let number = self.directories;
                self.directories += 1;
                if let Err(error) = list(&path, number, &mut ahead) {
                    self.report.failed(path.display(), &error);
                }
            }
        }
        true
    }

    fn item(
        &mut self,
        path: PathBuf,
        parent: Parent,
        name: Option<Vec<u8>>,
        kind: Option<FileKind>,
        follow: bool,
    ) -> Result<Item, (PathBuf, io::Error)> {
        match self.look(&path, kind, follow) {
            Ok((facts, xattrs, identity, content)) => {
                Ok(Item { path, parent, name, facts, xattrs, identity, content })
            }
            Err(error) => Err((path, error)),
        }
    }

    fn look(&mut self, path: &Path, kind: Option<FileKind>, follow: bool) -> io::Result<Looked> {
        if kind == Some(FileKind::Regular) {
            // Not through a link that took the name meanwhile, and not waiting for the other end of a pipe that did.
            let flags = OFlags::NONBLOCK.union(if follow { OFlags::empty() } else { OFlags::NOFOLLOW });
            let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
            let metadata = file.metadata()?;
            let facts = facts(&metadata)?;
            if facts.kind == FileKind::Regular {
                return self.regular(file, &metadata, facts);
            }
        }
        let metadata = if follow { fs::metadata(path)? } else { fs::symlink_metadata(path)? };
        let facts = facts(&metadata)?;
        let content = match facts.kind {
            FileKind::Symlink => Content::Target(fs::read_link(path)?.into_os_string().into_vec()),
            FileKind::Regular => {
                return Err(io::Error::other("it changed while it was copied; copy it again"));
            }
            _ => Content::Empty,
        };
        let (identity, again) = self.identity(&metadata, facts);
        let xattrs = if again { Xattrs::new() } else { self.path_xattrs(path, follow)? };
        Ok((facts, xattrs, identity, if again { Content::Again } else { content }))
    }

    fn regular(&mut self, mut file: File, metadata: &Metadata, facts: Facts) -> io::Result<Looked> {
        let (identity, again) = self.identity(metadata, facts);
        if again {
            return Ok((facts, Xattrs::new(), identity, Content::Again));
        }
        let result = self.file_xattrs(&file).and_then(|xattrs| {
            let content = if facts.size > SMALL || facts.sparse {
                Content::File(file)
            } else {
                let mut bytes = Vec::with_capacity(facts.size as usize);
                // A file that grows meanwhile is copied as it was found.
                file.by_ref().take(facts.size).read_to_end(&mut bytes)?;
                Content::Bytes(bytes.into())
            };
            Ok((facts, xattrs, identity, content))
        });
        if let (Err(_), Some(identity)) = (&result, identity) {
            // The next name of it is the first that is sent.
            self.seen.remove(&identity);
        }
        result
    }

    /// What a file with several names is recognised by, and whether it was seen before.
    fn identity(&mut self, metadata: &Metadata, facts: Facts) -> (Option<(u64, u64)>, bool) {
        if facts.links < 2 || facts.kind == FileKind::Directory {
            return (None, false);
        }
        let identity = (metadata.dev(), metadata.ino());
        (Some(identity), !self.seen.insert(identity))
    }

    fn file_xattrs(&mut self, file: &File) -> io::Result<Xattrs> {
        collect_xattrs(
            &mut self.list,
            |list| rustix::fs::flistxattr(file, list),
            |name, value| rustix::fs::fgetxattr(file, name, value),
        )
    }

    fn path_xattrs(&mut self, path: &Path, follow: bool) -> io::Result<Xattrs> {
        if follow {
            return collect_xattrs(
                &mut self.list,
                |list| rustix::fs::listxattr(path, list),
                |name, value| rustix::fs::getxattr(path, name, value),
            );
        }
        collect_xattrs(
            &mut self.list,
            |list| rustix::fs::llistxattr(path, list),
            |name, value| rustix::fs::lgetxattr(path, name, value),
        )
    }
}

/// A path, where it goes, its name there, and its kind if the listing told that it is a regular file.
type Listed = (PathBuf, Parent, Option<Vec<u8>>, Option<FileKind>);
/// What was found out about a path.
type Looked = (Facts, Xattrs, Option<(u64, u64)>, Content);

fn facts(metadata: &Metadata) -> io::Result<Facts> {
    Facts::local(metadata).ok_or_else(|| io::Error::other("no volume can hold this kind of file"))
}

/// Puts the entries of a directory on the list, so that they come off sorted by name.
fn list(path: &Path, number: usize, ahead: &mut Vec<Listed>) -> io::Result<()> {
    let start = ahead.len();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name: OsString = entry.file_name();
        let kind = entry.file_type()?;
        let kind = if kind.is_file() { Some(FileKind::Regular) } else { None };
        ahead.push((entry.path(), Parent::Directory(number), Some(name.into_vec()), kind));
    }
    if let Some(added) = ahead.get_mut(start..) {
        added.sort_unstable_by(|one, other| other.2.cmp(&one.2));
    }
    Ok(())
}

fn collect_xattrs(
    buffer: &mut [u8],
    list: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Xattrs> {
    let length = match list(buffer) {
        // A file system without extended attributes has none.
        Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        other => other?,
    };
    let names = buffer.get(..length).unwrap_or_default();
    if names.is_empty() {
        return Ok(Xattrs::new());
    }
    let mut value = vec![0; 64 * 1024];
    let mut xattrs = Xattrs::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        match get(OsStr::from_bytes(name), &mut value) {
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            other => xattrs.push((name.to_vec(), value.get(..other?).unwrap_or_default().to_vec())),
        }
    }
    Ok(xattrs)
}

/// The ranges of a file that hold data: start and end.
///
/// # Errors
/// Seeking.
pub fn data_ranges(file: &File, size: u64, sparse: bool) -> io::Result<Vec<(u64, u64)>> {
    if !sparse {
        return Ok(if size == 0 { Vec::new() } else { vec![(0, size)] });
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            // A file system that knows no holes has none.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                ranges.push((at, size));
                break;
            }
            other => other?,
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            // Cut meanwhile.
            Err(Errno::NXIO) => break,
            other => other?.min(size),
        };
        if start >= end {
            break;
        }
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}
