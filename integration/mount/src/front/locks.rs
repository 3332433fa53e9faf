//! Locks, shared with all other clients of the volume.

use std::cell::Cell;

use subvol_protocol::limits::MAX_FILE_SIZE;
use subvol_protocol::request::{FileRequest, LockFamily, LockKind, LockRange};
use subvol_protocol::response::FileResponse;

use super::dispatch::Asked;
use super::names::unexpected;
use super::{Front, Outcome, Output, errno};
use crate::backend::{Backend, Failure};
use crate::kernel::abi::{FileLock, LK_FLOCK, LkIn, LkOut};

/// A whole file's lock given up.
pub(super) const fn unlock(inode: u64, owner: u64, family: LockFamily) -> LockRange {
    LockRange { inode, family, kind: LockKind::Unlock, owner, start: 0, last: MAX_FILE_SIZE, process: 0 }
}

pub(super) fn wanted(asked: &Asked, lock: &LkIn) -> Result<LockRange, Failure> {
    let kind = match lock.lock.kind as i32 {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Failure(errno::EINVAL)),
    };
    let flock = lock.lk_flags & LK_FLOCK != 0;
    let (start, last) =
        if flock { (0, MAX_FILE_SIZE) } else { (lock.lock.start, lock.lock.end.min(MAX_FILE_SIZE)) };
    Ok(LockRange {
        inode: asked.inode,
        family: if flock { LockFamily::Flock } else { LockFamily::Range },
        kind,
        owner: lock.owner,
        start,
        last,
        process: lock.lock.pid,
    })
}

impl<B: Backend> Front<B> {
    pub(super) async fn lock(&self, asked: &Asked, lock: &LkIn, waits: bool) -> Outcome {
        thread_local! {
            static LAST_WAIT: Cell<u64> = const { Cell::new(0) };
        }
        let range = wanted(asked, lock)?;
        let wait = (waits && range.kind != LockKind::Unlock).then(|| {
            LAST_WAIT.set(LAST_WAIT.get() + 1);
            LAST_WAIT.get()
        });
        self.ask(FileRequest::Lock { lock: range, wait, reclaim: false }).await?;
        self.locks.borrow_mut().granted(&range, lock.fh);
        Ok(Output::empty())
    }

    pub(super) async fn test_lock(&self, asked: &Asked, lock: &LkIn) -> Outcome {
        let range = wanted(asked, lock)?;
        let found = match self.ask(FileRequest::TestLock { lock: range }).await? {
            FileResponse::LockFound { blocker } => blocker,
            _ => return Err(unexpected()),
        };
        let told = match found {
            None => FileLock { kind: libc::F_UNLCK as u32, ..lock.lock },
            Some(held) => FileLock {
                start: held.start,
                end: held.last,
                kind: if held.kind == LockKind::Write { libc::F_WRLCK } else { libc::F_RDLCK } as u32,
                pid: held.process,
            },
        };
        Ok(Output::of(&LkOut { lock: told }))
    }
}
