//! Running requests: step by step, parking what has to wait, answering exactly once.
//!
//! Order: requests of one connection that are under way together have no order among themselves, except that changes which
//! name a common inode do not overtake each other here. Invariants: a job is either being run or in `parked`, never lost;
//! whoever parks it has arranged for the message that runs it again; a reply is sent once.

use super::SubvolumeRoot;
use super::job::{Job, Progress, Run, Step, Steps, Stop};
use crate::limits::{FETCHES_MAX, NO_SPACE_COMMITS};
use crate::log_writer::LogQueue;
use crate::metrics::Fallback;
use crate::runtime::{Context, Handler, messages};
use crate::transaction_manager::{CommitReason, RequestCommit};
use crate::waiter::Waiter;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::request::FileRequest;
use subvol_protocol::response::{FileResponse, Response, StepResult};
use subvol_storage::log::generation::LogPin;
use subvol_storage::operation::Operation;
use subvol_storage::types::InodeNumber;

/// Runs a parked job again.
pub struct Resume {
    /// Which.
    pub token: u64,
    /// What became of the durability that it waited for.
    pub durable: Option<bool>,
}

messages!(Resume);

/// A job that waits.
pub struct Parked {
    pub(super) job: Job,
    pub(super) why: Why,
    footprint: SmallVec<[InodeNumber; 4]>,
}

/// What a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A block.
    Fetch,
    /// An earlier change of the same connection that names the same inode.
    Behind,
    /// The log is pinned.
    Pinned,
    /// Dirty data has to reach the device.
    Dirty,
    /// Blocks past the end of a file are being freed.
    Trim,
    /// Its log records have to become durable.
    Durable,
    /// A commit.
    Commit,
    /// Its next turn.
    Turn,
    /// Others have to drop what it changed.
    Recall,
    /// A lock that somebody else holds.
    Lock,
    /// Those who had locks before a restart come first.
    LockGrace,
}

impl SubvolumeRoot {
    /// A request that just came in.
    pub(super) fn arrive(&mut self, job: Job) {
        if job.ask.session.parked.load(Ordering::Relaxed) > 0 && job.ask.is_changing() {
            let footprint = job.ask.footprint();
            if self.is_behind(&job, u64::MAX, &footprint) {
                self.park(job, None, Why::Behind);
                return;
            }
        }
        self.run(job, None);
    }

    fn is_behind(&self, job: &Job, token: u64, footprint: &[InodeNumber]) -> bool {
        self.parked.iter().any(|(&other, parked)| {
            other < token
                && parked.job.ask.session.id == job.ask.session.id
                && parked.footprint.iter().any(|inode| footprint.contains(inode))
        })
    }

    /// Runs a job until it is answered or has to wait. `token`: it was parked before.
    pub(super) fn run(&mut self, mut job: Job, token: Option<u64>) {
        if let Some(error) = job.state.failed.take() {
            return self.answer(job, token, Some(Err(error)));
        }
        loop {
            let index = job.state.results.len();
            let Some(request) = job.ask.steps.as_slice().get(index) else {
                match self.waits_for_recalls(&job) {
                    Some(group) => self.wait_for_recalls(job, token, group),
                    None => self.answer(job, token, None),
                }
                return;
            };
            let mut run = Run { ask: &job.ask, state: &mut job.state, index };
            let outcome = self.step(&mut run, request);
            let renames = matches!(request, FileRequest::Rename { .. });
            match outcome {
                Ok(response) => {
                    job.state.executed = None;
                    self.settle_leases(&mut job, index, &response);
                    if renames && let Some(pin) = job.state.pin.take() {
                        self.released(pin);
                    }
                    if matches!(job.ask.steps, Steps::One(_)) && self.waits_for_recalls(&job).is_none() {
                        self.answer(job, token, Some(Ok(response)));
                        return;
                    }
                    job.state.results.push(Ok(response));
                }
                Err(stop) => return self.stopped(job, token, stop),
            }
        }
    }

