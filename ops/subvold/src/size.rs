//! Sizes as people write them: `4096`, `64M`, `16G`, `1T`. Suffixes are powers of 1024.

use serde::{Deserialize, Deserializer};
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a size; write a number of bytes, or one with K, M, G or T");
        let text = text.trim();
        let upper = text.trim_end_matches(['B', 'b', 'i']);
        let (digits, shift) = match upper.chars().last() {
            Some('k' | 'K') => (&upper[..upper.len() - 1], 10),
            Some('m' | 'M') => (&upper[..upper.len() - 1], 20),
            Some('g' | 'G') => (&upper[..upper.len() - 1], 30),
            Some('t' | 'T') => (&upper[..upper.len() - 1], 40),
            _ => (upper, 0),
        };
        let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Self(number)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in
            [("4096", 4096), ("64M", 64 << 20), ("1 GiB", 1 << 30), ("2t", 2 << 40), ("8kB", 8192)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "99999999T", "é"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
