//! Who keeps what of a volume: the table behind leases, without actors or sockets, so that its rules can be tested alone.
//!
//! A *lease client* has one of 64 slots. Of each inode two masks of slots are kept: `leased` (may keep attributes, names, data) and `known`
//! (its kernel may still refer to the inode, named or not). States of a client:
//!
//! | state | meaning | leaves it by |
//! |---|---|---|
//! | `Live` | its connection is there | end of the connection, fencing |
//! | `Silent` | the connection ended without a word; it may still use what it kept | time: `Away`; return: `Live` |
//! | `Away` | it has no leases any more; inodes and locks are still its own | time: gone; return: `Live` |
//!
//! Invariants: a change is answered only when nobody but its author may keep what it made untrue ([`LeaseTable::recall`]); an inode without
//! masks is not in the table; a recall belongs to one client and one group, and a group is done when its last recall is.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use subvol_protocol::response::RecallTarget;
use subvol_storage::types::InodeNumber;

/// Number of a lease client, 0 to 63.
pub type Slot = u8;
/// Lease clients of one volume at a time.
pub const SLOTS: usize = 64;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// See the module.
    Live,
    /// See the module.
    Silent,
    /// See the module.
    Away,
}

impl ClientState {
    /// Whether this state may follow that one.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Live, Self::Silent | Self::Away | Self::Live)
                | (Self::Silent, Self::Away | Self::Live)
                | (Self::Away, Self::Live)
        )
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Masks {
    leased: u64,
    known: u64,
}

#[derive(Debug)]
struct Client {
    id: [u8; 16],
    state: ClientState,
}

/// A recall on its way.
#[derive(Debug)]
struct Outstanding {
    slot: Slot,
    group: u64,
    /// When it was sent, in milliseconds of the server's uptime.
    sent: u64,
}

#[derive(Debug, Default)]
struct Group {
    remaining: u32,
    token: Option<u64>,
}

/// A recall to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Recall {
    /// To whom.
    pub slot: Slot,
    /// Its number.
    pub number: u64,
    /// What.
    pub targets: Vec<RecallTarget>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct LeaseTable {
    masks: FxHashMap<InodeNumber, Masks>,
    clients: Vec<Option<Client>>,
    outstanding: FxHashMap<u64, Outstanding>,
    groups: FxHashMap<u64, Group>,
    last: u64,
}

const fn bit(slot: Slot) -> u64 {
    1 << slot
}

impl LeaseTable {
    /// No client has leases: nothing has to be noted or recalled.
    pub fn is_unused(&self) -> bool {
        self.clients.is_empty()
    }

    /// A client begins or comes back. Returns its slot and whether it was known, or `None` if there is no room.
    pub fn begin(&mut self, id: [u8; 16]) -> Option<(Slot, bool)> {
        let known =
            self.clients.iter().position(|client| client.as_ref().is_some_and(|client| client.id == id));
        let slot = match known {
            Some(slot) => slot,
            None => match self.clients.iter().position(Option::is_none) {
                Some(free) => free,
                None if self.clients.len() < SLOTS => {
                    self.clients.push(None);
                    self.clients.len() - 1
                }
                None => return None,
            },
        };
        let slot = slot as Slot;
        if known.is_some() {
            self.become_state(slot, ClientState::Live);
        } else if let Some(place) = self.clients.get_mut(usize::from(slot)) {
            *place = Some(Client { id, state: ClientState::Live });
        }
        Some((slot, known.is_some()))
    }

    /// The state of a client.
    pub fn state(&self, slot: Slot) -> Option<ClientState> {
        self.clients.get(usize::from(slot))?.as_ref().map(|client| client.state)
    }

    /// A client's state changes.
    ///
    /// # Panics
    /// If the step is not in the table of the module.
    pub fn become_state(&mut self, slot: Slot, next: ClientState) {
        if let Some(Some(client)) = self.clients.get_mut(usize::from(slot)) {
            assert!(
                client.state.may_become(next),
                "a lease client cannot go from {:?} to {next:?}",
                client.state
            );
            client.state = next;
        }
    }

    /// What the client was told may be kept by it.
    pub fn grant(&mut self, slot: Slot, inode: InodeNumber) {
        self.masks.entry(inode).or_default().leased |= bit(slot);
    }