    fn stopped(&mut self, mut job: Job, token: Option<u64>, stop: Stop) {
        match stop {
            Stop::Error(error) => self.answer_error(job, token, error),
            Stop::Lock { wait } => self.wait_for_lock(job, token, wait),
            Stop::LockGrace { rest } => self.wait_for_lock_grace(job, token, rest),
            Stop::Fetch(fetch) => {
                job.state.fetches += 1;
                if job.state.fetches > FETCHES_MAX {
                    return self.answer(job, token, Some(Err(ErrorCode::Busy.into())));
                }
                let token = self.park(job, token, Why::Fetch);
                self.fetch(super::fetch::Target::Job(token), fetch);
            }
            Stop::Pinned => drop(self.park(job, token, Why::Pinned)),
            Stop::Turn => {
                let token = self.park(job, token, Why::Turn);
                self.mailbox.send(Resume { token, durable: None });
            }
            Stop::Dirty => {
                self.park(job, token, Why::Dirty);
                self.schedule_background();
            }
            Stop::Trim(inode) => {
                self.park(job, token, Why::Trim);
                self.free.push_front(inode);
                self.schedule_background();
            }
            Stop::NoSpace => {
                let space = self.shared.store.space().statistics();
                let hopeless = space.pinned == 0 && !self.shared.store.is_dirty();
                if job.state.commits >= NO_SPACE_COMMITS || hopeless {
                    return self.answer(job, token, Some(Err(ErrorCode::NoSpace.into())));
                }
                job.state.commits += 1;
                self.shared.counters.fell_back(Fallback::NoSpace);
                let token = self.park(job, token, Why::Commit);
                let waiter = Some(Waiter::resume(self.mailbox.clone(), token));
                self.shared.request(RequestCommit {
                    reason: CommitReason::NoSpace,
                    waiter,
                    changes: Vec::new(),
                });
            }
            Stop::Log { response, ticket, generations } => {
                let index = job.state.results.len();
                self.settle_leases(&mut job, index, &response);
                let waiter = self.waiter(job, token, *response);
                let progress = std::sync::Arc::clone(self.subvolume.progress());
                let waiter = Some((ticket, progress, waiter));
                LogQueue::submit_with_extents(&self.shared, self.subvolume.id(), generations, waiter);
            }
            Stop::Commit { response } => {
                let waiter = Some(self.waiter(job, token, *response));
                self.shared.request(RequestCommit {
                    reason: CommitReason::Sync,
                    waiter,
                    changes: Vec::new(),
                });
            }
        }
    }

    /// Who is told when the step's result counts: the client itself if this was all, else the job that goes on.
    fn waiter(&mut self, mut job: Job, token: Option<u64>, response: FileResponse) -> Waiter {
        job.state.executed = None;
        let last = job.state.results.len() + 1 == job.ask.steps.as_slice().len();
        let recalled = self.waits_for_recalls(&job).is_some();
        if last && job.state.data.is_empty() && job.permit.is_none() && !recalled {
            if let Some(token) = token {
                self.left(token, &job);
            }
            let response = match job.ask.steps {
                Steps::One(_) => Response::File(response),
                Steps::Many(_) => {
                    job.state.results.push(Ok(response));
                    Response::Compound { results: job.state.results }
                }
            };
            return Waiter::reply(job.ask.session, job.ask.request_id, response);
        }
        job.state.results.push(Ok(response));
        let token = self.park(job, token, Why::Durable);
        Waiter::resume(self.mailbox.clone(), token)
    }

    /// Answers with an error, once others have dropped what the steps before it changed.
    pub(super) fn answer_error(&mut self, mut job: Job, token: Option<u64>, error: WireError) {
        self.grant_absence(&job, job.state.results.len(), &error);
        match self.waits_for_recalls(&job) {
            Some(group) => {
                job.state.failed = Some(error);
                self.wait_for_recalls(job, token, group);
            }
            None => self.answer(job, token, Some(Err(error))),
        }
    }

    /// Answers a parked job with what it waited for.
    pub(super) fn finish_parked(&mut self, token: u64, response: FileResponse) {
        if let Some(parked) = self.parked.remove(&token) {
            self.answer(parked.job, Some(token), Some(Ok(response)));
        }
    }

    /// Sends the reply. `last`: the result of the last step that ran, if it is not in the results yet.
    fn answer(&mut self, job: Job, token: Option<u64>, last: Option<StepResult>) {
        let Job { ask, permit, state } = job;
        let Progress { mut results, data, pin, .. } = state;
        let response = match ask.steps {
            Steps::One(_) => match last.or_else(|| results.pop()) {
                Some(Ok(response)) => Response::File(response),
                Some(Err(error)) => Response::Error(error),
                None => Response::Error(ErrorCode::Internal.into()),
            },
            Steps::Many(_) => {
                results.extend(last);
                Response::Compound { results }
            }
        };
        let data = if has_read(&response) { data.as_slice() } else { &[] };
        ask.session.reply_with(ask.request_id, &response, data, permit);
        if let Some(token) = token {
            ask.session.outbox.wake();
            self.forget(token, &ask.session);
        }
        if let Some(pin) = pin {
            self.released(pin);
        }
    }

