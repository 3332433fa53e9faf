//! dbench 4 load files: text to operations.
//!
//! A line is `[time] OPERATION arguments... STATUS`, words separated by spaces, paths in quotation marks with backslashes or slashes. Lines
//! of one word and lines that begin with `#` mean nothing. `client1` in a path stands for each client's own name.
//!
//! Invariant: a file that is not understood in full is refused with the line's number: half a load measures something else. (dbench
//! prints such lines and goes on.) A time is understood and not used: the load is replayed as fast as possible.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use rustc_hash::FxHashMap;

/// Bytes of a line; dbench's own limit.
const MAX_LINE: u64 = 1024;
/// Bytes of one write or read.
const MAX_TRANSFER: u64 = subvol_client::protocol::limits::MAX_PAYLOAD as u64;
/// Bytes from the beginning of a file, plus the longest transfer.
const MAX_OFFSET: u64 = 1 << 62;

/// What is wrong with a load file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("line {line}: {reason}")]
    Line { line: usize, reason: Reason },
    #[error("it holds no operation")]
    Empty,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("this is a load file of dbench 1; version 4 is understood")]
    Version1,
    #[error("longer than {MAX_LINE} bytes")]
    TooLong,
    #[error("not text")]
    NotText,
    #[error("a quotation mark without its end")]
    Quotation,
    #[error("unknown operation `{0}`")]
    Unknown(String),
    #[error("`{0}` is no status: it begins with NT_STATUS_ or 0x, or is *")]
    Status(String),
    #[error("{operation} takes {takes} arguments and a status, not {given}")]
    Arguments { operation: &'static str, takes: usize, given: usize },
    #[error("`{0}` is no number, or out of range")]
    Number(String),
    #[error("`{0}` is no path: names of 1 to 255 bytes, not `..`")]
    Path(String),
}

/// A path's place in [`LoadFile::paths`].
pub type PathIndex = usize;
/// What the file calls an open file.
pub type Handle = i64;

/// The status an operation must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Success,
    Failure,
    Any,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    CreateX { path: PathIndex, options: u64, disposition: u64, handle: Handle },
    Close { handle: Handle },
    Rename { from: PathIndex, to: PathIndex },
    Unlink { path: PathIndex },
    Rmdir { path: PathIndex },
    Mkdir { path: PathIndex },
    Deltree { path: PathIndex },
    PathInfo { path: PathIndex },
    FileInfo { handle: Handle },
    FsInfo,
    SetFileInfo { handle: Handle },
    Find { path: PathIndex, max: u64 },
    Write { handle: Handle, offset: u64, size: u64, done: u64 },
    Read { handle: Handle, offset: u64, size: u64, done: u64 },
    Lock { handle: Handle },
    Unlock { handle: Handle },
    Flush { handle: Handle },
    Sleep { microseconds: u64 },
}

/// An operation with its line and status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub number: usize,
    pub operation: Operation,
    pub expected: Expected,
}

/// A whole file.
#[derive(Debug, Default)]
pub struct LoadFile {
    pub lines: Vec<Line>,
    /// Each path once, with slashes, as in the file.
    pub paths: Vec<String>,
    known: FxHashMap<String, PathIndex>,
}

