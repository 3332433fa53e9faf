//! Tenants: who may come in, what they have, and what an administrator can do about it.
//!
//! Invariants: a tenant finds only its own volumes, and an unknown name and a foreign one give the same error; tokens are
//! kept as hashes and compared in constant time; what a reply reports is durable, on the device first, then in the
//! catalog, so that a crash in between leaves a tenant without a token (which can be issued again) and never a token
//! without a tenant.

mod admin;
pub mod catalog;
mod status;
mod volumes;

pub use admin::handle;

use crate::limits::TENANT_BYTES_MAX;
use crate::runtime;
use crate::server::{Shared, StartError};
use crate::session::permits::Budget;
use catalog::{Catalog, Record};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subtle::ConstantTimeEq as _;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::name::Label;
use subvol_protocol::request::{Credentials, VolumeRef};
use subvol_protocol::token::Token;
use subvol_storage::format::root_item::{RootItem, TenantItem, root_flags};
use subvol_storage::types::{Limits, SubvolumeId, TenantId};

/// The tenant of a new store.
pub const DEFAULT_TENANT: &str = "default";
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

type Hash = [u8; 32];

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Whose volumes it means when it names no tenant.
    pub tenant: Option<(TenantId, Label)>,
    /// May do everything.
    pub admin: bool,
    /// User and group of the process, if the kernel says so: they own the root directories of new volumes.
    pub owner: (u32, u32),
}

/// See the module.
pub struct Tenants {
    state: Mutex<State>,
    catalog: Mutex<Box<dyn Catalog>>,
    /// One change of tenants at a time.
    change: tokio::sync::Mutex<()>,
    data: PathBuf,
    administrator: u32,
}

#[derive(Default)]
struct State {
    tenants: BTreeMap<Label, Tenant>,
    by_hash: FxHashMap<Hash, Label>,
    volumes: BTreeMap<(TenantId, Label), SubvolumeId>,
    /// Names of volumes whose creation is not durable yet.
    reserved: FxHashSet<(TenantId, Label)>,
    records: BTreeMap<TenantId, Record>,
    budgets: FxHashMap<TenantId, Arc<Budget>>,
}

#[derive(Clone, Debug)]
struct Tenant {
    id: TenantId,
    limits: Limits,
}

impl Tenants {
    /// Tenants and volumes as the device has them, with the catalog's tokens.
    pub fn load(
        data: &Path,
        tenants: Vec<(TenantId, TenantItem)>,
        roots: &[(SubvolumeId, RootItem)],
    ) -> Result<Self, StartError> {
        let administrator = std::fs::metadata(data).map_err(|error| StartError::data(data, error))?.uid();
        let (catalog, records) = catalog::open(data)?;
        let mut state = State::default();
        for (id, item) in tenants {
            let Ok(name) = Label::new(&item.name) else {
                tracing::error!(tenant = id, name = ?item.name, "a tenant has an impossible name and is left out");
                continue;
            };
            state.tenants.insert(name, Tenant { id, limits: item.limits });
        }
        for (id, root) in roots {
            match Label::new(&root.name) {
                _ if root.flags & root_flags::DYING != 0 => {}
                Ok(name) => drop(state.volumes.insert((root.tenant, name), *id)),
                Err(_) => {
                    tracing::error!(subvolume = id, name = ?root.name, "a volume has an impossible name and is left out")
                }
            }
        }
        let loaded = Self {
            state: Mutex::new(state),
            catalog: Mutex::new(catalog),
            change: tokio::sync::Mutex::default(),
            data: data.to_owned(),
            administrator,
        };
        loaded.reconcile(records)?;
        Ok(loaded)
    }

    /// Makes catalog and device agree: records of tenants that do not exist go, tenants without a token get one.
    fn reconcile(&self, records: BTreeMap<TenantId, Record>) -> Result<(), StartError> {
        let tenants: Vec<(Label, TenantId)> =
            self.state.lock().tenants.iter().map(|(name, tenant)| (name.clone(), tenant.id)).collect();
        for (id, record) in records {
            let known = tenants.iter().find(|(_, tenant)| *tenant == id);
            match (known, hash_from_text(&record.token_hash)) {
                (Some((name, _)), Some(hash)) => {
                    let mut state = self.state.lock();
                    state.by_hash.insert(hash, name.clone());
                    state.records.insert(id, record);
                }
                (Some(_), None) => {
                    tracing::error!(tenant = ?record.name, "the catalog's record of a tenant is damaged")
                }
                (None, _) => {
                    tracing::warn!(tenant = ?record.name, "the catalog knows a tenant that does not exist: forgotten");
                    self.catalog.lock().remove(id)?;
                }
            }
        }
        for (name, id) in tenants {
            if !self.state.lock().records.contains_key(&id) {
                let token = self.issue(id, &name)?;
                let file = self.write_token(&name, &token)?;
                tracing::warn!(tenant = %name, ?file, "a tenant had no token; a new one is in the file");
            }
        }
        Ok(())
    }

    /// A store without tenants gets its first one, with the token in a file.
    pub async fn first_start(&self, shared: &Arc<Shared>) -> Result<(), WireError> {
        if !self.state.lock().tenants.is_empty() {
            return Ok(());
        }
        let name = Label::new(DEFAULT_TENANT).map_err(|_| ErrorCode::Internal)?;
        let (_, token) = admin::add_tenant(shared, name.clone()).await?;
        self.write_token(&name, &token)
            .map(|file| tracing::info!(?file, "the token of the first tenant is in the file"))
            .map_err(|error| WireError::new(ErrorCode::Io, &error.to_string()))
    }

