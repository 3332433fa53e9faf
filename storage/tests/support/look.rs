//! What can be seen of a subvolume, as an image that compares with the model's.

use super::machine::{Fault, Machine};
use super::translate::{kind, text, time};
use std::collections::BTreeMap;
use subvol_model::{Content, Kind, Node, Tree};
use subvol_storage::error::FsError;
use subvol_storage::fs::read::ReadSegment;
use subvol_storage::fs::seek::{Seek, SeekKind};
use subvol_storage::limits::{BLOCK_BYTES, IO_BYTES_MAX, ROOT_INODE};
use subvol_storage::types::InodeNumber;

impl Machine {
    /// An image of a subvolume's namespace.
    pub fn tree(&mut self, volume: usize) -> Tree {
        self.try_tree(volume).unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// The same; damage is an answer.
    pub fn try_tree(&mut self, volume: usize) -> Result<Tree, Fault> {
        let mut tree = Tree::default();
        let mut seen = BTreeMap::new();
        let root = self.node(volume, ROOT_INODE)?;
        tree.insert("", root);
        let mut open = vec![(String::new(), ROOT_INODE)];
        while let Some((path, directory)) = open.pop() {
            let mut after = 0;
            loop {
                let batch = self.call(volume, |engine| engine.read_directory(directory, after, 64, true))?;
                if !batch.end && batch.entries.is_empty() {
                    return Err(Fault::Broken(format!("no progress in the directory {path}")));
                }
                for entry in &batch.entries {
                    after = entry.cookie;
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                    let node = match seen.get(&entry.inode) {
                        Some(node) => Node::clone(node),
                        None => self.node(volume, entry.inode)?,
                    };
                    if node.nlink > 1 {
                        seen.insert(entry.inode, node.clone());
                    }
                    if node.kind == Kind::Directory {
                        open.push((path.clone(), entry.inode));
                    }
                    if tree.insert(&path, node).is_some() {
                        return Err(Fault::Broken(format!("{path} is listed twice")));
                    }
                }
                if batch.end {
                    break;
                }
            }
        }
        Ok(tree)
    }

    fn node(&mut self, volume: usize, inode: InodeNumber) -> Result<Node, Fault> {
        let item = self.call(volume, |engine| engine.attributes(inode))?;
        let kind = kind(&item);
        let mut xattrs = BTreeMap::new();
        if item.xattrs > 0 {
            for name in self.call(volume, |engine| engine.list_xattrs(inode))? {
                let value = self.call(volume, |engine| engine.get_xattr(inode, &name))?;
                xattrs.insert(text(&name), value.to_vec());
            }
        }
        let target = match kind {
            Kind::Symlink => Some(text(&self.call(volume, |engine| engine.read_link(inode))?)),
            _ => None,
        };
        let content = match kind {
            Kind::File => Some(self.content(volume, inode, item.size)?),
            _ => None,
        };
        Ok(Node {
            identity: inode,
            kind,
            mode: item.mode & 0o7777,
            uid: item.uid,
            gid: item.gid,
            nlink: item.nlink,
            size: item.size,
            blocks: Some(item.blocks),
            atime: time(item.atime),
            mtime: time(item.mtime),
            ctime: time(item.ctime),
            xattrs,
            target,
            content,
        })
    }

    /// All bytes of a file, found as a client that skips holes finds them.
    fn content(&mut self, volume: usize, inode: InodeNumber, size: u64) -> Result<Content, Fault> {
        let mut content = Content::default();
        content.resize(size);
        let mut at = 0;
        while at < size {
            let data = match self.call(volume, |engine| engine.seek(inode, at, SeekKind::Data)) {
                Ok(Seek::Found(data)) => data,
                Ok(Seek::From(later)) => {
                    at = later;
                    continue;
                }
                Err(Fault::Refused(FsError::NoMoreData)) => break,
                Err(other) => return Err(other),
            };
            let mut end = data;
            loop {
                match self.call(volume, |engine| engine.seek(inode, end, SeekKind::Hole))? {
                    Seek::Found(hole) => {
                        end = hole;
                        break;
                    }
                    Seek::From(later) => end = later,
                }
            }
            at = data;
            while at < end {
                let bytes = self.read(volume, inode, at, (end - at).min(IO_BYTES_MAX as u64) as usize)?;
                content.write(at, &bytes);
                at += bytes.len() as u64;
            }
        }
        Ok(content)
    }

    /// Up to `length` bytes.
    pub fn read(
        &mut self,
        volume: usize,
        inode: InodeNumber,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Fault> {
        let plan = self.call(volume, |engine| engine.plan_read(inode, offset, length))?;
        let mut out = Vec::with_capacity(plan.length);
        for segment in plan.segments {
            match segment {
                ReadSegment::Zeros(count) => out.resize(out.len() + count, 0),
                ReadSegment::Memory { page, from, to } => out.extend_from_slice(&page[from..to]),
                ReadSegment::Device { pointer, skip, length } => {
                    let pages = self.store.read_data(&pointer).map_err(|e| Fault::Broken(e.to_string()))?;
                    let wanted = out.len() + length;
                    let block = BLOCK_BYTES as usize;
                    out.extend_from_slice(&pages[skip / block][skip % block..]);
                    pages[skip / block + 1..].iter().for_each(|page| out.extend_from_slice(&page[..]));
                    out.truncate(wanted);
                }
            }
        }
        assert_eq!(out.len(), plan.length, "a read's pieces and its length");
        Ok(out)
    }
}

const _: () = assert!(BLOCK_BYTES == subvol_model::BLOCK);
