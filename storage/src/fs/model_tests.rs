//! Random programs against the model file system: equal answers, equal trees, and a sound tree after every step, with
//! nodes that go missing from memory now and then.

use crate::error::{EngineError, FsError};
use crate::format::item::file_type;
use crate::fs::test_support::{Bench, EPOCH};
use crate::fs::{directory, lookup, xattr};
use crate::limits::ROOT_INODE;
use crate::operation::{AttributeChange, Operation, RenameMode, XattrMode};
use crate::types::{InodeNumber, Timestamp};
use bytes::Bytes;
use std::collections::BTreeMap;
use subvol_model as model;
use subvol_model::{Kind, Model, ModelError, Node, Op, SpecialKind, Time, Tree};

/// A small generator of numbers; the same seed gives the same program.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Few names and depths, so that programs collide.
    fn path(&mut self) -> String {
        let depth = *self.of(&[1, 1, 1, 2, 2, 3]);
        (0..depth).map(|_| *self.of(&["a", "b", "c", "d"])).collect::<Vec<_>>().join("/")
    }

    fn op(&mut self) -> Op {
        let (path, other) = (self.path(), self.path());
        let mode = *self.of(&[0o644, 0o755, 0o1700]);
        let handle = (*self.of(&["h1", "h2", "h3"])).to_owned();
        let name = (*self.of(&["user.a", "user.b"])).to_owned();
        match self.below(42) {
            0..5 => Op::Create { path, mode },
            5..11 => Op::Mkdir { path, mode },
            11 => {
                let kind = *self.of(&[SpecialKind::Fifo, SpecialKind::Socket, SpecialKind::Block(9)]);
                Op::Mknod { path, kind, mode }
            }
            12 => Op::Symlink { path, target: other },
            13..16 => Op::Link { existing: other, path },
            16..19 => Op::Unlink { path },
            19..21 => Op::Rmdir { path },
            21..29 => {
                let mode = *self.of(&[
                    model::RenameMode::Replace,
                    model::RenameMode::Replace,
                    model::RenameMode::NoReplace,
                    model::RenameMode::Exchange,
                ]);
                Op::Rename { from: path, to: other, mode }
            }
            29 => {
                let modes = [model::XattrMode::Any, model::XattrMode::Create, model::XattrMode::Replace];
                let value = vec![self.below(256) as u8; *self.of(&[0, 5, 1025, 9000])];
                Op::SetXattr { path, name, value, mode: *self.of(&modes) }
            }
            30 => Op::RemoveXattr { path, name },
            31 => Op::Chmod { path, mode },
            32 => Op::Chown { path, uid: self.below(9) as u32, gid: 3 },
            33 => Op::SetTimes { path, atime: Some(Time::new(-7, 5)), mtime: None },
            34..36 => Op::Open { handle, path },
            36..39 => Op::OpenUnnamed { handle, directory: path, mode },
            39..41 => Op::LinkHandle { handle, path },
            _ => Op::CloseHandle { handle },
        }
    }
}

/// The system under test, driven by the model's vocabulary.
struct Pair {
    model: Model,
    bench: Bench,
    handles: BTreeMap<String, InodeNumber>,
}

impl Pair {
    fn new() -> Self {
        Self {
            model: Model::new(model::Limits::default(), time(EPOCH)),
            bench: Bench::new(),
            handles: BTreeMap::new(),
        }
    }

    /// Does the operation on both sides and compares everything; did it succeed?
    fn step(&mut self, op: &Op) -> bool {
        let now = time(self.bench.now);
        let expected = self.model.apply(op, now);
        let answer = self.engine(op);
        assert_eq!(answer, expected, "{op:?}");
        self.bench.verify();
        assert_eq!(self.bench.inodes as u64, self.model.usage().inodes, "inodes after {op:?}");
        let difference = self.model.tree().diff(&self.tree());
        assert!(difference.is_empty(), "after {op:?}: {difference:#?}");
        expected.is_ok()
    }

    /// Does the operation; the refusal in the model's words.
    fn engine(&mut self, op: &Op) -> Result<(), ModelError> {
        let operation = match op {
            Op::Open { handle, path } => {
                let inode = self.resolve(path)?;
                self.open(handle, inode);
                return Ok(());
            }
            Op::CloseHandle { handle } => {
                let inode = self.handles.remove(handle).ok_or(ModelError::BadHandle)?;
                self.bench.close(inode);
                return Ok(());
            }
            Op::OpenUnnamed { handle, directory, mode } => {
                let parent = self.resolve(directory)?;
                let mode = file_type::REGULAR | mode;
                let inode = self.run(&Operation::CreateUnnamed { parent, mode, umask: 0, uid: 0, gid: 0 })?;
                self.open(handle, inode);
                return Ok(());
            }
            _ => self.translate(op)?,
        };
        self.run(&operation).map(|_| ())
    }

