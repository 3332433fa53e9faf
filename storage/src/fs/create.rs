//! New inodes: with a name (mkdir, mknod, symlink, creating open) and without (`O_TMPFILE`).
//!
//! This is the most frequent operation: it reads the parent's inode and the slots of the name, nothing else.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, file_type, inode_flags};
use crate::format::key::{ItemKind, Key};
use crate::fs::acl;
use crate::fs::inode_set::InodeSet;
use crate::fs::names::{self, NewName};
use crate::fs::orphan::{ORPHAN_UNNAMED, orphan_key};
use crate::fs::plan::Plan;
use crate::fs::view::{View, check_name};
use crate::fs::xattr;
use crate::limits::{LINKS_MAX, SYMLINK_BYTES_MAX};
use crate::operation::Place;
use crate::types::InodeNumber;

/// Permission bits of `st_mode`.
pub const PERMISSIONS: u32 = 0o7777;

/// Set-group-id: of a directory, that what is made in it belongs to its group.
const SET_GROUP_ID: u32 = 0o2000;

/// What a new inode is like.
#[derive(Clone, Copy)]
pub struct NewInode<'a> {
    /// Type bits and permissions.
    pub mode: u32,
    /// Taken off the permissions, unless the directory has a default access list.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number; counts only for devices.
    pub rdev: u64,
    /// Target of a symbolic link; else empty.
    pub target: &'a [u8],
}

/// Plans a new inode with a name. Uses two identifiers: inode number, entry id.
///
/// Errors: `NotFound` (empty target, as Linux has it), `InvalidArgument` (type bits, target, name), `NameTooLong`
/// (target, name), `NotFound` and `NotDirectory` (parent), `Exists`, `TooManyLinks` (subdirectories of the parent).
pub fn plan_create(view: &View<'_>, place: &Place, new: &NewInode<'_>) -> EngineResult<Plan> {
    let mut item = new_item(view, new)?;
    let mut inodes = InodeSet::new(view);
    let parent = inodes.live_directory(place.parent)?;
    check_name(&place.name)?;
    let slot = names::probe(view, place.parent, &place.name)?.free_slot()?;
    let is_directory = item.is_directory();
    if is_directory && parent.nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks.into());
    }
    let inode = view.resolved.next_id;
    if is_directory {
        item.nlink = 2;
        item.parent = place.parent;
    } else {
        item.nlink = 1;
    }
    let mut plan = Plan { inode, inodes: 1, ids_used: 2, ..Plan::default() };
    plan.mutations.reserve(6);
    names::put_name(
        &mut plan,
        &NewName {
            directory: place.parent,
            name: &place.name,
            slot,
            entry_id: inode + 1,
            inode,
            mode_type: item.mode & file_type::MASK,
        },
    );
    if item.is_symlink() {
        plan.put(Key::new(inode, ItemKind::SymlinkTarget, 0), new.target);
    }
    inherit(view, place.parent, &parent, new.umask, (inode, &mut item), &mut plan)?;
    inodes.name_added(place.parent, is_directory)?;
    inodes.add(inode, item);
    inodes.finish(&mut plan);
    Ok(plan)
}

/// Group, access list and permissions of a new inode: from the directory, or as asked and by the mask. A link has neither
/// list nor mask.
fn inherit(
    view: &View<'_>,
    directory: InodeNumber,
    parent: &InodeItem,
    umask: u32,
    (inode, item): (InodeNumber, &mut InodeItem),
    plan: &mut Plan,
) -> EngineResult<()> {
    if parent.mode & SET_GROUP_ID != 0 {
        item.gid = parent.gid;
        item.mode |= if item.is_directory() { SET_GROUP_ID } else { 0 };
    }
    if item.is_symlink() {
        return Ok(());
    }
    // Most directories have no attributes at all, and creation is frequent.
    let default = if parent.xattrs == 0 { None } else { xattr::stored_acl(view, directory, acl::DEFAULT)? };
    let Some(default) = default else {
        item.mode &= !(umask & 0o777);
        return Ok(());
    };
    let list = default.inherited(item.mode);
    item.mode = item.mode & !0o777 | list.mode_bits();
    if !list.is_minimal() {
        xattr::put_new(plan, inode, item, acl::ACCESS, &list.to_value());
    }
    if item.is_directory() {
        xattr::put_new(plan, inode, item, acl::DEFAULT, &default.to_value());
    }
    Ok(())
}

