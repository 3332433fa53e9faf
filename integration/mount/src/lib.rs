//! A subvolume as a Linux file system.
//!
//! ```text
//!   kernel ── /dev/fuse ── kernel::device ── front (one event loop) ── Backend ── remote: client library ── server
//!                               ▲                   │                      └───── local: the volume's actor, same thread
//!                               └── notifier ◄──────┘ recalls
//! ```
//!
//! - [`kernel`]: the FUSE protocol; [`front`]: what requests mean; [`backend`]: the way to the volume; [`remote`]: the one over a connection
//! - [`counters`]: live numbers

pub mod backend;
pub mod counters;
pub mod front;
pub mod kernel;
pub mod limits;
pub mod remote;
