//! Extended attributes: set, remove, get, list.
//!
//! A value of up to [`XATTR_INLINE_BYTES_MAX`] stands in its header item, a larger one in pieces of
//! [`XATTR_PIECE_BYTES`] below keys made of the header's slot and the number of the piece.
//!
//! Invariants: `InodeItem::xattrs` is the number of headers; pieces `0..pieces` of a header exist and no others; a
//! value is replaced as a whole in one plan (a crash shows the old or the new one, never none).

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, XattrItem, damaged};
use crate::format::key::{ItemKind, Key};
use crate::fs::acl::{self, Acl};
use crate::fs::inode_set::InodeSet;
use crate::fs::plan::Plan;
use crate::fs::view::{SLOT_PROBES, View, name_slot};
use crate::limits::{NAME_BYTES_MAX, XATTR_INLINE_BYTES_MAX, XATTR_PIECE_BYTES, XATTR_VALUE_BYTES_MAX};
use crate::operation::XattrMode;
use crate::tree::ItemValue;
use crate::types::InodeNumber;
use bytes::{Bytes, BytesMut};
use std::ops::ControlFlow;

/// Plans setting an extended attribute.
///
/// The value of an access control list must be one; that for access also sets the permissions, and is not kept when they
/// say all of it.
///
/// Errors: `NotFound`; `InvalidArgument` (empty name, NUL in it), `NameTooLong`, `XattrTooBig`; for lists `NotSupported`,
/// `NotDirectory`, `InvalidArgument`; `Exists` and `NoXattr` when the expectation of `mode` fails; `NoSpace` when 256
/// names have the same hash.
pub fn plan_set_xattr(
    view: &View<'_>,
    inode: InodeNumber,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> EngineResult<Plan> {
    check_xattr_name(name)?;
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(FsError::XattrTooBig.into());
    }
    let mut inodes = InodeSet::new(view);
    let item = inodes.edit(inode)?;
    let place = find(view, inode, name)?;
    let list = acl_of(item, name, value)?;
    match (mode, &place.found) {
        (XattrMode::Create, Some(_)) => return Err(FsError::Exists.into()),
        (XattrMode::Replace, None) => return Err(FsError::NoXattr.into()),
        _ => {}
    }
    if let Some(list) = list.filter(|_| name == acl::ACCESS) {
        item.mode = item.mode & !0o777 | list.mode_bits();
        if list.is_minimal() {
            // The mode says all of it.
            item.ctime = view.resolved.now;
            let mut plan = Plan { inode, ..Plan::default() };
            if let Some(found) = place.found {
                item.xattrs = fewer(item, inode)?;
                delete_all(&mut plan, inode, &found);
            }
            inodes.finish(&mut plan);
            return Ok(plan);
        }
    }
    let old_pieces = place.found.as_ref().map_or(0, |found| found.pieces);
    let slot = match &place.found {
        Some(found) => found.slot,
        None => place.free.ok_or(FsError::NoSpace)?,
    };
    if place.found.is_none() {
        item.xattrs += 1;
    }
    item.ctime = view.resolved.now;

    let mut plan = Plan { inode, ..Plan::default() };
    put_value(&mut plan, inode, slot, name, value, old_pieces);
    inodes.finish(&mut plan);
    Ok(plan)
}

/// The access control list that a value is to be, if the name is one of theirs.
///
/// Errors: `InvalidArgument` for what is no list; `NotSupported` of a link, which has none; `NotDirectory` for a default
/// list of anything but a directory.
fn acl_of(item: &InodeItem, name: &[u8], value: &[u8]) -> Result<Option<Acl>, EngineError> {
    if name != acl::ACCESS && name != acl::DEFAULT {
        return Ok(None);
    }
    if item.is_symlink() {
        return Err(FsError::NotSupported.into());
    }
    if name == acl::DEFAULT && !item.is_directory() {
        return Err(FsError::NotDirectory.into());
    }
    Ok(Some(Acl::parse(value)?))
}

