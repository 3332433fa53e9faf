//! A file system in memory: the obvious one, with as much of the protocol as the command line uses.

use std::collections::BTreeMap;

use bytes::Bytes;
use subvol_client::protocol::attributes::{Attributes, DirectoryEntry, SetTime, VolumeStatistics};
use subvol_client::protocol::error::ErrorCode;
use subvol_client::protocol::name::{LinkTarget, Name, XattrName, XattrNames, XattrValue};
use subvol_client::protocol::request::{
    Create, FileRef, FileRequest, HandleRef, InodeRef, NewKind, OpenFlags, RenameMode, SeekTarget,
    SetAttributes, WritePosition, XattrMode,
};
use subvol_client::protocol::response::{FileResponse, StepResult};
use subvol_client::{FileKind, Ticket, Timestamp, UNLIMITED};

const BLOCK: u64 = 4096;
pub const ROOT: u64 = 256;

#[derive(Debug)]
struct Node {
    attributes: Attributes,
    blocks: BTreeMap<u64, Vec<u8>>,
    /// By cookie.
    entries: BTreeMap<u64, (Name, u64)>,
    target: Option<LinkTarget>,
    xattrs: BTreeMap<XattrName, XattrValue>,
}

#[derive(Debug)]
pub struct Tree {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Requests that were executed, steps of compounds included.
    pub executed: u64,
}

type Answer = Result<(FileResponse, Bytes), ErrorCode>;

fn ticket() -> Ticket {
    Ticket { epoch: 1, transid: 1, log_transid: 1 }
}

fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

impl Tree {
    pub fn new() -> Self {
        let mut tree = Self { nodes: BTreeMap::new(), next: ROOT, executed: 0 };
        tree.add(&NewKind::Directory, 0o755, 0, 0);
        tree
    }

    /// Runs steps as a compound does.
    pub fn compound(
        &mut self,
        steps: &[FileRequest],
        payload: &Bytes,
        handles: &mut BTreeMap<u64, u64>,
    ) -> (Vec<StepResult>, Bytes) {
        let (mut results, mut out): (Vec<StepResult>, Bytes) = (Vec::new(), Bytes::new());
        for step in steps {
            let answer = self.run(step, payload, handles, &results);
            let failed = answer.is_err();
            results.push(answer.map_err(Into::into).map(|(response, bytes)| {
                if !bytes.is_empty() {
                    out = bytes;
                }
                response
            }));
            if failed {
                break;
            }
        }
        (results, out)
    }

    pub fn statistics(&self) -> VolumeStatistics {
        let used = self.nodes.values().map(|node| node.blocks.len() as u64 * BLOCK).sum();
        VolumeStatistics {
            block_size: 4096,
            max_name: 255,
            total_bytes: 1 << 40,
            used_bytes: used,
            available_bytes: (1 << 40) - used,
            total_inodes: UNLIMITED,
            used_inodes: self.nodes.len() as u64 - 1,
        }
    }

    fn add(&mut self, kind: &NewKind, permissions: u32, uid: u32, gid: u32) -> u64 {
        let inode = self.next;
        self.next += 1;
        let (rdev, target) = match kind {
            NewKind::CharacterDevice(rdev) | NewKind::BlockDevice(rdev) => (*rdev, None),
            NewKind::Symlink(target) => (0, Some(target.clone())),
            _ => (0, None),
        };
        let directory = kind.file_kind() == FileKind::Directory;
        let attributes = Attributes {
            inode,
            mode: kind.file_kind().mode_bits() | permissions,
            links: if directory { 2 } else { 1 },
            uid,
            gid,
            rdev,
            size: target.as_ref().map_or(0, |target| target.as_bytes().len() as u64),
            blocks: 0,
            atime: now(),
            mtime: now(),
            ctime: now(),
            btime: now(),
            version: 1,
        };
        let (blocks, entries, xattrs) = Default::default();
        self.nodes.insert(inode, Node { attributes, blocks, entries, target, xattrs });
        inode
    }

    fn node(&mut self, inode: u64) -> Result<&mut Node, ErrorCode> {
        self.nodes.get_mut(&inode).ok_or(ErrorCode::StaleInode)
    }

    fn attributes(&mut self, inode: u64) -> Result<Attributes, ErrorCode> {
        let node = self.node(inode)?;
        let mut attributes = node.attributes;
        attributes.blocks = node.blocks.len() as u64;
        if attributes.kind() == Some(FileKind::Directory) {
            attributes.size = node.entries.len() as u64;
        }
        Ok(attributes)
    }

