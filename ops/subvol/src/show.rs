//! How names, kinds, modes and times are shown to people and to programs.
//!
//! Invariant: what is printed of a name cannot move the cursor or break a line: bytes that are not printable are escaped. In JSON a name
//! that is not UTF-8 is escaped the same way and stands in full beside it, as hexadecimal digits under the key with `_hex`.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use subvol_client::{Attributes, FileKind, Timestamp};

/// A name for people: printable characters as they are, everything else as `\xNN`, a backslash doubled.
pub fn escaped(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => shown.push_str("\\\\"),
                c if c.is_control() => {
                    let mut buffer = [0; 4];
                    push_bytes(&mut shown, c.encode_utf8(&mut buffer).as_bytes());
                }
                c => shown.push(c),
            }
        }
        push_bytes(&mut shown, chunk.invalid());
    }
    shown
}

fn push_bytes(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(shown, "\\x{byte:02x}");
    }
}

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// Puts a name or value under a key; see the module.
pub fn insert_bytes(into: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            into.insert(key.into(), text.into());
        }
        Err(_) => {
            into.insert(key.into(), escaped(bytes).into());
            into.insert(format!("{key}_hex"), hex(bytes).into());
        }
    }
}

/// A kind in one word.
pub const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Fifo => "fifo",
        FileKind::CharacterDevice => "character-device",
        FileKind::Directory => "directory",
        FileKind::BlockDevice => "block-device",
        FileKind::Regular => "file",
        FileKind::Symlink => "symlink",
        FileKind::Socket => "socket",
    }
}

/// `drwxr-xr-x`.
pub fn mode(mode: u32) -> String {
    let kind = match FileKind::from_mode(mode) {
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::CharacterDevice) => 'c',
        Some(FileKind::Directory) => 'd',
        Some(FileKind::BlockDevice) => 'b',
        Some(FileKind::Regular) => '-',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::Socket) => 's',
        None => '?',
    };
    let mut shown = String::with_capacity(10);
    shown.push(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        shown.push(if bits & 4 != 0 { 'r' } else { '-' });
        shown.push(if bits & 2 != 0 { 'w' } else { '-' });
        shown.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

/// Year, month, day, hour, minute, second in UTC.
fn civil(seconds: i64) -> (i64, u32, u32, u32, u32, u32) {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) as u32);
    // Years that begin in March put the leap day last; 719468 days lie between 0000-03-01 and 1970-01-01.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 } as u32;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day, rest / 3600, rest / 60 % 60, rest % 60)
}

/// `2026-11-30 23:28`, UTC.
pub fn time_short(time: Timestamp) -> String {
    let (year, month, day, hour, minute, _) = civil(time.seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// `2026-11-30T23:28:01.000000123Z`.
pub fn time_full(time: Timestamp) -> String {
    let (year, month, day, hour, minute, second) = civil(time.seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", time.nanoseconds)
}

/// Major and minor number of a device number as Linux encodes it in 32 bits.
pub const fn device_numbers(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

/// Attributes for programs.
pub fn attributes(attributes: &Attributes) -> Map<String, Value> {
    let (major, minor) = device_numbers(attributes.rdev);
    let fields = json!({
        "inode": attributes.inode,
        "kind": attributes.kind().map(kind_name),
        "mode": format!("{:04o}", attributes.mode & 0o7777),
        "links": attributes.links,
        "uid": attributes.uid,
        "gid": attributes.gid,
        "major": major,
        "minor": minor,
        "size": attributes.size,
        "allocated": attributes.blocks.saturating_mul(4096),
        "atime": time_full(attributes.atime),
        "mtime": time_full(attributes.mtime),
        "ctime": time_full(attributes.ctime),
        "btime": time_full(attributes.btime),
        "version": attributes.version,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_on_one_line() {
        assert_eq!(escaped("grün\n\x1b[2J\\".as_bytes()), "grün\\x0a\\x1b[2J\\\\");
        assert_eq!(escaped(b"\xff.txt"), "\\xff.txt");
        let mut map = Map::new();
        insert_bytes(&mut map, "name", b"\xffa");
        assert_eq!(map.get("name_hex"), Some(&json!("ff61")));
    }

    #[test]
    fn modes_and_times() {
        assert_eq!(mode(0o040_755), "drwxr-xr-x");
        assert_eq!(mode(0o104_644), "-rwSr--r--");
        assert_eq!(mode(0o041_777), "drwxrwxrwt");
        let at = |seconds| time_full(Timestamp { seconds, nanoseconds: 7 });
        assert_eq!(at(0), "1970-01-01T00:00:00.000000007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000007Z");
        assert_eq!(at(-1), "1969-12-31T23:59:59.000000007Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000000007Z");
    }

    #[test]
    fn device_numbers_of_more_than_eight_bits() {
        assert_eq!(device_numbers((8 << 8) | 1), (8, 1));
        assert_eq!(device_numbers(0x1234 & 0xff | 259 << 8 | 0x1200 << 12), (259, 0x1234));
    }
}