    /// Lets go of a pin: whoever met it goes on.
    fn released(&mut self, pin: LogPin) {
        drop(pin);
        self.run_parked(Why::Pinned);
        self.drive_freeze();
    }

    /// A parked job is answered by somebody else: it no longer holds back others.
    fn left(&mut self, token: u64, job: &Job) {
        self.forget(token, &std::sync::Arc::clone(&job.ask.session));
    }

    fn forget(&mut self, token: u64, session: &std::sync::Arc<crate::session::Session>) {
        self.parked.remove(&token);
        if session.parked.fetch_sub(1, Ordering::Relaxed) > 1 {
            self.freed.push_back(session.id);
        }
        if !std::mem::replace(&mut self.freeing, true) {
            self.run_freed();
            self.freeing = false;
        }
    }

    /// Those that were behind a job that is gone may go now, in their order. What they free in turn is queued, so that a
    /// chain of them is a loop and not a recursion as deep as the chain is long.
    fn run_freed(&mut self) {
        while let Some(session) = self.freed.pop_front() {
            let mut behind: Vec<u64> = self
                .parked
                .iter()
                .filter(|(_, parked)| parked.why == Why::Behind && parked.job.ask.session.id == session)
                .map(|(&token, _)| token)
                .collect();
            behind.sort_unstable();
            for token in behind {
                let Some(parked) = self.parked.get(&token) else { continue };
                if !self.is_behind(&parked.job, token, &parked.footprint) {
                    self.run_again(token);
                }
            }
        }
    }

    pub(super) fn park(&mut self, job: Job, token: Option<u64>, why: Why) -> u64 {
        let token = token.unwrap_or_else(|| {
            job.ask.session.parked.fetch_add(1, Ordering::Relaxed);
            self.next_token += 1;
            self.next_token
        });
        let footprint = if job.ask.is_changing() { job.ask.footprint() } else { SmallVec::new() };
        self.parked.insert(token, Parked { job, why, footprint });
        token
    }

    /// Runs a parked job again. It keeps its place: while it runs, nothing else does.
    pub(super) fn run_again(&mut self, token: u64) {
        if let Some(parked) = self.parked.remove(&token) {
            self.run(parked.job, Some(token));
        }
    }

    /// Runs all jobs again that wait for this, in the order they came.
    pub(super) fn run_parked(&mut self, why: Why) {
        for token in self.parked_for(why) {
            self.run_again(token);
        }
    }

