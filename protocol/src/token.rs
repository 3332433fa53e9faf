//! The credential token: the one secret that travels in this protocol.
//!
//! Invariants: it never appears in `Debug` output (requests are logged), it is compared in constant time (the time of a comparison
//! must not tell how many bytes were right), and its memory is wiped when it is dropped.

use std::fmt;

use bincode::de::{Decode, Decoder};
use bincode::enc::{Encode, Encoder};
use bincode::error::{DecodeError, EncodeError};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::limits::MAX_TOKEN;
use crate::name::{NameError, decode_bytes, encode_bytes};

/// A bearer token of 1 to 256 bytes. Whoever holds it is the tenant, or the administrator.
#[derive(Clone)]
pub struct Token(Zeroizing<Box<[u8]>>);

impl Token {
    /// Checks the length and copies.
    ///
    /// # Errors
    /// [`NameError::Empty`] or [`NameError::TooLong`].
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, NameError> {
        match secret.as_ref() {
            [] => Err(NameError::Empty),
            bytes if bytes.len() > MAX_TOKEN => Err(NameError::TooLong),
            bytes => Ok(Self(Zeroizing::new(bytes.into()))),
        }
    }

    /// The secret itself. Do not log it and do not store it: store its hash.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Encode for Token {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        encode_bytes(&self.0, encoder)
    }
}

impl<Context> Decode<Context> for Token {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        decode_bytes(decoder, MAX_TOKEN, |bytes| Self::new(bytes))
    }
}
bincode::impl_borrow_decode!(Token);
