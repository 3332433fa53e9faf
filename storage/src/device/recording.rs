//! A device that remembers every write and flush, and builds the states a power cut could have left.
//!
//! # Fault model
//! A crash at event `n` means: the events before `n` have returned to their callers, event `n` itself was in flight,
//! the later ones never happened.
//! 1. Writes followed by a completed flush before the crash are present, whole.
//! 2. A completed durable write is present, whole. It vouches for itself only: plain writes before it stay unsafe.
//! 3. Every other write since the last completed flush (and the one in flight, durable or not) may be present, absent
//!    or torn, independently of its order: the device may keep them back or write them in any order.
//! 4. The unit of tearing is a block of 4096 bytes; inside one of the writes per crash it is a sector of 512 bytes.
//!    A sector is old or new, never a mixture and never unreadable.
//! 5. Two writes to one sector are not reordered: when the later is present, the earlier is not seen.
//! 6. A discard counts as a write of zeros.
//!
//! Not modelled: devices that acknowledge a flush and lose it, misdirected writes, bit rot (see
//! [`super::FaultyDevice`] for flipped bits). A flush that runs *at the same time* as a write of another thread is
//! recorded as one before the other, so tests that search for such races must run single-threaded and interleave by
//! themselves.

use super::{Device, DeviceError, MemoryDevice, Operation, ReadRequest, WriteRequest, check_range};
use crate::limits::BLOCK;
use parking_lot::Mutex;
use std::sync::Arc;

/// Smallest unit that a device writes whole, in bytes.
const SECTOR: usize = 512;

/// What reached the device, in order. Clones share the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A plain write.
    Write {
        /// Byte address.
        offset: u64,
        /// What was written.
        data: Arc<[u8]>,
    },
    /// A write that vouches for itself.
    DurableWrite {
        /// Byte address.
        offset: u64,
        /// What was written.
        data: Arc<[u8]>,
    },
    /// Everything before is durable.
    Flush,
    /// A range that is not needed.
    Discard {
        /// Byte address.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

/// A memory device that records. Share it as an `Arc`: a store writes while the test asks for images.
pub struct RecordingDevice {
    now: MemoryDevice,
    state: Mutex<Recording>,
}

struct Recording {
    /// Contents before the first event; all durable.
    base: MemoryDevice,
    events: Vec<Event>,
    /// The state after the first `.0` events, all applied: spares a sweep over all crash points the quadratic cost.
    applied: (usize, MemoryDevice),
}

impl RecordingDevice {
    /// Records on top of `start`, whose contents count as durable.
    pub fn new(start: MemoryDevice) -> Self {
        let state = Recording { base: start.fork(), events: Vec::new(), applied: (0, start.fork()) };
        Self { now: start, state: Mutex::new(state) }
    }

    /// Number of events so far: the crash point "everything has returned, nothing is in flight".
    pub fn position(&self) -> usize {
        self.state.lock().events.len()
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Event> {
        self.state.lock().events.clone()
    }

    /// Forgets the events; the present contents count as durable. Positions start at 0 again.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        *state = Recording { base: self.now.fork(), events: Vec::new(), applied: (0, self.now.fork()) };
    }

    /// The device with all events before `at` and no other: what a kill of the process leaves.
    pub fn image_at(&self, at: usize) -> MemoryDevice {
        self.state.lock().applied_until(at).fork()
    }

    /// One state that a crash at event `at` may leave, chosen by `seed`; the same seed gives the same image. Seeds
    /// 0 and 1 give the extremes: nothing that was not durable, and everything.
    pub fn crash_image(&self, at: usize, seed: u64) -> MemoryDevice {
        let mut state = self.state.lock();
        assert!(at <= state.events.len(), "there are {} events, no crash point {at}", state.events.len());
        let flushed =
            state.events[..at].iter().rposition(|event| *event == Event::Flush).map_or(0, |index| index + 1);
        let image = state.applied_until(flushed).fork();
        let in_flight = (at + 1).min(state.events.len());
        let open = &state.events[flushed..in_flight];
        let optional: Vec<bool> = (flushed..in_flight)
            .zip(open)
            .map(|(index, event)| match event {
                Event::Write { .. } | Event::Discard { .. } => true,
                Event::DurableWrite { .. } => index == at,
                Event::Flush => false,
            })
            .collect();
        let mut chooser = Chooser::new(seed, at, optional.iter().filter(|&&optional| optional).count());
        for (event, &optional) in open.iter().zip(&optional) {
            if optional {
                let number = chooser.next_write();
                event.for_each_piece(|index, offset, piece| {
                    if chooser.keeps(number, index) {
                        image.put(offset, piece);
                    }
                });
            } else {
                event.apply(&image);
            }
        }
        image
    }

    /// `count` states that a crash at event `at` may leave, the two extremes first.
    pub fn crash_images(&self, at: usize, count: u64) -> CrashImages<'_> {
        CrashImages { device: self, at, seeds: 0..count }
    }

    fn record(&self, event: Event) {
        let mut state = self.state.lock();
        event.apply(&self.now);
        state.events.push(event);
    }
}

