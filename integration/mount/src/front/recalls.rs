//! Recalls against answers: which answers may the kernel keep?
//!
//! An answer that was given before a recall may be handed to the kernel after the recall was worked off. Then the kernel must not keep it,
//! or it would keep what the recall was to drop. So each request notes the time (a counter of recalls) at which it was read, and its
//! answer asks whether the inode was recalled since.
//!
//! The second half: a notification waits for locks that the kernel holds while a request of its own on the same inode is under way.
//! If that request waits at the server for another mount, which waits for our acknowledgement, nobody would ever go on. So things of an
//! inode with a change of our own under way are acknowledged at once and dropped when the change is answered ([`Recalls::begin`]).

use rustc_hash::FxHashMap;
use subvol_protocol::response::RecallTarget;

use crate::limits::RECENT_RECALLS;

/// See the module.
#[derive(Debug, Default)]
pub struct Recalls {
    clock: u64,
    /// Requests read before this count as overtaken, whatever they name.
    floor: u64,
    recent: FxHashMap<u64, u64>,
    changing: FxHashMap<u64, u32>,
    deferred: Vec<RecallTarget>,
}

impl Recalls {
    /// The time.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.clock
    }

    /// Whether what was asked at `since` of this inode is still true.
    #[must_use]
    pub fn is_fresh(&self, inode: u64, since: u64) -> bool {
        self.clock == since
            || (since >= self.floor && self.recent.get(&inode).is_none_or(|&recalled| recalled <= since))
    }

    /// An inode was recalled. Returns whether it may be dropped now; if not, it is kept for [`Self::end`].
    pub fn recalled(&mut self, target: &RecallTarget) -> bool {
        self.clock += 1;
        if self.recent.len() >= RECENT_RECALLS {
            self.recent.clear();
            self.floor = self.clock;
        }
        self.recent.insert(target.inode, self.clock);
        if self.changing.contains_key(&target.inode) {
            self.deferred.push(target.clone());
            return false;
        }
        true
    }

    /// Everything was recalled.
    pub fn all_recalled(&mut self) {
        self.clock += 1;
        self.recent.clear();
        self.floor = self.clock;
    }

    /// A change of these inodes is under way.
    pub fn begin(&mut self, inodes: &[u64]) {
        for &inode in inodes {
            *self.changing.entry(inode).or_default() += 1;
        }
    }

    /// It is answered. Gives what is to be dropped now.
    pub fn end(&mut self, inodes: &[u64]) -> Vec<RecallTarget> {
        for inode in inodes {
            if let Some(count) = self.changing.get_mut(inode) {
                *count -= 1;
                if *count == 0 {
                    self.changing.remove(inode);
                }
            }
        }
        if self.deferred.is_empty() {
            return Vec::new();
        }
        let changing = &self.changing;
        self.deferred.extract_if(.., |target| !changing.contains_key(&target.inode)).collect()
    }

    /// Whether a change of the inode is under way.
    #[must_use]
    pub fn is_changing(&self, inode: u64) -> bool {
        self.changing.contains_key(&inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn inode(inode: u64) -> RecallTarget {
        RecallTarget { inode, name: None }
    }

    #[test]
    fn an_answer_overtaken_by_a_recall_is_not_kept() {
        let mut recalls = Recalls::default();
        let before = recalls.now();
        assert!(recalls.recalled(&inode(5)));
        assert!(!recalls.is_fresh(5, before));
        assert!(recalls.is_fresh(6, before), "another inode's");
        assert!(recalls.is_fresh(5, recalls.now()));
        for other in 100..100 + RECENT_RECALLS as u64 {
            recalls.recalled(&inode(other));
        }
        assert!(!recalls.is_fresh(6, before), "too long ago to know");
    }

    #[test]
    fn what_is_being_changed_here_is_dropped_afterwards() {
        let mut recalls = Recalls::default();
        recalls.begin(&[5, 6]);
        recalls.begin(&[5]);
        assert!(!recalls.recalled(&inode(5)));
        assert!(recalls.recalled(&inode(7)));
        assert!(recalls.end(&[5, 6]).is_empty(), "one more change of it is under way");
        assert_eq!(recalls.end(&[5]), [inode(5)]);
        assert!(recalls.recalled(&inode(5)));
    }
}
