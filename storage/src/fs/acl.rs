//! POSIX access control lists: what the two attributes that hold them mean for the mode, and what a new inode inherits.
//!
//! They are kept as the kernel's own attribute values: a version, then entries of tag, permissions and id. The rules are
//! those of POSIX 1003.1e draft 17, as `acl(5)` tells them. Invariant: an access list that is stored agrees with the
//! mode, whichever of the two was set last; a list for access that says no more than the mode is not stored.

use crate::error::FsError;

/// The list that decides about access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that new inodes of a directory begin with.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const ALL_PERMISSIONS: u16 = 7;
/// The id of entries that name nobody.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list that obeys the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Takes an attribute's value apart.
    ///
    /// Errors: `InvalidArgument` for what is no list: wrong version or length, unknown tags or permissions, wrong order,
    /// a missing or double entry.
    pub fn parse(value: &[u8]) -> Result<Self, FsError> {
        let (version, rest) = value.split_at_checked(HEAD).ok_or(FsError::InvalidArgument)?;
        if version != VERSION.to_le_bytes() || rest.len() % ENTRY != 0 {
            return Err(FsError::InvalidArgument);
        }
        let entries: Vec<Entry> = rest
            .chunks_exact(ENTRY)
            .map(|entry| Entry {
                tag: u16::from_le_bytes([entry[0], entry[1]]),
                permissions: u16::from_le_bytes([entry[2], entry[3]]),
                id: u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]),
            })
            .collect();
        let acl = Self(entries);
        if acl.is_valid() { Ok(acl) } else { Err(FsError::InvalidArgument) }
    }

    /// Entries stand in the order of their tags; owner, group and others stand once each, and so does the mask when
    /// somebody is named.
    fn is_valid(&self) -> bool {
        let count = |tag: u16| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let known = self.0.iter().all(|entry| {
            matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER)
                && entry.permissions & !ALL_PERMISSIONS == 0
                && (!matches!(entry.tag, USER | GROUP) || entry.id != NOBODY)
        });
        known
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && count(USER_OBJ) == 1
            && count(GROUP_OBJ) == 1
            && count(OTHER) == 1
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }

    /// As an attribute's value.
    pub fn to_value(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEAD + self.0.len() * ENTRY);
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// Says no more than nine permission bits can say.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The entry behind the middle three bits: the mask, if there is one.
    fn group_class(&self) -> u16 {
        if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    /// The nine permission bits that agree with the list.
    pub fn mode_bits(&self) -> u32 {
        let bits = |tag: u16| {
            self.0.iter().find(|entry| entry.tag == tag).map_or(0, |entry| u32::from(entry.permissions))
        };
        bits(USER_OBJ) << 6 | bits(self.group_class()) << 3 | bits(OTHER)
    }

    /// The list after `chmod`.
    pub fn set_mode(&mut self, mode: u32) {
        let middle = self.group_class();
        for entry in &mut self.0 {
            let bits = match entry.tag {
                USER_OBJ => mode >> 6,
                tag if tag == middle => mode >> 3,
                OTHER => mode,
                _ => continue,
            };
            entry.permissions = bits as u16 & ALL_PERMISSIONS;
        }
    }

    /// The access list of an inode that is made with these permissions in a directory with this default list: what both
    /// allow.
    pub fn inherited(&self, mode: u32) -> Self {
        let mut made = self.clone();
        made.set_mode(mode & self.mode_bits());
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect()).to_value()
    }

    const FULL: [(u16, u16, u32); 5] = [
        (USER_OBJ, 7, NOBODY),
        (USER, 6, 1000),
        (GROUP_OBJ, 5, NOBODY),
        (MASK, 7, NOBODY),
        (OTHER, 0, NOBODY),
    ];

    #[test]
    fn the_middle_bits_are_the_mask() {
        let mut acl = Acl::parse(&list(&FULL)).expect("right");
        assert_eq!(acl.mode_bits(), 0o770);
        acl.set_mode(0o641);
        assert_eq!(acl.mode_bits(), 0o641);
        assert_eq!(acl.0[2].permissions, 5, "the group's own entry stays");
        assert_eq!(Acl::parse(&acl.to_value()), Ok(acl));
    }

    #[test]
    fn what_is_made_gets_what_both_allow() {
        let acl = Acl::parse(&list(&FULL)).expect("right");
        assert_eq!(acl.inherited(0o666).mode_bits(), 0o660);
        assert_eq!(acl.inherited(0o777).mode_bits(), 0o770);
        let minimal = Acl::parse(&list(&[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY)]));
        assert!(minimal.expect("right").is_minimal());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = list(&FULL);
        for length in (0..good.len()).filter(|length| (length - length.min(&4)) % 8 != 0 || *length < 28) {
            assert_eq!(Acl::parse(&good[..length]), Err(FsError::InvalidArgument), "{length} bytes");
        }
        for bad in [
            &[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY)][..],
            &[(USER_OBJ, 8, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY)],
            &[(GROUP_OBJ, 5, NOBODY), (USER_OBJ, 7, NOBODY), (OTHER, 5, NOBODY)],
            &[(USER_OBJ, 7, NOBODY), (USER, 7, 5), (GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY)],
            &[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY), (64, 1, NOBODY)],
        ] {
            assert_eq!(Acl::parse(&list(bad)), Err(FsError::InvalidArgument), "{bad:?}");
        }
    }
}