/// Iterator of [`RecordingDevice::crash_images`].
pub struct CrashImages<'a> {
    device: &'a RecordingDevice,
    at: usize,
    seeds: std::ops::Range<u64>,
}

impl Iterator for CrashImages<'_> {
    type Item = MemoryDevice;

    fn next(&mut self) -> Option<MemoryDevice> {
        self.seeds.next().map(|seed| self.device.crash_image(self.at, seed))
    }
}

impl Recording {
    fn applied_until(&mut self, at: usize) -> &MemoryDevice {
        assert!(at <= self.events.len(), "there are {} events, no image {at}", self.events.len());
        if self.applied.0 > at {
            self.applied = (0, self.base.fork());
        }
        let (done, image) = &mut self.applied;
        self.events[*done..at].iter().for_each(|event| event.apply(image));
        *done = at;
        image
    }
}

impl Event {
    fn apply(&self, device: &MemoryDevice) {
        match self {
            Self::Write { offset, data } | Self::DurableWrite { offset, data } => device.put(*offset, data),
            Self::Flush => {}
            Self::Discard { offset, length } => {
                device.discard(*offset, *length).expect("the range was checked when it was recorded");
            }
        }
    }

    /// Calls `visit(sector index within the event, offset, bytes)` for every sector.
    fn for_each_piece(&self, mut visit: impl FnMut(usize, u64, &[u8])) {
        match self {
            Self::Write { offset, data } | Self::DurableWrite { offset, data } => {
                for (index, piece) in data.chunks(SECTOR).enumerate() {
                    visit(index, offset + (index * SECTOR) as u64, piece);
                }
            }
            Self::Discard { offset, length } => {
                for index in 0..*length as usize / SECTOR {
                    visit(index, offset + (index * SECTOR) as u64, &[0; SECTOR]);
                }
            }
            Self::Flush => {}
        }
    }
}

/// Which parts of the optional writes survive. Each pattern is one a real device shows; blind coin tosses alone would
/// hardly ever produce "all but one" among hundreds of writes.
enum Pattern {
    Nothing,
    Everything,
    /// Whole writes by a coin.
    SomeWrites,
    /// Blocks by a coin, the chosen write by sectors.
    SomeBlocks,
    /// In order up to the chosen write, which is torn by sectors.
    TornPrefix,
    /// Only the chosen write is missing.
    AllButOne,
    /// Only the chosen write made it.
    OnlyOne,
}

struct Chooser {
    pattern: Pattern,
    seed: u64,
    /// The write that the pattern singles out.
    chosen: usize,
    next: usize,
}

impl Chooser {
    fn new(seed: u64, at: usize, writes: usize) -> Self {
        let mixed = mix(seed ^ mix(at as u64));
        let pattern = match seed {
            0 => Pattern::Nothing,
            1 => Pattern::Everything,
            _ => match seed % 5 {
                2 => Pattern::TornPrefix,
                3 => Pattern::SomeBlocks,
                4 => Pattern::AllButOne,
                0 => Pattern::SomeWrites,
                _ => Pattern::OnlyOne,
            },
        };
        Self { pattern, seed: mixed, chosen: (mix(mixed) % writes.max(1) as u64) as usize, next: 0 }
    }

    fn next_write(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    fn keeps(&self, write: usize, sector: usize) -> bool {
        let coin = |unit: usize| mix(self.seed ^ mix((write as u64) << 32 | unit as u64)) & 1 == 1;
        let chosen = write == self.chosen;
        match self.pattern {
            Pattern::Nothing => false,
            Pattern::Everything => true,
            Pattern::SomeWrites => coin(0),
            Pattern::SomeBlocks if chosen => coin(sector),
            Pattern::SomeBlocks => coin(sector / (BLOCK / SECTOR)),
            Pattern::TornPrefix if chosen => coin(sector),
            Pattern::TornPrefix => write < self.chosen,
            Pattern::AllButOne => !chosen,
            Pattern::OnlyOne => chosen,
        }
    }
}

/// A well-mixed function of 64 bits (the finaliser of splitmix64): the engine has no source of randomness of its own.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Device for RecordingDevice {
    fn size(&self) -> u64 {
        self.now.size()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.now.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(Operation::Write, offset, data.len() as u64, self.size())?;
        self.record(Event::Write { offset, data: data.into() });
        Ok(())
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        writes.iter().try_for_each(|request| self.write(request.offset, request.data))
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        self.now.read_many(reads)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(Operation::DurableWrite, offset, data.len() as u64, self.size())?;
        self.record(Event::DurableWrite { offset, data: data.into() });
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.record(Event::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, offset, length, self.size())?;
        self.record(Event::Discard { offset, length });
        Ok(())
    }

    fn describe(&self) -> String {
        format!("recording {}", self.now.describe())
    }
}
