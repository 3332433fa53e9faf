//! `VOLUME:/path`, as people write it.
//!
//! Invariants: a path is bytes and begins with a slash; the volume's name obeys the rule of names. `VOLUME:` alone means the root.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser};
use subvol_client::Label;

use crate::show::escaped;

/// A place in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The volume's name.
    pub volume: Label,
    /// From the volume's root, with its slash.
    pub path: Vec<u8>,
}

impl Target {
    /// Takes a command-line argument apart.
    ///
    /// # Errors
    /// A text for people.
    pub fn parse(argument: &OsStr) -> Result<Self, String> {
        let bytes = argument.as_bytes();
        let Some(colon) = bytes.iter().position(|&byte| byte == b':') else {
            return Err("write VOLUME:/path, such as work:/notes.txt".into());
        };
        let (name, path) = bytes.split_at(colon);
        let path = path.get(1..).unwrap_or_default();
        let volume = std::str::from_utf8(name)
            .map_err(|_| "the volume's name is not text".to_owned())
            .and_then(|text| Label::new(text).map_err(|error| format!("the volume `{text}`: {error}")))?;
        if path.contains(&0) {
            return Err("a path has no zero byte".into());
        }
        let mut rooted = Vec::with_capacity(path.len() + 1);
        if path.first() != Some(&b'/') {
            rooted.push(b'/');
        }
        rooted.extend_from_slice(path);
        Ok(Self { volume, path: rooted })
    }

    /// For clap: `#[arg(value_parser = Target::parser())]`.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|argument: OsString| Self::parse(&argument))
    }

    /// The directory part and the last name; `None` for the root and for paths that end in `.` or `..`.
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        split_path(&self.path)
    }

    /// A place below this one.
    pub fn join(&self, name: &[u8]) -> Self {
        Self { volume: self.volume.clone(), path: join(&self.path, name) }
    }
}

/// As [`Target::split`], of a path alone. Slashes at the end do not count.
pub fn split_path(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    match path.split_at_checked(start)? {
        (_, b"." | b"..") => None,
        (b"", name) => Some((b"/", name)),
        (parent, name) => Some((parent, name)),
    }
}

/// A path and a name below it.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if joined.last() != Some(&b'/') {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.volume, escaped(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<(String, Vec<u8>), String> {
        Target::parse(OsStr::from_bytes(text)).map(|target| (target.volume.to_string(), target.path))
    }

    #[test]
    fn volume_and_path_are_told_apart_at_the_first_colon() {
        assert_eq!(parse(b"work:/a/b"), Ok(("work".into(), b"/a/b".to_vec())));
        assert_eq!(parse(b"work:/a:b"), Ok(("work".into(), b"/a:b".to_vec())));
        assert_eq!(parse(b"work:"), Ok(("work".into(), b"/".to_vec())));
        assert_eq!(parse(b"work:a"), Ok(("work".into(), b"/a".to_vec())));
        assert_eq!(parse(b"v:/\xff"), Ok(("v".into(), b"/\xff".to_vec())));
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for bad in [&b"/just/a/path"[..], b"", b":/a", b"a/b:/c", b"\xff:/a", b"v:/a\0b"] {
            assert!(parse(bad).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn the_last_name_is_split_off() {
        assert_eq!(split_path(b"/a"), Some((&b"/"[..], &b"a"[..])));
        assert_eq!(split_path(b"/a/b//"), Some((&b"/a/"[..], &b"b"[..])));
        for none in [&b"/"[..], b"//", b"", b"/a/..", b"/."] {
            assert_eq!(split_path(none), None);
        }
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(join(b"/a", b"x"), b"/a/x");
    }
}