    /// The client's kernel was told of an inode. Returns whether nobody knew it before.
    pub fn learn(&mut self, slot: Slot, inode: InodeNumber) -> bool {
        let masks = self.masks.entry(inode).or_default();
        let first = masks.known == 0;
        masks.leased |= bit(slot);
        masks.known |= bit(slot);
        first
    }

    /// The client no longer uses an inode. Returns whether nobody does now, who did before.
    pub fn forget(&mut self, slot: Slot, inode: InodeNumber) -> bool {
        let Some(masks) = self.masks.get_mut(&inode) else { return false };
        let was_known = masks.known != 0;
        masks.leased &= !bit(slot);
        masks.known &= !bit(slot);
        let last = was_known && masks.known == 0;
        if *masks == Masks::default() {
            self.masks.remove(&inode);
        }
        last
    }

    /// Whether somebody's kernel may refer to an inode.
    #[cfg(test)]
    pub fn is_known(&self, inode: InodeNumber) -> bool {
        self.masks.get(&inode).is_some_and(|masks| masks.known != 0)
    }

    /// These things changed, by the client in `author` if it was one. Adds what has to be sent to `send` and returns the group to wait
    /// for, if somebody kept something.
    pub fn recall(
        &mut self,
        author: Option<Slot>,
        targets: &[RecallTarget],
        group: Option<u64>,
        now: u64,
        send: &mut SmallVec<[Recall; 2]>,
    ) -> Option<u64> {
        let others = !author.map_or(0, bit);
        let mut holders = 0;
        for target in targets {
            holders |= self.masks.get(&target.inode).map_or(0, |masks| masks.leased & others);
        }
        if holders == 0 {
            return group;
        }
        let group = group.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        while holders != 0 {
            let slot = holders.trailing_zeros() as Slot;
            holders &= holders - 1;
            let held = |target: &&RecallTarget| {
                self.masks.get(&target.inode).is_some_and(|masks| masks.leased & bit(slot) != 0)
            };
            let targets: Vec<RecallTarget> = targets.iter().filter(held).cloned().collect();
            // An answer sent after this recall grants anew; a directory keeps its other names.
            for target in targets.iter().filter(|target| target.name.is_none()) {
                if let Some(masks) = self.masks.get_mut(&target.inode) {
                    masks.leased &= !bit(slot);
                    if *masks == Masks::default() {
                        self.masks.remove(&target.inode);
                    }
                }
            }
            self.last += 1;
            self.outstanding.insert(self.last, Outstanding { slot, group, sent: now });
            self.groups.entry(group).or_default().remaining += 1;
            send.push(Recall { slot, number: self.last, targets });
        }
        Some(group)
    }

    /// Whether a group still waits.
    pub fn is_waiting(&self, group: u64) -> bool {
        self.groups.contains_key(&group)
    }

