//! What hostile bytes cost: always a typed error, never a panic, and never more memory than the limits allow, however large the
//! lengths they claim. An allocator that counts says so. It also keeps the promise that typical small requests allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

use subvol_protocol::codec::{self, CodecError, decode};
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::frame::{self, DecodeLimits, FrameDecoder, FrameError, FrameType};
use subvol_protocol::limits::{HEADER_LENGTH, MAX_BODY, MAX_PAYLOAD};
use subvol_protocol::name::{Name, NameError};
use subvol_protocol::request::{
    Create, FileRef, FileRequest, InodeRef, NewKind, OperationId, Request, RequestEnvelope, WritePosition,
};
use subvol_protocol::response::Response;

/// Counts, per thread, so that tests that run beside each other do not disturb each other.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // The cells are const-initialised and need no destructor, so they can be used while a thread ends, too.
    let live = LIVE.get() + change;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    CALLS.set(CALLS.get() + usize::from(change > 0));
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work`; returns its result, the most bytes it held at a time, and how often it allocated.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let (before, calls) = (LIVE.get(), CALLS.get());
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before) as usize, CALLS.get() - calls)
}

fn decode_request(body: &[u8]) -> Result<RequestEnvelope, CodecError> {
    let mut buffer = BytesMut::new();
    frame::encode(&mut buffer, FrameType::Request, 1, body, &[]).expect("within limits");
    let frame = FrameDecoder::new(DecodeLimits::FULL).decode(&mut buffer).expect("sound").expect("complete");
    let (result, peak, _) = measured(|| decode(&frame));
    assert!(peak <= MAX_BODY + 4096, "{peak} bytes for a body of {}", body.len());
    result
}

fn words(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn lying_lengths_inside_a_body_cost_nothing() {
    let none = &[0][..];
    let word = |value: u32| value.to_le_bytes();
    for length in [1 << 12, 1 << 20, 1 << 32, u64::MAX / 2, u64::MAX] {
        let claim = length.to_le_bytes();
        // A compound with that many steps.
        let compound = decode_request(&words(&[none, &word(3), &claim]));
        assert_eq!(compound, Err(CodecError::ClaimsTooMuch), "{length} steps");
        // A path with that many components.
        let inode = words(&[&word(0), &256u64.to_le_bytes()]);
        let path = decode_request(&words(&[none, &word(2), &word(16), &inode, &claim]));
        assert!(
            matches!(path, Err(CodecError::ClaimsTooMuch | CodecError::Malformed(_))),
            "{length}: {path:?}"
        );
        // A name of that length.
        let lookup = decode_request(&words(&[none, &word(2), &word(0), &inode, &claim]));
        assert_eq!(lookup, Err(CodecError::Name(NameError::TooLong)), "{length} bytes of name");
    }
}

#[test]
fn a_bad_name_is_the_requests_fault_alone() {
    let inode = words(&[&0u32.to_le_bytes(), &256u64.to_le_bytes()]);
    for (name, error, code) in [
        (&b""[..], NameError::Empty, ErrorCode::InvalidName),
        (b"..", NameError::Dots, ErrorCode::InvalidName),
        (b"a/b", NameError::ForbiddenByte, ErrorCode::InvalidName),
        (b"a\0", NameError::ForbiddenByte, ErrorCode::InvalidName),
        (&[b'x'; 256], NameError::TooLong, ErrorCode::NameTooLong),
    ] {
        let length = (name.len() as u64).to_le_bytes();
        let body = words(&[&[0], &2u32.to_le_bytes(), &0u32.to_le_bytes(), &inode, &length, name]);
        let refused = decode_request(&body).expect_err("a bad name");
        assert_eq!(refused, CodecError::Name(error));
        assert_eq!(WireError::from(refused).code, code);
    }
}

/// A header is not worth more memory than its own bytes until more of the frame has come.
#[test]
fn lying_headers_cost_nothing() {
    let mut sound = BytesMut::new();
    frame::encode(&mut sound, FrameType::Request, 1, &[0; 100], &[]).expect("within limits");
    let with = |at: usize, bytes: &[u8]| {
        let mut header = BytesMut::from(&sound[..HEADER_LENGTH]);
        header[at..at + bytes.len()].copy_from_slice(bytes);
        let limits = DecodeLimits { reserve_whole: false, ..DecodeLimits::FULL };
        let (result, peak, _) =
            measured(|| FrameDecoder::new(limits).decode(&mut header).map(|frame| frame.is_some()));
        assert!(peak <= 64 * 1024, "{peak} bytes for a header");
        result
    };
    assert_eq!(with(0, b"GET"), Err(FrameError::BadMagic));
    assert_eq!(with(3, &[2]), Err(FrameError::UnsupportedVersion(2)));
    assert_eq!(with(4, &[9]), Err(FrameError::UnknownType(9)));
    assert_eq!(with(6, &[1]), Err(FrameError::ReservedBits));
    assert_eq!(with(27, &[1]), Err(FrameError::ReservedBits));
    let (body, payload) = (MAX_BODY as u32, MAX_PAYLOAD as u32);
    assert_eq!(with(16, &body.to_le_bytes()), Ok(false));
    assert_eq!(with(20, &payload.to_le_bytes()), Ok(false));
    assert_eq!(
        with(16, &(body + 1).to_le_bytes()),
        Err(FrameError::BodyTooLarge { length: body + 1, limit: body })
    );
    assert_eq!(
        with(20, &u32::MAX.to_le_bytes()),
        Err(FrameError::PayloadTooLarge { length: u32::MAX, limit: payload })
    );
}

/// Before authentication a peer that sends one byte at a time of the largest frame it may send keeps the buffer small, and a larger
/// one is refused by its header.
#[test]
fn strangers_get_little_memory() {
    let mut largest = BytesMut::new();
    frame::encode(&mut largest, FrameType::Request, 1, &[0; 4096], &[]).expect("within limits");
    let (_, peak, _) = measured(|| {
        let (mut decoder, mut buffer) = (FrameDecoder::new(DecodeLimits::UNAUTHENTICATED), BytesMut::new());
        for (at, byte) in largest.iter().enumerate() {
            buffer.put_u8(*byte);
            let complete = decoder.decode(&mut buffer).expect("sound").is_some();
            assert_eq!(complete, at + 1 == largest.len());
        }
    });
    assert!(peak <= 64 * 1024, "{peak} bytes");
    let mut payload = BytesMut::new();
    frame::encode(&mut payload, FrameType::Request, 1, &[], &[0]).expect("within limits");
    assert_eq!(
        FrameDecoder::new(DecodeLimits::UNAUTHENTICATED).decode(&mut payload),
        Err(FrameError::PayloadTooLarge { length: 1, limit: 0 })
    );
}

/// A stranger is recognised by its first bytes: a web browser need not send 32 of them to be told.
#[test]
fn the_first_wrong_byte_is_enough() {
    for start in [&b"G"[..], b"SV\0", b"\x16\x03\x01"] {
        let decoded = FrameDecoder::new(DecodeLimits::FULL).decode(&mut BytesMut::from(start));
        assert_eq!(decoded, Err(FrameError::BadMagic));
    }
}

#[test]
fn typical_requests_allocate_nothing() {
    let name = Name::new("a-typical-name-of-a-file.rs").expect("valid");
    let parent = InodeRef::Explicit(256);
    let operation = Some(OperationId { client: [1; 16], sequence: 1 });
    let create = Create {
        parent,
        name: name.clone(),
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        exclusive: true,
        open: None,
    };
    let requests = [
        FileRequest::Create(create),
        FileRequest::Lookup { parent, name },
        FileRequest::Write { file: FileRef::handle(1), position: WritePosition::Append },
        FileRequest::Fsync { file: FileRef::handle(1), data_only: false, lineage: None },
    ]
    .map(|request| RequestEnvelope { operation, request: Request::File(request) });
    let mut buffer = BytesMut::with_capacity(64 * 1024);
    let ((), _, calls) = measured(|| {
        for request in &requests {
            codec::encode(&mut buffer, 1, request, b"payload").expect("small");
        }
    });
    assert_eq!(calls, 0, "to encode");
    let mut decoder = FrameDecoder::new(DecodeLimits::FULL);
    let ((), _, calls) = measured(|| {
        for request in &requests {
            let frame = decoder.decode(&mut buffer).expect("sound").expect("complete");
            assert_eq!(decode::<RequestEnvelope>(&frame).as_ref(), Ok(request));
        }
    });
    // One for the buffer's reference count, whatever the number of frames cut out of it.
    assert!(calls <= 1, "{calls} allocations to decode");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bodies_are_refused_cheaply(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode_request(&body);
    }

    /// Small numbers are what variants and lengths are made of: such bodies get further than purely random ones.
    #[test]
    fn nearly_sound_bodies_are_refused_cheaply(body in prop::collection::vec(prop_oneof![8 => Just(0u8), 3 => 0..30u8, 1 => any::<u8>()], 0..400)) {
        let _ = decode_request(&body);
        let mut buffer = BytesMut::new();
        frame::encode(&mut buffer, FrameType::Response, 1, &body, &[]).expect("within limits");
        let frame = FrameDecoder::new(DecodeLimits::FULL).decode(&mut buffer).expect("sound").expect("complete");
        let (_, peak, _) = measured(|| decode::<Response>(&frame).is_ok());
        prop_assert!(peak <= MAX_BODY + 4096, "{} bytes", peak);
    }

    #[test]
    fn random_streams_are_refused_cheaply(mut stream in prop::collection::vec(any::<u8>(), 0..200), honest in 0..5usize) {
        let prefix = [b'S', b'V', b'P', 1, 1];
        let honest = honest.min(stream.len());
        stream[..honest].copy_from_slice(&prefix[..honest]);
        let mut buffer = BytesMut::from(&stream[..]);
        let limits = DecodeLimits { reserve_whole: false, ..DecodeLimits::FULL };
        let (_, peak, _) = measured(|| FrameDecoder::new(limits).decode(&mut buffer).is_ok());
        prop_assert!(peak <= 64 * 1024, "{} bytes", peak);
    }
}
