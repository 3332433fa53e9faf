//! Administration requests. Each runs as a task of its own: they are rare, and most wait for a commit.

use super::{Identity, Tenant};
use crate::server::{Shared, StartError};
use crate::transaction_manager::CommitReason;
use std::sync::Arc;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::limits::{MAX_LIST_PAGE, UNLIMITED};
use subvol_protocol::name::Label;
use subvol_protocol::request::AdminRequest;
use subvol_protocol::response::{AdminResponse, TenantSummary};
use subvol_protocol::token::Token;
use subvol_storage::format::root_item::TenantItem;
use subvol_storage::transaction::commit::RootChange;
use subvol_storage::types::{Limits, TenantId};

type Answer = Result<AdminResponse, WireError>;

/// Does what was asked, if the caller may.
pub async fn handle(shared: &Arc<Shared>, identity: &Identity, request: AdminRequest) -> Answer {
    use AdminRequest as R;
    let needs_admin = matches!(
        request,
        R::TenantAdd { .. }
            | R::TenantList { .. }
            | R::TenantRemove { .. }
            | R::TenantSet { .. }
            | R::TokenReissue { .. }
            | R::SyncStore
    );
    if needs_admin && !identity.admin {
        return Err(ErrorCode::PermissionDenied.into());
    }
    match request {
        R::TenantAdd { name } => {
            let (tenant, token) = add_tenant(shared, name).await?;
            Ok(AdminResponse::TenantToken { tenant, token })
        }
        R::TenantList { after } => Ok(list_tenants(shared, after.as_ref())),
        R::TenantRemove { name } => remove_tenant(shared, name).await,
        R::TenantSet { name, max_bytes, max_inodes } => {
            set_tenant(shared, &name, max_bytes, max_inodes).await
        }
        R::TokenReissue { name } => {
            let _one = shared.tenants.change.lock().await;
            let tenant = shared.tenants.known(&name)?;
            let token = issue(shared, tenant.id, name).await?;
            Ok(AdminResponse::TenantToken { tenant: tenant.id, token })
        }
        R::VolumeCreate { tenant, name, max_bytes, max_inodes } => {
            let tenant = shared.tenants.meant(identity, tenant.as_ref())?;
            let limits = Limits { max_bytes: limit(max_bytes), max_inodes: limit(max_inodes) };
            super::volumes::create(shared, identity, tenant, name, limits).await
        }
        R::VolumeList { tenant, after } => {
            let tenant = shared.tenants.meant(identity, tenant.as_ref())?;
            Ok(super::volumes::list(shared, &tenant, after.as_ref()))
        }
        R::VolumeRemove { tenant, volume } => {
            let tenant = shared.tenants.meant(identity, tenant.as_ref())?;
            super::volumes::remove(shared, tenant.0, &volume).await
        }
        R::VolumeSet { tenant, volume, max_bytes, max_inodes } => {
            let tenant = shared.tenants.meant(identity, tenant.as_ref())?;
            super::volumes::set(shared, tenant.0, &volume, max_bytes, max_inodes).await
        }
        R::Status { tenant, volume } => super::status::report(shared, identity, tenant, volume.as_ref()),
        R::SyncStore => {
            let transid = commit(shared, CommitReason::Sync, Vec::new()).await?;
            Ok(AdminResponse::StoreSynced { transid })
        }
    }
}

/// A limit as the engine keeps it.
pub(super) fn limit(number: u64) -> Option<u64> {
    (number != UNLIMITED).then_some(number)
}

/// Limits after a change; `None` leaves one as it is.
pub(super) fn changed(limits: Limits, max_bytes: Option<u64>, max_inodes: Option<u64>) -> Limits {
    Limits {
        max_bytes: max_bytes.map_or(limits.max_bytes, limit),
        max_inodes: max_inodes.map_or(limits.max_inodes, limit),
    }
}

pub(super) async fn commit(
    shared: &Shared,
    reason: CommitReason,
    changes: Vec<RootChange>,
) -> Result<u64, WireError> {
    shared.commit(reason, changes).await.map_err(|_| ErrorCode::Io.into())
}

/// A change of the catalog failed: it is fatal for the change, and loud.
fn catalog_failed(error: StartError) -> WireError {
    tracing::error!(%error, "a change of the catalog failed");
    WireError::new(ErrorCode::Io, "the catalog could not be written; see the server's log")
}

