//! Leases at work: what answers grant, what changes recall, and clients that come, fall silent, are fenced and go.
//!
//! A change is executed, then recalled from all others, then answered. So nobody waits for a client that is slow except who changes what
//! it keeps, and a change never has to be tried twice. The rules are in [`super::lease_table`], the reasons in `protocol.md`.

use super::SubvolumeRoot;
use super::job::{Job, Run, Step};
use super::lease_table::{ClientState, Recall, Slot};
use super::run::Why;
use crate::limits::CLIENT_GRACE_BESIDE;
use crate::runtime::{self, Context, Handler, messages};
use crate::session::Session;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::name::Name;
use subvol_protocol::request::{Create, FileRequest, OpenFlags};
use subvol_protocol::response::{FileResponse, Push, RecallTarget};
use subvol_storage::types::InodeNumber;

/// Looks for clients that are late with a recall.
pub struct LookForLate;

/// Time is up for a client whose connection ended, if it has not come back.
pub struct ClientTime {
    slot: Slot,
    /// Of the end this was started by.
    incarnation: u64,
}

messages!(LookForLate, ClientTime);

/// What the actor keeps of a lease client besides the table.
#[derive(Default)]
pub struct LeaseClient {
    /// Its connection, while there is one.
    pub session: Option<Arc<Session>>,
    /// Grows with every connection and every end of one.
    incarnation: u64,
}

type Targets = SmallVec<[RecallTarget; 4]>;

fn whole(inode: InodeNumber) -> RecallTarget {
    RecallTarget { inode, name: None }
}

fn named(inode: InodeNumber, name: &Name) -> RecallTarget {
    RecallTarget { inode, name: Some(name.clone()) }
}

impl SubvolumeRoot {
    /// A step was executed: others have to drop what it made untrue, and its client may keep what it is told.
    pub(super) fn settle_leases(&mut self, job: &mut Job, index: usize, response: &FileResponse) {
        if self.leases.is_unused() {
            return;
        }
        let own = self.lease_of(&job.ask.session);
        let run = Run { ask: &job.ask, state: &mut job.state, index };
        let Some(request) = run.ask.steps.as_slice().get(index) else { return };
        let changed = changed(&run, request, response);
        if !changed.is_empty() {
            let now = self.shared.uptime_milliseconds();
            let mut send = SmallVec::new();
            let group = self.leases.recall(own, &changed, job.state.recalls, now, &mut send);
            job.state.recalls = group;
            self.keep_names(&send);
            self.send_recalls(send);
        }
        if let Some(slot) = own {
            let run = Run { ask: &job.ask, state: &mut job.state, index };
            self.grant(slot, &run, index, response);
        }
    }

    /// A recall of a directory itself leaves its names leased: the client drops attributes and listing, not the names, and has to hear
    /// of each of those later.
    fn keep_names(&mut self, recalls: &[Recall]) {
        for recall in recalls {
            for target in recall.targets.iter().filter(|target| target.name.is_none()) {
                if self.subvolume.attributes(target.inode).is_ok_and(|item| item.is_directory()) {
                    self.leases.grant(recall.slot, target.inode);
                }
            }
        }
    }

    fn send_recalls(&mut self, recalls: SmallVec<[Recall; 2]>) {
        for Recall { slot, number, targets } in recalls {
            let session =
                self.lease_clients.get(usize::from(slot)).and_then(|client| client.session.as_ref());
            if let Some(session) = session {
                session.outbox.push_unasked(&Push::Recall { recall: number, targets });
                session.outbox.wake();
            }
            if !std::mem::replace(&mut self.looking_for_late, true) {
                runtime::later(&self.mailbox, self.shared.options.recall_time, LookForLate);
            }
        }
    }

    /// A look-up that found nothing is an answer too: the name is absent.
    pub(super) fn grant_absence(&mut self, job: &Job, index: usize, error: &WireError) {
        let Some(slot) = self.lease_of(&job.ask.session) else { return };
        let Some(request) = job.ask.steps.as_slice().get(index) else { return };
        let explicit = |reference| match reference {
            subvol_protocol::request::InodeRef::Explicit(inode) => Some(inode),
            subvol_protocol::request::InodeRef::FromStep(_) => None,
        };
        let inode = match (request, error.code) {
            (FileRequest::Lookup { parent, .. }, ErrorCode::NotFound) => explicit(*parent),
            (FileRequest::GetXattr { inode, .. }, ErrorCode::XattrNotFound) => explicit(*inode),
            _ => None,
        };
        if let Some(inode) = inode {
            self.leases.grant(slot, inode);
        }
    }