    fn translate(&self, op: &Op) -> Result<Operation, ModelError> {
        let change = |path: &str, change| Ok(Operation::SetAttributes { inode: self.resolve(path)?, change });
        let none = AttributeChange::default();
        match op {
            Op::Create { path, mode } => self.make(path, file_type::REGULAR | mode, 0, ""),
            Op::Mkdir { path, mode } => self.make(path, file_type::DIRECTORY | mode, 0, ""),
            Op::Symlink { path, target } => self.make(path, file_type::SYMLINK | 0o777, 0, target),
            Op::Mknod { path, kind, mode } => {
                let (kind, rdev) = match kind {
                    SpecialKind::Fifo => (file_type::FIFO, 0),
                    SpecialKind::Socket => (file_type::SOCKET, 0),
                    SpecialKind::Character(rdev) => (file_type::CHARACTER_DEVICE, *rdev),
                    SpecialKind::Block(rdev) => (file_type::BLOCK_DEVICE, *rdev),
                };
                self.make(path, kind | mode, rdev, "")
            }
            Op::Link { existing, path } => {
                Ok(Operation::Link { inode: self.resolve(existing)?, place: self.place(path)? })
            }
            Op::LinkHandle { handle, path } => {
                let inode = *self.handles.get(handle).ok_or(ModelError::BadHandle)?;
                Ok(Operation::Link { inode, place: self.place(path)? })
            }
            Op::Unlink { path } => Ok(Operation::Unlink { place: self.place(path)? }),
            Op::Rmdir { path } => Ok(Operation::RemoveDirectory { place: self.place(path)? }),
            Op::Rename { from, to, mode } => {
                let mode = match mode {
                    model::RenameMode::Replace => RenameMode::Replace,
                    model::RenameMode::NoReplace => RenameMode::NoReplace,
                    model::RenameMode::Exchange => RenameMode::Exchange,
                };
                Ok(Operation::Rename { from: self.place(from)?, to: self.place(to)?, mode })
            }
            Op::SetXattr { path, name, value, mode } => Ok(Operation::SetXattr {
                inode: self.resolve(path)?,
                name: Bytes::copy_from_slice(name.as_bytes()),
                value: Bytes::copy_from_slice(value),
                mode: match mode {
                    model::XattrMode::Any => XattrMode::Any,
                    model::XattrMode::Create => XattrMode::Create,
                    model::XattrMode::Replace => XattrMode::Replace,
                },
            }),
            Op::RemoveXattr { path, name } => Ok(Operation::RemoveXattr {
                inode: self.resolve(path)?,
                name: Bytes::copy_from_slice(name.as_bytes()),
            }),
            Op::Chmod { path, mode } => change(path, AttributeChange { mode: Some(*mode), ..none }),
            Op::Chown { path, uid, gid } => {
                change(path, AttributeChange { uid: Some(*uid), gid: Some(*gid), ..none })
            }
            Op::SetTimes { path, atime, mtime } => change(
                path,
                AttributeChange { atime: atime.map(timestamp), mtime: mtime.map(timestamp), ..none },
            ),
            _ => panic!("{op:?} is not generated here"),
        }
    }

    fn make(&self, path: &str, mode: u32, rdev: u32, target: &str) -> Result<Operation, ModelError> {
        let target = Bytes::copy_from_slice(target.as_bytes());
        Ok(Operation::Create {
            place: self.place(path)?,
            mode,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: rdev.into(),
            target,
        })
    }

    fn run(&mut self, operation: &Operation) -> Result<InodeNumber, ModelError> {
        self.bench.run(operation).map_err(words)
    }

    fn open(&mut self, handle: &str, inode: InodeNumber) {
        *self.bench.opens.entry(inode).or_default() += 1;
        if let Some(old) = self.handles.insert(handle.to_owned(), inode) {
            self.bench.close(old);
        }
    }

    fn resolve(&self, path: &str) -> Result<InodeNumber, ModelError> {
        path.split('/').try_fold(ROOT_INODE, |parent, name| {
            let found = self.bench.view(false, |view| lookup::lookup(view, parent, name.as_bytes()));
            found.map(|(inode, _)| inode).map_err(words)
        })
    }

    fn place(&self, path: &str) -> Result<crate::operation::Place, ModelError> {
        let (parent, name) = match path.rsplit_once('/') {
            Some((parent, name)) => (self.resolve(parent)?, name),
            None => (ROOT_INODE, path),
        };
        // A path is resolved, its directory included, before the next one is looked at.
        self.bench.view(false, |view| view.directory(parent)).map_err(words)?;
        Ok(crate::operation::Place { parent, name: Bytes::copy_from_slice(name.as_bytes()) })
    }

