//! Values that messages are made of.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::fields;
use crate::attributes::{
    Attributes, DirectoryEntry, FileKind, Lineage, SetTime, Timestamp, VolumeStatistics,
};
use crate::error::{ErrorCode, WireError};
use crate::name::{Label, LinkTarget, Name, Text, XattrName, XattrValue};
use crate::request::{FileRef, HandleRef, InodeRef, LockFamily, LockKind, LockRange, OpenFlags, VolumeRef};
use crate::token::Token;

pub(super) fn name() -> BoxedStrategy<Name> {
    vec(any::<u8>(), 1..=255)
        .prop_map(|mut bytes| {
            bytes.iter_mut().filter(|b| **b == 0 || **b == b'/').for_each(|b| *b = b'x');
            Name::new(&bytes).unwrap_or_else(|_| Name::new("dots").expect("valid"))
        })
        .boxed()
}

pub(super) fn xattr_name() -> BoxedStrategy<XattrName> {
    vec(1..=255u8, 1..=255).prop_map(|bytes| XattrName::new(bytes).expect("valid")).boxed()
}

pub(super) fn xattr_value() -> BoxedStrategy<XattrValue> {
    vec(any::<u8>(), 0..300).prop_map(|bytes| XattrValue::new(bytes).expect("valid")).boxed()
}

pub(super) fn target() -> BoxedStrategy<LinkTarget> {
    vec(1..=255u8, 1..300).prop_map(|bytes| LinkTarget::new(bytes).expect("valid")).boxed()
}

pub(super) fn label() -> BoxedStrategy<Label> {
    vec(prop::sample::select(b"abcXYZ019".to_vec()), 1..=63)
        .prop_map(|bytes| Label::new(&String::from_utf8_lossy(&bytes)).expect("valid"))
        .boxed()
}

pub(super) fn text<const MAX: usize>() -> BoxedStrategy<Text<MAX>> {
    vec(any::<char>(), 0..MAX).prop_map(|chars| Text::new(&chars.into_iter().collect::<String>())).boxed()
}

pub(super) fn token() -> BoxedStrategy<Token> {
    vec(any::<u8>(), 1..=256).prop_map(|bytes| Token::new(bytes).expect("valid")).boxed()
}

pub(super) fn inode() -> BoxedStrategy<InodeRef> {
    prop_oneof![any::<u64>().prop_map(InodeRef::Explicit), any::<u8>().prop_map(InodeRef::FromStep)].boxed()
}

pub(super) fn handle() -> BoxedStrategy<HandleRef> {
    prop_oneof![any::<u64>().prop_map(HandleRef::Explicit), any::<u8>().prop_map(HandleRef::FromStep)].boxed()
}

pub(super) fn file() -> BoxedStrategy<FileRef> {
    prop_oneof![inode().prop_map(FileRef::Inode), handle().prop_map(FileRef::Handle)].boxed()
}

pub(super) fn flags() -> BoxedStrategy<OpenFlags> {
    any::<u32>().prop_map(OpenFlags).boxed()
}

pub(super) fn volume() -> BoxedStrategy<VolumeRef> {
    prop_oneof![label().prop_map(VolumeRef::Name), any::<u64>().prop_map(VolumeRef::Id)].boxed()
}

pub(super) fn timestamp() -> BoxedStrategy<Timestamp> {
    fields!(Timestamp { seconds: any::<i64>(), nanoseconds: 0..1_000_000_000u32 })
}

pub(super) fn set_time() -> BoxedStrategy<SetTime> {
    prop_oneof![Just(SetTime::Now), timestamp().prop_map(SetTime::To)].boxed()
}

pub(super) fn lineage() -> BoxedStrategy<Lineage> {
    fields!(Lineage { epoch: any::<u64>(), transid: any::<u64>(), log_transid: any::<u64>() })
}

pub(in crate::tests) fn attributes() -> BoxedStrategy<Attributes> {
    (any::<[u64; 4]>(), any::<[u32; 5]>(), [timestamp(), timestamp(), timestamp(), timestamp()])
        .prop_map(|(wide, narrow, times)| Attributes {
            inode: wide[0],
            mode: narrow[0],
            links: narrow[1],
            uid: narrow[2],
            gid: narrow[3],
            rdev: narrow[4],
            size: wide[1],
            blocks: wide[2],
            atime: times[0],
            mtime: times[1],
            ctime: times[2],
            btime: times[3],
            version: wide[3],
        })
        .boxed()
}

pub(in crate::tests) fn entry() -> BoxedStrategy<DirectoryEntry> {
    fields!(DirectoryEntry {
        cookie: any::<u64>(),
        inode: any::<u64>(),
        kind: prop::sample::select(FileKind::ALL.to_vec()),
        name: name(),
        attributes: option::of(attributes()),
    })
}

pub(super) fn statistics() -> BoxedStrategy<VolumeStatistics> {
    fields!(VolumeStatistics {
        block_size: any::<u32>(),
        max_name: any::<u32>(),
        total_bytes: any::<u64>(),
        used_bytes: any::<u64>(),
        available_bytes: any::<u64>(),
        total_inodes: any::<u64>(),
        used_inodes: any::<u64>(),
    })
}

pub(super) fn wire_error() -> BoxedStrategy<WireError> {
    fields!(WireError { code: prop::sample::select(ErrorCode::ALL.to_vec()), detail: text() })
}

pub(in crate::tests) fn lock_range() -> BoxedStrategy<LockRange> {
    fields!(LockRange {
        inode: any::<u64>(),
        family: prop::sample::select(vec![LockFamily::Range, LockFamily::Flock]),
        kind: prop::sample::select(vec![LockKind::Read, LockKind::Write, LockKind::Unlock]),
        owner: any::<u64>(),
        start: any::<u64>(),
        last: any::<u64>(),
        process: any::<u32>(),
    })
}