    fn grant(&mut self, slot: Slot, run: &Run<'_>, index: usize, response: &FileResponse) {
        use FileRequest as R;
        let Some(request) = run.ask.steps.as_slice().get(index) else { return };
        let of = |reference| run.inode(reference).ok();
        let leased = match request {
            R::Lookup { parent, .. } | R::Link { parent, .. } => of(*parent),
            R::Create(Create { parent, .. }) | R::CreateMasked { create: Create { parent, .. }, .. } => {
                of(*parent)
            }
            R::ReadDirectory { inode, .. }
            | R::ListDirectory { inode, .. }
            | R::GetXattr { inode, .. }
            | R::ListXattrs { inode }
            | R::ReadLink { inode } => of(*inode),
            R::GetAttributes { file }
            | R::Read { file, .. }
            | R::Seek { file, .. }
            | R::Write { file, .. }
            | R::WriteUnprivileged { file, .. } => run.file(*file).ok().map(|(inode, _)| inode),
            R::SetAttributes(change) => run.file(change.file).ok().map(|(inode, _)| inode),
            _ => None,
        };
        if let Some(inode) = leased {
            self.leases.grant(slot, inode);
        }
        if let R::Rename { parent, new_parent, .. } = request {
            // The names that its kernel moved are kept as they are.
            for inode in [*parent, *new_parent].into_iter().filter_map(of) {
                self.leases.grant(slot, inode);
            }
        }
        match response {
            FileResponse::Entry { attributes, .. }
            | FileResponse::Created { attributes, .. }
            | FileResponse::Opened { attributes, .. } => self.learn(slot, attributes.inode),
            FileResponse::Path { found } => {
                found.iter().for_each(|attributes| self.learn(slot, attributes.inode));
            }
            FileResponse::Directory { entries, .. } | FileResponse::Listed { entries, .. } => {
                for entry in entries.iter().filter(|entry| entry.attributes.is_some()) {
                    self.learn(slot, entry.inode);
                }
            }
            _ => {}
        }
    }

    /// The client's kernel knows an inode now: it stays, like one that is open.
    fn learn(&mut self, slot: Slot, inode: InodeNumber) {
        if self.leases.learn(slot, inode) && self.subvolume.open_inode(inode).is_err() {
            // It went between the answer and here; nothing can be kept of it.
            self.leases.forget(slot, inode);
        }
    }

    pub(super) fn begin_leases(&mut self, run: &Run<'_>) -> Step {
        let session = &run.ask.session;
        let options = &self.shared.options;
        let refused = FileResponse::LeasesBegun {
            granted: false,
            recall_milliseconds: options.recall_time.as_millis() as u32,
            silence_milliseconds: options.lease_silence.as_millis() as u32,
            resumed: false,
        };
        let (Some(&id), None, false) =
            (session.client_id.get(), session.lease.get(), session.ended.load(Ordering::Relaxed))
        else {
            return Err(ErrorCode::OutOfOrder.into());
        };
        let Some((slot, resumed)) = self.leases.begin(id) else { return Ok(refused) };
        // It dropped what it had before it connected.
        let freed = self.leases.release(slot);
        if self.lease_clients.len() <= usize::from(slot) {
            self.lease_clients.resize_with(usize::from(slot) + 1, LeaseClient::default);
        }
        let client = &mut self.lease_clients[usize::from(slot)];
        client.incarnation += 1;
        let before = client.session.replace(Arc::clone(session));
        if let Some(before) = before {
            // Its end has not been noticed yet, and will not be looked at.
            before.fence();
            let waiting = self.locks.stop_waiting(slot);
            waiting.into_iter().for_each(|token| self.fail_parked(token, ErrorCode::Interrupted.into()));
        }
        let _ = session.lease.set(slot);
        freed.into_iter().for_each(|token| self.run_again(token));
        let FileResponse::LeasesBegun { recall_milliseconds, silence_milliseconds, .. } = refused else {
            return Ok(refused);
        };
        Ok(FileResponse::LeasesBegun { granted: true, recall_milliseconds, silence_milliseconds, resumed })
    }

    /// The slot of a session, while it is its own: a job that waited may outlive its session, and must not use what is another's now.
    pub(super) fn lease_of(&self, session: &Session) -> Option<Slot> {
        let &slot = session.lease.get()?;
        let client = self.lease_clients.get(usize::from(slot))?;
        client.session.as_ref().is_some_and(|current| current.id == session.id).then_some(slot)
    }

