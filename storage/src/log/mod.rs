//! The log tree of each subvolume and the ring that all of them share.
//!
//! # Life of a generation
//!
//! ```text
//!            append                 close (fsync, backlog)          flush
//!   Open(T) ───────► Open(T) ──────────────────────────► Writing(T) ───────► Durable(T): committed >= T
//!      │                                                    ▲
//!      │ freeze of transaction N                            │ close
//!      └───────────────────────────► Kept(T) ───────────────┘
//!                                       │ N durable: its records are in the tree
//!                                       └───────────────► Covered(T): committed >= T
//! ```
//!
//! Invariants:
//! 1. Generations of a subvolume are numbered from 1 within a server epoch; 0 = none.
//! 2. All records of T precede all records of T + 1, in numbering and in the ring.
//! 3. `committed` never falls; it reaches T only when every record of every generation up to T is durable, in the ring
//!    behind a flush or in a tree behind a superblock.
//! 4. While a [`generation::LogPin`] is held the open generation neither closes nor freezes.
//! 5. Records stay until the commit that contains them is durable: a crash may fall back to the commit before it.
//! 6. A batch is acknowledged only when it and every extent it refers to are flushed; replay verifies the extents of
//!    batches that may not have been, and stops before the first one that is torn.

pub mod generation;
pub mod ledger;
pub mod record;
pub mod replay;
pub mod ring;
