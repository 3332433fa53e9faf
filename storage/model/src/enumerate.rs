//! Bounded exhaustive programs, in the manner of ACE: every sequence of up to three operations on a few names, with
//! every choice of what is made durable after each of them.
//!
//! A program is a setup (directories A and B and whatever the operations need, committed), then the sequence. After each
//! operation but the last comes nothing, an fsync of one of the names it concerns (or their directories), or a sync;
//! after the last one of these but nothing. Only sequences are given whose operations all succeed on the model.
//!
//! The order is fixed, so a program is known by its number; everything is made lazily, length three is far too much to
//! run at once ([`Programs::step_by`](Iterator::step_by) samples it).

use crate::error::ModelError;
use crate::filesystem::Model;
use crate::operation::{Op, RenameMode, XattrMode, parent};
use crate::pattern::seed;
use crate::time::Time;

const NAMES: [&str; 6] = ["foo", "bar", "A/foo", "A/bar", "B/foo", "B/bar"];
const DIRECTORIES: [&str; 2] = ["A", "B"];
const ATTRIBUTE: &str = "user.a";

/// One program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Done and committed before; ends in a sync.
    pub setup: Vec<Op>,
    /// The operations under test with what makes them durable.
    pub body: Vec<Op>,
}

/// All programs with exactly `length` operations.
pub fn programs(length: usize) -> Programs {
    assert!(length > 0, "a program has an operation");
    Programs { vocabulary: vocabulary(), digits: vec![0; length], done: false, current: None }
}

/// Number of programs with exactly `length` operations; takes as long as making them all.
pub fn count(length: usize) -> usize {
    programs(length).count()
}

/// Every single operation of the enumeration.
pub fn vocabulary() -> Vec<Op> {
    let mut ops = Vec::new();
    for path in NAMES.map(String::from) {
        let name = || path.clone();
        ops.extend([
            Op::create(&path),
            Op::mkdir(&path),
            Op::Symlink { path: name(), target: "target".into() },
            Op::Unlink { path: name() },
            Op::Rmdir { path: name() },
            Op::write(&path, 2048, 4096, "written"),
            Op::Append { path: name(), length: 3000, seed: seed("appended") },
            Op::Truncate { path: name(), size: 5000 },
            Op::Allocate { path: name(), offset: 8192, length: 8192, keep_size: true },
            Op::Punch { path: name(), offset: 1000, length: 6000 },
            Op::SetXattr { path: name(), name: ATTRIBUTE.into(), value: b"new".into(), mode: XattrMode::Any },
            Op::RemoveXattr { path: name(), name: ATTRIBUTE.into() },
        ]);
        for other in NAMES.into_iter().filter(|other| *other != path) {
            ops.push(Op::Link { existing: name(), path: other.into() });
            ops.push(Op::rename(&path, other));
            if path.as_str() < other {
                ops.push(Op::Rename { from: name(), to: other.into(), mode: RenameMode::Exchange });
            }
        }
    }
    ops.push(Op::rename("A", "B"));
    ops.push(Op::rename("A", "B/foo"));
    ops.push(Op::Rename { from: "A".into(), to: "B".into(), mode: RenameMode::Exchange });
    ops.push(Op::Rename { from: "A/foo".into(), to: "B".into(), mode: RenameMode::Exchange });
    ops
}

/// The iterator over programs.
#[derive(Clone, Debug)]
pub struct Programs {
    vocabulary: Vec<Op>,
    /// The next sequence, as numbers into the vocabulary, the last one turning fastest.
    digits: Vec<usize>,
    done: bool,
    current: Option<Sequence>,
}

/// One sequence, with the choices of what to make durable.
#[derive(Clone, Debug)]
struct Sequence {
    setup: Vec<Op>,
    ops: Vec<Op>,
    choices: Vec<Vec<Option<Op>>>,
    digits: Vec<usize>,
    done: bool,
}

impl Iterator for Programs {
    type Item = Program;

    fn next(&mut self) -> Option<Program> {
        loop {
            if let Some(program) = self.current.as_mut().and_then(Sequence::next) {
                return Some(program);
            }
            if self.done {
                return None;
            }
            let ops: Vec<Op> = self.digits.iter().map(|digit| self.vocabulary[*digit].clone()).collect();
            self.done = !advance(&mut self.digits, |_| self.vocabulary.len());
            self.current = Sequence::new(ops);
        }
    }
}

