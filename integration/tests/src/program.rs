//! Random operations that fit what exists, for endless programs on a real volume.
//!
//! Invariants: times that are set lie before 2001, so that they are told from the server's own; a tree stays below `ENTRIES` names and a
//! file below `SPAN` bytes, so that a volume can be judged byte by byte.

use subvol_model::operation::{DIRECTORY_MODE, FILE_MODE};
use subvol_model::{Kind, Model, Op, RenameMode, SpecialKind, Time, XattrMode};

use crate::Random;

/// Names of a tree.
const ENTRIES: usize = 48;
/// Bytes of a file.
const SPAN: u64 = 192 * 1024;
/// Directories in directories.
const DEPTH: usize = 3;
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "a-name-that-is-a-little-longer"];
const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "user.c"];
const HANDLES: [&str; 2] = ["h1", "h2"];

struct Names {
    all: Vec<(String, Kind)>,
}

impl Names {
    fn of(model: &Model) -> Self {
        let tree = model.tree();
        let named = tree.iter().filter(|(path, _)| !path.is_empty());
        Self { all: named.map(|(path, node)| (path.to_owned(), node.kind)).collect() }
    }

    fn existing(&self, random: &mut Random, fits: impl Fn(Kind) -> bool) -> Option<String> {
        let fitting: Vec<&String> =
            self.all.iter().filter(|(_, kind)| fits(*kind)).map(|(path, _)| path).collect();
        random.pick(&fitting).map(|path| (*path).clone())
    }

    /// A name in a directory that exists; it may be taken.
    fn fresh(&self, random: &mut Random) -> String {
        let shallow = |path: &String| path.matches('/').count() + 1 < DEPTH;
        let parents: Vec<&String> = self
            .all
            .iter()
            .filter(|(path, kind)| *kind == Kind::Directory && shallow(path))
            .map(|(path, _)| path)
            .collect();
        let name = NAMES[random.below(NAMES.len() as u64) as usize];
        match random.pick(&parents) {
            Some(parent) if random.chance(3, 4) => format!("{parent}/{name}"),
            _ => name.to_owned(),
        }
    }
}

/// Offset and length, not empty, half of them at block borders.
fn range(random: &mut Random) -> (u64, u64) {
    let (mut offset, mut length) = (random.below(SPAN * 2 / 3), 1 + random.below(SPAN / 3 - 1));
    if random.chance(1, 2) {
        offset = offset / 4096 * 4096;
        length = length.div_ceil(4096) * 4096;
    }
    // Most files are small in life, and small data takes another way into the log.
    if random.chance(1, 2) { (offset % 8192, 1 + length % 8192) } else { (offset, length) }
}

fn time(random: &mut Random) -> Option<Time> {
    random.chance(2, 3).then(|| {
        Time::new(random.below(1_900_000_000) as i64 - 1_000_000_000, random.below(1_000_000_000) as u32)
    })
}

/// The next operation for a volume in this state. One in some hundred is refused.
pub fn next_operation(model: &Model, random: &mut Random) -> Op {
    let names = Names::of(model);
    let full = names.all.len() >= ENTRIES;
    loop {
        if let Some(op) = draw(model, &names, full, random) {
            return op;
        }
    }
}

fn draw(model: &Model, names: &Names, full: bool, random: &mut Random) -> Option<Op> {
    let is_file = |kind| kind == Kind::File;
    let is_directory = |kind| kind == Kind::Directory;
    let seed = random.next() as u32;
    let (offset, length) = range(random);
    let keep_size = random.chance(1, 2);
    let handle = HANDLES[random.below(HANDLES.len() as u64) as usize].to_owned();
    let open = model.handles().any(|name| name == handle);
    let name = ATTRIBUTES[random.below(ATTRIBUTES.len() as u64) as usize].to_owned();
    Some(match random.below(100) {
        0..=30 if full => match names.existing(random, |kind| kind != Kind::Directory) {
            Some(path) => Op::Unlink { path },
            None => Op::Rmdir { path: names.existing(random, is_directory)? },
        },
        0..=9 => Op::Create { path: names.fresh(random), mode: FILE_MODE },
        10..=14 => Op::Mkdir { path: names.fresh(random), mode: DIRECTORY_MODE },
        15 => Op::Symlink { path: names.fresh(random), target: "t".repeat(1 + random.below(300) as usize) },
        16 => {
            let kinds =
                [SpecialKind::Fifo, SpecialKind::Socket, SpecialKind::Character(259), SpecialKind::Block(7)];
            Op::Mknod { path: names.fresh(random), kind: kinds[random.below(4) as usize], mode: 0o600 }
        }
        17..=20 => Op::Link {
            existing: names.existing(random, |kind| kind != Kind::Directory)?,
            path: names.fresh(random),
        },
        21..=25 => Op::Unlink { path: names.existing(random, |kind| kind != Kind::Directory)? },
        26 | 27 => Op::Rmdir { path: names.existing(random, is_directory)? },
        28..=35 => {
            let from = names.existing(random, |_| true)?;
            let to =
                if random.chance(1, 2) { names.fresh(random) } else { names.existing(random, is_file)? };
            let mode = if random.chance(1, 5) { RenameMode::NoReplace } else { RenameMode::Replace };
            Op::Rename { from, to, mode }
        }
        36 | 37 => Op::Rename {
            from: names.existing(random, |_| true)?,
            to: names.existing(random, |_| true)?,
            mode: RenameMode::Exchange,
        },
        38..=52 => Op::Write { path: names.existing(random, is_file)?, offset, length, seed },
        53..=57 => Op::Append { path: names.existing(random, is_file)?, length: 1 + length % 6000, seed },
        58..=60 => Op::Truncate { path: names.existing(random, is_file)?, size: offset },
        61 | 62 => Op::Allocate { path: names.existing(random, is_file)?, offset, length, keep_size },
        63 | 64 => Op::Punch { path: names.existing(random, is_file)?, offset, length },
        65 | 66 => Op::ZeroRange { path: names.existing(random, is_file)?, offset, length, keep_size },
        67..=69 => {
            let value = subvol_model::pattern::bytes(seed, 0, 1 + random.below(700) as usize);
            Op::SetXattr { path: names.existing(random, |_| true)?, name, value, mode: XattrMode::Any }
        }
        70 => Op::RemoveXattr { path: names.existing(random, |_| true)?, name },
        71 | 72 => {
            let path = names.existing(random, |kind| kind != Kind::Symlink)?;
            Op::Chmod { path, mode: seed & 0o7777 }
        }
        73 => Op::Chown { path: names.existing(random, |_| true)?, uid: seed % 5, gid: seed / 5 % 5 },
        74..=76 => {
            let (atime, mtime) = (time(random), time(random));
            Op::SetTimes { path: names.existing(random, |_| true)?, atime, mtime }
        }
        77 => Op::OpenUnnamed { handle, directory: String::new(), mode: 0o600 },
        78 => Op::Open { handle, path: names.existing(random, is_file)? },
        79 | 80 if open => Op::WriteHandle { handle, offset, length, seed },
        81 if open => Op::LinkHandle { handle, path: names.fresh(random) },
        82 if open => Op::FsyncHandle { handle },
        83 if open => Op::CloseHandle { handle },
        84..=90 => Op::Fsync { path: names.existing(random, is_file)? },
        91..=94 => Op::Fsync { path: names.existing(random, is_directory)? },
        95 | 96 => Op::Fdatasync { path: names.existing(random, is_file)? },
        97 => Op::Fsync { path: String::new() },
        98 if random.chance(1, 4) => Op::Sync,
        _ => return None,
    })
}
