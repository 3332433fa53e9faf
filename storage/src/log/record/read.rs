//! From bytes to records: every length is checked, nothing panics.

use super::{Body, FLAG_KEEP_ORPHAN, FLAG_OPERATION_ID, HEAD_BYTES, Record, RecordError, kind};
use crate::operation::{AttributeChange, Operation, Place, RenameMode, Resolved, XattrMode};
use crate::types::{OperationId, Timestamp};
use bytes::Bytes;

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
            umask: cursor.u32()?,
            uid: cursor.u32()?,
            gid: cursor.u32()?,
            rdev: cursor.u64()?,
            target: cursor.bytes()?,
        },
        kind::CREATE_UNNAMED => Operation::CreateUnnamed {
            parent: cursor.u64()?,
            mode: cursor.u32()?,
            umask: cursor.u32()?,
            uid: cursor.u32()?,
            gid: cursor.u32()?,
        },
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
                3 => RenameMode::Whiteout,
                4 => RenameMode::WhiteoutNoReplace,
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
