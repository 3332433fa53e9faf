//! Volumes of a tenant: creating, listing, limiting, removing.

use super::Identity;
use super::admin::{changed, commit};
use crate::limits::{VOLUME_BLOCKS_MIN, VOLUMES_PER_TENANT_MAX};
use crate::registry::Unavailable;
use crate::runtime;
use crate::server::Shared;
use crate::subvolume::{Remove, SetLimits};
use crate::transaction_manager::CommitReason;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::limits::{MAX_LIST_PAGE, UNLIMITED};
use subvol_protocol::name::Label;
use subvol_protocol::request::VolumeRef;
use subvol_protocol::response::{AdminResponse, VolumeSummary};
use subvol_storage::space::Class;
use subvol_storage::subvolume::RootDescription;
use subvol_storage::types::{Limits, SubvolumeId, TenantId};

type Answer = Result<AdminResponse, WireError>;

pub(super) async fn create(
    shared: &Arc<Shared>,
    identity: &Identity,
    (tenant, tenant_name): (TenantId, Label),
    name: Label,
    limits: Limits,
) -> Answer {
    let key = (tenant, name.clone());
    {
        let mut state = shared.tenants.state.lock();
        if !state.tenants.contains_key(&tenant_name) {
            return Err(ErrorCode::UnknownTenant.into());
        }
        let of_tenant = |(owner, _): &&(TenantId, Label)| *owner == tenant;
        if state.volumes.contains_key(&key) || state.reserved.contains(&key) {
            return Err(ErrorCode::Exists.into());
        }
        let volumes = state.volumes.keys().filter(of_tenant).count();
        if volumes + state.reserved.iter().filter(of_tenant).count() >= VOLUMES_PER_TENANT_MAX {
            let detail = format!("a tenant may have {VOLUMES_PER_TENANT_MAX} volumes: remove one first");
            return Err(WireError::new(ErrorCode::QuotaInodes, &detail));
        }
        if shared.store.space().available(Class::Growth) < VOLUME_BLOCKS_MIN {
            return Err(ErrorCode::NoSpace.into());
        }
        state.reserved.insert(key.clone());
    }
    let id = shared.store.take_subvolume_id();
    let description = RootDescription {
        tenant,
        name: name.to_string(),
        flags: 0,
        limits,
        origin: 0,
        created: runtime::now(),
        root_uid: identity.owner.0,
        root_gid: identity.owner.1,
        last_snapshot_generation: 0,
    };
    shared.registry.create(shared, id, description);
    let committed = commit(shared, CommitReason::Administration, Vec::new()).await;
    let mut state = shared.tenants.state.lock();
    state.reserved.remove(&key);
    committed?;
    state.volumes.insert(key, id);
    drop(state);
    tracing::info!(tenant = %tenant_name, volume = %name, subvolume = id, "a volume was created");
    Ok(AdminResponse::VolumeCreated { subvolume: id })
}

pub(super) fn list(
    shared: &Shared,
    (tenant, tenant_name): &(TenantId, Label),
    after: Option<&Label>,
) -> AdminResponse {
    let mut found = names(shared, *tenant, after, MAX_LIST_PAGE + 1);
    let more = found.len() > MAX_LIST_PAGE;
    found.truncate(MAX_LIST_PAGE);
    let volumes =
        found.into_iter().map(|(name, id)| summary(shared, tenant_name.clone(), name, id)).collect();
    AdminResponse::Volumes { volumes, more }
}

/// Names and numbers of a tenant's volumes behind a name.
pub(super) fn names(
    shared: &Shared,
    tenant: TenantId,
    after: Option<&Label>,
    most: usize,
) -> Vec<(Label, SubvolumeId)> {
    let state = shared.tenants.state.lock();
    // The least name there can be.
    let Ok(first) = Label::new("0") else { return Vec::new() };
    let from = match after {
        Some(name) => Bound::Excluded((tenant, name.clone())),
        None => Bound::Included((tenant, first)),
    };
    let of_tenant =
        state.volumes.range((from, Bound::Unbounded)).take_while(|((owner, _), _)| *owner == tenant);
    of_tenant.take(most).map(|((_, name), id)| (name.clone(), *id)).collect()
}

/// What lists and reports show of a volume.
pub(super) fn summary(shared: &Shared, tenant: Label, name: Label, id: SubvolumeId) -> VolumeSummary {
    let live = shared.registry.find(id);
    let (usage, limits) = match &live {
        Some(volume) => (volume.account.usage(), volume.account.limits()),
        None => shared.store.root(id).map(|root| (root.usage, root.limits)).unwrap_or_default(),
    };
    VolumeSummary {
        tenant,
        name,
        subvolume: id,
        used_bytes: usage.bytes,
        max_bytes: limits.max_bytes.unwrap_or(UNLIMITED),
        used_inodes: usage.inodes,
        max_inodes: limits.max_inodes.unwrap_or(UNLIMITED),
        attached: live.map_or(0, |volume| volume.gauge.attached.load(Ordering::Acquire)),
    }
}

pub(super) async fn remove(shared: &Arc<Shared>, tenant: TenantId, volume: &VolumeRef) -> Answer {
    let id = shared.tenants.volume(tenant, volume)?;
    let volume = shared.registry.begin_removal(shared, id).map_err(|unavailable| match unavailable {
        Unavailable::InUse => ErrorCode::Busy,
        Unavailable::Unknown => ErrorCode::UnknownVolume,
    })?;
    // Nobody finds it from now on, but its name is free only when the mark is durable: a crash before that would leave two
    // volumes of one name.
    let name = {
        let mut state = shared.tenants.state.lock();
        let name = state.volumes.iter().find(|(_, known)| **known == id).map(|(name, _)| name.clone());
        if let Some(name) = &name {
            state.volumes.remove(name);
            state.reserved.insert(name.clone());
        }
        name
    };
    let (done, marked) = tokio::sync::oneshot::channel();
    volume.mailbox.send(Remove(done));
    marked.await.map_err(|_| ErrorCode::Internal)?;
    commit(shared, CommitReason::Administration, Vec::new()).await?;
    if let Some(name) = name {
        shared.tenants.state.lock().reserved.remove(&name);
    }
    tracing::info!(subvolume = id, "a volume was removed; what it holds is freed in the background");
    Ok(AdminResponse::Done)
}

pub(super) async fn set(
    shared: &Arc<Shared>,
    tenant: TenantId,
    volume: &VolumeRef,
    max_bytes: Option<u64>,
    max_inodes: Option<u64>,
) -> Answer {
    let id = shared.tenants.volume(tenant, volume)?;
    let volume = shared.registry.load(shared, id).ok_or(ErrorCode::UnknownVolume)?;
    let limits = changed(volume.account.limits(), max_bytes, max_inodes);
    let (done, set) = tokio::sync::oneshot::channel();
    volume.mailbox.send(SetLimits { limits, done });
    set.await.map_err(|_| ErrorCode::Busy)?;
    commit(shared, CommitReason::Administration, Vec::new()).await?;
    Ok(AdminResponse::Done)
}
