//! Requests of clients that keep what they are told, as [`InodeApi`] methods: what a mount needs beside the plain ones.

use bytes::Bytes;
use subvol_protocol::attributes::{DirectoryEntry, Ticket};
use subvol_protocol::limits::{MAX_DIRECTORY_ENTRIES, MAX_INODE_LIST};
use subvol_protocol::request::{Create, FileRef, FileRequest, InodeRef, LockRange, Request, WritePosition};
use subvol_protocol::response::{FileResponse, Response, StepResult};

use crate::error::{ClientError, Result};
use crate::inode::{CreateOutcome, InodeApi, ask};

/// A part of a directory, of a listing with a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// In the order of their cookies.
    pub entries: Vec<DirectoryEntry>,
    /// There is nothing behind the last one, up to the bound.
    pub end: bool,
    /// The bound, to be given for the next part.
    pub up_to: u64,
}

/// As for the other methods: the server's errors, and those of a connection.
#[allow(clippy::missing_errors_doc, reason = "the same for all, and said above")]
impl InodeApi {
    /// Sends a file request with its bytes; gives the answer and its bytes. An error answer is an error.
    pub async fn call(&self, request: FileRequest, payload: Bytes) -> Result<(FileResponse, Bytes)> {
        self.channel.file_with_payload(request, payload).await
    }

    /// Runs up to 32 requests in one trip, stopped at the first error. Not atomic. One result for each that ran; only the last can be an
    /// error. At most one may be a write, of `payload`, and one a read, whose bytes come back.
    pub async fn call_many(
        &self,
        steps: Vec<FileRequest>,
        payload: Bytes,
    ) -> Result<(Vec<StepResult>, Bytes)> {
        let reply = self.channel.call(Request::Compound { steps }, payload).await?;
        match reply.response {
            Response::Compound { results } => Ok((results, reply.payload)),
            _ => Err(ClientError::unexpected("Compound")),
        }
    }

    /// Makes an inode with a name for a creator with a file mode creation mask. `create.open` must be `None`.
    pub async fn create_masked(&self, create: Create, umask: u32) -> Result<CreateOutcome> {
        let request = FileRequest::CreateMasked { create, umask };
        ask!(self, "CreateMasked", request, FileResponse::Created { attributes, handle, created, .. } =>
            CreateOutcome { attributes, handle, created })
    }

    /// Makes a file without a name and without a handle. It lives as long as this client knows it; see [`Self::forget_inodes`].
    pub async fn create_unnamed_masked(
        &self,
        parent: u64,
        permissions: u32,
        umask: u32,
        (uid, gid): (u32, u32),
    ) -> Result<CreateOutcome> {
        let parent = InodeRef::Explicit(parent);
        let request = FileRequest::CreateUnnamedMasked { parent, permissions, umask, uid, gid };
        ask!(self, "CreateUnnamedMasked", request, FileResponse::Created { attributes, handle, created, .. } =>
            CreateOutcome { attributes, handle, created })
    }

    /// As [`Self::write`], for a writer that may not keep set-id bits and capabilities: they go in the same step.
    pub async fn write_unprivileged(
        &self,
        file: FileRef,
        position: WritePosition,
        bytes: Bytes,
    ) -> Result<(u64, u64, Ticket)> {
        let length = bytes.len();
        let request = FileRequest::WriteUnprivileged { file, position };
        match self.channel.file_with_payload(request, bytes).await? {
            (FileResponse::Written { written, position, size, ticket }, _) if written as usize == length => {
                Ok((position, size, ticket))
            }
            _ => Err(ClientError::unexpected("WriteUnprivileged")),
        }
    }

    /// Reads the part of a directory behind a cookie (0: from the beginning) and up to a bound (0: the largest cookie of now, which the
    /// answer tells).
    pub async fn list_directory(
        &self,
        number: u64,
        after_cookie: u64,
        up_to: u64,
        max_entries: u32,
        with_attributes: bool,
    ) -> Result<ListPage> {
        let inode = InodeRef::Explicit(number);
        let max_entries = max_entries.clamp(1, MAX_DIRECTORY_ENTRIES as u32);
        let request = FileRequest::ListDirectory { inode, after_cookie, up_to, max_entries, with_attributes };
        ask!(self, "ListDirectory", request, FileResponse::Listed { entries, end, up_to } =>
            ListPage { entries, end, up_to })
    }

