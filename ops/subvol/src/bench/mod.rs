//! Measuring: the server over the client library, and the file system below it for comparison.
//!
//! Invariants: what a bench creates it removes, also when it fails, unless told to keep it; latencies are recorded in nanoseconds and
//! only inside the measured time; errors are never averaged away: they are counted, printed, and make the exit code 1.

pub mod dbench;
pub mod idle_volumes;
mod latency;
pub mod ops;
mod phase;
pub mod raw_device;
mod threads;
mod volumes;
