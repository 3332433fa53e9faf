//! Freeing what has no owner any more: inodes without names, and blocks past the end of a file, in bounded steps.
//!
//! Steps are not logged. A crash may undo some; the orphan item, which leaves the tree with the last step, makes sure
//! that they are done again. Usage falls with every step by exactly what it freed.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, inode_flags};
use crate::format::key::{ItemKind, Key};
use crate::fs::extents::ExtentChange;
use crate::fs::orphan::orphan_key;
use crate::fs::plan::{PageEffect, Plan};
use crate::fs::resize::{discard, unmap};
use crate::fs::view::View;
use crate::limits::{BLOCK_BYTES, EXTENTS_PER_STEP, ORPHAN_DIRECTORY};
use crate::types::InodeNumber;
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

/// What became of an inode that lost its last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The plan deletes everything it has, except back references.
    Whole,
    /// It is too large for one plan, which is unchanged: the inode stays as an orphan for [`plan_reclaim_step`].
    Later,
}

/// Plans the end of an inode that nobody has open and whose last name goes with the same plan: its attributes, extended
/// attributes, target, data and pages, and `plan.bytes`. Back references and `plan.inodes` are the caller's.
pub fn plan_drop_inode(
    view: &View<'_>,
    inode: InodeNumber,
    item: &InodeItem,
    plan: &mut Plan,
) -> EngineResult<Dropped> {
    let Some(keys) = other_items(view, inode, ItemKind::Xattr)? else { return Ok(Dropped::Later) };
    let mut change = ExtentChange::new(inode);
    if !change.load(view, 0, u64::MAX, EXTENTS_PER_STEP)? {
        return Ok(Dropped::Later);
    }
    delete_inode(view, inode, item, keys, change, plan);
    if item.flags & inode_flags::TRIM_PENDING != 0 && view.get(&orphan_key(inode))?.is_some() {
        plan.delete(orphan_key(inode));
    }
    Ok(Dropped::Whole)
}

/// Plans the next step of freeing an inode without names that nobody has open: up to [`EXTENTS_PER_STEP`] extents; the
/// last one deletes all the rest with the orphan item and has `plan.inodes == -1`. `no_change`: there is nothing to do
/// (any more), or the inode has names.
pub fn plan_reclaim_step(view: &View<'_>, inode: InodeNumber) -> EngineResult<Plan> {
    let mut plan = Plan { inode, ..Plan::default() };
    let Some(mut item) = existing(view, inode, &mut plan)? else { return Ok(plan) };
    if item.nlink > 0 {
        plan.no_change = true;
        return Ok(plan);
    }
    let mut change = ExtentChange::new(inode);
    let complete = change.load(view, 0, u64::MAX, EXTENTS_PER_STEP)?;
    if !complete {
        let removed = change.remove(0, u64::MAX) + discard(view, inode, 0, u64::MAX, &mut plan);
        change.finish(&mut plan);
        unmap(inode, &mut item, removed, &mut plan)?;
        put(inode, &item, &mut plan);
        return Ok(plan);
    }
    let Some(keys) = other_items(view, inode, ItemKind::BackReference)? else {
        // Too many extended attributes as well: they go in a step of their own.
        delete_some(view, inode, &mut plan)?;
        return Ok(plan);
    };
    delete_inode(view, inode, &item, keys, change, &mut plan);
    plan.inodes = -1;
    if view.get(&orphan_key(inode))?.is_some() {
        plan.delete(orphan_key(inode));
    }
    Ok(plan)
}

