//! Locks at work: requests for them, waits, and the time after a restart when only those who had locks before get them.

use super::SubvolumeRoot;
use super::job::{Job, Run, Step, Stop};
use super::lock_table::Outcome;
use super::run::Why;
use crate::runtime;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::request::{FileRequest, LockKind, LockRange};
use subvol_protocol::response::FileResponse;

impl SubvolumeRoot {
    pub(super) fn lock(&mut self, run: &Run<'_>, lock: &LockRange, wait: Option<u64>, reclaim: bool) -> Step {
        let slot = self.slot(run)?;
        self.attributes_of(lock.inode)?;
        let up = self.shared.started.elapsed();
        let grace = self.shared.options.lock_grace;
        if !reclaim && lock.kind != LockKind::Unlock && up < grace && self.shared.store.identity().epoch > 1 {
            return Err(Stop::LockGrace { rest: grace - up });
        }
        let (outcome, served) = self.locks.lock(slot, lock, wait.is_some());
        served.into_iter().for_each(|token| self.lock_granted(token));
        match (outcome, wait) {
            (Outcome::Granted, _) => Ok(FileResponse::Noted),
            (Outcome::Blocked, Some(wait)) => Err(Stop::Lock { wait }),
            (Outcome::Blocked, None) => Err(ErrorCode::LockConflict.into()),
            (Outcome::Deadlock, _) => Err(ErrorCode::Deadlock.into()),
            (Outcome::TooMany, _) => {
                Err(WireError::new(ErrorCode::TooManyRequests, "too many locks of one inode").into())
            }
        }
    }

    /// Parks a job that waits for a lock.
    pub(super) fn wait_for_lock(&mut self, job: Job, token: Option<u64>, wait: u64) {
        let index = job.state.results.len();
        let asked = match job.ask.steps.as_slice().get(index) {
            Some(FileRequest::Lock { lock, .. }) => *lock,
            _ => return self.answer_error(job, token, ErrorCode::Internal.into()),
        };
        let Some(slot) = self.lease_of(&job.ask.session) else {
            return self.answer_error(job, token, ErrorCode::OutOfOrder.into());
        };
        let token = self.park(job, token, Why::Lock);
        self.locks.wait(slot, asked, wait, token);
    }

    /// Parks a job until the time of those who had locks before is over.
    pub(super) fn wait_for_lock_grace(&mut self, job: Job, token: Option<u64>, rest: std::time::Duration) {
        let token = self.park(job, token, Why::LockGrace);
        runtime::later(&self.mailbox, rest, super::Resume { token, durable: None });
    }

    /// A job's wait is over: the lock is its own.
    pub(super) fn lock_granted(&mut self, token: u64) {
        self.finish_parked(token, FileResponse::Noted);
    }

    pub(super) fn cancel_lock(&mut self, run: &Run<'_>, wait: u64) -> Step {
        let slot = self.slot(run)?;
        let token = self.locks.cancel(slot, wait).or_else(|| self.in_grace(run.ask.session.id, wait));
        if let Some(token) = token {
            self.fail_parked(token, ErrorCode::Interrupted.into());
        }
        Ok(FileResponse::Noted)
    }

    /// The job with this number that waits for those who had locks before.
    fn in_grace(&self, session: u64, number: u64) -> Option<u64> {
        let asks = |job: &Job| {
            job.ask
                .steps
                .as_slice()
                .iter()
                .any(|step| matches!(step, FileRequest::Lock { wait: Some(wait), .. } if *wait == number))
        };
        let mut waiting = self.parked_for(Why::LockGrace).into_iter();
        waiting.find(|token| {
            self.parked
                .get(token)
                .is_some_and(|parked| parked.job.ask.session.id == session && asks(&parked.job))
        })
    }

    pub(super) fn test_lock(&self, run: &Run<'_>, lock: &LockRange) -> Step {
        let slot = self.slot(run)?;
        Ok(FileResponse::LockFound { blocker: self.locks.test(slot, lock) })
    }
}
