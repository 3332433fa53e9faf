//! What a copy tells: a progress line on a terminal, each failure as it happens, a summary at the end.
//!
//! Invariant: every failure is counted; only the first [`MAX_TOLD`] are printed, so that a million of them do not bury the first.

use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use subvol_client::{ClientError, FileKind};

use crate::failure::Told;
use crate::{output, size};

/// Failures that are printed.
const MAX_TOLD: u64 = 100;

/// Counts and complaints of one copy.
#[derive(Debug)]
pub struct Report {
    verb: &'static str,
    json: bool,
    bar: ProgressBar,
    files: AtomicU64,
    directories: AtomicU64,
    links: AtomicU64,
    others: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    told: Mutex<Vec<Value>>,
    stop: AtomicBool,
    started: Instant,
}

impl Report {
    /// Begins; `verb` is the command's name.
    pub fn start(verb: &'static str, json: bool) -> Self {
        let bar = if std::io::stderr().is_terminal() && !json {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        } else {
            ProgressBar::hidden()
        };
        Self {
            verb,
            json,
            bar,
            files: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            links: AtomicU64::new(0),
            others: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            told: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
            started: Instant::now(),
        }
    }

    /// One more is done; bytes are counted by [`Self::moved`].
    pub fn done(&self, kind: FileKind) {
        let counter = match kind {
            FileKind::Regular => &self.files,
            FileKind::Directory => &self.directories,
            FileKind::Symlink => &self.links,
            _ => &self.others,
        };
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if kind == FileKind::Regular && count.is_multiple_of(64) {
            self.show();
        }
    }

    /// A further name of a file is done.
    pub fn linked(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    /// Content was moved.
    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if bytes >= super::PIECE {
            self.show();
        }
    }

    fn show(&self) {
        if !self.bar.is_hidden() {
            let files = self.files.load(Ordering::Relaxed);
            let bytes = size::bytes(self.bytes.load(Ordering::Relaxed));
            self.bar.set_message(format!("{}: {files} files, {bytes}", self.verb));
        }
    }

    /// Something failed; the rest goes on.
    pub fn failed(&self, what: impl Display, error: &dyn Display) {
        let count = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if count > MAX_TOLD {
            return;
        }
        self.bar.suspend(|| {
            eprintln!("subvol: {what}: {error}");
            if count == MAX_TOLD {
                eprintln!("subvol: further failures are only counted");
            }
        });
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        told.push(json!({"what": what.to_string(), "error": error.to_string()}));
    }

    /// A request failed; if the server is lost, nothing else needs to be tried.
    pub fn failed_by(&self, what: impl Display, error: &ClientError) {
        if matches!(error, ClientError::Lost { .. } | ClientError::Closed | ClientError::Protocol(_)) {
            // The first says why; the others would say the same of every file under way.
            if self.stop.swap(true, Ordering::Relaxed) {
                self.failures.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        self.failed(what, error);
    }

    /// Nothing else needs to be tried.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Failures so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// Something failed, or standard output did.
    pub fn finish(&self) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64().max(1e-6);
        let (files, bytes, failures) = (count(&self.files), count(&self.bytes), self.failures());
        let (directories, links, others) =
            (count(&self.directories), count(&self.links), count(&self.others));
        if self.json {
            let told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            output::json(&json!({
                "files": files,
                "directories": directories,
                "links": links,
                "others": others,
                "bytes": bytes,
                "seconds": seconds,
                "failures": failures,
                "errors": &*told,
                "complete": failures == 0 && !self.stopped(),
            }))?;
        } else {
            output::line(format!(
                "{}: {files} files, {directories} directories, {links} links, {others} others, {} in {seconds:.2} s \
                 ({:.0} files/s, {}/s), {failures} failures",
                self.verb,
                size::bytes(bytes),
                files as f64 / seconds,
                size::bytes((bytes as f64 / seconds) as u64),
            ))?;
        }
        if self.stopped() {
            anyhow::bail!("the copy was given up and is not complete; repeat it when the server is back");
        }
        if failures > 0 { Err(Told(failures).into()) } else { Ok(()) }
    }
}