impl LoadFile {
    /// Reads a file.
    ///
    /// # Errors
    /// Reading, and the first line that is not understood.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        Self::parse(BufReader::with_capacity(256 * 1024, File::open(path)?))
    }

    /// Reads text.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(mut text: impl BufRead) -> Result<Self, LoadError> {
        use std::io::Read;
        let mut load = Self::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            // One more than allowed, to notice. The file may be anything, also one endless line.
            let read = text.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            let parsed = if line.len() as u64 > MAX_LINE {
                Err(Reason::TooLong)
            } else {
                std::str::from_utf8(&line).map_err(|_| Reason::NotText).and_then(|text| load.line(text))
            };
            match parsed {
                Ok(Some((operation, expected))) => load.lines.push(Line { number, operation, expected }),
                Ok(None) => {}
                Err(reason) => return Err(LoadError::Line { line: number, reason }),
            }
        }
        if load.lines.is_empty() { Err(LoadError::Empty) } else { Ok(load) }
    }

    fn line(&mut self, text: &str) -> Result<Option<(Operation, Expected)>, Reason> {
        let mut words = words(text)?;
        if words.len() < 2 || words.first().is_some_and(|word| word.starts_with('#')) {
            return Ok(None);
        }
        if words.first().is_some_and(|word| word.starts_with("SMB")) {
            return Err(Reason::Version1);
        }
        if words.first().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            let time = words.remove(0);
            time.parse::<f64>().map_err(|_| Reason::Number(time))?;
        }
        let status = words.pop().unwrap_or_default();
        let expected = match status.as_str() {
            "NT_STATUS_OK" | "0x00000000" => Expected::Success,
            "*" => Expected::Any,
            other if other.starts_with("NT_STATUS_") || other.starts_with("0x") => Expected::Failure,
            _ => return Err(Reason::Status(status)),
        };
        let Some((name, arguments)) = words.split_first() else {
            // A time and a status alone.
            return Err(Reason::Unknown(status));
        };
        Ok(Some((self.operation(name, arguments)?, expected)))
    }

    fn operation(&mut self, name: &str, words: &[String]) -> Result<Operation, Reason> {
        Ok(match name {
            "NTCreateX" => {
                let [path, options, disposition, handle] = arguments("NTCreateX", words)?;
                Operation::CreateX {
                    path: self.path(path)?,
                    options: number(options, u64::from(u32::MAX))?,
                    disposition: number(disposition, u64::from(u32::MAX))?,
                    handle: handle_number(handle)?,
                }
            }
            "Close" => {
                let [handle] = arguments("Close", words)?;
                Operation::Close { handle: handle_number(handle)? }
            }
            "Rename" => {
                let [from, to] = arguments("Rename", words)?;
                Operation::Rename { from: self.path(from)?, to: self.path(to)? }
            }
            "Unlink" => {
                let [path, _attributes] = arguments("Unlink", words)?;
                Operation::Unlink { path: self.path(path)? }
            }
            "Rmdir" => {
                let [path] = arguments("Rmdir", words)?;
                Operation::Rmdir { path: self.path(path)? }
            }
            "Mkdir" => {
                let [path] = arguments("Mkdir", words)?;
                Operation::Mkdir { path: self.path(path)? }
            }
            "Deltree" => {
                let [path] = arguments("Deltree", words)?;
                Operation::Deltree { path: self.path(path)? }
            }
            "QUERY_PATH_INFORMATION" => {
                let [path, _level] = arguments("QUERY_PATH_INFORMATION", words)?;
                Operation::PathInfo { path: self.path(path)? }
            }
            "QUERY_FILE_INFORMATION" => {
                let [handle, _level] = arguments("QUERY_FILE_INFORMATION", words)?;
                Operation::FileInfo { handle: handle_number(handle)? }
            }
            "QUERY_FS_INFORMATION" => {
                let [_level] = arguments("QUERY_FS_INFORMATION", words)?;
                Operation::FsInfo
            }
            "SET_FILE_INFORMATION" => {
                let [handle, _level] = arguments("SET_FILE_INFORMATION", words)?;
                Operation::SetFileInfo { handle: handle_number(handle)? }
            }
            "FIND_FIRST" => {
                let [path, _level, max, _count] = arguments("FIND_FIRST", words)?;
                Operation::Find { path: self.path(path)?, max: number(max, u64::from(u32::MAX))? }
            }
            "WriteX" => {
                let (handle, offset, size, done) = transfer("WriteX", words)?;
                Operation::Write { handle, offset, size, done }
            }
            "ReadX" => {
                let (handle, offset, size, done) = transfer("ReadX", words)?;
                Operation::Read { handle, offset, size, done }
            }
            "LockX" => Operation::Lock { handle: lock("LockX", words)? },
            "UnlockX" => Operation::Unlock { handle: lock("UnlockX", words)? },
            "Flush" => {
                let [handle] = arguments("Flush", words)?;
                Operation::Flush { handle: handle_number(handle)? }
            }
            "Sleep" => {
                let [microseconds] = arguments("Sleep", words)?;
                Operation::Sleep { microseconds: number(microseconds, 3_600_000_000)? }
            }
            other => return Err(Reason::Unknown(other.into())),
        })
    }

    fn path(&mut self, word: &str) -> Result<PathIndex, Reason> {
        let path = word.replace('\\', "/");
        if let Some(index) = self.known.get(&path) {
            return Ok(*index);
        }
        let fits = |name: &str| name.len() <= 255 && name != ".." && !name.contains('\0');
        if path.is_empty() || !path.split('/').all(fits) {
            return Err(Reason::Path(path));
        }
        let index = self.paths.len();
        self.paths.push(path.clone());
        self.known.insert(path, index);
        Ok(index)
    }
}

