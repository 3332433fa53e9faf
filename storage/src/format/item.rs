//! The values of tree items as they stand on disk.
//!
//! Invariants: every layout is fixed and little-endian; parsing never panics and never trusts a length;
//! a value that does not parse is a [`Corruption`] naming the item.

use crate::error::Corruption;
use crate::format::key::Key;
use crate::types::{DiskTimestamp, InodeNumber, Timestamp};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A damaged item, for errors.
pub fn damaged(key: &Key, reason: &str) -> Corruption {
    Corruption { address: 0, what: format!("item {key:?}"), reason: reason.to_owned() }
}

/// Attributes of an inode; value of [`crate::format::key::ItemKind::Inode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInode {
    generation: U64,
    version: U64,
    size: U64,
    blocks: U64,
    parent: U64,
    rdev: U64,
    flags: U64,
    nlink: U32,
    mode: U32,
    uid: U32,
    gid: U32,
    xattrs: U32,
    atime: DiskTimestamp,
    mtime: DiskTimestamp,
    ctime: DiskTimestamp,
    btime: DiskTimestamp,
    reserved: [u8; 4],
}
const _: () = assert!(size_of::<DiskInode>() == 128);

/// Attributes of an inode in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeItem {
    /// Transaction that created it.
    pub generation: u64,
    /// Grows with every change of data or attributes.
    pub version: u64,
    /// Bytes; of a directory: number of entries; of a symbolic link: length of the target.
    pub size: u64,
    /// Mapped 4096-byte blocks (data in memory included).
    pub blocks: u64,
    /// Directories: inode number of the parent (the root's is its own); other inodes: 0.
    pub parent: InodeNumber,
    /// Device number of a character or block device.
    pub rdev: u64,
    /// Bits of [`inode_flags`].
    pub flags: u64,
    /// Names; of a directory 2 + number of subdirectories.
    pub nlink: u32,
    /// File type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of extended attributes.
    pub xattrs: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

/// Bits of [`InodeItem::flags`].
pub mod inode_flags {
    /// Extents past the end wait to be freed by background steps; an orphan item exists.
    pub const TRIM_PENDING: u64 = 1;
    /// Made without a name and never had one: the only kind of nameless inode that may get a name.
    pub const BORN_UNNAMED: u64 = 2;
}

/// `st_mode` type bits.
pub mod file_type {
    /// Mask of the type bits.
    pub const MASK: u32 = 0o170_000;
    /// Socket.
    pub const SOCKET: u32 = 0o140_000;
    /// Symbolic link.
    pub const SYMLINK: u32 = 0o120_000;
    /// Regular file.
    pub const REGULAR: u32 = 0o100_000;
    /// Block device.
    pub const BLOCK_DEVICE: u32 = 0o060_000;
    /// Directory.
    pub const DIRECTORY: u32 = 0o040_000;
    /// Character device.
    pub const CHARACTER_DEVICE: u32 = 0o020_000;
    /// Named pipe.
    pub const FIFO: u32 = 0o010_000;
}

impl InodeItem {
    /// Is it a directory?
    pub const fn is_directory(&self) -> bool {
        self.mode & file_type::MASK == file_type::DIRECTORY
    }

    /// Is it a regular file?
    pub const fn is_regular(&self) -> bool {
        self.mode & file_type::MASK == file_type::REGULAR
    }

    /// Is it a symbolic link?
    pub const fn is_symlink(&self) -> bool {
        self.mode & file_type::MASK == file_type::SYMLINK
    }

    /// The bytes of the item.
    pub fn to_disk(&self) -> DiskInode {
        DiskInode {
            generation: U64::new(self.generation),
            version: U64::new(self.version),
            size: U64::new(self.size),
            blocks: U64::new(self.blocks),
            parent: U64::new(self.parent),
            rdev: U64::new(self.rdev),
            flags: U64::new(self.flags),
            nlink: U32::new(self.nlink),
            mode: U32::new(self.mode),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            xattrs: U32::new(self.xattrs),
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            btime: self.btime.into(),
            reserved: [0; 4],
        }
    }

