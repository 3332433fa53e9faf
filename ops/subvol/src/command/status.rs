//! `subvol status`.

use clap::Args;
use serde_json::json;
use subvol_client::protocol::response::StoreStatus;
use subvol_client::{StatusReport, VolumeRef, VolumeStatus};

use super::volume::summary_json;
use crate::globals::Globals;
use crate::target::Target;
use crate::{output, size};

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:; without it, all volumes and (for administrators) the store
    #[arg(value_parser = Target::parser(), value_name = "TARGET")]
    target: Option<Target>,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let client = globals.client().await?;
    let volume = options.target.map(|target| VolumeRef::Name(target.volume));
    let report = client.admin().status(volume).await?;
    client.close().await;
    if globals.json {
        output::json(&as_json(&report))?;
        return Ok(());
    }
    if let Some(store) = &report.store {
        output::line(store_text(store))?;
    }
    let rows: Vec<Vec<String>> = report.volumes.iter().map(row).collect();
    let header =
        ["VOLUME", "TENANT", "USED", "INODES", "DIRTY", "LOG", "PINNED", "ORPHANS", "OPERATIONS", "ATTACHED"];
    output::line(output::table(&header, &rows, 2))?;
    Ok(())
}

fn row(volume: &VolumeStatus) -> Vec<String> {
    vec![
        volume.summary.name.to_string(),
        volume.summary.tenant.to_string(),
        size::bytes(volume.summary.used_bytes),
        volume.summary.used_inodes.to_string(),
        size::bytes(volume.dirty_bytes),
        size::bytes(volume.log_backlog_bytes),
        size::bytes(volume.pinned_bytes),
        volume.orphans.to_string(),
        volume.operations.to_string(),
        volume.summary.attached.to_string(),
    ]
}

fn milliseconds(microseconds: u64) -> String {
    format!("{:.1} ms", microseconds as f64 / 1000.0)
}

fn store_text(store: &StoreStatus) -> String {
    let mut lines = vec![
        format!(
            "store: {}, up {} s, epoch {}, {} connections",
            if store.read_only { "READ-ONLY after a device error; see the server's log" } else { "writable" },
            store.uptime_milliseconds / 1000,
            store.server_epoch,
            store.sessions
        ),
        format!(
            "space: {} of {} free, {} pinned until the next commit",
            size::bytes(store.free_bytes),
            size::bytes(store.total_bytes),
            size::bytes(store.pinned_bytes)
        ),
        format!(
            "memory: {} in use, {} block cache, {} not yet written",
            size::bytes(store.memory_bytes),
            size::bytes(store.cache_bytes),
            size::bytes(store.dirty_bytes)
        ),
        format!(
            "commits: {} (last {}, mean {}, longest {}), transaction {} runs, {} is durable",
            store.commits,
            milliseconds(store.commit_last_microseconds),
            milliseconds(store.commit_mean_microseconds),
            milliseconds(store.commit_max_microseconds),
            store.transid,
            store.durable_transid
        ),
        format!(
            "log: {} since the last commit, {} batches; fsyncs: {} answered at once, {} by the volume",
            size::bytes(store.log_backlog_bytes),
            store.log_batches,
            store.fsync_fast_path,
            store.fsync_slow_path
        ),
    ];
    if let Some(longest) = store.unpins.iter().max_by_key(|pass| pass.microseconds) {
        lines.push(format!(
            "unpinning: {} passes shown, longest {} for {} ranges",
            store.unpins.len(),
            milliseconds(longest.microseconds),
            longest.ranges
        ));
    }
    for (reason, count) in store.fallbacks.iter().filter(|(_, count)| *count > 0) {
        lines.push(format!("fsyncs that waited for a commit: {count} ({})", reason.as_str()));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The report for programs.
pub fn as_json(report: &StatusReport) -> serde_json::Value {
    let volumes: Vec<_> = report
        .volumes
        .iter()
        .map(|volume| {
            let mut fields = summary_json(&volume.summary);
            let more = json!({
                "epoch": volume.epoch,
                "log_transid": volume.log_transid,
                "log_transid_committed": volume.log_transid_committed,
                "log_backlog_bytes": volume.log_backlog_bytes,
                "dirty_bytes": volume.dirty_bytes,
                "pinned_bytes": volume.pinned_bytes,
                "orphans": volume.orphans,
                "operations": volume.operations,
            });
            if let (Some(fields), serde_json::Value::Object(more)) = (fields.as_object_mut(), more) {
                fields.extend(more);
            }
            fields
        })
        .collect();
    json!({ "store": report.store.as_ref().map(store_json), "volumes": volumes })
}

fn store_json(store: &StoreStatus) -> serde_json::Value {
    let unpins: Vec<_> = store
        .unpins
        .iter()
        .map(|pass| json!({"ranges": pass.ranges, "microseconds": pass.microseconds}))
        .collect();
    let fallbacks: serde_json::Map<_, _> =
        store.fallbacks.iter().map(|(reason, count)| (reason.to_string(), (*count).into())).collect();
    json!({
        "server_epoch": store.server_epoch,
        "uptime_milliseconds": store.uptime_milliseconds,
        "read_only": store.read_only,
        "transid": store.transid,
        "durable_transid": store.durable_transid,
        "total_bytes": store.total_bytes,
        "free_bytes": store.free_bytes,
        "pinned_bytes": store.pinned_bytes,
        "dirty_bytes": store.dirty_bytes,
        "log_backlog_bytes": store.log_backlog_bytes,
        "commits": store.commits,
        "commit_last_microseconds": store.commit_last_microseconds,
        "commit_mean_microseconds": store.commit_mean_microseconds,
        "commit_max_microseconds": store.commit_max_microseconds,
        "unpins": unpins,
        "fallbacks": fallbacks,
        "fsync_fast_path": store.fsync_fast_path,
        "fsync_slow_path": store.fsync_slow_path,
        "log_batches": store.log_batches,
        "actor_messages": store.actor_messages,
        "sessions": store.sessions,
        "memory_bytes": store.memory_bytes,
        "cache_bytes": store.cache_bytes,
    })
}
