//! One request of the kernel: to its handler, and its answer back.

use std::rc::Rc;
use std::time::Instant;

use subvol_protocol::request::{FileRequest, LockKind, LockRange};
use tokio::task::spawn_local;

use super::locks::wanted;
use super::{Front, Outcome, Output, Waiting, errno};
use crate::backend::{Backend, Failure};
use crate::counters::add;
use crate::kernel::abi::{self, InitOut, Opcode, init};
use crate::kernel::request::{Arguments, Incoming};
use crate::limits::{FORGET_PAUSE, LEASED_SECONDS_OLD_KERNEL, MAX_BACKGROUND, MAX_WRITE};

/// What an answer needs of its request.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub unique: u64,
    pub nodeid: u64,
    pub inode: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub opcode: Opcode,
    /// The time of [`super::recalls::Recalls`] at which it was read.
    pub since: u64,
    pub started: Instant,
}

/// What becomes of a request at first.
enum First {
    /// It is answered.
    Answer(Outcome),
    /// It needs no answer.
    Done,
    /// It has to wait.
    Task(Arguments),
}

const fn refuse(errno: i32) -> Outcome {
    Err(Failure(errno))
}

impl<B: Backend> Front<B> {
    /// Takes a request: answers it here, or starts a task that will.
    pub(super) fn take(self: &Rc<Self>, incoming: Incoming) {
        let Incoming { unique, nodeid, uid, gid, pid, opcode, arguments, payload } = incoming;
        let asked = Asked {
            unique,
            nodeid,
            inode: self.inode(nodeid),
            uid,
            gid,
            pid,
            opcode,
            since: self.recalls.borrow().now(),
            started: Instant::now(),
        };
        let arguments = match self.take_here(&asked, arguments) {
            First::Done => return,
            First::Task(arguments) => arguments,
            First::Answer(outcome) => {
                add(&self.counters.answered_here, 1);
                return self.answer(&asked, outcome);
            }
        };
        let lock = match (&arguments, opcode) {
            (Arguments::Lock(lock), Opcode::SetLkW) => wanted(&asked, lock).ok(),
            _ => None,
        };
        let front = Rc::clone(self);
        let task = spawn_local(async move {
            let outcome = front.handle(asked, arguments, payload).await;
            front.under_way.borrow_mut().remove(&unique);
            front.answer(&asked, outcome);
        });
        let waiting = Waiting { task: task.abort_handle(), lock, interrupted: false };
        self.under_way.borrow_mut().insert(unique, waiting);
    }

    /// What needs no waiting.
    fn take_here(self: &Rc<Self>, asked: &Asked, arguments: Arguments) -> First {
        match (asked.opcode, arguments) {
            (Opcode::Forget, Arguments::Forget(list)) => {
                for (_, times) in list {
                    self.inodes.borrow_mut().forget(asked.inode, times);
                }
                First::Done
            }
            (Opcode::BatchForget, Arguments::Forget(list)) => {
                let mut inodes = self.inodes.borrow_mut();
                for (nodeid, times) in list {
                    let inode = inodes.inode(nodeid);
                    inodes.forget(inode, times);
                }
                First::Done
            }
            (Opcode::Interrupt, Arguments::Interrupt(unique)) => {
                self.interrupt(unique);
                First::Done
            }
            (Opcode::Init, Arguments::Init(init)) => First::Answer(self.init(&init)),
            (Opcode::Destroy, _) => First::Answer(Ok(Output::empty())),
            // The kernel itself checks permissions; it has no numbers of blocks to ask for and no events to wait for here.
            (Opcode::Access | Opcode::Bmap | Opcode::Poll | Opcode::CopyFileRange, _) => {
                First::Answer(refuse(errno::ENOSYS))
            }
            (Opcode::Ioctl, _) => First::Answer(refuse(errno::ENOTTY)),
            // Directories need no handles: a listing carries its own position.
            (Opcode::OpenDir, _) => First::Answer(refuse(errno::ENOSYS)),
            (Opcode::ReleaseDir, _) => First::Answer(Ok(Output::empty())),
            (Opcode::Open, Arguments::Open(open)) => First::Answer(self.open(asked, open)),
            (Opcode::Flush, Arguments::Flush(flush)) => match self.flush_here(asked, &flush) {
                Some(outcome) => First::Answer(outcome),
                None => First::Task(Arguments::Flush(flush)),
            },
            (Opcode::Release, Arguments::Release(release)) => {
                self.release(asked, &release);
                First::Answer(Ok(Output::empty()))
            }
            (Opcode::GetXattr, Arguments::GetXattr(room, name)) => {
                match self.get_xattr_here(asked, room, &name) {
                    Some(outcome) => First::Answer(outcome),
                    None => First::Task(Arguments::GetXattr(room, name)),
                }
            }
            (Opcode::ReadDir | Opcode::ReadDirPlus, Arguments::Read(read)) => {
                if self.is_listed(asked.inode, read.offset) {
                    return First::Answer(Ok(Output::empty()));
                }
                First::Task(Arguments::Read(read))
            }
            (_, arguments) => First::Task(arguments),
        }
    }

