//! Frames: a fixed 32-byte header, a body, a raw payload. Bytes in, frames out, no I/O.
//!
//! ```text
//! offset size
//!      0    3  magic "SVP"
//!      3    1  frame version, 1
//!      4    2  type: 1 request, 2 response, 3 push
//!      6    2  flags, 0
//!      8    8  request id
//!     16    4  body length
//!     20    4  payload length
//!     24    4  reserved, 0
//!     28    4  crc32c of bytes 0..28 and of the body
//! ```
//! All numbers are little-endian. The payload is not in the checksum: TCP and unix sockets already guard against accidents on the way,
//! and a second pass over up to 1 MiB would cost more than the rest of the request. Header and body are in it, because there a
//! flipped bit turns into another operation, not into other data.
//!
//! Invariant: a header's claims are checked against [`DecodeLimits`] before a byte is reserved for them, so what a connection can make
//! its peer keep is bounded whatever it sends.

use bytes::{Bytes, BytesMut};

use crate::limits::{FRAME_VERSION, HEADER_LENGTH, MAX_BODY, MAX_BODY_BEFORE_AUTHENTICATION, MAX_PAYLOAD};

const MAGIC: [u8; 3] = *b"SVP";
const CHECKSUM_AT: usize = HEADER_LENGTH - 4;
/// Bytes of room that [`FrameDecoder::decode`] makes at a time while the peer's claims are not to be trusted.
const CAUTIOUS_STEP: usize = 16 * 1024;

/// What a frame's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FrameType {
    /// A `RequestEnvelope`, from client to server.
    Request = 1,
    /// A `Response`, from server to client.
    Response = 2,
    /// A `Push`, from server to client, with request id 0.
    Push = 3,
}

impl FrameType {
    const fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Request),
            2 => Some(Self::Response),
            3 => Some(Self::Push),
            _ => None,
        }
    }
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the body is.
    pub kind: FrameType,
    /// Pairs a response with its request. A client never has two unanswered requests of one id; 0 is for pushes and for errors
    /// about the connection.
    pub request_id: u64,
    /// Bytes of body.
    pub body_length: u32,
    /// Bytes of payload.
    pub payload_length: u32,
    checksum: u32,
}

impl Header {
    /// Bytes of the whole frame.
    #[must_use]
    pub const fn frame_length(&self) -> usize {
        HEADER_LENGTH + self.body_length as usize + self.payload_length as usize
    }
}

/// One frame, cut out of the receive buffer without a copy. Body and payload keep that buffer alive, so keep them only while needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The header.
    pub header: Header,
    /// The encoded message.
    pub body: Bytes,
    /// Raw bytes of a read or write.
    pub payload: Bytes,
}

/// Why bytes are not a frame. None can be repaired: where the next frame begins is unknown, so the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not this protocol at all.
    #[error(
        "not a subvold frame; check that both ends speak the subvold protocol, and TLS on both or on neither"
    )]
    BadMagic,
    /// A frame layout this version does not know.
    #[error("frame version {0} is not supported; update the older side")]
    UnsupportedVersion(u8),
    /// Not a request, response or push.
    #[error("unknown frame type {0}")]
    UnknownType(u16),
    /// A flag or reserved field that must be zero is not.
    #[error("reserved header bits are set")]
    ReservedBits,
    /// A body above the limit.
    #[error("a body of {length} bytes exceeds the limit of {limit}")]
    BodyTooLarge {
        /// Claimed bytes.
        length: u32,
        /// Allowed bytes.
        limit: u32,
    },
    /// A payload above the limit.
    #[error("a payload of {length} bytes exceeds the limit of {limit}")]
    PayloadTooLarge {
        /// Claimed bytes.
        length: u32,
        /// Allowed bytes.
        limit: u32,
    },
    /// Header or body were damaged on the way.
    #[error("the frame's checksum does not match its bytes")]
    BadChecksum,
}

/// What a decoder accepts from its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Bytes of body.
    pub max_body: u32,
    /// Bytes of payload.
    pub max_payload: u32,
    /// Reserve room for a whole frame as soon as its header is known. Saves copies, but 32 bytes from the peer then cost up to a full
    /// frame of memory.
    pub reserve_whole: bool,
}

impl DecodeLimits {
    /// For a server before authentication: small bodies, no payload, no memory on credit.
    pub const UNAUTHENTICATED: Self =
        Self { max_body: MAX_BODY_BEFORE_AUTHENTICATION as u32, max_payload: 0, reserve_whole: false };
    /// For a peer that is known.
    pub const FULL: Self =
        Self { max_body: MAX_BODY as u32, max_payload: MAX_PAYLOAD as u32, reserve_whole: true };
}

/// Cuts a stream of bytes into frames. The caller owns the buffer, reads from its socket into it, and calls [`Self::decode`] until it
/// returns `None`. After an error the stream is lost.
#[derive(Debug)]
pub struct FrameDecoder {
    limits: DecodeLimits,
    /// The header at the front of the buffer, once it has been read and checked, so that a large frame's is not parsed again for
    /// every piece that arrives.
    header: Option<Header>,
}

