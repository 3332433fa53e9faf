//! The catalog: who may come in. A small key-value store beside the device, exported to a plain file on each change.
//!
//! The device is the authority for which tenants and volumes exist; the catalog adds what the device does not keep: token
//! hashes. Invariants: every change is flushed before it is reported; a failed flush is an error of the change; a catalog
//! that cannot be opened is moved aside, never deleted, and rebuilt: from the export if it can be read (tokens go on
//! working), else from the device (tokens are issued anew).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use subvol_storage::types::TenantId;

const FOLDER: &str = "catalog";
const EXPORT: &str = "catalog.json";

/// What the catalog knows of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Number.
    pub tenant: TenantId,
    /// Name, for people: the device's counts.
    pub name: String,
    /// blake3 of the token, in hexadecimal.
    pub token_hash: String,
    /// When the token was issued, in seconds since 1970.
    pub issued: i64,
}

/// Records by tenant.
pub type Records = BTreeMap<TenantId, Record>;

/// A catalog that could not be changed or read.
#[derive(Debug, thiserror::Error)]
#[error("the catalog in {folder:?} failed: {reason}")]
pub struct CatalogError {
    /// Where it is.
    pub folder: PathBuf,
    /// What happened.
    pub reason: String,
}

/// A store of records. Every method returns after what it did is durable.
pub trait Catalog: Send {
    /// All records.
    fn load(&self) -> Result<Records, CatalogError>;
    /// Adds or replaces one.
    fn put(&self, record: &Record) -> Result<(), CatalogError>;
    /// Removes one.
    fn remove(&self, tenant: TenantId) -> Result<(), CatalogError>;
}

/// The catalog on sled.
pub struct SledCatalog {
    database: sled::Db,
    folder: PathBuf,
}

impl SledCatalog {
    fn open(folder: &Path) -> Result<Self, CatalogError> {
        let database = sled::Config::new()
            .path(folder)
            .cache_capacity(1 << 20)
            // Its background flush only logs errors; every change is flushed here instead.
            .flush_every_ms(None)
            .open()
            .map_err(|error| failure(folder, &error))?;
        Ok(Self { database, folder: folder.to_owned() })
    }

    fn flush(&self) -> Result<(), CatalogError> {
        self.database.flush().map(|_| ()).map_err(|error| failure(&self.folder, &error))
    }
}

fn failure(folder: &Path, reason: &dyn std::fmt::Display) -> CatalogError {
    CatalogError { folder: folder.to_owned(), reason: reason.to_string() }
}

impl Catalog for SledCatalog {
    fn load(&self) -> Result<Records, CatalogError> {
        let mut records = BTreeMap::new();
        for item in self.database.iter() {
            let (_, value) = item.map_err(|error| failure(&self.folder, &error))?;
            let record: Record =
                serde_json::from_slice(&value).map_err(|error| failure(&self.folder, &error))?;
            records.insert(record.tenant, record);
        }
        Ok(records)
    }

    fn put(&self, record: &Record) -> Result<(), CatalogError> {
        let value = serde_json::to_vec(record).map_err(|error| failure(&self.folder, &error))?;
        self.database
            .insert(record.tenant.to_be_bytes(), value)
            .map_err(|error| failure(&self.folder, &error))?;
        self.flush()
    }

    fn remove(&self, tenant: TenantId) -> Result<(), CatalogError> {
        self.database.remove(tenant.to_be_bytes()).map_err(|error| failure(&self.folder, &error))?;
        self.flush()
    }
}

