//! Copying trees between a volume and the local file system.
//!
//! Upload: a thread scans the local tree and reads small files ([`scan`]); the async side sends each as one compound request, many at a
//! time ([`upload`]). Download: the async side walks the volume, reads small files by one compound each, and a worker thread makes them
//! ([`download`], [`local`]). What is not small goes in pieces.
//!
//! Invariants: memory is bounded by [`ITEMS_AHEAD`] small files and [`LARGE_AHEAD`] times [`PIECES_AHEAD`] pieces, whatever the tree holds;
//! each failure is told once and the rest goes on, except that a lost server ends it.

pub mod download;
pub mod facts;
mod firsts;
pub mod local;
mod local_read;
pub mod report;
pub mod scan;
pub mod upload;
mod worker;

#[cfg(test)]
mod tests;

/// Files under way at a time.
const ITEMS_AHEAD: usize = 192;
/// Files that were scanned and wait to be sent.
const SCANNED_AHEAD: usize = 64;
/// Bytes of a file that travels in one request with everything about it.
const SMALL: u64 = 128 * 1024;
/// Large files under way at a time.
const LARGE_AHEAD: usize = 4;
/// Pieces of one large file under way at a time.
const PIECES_AHEAD: usize = 4;
/// Bytes of a piece.
const PIECE: u64 = 512 * 1024;

const _: () = assert!(PIECE as usize <= subvol_client::protocol::limits::MAX_PAYLOAD);
const _: () = assert!(SMALL <= PIECE);

/// Extended attributes by name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Cuts ranges into pieces.
fn pieces(ranges: Vec<(u64, u64)>) -> impl Iterator<Item = (u64, usize)> {
    ranges.into_iter().flat_map(|(start, end)| {
        (start..end).step_by(PIECE as usize).map(move |at| (at, (end - at).min(PIECE) as usize))
    })
}
