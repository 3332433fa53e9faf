//! [`Volume`]: an attached volume, by paths.
//!
//! Paths are bytes (`&str` or `&[u8]`), relative to the volume's root with or without a leading slash. Links are followed except at the
//! end of a path where the method says so.

use bytes::Bytes;
use subvol_protocol::attributes::{Attributes, DirectoryEntry, FileKind, SetTime, VolumeStatistics};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::name::LinkTarget;
use subvol_protocol::request::{FileRef, FileRequest, NewKind, OpenFlags, RenameMode, Request, XattrMode};
use subvol_protocol::response::{Response, StepResult};

use crate::channel::{Channel, LeaseEvents};
use crate::directory::Entries;
use crate::error::{ClientError, Result};
use crate::file::File;
use crate::inode::{AttributeChange, InodeApi};
use crate::open::OpenOptions;
use crate::reconnect::LeaseTerms;

/// One step of a compound request: any file request, which may name what an earlier step found by `FromStep`.
pub type Step = FileRequest;

/// An attached volume with a connection of its own. Clones share it; it is let go with the last clone and the last [`File`].
#[derive(Clone, Debug)]
pub struct Volume {
    inodes: InodeApi,
    owner: (u32, u32),
}

/// Every method's errors are the server's ([`ClientError::Server`]), an impossible name ([`ClientError::Name`]), and those of a connection
/// ([`ClientError::Timeout`], [`ClientError::Lost`], [`ClientError::Protocol`], [`ClientError::Closed`]).
#[allow(clippy::missing_errors_doc, reason = "the same for all, and said above")]
impl Volume {
    pub(crate) const fn new(channel: Channel, owner: (u32, u32)) -> Self {
        Self { inodes: InodeApi { channel }, owner }
    }

    /// The requests by inode and handle number.
    #[must_use]
    pub const fn inodes(&self) -> &InodeApi {
        &self.inodes
    }

    /// The volume's number, never reused.
    #[must_use]
    pub fn subvolume(&self) -> u64 {
        self.inodes.channel.greeting().subvolume
    }

