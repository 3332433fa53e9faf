//! [`Tracker`]: the changes that no fsync has covered, as the newest ticket of each life (epoch) of the volume.
//!
//! Invariant: a ticket of an old epoch is only forgotten when the server confirmed it or when its loss was reported. A newer ticket
//! never hides it: otherwise a write after a restart would make the loss before it invisible, and an fsync would claim too much (S6).

use smallvec::SmallVec;
use subvol_protocol::attributes::Lineage;

/// By epoch, ascending; one per epoch. More than one only after a restart of the server, so it stays inline.
#[derive(Debug, Default)]
pub(super) struct Tracker(SmallVec<[Lineage; 1]>);

impl Tracker {
    pub fn add(&mut self, ticket: Lineage) {
        match self.0.binary_search_by_key(&ticket.epoch, |kept| kept.epoch) {
            Ok(at) => {
                if let Some(kept) = self.0.get_mut(at) {
                    *kept = ticket.max(*kept);
                }
            }
            Err(at) => self.0.insert(at, ticket),
        }
    }

    /// What to present: the oldest epoch's, since that is the one that may have been lost.
    pub fn oldest(&self) -> Option<Lineage> {
        self.0.first().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The server confirmed `presented` and made everything up to `durable` durable.
    pub fn settle(&mut self, presented: Option<Lineage>, durable: Lineage) {
        let covered = |ticket: &Lineage, by: Lineage| ticket.epoch == by.epoch && *ticket <= by;
        self.0.retain(|ticket| {
            !(covered(ticket, durable) || presented.is_some_and(|presented| covered(ticket, presented)))
        });
    }

    /// The loss of `presented`, and with it of whatever came before the epoch `current`, has been reported.
    pub fn forget_lost(&mut self, presented: Lineage, current: u64) {
        self.0.retain(|ticket| ticket.epoch >= current && *ticket > presented);
    }

    /// Something of an epoch before `current` is still to be checked.
    pub fn has_older_than(&self, current: u64) -> bool {
        self.oldest().is_some_and(|oldest| oldest.epoch < current)
    }
}

/// The one to present of two: the older epoch's, within an epoch the newer.
pub(super) fn to_present(a: Option<Lineage>, b: Option<Lineage>) -> Option<Lineage> {
    match (a, b) {
        (Some(a), Some(b)) if a.epoch == b.epoch => Some(a.max(b)),
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(epoch: u64, log_transid: u64) -> Lineage {
        Lineage { epoch, transid: 1, log_transid }
    }

    #[test]
    fn a_newer_life_does_not_hide_an_older_ticket() {
        let mut tracker = Tracker::default();
        tracker.add(at(1, 7));
        tracker.add(at(1, 5));
        tracker.add(at(2, 1));
        assert_eq!(tracker.oldest(), Some(at(1, 7)));
        tracker.settle(None, at(2, 9));
        assert_eq!(tracker.oldest(), Some(at(1, 7)), "a success of the new life says nothing about the old");
        tracker.settle(Some(at(1, 7)), at(2, 9));
        assert!(tracker.is_empty());
    }

    #[test]
    fn a_change_after_the_fsync_was_sent_stays() {
        let mut tracker = Tracker::default();
        tracker.add(at(1, 7));
        tracker.settle(Some(at(1, 6)), at(1, 6));
        assert_eq!(tracker.oldest(), Some(at(1, 7)));
    }

    #[test]
    fn a_reported_loss_is_forgotten_with_all_before_it() {
        let mut tracker = Tracker::default();
        tracker.add(at(1, 7));
        tracker.add(at(2, 3));
        tracker.add(at(3, 1));
        tracker.forget_lost(at(1, 7), 3);
        assert_eq!(tracker.oldest(), Some(at(3, 1)));
        assert!(!tracker.has_older_than(3));
    }

    #[test]
    fn of_two_the_older_life_is_presented() {
        assert_eq!(to_present(Some(at(1, 9)), Some(at(2, 1))), Some(at(1, 9)));
        assert_eq!(to_present(Some(at(2, 1)), Some(at(2, 4))), Some(at(2, 4)));
        assert_eq!(to_present(None, Some(at(2, 4))), Some(at(2, 4)));
    }
}
