//! Live numbers of a mount, read by `subvol top --mount` and `subvol mount list` through an attribute of the root directory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::kernel::abi::Opcode;

/// The extended attribute of a mount's root that holds a [`Report`] as JSON. It is not listed and cannot be set.
pub const REPORT_ATTRIBUTE: &str = "subvol.mount";

/// What a mount tells of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What is mounted.
    pub source: String,
    /// Its process.
    pub process: u32,
    /// `remote` or `local`.
    pub form: String,
    /// Seconds since it was mounted.
    pub age_seconds: u64,
    /// Whether the server answers, as far as is known.
    pub connected: bool,
    /// Whether the kernel may keep what it was told.
    pub leases: bool,
    /// Inodes that the kernel knows.
    pub inodes: u64,
    /// Requests under way.
    pub under_way: u64,
    /// Requests of the kernel that were answered without the server.
    pub answered_here: u64,
    /// Requests to the server.
    pub round_trips: u64,
    /// Things that other clients changed.
    pub recalls: u64,
    /// Losses of the connection.
    pub connections_lost: u64,
    /// Bytes read from and written to the server.
    pub bytes_read: u64,
    /// See `bytes_read`.
    pub bytes_written: u64,
    /// By operation of the kernel.
    pub operations: BTreeMap<String, OperationReport>,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct OperationReport {
    /// How many were answered.
    pub count: u64,
    /// Those with an error.
    pub errors: u64,
    /// Microseconds from reading the request to its answer, added up.
    pub microseconds: u64,
}

const OPERATIONS: usize = 64;

/// See the module. On the event loop only.
pub struct Counters {
    started: Instant,
    operations: [Cell<OperationReport>; OPERATIONS],
    pub(crate) round_trips: Cell<u64>,
    pub(crate) answered_here: Cell<u64>,
    pub(crate) recalls: Cell<u64>,
    pub(crate) connections_lost: Cell<u64>,
    pub(crate) bytes_read: Cell<u64>,
    pub(crate) bytes_written: Cell<u64>,
    log: Option<RefCell<BufWriter<File>>>,
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, number: u64) {
    counter.set(counter.get().wrapping_add(number));
}

impl Counters {
    /// All 0. With a log, every answer is a line of JSON in it.
    ///
    /// # Errors
    /// When the log cannot be opened for appending.
    pub fn new(log: Option<&Path>) -> std::io::Result<Self> {
        let open = |path: &Path| File::options().append(true).create(true).open(path);
        Ok(Self {
            started: Instant::now(),
            operations: std::array::from_fn(|_| Cell::default()),
            round_trips: Cell::default(),
            answered_here: Cell::default(),
            recalls: Cell::default(),
            connections_lost: Cell::default(),
            bytes_read: Cell::default(),
            bytes_written: Cell::default(),
            log: log.map(open).transpose()?.map(|file| RefCell::new(BufWriter::new(file))),
        })
    }

    /// A request was answered.
    pub(crate) fn answered(&self, opcode: Opcode, nodeid: u64, process: u32, errno: i32, since: Instant) {
        let microseconds = since.elapsed().as_micros() as u64;
        if let Some(cell) = self.operations.get(opcode as usize) {
            let mut report = cell.get();
            report.count += 1;
            report.errors += u64::from(errno != 0);
            report.microseconds += microseconds;
            cell.set(report);
        }
        if let Some(log) = &self.log {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            // A full disk must not stop the mount.
            let _ = writeln!(
                log.borrow_mut(),
                r#"{{"time":{time:.6},"operation":"{}","node":{nodeid},"process":{process},"errno":{errno},"microseconds":{microseconds}}}"#,
                opcode.name()
            );
        }
    }

    /// Writes the log out; called now and then.
    pub(crate) fn flush_log(&self) {
        if let Some(log) = &self.log {
            let _ = log.borrow_mut().flush();
        }
    }

    /// The numbers of now; the caller adds what it knows.
    pub(crate) fn report(&self) -> Report {
        let named = |(number, cell): (usize, &Cell<OperationReport>)| {
            let report = cell.get();
            let opcode = Opcode::from_number(number as u32)?;
            (report.count > 0).then(|| (opcode.name().to_owned(), report))
        };
        Report {
            process: std::process::id(),
            age_seconds: self.started.elapsed().as_secs(),
            round_trips: self.round_trips.get(),
            answered_here: self.answered_here.get(),
            recalls: self.recalls.get(),
            connections_lost: self.connections_lost.get(),
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
            operations: self.operations.iter().enumerate().filter_map(named).collect(),
            ..Report::default()
        }
    }
}
