//! A device in memory: sparse, so that 16 GiB cost only what is written, and cheap to fork, so that a test can keep
//! many states of one device. Everything written counts as durable; [`super::RecordingDevice`] knows what a crash
//! would have left.

use super::{Device, DeviceError, Operation, check_range};
use crate::limits::{BLOCK, BLOCK_BYTES};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Unit of memory, in bytes: what one first write costs.
const CHUNK: usize = 4 * BLOCK;
/// Locks over the chunks, so that parallel writers rarely meet.
const SHARDS: usize = 16;

type Shard = FxHashMap<u64, Arc<[u8]>>;

/// A sparse array of blocks in memory; what was never written reads as zeros.
pub struct MemoryDevice {
    size: u64,
    shards: Vec<RwLock<Shard>>,
}

impl MemoryDevice {
    /// A device of `size` zero bytes; a multiple of 4096.
    pub fn new(size: u64) -> Self {
        assert!(size.is_multiple_of(BLOCK_BYTES), "a device of {size} bytes is not in blocks");
        Self { size, shards: (0..SHARDS).map(|_| RwLock::new(Shard::default())).collect() }
    }

    /// A second device with the same contents, sharing memory until one of them is written. Not a point in time if
    /// somebody writes meanwhile.
    pub fn fork(&self) -> Self {
        let shards = self.shards.iter().map(|shard| RwLock::new(shard.read().clone())).collect();
        Self { size: self.size, shards }
    }

    /// Bytes of memory behind the device, shared ones included.
    pub fn used_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64 * CHUNK as u64).sum()
    }

    /// Puts `data` anywhere, also unaligned: for crash images torn inside a block.
    pub(super) fn put(&self, offset: u64, data: &[u8]) {
        for (chunk, start, range) in pieces(offset, data.len()) {
            let mut shard = self.shard(chunk).write();
            let bytes = shard.entry(chunk).or_insert_with(|| Arc::from(vec![0; CHUNK]));
            let piece = &data[range];
            Arc::make_mut(bytes)[start..start + piece.len()].copy_from_slice(piece);
        }
    }

    fn shard(&self, chunk: u64) -> &RwLock<Shard> {
        &self.shards[(chunk % SHARDS as u64) as usize]
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        check_range(Operation::Read, offset, buffer.len() as u64, self.size)?;
        for (chunk, start, range) in pieces(offset, buffer.len()) {
            let piece = &mut buffer[range];
            match self.shard(chunk).read().get(&chunk) {
                Some(bytes) => piece.copy_from_slice(&bytes[start..start + piece.len()]),
                None => piece.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(Operation::Write, offset, data.len() as u64, self.size)?;
        self.put(offset, data);
        Ok(())
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(Operation::DurableWrite, offset, data.len() as u64, self.size)?;
        self.put(offset, data);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Discarded blocks read as zeros, as a hole of a file would.
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, offset, length, self.size)?;
        for (chunk, start, range) in pieces(offset, length as usize) {
            let mut shard = self.shard(chunk).write();
            if range.len() == CHUNK {
                shard.remove(&chunk);
            } else if let Some(bytes) = shard.get_mut(&chunk) {
                Arc::make_mut(bytes)[start..start + range.len()].fill(0);
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("memory ({} bytes)", self.size)
    }
}

/// Cuts a range at chunk borders: (chunk, first byte within it, range within the request).
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let position = offset + done as u64;
        let start = (position % CHUNK as u64) as usize;
        let count = (CHUNK - start).min(length - done);
        let range = done..done + count;
        done += count;
        Some((position / CHUNK as u64, start, range))
    })
}