/// Adds an attribute to an inode that the plan makes, so that nothing is in its way.
pub fn put_new(plan: &mut Plan, inode: InodeNumber, item: &mut InodeItem, name: &[u8], value: &[u8]) {
    item.xattrs += 1;
    put_value(plan, inode, name_slot(name), name, value, 0);
}

/// Rewrites the access list of an inode, if it has one, for a mode that changes.
pub fn follow_mode(
    view: &View<'_>,
    inode: InodeNumber,
    item: &InodeItem,
    plan: &mut Plan,
) -> EngineResult<()> {
    if item.xattrs == 0 {
        return Ok(());
    }
    let Some(found) = find(view, inode, acl::ACCESS)?.found else { return Ok(()) };
    let Some(mut list) = stored_acl(view, inode, acl::ACCESS)? else { return Ok(()) };
    list.set_mode(item.mode);
    put_value(plan, inode, found.slot, acl::ACCESS, &list.to_value(), found.pieces);
    Ok(())
}

/// The access control list that an inode has under this name, if any.
///
/// A stored list that is none is damage and no refusal: lists are checked when they are set, and whoever creates a file
/// or changes a mode sent nothing that could be wrong.
pub fn stored_acl(view: &View<'_>, inode: InodeNumber, name: &[u8]) -> EngineResult<Option<Acl>> {
    let value = match get_xattr(view, inode, name) {
        Ok(value) => value,
        Err(EngineError::Refused(FsError::NoXattr)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let broken = || {
        let key = Key::new(inode, ItemKind::Xattr, name_slot(name));
        damaged(&key, "access control list that breaks the rules of lists")
    };
    Ok(Some(Acl::parse(&value).map_err(|_| broken())?))
}

fn put_value(plan: &mut Plan, inode: InodeNumber, slot: u64, name: &[u8], value: &[u8], old_pieces: u16) {
    let inline = value.len() <= XATTR_INLINE_BYTES_MAX;
    let pieces = if inline { 0 } else { value.len().div_ceil(XATTR_PIECE_BYTES) as u16 };
    let header =
        XattrItem { value_length: value.len() as u32, pieces, name, value: if inline { value } else { &[] } };
    let mut bytes = ItemValue::new();
    header.write_to(&mut bytes);
    plan.put(Key::new(inode, ItemKind::Xattr, slot), bytes);
    if !inline {
        for (piece, part) in (0..).zip(value.chunks(XATTR_PIECE_BYTES)) {
            plan.put(piece_key(inode, slot, piece), part);
        }
    }
    for piece in pieces..old_pieces {
        plan.delete(piece_key(inode, slot, piece));
    }
}

fn delete_all(plan: &mut Plan, inode: InodeNumber, found: &FoundXattr) {
    plan.delete(Key::new(inode, ItemKind::Xattr, found.slot));
    for piece in 0..found.pieces {
        plan.delete(piece_key(inode, found.slot, piece));
    }
}

/// The count of attributes after one is gone.
fn fewer(item: &InodeItem, inode: InodeNumber) -> Result<u32, EngineError> {
    item.xattrs.checked_sub(1).ok_or_else(|| {
        let key = Key::new(inode, ItemKind::Inode, 0);
        damaged(&key, "inode that counts fewer extended attributes than it has").into()
    })
}

/// Plans removing an extended attribute. Errors: `NotFound`, `NoXattr`, those of the name.
pub fn plan_remove_xattr(view: &View<'_>, inode: InodeNumber, name: &[u8]) -> EngineResult<Plan> {
    check_xattr_name(name)?;
    let mut inodes = InodeSet::new(view);
    let item = inodes.edit(inode)?;
    let found = find(view, inode, name)?.found.ok_or(FsError::NoXattr)?;
    item.xattrs = fewer(item, inode)?;
    item.ctime = view.resolved.now;
    let mut plan = Plan { inode, ..Plan::default() };
    delete_all(&mut plan, inode, &found);
    inodes.finish(&mut plan);
    Ok(plan)
}

/// Value of an extended attribute. Errors: `NotFound` (inode), `NoXattr`, those of the name.
pub fn get_xattr(view: &View<'_>, inode: InodeNumber, name: &[u8]) -> EngineResult<Bytes> {
    check_xattr_name(name)?;
    // Most files have none, and most questions are about `security.capability`.
    if view.inode(inode)?.xattrs == 0 {
        return Err(FsError::NoXattr.into());
    }
    let found = find(view, inode, name)?.found.ok_or(FsError::NoXattr)?;
    if found.pieces == 0 {
        return Ok(found.value);
    }
    let mut value = BytesMut::with_capacity(found.value_length);
    for piece in 0..found.pieces {
        let key = piece_key(inode, found.slot, piece);
        let part = view.get(&key)?.ok_or_else(|| damaged(&key, "missing piece of an extended attribute"))?;
        value.extend_from_slice(&part);
    }
    if value.len() != found.value_length {
        let key = Key::new(inode, ItemKind::Xattr, found.slot);
        return Err(damaged(&key, "extended attribute whose pieces are not as long as its value").into());
    }
    Ok(value.freeze())
}

/// Names of all extended attributes, in no particular order. Errors: `NotFound`.
pub fn list_xattrs(view: &View<'_>, inode: InodeNumber) -> EngineResult<Vec<Bytes>> {
    let mut names = Vec::new();
    if view.inode(inode)?.xattrs == 0 {
        return Ok(names);
    }
    let from = Key::new(inode, ItemKind::Xattr, 0);
    let to = Key::new(inode, ItemKind::Xattr, u64::MAX);
    let mut broken = None;
    view.scan(&from, &to, |key, bytes| match XattrItem::parse(key, bytes) {
        Ok(item) => {
            names.push(Bytes::copy_from_slice(item.name));
            ControlFlow::Continue(())
        }
        Err(error) => {
            broken = Some(error);
            ControlFlow::Break(())
        }
    })?;
    match broken {
        Some(error) => Err(error.into()),
        None => Ok(names),
    }
}

/// Key of a piece of a value; the top four bits of a slot are clear, so nothing is lost.
fn piece_key(inode: InodeNumber, slot: u64, piece: u16) -> Key {
    Key::new(inode, ItemKind::XattrPiece, slot << 4 | u64::from(piece))
}

struct FoundXattr {
    slot: u64,
    pieces: u16,
    value_length: usize,
    /// Empty when it stands in pieces.
    value: Bytes,
}

struct XattrPlace {
    found: Option<FoundXattr>,
    /// First slot not taken.
    free: Option<u64>,
}

fn find(view: &View<'_>, inode: InodeNumber, name: &[u8]) -> EngineResult<XattrPlace> {
    let base = name_slot(name);
    let from = Key::new(inode, ItemKind::Xattr, base);
    let to = Key::new(inode, ItemKind::Xattr, base | SLOT_PROBES);
    let (mut found, mut broken, mut gap, mut next) = (None, None, None, base);
    view.scan(&from, &to, |key, bytes| {
        if key.offset > next && gap.is_none() {
            gap = Some(next);
        }
        next = key.offset + 1;
        match XattrItem::parse(key, bytes) {
            Ok(item) if item.name == name => {
                let lies = usize::from(item.pieces) > XATTR_VALUE_BYTES_MAX.div_ceil(XATTR_PIECE_BYTES)
                    || item.value_length as usize > XATTR_VALUE_BYTES_MAX;
                if lies {
                    broken = Some(damaged(key, "extended attribute of an impossible size"));
                } else {
                    found = Some(FoundXattr {
                        slot: key.offset,
                        pieces: item.pieces,
                        value_length: item.value_length as usize,
                        value: Bytes::copy_from_slice(item.value),
                    });
                }
                ControlFlow::Break(())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                broken = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    match broken {
        Some(error) => Err(error.into()),
        None => Ok(XattrPlace { found, free: gap.or_else(|| (next <= base | SLOT_PROBES).then_some(next)) }),
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), EngineError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    if name.is_empty() || name.contains(&0) {
        return Err(FsError::InvalidArgument.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::test_support::Bench;
    use crate::operation::Operation;

    fn set(inode: InodeNumber, name: &str, value: &[u8], mode: XattrMode) -> Operation {
        let (name, value) = (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value));
        Operation::SetXattr { inode, name, value, mode }
    }

    fn get(bench: &Bench, inode: InodeNumber, name: &str) -> EngineResult<Bytes> {
        bench.view(false, |view| get_xattr(view, inode, name.as_bytes()))
    }

    #[test]
    fn values_of_every_size_replace_each_other() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        let sizes = [
            0,
            1,
            XATTR_INLINE_BYTES_MAX,
            XATTR_INLINE_BYTES_MAX + 1,
            XATTR_PIECE_BYTES,
            XATTR_PIECE_BYTES + 1,
            XATTR_VALUE_BYTES_MAX,
        ];
        for from in sizes {
            for to in sizes {
                for size in [from, to] {
                    let value: Vec<u8> = (0..size).map(|byte| (byte / 7 + size) as u8).collect();
                    let now = bench.now;
                    bench.done(&set(inode, "user.a", &value, XattrMode::Any));
                    bench.verify();
                    assert_eq!(get(&bench, inode, "user.a"), Ok(Bytes::from(value)));
                    let item = bench.item(inode);
                    assert_eq!((item.xattrs, item.ctime), (1, now));
                }
            }
        }
        bench.done(&Operation::RemoveXattr { inode, name: Bytes::from_static(b"user.a") });
        bench.verify();
        assert_eq!(get(&bench, inode, "user.a"), Err(FsError::NoXattr.into()));
    }

    #[test]
    fn expectations_and_limits() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let remove =
            |name: &'static str| Operation::RemoveXattr { inode, name: Bytes::from_static(name.as_bytes()) };
        let big = vec![0; XATTR_VALUE_BYTES_MAX + 1];
        assert_eq!(bench.refused(&set(inode, "a", b"1", XattrMode::Replace)), FsError::NoXattr);
        assert_eq!(bench.refused(&remove("a")), FsError::NoXattr);
        bench.done(&set(inode, "a", b"1", XattrMode::Create));
        assert_eq!(bench.refused(&set(inode, "a", b"2", XattrMode::Create)), FsError::Exists);
        bench.done(&set(inode, "a", b"3", XattrMode::Replace));
        assert_eq!(get(&bench, inode, "a"), Ok(Bytes::from_static(b"3")));
        assert_eq!(bench.refused(&set(inode, "a", &big, XattrMode::Any)), FsError::XattrTooBig);
        assert_eq!(bench.refused(&set(inode, "", b"", XattrMode::Any)), FsError::InvalidArgument);
        assert_eq!(bench.refused(&set(inode, &long, b"", XattrMode::Any)), FsError::NameTooLong);
        assert_eq!(bench.refused(&set(9999, "a", b"", XattrMode::Any)), FsError::NotFound);
        bench.done(&set(inode, "b", b"", XattrMode::Any));
        let mut names = bench.view(false, |view| list_xattrs(view, inode)).expect("a sound tree");
        names.sort();
        assert_eq!(names, ["a", "b"]);
        bench.verify();
    }

    #[test]
    fn lost_pieces_and_impossible_sizes_are_damage() {
        let mut bench = Bench::new();
        let inode = bench.file("f");
        bench.done(&set(inode, "a", &[7; 9000], XattrMode::Any));
        let slot = name_slot(b"a");
        bench.put_item(piece_key(inode, slot, 1), b"short");
        assert!(matches!(get(&bench, inode, "a"), Err(EngineError::Corrupt(_))));
        let mut value = Vec::new();
        XattrItem { value_length: 1 << 30, pieces: 60_000, name: b"a", value: &[] }.write_to(&mut value);
        bench.put_item(Key::new(inode, ItemKind::Xattr, slot), &value);
        assert!(matches!(get(&bench, inode, "a"), Err(EngineError::Corrupt(_))));
    }
}
