//! Moving a name: plain, refusing to replace, replacing, and exchanging two names.
//!
//! Invariants: a directory never becomes its own descendant; a moved name gets a new entry id (a reader of the
//! directory that stands before the old place may see it twice, never a recycled cookie); a directory that changes its
//! parent changes both parents' link counts and its own `parent`.

use crate::error::{EngineResult, FsError};
use crate::format::item::file_type;
use crate::fs::create::{self, NewInode};
use crate::fs::inode_set::InodeSet;
use crate::fs::names::{self, NewName};
use crate::fs::orphan;
use crate::fs::path::is_self_or_ancestor;
use crate::fs::plan::Plan;
use crate::fs::view::{FoundEntry, View, check_name};
use crate::limits::LINKS_MAX;
use crate::operation::{Place, RenameMode};
use crate::types::InodeNumber;

/// Plans a rename. Uses one identifier, an exchange two, one that leaves a whiteout three (the whiteout's inode number and
/// entry id come last), and none when nothing changes.
///
/// Errors, in the order of Linux: `NotFound` and `NotDirectory` (parents); those of the names; `NotFound` (source;
/// target of an exchange); `Exists` (target, `NoReplace`); `InvalidArgument` (into itself); `IsDirectory`,
/// `NotDirectory`, `NotEmpty` (victim); `TooManyLinks` (subdirectories of the new parent).
pub fn plan_rename(view: &View<'_>, from: &Place, to: &Place, mode: RenameMode) -> EngineResult<Plan> {
    let mut inodes = InodeSet::new(view);
    inodes.live_directory(from.parent)?;
    inodes.live_directory(to.parent)?;
    check_name(&from.name)?;
    let source = view.entry(from.parent, &from.name)?.ok_or(FsError::NotFound)?;
    check_name(&to.name)?;
    let probe = names::probe(view, to.parent, &to.name)?;
    match (mode, probe.found) {
        (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => {
            return Err(FsError::Exists.into());
        }
        (RenameMode::Exchange, None) => return Err(FsError::NotFound.into()),
        _ => {}
    }
    refuse_descendant(view, from, to, &source)?;
    let whiteout = mode.leaves_whiteout();
    let Some(target) = probe.found else {
        let slot = probe.free_slot()?;
        return plan_move(view, inodes, Move { from, to, source, slot, whiteout }, None);
    };
    if target.inode == source.inode {
        // Two names of one inode: POSIX wants both to stay.
        return Ok(Plan { inode: source.inode, no_change: true, ..Plan::default() });
    }
    if mode == RenameMode::Exchange {
        refuse_descendant(view, to, from, &target)?;
        return plan_exchange(view, inodes, from, to, source, target);
    }
    plan_move(view, inodes, Move { from, to, source, slot: target.slot, whiteout }, Some(target))
}

struct Move<'a> {
    from: &'a Place,
    to: &'a Place,
    source: FoundEntry,
    /// Where the new by-name item goes: free, or the victim's.
    slot: u64,
    /// The old name becomes that of a whiteout.
    whiteout: bool,
}

