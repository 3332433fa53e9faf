//! The image of a directory as the model's [`Tree`], read by system calls.
//!
//! Times: as in [`crate::image`], what was stamped during the test becomes zero, which is where the model's clock stands.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use subvol_model::{Compare, Content, Kind, Node, SpecialKind, Time, Tree};

use super::perform::place;
use crate::image::Walk;

/// How a directory is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Viewer {
    walk: Walk,
    /// A file system of the machine: sizes and link counts of directories, access times and blocks follow other rules there.
    plain: bool,
}

impl Viewer {
    /// For a test that begins now.
    #[must_use]
    pub fn from_now(plain: bool) -> Self {
        Self { walk: Walk::from_now(), plain }
    }

    /// What can be compared.
    #[must_use]
    pub const fn compare(&self) -> Compare {
        // What follows from when the server turns pages into extents is not compared here: blocks are the engine's tests' matter.
        Compare { times: !self.plain, file_times: true, data: true, blocks: false }
    }

    /// Everything below a directory.
    ///
    /// # Errors
    /// The kernel's; a name that is listed must be there.
    pub fn tree(&self, root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        let mut ahead = vec![String::new()];
        while let Some(path) = ahead.pop() {
            let node = self.node(root, &path)?;
            if node.kind == Kind::Directory {
                let listed = listed(&place(root, &path))?;
                let below = |name: String| if path.is_empty() { name } else { format!("{path}/{name}") };
                ahead.extend(listed.into_iter().map(below));
            }
            assert!(tree.insert(&path, node).is_none(), "{path} is listed twice");
        }
        Ok(tree)
    }

    /// What one path names.
    ///
    /// # Errors
    /// The kernel's.
    pub fn node(&self, root: &Path, path: &str) -> io::Result<Node> {
        let full = place(root, path);
        let found = std::fs::symlink_metadata(&full)?;
        let kind = found.file_type();
        let kind = match () {
            () if kind.is_file() => Kind::File,
            () if kind.is_dir() => Kind::Directory,
            () if kind.is_symlink() => Kind::Symlink,
            () if kind.is_fifo() => Kind::Special(SpecialKind::Fifo),
            () if kind.is_socket() => Kind::Special(SpecialKind::Socket),
            () if kind.is_char_device() => Kind::Special(SpecialKind::Character(found.rdev() as u32)),
            () => Kind::Special(SpecialKind::Block(found.rdev() as u32)),
        };
        let content = match kind {
            Kind::File => {
                let bytes = std::fs::read(&full)?;
                assert_eq!(bytes.len() as u64, found.size(), "{path}: size and bytes disagree");
                Some(Content::from_bytes(&bytes))
            }
            _ => None,
        };
        let (mut size, mut nlink) = (found.size(), found.nlink() as u32);
        match kind {
            Kind::Directory if self.plain => {
                let entries = listed(&full)?;
                size = entries.len() as u64;
                let is_directory =
                    |name: &&String| full.join(name).symlink_metadata().is_ok_and(|below| below.is_dir());
                nlink = 2 + entries.iter().filter(is_directory).count() as u32;
            }
            Kind::Special(_) => size = 0,
            _ => {}
        }
        let target = match kind {
            Kind::Symlink => Some(std::fs::read_link(&full)?.to_string_lossy().into_owned()),
            _ => None,
        };
        Ok(Node {
            identity: found.ino(),
            kind,
            // A link's own mode means nothing on Linux, and the model's is fixed.
            mode: if kind == Kind::Symlink { 0o777 } else { found.mode() & 0o7777 },
            uid: found.uid(),
            gid: found.gid(),
            nlink,
            size,
            blocks: None,
            atime: self.time(found.atime(), found.atime_nsec()),
            mtime: self.time(found.mtime(), found.mtime_nsec()),
            ctime: self.time(found.ctime(), found.ctime_nsec()),
            xattrs: xattrs(&full)?,
            target,
            content,
        })
    }

    fn time(&self, seconds: i64, nanoseconds: i64) -> Time {
        if (self.walk.since..self.walk.since + Walk::FAR).contains(&seconds) {
            Time::default()
        } else {
            Time::new(seconds, nanoseconds as u32)
        }
    }
}

fn listed(directory: &Path) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names)?;
    let names = names.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    let users = names.filter(|name| name.starts_with(b"user."));
    users
        .map(|name| {
            let mut value = vec![0; 65_536];
            let length = rustix::fs::lgetxattr(path, name, &mut value)?;
            value.truncate(length);
            Ok((String::from_utf8_lossy(name).into_owned(), value))
        })
        .collect()
}
