//! Nonsense that decodes well is refused before anybody acts on it.

use super::samples;
use crate::error::ErrorCode;
use crate::limits::{MAX_COMPOUND_STEPS, MAX_FILE_SIZE, MAX_INODE_LIST, MAX_PAYLOAD};
use crate::name::Name;
use crate::request::{
    Create, FileRef, FileRequest, HandleRef, InodeRef, LockFamily, LockKind, LockRange, NewKind, OpenFlags,
    OperationId, Request, RequestEnvelope, SetAttributes, WritePosition,
};
use proptest::prelude::*;

fn name() -> Name {
    Name::new("name").expect("valid")
}

fn create(kind: NewKind, exclusive: bool, open: Option<OpenFlags>) -> FileRequest {
    let parent = InodeRef::Explicit(256);
    FileRequest::Create(Create {
        parent,
        name: name(),
        kind,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        exclusive,
        open,
    })
}

fn outcome(request: FileRequest, payload: usize) -> Result<(), ErrorCode> {
    RequestEnvelope::from(request).validate(payload).map_err(|error| error.code)
}

fn compound(steps: Vec<FileRequest>, payload: usize) -> Result<(), ErrorCode> {
    RequestEnvelope::from(Request::Compound { steps }).validate(payload).map_err(|error| error.code)
}

const FIRST_STEP: FileRef = FileRef::Handle(HandleRef::FromStep(0));
const READ_WRITE: OpenFlags = OpenFlags::READ.with(OpenFlags::WRITE);

#[test]
fn a_file_is_created_written_synced_and_closed_in_one_trip() {
    let steps = vec![
        create(NewKind::Regular, true, Some(READ_WRITE)),
        FileRequest::Write { file: FIRST_STEP, position: WritePosition::At(0) },
        FileRequest::Fsync { file: FIRST_STEP, data_only: false, lineage: None },
        FileRequest::Read { file: FIRST_STEP, offset: 0, length: 10 },
        FileRequest::Close { handle: HandleRef::FromStep(0), lineage: None },
    ];
    assert_eq!(compound(steps, 10), Ok(()));
}

#[test]
fn references_go_back_to_a_step_that_gives_what_is_asked() {
    let look = |parent| FileRequest::Lookup { parent, name: name() };
    let first = look(InodeRef::Explicit(256));
    let refused = Err(ErrorCode::InvalidArgument);
    assert_eq!(compound(vec![first.clone(), look(InodeRef::FromStep(0))], 0), Ok(()));
    assert_eq!(compound(vec![first.clone(), look(InodeRef::FromStep(1))], 0), refused, "itself");
    assert_eq!(compound(vec![first.clone(), look(InodeRef::FromStep(2))], 0), refused, "a later one");
    assert_eq!(
        compound(vec![FileRequest::StatFs, look(InodeRef::FromStep(0))], 0),
        refused,
        "one without an inode"
    );
    let close = FileRequest::Close { handle: HandleRef::FromStep(0), lineage: None };
    assert_eq!(compound(vec![first, close.clone()], 0), refused, "one without a handle");
    assert_eq!(
        compound(vec![create(NewKind::Regular, true, None), close], 0),
        refused,
        "one that opens nothing"
    );
    assert_eq!(outcome(look(InodeRef::FromStep(0)), 0), refused, "outside of a compound");
    assert_eq!(outcome(look(InodeRef::Explicit(0)), 0), refused, "inode 0");
}

#[test]
fn payloads_and_replies_of_a_compound_fit_one_frame() {
    let write = FileRequest::Write { file: FileRef::handle(1), position: WritePosition::Append };
    let read = FileRequest::Read { file: FileRef::handle(1), offset: 0, length: 1 };
    let refused = Err(ErrorCode::InvalidArgument);
    assert_eq!(compound(vec![write.clone(), write.clone()], 1), refused);
    assert_eq!(compound(vec![read.clone(), read.clone()], 0), refused);
    assert_eq!(compound(vec![read.clone()], 1), refused, "a payload for nobody");
    assert_eq!(outcome(read, 1), refused, "a payload for nobody");
    assert_eq!(outcome(write, MAX_PAYLOAD), Ok(()));
    let list = |max_entries| FileRequest::ReadDirectory {
        inode: InodeRef::Explicit(256),
        after_cookie: 0,
        max_entries,
        with_attributes: true,
    };
    assert_eq!(compound(vec![list(1024)], 0), Ok(()));
    assert_eq!(compound(vec![list(1024), list(1024)], 0), Err(ErrorCode::TooLarge));
    assert_eq!(compound(vec![list(1024), list(100)], 0), Ok(()));
    assert_eq!(compound(vec![], 0), refused);
    assert_eq!(compound(vec![FileRequest::StatFs; MAX_COMPOUND_STEPS], 0), Ok(()));
    assert_eq!(compound(vec![FileRequest::StatFs; MAX_COMPOUND_STEPS + 1], 0), Err(ErrorCode::TooLarge));
}