/// Runs blocking work of the catalog on a thread that may block.
async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, StartError> + Send + 'static,
) -> Result<T, WireError> {
    let on_thread = Arc::clone(shared);
    let done = shared.writers.ask(move || work(&on_thread)).await;
    done.ok_or(ErrorCode::ShuttingDown)?.map_err(catalog_failed)
}

async fn issue(shared: &Arc<Shared>, tenant: TenantId, name: Label) -> Result<Token, WireError> {
    blocking(shared, move |shared| shared.tenants.issue(tenant, &name)).await
}

pub(super) async fn add_tenant(shared: &Arc<Shared>, name: Label) -> Result<(TenantId, Token), WireError> {
    let _one = shared.tenants.change.lock().await;
    if shared.tenants.known(&name).is_ok() {
        return Err(ErrorCode::Exists.into());
    }
    let id = shared.store.take_tenant_id();
    let item = TenantItem { limits: Limits::default(), name: name.to_string() };
    commit(shared, CommitReason::Administration, vec![RootChange::PutTenant(id, item)]).await?;
    shared.tenants.state.lock().tenants.insert(name.clone(), Tenant { id, limits: Limits::default() });
    tracing::info!(tenant = %name, id, "a tenant was added");
    Ok((id, issue(shared, id, name).await?))
}

async fn remove_tenant(shared: &Arc<Shared>, name: Label) -> Answer {
    let _one = shared.tenants.change.lock().await;
    let tenant = shared.tenants.known(&name)?;
    {
        let mut state = shared.tenants.state.lock();
        let owns = |(owner, _): &(TenantId, Label)| *owner == tenant.id;
        if state.volumes.keys().any(owns) || state.reserved.iter().any(owns) {
            return Err(ErrorCode::NotEmpty.into());
        }
        // From here on nobody authenticates as it or creates a volume for it.
        state.tenants.remove(&name);
    }
    commit(shared, CommitReason::Administration, vec![RootChange::RemoveTenant(tenant.id)]).await?;
    tracing::info!(tenant = %name, "a tenant was removed");
    blocking(shared, move |shared| shared.tenants.forget(tenant.id, &name)).await?;
    Ok(AdminResponse::Done)
}

async fn set_tenant(
    shared: &Arc<Shared>,
    name: &Label,
    max_bytes: Option<u64>,
    max_inodes: Option<u64>,
) -> Answer {
    let _one = shared.tenants.change.lock().await;
    let tenant = shared.tenants.known(name)?;
    let limits = changed(tenant.limits, max_bytes, max_inodes);
    shared.store.tenant_account(tenant.id).set_limits(limits);
    if let Some(known) = shared.tenants.state.lock().tenants.get_mut(name) {
        known.limits = limits;
    }
    let item = TenantItem { limits, name: name.to_string() };
    commit(shared, CommitReason::Administration, vec![RootChange::PutTenant(tenant.id, item)]).await?;
    Ok(AdminResponse::Done)
}

fn list_tenants(shared: &Shared, after: Option<&Label>) -> AdminResponse {
    let state = shared.tenants.state.lock();
    let mut behind = state.tenants.iter().filter(|(name, _)| after.is_none_or(|after| *name > after));
    let tenants = behind
        .by_ref()
        .take(MAX_LIST_PAGE)
        .map(|(name, tenant)| {
            let used = shared.store.tenant_account(tenant.id).usage();
            let volumes = state.volumes.keys().filter(|(owner, _)| *owner == tenant.id).count();
            TenantSummary {
                name: name.clone(),
                tenant: tenant.id,
                volumes: volumes as u64,
                used_bytes: used.bytes,
                max_bytes: tenant.limits.max_bytes.unwrap_or(UNLIMITED),
                used_inodes: used.inodes,
                max_inodes: tenant.limits.max_inodes.unwrap_or(UNLIMITED),
            }
        })
        .collect();
    AdminResponse::Tenants { tenants, more: behind.next().is_some() }
}

impl super::Tenants {
    fn known(&self, name: &Label) -> Result<Tenant, WireError> {
        self.state.lock().tenants.get(name).cloned().ok_or_else(|| ErrorCode::UnknownTenant.into())
    }
}
