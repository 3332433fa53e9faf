//! From an operation to its plan: the one entry for first runs and for replay.

use crate::error::EngineResult;
use crate::fs::create::NewInode;
use crate::fs::plan::Plan;
use crate::fs::view::View;
use crate::fs::{allocate, attributes, create, link, rename, unlink, write, xattr};
use crate::operation::Operation;

/// Plans an operation against the state of `view`; changes nothing. The errors are those of the operation's own file.
pub fn plan_operation(view: &View<'_>, operation: &Operation) -> EngineResult<Plan> {
    match operation {
        Operation::Create { place, mode, umask, uid, gid, rdev, target } => {
            let new = NewInode { mode: *mode, umask: *umask, uid: *uid, gid: *gid, rdev: *rdev, target };
            create::plan_create(view, place, &new)
        }
        Operation::CreateUnnamed { parent, mode, umask, uid, gid } => {
            let new = NewInode { mode: *mode, umask: *umask, uid: *uid, gid: *gid, rdev: 0, target: &[] };
            create::plan_create_unnamed(view, *parent, &new)
        }
        Operation::Link { inode, place } => link::plan_link(view, *inode, place),
        Operation::Unlink { place } => unlink::plan_unlink(view, place),
        Operation::RemoveDirectory { place } => unlink::plan_remove_directory(view, place),
        Operation::Rename { from, to, mode } => rename::plan_rename(view, from, to, *mode),
        Operation::SetAttributes { inode, change } => attributes::plan_set_attributes(view, *inode, change),
        Operation::Write { inode, offset, data, length, clear_set_id } => {
            write::plan_write(view, *inode, *offset, data, *length, *clear_set_id)
        }
        Operation::Allocate { inode, offset, length, keep_size } => {
            allocate::plan_allocate(view, *inode, *offset, *length, *keep_size)
        }
        Operation::PunchHole { inode, offset, length } => {
            allocate::plan_punch(view, *inode, *offset, *length)
        }
        Operation::ZeroRange { inode, offset, length, keep_size } => {
            allocate::plan_zero(view, *inode, *offset, *length, *keep_size)
        }
        Operation::SetXattr { inode, name, value, mode } => {
            xattr::plan_set_xattr(view, *inode, name, value, *mode)
        }
        Operation::RemoveXattr { inode, name } => xattr::plan_remove_xattr(view, *inode, name),
    }
}