#[test]
fn ranges_end_where_files_must_end() {
    let file = FileRef::inode(300);
    let write = |offset| FileRequest::Write { file, position: WritePosition::At(offset) };
    assert_eq!(outcome(write(MAX_FILE_SIZE - 10), 10), Ok(()));
    assert_eq!(outcome(write(MAX_FILE_SIZE - 10), 11), Err(ErrorCode::FileTooBig));
    assert_eq!(outcome(write(u64::MAX), 0), Err(ErrorCode::FileTooBig));
    let punch = |offset, length| FileRequest::PunchHole { file, offset, length };
    assert_eq!(outcome(punch(1, MAX_FILE_SIZE - 1), 0), Ok(()));
    assert_eq!(outcome(punch(1, MAX_FILE_SIZE), 0), Err(ErrorCode::FileTooBig));
    assert_eq!(outcome(punch(u64::MAX, u64::MAX), 0), Err(ErrorCode::FileTooBig));
    assert_eq!(outcome(punch(0, 0), 0), Err(ErrorCode::InvalidArgument));
    let read = |length| FileRequest::Read { file, offset: 0, length };
    assert_eq!(outcome(read(MAX_PAYLOAD as u32), 0), Ok(()));
    assert_eq!(outcome(read(MAX_PAYLOAD as u32 + 1), 0), Err(ErrorCode::TooLarge));
    let grow =
        |size| FileRequest::SetAttributes(SetAttributes { size: Some(size), ..SetAttributes::none(file) });
    assert_eq!(outcome(grow(MAX_FILE_SIZE), 0), Ok(()));
    assert_eq!(outcome(grow(MAX_FILE_SIZE + 1), 0), Err(ErrorCode::FileTooBig));
}

#[test]
fn arguments_fit_each_other() {
    let refused = Err(ErrorCode::InvalidArgument);
    let open = |flags| FileRequest::Open { inode: InodeRef::Explicit(300), flags };
    assert_eq!(outcome(open(READ_WRITE.with(OpenFlags::TRUNCATE)), 0), Ok(()));
    assert_eq!(outcome(open(OpenFlags::READ.with(OpenFlags::TRUNCATE)), 0), refused);
    assert_eq!(outcome(open(OpenFlags(128)), 0), refused);
    assert_eq!(outcome(create(NewKind::Directory, false, None), 0), refused);
    assert_eq!(outcome(create(NewKind::Fifo, true, Some(OpenFlags::READ)), 0), refused);
    let mut request = RequestEnvelope::from(FileRequest::StatFs);
    request.operation = Some(OperationId { client: [1; 16], sequence: 0 });
    assert_eq!(request.validate(0).map_err(|error| error.code), refused);
}

const LOCK: LockRange = LockRange {
    inode: 300,
    family: LockFamily::Range,
    kind: LockKind::Write,
    owner: 1,
    start: 10,
    last: 19,
    process: 1,
};

#[test]
fn locks_are_ranges_that_can_be() {
    let refused = Err(ErrorCode::InvalidArgument);
    for ask in
        [|lock| FileRequest::Lock { lock, wait: None, reclaim: false }, |lock| FileRequest::TestLock { lock }]
    {
        let check = |lock| outcome(ask(lock), 0);
        assert_eq!(check(LOCK), Ok(()));
        assert_eq!(check(LockRange { start: 19, ..LOCK }), Ok(()), "one byte");
        assert_eq!(check(LockRange { start: 20, ..LOCK }), refused, "ends before it starts");
        assert_eq!(check(LockRange { inode: 0, ..LOCK }), refused);
        assert_eq!(check(LockRange { last: MAX_FILE_SIZE, ..LOCK }), Ok(()), "to the end");
        assert_eq!(check(LockRange { last: MAX_FILE_SIZE + 1, ..LOCK }), Err(ErrorCode::FileTooBig));
        let flock = LockRange { family: LockFamily::Flock, start: 0, last: MAX_FILE_SIZE, ..LOCK };
        assert_eq!(check(flock), Ok(()));
        assert_eq!(check(LockRange { last: 19, ..flock }), refused, "a flock is of the whole file");
        assert_eq!(check(LockRange { start: 1, ..flock }), refused, "a flock is of the whole file");
    }
    // A step that waits would hold the others.
    let lock = FileRequest::Lock { lock: LOCK, wait: Some(1), reclaim: false };
    assert_eq!(compound(vec![FileRequest::StatFs, lock], 0), refused);
}

