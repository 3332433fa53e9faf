//! The harness of the whole-product tests: a real server process on a folder of its own, real clients, a real command line.
//!
//! Invariants: every wait is bounded and says what it waited for; no process and no folder survives the test that made it; nothing here
//! knows the inside of the server: it is started, killed, spoken to over its sockets and judged by the model.
//!
//! Binaries: `SUBVOLD_BIN_DIR`, else what `target/release` or `target/debug` holds, else they are built once.

pub mod apply;
pub mod binaries;
pub mod image;
pub mod local_tree;
pub mod mount;
pub mod process;
pub mod program;
pub mod proxy;
pub mod random;
pub mod raw;
pub mod server;
pub mod tool;

pub use apply::Performer;
pub use image::image_of;
pub use program::next_operation;
pub use random::Random;
pub use server::{Server, Setup};
pub use tool::{Ended, Tool};

use std::time::{Duration, Instant};

/// The longest that anything in a test may take unless it says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The bounded form of a future: a hanging server is a failed test, not a hanging run.
///
/// # Panics
/// If it takes longer than [`PATIENCE`].
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    within(PATIENCE, what, future).await
}

/// As [`soon`] with a bound of its own.
///
/// # Panics
/// If it takes longer.
pub async fn within<F: Future>(bound: Duration, what: &str, future: F) -> F::Output {
    match tokio::time::timeout(bound, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not done after {bound:?}"),
    }
}

/// Asks again and again until the answer is yes.
///
/// # Panics
/// If it is not yes within [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A number from the environment, for the long runs.
#[must_use]
pub fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