/// Plans a new regular file without a name: an orphan that may get one later. Uses one identifier. The directory does not
/// change.
///
/// `unnamed` of the plan stays empty: nothing lost a name, and the opener's handle is still to come.
/// Errors: `InvalidArgument` when the type bits are not those of a regular file; `NotFound` and `NotDirectory` (parent).
pub fn plan_create_unnamed(view: &View<'_>, parent: InodeNumber, new: &NewInode<'_>) -> EngineResult<Plan> {
    let mut item = new_item(view, new)?;
    if !item.is_regular() {
        return Err(FsError::InvalidArgument.into());
    }
    let mut inodes = InodeSet::new(view);
    let directory = inodes.live_directory(parent)?;
    item.flags = inode_flags::BORN_UNNAMED;
    let inode = view.resolved.next_id;
    let mut plan = Plan { inode, inodes: 1, ids_used: 1, ..Plan::default() };
    plan.put(orphan_key(inode), [ORPHAN_UNNAMED].as_slice());
    inherit(view, parent, &directory, new.umask, (inode, &mut item), &mut plan)?;
    inodes.add(inode, item);
    inodes.finish(&mut plan);
    Ok(plan)
}

/// The inode item, without names yet; its version becomes 1 when the plan is finished.
pub(super) fn new_item(view: &View<'_>, new: &NewInode<'_>) -> Result<InodeItem, EngineError> {
    use file_type::{BLOCK_DEVICE, CHARACTER_DEVICE, DIRECTORY, FIFO, MASK, REGULAR, SOCKET, SYMLINK};
    if new.mode & !(MASK | PERMISSIONS) != 0 {
        return Err(FsError::InvalidArgument.into());
    }
    let mut rdev = 0;
    match new.mode & MASK {
        REGULAR | DIRECTORY | FIFO | SOCKET => {}
        CHARACTER_DEVICE | BLOCK_DEVICE => rdev = new.rdev,
        SYMLINK => return check_target(new.target).map(|()| fresh(view, new, rdev)),
        _ => return Err(FsError::InvalidArgument.into()),
    }
    if !new.target.is_empty() {
        return Err(FsError::InvalidArgument.into());
    }
    Ok(fresh(view, new, rdev))
}

fn check_target(target: &[u8]) -> Result<(), EngineError> {
    if target.is_empty() {
        return Err(FsError::NotFound.into());
    }
    if target.len() > SYMLINK_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    // A target is a C string: behind a NUL byte nobody could read it.
    if target.contains(&0) {
        return Err(FsError::InvalidArgument.into());
    }
    Ok(())
}

