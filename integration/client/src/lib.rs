//! Async client library of subvold: files and directories of a volume over one socket, on tokio.
//!
//! ```no_run
//! # async fn example() -> Result<(), subvol_client::ClientError> {
//! use subvol_client::{Client, OpenOptions};
//!
//! let client = Client::builder_from_environment()?.connect().await?;
//! let volume = client.open_subvolume("build").await?;
//! volume.mkdir_all("logs/today").await?;
//! let file = volume.open("logs/today/run.txt", OpenOptions::new().write(true).create(true)).await?;
//! file.write_at(0, b"started\n").await?;
//! file.sync().await?;
//! file.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! What the library promises:
//! - **Pipelining.** Any number of futures may use one [`Volume`] or [`File`] at once; their requests share the socket, batched into few
//!   writes, and are answered in any order. How many are unanswered is bounded by the server's limit; more wait their turn.
//! - **Reconnect, exactly once.** When the connection breaks, the library connects again (bounded, jittered), reopens the handles and sends
//!   what was unanswered again. A changing request carries an operation id, so it takes effect once.
//! - **No false success.** Each handle remembers the point of history of its changes that no fsync has covered. If a restarted server has
//!   lost them, the next [`File::sync`] or [`File::close`] fails once with `StaleLineage`; see [`ClientError::is_lost_changes`].
//! - **No hanging.** Every call ends within [`Timeouts::request`], with a value or with an error that says what to do next. Waits for locks
//!   and clients that asked for it ([`ClientBuilder::hard`]) are the exception.
//!
//! - **Leases.** With [`ClientBuilder::leases`], what the server recalls and what becomes of the connection is told by
//!   [`Volume::lease_events`], in the order of the answers; after a loss nothing is asked before what was kept is dropped.
//!
//! Dropping a future gives up its answer: a change may have been done or not. A dropped [`File`] is closed in the background; only
//! [`File::close`] tells of lost writes.
//!
//! Layers, bottom up: `wire` (a socket that carries frames), `channel` (requests, answers, handles and lineage over changing
//! connections), [`InodeApi`] (one method per request), [`Volume`] and [`File`] (paths and bytes), [`Admin`].

#![warn(clippy::indexing_slicing)]

mod admin;
mod channel;
mod client;
mod coherence;
mod config;
mod directory;
mod discover;
mod error;
mod file;
mod inode;
mod limits;
mod open;
mod path;
mod reconnect;
mod remove;
mod volume;
mod wire;

#[cfg(test)]
mod tests;

pub use subvol_protocol as protocol;
pub use subvol_protocol::address::{Address, Endpoint};
pub use subvol_protocol::attributes::{
    Attributes, DirectoryEntry, FileKind, Lineage, SetTime, Ticket, Timestamp, VolumeStatistics,
};
pub use subvol_protocol::error::{ErrorCode, WireError};
pub use subvol_protocol::limits::UNLIMITED;
pub use subvol_protocol::name::Label;
pub use subvol_protocol::request::{NewKind, OpenFlags, RenameMode, VolumeRef, XattrMode};
pub use subvol_protocol::response::{StatusReport, StepResult, TenantSummary, VolumeStatus, VolumeSummary};
pub use subvol_protocol::token::Token;

pub use admin::{Admin, Limits, NewTenant};
pub use channel::{LeaseEvent, LeaseEvents};
pub use client::Client;
pub use coherence::ListPage;
pub use config::{ClientBuilder, Retries, Timeouts};
pub use directory::Entries;
pub use discover::{Discovered, discover, token_beside};
pub use error::{ClientError, Result};
pub use file::File;
pub use inode::{AttributeChange, CreateOutcome, InodeApi, ReadPage};
pub use open::OpenOptions;
pub use reconnect::LeaseTerms;
pub use volume::{Step, Volume};
