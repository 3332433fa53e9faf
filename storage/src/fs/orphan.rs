//! What becomes of an inode that loses a name.
//!
//! Invariants: an inode with `nlink == 0` has an orphan item, so that a restart finds it; an orphan item exists only
//! for such inodes and for those with `TRIM_PENDING`.

use crate::error::EngineResult;
use crate::format::item::{damaged, inode_flags};
use crate::format::key::{ItemKind, Key};
use crate::fs::inode_set::InodeSet;
use crate::fs::plan::Plan;
use crate::fs::reclaim::{self, Dropped};
use crate::fs::view::View;
use crate::limits::ORPHAN_DIRECTORY;
use crate::types::InodeNumber;

/// Value of an orphan item: the inode has no name and goes when nobody has it open.
pub const ORPHAN_UNNAMED: u8 = 1;
/// Value of an orphan item: the inode has names and only waits for blocks past its end to be freed.
pub const ORPHAN_TRIM: u8 = 2;

/// Where the orphan item of an inode stands.
pub const fn orphan_key(inode: InodeNumber) -> Key {
    Key::new(ORPHAN_DIRECTORY, ItemKind::Orphan, inode)
}

/// Takes one name from an inode; with its last name (a directory has one) the inode goes, at once when nobody has it
/// open and it is small, else it stays as an orphan. The items of the name are the caller's.
pub fn lose_name(
    view: &View<'_>,
    inodes: &mut InodeSet<'_, '_>,
    inode: InodeNumber,
    plan: &mut Plan,
) -> EngineResult<()> {
    let item = inodes.edit(inode)?;
    item.ctime = view.resolved.now;
    let left = if item.is_directory() { Some(0) } else { item.nlink.checked_sub(1) };
    let Some(left) = left else {
        let key = Key::new(inode, ItemKind::Inode, 0);
        return Err(damaged(&key, "inode with a name that counts none").into());
    };
    item.nlink = left;
    if left > 0 {
        return Ok(());
    }
    let item = *item;
    if !view.resolved.keep_orphan && reclaim::plan_drop_inode(view, inode, &item, plan)? == Dropped::Whole {
        inodes.forget(inode);
        plan.inodes -= 1;
        plan.unnamed = Some((inode, false));
        return Ok(());
    }
    plan.put(orphan_key(inode), [ORPHAN_UNNAMED].as_slice());
    plan.unnamed = Some((inode, true));
    Ok(())
}

/// Undoes the orphan state of an unnamed inode that gets a name.
pub fn gain_first_name(inode: InodeNumber, flags: u64, plan: &mut Plan) {
    if flags & inode_flags::TRIM_PENDING != 0 {
        plan.put(orphan_key(inode), [ORPHAN_TRIM].as_slice());
    } else {
        plan.delete(orphan_key(inode));
    }
}
