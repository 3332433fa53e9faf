//! The crash oracle: which images of a subvolume are allowed after a crash. It judges the promises
//!
//! * **S1** the namespace and the attributes equal the state after an exact prefix of the acknowledged operations,
//!   never shorter than the last commit nor the last returned fsync;
//! * **S2** a returned fsync made that file's data and size durable and every namespace and attribute operation
//!   acknowledged before it; fdatasync may leave out times;
//! * **S3** other files' data is as of the last commit or newer; never bytes that were not written to that file; gaps
//!   read as zeros; a file renamed over another is complete old or complete new.
//!
//! How it decides. It keeps the acknowledged operations, the model at the shortest allowed prefix and, for each file,
//! its data at its last durable point with everything that happened to it since. An image is allowed if some prefix
//! (the operation in flight counts as a possible last one) agrees with its namespace, and every file agrees with its
//! history *under that prefix* (see `history`).
//!
//! Deliberately lenient where the promises leave it open: data written after the last durable point may be there or
//! not, byte by byte, even if a later operation on names is there; size, mtime and ctime that come only from such
//! writes may be old or new. Truncation and explicit times are attributes: they follow the prefix exactly.

mod history;
#[cfg(test)]
mod tests;

use crate::error::ModelError;
use crate::filesystem::{Body, Model};
use crate::operation::{Op, RenameMode};
use crate::snapshot::{Compare, Kind, Node, Tree, shown};
use crate::time::Time;
use history::{Event, FileHistory};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The promise an image breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Exact prefix.
    S1,
    /// What fsync made durable.
    S2,
    /// Other files' data.
    S3,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why an image is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("promise {promise} broken at {}: {explanation}", shown(path))]
pub struct Violation {
    /// The promise.
    pub promise: Promise,
    /// The path it shows at.
    pub path: String,
    /// What is wrong there.
    pub explanation: String,
}

/// What made a state durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Part of the state the oracle began with, or of a commit.
    Commit,
    /// A returned fsync.
    Fsync,
    /// Nothing yet: the file was empty when it was made.
    Creation,
    /// It was renamed over another file.
    Replacement,
}

/// Judge of crash images. One per subvolume; a clone is an independent judge.
#[derive(Clone, Debug)]
pub struct DurabilityOracle {
    /// The state the oracle began with, and every acknowledged operation since.
    origin: Model,
    log: Vec<(Op, Time)>,
    /// The state after `log[..durable]`: the shortest prefix a crash may leave.
    base: Model,
    durable: usize,
    cause: Cause,
    /// The state after all of `log`.
    current: Model,
    histories: BTreeMap<u64, FileHistory>,
    in_flight: Option<(Op, Time)>,
}

impl DurabilityOracle {
    /// Begins with a state that is durable as a whole.
    pub fn new(model: Model) -> Self {
        let mut oracle = Self {
            origin: model.clone(),
            log: Vec::new(),
            base: model.clone(),
            durable: 0,
            cause: Cause::Commit,
            current: model,
            histories: BTreeMap::new(),
            in_flight: None,
        };
        let numbers: Vec<u64> = oracle.current.inodes.keys().copied().collect();
        for number in numbers {
            oracle.begin_history(number, Cause::Commit);
        }
        oracle
    }

    /// The state after every acknowledged operation.
    pub fn model(&self) -> &Model {
        &self.current
    }

    /// Number of acknowledged operations.
    pub fn acknowledged(&self) -> usize {
        self.log.len()
    }

    /// Says that an operation was sent and not answered: a crash may leave it done or not.
    pub fn sent(&mut self, op: &Op, now: Time) {
        self.in_flight = Some((op.clone(), now));
    }

    /// Says that an operation (also an fsync or sync) returned success. An error means that it could not have
    /// succeeded: the system under test and the model disagree, and the oracle is unchanged.
    pub fn acknowledge(&mut self, op: &Op, now: Time) -> Result<(), ModelError> {
        self.in_flight = None;
        self.record(op, now)?;
        match op {
            Op::Sync => self.synced(),
            Op::Fsync { path } => self.fsynced(path)?,
            Op::Fdatasync { path } => self.make_durable(self.current.inode_of(path)?, false),
            Op::FsyncHandle { handle } => self.make_durable(self.current.inode_of_handle(handle)?, true),
            _ => {}
        }
        Ok(())
    }

