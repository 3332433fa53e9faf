//! The status report: read from counters and gauges, without a message to anybody.

use super::Identity;
use super::volumes::{names, summary};
use crate::metrics::Fallback;
use crate::server::Shared;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::limits::MAX_STATUS_ROWS;
use subvol_protocol::name::{Label, Text};
use subvol_protocol::request::VolumeRef;
use subvol_protocol::response::{AdminResponse, StatusReport, StoreStatus, UnpinSample, VolumeStatus};
use subvol_storage::limits::BLOCK_BYTES;
use subvol_storage::types::{SubvolumeId, TenantId};

pub(super) fn report(
    shared: &Arc<Shared>,
    identity: &Identity,
    tenant: Option<Label>,
    volume: Option<&VolumeRef>,
) -> Result<AdminResponse, WireError> {
    let everybody = identity.admin && tenant.is_none() && volume.is_none();
    let tenants: Vec<(TenantId, Label)> = if everybody {
        let state = shared.tenants.state.lock();
        state.tenants.iter().map(|(name, tenant)| (tenant.id, name.clone())).collect()
    } else {
        vec![shared.tenants.meant(identity, tenant.as_ref())?]
    };
    let only = match volume {
        Some(volume) => {
            let (tenant, _) = tenants.first().ok_or(ErrorCode::UnknownVolume)?;
            Some(shared.tenants.volume(*tenant, volume)?)
        }
        None => None,
    };
    let mut volumes = Vec::new();
    for (tenant, tenant_name) in tenants {
        for (name, id) in names(shared, tenant, None, usize::MAX) {
            if volumes.len() == MAX_STATUS_ROWS {
                break;
            }
            if only.is_none_or(|only| only == id) {
                volumes.push(volume_status(shared, tenant_name.clone(), name, id));
            }
        }
    }
    let store = identity.admin.then(|| store_status(shared));
    Ok(AdminResponse::Status(Box::new(StatusReport { store, volumes })))
}

fn volume_status(shared: &Shared, tenant: Label, name: Label, id: SubvolumeId) -> VolumeStatus {
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let summary = summary(shared, tenant, name, id);
    let epoch = shared.store.identity().epoch;
    let Some(volume) = shared.registry.find(id) else {
        return VolumeStatus {
            summary,
            epoch,
            log_transid: 0,
            log_transid_committed: 0,
            log_backlog_bytes: 0,
            dirty_bytes: 0,
            pinned_bytes: 0,
            orphans: 0,
            operations: 0,
        };
    };
    let gauge = &volume.gauge;
    VolumeStatus {
        summary,
        epoch,
        log_transid: load(&gauge.log_transid),
        log_transid_committed: volume.progress.committed(),
        log_backlog_bytes: load(&gauge.log_backlog),
        dirty_bytes: load(&gauge.dirty_bytes),
        pinned_bytes: load(&gauge.pinned_blocks) * BLOCK_BYTES,
        orphans: load(&gauge.orphans),
        operations: load(&gauge.operations),
    }
}

fn store_status(shared: &Shared) -> StoreStatus {
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let store = &shared.store;
    let counters = &shared.counters;
    let space = store.space().statistics();
    let history = shared.history.lock();
    let micros = |nanoseconds: u64| nanoseconds / 1000;
    let unpins = history.newest.iter().rev().take(MAX_STATUS_ROWS).rev();
    StoreStatus {
        server_epoch: store.identity().epoch,
        uptime_milliseconds: shared.uptime_milliseconds(),
        read_only: store.failure().is_some(),
        transid: store.running(),
        durable_transid: store.durable(),
        total_bytes: space.total * BLOCK_BYTES,
        free_bytes: space.free * BLOCK_BYTES,
        pinned_bytes: space.pinned * BLOCK_BYTES,
        dirty_bytes: load(&counters.dirty_bytes),
        log_backlog_bytes: store.ring().used() + shared.log.waiting_bytes() as u64,
        commits: history.count,
        commit_last_microseconds: history
            .newest
            .back()
            .map_or(0, |sample| micros(sample.total_nanoseconds())),
        commit_mean_microseconds: micros(history.total_nanoseconds.checked_div(history.count).unwrap_or(0)),
        commit_max_microseconds: micros(history.longest_nanoseconds),
        unpins: unpins
            .map(|sample| UnpinSample {
                ranges: sample.unpinned_ranges,
                microseconds: micros(sample.unpin_nanoseconds),
            })
            .collect(),
        fallbacks: Fallback::ALL
            .iter()
            .zip(&counters.fallbacks)
            .map(|(reason, count)| (Text::new(reason.name()), load(count)))
            .collect(),
        fsync_fast_path: load(&counters.fsync_fast),
        fsync_slow_path: load(&counters.fsync_message),
        log_batches: load(&counters.log.batches),
        actor_messages: load(&counters.messages),
        sessions: load(&counters.sessions),
        memory_bytes: resident_bytes(),
        cache_bytes: store.nodes().memory_bytes() + store.data().memory_bytes(),
    }
}

/// Memory of this process, as the kernel counts it; 0 if it does not say.
fn resident_bytes() -> u64 {
    let page = rustix::param::page_size() as u64;
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok())
        .map_or(0, |pages| pages * page)
}
