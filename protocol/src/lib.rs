//! The binary protocol of subvold: bytes to types and back. No I/O, no clock, no threads, no file system.
//!
//! A connection is a stream of **frames** ([`frame`]): a fixed header, a body, a raw payload. A body is one **message** ([`codec`]): a
//! [`request::RequestEnvelope`], a [`response::Response`] or a [`response::Push`]. The document `protocol.md` specifies both for people
//! who write a client in another language; the tests freeze the bytes.
//!
//! Sending: [`codec::encode`] appends a frame to the send buffer, without allocating; [`codec::encode_head`] leaves a large payload to
//! a vectored write. Receiving: read into a `BytesMut`, call [`frame::FrameDecoder::decode`] until it says `None`, then
//! [`codec::decode`] or [`codec::decode_from_server`]. A server then calls [`request::RequestEnvelope::validate`].
//!
//! What holds everywhere here:
//! - **Nothing a peer says is believed before it is checked.** A length is compared with its limit before memory is reserved for it; a
//!   name that was decoded obeys the rule of names; there is no panic on anybody's bytes.
//! - **A broken frame ends the connection, a broken message only its request**: behind a broken frame nobody knows where the next
//!   one begins, behind a broken body everybody does.
//! - **Numbers are for ever.** Variants are only appended, fields never change, an error number keeps its meaning.
//! - **Secrets do not show.** A token prints as `Token(..)`.
//!
//! Reading order: [`limits`], [`frame`], [`codec`], [`request`], [`response`], [`error`]. [`name`], [`attributes`] and [`token`] are
//! the values that messages are made of; [`address`] is how people name a server and a volume.

pub mod address;
pub mod attributes;
pub mod codec;
pub mod error;
pub mod frame;
pub mod limits;
pub mod name;
pub mod request;
pub mod response;
pub mod token;

#[cfg(test)]
mod tests;
