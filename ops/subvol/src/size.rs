//! Sizes and counts with suffixes, in both directions.
//!
//! `K M G T P E` and `KiB MiB ...` are powers of 1024, `KB MB ...` powers of 1000, as everywhere in GNU tools.

use subvol_client::UNLIMITED;

const LETTERS: &str = "KMGTPE";

/// Reads `4096`, `10G`, `1.5GiB`, `20MB`.
///
/// # Errors
/// A text for people.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad =
        || format!("`{text}` is no size: write a number with an optional suffix, such as 4096, 10G or 500MB");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        suffix => {
            let letter = suffix.chars().next().ok_or_else(bad)?;
            let power = LETTERS.find(letter).ok_or_else(bad)? as u32 + 1;
            match suffix.get(1..) {
                Some("" | "IB") => 1024_u64.checked_pow(power).ok_or_else(bad)?,
                Some("B") => 1000_u64.checked_pow(power).ok_or_else(bad)?,
                _ => return Err(bad()),
            }
        }
    };
    let too_large = || format!("`{text}` is larger than 2^64 - 1");
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| if whole.is_empty() { bad() } else { too_large() })?;
    let whole = whole.checked_mul(unit).ok_or_else(too_large)?;
    if fraction.is_empty() {
        return Ok(whole);
    }
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let digits: u128 = fraction.parse().map_err(|_| bad())?;
    let part = digits * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
    // A fraction is below one unit, so it fits.
    whole.checked_add(part as u64).ok_or_else(too_large)
}

/// As [`parse`]; `none` removes a limit.
///
/// # Errors
/// A text for people.
pub fn parse_limit(text: &str) -> Result<u64, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(UNLIMITED);
    }
    match parse(text) {
        Ok(UNLIMITED) => Err("this number stands for no limit: write none".into()),
        Ok(size) => Ok(size),
        Err(error) => Err(format!("{error}; none for no limit")),
    }
}

/// For people: `1.5 GiB`.
pub fn bytes(size: u64) -> String {
    let mut value = size as f64;
    let mut unit = None;
    for letter in LETTERS.chars() {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(letter);
    }
    match unit {
        None => format!("{size} B"),
        Some(letter) => format!("{value:.1} {letter}iB"),
    }
}

/// For people; `none` for no limit.
pub fn limit_bytes(limit: u64) -> String {
    if limit == UNLIMITED { "none".into() } else { bytes(limit) }
}

/// For people; `none` for no limit.
pub fn limit_count(limit: u64) -> String {
    if limit == UNLIMITED { "none".into() } else { limit.to_string() }
}

/// For programs; null for no limit.
pub fn json_limit(limit: u64) -> serde_json::Value {
    if limit == UNLIMITED { serde_json::Value::Null } else { limit.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_suffix() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1k", 1024),
            ("10G", 10 << 30),
            ("1.5GiB", 3 << 29),
            ("20MB", 20_000_000),
            ("0.5K", 512),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "G", "-1", "1.2.3", "10X", "10GG", "10iB", "16E", "1e3", ".5K", "99999999999999999999", "１"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn none_is_no_limit() {
        assert_eq!(parse_limit("none"), Ok(UNLIMITED));
        assert_eq!(parse_limit("1M"), Ok(1 << 20));
        assert!(parse_limit("18446744073709551615").is_err());
        assert!(parse_limit("nothing").is_err());
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX - 1), "16.0 EiB");
    }
}
