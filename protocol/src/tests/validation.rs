//! Nonsense that decodes well is refused before anybody acts on it.

use super::samples;
use crate::error::ErrorCode;
use crate::limits::{MAX_COMPOUND_STEPS, MAX_FILE_SIZE, MAX_PAYLOAD};
use crate::name::Name;
use crate::request::{
    Create, FileRef, FileRequest, HandleRef, InodeRef, NewKind, OpenFlags, OperationId, Request,
    RequestEnvelope, SetAttributes, WritePosition,
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

proptest! {
    #[test]
    fn validation_never_panics(request in samples::envelope(), payload in 0..=MAX_PAYLOAD) {
        let _ = request.validate(payload);
    }
}
