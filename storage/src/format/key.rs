//! The key of every item in a subvolume tree, the root tree and the references tree.
//!
//! Invariants: keys order by (inode, kind, offset); the numeric values of kinds are part of the disk format
//! and never change meaning; a kind this version does not know is refused when a node is verified.

/// What an item is. The order of the numbers is the order of items below one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ItemKind {
    /// Inode attributes; offset 0. See [`crate::format::item::InodeItem`].
    Inode = 1,
    /// Back reference: offset = entry id of the name, value = the directory's inode number.
    BackReference = 2,
    /// Directory entry by name: offset = hash slot of the name.
    EntryByName = 3,
    /// Directory entry by entry id (= readdir cookie): offset = entry id.
    EntryByIndex = 4,
    /// Extended attribute header: offset = hash slot of the name.
    Xattr = 5,
    /// A piece of a large extended attribute value: offset = slot << 4 | piece.
    XattrPiece = 6,
    /// Target of a symbolic link; offset 0.
    SymlinkTarget = 7,
    /// File data: offset = first byte of the file range.
    Extent = 8,
    /// Inode without a name, or with blocks past its end that wait to be trimmed.
    /// Lives under the reserved inode [`crate::limits::ORPHAN_DIRECTORY`]; offset = inode number.
    Orphan = 9,
    /// Root tree: one subvolume; inode = subvolume id, offset 0.
    Root = 20,
    /// Root tree: one tenant; inode = [`crate::limits::TENANT_DIRECTORY`], offset = tenant id.
    Tenant = 21,
    /// References tree: inode = block address, offset = length in bytes, value = count (always >= 2).
    Reference = 30,
}

impl ItemKind {
    /// The kind for a number read from disk, or `None` when this version does not know it.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Inode,
            2 => Self::BackReference,
            3 => Self::EntryByName,
            4 => Self::EntryByIndex,
            5 => Self::Xattr,
            6 => Self::XattrPiece,
            7 => Self::SymlinkTarget,
            8 => Self::Extent,
            9 => Self::Orphan,
            20 => Self::Root,
            21 => Self::Tenant,
            30 => Self::Reference,
            _ => return None,
        })
    }
}

/// Where an item stands in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Inode number, or what takes its place in the root and references trees.
    pub inode: u64,
    /// What the item is.
    pub kind: ItemKind,
    /// Position among the items of that kind.
    pub offset: u64,
}

impl Key {
    /// The smallest key there is.
    pub const FIRST: Self = Self { inode: 0, kind: ItemKind::Inode, offset: 0 };
    /// The largest key there is.
    pub const LAST: Self = Self { inode: u64::MAX, kind: ItemKind::Reference, offset: u64::MAX };

    /// A key of its three parts.
    pub const fn new(inode: u64, kind: ItemKind, offset: u64) -> Self {
        Self { inode, kind, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_kinds_round_trip_and_unknown_ones_are_refused() {
        for value in 0..=u8::MAX {
            if let Some(kind) = ItemKind::from_u8(value) {
                assert_eq!(kind as u8, value);
            }
        }
        assert_eq!(ItemKind::from_u8(0), None);
        assert_eq!(ItemKind::from_u8(31), None);
        assert_eq!((0..=u8::MAX).filter_map(ItemKind::from_u8).count(), 12);
    }

    #[test]
    fn order_is_inode_then_kind_then_offset() {
        let low = Key::new(1, ItemKind::Extent, u64::MAX);
        assert!(low < Key::new(2, ItemKind::Inode, 0));
        assert!(Key::new(1, ItemKind::Inode, 9) < Key::new(1, ItemKind::Extent, 0));
        assert!(Key::FIRST < Key::LAST);
    }
}
