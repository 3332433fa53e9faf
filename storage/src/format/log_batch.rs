//! Layout of a batch in the log ring.
//!
//! A batch is a multiple of 4 KiB: header, then parts, then zeros. Each part holds the records of one closed
//! generation of one subvolume's log. Batches are chained: each names the sequence number after its predecessor's
//! and its predecessor's checksum, so what an earlier round of the ring left behind never looks like a successor.
//!
//! Invariants: a batch does not wrap; a batch with [`WRAP`] holds nothing and sends the reader to the ring's start;
//! the checksum covers the whole batch but the checksum itself.

use crate::limits::BLOCK;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every batch.
pub const MAGIC: u32 = 0x4c42_5653;
/// Flag of a batch that only says "go on at the ring's start".
pub const WRAP: u32 = 1;

/// Head of a batch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskBatch {
    magic: U32,
    checksum: U32,
    sequence: U64,
    epoch: U64,
    /// Every batch up to this sequence was durable when this one was written.
    flushed_through: U64,
    chain: U32,
    flags: U32,
    /// Bytes of the whole batch, multiple of 4096.
    length: U32,
    parts: U32,
    device_id: [u8; 16],
}
/// Bytes of [`DiskBatch`].
pub const BATCH_HEAD_BYTES: usize = size_of::<DiskBatch>();
const _: () = assert!(BATCH_HEAD_BYTES == 64);
/// The checksum covers a batch from here on.
const CHECKED_FROM: usize = 8;

/// Head of a part: one generation of one subvolume.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskPart {
    subvolume: U64,
    log_transid: U64,
    length: U32,
    records: U32,
}
/// Bytes of [`DiskPart`].
pub const PART_HEAD_BYTES: usize = size_of::<DiskPart>();

/// What a batch says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Its number in the chain.
    pub sequence: u64,
    /// Server epoch that wrote it.
    pub epoch: u64,
    /// Every batch up to this sequence was durable when this one was written.
    pub flushed_through: u64,
    /// Checksum of its predecessor.
    pub chain: u32,
    /// Bit [`WRAP`].
    pub flags: u32,
    /// Number of parts.
    pub parts: u32,
    /// Identity of the store.
    pub device_id: [u8; 16],
}

/// A part of a batch, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Whose records.
    pub subvolume: u64,
    /// Generation of its log.
    pub log_transid: u64,
    /// Number of records.
    pub records: u32,
    /// The records.
    pub bytes: &'a [u8],
}

/// Bytes that a batch with these part lengths takes.
pub fn batch_bytes(part_lengths: impl Iterator<Item = usize>) -> usize {
    let content: usize = part_lengths.map(|length| PART_HEAD_BYTES + length).sum();
    (BATCH_HEAD_BYTES + content).next_multiple_of(BLOCK)
}

/// Writes a batch into `out` (as long as [`batch_bytes`] says) and returns its checksum.
pub fn encode<'a>(head: &BatchHead, parts: impl Iterator<Item = Part<'a>>, out: &mut [u8]) -> u32 {
    assert!(out.len() >= BATCH_HEAD_BYTES && out.len().is_multiple_of(BLOCK));
    let mut at = BATCH_HEAD_BYTES;
    let mut count = 0;
    for part in parts {
        let disk = DiskPart {
            subvolume: U64::new(part.subvolume),
            log_transid: U64::new(part.log_transid),
            length: U32::new(part.bytes.len() as u32),
            records: U32::new(part.records),
        };
        out[at..at + PART_HEAD_BYTES].copy_from_slice(disk.as_bytes());
        at += PART_HEAD_BYTES;
        out[at..at + part.bytes.len()].copy_from_slice(part.bytes);
        at += part.bytes.len();
        count += 1;
    }
    assert_eq!(count, head.parts);
    out[at..].fill(0);
    let mut disk = DiskBatch {
        magic: U32::new(MAGIC),
        checksum: U32::new(0),
        sequence: U64::new(head.sequence),
        epoch: U64::new(head.epoch),
        flushed_through: U64::new(head.flushed_through),
        chain: U32::new(head.chain),
        flags: U32::new(head.flags),
        length: U32::new(out.len() as u32),
        parts: U32::new(head.parts),
        device_id: head.device_id,
    };
    out[..BATCH_HEAD_BYTES].copy_from_slice(disk.as_bytes());
    let checksum = crc32c::crc32c(&out[CHECKED_FROM..]);
    disk.checksum = U32::new(checksum);
    out[..BATCH_HEAD_BYTES].copy_from_slice(disk.as_bytes());
    checksum
}

