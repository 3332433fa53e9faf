//! From operations and data to the bytes of records.

use super::{FLAG_KEEP_ORPHAN, FLAG_OPERATION_ID, HEAD_BYTES, kind};
use crate::operation::{AttributeChange, Operation, Place, Resolved};
use crate::types::{InodeNumber, OperationId, Timestamp};

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

pub(super) const NOTHING_RESOLVED: Resolved =
    Resolved { now: Timestamp::new(0, 0), next_id: 0, keep_orphan: false };

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
        Operation::Create { place, mode, umask, uid, gid, rdev, target } => {
            put_place(out, place);
            put_u32(out, *mode);
            put_u32(out, *umask);
            put_u32(out, *uid);
            put_u32(out, *gid);
            put_u64(out, *rdev);
            put_bytes(out, target);
        }
        Operation::CreateUnnamed { parent, mode, umask, uid, gid } => {
            put_u64(out, *parent);
            put_u32(out, *mode);
            put_u32(out, *umask);
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
