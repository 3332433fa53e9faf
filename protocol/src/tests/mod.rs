//! Tests of the protocol as a whole: every message goes there and back, the bytes stay what they are, and the document says the same
//! as the code. What hostile bytes may cost is measured in `tests/hostile.rs`, which counts allocations.

mod document;
mod golden;
mod round_trip;
mod samples;
mod validation;

use bytes::BytesMut;

use crate::codec::{self, Message};

/// A message as the bytes of its frame's body.
fn body_of<M: Message>(message: &M) -> Vec<u8> {
    let mut out = BytesMut::new();
    codec::encode(&mut out, 1, message, &[]).expect("a sample fits a frame");
    out[crate::limits::HEADER_LENGTH..].to_vec()
}

/// The first word of a value's `Debug` text: the name of its variant.
fn variant_name(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").chars().take_while(|c| c.is_ascii_alphanumeric()).collect()
}