    fn find(&mut self, parent: u64, name: &Name) -> Result<(u64, u64), ErrorCode> {
        let node = self.node(parent)?;
        if node.attributes.kind() != Some(FileKind::Directory) {
            return Err(ErrorCode::NotDirectory);
        }
        let found = node.entries.iter().find(|(_, (entry, _))| entry == name);
        found.map(|(cookie, (_, inode))| (*cookie, *inode)).ok_or(ErrorCode::NotFound)
    }

    fn insert(&mut self, parent: u64, name: &Name, inode: u64) -> Result<(), ErrorCode> {
        let cookie = self.next;
        self.next += 1;
        let directory = self.node(inode)?.attributes.kind() == Some(FileKind::Directory);
        let parent = self.node(parent)?;
        parent.entries.insert(cookie, (name.clone(), inode));
        parent.attributes.mtime = now();
        parent.attributes.links += u32::from(directory);
        Ok(())
    }

    fn remove(&mut self, parent: u64, name: &Name) -> Result<u64, ErrorCode> {
        let (cookie, inode) = self.find(parent, name)?;
        let directory = self.node(inode)?.attributes.kind() == Some(FileKind::Directory);
        let parent = self.node(parent)?;
        parent.entries.remove(&cookie);
        parent.attributes.mtime = now();
        parent.attributes.links -= u32::from(directory);
        Ok(inode)
    }

    fn drop_name(&mut self, inode: u64, handles: &BTreeMap<u64, u64>) -> Result<u32, ErrorCode> {
        let node = self.node(inode)?;
        let gone = if node.attributes.kind() == Some(FileKind::Directory) { 2 } else { 1 };
        node.attributes.links -= gone;
        let left = node.attributes.links;
        if left == 0 && !handles.values().any(|open| *open == inode) {
            self.nodes.remove(&inode);
        }
        Ok(left)
    }

    fn set_size(&mut self, inode: u64, size: u64) -> Result<(), ErrorCode> {
        let node = self.node(inode)?;
        node.blocks.retain(|index, _| index * BLOCK < size);
        if let Some(block) = node.blocks.get_mut(&(size / BLOCK)) {
            block[(size % BLOCK) as usize..].fill(0);
        }
        node.attributes.size = size;
        Ok(())
    }

    fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Result<u64, ErrorCode> {
        let node = self.node(inode)?;
        for (at, byte) in (offset..).zip(bytes) {
            let block = node.blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
            block[(at % BLOCK) as usize] = *byte;
        }
        node.attributes.size = node.attributes.size.max(offset + bytes.len() as u64);
        node.attributes.mtime = now();
        Ok(node.attributes.size)
    }

