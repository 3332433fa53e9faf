//! Does the model's operations on a real volume through the client library.
//!
//! Paths are taken as the model takes them: a symbolic link at the end is not followed. One operation is one change; only writes above
//! one payload are several.

use std::collections::BTreeMap;

use bytes::Bytes;
use subvol_client::protocol::request::FileRef;
use subvol_client::{
    AttributeChange, ClientError, ErrorCode, File, FileKind, NewKind, OpenFlags, RenameMode, SetTime,
    Timestamp, Volume, XattrMode,
};
use subvol_model::{Op, SpecialKind, Time, pattern};

/// Bytes of one write request.
const PIECE: u64 = 1 << 20;

/// A volume and the open handles of a program.
#[derive(Debug)]
pub struct Performer {
    volume: Volume,
    handles: BTreeMap<String, File>,
}

fn time(time: Time) -> SetTime {
    SetTime::To(Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds })
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn bad_handle() -> ClientError {
    ClientError::Server(ErrorCode::StaleHandle.into())
}

impl Performer {
    /// Works on a volume.
    #[must_use]
    pub const fn new(volume: Volume) -> Self {
        Self { volume, handles: BTreeMap::new() }
    }

    /// The volume.
    #[must_use]
    pub const fn volume(&self) -> &Volume {
        &self.volume
    }

    /// An open file.
    #[must_use]
    pub fn handle(&self, name: &str) -> Option<&File> {
        self.handles.get(name)
    }

    async fn inode(&self, path: &str) -> Result<FileRef, ClientError> {
        Ok(FileRef::inode(self.volume.lookup(path).await?.inode))
    }

    async fn make(&self, path: &str, kind: NewKind, permissions: u32) -> Result<(), ClientError> {
        let (parent, name) = split(path);
        let parent = self.volume.lookup(parent).await?.inode;
        self.volume.inodes().create(parent, name, kind, permissions, (0, 0), true, None).await.map(drop)
    }

    async fn write(&self, file: FileRef, offset: u64, length: u64, seed: u32) -> Result<(), ClientError> {
        use subvol_client::protocol::request::WritePosition;
        let mut done = 0;
        while done < length {
            let piece = PIECE.min(length - done);
            let bytes = Bytes::from(pattern::bytes(seed, offset + done, piece as usize));
            self.volume.inodes().write(file, WritePosition::At(offset + done), bytes).await?;
            done += piece;
        }
        Ok(())
    }

    async fn change(&self, path: &str, change: AttributeChange) -> Result<(), ClientError> {
        let file = self.inode(path).await?;
        self.volume.inodes().set_attributes(file, change).await.map(drop)
    }

    fn open_file(&self, handle: &str) -> Result<&File, ClientError> {
        self.handles.get(handle).ok_or_else(bad_handle)
    }