    /// Says that the operation sent was refused: it has no effect.
    pub fn refused(&mut self) {
        self.in_flight = None;
    }

    /// Says that an fsync of what `path` names now has returned.
    pub fn fsynced(&mut self, path: &str) -> Result<(), ModelError> {
        self.make_durable(self.current.inode_of(path)?, true);
        Ok(())
    }

    /// Says that a sync (or any commit that began after the last acknowledged operation) has returned.
    pub fn synced(&mut self) {
        self.advance(Cause::Commit);
        let Self { histories, current, .. } = self;
        histories.retain(|number, history| match current.inodes.get(number) {
            Some(inode) => {
                history.settle(inode, true, Cause::Commit);
                true
            }
            None => false,
        });
    }

    /// Judges an image. `Ok` holds the number of operations the image is the result of.
    pub fn check(&self, image: &Tree) -> Result<usize, Violation> {
        let Some((op, now)) = &self.in_flight else {
            return self.check_prefixes(image);
        };
        let mut with = self.clone();
        with.in_flight = None;
        // What the model refuses had no effect, whatever the answer would have been.
        let _refused = with.record(op, *now);
        with.check_prefixes(image)
    }

    /// The model that agrees with an allowed image, to go on after the crash: the state after `prefix` operations (as
    /// [`check`](Self::check) said), without handles, with the files' data and times as the image has them. Which blocks of a file are
    /// mapped is a guess that agrees in number, for files whose data was not durable.
    pub fn recovered(&self, image: &Tree, prefix: usize) -> Model {
        let mut model = self.origin.clone();
        for (op, now) in self.log.iter().chain(self.in_flight.as_ref()).take(prefix) {
            model.apply(op, *now).expect("it succeeded before on the same state");
        }
        model.close_all();
        for (path, node) in model.tree().iter().filter(|(_, node)| node.kind == Kind::File) {
            if let Some(found) = image.get(path) {
                adopt(&mut model, node.identity, found);
            }
        }
        model
    }

    fn record(&mut self, op: &Op, now: Time) -> Result<(), ModelError> {
        let replacing = self.replacing(op);
        self.current.apply(op, now)?;
        self.log.push((op.clone(), now));
        let index = self.log.len();
        let touched: BTreeSet<u64> = self.current.touched.iter().copied().collect();
        for number in touched {
            let Some(inode) = self.current.inodes.get(&number).cloned() else {
                continue;
            };
            match self.histories.get_mut(&number) {
                None => self.begin_history(number, Cause::Creation),
                Some(history) => history.events.extend(Event::of(op, index, &inode)),
            }
        }
        if let Some(number) = replacing {
            let inode = self.current.inode(number).clone();
            let history = self.histories.get_mut(&number).expect("every file has a history");
            history.events.push(Event::replacement(index, &inode));
        }
        Ok(())
    }

    /// The file that a rename puts over another one, if it is one.
    fn replacing(&self, op: &Op) -> Option<u64> {
        let Op::Rename { from, to, mode: RenameMode::Replace } = op else {
            return None;
        };
        let (source, target) = (self.current.inode_of(from).ok()?, self.current.inode_of(to).ok()?);
        let files = self.current.file(source).is_ok() && self.current.file(target).is_ok();
        (files && source != target).then_some(source)
    }

    fn begin_history(&mut self, number: u64, cause: Cause) {
        if let Some(history) = FileHistory::begin(self.current.inode(number), cause) {
            self.histories.insert(number, history);
        }
    }

    fn make_durable(&mut self, number: u64, times: bool) {
        self.advance(Cause::Fsync);
        if let Some(history) = self.histories.get_mut(&number) {
            history.settle(self.current.inode(number), times, Cause::Fsync);
        }
    }

