//! The notation of crash cases, parsed into operations.
//!
//! Statements are separated by `;` or line ends. Numbers take K, M, G, T. `A` below is any word: the name of a pattern.
//!
//! ```text
//! create p...            mkdir [-p] p...        mkfifo p...   mksock p...   mknod p c|b N
//! symlink p -> target    link old new           unlink p...   rmdir p...
//! rename a b [noreplace] exchange a b           chmod 700 p   chown 1:2 p   utimes p atime mtime   (1.5 or -)
//! write p [0-64K] A      append p [4K] A        trunc p N     falloc p off+len [keep]
//! punch p off+len        zero p off+len [keep]  setx p name=value [create|replace]   rmx p name
//! o=open p   o=create p  o=tmpfile d            linkat o p    write o [0-4K] A   fsync o   close o
//! fsync p    fdatasync p evict p                sync          CRASH
//! ```
//!
//! `write p "text"` writes 64 bytes of that pattern, without quotes and range 4 KiB. `value` may be `*63K`: that many
//! bytes. A `write` to a name that does not exist creates it first; the parser runs the script on a model to know. A
//! word that is an open handle means the handle. After `CRASH` it assumes that all before survived and no handle did.

use crate::filesystem::Model;
use crate::operation::{DIRECTORY_MODE, FILE_MODE, Op, RenameMode, SpecialKind, XattrMode};
use crate::time::Time;
use crate::{BLOCK, pattern};
use thiserror::Error;

/// One step of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operation.
    Do(Op),
    /// The server is killed, everything not flushed is lost, and it starts again.
    Crash,
}

/// A statement that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("statement {number} `{statement}`: {problem}")]
pub struct ScriptError {
    /// Which statement, from 1.
    pub number: usize,
    /// Its text.
    pub statement: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Bytes that a write with a quoted pattern and no range has: a file small enough to be stored inline.
pub const QUOTED_LENGTH: u64 = 64;

/// Parses a whole script.
pub fn parse(script: &str) -> Result<Vec<Step>, ScriptError> {
    let mut parser = Parser { model: Model::default(), steps: Vec::new() };
    for (number, statement) in (1..).zip(script.split([';', '\n'])) {
        let words: Vec<&str> = statement.split_whitespace().collect();
        parser.statement(&words).map_err(|problem| ScriptError {
            number,
            statement: statement.trim().into(),
            problem,
        })?;
    }
    Ok(parser.steps)
}

/// Parses a script that must not contain `CRASH`.
pub fn parse_operations(script: &str) -> Result<Vec<Op>, ScriptError> {
    let crash = |number| ScriptError {
        number,
        statement: "CRASH".into(),
        problem: "only operations are allowed here".into(),
    };
    let steps = parse(script)?;
    (1..)
        .zip(steps)
        .map(|(number, step)| match step {
            Step::Do(op) => Ok(op),
            Step::Crash => Err(crash(number)),
        })
        .collect()
}

struct Parser {
    model: Model,
    steps: Vec<Step>,
}

impl Parser {
    fn push(&mut self, op: Op) {
        // Refused operations are legal in a script: the test compares the refusal.
        let _refused = self.model.apply(&op, Time::default());
        self.steps.push(Step::Do(op));
    }

    fn is_handle(&self, word: &str) -> bool {
        self.model.handles().any(|handle| handle == word)
    }

    fn statement(&mut self, words: &[&str]) -> Result<(), String> {
        let Some((&verb, operands)) = words.split_first() else {
            return Ok(());
        };
        if let Some((handle, how)) = verb.split_once('=') {
            return self.open(handle, how, operands);
        }
        match (verb, operands) {
            ("CRASH", []) => {
                self.model.close_all();
                self.steps.push(Step::Crash);
            }
            ("sync", []) => self.push(Op::Sync),
            ("mkdir", ["-p", path]) => {
                let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
                for prefix in ends.map(|end| &path[..end]).filter(|prefix| !prefix.is_empty()) {
                    if !self.model.exists(prefix) {
                        self.push(Op::mkdir(prefix));
                    }
                }
            }
            ("create" | "mkdir" | "mkfifo" | "mksock" | "unlink" | "rmdir", [_, ..]) => {
                for path in operands.iter().map(|path| (*path).to_owned()) {
                    self.push(match verb {
                        "create" => Op::Create { path, mode: FILE_MODE },
                        "mkdir" => Op::Mkdir { path, mode: DIRECTORY_MODE },
                        "mkfifo" => Op::Mknod { path, kind: SpecialKind::Fifo, mode: FILE_MODE },
                        "mksock" => Op::Mknod { path, kind: SpecialKind::Socket, mode: FILE_MODE },
                        "unlink" => Op::Unlink { path },
                        _ => Op::Rmdir { path },
                    });
                }
            }
            ("write", [name, data @ ..]) => self.write(name, data)?,
            ("fsync" | "fdatasync", [handle]) if self.is_handle(handle) => {
                self.push(Op::FsyncHandle { handle: (*handle).into() });
            }
            ("close", [handle]) => self.push(Op::CloseHandle { handle: (*handle).into() }),
            ("linkat", [handle, path]) => {
                self.push(Op::LinkHandle { handle: (*handle).into(), path: (*path).into() });
            }
            _ => {
                let op = simple(verb, operands)?;
                self.push(op);
            }
        }
        Ok(())
    }