    /// Does one operation.
    ///
    /// # Errors
    /// The server's refusal, which has changed nothing; or the loss of the connection.
    ///
    /// # Panics
    /// If an append lands elsewhere than at the end that was seen.
    pub async fn apply(&mut self, op: &Op) -> Result<(), ClientError> {
        let inodes = self.volume.inodes();
        match op {
            Op::Create { path, mode } => self.make(path, NewKind::Regular, *mode).await,
            Op::Mkdir { path, mode } => self.make(path, NewKind::Directory, *mode).await,
            Op::Mknod { path, kind, mode } => {
                let kind = match *kind {
                    SpecialKind::Fifo => NewKind::Fifo,
                    SpecialKind::Socket => NewKind::Socket,
                    SpecialKind::Character(number) => NewKind::CharacterDevice(number),
                    SpecialKind::Block(number) => NewKind::BlockDevice(number),
                };
                self.make(path, kind, *mode).await
            }
            Op::Symlink { path, target } => self.volume.symlink(target, path).await.map(drop),
            Op::Link { existing, path } => self.volume.link(existing, path).await.map(drop),
            Op::Unlink { path } => self.volume.unlink(path).await,
            Op::Rmdir { path } => self.volume.rmdir(path).await,
            Op::Rename { from, to, mode } => {
                let mode = match mode {
                    subvol_model::RenameMode::Replace => RenameMode::Replace,
                    subvol_model::RenameMode::NoReplace => RenameMode::NoReplace,
                    subvol_model::RenameMode::Exchange => RenameMode::Exchange,
                };
                self.volume.rename(from, to, mode).await
            }
            Op::Write { path, offset, length, seed } => {
                self.write(self.inode(path).await?, *offset, *length, *seed).await
            }
            Op::Append { path, length, seed } => {
                use subvol_client::protocol::request::WritePosition;
                let found = self.volume.lookup(path).await?;
                assert!(*length <= PIECE, "one append is one request");
                let bytes = Bytes::from(pattern::bytes(*seed, found.size, *length as usize));
                let file = FileRef::inode(found.inode);
                let (position, ..) = inodes.write(file, WritePosition::Append, bytes).await?;
                assert_eq!(position, found.size, "{path}: nobody else writes, so the end is where it was");
                Ok(())
            }
            Op::Truncate { path, size } => {
                self.change(path, AttributeChange { size: Some(*size), ..AttributeChange::default() }).await
            }
            Op::Allocate { path, offset, length, keep_size } => {
                inodes.allocate(self.inode(path).await?, *offset, *length, *keep_size).await
            }
            Op::Punch { path, offset, length } => {
                inodes.punch_hole(self.inode(path).await?, *offset, *length).await
            }
            Op::ZeroRange { path, offset, length, keep_size } => {
                inodes.zero_range(self.inode(path).await?, *offset, *length, *keep_size).await
            }
            Op::SetXattr { path, name, value, mode } => {
                let mode = match mode {
                    subvol_model::XattrMode::Any => XattrMode::Any,
                    subvol_model::XattrMode::Create => XattrMode::Create,
                    subvol_model::XattrMode::Replace => XattrMode::Replace,
                };
                let found = self.volume.lookup(path).await?;
                inodes.set_xattr(found.inode, name, value, mode).await
            }
            Op::RemoveXattr { path, name } => {
                let found = self.volume.lookup(path).await?;
                inodes.remove_xattr(found.inode, name).await
            }
            Op::Chmod { path, mode } => {
                let change = AttributeChange { permissions: Some(*mode), ..AttributeChange::default() };
                self.change(path, change).await
            }
            Op::Chown { path, uid, gid } => {
                let change =
                    AttributeChange { uid: Some(*uid), gid: Some(*gid), ..AttributeChange::default() };
                self.change(path, change).await
            }
            Op::SetTimes { path, atime, mtime } => {
                let (atime, mtime) = (atime.map(time), mtime.map(time));
                self.change(path, AttributeChange { atime, mtime, ..AttributeChange::default() }).await
            }
            Op::Open { handle, path } => {
                let found = self.volume.lookup(path).await?;
                let flags = match found.kind() {
                    Some(FileKind::Regular) => OpenFlags::READ.with(OpenFlags::WRITE),
                    _ => OpenFlags::READ,
                };
                let file = self.volume.open_inode(found.inode, flags).await?;
                self.keep(handle, file).await
            }
            Op::OpenUnnamed { handle, directory, mode } => {
                let file = self.volume.create_unnamed(directory, *mode).await?;
                self.keep(handle, file).await
            }
            Op::LinkHandle { handle, path } => {
                let (parent, name) = split(path);
                let file = self.open_file(handle)?;
                let parent = self.volume.lookup(parent).await?.inode;
                file.link(parent, name).await.map(drop)
            }
            Op::WriteHandle { handle, offset, length, seed } => {
                let file = FileRef::handle(self.open_file(handle)?.handle());
                self.write(file, *offset, *length, *seed).await
            }
            Op::FsyncHandle { handle } => self.open_file(handle)?.sync().await,
            Op::CloseHandle { handle } => match self.handles.remove(handle) {
                Some(file) => file.close().await,
                None => Err(bad_handle()),
            },
            Op::Fsync { path } => inodes.fsync(self.inode(path).await?, false).await.map(drop),
            Op::Fdatasync { path } => inodes.fsync(self.inode(path).await?, true).await.map(drop),
            Op::Sync => self.volume.sync().await,
            // The server's caches are its own business, and the client has none.
            Op::Evict { path } => self.volume.lookup(path).await.map(drop),
        }
    }

    async fn keep(&mut self, handle: &str, file: File) -> Result<(), ClientError> {
        match self.handles.insert(handle.into(), file) {
            Some(before) => before.close().await,
            None => Ok(()),
        }
    }
}

/// Whether an error says that the connection is gone rather than that the server refused.
#[must_use]
pub fn is_connection_lost(error: &ClientError) -> bool {
    match error {
        ClientError::Lost { .. }
        | ClientError::Io { .. }
        | ClientError::Closed
        | ClientError::Timeout { .. } => true,
        ClientError::Server(error) => error.code == ErrorCode::ShuttingDown,
        _ => false,
    }
}
