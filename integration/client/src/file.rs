//! [`File`]: an open file. Reads and writes of any length, cut into the protocol's pieces and pipelined.
//!
//! Invariant: the handle is closed exactly once: by [`File::close`], or in the background when the file is dropped.

use bytes::{Bytes, BytesMut};
use futures_util::stream::{StreamExt, iter};
use subvol_protocol::attributes::Attributes;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{FileRef, OpenFlags, SeekTarget, WritePosition};

use crate::error::{ClientError, Result};
use crate::inode::{AttributeChange, InodeApi};
use crate::limits::PIECES_AHEAD;

/// An open file or directory. It survives reconnects.
///
/// Every method's errors are those of [`crate::Volume`].
#[derive(Debug)]
pub struct File {
    inodes: InodeApi,
    handle: u64,
    inode: u64,
    flags: OpenFlags,
    open: bool,
}

/// A part of a longer range: offset and length in bytes.
fn pieces(offset: u64, length: u64, piece: u32) -> impl Iterator<Item = (u64, u32)> {
    let piece = u64::from(piece.max(1));
    (0..length.div_ceil(piece)).map(move |index| {
        let start = index * piece;
        (offset.saturating_add(start), (length - start).min(piece) as u32)
    })
}

#[allow(clippy::missing_errors_doc, reason = "the same for all, and said at the type")]
impl File {
    pub(crate) const fn new(inodes: InodeApi, handle: u64, inode: u64, flags: OpenFlags) -> Self {
        Self { inodes, handle, inode, flags, open: true }
    }

    const fn file(&self) -> FileRef {
        FileRef::handle(self.handle)
    }

    /// The inode number.
    #[must_use]
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// How it was opened.
    #[must_use]
    pub const fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// The handle's number, for requests of [`InodeApi`]. It stays this file's: do not close it.
    #[must_use]
    pub const fn handle(&self) -> u64 {
        self.handle
    }