/// Splits at white space, except between quotation marks, which go.
fn words(text: &str) -> Result<Vec<String>, Reason> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_ascii_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    if quoted {
        return Err(Reason::Quotation);
    }
    words.extend(word);
    Ok(words)
}

fn arguments<'a, const N: usize>(
    operation: &'static str,
    words: &'a [String],
) -> Result<&'a [String; N], Reason> {
    words.try_into().map_err(|_| Reason::Arguments { operation, takes: N, given: words.len() })
}

fn transfer(operation: &'static str, words: &[String]) -> Result<(Handle, u64, u64, u64), Reason> {
    let [handle, offset, size, done] = arguments(operation, words)?;
    Ok((
        handle_number(handle)?,
        number(offset, MAX_OFFSET)?,
        number(size, MAX_TRANSFER)?,
        number(done, MAX_TRANSFER)?,
    ))
}

fn lock(operation: &'static str, words: &[String]) -> Result<Handle, Reason> {
    let [handle, offset, size] = arguments(operation, words)?;
    number(offset, MAX_OFFSET)?;
    number(size, MAX_OFFSET)?;
    handle_number(handle)
}

/// Decimal, or hexadecimal behind `0x`, at most `max`.
fn number(word: &str, max: u64) -> Result<u64, Reason> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None if word.bytes().all(|byte| byte.is_ascii_digit()) => word.parse().ok(),
        None => None,
    };
    parsed.filter(|number| *number <= max).ok_or_else(|| Reason::Number(word.into()))
}