    fn run(
        &mut self,
        request: &FileRequest,
        payload: &Bytes,
        handles: &mut BTreeMap<u64, u64>,
        earlier: &[StepResult],
    ) -> Answer {
        self.executed += 1;
        let step = |number: u8| earlier[usize::from(number)].as_ref().expect("a step that ran");
        let inode = |reference: &InodeRef| match reference {
            InodeRef::Explicit(inode) => *inode,
            InodeRef::FromStep(number) => step(*number).inode().expect("it names an inode"),
        };
        let handle = |reference: &HandleRef| match reference {
            HandleRef::Explicit(handle) => *handle,
            HandleRef::FromStep(number) => step(*number).handle().expect("it names a handle"),
        };
        let file = |reference: &FileRef, handles: &BTreeMap<u64, u64>| match reference {
            FileRef::Inode(reference) => Ok(inode(reference)),
            FileRef::Handle(reference) => {
                handles.get(&handle(reference)).copied().ok_or(ErrorCode::StaleHandle)
            }
        };
        let ticket = ticket();
        let response = match request {
            FileRequest::Lookup { parent, name } => {
                let (_, found) = self.find(inode(parent), name)?;
                FileResponse::Entry { attributes: self.attributes(found)?, ticket: None }
            }
            FileRequest::Create(create) => self.create(create, inode(&create.parent), handles)?,
            FileRequest::Link { file: linked, parent, name } => {
                let (linked, parent) = (file(linked, handles)?, inode(parent));
                if self.find(parent, name).is_ok() {
                    return Err(ErrorCode::Exists);
                }
                self.node(linked)?.attributes.links += 1;
                self.insert(parent, name, linked)?;
                FileResponse::Entry { attributes: self.attributes(linked)?, ticket: Some(ticket) }
            }
            FileRequest::Unlink { parent, name } => {
                let (_, found) = self.find(inode(parent), name)?;
                if self.node(found)?.attributes.kind() == Some(FileKind::Directory) {
                    return Err(ErrorCode::IsDirectory);
                }
                self.remove(inode(parent), name)?;
                FileResponse::Removed { inode: found, links: self.drop_name(found, handles)?, ticket }
            }
            FileRequest::RemoveDirectory { parent, name } => {
                let (_, found) = self.find(inode(parent), name)?;
                if !self.node(found)?.entries.is_empty() {
                    return Err(ErrorCode::NotEmpty);
                }
                self.remove(inode(parent), name)?;
                FileResponse::Removed { inode: found, links: self.drop_name(found, handles)?, ticket }
            }
            FileRequest::Rename { parent, name, new_parent, new_name, mode } => {
                let (parent, new_parent) = (inode(parent), inode(new_parent));
                let (_, moved) = self.find(parent, name)?;
                let target = self.find(new_parent, new_name).ok().map(|(_, target)| target);
                match (mode, target) {
                    (RenameMode::NoReplace, Some(_)) => return Err(ErrorCode::Exists),
                    (RenameMode::Exchange, None) => return Err(ErrorCode::NotFound),
                    (_, Some(target)) if target != moved => {
                        self.remove(new_parent, new_name)?;
                    }
                    _ => {}
                }
                self.remove(parent, name)?;
                self.insert(new_parent, new_name, moved)?;
                match (mode, target) {
                    (RenameMode::Exchange, Some(target)) => self.insert(parent, name, target)?,
                    (_, Some(target)) if target != moved => drop(self.drop_name(target, handles)?),
                    _ => {}
                }
                FileResponse::Renamed { inode: moved, replaced: target, ticket }
            }
            FileRequest::ReadLink { inode: link } => {
                let target = self.node(inode(link))?.target.clone().ok_or(ErrorCode::InvalidArgument)?;
                FileResponse::Link { target }
            }
            FileRequest::GetAttributes { file: number } => {
                FileResponse::Attributes { attributes: self.attributes(file(number, handles)?)? }
            }
            FileRequest::SetAttributes(set) => {
                let number = file(&set.file, handles)?;
                self.set(number, set)?;
                FileResponse::AttributesSet { attributes: self.attributes(number)?, ticket }
            }
            FileRequest::ReadDirectory { inode: number, after_cookie, max_entries, with_attributes } => {
                self.list(inode(number), *after_cookie, *max_entries, *with_attributes)?
            }
            FileRequest::GetXattr { inode: number, name } => {
                let value =
                    self.node(inode(number))?.xattrs.get(name).cloned().ok_or(ErrorCode::XattrNotFound)?;
                FileResponse::Xattr { value }
            }
            FileRequest::SetXattr { inode: number, name, value, mode } => {
                let xattrs = &mut self.node(inode(number))?.xattrs;
                match (mode, xattrs.contains_key(name)) {
                    (XattrMode::Create, true) => return Err(ErrorCode::Exists),
                    (XattrMode::Replace, false) => return Err(ErrorCode::XattrNotFound),
                    _ => xattrs.insert(name.clone(), value.clone()),
                };
                FileResponse::Done { ticket }
            }
            FileRequest::ListXattrs { inode: number } => {
                let names = XattrNames::join(self.node(inode(number))?.xattrs.keys());
                FileResponse::XattrNames { names: names.map_err(ErrorCode::from)? }
            }
            FileRequest::RemoveXattr { inode: number, name } => {
                self.node(inode(number))?.xattrs.remove(name).ok_or(ErrorCode::XattrNotFound)?;
                FileResponse::Done { ticket }
            }
            FileRequest::StatFs => FileResponse::Statistics { statistics: self.statistics() },
            FileRequest::ResolvePath { base, components } => {
                let (mut at, mut found) = (inode(base), Vec::new());
                for name in components {
                    let Ok((_, next)) = self.find(at, name) else { break };
                    found.push(self.attributes(next)?);
                    at = next;
                }
                FileResponse::Path { found }
            }
            FileRequest::Open { inode: number, flags } => {
                let number = inode(number);
                let directory = self.node(number)?.attributes.kind() == Some(FileKind::Directory);
                if directory && flags.contains(OpenFlags::WRITE) {
                    return Err(ErrorCode::IsDirectory);
                }
                if !directory && flags.contains(OpenFlags::DIRECTORY) {
                    return Err(ErrorCode::NotDirectory);
                }
                let handle = self.open(number, *flags, handles)?;
                FileResponse::Opened { handle, attributes: self.attributes(number)?, ticket: None }
            }
            FileRequest::Close { handle: closed, .. } => {
                let number = handles.remove(&handle(closed)).ok_or(ErrorCode::StaleHandle)?;
                if self.node(number).is_ok_and(|node| node.attributes.links == 0) {
                    self.nodes.remove(&number);
                }
                FileResponse::Closed
            }
            FileRequest::Read { file: number, offset, length } => {
                let node = self.node(file(number, handles)?)?;
                let end = node.attributes.size.min(offset + u64::from(*length));
                let byte =
                    |at: u64| node.blocks.get(&(at / BLOCK)).map_or(0, |block| block[(at % BLOCK) as usize]);
                let bytes: Vec<u8> = (*offset..end).map(byte).collect();
                let length = bytes.len() as u32;
                let response = FileResponse::Read { length, end_of_file: end == node.attributes.size };
                return Ok((response, bytes.into()));
            }
            FileRequest::Write { file: number, position } => {
                let number = file(number, handles)?;
                let position = match position {
                    WritePosition::At(offset) => *offset,
                    WritePosition::Append => self.node(number)?.attributes.size,
                };
                let size = self.write(number, position, payload)?;
                FileResponse::Written { written: payload.len() as u32, position, size, ticket }
            }
            FileRequest::Seek { file: number, offset, target } => {
                let node = self.node(file(number, handles)?)?;
                let size = node.attributes.size;
                if *offset >= size {
                    return Err(ErrorCode::SeekNoData);
                }
                let data = |at: u64| node.blocks.contains_key(&(at / BLOCK));
                let mut at = *offset;
                while at < size && data(at) != (*target == SeekTarget::Data) {
                    at = (at / BLOCK + 1) * BLOCK;
                }
                if at >= size && *target == SeekTarget::Data {
                    return Err(ErrorCode::SeekNoData);
                }
                FileResponse::Found { offset: at.min(size) }
            }
            FileRequest::Fsync { .. } | FileRequest::SyncVolume { .. } => {
                FileResponse::Synced { durable: ticket }
            }
            // What no verb of the command line asks for: ranges, and what mounts need.
            _ => return Err(ErrorCode::NotSupported),
        };
        Ok((response, Bytes::new()))
    }