    /// The slot of a session with leases.
    pub(super) fn slot(&self, run: &Run<'_>) -> Result<Slot, WireError> {
        self.lease_of(&run.ask.session).ok_or_else(|| ErrorCode::OutOfOrder.into())
    }

    pub(super) fn reclaim_inodes(&mut self, run: &Run<'_>, inodes: &[u64]) -> Step {
        let slot = self.slot(run)?;
        let mut lost = Vec::new();
        for &inode in inodes {
            match self.subvolume.attributes(inode) {
                // One that is being freed may be half gone: nobody can use it any more.
                Ok(item) if item.nlink > 0 || self.subvolume.is_open(inode) || self.grace.is_some() => {
                    self.learn(slot, inode);
                }
                Err(subvol_storage::error::EngineError::Missing(missing)) => {
                    return Err(subvol_storage::error::EngineError::Missing(missing).into());
                }
                _ => lost.push(inode),
            }
        }
        Ok(FileResponse::Reclaimed { lost })
    }

    pub(super) fn forget_inodes(&mut self, run: &Run<'_>, inodes: &[u64]) -> Step {
        let slot = self.slot(run)?;
        for &inode in inodes {
            if self.leases.forget(slot, inode) {
                self.close_inode(inode);
            }
        }
        Ok(FileResponse::Noted)
    }

    pub(super) fn acknowledge_recalls(&mut self, run: &Run<'_>, recalls: &[u64]) -> Step {
        let slot = self.slot(run)?;
        let tokens: Vec<u64> =
            recalls.iter().filter_map(|&number| self.leases.acknowledge(slot, number)).collect();
        tokens.into_iter().for_each(|token| self.run_again(token));
        Ok(FileResponse::Noted)
    }

    /// A connection with leases ended.
    pub(super) fn lease_session_ended(&mut self, session: &Arc<Session>) {
        let Some(&slot) = session.lease.get() else { return };
        let Some(client) = self.lease_clients.get_mut(usize::from(slot)) else { return };
        if client.session.as_ref().is_none_or(|current| current.id != session.id) {
            return;
        }
        client.session = None;
        client.incarnation += 1;
        let incarnation = client.incarnation;
        let waiting = self.locks.stop_waiting(slot);
        waiting.into_iter().for_each(|token| self.fail_parked(token, ErrorCode::Interrupted.into()));
        if session.said_goodbye.load(Ordering::Relaxed) {
            return self.remove_client(slot);
        }
        // Beside the server a connection ends only when its process closed it, having dropped all, or died. Elsewhere a broken
        // connection leaves a client that still answers from what it kept, until it notices.
        let pause = if session.is_beside || session.fenced.load(Ordering::Relaxed) {
            self.client_away(slot);
            let grace = self.shared.options.client_grace;
            if session.is_beside { grace.min(CLIENT_GRACE_BESIDE) } else { grace }
        } else {
            self.leases.become_state(slot, ClientState::Silent);
            self.shared.options.lease_silence * 8 / 5
        };
        runtime::later(&self.mailbox, pause, ClientTime { slot, incarnation });
    }

    fn client_away(&mut self, slot: Slot) {
        self.leases.become_state(slot, ClientState::Away);
        let freed = self.leases.release(slot);
        freed.into_iter().for_each(|token| self.run_again(token));
    }

    fn remove_client(&mut self, slot: Slot) {
        let freed = self.leases.release(slot);
        for inode in self.leases.remove(slot) {
            self.close_inode(inode);
        }
        let served = self.locks.remove(slot);
        freed.into_iter().for_each(|token| self.run_again(token));
        served.into_iter().for_each(|token| self.lock_granted(token));
    }

    /// Cuts off a client that does not acknowledge a recall.
    fn fence(&mut self, slot: Slot) {
        let session = self.lease_clients.get(usize::from(slot)).and_then(|client| client.session.clone());
        if let Some(session) = session {
            if session.outbox.is_local() {
                // A mount of this very process cannot connect anew. Its kernel is slow to drop something; it drops everything.
                tracing::warn!(session = session.id, "a local mount did not acknowledge a recall in time");
                session.outbox.push_unasked(&Push::Recall { recall: 0, targets: Vec::new() });
                session.outbox.wake();
                let freed = self.leases.release(slot);
                return freed.into_iter().for_each(|token| self.run_again(token));
            }
            tracing::warn!(
                session = session.id,
                "a client did not acknowledge a recall in time and is cut off"
            );
            session.fence();
            self.lease_session_ended(&session);
        }
    }

