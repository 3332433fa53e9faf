//! Content: reading, writing, reserving, finding holes, making durable.

use std::rc::Rc;

use bytes::Bytes;
use subvol_protocol::request::{FileRef, FileRequest, SeekTarget, SetAttributes, WritePosition};
use subvol_protocol::response::{FileResponse, RecallTarget};

use super::attributes::without_set_id;
use super::dispatch::Asked;
use super::names::unexpected;
use super::{Front, Outcome, Output, errno};
use crate::backend::{Backend, Failure};
use crate::counters::add;
use crate::kernel::abi::{
    FSYNC_DATA_ONLY, FallocateIn, FsyncIn, LseekIn, LseekOut, ReadIn, WRITE_CACHE, WRITE_KILL_SUIDGID,
    WriteIn, WriteOut,
};
use crate::limits::MAX_WRITE;

impl<B: Backend> Front<B> {
    pub(super) async fn read(&self, asked: &Asked, read: &ReadIn) -> Outcome {
        let length = read.size.min(MAX_WRITE as u32);
        let file = FileRef::inode(asked.inode);
        let request = FileRequest::Read { file, offset: read.offset, length };
        match self.ask_with(request, Bytes::new()).await? {
            (FileResponse::Read { .. }, bytes) => {
                add(&self.counters.bytes_read, bytes.len() as u64);
                if !self.is_sure(asked.inode, asked.since) {
                    // The pages it fills may be older than what was to be dropped. The notification waits for this answer.
                    self.drop_targets(&[RecallTarget { inode: asked.inode, name: None }], None);
                }
                Ok(Output::bytes(bytes))
            }
            _ => Err(unexpected()),
        }
    }

    pub(super) async fn write(self: &Rc<Self>, asked: &Asked, write: &WriteIn, bytes: Bytes) -> Outcome {
        let size = bytes.len() as u32;
        add(&self.counters.bytes_written, u64::from(size));
        let from_cache = write.write_flags & WRITE_CACHE != 0;
        // Several mounts may append: only the server knows where the end is.
        let append = !from_cache && write.flags & libc::O_APPEND as u32 != 0;
        let position = if append { WritePosition::Append } else { WritePosition::At(write.offset) };
        let file = FileRef::inode(asked.inode);
        let unprivileged = write.write_flags & WRITE_KILL_SUIDGID != 0;
        let request = if unprivileged && self.may_have_privileges(asked.inode) {
            FileRequest::WriteUnprivileged { file, position }
        } else {
            FileRequest::Write { file, position }
        };
        let changing = self.changing(&[asked.inode]);
        let answer = self.ask_with(request, bytes).await;
        drop(changing);
        let went_to = match answer? {
            (FileResponse::Written { position, .. }, _) => position,
            _ => return Err(unexpected()),
        };
        if unprivileged {
            let _ = self.with_node(asked.inode, |node| {
                node.mode =
                    node.mode.map(|mode| without_set_id(mode).map_or(mode, |bits| mode & !0o7777 | bits));
            });
        }
        if append && went_to != write.offset {
            // Somebody else appended: the kernel has these bytes in the wrong place.
            self.drop_targets(&[RecallTarget { inode: asked.inode, name: None }], None);
        }
        Ok(Output::of(&WriteOut { size, padding: 0 }))
    }

    /// Whether a write could have to take set-id bits or capabilities away.
    fn may_have_privileges(&self, inode: u64) -> bool {
        self.with_node(inode, |node| {
            node.mode.is_none_or(|mode| without_set_id(mode).is_some())
                || node.absent & super::inodes::absent::CAPABILITY == 0
        })
        .unwrap_or(true)
    }

    pub(super) async fn allocate(self: &Rc<Self>, asked: &Asked, allocate: &FallocateIn) -> Outcome {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP_SIZE;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        let FallocateIn { offset, length, mode, .. } = *allocate;
        let file = FileRef::inode(asked.inode);
        let keep_size = mode & KEEP_SIZE != 0;
        let request = match mode {
            0 | KEEP_SIZE => FileRequest::Allocate { file, offset, length, keep_size },
            PUNCH => FileRequest::PunchHole { file, offset, length },
            _ if mode & !KEEP_SIZE == ZERO => FileRequest::ZeroRange { file, offset, length, keep_size },
            _ => return Err(Failure(errno::EOPNOTSUPP)),
        };
        let changing = self.changing(&[asked.inode]);
        let answer = self.allocate_as(asked, request).await;
        drop(changing);
        answer.map(|()| Output::empty())
    }

    /// A change of content by a user takes set-id bits and capabilities away, also without a write.
    async fn allocate_as(self: &Rc<Self>, asked: &Asked, request: FileRequest) -> Result<(), Failure> {
        if asked.uid != 0 {
            if let Some(permissions) = without_set_id(self.mode(asked).await?) {
                let file = FileRef::inode(asked.inode);
                let change = SetAttributes { permissions: Some(permissions), ..SetAttributes::none(file) };
                self.ask(FileRequest::SetAttributes(change)).await?;
                let _ = self.with_node(asked.inode, |node| node.mode = None);
            }
            self.drop_capabilities(asked).await?;
        }
        self.ask(request).await.map(|_| ())
    }

    pub(super) async fn seek(&self, asked: &Asked, seek: &LseekIn) -> Outcome {
        let target = match seek.whence as i32 {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Failure(errno::EINVAL)),
        };
        let request = FileRequest::Seek { file: FileRef::inode(asked.inode), offset: seek.offset, target };
        match self.ask(request).await? {
            FileResponse::Found { offset } => Ok(Output::of(&LseekOut { offset })),
            _ => Err(unexpected()),
        }
    }

    pub(super) async fn fsync(&self, asked: &Asked, fsync: &FsyncIn, directory: bool) -> Outcome {
        let file = FileRef::inode(asked.inode);
        let data_only = !directory && fsync.fsync_flags & FSYNC_DATA_ONLY != 0;
        let answer = self.ask(FileRequest::Fsync { file, data_only, lineage: None }).await;
        match answer {
            Ok(FileResponse::Synced { .. }) => {}
            Ok(_) => return Err(unexpected()),
            Err(_) => {
                // Whatever was to be written is not there: every handle of the file has to hear of it once (S7).
                let _ = self.with_node(asked.inode, |node| node.failures = node.failures.wrapping_add(1));
                self.has_untold_failure(asked.inode, fsync.fh);
                return Err(Failure(errno::EIO));
            }
        }
        if !directory && self.has_untold_failure(asked.inode, fsync.fh) {
            return Err(Failure(errno::EIO));
        }
        Ok(Output::empty())
    }

    pub(super) async fn sync_volume(&self) -> Outcome {
        match self.ask(FileRequest::SyncVolume { lineage: None }).await? {
            FileResponse::Synced { .. } => Ok(Output::empty()),
            _ => Err(unexpected()),
        }
    }
}
