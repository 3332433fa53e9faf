//! Byte permits: who wants to move bytes takes some before its request goes on, and they travel with it.
//!
//! Mailboxes have no bounds, so these are the bounds. Invariants: what is taken is given back exactly once, by dropping the
//! permit; a request larger than a whole budget passes when the budget is empty, so nothing waits for ever; a waiter is
//! registered before it tries again, so no give-back is missed; a tenant always has its guaranteed share, however much of the
//! server's bytes others hold, so that peers that do not read their replies slow their own tenant only (S8).

use crate::limits::TENANT_BYTES_GUARANTEED;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

/// Bytes that may be under way together.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    has_waiters: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
}

impl Budget {
    /// A budget of `limit` bytes, all free.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            has_waiters: AtomicBool::new(false),
            waiters: Mutex::default(),
        })
    }

    /// Bytes taken now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    fn try_take(&self, bytes: u64) -> bool {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                let after = used.saturating_add(bytes);
                (used == 0 || after <= self.limit).then_some(after)
            })
            .is_ok()
    }

    /// Takes bytes beyond the limit: a guaranteed share.
    fn take_over(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::AcqRel);
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "more bytes were given back than taken");
        if self.has_waiters.load(Ordering::Acquire) {
            let mut waiters = self.waiters.lock();
            self.has_waiters.store(false, Ordering::Release);
            waiters.drain(..).for_each(Waker::wake);
        }
    }

    fn wait(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock();
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        self.has_waiters.store(true, Ordering::Release);
    }
}

/// Bytes taken from several budgets at once: the connection's, its tenant's, the server's.
#[derive(Debug)]
pub struct Permit {
    budgets: [Arc<Budget>; 3],
    bytes: u64,
}

impl Permit {
    /// Whether somebody else waits for bytes of this tenant or of the server.
    pub fn is_wanted(&self) -> bool {
        let [_, tenant, server] = &self.budgets;
        tenant.has_waiters.load(Ordering::Acquire) || server.has_waiters.load(Ordering::Acquire)
    }

    /// Takes `bytes` from all, or registers `waker` with the first that has too few and returns `None`.
    pub fn take(budgets: &[Arc<Budget>; 3], bytes: u64, waker: &Waker) -> Option<Self> {
        for (index, budget) in budgets.iter().enumerate() {
            if budget.try_take(bytes) {
                continue;
            }
            // The server's turn comes last, when the tenant's use includes these bytes.
            if index == 2 && budgets[1].used() <= TENANT_BYTES_GUARANTEED {
                budget.take_over(bytes);
                continue;
            }
            budget.wait(waker);
            if budget.try_take(bytes) {
                continue;
            }
            budgets.iter().take(index).for_each(|taken| taken.give_back(bytes));
            return None;
        }
        Some(Self { budgets: budgets.clone(), bytes })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budgets.iter().for_each(|budget| budget.give_back(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_tenant_has_its_share_of_a_server_that_others_fill() {
        let server = Budget::new(TENANT_BYTES_GUARANTEED);
        let budgets = || [Budget::new(u64::MAX), Budget::new(u64::MAX), Arc::clone(&server)];
        let greedy = Permit::take(&budgets(), 2 * TENANT_BYTES_GUARANTEED, Waker::noop()).expect("free");
        let modest = budgets();
        let first = Permit::take(&modest, TENANT_BYTES_GUARANTEED, Waker::noop()).expect("guaranteed");
        assert!(!first.is_wanted());
        assert!(Permit::take(&modest, 1, Waker::noop()).is_none(), "more than the share");
        assert!(first.is_wanted() && greedy.is_wanted());
        drop((first, greedy));
        assert_eq!(server.used(), 0);
    }

    #[test]
    fn whoever_waits_is_woken_and_nothing_is_taken_meanwhile() {
        let small = Budget::new(10);
        let large = Budget::new(100);
        let budgets = [Arc::clone(&large), Arc::clone(&small), Budget::new(100)];
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let first = Permit::take(&budgets, 8, &waker).expect("free");
        assert!(Permit::take(&budgets, 8, &waker).is_none());
        assert_eq!((large.used(), small.used()), (8, 8), "a refused take leaves nothing behind");
        drop(first);
        assert_eq!((woken.0.load(Ordering::Relaxed), small.used(), large.used()), (1, 0, 0));
        // Larger than the budget: alone it passes.
        assert!(Permit::take(&budgets, 1000, &waker).is_some());
    }
}