fn plan_move(
    view: &View<'_>,
    mut inodes: InodeSet<'_, '_>,
    change: Move<'_>,
    victim: Option<FoundEntry>,
) -> EngineResult<Plan> {
    let Move { from, to, source, slot, whiteout } = change;
    let moved = inodes.get(source.inode)?;
    let is_directory = moved.is_directory();
    let mut plan = Plan { inode: source.inode, ids_used: 1, ..Plan::default() };
    plan.mutations.reserve(14);

    if let Some(victim) = victim {
        let item = inodes.get(victim.inode)?;
        match (is_directory, item.is_directory()) {
            (true, false) => return Err(FsError::NotDirectory.into()),
            (false, true) => {
                // Over a directory that it lies in: Linux finds that out before it looks at kinds.
                let above = is_self_or_ancestor(view, victim.inode, from.parent)?;
                return Err(if above { FsError::NotEmpty } else { FsError::IsDirectory }.into());
            }
            (true, true) if item.size != 0 => return Err(FsError::NotEmpty.into()),
            _ => {}
        }
        if moved.is_regular() && item.is_regular() {
            // Without this a crash after the rename could show the new name with data that never became durable,
            // while the complete old file is gone.
            plan.log_data_first.push(source.inode);
        }
        names::delete_replaced_name(&mut plan, to.parent, &victim);
        inodes.name_removed(to.parent, is_directory)?;
        orphan::lose_name(view, &mut inodes, victim.inode, &mut plan)?;
    }

    if whiteout {
        // Its name overwrites the old one in the same slot.
        names::delete_replaced_name(&mut plan, from.parent, &source);
        let inode = view.resolved.next_id + 1;
        let new =
            NewInode { mode: file_type::CHARACTER_DEVICE, umask: 0, uid: 0, gid: 0, rdev: 0, target: &[] };
        let mut item = create::new_item(view, &new)?;
        item.nlink = 1;
        let entry = FoundEntry { inode, ..source };
        put_moved(&mut plan, from, &entry, source.slot, inode + 1, item.mode);
        inodes.add(inode, item);
        inodes.name_added(from.parent, false)?;
        plan.inodes += 1;
        plan.ids_used = 3;
    } else {
        names::delete_name(&mut plan, from.parent, &source);
    }
    inodes.name_removed(from.parent, is_directory)?;
    // After both removals: a move within one directory or over a subdirectory does not add to the count.
    if is_directory && inodes.get(to.parent)?.nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks.into());
    }
    put_moved(&mut plan, to, &source, slot, view.resolved.next_id, moved.mode);
    inodes.name_added(to.parent, is_directory)?;

    let item = inodes.edit(source.inode)?;
    item.ctime = view.resolved.now;
    if is_directory {
        item.parent = to.parent;
    }
    inodes.finish(&mut plan);
    Ok(plan)
}

fn plan_exchange(
    view: &View<'_>,
    mut inodes: InodeSet<'_, '_>,
    from: &Place,
    to: &Place,
    source: FoundEntry,
    target: FoundEntry,
) -> EngineResult<Plan> {
    let now = view.resolved.now;
    let (moved, other) = (inodes.get(source.inode)?, inodes.get(target.inode)?);
    let mut plan = Plan { inode: source.inode, ids_used: 2, ..Plan::default() };
    plan.mutations.reserve(14);

    names::delete_replaced_name(&mut plan, from.parent, &source);
    names::delete_replaced_name(&mut plan, to.parent, &target);
    put_moved(&mut plan, to, &source, target.slot, view.resolved.next_id, moved.mode);
    put_moved(&mut plan, from, &target, source.slot, view.resolved.next_id + 1, other.mode);

    inodes.name_removed(from.parent, moved.is_directory())?;
    inodes.name_removed(to.parent, other.is_directory())?;
    for (parent, arriving) in [(to.parent, &moved), (from.parent, &other)] {
        if arriving.is_directory() && inodes.get(parent)?.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks.into());
        }
        inodes.name_added(parent, arriving.is_directory())?;
    }
    for (inode, parent) in [(source.inode, to.parent), (target.inode, from.parent)] {
        let item = inodes.edit(inode)?;
        item.ctime = now;
        if item.is_directory() {
            item.parent = parent;
        }
    }
    inodes.finish(&mut plan);
    Ok(plan)
}

fn put_moved(plan: &mut Plan, to: &Place, entry: &FoundEntry, slot: u64, entry_id: u64, mode: u32) {
    names::put_name(
        plan,
        &NewName {
            directory: to.parent,
            name: &to.name,
            slot,
            entry_id,
            inode: entry.inode,
            mode_type: mode & file_type::MASK,
        },
    );
}

/// Refuses to move a directory from its parent to below itself.
fn refuse_descendant(view: &View<'_>, from: &Place, to: &Place, moved: &FoundEntry) -> EngineResult<()> {
    let below = |ancestor: InodeNumber| is_self_or_ancestor(view, ancestor, to.parent);
    if moved.mode_type == file_type::DIRECTORY && from.parent != to.parent && below(moved.inode)? {
        return Err(FsError::InvalidArgument.into());
    }
    Ok(())
}
