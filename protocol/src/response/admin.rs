//! Answers to administration requests, and the status report.

use bincode::{Decode, Encode};

use crate::limits::MAX_REASON;
use crate::name::{Label, Text};
use crate::token::Token;

/// Answer to an administration request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum AdminResponse {
    /// Done and durable.
    Done,
    /// To `TenantAdd` and `TokenReissue`.
    TenantToken {
        /// The tenant's number.
        tenant: u64,
        /// The secret. The server keeps only its hash.
        token: Token,
    },
    /// To `TenantList`.
    Tenants {
        /// By name.
        tenants: Vec<TenantSummary>,
        /// There are more behind the last one.
        more: bool,
    },
    /// To `VolumeCreate`.
    VolumeCreated {
        /// The volume's number.
        subvolume: u64,
    },
    /// To `VolumeList`.
    Volumes {
        /// By name.
        volumes: Vec<VolumeSummary>,
        /// There are more behind the last one.
        more: bool,
    },
    /// To `Status`.
    Status(Box<StatusReport>),
    /// To `SyncStore`.
    StoreSynced {
        /// The transaction that is durable now.
        transid: u64,
    },
}

/// One tenant of a list.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TenantSummary {
    /// Name.
    pub name: Label,
    /// Number.
    pub tenant: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Bytes used by all volumes.
    pub used_bytes: u64,
    /// Limit in bytes.
    pub max_bytes: u64,
    /// Inodes of all volumes.
    pub used_inodes: u64,
    /// Limit in inodes.
    pub max_inodes: u64,
}

/// One volume of a list.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct VolumeSummary {
    /// The tenant it belongs to.
    pub tenant: Label,
    /// Name.
    pub name: Label,
    /// Number.
    pub subvolume: u64,
    /// Bytes used.
    pub used_bytes: u64,
    /// Limit in bytes.
    pub max_bytes: u64,
    /// Inodes.
    pub used_inodes: u64,
    /// Limit in inodes.
    pub max_inodes: u64,
    /// Connections attached now.
    pub attached: u32,
}

/// How the store and its volumes are doing.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StatusReport {
    /// The store; only for administrators, because it measures everybody.
    pub store: Option<StoreStatus>,
    /// The volumes asked about.
    pub volumes: Vec<VolumeStatus>,
}

/// Store-wide numbers. Counters run since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct StoreStatus {
    /// The server's epoch.
    pub server_epoch: u64,
    /// Milliseconds since the server started.
    pub uptime_milliseconds: u64,
    /// The store went read-only after a device error.
    pub read_only: bool,
    /// The running transaction.
    pub transid: u64,
    /// The newest transaction whose superblock is durable.
    pub durable_transid: u64,
    /// Bytes of the device that the store manages.
    pub total_bytes: u64,
    /// Bytes free for use now.
    pub free_bytes: u64,
    /// Bytes freed but not yet reusable: their transaction is not durable.
    pub pinned_bytes: u64,
    /// Bytes written by clients that are only in memory.
    pub dirty_bytes: u64,
    /// Bytes of log records that no commit covers yet.
    pub log_backlog_bytes: u64,
    /// Commits.
    pub commits: u64,
    /// Microseconds the last commit took.
    pub commit_last_microseconds: u64,
    /// Microseconds a commit took on average.
    pub commit_mean_microseconds: u64,
    /// Microseconds the longest commit took.
    pub commit_max_microseconds: u64,
    /// The newest unpin passes, oldest first; at most 256.
    pub unpins: Vec<UnpinSample>,
    /// How often an fsync had to wait for a commit, by reason; at most 256 reasons.
    pub fallbacks: Vec<(Text<MAX_REASON>, u64)>,
    /// Fsyncs answered by the session alone, because the log was already durable.
    pub fsync_fast_path: u64,
    /// Fsyncs that went to the volume.
    pub fsync_slow_path: u64,
    /// Batches of the log writer.
    pub log_batches: u64,
    /// Messages that sessions sent to volumes.
    pub actor_messages: u64,
    /// Open connections.
    pub sessions: u64,
    /// Bytes of memory the server uses, as the kernel counts them.
    pub memory_bytes: u64,
    /// Bytes of the block cache.
    pub cache_bytes: u64,
}

/// One unpin pass of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct UnpinSample {
    /// Ranges made reusable.
    pub ranges: u64,
    /// Microseconds it took.
    pub microseconds: u64,
}

/// One volume's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct VolumeStatus {
    /// What a list shows of it.
    pub summary: VolumeSummary,
    /// The volume's epoch.
    pub epoch: u64,
    /// The open log transaction.
    pub log_transid: u64,
    /// The newest durable log transaction.
    pub log_transid_committed: u64,
    /// Bytes of its log records that no commit covers yet.
    pub log_backlog_bytes: u64,
    /// Bytes written to it that are only in memory.
    pub dirty_bytes: u64,
    /// Bytes it freed that are not yet reusable.
    pub pinned_bytes: u64,
    /// Inodes without a name that still wait to be freed.
    pub orphans: u64,
    /// Operations it executed.
    pub operations: u64,
}
