//! Log records: what one operation or one piece of fsynced data looks like in the log.
//!
//! A record carries everything that is needed to run the operation again (see [`crate::operation::Resolved`]), so
//! replay never asks a clock or a counter. Invariants: sequence numbers of a subvolume are contiguous; decoding never
//! panics and never allocates more than the record's own length.

mod read;
mod write;

pub use read::RecordReader;
pub use write::{append_extent_data, append_inline_data, append_operation};

use crate::operation::{Operation, Resolved};
use crate::types::{InodeNumber, OperationId};
use bytes::Bytes;
use thiserror::Error;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record within its subvolume, contiguous, from 1.
    pub sequence: u64,
    /// Time, identifiers, decisions.
    pub resolved: Resolved,
    /// The client's name for the operation, if it may be retried.
    pub operation_id: Option<OperationId>,
    /// What happened.
    pub body: Body,
}

/// What a record tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// An operation; a write without its data.
    Operation(Operation),
    /// Data of a file, made durable by an fsync of it.
    InlineData {
        /// Whose.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Data of a file that stands in an extent.
    ExtentData {
        /// Whose.
        inode: InodeNumber,
        /// First byte; multiple of 4096.
        offset: u64,
        /// Device address.
        address: u64,
        /// Transaction that wrote the extent.
        generation: u64,
        /// crc32c of each block; as many as the extent has blocks.
        checksums: Vec<u32>,
    },
}

/// A record that cannot be understood although its batch's checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("log record cannot be understood: {0}")]
pub struct RecordError(pub &'static str);

const FLAG_KEEP_ORPHAN: u8 = 1;
const FLAG_OPERATION_ID: u8 = 2;
/// length u32, kind u8, flags u8, reserved u16, sequence u64, seconds i64, nanoseconds u32, next_id u64
const HEAD_BYTES: usize = 36;

/// A kind's fields never change: a record with others gets a new number, so that an engine that does not know it refuses
/// the log. 1 and 2 were creations without a mask.
mod kind {
    pub const LINK: u8 = 3;
    pub const UNLINK: u8 = 4;
    pub const REMOVE_DIRECTORY: u8 = 5;
    pub const RENAME: u8 = 6;
    pub const SET_ATTRIBUTES: u8 = 7;
    pub const WRITE: u8 = 8;
    pub const ALLOCATE: u8 = 9;
    pub const PUNCH_HOLE: u8 = 10;
    pub const ZERO_RANGE: u8 = 11;
    pub const SET_XATTR: u8 = 12;
    pub const REMOVE_XATTR: u8 = 13;
    pub const CREATE: u8 = 14;
    pub const CREATE_UNNAMED: u8 = 15;
    pub const INLINE_DATA: u8 = 32;
    pub const EXTENT_DATA: u8 = 33;
}

#[cfg(test)]
mod tests {
    use super::write::NOTHING_RESOLVED;
    use super::*;
    use crate::operation::{AttributeChange, Place, RenameMode, XattrMode};
    use crate::types::Timestamp;

    fn place(parent: u64, name: &'static str) -> Place {
        Place { parent, name: Bytes::from_static(name.as_bytes()) }
    }

    fn operations() -> Vec<Operation> {
        let change = AttributeChange {
            mode: Some(0o755),
            uid: None,
            gid: Some(3),
            size: Some(1 << 40),
            atime: Some(Timestamp::new(-1, 5)),
            mtime: None,
        };
        vec![
            Operation::Create {
                place: place(256, "foo"),
                mode: 0o100_644,
                umask: 0o027,
                uid: 1,
                gid: 2,
                rdev: 0,
                target: Bytes::from_static(b"t"),
            },
            Operation::CreateUnnamed { parent: 256, mode: 0o100_600, umask: 0o077, uid: 9, gid: 8 },
            Operation::Link { inode: 300, place: place(256, "bar") },
            Operation::Unlink { place: place(256, "foo") },
            Operation::RemoveDirectory { place: place(256, "d") },
            Operation::Rename { from: place(1, "a"), to: place(2, "b"), mode: RenameMode::Exchange },
            Operation::Rename { from: place(1, "a"), to: place(2, "b"), mode: RenameMode::WhiteoutNoReplace },
            Operation::SetAttributes { inode: 5, change },
            Operation::Write { inode: 5, offset: 7, length: 9, clear_set_id: true, data: Bytes::new() },
            Operation::Allocate { inode: 5, offset: 7, length: 9, keep_size: true },
            Operation::PunchHole { inode: 5, offset: 7, length: 9 },
            Operation::ZeroRange { inode: 5, offset: 7, length: 9, keep_size: false },
            Operation::SetXattr {
                inode: 5,
                name: Bytes::from_static(b"user.a"),
                value: Bytes::from(vec![1; 65536]),
                mode: XattrMode::Create,
            },
            Operation::RemoveXattr { inode: 5, name: Bytes::from_static(b"user.a") },
        ]
    }

    fn encoded() -> (Vec<u8>, Vec<Record>) {
        let mut bytes = Vec::new();
        let mut records = Vec::new();
        for (index, operation) in operations().into_iter().enumerate() {
            let sequence = index as u64 + 1;
            let resolved = Resolved {
                now: Timestamp::new(-3, 999_999_999),
                next_id: 1000 + sequence,
                keep_orphan: index % 2 == 0,
            };
            let operation_id = (index % 3 == 0).then_some(OperationId { client: [9; 16], sequence });
            append_operation(&mut bytes, sequence, &resolved, operation_id, &operation);
            records.push(Record { sequence, resolved, operation_id, body: Body::Operation(operation) });
        }
        append_inline_data(&mut bytes, 50, 5, 100, b"data");
        append_extent_data(&mut bytes, 51, 5, 4096, 1 << 20, 3, &[1, 0, 0, 0, 2, 0, 0, 0]);
        let resolved = NOTHING_RESOLVED;
        let body = Body::InlineData { inode: 5, offset: 100, data: Bytes::from_static(b"data") };
        records.push(Record { sequence: 50, resolved, operation_id: None, body });
        let checksums = vec![1, 2];
        let body = Body::ExtentData { inode: 5, offset: 4096, address: 1 << 20, generation: 3, checksums };
        records.push(Record { sequence: 51, resolved, operation_id: None, body });
        (bytes, records)
    }

    #[test]
    fn records_round_trip() {
        let (bytes, records) = encoded();
        let read: Result<Vec<_>, _> = RecordReader::new(&bytes).collect();
        assert_eq!(read.expect("sound"), records);
    }

    #[test]
    fn cut_and_flipped_records_never_panic() {
        let (bytes, records) = encoded();
        let mut failures = 0;
        for cut in (0..bytes.len()).step_by(7) {
            let read: Vec<_> = RecordReader::new(&bytes[..cut]).collect();
            assert!(read.len() <= records.len());
            failures += usize::from(read.last().is_some_and(Result::is_err));
        }
        assert!(failures > 100);
        let mut flipped = bytes;
        for bit in 0..2000 * 8 {
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _ = RecordReader::new(&flipped).count();
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
