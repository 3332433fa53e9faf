//! Every limit of the mount in one place.

use std::time::Duration;

use subvol_protocol::limits::{MAX_INODE_LIST, MAX_PAYLOAD};

/// Bytes of one write or read of the kernel.
pub const MAX_WRITE: usize = 1 << 20;
/// Bytes of the buffer that requests are read into: a write, its header and the longest names.
pub const READ_BUFFER: usize = MAX_WRITE + (64 << 10);
/// Writes up to this many bytes are copied out of the read buffer; larger ones take it along.
pub const COPIED_PAYLOAD: usize = 32 << 10;
/// Requests that the kernel may have under way in the background (read-ahead, writeback).
pub const MAX_BACKGROUND: u16 = 64;
/// Requests read in a row before answers get their turn.
pub const REQUESTS_IN_A_ROW: usize = 32;
/// How long the kernel keeps names and attributes under a lease. Leases end by recall, so this is "for ever".
pub const LEASED_SECONDS: u64 = 24 * 3600;
/// As long for a kernel that cannot be told to drop all names at once: what is kept when the connection is lost must end by itself.
pub const LEASED_SECONDS_OLD_KERNEL: u64 = 4;
/// Inodes forgotten by the kernel are told to the server when so many wait, ...
pub const FORGETS_AT_ONCE: usize = 256;
/// ... or after this time.
pub const FORGET_PAUSE: Duration = Duration::from_millis(20);
/// Recalled inodes remembered for requests under way; beyond it all requests under way count as overtaken.
pub const RECENT_RECALLS: usize = 4096;
/// Bytes of one answer to a directory listing.
pub const MAX_LISTING: usize = 128 << 10;

const _: () = {
    assert!(MAX_WRITE <= MAX_PAYLOAD);
    assert!(FORGETS_AT_ONCE <= MAX_INODE_LIST);
    assert!(COPIED_PAYLOAD <= MAX_WRITE);
};