/// Opens the catalog of a data folder with all its records. A broken one is moved aside and rebuilt from the export.
pub fn open(data: &Path) -> Result<(Box<dyn Catalog>, Records), CatalogError> {
    let folder = data.join(FOLDER);
    let existed = folder.exists();
    let opened = SledCatalog::open(&folder).and_then(|catalog| Ok((catalog.load()?, catalog)));
    let reason = match opened {
        Ok((records, catalog)) if existed || !data.join(EXPORT).exists() => {
            return Ok((Box::new(catalog), records));
        }
        // The folder is gone but its export is there: as good as broken.
        Ok(_) => "it was missing".to_owned(),
        Err(error) => error.reason,
    };
    tracing::error!(?folder, %reason, "the catalog cannot be used; it is moved aside and rebuilt");
    if folder.exists() {
        move_aside(&folder)?;
    }
    let catalog = SledCatalog::open(&folder)?;
    let records = match read_export(data) {
        Ok(records) => {
            tracing::warn!(
                tenants = records.len(),
                "the catalog was rebuilt from its export; tokens go on working"
            );
            records
        }
        Err(error) => {
            tracing::error!(%error, "the catalog's export cannot be read either; tokens are issued anew");
            BTreeMap::new()
        }
    };
    for record in records.values() {
        catalog.put(record)?;
    }
    Ok((Box::new(catalog), records))
}

/// Opens the catalog of a data folder, reads it and closes it. The library may panic on a damaged one, so this is for a
/// process that may die of it.
///
/// # Errors
/// The catalog cannot be opened or read.
pub fn probe(data: &Path) -> Result<(), CatalogError> {
    let folder = data.join(FOLDER);
    if folder.exists() {
        SledCatalog::open(&folder)?.load()?;
    }
    Ok(())
}

/// Moves the catalog of a data folder aside: it will be rebuilt from its export or from the device.
///
/// # Errors
/// It cannot be renamed.
pub fn set_aside(data: &Path) -> Result<(), CatalogError> {
    let folder = data.join(FOLDER);
    if folder.exists() { move_aside(&folder) } else { Ok(()) }
}

fn move_aside(folder: &Path) -> Result<(), CatalogError> {
    for number in 1..1000 {
        let aside = folder.with_extension(format!("broken-{number}"));
        if !aside.exists() {
            return std::fs::rename(folder, &aside).map_err(|error| failure(folder, &error));
        }
    }
    Err(failure(folder, &"there are a thousand broken ones beside it already"))
}

/// Writes all records to the plain file beside the catalog, replacing the one before in one step.
pub fn write_export(data: &Path, records: &Records) -> Result<(), CatalogError> {
    let path = data.join(EXPORT);
    let fail = |error: &dyn std::fmt::Display| failure(&path, error);
    let rows: Vec<&Record> = records.values().collect();
    let text = serde_json::to_vec_pretty(&rows).map_err(|error| fail(&error))?;
    write_private(&path, &text).map_err(|error| fail(&error))
}

fn read_export(data: &Path) -> Result<Records, CatalogError> {
    let path = data.join(EXPORT);
    let text = std::fs::read(&path).map_err(|error| failure(&path, &error))?;
    let rows: Vec<Record> = serde_json::from_slice(&text).map_err(|error| failure(&path, &error))?;
    Ok(rows.into_iter().map(|record| (record.tenant, record)).collect())
}

/// Replaces a file that only its owner may read, durably and in one step.
pub fn write_private(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(contents)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tenant: TenantId) -> Record {
        Record { tenant, name: format!("t{tenant}"), token_hash: "00".repeat(32), issued: 5 }
    }

    #[test]
    fn records_survive_and_a_broken_catalog_comes_back_from_its_export() {
        let folder = tempfile::tempdir().expect("a folder");
        let (catalog, records) = open(folder.path()).expect("opened");
        assert!(records.is_empty());
        catalog.put(&record(1)).expect("put");
        catalog.put(&record(2)).expect("put");
        catalog.remove(1).expect("removed");
        drop(catalog);
        let (catalog, records) = open(folder.path()).expect("opened");
        assert_eq!(records, BTreeMap::from([(2, record(2))]));
        write_export(folder.path(), &records).expect("exported");
        drop(catalog);
        std::fs::remove_dir_all(folder.path().join(FOLDER)).expect("removed");
        std::fs::write(folder.path().join(FOLDER), b"not a folder").expect("written");
        let (_catalog, records) = open(folder.path()).expect("rebuilt");
        assert_eq!(records, BTreeMap::from([(2, record(2))]));
        assert!(folder.path().join("catalog.broken-1").exists(), "nothing is thrown away");
    }
}
