//! [`Channel`]: requests and answers over one connection at a time, for any number of callers at once.
//!
//! Callers put requests into slots (`state`) and sleep; one task (`driver`, `service`) moves them over the socket and wakes the callers. There is no
//! task and no allocation per request. Handles (`handles`), unsynced history (`lineage`, `settle`) and operation ids (`window`) live here
//! because they outlast connections.

mod by_inode;
mod driver;
mod events;
mod handles;
mod lineage;
mod service;
mod settle;
mod state;
mod window;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use subvol_protocol::request::{FileRequest, Request, SessionRequest};
use subvol_protocol::response::{FileResponse, Response, SessionResponse};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

pub use self::events::{LeaseEvent, LeaseEvents};
#[cfg(test)]
pub(crate) use self::handles::handle_of;
pub(crate) use self::state::Reply;
use self::state::{NotTaken, Returned, State, Wakers, waits_for_lock};
use crate::config::Settings;
use crate::error::{ClientError, Result};
use crate::limits::{FOREVER, URGENT_AHEAD};
use crate::reconnect::{Greeting, establish, is_transient, random, wait_before};

/// What callers and driver share.
struct Shared {
    settings: Settings,
    client_id: [u8; 16],
    state: Mutex<State>,
    greeting: Mutex<Arc<Greeting>>,
    /// One for each request that callers may have under way.
    permits: Semaphore,
    /// One for each urgent request: those must not wait for others, which may all be waiting for them.
    urgent: Semaphore,
    /// One for each request that may wait for a lock: some of the turns are kept for those that give locks back.
    lock_waits: Semaphore,
    /// Notified when the window of operation ids has room again.
    window: Notify,
    /// Closed when the driver has ended.
    finished: Semaphore,
}

impl Shared {
    /// Locks the state; what became free is given back after the lock is released.
    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = work(&mut state);
        let Returned { permits, window } = std::mem::take(&mut state.returned);
        drop(state);
        if permits > 0 {
            self.permits.add_permits(permits);
        }
        if window {
            self.window.notify_waiters();
        }
        result
    }

    fn greeting(&self) -> Arc<Greeting> {
        Arc::clone(&self.greeting.lock())
    }

    /// Begins with a new connection; `known` is the greeting of the one before.
    fn adopt(&self, mut greeting: Greeting, known: Option<&Greeting>, wakers: &mut Wakers) {
        let recalls = std::mem::take(&mut greeting.recalls);
        let granted = greeting.leases.is_some_and(|leases| leases.granted);
        let limit = greeting.limits.max_in_flight;
        let window = greeting.limits.operation_window;
        let epoch = greeting.lineage.epoch;
        let server = greeting.server_epoch;
        *self.greeting.lock() = Arc::new(greeting);
        self.with_state(|state| {
            state.connected(limit, window, epoch);
            if let Some(known) = known {
                let restarted = epoch != known.lineage.epoch || server != known.server_epoch;
                let _ = state.event(LeaseEvent::Regained { granted, restarted }, wakers);
            }
            for (recall, targets) in recalls {
                let _ = state.event(LeaseEvent::Recall { recall, targets }, wakers);
            }
        });
    }

    fn lost(&self, attempts: u32, cause: &ClientError) -> ClientError {
        ClientError::Lost { server: self.settings.address.to_string(), attempts, cause: cause.to_string() }
    }

    fn wake_driver(&self) {
        let driver = self.state.lock().driver.take();
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

/// The users of a channel; the last one ends the driver.
struct Users(Arc<Shared>);

impl Drop for Users {
    fn drop(&mut self) {
        self.0.with_state(|state| state.closed = true);
        self.0.wake_driver();
    }
}

/// See the module. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Channel {
    users: Arc<Users>,
    /// Requests go ahead of all others, and fail with the connection.
    urgent: bool,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.shared().settings.address)
    }
}

impl Channel {
    fn shared(&self) -> &Shared {
        &self.users.0
    }

    /// Connects and starts the driver on the current runtime.
    pub async fn connect(settings: Settings) -> Result<Self> {
        let client_id = random()?;
        let retries = settings.retries;
        let mut attempt = 1;
        let (wire, greeting) = loop {
            match establish(&settings, client_id, None).await {
                Err(error) if is_transient(&error) && attempt < retries.first_connection => {
                    let chance = u32::from_le_bytes(random()?);
                    tokio::time::sleep(wait_before(&retries, attempt, chance)).await;
                    attempt += 1;
                }
                other => break other?,
            }
        };
        let permits = settings.max_in_flight.clamp(1, subvol_protocol::limits::MAX_IN_FLIGHT) as usize;
        let shared = Arc::new(Shared {
            client_id,
            state: Mutex::new(State::new(client_id, retries.attempts.max(2), settings.leases)),
            greeting: Mutex::new(Arc::new(greeting.clone())),
            permits: Semaphore::new(permits),
            urgent: Semaphore::new(URGENT_AHEAD),
            lock_waits: Semaphore::new((permits / 2).max(1)),
            window: Notify::new(),
            finished: Semaphore::new(0),
            settings,
        });
        shared.adopt(greeting, None, &mut Wakers::new());
        tokio::spawn(driver::run(Arc::clone(&shared), wire));
        Ok(Self { users: Arc::new(Users(shared)), urgent: false })
    }

    /// What the server told when it was last connected to.
    pub fn greeting(&self) -> Arc<Greeting> {
        self.shared().greeting()
    }

