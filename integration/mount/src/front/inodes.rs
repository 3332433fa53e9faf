//! Inodes that the kernel knows, and what the front end remembers of each.
//!
//! Invariants: an inode is in the table from before an answer names it until the kernel has forgotten it as often as it was named; the
//! root is always in it. What is remembered under a lease (`mode`, `absent`) is dropped by a recall.

use rustc_hash::{FxHashMap, FxHashSet};
use subvol_protocol::attributes::Attributes;

use crate::kernel::reply::ROOT_NODE;

/// Extended attributes known not to exist.
pub mod absent {
    /// `security.capability`, which the kernel asks for before writes and executions.
    pub const CAPABILITY: u8 = 1;
    /// `system.posix_acl_access`.
    pub const ACCESS_ACL: u8 = 2;
    /// `system.posix_acl_default`.
    pub const DEFAULT_ACL: u8 = 4;
}

/// One inode.
#[derive(Debug, Default)]
pub struct Node {
    /// How often an answer named it, less how often it was forgotten.
    lookups: u64,
    /// The mode, if it is known for sure.
    pub mode: Option<u32>,
    /// Bits of [`absent`].
    pub absent: u8,
    /// Losses of written data that its handles have to tell, counted.
    pub failures: u32,
    /// Bound of the newest listing of the directory.
    pub bound: u64,
    /// Where that listing ended.
    pub listed_to: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Inodes {
    nodes: FxHashMap<u64, Node>,
    root: u64,
    /// Forgotten by the kernel, not yet told.
    forgotten: Vec<u64>,
    /// Told, not yet answered: one that comes back meanwhile must be claimed again.
    telling: FxHashSet<u64>,
    /// To be claimed again.
    returned: Vec<u64>,
}

impl Inodes {
    /// With the root.
    #[must_use]
    pub fn new(root: u64) -> Self {
        let mut nodes = FxHashMap::default();
        nodes.insert(root, Node { lookups: 1, ..Node::default() });
        Self { nodes, root, forgotten: Vec::new(), telling: FxHashSet::default(), returned: Vec::new() }
    }

    /// The inode of a number of the kernel.
    #[must_use]
    pub const fn inode(&self, nodeid: u64) -> u64 {
        if nodeid == ROOT_NODE { self.root } else { nodeid }
    }

    /// The kernel's number of an inode.
    #[must_use]
    pub const fn nodeid(&self, inode: u64) -> u64 {
        if inode == self.root { ROOT_NODE } else { inode }
    }

    /// What is remembered of an inode.
    pub fn get_mut(&mut self, inode: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&inode)
    }

    /// Whether the kernel knows it.
    #[must_use]
    pub fn contains(&self, inode: u64) -> bool {
        self.nodes.contains_key(&inode)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// How many the kernel knows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// An answer is about to name an inode. `sure`: nothing changed it since it was asked for.
    pub fn named(&mut self, attributes: &Attributes, sure: bool) -> &mut Node {
        if self.telling.remove(&attributes.inode) {
            self.returned.push(attributes.inode);
        }
        let node = self.nodes.entry(attributes.inode).or_default();
        node.lookups += 1;
        node.mode = sure.then_some(attributes.mode);
        node
    }

    /// The kernel forgot an inode so many times.
    pub fn forget(&mut self, inode: u64, times: u64) {
        if inode == self.root {
            return;
        }
        let Some(node) = self.nodes.get_mut(&inode) else { return };
        node.lookups = node.lookups.saturating_sub(times);
        if node.lookups == 0 {
            self.nodes.remove(&inode);
            self.forgotten.push(inode);
        }
    }

    /// The server thinks that the kernel knows this inode, but it was not named.
    pub fn not_named(&mut self, inode: u64) {
        if !self.nodes.contains_key(&inode) {
            self.forgotten.push(inode);
        }
    }

    /// How many wait to be told.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.forgotten.len()
    }

    /// Those to be told now, at most `most`, without those that came back.
    pub fn take_forgotten(&mut self, most: usize) -> Vec<u64> {
        let from = self.forgotten.len().saturating_sub(most);
        let mut taken = self.forgotten.split_off(from);
        taken.retain(|inode| !self.nodes.contains_key(inode));
        self.telling.extend(taken.iter().copied());
        taken
    }

    /// The server took note.
    pub fn told(&mut self, inodes: &[u64]) {
        for inode in inodes {
            self.telling.remove(inode);
        }
    }

    /// Those to be claimed again.
    pub fn take_returned(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.returned)
    }

    /// Something about the inode changed elsewhere.
    pub fn recalled(&mut self, inode: u64) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.mode = None;
            node.absent = 0;
        }
    }

    /// Everything may have changed.
    pub fn all_recalled(&mut self) {
        for node in self.nodes.values_mut() {
            node.mode = None;
            node.absent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(inode: u64) -> Attributes {
        Attributes {
            inode,
            mode: 0o100_644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            btime: Default::default(),
            version: 1,
        }
    }

    #[test]
    fn an_inode_stays_until_it_is_forgotten_as_often_as_named() {
        let mut inodes = Inodes::new(256);
        inodes.named(&attributes(300), true);
        inodes.named(&attributes(300), true);
        inodes.forget(300, 1);
        assert!(inodes.contains(300) && inodes.waiting() == 0);
        inodes.forget(300, 1);
        assert_eq!(inodes.take_forgotten(10), [300]);
        inodes.forget(256, 100);
        assert!(inodes.contains(256), "the root stays");
    }

    #[test]
    fn one_that_comes_back_while_the_server_is_told_is_claimed_again() {
        let mut inodes = Inodes::new(256);
        inodes.named(&attributes(300), true);
        inodes.forget(300, 1);
        assert_eq!(inodes.take_forgotten(10), [300]);
        inodes.named(&attributes(300), true);
        assert_eq!(inodes.take_returned(), [300]);
        // And one that comes back before is not told at all.
        inodes.named(&attributes(301), true);
        inodes.forget(301, 1);
        inodes.named(&attributes(301), true);
        assert!(inodes.take_forgotten(10).is_empty());
    }
}