    /// These inodes are no longer used, and what was kept of them is dropped.
    pub async fn forget_inodes(&self, inodes: &[u64]) -> Result<()> {
        for part in inodes.chunks(MAX_INODE_LIST) {
            self.noted("ForgetInodes", FileRequest::ForgetInodes { inodes: part.to_vec() }).await?;
        }
        Ok(())
    }

    /// These inodes are still used, on a new connection; gives those that no longer exist. On an API of [`Self::recovering`].
    pub async fn reclaim_inodes(&self, inodes: &[u64]) -> Result<Vec<u64>> {
        let mut gone = Vec::new();
        for part in inodes.chunks(MAX_INODE_LIST) {
            let request = FileRequest::ReclaimInodes { inodes: part.to_vec() };
            match self.channel.file(request).await? {
                FileResponse::Reclaimed { lost } => gone.extend(lost),
                _ => return Err(ClientError::unexpected("ReclaimInodes")),
            }
        }
        Ok(gone)
    }

    /// What these recalls named is no longer kept.
    pub async fn acknowledge_recalls(&self, recalls: &[u64]) -> Result<()> {
        for part in recalls.chunks(MAX_INODE_LIST) {
            let request = FileRequest::AcknowledgeRecalls { recalls: part.to_vec() };
            self.noted("AcknowledgeRecalls", request).await?;
        }
        Ok(())
    }

    /// As [`Self::acknowledge_recalls`], ahead of waiting requests and without waiting for the answer.
    pub fn acknowledge_in_background(&self, recall: u64) {
        self.channel.tell(FileRequest::AcknowledgeRecalls { recalls: vec![recall] });
    }

    /// As [`Self::forget_inodes`] for one inode, without waiting for the answer. Ahead of waiting requests, so it undoes nothing that one
    /// of them learns; an answer that is still under way must not be one that the inode is learned from.
    pub fn forget_in_background(&self, inode: u64) {
        self.channel.tell(FileRequest::ForgetInodes { inodes: vec![inode] });
    }

    /// Takes, changes or gives up a lock. With `wait`, a number that [`Self::cancel_lock`] can name, it waits for as long as it takes,
    /// whatever the time-outs say; dropping the future cancels the wait. The lock may have been given at that very moment: who drops the
    /// future gives the range up if it must not be held.
    ///
    /// # Errors
    /// `LockConflict` if somebody is in the way and `wait` is `None`; `Deadlock`; `Interrupted` by [`Self::cancel_lock`].
    pub async fn lock(&self, lock: LockRange, wait: Option<u64>, reclaim: bool) -> Result<()> {
        self.noted("Lock", FileRequest::Lock { lock, wait, reclaim }).await
    }

    /// Ends a wait for a lock, if it still waits.
    pub async fn cancel_lock(&self, wait: u64) -> Result<()> {
        self.noted("CancelLock", FileRequest::CancelLock { wait }).await
    }

    /// The first lock in the way of this one; `None` if it could be had.
    pub async fn test_lock(&self, lock: LockRange) -> Result<Option<LockRange>> {
        ask!(self, "TestLock", FileRequest::TestLock { lock }, FileResponse::LockFound { blocker } => blocker)
    }

    /// The same requests, ahead of all others, for claiming inodes and locks again after [`crate::LeaseEvent::Regained`]. They fail with
    /// [`ClientError::Interrupted`] when that connection is lost.
    #[must_use]
    pub fn recovering(&self) -> Self {
        Self { channel: self.channel.urgent() }
    }

    async fn noted(&self, name: &'static str, request: FileRequest) -> Result<()> {
        match self.channel.file(request).await? {
            FileResponse::Noted => Ok(()),
            _ => Err(ClientError::unexpected(name)),
        }
    }
}
