//! A device that misbehaves on command: errors, delays, flipped bits, a device that stays failed, a power cut.
//!
//! Rules are added and removed while the store runs. Every access is shown to the rules in the order they were added;
//! all delays apply, the first error wins. A batch is a sequence of accesses: what precedes the failing one is done.

use super::{Device, DeviceError, Operation, ReadRequest, WriteRequest};
use parking_lot::RwLock;
use std::fmt;
use std::io;
use std::ops::{BitOr, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

/// A set of kinds of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations(u8);

impl Operations {
    /// Reads.
    pub const READS: Self = Self(1);
    /// Writes that wait for a flush.
    pub const PLAIN_WRITES: Self = Self(2);
    /// Writes that are durable at their return.
    pub const DURABLE_WRITES: Self = Self(4);
    /// All writes.
    pub const WRITES: Self = Self(2 | 4);
    /// Flushes.
    pub const FLUSHES: Self = Self(8);
    /// Discards.
    pub const DISCARDS: Self = Self(16);
    /// Everything.
    pub const ALL: Self = Self(31);

    fn contains(self, operation: Operation) -> bool {
        let bit = match operation {
            Operation::Read => Self::READS,
            Operation::Write => Self::PLAIN_WRITES,
            Operation::DurableWrite => Self::DURABLE_WRITES,
            Operation::Flush => Self::FLUSHES,
            Operation::Discard => Self::DISCARDS,
        };
        self.0 & bit.0 != 0
    }
}

impl BitOr for Operations {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One access, as rules see it. Offset and length are 0 for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is being done.
    pub operation: Operation,
    /// Byte address.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Runs before an access (also to block it on a barrier); an error is returned in its place.
pub type FaultCall = Arc<dyn Fn(&Access) -> Result<(), DeviceError> + Send + Sync>;

/// What a rule does to an access.
#[derive(Clone)]
pub enum Action {
    /// The access is not done and fails with this errno.
    Fail(i32),
    /// The access is done and fails all the same: the caller cannot know.
    FailAfterDoing(i32),
    /// The access waits first.
    Delay(Duration),
    /// Reads that contain this byte see bit `bit` (0-7) of it flipped; the medium is unchanged.
    FlipBit {
        /// Byte address on the device.
        byte: u64,
        /// 0-7.
        bit: u8,
    },
    /// This access and every later write and flush fail with this errno; reads work.
    FailForGood(i32),
    /// This access and everything later fails.
    PowerCut,
    /// Asks a closure.
    Call(FaultCall),
}

impl fmt::Debug for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail(errno) => write!(formatter, "Fail({errno})"),
            Self::FailAfterDoing(errno) => write!(formatter, "FailAfterDoing({errno})"),
            Self::Delay(time) => write!(formatter, "Delay({time:?})"),
            Self::FlipBit { byte, bit } => write!(formatter, "FlipBit({byte}, {bit})"),
            Self::FailForGood(errno) => write!(formatter, "FailForGood({errno})"),
            Self::PowerCut => formatter.write_str("PowerCut"),
            Self::Call(_) => formatter.write_str("Call"),
        }
    }
}

/// When to do what. By default: every access of the kinds given, anywhere, for ever.
#[derive(Clone, Debug)]
pub struct FaultRule {
    operations: Operations,
    range: Range<u64>,
    skip: u64,
    times: u64,
    action: Action,
}

impl FaultRule {
    /// `action` on every access of these kinds.
    pub fn new(operations: Operations, action: Action) -> Self {
        Self { operations, range: 0..u64::MAX, skip: 0, times: u64::MAX, action }
    }

    /// Only accesses that touch these bytes. Flushes touch everything.
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Leaves the first `count` matching accesses alone: `skip(2)` begins at the third.
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Acts at most `count` times.
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    fn matches(&self, access: &Access) -> bool {
        self.operations.contains(access.operation)
            && (access.operation == Operation::Flush
                || (access.offset < self.range.end && self.range.start < access.offset + access.length))
    }
}

/// Names a rule, to remove it or to ask how often it acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

struct ActiveRule {
    id: RuleId,
    rule: FaultRule,
    seen: AtomicU64,
    acted: AtomicU64,
}

/// Wraps a device and lets rules spoil its accesses. Share it as an `Arc`.
pub struct FaultyDevice<D> {
    inner: D,
    rules: RwLock<Vec<Arc<ActiveRule>>>,
    next_id: AtomicU64,
    power_is_cut: AtomicBool,
    /// errno of every write and flush; 0 = none.
    failed_for_good: AtomicI32,
}

/// What the rules decided about one access.
#[derive(Default)]
struct Verdict {
    error_after: Option<DeviceError>,
    flips: Vec<(u64, u8)>,
}

