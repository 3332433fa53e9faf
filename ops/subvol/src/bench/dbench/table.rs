//! The result in dbench's form.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Options;
use super::client::ClientResult;
use super::load_file::Operation;
use crate::bench::latency::Latencies;
use crate::output;

/// Kinds of operations, in the order of dbench's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    CreateX,
    Close,
    Rename,
    Unlink,
    Rmdir,
    Deltree,
    Mkdir,
    PathInfo,
    FileInfo,
    FsInfo,
    SetFileInfo,
    Find,
    Write,
    Read,
    Lock,
    Unlock,
    Flush,
    Sleep,
}

/// Every kind with its name in the table.
pub const KINDS: [(Kind, &str); 18] = [
    (Kind::CreateX, "NTCreateX"),
    (Kind::Close, "Close"),
    (Kind::Rename, "Rename"),
    (Kind::Unlink, "Unlink"),
    (Kind::Rmdir, "Rmdir"),
    (Kind::Deltree, "Deltree"),
    (Kind::Mkdir, "Mkdir"),
    (Kind::PathInfo, "Qpathinfo"),
    (Kind::FileInfo, "Qfileinfo"),
    (Kind::FsInfo, "Qfsinfo"),
    (Kind::SetFileInfo, "Sfileinfo"),
    (Kind::Find, "Find"),
    (Kind::Write, "WriteX"),
    (Kind::Read, "ReadX"),
    (Kind::Lock, "LockX"),
    (Kind::Unlock, "UnlockX"),
    (Kind::Flush, "Flush"),
    (Kind::Sleep, "Sleep"),
];

impl Kind {
    /// Of an operation.
    pub const fn of(operation: &Operation) -> Self {
        match operation {
            Operation::CreateX { .. } => Self::CreateX,
            Operation::Close { .. } => Self::Close,
            Operation::Rename { .. } => Self::Rename,
            Operation::Unlink { .. } => Self::Unlink,
            Operation::Rmdir { .. } => Self::Rmdir,
            Operation::Deltree { .. } => Self::Deltree,
            Operation::Mkdir { .. } => Self::Mkdir,
            Operation::PathInfo { .. } => Self::PathInfo,
            Operation::FileInfo { .. } => Self::FileInfo,
            Operation::FsInfo => Self::FsInfo,
            Operation::SetFileInfo { .. } => Self::SetFileInfo,
            Operation::Find { .. } => Self::Find,
            Operation::Write { .. } => Self::Write,
            Operation::Read { .. } => Self::Read,
            Operation::Lock { .. } => Self::Lock,
            Operation::Unlock { .. } => Self::Unlock,
            Operation::Flush { .. } => Self::Flush,
            Operation::Sleep { .. } => Self::Sleep,
        }
    }

    /// In the table.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// What all clients did together.
#[derive(Debug)]
pub struct Table {
    latencies: Vec<Latencies>,
    bytes: u64,
    pub took: Duration,
    pub errors: u64,
    told: Vec<String>,
    clients: usize,
    volumes: u16,
    operations: u64,
}

impl Table {
    pub fn new(options: &Options, clients: usize) -> Self {
        Self {
            latencies: vec![Latencies::default(); KINDS.len()],
            bytes: 0,
            took: Duration::ZERO,
            errors: 0,
            told: Vec::new(),
            clients,
            volumes: options.volumes,
            operations: 0,
        }
    }

    /// Takes in one client's.
    pub fn add(&mut self, result: ClientResult) {
        for (all, one) in self.latencies.iter_mut().zip(&result.latencies) {
            all.merge(one);
        }
        self.bytes += result.bytes;
        self.errors += result.errors;
        self.told.extend(result.told);
        self.operations += result.operations;
    }

    /// dbench's megabyte has 10^6 bytes.
    fn throughput(&self) -> f64 {
        let seconds = self.took.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / 1e6 / seconds } else { 0.0 }
    }

    fn max_latency(&self) -> f64 {
        self.latencies.iter().map(Latencies::max).fold(0.0, f64::max)
    }

    fn rows(&self) -> impl Iterator<Item = (&'static str, &Latencies)> {
        KINDS
            .iter()
            .map(|(_, name)| *name)
            .zip(&self.latencies)
            .filter(|(_, latencies)| latencies.count() > 0)
    }

    /// Prints it.
    ///
    /// # Errors
    /// Standard output.
    pub fn print(&self, json: bool) -> std::io::Result<()> {
        if json {
            return output::json(&self.json());
        }
        let mut lines = vec![
            " Operation      Count    AvgLat    MaxLat".to_owned(),
            " ----------------------------------------".to_owned(),
        ];
        for (name, latencies) in self.rows() {
            lines.push(format!(
                " {name:<12} {:7} {:9.3} {:9.3}",
                latencies.count(),
                latencies.mean(),
                latencies.max()
            ));
        }
        lines.push(String::new());
        if let Some((_, flush)) = self.rows().find(|(name, _)| *name == Kind::Flush.name()) {
            lines.push(format!("Flush: {}", flush.text()));
        }
        if self.rows().any(|(name, _)| name == Kind::Lock.name() || name == Kind::Unlock.name()) {
            lines.push("LockX and UnlockX are local to the client: the server has no locks yet".into());
        }
        lines.push(format!(
            "{} errors in {} operations, {} volumes",
            self.errors, self.operations, self.volumes
        ));
        lines.push(format!(
            "Throughput {:.4} MB/sec  {} clients  {} procs  max_latency={:.3} ms",
            self.throughput(),
            self.clients,
            self.clients,
            self.max_latency()
        ));
        output::line(lines.join("\n"))
    }

    fn json(&self) -> Value {
        let operations: Map<String, Value> =
            self.rows().map(|(name, latencies)| (name.to_owned(), latencies.json())).collect();
        json!({
            "bench": "dbench",
            "clients": self.clients,
            "volumes": self.volumes,
            "seconds": self.took.as_secs_f64(),
            "bytes": self.bytes,
            "throughput_mb_per_second": self.throughput(),
            "max_latency_ms": self.max_latency(),
            "operations": operations,
            "errors": self.errors,
            "first_errors": self.told,
            "locks": "local to the client",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_stands_at_its_own_place() {
        for (index, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
    }
}