    /// No change is possible.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inodes.channel.greeting().read_only
    }

    /// Follows recalls and the connection, for one who keeps things under leases (`ClientBuilder::leases`). After this, the one who asked
    /// must work the events off: requests wait after a loss of the connection until [`LeaseEvents::resume`].
    #[must_use]
    pub fn lease_events(&self) -> LeaseEvents {
        LeaseEvents::subscribe(self.inodes.channel.clone())
    }

    /// What the server granted to the current connection; `None` without [`crate::ClientBuilder::leases`].
    #[must_use]
    pub fn lease_terms(&self) -> Option<LeaseTerms> {
        self.inodes.channel.greeting().leases
    }

    /// Sends any request and returns the answer and its payload. Handle numbers are the library's own, as in [`InodeApi`]; a missing
    /// lineage is filled in. Requests about the session are refused: the library speaks those.
    pub async fn call(&self, request: Request, payload: Bytes) -> Result<(Response, Bytes)> {
        let reply = self.inodes.channel.call(request, payload).await?;
        Ok((reply.response, reply.payload))
    }

    /// Runs up to 32 steps in one trip, stopped at the first error. Not atomic. One result for each step that ran; only the last can be
    /// an error. At most one step may be a write, of `payload`.
    pub async fn compound(&self, steps: Vec<Step>, payload: Bytes) -> Result<Vec<StepResult>> {
        Ok(self.compound_read(steps, payload).await?.0)
    }

    /// As [`Self::compound`], also with the bytes of the one step that may be a read.
    pub async fn compound_read(&self, steps: Vec<Step>, payload: Bytes) -> Result<(Vec<StepResult>, Bytes)> {
        let reply = self.inodes.channel.call(Request::Compound { steps }, payload).await?;
        match reply.response {
            Response::Compound { results } => Ok((results, reply.payload)),
            _ => Err(ClientError::unexpected("Compound")),
        }
    }

    /// Attributes of what a path names; follows a link at its end.
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        self.inodes.resolve_path(path.as_ref(), true).await
    }

    /// Attributes of what a path names, the link itself if it is one.
    pub async fn lookup(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        self.inodes.resolve_path(path.as_ref(), false).await
    }

    /// Whether a path names something.
    pub async fn exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn make(&self, path: &[u8], kind: NewKind, permissions: u32) -> Result<Attributes> {
        let place = self.inodes.resolve_place(path).await?;
        let made =
            self.inodes.create(place.parent, place.name, kind, permissions, self.owner, true, None).await?;
        Ok(made.attributes)
    }

    /// Makes a directory, with permissions 0755.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        self.mkdir_with(path, 0o755).await
    }

    /// Makes a directory with these permissions.
    pub async fn mkdir_with(&self, path: impl AsRef<[u8]>, permissions: u32) -> Result<Attributes> {
        self.make(path.as_ref(), NewKind::Directory, permissions).await
    }

    /// Makes a directory and those above it that are missing; one that exists is taken.
    pub async fn mkdir_all(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        let path = path.as_ref();
        match self.stat(path).await {
            Err(error) if error.is_not_found() => {}
            Ok(found) if found.kind() != Some(FileKind::Directory) => {
                return Err(ClientError::Server(ErrorCode::NotDirectory.into()));
            }
            other => return other,
        }
        let ends = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
        let mut last = None;
        for end in ends.chain([path.len()]) {
            let prefix = path.get(..end).unwrap_or(path);
            if matches!(prefix.rsplit(|&byte| byte == b'/').next(), Some(b"" | b"." | b"..") | None) {
                continue;
            }
            last = Some(match self.mkdir(prefix).await {
                // Somebody made it meanwhile, or it was there.
                Err(error) if error.code() == Some(ErrorCode::Exists) => self.stat(prefix).await?,
                other => other?,
            });
        }
        match last {
            Some(made) if made.kind() == Some(FileKind::Directory) => Ok(made),
            Some(_) => Err(ClientError::Server(ErrorCode::NotDirectory.into())),
            None => self.stat(path).await,
        }
    }

    /// Makes and opens a file for reading and writing, or cuts the existing one to nothing.
    pub async fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.open(path, OpenOptions::new().read(true).write(true).create(true).truncate(true)).await
    }

    /// Opens a file or directory.
    pub async fn open(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File> {
        let path = path.as_ref();
        let flags = options.flags();
        if options.create || options.create_new {
            let place = self.inodes.resolve_place(path).await?;
            let made = self
                .inodes
                .create(
                    place.parent,
                    place.name,
                    NewKind::Regular,
                    options.permissions,
                    self.owner,
                    options.create_new,
                    Some(flags),
                )
                .await;
            match made {
                Ok(made) => {
                    let handle = made.handle.ok_or_else(|| ClientError::unexpected("Create"))?;
                    return Ok(File::new(self.inodes.clone(), handle, made.attributes.inode, flags));
                }
                // The name is taken by something else than a regular file, perhaps by a link to one: open that.
                Err(error) if error.code() == Some(ErrorCode::Exists) && !options.create_new => {}
                Err(error) => return Err(error),
            }
        }
        let found = self.inodes.resolve_path(path, options.follow).await?;
        self.open_inode(found.inode, flags).await
    }

    /// Opens a file or directory by inode number.
    pub async fn open_inode(&self, inode: u64, flags: OpenFlags) -> Result<File> {
        let (handle, _) = self.inodes.open(inode, flags).await?;
        Ok(File::new(self.inodes.clone(), handle, inode, flags))
    }

    /// Makes and opens a file without a name, in the directory `path`; it is gone with the [`File`] unless [`File::link`] names it.
    pub async fn create_unnamed(&self, path: impl AsRef<[u8]>, permissions: u32) -> Result<File> {
        let parent = self.stat(path).await?;
        let flags = OpenFlags::READ.with(OpenFlags::WRITE);
        let made = self.inodes.create_unnamed(parent.inode, permissions, self.owner, flags).await?;
        let handle = made.handle.ok_or_else(|| ClientError::unexpected("CreateUnnamed"))?;
        Ok(File::new(self.inodes.clone(), handle, made.attributes.inode, flags))
    }

    /// Reads a whole file.
    pub async fn read(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        self.open(path, OpenOptions::new().read(true)).await?.read_to_end().await
    }

    /// Writes a whole file, replacing what was in it. Not durable until synced.
    pub async fn write(&self, path: impl AsRef<[u8]>, bytes: impl Into<Bytes>) -> Result<()> {
        let file = self.open(path, OpenOptions::new().create(true).truncate(true)).await?;
        file.write_bytes_at(0, bytes.into()).await?;
        file.close().await
    }

    /// The entries of a directory, as a stream.
    pub async fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Entries> {
        self.entries(path.as_ref(), false).await
    }

    /// The entries of a directory with their attributes, as a stream.
    pub async fn read_dir_with_attributes(&self, path: impl AsRef<[u8]>) -> Result<Entries> {
        self.entries(path.as_ref(), true).await
    }

    async fn entries(&self, path: &[u8], with_attributes: bool) -> Result<Entries> {
        let found = self.stat(path).await?;
        if found.kind() != Some(FileKind::Directory) {
            return Err(ClientError::Server(ErrorCode::NotDirectory.into()));
        }
        Ok(Entries::new(self.inodes.clone(), found.inode, with_attributes))
    }

    /// All entries of a directory.
    pub async fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirectoryEntry>> {
        self.read_dir(path).await?.collect().await
    }

    /// Moves a name. Links at the end of either path are moved or replaced themselves.
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, mode: RenameMode) -> Result<()> {
        let from = self.inodes.resolve_place(from.as_ref()).await?;
        let to = self.inodes.resolve_place(to.as_ref()).await?;
        self.inodes.rename(from.parent, from.name, to.parent, to.name, mode).await?;
        Ok(())
    }

    /// Removes a name of anything but a directory; a link itself.
    pub async fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let place = self.inodes.resolve_place(path.as_ref()).await?;
        self.inodes.unlink(place.parent, place.name).await?;
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let place = self.inodes.resolve_place(path.as_ref()).await?;
        self.inodes.rmdir(place.parent, place.name).await?;
        Ok(())
    }

    /// Removes whatever a path names with everything in it; links are removed, not followed. For the root: everything in it. What others
    /// remove meanwhile counts as removed. Gives the number of names removed.
    pub async fn remove_all(&self, path: impl AsRef<[u8]>) -> Result<u64> {
        self.inodes.remove_tree(path.as_ref()).await
    }

    /// Makes a symbolic link at `path` to `target`, which may be anything.
    pub async fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<Attributes> {
        let target = LinkTarget::new(target.as_ref()).map_err(|error| ClientError::name(target, error))?;
        self.make(path.as_ref(), NewKind::Symlink(target), 0o777).await
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, path: impl AsRef<[u8]>) -> Result<LinkTarget> {
        let found = self.lookup(path).await?;
        self.inodes.read_link(found.inode).await
    }

    /// Gives the file at `path` (a link itself) the further name `new`.
    pub async fn link(&self, path: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<Attributes> {
        let found = self.lookup(path).await?;
        let place = self.inodes.resolve_place(new.as_ref()).await?;
        self.inodes.link(FileRef::inode(found.inode), place.parent, place.name).await
    }

    /// Makes a file, pipe, socket or device.
    pub async fn mknod(&self, path: impl AsRef<[u8]>, kind: NewKind, permissions: u32) -> Result<Attributes> {
        self.make(path.as_ref(), kind, permissions).await
    }

    /// Changes attributes; follows a link at the end.
    pub async fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        change: AttributeChange,
    ) -> Result<Attributes> {
        let found = self.stat(path).await?;
        self.inodes.set_attributes(FileRef::inode(found.inode), change).await
    }

    /// Changes permission bits.
    pub async fn chmod(&self, path: impl AsRef<[u8]>, permissions: u32) -> Result<Attributes> {
        let change = AttributeChange { permissions: Some(permissions), ..AttributeChange::default() };
        self.set_attributes(path, change).await
    }

    /// Changes owner and group.
    pub async fn chown(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attributes> {
        self.set_attributes(path, AttributeChange { uid, gid, ..AttributeChange::default() }).await
    }

    /// Changes access and modification time.
    pub async fn set_times(
        &self,
        path: impl AsRef<[u8]>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attributes> {
        self.set_attributes(path, AttributeChange { atime, mtime, ..AttributeChange::default() }).await
    }

    /// Cuts or grows a file.
    pub async fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<Attributes> {
        self.set_attributes(path, AttributeChange { size: Some(size), ..AttributeChange::default() }).await
    }

    /// Sets an extended attribute; its full name, such as `user.comment`.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let found = self.stat(path).await?;
        self.inodes.set_xattr(found.inode, name, value, mode).await
    }

    /// Reads an extended attribute.
    pub async fn get_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let found = self.stat(path).await?;
        Ok(self.inodes.get_xattr(found.inode, name).await?.as_bytes().to_vec())
    }

    /// The names of all extended attributes.
    pub async fn list_xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        let found = self.stat(path).await?;
        Ok(self.inodes.list_xattrs(found.inode).await?.iter().map(<[u8]>::to_vec).collect())
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        let found = self.stat(path).await?;
        self.inodes.remove_xattr(found.inode, name).await
    }

    /// Usage and limits.
    pub async fn statfs(&self) -> Result<VolumeStatistics> {
        self.inodes.statfs().await
    }

    /// Makes the whole volume durable, all data included.
    pub async fn sync(&self) -> Result<()> {
        self.inodes.sync_volume().await.map(drop)
    }

    /// Makes the file or directory at a path durable, with every namespace change before it, and what was written to it through any
    /// [`File`]. Whether a restarted server lost something written through an open file is told by that file's own sync or close.
    pub async fn fsync(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let found = self.stat(path).await?;
        self.inodes.fsync(FileRef::inode(found.inode), false).await.map(drop)
    }

    /// Says goodbye: closes the handles and the connection. Clones and files of this volume then fail with [`ClientError::Closed`].
    pub async fn close(self) {
        self.inodes.channel.close().await;
    }
}