impl FrameDecoder {
    /// A decoder at the beginning of a stream.
    #[must_use]
    pub const fn new(limits: DecodeLimits) -> Self {
        Self { limits, header: None }
    }

    /// Changes the limits, from the next header on: after authentication.
    pub const fn set_limits(&mut self, limits: DecodeLimits) {
        self.limits = limits;
    }

    /// Takes the next frame off the front of `buffer`; `None` if it is not complete yet, with room made for more of it.
    ///
    /// # Errors
    /// The first lie found. Nothing behind it can be read.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let header = match self.header {
            Some(header) => header,
            None => match parse_header(buffer, self.limits)? {
                Some(header) => *self.header.insert(header),
                None => {
                    buffer.reserve(CAUTIOUS_STEP);
                    return Ok(None);
                }
            },
        };
        let missing = header.frame_length().saturating_sub(buffer.len());
        if missing > 0 {
            buffer.reserve(if self.limits.reserve_whole { missing } else { missing.min(CAUTIOUS_STEP) });
            return Ok(None);
        }
        self.header = None;
        let head = buffer.split_to(HEADER_LENGTH);
        let body = buffer.split_to(header.body_length as usize).freeze();
        let payload = buffer.split_to(header.payload_length as usize).freeze();
        if crc32c::crc32c_append(crc32c::crc32c(&head[..CHECKSUM_AT]), &body) != header.checksum {
            return Err(FrameError::BadChecksum);
        }
        Ok(Some(Frame { header, body, payload }))
    }
}

/// Reads and checks a header; `None` if there are not enough bytes and those that are there do not already tell of a stranger.
fn parse_header(bytes: &[u8], limits: DecodeLimits) -> Result<Option<Header>, FrameError> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(FrameError::BadMagic);
    }
    let Some(header) = bytes.first_chunk::<HEADER_LENGTH>() else { return Ok(None) };
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if header[3] != FRAME_VERSION {
        return Err(FrameError::UnsupportedVersion(header[3]));
    }
    let kind = FrameType::from_number(u16_at(4)).ok_or(FrameError::UnknownType(u16_at(4)))?;
    if u16_at(6) != 0 || u32_at(24) != 0 {
        return Err(FrameError::ReservedBits);
    }
    let (body_length, payload_length) = (u32_at(16), u32_at(20));
    if body_length > limits.max_body {
        return Err(FrameError::BodyTooLarge { length: body_length, limit: limits.max_body });
    }
    if payload_length > limits.max_payload {
        return Err(FrameError::PayloadTooLarge { length: payload_length, limit: limits.max_payload });
    }
    let request_id = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
    Ok(Some(Header { kind, request_id, body_length, payload_length, checksum: u32_at(CHECKSUM_AT) }))
}

/// Appends a header and the body that `write_body` appends, for a payload of `payload_length` bytes that the caller sends right behind
/// it: with a vectored write, so that large payloads are not copied. On an error `out` is as it was.
///
/// # Errors
/// What `write_body` returns.
///
/// # Panics
/// If the body or payload exceed their limits: senders check sizes before they build a frame.
pub(crate) fn encode_head<E>(
    out: &mut BytesMut,
    kind: FrameType,
    request_id: u64,
    payload_length: usize,
    write_body: impl FnOnce(&mut BytesMut) -> Result<(), E>,
) -> Result<(), E> {
    assert!(payload_length <= MAX_PAYLOAD, "a payload above the limit reached the frame encoder");
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_LENGTH]);
    if let Err(error) = write_body(out) {
        out.truncate(start);
        return Err(error);
    }
    let (header, body) = out[start..].split_at_mut(HEADER_LENGTH);
    assert!(body.len() <= MAX_BODY, "a body above the limit reached the frame encoder");
    header[..3].copy_from_slice(&MAGIC);
    header[3] = FRAME_VERSION;
    header[4..6].copy_from_slice(&(kind as u16).to_le_bytes());
    header[8..16].copy_from_slice(&request_id.to_le_bytes());
    header[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[20..24].copy_from_slice(&(payload_length as u32).to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..CHECKSUM_AT]), body);
    header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// Appends a whole frame of ready bytes. Tests and tools use it; messages go through [`crate::codec`].
///
/// # Errors
/// A body or payload above the limits.
pub fn encode(
    out: &mut BytesMut,
    kind: FrameType,
    request_id: u64,
    body: &[u8],
    payload: &[u8],
) -> Result<(), FrameError> {
    if body.len() > MAX_BODY {
        return Err(FrameError::BodyTooLarge { length: saturated(body.len()), limit: MAX_BODY as u32 });
    }
    if payload.len() > MAX_PAYLOAD {
        return Err(FrameError::PayloadTooLarge {
            length: saturated(payload.len()),
            limit: MAX_PAYLOAD as u32,
        });
    }
    encode_head(out, kind, request_id, payload.len(), |out| {
        out.extend_from_slice(body);
        Ok::<(), FrameError>(())
    })?;
    out.extend_from_slice(payload);
    Ok(())
}

fn saturated(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