/// Length in bytes of the batch whose first block this is, if it looks like one: bounded by `room` and by the
/// largest batch there is, so that a lie costs no memory.
pub fn claimed_length(first_block: &[u8], room: u64) -> Option<usize> {
    let (disk, _) = DiskBatch::ref_from_prefix(first_block).ok()?;
    let length = disk.length.get() as usize;
    let sound = disk.magic.get() == MAGIC
        && length >= BLOCK
        && length.is_multiple_of(BLOCK)
        && length as u64 <= room
        && length <= crate::limits::LOG_BATCH_BYTES_MAX;
    sound.then_some(length)
}

/// Checks a whole batch and returns its head and checksum; `None` when it is broken.
pub fn decode(batch: &[u8]) -> Option<(BatchHead, u32)> {
    let (disk, _) = DiskBatch::ref_from_prefix(batch).ok()?;
    let checksum = disk.checksum.get();
    if disk.magic.get() != MAGIC
        || disk.length.get() as usize != batch.len()
        || crc32c::crc32c(batch.get(CHECKED_FROM..)?) != checksum
    {
        return None;
    }
    let head = BatchHead {
        sequence: disk.sequence.get(),
        epoch: disk.epoch.get(),
        flushed_through: disk.flushed_through.get(),
        chain: disk.chain.get(),
        flags: disk.flags.get(),
        parts: disk.parts.get(),
        device_id: disk.device_id,
    };
    Some((head, checksum))
}

/// The parts of a batch that [`decode`] accepted; `None` when a length in it lies.
pub fn parts<'a>(head: &BatchHead, batch: &'a [u8]) -> Option<Vec<Part<'a>>> {
    let mut rest = batch.get(BATCH_HEAD_BYTES..)?;
    let mut parts = Vec::new();
    for _ in 0..head.parts {
        let (disk, after) = DiskPart::ref_from_prefix(rest).ok()?;
        let (bytes, after) = after.split_at_checked(disk.length.get() as usize)?;
        parts.push(Part {
            subvolume: disk.subvolume.get(),
            log_transid: disk.log_transid.get(),
            records: disk.records.get(),
            bytes,
        });
        rest = after;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<u8>, u32) {
        let head = BatchHead {
            sequence: 4,
            epoch: 1,
            flushed_through: 3,
            chain: 99,
            flags: 0,
            parts: 2,
            device_id: [3; 16],
        };
        let parts = [
            Part { subvolume: 256, log_transid: 1, records: 1, bytes: b"hello" },
            Part { subvolume: 257, log_transid: 8, records: 2, bytes: &[7; 5000] },
        ];
        let mut out = vec![0xff; batch_bytes(parts.iter().map(|part| part.bytes.len()))];
        let checksum = encode(&head, parts.into_iter(), &mut out);
        (out, checksum)
    }

    #[test]
    fn round_trip() {
        let (batch, checksum) = sample();
        assert_eq!(batch.len(), 8192);
        assert_eq!(claimed_length(&batch, 1 << 20), Some(8192));
        assert_eq!(claimed_length(&batch, 4096), None, "longer than the room");
        let (head, found) = decode(&batch).expect("sound");
        assert_eq!((head.sequence, head.chain, found), (4, 99, checksum));
        let parts = parts(&head, &batch).expect("sound");
        assert_eq!(parts[0].bytes, b"hello");
        assert_eq!((parts[1].subvolume, parts[1].log_transid, parts[1].records), (257, 8, 2));
    }

    #[test]
    fn every_flipped_bit_and_every_torn_block_is_found() {
        let (mut batch, _) = sample();
        for bit in 0..batch.len() * 8 {
            batch[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&batch).is_none(), "bit {bit}");
            batch[bit / 8] ^= 1 << (bit % 8);
        }
        batch[4096..].fill(0);
        assert!(decode(&batch).is_none());
    }
}