    async fn handle(self: &Rc<Self>, asked: Asked, arguments: Arguments, payload: bytes::Bytes) -> Outcome {
        use Arguments as A;
        match (asked.opcode, arguments) {
            (Opcode::Lookup, A::Name(name)) => self.look_up(&asked, &name).await,
            (Opcode::GetAttr, _) => self.get_attributes(&asked).await,
            (Opcode::Statx, _) => self.statx(&asked).await,
            (Opcode::SetAttr, A::SetAttr(set)) => self.set_attributes(&asked, &set).await,
            (Opcode::ReadLink, _) => self.read_link(&asked).await,
            (Opcode::Symlink, A::Symlink(name, target)) => self.symlink(&asked, &name, &target).await,
            (Opcode::MkNod, A::MkNod(node, name)) => self.make_node(&asked, &node, &name).await,
            (Opcode::MkDir, A::MkDir(directory, name)) => {
                self.make_directory(&asked, &directory, &name).await
            }
            (Opcode::Unlink, A::Name(name)) => self.unlink(&asked, &name).await,
            (Opcode::RmDir, A::Name(name)) => self.remove_directory(&asked, &name).await,
            (Opcode::Rename | Opcode::Rename2, A::Rename(rename, from, to)) => {
                self.rename(&asked, &rename, &from, &to).await
            }
            (Opcode::Link, A::Link(nodeid, name)) => self.link(&asked, nodeid, &name).await,
            (Opcode::Create, A::Create(create, name)) => self.create(&asked, &create, &name).await,
            (Opcode::TmpFile, A::Create(create, _)) => self.create_unnamed(&asked, &create).await,
            (Opcode::Read, A::Read(read)) => self.read(&asked, &read).await,
            (Opcode::Write, A::Write(write)) => self.write(&asked, &write, payload).await,
            (Opcode::StatFs, _) => self.statfs().await,
            (Opcode::Flush, A::Flush(flush)) => self.flush(&asked, &flush).await,
            (Opcode::Fsync, A::Fsync(fsync)) => self.fsync(&asked, &fsync, false).await,
            (Opcode::FsyncDir, A::Fsync(fsync)) => self.fsync(&asked, &fsync, true).await,
            (Opcode::SyncFs, _) => self.sync_volume().await,
            (Opcode::GetXattr, A::GetXattr(room, name)) => self.get_xattr(&asked, room, &name).await,
            (Opcode::SetXattr, A::SetXattr(flags, name, value)) => {
                self.set_xattr(&asked, flags, &name, &value).await
            }
            (Opcode::ListXattr, A::ListXattr(room)) => self.list_xattrs(&asked, room).await,
            (Opcode::RemoveXattr, A::Name(name)) => self.remove_xattr(&asked, &name).await,
            (Opcode::ReadDir, A::Read(read)) => self.list(&asked, &read, false).await,
            (Opcode::ReadDirPlus, A::Read(read)) => self.list(&asked, &read, true).await,
            (Opcode::GetLk, A::Lock(lock)) => self.test_lock(&asked, &lock).await,
            (Opcode::SetLk, A::Lock(lock)) => self.lock(&asked, &lock, false).await,
            (Opcode::SetLkW, A::Lock(lock)) => self.lock(&asked, &lock, true).await,
            (Opcode::Fallocate, A::Fallocate(allocate)) => self.allocate(&asked, &allocate).await,
            (Opcode::Lseek, A::Lseek(seek)) => self.seek(&asked, &seek).await,
            _ => refuse(errno::ENOSYS),
        }
    }

