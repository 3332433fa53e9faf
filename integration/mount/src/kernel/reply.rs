//! Answers put together: attributes, entries, listings, in the kernel's form.

use subvol_protocol::attributes::{Attributes, DirectoryEntry, Timestamp, VolumeStatistics};
use zerocopy::IntoBytes;

use super::abi::{Attr, AttrOut, Dirent, EntryOut, StatFsOut, Statx, StatxOut, SxTime};

/// The kernel's number of a volume's root.
pub const ROOT_NODE: u64 = 1;
/// Unit in which the kernel counts what is read and written at best.
const BLOCK: u32 = 4096;
/// What `STATX` tells: the basic attributes and the time of birth.
const STATX_MASK: u32 = 0x7ff | 0x800;

/// How long the kernel may keep something, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Names.
    pub entry: u64,
    /// Attributes.
    pub attributes: u64,
}

impl Validity {
    /// Not at all.
    pub const NONE: Self = Self { entry: 0, attributes: 0 };
}

/// The kernel keeps seconds as an unsigned number that it takes for a signed one.
#[expect(clippy::cast_sign_loss, reason = "as the kernel has it")]
const fn seconds(time: Timestamp) -> u64 {
    time.seconds as u64
}

/// Attributes as the kernel has them.
#[must_use]
pub fn attr(attributes: &Attributes) -> Attr {
    Attr {
        ino: attributes.inode,
        size: attributes.size,
        blocks: attributes.blocks_of_512(),
        atime: seconds(attributes.atime),
        mtime: seconds(attributes.mtime),
        ctime: seconds(attributes.ctime),
        atimensec: attributes.atime.nanoseconds,
        mtimensec: attributes.mtime.nanoseconds,
        ctimensec: attributes.ctime.nanoseconds,
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: BLOCK,
        flags: 0,
    }
}

/// An entry with its inode.
#[must_use]
pub fn entry(nodeid: u64, attributes: &Attributes, valid: Validity) -> EntryOut {
    EntryOut {
        nodeid,
        // Numbers of inodes are never used again.
        generation: 0,
        entry_valid: valid.entry,
        attr_valid: valid.attributes,
        attr: attr(attributes),
        ..EntryOut::default()
    }
}

/// There is no such entry, and that may be kept too.
#[must_use]
pub fn absent(valid: Validity) -> EntryOut {
    EntryOut { entry_valid: valid.entry, ..EntryOut::default() }
}

/// Attributes alone.
#[must_use]
pub fn attributes(attributes: &Attributes, valid: u64) -> AttrOut {
    AttrOut { attr_valid: valid, attr: attr(attributes), ..AttrOut::default() }
}

/// Attributes with the time of birth.
#[must_use]
pub fn statx(attributes: &Attributes, valid: u64) -> StatxOut {
    let time = |time: Timestamp| SxTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds, reserved: 0 };
    let (major, minor) = (libc::major(attributes.rdev.into()), libc::minor(attributes.rdev.into()));
    StatxOut {
        attr_valid: valid,
        stat: Statx {
            mask: STATX_MASK,
            blksize: BLOCK,
            nlink: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            mode: attributes.mode as u16,
            ino: attributes.inode,
            size: attributes.size,
            blocks: attributes.blocks_of_512(),
            atime: time(attributes.atime),
            btime: time(attributes.btime),
            ctime: time(attributes.ctime),
            mtime: time(attributes.mtime),
            rdev_major: major,
            rdev_minor: minor,
            ..Statx::default()
        },
        ..StatxOut::default()
    }
}

/// Usage and limits. What is free is never more than what the limits leave.
#[must_use]
pub fn statfs(statistics: &VolumeStatistics) -> StatFsOut {
    let unit = u64::from(statistics.block_size.max(512));
    let free = statistics.available_bytes / unit;
    let used = statistics.used_bytes.div_ceil(unit);
    // An unlimited number of inodes is shown as a large one that still counts down.
    let files = statistics.total_inodes.min(u64::from(u32::MAX).max(statistics.used_inodes * 2));
    StatFsOut {
        blocks: (statistics.total_bytes / unit).max(used),
        bfree: free,
        bavail: free,
        files,
        ffree: files.saturating_sub(statistics.used_inodes),
        bsize: statistics.block_size,
        frsize: statistics.block_size,
        namelen: statistics.max_name,
        ..StatFsOut::default()
    }
}

/// A listing being put together, up to the room that the kernel has.
pub struct Listing {
    bytes: Vec<u8>,
    room: usize,
    plus: bool,
}

impl Listing {
    /// An empty one; `plus`: with attributes.
    #[must_use]
    pub fn new(room: usize, plus: bool) -> Self {
        Self { bytes: Vec::with_capacity(room), room, plus }
    }

    /// Adds an entry if there is room for it. `behind`: where a listing goes on after it.
    #[must_use]
    pub fn add(&mut self, inode: u64, behind: u64, kind: u32, name: &[u8], full: Option<&EntryOut>) -> bool {
        let head = if self.plus { size_of::<EntryOut>() } else { 0 };
        let length = head + (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + length > self.room {
            return false;
        }
        if self.plus {
            // Node number 0: an entry without attributes.
            self.bytes.extend_from_slice(full.copied().unwrap_or_default().as_bytes());
        }
        let entry = Dirent { ino: inode, off: behind, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(entry.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        true
    }

    /// Adds an entry of a directory.
    #[must_use]
    pub fn add_entry(&mut self, entry: &DirectoryEntry, full: Option<&EntryOut>) -> bool {
        self.add(entry.inode, entry.cookie, entry.kind as u32, entry.name.as_bytes(), full)
    }

    /// What was put together.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_padded_and_bounded() {
        let mut listing = Listing::new(32 + 40 + 31, false);
        assert!(listing.add(300, 301, 8, b"a", None));
        assert!(listing.add(302, 303, 8, b"ninebytes", None));
        assert!(!listing.add(304, 305, 8, b"b", None), "one byte too many");
        assert_eq!(listing.bytes().len(), 32 + 40);
    }

    #[test]
    fn free_space_is_what_the_limits_leave() {
        let statistics = VolumeStatistics {
            block_size: 4096,
            max_name: 255,
            total_bytes: 40_960,
            used_bytes: 4097,
            available_bytes: 8192,
            total_inodes: 10,
            used_inodes: 12,
        };
        let told = statfs(&statistics);
        assert_eq!((told.blocks, told.bfree, told.bavail), (10, 2, 2));
        assert_eq!((told.files, told.ffree), (10, 0), "never below nothing");
    }
}