    fn advance(&mut self, cause: Cause) {
        for (op, now) in &self.log[self.durable..] {
            self.base.apply(op, *now).expect("it succeeded before on the same state");
        }
        self.durable = self.log.len();
        self.cause = cause;
    }

    fn check_prefixes(&self, image: &Tree) -> Result<usize, Violation> {
        let mut state = self.base.clone();
        let (mut wrong_file, mut closest) = (None, None::<Vec<(String, String)>>);
        for prefix in self.durable..=self.log.len() {
            if prefix > self.durable {
                let (op, now) = &self.log[prefix - 1];
                state.apply(op, *now).expect("it succeeded before on the same state");
            }
            // Most prefixes of a long program differ in the number of names, which is cheap to see.
            if state.entries() + 1 != image.len() && (closest.is_some() || prefix < self.log.len()) {
                continue;
            }
            let tree = state.tree();
            let differences = tree.differences(image, Compare::NAMESPACE);
            if !differences.is_empty() {
                if closest.as_ref().is_none_or(|best| differences.len() < best.len()) {
                    closest = Some(differences);
                }
                continue;
            }
            match self.check_files(&tree, image, prefix) {
                Ok(()) => return Ok(prefix),
                Err(violation) => wrong_file = Some(violation),
            }
        }
        Err(wrong_file.unwrap_or_else(|| self.explain(image, closest.unwrap_or_default())))
    }

    fn check_files(&self, expected: &Tree, image: &Tree, prefix: usize) -> Result<(), Violation> {
        let mut seen = BTreeSet::new();
        for (path, node) in expected.iter().filter(|(_, node)| node.kind == Kind::File) {
            if !seen.insert(node.identity) {
                continue;
            }
            let history = self.histories.get(&node.identity).expect("every file has a history");
            let found = image.get(path).expect("the namespaces are equal");
            history.judge(prefix, found).map_err(|(promise, explanation)| Violation {
                promise,
                path: path.into(),
                explanation,
            })?;
        }
        Ok(())
    }

    /// Says what is wrong with an image whose namespace is that of no allowed prefix.
    fn explain(&self, image: &Tree, closest: Vec<(String, String)>) -> Violation {
        let mut state = self.origin.clone();
        for prefix in 0..self.durable {
            if state.entries() + 1 == image.len()
                && state.tree().differences(image, Compare::NAMESPACE).is_empty()
            {
                let lost = self.base.tree().differences(image, Compare::NAMESPACE);
                let (path, line) = lost.into_iter().next().unwrap_or_default();
                let (promise, by) = match self.cause {
                    Cause::Fsync => (Promise::S2, "an fsync"),
                    _ => (Promise::S1, "a commit"),
                };
                let explanation =
                    format!("only {prefix} operations are there, {by} made {} durable: {line}", self.durable);
                return Violation { promise, path, explanation };
            }
            let (op, now) = &self.log[prefix];
            state.apply(op, *now).expect("it succeeded before on the same state");
        }
        let count = closest.len();
        let (path, line) = closest.into_iter().next().unwrap_or_default();
        let explanation = format!(
            "the state after none of the prefixes {} to {}; the closest has {count} differences, first: {line}",
            self.durable,
            self.log.len()
        );
        Violation { promise: Promise::S1, path, explanation }
    }
}

/// Gives a file of the model the data and times an image has.
fn adopt(model: &mut Model, number: u64, found: &Node) {
    let inode = Arc::make_mut(model.inodes.get_mut(&number).expect("listed by its tree"));
    (inode.mtime, inode.ctime) = (found.mtime, found.ctime);
    let (Body::File { content, mapped }, Some(image)) = (&mut inode.body, &found.content) else {
        return;
    };
    content.clone_from(image);
    let before = mapped.count();
    let wanted = found.blocks.unwrap_or(before);
    if wanted != before {
        *mapped = crate::ranges::Ranges::default();
        image.kept_blocks().for_each(|block| mapped.insert(block..block + 1));
        let mut free = 0;
        while mapped.count() < wanted {
            mapped.insert(free..free + 1);
            free += 1;
        }
    }
    model.mapped_blocks = model.mapped_blocks - before + mapped.count();
}