    /// Reads up to `length` bytes from `offset`; fewer only at the end of the file. Up to 1 MiB comes without a copy.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        let piece = self.inodes.max_payload();
        if length <= piece as usize {
            return Ok(self.inodes.read(self.file(), offset, length as u32).await?.0);
        }
        let mut whole = BytesMut::new();
        let mut reads = iter(pieces(offset, length as u64, piece))
            .map(|(at, length)| async move {
                Ok::<_, ClientError>((length, self.inodes.read(self.file(), at, length).await?.0))
            })
            .buffered(PIECES_AHEAD);
        while let Some(read) = reads.next().await {
            let (asked, bytes) = read?;
            whole.extend_from_slice(&bytes);
            // Behind a short piece is the end. A later piece may hold more if the file grew meanwhile; it does not belong here.
            if bytes.len() < asked as usize {
                break;
            }
        }
        Ok(whole.freeze())
    }

    /// Fills `buffer` from `offset` as far as the file goes; returns how many bytes.
    pub async fn read_into(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let bytes = self.read_at(offset, buffer.len()).await?;
        match buffer.get_mut(..bytes.len()) {
            Some(part) => part.copy_from_slice(&bytes),
            None => return Err(ClientError::unexpected("Read")),
        }
        Ok(bytes.len())
    }

    /// Reads everything.
    pub async fn read_to_end(&self) -> Result<Bytes> {
        let size = self.attributes().await?.size;
        let expected = usize::try_from(size)
            .map_err(|_| ClientError::Argument("the file is larger than this machine's memory".into()))?;
        let first = self.read_at(0, expected).await?;
        if first.len() < expected {
            return Ok(first);
        }
        // It may have grown since its size was asked for.
        let mut rest = self.read_at(size, self.inodes.max_payload() as usize).await?;
        if rest.is_empty() {
            return Ok(first);
        }
        let mut whole = BytesMut::from(first.as_ref());
        while !rest.is_empty() {
            whole.extend_from_slice(&rest);
            rest = self.read_at(whole.len() as u64, self.inodes.max_payload() as usize).await?;
        }
        Ok(whole.freeze())
    }

    /// Writes all of `bytes` at `offset`. More than 1 MiB is several writes: an error may leave some of them done.
    pub async fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_bytes_at(offset, Bytes::copy_from_slice(bytes)).await
    }

    /// As [`Self::write_at`], without a copy.
    pub async fn write_bytes_at(&self, offset: u64, bytes: Bytes) -> Result<()> {
        let piece = self.inodes.max_payload();
        if bytes.len() <= piece as usize {
            return self.inodes.write(self.file(), WritePosition::At(offset), bytes).await.map(drop);
        }
        let mut writes = iter(pieces(0, bytes.len() as u64, piece))
            .map(|(start, length)| {
                let part = bytes.slice(start as usize..start as usize + length as usize);
                let position = WritePosition::At(offset.saturating_add(start));
                self.inodes.write(self.file(), position, part)
            })
            .buffer_unordered(PIECES_AHEAD);
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(())
    }

    /// Writes at the end of the file and returns where. Up to 1 MiB lands in one piece whatever others append; more does not.
    pub async fn append(&self, bytes: impl Into<Bytes>) -> Result<u64> {
        let mut bytes = bytes.into();
        let piece = self.inodes.max_payload() as usize;
        let mut first = None;
        loop {
            let part = bytes.split_to(bytes.len().min(piece));
            let (position, ..) = self.inodes.write(self.file(), WritePosition::Append, part).await?;
            let first = *first.get_or_insert(position);
            if bytes.is_empty() {
                return Ok(first);
            }
        }
    }

    /// Makes this file durable: data, size, times, and every namespace change of the volume before. Fails once with `StaleLineage` if
    /// a restarted server lost changes made through this file.
    pub async fn sync(&self) -> Result<()> {
        self.inodes.fsync(self.file(), false).await.map(drop)
    }

    /// As [`Self::sync`]; times may stay behind.
    pub async fn sync_data(&self) -> Result<()> {
        self.inodes.fsync(self.file(), true).await.map(drop)
    }

    /// Cuts or grows the file; what is new reads as zeros.
    pub async fn truncate(&self, size: u64) -> Result<()> {
        let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
        self.set_attributes(change).await.map(drop)
    }

    /// Changes attributes.
    pub async fn set_attributes(&self, change: AttributeChange) -> Result<Attributes> {
        self.inodes.set_attributes(self.file(), change).await
    }

    /// Reserves space for a range; grows the file to its end unless `keep_size`.
    pub async fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.inodes.allocate(self.file(), offset, length, keep_size).await
    }

    /// Frees a range's space; it reads as zeros, and the size stays.
    pub async fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        self.inodes.punch_hole(self.file(), offset, length).await
    }

    /// Makes a range read as zeros, keeping its space; grows the file to its end unless `keep_size`.
    pub async fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.inodes.zero_range(self.file(), offset, length, keep_size).await
    }

    /// The next byte of data at or behind `offset`; `None` if only a hole follows or the offset is behind the end.
    pub async fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, SeekTarget::Data).await
    }

    /// The next hole at or behind `offset`, at the latest the end of the file; `None` if the offset is behind it.
    pub async fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, SeekTarget::Hole).await
    }

    async fn seek(&self, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        match self.inodes.seek(self.file(), offset, target).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.code() == Some(ErrorCode::SeekNoData) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The attributes.
    pub async fn attributes(&self) -> Result<Attributes> {
        self.inodes.attributes(self.file()).await
    }

    /// Gives the file a name in the directory with inode `parent`.
    pub async fn link(&self, parent: u64, name: impl AsRef<[u8]>) -> Result<Attributes> {
        self.inodes.link(self.file(), parent, name).await
    }

    /// Closes the file. An error tells of lost writes; it is closed in any case. Closing makes nothing durable.
    pub async fn close(mut self) -> Result<()> {
        // Until the answer is here `self` stays open, so that dropping this future half-way closes in the background.
        let result = self.inodes.close(self.handle).await;
        self.open = false;
        result
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.open {
            self.inodes.forget(self.handle);
        }
    }
}
