//! The task of one connection: frames to requests, requests to where they are answered.
//!
//! A connection begins on the control loop. When it attaches it moves, with its socket and its unread bytes, to the thread
//! of its volume, so that a request and its reply never change threads. Invariants: every request gets one answer; what a
//! peer can make the server keep is bounded by the number of unanswered requests and by byte permits; when the task ends,
//! for whatever reason, the volume learns that the handles are gone ([`End`]).

use super::Session;
use super::outbox::Outbox;
use super::permits::{Budget, Permit};
use super::socket::Socket;
use super::stream::{Event, Stream};
use crate::limits::{FREE_BYTES, HANDSHAKE_TIME, SHUTDOWN_GRACE};
use crate::metrics::count;
use crate::options::CommittedCheck;
use crate::runtime;
use crate::server::Shared;
use crate::subvolume::job::{Ask, Job, Progress, Steps};
use crate::subvolume::{AttachSession, Requests, SessionEnded};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use subvol_protocol::attributes::Lineage;
use subvol_protocol::codec;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::frame::Frame;
use subvol_protocol::limits::MAX_IN_FLIGHT;
use subvol_protocol::name::Text;
use subvol_protocol::request::{AdminRequest, FileRef, FileRequest, HandleRef, Request, RequestEnvelope};
use subvol_protocol::response::{FileResponse, Push, Response};
use tokio::time::Instant;

/// What follows a request.
pub(super) enum Flow {
    /// The next one.
    Continue,
    /// The connection moves to its volume, which answers the attach request.
    Move {
        /// The attach request.
        request_id: u64,
    },
    /// The connection ends after what was said.
    End,
}

/// See the module.
pub struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) session: Arc<Session>,
    pub(super) stream: Stream,
    pub(super) peer: Option<(u32, u32)>,
    pub(super) greeted: bool,
    pub(super) refusals: u32,
    end: End,
}

/// Cleans up when the connection's task ends or is dropped.
struct End {
    shared: Arc<Shared>,
    session: Arc<Session>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.session.outbox.close();
        self.shared.sessions.lock().remove(&self.session.id);
        self.shared.counters.sessions.fetch_sub(1, Ordering::AcqRel);
        if let Some(attached) = self.session.attached.get() {
            let session = Arc::clone(&self.session);
            attached.attachment.volume().mailbox.send(SessionEnded { session });
        }
    }
}

/// Serves a new connection on this thread. The caller has counted it.
pub fn serve(shared: &Arc<Shared>, socket: Socket) {
    let peer = socket.peer();
    let session = Session::new(shared, peer.is_some(), Outbox::default());
    let connection = Connection {
        shared: Arc::clone(shared),
        session: Arc::clone(&session),
        stream: Stream::new(socket, Arc::clone(&session)),
        peer,
        greeted: false,
        refusals: 0,
        end: End { shared: Arc::clone(shared), session },
    };
    runtime::spawn(connection.run(Vec::new()));
}

