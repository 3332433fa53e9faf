//! Removing names: unlink and rmdir.

use crate::error::{EngineResult, FsError};
use crate::fs::inode_set::InodeSet;
use crate::fs::names;
use crate::fs::orphan;
use crate::fs::plan::Plan;
use crate::fs::view::{View, check_name};
use crate::operation::Place;

/// Plans the removal of a name of anything but a directory.
///
/// Errors: `NotFound`, `NotDirectory` (parent), `IsDirectory`, those of the name.
pub fn plan_unlink(view: &View<'_>, place: &Place) -> EngineResult<Plan> {
    plan_remove(view, place, false)
}

/// Plans the removal of an empty directory.
///
/// Errors: `NotFound`, `NotDirectory` (parent or the name itself), `NotEmpty`, those of the name.
pub fn plan_remove_directory(view: &View<'_>, place: &Place) -> EngineResult<Plan> {
    plan_remove(view, place, true)
}

fn plan_remove(view: &View<'_>, place: &Place, want_directory: bool) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    inodes.live_directory(place.parent)?;
    check_name(&place.name)?;
    let entry = view.entry(place.parent, &place.name)?.ok_or(FsError::NotFound)?;
    let item = inodes.get(entry.inode)?;
    match (want_directory, item.is_directory()) {
        (true, false) => return Err(FsError::NotDirectory.into()),
        (false, true) => return Err(FsError::IsDirectory.into()),
        (true, true) if item.size != 0 => return Err(FsError::NotEmpty.into()),
        _ => {}
    }
    let mut plan = Plan { inode: entry.inode, ..Plan::default() };
    plan.mutations.reserve(8);
    names::delete_name(&mut plan, place.parent, &entry);
    inodes.name_removed(place.parent, want_directory)?;
    orphan::lose_name(view, &mut inodes, entry.inode, &mut plan)?;
    inodes.finish(&mut plan);
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EngineError;
    use crate::format::item::file_type;
    use crate::fs::test_support::Bench;
    use crate::limits::ROOT_INODE;
    use crate::operation::{Operation, XattrMode};
    use bytes::Bytes;

    #[test]
    fn nothing_is_left_of_a_removed_inode_of_any_kind() {
        let mut bench = Bench::new();
        let empty = bench.items();
        for kind in [file_type::REGULAR, file_type::DIRECTORY, file_type::SYMLINK, file_type::FIFO] {
            let inode = bench.done(&bench.make("x", kind));
            for (name, length) in [("user.small", 10), ("user.large", 40_000)] {
                let set = Operation::SetXattr {
                    inode,
                    name: Bytes::from_static(name.as_bytes()),
                    value: Bytes::from(vec![1; length]),
                    mode: XattrMode::Any,
                };
                bench.done(&set);
            }
            bench.verify();
            let place = bench.place("x");
            let now = bench.now;
            if kind == file_type::DIRECTORY {
                bench.done(&Operation::RemoveDirectory { place });
            } else {
                bench.done(&Operation::Unlink { place });
            }
            assert_eq!(bench.last.unnamed, Some((inode, false)));
            assert_eq!((bench.last.inodes, bench.last.inode), (-1, inode));
            assert_eq!(bench.last.touched.as_slice(), [ROOT_INODE]);
            bench.verify();
            let root = bench.item(ROOT_INODE);
            assert_eq!((root.size, root.nlink, root.mtime, root.ctime), (0, 2, now, now));
            assert!(bench.items().keys().eq(empty.keys()));
        }
    }

    #[test]
    fn an_open_inode_stays_until_its_last_handle_is_closed() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        bench.opens.insert(inode, 2);
        let now = bench.now;
        bench.done(&Operation::Unlink { place: bench.place("f") });
        assert_eq!((bench.last.unnamed, bench.last.inodes), (Some((inode, true)), 0));
        let item = bench.item(inode);
        assert_eq!((item.nlink, item.ctime), (0, now));
        bench.verify();
        bench.close(inode);
        assert!(bench.attributes(inode).is_ok());
        bench.close(inode);
        bench.verify();
        assert!(bench.attributes(inode).is_err());
    }

    #[test]
    fn kinds_and_contents_are_respected() {
        let mut bench = Bench::new();
        bench.mkdir("d");
        bench.mkdir("d/e");
        bench.file("f");
        let unlink = |bench: &Bench, path: &str| Operation::Unlink { place: bench.place(path) };
        let rmdir = |bench: &Bench, path: &str| Operation::RemoveDirectory { place: bench.place(path) };
        assert_eq!(bench.refused(&unlink(&bench, "d")), FsError::IsDirectory);
        assert_eq!(bench.refused(&rmdir(&bench, "f")), FsError::NotDirectory);
        assert_eq!(bench.refused(&rmdir(&bench, "d")), FsError::NotEmpty);
        assert_eq!(bench.refused(&unlink(&bench, "x")), FsError::NotFound);
        assert_eq!(bench.refused(&rmdir(&bench, "x")), FsError::NotFound);
        assert_eq!(bench.refused(&unlink(&bench, "f/x")), FsError::NotDirectory);
        bench.verify();
    }

    #[test]
    fn counts_that_do_not_fit_are_damage_and_no_panic() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        let unlink = Operation::Unlink { place: bench.place("f") };
        bench.poke(ROOT_INODE, |root| root.size = 0);
        assert!(matches!(bench.run(&unlink), Err(EngineError::Corrupt(_))));
        bench.poke(ROOT_INODE, |root| root.size = 1);
        bench.poke(inode, |item| item.nlink = 0);
        assert!(matches!(bench.run(&unlink), Err(EngineError::Corrupt(_))));
    }
}
