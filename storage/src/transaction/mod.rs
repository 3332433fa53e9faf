//! Commits: making the frozen state of all dirty subvolumes durable together.

pub mod commit;
pub mod metrics;
pub mod nodes;
pub mod state;