/// A handle; -1 stands for one that is not expected to be opened.
fn handle_number(word: &str) -> Result<Handle, Reason> {
    if word == "-1" { Ok(-1) } else { number(word, i64::MAX as u64).map(|number| number as Handle) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<LoadFile, LoadError> {
        LoadFile::parse(text.as_bytes())
    }

    fn reason(text: &str) -> Reason {
        match parse(text) {
            Err(LoadError::Line { reason, .. }) => reason,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn every_operation_is_understood() {
        let text = r#"
            # a comment with several words
            Deltree "\clients\client1" NT_STATUS_OK
            Mkdir "\clients" NT_STATUS_OK
            NTCreateX "\clients\client1" 0x1 0x2 16385 NT_STATUS_OK
            0.125 NTCreateX "\clients\client1\two words" 0x40 0x1 9935 NT_STATUS_OBJECT_NAME_NOT_FOUND
            QUERY_PATH_INFORMATION "\clients" 1004 *
            FIND_FIRST "\clients\client1\FILLER.*" 260 1366 0 NT_STATUS_NO_SUCH_FILE
            WriteX 1 65534 1 1 0x00000000
            ReadX 1 0 10 7 NT_STATUS_OK
            QUERY_FILE_INFORMATION 1 258 NT_STATUS_OK
            SET_FILE_INFORMATION 1 1004 NT_STATUS_OK
            QUERY_FS_INFORMATION 1 NT_STATUS_OK
            LockX 1 2147483538 1 NT_STATUS_OK
            UnlockX 1 2147483538 1 NT_STATUS_OK
            Flush 1 NT_STATUS_OK
            Rename "\a" "\b" NT_STATUS_OK
            Unlink "\b" 0x6 0xc0000034
            Rmdir "\clients" NT_STATUS_OK
            Sleep 10 NT_STATUS_OK
            Close 1 NT_STATUS_OK
        "#;
        let load = parse(text).expect("a load file");
        assert_eq!(load.lines.len(), 19);
        assert_eq!(load.paths.first().map(String::as_str), Some("/clients/client1"));
        let line = load.lines.get(3).expect("the fourth");
        assert_eq!((line.number, line.expected), (6, Expected::Failure));
        let path = load.paths.iter().position(|path| path.ends_with("two words")).expect("known");
        assert_eq!(line.operation, Operation::CreateX { path, options: 0x40, disposition: 1, handle: 9935 });
        assert_eq!(load.lines.get(4).map(|line| line.expected), Some(Expected::Any));
        let write = Operation::Write { handle: 1, offset: 65534, size: 1, done: 1 };
        assert_eq!(
            load.lines.get(6).map(|line| (&line.operation, line.expected)),
            Some((&write, Expected::Success))
        );
    }

    #[test]
    fn a_malformed_line_is_refused_by_its_number() {
        let text = "Flush 1 NT_STATUS_OK\n\nFlush 1\n";
        assert!(matches!(parse(text), Err(LoadError::Line { line: 3, reason: Reason::Status(_) })));
        assert!(matches!(reason("Fsync 1 NT_STATUS_OK"), Reason::Unknown(_)));
        assert!(matches!(reason("Flush NT_STATUS_OK"), Reason::Arguments { takes: 1, given: 0, .. }));
        assert!(matches!(reason("Flush 1 2 NT_STATUS_OK"), Reason::Arguments { takes: 1, given: 2, .. }));
        for bad in ["x", "-2", "1x", "0x", "0x+1", "99999999999999999999", "+1", "１"] {
            assert!(matches!(reason(&format!("Flush {bad} NT_STATUS_OK")), Reason::Number(_)), "{bad}");
        }
        assert!(matches!(reason("WriteX 1 0 1048577 1 NT_STATUS_OK"), Reason::Number(_)));
        assert!(matches!(reason("Mkdir \"\\a NT_STATUS_OK"), Reason::Quotation));
        assert!(matches!(reason("Mkdir \"\\a\\..\\b\" NT_STATUS_OK"), Reason::Path(_)));
        assert!(matches!(reason("Mkdir \"\" NT_STATUS_OK"), Reason::Path(_)));
        assert!(matches!(reason("1.2.3 Flush 1 NT_STATUS_OK"), Reason::Number(_)));
        assert!(matches!(reason("1.0 NT_STATUS_OK"), Reason::Unknown(_)));
        assert!(matches!(reason("SMBopen a b"), Reason::Version1));
        assert!(matches!(reason(&format!("Flush {} NT_STATUS_OK", "1".repeat(2000))), Reason::TooLong));
        let name = "n".repeat(256);
        assert!(matches!(reason(&format!("Mkdir \"\\{name}\" NT_STATUS_OK")), Reason::Path(_)));
        assert!(matches!(LoadFile::parse(&b"Mkdir \"\xff\" NT_STATUS_OK"[..]), Err(LoadError::Line { .. })));
    }

    #[test]
    fn nothing_is_no_load() {
        assert!(matches!(parse(""), Err(LoadError::Empty)));
        assert!(matches!(parse("# only\nwords\n"), Err(LoadError::Empty)));
    }
}