    /// Whether the job's answer has to wait for others; then it is parked when this returns.
    pub(super) fn waits_for_recalls(&self, job: &Job) -> Option<u64> {
        job.state.recalls.filter(|&group| self.leases.is_waiting(group))
    }

    /// Parks a job whose steps are all done until others have dropped what they changed.
    pub(super) fn wait_for_recalls(&mut self, mut job: Job, token: Option<u64>, group: u64) {
        if job.state.data.is_empty() {
            // What it wrote is in place. If two clients filled their permits with writes that wait for each other, the
            // acknowledgements behind them would never be read.
            job.ask.payload = bytes::Bytes::new();
            job.permit = None;
        }
        let token = self.park(job, token, Why::Recall);
        self.leases.wait(group, token);
    }
}

/// What a step changed that others may keep.
fn changed(run: &Run<'_>, request: &FileRequest, response: &FileResponse) -> Targets {
    use FileRequest as R;
    let mut targets = Targets::new();
    let of = |reference| run.inode(reference).unwrap_or(0);
    let of_file = |reference| run.file(reference).map_or(0, |(inode, _)| inode);
    match (request, response) {
        (
            R::Create(create) | R::CreateMasked { create, .. },
            FileResponse::Created { attributes, created, .. },
        ) => {
            if *created {
                targets.push(named(of(create.parent), &create.name));
            } else if create.open.is_some_and(|flags| flags.contains(OpenFlags::TRUNCATE)) {
                targets.push(whole(attributes.inode));
            }
        }
        (R::Link { parent, name, .. }, FileResponse::Entry { attributes, .. }) => {
            targets.push(named(of(*parent), name));
            targets.push(whole(attributes.inode));
        }
        (
            R::Unlink { parent, name } | R::RemoveDirectory { parent, name },
            FileResponse::Removed { inode, .. },
        ) => {
            targets.push(named(of(*parent), name));
            targets.push(whole(*inode));
        }
        (
            R::Rename { parent, name, new_parent, new_name, .. },
            FileResponse::Renamed { inode, replaced, .. },
        ) => {
            targets.push(named(of(*parent), name));
            targets.push(named(of(*new_parent), new_name));
            targets.push(whole(*inode));
            targets.extend(replaced.map(whole));
        }
        (R::SetAttributes(change), _) => targets.push(whole(of_file(change.file))),
        (R::SetXattr { inode, .. } | R::RemoveXattr { inode, .. }, _) => targets.push(whole(of(*inode))),
        (
            R::Write { file, .. }
            | R::WriteUnprivileged { file, .. }
            | R::Allocate { file, .. }
            | R::PunchHole { file, .. }
            | R::ZeroRange { file, .. },
            _,
        ) => targets.push(whole(of_file(*file))),
        (R::Open { .. }, FileResponse::Opened { attributes, ticket: Some(_), .. }) => {
            targets.push(whole(attributes.inode));
        }
        _ => {}
    }
    targets
}

impl Handler<LookForLate> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, _: LookForLate, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.now = runtime::now();
        self.looking_for_late = false;
        let limit = self.shared.options.recall_time;
        let late = self.leases.overdue(
            self.shared.uptime_milliseconds(),
            limit.as_millis() as u64,
            ClientState::Live,
        );
        late.into_iter().for_each(|slot| self.fence(slot));
        if self.leases.has_outstanding() && !std::mem::replace(&mut self.looking_for_late, true) {
            runtime::later(&self.mailbox, limit / 4, LookForLate);
        }
        self.after_messages();
    }
}

impl Handler<ClientTime> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: ClientTime, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.now = runtime::now();
        let ClientTime { slot, incarnation } = message;
        let same =
            self.lease_clients.get(usize::from(slot)).is_some_and(|client| client.incarnation == incarnation);
        if same {
            match self.leases.state(slot) {
                Some(ClientState::Silent) => {
                    self.client_away(slot);
                    let grace = self.shared.options.client_grace;
                    runtime::later(&self.mailbox, grace, ClientTime { slot, incarnation });
                }
                Some(ClientState::Away) => self.remove_client(slot),
                Some(ClientState::Live) | None => {}
            }
        }
        self.after_messages();
    }
}
