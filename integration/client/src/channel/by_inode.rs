//! What was changed of each inode, for clients that work without handles: so that after a restart of the server only the files that lost
//! something say so (S6, S7), not every one that is made durable next.
//!
//! Invariants: a change is remembered for every inode it concerns, or for the whole volume, when too many are remembered or a step of a
//! compound names an inode by an earlier step; what is let go of is durable, or gone for good, or reported lost.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use subvol_protocol::attributes::Lineage;
use subvol_protocol::request::{Create, FileRef, FileRequest, InodeRef};
use subvol_protocol::response::FileResponse;

use super::lineage::Tracker;
use crate::limits::{MAX_TRACKED_INODES, TIDY_TRACKED_FROM};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct InodeHistory {
    inodes: FxHashMap<u64, Tracker>,
    tidy_at: usize,
}

/// The inode that a request names by number.
pub(super) const fn inode_of(file: &FileRef) -> Option<u64> {
    match file {
        FileRef::Inode(InodeRef::Explicit(inode)) => Some(*inode),
        _ => None,
    }
}

impl InodeHistory {
    /// A change landed. Returns whether it is remembered here.
    pub fn add(&mut self, step: &FileRequest, answer: &FileResponse, ticket: Lineage) -> bool {
        let Some(concerned) = concerned(step, answer) else { return false };
        if concerned.is_empty() || self.inodes.len() + concerned.len() > MAX_TRACKED_INODES {
            return false;
        }
        for inode in concerned {
            self.inodes.entry(inode).or_default().add(ticket);
        }
        true
    }

    /// What an fsync of this inode has to present.
    pub fn oldest(&self, inode: u64) -> Option<Lineage> {
        self.inodes.get(&inode)?.oldest()
    }

    /// An fsync of this inode succeeded. Returns whether something of an older life is still to be checked.
    pub fn settle(&mut self, inode: u64, presented: Option<Lineage>, durable: Lineage, epoch: u64) -> bool {
        let mut pending = false;
        if let Some(tracker) = self.inodes.get_mut(&inode) {
            tracker.settle(presented, durable);
            pending = tracker.has_older_than(epoch);
            if tracker.is_empty() {
                self.inodes.remove(&inode);
            }
        }
        if self.inodes.len() > self.tidy_at.max(TIDY_TRACKED_FROM) {
            // The transaction before the running one may still be on its way; those before it are committed.
            let committed =
                |ticket: Lineage| ticket.epoch == durable.epoch && ticket.transid + 2 <= durable.transid;
            // Judged by the oldest: a change of an older life that nobody has asked for since may be lost, whatever came later.
            self.inodes.retain(|_, tracker| !tracker.oldest().is_some_and(committed));
            self.tidy_at = self.inodes.len() * 2;
        }
        pending
    }

    /// The loss of `presented` was reported for this inode.
    pub fn forget_lost(&mut self, inode: u64, presented: Lineage, epoch: u64) {
        if let Some(tracker) = self.inodes.get_mut(&inode) {
            tracker.forget_lost(presented, epoch);
            if tracker.is_empty() {
                self.inodes.remove(&inode);
            }
        }
    }

    /// All of it is durable up to here.
    pub fn settle_all(&mut self, presented: Option<Lineage>, durable: Lineage) {
        self.inodes.retain(|_, tracker| {
            tracker.settle(presented, durable);
            !tracker.is_empty()
        });
    }
}

