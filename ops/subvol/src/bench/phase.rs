//! Warm-up, measurement, end: one clock for all clients of a bench.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::sync::Semaphore;

/// What the clients are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Getting ready, or working without being measured.
    WarmUp,
    /// Being measured.
    Measured,
    /// Finishing.
    Over,
}

/// The clock.
#[derive(Debug)]
pub struct Clock {
    phase: AtomicU8,
    ready: Semaphore,
    go: Semaphore,
}

impl Clock {
    pub fn new() -> Self {
        Self { phase: AtomicU8::new(Phase::WarmUp as u8), ready: Semaphore::new(0), go: Semaphore::new(0) }
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::WarmUp,
            1 => Phase::Measured,
            _ => Phase::Over,
        }
    }

    /// A client is ready, and waits until all are. False if the run is off.
    pub async fn start(&self) -> bool {
        self.ready.add_permits(1);
        self.go.acquire().await.is_ok_and(|permit| {
            permit.forget();
            true
        })
    }

    /// A client failed before it was ready: nobody starts.
    pub fn call_off(&self) {
        self.phase.store(Phase::Over as u8, Ordering::Release);
        self.ready.close();
        self.go.close();
    }

    /// Lets all clients start together, measures, and returns how long that was. Ends early once everybody has.
    pub async fn run(
        &self,
        clients: usize,
        warm_up: Duration,
        measured: Duration,
    ) -> anyhow::Result<Duration> {
        match self.ready.acquire_many(clients as u32).await {
            Ok(permits) => permits.forget(),
            Err(_) => bail!("a client could not get ready"),
        }
        self.go.add_permits(clients);
        tokio::time::sleep(warm_up).await;
        self.phase.store(Phase::Measured as u8, Ordering::Release);
        let start = Instant::now();
        tokio::time::sleep(measured).await;
        let took = start.elapsed();
        self.phase.store(Phase::Over as u8, Ordering::Release);
        Ok(took)
    }
}
