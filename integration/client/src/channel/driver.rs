//! The driver: the one task of a channel. It has connections served (`service`) and replaces lost ones.
//!
//! Invariants: it connects only when somebody waits for something or keeps things under leases; attempts are bounded and count from the last answer, not from the
//! last connection (a server that greets and then breaks must not be tried for ever); it never holds the lock while it waits; it wakes
//! callers outside the lock. When it ends, by whatever way, everybody who waits is told.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep};

use super::Shared;
use super::service::{Ended, serve};
use super::state::Wakers;
use crate::error::ClientError;
use crate::limits::TICK;
use crate::reconnect::{establish, is_transient, random, wait_before};
use crate::wire::Wire;

/// Attempts after which the wait before the next one grows no more.
const PATIENT: u32 = 16;

/// Tells everybody that there is no driver any more, also when the runtime drops it in the middle of a wait.
struct Farewell(Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let mut wakers = Wakers::new();
        self.0.with_state(|state| {
            state.connection_lost(&mut wakers);
            state.ended = true;
            wakers.extend(state.event_waker.take());
            state.fail_all(&ClientError::Closed, &mut wakers);
        });
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.0.permits.close();
        self.0.urgent.close();
        self.0.lock_waits.close();
        self.0.window.notify_waiters();
        self.0.finished.close();
    }
}

/// Runs until no user is left.
pub(super) async fn run(shared: Arc<Shared>, wire: Wire) {
    let farewell = Farewell(shared);
    let shared = &*farewell.0;
    let mut attempts = 0;
    let mut next = Some(wire);
    let mut cause = ClientError::Closed;
    loop {
        if let Some(wire) = next.take() {
            match serve(shared, wire).await {
                Ended::Finished => return,
                Ended::Lost { cause: why, answers } => {
                    tracing::debug!(server = %shared.settings.address, cause = %why, "connection lost");
                    if answers > 0 {
                        attempts = 0;
                    }
                    cause = why;
                }
            }
            let mut wakers = Wakers::new();
            let lost = shared.lost(attempts, &cause);
            shared.with_state(|state| {
                state.connection_lost(&mut wakers);
                state.fail_resent(&lost, &mut wakers);
            });
            wakers.into_iter().for_each(std::task::Waker::wake);
        }
        match wanted(shared).await {
            Wanted::Never => return,
            Wanted::Now => {}
            // Nobody waited for the last attempts, so they are not counted against who comes now.
            Wanted::Later => attempts = 0,
        }
        if attempts >= shared.settings.retries.attempts.max(1) {
            fail_all(shared, &shared.lost(attempts, &cause));
            // A subscriber goes on wanting a connection: the waits before the attempts must not start over for nobody's sake.
            attempts =
                if shared.with_state(|state| state.keeps_connection()) { attempts.min(PATIENT) } else { 0 };
            if attempts == 0 {
                continue;
            }
        }
        if attempts > 0 {
            let chance = random().map_or(u32::MAX, u32::from_le_bytes);
            let wait = wait_before(&shared.settings.retries, attempts, chance);
            if ticking(shared, sleep(wait)).await.is_none() {
                return;
            }
        }
        attempts = attempts.saturating_add(1);
        let known = shared.greeting();
        match ticking(shared, establish(&shared.settings, shared.client_id, Some(&known))).await {
            None => return,
            Some(Ok((wire, greeting))) => {
                tracing::debug!(server = %shared.settings.address, attempts, "connected again");
                let mut wakers = Wakers::new();
                shared.adopt(greeting, Some(&known), &mut wakers);
                wakers.into_iter().for_each(std::task::Waker::wake);
                next = Some(wire);
            }
            Some(Err(error)) if is_transient(&error) => cause = error,
            Some(Err(error)) => {
                let mut wakers = Wakers::new();
                shared.with_state(|state| state.refuse(&mut wakers));
                wakers.into_iter().for_each(std::task::Waker::wake);
                fail_all(shared, &error);
                attempts = 0;
            }
        }
    }
}

fn fail_all(shared: &Shared, error: &ClientError) {
    let mut wakers = Wakers::new();
    shared.with_state(|state| state.fail_all(error, &mut wakers));
    wakers.into_iter().for_each(std::task::Waker::wake);
}

/// Whether somebody needs a connection.
enum Wanted {
    Now,
    /// After a while of nobody.
    Later,
    /// Nobody is left.
    Never,
}

async fn wanted(shared: &Shared) -> Wanted {
    let mut waited = false;
    poll_fn(|context| {
        shared.with_state(|state| {
            if state.closed {
                return Poll::Ready(Wanted::Never);
            }
            if state.wants_connection() {
                return Poll::Ready(if waited { Wanted::Later } else { Wanted::Now });
            }
            waited = true;
            state.driver = Some(context.waker().clone());
            Poll::Pending
        })
    })
    .await
}

pub(super) fn ticker(shared: &Shared) -> Interval {
    let timeouts = &shared.settings.timeouts;
    // Often enough that a lease's silence is noticed when it is over, not a second later.
    let silence = shared
        .greeting()
        .leases
        .map_or(timeouts.silence, |leases| (leases.silence / 4).min(timeouts.silence));
    let period = (timeouts.request / 16).min(silence / 4).clamp(TICK.0, TICK.1);
    let mut ticker = interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}

/// Waits for something while the deadlines of waiting requests go on; `None` if nobody is left.
async fn ticking<F: Future>(shared: &Shared, future: F) -> Option<F::Output> {
    let mut ticker = ticker(shared);
    tokio::pin!(future);
    loop {
        tokio::select! {
            output = &mut future => return Some(output),
            _ = ticker.tick() => {
                if expire(shared, Instant::now()) {
                    return None;
                }
            }
        }
    }
}

/// Fails what has waited too long; returns whether the channel is closed.
fn expire(shared: &Shared, now: Instant) -> bool {
    let mut wakers = Wakers::new();
    let closed = shared.with_state(|state| {
        state.expire(now, shared.settings.timeouts.request, &mut wakers);
        state.closed
    });
    wakers.into_iter().for_each(std::task::Waker::wake);
    closed
}