    fn answer(&self, asked: &Asked, outcome: Outcome) {
        let errno = match outcome {
            Ok(output) => {
                if !output.named.is_empty() {
                    self.claim_returned();
                }
                let taken = self.device.answer(asked.unique, &[&output.head, &output.data]);
                if !taken {
                    let mut inodes = self.inodes.borrow_mut();
                    output.named.iter().for_each(|&inode| inodes.forget(inode, 1));
                }
                0
            }
            Err(Failure(errno)) => {
                self.device.refuse(asked.unique, errno);
                errno
            }
        };
        self.counters.answered(asked.opcode, asked.nodeid, asked.pid, errno, asked.started);
    }

    /// A process that waits was told to stop. What the server is about to answer is left to finish; what may take for ever ends here.
    fn interrupt(self: &Rc<Self>, unique: u64) {
        let connected = self.backend.is_connected();
        if let Some(waiting) = self.under_way.borrow_mut().get_mut(&unique) {
            waiting.interrupted = true;
            if connected && waiting.lock.is_none() {
                return;
            }
        } else {
            return;
        }
        self.break_off(unique);
    }

    /// Ends a waiting request with EINTR.
    pub(super) fn break_off(self: &Rc<Self>, unique: u64) {
        let Some(waiting) = self.under_way.borrow_mut().remove(&unique) else { return };
        waiting.task.abort();
        self.device.refuse(unique, errno::EINTR);
        if let Some(lock) = waiting.lock {
            self.take_back(lock);
        }
    }

    /// A wait for a lock was ended. It may have been granted at that very moment, and nobody knows of it: it goes, unless its owner has
    /// locks there already, whose part it may have become.
    fn take_back(self: &Rc<Self>, lock: LockRange) {
        if self.locks.borrow().has_any(&lock) {
            return;
        }
        let front = Rc::clone(self);
        spawn_local(async move {
            // After the cancellation, which leaves with the end of the task.
            tokio::time::sleep(FORGET_PAUSE).await;
            if !front.locks.borrow().has_any(&lock) {
                let lock = LockRange { kind: LockKind::Unlock, ..lock };
                front.backend.tell(FileRequest::Lock { lock, wait: None, reclaim: false });
            }
        });
    }

    /// The connection is lost: those whose processes were told to stop need not wait for the next one.
    pub(super) fn break_off_interrupted(self: &Rc<Self>) {
        let interrupted: Vec<u64> = self
            .under_way
            .borrow()
            .iter()
            .filter(|(_, waiting)| waiting.interrupted)
            .map(|(&unique, _)| unique)
            .collect();
        interrupted.into_iter().for_each(|unique| self.break_off(unique));
    }

    fn init(&self, asked: &abi::InitIn) -> Outcome {
        if asked.major != abi::MAJOR || asked.minor < 31 {
            tracing::error!(
                asked.major,
                asked.minor,
                "this kernel's FUSE is too old (Linux 5.4 or newer is needed)"
            );
            return refuse(errno::EIO);
        }
        if asked.minor < 44 {
            self.leased_seconds.set(LEASED_SECONDS_OLD_KERNEL);
        }
        let offered = u64::from(asked.flags)
            | if asked.flags & init::INIT_EXT as u32 != 0 { u64::from(asked.flags2) << 32 } else { 0 };
        let mut wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::POSIX_ACL
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::NO_OPENDIR_SUPPORT
            | init::EXPLICIT_INVAL_DATA
            | init::HANDLE_KILLPRIV_V2
            | init::SETXATTR_EXT
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP;
        wanted |= if self.options.local_locks {
            init::NO_OPEN_SUPPORT
        } else {
            init::POSIX_LOCKS | init::FLOCK_LOCKS
        };
        let agreed = wanted & offered;
        for (flag, what) in
            [(init::SETXATTR_EXT, "extended setxattr"), (init::HANDLE_KILLPRIV_V2, "killpriv v2")]
        {
            if agreed & flag == 0 {
                tracing::error!(what, "this kernel's FUSE lacks what the mount needs (Linux 5.12 or newer)");
                return refuse(errno::EIO);
            }
        }
        Ok(Output::of(&InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            max_readahead: asked.max_readahead,
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND * 3 / 4,
            max_write: MAX_WRITE as u32,
            time_gran: 1,
            max_pages: (MAX_WRITE / 4096) as u16,
            ..InitOut::default()
        }))
    }
}