    /// The item in these bytes.
    pub fn parse(key: &Key, bytes: &[u8]) -> Result<Self, Corruption> {
        let disk =
            DiskInode::ref_from_bytes(bytes).map_err(|_| damaged(key, "inode item of a wrong length"))?;
        Ok(Self {
            generation: disk.generation.get(),
            version: disk.version.get(),
            size: disk.size.get(),
            blocks: disk.blocks.get(),
            parent: disk.parent.get(),
            rdev: disk.rdev.get(),
            flags: disk.flags.get(),
            nlink: disk.nlink.get(),
            mode: disk.mode.get(),
            uid: disk.uid.get(),
            gid: disk.gid.get(),
            xattrs: disk.xattrs.get(),
            atime: disk.atime.into(),
            mtime: disk.mtime.into(),
            ctime: disk.ctime.into(),
            btime: disk.btime.into(),
        })
    }
}

/// Fixed head of a directory entry; the name follows. Value of both entry kinds.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntry {
    inode: U64,
    /// By name: the entry id. By index: the hash slot of the name.
    other: U64,
    mode_type: U32,
}

/// A directory entry in memory, borrowed from its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryItem<'a> {
    /// The inode that the name stands for.
    pub inode: InodeNumber,
    /// By name: the entry id. By index: the hash slot of the name.
    pub other: u64,
    /// `st_mode` type bits of the inode.
    pub mode_type: u32,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> EntryItem<'a> {
    /// Appends the bytes of the item.
    pub fn write_to(&self, out: &mut impl Extend<u8>) {
        let head = DiskEntry {
            inode: U64::new(self.inode),
            other: U64::new(self.other),
            mode_type: U32::new(self.mode_type),
        };
        out.extend(head.as_bytes().iter().copied());
        out.extend(self.name.iter().copied());
    }

    /// The item in these bytes.
    pub fn parse(key: &Key, bytes: &'a [u8]) -> Result<Self, Corruption> {
        let (head, name) =
            DiskEntry::ref_from_prefix(bytes).map_err(|_| damaged(key, "directory entry is too short"))?;
        if name.is_empty() || name.len() > crate::limits::NAME_BYTES_MAX {
            return Err(damaged(key, "directory entry with a bad name length"));
        }
        Ok(Self { inode: head.inode.get(), other: head.other.get(), mode_type: head.mode_type.get(), name })
    }
}

/// Fixed head of an extended attribute; name, then the value if it is stored here.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskXattr {
    value_length: U32,
    name_length: U16,
    pieces: U16,
}

/// An extended attribute header in memory, borrowed from its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrItem<'a> {
    /// Bytes of the value.
    pub value_length: u32,
    /// Number of piece items that hold the value; 0 = the value is here.
    pub pieces: u16,
    /// The name.
    pub name: &'a [u8],
    /// The value when `pieces == 0`, else empty.
    pub value: &'a [u8],
}

impl<'a> XattrItem<'a> {
    /// Appends the bytes of the item.
    pub fn write_to(&self, out: &mut impl Extend<u8>) {
        let head = DiskXattr {
            value_length: U32::new(self.value_length),
            name_length: U16::new(self.name.len() as u16),
            pieces: U16::new(self.pieces),
        };
        out.extend(head.as_bytes().iter().copied());
        out.extend(self.name.iter().copied());
        out.extend(self.value.iter().copied());
    }

    /// The item in these bytes.
    pub fn parse(key: &Key, bytes: &'a [u8]) -> Result<Self, Corruption> {
        let (head, rest) =
            DiskXattr::ref_from_prefix(bytes).map_err(|_| damaged(key, "extended attribute is too short"))?;
        let name_length = usize::from(head.name_length.get());
        let (name, value) = rest
            .split_at_checked(name_length)
            .ok_or_else(|| damaged(key, "extended attribute with a lying name length"))?;
        let item = Self { value_length: head.value_length.get(), pieces: head.pieces.get(), name, value };
        let expected = if item.pieces == 0 { item.value_length as usize } else { 0 };
        if value.len() != expected || name.is_empty() {
            return Err(damaged(key, "extended attribute with a lying value length"));
        }
        Ok(item)
    }
}

/// Kinds of extents on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExtentKind {
    /// The data stands in the item.
    Inline = 1,
    /// The data stands on the device.
    Regular = 2,
    /// Space is allocated, reads give zeros.
    Preallocated = 3,
}

/// Fixed head of an extent; checksums (regular) or data (inline) follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskExtent {
    kind: u8,
    compression: u8,
    reserved: [u8; 6],
    length: U64,
    address: U64,
    generation: U64,
}

/// A file extent in memory, borrowed from its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentItem<'a> {
    /// Where the data is.
    pub kind: ExtentKind,
    /// Bytes of the file that it maps; multiple of 4096 unless inline.
    pub length: u64,
    /// Device address; 0 when inline.
    pub address: u64,
    /// Transaction that wrote it.
    pub generation: u64,
    /// Regular: crc32c of each block, 4 bytes little-endian each. Inline: the data. Preallocated: empty.
    pub tail: &'a [u8],
}