#[test]
fn lists_of_numbers_are_bounded_and_stand_alone() {
    let refused = Err(ErrorCode::InvalidArgument);
    for list in [
        |inodes| FileRequest::ReclaimInodes { inodes },
        |inodes| FileRequest::ForgetInodes { inodes },
        |recalls| FileRequest::AcknowledgeRecalls { recalls },
    ] {
        assert_eq!(outcome(list(vec![]), 0), Ok(()));
        assert_eq!(outcome(list(vec![300; MAX_INODE_LIST]), 0), Ok(()));
        assert_eq!(outcome(list(vec![300; MAX_INODE_LIST + 1]), 0), refused);
        assert_eq!(compound(vec![FileRequest::StatFs, list(vec![300])], 0), refused);
        assert_eq!(outcome(list(vec![300]), 1), refused, "a payload for nobody");
    }
}

#[test]
fn masked_creations_and_unprivileged_writes_are_checked_like_their_models() {
    let refused = Err(ErrorCode::InvalidArgument);
    let masked = |kind, exclusive, open, umask| {
        let FileRequest::Create(create) = create(kind, exclusive, open) else { unreachable!("a creation") };
        outcome(FileRequest::CreateMasked { create, umask }, 0)
    };
    assert_eq!(masked(NewKind::Regular, false, None, 0o777), Ok(()));
    assert_eq!(masked(NewKind::Regular, false, None, 0o1000), refused, "no mask has such bits");
    assert_eq!(masked(NewKind::Regular, false, Some(READ_WRITE), 0), refused, "it opens nothing");
    assert_eq!(masked(NewKind::Directory, false, None, 0), refused);
    let unnamed = |parent, permissions, umask| {
        let parent = InodeRef::Explicit(parent);
        outcome(FileRequest::CreateUnnamedMasked { parent, permissions, umask, uid: 0, gid: 0 }, 0)
    };
    assert_eq!(unnamed(256, 0o7777, 0o777), Ok(()));
    assert_eq!(unnamed(0, 0o600, 0), refused);
    assert_eq!(unnamed(256, 0o10_000, 0), refused);
    assert_eq!(unnamed(256, 0o600, 0o1000), refused);
    let file = FileRef::inode(300);
    let write = |offset| FileRequest::WriteUnprivileged { file, position: WritePosition::At(offset) };
    assert_eq!(outcome(write(MAX_FILE_SIZE - 10), 10), Ok(()));
    assert_eq!(outcome(write(MAX_FILE_SIZE - 10), 11), Err(ErrorCode::FileTooBig));
    let plain = FileRequest::Write { file, position: WritePosition::Append };
    assert_eq!(compound(vec![write(0), plain], 1), refused, "one payload is for one write");
    // What they make can be used by later steps.
    let FileRequest::Create(create) = create(NewKind::Regular, true, None) else {
        unreachable!("a creation")
    };
    let made = FileRequest::CreateMasked { create, umask: 0 };
    let look = FileRequest::GetAttributes { file: FileRef::Inode(InodeRef::FromStep(0)) };
    assert_eq!(compound(vec![made, look], 0), Ok(()));
    let list = |max_entries| FileRequest::ListDirectory {
        inode: InodeRef::Explicit(256),
        after_cookie: 0,
        up_to: 0,
        max_entries,
        with_attributes: true,
    };
    assert_eq!(outcome(list(1024), 0), Ok(()));
    assert_eq!(outcome(list(0), 0), refused);
    assert_eq!(outcome(list(1025), 0), refused);
    assert_eq!(compound(vec![list(1024), list(1024)], 0), Err(ErrorCode::TooLarge));
}

proptest! {
    #[test]
    fn validation_never_panics(request in samples::envelope(), payload in 0..=MAX_PAYLOAD) {
        let _ = request.validate(payload);
    }
}
