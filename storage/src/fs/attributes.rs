//! Changing attributes: chmod, chown, utimens, truncate, in one operation.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::InodeItem;
use crate::fs::create::PERMISSIONS;
use crate::fs::inode_set::InodeSet;
use crate::fs::plan::Plan;
use crate::fs::resize;
use crate::fs::view::View;
use crate::fs::xattr;
use crate::limits::FILE_BYTES_MAX;
use crate::operation::AttributeChange;
use crate::types::{InodeNumber, Timestamp};

/// Set-user-id.
const SET_UID: u32 = 0o4000;
/// Set-group-id.
const SET_GID: u32 = 0o2000;
/// Execution by the group: without it set-group-id once meant mandatory locking and gives no rights.
const GROUP_EXECUTE: u32 = 0o010;

/// Plans a change of attributes. `ctime` becomes now, with a size also `mtime`; times given explicitly win.
///
/// A new mode also changes the access control list, if there is one.
///
/// Errors: `NotFound`; `NotSupported` (mode of a symbolic link); with a size `IsDirectory`, `InvalidArgument` (neither
/// file nor directory), `FileTooBig` and those of resizing; `InvalidArgument` (nanoseconds).
pub fn plan_set_attributes(
    view: &View<'_>,
    inode: InodeNumber,
    change: &AttributeChange,
) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    let item = inodes.get(inode)?;
    let mut plan = Plan { inode, ..Plan::default() };
    if *change == AttributeChange::default() {
        plan.no_change = true;
        return Ok(plan);
    }
    check(&item, change)?;
    let item = inodes.edit(inode)?;
    let now = view.resolved.now;
    item.ctime = now;
    if let Some(size) = change.size {
        resize::plan_resize(view, inode, item, size, &mut plan)?;
        item.mtime = now;
    }
    if change.uid.is_some() || change.gid.is_some() {
        item.uid = change.uid.unwrap_or(item.uid);
        item.gid = change.gid.unwrap_or(item.gid);
        if !item.is_directory() {
            item.mode = without_set_id(item.mode);
        }
    }
    if let Some(mode) = change.mode {
        item.mode = item.mode & !PERMISSIONS | mode & PERMISSIONS;
        xattr::follow_mode(view, inode, item, &mut plan)?;
    }
    item.atime = change.atime.unwrap_or(item.atime);
    item.mtime = change.mtime.unwrap_or(item.mtime);
    inodes.finish(&mut plan);
    Ok(plan)
}

/// The mode of a file after its owner or its contents changed hands: nobody runs it with the rights of another.
pub const fn without_set_id(mode: u32) -> u32 {
    if mode & GROUP_EXECUTE != 0 { mode & !(SET_UID | SET_GID) } else { mode & !SET_UID }
}

fn check(item: &InodeItem, change: &AttributeChange) -> Result<(), EngineError> {
    if change.mode.is_some() && item.is_symlink() {
        return Err(FsError::NotSupported.into());
    }
    if let Some(size) = change.size {
        if item.is_directory() {
            return Err(FsError::IsDirectory.into());
        }
        if !item.is_regular() {
            return Err(FsError::InvalidArgument.into());
        }
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooBig.into());
        }
    }
    let odd = |time: Option<Timestamp>| time.is_some_and(|time| time.nanoseconds > 999_999_999);
    if odd(change.atime) || odd(change.mtime) {
        return Err(FsError::InvalidArgument.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::item::file_type;
    use crate::fs::test_support::Bench;
    use crate::operation::Operation;

    fn set(inode: InodeNumber, change: AttributeChange) -> Operation {
        Operation::SetAttributes { inode, change }
    }

    const NONE: AttributeChange =
        AttributeChange { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };

    #[test]
    fn each_change_sets_the_times_it_should() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        let made = bench.item(inode);
        let odd = Timestamp::new(-5, 999_999_999);

        let now = bench.now;
        bench.done(&set(inode, AttributeChange { mode: Some(0o100_700), ..NONE }));
        let item = bench.item(inode);
        assert_eq!(item, InodeItem { mode: file_type::REGULAR | 0o700, ctime: now, version: 2, ..made });

        bench.done(&set(inode, AttributeChange { atime: Some(odd), ..NONE }));
        let item = bench.item(inode);
        assert_eq!((item.atime, item.mtime), (odd, made.mtime));

        let now = bench.now;
        bench.done(&set(inode, AttributeChange { size: Some(5000), ..NONE }));
        let item = bench.item(inode);
        assert_eq!((item.size, item.mtime, item.ctime, item.atime), (5000, now, now, odd));

        let now = bench.now;
        bench.done(&set(inode, AttributeChange { size: Some(0), mtime: Some(odd), ..NONE }));
        let item = bench.item(inode);
        assert_eq!((item.size, item.mtime, item.ctime), (0, odd, now));

        bench.done(&set(inode, NONE));
        assert!(bench.last.no_change && bench.attributes(inode) == Ok(item));
    }

    #[test]
    fn a_new_owner_takes_set_id_bits_from_files_only() {
        let mut bench = Bench::new();
        let (file, directory) = (bench.file("f"), bench.mkdir("d"));
        let mut after = |inode, mode, change| {
            bench.done(&set(inode, AttributeChange { mode: Some(mode), ..NONE }));
            bench.done(&set(inode, change));
            bench.item(inode).mode & PERMISSIONS
        };
        let chown = AttributeChange { uid: Some(7), ..NONE };
        assert_eq!(after(file, 0o6755, chown), 0o755);
        assert_eq!(after(file, 0o6745, chown), 0o2745, "set-group-id without group execution is no right");
        assert_eq!(after(file, 0o6755, AttributeChange { gid: Some(8), ..NONE }), 0o755);
        assert_eq!(after(directory, 0o6755, chown), 0o6755);
        assert_eq!(after(file, 0o755, AttributeChange { mode: Some(0o4711), ..chown }), 0o4711);
    }

    #[test]
    fn impossible_changes_are_refused() {
        let mut bench = Bench::new();
        let (file, directory) = (bench.file("f"), bench.mkdir("d"));
        let fifo = bench.done(&bench.make("p", file_type::FIFO));
        let link = bench.done(&bench.make("l", file_type::SYMLINK));
        let size = |size| AttributeChange { size: Some(size), ..NONE };
        assert_eq!(bench.refused(&set(directory, size(0))), FsError::IsDirectory);
        assert_eq!(bench.refused(&set(fifo, size(0))), FsError::InvalidArgument);
        assert_eq!(bench.refused(&set(link, size(0))), FsError::InvalidArgument);
        assert_eq!(bench.refused(&set(file, size(FILE_BYTES_MAX + 1))), FsError::FileTooBig);
        let bad = Some(Timestamp::new(0, 1_000_000_000));
        assert_eq!(
            bench.refused(&set(file, AttributeChange { mtime: bad, ..NONE })),
            FsError::InvalidArgument
        );
        let mode = AttributeChange { mode: Some(0), ..NONE };
        assert_eq!(bench.refused(&set(link, mode)), FsError::NotSupported);
        assert_eq!(bench.refused(&set(9999, mode)), FsError::NotFound);
        bench.verify();
    }
}
