//! One more name for an inode (hard link), or the first one of a file that was born without.

use crate::error::{EngineResult, FsError};
use crate::format::item::{file_type, inode_flags};
use crate::fs::inode_set::InodeSet;
use crate::fs::names::{self, NewName};
use crate::fs::orphan;
use crate::fs::plan::Plan;
use crate::fs::view::{View, check_name};
use crate::limits::LINKS_MAX;
use crate::operation::Place;
use crate::types::InodeNumber;

/// Plans a new name. Uses one identifier.
///
/// Errors: `NotFound` (inode, parent, or an inode whose last name was removed), `NotDirectory` (parent), `Exists`,
/// `NotPermitted` (directories have one name), `TooManyLinks`, those of the name.
pub fn plan_link(view: &View<'_>, inode: InodeNumber, place: &Place) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    let item = inodes.get(inode)?;
    inodes.live_directory(place.parent)?;
    check_name(&place.name)?;
    let slot = names::probe(view, place.parent, &place.name)?.free_slot()?;
    if item.is_directory() {
        return Err(FsError::NotPermitted.into());
    }
    if item.nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks.into());
    }
    let entry_id = view.resolved.next_id;
    let mut plan = Plan { inode, ids_used: 1, ..Plan::default() };
    plan.mutations.reserve(6);
    let target = inodes.edit(inode)?;
    if item.nlink == 0 {
        // Removed but open: its name does not come back. Born unnamed: this is what such files are for, but only
        // once, so that unlinking it later is final.
        if item.flags & inode_flags::BORN_UNNAMED == 0 {
            return Err(FsError::NotFound.into());
        }
        target.flags &= !inode_flags::BORN_UNNAMED;
        orphan::gain_first_name(inode, item.flags, &mut plan);
    }
    target.nlink += 1;
    target.ctime = view.resolved.now;
    names::put_name(
        &mut plan,
        &NewName {
            directory: place.parent,
            name: &place.name,
            slot,
            entry_id,
            inode,
            mode_type: item.mode & file_type::MASK,
        },
    );
    inodes.name_added(place.parent, false)?;
    inodes.finish(&mut plan);
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::test_support::Bench;
    use crate::limits::ROOT_INODE;
    use crate::operation::Operation;

    #[test]
    fn a_link_is_a_name_of_equal_right() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        bench.mkdir("d");
        let (created, now) = (bench.item(inode), bench.now);
        bench.done(&Operation::Link { inode, place: bench.place("d/g") });
        bench.verify();
        let item = bench.item(inode);
        assert_eq!((item.nlink, item.ctime, item.mtime), (2, now, created.mtime));
        assert_eq!(item.version, created.version + 1);
        let directory = bench.item(bench.at("d"));
        assert_eq!((directory.mtime, directory.ctime, directory.size, directory.nlink), (now, now, 1, 2));
        bench.done(&Operation::Unlink { place: bench.place("f") });
        assert_eq!(bench.last.unnamed, None);
        assert_eq!(bench.at("d/g"), inode);
        bench.verify();
    }

    #[test]
    fn impossible_links_are_refused() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        let directory = bench.mkdir("d");
        let link = |bench: &Bench, inode, path: &str| Operation::Link { inode, place: bench.place(path) };
        assert_eq!(bench.refused(&link(&bench, inode, "f")), FsError::Exists);
        assert_eq!(bench.refused(&link(&bench, inode, "f/x")), FsError::NotDirectory);
        assert_eq!(bench.refused(&link(&bench, directory, "e")), FsError::NotPermitted);
        assert_eq!(bench.refused(&link(&bench, ROOT_INODE, "e")), FsError::NotPermitted);
        assert_eq!(bench.refused(&link(&bench, 9999, "e")), FsError::NotFound);
        bench.opens.insert(inode, 1);
        bench.done(&Operation::Unlink { place: bench.place("f") });
        assert_eq!(bench.refused(&link(&bench, inode, "e")), FsError::NotFound, "removed but open");
        let full = bench.file("g");
        bench.poke(full, |item| item.nlink = LINKS_MAX);
        assert_eq!(bench.refused(&link(&bench, full, "e")), FsError::TooManyLinks);
    }

    #[test]
    fn a_file_that_waits_for_its_trim_stays_listed_when_it_gets_its_first_name() {
        let mut bench = Bench::new();
        let create = Operation::CreateUnnamed {
            parent: ROOT_INODE,
            mode: file_type::REGULAR | 0o600,
            umask: 0,
            uid: 1,
            gid: 2,
        };
        let inode = bench.done(&create);
        bench.poke(inode, |item| item.flags |= inode_flags::TRIM_PENDING);
        bench.done(&Operation::Link { inode, place: bench.place("f") });
        assert_eq!(bench.items()[&orphan::orphan_key(inode)], [orphan::ORPHAN_TRIM]);
    }
}
