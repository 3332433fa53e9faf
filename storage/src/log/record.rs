//! Log records: what one operation or one piece of fsynced data looks like in the log.
//!
//! A record carries everything that is needed to run the operation again (see [`crate::operation::Resolved`]), so
//! replay never asks a clock or a counter. Invariants: sequence numbers of a subvolume are contiguous; decoding never
//! panics and never allocates more than the record's own length.

use crate::operation::{AttributeChange, Operation, Place, RenameMode, Resolved, XattrMode};
use crate::types::{InodeNumber, OperationId, Timestamp};
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

mod kind {
    pub const CREATE: u8 = 1;
    pub const CREATE_UNNAMED: u8 = 2;
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
    pub const INLINE_DATA: u8 = 32;
    pub const EXTENT_DATA: u8 = 33;
}

/// Appends the record of an operation.
pub fn append_operation(
    out: &mut Vec<u8>,
    sequence: u64,
    resolved: &Resolved,
    operation_id: Option<OperationId>,
    operation: &Operation,
) {
    let start = begin(out, operation_kind(operation), sequence, resolved, operation_id);
    write_operation(out, operation);
    finish(out, start);
}

/// Appends a record of file data.
pub fn append_inline_data(out: &mut Vec<u8>, sequence: u64, inode: InodeNumber, offset: u64, data: &[u8]) {
    let start = begin(out, kind::INLINE_DATA, sequence, &NOTHING_RESOLVED, None);
    put_u64(out, inode);
    put_u64(out, offset);
    put_bytes(out, data);
    finish(out, start);
}

/// Appends a record of an extent; `checksums` are the extent item's own bytes (4 a block).
pub fn append_extent_data(
    out: &mut Vec<u8>,
    sequence: u64,
    inode: InodeNumber,
    offset: u64,
    address: u64,
    generation: u64,
    checksums: &[u8],
) {
    let start = begin(out, kind::EXTENT_DATA, sequence, &NOTHING_RESOLVED, None);
    put_u64(out, inode);
    put_u64(out, offset);
    put_u64(out, address);
    put_u64(out, generation);
    put_bytes(out, checksums);
    finish(out, start);
}

const NOTHING_RESOLVED: Resolved = Resolved { now: Timestamp::new(0, 0), next_id: 0, keep_orphan: false };

fn begin(out: &mut Vec<u8>, kind: u8, sequence: u64, resolved: &Resolved, id: Option<OperationId>) -> usize {
    let start = out.len();
    let mut flags = 0;
    if resolved.keep_orphan {
        flags |= FLAG_KEEP_ORPHAN;
    }
    if id.is_some() {
        flags |= FLAG_OPERATION_ID;
    }
    out.extend_from_slice(&[0, 0, 0, 0, kind, flags, 0, 0]);
    put_u64(out, sequence);
    put_u64(out, resolved.now.seconds as u64);
    put_u32(out, resolved.now.nanoseconds);
    put_u64(out, resolved.next_id);
    debug_assert_eq!(out.len() - start, HEAD_BYTES);
    if let Some(id) = id {
        out.extend_from_slice(&id.client);
        put_u64(out, id.sequence);
    }
    start
}

