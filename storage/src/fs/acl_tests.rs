//! Access lists in operation: what they do to modes, what a mode does to them, and what is inherited.

use crate::error::FsError;
use crate::format::item::file_type;
use crate::fs::acl::{ACCESS, Acl, DEFAULT};
use crate::fs::test_support::Bench;
use crate::fs::xattr;
use crate::operation::{AttributeChange, Operation, XattrMode};
use crate::types::InodeNumber;
use bytes::Bytes;

/// user::rwx, user:1000:rw-, group::r-x, mask::rwx, other::---
const FULL: [(u16, u16, u32); 5] =
    [(1, 7, u32::MAX), (2, 6, 1000), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
/// user::rw-, group::r--, other::---
const MINIMAL: [(u16, u16, u32); 3] = [(1, 6, u32::MAX), (4, 4, u32::MAX), (32, 0, u32::MAX)];

fn value(entries: &[(u16, u16, u32)]) -> Bytes {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value.into()
}

fn set(inode: InodeNumber, name: &'static [u8], entries: &[(u16, u16, u32)]) -> Operation {
    Operation::SetXattr { inode, name: Bytes::from_static(name), value: value(entries), mode: XattrMode::Any }
}

fn mode_of_list(bench: &Bench, inode: InodeNumber, name: &[u8]) -> Option<u32> {
    let value = bench.view(false, |view| xattr::get_xattr(view, inode, name)).ok()?;
    Some(Acl::parse(&value).expect("stored lists are right").mode_bits())
}

fn permissions(bench: &Bench, inode: InodeNumber) -> u32 {
    bench.item(inode).mode & 0o7777
}

#[test]
fn list_and_mode_agree_whichever_was_set_last() {
    let mut bench = Bench::new();
    let file = bench.file("f");
    bench.done(&set(file, ACCESS, &FULL));
    assert_eq!((permissions(&bench, file), mode_of_list(&bench, file, ACCESS)), (0o770, Some(0o770)));
    let change = AttributeChange { mode: Some(0o640), ..AttributeChange::default() };
    bench.done(&Operation::SetAttributes { inode: file, change });
    assert_eq!((permissions(&bench, file), mode_of_list(&bench, file, ACCESS)), (0o640, Some(0o640)));
    bench.done(&set(file, ACCESS, &MINIMAL));
    assert_eq!((permissions(&bench, file), mode_of_list(&bench, file, ACCESS)), (0o640, None));
    assert_eq!(bench.item(file).xattrs, 0, "a list that says no more than the mode is not stored");
    bench.done(&set(file, ACCESS, &MINIMAL));
    bench.verify();
}

#[test]
fn what_is_made_in_a_directory_with_a_default_list_inherits_it() {
    let mut bench = Bench::new();
    let directory = bench.mkdir("d");
    bench.done(&set(directory, DEFAULT, &FULL));
    let masked = |bench: &Bench, path: &str, kind: u32| {
        let mut operation = bench.make(path, kind);
        if let Operation::Create { mode, umask, .. } = &mut operation {
            *mode = kind | 0o666;
            *umask = 0o077;
        }
        operation
    };
    let operation = masked(&bench, "d/f", file_type::REGULAR);
    let file = bench.done(&operation);
    assert_eq!(permissions(&bench, file), 0o660, "the mask of the process does not count");
    assert_eq!(mode_of_list(&bench, file, ACCESS), Some(0o660));
    assert_eq!(mode_of_list(&bench, file, DEFAULT), None);
    let operation = masked(&bench, "d/sub", file_type::DIRECTORY);
    let below = bench.done(&operation);
    assert_eq!(mode_of_list(&bench, below, DEFAULT), Some(0o770));
    assert_eq!(bench.item(below).xattrs, 2);
    let link = bench.done(&bench.make("d/l", file_type::SYMLINK));
    assert_eq!(bench.item(link).xattrs, 0);
    bench.verify();
    let operation = masked(&bench, "plain", file_type::REGULAR);
    let plain = bench.done(&operation);
    assert_eq!((permissions(&bench, plain), bench.item(plain).xattrs), (0o600, 0));
}

#[test]
fn a_file_without_a_name_inherits_from_the_directory_it_is_made_in() {
    let mut bench = Bench::new();
    let directory = bench.mkdir("d");
    let mode = file_type::REGULAR | 0o666;
    let unnamed = |parent| Operation::CreateUnnamed { parent, mode, umask: 0o027, uid: 1, gid: 2 };
    let plain = bench.done(&unnamed(directory));
    assert_eq!((permissions(&bench, plain), bench.item(plain).gid), (0o640, 2));
    let change = AttributeChange { mode: Some(0o2755), gid: Some(77), ..AttributeChange::default() };
    bench.done(&Operation::SetAttributes { inode: directory, change });
    bench.done(&set(directory, DEFAULT, &FULL));
    let file = bench.done(&unnamed(directory));
    assert_eq!((permissions(&bench, file), bench.item(file).gid), (0o660, 77));
    assert_eq!(mode_of_list(&bench, file, ACCESS), Some(0o660));
    assert_eq!(bench.item(file).xattrs, 1);
    bench.opens.insert(file, 1);
    bench.done(&Operation::Link { inode: file, place: bench.place("named") });
    assert_eq!(mode_of_list(&bench, file, ACCESS), Some(0o660), "its name is elsewhere, its list stays");
}

#[test]
fn lists_where_they_cannot_be_are_refused() {
    let mut bench = Bench::new();
    let file = bench.file("f");
    let link = bench.done(&bench.make("l", file_type::SYMLINK));
    assert_eq!(bench.refused(&set(file, DEFAULT, &FULL)), FsError::NotDirectory);
    assert_eq!(bench.refused(&set(link, ACCESS, &FULL)), FsError::NotSupported);
    assert_eq!(bench.refused(&set(file, ACCESS, &FULL[..4])), FsError::InvalidArgument);
}

#[test]
fn what_is_made_in_a_set_group_id_directory_belongs_to_its_group() {
    let mut bench = Bench::new();
    let directory = bench.mkdir("d");
    let change = AttributeChange { mode: Some(0o2775), gid: Some(77), ..AttributeChange::default() };
    bench.done(&Operation::SetAttributes { inode: directory, change });
    let file = bench.file("d/f");
    assert_eq!((bench.item(file).gid, permissions(&bench, file) & 0o2000), (77, 0));
    let below = bench.mkdir("d/sub");
    assert_eq!((bench.item(below).gid, permissions(&bench, below) & 0o2000), (77, 0o2000));
}
