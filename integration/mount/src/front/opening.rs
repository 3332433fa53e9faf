//! Opening and closing. Neither needs the server: a file that the kernel knows stays until the kernel forgets it, and what is written is
//! at the server already. A handle exists to hear of each loss once (S7), and to give its locks back.

use std::rc::Rc;

use rustc_hash::FxHashMap;
use subvol_protocol::request::{FileRequest, LockFamily};

use super::dispatch::Asked;
use super::locks::unlock;
use super::{Front, Outcome, Output, errno};
use crate::backend::{Backend, Failure};
use crate::kernel::abi::{FlushIn, OpenIn, OpenOut, RELEASE_FLOCK_UNLOCK, ReleaseIn, fopen};

/// Open files.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    last: u64,
    /// By number: the losses of its inode that were told or came before it was opened.
    seen: FxHashMap<u64, u32>,
}

impl<B: Backend> Front<B> {
    /// The answer's part about a new handle, opened with these flags of `open(2)`.
    ///
    /// Through its page cache the kernel cuts one write into several requests, which others could append in between. So appending goes
    /// past the cache: one write, one request.
    pub(super) fn opened(&self, inode: u64, flags: u32) -> OpenOut {
        let mut open_flags = if self.backend.has_leases() { fopen::KEEP_CACHE } else { 0 };
        if flags & libc::O_APPEND as u32 != 0 {
            open_flags |= fopen::DIRECT_IO;
        }
        if self.options.local_locks {
            return OpenOut { fh: 0, open_flags, backing_id: 0 };
        }
        let failures = self.with_node(inode, |node| node.failures).unwrap_or(0);
        let mut handles = self.handles.borrow_mut();
        handles.last += 1;
        let fh = handles.last;
        handles.seen.insert(fh, failures);
        OpenOut { fh, open_flags, backing_id: 0 }
    }

    pub(super) fn open(&self, asked: &Asked, open: OpenIn) -> Outcome {
        if self.options.local_locks {
            // The kernel then opens and closes by itself.
            return Err(Failure(errno::ENOSYS));
        }
        Ok(Output::of(&self.opened(asked.inode, open.flags)))
    }

    /// Whether the handle has a loss to tell; it counts as told now.
    pub(super) fn has_untold_failure(&self, inode: u64, fh: u64) -> bool {
        let failures = self.with_node(inode, |node| node.failures).unwrap_or(0);
        self.handles
            .borrow_mut()
            .seen
            .get_mut(&fh)
            .is_some_and(|seen| std::mem::replace(seen, failures) != failures)
    }

    /// Closing by one process, if there is nothing to wait for.
    pub(super) fn flush_here(&self, asked: &Asked, flush: &FlushIn) -> Option<Outcome> {
        if self.options.local_locks {
            return Some(Err(Failure(errno::ENOSYS)));
        }
        if self.locks.borrow().has_ranges(asked.inode, flush.lock_owner) {
            return None;
        }
        Some(if self.has_untold_failure(asked.inode, flush.fh) {
            Err(Failure(errno::EIO))
        } else {
            Ok(Output::empty())
        })
    }

    /// Closing by a process with locks: they go, whatever handle they were taken through.
    pub(super) async fn flush(&self, asked: &Asked, flush: &FlushIn) -> Outcome {
        self.give_back(asked.inode, flush.lock_owner, LockFamily::Range).await;
        if self.has_untold_failure(asked.inode, flush.fh) {
            Err(Failure(errno::EIO))
        } else {
            Ok(Output::empty())
        }
    }

    /// The last close of an open file.
    pub(super) fn release(self: &Rc<Self>, asked: &Asked, release: &ReleaseIn) {
        self.handles.borrow_mut().seen.remove(&release.fh);
        let mut owners = self.locks.borrow().of_handle(asked.inode, release.fh);
        let flock = (release.lock_owner, LockFamily::Flock);
        if release.release_flags & RELEASE_FLOCK_UNLOCK != 0 && !owners.contains(&flock) {
            owners.push(flock);
        }
        if owners.is_empty() {
            return;
        }
        let front = Rc::clone(self);
        let inode = asked.inode;
        tokio::task::spawn_local(async move {
            for (owner, family) in owners {
                front.give_back(inode, owner, family).await;
            }
        });
    }

    async fn give_back(&self, inode: u64, owner: u64, family: LockFamily) {
        let lock = unlock(inode, owner, family);
        // If the server did not hear of it, it frees the locks of a client that is gone.
        let _ = self.ask(FileRequest::Lock { lock, wait: None, reclaim: false }).await;
        self.locks.borrow_mut().granted(&lock, 0);
    }
}
