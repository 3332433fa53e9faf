//! What a copy keeps of a file besides its content, in the form both sides understand.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::fs::Timespec;
use subvol_client::protocol::request::{FileRef, SetAttributes};
use subvol_client::{Attributes, FileKind, SetTime, Timestamp};

/// Attributes that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: FileKind,
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    /// As Linux encodes it in 32 bits.
    pub rdev: u32,
    pub size: u64,
    /// Fewer blocks than the size needs: look for holes.
    pub sparse: bool,
    pub links: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
}

impl Facts {
    /// Of a local file; `None` for a kind that no volume can hold.
    pub fn local(metadata: &Metadata) -> Option<Self> {
        let mode = metadata.mode();
        let time = |seconds, nanoseconds: i64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
        Some(Self {
            kind: FileKind::from_mode(mode)?,
            permissions: mode & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: encode_device(metadata.rdev()),
            size: metadata.len(),
            sparse: metadata.blocks().saturating_mul(512) < metadata.len(),
            links: metadata.nlink(),
            atime: time(metadata.atime(), metadata.atime_nsec()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        })
    }

    /// Of a file in a volume; `None` for a kind this version does not know.
    pub fn remote(attributes: &Attributes) -> Option<Self> {
        Some(Self {
            kind: attributes.kind()?,
            permissions: attributes.mode & 0o7777,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
            size: attributes.size,
            sparse: attributes.blocks.saturating_mul(4096) < attributes.size,
            links: u64::from(attributes.links),
            atime: attributes.atime,
            mtime: attributes.mtime,
        })
    }

    /// The request that sets them. Always permissions as well: writing may have cleared set-id bits.
    pub const fn to_set(self, file: FileRef, keep_owner: bool) -> SetAttributes {
        let link = matches!(self.kind, FileKind::Symlink);
        SetAttributes {
            permissions: if link { None } else { Some(self.permissions) },
            uid: if keep_owner { Some(self.uid) } else { None },
            gid: if keep_owner { Some(self.gid) } else { None },
            atime: Some(SetTime::To(self.atime)),
            mtime: Some(SetTime::To(self.mtime)),
            ..SetAttributes::none(file)
        }
    }

    /// Access and modification time, for `utimensat`.
    pub fn times(&self) -> rustix::fs::Timestamps {
        let time = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) };
        rustix::fs::Timestamps { last_access: time(self.atime), last_modification: time(self.mtime) }
    }
}

/// A device number of this system in the 32 bits that Linux stores: 12 of the major number, 20 of the minor one.
fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// The reverse.
pub fn decode_device(rdev: u32) -> u64 {
    let (major, minor) = crate::show::device_numbers(rdev);
    rustix::fs::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 256), (4095, 0xf_ffff)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }
}
