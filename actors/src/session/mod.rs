//! Sessions: one per connection. What a session shares with the actors that answer it is in [`Session`]; the task that
//! reads and writes its socket is in [`connection`] and never shared.
//!
//! ```text
//!  socket ─ frames ─ decode, validate, permits ─► batch ─► SubvolumeRoot ─► Session::reply ─► outbox ─ one write ─ socket
//!                          └ fsync of a durable handle: answered here, no message
//! ```

pub mod connection;
pub mod handles;
mod handshake;
pub mod outbox;
pub mod permits;
pub mod socket;
mod stream;

use crate::limits::SESSION_BYTES_MAX;
use crate::registry::Attachment;
use crate::server::Shared;
use crate::tenants::Identity;
use handles::Handles;
use outbox::Outbox;
use permits::{Budget, Permit};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::response::{FileResponse, Response};
use subvol_storage::fs::read::ReadSegment;

/// What connection and actors share of a session.
pub struct Session {
    /// Number of the connection, for logs.
    pub id: u64,
    /// Replies.
    pub outbox: Outbox,
    /// Open handles.
    pub handles: Handles,
    /// Requests without an answer yet.
    pub in_flight: AtomicU32,
    /// Changing requests that wait inside the subvolume; only its actor looks.
    pub parked: AtomicU32,
    /// Who it says it is, over reconnects; set by `Hello`.
    pub client_id: OnceLock<[u8; 16]>,
    /// Its place among the clients with leases of its volume; set by `BeginLeases`.
    pub lease: OnceLock<u8>,
    /// Cut off: it did not drop what it was told to.
    pub fenced: AtomicBool,
    /// It ends because it wants to.
    pub said_goodbye: AtomicBool,
    /// The other end is a process of this machine: when it is gone, so is all it kept.
    pub is_beside: bool,
    /// The connection ended and its handles were closed; only the subvolume's actor looks.
    pub ended: AtomicBool,
    /// The server asked it to end.
    pub shutting_down: AtomicBool,
    /// Bytes under way.
    pub budget: Arc<Budget>,
    /// Who it is; set by `Authenticate`.
    pub identity: OnceLock<Identity>,
    /// Which volume; set by `Attach`.
    pub attached: OnceLock<Attached>,
}

/// What a session knows of its volume.
pub struct Attached {
    /// Keeps the volume loaded, and has what the session reads without asking.
    pub attachment: Attachment,
    /// No change is allowed.
    pub read_only: bool,
    /// Of the tenant.
    pub budget: Arc<Budget>,
}

impl Session {
    /// A session of a new connection.
    pub fn new(shared: &Shared, is_beside: bool, outbox: Outbox) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let session = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            outbox,
            client_id: OnceLock::new(),
            lease: OnceLock::new(),
            fenced: AtomicBool::new(false),
            said_goodbye: AtomicBool::new(false),
            is_beside,
            handles: Handles::default(),
            in_flight: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            shutting_down: AtomicBool::new(false),
            budget: Budget::new(SESSION_BYTES_MAX),
            identity: OnceLock::new(),
            attached: OnceLock::new(),
        });
        shared.sessions.lock().insert(session.id, Arc::clone(&session));
        session
    }

    /// Answers a request; [`Outbox::wake`] must follow.
    pub fn reply(&self, request_id: u64, response: &Response) {
        self.reply_with(request_id, response, &[], None);
    }

    /// Answers a request with the bytes of a read and gives its permit back once they are written.
    pub fn reply_with(
        &self,
        request_id: u64,
        response: &Response,
        payload: &[ReadSegment],
        permit: Option<Permit>,
    ) {
        self.outbox.push_answer(request_id, response, payload, permit);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// Answers a request with success.
    pub fn reply_file(&self, request_id: u64, response: FileResponse) {
        self.reply(request_id, &Response::File(response));
    }

    /// Answers a request with an error.
    pub fn reply_error(&self, request_id: u64, error: impl Into<WireError>) {
        self.reply(request_id, &Response::Error(error.into()));
    }

    /// May it change nothing?
    pub fn is_read_only(&self) -> bool {
        self.attached.get().is_some_and(|attached| attached.read_only)
    }

    /// Asks the connection to end after what it has under way.
    pub fn shut_down(&self) {
        self.shutting_down.store(true, Ordering::Release);
        self.outbox.wake();
    }

    /// Refuses everything from now on and ends the connection.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.shut_down();
    }

    /// The error for a request without a volume.
    pub(crate) fn not_attached(&self) -> WireError {
        if self.identity.get().is_some() { ErrorCode::NotAttached } else { ErrorCode::NotAuthenticated }
            .into()
    }
}
