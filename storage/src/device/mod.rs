//! The device: an array of 4 KiB blocks that keeps what was flushed. All I/O of the engine goes through [`Device`].
//!
//! What every implementation keeps, and the rest of the engine builds on:
//! - offsets and lengths are multiples of 4096; anything else is a bug of the caller and panics;
//! - a read sees every write that returned before it began;
//! - [`Device::flush`] makes durable every write that returned *before the flush was called*, and no other;
//! - [`Device::write_durable`] makes durable its own bytes and **nothing else**: a log batch that refers to data
//!   extents needs a flush for those;
//! - after an error of `write`, `write_many` or `write_durable` the range holds the old bytes, the new ones or any
//!   mixture by 512 bytes;
//! - after an error of `flush` nothing un-flushed may ever be believed durable: the system may have dropped the dirty
//!   pages and would report success the next time. Implementations therefore refuse every later write and flush.

mod buffer;
mod engine;
mod error;
mod faulty;
mod file;
mod memory;
mod recording;
#[cfg(test)]
mod tests;
mod threads;
mod transfer;
mod uring;

pub use buffer::AlignedBuffer;
pub use error::{DeviceError, Operation};
pub use faulty::{Access, Action, FaultCall, FaultRule, FaultyDevice, Operations, RuleId};
pub use file::{Contents, FileDevice, FileOptions, IoEngine, detect};
pub use memory::MemoryDevice;
pub use recording::{CrashImages, Event, RecordingDevice};

use crate::limits::BLOCK_BYTES;
use std::sync::Arc;

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// Byte address on the device.
    pub offset: u64,
    /// What to write.
    pub data: &'a [u8],
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Byte address on the device.
    pub offset: u64,
    /// Filled completely, or the batch fails.
    pub buffer: &'a mut [u8],
}

/// An array of blocks with a flush. See the head of the module for what an implementation keeps.
pub trait Device: Send + Sync {
    /// Usable bytes, a multiple of 4096.
    fn size(&self) -> u64;

    /// Fills `buffer` from `offset`.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data` at `offset`; durable only after a flush.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Writes all requests, in any order and perhaps at once; they must not overlap. On an error some are
    /// written and some are not, and none is in flight any more.
    fn write_many(&self, writes: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        writes.iter().try_for_each(|request| self.write(request.offset, request.data))
    }

    /// Reads all requests, in any order and perhaps at once. On an error the buffers hold anything, and no read is
    /// in flight any more.
    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        reads.iter_mut().try_for_each(|request| self.read(request.offset, request.buffer))
    }

    /// Writes `data` and returns when it is durable. Other writes need not be.
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, data)?;
        self.flush()
    }

    /// Makes every write durable that returned before this call.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the device that the range is not needed: a hint. Afterwards the range reads as anything.
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, offset, length, self.size())
    }

    /// One line for a log or an administrator: what it is, how it is accessed.
    fn describe(&self) -> String;
}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        (**self).write(offset, data)
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        (**self).write_many(writes)
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        (**self).read_many(reads)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        (**self).write_durable(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        (**self).flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        (**self).discard(offset, length)
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}

/// Panics on misalignment (a bug of the caller) and refuses what lies past the end (perhaps a damaged address).
fn check_range(operation: Operation, offset: u64, length: u64, size: u64) -> Result<(), DeviceError> {
    assert!(
        offset.is_multiple_of(BLOCK_BYTES) && length.is_multiple_of(BLOCK_BYTES),
        "{operation} of {length} bytes at {offset} is not in blocks of {BLOCK_BYTES}"
    );
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DeviceError::OutOfRange { operation, offset, length, size }),
    }
}
