//! Requests about tenants, volumes and the store.
//!
//! Tenant requests need an administrator. Volume requests act on the caller's own tenant; an administrator names one. A limit is in
//! bytes or inodes, [`crate::limits::UNLIMITED`] for none; `None` in a change leaves it as it is.

use bincode::{Decode, Encode};

use super::session::VolumeRef;
use crate::name::Label;

/// About tenants, volumes and the store.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum AdminRequest {
    /// Adds a tenant. Reply: `TenantToken`, the only time the token is shown.
    TenantAdd {
        /// Its name.
        name: Label,
    },
    /// Lists tenants by name. Reply: `Tenants`.
    TenantList {
        /// Start behind this name.
        after: Option<Label>,
    },
    /// Removes a tenant that has no volumes any more (else `NotEmpty`). Reply: `Done`.
    TenantRemove {
        /// Its name.
        name: Label,
    },
    /// Changes a tenant's limits. A limit below the usage stops growth, nothing else. Reply: `Done`.
    TenantSet {
        /// Its name.
        name: Label,
        /// Bytes over all its volumes.
        max_bytes: Option<u64>,
        /// Inodes over all its volumes.
        max_inodes: Option<u64>,
    },
    /// Gives a tenant a new token; the old one stops working for new connections. Reply: `TenantToken`.
    TokenReissue {
        /// Its name.
        name: Label,
    },
    /// Creates an empty volume. Reply: `VolumeCreated`.
    VolumeCreate {
        /// Whose; `None` for the caller's own tenant.
        tenant: Option<Label>,
        /// Its name, unique within the tenant.
        name: Label,
        /// Limit in bytes.
        max_bytes: u64,
        /// Limit in inodes.
        max_inodes: u64,
    },
    /// Lists volumes by name. Reply: `Volumes`.
    VolumeList {
        /// Whose; `None` for the caller's own tenant.
        tenant: Option<Label>,
        /// Start behind this name.
        after: Option<Label>,
    },
    /// Removes a volume and everything in it. Refused with `Busy` while somebody is attached. Space comes back in the background.
    /// Reply: `Done`.
    VolumeRemove {
        /// Whose; `None` for the caller's own tenant.
        tenant: Option<Label>,
        /// Which.
        volume: VolumeRef,
    },
    /// Changes a volume's limits. Reply: `Done`.
    VolumeSet {
        /// Whose; `None` for the caller's own tenant.
        tenant: Option<Label>,
        /// Which.
        volume: VolumeRef,
        /// Limit in bytes.
        max_bytes: Option<u64>,
        /// Limit in inodes.
        max_inodes: Option<u64>,
    },
    /// How the store is doing. A tenant sees its own volumes and no store-wide numbers. Reply: `Status`.
    Status {
        /// Whose volumes; `None` for the caller's own tenant, and for all of them if an administrator asks.
        tenant: Option<Label>,
        /// Only this volume, or as many as fit a report.
        volume: Option<VolumeRef>,
    },
    /// Commits everything of the whole store. Needs an administrator. Reply: `StoreSynced` once it is durable.
    SyncStore,
}

impl AdminRequest {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::TenantAdd { .. } => "TenantAdd",
            Self::TenantList { .. } => "TenantList",
            Self::TenantRemove { .. } => "TenantRemove",
            Self::TenantSet { .. } => "TenantSet",
            Self::TokenReissue { .. } => "TokenReissue",
            Self::VolumeCreate { .. } => "VolumeCreate",
            Self::VolumeList { .. } => "VolumeList",
            Self::VolumeRemove { .. } => "VolumeRemove",
            Self::VolumeSet { .. } => "VolumeSet",
            Self::Status { .. } => "Status",
            Self::SyncStore => "SyncStore",
        }
    }

    pub(super) const fn is_changing(&self) -> bool {
        !matches!(
            self,
            Self::TenantList { .. } | Self::VolumeList { .. } | Self::Status { .. } | Self::SyncStore
        )
    }
}
