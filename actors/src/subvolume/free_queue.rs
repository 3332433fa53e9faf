//! Inodes that background steps free, in turn.
//!
//! Invariant: each inode is in the queue at most once. Hundreds of requests may wait for the same trim and ask for it again
//! after every step; if each asked for a place of its own, the frees of everybody else would wait behind all of them.

use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use subvol_storage::types::InodeNumber;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FreeQueue {
    line: VecDeque<InodeNumber>,
    members: FxHashSet<InodeNumber>,
}

impl FreeQueue {
    /// At the end, unless it is queued already.
    pub(super) fn push(&mut self, inode: InodeNumber) {
        if self.members.insert(inode) {
            self.line.push_back(inode);
        }
    }

    /// Somebody waits for it: it is next, wherever it was.
    pub(super) fn push_front(&mut self, inode: InodeNumber) {
        if self.front() == Some(inode) {
            return;
        }
        if !self.members.insert(inode) {
            self.line.retain(|&queued| queued != inode);
        }
        self.line.push_front(inode);
    }

    /// The next.
    pub(super) fn front(&self) -> Option<InodeNumber> {
        self.line.front().copied()
    }

    /// Takes the next out.
    pub(super) fn pop_front(&mut self) -> Option<InodeNumber> {
        let inode = self.line.pop_front()?;
        self.members.remove(&inode);
        Some(inode)
    }

    /// Is it queued?
    pub(super) fn contains(&self, inode: InodeNumber) -> bool {
        self.members.contains(&inode)
    }

    /// How many are queued.
    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    /// Is nothing queued?
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.line.clear();
        self.members.clear();
    }
}

impl Extend<InodeNumber> for FreeQueue {
    fn extend<T: IntoIterator<Item = InodeNumber>>(&mut self, inodes: T) {
        inodes.into_iter().for_each(|inode| self.push(inode));
    }
}

#[cfg(test)]
mod tests {
    use super::FreeQueue;

    #[test]
    fn an_inode_is_queued_once() {
        let mut queue = FreeQueue::default();
        queue.extend([1, 2, 3, 2]);
        queue.push_front(3);
        queue.push_front(3);
        queue.push(1);
        assert_eq!(queue.len(), 3);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop_front()).collect();
        assert_eq!(order, [3, 1, 2]);
        queue.push(3);
        assert!(queue.contains(3) && !queue.contains(1));
    }
}
