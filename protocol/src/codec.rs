//! Messages in and out of frame bodies: bincode with fixed-width little-endian integers and a hard limit.
//!
//! Invariants: a body decodes only if every byte of it was used; decoding never allocates more than about [`MAX_BODY`] bytes, whatever
//! lengths the body claims (the limit counts elements at their size in memory, before they are reserved); nothing is sent that the
//! other side would refuse for its size.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::enc::write::Writer;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};
use bytes::{Bytes, BytesMut};

use crate::error::{ErrorCode, WireError};
use crate::frame::{self, Frame, FrameError, FrameType};
use crate::limits::{MAX_BODY, MAX_PAYLOAD};
use crate::name::NameError;
use crate::request::RequestEnvelope;
use crate::response::{Push, Response};

const CONFIGURATION: Configuration<LittleEndian, Fixint, Limit<MAX_BODY>> =
    bincode::config::legacy().with_limit::<MAX_BODY>();

/// Why a message could not be sent or understood. The frame around it was sound, so the connection can go on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A name in the message breaks its rule.
    #[error("{0}")]
    Name(#[from] NameError),
    /// The body ended too early, has an unknown variant, or a value out of range.
    #[error("the message is malformed: {0}")]
    Malformed(String),
    /// Bytes were left over behind the message.
    #[error("{0} bytes are left over behind the message")]
    TrailingBytes(usize),
    /// A list in the message claims more than a body may hold.
    #[error("the message claims more than {MAX_BODY} bytes")]
    ClaimsTooMuch,
    /// The frame's type is not one that this side receives.
    #[error("a {0:?} frame is not expected here")]
    UnexpectedType(FrameType),
    /// The message or payload to be sent is above the limits.
    #[error("{length} bytes exceed the limit of {limit}")]
    TooLarge {
        /// Its bytes.
        length: usize,
        /// Allowed bytes.
        limit: usize,
    },
}

impl From<DecodeError> for CodecError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::LimitExceeded => Self::ClaimsTooMuch,
            DecodeError::Other(text) => {
                NameError::from_marker(text).map_or_else(|| Self::Malformed(text.into()), Self::Name)
            }
            DecodeError::UnexpectedEnd { .. } => Self::Malformed("it ends too early".into()),
            DecodeError::UnexpectedVariant { type_name, found, .. } => {
                Self::Malformed(format!("{found} is not a variant of {type_name}"))
            }
            other => Self::Malformed(other.to_string()),
        }
    }
}

impl From<CodecError> for WireError {
    fn from(error: CodecError) -> Self {
        let code = match error {
            CodecError::Name(name) => name.into(),
            CodecError::ClaimsTooMuch | CodecError::TooLarge { .. } => ErrorCode::TooLarge,
            CodecError::Malformed(_) | CodecError::TrailingBytes(_) | CodecError::UnexpectedType(_) => {
                ErrorCode::BadFrame
            }
        };
        Self::new(code, &error.to_string())
    }
}

impl From<FrameError> for WireError {
    fn from(error: FrameError) -> Self {
        let code = match error {
            FrameError::UnsupportedVersion(_) => ErrorCode::UnsupportedVersion,
            FrameError::BodyTooLarge { .. } | FrameError::PayloadTooLarge { .. } => ErrorCode::TooLarge,
            FrameError::BadMagic
            | FrameError::UnknownType(_)
            | FrameError::ReservedBits
            | FrameError::BadChecksum => ErrorCode::BadFrame,
        };
        Self::new(code, &error.to_string())
    }
}

/// A type that is the body of a frame.
pub trait Message: Encode + Decode<()> {
    /// The type of its frames.
    const TYPE: FrameType;
}

impl Message for RequestEnvelope {
    const TYPE: FrameType = FrameType::Request;
}

impl Message for Response {
    const TYPE: FrameType = FrameType::Response;
}

impl Message for Push {
    const TYPE: FrameType = FrameType::Push;
}

/// What a client receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// An answer.
    Response {
        /// The id of the request it answers; 0 for an error about the connection.
        request_id: u64,
        /// The answer.
        response: Response,
        /// The bytes of a read.
        payload: Bytes,
    },
    /// Something unasked.
    Push(Push),
}

/// Appends a message as a frame, with its payload.
///
/// # Errors
/// [`CodecError::TooLarge`]; `out` is then as it was.
pub fn encode<M: Message>(
    out: &mut BytesMut,
    request_id: u64,
    message: &M,
    payload: &[u8],
) -> Result<(), CodecError> {
    encode_head(out, request_id, message, payload.len())?;
    out.extend_from_slice(payload);
    Ok(())
}

/// Appends a message as a frame without its payload, of which the caller sends exactly `payload_length` bytes right behind it. For
/// vectored writes: a large payload is then never copied.
///
/// # Errors
/// [`CodecError::TooLarge`]; `out` is then as it was.
pub fn encode_head<M: Message>(
    out: &mut BytesMut,
    request_id: u64,
    message: &M,
    payload_length: usize,
) -> Result<(), CodecError> {
    if payload_length > MAX_PAYLOAD {
        return Err(CodecError::TooLarge { length: payload_length, limit: MAX_PAYLOAD });
    }
    frame::encode_head(out, M::TYPE, request_id, payload_length, |out| {
        let start = out.len();
        bincode::encode_into_writer(message, Appender(out), CONFIGURATION)
            .map_err(|error| CodecError::Malformed(error.to_string()))?;
        match out.len() - start {
            length if length > MAX_BODY => Err(CodecError::TooLarge { length, limit: MAX_BODY }),
            _ => Ok(()),
        }
    })
}

/// Decodes the message of a frame, which must be of the message's type and be used up by it.
///
/// # Errors
/// See [`CodecError`]; as a [`WireError`] it is the answer to send.
pub fn decode<M: Message>(frame: &Frame) -> Result<M, CodecError> {
    if frame.header.kind != M::TYPE {
        return Err(CodecError::UnexpectedType(frame.header.kind));
    }
    decode_body(&frame.body)
}

/// Decodes what a server sent.
///
/// # Errors
/// As [`decode`].
pub fn decode_from_server(frame: Frame) -> Result<ServerMessage, CodecError> {
    match frame.header.kind {
        FrameType::Response => Ok(ServerMessage::Response {
            request_id: frame.header.request_id,
            response: decode_body(&frame.body)?,
            payload: frame.payload,
        }),
        FrameType::Push => Ok(ServerMessage::Push(decode_body(&frame.body)?)),
        FrameType::Request => Err(CodecError::UnexpectedType(FrameType::Request)),
    }
}

pub(crate) fn decode_body<T: Decode<()>>(body: &[u8]) -> Result<T, CodecError> {
    let (value, used) = bincode::decode_from_slice(body, CONFIGURATION)?;
    match body.len() - used {
        0 => Ok(value),
        left => Err(CodecError::TrailingBytes(left)),
    }
}

/// Lets bincode write straight into the send buffer.
struct Appender<'a>(&'a mut BytesMut);

impl Writer for Appender<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}
