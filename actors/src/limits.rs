//! Every limit of the server in one place, asserted against each other at compile time.
//!
//! Limits of the wire are in `subvol_protocol::limits`, those of the engine in `subvol_storage::limits`. Here is what one
//! client, one tenant or the whole server may make this process keep in memory or wait for.

use std::time::Duration;
use subvol_protocol::limits::{MAX_BODY, MAX_IN_FLIGHT, MAX_PAYLOAD, OPERATION_WINDOW, ServerLimits};
use subvol_storage::limits::{LEDGER_ENTRIES_PER_CLIENT, LOG_BACKLOG_BYTES, LOG_BATCH_BYTES_MAX};

/// Connections at a time, unless configured otherwise. One more gets a clear answer and is closed.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Connections that the kernel keeps waiting for us.
pub const BACKLOG: u32 = 1024;
/// From the connection to a successful authentication.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// A refused credential is answered after this, so that guessing is slow.
pub const REFUSAL_DELAY: Duration = Duration::from_millis(300);
/// Refused credentials after which a connection is closed.
pub const REFUSALS_MAX: u32 = 3;
/// A peer that takes no byte of what it asked for during this time is gone.
pub const STALLED_PEER_TIME: Duration = Duration::from_secs(60);

/// A peer that has replies to read while others wait for the bytes they hold must take [`SLOW_PEER_BYTES`] during this time,
/// or it is dropped: a machine that hangs must not stop its tenant's others for a minute.
pub const SLOW_PEER_TIME: Duration = Duration::from_secs(2);
/// See [`SLOW_PEER_TIME`].
pub const SLOW_PEER_BYTES: usize = 128 << 10;

/// Bytes of replies that may wait for a slow reader before its requests are no longer read.
pub const OUTBOX_BYTES_MAX: usize = 2 << 20;
/// Bytes of payload (asked for or sent) under way of one connection.
pub const SESSION_BYTES_MAX: u64 = 8 << 20;
/// The same of all connections of one tenant.
pub const TENANT_BYTES_MAX: u64 = 64 << 20;
/// The same of the whole server.
pub const SERVER_BYTES_MAX: u64 = 256 << 20;
/// What a tenant may have under way even if others fill the server's bytes.
pub const TENANT_BYTES_GUARANTEED: u64 = 4 << 20;
/// Operations that move at most so many bytes need no byte permit: their number is bounded already.
pub const FREE_BYTES: usize = 4096;
/// Requests taken out of one receive buffer before the batch goes to the subvolume.
pub const REQUESTS_PER_BATCH: usize = 64;
/// Bytes read from a socket at a time while no large frame is expected.
pub const READ_CHUNK: usize = 32 * 1024;
/// Reads of one connection in a row before other connections of the thread get their turn.
pub const READS_IN_A_ROW: usize = 16;
/// Volumes of one tenant: an empty one costs space and memory that no quota counts.
pub const VOLUMES_PER_TENANT_MAX: usize = 20_000;
/// Free blocks that a new volume must find: its own first nodes and those of the root tree come without a reservation.
pub const VOLUME_BLOCKS_MIN: u64 = 64;
/// Open handles of one connection.
pub const HANDLES_MAX: usize = 65_536;

/// Dirty data and data in flight of all subvolumes together; a subvolume above its fair share then waits with writes.
pub const DIRTY_BYTES_MAX: u64 = 256 << 20;
/// The least share of that which a subvolume always has.
pub const DIRTY_SHARE_MIN: u64 = 16 << 20;
/// File data turned into extents since the last commit that makes a commit due.
pub const COMMIT_BYTES: u64 = 512 << 20;
/// Steps of making pages into extents between two messages.
pub const WRITEBACK_STEPS: usize = 2;
/// Messages between which a freeze is prepared before it does all the rest at once.
pub const FREEZE_ROUNDS_MAX: u32 = 64;
/// Dirty data that a freeze turns into extents without a pause.
pub const FREEZE_AT_ONCE_BYTES: u64 = 4 << 20;
/// Log records on their way to the ring above which background hand-over pauses.
pub const LOG_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Forced commits before an operation is answered with `NoSpace`.
pub const NO_SPACE_COMMITS: u32 = 2;
/// Runs of one operation after fetches; more means that blocks vanish as fast as they are read.
pub const FETCHES_MAX: u32 = 4096;
/// Handles of a connection that ended closed in one step.
pub const CLOSES_PER_MESSAGE: usize = 256;
/// Names removed in one step of freeing a removed volume.
pub const REMOVAL_ENTRIES_PER_STEP: usize = 64;
/// Pause between two steps of freeing in the background, so that clients always come first.
pub const BACKGROUND_PAUSE: Duration = Duration::from_millis(1);
/// Orphans listed at a time.
pub const ORPHANS_PER_LIST: usize = 256;

