//! Root tree items: one per subvolume and one per tenant.
//!
//! A subvolume's item is everything needed to open it: root address, counters, and which log records its tree holds
//! already (`covered_sequence`: replay starts after it). Names are kept here so that the catalog can be rebuilt from
//! the device alone.

use crate::error::Corruption;
use crate::format::item::damaged;
use crate::format::key::Key;
use crate::format::superblock::DiskPointer;
use crate::tree::BlockPointer;
use crate::types::{DiskTimestamp, Limits, SubvolumeId, TenantId, Timestamp, Usage};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "No limit" on disk.
const UNLIMITED: u64 = u64::MAX;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskRoot {
    root: DiskPointer,
    tenant: U64,
    flags: U64,
    next_id: U64,
    bytes: U64,
    inodes: U64,
    max_bytes: U64,
    max_inodes: U64,
    covered_sequence: U64,
    last_snapshot_generation: U64,
    origin: U64,
    created: DiskTimestamp,
    name_length: U16,
    reserved: [u8; 2],
}
const _: () = assert!(size_of::<DiskRoot>() == 120);

/// Bits of [`RootItem::flags`].
pub mod root_flags {
    /// The subvolume is deleted; background steps free what it holds.
    pub const DYING: u64 = 1;
    /// A read-only snapshot.
    pub const READ_ONLY: u64 = 2;
}

/// A subvolume as the root tree knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootItem {
    /// Root of its tree.
    pub root: Option<BlockPointer>,
    /// Whose it is.
    pub tenant: TenantId,
    /// Bits of [`root_flags`].
    pub flags: u64,
    /// Next inode number or entry id.
    pub next_id: u64,
    /// In use.
    pub usage: Usage,
    /// Limits.
    pub limits: Limits,
    /// The last log record that the tree contains.
    pub covered_sequence: u64,
    /// Blocks born after this transaction are not shared with any snapshot.
    pub last_snapshot_generation: u64,
    /// The subvolume that it is a snapshot of, or 0.
    pub origin: SubvolumeId,
    /// When it was made.
    pub created: Timestamp,
    /// Name within its tenant.
    pub name: String,
}

fn limit_to_disk(limit: Option<u64>) -> U64 {
    U64::new(limit.unwrap_or(UNLIMITED))
}

fn limit_from_disk(limit: U64) -> Option<u64> {
    (limit.get() != UNLIMITED).then(|| limit.get())
}

fn name_from_disk(key: &Key, bytes: &[u8], length: U16) -> Result<String, Corruption> {
    if bytes.len() != usize::from(length.get()) {
        return Err(damaged(key, "name of a lying length"));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| damaged(key, "name that is not UTF-8"))
}

impl RootItem {
    /// The bytes of the item.
    pub fn to_bytes(&self) -> Vec<u8> {
        let disk = DiskRoot {
            root: self.root.into(),
            tenant: U64::new(self.tenant),
            flags: U64::new(self.flags),
            next_id: U64::new(self.next_id),
            bytes: U64::new(self.usage.bytes),
            inodes: U64::new(self.usage.inodes),
            max_bytes: limit_to_disk(self.limits.max_bytes),
            max_inodes: limit_to_disk(self.limits.max_inodes),
            covered_sequence: U64::new(self.covered_sequence),
            last_snapshot_generation: U64::new(self.last_snapshot_generation),
            origin: U64::new(self.origin),
            created: self.created.into(),
            name_length: U16::new(self.name.len() as u16),
            reserved: [0; 2],
        };
        let mut bytes = disk.as_bytes().to_vec();
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    /// The item in these bytes.
    pub fn parse(key: &Key, bytes: &[u8]) -> Result<Self, Corruption> {
        let (disk, name) =
            DiskRoot::ref_from_prefix(bytes).map_err(|_| damaged(key, "subvolume item is too short"))?;
        Ok(Self {
            root: disk.root.into(),
            tenant: disk.tenant.get(),
            flags: disk.flags.get(),
            next_id: disk.next_id.get(),
            usage: Usage { bytes: disk.bytes.get(), inodes: disk.inodes.get() },
            limits: Limits {
                max_bytes: limit_from_disk(disk.max_bytes),
                max_inodes: limit_from_disk(disk.max_inodes),
            },
            covered_sequence: disk.covered_sequence.get(),
            last_snapshot_generation: disk.last_snapshot_generation.get(),
            origin: disk.origin.get(),
            created: disk.created.into(),
            name: name_from_disk(key, name, disk.name_length)?,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskTenant {
    max_bytes: U64,
    max_inodes: U64,
    name_length: U16,
    reserved: [u8; 6],
}

/// A tenant as the root tree knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantItem {
    /// Limits over all its subvolumes.
    pub limits: Limits,
    /// Its name.
    pub name: String,
}

impl TenantItem {
    /// The bytes of the item.
    pub fn to_bytes(&self) -> Vec<u8> {
        let disk = DiskTenant {
            max_bytes: limit_to_disk(self.limits.max_bytes),
            max_inodes: limit_to_disk(self.limits.max_inodes),
            name_length: U16::new(self.name.len() as u16),
            reserved: [0; 6],
        };
        let mut bytes = disk.as_bytes().to_vec();
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    /// The item in these bytes.
    pub fn parse(key: &Key, bytes: &[u8]) -> Result<Self, Corruption> {
        let (disk, name) =
            DiskTenant::ref_from_prefix(bytes).map_err(|_| damaged(key, "tenant item is too short"))?;
        Ok(Self {
            limits: Limits {
                max_bytes: limit_from_disk(disk.max_bytes),
                max_inodes: limit_from_disk(disk.max_inodes),
            },
            name: name_from_disk(key, name, disk.name_length)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::ItemKind;

    #[test]
    fn items_round_trip_and_refuse_every_cut() {
        let key = Key::new(256, ItemKind::Root, 0);
        let item = RootItem {
            root: Some(BlockPointer { address: 1 << 30, generation: 3, level: 2 }),
            tenant: 1,
            flags: root_flags::READ_ONLY,
            next_id: 900,
            usage: Usage { bytes: 8192, inodes: 2 },
            limits: Limits { max_bytes: Some(1), max_inodes: None },
            covered_sequence: 77,
            last_snapshot_generation: 2,
            origin: 0,
            created: Timestamp::new(-5, 9),
            name: "données".to_owned(),
        };
        let bytes = item.to_bytes();
        assert_eq!(RootItem::parse(&key, &bytes), Ok(item));
        for cut in 0..bytes.len() {
            assert!(RootItem::parse(&key, &bytes[..cut]).is_err());
        }
        let tenant = TenantItem { limits: Limits::default(), name: "default".to_owned() };
        assert_eq!(TenantItem::parse(&key, &tenant.to_bytes()), Ok(tenant));
    }
}
