//! Names: looking up, making, linking, moving, removing.

use std::rc::Rc;

use subvol_protocol::attributes::{Attributes, FileKind};
use subvol_protocol::name::{LinkTarget, Name};
use subvol_protocol::request::{Create, FileRef, FileRequest, InodeRef, NewKind, RenameMode};
use subvol_protocol::response::FileResponse;

use super::dispatch::Asked;
use super::inodes::absent;
use super::{Front, Outcome, Output, errno};
use crate::backend::{Backend, Failure};
use crate::kernel::abi::{CreateIn, MkDirIn, MkNodIn, Rename2In};
use crate::kernel::reply;

const NOENT: i32 = libc::ENOENT;

pub(super) const fn inode_ref(inode: u64) -> InodeRef {
    InodeRef::Explicit(inode)
}

pub(super) fn unexpected() -> Failure {
    tracing::error!("the server answered something else than what was asked");
    Failure(errno::EIO)
}

fn name(bytes: &[u8]) -> Result<Name, Failure> {
    Name::new(bytes).map_err(|error| Failure(subvol_protocol::error::ErrorCode::from(error).errno()))
}

impl<B: Backend> Front<B> {
    /// Names an inode in an answer.
    fn entry(&self, asked: &Asked, attributes: &Attributes) -> Output {
        let valid = self.validity(asked.inode, attributes.inode, asked.since);
        let sure = self.is_sure(attributes.inode, asked.since);
        let nodeid = {
            let mut inodes = self.inodes.borrow_mut();
            inodes.named(attributes, sure);
            inodes.nodeid(attributes.inode)
        };
        Output::of(&reply::entry(nodeid, attributes, valid)).naming(attributes.inode)
    }

    pub(super) async fn look_up(&self, asked: &Asked, entry: &[u8]) -> Outcome {
        let request = FileRequest::Lookup { parent: inode_ref(asked.inode), name: name(entry)? };
        match self.ask(request).await {
            Ok(FileResponse::Entry { attributes, .. }) => Ok(self.entry(asked, &attributes)),
            Ok(_) => Err(unexpected()),
            // That it is absent may be kept as well.
            Err(Failure(NOENT)) if self.is_sure(asked.inode, asked.since) => {
                Ok(Output::of(&reply::absent(self.validity(asked.inode, asked.inode, asked.since))))
            }
            Err(failure) => Err(failure),
        }
    }

    async fn make(
        self: &Rc<Self>,
        asked: &Asked,
        entry: &[u8],
        kind: NewKind,
        (mode, umask): (u32, u32),
        exclusive: bool,
    ) -> Result<(Attributes, bool), Failure> {
        let create = Create {
            parent: inode_ref(asked.inode),
            name: name(entry)?,
            kind,
            permissions: mode & 0o7777,
            uid: asked.uid,
            gid: asked.gid,
            exclusive,
            open: None,
        };
        let changing = self.changing(&[asked.inode]);
        let answer = self.ask(FileRequest::CreateMasked { create, umask: umask & 0o777 }).await;
        drop(changing);
        match answer? {
            FileResponse::Created { attributes, created, .. } => Ok((attributes, created)),
            _ => Err(unexpected()),
        }
    }

    /// As [`Self::entry`], of an inode that was just made: it has no capabilities.
    fn new_entry(&self, asked: &Asked, attributes: &Attributes) -> Output {
        let output = self.entry(asked, attributes);
        if self.is_sure(attributes.inode, asked.since) {
            let _ = self.with_node(attributes.inode, |node| node.absent |= absent::CAPABILITY);
        }
        output
    }

    pub(super) async fn make_node(self: &Rc<Self>, asked: &Asked, node: &MkNodIn, entry: &[u8]) -> Outcome {
        let kind = match FileKind::from_mode(node.mode) {
            Some(FileKind::Regular) => NewKind::Regular,
            Some(FileKind::Fifo) => NewKind::Fifo,
            Some(FileKind::Socket) => NewKind::Socket,
            Some(FileKind::CharacterDevice) => NewKind::CharacterDevice(node.rdev),
            Some(FileKind::BlockDevice) => NewKind::BlockDevice(node.rdev),
            _ => return Err(Failure(errno::EINVAL)),
        };
        let (attributes, _) = self.make(asked, entry, kind, (node.mode, node.umask), true).await?;
        Ok(self.new_entry(asked, &attributes))
    }

    pub(super) async fn make_directory(
        self: &Rc<Self>,
        asked: &Asked,
        directory: &MkDirIn,
        entry: &[u8],
    ) -> Outcome {
        let modes = (directory.mode, directory.umask);
        let (attributes, _) = self.make(asked, entry, NewKind::Directory, modes, true).await?;
        Ok(self.new_entry(asked, &attributes))
    }