fn finish(out: &mut [u8], start: usize) {
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

fn put_place(out: &mut Vec<u8>, place: &Place) {
    put_u64(out, place.parent);
    put_bytes(out, &place.name);
}

fn put_range(out: &mut Vec<u8>, inode: InodeNumber, offset: u64, length: u64, flag: bool) {
    put_u64(out, inode);
    put_u64(out, offset);
    put_u64(out, length);
    out.push(u8::from(flag));
}

fn operation_kind(operation: &Operation) -> u8 {
    match operation {
        Operation::Create { .. } => kind::CREATE,
        Operation::CreateUnnamed { .. } => kind::CREATE_UNNAMED,
        Operation::Link { .. } => kind::LINK,
        Operation::Unlink { .. } => kind::UNLINK,
        Operation::RemoveDirectory { .. } => kind::REMOVE_DIRECTORY,
        Operation::Rename { .. } => kind::RENAME,
        Operation::SetAttributes { .. } => kind::SET_ATTRIBUTES,
        Operation::Write { .. } => kind::WRITE,
        Operation::Allocate { .. } => kind::ALLOCATE,
        Operation::PunchHole { .. } => kind::PUNCH_HOLE,
        Operation::ZeroRange { .. } => kind::ZERO_RANGE,
        Operation::SetXattr { .. } => kind::SET_XATTR,
        Operation::RemoveXattr { .. } => kind::REMOVE_XATTR,
    }
}

fn write_operation(out: &mut Vec<u8>, operation: &Operation) {
    match operation {
        Operation::Create { place, mode, uid, gid, rdev, target } => {
            put_place(out, place);
            put_u32(out, *mode);
            put_u32(out, *uid);
            put_u32(out, *gid);
            put_u64(out, *rdev);
            put_bytes(out, target);
        }
        Operation::CreateUnnamed { mode, uid, gid } => {
            put_u32(out, *mode);
            put_u32(out, *uid);
            put_u32(out, *gid);
        }
        Operation::Link { inode, place } => {
            put_u64(out, *inode);
            put_place(out, place);
        }
        Operation::Unlink { place } | Operation::RemoveDirectory { place } => put_place(out, place),
        Operation::Rename { from, to, mode } => {
            put_place(out, from);
            put_place(out, to);
            out.push(*mode as u8);
        }
        Operation::SetAttributes { inode, change } => {
            put_u64(out, *inode);
            put_change(out, change);
        }
        Operation::Write { inode, offset, length, clear_set_id, .. } => {
            put_range(out, *inode, *offset, *length, *clear_set_id);
        }
        Operation::Allocate { inode, offset, length, keep_size }
        | Operation::ZeroRange { inode, offset, length, keep_size } => {
            put_range(out, *inode, *offset, *length, *keep_size);
        }
        Operation::PunchHole { inode, offset, length } => put_range(out, *inode, *offset, *length, false),
        Operation::SetXattr { inode, name, value, mode } => {
            put_u64(out, *inode);
            put_bytes(out, name);
            put_bytes(out, value);
            out.push(*mode as u8);
        }
        Operation::RemoveXattr { inode, name } => {
            put_u64(out, *inode);
            put_bytes(out, name);
        }
    }
}

fn put_change(out: &mut Vec<u8>, change: &AttributeChange) {
    let present = [
        change.mode.is_some(),
        change.uid.is_some(),
        change.gid.is_some(),
        change.size.is_some(),
        change.atime.is_some(),
        change.mtime.is_some(),
    ];
    out.push(present.iter().enumerate().map(|(bit, &on)| u8::from(on) << bit).sum());
    for value in [change.mode, change.uid, change.gid].into_iter().flatten() {
        put_u32(out, value);
    }
    if let Some(size) = change.size {
        put_u64(out, size);
    }
    for time in [change.atime, change.mtime].into_iter().flatten() {
        put_u64(out, time.seconds as u64);
        put_u32(out, time.nanoseconds);
    }
}

/// Reads the records of a part one after the other.
pub struct RecordReader<'a> {
    rest: &'a [u8],
}

impl<'a> RecordReader<'a> {
    /// A reader of the records in `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl Iterator for RecordReader<'_> {
    type Item = Result<Record, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let result = self.read();
        if result.is_err() {
            self.rest = &[];
        }
        Some(result)
    }
}

impl RecordReader<'_> {
    fn read(&mut self) -> Result<Record, RecordError> {
        let mut head = Cursor(self.rest);
        let length = head.u32()? as usize;
        if length < HEAD_BYTES {
            return Err(RecordError("its length is too small"));
        }
        let (record, rest) = self.rest.split_at_checked(length).ok_or(RecordError("it is cut off"))?;
        let mut cursor = Cursor(&record[4..]);
        let kind = cursor.u8()?;
        let flags = cursor.u8()?;
        cursor.take(2)?;
        let sequence = cursor.u64()?;
        let now = cursor.time()?;
        let next_id = cursor.u64()?;
        let operation_id = if flags & FLAG_OPERATION_ID != 0 {
            let client = cursor.take(16)?.try_into().map_err(|_| RecordError("operation id"))?;
            Some(OperationId { client, sequence: cursor.u64()? })
        } else {
            None
        };
        let body = read_body(kind, &mut cursor)?;
        if !cursor.0.is_empty() {
            return Err(RecordError("bytes are left over"));
        }
        self.rest = rest;
        let resolved = Resolved { now, next_id, keep_orphan: flags & FLAG_KEEP_ORPHAN != 0 };
        Ok(Record { sequence, resolved, operation_id, body })
    }
}

