//! Questions about names and inodes: lookup, attributes, the target of a symbolic link.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, damaged};
use crate::format::key::{ItemKind, Key};
use crate::fs::view::{View, check_name};
use crate::types::InodeNumber;
use bytes::Bytes;

/// The inode that a name in a directory stands for, with its attributes; knows `.` and `..` (the root's is itself).
///
/// Errors: `NotFound`, `NotDirectory`, `NameTooLong`, `InvalidArgument` (no possible name).
pub fn lookup(view: &View<'_>, parent: InodeNumber, name: &[u8]) -> EngineResult<(InodeNumber, InodeItem)> {
    if name == b"." {
        return Ok((parent, view.directory(parent)?));
    }
    if name == b".." {
        let above = view.directory(parent)?.parent;
        return Ok((above, view.directory(above)?));
    }
    check_name(name)?;
    let Some(entry) = view.entry(parent, name)? else {
        // Only an absent name needs to look at the parent: what has entries is a directory.
        view.directory(parent)?;
        return Err(FsError::NotFound.into());
    };
    match view.inode(entry.inode) {
        Err(EngineError::Refused(FsError::NotFound)) => {
            let key = Key::new(entry.inode, ItemKind::Inode, 0);
            Err(damaged(&key, "missing, though a directory entry points to it").into())
        }
        item => Ok((entry.inode, item?)),
    }
}

/// Attributes of an inode; `NotFound` when there is none.
pub fn attributes(view: &View<'_>, inode: InodeNumber) -> EngineResult<InodeItem> {
    view.inode(inode)
}

/// Target of a symbolic link; `InvalidArgument` for anything else.
pub fn read_link(view: &View<'_>, inode: InodeNumber) -> EngineResult<Bytes> {
    if !view.inode(inode)?.is_symlink() {
        return Err(FsError::InvalidArgument.into());
    }
    let key = Key::new(inode, ItemKind::SymlinkTarget, 0);
    let target = view.get(&key)?.ok_or_else(|| damaged(&key, "symbolic link without a target"))?;
    Ok(Bytes::copy_from_slice(&target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::item::file_type;
    use crate::fs::test_support::Bench;
    use crate::limits::{NAME_BYTES_MAX, ROOT_INODE};

    #[test]
    fn names_dots_and_errors() {
        let mut bench = Bench::new();
        let directory = bench.mkdir("d");
        let file = bench.file("d/f");
        let found = |parent, name: &[u8]| {
            bench.view(false, |view| lookup(view, parent, name)).map(|(inode, _)| inode)
        };
        assert_eq!(found(directory, b"f"), Ok(file));
        assert_eq!(found(directory, b"."), Ok(directory));
        assert_eq!(found(directory, b".."), Ok(ROOT_INODE));
        assert_eq!(found(ROOT_INODE, b".."), Ok(ROOT_INODE));
        assert_eq!(found(directory, b"g"), Err(FsError::NotFound.into()));
        assert_eq!(found(file, b"g"), Err(FsError::NotDirectory.into()));
        assert_eq!(found(file, b"."), Err(FsError::NotDirectory.into()));
        assert_eq!(found(9999, b"g"), Err(FsError::NotFound.into()));
        assert_eq!(found(ROOT_INODE, &[b'x'; NAME_BYTES_MAX + 1]), Err(FsError::NameTooLong.into()));
    }

    #[test]
    fn targets_of_links_are_read_and_nothing_else_has_one() {
        let mut bench = Bench::new();
        let link = bench.done(&bench.make("l", file_type::SYMLINK));
        let file = bench.file("f");
        let target = |inode| bench.view(false, |view| read_link(view, inode));
        assert_eq!(target(link), Ok(Bytes::from_static(b"target")));
        assert_eq!(target(file), Err(FsError::InvalidArgument.into()));
        assert_eq!(target(ROOT_INODE), Err(FsError::InvalidArgument.into()));
    }
}
