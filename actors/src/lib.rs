//! The actors of subvold: everything between a socket and the storage engine.
//!
//! ```text
//!  listener ─► session ══ moves to the volume's thread at Attach ══► SubvolumeRoot (owns the tree, the log, the numbers)
//!                │ fsync of a durable handle: two atomics                │ closed generations        │ frozen state
//!                │                                                       ▼                           ▼
//!                └◄────────────── replies ◄───────────────────── log writer (one thread)   transaction manager ─ committer
//! ```
//!
//! Reading order: [`server`], [`session`], [`subvolume`], [`log_writer`], [`transaction_manager`], [`tenants`]. All limits
//! are in [`limits`]; only [`runtime`] names the runtime.
//!
//! Invariants of the whole:
//! - one thread changes a subvolume, and a request for it never leaves that thread unless it has to wait for a device;
//! - nothing on an event loop waits for a device, a lock held during I/O, or another tenant;
//! - every queue is bounded by permits that travel with the request;
//! - a panic on any of these threads aborts the process, and a restart continues from the last durable state.

pub mod limits;
pub mod listener;
pub mod local;
pub mod log_writer;
pub mod metrics;
pub mod options;
pub mod registry;
pub mod runtime;
pub mod server;
pub mod session;
pub mod subvolume;
pub mod tenants;
pub mod transaction_manager;
pub mod waiter;
pub mod workers;

pub use local::{LocalReply, LocalVolume};
pub use options::{BenchOptions, CommittedCheck, PinPoint, ServerOptions};
pub use server::{Server, ServerHandle, ShutdownError, StartError, StopSignal};
