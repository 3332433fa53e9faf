//! [`InodeApi`]: one method per file request, by inode numbers and handle numbers. What a mount uses, and what [`crate::Volume`] is
//! made of.
//!
//! Handle numbers here are the library's own: they stay valid over reconnects. Whoever opens a handle closes it.

use bytes::Bytes;
use subvol_protocol::attributes::{Attributes, DirectoryEntry, Lineage, SetTime, Ticket, VolumeStatistics};
use subvol_protocol::limits::MAX_DIRECTORY_ENTRIES;
use subvol_protocol::name::{LinkTarget, Name, XattrName, XattrNames, XattrValue};
use subvol_protocol::request::{
    Create, FileRef, FileRequest, HandleRef, InodeRef, NewKind, OpenFlags, RenameMode, SeekTarget,
    SetAttributes, WritePosition, XattrMode,
};
use subvol_protocol::response::FileResponse;

use crate::channel::Channel;
use crate::error::{ClientError, Result};

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permission bits (07777).
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of a regular file.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// What a creation gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOutcome {
    /// Of the new or found inode.
    pub attributes: Attributes,
    /// The handle, if it was opened.
    pub handle: Option<u64>,
    /// False if a file of that name existed and was taken.
    pub created: bool,
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPage {
    /// In the order of their cookies.
    pub entries: Vec<DirectoryEntry>,
    /// There is nothing behind the last one.
    pub end: bool,
}

/// Requests by inode and handle number. Clones share the connection.
#[derive(Clone, Debug)]
pub struct InodeApi {
    pub(crate) channel: Channel,
}

/// Sends a request and takes the answer apart; any other answer breaks the protocol.
macro_rules! ask {
    ($self:ident, $name:literal, $request:expr, $answer:pat => $value:expr) => {
        match $self.channel.file($request).await? {
            $answer => Ok($value),
            _ => Err(ClientError::unexpected($name)),
        }
    };
}

const fn inode(number: u64) -> InodeRef {
    InodeRef::Explicit(number)
}

fn name(bytes: impl AsRef<[u8]>) -> Result<Name> {
    Name::new(bytes.as_ref()).map_err(|error| ClientError::name(bytes, error))
}

fn xattr_name(bytes: impl AsRef<[u8]>) -> Result<XattrName> {
    XattrName::new(bytes.as_ref()).map_err(|error| ClientError::name(bytes, error))
}

pub(crate) use ask;

