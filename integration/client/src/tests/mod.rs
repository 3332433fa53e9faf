//! The library against a fake server in the same process, over a real socket.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test that panics has failed")]

mod fake;
mod hostile;
mod leases;
mod lineage;
mod locks;
mod paths;
mod pipelining;
mod reconnect;
mod slots;

use std::future::Future;
use std::time::Duration;

/// Nothing here may take long: a hanging client is a failure, not a hanging test run.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("the client hangs")
}

/// Waits until something holds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never: {what}");
}
