//! Random programs for property tests.
//!
//! A program is drawn as plain numbers and only then turned into operations, each number wrapping around what exists at
//! that point. So whatever proptest removes or shrinks, the rest is still a sensible program. One operation in ten
//! takes an arbitrary name instead of a fitting one, so that refusals are tested too.

use crate::filesystem::Model;
use crate::operation::{Op, RenameMode, SpecialKind, XattrMode};
use crate::snapshot::{Kind, Tree};
use crate::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::RangeInclusive;

/// Names are few, so that they meet.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "a-name-that-is-a-little-longer"];
const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "user.c"];
const HANDLES: [&str; 3] = ["h1", "h2", "h3"];
const SPECIAL: [SpecialKind; 4] =
    [SpecialKind::Fifo, SpecialKind::Socket, SpecialKind::Character(259), SpecialKind::Block(7)];
/// Files stay below this size in bytes: large enough for several extents, small enough to compare byte by byte.
const FILE_SPAN: u64 = 96 * 1024;
/// Deeper directories are not made: paths would only grow.
const DEPTH: usize = 4;

/// One operation before it is known what exists.
#[derive(Clone, Copy, Debug)]
struct Draft {
    kind: u8,
    first: u16,
    second: u16,
    offset: u32,
    length: u32,
}

/// Programs with a number of operations in `length`.
pub fn program(length: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Op>> {
    let draft = (any::<u8>(), any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>())
        .prop_map(|(kind, first, second, offset, length)| Draft { kind, first, second, offset, length });
    vec(draft, length).prop_map(|drafts| resolve(&drafts))
}

fn resolve(drafts: &[Draft]) -> Vec<Op> {
    let mut model = Model::default();
    drafts
        .iter()
        .map(|draft| {
            let op = draft.resolve(&model);
            // Refusals belong to the program.
            let _refused = model.apply(&op, Time::default());
            op
        })
        .collect()
}

impl Draft {
    fn resolve(self, model: &Model) -> Op {
        let tree = model.tree();
        let pick = Picker { tree: &tree, arbitrary: self.second % 10 == 9 };
        let file = || pick.existing(self.first, |kind| kind == Kind::File);
        let anything = || pick.existing(self.first, |_| true);
        let mode = |usual: u32| if self.length.is_multiple_of(5) { self.offset & 0o777 } else { usual };
        let (offset, length) = span(self.offset, self.length);
        let seed = self.offset ^ self.length.rotate_left(16);
        let keep_size = self.second.is_multiple_of(2);
        let handle = || HANDLES[usize::from(self.second) % HANDLES.len()].to_owned();
        let attribute = || ATTRIBUTES[usize::from(self.second) % ATTRIBUTES.len()].to_owned();
        match self.kind % 40 {
            0..=3 => Op::Create { path: pick.new_name(self.first), mode: mode(0o644) },
            4 | 5 => Op::Mkdir { path: pick.new_name(self.first), mode: mode(0o755) },
            6 => {
                let kind = SPECIAL[usize::from(self.second) % SPECIAL.len()];
                Op::Mknod { path: pick.new_name(self.first), kind, mode: mode(0o600) }
            }
            7 => Op::Symlink {
                path: pick.new_name(self.first),
                target: "t".repeat(1 + self.offset as usize % 300),
            },
            8 | 9 => Op::Link {
                existing: pick.existing(self.first, |kind| kind != Kind::Directory),
                path: pick.new_name(self.second),
            },
            10 | 11 => Op::Unlink { path: pick.existing(self.first, |kind| kind != Kind::Directory) },
            12 => Op::Rmdir { path: pick.existing(self.first, |kind| kind == Kind::Directory) },
            13..=16 => {
                let new = !self.offset.is_multiple_of(3);
                let to = if new { pick.new_name(self.second) } else { pick.existing(self.second, |_| true) };
                let mode =
                    if self.length.is_multiple_of(4) { RenameMode::NoReplace } else { RenameMode::Replace };
                Op::Rename { from: anything(), to, mode }
            }
            17 => {
                let to = pick.existing(self.second, |_| true);
                Op::Rename { from: anything(), to, mode: RenameMode::Exchange }
            }
            18..=20 => Op::Write { path: file(), offset, length, seed },
            21 => Op::Append { path: file(), length: length % 8192, seed },
            22 => Op::Truncate { path: file(), size: offset },
            23 => Op::Allocate { path: file(), offset, length, keep_size },
            24 => Op::Punch { path: file(), offset, length },
            25 => Op::ZeroRange { path: file(), offset, length, keep_size },
            26 | 27 => {
                let modes = [XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                let value = crate::pattern::bytes(seed, 0, (self.length % 700) as usize);
                let mode = modes[self.offset as usize % modes.len()];
                Op::SetXattr { path: anything(), name: attribute(), value, mode }
            }
            28 => Op::RemoveXattr { path: anything(), name: attribute() },
            29 => Op::Chmod { path: anything(), mode: self.offset & 0o7777 },
            30 => Op::Chown { path: anything(), uid: self.offset % 5, gid: self.length % 5 },
            31 => {
                let time =
                    |seconds: u32| Time::new(i64::from(seconds.cast_signed()), seconds % 1_000_000_000);
                let (atime, mtime) = (time(self.offset), time(self.length));
                let given = |bit: u16, time: Time| (self.second & bit > 0).then_some(time);
                Op::SetTimes { path: anything(), atime: given(16, atime), mtime: given(32, mtime) }
            }
            32 => Op::Open { handle: handle(), path: file() },
            33 => {
                let directory = pick.existing(self.first, |kind| kind == Kind::Directory);
                Op::OpenUnnamed { handle: handle(), directory, mode: mode(0o600) }
            }
            34 => Op::LinkHandle { handle: handle(), path: pick.new_name(self.first) },
            35 => Op::WriteHandle { handle: handle(), offset, length, seed },
            36 if self.second.is_multiple_of(3) => Op::CloseHandle { handle: handle() },
            36 => Op::FsyncHandle { handle: handle() },
            37 => Op::Fsync { path: anything() },
            38 if keep_size => Op::Fdatasync { path: file() },
            38 => Op::Evict { path: anything() },
            _ if self.second.is_multiple_of(4) => Op::Sync,
            _ => Op::Fsync { path: file() },
        }
    }
}

/// Offset and length of a range: half of them at block borders, some empty, all below [`FILE_SPAN`].
fn span(offset: u32, length: u32) -> (u64, u64) {
    let fit = |value: u32, limit: u64| {
        let value = u64::from(value);
        if value.is_multiple_of(2) {
            (value >> 1) % limit
        } else {
            (value >> 1) % limit / crate::BLOCK * crate::BLOCK
        }
    };
    (fit(offset, FILE_SPAN * 2 / 3), fit(length, FILE_SPAN / 3))
}

struct Picker<'a> {
    tree: &'a Tree,
    arbitrary: bool,
}

impl Picker<'_> {
    /// A path that exists and fits, or any name if there is none.
    fn existing(&self, index: u16, fits: impl Fn(Kind) -> bool) -> String {
        let paths: Vec<&str> = self
            .tree
            .iter()
            .filter(|(path, node)| !path.is_empty() && (self.arbitrary || fits(node.kind)))
            .map(|(path, _)| path)
            .collect();
        match paths.len() {
            0 => self.new_name(index),
            count => paths[usize::from(index) % count].to_owned(),
        }
    }

    /// A name in a directory that exists; it may be taken.
    fn new_name(&self, index: u16) -> String {
        let shallow = |path: &str| path.is_empty() || path.matches('/').count() + 1 < DEPTH;
        let parents: Vec<&str> = self
            .tree
            .iter()
            .filter(|(path, node)| {
                path.is_empty() || self.arbitrary || (node.kind == Kind::Directory && shallow(path))
            })
            .map(|(path, _)| path)
            .collect();
        let index = usize::from(index);
        let name = NAMES[index % NAMES.len()];
        match parents[index / NAMES.len() % parents.len()] {
            "" => name.to_owned(),
            parent => format!("{parent}/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compare, DurabilityOracle};
    use proptest::strategy::ValueTree;

    fn run(program: &[Op]) -> (DurabilityOracle, usize) {
        let mut oracle = DurabilityOracle::new(Model::default());
        let mut refused = 0;
        for (now, op) in (1_u64..).zip(program) {
            refused += usize::from(oracle.acknowledge(op, now.into()).is_err());
        }
        (oracle, refused)
    }

    #[test]
    fn most_operations_succeed_and_some_do_not() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let (mut total, mut refused) = (0, 0);
        for _ in 0..40 {
            let program = program(60..=60).new_tree(&mut runner).expect("a program").current();
            total += program.len();
            refused += run(&program).1;
        }
        assert!(refused * 20 > total && refused * 2 < total, "{refused} of {total} refused");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// The oracle accepts every state from its shortest prefix on, and the model keeps its own invariants.
        #[test]
        fn the_oracle_accepts_what_happened(program in program(1..=60)) {
            let (oracle, _) = run(&program);
            let image = oracle.model().tree();
            let verdict = oracle.check(&image);
            prop_assert!(verdict.is_ok(), "{verdict:?}");
            let prefix = verdict.expect("checked");
            let recovered = oracle.recovered(&image, prefix);
            let compare = Compare { blocks: true, ..Compare::ALL };
            prop_assert_eq!(image.diff_with(&recovered.tree(), compare), Vec::<String>::new());
            prop_assert_eq!(recovered.orphans(), 0);
            prop_assert_eq!(recovered.entries() + 1, image.len());
            let mut seen = std::collections::BTreeMap::new();
            for (_, node) in image.iter() {
                seen.insert(node.identity, node.blocks.unwrap_or(0));
            }
            let bytes: u64 = seen.values().map(|blocks| blocks * crate::BLOCK).sum();
            prop_assert_eq!(recovered.usage().bytes, bytes);
            prop_assert_eq!(recovered.usage().inodes, seen.len() as u64 - 1);
        }
    }
}