/// Time between two commits of a store that changes.
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// After a start, files without names stay so long: their clients may reconnect and open them again.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(60);
/// A client has this long to acknowledge a recall; then it is cut off.
pub const RECALL_TIME: Duration = Duration::from_secs(10);
/// A client that hears nothing from the server for so long must take its leases for lost.
pub const LEASE_SILENCE: Duration = Duration::from_secs(5);
/// Inodes and locks of a client whose connection ended without a goodbye are kept for so long.
pub const CLIENT_GRACE: Duration = Duration::from_secs(30);
/// The same of a client on this machine: its process is most likely gone, and if not, it is back at once.
pub const CLIENT_GRACE_BESIDE: Duration = Duration::from_secs(3);
/// After a start, only clients that had locks before get them for so long.
pub const LOCK_GRACE: Duration = Duration::from_secs(4);
/// A subvolume without connections leaves memory after this. Until then it remembers results for retries.
pub const UNLOAD_AFTER: Duration = Duration::from_secs(600);
/// In-flight requests of a server that stops get this long.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Threads that read blocks from the device for operations.
pub const FETCH_THREADS: usize = 4;
/// Threads that write the file data of fsyncs: apart, so that it never queues behind background writes.
pub const FSYNC_WRITER_THREADS: usize = 4;
/// Threads that write file data in the background.
pub const WRITER_THREADS: usize = 2;

/// Engine operation numbers that one request's operation id stands for: a compound has up to 32 steps, and a step runs up
/// to two operations (create, then truncate).
pub const OPERATIONS_PER_ID: u64 = 64;

/// What a client is told about limits.
pub const SERVER_LIMITS: ServerLimits =
    ServerLimits { operation_window: OPERATION_WINDOW, ..ServerLimits::FULL };

const _: () = {
    assert!(SESSION_BYTES_MAX <= TENANT_BYTES_MAX && TENANT_BYTES_MAX <= SERVER_BYTES_MAX);
    assert!(SESSION_BYTES_MAX >= MAX_PAYLOAD as u64);
    assert!(TENANT_BYTES_GUARANTEED >= MAX_PAYLOAD as u64 && TENANT_BYTES_GUARANTEED <= TENANT_BYTES_MAX);
    assert!(
        LEASE_SILENCE.as_secs() < RECALL_TIME.as_secs() && RECALL_TIME.as_secs() < CLIENT_GRACE.as_secs()
    );
    assert!(SLOW_PEER_TIME.as_secs() < STALLED_PEER_TIME.as_secs());
    assert!(OUTBOX_BYTES_MAX >= MAX_PAYLOAD + MAX_BODY);
    assert!(REQUESTS_PER_BATCH <= MAX_IN_FLIGHT as usize);
    assert!(DIRTY_SHARE_MIN <= DIRTY_BYTES_MAX);
    assert!(LOG_QUEUE_BYTES_MAX >= LOG_BATCH_BYTES_MAX && LOG_BATCH_BYTES_MAX > LOG_BACKLOG_BYTES);
    assert!(LEDGER_ENTRIES_PER_CLIENT >= OPERATION_WINDOW as usize);
    assert!(OPERATIONS_PER_ID >= 2 * subvol_protocol::limits::MAX_COMPOUND_STEPS as u64);
};
