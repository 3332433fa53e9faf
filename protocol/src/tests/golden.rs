//! Bytes that must never change: other clients exist. A test here that fails after an edit says that the edit breaks them; the remedy
//! is a new variant, not a new expectation.

use bytes::BytesMut;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::{body_of, samples};
use crate::attributes::{Attributes, Lineage, Timestamp};
use crate::codec::{self, CodecError, Message, decode_body};
use crate::error::{ErrorCode, WireError};
use crate::frame::{self, FrameType};
use crate::name::{Label, LinkTarget, Name, Text};
use crate::request::{
    Create, Credentials, Features, FileRef, FileRequest, HandleRef, InodeRef, LockFamily, LockKind,
    LockRange, NewKind, OpenFlags, OperationId, RenameMode, Request, RequestEnvelope, SessionRequest,
    VolumeRef, WritePosition,
};
use crate::response::{FileResponse, Push, RecallTarget, Response};
use crate::token::Token;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Spaces in the expected text only group it.
fn expect<M: Message>(message: &M, expected: &str) {
    assert_eq!(hex(&body_of(message)), expected.replace([' ', '\n'], ""));
}

fn name(text: &str) -> Name {
    Name::new(text).expect("valid")
}

#[test]
fn a_frame() {
    let mut out = BytesMut::new();
    frame::encode(&mut out, FrameType::Request, 0x0807_0605_0403_0201, b"body", b"payload")
        .expect("within limits");
    let expected =
        "535650 01 0100 0000 0102030405060708 04000000 07000000 00000000 519147e4 626f6479 7061796c6f6164";
    assert_eq!(hex(&out), expected.replace(' ', ""));
}

/// Also the example of `protocol.md`.
pub(super) const WHOLE_LOOKUP: &str = "535650 01 0100 0000 0500000000000000 1e000000 00000000 00000000 a9460637 \
         00 02000000 00000000 00000000 0001000000000000 0100000000000000 61";

#[test]
fn a_whole_lookup() {
    let lookup = FileRequest::Lookup { parent: InodeRef::Explicit(256), name: name("a") };
    let mut out = BytesMut::new();
    codec::encode(&mut out, 5, &RequestEnvelope::from(lookup), &[]).expect("small");
    assert_eq!(hex(&out), WHOLE_LOOKUP.replace(' ', ""));
}

#[test]
fn requests() {
    expect(
        &RequestEnvelope {
            operation: Some(OperationId { client: [0xcc; 16], sequence: 7 }),
            request: Request::File(FileRequest::Create(Create {
                parent: InodeRef::FromStep(2),
                name: name("f"),
                kind: NewKind::Symlink(LinkTarget::new("t").expect("valid")),
                permissions: 0o644,
                uid: 1000,
                gid: 1001,
                exclusive: true,
                open: Some(OpenFlags::READ.with(OpenFlags::WRITE)),
            })),
        },
        "01 cccccccccccccccccccccccccccccccc 0700000000000000
         02000000 01000000 01000000 02 0100000000000000 66
         02000000 0100000000000000 74 a4010000 e8030000 e9030000 01 01 03000000",
    );
    expect(
        &RequestEnvelope::from(Request::Session(SessionRequest::Hello {
            protocol_version: 1,
            features: Features::LEASES,
            client_id: [0xab; 16],
            client_name: Text::new("x"),
        })),
        "00 00000000 00000000 0100 0100000000000000 abababababababababababababababab 0100000000000000 78",
    );
    expect(
        &RequestEnvelope::from(Request::Session(SessionRequest::Authenticate {
            credentials: Credentials::Token(Token::new("secret").expect("valid")),
        })),
        "00 00000000 01000000 00000000 0600000000000000 736563726574",
    );
    expect(
        &RequestEnvelope::from(Request::Session(SessionRequest::Attach {
            volume: VolumeRef::Name(Label::new("v").expect("valid")),
            tenant: None,
            read_only: false,
        })),
        "00 00000000 02000000 00000000 0100000000000000 76 00 00",
    );
    expect(
        &RequestEnvelope::from(Request::Compound {
            steps: vec![
                FileRequest::Write { file: FileRef::handle(9), position: WritePosition::At(4096) },
                FileRequest::Close {
                    handle: HandleRef::Explicit(9),
                    lineage: Some(Lineage { epoch: 1, transid: 2, log_transid: 3 }),
                },
            ],
        }),
        "00 03000000 0200000000000000
         14000000 01000000 00000000 0900000000000000 00000000 0010000000000000
         12000000 00000000 0900000000000000 01 0100000000000000 0200000000000000 0300000000000000",
    );
}