    fn write_token(&self, name: &Label, token: &Token) -> Result<PathBuf, StartError> {
        let path = self.data.join(format!("{name}.token"));
        let mut text = token.expose().to_vec();
        text.push(b'\n');
        let written = catalog::write_private(&path, &text);
        text.fill(0);
        written.map_err(|error| StartError::data(&path, error))?;
        Ok(path)
    }

    /// A new token for a tenant; the old one stops working.
    fn issue(&self, tenant: TenantId, name: &Label) -> Result<Token, StartError> {
        let token = new_token()?;
        let hash: Hash = blake3::hash(token.expose()).into();
        let record = Record {
            tenant,
            name: name.to_string(),
            token_hash: text_of_hash(&hash),
            issued: runtime::now().seconds,
        };
        self.catalog.lock().put(&record)?;
        let mut state = self.state.lock();
        state.by_hash.retain(|_, other| other != name);
        state.by_hash.insert(hash, name.clone());
        state.records.insert(tenant, record);
        let records = state.records.clone();
        drop(state);
        catalog::write_export(&self.data, &records)?;
        Ok(token)
    }

    fn forget(&self, tenant: TenantId, name: &Label) -> Result<(), StartError> {
        self.catalog.lock().remove(tenant)?;
        let mut state = self.state.lock();
        state.by_hash.retain(|_, other| other != name);
        state.records.remove(&tenant);
        state.budgets.remove(&tenant);
        let records = state.records.clone();
        drop(state);
        catalog::write_export(&self.data, &records)?;
        Ok(())
    }

    /// Who these credentials belong to. `peer`: user and group of the other end, as the kernel knows them.
    pub fn authenticate(&self, credentials: &Credentials, peer: Option<(u32, u32)>) -> Option<Identity> {
        let state = self.state.lock();
        let owner = peer.unwrap_or((0, 0));
        let tenant = |name: &Label| state.tenants.get(name).map(|tenant| (tenant.id, name.clone()));
        match credentials {
            Credentials::Token(token) => {
                let hash: Hash = blake3::hash(token.expose()).into();
                // The table is reached by the hash of what was sent, so its timing tells nothing of the token.
                let (known, name) = state.by_hash.get_key_value(&hash)?;
                if !bool::from(known.ct_eq(&hash)) {
                    return None;
                }
                Some(Identity { tenant: Some(tenant(name)?), admin: false, owner })
            }
            Credentials::UnixPeer => {
                if peer?.0 != self.administrator {
                    return None;
                }
                let default = Label::new(DEFAULT_TENANT).ok()?;
                Some(Identity { tenant: tenant(&default), admin: true, owner })
            }
        }
    }

    /// The bytes that a tenant's connections may have under way.
    pub fn budget(&self, tenant: TenantId) -> Arc<Budget> {
        let mut state = self.state.lock();
        Arc::clone(state.budgets.entry(tenant).or_insert_with(|| Budget::new(TENANT_BYTES_MAX)))
    }

    /// Whom a request means: the named tenant (only an administrator may name another one), else the caller's own.
    pub fn meant(&self, identity: &Identity, named: Option<&Label>) -> Result<(TenantId, Label), WireError> {
        let Some(name) = named else {
            return identity
                .tenant
                .clone()
                .ok_or_else(|| WireError::new(ErrorCode::InvalidArgument, "name a tenant"));
        };
        if let Some((id, own)) = &identity.tenant
            && own == name
        {
            return Ok((*id, own.clone()));
        }
        // To everybody else other tenants do not exist.
        let known = self.state.lock().tenants.get(name).map(|tenant| tenant.id).filter(|_| identity.admin);
        known.map(|id| (id, name.clone())).ok_or_else(|| ErrorCode::UnknownTenant.into())
    }

    /// A volume of a tenant.
    pub fn volume(&self, tenant: TenantId, volume: &VolumeRef) -> Result<SubvolumeId, WireError> {
        let state = self.state.lock();
        let found = match volume {
            VolumeRef::Name(name) => state.volumes.get(&(tenant, name.clone())).copied(),
            VolumeRef::Id(id) => state
                .volumes
                .iter()
                .find(|((owner, _), known)| *owner == tenant && *known == id)
                .map(|(_, id)| *id),
        };
        found.ok_or_else(|| ErrorCode::UnknownVolume.into())
    }
}

fn new_token() -> Result<Token, StartError> {
    let mut secret = zeroize::Zeroizing::new([0; TOKEN_BYTES]);
    getrandom::fill(&mut *secret).map_err(|error| StartError::Random(error.to_string()))?;
    let text = zeroize::Zeroizing::new(text_of_hash(&secret));
    Token::new(text.as_bytes()).map_err(|error| StartError::Random(error.to_string()))
}

fn text_of_hash(bytes: &Hash) -> String {
    blake3::Hash::from(*bytes).to_hex().to_string()
}

fn hash_from_text(text: &str) -> Option<Hash> {
    blake3::Hash::from_hex(text).ok().map(Into::into)
}