fn fresh(view: &View<'_>, new: &NewInode<'_>, rdev: u64) -> InodeItem {
    let now = view.resolved.now;
    InodeItem {
        generation: view.transid,
        version: 0,
        size: new.target.len() as u64,
        blocks: 0,
        parent: 0,
        rdev,
        flags: 0,
        nlink: 0,
        mode: new.mode,
        uid: new.uid,
        gid: new.gid,
        xattrs: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::test_support::Bench;
    use crate::limits::{NAME_BYTES_MAX, ROOT_INODE};
    use crate::operation::Operation;
    use bytes::Bytes;

    const KINDS: [u32; 7] = [
        file_type::REGULAR,
        file_type::DIRECTORY,
        file_type::SYMLINK,
        file_type::FIFO,
        file_type::SOCKET,
        file_type::BLOCK_DEVICE,
        file_type::CHARACTER_DEVICE,
    ];

    #[test]
    fn every_kind_is_made_with_its_attributes() {
        let mut bench = Bench::new();
        for (number, kind) in KINDS.into_iter().enumerate() {
            let name = format!("f{number}");
            let mut operation = bench.make(&name, kind);
            if let Operation::Create { mode, rdev, .. } = &mut operation {
                *mode |= 0o7000;
                *rdev = 77;
            }
            let (now, inode) = (bench.now, bench.next_id);
            assert_eq!(bench.run(&operation), Ok(inode));
            assert_eq!((bench.last.ids_used, bench.last.inodes), (2, 1));
            assert_eq!(bench.last.touched.as_slice(), [ROOT_INODE, inode]);
            let item = bench.item(inode);
            assert_eq!((item.mode, item.uid, item.gid), (kind | 0o7644, 7, 8));
            assert_eq!((item.atime, item.mtime, item.ctime, item.btime), (now, now, now, now));
            assert_eq!(item.version, 1);
            let device = [file_type::BLOCK_DEVICE, file_type::CHARACTER_DEVICE].contains(&kind);
            assert_eq!(item.rdev, if device { 77 } else { 0 });
            let root = bench.item(ROOT_INODE);
            assert_eq!((root.size, root.version), (number as u64 + 1, number as u64 + 2));
            assert_eq!((root.mtime, root.ctime, root.atime), (now, now, crate::fs::test_support::EPOCH));
            bench.verify();
        }
        let five = bench.last.mutations.len();
        assert_eq!(five, 5, "inode, parent, and the three items of the name");
    }

    #[test]
    fn impossible_creates_are_refused_and_change_nothing() {
        let mut bench = Bench::new();
        bench.file("f");
        let before = bench.items();
        let with = |name: &[u8], mode, target: Bytes| Operation::Create {
            place: Place { parent: ROOT_INODE, name: Bytes::copy_from_slice(name) },
            mode,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target,
        };
        let long = vec![b'n'; NAME_BYTES_MAX + 1];
        let too_long = Bytes::from(vec![b't'; SYMLINK_BYTES_MAX + 1]);
        let nul = Bytes::from_static(b"a\0b");
        let none = Bytes::new();
        for (operation, error) in [
            (with(b"f", file_type::REGULAR, none.clone()), FsError::Exists),
            (with(b"g", 0o644, none.clone()), FsError::InvalidArgument),
            (with(b"g", file_type::MASK, none.clone()), FsError::InvalidArgument),
            (with(b"g", 1 << 20 | file_type::REGULAR, none.clone()), FsError::InvalidArgument),
            (with(b"g", file_type::REGULAR, nul.clone()), FsError::InvalidArgument),
            (with(b"g", file_type::SYMLINK, none.clone()), FsError::NotFound),
            (with(b"g", file_type::SYMLINK, nul), FsError::InvalidArgument),
            (with(b"g", file_type::SYMLINK, too_long), FsError::NameTooLong),
            (with(&long, file_type::REGULAR, none.clone()), FsError::NameTooLong),
            (with(b"", file_type::REGULAR, none.clone()), FsError::InvalidArgument),
            (with(b"..", file_type::REGULAR, none.clone()), FsError::InvalidArgument),
            (with(b"a/b", file_type::REGULAR, none), FsError::InvalidArgument),
        ] {
            assert_eq!(bench.refused(&operation), error, "{operation:?}");
        }
        assert_eq!(bench.refused(&bench.make("f/x", file_type::REGULAR)), FsError::NotDirectory);
        assert_eq!(bench.items(), before);
    }

    #[test]
    fn a_removed_directory_that_is_still_open_takes_no_names() {
        let mut bench = Bench::new();
        let directory = bench.mkdir("d");
        let create = bench.make("d/f", file_type::REGULAR);
        bench.opens.insert(directory, 1);
        bench.done(&Operation::RemoveDirectory { place: bench.place("d") });
        assert_eq!(bench.last.unnamed, Some((directory, true)));
        bench.verify();
        assert_eq!(bench.refused(&create), FsError::NotFound);
        bench.close(directory);
        assert_eq!(bench.refused(&create), FsError::NotFound);
        bench.verify();
    }

    #[test]
    fn the_limit_on_subdirectories_holds() {
        let mut bench = Bench::new();
        bench.poke(ROOT_INODE, |root| root.nlink = LINKS_MAX);
        assert_eq!(bench.refused(&bench.make("d", file_type::DIRECTORY)), FsError::TooManyLinks);
        bench.file("f");
        bench.poke(ROOT_INODE, |root| root.nlink = LINKS_MAX - 1);
        bench.mkdir("d");
    }

    fn unnamed(parent: InodeNumber, mode: u32) -> Operation {
        Operation::CreateUnnamed { parent, mode, umask: 0, uid: 1, gid: 2 }
    }

    #[test]
    fn unnamed_files_are_orphans_until_they_get_a_name_once() {
        let mut bench = Bench::new();
        let before = bench.item(ROOT_INODE);
        let inode = bench.done(&unnamed(ROOT_INODE, file_type::REGULAR | 0o600));
        assert_eq!(bench.item(ROOT_INODE), before);
        bench.opens.insert(inode, 1);
        assert_eq!((bench.last.ids_used, bench.last.unnamed), (1, None));
        bench.verify();
        bench.done(&Operation::Link { inode, place: bench.place("f") });
        bench.verify();
        let item = bench.item(inode);
        assert_eq!((item.nlink, item.flags), (1, 0));
        bench.done(&Operation::Unlink { place: bench.place("f") });
        bench.verify();
        assert_eq!(bench.refused(&Operation::Link { inode, place: bench.place("f") }), FsError::NotFound);
        bench.close(inode);
        bench.verify();
        let file = bench.file("g");
        for (parent, mode, error) in [
            (ROOT_INODE, file_type::DIRECTORY | 0o600, FsError::InvalidArgument),
            (9999, file_type::REGULAR | 0o600, FsError::NotFound),
            (file, file_type::REGULAR | 0o600, FsError::NotDirectory),
        ] {
            assert_eq!(bench.refused(&unnamed(parent, mode)), error);
        }
    }
}
