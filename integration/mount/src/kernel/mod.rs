//! The kernel's side: the FUSE protocol by hand, and nothing of what the requests mean.
//!
//! Why not a crate: the front end needs what the ones at hand do not offer together (reading on an event loop that is not theirs,
//! forgetting in batches, `TMPFILE`, the notification that makes all names stale), and the part of the protocol in use is small.
//!
//! - [`abi`]: numbers and structures; [`request`]: requests taken apart; [`reply`]: answers put together
//! - [`device`]: `/dev/fuse`; [`mounting`]: mounting and unmounting

pub mod abi;
pub mod device;
pub mod mounting;
pub mod reply;
pub mod request;