fn read_body(kind: u8, cursor: &mut Cursor<'_>) -> Result<Body, RecordError> {
    let operation = match kind {
        kind::CREATE => Operation::Create {
            place: cursor.place()?,
            mode: cursor.u32()?,
            uid: cursor.u32()?,
            gid: cursor.u32()?,
            rdev: cursor.u64()?,
            target: cursor.bytes()?,
        },
        kind::CREATE_UNNAMED => {
            Operation::CreateUnnamed { mode: cursor.u32()?, uid: cursor.u32()?, gid: cursor.u32()? }
        }
        kind::LINK => Operation::Link { inode: cursor.u64()?, place: cursor.place()? },
        kind::UNLINK => Operation::Unlink { place: cursor.place()? },
        kind::REMOVE_DIRECTORY => Operation::RemoveDirectory { place: cursor.place()? },
        kind::RENAME => Operation::Rename {
            from: cursor.place()?,
            to: cursor.place()?,
            mode: match cursor.u8()? {
                0 => RenameMode::Replace,
                1 => RenameMode::NoReplace,
                2 => RenameMode::Exchange,
                _ => return Err(RecordError("unknown rename mode")),
            },
        },
        kind::SET_ATTRIBUTES => Operation::SetAttributes { inode: cursor.u64()?, change: cursor.change()? },
        kind::WRITE => Operation::Write {
            inode: cursor.u64()?,
            offset: cursor.u64()?,
            length: cursor.u64()?,
            clear_set_id: cursor.flag()?,
            data: Bytes::new(),
        },
        kind::ALLOCATE => Operation::Allocate {
            inode: cursor.u64()?,
            offset: cursor.u64()?,
            length: cursor.u64()?,
            keep_size: cursor.flag()?,
        },
        kind::PUNCH_HOLE => {
            let (inode, offset, length) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            cursor.flag()?;
            Operation::PunchHole { inode, offset, length }
        }
        kind::ZERO_RANGE => Operation::ZeroRange {
            inode: cursor.u64()?,
            offset: cursor.u64()?,
            length: cursor.u64()?,
            keep_size: cursor.flag()?,
        },
        kind::SET_XATTR => Operation::SetXattr {
            inode: cursor.u64()?,
            name: cursor.bytes()?,
            value: cursor.bytes()?,
            mode: match cursor.u8()? {
                0 => XattrMode::Any,
                1 => XattrMode::Create,
                2 => XattrMode::Replace,
                _ => return Err(RecordError("unknown xattr mode")),
            },
        },
        kind::REMOVE_XATTR => Operation::RemoveXattr { inode: cursor.u64()?, name: cursor.bytes()? },
        kind::INLINE_DATA => {
            return Ok(Body::InlineData {
                inode: cursor.u64()?,
                offset: cursor.u64()?,
                data: cursor.bytes()?,
            });
        }
        kind::EXTENT_DATA => {
            let (inode, offset) = (cursor.u64()?, cursor.u64()?);
            let (address, generation) = (cursor.u64()?, cursor.u64()?);
            let sums = cursor.slice()?;
            if sums.is_empty() || sums.len() % 4 != 0 {
                return Err(RecordError("odd checksums"));
            }
            let checksums = sums
                .chunks_exact(4)
                .map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]))
                .collect();
            return Ok(Body::ExtentData { inode, offset, address, generation, checksums });
        }
        _ => return Err(RecordError("unknown kind")),
    };
    Ok(Body::Operation(operation))
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(RecordError("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        self.take(N)?.try_into().map_err(|_| RecordError("it ends too early"))
    }

    fn u8(&mut self) -> Result<u8, RecordError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool, RecordError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(RecordError("odd flag")),
        }
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn time(&mut self) -> Result<Timestamp, RecordError> {
        Ok(Timestamp::new(self.u64()? as i64, self.u32()?))
    }

    fn slice(&mut self) -> Result<&'a [u8], RecordError> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    fn bytes(&mut self) -> Result<Bytes, RecordError> {
        Ok(Bytes::copy_from_slice(self.slice()?))
    }

    fn place(&mut self) -> Result<Place, RecordError> {
        Ok(Place { parent: self.u64()?, name: self.bytes()? })
    }

    fn change(&mut self) -> Result<AttributeChange, RecordError> {
        let present = self.u8()?;
        let has = |bit: u8| present & (1 << bit) != 0;
        Ok(AttributeChange {
            mode: if has(0) { Some(self.u32()?) } else { None },
            uid: if has(1) { Some(self.u32()?) } else { None },
            gid: if has(2) { Some(self.u32()?) } else { None },
            size: if has(3) { Some(self.u64()?) } else { None },
            atime: if has(4) { Some(self.time()?) } else { None },
            mtime: if has(5) { Some(self.time()?) } else { None },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                uid: 1,
                gid: 2,
                rdev: 0,
                target: Bytes::from_static(b"t"),
            },
            Operation::CreateUnnamed { mode: 0o100_600, uid: 9, gid: 8 },
            Operation::Link { inode: 300, place: place(256, "bar") },
            Operation::Unlink { place: place(256, "foo") },
            Operation::RemoveDirectory { place: place(256, "d") },
            Operation::Rename { from: place(1, "a"), to: place(2, "b"), mode: RenameMode::Exchange },
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
