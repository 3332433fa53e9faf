//! The table of known crash cases: each is a script that ends in a crash and what must hold afterwards.
//!
//! The storage engine's tests and the whole-product tests run the same table. What a case says holds when the server is
//! killed right after the last operation before `CRASH` returned; for a kill at any other moment ask the
//! [`DurabilityOracle`](crate::DurabilityOracle). Sources: xfstests (`g/NNN` = generic, `btrfs/NNN`), CrashMonkey (`CM-n`), kernel
//! commits, issue threads of file systems; `derived` = our own extension.
//!
//! Not in the table, by number:
//! * 37, 70, 71, 160, 161, 163, 164, 166, 167: need a second client, session or server;
//! * 38, 97, 146, 155: need parallel or random load with crashes at random times (the simulation's work);
//! * 62, 158: their point is a bound of time and memory over 50 000 handles or a million files;
//! * 64, 124 to 140: need several subvolumes or snapshots;
//! * 67: inode numbers are never reused here, and a script cannot ask for one;
//! * 80, 107, 109, 110: need replicas, copies between files, or asynchronous direct writes;
//! * 94, 95, 103: need mmap or ranged write-back;
//! * 101, 104, 106: need O_SYNC flags or reflinks (101's buffered form is 17's);
//! * 119: access control lists (as xattrs they are 113);
//! * 142, 145, 148, 149, 151: need fault injection or orders of device writes;
//! * numbers that appear nowhere do not exist in the list.

mod attributes;
mod check;
mod data;
mod links;
mod moves;

pub use check::Check;

use crate::script::{Step, parse};
use crate::snapshot::Tree;

/// Where the operations come from.
#[derive(Clone, Debug)]
pub enum Script {
    /// As it stands.
    Text(&'static str),
    /// Made by a loop.
    Made(fn() -> String),
    /// Made before, for a matrix of cases.
    Owned(String),
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Number in the list; variants share it.
    pub number: u16,
    /// What happens, and which variant.
    pub name: &'static str,
    /// Where it is known from.
    pub source: &'static str,
    /// Operations with `CRASH` at the end, possibly before that too.
    pub script: Script,
    /// What must hold of the image after the last crash.
    pub expect: fn(&mut Check<'_>),
    /// Operations that must succeed on the recovered image, after which the root must be empty; or no operations.
    pub cleanup: &'static str,
}

impl Case {
    /// The steps. All statements before the last crash must succeed.
    pub fn steps(&self) -> Vec<Step> {
        let text = match &self.script {
            Script::Text(text) => (*text).to_owned(),
            Script::Made(make) => make(),
            Script::Owned(text) => text.clone(),
        };
        parse(&text).unwrap_or_else(|error| panic!("case {} ({}): {error}", self.number, self.name))
    }

    /// The operations of `cleanup`.
    pub fn cleanup_steps(&self) -> Vec<Step> {
        parse(self.cleanup).unwrap_or_else(|error| panic!("case {} ({}): {error}", self.number, self.name))
    }

    /// Judges the image after the last crash: every line is something that does not hold.
    pub fn verify(&self, image: &Tree) -> Result<(), Vec<String>> {
        let mut check = Check::new(image);
        (self.expect)(&mut check);
        check.consistent();
        check.finish()
    }
}

/// Every case: the written ones and the matrix of case 52.
pub fn all() -> Vec<Case> {
    let tables = [moves::CASES, links::CASES, data::CASES, attributes::CASES];
    let mut cases: Vec<Case> = tables.into_iter().flatten().cloned().collect();
    cases.extend(links::matrix());
    cases.sort_by_key(|case| case.number);
    cases
}

/// A case without cleanup.
const fn case(
    number: u16,
    name: &'static str,
    source: &'static str,
    script: &'static str,
    expect: fn(&mut Check<'_>),
) -> Case {
    Case { number, name, source, script: Script::Text(script), expect, cleanup: "" }
}

/// A case whose script is made by a loop.
const fn made(
    number: u16,
    name: &'static str,
    source: &'static str,
    script: fn() -> String,
    expect: fn(&mut Check<'_>),
) -> Case {
    Case { number, name, source, script: Script::Made(script), expect, cleanup: "" }
}

impl Case {
    const fn then(mut self, cleanup: &'static str) -> Self {
        self.cleanup = cleanup;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DurabilityOracle, Model, Time};

    /// Runs every case on the model itself, which loses nothing: all of them must hold there, and the oracle must
    /// agree at every crash.
    #[test]
    fn every_case_holds_on_the_model() {
        let cases = all();
        assert!(cases.len() > 100, "{} cases", cases.len());
        for case in &cases {
            let label = format!("case {} ({})", case.number, case.name);
            let mut oracle = DurabilityOracle::new(Model::default());
            let steps = case.steps();
            assert_eq!(steps.last(), Some(&Step::Crash), "{label} ends in a crash");
            let mut now = 0;
            for step in &steps {
                now += 1;
                match step {
                    Step::Do(op) => oracle
                        .acknowledge(op, Time::from(now))
                        .unwrap_or_else(|error| panic!("{label}: {op:?}: {error}")),
                    Step::Crash => {
                        let image = oracle.model().tree();
                        let prefix = oracle.check(&image).unwrap_or_else(|error| panic!("{label}: {error}"));
                        oracle = DurabilityOracle::new(oracle.recovered(&image, oracle.acknowledged()));
                        assert!(prefix <= steps.len());
                    }
                }
            }
            let mut model = oracle.model().clone();
            assert_eq!(model.orphans(), 0, "{label}");
            if let Err(lines) = case.verify(&model.tree()) {
                panic!("{label}:\n{}", lines.join("\n"));
            }
            for step in case.cleanup_steps() {
                let Step::Do(op) = step else { panic!("{label}: no crash in a cleanup") };
                model.apply(&op, Time::from(now)).unwrap_or_else(|error| panic!("{label}: {op:?}: {error}"));
            }
            assert!(
                case.cleanup.is_empty() || model.entries() == 0,
                "{label}: the root is empty after the cleanup"
            );
        }
    }

    /// An empty image satisfies nothing but the cases that end without any name.
    #[test]
    fn no_case_is_vacuous() {
        let empty = Model::default().tree();
        for case in all() {
            assert!(
                case.verify(&empty).is_err(),
                "case {} ({}) accepts an empty image",
                case.number,
                case.name
            );
        }
    }
}