    pub(super) async fn symlink(self: &Rc<Self>, asked: &Asked, entry: &[u8], target: &[u8]) -> Outcome {
        let target = LinkTarget::new(target).map_err(|_| Failure(libc::ENAMETOOLONG))?;
        let (attributes, _) = self.make(asked, entry, NewKind::Symlink(target), (0o777, 0), true).await?;
        Ok(self.new_entry(asked, &attributes))
    }

    pub(super) async fn create(self: &Rc<Self>, asked: &Asked, create: &CreateIn, entry: &[u8]) -> Outcome {
        let flags = create.flags as i32;
        // Always exclusive: the kernel takes what it gets for new and lets its opener in without a look at permissions. If somebody
        // else was first, it looks the name up again and opens what is there, as anybody may or may not.
        let made = self.make(asked, entry, NewKind::Regular, (create.mode, create.umask), true).await;
        let attributes = match made {
            Ok((attributes, _)) => attributes,
            Err(Failure(errno::EEXIST)) if flags & libc::O_EXCL == 0 => return Err(Failure(errno::ESTALE)),
            Err(failure) => return Err(failure),
        };
        Ok(self.new_entry(asked, &attributes).and(&self.opened(attributes.inode, create.flags)))
    }

    pub(super) async fn create_unnamed(self: &Rc<Self>, asked: &Asked, create: &CreateIn) -> Outcome {
        let request = FileRequest::CreateUnnamedMasked {
            parent: inode_ref(asked.inode),
            permissions: create.mode & 0o7777,
            umask: create.umask & 0o777,
            uid: asked.uid,
            gid: asked.gid,
        };
        match self.ask(request).await? {
            FileResponse::Created { attributes, .. } => {
                Ok(self.new_entry(asked, &attributes).and(&self.opened(attributes.inode, create.flags)))
            }
            _ => Err(unexpected()),
        }
    }

    pub(super) async fn link(self: &Rc<Self>, asked: &Asked, nodeid: u64, entry: &[u8]) -> Outcome {
        let inode = self.inode(nodeid);
        let request = FileRequest::Link {
            file: FileRef::inode(inode),
            parent: inode_ref(asked.inode),
            name: name(entry)?,
        };
        let changing = self.changing(&[asked.inode, inode]);
        let answer = self.ask(request).await;
        drop(changing);
        match answer? {
            FileResponse::Entry { attributes, .. } => Ok(self.entry(asked, &attributes)),
            _ => Err(unexpected()),
        }
    }

    pub(super) async fn unlink(self: &Rc<Self>, asked: &Asked, entry: &[u8]) -> Outcome {
        let request = FileRequest::Unlink { parent: inode_ref(asked.inode), name: name(entry)? };
        self.remove(asked, request).await
    }

    pub(super) async fn remove_directory(self: &Rc<Self>, asked: &Asked, entry: &[u8]) -> Outcome {
        let request = FileRequest::RemoveDirectory { parent: inode_ref(asked.inode), name: name(entry)? };
        self.remove(asked, request).await
    }

    async fn remove(self: &Rc<Self>, asked: &Asked, request: FileRequest) -> Outcome {
        let changing = self.changing(&[asked.inode]);
        let answer = self.ask(request).await;
        drop(changing);
        match answer? {
            FileResponse::Removed { .. } => Ok(Output::empty()),
            _ => Err(unexpected()),
        }
    }

    pub(super) async fn rename(
        self: &Rc<Self>,
        asked: &Asked,
        rename: &Rename2In,
        from: &[u8],
        to: &[u8],
    ) -> Outcome {
        let mode = match rename.flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => RenameMode::Whiteout,
            flags if flags == libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE => RenameMode::WhiteoutNoReplace,
            _ => return Err(Failure(errno::EINVAL)),
        };
        let target = self.inode(rename.newdir);
        let request = FileRequest::Rename {
            parent: inode_ref(asked.inode),
            name: name(from)?,
            new_parent: inode_ref(target),
            new_name: name(to)?,
            mode,
        };
        let changing = self.changing(&[asked.inode, target]);
        let answer = self.ask(request).await;
        drop(changing);
        match answer? {
            FileResponse::Renamed { .. } => Ok(Output::empty()),
            _ => Err(unexpected()),
        }
    }

    pub(super) async fn read_link(&self, asked: &Asked) -> Outcome {
        match self.ask(FileRequest::ReadLink { inode: inode_ref(asked.inode) }).await? {
            FileResponse::Link { target } => {
                Ok(Output::bytes(bytes::Bytes::copy_from_slice(target.as_bytes())))
            }
            _ => Err(unexpected()),
        }
    }
}