    /// Sends a request and waits for its answer; an error answer is an error.
    ///
    /// # Errors
    /// [`ClientError::Server`], [`ClientError::Timeout`], [`ClientError::Lost`], [`ClientError::Protocol`], [`ClientError::Closed`],
    /// [`ClientError::Argument`] for a session request or one that is too large.
    pub async fn call(&self, request: Request, payload: Bytes) -> Result<Reply> {
        if matches!(request, Request::Session(_)) {
            return Err(ClientError::Argument("the library itself speaks about the session".into()));
        }
        self.send(request, payload).await
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<()> {
        let reply = self.send(Request::Session(SessionRequest::Ping), Bytes::new()).await?;
        match reply.response {
            Response::Session(SessionResponse::Pong) => Ok(()),
            _ => Err(ClientError::unexpected("Ping")),
        }
    }

    async fn send(&self, request: Request, payload: Bytes) -> Result<Reply> {
        self.send_as(request, payload, self.urgent).await
    }

    /// `urgent`: before all others, also while they have to wait.
    async fn send_as(&self, mut request: Request, mut payload: Bytes, urgent: bool) -> Result<Reply> {
        let shared = self.shared();
        let waits = waits_for_lock(&request).is_some();
        let patience = if waits { FOREVER } else { shared.settings.timeouts.request.min(FOREVER) };
        let deadline = Instant::now() + patience;
        let timed_out = |request: &Request| ClientError::Timeout {
            operation: request.name(),
            after: patience,
            // It was never sent.
            changing: false,
        };
        let _lock_wait = if waits {
            Some(shared.lock_waits.acquire().await.map_err(|_| ClientError::Closed)?)
        } else {
            None
        };
        let permits = if urgent { &shared.urgent } else { &shared.permits };
        let permit = match permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => match timeout_at(deadline, permits.acquire()).await {
                Ok(permit) => permit.map_err(|_| ClientError::Closed)?,
                Err(_) => return Err(timed_out(&request)),
            },
        };
        let id = loop {
            // Before looking: room that appears between looking and waiting is not missed.
            let room = shared.window.notified();
            let mut driver = None;
            let submitted = shared.with_state(|state| {
                let submitted = state.submit(request, payload, deadline, urgent);
                driver = state.driver.take();
                submitted
            });
            if let Some(driver) = driver {
                driver.wake();
            }
            (request, payload) = match submitted {
                Ok(id) => break id,
                Err(NotTaken::Closed) => return Err(ClientError::Closed),
                Err(NotTaken::NotConnected) => return Err(ClientError::Interrupted),
                Err(NotTaken::WindowFull(back)) => *back,
            };
            if timeout_at(deadline, room).await.is_err() {
                return Err(timed_out(&request));
            }
        };
        let call = Call { shared, id: Some(id) };
        if urgent {
            let answer = call.await;
            drop(permit);
            return answer;
        }
        // It belongs to the slot now, and comes back when the slot is free.
        permit.forget();
        call.await
    }

    /// A file request.
    pub async fn file(&self, request: FileRequest) -> Result<FileResponse> {
        Ok(self.file_with_payload(request, Bytes::new()).await?.0)
    }

    /// A file request with bytes in either direction.
    pub async fn file_with_payload(
        &self,
        request: FileRequest,
        payload: Bytes,
    ) -> Result<(FileResponse, Bytes)> {
        let name = request.name();
        let reply = self.send(Request::File(request), payload).await?;
        match reply.response {
            Response::File(answer) => Ok((answer, reply.payload)),
            _ => Err(ClientError::unexpected(name)),
        }
    }

    /// The same channel, for requests ahead of all others.
    pub fn urgent(&self) -> Self {
        Self { urgent: true, ..self.clone() }
    }

    /// Tells the server something without waiting for the answer.
    pub fn tell(&self, request: FileRequest) {
        self.shared().with_state(|state| state.tell_in_background(request));
        self.shared().wake_driver();
    }

    /// Closes a handle without waiting.
    pub fn close_in_background(&self, handle: u64) {
        self.shared().with_state(|state| state.close_in_background(handle));
        self.shared().wake_driver();
    }

    /// Says goodbye and waits until it is said. Requests under way are finished if that takes no longer than a moment.
    pub async fn close(&self) {
        self.shared().with_state(|state| state.closed = true);
        self.shared().wake_driver();
        // Never gives a permit: it ends by being closed.
        let _ = self.shared().finished.acquire().await;
    }

    /// Slots in use, and permits left.
    #[cfg(test)]
    pub(crate) fn usage(&self) -> (usize, usize) {
        (self.shared().with_state(|state| state.occupied()), self.shared().permits.available_permits())
    }

    /// Handles that are open.
    #[cfg(test)]
    pub(crate) fn open_handles(&self) -> usize {
        self.shared().with_state(|state| state.handles.len())
    }
}

/// Waits for the answer in a slot.
struct Call<'a> {
    shared: &'a Shared,
    /// `None` once the answer was taken.
    id: Option<u64>,
}

impl Future for Call<'_> {
    type Output = Result<Reply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(id) = self.id else { return Poll::Ready(Err(ClientError::Closed)) };
        match self.shared.with_state(|state| state.poll(id, context.waker())) {
            Some(result) => {
                self.id = None;
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.with_state(|state| state.abandon(id));
            // The answer may have opened a handle that is to be closed now.
            self.shared.wake_driver();
        }
    }
}
