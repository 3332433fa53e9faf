//! A volume used inside the server's own process: a session without a socket.
//!
//! Requests go to the volume's actor as they are, replies come back as they are; nothing is encoded. Whoever uses it lives on the actor's
//! own thread ([`LocalVolume::arbiter`]), so a request and its reply never change threads. It is a lease client like others.

use crate::runtime::Arbiter;
use crate::server::{ServerHandle, Shared};
use crate::session::outbox::Outbox;
use crate::session::{Attached, Session};
use crate::subvolume::job::{Ask, Job, Progress, Steps};
use crate::subvolume::{Requests, SessionEnded};
use crate::tenants::{DEFAULT_TENANT, Identity};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::name::Label;
use subvol_protocol::request::{Request, RequestEnvelope, VolumeRef};

pub use crate::session::outbox::LocalReply;

/// See the module. Dropping it ends the session.
pub struct LocalVolume {
    session: Arc<Session>,
}

impl ServerHandle {
    /// Uses a volume from inside: `VOLUME` of the default tenant, or `TENANT/VOLUME`.
    ///
    /// # Errors
    /// `UnknownTenant`, `UnknownVolume`, `InvalidName`, `Busy`.
    pub fn attach_local(&self, name: &str, read_only: bool) -> Result<LocalVolume, WireError> {
        let shared = self.shared();
        let (tenant, volume) = name.split_once('/').unwrap_or((DEFAULT_TENANT, name));
        let label = |text: &str| Label::new(text).map_err(WireError::from);
        let identity = Identity { tenant: None, admin: true, owner: (0, 0) };
        let (tenant, _) = shared.tenants.meant(&identity, Some(&label(tenant)?))?;
        let id = shared.tenants.volume(tenant, &VolumeRef::Name(label(volume)?))?;
        LocalVolume::attach(shared, id, tenant, read_only)
    }
}

impl LocalVolume {
    fn attach(shared: &Arc<Shared>, id: u64, tenant: u64, read_only: bool) -> Result<Self, WireError> {
        let attachment =
            shared.registry.attach(shared, id).map_err(|_| WireError::from(ErrorCode::UnknownVolume))?;
        let session = Session::new(shared, true, Outbox::local());
        // It lives and ends with the server; nobody has to wait for it.
        shared.sessions.lock().remove(&session.id);
        let mut client = [0; 16];
        getrandom::fill(&mut client).map_err(|_| WireError::from(ErrorCode::Internal))?;
        let _ = session.client_id.set(client);
        let budget = shared.tenants.budget(tenant);
        let read_only = read_only || shared.store.failure().is_some();
        let _ = session.attached.set(Attached { attachment, read_only, budget });
        Ok(Self { session })
    }

    fn attached(&self) -> &Attached {
        self.session.attached.get().expect("set when it was made")
    }

    /// The thread of the volume's actor.
    pub fn arbiter(&self) -> &Arbiter {
        &self.attached().attachment.volume().arbiter
    }

    /// Sends requests: each with its number and the bytes of a write. Each gets one answer.
    pub fn submit(&self, requests: Vec<(u64, Request, Bytes)>) {
        let mut jobs = Vec::with_capacity(requests.len());
        for (request_id, request, payload) in requests {
            self.session.in_flight.fetch_add(1, Ordering::AcqRel);
            let envelope = RequestEnvelope::from(request);
            if let Err(error) = envelope.validate(payload.len()) {
                self.session.reply_error(request_id, error);
                continue;
            }
            let steps = match envelope.request {
                Request::File(request) => Steps::One(request),
                Request::Compound { steps } => Steps::Many(steps),
                Request::Session(_) | Request::Admin(_) => {
                    self.session.reply_error(request_id, ErrorCode::OutOfOrder);
                    continue;
                }
            };
            let session = Arc::clone(&self.session);
            let ask = Ask { session, request_id, operation: None, steps, payload };
            jobs.push(Job { ask, permit: None, state: Progress::default() });
        }
        if jobs.is_empty() {
            self.session.outbox.wake();
        } else {
            let requests = Requests { session: Arc::clone(&self.session), jobs };
            self.attached().attachment.volume().mailbox.send(requests);
        }
    }

    /// Takes answers and what else the server says, or has `waker` woken when there is something.
    pub fn take(&self, waker: &Waker) -> Option<Vec<LocalReply>> {
        self.session.outbox.take_local(waker)
    }

    /// Whether nothing will be answered any more.
    pub fn is_closed(&self) -> bool {
        self.session.ended.load(Ordering::Acquire) || self.session.fenced.load(Ordering::Acquire)
    }

    /// Ends the session: inodes and locks are given back.
    pub fn close(&self) {
        if !self.session.said_goodbye.swap(true, Ordering::AcqRel) {
            let session = Arc::clone(&self.session);
            self.attached().attachment.volume().mailbox.send(SessionEnded { session });
        }
    }
}

impl Drop for LocalVolume {
    fn drop(&mut self) {
        self.close();
    }
}
