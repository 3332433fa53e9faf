//! Every default and bound of the client, in one place. Those of the wire are in `subvol_protocol::limits`.

use std::time::Duration;

use subvol_protocol::limits::{MAX_IN_FLIGHT, OPERATION_WINDOW};

/// Time for one attempt to connect, authenticate and attach.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for one request, its waiting and every reconnect in between included.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A connection that owes answers and shows no sign of life for so long is given up.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longer than any program runs: what has no limit waits so long.
pub(crate) const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Attempts to reconnect before everything that waits is told so.
pub(crate) const RECONNECT_ATTEMPTS: u32 = 10;
/// Wait before the second attempt; doubles from then on.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Longest wait between attempts.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Bytes encoded ahead of the socket. More stays in its compact form until the socket has taken these: a slow server must not make
/// its clients hold every request twice.
pub(crate) const MAX_ENCODED_AHEAD: usize = 1024 * 1024;
/// Payloads up to this are copied into the send buffer, larger ones go out by a vectored write.
pub(crate) const COPY_PAYLOAD_BELOW: usize = 8 * 1024;
/// Slices of one vectored write.
pub(crate) const MAX_SLICES: usize = 32;
/// Bytes of a new receive buffer.
pub(crate) const RECEIVE_BUFFER: usize = 64 * 1024;

/// Pieces of one large read or write that are under way at a time.
pub(crate) const PIECES_AHEAD: usize = 8;
/// Entries asked for in one directory page.
pub(crate) const DIRECTORY_PAGE: u32 = 512;
/// Removals under way at a time in one `remove_all`.
pub(crate) const REMOVALS_AHEAD: usize = 64;
/// How often `remove_all` starts over with a directory that others keep filling.
pub(crate) const REMOVE_ROUNDS: u32 = 16;
/// Symbolic links followed in one path, as on Linux.
pub(crate) const MAX_LINKS_FOLLOWED: u32 = 40;
/// Bytes of a path, symbolic links not expanded.
pub(crate) const MAX_PATH: usize = 64 * 1024;
/// Time for the background closes and the farewell when the last user of a connection is gone.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);
/// How long the oldest request goes alone on a new connection if it was under way when the last one broke.
pub(crate) const PROBE: Duration = Duration::from_secs(1);
/// Added to the grace time a stopping server announces before the client closes the connection itself.
pub(crate) const SHUTDOWN_SLACK: Duration = Duration::from_secs(1);
/// Most and least time between looks at the deadlines.
pub(crate) const TICK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Events that wait for the subscriber. Each names something this client was told, so more at once cannot be true.
pub(crate) const MAX_EVENTS: usize = 1 << 20;
/// The part of a server's silence after which the library asks for a sign of life: an answer that takes as long again is in time.
pub(crate) const KEEP_ALIVE_PART: u32 = 3;
/// Inodes whose changes are remembered one by one until they are durable; more are remembered together.
pub(crate) const MAX_TRACKED_INODES: usize = 65_536;
/// From so many on, those that a commit has covered are let go of.
pub(crate) const TIDY_TRACKED_FROM: usize = 4096;
/// Requests of a subscriber that are under way at a time while the others wait.
pub(crate) const URGENT_AHEAD: usize = 64;

/// Low bits of a request id that hold the slot's index.
pub(crate) const SLOT_BITS: u32 = 16;
/// The slot index that no slot has; marks keep-alive requests.
pub(crate) const PING_SLOT: u64 = (1 << SLOT_BITS) - 1;

const _: () = assert!((MAX_IN_FLIGHT as u64) * 2 + (URGENT_AHEAD as u64) < PING_SLOT);
const _: () = assert!(OPERATION_WINDOW > MAX_IN_FLIGHT);
const _: () = assert!(SILENCE_TIMEOUT.as_secs() < REQUEST_TIMEOUT.as_secs());
