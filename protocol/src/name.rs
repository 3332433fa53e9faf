//! Names and texts from outside, checked when they are made: entry names, xattr names, link targets, labels, free text.
//!
//! Invariant: a value of one of these types obeys its rule, whether it was built here or decoded from a peer's bytes. So the server
//! never has to ask again whether a name contains a slash. Short names live inside the value: decoding a typical request allocates
//! nothing for them.

use std::fmt;

use bincode::de::read::Reader;
use bincode::de::{Decode, Decoder};
use bincode::enc::write::Writer;
use bincode::enc::{Encode, Encoder};
use bincode::error::{DecodeError, EncodeError};
use smallvec::SmallVec;

use crate::limits::{MAX_LABEL, MAX_NAME, MAX_SYMLINK, MAX_XATTR_LIST, MAX_XATTR_NAME, MAX_XATTR_VALUE};

/// What is wrong with a name. The codec reports each as its own error, so a peer learns more than "malformed".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than its kind of name may be.
    #[error("the name is too long")]
    TooLong,
    /// Empty.
    #[error("the name is empty")]
    Empty,
    /// Contains a byte it must not contain, such as a slash or a zero byte.
    #[error("the name contains a forbidden byte")]
    ForbiddenByte,
    /// `.` or `..`, which name a directory's own and parent entry and are never stored.
    #[error("`.` and `..` cannot name an entry")]
    Dots,
    /// Must be text but is not UTF-8.
    #[error("the text is not UTF-8")]
    NotText,
}

impl NameError {
    /// The text under which the decoder carries this error through bincode's error type; [`Self::from_marker`] finds it again.
    pub(crate) const fn marker(self) -> &'static str {
        match self {
            Self::TooLong => "name: too long",
            Self::Empty => "name: empty",
            Self::ForbiddenByte => "name: forbidden byte",
            Self::Dots => "name: dots",
            Self::NotText => "name: not text",
        }
    }

    pub(crate) fn from_marker(marker: &str) -> Option<Self> {
        [Self::TooLong, Self::Empty, Self::ForbiddenByte, Self::Dots, Self::NotText]
            .into_iter()
            .find(|e| e.marker() == marker)
    }

    fn into_decode(self) -> DecodeError {
        DecodeError::Other(self.marker())
    }
}

/// Reads a length-prefixed byte string of at most `max` bytes and hands it to `make`, without a copy where the input is a slice.
pub(crate) fn decode_bytes<D: Decoder, T>(
    decoder: &mut D,
    max: usize,
    make: impl FnOnce(&[u8]) -> Result<T, NameError>,
) -> Result<T, DecodeError> {
    let length = u64::decode(decoder)?;
    // Checked before anything is read or reserved: a length is only a claim.
    if length > max as u64 {
        return Err(NameError::TooLong.into_decode());
    }
    let length = length as usize;
    decoder.claim_bytes_read(length)?;
    if let Some(bytes) = decoder.reader().peek_read(length) {
        let made = make(bytes).map_err(NameError::into_decode)?;
        decoder.reader().consume(length);
        return Ok(made);
    }
    let mut bytes = vec![0; length];
    decoder.reader().read(&mut bytes)?;
    make(&bytes).map_err(NameError::into_decode)
}

pub(crate) fn encode_bytes<E: Encoder>(bytes: &[u8], encoder: &mut E) -> Result<(), EncodeError> {
    (bytes.len() as u64).encode(encoder)?;
    encoder.writer().write(bytes)
}

macro_rules! byte_name {
    ($(#[$doc:meta])* $name:ident, inline $inline:literal, max $max:expr, check $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(SmallVec<[u8; $inline]>);

        impl $name {
            /// Checks and copies.
            ///
            /// # Errors
            /// The rule that `bytes` breaks.
            pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, NameError> {
                let bytes = bytes.as_ref();
                if bytes.len() > $max {
                    return Err(NameError::TooLong);
                }
                let check: fn(&[u8]) -> Result<(), NameError> = $check;
                check(bytes)?;
                Ok(Self(SmallVec::from_slice(bytes)))
            }

            /// The bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl std::borrow::Borrow<[u8]> for $name {
            fn borrow(&self) -> &[u8] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }

        impl Encode for $name {
            fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                encode_bytes(&self.0, encoder)
            }
        }

        impl<Context> Decode<Context> for $name {
            fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
                decode_bytes(decoder, $max, |bytes| Self::new(bytes))
            }
        }
        bincode::impl_borrow_decode!($name);
    };
}

