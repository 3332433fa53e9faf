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
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Set under the lock of `waiting`, once the write returned.
    written: AtomicBool,
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
        Arc::new(Self {
            address,
            length,
            generation,
            waiting: Mutex::new(Some(Waiting { buffer, blocks })),
            written: AtomicBool::new(false),
        })
    }

    /// Is it on the device (not necessarily flushed)? Never waits. After any [`Self::write_all`] of it returned the answer is
    /// yes, whoever else holds its lock: an fsync that is told so is not told again.
    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire)
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
                write.written.store(true, Ordering::Release);
            }
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;
    use crate::limits::BLOCK;

    /// A commit that only looked at the extent held its lock when the log writer asked, was told "not written", and slept for
    /// ever: whoever wrote it had told it already.
    #[test]
    fn a_written_extent_stays_written_while_somebody_holds_its_lock() {
        let (device, in_flight, cache) =
            (MemoryDevice::new(1 << 20), InFlight::default(), DataCache::new(1 << 20));
        let page = PageBytes::new([7; BLOCK]);
        let buffer = AlignedBuffer::copy_of(&page[..]);
        let write = DataWrite::new(65536, 3, buffer, vec![page], &in_flight);
        assert!(!write.is_written() && in_flight.block(65536, 3).is_some());
        let sink = DataSink { device: &device, in_flight: &in_flight, cache: &cache };
        assert_eq!(DataWrite::write_all(&[Arc::clone(&write)], &sink).expect("written"), BLOCK as u64);
        let held = write.waiting.lock();
        assert!(write.is_written() && in_flight.block(65536, 3).is_none());
        drop(held);
        assert_eq!(DataWrite::write_all(&[write], &sink).expect("nothing to do"), 0);
    }
}