    /// An image of the whole namespace, by readdir.
    fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        tree.insert("", self.node(ROOT_INODE));
        let mut open = vec![(String::new(), ROOT_INODE)];
        while let Some((path, inode)) = open.pop() {
            for entry in self.read_directory(inode) {
                let name = String::from_utf8(entry.name.to_vec()).expect("names of tests are text");
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                assert!(tree.insert(&path, self.node(entry.inode)).is_none(), "{path} twice");
                if entry.mode_type == file_type::DIRECTORY {
                    open.push((path, entry.inode));
                }
            }
        }
        tree
    }

    fn read_directory(&self, inode: InodeNumber) -> Vec<directory::DirectoryEntry> {
        let mut entries: Vec<directory::DirectoryEntry> = Vec::new();
        loop {
            let after = entries.last().map_or(0, |entry| entry.cookie);
            let batch = self.bench.view(false, |view| directory::read_directory(view, inode, after, 3, true));
            let batch = batch.expect("a directory");
            assert!(batch.end || !batch.entries.is_empty(), "no progress");
            entries.extend(batch.entries);
            if batch.end {
                return entries;
            }
        }
    }

    fn node(&self, inode: InodeNumber) -> Node {
        let item = self.bench.attributes(inode).expect("an entry's inode exists");
        let kind = match item.mode & file_type::MASK {
            file_type::REGULAR => Kind::File,
            file_type::DIRECTORY => Kind::Directory,
            file_type::SYMLINK => Kind::Symlink,
            file_type::FIFO => Kind::Special(SpecialKind::Fifo),
            file_type::SOCKET => Kind::Special(SpecialKind::Socket),
            file_type::CHARACTER_DEVICE => Kind::Special(SpecialKind::Character(item.rdev as u32)),
            file_type::BLOCK_DEVICE => Kind::Special(SpecialKind::Block(item.rdev as u32)),
            other => panic!("kind {other:o}"),
        };
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("names of tests are text");
        let names = self.bench.view(false, |view| xattr::list_xattrs(view, inode)).expect("in memory");
        let xattrs = names.iter().map(|name| {
            let value = self.bench.view(false, |view| xattr::get_xattr(view, inode, name));
            (text(name), value.expect("it was listed").to_vec())
        });
        Node {
            identity: inode,
            kind,
            mode: item.mode & 0o7777,
            uid: item.uid,
            gid: item.gid,
            nlink: item.nlink,
            size: item.size,
            blocks: None,
            atime: time(item.atime),
            mtime: time(item.mtime),
            ctime: time(item.ctime),
            xattrs: xattrs.collect(),
            target: (kind == Kind::Symlink).then(|| {
                let target = self.bench.view(false, |view| lookup::read_link(view, inode));
                text(&target.expect("a symbolic link"))
            }),
            content: (kind == Kind::File).then(model::Content::default),
        }
    }
}

fn time(time: Timestamp) -> Time {
    Time::new(time.seconds, time.nanoseconds)
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp::new(time.seconds, time.nanoseconds)
}

fn words(error: EngineError) -> ModelError {
    let EngineError::Refused(error) = error else { panic!("{error}") };
    match error {
        FsError::NotFound => ModelError::NotFound,
        FsError::Exists => ModelError::Exists,
        FsError::NotDirectory => ModelError::NotDirectory,
        FsError::IsDirectory => ModelError::IsDirectory,
        FsError::NotEmpty => ModelError::NotEmpty,
        FsError::InvalidArgument => ModelError::InvalidArgument,
        FsError::NameTooLong => ModelError::NameTooLong,
        FsError::TooManyLinks => ModelError::TooManyLinks,
        FsError::NotPermitted => ModelError::NotPermitted,
        FsError::NoXattr => ModelError::NoData,
        FsError::NotSupported => ModelError::NotSupported,
        other => panic!("{other} is not expected here"),
    }
}

#[test]
fn random_programs_agree_with_the_model() {
    let (mut renamed, mut exchanged, mut removed, mut named) = (0, 0, 0, 0);
    for seed in 1..=400 {
        let mut dice = Dice(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
        let mut pair = Pair::new();
        let mut done: Vec<Op> = ["a", "b", "a/a", "a/b", "a/a/c"].map(Op::mkdir).to_vec();
        done.iter().for_each(|op| assert!(pair.step(op)));
        for _ in 0..120 {
            if dice.below(16) == 0 {
                pair.bench.cool_down();
            }
            let op = dice.op();
            done.push(op.clone());
            let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pair.step(&op)));
            let succeeded = step.unwrap_or_else(|reason| {
                let lines = done.iter().map(|op| format!("{op:?}").chars().take(120).collect::<String>());
                eprintln!("seed {seed}, program:\n{}", lines.collect::<Vec<_>>().join("\n"));
                std::panic::resume_unwind(reason)
            });
            match op {
                Op::Rename { mode: model::RenameMode::Exchange, .. } => exchanged += u32::from(succeeded),
                Op::Rename { .. } => renamed += u32::from(succeeded),
                Op::Unlink { .. } | Op::Rmdir { .. } => removed += u32::from(succeeded),
                Op::LinkHandle { .. } => named += u32::from(succeeded),
                _ => {}
            }
        }
    }
    // Programs of refusals alone would agree for nothing.
    let done = [renamed, exchanged, removed, named];
    assert!(done.iter().all(|&count| count >= 60), "{done:?}");
}