    pub(super) fn parked_for(&self, why: Why) -> Vec<u64> {
        let mut tokens: Vec<u64> =
            self.parked.iter().filter(|(_, parked)| parked.why == why).map(|(&token, _)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// Answers a parked job with an error.
    pub(super) fn fail_parked(&mut self, token: u64, error: WireError) {
        if let Some(parked) = self.parked.remove(&token) {
            self.answer(parked.job, Some(token), Some(Err(error)));
        }
    }

    fn step(&mut self, run: &mut Run<'_>, request: &FileRequest) -> Step {
        use FileRequest as R;
        if run.ask.session.fenced.load(Ordering::Relaxed) {
            return Err(ErrorCode::Fenced.into());
        }
        if request.is_changing() && run.ask.session.is_read_only() {
            return Err(ErrorCode::ReadOnly.into());
        }
        match request {
            R::Lookup { parent, name } => self.look_up(run.inode(*parent)?, name),
            R::Create(create) => self.create(run, create, 0),
            R::CreateUnnamed { parent, permissions, uid, gid, open } => {
                self.create_unnamed(run, *parent, (*permissions, 0), (*uid, *gid), Some(*open))
            }
            R::Link { file, parent, name } => self.link(run, *file, *parent, name),
            R::Unlink { parent, name } => self.unlink(run, *parent, name, false),
            R::RemoveDirectory { parent, name } => self.unlink(run, *parent, name, true),
            R::Rename { parent, name, new_parent, new_name, mode } => {
                self.rename(run, (*parent, name), (*new_parent, new_name), *mode)
            }
            R::ReadLink { inode } => self.read_link(run.inode(*inode)?),
            R::GetAttributes { file } => {
                let attributes = self.attributes_of(run.file(*file)?.0)?;
                Ok(FileResponse::Attributes { attributes })
            }
            R::SetAttributes(change) => self.set_attributes(run, change),
            R::ReadDirectory { inode, after_cookie, max_entries, with_attributes } => {
                self.read_directory(run.inode(*inode)?, *after_cookie, *max_entries, *with_attributes)
            }
            R::GetXattr { inode, name } => self.get_xattr(run.inode(*inode)?, name),
            R::SetXattr { inode, name, value, mode } => self.set_xattr(run, *inode, (name, value), *mode),
            R::ListXattrs { inode } => self.list_xattrs(run.inode(*inode)?),
            R::RemoveXattr { inode, name } => self.remove_xattr(run, *inode, name),
            R::StatFs => Ok(FileResponse::Statistics {
                statistics: super::convert::statistics(
                    &self.shared.store,
                    self.subvolume.account(),
                    self.subvolume.tenant_account(),
                ),
            }),
            R::ResolvePath { base, components } => self.resolve_path(run.inode(*base)?, components),
            R::Open { inode, flags } => self.open(run, *inode, *flags),
            R::Close { handle, lineage } => self.close(run, *handle, *lineage),
            R::Read { file, offset, length } => self.read(run, *file, *offset, *length),
            R::Write { file, position } => self.write(run, *file, *position, false),
            R::Allocate { file, offset, length, keep_size } => self.change_range(run, *file, |inode| {
                Operation::Allocate { inode, offset: *offset, length: *length, keep_size: *keep_size }
            }),
            R::PunchHole { file, offset, length } => self.change_range(run, *file, |inode| {
                Operation::PunchHole { inode, offset: *offset, length: *length }
            }),
            R::ZeroRange { file, offset, length, keep_size } => self.change_range(run, *file, |inode| {
                Operation::ZeroRange { inode, offset: *offset, length: *length, keep_size: *keep_size }
            }),
            R::Seek { file, offset, target } => self.seek(run, *file, *offset, *target),
            R::Fsync { file, lineage, .. } => self.fsync(run, *file, *lineage),
            R::SyncVolume { lineage } => self.sync_volume(*lineage),
            R::CreateMasked { create, umask } => self.create(run, create, *umask),
            R::CreateUnnamedMasked { parent, permissions, umask, uid, gid } => {
                self.create_unnamed(run, *parent, (*permissions, *umask), (*uid, *gid), None)
            }
            R::WriteUnprivileged { file, position } => self.write(run, *file, *position, true),
            R::ListDirectory { inode, after_cookie, up_to, max_entries, with_attributes } => {
                let inode = run.inode(*inode)?;
                self.list_directory(inode, *after_cookie, *up_to, *max_entries, *with_attributes)
            }
            R::BeginLeases => self.begin_leases(run),
            R::ReclaimInodes { inodes } => self.reclaim_inodes(run, inodes),
            R::ForgetInodes { inodes } => self.forget_inodes(run, inodes),
            R::AcknowledgeRecalls { recalls } => self.acknowledge_recalls(run, recalls),
            R::Lock { lock, wait, reclaim } => self.lock(run, lock, *wait, *reclaim),
            R::CancelLock { wait } => self.cancel_lock(run, *wait),
            R::TestLock { lock } => self.test_lock(run, lock),
        }
    }
}

fn has_read(response: &Response) -> bool {
    let is_read = |response: &FileResponse| matches!(response, FileResponse::Read { .. });
    match response {
        Response::File(response) => is_read(response),
        Response::Compound { results } => results.iter().flatten().any(is_read),
        _ => false,
    }
}

impl Handler<Resume> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: Resume, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.now = crate::runtime::now();
        if let Some(parked) = self.parked.get_mut(&message.token)
            && parked.why == Why::Durable
            && message.durable == Some(false)
        {
            // Its step's success was only waiting to become true.
            parked.job.state.results.pop();
            self.fail_parked(message.token, ErrorCode::Io.into());
        } else {
            self.run_again(message.token);
        }
        self.after_messages();
    }
}
