//! [`Admin`]: tenants, volumes, status.

use bytes::Bytes;
use subvol_protocol::limits::UNLIMITED;
use subvol_protocol::name::Label;
use subvol_protocol::request::{AdminRequest, Request, VolumeRef};
use subvol_protocol::response::{AdminResponse, Response, StatusReport, TenantSummary, VolumeSummary};
use subvol_protocol::token::Token;

use crate::channel::Channel;
use crate::error::{ClientError, Result};

/// Limits of a tenant or volume; in a change, `None` leaves one as it is, and for a new volume it means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes; [`UNLIMITED`] for no limit.
    pub max_bytes: Option<u64>,
    /// Inodes; [`UNLIMITED`] for no limit.
    pub max_inodes: Option<u64>,
}

/// A tenant's number and its new token, which is never shown again.
#[derive(Clone, Debug)]
pub struct NewTenant {
    /// The tenant's number.
    pub tenant: u64,
    /// The secret.
    pub token: Token,
}

/// Administration. Tenant calls need an administrator's token; volume calls act on one tenant.
#[derive(Clone, Debug)]
pub struct Admin {
    channel: Channel,
    tenant: Option<Label>,
}

macro_rules! ask {
    ($self:ident, $name:literal, $request:expr, $answer:pat => $value:expr) => {
        match $self.channel.call(Request::Admin($request), Bytes::new()).await?.response {
            Response::Admin($answer) => Ok($value),
            _ => Err(ClientError::unexpected($name)),
        }
    };
}

fn label(text: &str) -> Result<Label> {
    Label::new(text).map_err(|error| ClientError::name(text, error))
}

/// Every method's errors are the server's ([`ClientError::Server`]), an impossible name ([`ClientError::Name`]), and those of a connection.
#[allow(clippy::missing_errors_doc, reason = "the same for all, and said above")]
impl Admin {
    pub(crate) const fn new(channel: Channel, tenant: Option<Label>) -> Self {
        Self { channel, tenant }
    }

    /// The same for the volumes of another tenant; needs an administrator. `None`: the credentials' own.
    #[must_use]
    pub fn for_tenant(&self, tenant: Option<Label>) -> Self {
        Self { channel: self.channel.clone(), tenant }
    }

    /// Adds a tenant. Its token is shown only here.
    pub async fn tenant_add(&self, name: &str) -> Result<NewTenant> {
        ask!(self, "TenantAdd", AdminRequest::TenantAdd { name: label(name)? },
            AdminResponse::TenantToken { tenant, token } => NewTenant { tenant, token })
    }

    /// Gives a tenant a new token; the old one stops working for new connections.
    pub async fn token_reissue(&self, name: &str) -> Result<NewTenant> {
        ask!(self, "TokenReissue", AdminRequest::TokenReissue { name: label(name)? },
            AdminResponse::TenantToken { tenant, token } => NewTenant { tenant, token })
    }

    /// All tenants, by name.
    pub async fn tenant_list(&self) -> Result<Vec<TenantSummary>> {
        let mut all: Vec<TenantSummary> = Vec::new();
        loop {
            let after = all.last().map(|tenant| tenant.name.clone());
            let (page, more) = ask!(self, "TenantList", AdminRequest::TenantList { after: after.clone() },
                AdminResponse::Tenants { tenants, more } => (tenants, more))?;
            // A page that does not advance would be asked for again for ever.
            let advances = page.last().is_some_and(|last| after.is_none_or(|after| last.name > after));
            all.extend(page);
            match (more, advances) {
                (false, _) => return Ok(all),
                (true, true) => {}
                (true, false) => return Err(ClientError::unexpected("TenantList")),
            }
        }
    }

    /// Removes a tenant that has no volumes.
    pub async fn tenant_remove(&self, name: &str) -> Result<()> {
        ask!(self, "TenantRemove", AdminRequest::TenantRemove { name: label(name)? }, AdminResponse::Done => ())
    }

    /// Changes a tenant's limits.
    pub async fn tenant_set(&self, name: &str, limits: Limits) -> Result<()> {
        let Limits { max_bytes, max_inodes } = limits;
        ask!(self, "TenantSet", AdminRequest::TenantSet { name: label(name)?, max_bytes, max_inodes },
            AdminResponse::Done => ())
    }

    /// Creates an empty volume and returns its number.
    pub async fn volume_create(&self, name: &str, limits: Limits) -> Result<u64> {
        let request = AdminRequest::VolumeCreate {
            tenant: self.tenant.clone(),
            name: label(name)?,
            max_bytes: limits.max_bytes.unwrap_or(UNLIMITED),
            max_inodes: limits.max_inodes.unwrap_or(UNLIMITED),
        };
        ask!(self, "VolumeCreate", request, AdminResponse::VolumeCreated { subvolume } => subvolume)
    }

    /// All volumes of the tenant, by name.
    pub async fn volume_list(&self) -> Result<Vec<VolumeSummary>> {
        let mut all: Vec<VolumeSummary> = Vec::new();
        loop {
            let after = all.last().map(|volume| volume.name.clone());
            let request = AdminRequest::VolumeList { tenant: self.tenant.clone(), after: after.clone() };
            let (page, more) = ask!(self, "VolumeList", request, AdminResponse::Volumes { volumes, more } => (volumes, more))?;
            let advances = page.last().is_some_and(|last| after.is_none_or(|after| last.name > after));
            all.extend(page);
            match (more, advances) {
                (false, _) => return Ok(all),
                (true, true) => {}
                (true, false) => return Err(ClientError::unexpected("VolumeList")),
            }
        }
    }

    /// Removes a volume and everything in it; `Busy` while somebody is attached.
    pub async fn volume_remove(&self, volume: VolumeRef) -> Result<()> {
        ask!(self, "VolumeRemove", AdminRequest::VolumeRemove { tenant: self.tenant.clone(), volume },
            AdminResponse::Done => ())
    }

    /// Changes a volume's limits.
    pub async fn volume_set(&self, volume: VolumeRef, limits: Limits) -> Result<()> {
        let Limits { max_bytes, max_inodes } = limits;
        let request = AdminRequest::VolumeSet { tenant: self.tenant.clone(), volume, max_bytes, max_inodes };
        ask!(self, "VolumeSet", request, AdminResponse::Done => ())
    }

    /// How the store and the tenant's volumes (or one of them) are doing.
    pub async fn status(&self, volume: Option<VolumeRef>) -> Result<StatusReport> {
        ask!(self, "Status", AdminRequest::Status { tenant: self.tenant.clone(), volume },
            AdminResponse::Status(report) => *report)
    }

    /// Commits everything of the whole store and returns the transaction that is durable.
    pub async fn sync_store(&self) -> Result<u64> {
        ask!(self, "SyncStore", AdminRequest::SyncStore, AdminResponse::StoreSynced { transid } => transid)
    }
}