#[test]
fn requests_of_clients_that_keep_things() {
    let request = |request| RequestEnvelope::from(Request::File(request));
    let file = Create {
        parent: InodeRef::Explicit(256),
        name: name("f"),
        kind: NewKind::Regular,
        permissions: 0o666,
        uid: 1,
        gid: 2,
        exclusive: false,
        open: None,
    };
    expect(
        &request(FileRequest::CreateMasked { create: file, umask: 0o022 }),
        "00 02000000 1b000000 00000000 0001000000000000 0100000000000000 66 00000000 b6010000 01000000 02000000
         00 00 12000000",
    );
    expect(
        &request(FileRequest::CreateUnnamedMasked {
            parent: InodeRef::Explicit(256),
            permissions: 0o600,
            umask: 0o077,
            uid: 1,
            gid: 2,
        }),
        "00 02000000 1c000000 00000000 0001000000000000 80010000 3f000000 01000000 02000000",
    );
    expect(
        &request(FileRequest::WriteUnprivileged {
            file: FileRef::inode(300),
            position: WritePosition::Append,
        }),
        "00 02000000 1d000000 00000000 00000000 2c01000000000000 01000000",
    );
    expect(
        &request(FileRequest::ListDirectory {
            inode: InodeRef::Explicit(256),
            after_cookie: 257,
            up_to: 300,
            max_entries: 9,
            with_attributes: true,
        }),
        "00 02000000 1e000000 00000000 0001000000000000 0101000000000000 2c01000000000000 09000000 01",
    );
    expect(&request(FileRequest::BeginLeases), "00 02000000 1f000000");
    let list = "0200000000000000 2c01000000000000 0700000000000000";
    for (sent, tag) in [
        (FileRequest::ReclaimInodes { inodes: vec![300, 7] }, "20000000"),
        (FileRequest::ForgetInodes { inodes: vec![300, 7] }, "21000000"),
        (FileRequest::AcknowledgeRecalls { recalls: vec![300, 7] }, "22000000"),
    ] {
        expect(&request(sent), &format!("00 02000000 {tag} {list}"));
    }
    expect(
        &request(FileRequest::Lock { lock: LOCK, wait: Some(5), reclaim: true }),
        &format!("00 02000000 23000000 {LOCK_BYTES} 01 0500000000000000 01"),
    );
    expect(&request(FileRequest::CancelLock { wait: 5 }), "00 02000000 24000000 0500000000000000");
    expect(&request(FileRequest::TestLock { lock: LOCK }), &format!("00 02000000 25000000 {LOCK_BYTES}"));
    expect(
        &request(FileRequest::Rename {
            parent: InodeRef::Explicit(1),
            name: name("a"),
            new_parent: InodeRef::Explicit(1),
            new_name: name("b"),
            mode: RenameMode::WhiteoutNoReplace,
        }),
        "00 02000000 06000000 00000000 0100000000000000 0100000000000000 61
         00000000 0100000000000000 0100000000000000 62 04000000",
    );
}

const LOCK: LockRange = LockRange {
    inode: 300,
    family: LockFamily::Flock,
    kind: LockKind::Unlock,
    owner: 4,
    start: 0,
    last: 0x7fff_ffff_ffff_ffff,
    process: 6,
};
const LOCK_BYTES: &str =
    "2c01000000000000 01000000 02000000 0400000000000000 0000000000000000 ffffffffffffff7f 06000000";

#[test]
fn answers_to_clients_that_keep_things() {
    expect(
        &Response::File(FileResponse::Listed { entries: vec![], end: true, up_to: 300 }),
        "03000000 13000000 0000000000000000 01 2c01000000000000",
    );
    expect(
        &Response::File(FileResponse::LeasesBegun {
            granted: true,
            recall_milliseconds: 10_000,
            silence_milliseconds: 5000,
            resumed: false,
        }),
        "03000000 14000000 01 10270000 88130000 00",
    );
    expect(
        &Response::File(FileResponse::Reclaimed { lost: vec![300] }),
        "03000000 15000000 0100000000000000 2c01000000000000",
    );
    expect(&Response::File(FileResponse::Noted), "03000000 16000000");
    expect(
        &Response::File(FileResponse::LockFound { blocker: Some(LOCK) }),
        &format!("03000000 17000000 01 {LOCK_BYTES}"),
    );
    for (code, number) in [
        (ErrorCode::LockConflict, "3001"),
        (ErrorCode::Deadlock, "3101"),
        (ErrorCode::Interrupted, "3201"),
        (ErrorCode::Fenced, "5d02"),
    ] {
        expect(&Response::Error(code.into()), &format!("00000000 {number} 0000000000000000"));
    }
    expect(
        &Push::Recall {
            recall: 9,
            targets: vec![
                RecallTarget { inode: 300, name: None },
                RecallTarget { inode: 256, name: Some(name("a")) },
            ],
        },
        "01000000 0900000000000000 0200000000000000
         2c01000000000000 00 0001000000000000 01 0100000000000000 61",
    );
}