/// Plans the next step of freeing blocks past the end of a file: up to [`EXTENTS_PER_STEP`] extents; the last one clears
/// `TRIM_PENDING`, and deletes the orphan item unless the inode has no names. `no_change`: there is nothing to do.
pub fn plan_trim_step(view: &View<'_>, inode: InodeNumber) -> EngineResult<Plan> {
    let mut plan = Plan { inode, ..Plan::default() };
    let Some(mut item) = existing(view, inode, &mut plan)? else { return Ok(plan) };
    if item.flags & inode_flags::TRIM_PENDING == 0 {
        plan.no_change = true;
        return Ok(plan);
    }
    let end = item.size.next_multiple_of(BLOCK_BYTES);
    let mut change = ExtentChange::new(inode);
    let complete = change.load(view, end, u64::MAX, EXTENTS_PER_STEP)?;
    let removed = change.remove(end, u64::MAX);
    change.finish(&mut plan);
    unmap(inode, &mut item, removed, &mut plan)?;
    if complete {
        item.flags &= !inode_flags::TRIM_PENDING;
        if item.nlink > 0 && view.get(&orphan_key(inode))?.is_some() {
            plan.delete(orphan_key(inode));
        }
    }
    put(inode, &item, &mut plan);
    Ok(plan)
}

/// The inodes with orphan items, from the one after `after` on, `max` at most: those without names are for
/// [`plan_reclaim_step`] once nobody has them open, the others for [`plan_trim_step`].
pub fn list_orphans(view: &View<'_>, after: InodeNumber, max: usize) -> EngineResult<Vec<InodeNumber>> {
    let mut inodes = Vec::new();
    let Some(first) = after.checked_add(1).filter(|_| max > 0) else { return Ok(inodes) };
    let last = Key::new(ORPHAN_DIRECTORY, ItemKind::Orphan, u64::MAX);
    view.scan(&orphan_key(first), &last, |key, _| {
        inodes.push(key.offset);
        if inodes.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(inodes)
}

/// The inode of an orphan item. When it is gone, the plan only deletes the item, if that is there.
fn existing(view: &View<'_>, inode: InodeNumber, plan: &mut Plan) -> EngineResult<Option<InodeItem>> {
    match view.inode(inode) {
        Ok(item) => Ok(Some(item)),
        Err(EngineError::Refused(FsError::NotFound)) => {
            match view.get(&orphan_key(inode))? {
                Some(_) => plan.delete(orphan_key(inode)),
                None => plan.no_change = true,
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Keys of an inode's items from a kind on up to its extents; `None` when there are too many for one plan.
fn other_items(view: &View<'_>, inode: InodeNumber, first: ItemKind) -> EngineResult<Option<Vec<Key>>> {
    let mut keys = Vec::new();
    let from = Key::new(inode, first, 0);
    let to = Key::new(inode, ItemKind::SymlinkTarget, u64::MAX);
    view.scan(&from, &to, |key, _| {
        keys.push(*key);
        if keys.len() > EXTENTS_PER_STEP { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok((keys.len() <= EXTENTS_PER_STEP).then_some(keys))
}

/// Deletes the first of very many items; the last step finds few enough.
fn delete_some(view: &View<'_>, inode: InodeNumber, plan: &mut Plan) -> EngineResult<()> {
    let from = Key::new(inode, ItemKind::BackReference, 0);
    let to = Key::new(inode, ItemKind::SymlinkTarget, u64::MAX);
    view.scan(&from, &to, |key, _| {
        plan.delete(*key);
        if plan.mutations.len() < EXTENTS_PER_STEP {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })
}

fn delete_inode(
    view: &View<'_>,
    inode: InodeNumber,
    item: &InodeItem,
    keys: Vec<Key>,
    mut change: ExtentChange,
    plan: &mut Plan,
) {
    plan.delete(Key::new(inode, ItemKind::Inode, 0));
    keys.into_iter().for_each(|key| plan.delete(key));
    change.remove(0, u64::MAX);
    change.finish(plan);
    if view.pages.file(inode).is_some() {
        plan.pages.push(PageEffect::Discard { inode, from: 0, to: u64::MAX });
    }
    plan.bytes -= item.blocks.saturating_mul(BLOCK_BYTES) as i64;
}

fn put(inode: InodeNumber, item: &InodeItem, plan: &mut Plan) {
    plan.put(Key::new(inode, ItemKind::Inode, 0), item.to_disk().as_bytes());
}
