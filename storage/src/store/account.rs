//! What a subvolume or a tenant uses, and what it may use. Charged by the operation itself, before its reply.
//!
//! Invariants: usage never exceeds a limit by an operation that grows it (a limit may be set below the usage; then
//! only shrinking works); shrinking always works; the sums of all subvolumes of a tenant equal the tenant's.

use crate::error::FsError;
use crate::types::{Limits, Usage};
use std::sync::atomic::{AtomicU64, Ordering};

const UNLIMITED: u64 = u64::MAX;

/// Usage and limits, shared between threads.
#[derive(Debug)]
pub struct Account {
    bytes: AtomicU64,
    inodes: AtomicU64,
    max_bytes: AtomicU64,
    max_inodes: AtomicU64,
}

impl Account {
    /// An account in this state.
    pub fn new(usage: Usage, limits: Limits) -> Self {
        Self {
            bytes: AtomicU64::new(usage.bytes),
            inodes: AtomicU64::new(usage.inodes),
            max_bytes: AtomicU64::new(limits.max_bytes.unwrap_or(UNLIMITED)),
            max_inodes: AtomicU64::new(limits.max_inodes.unwrap_or(UNLIMITED)),
        }
    }

    /// In use now.
    pub fn usage(&self) -> Usage {
        Usage { bytes: self.bytes.load(Ordering::Acquire), inodes: self.inodes.load(Ordering::Acquire) }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        let some = |limit: u64| (limit != UNLIMITED).then_some(limit);
        Limits {
            max_bytes: some(self.max_bytes.load(Ordering::Acquire)),
            max_inodes: some(self.max_inodes.load(Ordering::Acquire)),
        }
    }

    /// Sets the limits; they may be below the usage.
    pub fn set_limits(&self, limits: Limits) {
        self.max_bytes.store(limits.max_bytes.unwrap_or(UNLIMITED), Ordering::Release);
        self.max_inodes.store(limits.max_inodes.unwrap_or(UNLIMITED), Ordering::Release);
    }

    /// Charges a change; refused as a whole if it grows what is over its limit then. `enforce` is off for what must not
    /// fail: replay of operations that were accepted before.
    pub fn charge(&self, bytes: i64, inodes: i64, enforce: bool) -> Result<(), FsError> {
        change(&self.bytes, &self.max_bytes, bytes, enforce).map_err(|()| FsError::QuotaBytes)?;
        if change(&self.inodes, &self.max_inodes, inodes, enforce).is_err() {
            change(&self.bytes, &self.max_bytes, -bytes, false).expect("taking back is never refused");
            return Err(FsError::QuotaInodes);
        }
        Ok(())
    }
}

fn change(used: &AtomicU64, limit: &AtomicU64, by: i64, enforce: bool) -> Result<(), ()> {
    if by == 0 {
        return Ok(());
    }
    if by < 0 {
        let before = used.fetch_sub(by.unsigned_abs(), Ordering::AcqRel);
        assert!(before >= by.unsigned_abs(), "more was given back than was in use");
        return Ok(());
    }
    let limit = if enforce { limit.load(Ordering::Acquire) } else { UNLIMITED };
    let grow = by.unsigned_abs();
    used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
        used.checked_add(grow).filter(|&after| after <= limit)
    })
    .map(|_| ())
    .map_err(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_stops_at_the_limit_and_shrinking_always_works() {
        let limits = Limits { max_bytes: Some(8192), max_inodes: Some(1) };
        let account = Account::new(Usage::default(), limits);
        assert_eq!(account.charge(8192, 1, true), Ok(()));
        assert_eq!(account.charge(4096, 0, true), Err(FsError::QuotaBytes));
        assert_eq!(account.charge(-4096, 1, true), Err(FsError::QuotaInodes));
        assert_eq!(account.usage(), Usage { bytes: 8192, inodes: 1 }, "a refused charge changes nothing");
        account.set_limits(Limits { max_bytes: Some(0), max_inodes: None });
        assert_eq!(account.charge(-4096, 0, true), Ok(()));
        assert_eq!(account.charge(1, 0, true), Err(FsError::QuotaBytes));
        assert_eq!(account.charge(4096, 0, false), Ok(()));
    }
}