#[test]
fn responses_and_pushes() {
    expect(&Response::Error(WireError::new(ErrorCode::QuotaBytes, "v")), "00000000 c900 0100000000000000 76");
    let at = |seconds| Timestamp { seconds, nanoseconds: 5 };
    expect(
        &Response::File(FileResponse::Entry {
            attributes: Attributes {
                inode: 257,
                mode: 0o100_644,
                links: 1,
                uid: 2,
                gid: 3,
                rdev: 4,
                size: 5,
                blocks: 6,
                atime: at(-1),
                mtime: at(1),
                ctime: at(2),
                btime: at(3),
                version: 7,
            },
            ticket: None,
        }),
        "03000000 01000000 0101000000000000 a4810000 01000000 02000000 03000000 04000000
         0500000000000000 0600000000000000 ffffffffffffffff 05000000 0100000000000000 05000000
         0200000000000000 05000000 0300000000000000 05000000 0700000000000000 00",
    );
    expect(
        &Response::Compound {
            results: vec![
                Ok(FileResponse::Synced { durable: Lineage { epoch: 1, transid: 2, log_transid: 3 } }),
                Err(ErrorCode::StaleLineage.into()),
            ],
        },
        "04000000 0200000000000000 00000000 12000000 0100000000000000 0200000000000000 0300000000000000
         01000000 5902 0000000000000000",
    );
    expect(
        &Push::Shutdown { reason: Text::new("bye"), grace_milliseconds: 1000 },
        "00000000 0300000000000000 627965 e8030000",
    );
}

/// The n-th sample is encoded with variant number n, and there is no variant behind the last: so the samples are all variants, and
/// their order is the order on the wire.
fn in_order<T: bincode::Encode + bincode::Decode<()> + std::fmt::Debug>(samples: Vec<BoxedStrategy<T>>) {
    let mut runner = TestRunner::deterministic();
    let configuration = bincode::config::legacy();
    for (number, sample) in samples.iter().enumerate() {
        let value = sample.new_tree(&mut runner).expect("no filters").current();
        let bytes = bincode::encode_to_vec(&value, configuration).expect("encodes");
        assert_eq!(bytes[..4], (number as u32).to_le_bytes(), "{value:?}");
    }
    let mut behind = (samples.len() as u32).to_le_bytes().to_vec();
    behind.resize(4096, 0);
    match decode_body::<T>(&behind) {
        Err(CodecError::Malformed(text)) => assert!(text.contains("is not a variant"), "{text}"),
        other => panic!("variant {} exists and is not sampled: {other:?}", samples.len()),
    }
}

#[test]
fn every_variant_keeps_its_number_and_is_sampled() {
    in_order(samples::requests());
    in_order(samples::session_requests());
    in_order(samples::admin_requests());
    in_order(samples::file_requests());
    in_order(samples::responses());
    in_order(samples::session_responses());
    in_order(samples::admin_responses());
    in_order(samples::file_responses());
    in_order(samples::pushes());
}

/// A newer server's error must still reach the caller as an error.
#[test]
fn an_unknown_error_number_is_an_internal_error() {
    let body = [&[0, 0, 0, 0][..], &7777u16.to_le_bytes(), &2u64.to_le_bytes(), b"hi"].concat();
    let Ok(Response::Error(error)) = decode_body(&body) else { panic!("refused") };
    assert_eq!((error.code, error.detail.as_str()), (ErrorCode::Internal, "unknown error code 7777: hi"));
}

#[test]
fn secrets_do_not_show() {
    let request = SessionRequest::Authenticate {
        credentials: Credentials::Token(Token::new("hunter2").expect("valid")),
    };
    assert_eq!(format!("{request:?}"), "Authenticate { credentials: Token(Token(..)) }");
}