    /// The job that waits for a group.
    pub fn wait(&mut self, group: u64, token: u64) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.token = Some(token);
        }
    }

    /// A recall was acknowledged. Returns the job that may go on.
    pub fn acknowledge(&mut self, slot: Slot, number: u64) -> Option<u64> {
        // Only its own: a client must not answer for another.
        if self.outstanding.get(&number)?.slot != slot {
            return None;
        }
        let outstanding = self.outstanding.remove(&number)?;
        let group = self.groups.get_mut(&outstanding.group)?;
        group.remaining -= 1;
        if group.remaining > 0 {
            return None;
        }
        self.groups.remove(&outstanding.group).and_then(|group| group.token)
    }

    /// Whether anything is on its way.
    pub fn has_outstanding(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Clients that are later with a recall than `limit` milliseconds, among those with this state.
    pub fn overdue(&self, now: u64, limit: u64, state: ClientState) -> Vec<Slot> {
        let mut slots: Vec<Slot> = self
            .outstanding
            .values()
            .filter(|recall| {
                now.saturating_sub(recall.sent) >= limit && self.state(recall.slot) == Some(state)
            })
            .map(|recall| recall.slot)
            .collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// The client keeps nothing any more. Returns the jobs that may go on.
    pub fn release(&mut self, slot: Slot) -> Vec<u64> {
        self.masks.retain(|_, masks| {
            masks.leased &= !bit(slot);
            *masks != Masks::default()
        });
        let numbers: Vec<u64> = self
            .outstanding
            .iter()
            .filter(|(_, recall)| recall.slot == slot)
            .map(|(&number, _)| number)
            .collect();
        let mut tokens: Vec<u64> =
            numbers.into_iter().filter_map(|number| self.acknowledge(slot, number)).collect();
        tokens.sort_unstable();
        tokens
    }

    /// The client is gone for good. Returns the inodes that nobody uses any more; [`Self::release`] comes first.
    pub fn remove(&mut self, slot: Slot) -> Vec<InodeNumber> {
        let mut unused = Vec::new();
        self.masks.retain(|&inode, masks| {
            if masks.known == bit(slot) {
                unused.push(inode);
            }
            masks.known &= !bit(slot);
            *masks != Masks::default()
        });
        if let Some(place) = self.clients.get_mut(usize::from(slot)) {
            *place = None;
        }
        while self.clients.last().is_some_and(Option::is_none) {
            self.clients.pop();
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use subvol_protocol::name::Name;

    const fn whole(inode: u64) -> RecallTarget {
        RecallTarget { inode, name: None }
    }

    fn named(inode: u64) -> RecallTarget {
        RecallTarget { inode, name: Some(Name::new("n").expect("a name")) }
    }

    fn two() -> (LeaseTable, Slot, Slot) {
        let mut table = LeaseTable::default();
        let (a, _) = table.begin([1; 16]).expect("room");
        let (b, _) = table.begin([2; 16]).expect("room");
        (table, a, b)
    }

    #[test]
    fn a_change_waits_for_all_who_keep_it_and_for_nobody_else() {
        let (mut table, a, b) = two();
        let (c, _) = table.begin([3; 16]).expect("room");
        table.grant(a, 300);
        table.grant(b, 300);
        table.grant(c, 301);
        let mut send = SmallVec::new();
        let group = table.recall(Some(a), &[whole(300)], None, 0, &mut send).expect("b keeps it");
        assert_eq!(send.iter().map(|recall| recall.slot).collect::<Vec<_>>(), [b]);
        table.wait(group, 77);
        assert!(table.is_waiting(group));
        assert_eq!(table.acknowledge(a, send[0].number), None, "only the one who was asked");
        assert_eq!(table.acknowledge(b, send[0].number), Some(77));
        assert!(!table.is_waiting(group));
        send.clear();
        assert_eq!(table.recall(Some(a), &[whole(300)], None, 0, &mut send), None, "dropped once is dropped");
        table.grant(b, 300);
        assert!(
            table.recall(None, &[whole(300)], None, 0, &mut send).is_some(),
            "also for one without leases"
        );
        assert_eq!(send.len(), 2);
    }

    #[test]
    fn a_directory_keeps_its_other_names() {
        let (mut table, a, b) = two();
        table.grant(b, 300);
        for _ in 0..2 {
            let mut send = SmallVec::new();
            assert!(table.recall(Some(a), &[named(300)], None, 0, &mut send).is_some());
            assert_eq!(send[0].targets, [named(300)]);
        }
    }

    #[test]
    fn who_is_gone_holds_nobody_back() {
        let (mut table, a, b) = two();
        assert!(table.learn(b, 300));
        assert!(!table.learn(a, 300));
        let mut send = SmallVec::new();
        let group = table.recall(Some(a), &[whole(300)], None, 5, &mut send).expect("b keeps it");
        table.wait(group, 7);
        assert_eq!(table.overdue(14, 10, ClientState::Live), Vec::<Slot>::new());
        assert_eq!(table.overdue(15, 10, ClientState::Live), [b]);
        assert_eq!(table.release(b), [7]);
        assert!(table.is_known(300));
        assert!(!table.forget(a, 300), "b may still use it");
        assert_eq!(table.remove(b), [300]);
        assert!(!table.is_known(300) && table.masks.is_empty());
    }

    #[test]
    fn one_that_comes_back_keeps_its_inodes() {
        let (mut table, a, _) = two();
        table.learn(a, 300);
        table.become_state(a, ClientState::Silent);
        table.become_state(a, ClientState::Away);
        assert_eq!(table.begin([1; 16]), Some((a, true)));
        assert!(table.is_known(300));
        for slot in 2..SLOTS as u8 {
            assert!(table.begin([slot + 10; 16]).is_some());
        }
        assert_eq!(table.begin([99; 16]), None, "no room");
    }

    #[test]
    #[should_panic(expected = "cannot go")]
    fn a_client_cannot_skip_states() {
        let (mut table, a, _) = two();
        table.become_state(a, ClientState::Away);
        table.become_state(a, ClientState::Silent);
    }
}
