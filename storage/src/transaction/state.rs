//! The states of a transaction and the legal steps between them.
//!
//! ```text
//! Running ─► Freezing ─► Writing ─► SuperDurable ─► Complete
//!                │           │
//!                └───────────┴────► Aborted (for ever)
//! ```
//! There is no way from `SuperDurable` to `Aborted`: what is durable is durable. An aborted transaction latches the
//! store; the next state of the store is found by opening it again.

/// Where a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionState {
    /// Subvolumes join it.
    Running,
    /// Newcomers join the next one; those in it hand over their state.
    Freezing,
    /// All state is handed over and being written.
    Writing,
    /// The superblock is durable; what it freed is being unpinned.
    SuperDurable,
    /// Everybody was told.
    Complete,
    /// The device failed.
    Aborted,
}

use TransactionState::{Aborted, Complete, Freezing, Running, SuperDurable, Writing};

/// Every legal step.
pub const LEGAL_STEPS: [(TransactionState, TransactionState); 6] = [
    (Running, Freezing),
    (Freezing, Writing),
    (Freezing, Aborted),
    (Writing, SuperDurable),
    (Writing, Aborted),
    (SuperDurable, Complete),
];

impl TransactionState {
    /// Goes to `next`; an illegal step is a bug and panics.
    pub fn step(&mut self, next: Self) {
        assert!(LEGAL_STEPS.contains(&(*self, next)), "illegal step of a transaction: {self:?} to {next:?}");
        *self = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_a_transaction() {
        let mut state = Running;
        for next in [Freezing, Writing, SuperDurable, Complete] {
            state.step(next);
        }
    }

    #[test]
    #[should_panic(expected = "illegal step")]
    fn what_is_durable_is_never_aborted() {
        let mut state = SuperDurable;
        state.step(Aborted);
    }
}