/// Every method sends one request; its errors are the server's ([`ClientError::Server`]), an impossible name ([`ClientError::Name`]),
/// and those of a connection ([`ClientError::Timeout`], [`ClientError::Lost`], [`ClientError::Protocol`], [`ClientError::Closed`]).
#[allow(clippy::missing_errors_doc, reason = "the same for all, and said above")]
impl InodeApi {
    /// The inode of the volume's root directory.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.channel.greeting().root
    }

    /// Finds an entry.
    pub async fn lookup(&self, parent: u64, entry: impl AsRef<[u8]>) -> Result<Attributes> {
        let request = FileRequest::Lookup { parent: inode(parent), name: name(entry)? };
        ask!(self, "Lookup", request, FileResponse::Entry { attributes, .. } => attributes)
    }

    /// Walks up to 64 names in one trip. Gives the attributes of what was found: fewer than names if the walk met something missing or
    /// not a directory. Links are not followed.
    pub async fn resolve(&self, base: u64, components: Vec<Name>) -> Result<Vec<Attributes>> {
        let request = FileRequest::ResolvePath { base: inode(base), components };
        ask!(self, "ResolvePath", request, FileResponse::Path { found } => found)
    }

    /// Makes an inode with a name, for the given owner and group; `open` also opens a regular file.
    #[allow(
        clippy::too_many_arguments,
        reason = "the fields of the request, for callers that have them all at hand"
    )]
    pub async fn create(
        &self,
        parent: u64,
        entry: impl AsRef<[u8]>,
        kind: NewKind,
        permissions: u32,
        (uid, gid): (u32, u32),
        exclusive: bool,
        open: Option<OpenFlags>,
    ) -> Result<CreateOutcome> {
        let request = FileRequest::Create(Create {
            parent: inode(parent),
            name: name(entry)?,
            kind,
            permissions,
            uid,
            gid,
            exclusive,
            open,
        });
        ask!(self, "Create", request, FileResponse::Created { attributes, handle, created, .. } =>
            CreateOutcome { attributes, handle, created })
    }

    /// Makes an open file without a name; gone with its handle unless linked.
    pub async fn create_unnamed(
        &self,
        parent: u64,
        permissions: u32,
        (uid, gid): (u32, u32),
        open: OpenFlags,
    ) -> Result<CreateOutcome> {
        let request = FileRequest::CreateUnnamed { parent: inode(parent), permissions, uid, gid, open };
        ask!(self, "CreateUnnamed", request, FileResponse::Created { attributes, handle, created, .. } =>
            CreateOutcome { attributes, handle, created })
    }

    /// Gives a file one more name.
    pub async fn link(&self, file: FileRef, parent: u64, entry: impl AsRef<[u8]>) -> Result<Attributes> {
        let request = FileRequest::Link { file, parent: inode(parent), name: name(entry)? };
        ask!(self, "Link", request, FileResponse::Entry { attributes, .. } => attributes)
    }

    /// Removes a name of anything but a directory. Gives the inode and the names it still has.
    pub async fn unlink(&self, parent: u64, entry: impl AsRef<[u8]>) -> Result<(u64, u32)> {
        let request = FileRequest::Unlink { parent: inode(parent), name: name(entry)? };
        ask!(self, "Unlink", request, FileResponse::Removed { inode, links, .. } => (inode, links))
    }

    /// Removes an empty directory. Gives its inode.
    pub async fn rmdir(&self, parent: u64, entry: impl AsRef<[u8]>) -> Result<u64> {
        let request = FileRequest::RemoveDirectory { parent: inode(parent), name: name(entry)? };
        ask!(self, "RemoveDirectory", request, FileResponse::Removed { inode, .. } => inode)
    }

    /// Moves a name. Gives the inode that moved and the one that was replaced or exchanged.
    pub async fn rename(
        &self,
        parent: u64,
        entry: impl AsRef<[u8]>,
        new_parent: u64,
        new_entry: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> Result<(u64, Option<u64>)> {
        let request = FileRequest::Rename {
            parent: inode(parent),
            name: name(entry)?,
            new_parent: inode(new_parent),
            new_name: name(new_entry)?,
            mode,
        };
        ask!(self, "Rename", request, FileResponse::Renamed { inode, replaced, .. } => (inode, replaced))
    }

    /// Reads a symbolic link's target.
    pub async fn read_link(&self, number: u64) -> Result<LinkTarget> {
        let request = FileRequest::ReadLink { inode: inode(number) };
        ask!(self, "ReadLink", request, FileResponse::Link { target } => target)
    }

    /// Reads attributes.
    pub async fn attributes(&self, file: FileRef) -> Result<Attributes> {
        ask!(self, "GetAttributes", FileRequest::GetAttributes { file },
            FileResponse::Attributes { attributes } => attributes)
    }

    /// Changes attributes; also cuts or grows a file.
    pub async fn set_attributes(&self, file: FileRef, change: AttributeChange) -> Result<Attributes> {
        let AttributeChange { permissions, uid, gid, size, atime, mtime } = change;
        let request =
            FileRequest::SetAttributes(SetAttributes { file, permissions, uid, gid, size, atime, mtime });
        ask!(self, "SetAttributes", request, FileResponse::AttributesSet { attributes, .. } => attributes)
    }

    /// Reads the part of a directory behind a cookie (0: from the beginning).
    pub async fn read_directory(
        &self,
        number: u64,
        after_cookie: u64,
        max_entries: u32,
        with_attributes: bool,
    ) -> Result<ReadPage> {
        let max_entries = max_entries.clamp(1, MAX_DIRECTORY_ENTRIES as u32);
        let request =
            FileRequest::ReadDirectory { inode: inode(number), after_cookie, max_entries, with_attributes };
        ask!(self, "ReadDirectory", request, FileResponse::Directory { entries, end } => ReadPage { entries, end })
    }

    /// Reads an extended attribute.
    pub async fn get_xattr(&self, number: u64, attribute: impl AsRef<[u8]>) -> Result<XattrValue> {
        let request = FileRequest::GetXattr { inode: inode(number), name: xattr_name(attribute)? };
        ask!(self, "GetXattr", request, FileResponse::Xattr { value } => value)
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(
        &self,
        number: u64,
        attribute: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let name = xattr_name(&attribute)?;
        let value = XattrValue::new(value.as_ref()).map_err(|error| ClientError::name(attribute, error))?;
        let request = FileRequest::SetXattr { inode: inode(number), name, value, mode };
        ask!(self, "SetXattr", request, FileResponse::Done { .. } => ())
    }

    /// Lists the names of extended attributes.
    pub async fn list_xattrs(&self, number: u64) -> Result<XattrNames> {
        let request = FileRequest::ListXattrs { inode: inode(number) };
        ask!(self, "ListXattrs", request, FileResponse::XattrNames { names } => names)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, number: u64, attribute: impl AsRef<[u8]>) -> Result<()> {
        let request = FileRequest::RemoveXattr { inode: inode(number), name: xattr_name(attribute)? };
        ask!(self, "RemoveXattr", request, FileResponse::Done { .. } => ())
    }

    /// Usage and limits of the volume.
    pub async fn statfs(&self) -> Result<VolumeStatistics> {
        ask!(self, "StatFs", FileRequest::StatFs, FileResponse::Statistics { statistics } => statistics)
    }

    /// Opens a file or directory. Gives the handle and the attributes.
    pub async fn open(&self, number: u64, flags: OpenFlags) -> Result<(u64, Attributes)> {
        let request = FileRequest::Open { inode: inode(number), flags };
        ask!(self, "Open", request, FileResponse::Opened { handle, attributes, .. } => (handle, attributes))
    }

    /// Closes a handle. An error tells of lost writes; the handle is closed in any case.
    pub async fn close(&self, handle: u64) -> Result<()> {
        let request = FileRequest::Close { handle: HandleRef::Explicit(handle), lineage: None };
        ask!(self, "Close", request, FileResponse::Closed => ())
    }

    /// Closes a handle in the background, for callers that cannot wait.
    pub fn forget(&self, handle: u64) {
        self.channel.close_in_background(handle);
    }

    /// Reads at most one payload (1 MiB). Gives the bytes and whether they reach the end of the file.
    pub async fn read(&self, file: FileRef, offset: u64, length: u32) -> Result<(Bytes, bool)> {
        let length = length.min(self.max_payload());
        let request = FileRequest::Read { file, offset, length };
        match self.channel.file_with_payload(request, Bytes::new()).await? {
            (FileResponse::Read { length: told, end_of_file }, bytes)
                if told as usize == bytes.len() && told <= length =>
            {
                Ok((bytes, end_of_file))
            }
            _ => Err(ClientError::unexpected("Read")),
        }
    }

    /// Writes at most one payload (1 MiB). Gives where it went, and the file's size and the ticket afterwards.
    pub async fn write(
        &self,
        file: FileRef,
        position: WritePosition,
        bytes: Bytes,
    ) -> Result<(u64, u64, Ticket)> {
        let length = bytes.len();
        match self.channel.file_with_payload(FileRequest::Write { file, position }, bytes).await? {
            (FileResponse::Written { written, position, size, ticket }, _) if written as usize == length => {
                Ok((position, size, ticket))
            }
            _ => Err(ClientError::unexpected("Write")),
        }
    }

    /// Reserves space for a range.
    pub async fn allocate(&self, file: FileRef, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let request = FileRequest::Allocate { file, offset, length, keep_size };
        ask!(self, "Allocate", request, FileResponse::Done { .. } => ())
    }

    /// Frees a range's space; it reads as zeros.
    pub async fn punch_hole(&self, file: FileRef, offset: u64, length: u64) -> Result<()> {
        let request = FileRequest::PunchHole { file, offset, length };
        ask!(self, "PunchHole", request, FileResponse::Done { .. } => ())
    }

    /// Makes a range read as zeros, keeping its space.
    pub async fn zero_range(&self, file: FileRef, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let request = FileRequest::ZeroRange { file, offset, length, keep_size };
        ask!(self, "ZeroRange", request, FileResponse::Done { .. } => ())
    }

    /// Finds data or a hole at or behind an offset.
    pub async fn seek(&self, file: FileRef, offset: u64, target: SeekTarget) -> Result<u64> {
        let request = FileRequest::Seek { file, offset, target };
        ask!(self, "Seek", request, FileResponse::Found { offset } => offset)
    }

    /// Makes a file or directory durable, with every namespace change of the volume before it. Presents the history of what this
    /// client changed: `StaleLineage` if the server lost some of it.
    pub async fn fsync(&self, file: FileRef, data_only: bool) -> Result<Lineage> {
        let request = FileRequest::Fsync { file, data_only, lineage: None };
        ask!(self, "Fsync", request, FileResponse::Synced { durable } => durable)
    }

    /// Makes the whole volume durable.
    pub async fn sync_volume(&self) -> Result<Lineage> {
        let request = FileRequest::SyncVolume { lineage: None };
        ask!(self, "SyncVolume", request, FileResponse::Synced { durable } => durable)
    }

    /// Bytes that one read or write can move.
    #[must_use]
    pub fn max_payload(&self) -> u32 {
        self.channel.greeting().limits.max_payload
    }
}
