//! The obvious in-memory file system and the shared vocabulary of all tests.
//!
//! * [`operation`]: one test operation, by path or by handle name;
//! * [`filesystem`]: [`Model`], what every operation must do, with exact errors;
//! * [`snapshot`]: [`Tree`], a comparable image of a namespace;
//! * [`durability`]: which images are allowed after a crash (promises S1 to S3);
//! * [`script`], [`cases`]: the notation of crash cases and the table of known ones;
//! * [`enumerate`]: bounded exhaustive programs; `strategy`: random ones (feature `proptest`).
//!
//! The crate depends on nothing else of the project, so a fault of the engine cannot hide in both sides of a
//! comparison. It prefers plain code over speed.

pub mod cases;
pub mod content;
pub mod durability;
pub mod enumerate;
pub mod error;
pub mod filesystem;
mod model;
pub mod operation;
pub mod pattern;
pub mod ranges;
pub mod script;
pub mod snapshot;
#[cfg(feature = "proptest")]
pub mod strategy;
pub mod time;

pub use content::Content;
pub use durability::{DurabilityOracle, Promise, Violation};
pub use error::ModelError;
pub use filesystem::{Limits, Model, Usage};
pub use operation::{Op, RenameMode, SpecialKind, XattrMode};
pub use snapshot::{Compare, Kind, Node, Tree};
pub use time::Time;

/// Unit of allocation in bytes.
pub const BLOCK: u64 = 4096;