impl<D: Device> FaultyDevice<D> {
    /// A device that behaves like `inner` until rules are added.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            rules: RwLock::new(Vec::new()),
            next_id: AtomicU64::new(0),
            power_is_cut: AtomicBool::new(false),
            failed_for_good: AtomicI32::new(0),
        }
    }

    /// The device behind.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Adds a rule; it applies from the next access on.
    pub fn add(&self, rule: FaultRule) -> RuleId {
        let id = RuleId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (seen, acted) = (AtomicU64::new(0), AtomicU64::new(0));
        self.rules.write().push(Arc::new(ActiveRule { id, rule, seen, acted }));
        id
    }

    /// Removes a rule; no error if it is gone.
    pub fn remove(&self, id: RuleId) {
        self.rules.write().retain(|active| active.id != id);
    }

    /// Removes all rules. A power cut or a latched failure stays.
    pub fn clear(&self) {
        self.rules.write().clear();
    }

    /// How often a rule has acted; 0 when it is gone.
    pub fn acted(&self, id: RuleId) -> u64 {
        let rules = self.rules.read();
        rules.iter().find(|active| active.id == id).map_or(0, |active| active.acted.load(Ordering::SeqCst))
    }

    /// From now on everything fails.
    pub fn cut_power(&self) {
        self.power_is_cut.store(true, Ordering::SeqCst);
    }

    /// Ends a power cut and a latched failure.
    pub fn restore(&self) {
        self.power_is_cut.store(false, Ordering::SeqCst);
        self.failed_for_good.store(0, Ordering::SeqCst);
    }

    fn judge(&self, access: &Access) -> Result<Verdict, DeviceError> {
        let fail = |errno| error(access, io::Error::from_raw_os_error(errno));
        let mut verdict = Verdict::default();
        // Rules run without the lock: a delay or a blocked closure must not keep a test from changing the rules.
        let rules = self.rules.read().clone();
        for active in rules.iter().filter(|active| active.rule.matches(access)) {
            let seen = active.seen.fetch_add(1, Ordering::SeqCst);
            if seen < active.rule.skip || seen - active.rule.skip >= active.rule.times {
                continue;
            }
            active.acted.fetch_add(1, Ordering::SeqCst);
            match &active.rule.action {
                Action::Fail(errno) => return Err(fail(*errno)),
                Action::FailAfterDoing(errno) => {
                    verdict.error_after.get_or_insert(fail(*errno));
                }
                // A test device sleeps for real: the engine itself has no clock.
                Action::Delay(time) => std::thread::sleep(*time),
                Action::FlipBit { byte, bit } => verdict.flips.push((*byte, *bit)),
                Action::FailForGood(errno) => {
                    self.failed_for_good.store(*errno, Ordering::SeqCst);
                    return Err(fail(*errno));
                }
                Action::PowerCut => self.cut_power(),
                Action::Call(call) => call(access)?,
            }
        }
        if self.power_is_cut.load(Ordering::SeqCst) {
            return Err(error(access, io::Error::other("the power is cut")));
        }
        match self.failed_for_good.load(Ordering::SeqCst) {
            errno if errno != 0 && access.operation != Operation::Read => Err(fail(errno)),
            _ => Ok(verdict),
        }
    }

    /// Judges an access without data of the caller's to change, does it, and reports what the verdict says.
    fn run(&self, access: Access, act: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let verdict = self.judge(&access)?;
        act()?;
        verdict.error_after.map_or(Ok(()), Err)
    }
}

fn error(access: &Access, source: io::Error) -> DeviceError {
    DeviceError::io(access.operation, access.offset, access.length as usize, source)
}

impl<D: Device> Device for FaultyDevice<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length = buffer.len() as u64;
        let verdict = self.judge(&Access { operation: Operation::Read, offset, length })?;
        self.inner.read(offset, buffer)?;
        for (byte, bit) in verdict.flips {
            if let Some(target) = byte.checked_sub(offset).and_then(|index| buffer.get_mut(index as usize)) {
                *target ^= 1 << (bit % 8);
            }
        }
        verdict.error_after.map_or(Ok(()), Err)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let access = Access { operation: Operation::Write, offset, length: data.len() as u64 };
        self.run(access, || self.inner.write(offset, data))
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        if self.rules.read().is_empty()
            && !self.power_is_cut.load(Ordering::SeqCst)
            && self.failed_for_good.load(Ordering::SeqCst) == 0
        {
            return self.inner.write_many(writes);
        }
        writes.iter().try_for_each(|request| self.write(request.offset, request.data))
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        if self.rules.read().is_empty() && !self.power_is_cut.load(Ordering::SeqCst) {
            return self.inner.read_many(reads);
        }
        reads.iter_mut().try_for_each(|request| self.read(request.offset, request.buffer))
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let access = Access { operation: Operation::DurableWrite, offset, length: data.len() as u64 };
        self.run(access, || self.inner.write_durable(offset, data))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let access = Access { operation: Operation::Flush, offset: 0, length: 0 };
        self.run(access, || self.inner.flush())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.run(Access { operation: Operation::Discard, offset, length }, || {
            self.inner.discard(offset, length)
        })
    }

    fn describe(&self) -> String {
        format!("faulty {}", self.inner.describe())
    }
}