    fn open(&mut self, handle: &str, how: &str, operands: &[&str]) -> Result<(), String> {
        let [path] = operands else {
            return Err("one path is needed".into());
        };
        let (handle, path) = (handle.to_owned(), (*path).to_owned());
        match how {
            "open" => self.push(Op::Open { handle, path }),
            "create" => {
                self.push(Op::create(&path));
                self.push(Op::Open { handle, path });
            }
            "tmpfile" => self.push(Op::OpenUnnamed { handle, directory: path, mode: FILE_MODE }),
            _ => return Err(format!("`{how}` opens nothing; known: open, create, tmpfile")),
        }
        Ok(())
    }

    fn write(&mut self, name: &str, data: &[&str]) -> Result<(), String> {
        let (offset, length, seed) = match data {
            [word] if word.starts_with('"') => (0, QUOTED_LENGTH, seed(word)),
            [word] => (0, BLOCK, seed(word)),
            [range, word] => {
                let (start, end) = range.split_once('-').ok_or("a range looks like 0-64K")?;
                let (start, end) = (number(start)?, number(end)?);
                (start, end.checked_sub(start).ok_or("the range ends before it starts")?, seed(word))
            }
            _ => return Err("write needs a name, a range or none, and a pattern".into()),
        };
        if self.is_handle(name) {
            self.push(Op::WriteHandle { handle: name.into(), offset, length, seed });
            return Ok(());
        }
        if !self.model.exists(name) {
            self.push(Op::create(name));
        }
        self.push(Op::Write { path: name.into(), offset, length, seed });
        Ok(())
    }
}

/// Statements that are one operation and need no state.
fn simple(verb: &str, operands: &[&str]) -> Result<Op, String> {
    let own = |word: &&str| (*word).to_owned();
    Ok(match (verb, operands) {
        ("mknod", [path, kind @ ("c" | "b"), device]) => {
            let device = u32::try_from(number(device)?).map_err(|_| "the device number is too large")?;
            let kind = if *kind == "c" { SpecialKind::Character(device) } else { SpecialKind::Block(device) };
            Op::Mknod { path: own(path), kind, mode: FILE_MODE }
        }
        ("symlink", [path, "->", target] | [path, target]) => {
            Op::Symlink { path: own(path), target: own(target) }
        }
        ("link", [existing, path]) => Op::Link { existing: own(existing), path: own(path) },
        ("rename", [from, to]) => Op::rename(from, to),
        ("rename", [from, to, "noreplace"]) => {
            Op::Rename { from: own(from), to: own(to), mode: RenameMode::NoReplace }
        }
        ("exchange", [from, to]) => Op::Rename { from: own(from), to: own(to), mode: RenameMode::Exchange },
        ("append", [path, word]) => Op::Append { path: own(path), length: BLOCK, seed: seed(word) },
        ("append", [path, length, word]) => {
            Op::Append { path: own(path), length: number(length)?, seed: seed(word) }
        }
        ("trunc", [path, size]) => Op::Truncate { path: own(path), size: number(size)? },
        ("falloc" | "zero", [path, range, rest @ ..]) => {
            let (offset, length) = extent(range)?;
            let keep_size = match rest {
                [] => false,
                ["keep"] => true,
                _ => return Err("only `keep` may follow the range".into()),
            };
            let path = own(path);
            match verb {
                "zero" => Op::ZeroRange { path, offset, length, keep_size },
                _ => Op::Allocate { path, offset, length, keep_size },
            }
        }
        ("punch", [path, range]) => {
            let (offset, length) = extent(range)?;
            Op::Punch { path: own(path), offset, length }
        }
        ("setx", [path, attribute, rest @ ..]) => {
            let (name, value) = attribute.split_once('=').ok_or("an attribute looks like user.a=b")?;
            let value = match value.strip_prefix('*') {
                Some(length) => {
                    let length = usize::try_from(number(length)?).map_err(|_| "the value is too long")?;
                    pattern::bytes(pattern::seed(name), 0, length)
                }
                None => value.as_bytes().to_vec(),
            };
            let mode = match rest {
                [] => XattrMode::Any,
                ["create"] => XattrMode::Create,
                ["replace"] => XattrMode::Replace,
                _ => return Err("only `create` or `replace` may follow the attribute".into()),
            };
            Op::SetXattr { path: own(path), name: name.into(), value, mode }
        }
        ("rmx", [path, name]) => Op::RemoveXattr { path: own(path), name: own(name) },
        ("chmod", [mode, path]) => {
            let mode = u32::from_str_radix(mode, 8).map_err(|_| "a mode is an octal number")?;
            Op::Chmod { path: own(path), mode }
        }
        ("chown", [owner, path]) => {
            let (uid, gid) = owner.split_once(':').ok_or("an owner looks like 1:2")?;
            let id = |word: &str| word.parse::<u32>().map_err(|_| format!("`{word}` is no user or group"));
            Op::Chown { path: own(path), uid: id(uid)?, gid: id(gid)? }
        }
        ("utimes", [path, atime, mtime]) => {
            Op::SetTimes { path: own(path), atime: time(atime)?, mtime: time(mtime)? }
        }
        ("fsync", [path]) => Op::Fsync { path: own(path) },
        ("fdatasync", [path]) => Op::Fdatasync { path: own(path) },
        ("evict", [path]) => Op::Evict { path: own(path) },
        _ => return Err(format!("no statement `{verb}` with {} operands", operands.len())),
    })
}

fn seed(word: &str) -> u32 {
    pattern::seed(word.trim_matches('"'))
}

fn extent(word: &str) -> Result<(u64, u64), String> {
    let (offset, length) = word.split_once('+').ok_or("a range looks like 4K+8K")?;
    Ok((number(offset)?, number(length)?))
}

fn number(word: &str) -> Result<u64, String> {
    let (digits, factor) = match word.as_bytes().last() {
        Some(b'K') => (&word[..word.len() - 1], 1 << 10),
        Some(b'M') => (&word[..word.len() - 1], 1 << 20),
        Some(b'G') => (&word[..word.len() - 1], 1 << 30),
        Some(b'T') => (&word[..word.len() - 1], 1 << 40),
        _ => (word, 1),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{word}` is no number"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{word}` is too large"))
}

/// `-` for no time, else seconds with an optional fraction of nine digits. The fraction counts forwards also before
/// the epoch, as it does in a file: `-5.25` is a quarter second after -5.
fn time(word: &str) -> Result<Option<Time>, String> {
    if word == "-" {
        return Ok(None);
    }
    let bad = |_| format!("`{word}` is no time");
    let (seconds, fraction) = word.split_once('.').unwrap_or((word, ""));
    if fraction.len() > 9 {
        return Err(format!("`{word}` is finer than nanoseconds"));
    }
    let nanoseconds = format!("{fraction:0<9}").parse().map_err(bad)?;
    Ok(Some(Time { seconds: seconds.parse().map_err(bad)?, nanoseconds }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_of_the_cases() {
        let script =
            "mkdir a; write a/foo 0-16K A; sync; rename a/foo a/bar; write a/foo \"x\"; CRASH; fsync /";
        let expected = [
            Step::Do(Op::mkdir("a")),
            Step::Do(Op::create("a/foo")),
            Step::Do(Op::write("a/foo", 0, 16384, "A")),
            Step::Do(Op::Sync),
            Step::Do(Op::rename("a/foo", "a/bar")),
            Step::Do(Op::create("a/foo")),
            Step::Do(Op::write("a/foo", 0, QUOTED_LENGTH, "x")),
            Step::Crash,
            Step::Do(Op::fsync("/")),
        ];
        assert_eq!(parse(script).expect("parse"), expected);
        let ops =
            parse_operations("mkdir -p a/b; o=tmpfile a; write o 4K-8K A; fsync o; linkat o a/f; close o");
        let ops = ops.expect("parse");
        assert_eq!(ops.len(), 7);
        assert_eq!(
            ops[3],
            Op::WriteHandle { handle: "o".into(), offset: 4096, length: 4096, seed: seed("A") }
        );
        assert_eq!(ops[4], Op::FsyncHandle { handle: "o".into() });
        let ops =
            parse_operations("setx f user.a=*2K replace; mknod d c 259; utimes f - -1.25").expect("parse");
        assert!(
            matches!(&ops[0], Op::SetXattr { value, mode: XattrMode::Replace, .. } if value.len() == 2048)
        );
        assert!(matches!(&ops[1], Op::Mknod { kind: SpecialKind::Character(259), .. }));
        let time = Some(Time::new(-1, 250_000_000));
        assert_eq!(ops[2], Op::SetTimes { path: "f".into(), atime: None, mtime: time });
    }

    #[test]
    fn errors_name_the_statement() {
        for (script, part) in [
            ("create a; frob b", "statement 2 `frob b`: no statement `frob` with 1 operands"),
            ("write f 8K-4K A", "ends before it starts"),
            ("trunc f 4X", "`4X` is no number"),
            ("trunc f 99999999999T", "too large"),
            ("falloc f 4K", "looks like 4K+8K"),
            ("falloc f 4K+4K kept", "only `keep`"),
            ("setx f user.a", "looks like user.a=b"),
            ("o=shut f", "opens nothing"),
            ("chmod rwx f", "octal"),
            ("utimes f 1.0000000001 -", "finer"),
            ("create", "no statement `create` with 0 operands"),
        ] {
            let error = parse(script).expect_err(script).to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(parse_operations("sync; CRASH").is_err());
    }
}
