//! File requests that change nothing: look-ups, attributes, directories, reads.

use super::SubvolumeRoot;
use super::convert;
use super::job::{Fetch, Run, Step, Stop};
use bytes::Bytes;
use subvol_protocol::attributes::{Attributes, DirectoryEntry};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::limits::MAX_DIRECTORY_BYTES;
use subvol_protocol::name::{LinkTarget, Name, XattrName, XattrNames, XattrValue};
use subvol_protocol::request::{FileRef, OpenFlags, SeekTarget};
use subvol_protocol::response::FileResponse;
use subvol_storage::error::{EngineError, FsError};
use subvol_storage::fs::read::ReadSegment;
use subvol_storage::fs::seek::{Seek, SeekKind};
use subvol_storage::types::InodeNumber;

/// A value that the engine took from the tree does not obey the protocol's rule: damage.
fn damaged(what: &str) -> Stop {
    tracing::error!(what, "a stored value breaks its own rule");
    Stop::Error(subvol_protocol::error::WireError::new(ErrorCode::Corrupt, what))
}

impl SubvolumeRoot {
    /// Attributes of an inode that the request names: absent means stale.
    pub(super) fn attributes_of(&self, inode: InodeNumber) -> Result<Attributes, Stop> {
        match self.subvolume.attributes(inode) {
            Ok(item) => Ok(convert::attributes(inode, &item)),
            Err(EngineError::Refused(FsError::NotFound)) => Err(ErrorCode::StaleInode.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// `NotFound` means the name, unless the inode it was sought in does not exist either.
    pub(super) fn not_found_in(&self, inode: InodeNumber, error: EngineError) -> Stop {
        if error == EngineError::Refused(FsError::NotFound)
            && matches!(self.subvolume.attributes(inode), Err(EngineError::Refused(FsError::NotFound)))
        {
            return ErrorCode::StaleInode.into();
        }
        error.into()
    }

    pub(super) fn look_up(&self, parent: InodeNumber, name: &Name) -> Step {
        match self.subvolume.lookup(parent, name.as_bytes()) {
            Ok((inode, item)) => {
                Ok(FileResponse::Entry { attributes: convert::attributes(inode, &item), ticket: None })
            }
            Err(error) => Err(self.not_found_in(parent, error)),
        }
    }

    pub(super) fn resolve_path(&self, base: InodeNumber, components: &[Name]) -> Step {
        self.attributes_of(base)?;
        let mut found = Vec::with_capacity(components.len());
        let mut at = base;
        for name in components {
            match self.subvolume.lookup(at, name.as_bytes()) {
                Ok((inode, item)) => {
                    found.push(convert::attributes(inode, &item));
                    at = inode;
                }
                Err(EngineError::Refused(FsError::NotFound | FsError::NotDirectory)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(FileResponse::Path { found })
    }

    pub(super) fn read_link(&self, inode: InodeNumber) -> Step {
        let target = self.subvolume.read_link(inode).map_err(|error| self.not_found_in(inode, error))?;
        let target = LinkTarget::new(&target).map_err(|_| damaged("target of a symbolic link"))?;
        Ok(FileResponse::Link { target })
    }

    pub(super) fn read_directory(
        &self,
        inode: InodeNumber,
        after: u64,
        most: u32,
        with_attributes: bool,
    ) -> Step {
        let batch = self
            .subvolume
            .read_directory(inode, after, most as usize, with_attributes)
            .map_err(|error| self.not_found_in(inode, error))?;
        let mut end = batch.end;
        let mut entries = Vec::with_capacity(batch.entries.len());
        let mut bytes = 0;
        for entry in batch.entries {
            let wire = DirectoryEntry {
                cookie: entry.cookie,
                inode: entry.inode,
                kind: convert::file_kind(entry.mode_type),
                name: Name::new(&entry.name).map_err(|_| damaged("name of a directory entry"))?,
                attributes: entry.attributes.map(|item| convert::attributes(entry.inode, &item)),
            };
            bytes += wire.encoded_length();
            if bytes > MAX_DIRECTORY_BYTES {
                end = false;
                break;
            }
            entries.push(wire);
        }
        Ok(FileResponse::Directory { entries, end })
    }

    /// As [`Self::read_directory`], up to a cookie: identifiers are given in order, so what is made or renamed later lies behind it.
    pub(super) fn list_directory(
        &self,
        inode: InodeNumber,
        after: u64,
        up_to: u64,
        most: u32,
        with_attributes: bool,
    ) -> Step {
        let up_to = if up_to == 0 { self.subvolume.view().resolved.next_id - 1 } else { up_to };
        match self.read_directory(inode, after, most, with_attributes)? {
            FileResponse::Directory { mut entries, mut end } => {
                let within = entries.partition_point(|entry| entry.cookie <= up_to);
                end |= within < entries.len();
                entries.truncate(within);
                Ok(FileResponse::Listed { entries, end, up_to })
            }
            other => Ok(other),
        }
    }

    pub(super) fn get_xattr(&self, inode: InodeNumber, name: &XattrName) -> Step {
        let value = self
            .subvolume
            .get_xattr(inode, name.as_bytes())
            .map_err(|error| self.not_found_in(inode, error))?;
        let value = XattrValue::new(&value).map_err(|_| damaged("value of an extended attribute"))?;
        Ok(FileResponse::Xattr { value })
    }

    pub(super) fn list_xattrs(&self, inode: InodeNumber) -> Step {
        let names: Vec<Bytes> =
            self.subvolume.list_xattrs(inode).map_err(|error| self.not_found_in(inode, error))?;
        let mut checked = Vec::with_capacity(names.len());
        for name in &names {
            checked.push(XattrName::new(name).map_err(|_| damaged("name of an extended attribute"))?);
        }
        let names = XattrNames::join(&checked).map_err(|_| Stop::from(ErrorCode::XattrTooBig))?;
        Ok(FileResponse::XattrNames { names })
    }

    pub(super) fn read(&self, run: &mut Run<'_>, file: FileRef, offset: u64, length: u32) -> Step {
        let (inode, flags) = run.file(file)?;
        if flags.is_some_and(|flags| !flags.contains(OpenFlags::READ)) {
            return Err(not_open_for("reading"));
        }
        let plan = self
            .subvolume
            .plan_read(inode, offset, length as usize)
            .map_err(|error| self.not_found_in(inode, error))?;
        let missing: Vec<_> = plan
            .segments
            .iter()
            .filter_map(|segment| match segment {
                ReadSegment::Device { pointer, .. } => Some(pointer.clone()),
                _ => None,
            })
            .collect();
        if !missing.is_empty() {
            return Err(Stop::Fetch(Fetch::Data(missing)));
        }
        run.state.data = plan.segments;
        let end_of_file = plan.length < length as usize || {
            let size = self.subvolume.attributes(inode)?.size;
            offset.saturating_add(plan.length as u64) >= size
        };
        Ok(FileResponse::Read { length: plan.length as u32, end_of_file })
    }

    pub(super) fn seek(&self, run: &mut Run<'_>, file: FileRef, offset: u64, target: SeekTarget) -> Step {
        let (inode, _) = run.file(file)?;
        let kind = match target {
            SeekTarget::Data => SeekKind::Data,
            SeekTarget::Hole => SeekKind::Hole,
        };
        let from = run.state.seek_from.unwrap_or(offset);
        // The engine looks at a bounded number of extents at a time, and others get their turn in between.
        match self.subvolume.seek(inode, from, kind).map_err(|error| self.not_found_in(inode, error))? {
            Seek::Found(offset) => {
                run.state.seek_from = None;
                Ok(FileResponse::Found { offset })
            }
            Seek::From(at) => {
                run.state.seek_from = Some(at);
                Err(Stop::Turn)
            }
        }
    }
}

/// The handle exists but was opened for something else (EBADF).
pub(super) fn not_open_for(what: &str) -> Stop {
    let detail = format!("the handle is not open for {what}");
    Stop::Error(subvol_protocol::error::WireError::new(ErrorCode::StaleHandle, &detail))
}
