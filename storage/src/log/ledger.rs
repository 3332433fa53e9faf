//! Results of operations that a client may send again (promise S6: a retried request takes effect once).
//!
//! The ledger lives in memory and is rebuilt from the log's records at replay, so a retry after a restart of the
//! server finds its result as long as the record is in the log. Only operations that changed something are here:
//! a refused one changed nothing and may be judged anew. Invariants: bounded per client and in clients; the lowest
//! number goes first, and whoever asks for one that may have gone is told so instead of "never seen".

use crate::limits::{LEDGER_CLIENTS_MAX, LEDGER_ENTRIES_PER_CLIENT};
use crate::types::{InodeNumber, OperationId};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// What a retry is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The client's number of the operation.
    pub sequence: u64,
    /// The inode that the operation made or acted on.
    pub inode: InodeNumber,
    /// A number that the reply needs (bytes written, offset of an append).
    pub detail: u64,
}

/// Results of one client, by number.
#[derive(Debug, Default)]
struct Results {
    entries: VecDeque<LedgerEntry>,
    /// The highest number that was let go of.
    forgotten: u64,
}

/// Results by client.
#[derive(Debug, Default)]
pub struct Ledger {
    clients: FxHashMap<[u8; 16], Results>,
    /// Clients in the order of their first entry.
    order: VecDeque<[u8; 16]>,
}

impl Ledger {
    /// The result of this operation, if it took effect and is remembered.
    pub fn find(&self, id: &OperationId) -> Option<LedgerEntry> {
        let entries = &self.clients.get(&id.client)?.entries;
        // Nearly every operation is new, and numbers grow.
        if entries.back().is_none_or(|newest| newest.sequence < id.sequence) {
            return None;
        }
        let at = entries.binary_search_by_key(&id.sequence, |entry| entry.sequence).ok()?;
        entries.get(at).copied()
    }

    /// Is it unknown whether this operation took effect, because results of its age were let go of?
    pub fn has_expired(&self, id: &OperationId) -> bool {
        let Some(results) = self.clients.get(&id.client) else { return false };
        id.sequence <= results.forgotten && self.find(id).is_none()
    }

    /// Remembers a result.
    pub fn remember(&mut self, id: &OperationId, inode: InodeNumber, detail: u64) {
        let entry = LedgerEntry { sequence: id.sequence, inode, detail };
        if let Some(results) = self.clients.get_mut(&id.client) {
            let entries = &mut results.entries;
            if entries.len() == LEDGER_ENTRIES_PER_CLIENT
                && let Some(oldest) = entries.pop_front()
            {
                results.forgotten = results.forgotten.max(oldest.sequence);
            }
            let after = entries.iter().rev().take_while(|known| known.sequence > entry.sequence).count();
            entries.insert(entries.len() - after, entry);
            return;
        }
        if self.order.len() == LEDGER_CLIENTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.clients.remove(&oldest);
        }
        self.order.push_back(id.client);
        let results = Results { entries: VecDeque::from([entry]), forgotten: 0 };
        self.clients.insert(id.client, results);
    }

    /// Entries in all.
    pub fn len(&self) -> usize {
        self.clients.values().map(|results| results.entries.len()).sum()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(client: u64, sequence: u64) -> OperationId {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&client.to_le_bytes());
        OperationId { client: name, sequence }
    }

    #[test]
    fn bounded_in_entries_and_clients() {
        let mut ledger = Ledger::default();
        for sequence in 0..2 * LEDGER_ENTRIES_PER_CLIENT as u64 {
            ledger.remember(&id(0, sequence), sequence, 7);
        }
        assert_eq!(ledger.len(), LEDGER_ENTRIES_PER_CLIENT);
        assert_eq!(ledger.find(&id(0, 0)), None);
        assert!(ledger.has_expired(&id(0, 0)), "nobody can tell any more");
        let last = 2 * LEDGER_ENTRIES_PER_CLIENT as u64 - 1;
        assert_eq!(ledger.find(&id(0, last)), Some(LedgerEntry { sequence: last, inode: last, detail: 7 }));
        assert!(!ledger.has_expired(&id(0, last)) && !ledger.has_expired(&id(0, last + 1)));
        for client in 1..=LEDGER_CLIENTS_MAX as u64 {
            ledger.remember(&id(client, 1), 5, 0);
        }
        assert_eq!(ledger.find(&id(0, last)), None, "the oldest client went");
        assert!(ledger.find(&id(1, 1)).is_some());
    }

    #[test]
    fn numbers_may_come_in_any_order() {
        let mut ledger = Ledger::default();
        for sequence in [5, 9, 7, 1] {
            ledger.remember(&id(0, sequence), sequence, 0);
        }
        for sequence in [1, 5, 7, 9] {
            assert_eq!(ledger.find(&id(0, sequence)).map(|entry| entry.inode), Some(sequence));
        }
        assert_eq!(ledger.find(&id(0, 6)), None);
        assert!(!ledger.has_expired(&id(0, 6)));
    }
}
