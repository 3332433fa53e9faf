//! File data on its way to the device.
//!
//! From the moment a dirty page becomes part of an extent until the extent is written, the device does not hold what
//! the tree promises. Until then reads find the block in [`InFlight`]. An extent may be written by whoever needs it
//! first: background writeback, the log writer (an fsync refers to it) or the committer. Invariants: it is written
//! once; its blocks leave [`InFlight`] after the write returned and after they entered the data cache.

use crate::device::{AlignedBuffer, Device, DeviceError, WriteRequest};
use crate::fs::data_cache::DataCache;
use crate::fs::plan::PageBytes;
use crate::limits::BLOCK_BYTES;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Blocks of extents that are not written yet, by (address, generation).
#[derive(Default)]
pub struct InFlight {
    blocks: Mutex<FxHashMap<(u64, u64), PageBytes>>,
}

impl InFlight {
    /// The block, if it is on its way.
    pub fn block(&self, address: u64, generation: u64) -> Option<PageBytes> {
        self.blocks.lock().get(&(address, generation)).cloned()
    }

    /// Bytes on their way.
    pub fn bytes(&self) -> u64 {
        self.blocks.lock().len() as u64 * BLOCK_BYTES
    }

    fn insert(&self, address: u64, generation: u64, blocks: &[PageBytes]) {
        let mut map = self.blocks.lock();
        for (index, block) in blocks.iter().enumerate() {
            map.insert((address + index as u64 * BLOCK_BYTES, generation), Arc::clone(block));
        }
    }

    fn remove(&self, address: u64, generation: u64, count: usize) {
        let mut map = self.blocks.lock();
        for index in 0..count as u64 {
            map.remove(&(address + index * BLOCK_BYTES, generation));
        }
    }
}

/// An extent to be written once.
pub struct DataWrite {
    /// Device address.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Transaction that it belongs to.
    pub generation: u64,
    waiting: Mutex<Option<Waiting>>,
}

impl std::fmt::Debug for DataWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataWrite").field("address", &self.address).field("length", &self.length).finish()
    }
}

struct Waiting {
    buffer: AlignedBuffer,
    blocks: Vec<PageBytes>,
}

/// Where extents go.
pub struct DataSink<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// Blocks that are not written yet.
    pub in_flight: &'a InFlight,
    /// Blocks that are.
    pub cache: &'a DataCache,
}

impl DataWrite {
    /// An extent whose blocks are readable from now on.
    pub fn new(
        address: u64,
        generation: u64,
        buffer: AlignedBuffer,
        blocks: Vec<PageBytes>,
        in_flight: &InFlight,
    ) -> Arc<Self> {
        in_flight.insert(address, generation, &blocks);
        let length = buffer.len() as u64;
        Arc::new(Self { address, length, generation, waiting: Mutex::new(Some(Waiting { buffer, blocks })) })
    }

    /// Is it on the device (not necessarily flushed)? Never waits: while it is being written the answer is no.
    pub fn is_written(&self) -> bool {
        self.waiting.try_lock().is_some_and(|waiting| waiting.is_none())
    }

    /// Writes all of these that are not written yet; returns the bytes written.
    pub fn write_all(writes: &[Arc<Self>], sink: &DataSink<'_>) -> Result<u64, DeviceError> {
        let mut total = 0;
        // In address order, so that two threads with overlapping lists take the locks in one order.
        let mut ordered: Vec<&Arc<Self>> = writes.iter().collect();
        ordered.sort_unstable_by_key(|write| (write.address, write.generation));
        ordered.dedup_by_key(|write| (write.address, write.generation));
        for chunk in ordered.chunks(256) {
            let mut guards: Vec<_> = chunk.iter().map(|write| (*write, write.waiting.lock())).collect();
            guards.retain(|(_, waiting)| waiting.is_some());
            let requests: Vec<WriteRequest<'_>> = guards
                .iter()
                .filter_map(|(write, waiting)| {
                    let data: &[u8] = &waiting.as_ref()?.buffer;
                    Some(WriteRequest { offset: write.address, data })
                })
                .collect();
            if requests.is_empty() {
                continue;
            }
            sink.device.write_many(&requests)?;
            total += requests.iter().map(|request| request.data.len() as u64).sum::<u64>();
            drop(requests);
            for (write, mut waiting) in guards {
                let Some(Waiting { blocks, .. }) = waiting.take() else { continue };
                for (index, block) in blocks.iter().enumerate() {
                    let address = write.address + index as u64 * BLOCK_BYTES;
                    sink.cache.insert(address, write.generation, Arc::clone(block));
                }
                sink.in_flight.remove(write.address, write.generation, blocks.len());
            }
        }
        Ok(total)
    }
}