impl Connection {
    async fn run(mut self, waiting: Vec<Frame>) {
        let deadline = Instant::now() + HANDSHAKE_TIME;
        let mut frames = waiting;
        loop {
            match self.frames(std::mem::take(&mut frames)).await {
                (Flow::Continue, _) => {}
                (Flow::Move { request_id }, rest) => return self.move_to_volume(request_id, rest),
                (Flow::End, _) => return self.stream.last_words().await,
            }
            let event = if self.session.identity.get().is_none() {
                match tokio::time::timeout_at(deadline, self.stream.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.about_connection(&WireError::new(
                            ErrorCode::NotAuthenticated,
                            "authentication took too long",
                        ));
                        return self.stream.last_words().await;
                    }
                }
            } else {
                self.stream.next().await
            };
            match event {
                Event::Frames(new) => frames = new,
                Event::Closed | Event::Drained => return,
                Event::Broken(error) => {
                    tracing::debug!(session = self.session.id, %error, "a connection's bytes are no frames");
                    self.about_connection(&error.into());
                    return self.stream.last_words().await;
                }
                Event::ShutDown => {
                    let push = Push::Shutdown {
                        reason: Text::new("the server stops"),
                        grace_milliseconds: SHUTDOWN_GRACE.as_millis() as u32,
                    };
                    self.session.outbox.push_unasked(&push);
                    self.stream.drain();
                }
            }
        }
    }

    fn about_connection(&self, error: &WireError) {
        self.session.outbox.push_answer(0, &Response::Error(error.clone()), &[], None);
    }

    /// Goes on where the volume lives.
    fn move_to_volume(self, request_id: u64, frames: Vec<Frame>) {
        let Some(attached) = self.session.attached.get() else { return };
        let arbiter = attached.attachment.volume().arbiter.clone();
        let mailbox = attached.attachment.volume().mailbox.clone();
        let Self { shared, session, stream, peer, greeted, refusals, end } = self;
        let Ok((socket, parts)) = stream.detach() else { return };
        arbiter.run(move || {
            let Ok(stream) = Stream::attach(socket, parts) else { return };
            mailbox.send(AttachSession { session: Arc::clone(&session), request_id });
            let connection = Self { shared, session, stream, peer, greeted, refusals, end };
            runtime::spawn(connection.run(frames));
        });
    }

    /// Takes requests out of frames. Returns what follows, and the frames behind an attach request.
    async fn frames(&mut self, frames: Vec<Frame>) -> (Flow, Vec<Frame>) {
        let mut jobs = Vec::with_capacity(frames.len());
        let mut frames = frames.into_iter();
        while let Some(frame) = frames.next() {
            let request_id = frame.header.request_id;
            if self.session.in_flight.fetch_add(1, Ordering::AcqRel) >= MAX_IN_FLIGHT {
                self.session.reply_error(request_id, ErrorCode::TooManyRequests);
                continue;
            }
            let envelope = match self.decode(&frame) {
                Ok(envelope) => envelope,
                Err(error) => {
                    self.session.reply_error(request_id, error);
                    continue;
                }
            };
            let steps = match envelope.request {
                Request::Session(request) => {
                    self.dispatch(&mut jobs);
                    match self.session_request(request_id, request).await {
                        Flow::Continue => continue,
                        flow => return (flow, frames.collect()),
                    }
                }
                Request::Admin(request) => {
                    self.administrate(request_id, request);
                    continue;
                }
                Request::File(request) => Steps::One(request),
                Request::Compound { steps } => Steps::Many(steps),
            };
            let Some(attached) = self.session.attached.get() else {
                self.session.reply_error(request_id, self.session.not_attached());
                continue;
            };
            if let Steps::One(request) = &steps
                && let Some(response) = self.answer_here(request)
            {
                self.session.reply_file(request_id, response);
                continue;
            }
            let bytes = bytes_moved(&steps, frame.payload.len());
            let mut permit = None;
            if bytes > FREE_BYTES {
                let budgets = [&self.session.budget, &attached.budget, &self.shared.budget].map(Arc::clone);
                match self.take_permit(&mut jobs, &budgets, bytes as u64).await {
                    Some(taken) => permit = Some(taken),
                    None => return (Flow::End, Vec::new()),
                }
            }
            let ask = Ask {
                session: Arc::clone(&self.session),
                request_id,
                operation: envelope.operation,
                steps,
                payload: frame.payload,
            };
            jobs.push(Job { ask, permit, state: Progress::default() });
        }
        self.dispatch(&mut jobs);
        (Flow::Continue, Vec::new())
    }

    fn decode(&self, frame: &Frame) -> Result<RequestEnvelope, WireError> {
        if frame.header.request_id == 0 {
            return Err(WireError::new(ErrorCode::BadFrame, "a request with id 0"));
        }
        let envelope: RequestEnvelope = codec::decode(frame)?;
        envelope.validate(frame.payload.len())?;
        if self.stream.is_draining() {
            return Err(ErrorCode::ShuttingDown.into());
        }
        Ok(envelope)
    }

    /// Requests before this one go on first: they hold the permits that this one may be waiting for.
    async fn take_permit(
        &mut self,
        jobs: &mut Vec<Job>,
        budgets: &[Arc<Budget>; 3],
        bytes: u64,
    ) -> Option<Permit> {
        if let Some(permit) = Permit::take(budgets, bytes, Waker::noop()) {
            return Some(permit);
        }
        self.dispatch(jobs);
        self.stream.permit(budgets, bytes).await
    }

    fn dispatch(&self, jobs: &mut Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        if let Some(attached) = self.session.attached.get() {
            let requests = Requests { session: Arc::clone(&self.session), jobs: std::mem::take(jobs) };
            attached.attachment.volume().mailbox.send(requests);
        }
    }

    fn administrate(&self, request_id: u64, request: AdminRequest) {
        let Some(identity) = self.session.identity.get().cloned() else {
            self.session.reply_error(request_id, ErrorCode::NotAuthenticated);
            return;
        };
        let shared = Arc::clone(&self.shared);
        let session = Arc::clone(&self.session);
        runtime::spawn(async move {
            match crate::tenants::handle(&shared, &identity, request).await {
                Ok(response) => session.reply(request_id, &Response::Admin(response)),
                Err(error) => session.reply_error(request_id, error),
            }
            session.outbox.wake();
        });
    }

    /// The fsync of a handle whose changes, and all acknowledged before, are durable: two atomics tell, no message.
    fn answer_here(&self, request: &FileRequest) -> Option<FileResponse> {
        let FileRequest::Fsync { file: FileRef::Handle(HandleRef::Explicit(number)), lineage, .. } = request
        else {
            return None;
        };
        if self.shared.options.bench.committed_check == CommittedCheck::AskActor {
            return None;
        }
        let volume = self.session.attached.get()?.attachment.volume();
        let store = &self.shared.store;
        let epoch = store.identity().epoch;
        // A point of another epoch may be lost, and a failed store promises nothing.
        if lineage.is_some_and(|known| known.epoch != epoch) || store.check_writable().is_err() {
            return None;
        }
        let durable = self.session.handles.with(*number, |handle| handle.ticket.is_durable(&volume.progress));
        if durable != Some(true) {
            return None;
        }
        count(&self.shared.counters.fsync_fast);
        let transid = match volume.gauge.transid.load(Ordering::Relaxed) {
            0 => store.running(),
            dirty => dirty,
        };
        let log_transid = volume.progress.committed();
        Some(FileResponse::Synced { durable: Lineage { epoch, transid, log_transid } })
    }
}

/// Bytes that a request may make the server hold: sent with it, or asked for.
fn bytes_moved(steps: &Steps, payload: usize) -> usize {
    let asked = steps.as_slice().iter().map(|step| match step {
        FileRequest::Read { length, .. } => *length as usize,
        _ => 0,
    });
    payload + asked.sum::<usize>()
}