/// Inodes that a change concerns: the file's, and of names the directory's as well. `None` if one is named by an earlier step. An inode
/// without a name left concerns nobody: what was to be kept is that it is gone, and its directory remembers that.
fn concerned(step: &FileRequest, answer: &FileResponse) -> Option<SmallVec<[u64; 4]>> {
    use FileRequest as R;
    let mut inodes = SmallVec::new();
    let explicit = |reference: &InodeRef| match reference {
        InodeRef::Explicit(inode) => Some(*inode),
        InodeRef::FromStep(_) => None,
    };
    match step {
        R::Create(Create { parent, .. })
        | R::CreateMasked { create: Create { parent, .. }, .. }
        | R::Link { parent, .. }
        | R::Unlink { parent, .. }
        | R::RemoveDirectory { parent, .. } => inodes.push(explicit(parent)?),
        R::Rename { parent, new_parent, .. } => {
            inodes.push(explicit(parent)?);
            inodes.push(explicit(new_parent)?);
        }
        R::SetXattr { inode, .. } | R::RemoveXattr { inode, .. } => inodes.push(explicit(inode)?),
        R::SetAttributes(change) => inodes.push(inode_of(&change.file)?),
        R::Write { file, .. }
        | R::WriteUnprivileged { file, .. }
        | R::Allocate { file, .. }
        | R::PunchHole { file, .. }
        | R::ZeroRange { file, .. } => inodes.push(inode_of(file)?),
        _ => {}
    }
    match answer {
        FileResponse::Created { attributes, .. } | FileResponse::Entry { attributes, .. } => {
            inodes.push(attributes.inode);
        }
        FileResponse::Removed { inode, links: 1.., .. } => inodes.push(*inode),
        FileResponse::Renamed { inode, replaced, .. } => {
            inodes.push(*inode);
            inodes.extend(*replaced);
        }
        _ => {}
    }
    Some(inodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use subvol_protocol::request::WritePosition;

    const fn at(epoch: u64, log_transid: u64) -> Lineage {
        Lineage { epoch, transid: 1, log_transid }
    }

    #[test]
    fn only_the_file_that_lost_something_says_so() {
        let mut history = InodeHistory::default();
        let write =
            |inode| FileRequest::Write { file: FileRef::inode(inode), position: WritePosition::Append };
        let answer = FileResponse::Written { written: 1, position: 0, size: 1, ticket: at(1, 5) };
        assert!(history.add(&write(300), &answer, at(1, 5)));
        assert!(history.add(&write(301), &answer, at(2, 6)));
        assert_eq!(history.oldest(300), Some(at(1, 5)));
        assert!(!history.settle(301, Some(at(2, 6)), at(2, 6), 2), "301 lost nothing");
        assert_eq!(history.oldest(301), None);
        history.forget_lost(300, at(1, 5), 2);
        assert_eq!(history.oldest(300), None, "told once");
    }

    #[test]
    fn tidying_up_forgets_no_older_life() {
        let mut history = InodeHistory::default();
        let write =
            |inode| FileRequest::Write { file: FileRef::inode(inode), position: WritePosition::Append };
        let answer = FileResponse::Written { written: 1, position: 0, size: 1, ticket: at(1, 5) };
        for inode in 0..=TIDY_TRACKED_FROM as u64 {
            assert!(history.add(&write(1000 + inode), &answer, at(2, 5)));
        }
        assert!(history.add(&write(300), &answer, at(1, 5)));
        assert!(history.add(&write(300), &answer, at(2, 5)));
        let durable = Lineage { epoch: 2, transid: 9, log_transid: 9 };
        assert!(!history.settle(1, None, durable, 2));
        assert_eq!(history.inodes.len(), 1, "the others were committed");
        assert_eq!(history.oldest(300), Some(at(1, 5)), "nobody has asked whether this is still there");
    }

    #[test]
    fn names_are_remembered_by_both_directories_or_by_the_volume() {
        let mut history = InodeHistory::default();
        let name = |text: &str| subvol_protocol::name::Name::new(text.as_bytes()).expect("a name");
        let rename = |to| FileRequest::Rename {
            parent: InodeRef::Explicit(256),
            name: name("a"),
            new_parent: to,
            new_name: name("b"),
            mode: subvol_protocol::request::RenameMode::Replace,
        };
        let answer = FileResponse::Renamed { inode: 300, replaced: None, ticket: at(1, 5) };
        assert!(
            !history.add(&rename(InodeRef::FromStep(0)), &answer, at(1, 5)),
            "which directory is not told"
        );
        assert_eq!(history.oldest(256), None);
        assert!(history.add(&rename(InodeRef::Explicit(257)), &answer, at(1, 5)));
        assert_eq!([256, 257, 300].map(|inode| history.oldest(inode)), [Some(at(1, 5)); 3]);
    }
}