byte_name! {
    /// The name of a directory entry: 1 to 255 bytes, no `/`, no zero byte, not `.` and not `..`. Any other bytes: not
    /// necessarily UTF-8, compared byte by byte.
    Name, inline 32, max MAX_NAME, check |bytes| match bytes {
        [] => Err(NameError::Empty),
        b"." | b".." => Err(NameError::Dots),
        _ if bytes.iter().any(|&b| b == 0 || b == b'/') => Err(NameError::ForbiddenByte),
        _ => Ok(()),
    }
}

byte_name! {
    /// The full name of an extended attribute, prefix included (`user.comment`): 1 to 255 bytes, no zero byte.
    XattrName, inline 32, max MAX_XATTR_NAME, check |bytes| match bytes {
        [] => Err(NameError::Empty),
        _ if bytes.contains(&0) => Err(NameError::ForbiddenByte),
        _ => Ok(()),
    }
}

byte_name! {
    /// The target of a symbolic link: 1 to 4095 bytes, no zero byte. Never interpreted by the server.
    LinkTarget, inline 16, max MAX_SYMLINK, check |bytes| match bytes {
        [] => Err(NameError::Empty),
        _ if bytes.contains(&0) => Err(NameError::ForbiddenByte),
        _ => Ok(()),
    }
}

byte_name! {
    /// The value of an extended attribute: 0 to 65536 bytes of anything.
    XattrValue, inline 16, max MAX_XATTR_VALUE, check |_| Ok(())
}

byte_name! {
    /// The names of all extended attributes of an inode, each followed by a zero byte: what `listxattr` returns, and far less memory
    /// than a list of names that may each be one letter long.
    XattrNames, inline 16, max MAX_XATTR_LIST, check |bytes| match bytes {
        [] | [.., 0] if !bytes.starts_with(&[0]) && !bytes.windows(2).any(|pair| pair == [0, 0]) => Ok(()),
        _ => Err(NameError::ForbiddenByte),
    }
}

impl XattrNames {
    /// Joins names.
    ///
    /// # Errors
    /// [`NameError::TooLong`] if they exceed 65536 bytes together.
    pub fn join<'a>(names: impl IntoIterator<Item = &'a XattrName>) -> Result<Self, NameError> {
        let mut joined = SmallVec::new();
        for name in names {
            joined.extend_from_slice(name.as_bytes());
            joined.push(0);
            if joined.len() > MAX_XATTR_LIST {
                return Err(NameError::TooLong);
            }
        }
        Ok(Self(joined))
    }

    /// The names, without their zero bytes.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == 0).filter(|name| !name.is_empty())
    }
}

/// The name of a tenant or a volume: 1 to 63 of ASCII letters, digits, `-`, `_`, `.`, beginning with a letter or a digit.
/// So it fits an address, a path, a metric label and a shell command without quoting.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(Box<str>);

impl Label {
    /// Checks and copies.
    ///
    /// # Errors
    /// The rule that `text` breaks.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.len() > MAX_LABEL {
            return Err(NameError::TooLong);
        }
        let first = text.bytes().next().ok_or(NameError::Empty)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if !first.is_ascii_alphanumeric() || !text.bytes().all(allowed) {
            return Err(NameError::ForbiddenByte);
        }
        Ok(Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

impl std::str::FromStr for Label {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl Encode for Label {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        encode_bytes(self.0.as_bytes(), encoder)
    }
}

impl<Context> Decode<Context> for Label {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        decode_bytes(decoder, MAX_LABEL, |bytes| {
            Self::new(std::str::from_utf8(bytes).map_err(|_| NameError::NotText)?)
        })
    }
}
bincode::impl_borrow_decode!(Label);

/// Free text of at most `MAX` bytes, for people to read. Longer text is cut at a character boundary when it is made, so that an
/// error message can never be the reason an error cannot be sent.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text<const MAX: usize>(Box<str>);

impl<const MAX: usize> Text<MAX> {
    /// Copies, cutting at `MAX` bytes.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(text[..end].into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> From<&str> for Text<MAX> {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl<const MAX: usize> fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const MAX: usize> fmt::Debug for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

impl<const MAX: usize> Encode for Text<MAX> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        encode_bytes(self.0.as_bytes(), encoder)
    }
}

impl<Context, const MAX: usize> Decode<Context> for Text<MAX> {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        decode_bytes(decoder, MAX, |bytes| {
            Ok(Self(std::str::from_utf8(bytes).map_err(|_| NameError::NotText)?.into()))
        })
    }
}

impl<'de, Context, const MAX: usize> bincode::BorrowDecode<'de, Context> for Text<MAX> {
    fn borrow_decode<D: bincode::de::BorrowDecoder<'de, Context = Context>>(
        decoder: &mut D,
    ) -> Result<Self, DecodeError> {
        Self::decode(decoder)
    }
}