impl Sequence {
    /// Finds the setup and the choices; `None` if no setup lets every operation succeed.
    fn new(ops: Vec<Op>) -> Option<Self> {
        let mut setup: Vec<Op> = DIRECTORIES.map(Op::mkdir).into();
        // Each round adds one thing the first refused operation lacks, and none lacks more than two: an exchange both
        // its names, the removal of an attribute the file and the attribute.
        for _ in 0..=2 * ops.len() {
            let mut model = run(&setup)?;
            let mut choices = Vec::new();
            let mut refused = None;
            for (at, op) in ops.iter().enumerate() {
                if let Err(error) = model.apply(op, Time::default()) {
                    refused = Some((op, error));
                    break;
                }
                choices.push(durable_choices(&ops[..=at], &model, at + 1 == ops.len()));
            }
            let Some((op, error)) = refused else {
                setup.push(Op::Sync);
                return Some(Self { setup, digits: vec![0; ops.len()], ops, choices, done: false });
            };
            setup.extend(needed(op, error, &run(&setup)?)?);
        }
        None
    }

    fn next(&mut self) -> Option<Program> {
        if self.done {
            return None;
        }
        let mut body = Vec::with_capacity(2 * self.ops.len());
        for ((op, choices), digit) in self.ops.iter().zip(&self.choices).zip(&self.digits) {
            body.push(op.clone());
            body.extend(choices[*digit].clone());
        }
        let choices = &self.choices;
        self.done = !advance(&mut self.digits, |at| choices[at].len());
        Some(Program { setup: self.setup.clone(), body })
    }
}

/// Counts up a number whose digit `at` has the base `base(at)`; false when it has come round to zero.
fn advance(digits: &mut [usize], base: impl Fn(usize) -> usize) -> bool {
    for at in (0..digits.len()).rev() {
        digits[at] += 1;
        if digits[at] < base(at) {
            return true;
        }
        digits[at] = 0;
    }
    false
}

fn run(setup: &[Op]) -> Option<Model> {
    let mut model = Model::default();
    setup.iter().all(|op| model.apply(op, Time::default()).is_ok()).then_some(model)
}

/// What the setup lacks for an operation that was refused, if anything can help.
fn needed(op: &Op, error: ModelError, setup: &Model) -> Option<Vec<Op>> {
    if let (Op::RemoveXattr { path, name }, ModelError::NoData) = (op, error) {
        let (path, name) = (path.clone(), name.clone());
        let set = Op::SetXattr { path: path.clone(), name, value: b"old".into(), mode: XattrMode::Any };
        // If the setup has the file already, an earlier operation took the attribute away: nothing helps.
        return (setup.exists(&path) && setup.stat(&path).is_ok_and(|node| node.xattrs.is_empty()))
            .then(|| vec![set]);
    }
    if error != ModelError::NotFound {
        return None;
    }
    let exchange = matches!(op, Op::Rename { mode: RenameMode::Exchange, .. });
    let sources = if exchange { 2 } else { 1 };
    // A name the setup already makes was removed by an earlier operation, and stays away.
    let missing = op.paths().into_iter().take(sources).find(|path| !setup.exists(path))?;
    if matches!(op, Op::Rmdir { .. }) {
        return Some(vec![Op::mkdir(missing)]);
    }
    Some(vec![Op::create(missing), Op::write(missing, 0, 8192, missing)])
}

fn durable_choices(ops: &[Op], model: &Model, last: bool) -> Vec<Option<Op>> {
    let mut targets: Vec<&str> = Vec::new();
    // After the last operation everything the sequence named counts, before that what its own operation names.
    let concerned = if last { ops } else { &ops[ops.len() - 1..] };
    for path in concerned.iter().flat_map(Op::paths) {
        for target in [path, parent(path)] {
            if model.exists(target) && !targets.contains(&target) {
                targets.push(target);
            }
        }
    }
    let mut choices = if last { Vec::new() } else { vec![None] };
    choices.extend(targets.into_iter().map(|target| Some(Op::fsync(target))));
    choices.push(Some(Op::Sync));
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn succeeds(program: &Program) {
        let mut model = Model::default();
        for op in program.setup.iter().chain(&program.body) {
            model.apply(op, Time::default()).unwrap_or_else(|error| panic!("{program:?}: {op:?}: {error}"));
        }
        assert_eq!(program.setup.last(), Some(&Op::Sync));
    }

    #[test]
    fn length_one_is_complete() {
        let all: Vec<Program> = programs(1).collect();
        all.iter().for_each(succeeds);
        let used: HashSet<&Op> = all.iter().map(|program| &program.body[0]).collect();
        assert_eq!(used.len(), vocabulary().len(), "every operation has a setup under which it succeeds");
        assert_eq!(all, programs(1).collect::<Vec<_>>(), "the order is fixed");
        assert_eq!(all.len(), count(1));
        assert!(all.iter().all(|program| program.body.len() == 2));
    }

    #[test]
    fn longer_ones_are_lazy_distinct_and_valid() {
        let sample: Vec<Program> = programs(2).step_by(997).collect();
        sample.iter().for_each(succeeds);
        assert!(sample.len() > 100, "{}", sample.len());
        assert_eq!(
            sample.iter().map(|program| format!("{program:?}")).collect::<HashSet<_>>().len(),
            sample.len()
        );
        programs(3).step_by(1009).take(50).for_each(|program| succeeds(&program));
    }
}
