//! `subvol bench idle-volumes`: what a volume that nobody uses costs in the server's memory.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use serde_json::json;
use subvol_client::{Client, Label};

use super::volumes::BenchVolumes;
use crate::globals::Globals;
use crate::{output, size};

/// Volumes opened at a time.
const AHEAD: usize = 16;

#[derive(Args, Debug)]
pub struct Options {
    /// How many
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Open each once and write a file of 4 KiB, so that it has been in use
    #[arg(long)]
    used: bool,
    /// Seconds to wait before the last measurement, so that commits are over
    #[arg(long, default_value_t = 6)]
    settle: u64,
    /// Leave the volumes
    #[arg(long)]
    keep: bool,
}

async fn memory(client: &Client) -> anyhow::Result<u64> {
    let report = client.admin().status(None).await?;
    let store =
        report.store.context("only administrators see the server's memory; use an administrator's token")?;
    Ok(store.memory_bytes)
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let client = globals.client().await?;
    let before = memory(&client).await?;
    let volumes = BenchVolumes::create(&client, options.count as usize).await?;
    let measured = measure(&client, &volumes, &options).await;
    let removed = if options.keep { Ok(()) } else { volumes.remove(&client).await };
    let after = measured?;
    let per_volume = (after as f64 - before as f64) / f64::from(options.count);
    if globals.json {
        output::json(&json!({
            "bench": "idle-volumes",
            "volumes": options.count,
            "used": options.used,
            "memory_before_bytes": before,
            "memory_after_bytes": after,
            "bytes_per_volume": per_volume,
        }))?;
    } else {
        output::line(format!(
            "{} idle volumes: {} before, {} after, {per_volume:.0} bytes of server memory per volume",
            options.count,
            size::bytes(before),
            size::bytes(after)
        ))?;
    }
    client.close().await;
    removed
}

async fn measure(client: &Client, volumes: &BenchVolumes, options: &Options) -> anyhow::Result<u64> {
    if options.used {
        iter(volumes.names())
            .map(|name| use_once(client, name))
            .buffer_unordered(AHEAD)
            .try_collect::<()>()
            .await
            .context("using the volumes")?;
    }
    tokio::time::sleep(Duration::from_secs(options.settle)).await;
    memory(client).await
}

async fn use_once(client: &Client, name: &Label) -> subvol_client::Result<()> {
    let volume = client.open_subvolume(name.as_str()).await?;
    volume.write("/file", vec![1; 4096]).await?;
    volume.close().await;
    Ok(())
}
