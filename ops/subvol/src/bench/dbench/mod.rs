//! `subvol bench dbench`: dbench 4 load files over the client library.
//!
//! Each client is one connection and one task and sends one request after another, as a dbench process makes one system call after another;
//! opening by name (look up and open) is one trip, because that is one system call there. Parents of names are remembered as a kernel's name
//! cache does; the name itself is always asked for. Three differences are told in the output and `--help`: locks are local, the search for
//! other spellings of a name is off, and writes are not zeros.

mod client;
mod load_file;
mod paths;
mod table;
mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use self::client::{ClientResult, Replay};
use self::load_file::LoadFile;
use self::table::Table;
use super::phase::Clock;
use super::raw_device::positive_seconds;
use super::threads::{default_threads, spread};
use super::volumes::BenchVolumes;
use crate::failure::Told;
use crate::globals::Globals;

/// Replay a dbench 4 load file
///
/// Prints dbench's table and throughput line, and percentiles of Flush. Operations whose status is not the expected one are errors, checked
/// as dbench does: opening, Rename, Unlink and Rmdir by status, WriteX and ReadX by length; what the server itself refuses counts always.
///
/// Different from dbench: LockX and UnlockX are client-local no-ops (the server has no locks yet); names are not searched for in other
/// spellings (dbench's --no-resolve); what is written is not zeros; Sfileinfo is one request.
#[derive(Args, Debug)]
pub struct Options {
    /// The load file, such as /usr/share/dbench/client.txt
    #[arg(long, value_name = "FILE")]
    loadfile: PathBuf,
    /// Connections, each replaying the whole file in a loop
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// How long to measure
    #[arg(long, value_parser = positive_seconds)]
    seconds: f64,
    /// Volumes over which the clients are spread; created and removed by the bench
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    volumes: u16,
    /// Seconds before the measurement; a fifth of it if not given, as with dbench
    #[arg(long, value_parser = warm_up)]
    warmup: Option<f64>,
    /// Also count a Qpathinfo whose status is not the expected one, which dbench ignores
    #[arg(long)]
    strict: bool,
    /// Threads for the clients; all cores but one if not given
    #[arg(long)]
    threads: Option<usize>,
    /// Leave the volumes
    #[arg(long)]
    keep: bool,
}

fn warm_up(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { positive_seconds(text) }
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let path = options.loadfile.clone();
    let load = tokio::task::spawn_blocking(move || LoadFile::read(&path))
        .await?
        .with_context(|| format!("load file {}", options.loadfile.display()))?;
    let client = globals.client().await?;
    let volumes = BenchVolumes::create(&client, usize::from(options.volumes)).await?;
    let result = measure(globals, &options, load, &volumes).await;
    let removed = if options.keep { Ok(()) } else { volumes.remove(&client).await };
    client.close().await;
    let table = result?;
    table.print(globals.json)?;
    removed?;
    if table.errors > 0 { Err(Told(table.errors).into()) } else { Ok(()) }
}

async fn measure(
    globals: &Globals,
    options: &Options,
    load: LoadFile,
    volumes: &BenchVolumes,
) -> anyhow::Result<Table> {
    let clients = usize::from(options.clients);
    let threads = options.threads.unwrap_or_else(|| default_threads(clients));
    let clock = Arc::new(Clock::new());
    let (load, strict) = (Arc::new(load), options.strict);
    let make = {
        let (globals, volumes, clock) = (globals.clone(), volumes.clone(), Arc::clone(&clock));
        move |number| -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<ClientResult>>>> {
            let (globals, volumes) = (globals.clone(), volumes.clone());
            let (clock, load) = (Arc::clone(&clock), Arc::clone(&load));
            Box::pin(async move {
                let result = async {
                    let name = volumes.of_client(number).context("there is no volume")?;
                    let volume = globals.volume(name).await?;
                    Replay::new(volume, load, number, strict)?.run(&clock).await
                };
                let result = result.await.with_context(|| format!("client {number}"));
                if result.is_err() {
                    // The others must not wait for this one.
                    clock.call_off();
                }
                result
            })
        }
    };
    let warm_up = Duration::from_secs_f64(options.warmup.unwrap_or(options.seconds / 5.0));
    let measured = Duration::from_secs_f64(options.seconds);
    let (took, results) = tokio::join!(clock.run(clients, warm_up, measured), spread(clients, threads, make));
    let mut table = Table::new(options, clients);
    for result in results {
        // A client's error says more than "a client could not get ready".
        table.add(result?);
    }
    table.took = took?;
    Ok(table)
}