    fn open(
        &mut self,
        inode: u64,
        flags: OpenFlags,
        handles: &mut BTreeMap<u64, u64>,
    ) -> Result<u64, ErrorCode> {
        if flags.contains(OpenFlags::TRUNCATE) {
            self.set_size(inode, 0)?;
        }
        self.next += 1;
        handles.insert(self.next, inode);
        Ok(self.next)
    }

    fn create(
        &mut self,
        create: &Create,
        parent: u64,
        handles: &mut BTreeMap<u64, u64>,
    ) -> Result<FileResponse, ErrorCode> {
        let (inode, created) = match self.find(parent, &create.name) {
            Ok((_, found)) if !create.exclusive => {
                if self.node(found)?.attributes.kind() != Some(FileKind::Regular) {
                    return Err(ErrorCode::Exists);
                }
                (found, false)
            }
            Ok(_) => return Err(ErrorCode::Exists),
            Err(ErrorCode::NotFound) => {
                let inode = self.add(&create.kind, create.permissions, create.uid, create.gid);
                self.insert(parent, &create.name, inode)?;
                (inode, true)
            }
            Err(error) => return Err(error),
        };
        let handle = create.open.map(|flags| self.open(inode, flags, handles)).transpose()?;
        Ok(FileResponse::Created { attributes: self.attributes(inode)?, handle, created, ticket: ticket() })
    }

    fn set(&mut self, inode: u64, set: &SetAttributes) -> Result<(), ErrorCode> {
        if let Some(size) = set.size {
            self.set_size(inode, size)?;
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now(),
            SetTime::To(time) => time,
        };
        let attributes = &mut self.node(inode)?.attributes;
        if let Some(permissions) = set.permissions {
            attributes.mode = attributes.mode & !0o7777 | permissions;
        }
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.atime = set.atime.map_or(attributes.atime, time);
        attributes.mtime = set.mtime.map_or(attributes.mtime, time);
        Ok(())
    }

    fn list(&mut self, inode: u64, after: u64, max: u32, all: bool) -> Result<FileResponse, ErrorCode> {
        let node = self.node(inode)?;
        if node.attributes.kind() != Some(FileKind::Directory) {
            return Err(ErrorCode::NotDirectory);
        }
        // Small pages, so that reading on is tried too.
        let max = max.min(7) as usize;
        let mut page: Vec<_> = node
            .entries
            .range(after + 1..)
            .take(max + 1)
            .map(|(cookie, (name, inode))| (*cookie, name.clone(), *inode))
            .collect();
        let end = page.len() <= max;
        page.truncate(max);
        let mut entries = Vec::new();
        for (cookie, name, inode) in page {
            let attributes = self.attributes(inode)?;
            let kind = attributes.kind().ok_or(ErrorCode::Internal)?;
            entries.push(DirectoryEntry { cookie, inode, kind, name, attributes: all.then_some(attributes) });
        }
        Ok(FileResponse::Directory { entries, end })
    }
}
