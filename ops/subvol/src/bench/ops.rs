//! `subvol bench ops`: one kind of operation, many at a time.
//!
//! Each client is one connection with `--depth` operations under way. `fsync` is a 4 KiB write and the fsync of its file in one trip;
//! with `--separate`, in two. Its files are written in full before, so that no write has to find space.

mod loads;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;

use self::loads::{ClientResult, Load};
use super::phase::Clock;
use super::raw_device::positive_seconds;
use super::threads::{default_threads, spread};
use super::volumes::BenchVolumes;
use crate::failure::Told;
use crate::globals::Globals;
use crate::output;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Empty files, in directories of --files each
    Create,
    /// Names, at random among --files of one directory
    Lookup,
    /// Attributes, at random among --files
    Getattr,
    /// Durable 4 KiB writes at random places of a file of 1 MiB
    Fsync,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Lookup => "lookup",
            Self::Getattr => "getattr",
            Self::Fsync => "fsync",
        }
    }
}

#[derive(Args, Debug)]
pub struct Options {
    /// What to measure
    #[arg(long, value_enum)]
    kind: Kind,
    /// Connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// Operations of each connection under way at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
    /// How long to measure
    #[arg(long, default_value_t = 5.0, value_parser = positive_seconds)]
    seconds: f64,
    /// Volumes over which the clients are spread; created and removed by the bench
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    volumes: u16,
    /// Files of each client
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: u32,
    /// Write and fsync in two trips
    #[arg(long)]
    separate: bool,
    /// Threads for the clients; all cores but one if not given
    #[arg(long)]
    threads: Option<usize>,
    /// Leave the volumes
    #[arg(long)]
    keep: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let client = globals.client().await?;
    let volumes = BenchVolumes::create(&client, usize::from(options.volumes)).await?;
    let measured = measure(globals, &options, &volumes).await;
    let removed = if options.keep { Ok(()) } else { volumes.remove(&client).await };
    client.close().await;
    let (took, total) = measured?;
    print(globals, &options, took, &total)?;
    removed?;
    if total.errors > 0 { Err(Told(total.errors).into()) } else { Ok(()) }
}

async fn measure(
    globals: &Globals,
    options: &Options,
    volumes: &BenchVolumes,
) -> anyhow::Result<(Duration, ClientResult)> {
    let clients = usize::from(options.clients);
    let threads = options.threads.unwrap_or_else(|| default_threads(clients));
    let clock = Arc::new(Clock::new());
    let load = Load {
        kind: options.kind,
        depth: usize::from(options.depth),
        files: options.files as usize,
        separate: options.separate,
    };
    let make = {
        let (globals, volumes, clock) = (globals.clone(), volumes.clone(), Arc::clone(&clock));
        move |number| -> Pin<Box<dyn Future<Output = anyhow::Result<ClientResult>>>> {
            let (globals, volumes, clock) = (globals.clone(), volumes.clone(), Arc::clone(&clock));
            Box::pin(async move {
                let result = async {
                    let name = volumes.of_client(number).context("there is no volume")?;
                    load.run(globals.volume(name).await?, number, &clock).await
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
    let measured = Duration::from_secs_f64(options.seconds);
    let (took, results) = tokio::join!(
        // The first moments fill caches and windows.
        clock.run(clients, measured / 10, measured),
        spread(clients, threads, make)
    );
    let mut total = ClientResult::default();
    for result in results {
        total.add(&result?);
    }
    Ok((took?, total))
}

fn print(globals: &Globals, options: &Options, took: Duration, total: &ClientResult) -> std::io::Result<()> {
    let per_second = total.latencies.count() as f64 / took.as_secs_f64().max(1e-9);
    if globals.json {
        return output::json(&json!({
            "bench": "ops",
            "kind": options.kind.name(),
            "clients": options.clients,
            "depth": options.depth,
            "volumes": options.volumes,
            "seconds": took.as_secs_f64(),
            "per_second": per_second,
            "latency": total.latencies.json(),
            "errors": total.errors,
            "first_error": total.first_error,
        }));
    }
    output::line(format!(
        "{}: {per_second:.0}/s, {} clients with {} under way each, {} volumes, {} errors",
        options.kind.name(),
        options.clients,
        options.depth,
        options.volumes,
        total.errors
    ))?;
    output::line(format!("latency: {}", total.latencies.text()))
}
