//! Answers to session requests.

use bincode::{Decode, Encode};

use crate::attributes::{Lineage, VolumeStatistics};
use crate::limits::ServerLimits;
use crate::name::Label;
use crate::request::Features;

/// Answer to a session request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum SessionResponse {
    /// To `Hello`.
    HelloOk {
        /// The version both sides use from now on.
        version: u16,
        /// The features both sides may use.
        features: Features,
        /// Grows with every start of the server.
        server_epoch: u64,
        /// What the client may send.
        limits: ServerLimits,
    },
    /// To `Authenticate`.
    AuthOk {
        /// The tenant the credentials belong to; `None` for an administrator without one.
        tenant: Option<Label>,
        /// May administrate.
        admin: bool,
    },
    /// To `Attach`.
    Attached {
        /// The volume's number, never reused.
        subvolume: u64,
        /// The inode of its root directory.
        root: u64,
        /// The point of its history at which the attachment begins; its epoch is the volume's.
        lineage: Lineage,
        /// No change is possible: asked for, or the store is read-only.
        read_only: bool,
        /// Usage and limits.
        statistics: VolumeStatistics,
    },
    /// To `Ping`.
    Pong,
    /// To `Goodbye`; the server closes the connection behind it.
    Farewell,
}