impl<'a> ExtentItem<'a> {
    /// Appends the bytes of the item.
    pub fn write_to(&self, out: &mut impl Extend<u8>) {
        let head = DiskExtent {
            kind: self.kind as u8,
            compression: 0,
            reserved: [0; 6],
            length: U64::new(self.length),
            address: U64::new(self.address),
            generation: U64::new(self.generation),
        };
        out.extend(head.as_bytes().iter().copied());
        out.extend(self.tail.iter().copied());
    }

    /// The item in these bytes.
    pub fn parse(key: &Key, bytes: &'a [u8]) -> Result<Self, Corruption> {
        use crate::limits::{BLOCK_BYTES, EXTENT_BYTES_MAX, INLINE_BYTES_MAX};
        let (head, tail) =
            DiskExtent::ref_from_prefix(bytes).map_err(|_| damaged(key, "extent is too short"))?;
        let length = head.length.get();
        let blocks = length / BLOCK_BYTES;
        let whole = length > 0 && length % BLOCK_BYTES == 0;
        let (kind, sound) = match head.kind {
            1 => (ExtentKind::Inline, tail.len() as u64 == length && tail.len() <= INLINE_BYTES_MAX),
            2 => {
                (ExtentKind::Regular, whole && length <= EXTENT_BYTES_MAX && tail.len() as u64 == blocks * 4)
            }
            3 => (ExtentKind::Preallocated, whole && tail.is_empty()),
            _ => return Err(damaged(key, "extent of an unknown kind")),
        };
        if !sound || head.compression != 0 || head.address.get() % BLOCK_BYTES != 0 {
            return Err(damaged(key, "extent whose lengths do not fit its kind"));
        }
        let end = key.offset.checked_add(length).filter(|_| key.offset.is_multiple_of(BLOCK_BYTES));
        if end.is_none() {
            return Err(damaged(key, "extent at an impossible file offset"));
        }
        Ok(Self { kind, length, address: head.address.get(), generation: head.generation.get(), tail })
    }

    /// crc32c of block `index` of a regular extent.
    pub fn checksum(&self, index: usize) -> Option<u32> {
        let bytes = self.tail.get(index * 4..index * 4 + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::ItemKind;

    const KEY: Key = Key::new(300, ItemKind::Extent, 4096);

    #[test]
    fn lying_extents_are_refused() {
        let good = ExtentItem {
            kind: ExtentKind::Regular,
            length: 8192,
            address: 1 << 20,
            generation: 7,
            tail: &[1, 2, 3, 4, 5, 6, 7, 8],
        };
        let mut bytes = Vec::new();
        good.write_to(&mut bytes);
        assert_eq!(ExtentItem::parse(&KEY, &bytes), Ok(good));
        assert_eq!(good.checksum(1), Some(u32::from_le_bytes([5, 6, 7, 8])));
        assert_eq!(good.checksum(2), None);
        for cut in 0..bytes.len() {
            assert!(ExtentItem::parse(&KEY, &bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut odd = bytes.clone();
        odd[8] = 1;
        assert!(ExtentItem::parse(&KEY, &odd).is_err());
        odd.clone_from(&bytes);
        odd[0] = 9;
        assert!(ExtentItem::parse(&KEY, &odd).is_err());
        let misplaced = Key::new(300, ItemKind::Extent, u64::MAX - 4095);
        assert!(ExtentItem::parse(&misplaced, &bytes).is_err());
    }

    #[test]
    fn entries_and_xattrs_round_trip_and_refuse_lies() {
        let key = Key::new(256, ItemKind::EntryByName, 5);
        let entry = EntryItem { inode: 300, other: 9, mode_type: file_type::REGULAR, name: b"foo" };
        let mut bytes = Vec::new();
        entry.write_to(&mut bytes);
        assert_eq!(EntryItem::parse(&key, &bytes), Ok(entry));
        assert!(EntryItem::parse(&key, &bytes[..20]).is_err());

        let key = Key::new(256, ItemKind::Xattr, 5);
        let xattr = XattrItem { value_length: 3, pieces: 0, name: b"user.a", value: b"abc" };
        let mut bytes = Vec::new();
        xattr.write_to(&mut bytes);
        assert_eq!(XattrItem::parse(&key, &bytes), Ok(xattr));
        for cut in 0..bytes.len() {
            assert!(XattrItem::parse(&key, &bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
