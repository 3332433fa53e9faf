//! File requests that change something: the engine's operation for each, and its reply.
//!
//! Invariant: between [`SubvolumeRoot::execute`] and the reply nothing is executed a second time, also when the reply
//! needs a block that must be fetched first ([`super::job::Progress::executed`]).

use super::SubvolumeRoot;
use super::convert;
use super::job::{Run, Step, Stop};
use super::queries::not_open_for;
use crate::limits::OPERATIONS_PER_ID;
use crate::options::PinPoint;
use crate::session::handles::Handle;
use bytes::Bytes;
use std::sync::atomic::Ordering;
use subvol_protocol::attributes::SetTime;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::name::{Name, XattrName, XattrValue};
use subvol_protocol::request::{
    Create, FileRef, InodeRef, NewKind, OpenFlags, RenameMode, SetAttributes, WritePosition, XattrMode,
};
use subvol_protocol::response::FileResponse;
use subvol_storage::error::{EngineError, FsError};
use subvol_storage::operation::{AttributeChange, Operation, Place};
use subvol_storage::subvolume::Done;
use subvol_storage::types::{InodeNumber, OperationId, Timestamp};

fn place(parent: InodeNumber, name: &Name) -> Place {
    Place { parent, name: Bytes::copy_from_slice(name.as_bytes()) }
}

/// The engine's number for one of the operations that a request stands for: the first (0) or second (1) of its step.
fn engine_id(run: &Run<'_>, which: u64) -> Result<Option<OperationId>, WireError> {
    let Some(id) = run.ask.operation else { return Ok(None) };
    let within = run.index as u64 * 2 + which;
    let sequence = id.sequence.checked_mul(OPERATIONS_PER_ID).and_then(|base| base.checked_add(within));
    match sequence {
        Some(sequence) => Ok(Some(OperationId { client: id.client, sequence })),
        None => Err(WireError::new(ErrorCode::InvalidArgument, "an impossible operation sequence")),
    }
}

impl SubvolumeRoot {
    fn execute(
        &mut self,
        run: &mut Run<'_>,
        which: u64,
        operation: &Operation,
        detail: u64,
    ) -> Result<Done, Stop> {
        if let Some(done) = run.state.executed {
            return Ok(done);
        }
        if self.is_log_congested() {
            return Err(Stop::Dirty);
        }
        let id = engine_id(run, which)?;
        if id.is_some_and(|id| self.subvolume.has_expired(&id)) {
            return Err(ErrorCode::OperationExpired.into());
        }
        let done = self.subvolume.execute(operation, self.now, id, detail)?;
        run.state.executed = Some(done);
        self.operations += 1;
        if let Some(inode) = done.reclaim {
            self.free_later(inode);
        }
        Ok(done)
    }

    /// As [`Self::execute`]; `NotFound` becomes `StaleInode` if one of the inodes named does not exist.
    fn execute_in(
        &mut self,
        run: &mut Run<'_>,
        operation: &Operation,
        detail: u64,
        named: &[InodeNumber],
    ) -> Result<Done, Stop> {
        self.execute(run, 0, operation, detail).map_err(|stop| self.stale_if_absent(stop, named))
    }

    fn stale_if_absent(&self, stop: Stop, named: &[InodeNumber]) -> Stop {
        let absent = |&inode: &InodeNumber| {
            matches!(self.subvolume.attributes(inode), Err(EngineError::Refused(FsError::NotFound)))
        };
        match stop {
            Stop::Error(error) if error.code == ErrorCode::NotFound && named.iter().any(absent) => {
                ErrorCode::StaleInode.into()
            }
            other => other,
        }
    }

    /// Refuses a change of an inode that is being freed. It may be half gone already, which the log does not say: replay
    /// would meet a whole one. During the grace after a start nothing is freed, so that clients may come back to it.
    fn refuse_dying(&self, run: &Run<'_>, inode: InodeNumber) -> Result<(), Stop> {
        if run.state.executed.is_some() || self.subvolume.is_open(inode) {
            return Ok(());
        }
        let is_freed = self.grace.is_none() || self.free.contains(inode);
        if is_freed && self.attributes_of(inode)?.links == 0 {
            return Err(ErrorCode::StaleInode.into());
        }
        Ok(())
    }

    /// Can the session take one more handle? Asked before anything is made that only the handle would reach.
    fn check_room(&self, run: &Run<'_>) -> Result<(), Stop> {
        if run.ask.session.ended.load(Ordering::Relaxed) {
            // Nobody would ever close it.
            return Err(ErrorCode::StaleHandle.into());
        }
        if !run.ask.session.handles.has_room() {
            return Err(WireError::new(ErrorCode::TooManyRequests, "too many open handles").into());
        }
        Ok(())
    }

    /// Opens an inode for the session. The last thing a step does: it must not be done twice.
    pub(super) fn open_handle(
        &mut self,
        run: &Run<'_>,
        inode: InodeNumber,
        flags: OpenFlags,
        is_directory: bool,
    ) -> Result<u64, Stop> {
        self.check_room(run)?;
        let ticket = self.subvolume.open_inode(inode)?;
        Ok(run.ask.session.handles.insert(Handle { inode, flags, is_directory, ticket }))
    }

    pub(super) fn create(&mut self, run: &mut Run<'_>, create: &Create, umask: u32) -> Step {
        let parent = run.inode(create.parent)?;
        if create.open.is_some() && run.state.executed.is_none() {
            self.check_room(run)?;
        }
        let target = match &create.kind {
            NewKind::Symlink(target) => Bytes::copy_from_slice(target.as_bytes()),
            _ => Bytes::new(),
        };
        let operation = Operation::Create {
            place: place(parent, &create.name),
            mode: create.kind.file_kind().mode_bits() | create.permissions,
            umask,
            uid: create.uid,
            gid: create.gid,
            rdev: convert::device_number(&create.kind),
            target,
        };
        let (inode, created, ticket) = match self.execute_in(run, &operation, 1, &[parent]) {
            Ok(done) => (done.inode, true, done.ticket),
            Err(Stop::Error(error)) if error.code == ErrorCode::Exists && !create.exclusive => {
                let (inode, item) = self.subvolume.lookup(parent, create.name.as_bytes())?;
                if item.is_directory() {
                    return Err(ErrorCode::IsDirectory.into());
                }
                if !item.is_regular() {
                    return Err(ErrorCode::Exists.into());
                }
                let mut ticket = self.subvolume.ticket();
                if create.open.is_some_and(|flags| flags.contains(OpenFlags::TRUNCATE)) {
                    ticket = self.truncate(run, inode, 1)?.ticket;
                }
                (inode, false, ticket)
            }
            Err(stop) => return Err(stop),
        };
        let attributes = self.attributes_of(inode)?;
        let handle = match create.open {
            Some(flags) => Some(self.open_handle(run, inode, flags, false)?),
            None => None,
        };
        Ok(FileResponse::Created { attributes, handle, created, ticket: convert::lineage(ticket) })
    }

    fn truncate(&mut self, run: &mut Run<'_>, inode: InodeNumber, which: u64) -> Result<Done, Stop> {
        let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
        let done = self.execute(run, which, &Operation::SetAttributes { inode, change }, 0)?;
        self.trim_later(inode);
        Ok(done)
    }

    pub(super) fn create_unnamed(
        &mut self,
        run: &mut Run<'_>,
        parent: InodeRef,
        (permissions, umask): (u32, u32),
        (uid, gid): (u32, u32),
        open: Option<OpenFlags>,
    ) -> Step {
        match open {
            Some(_) if run.state.executed.is_none() => self.check_room(run)?,
            // Without a handle only a lease client's knowing keeps it.
            None if run.ask.session.lease.get().is_none() => return Err(ErrorCode::OutOfOrder.into()),
            _ => {}
        }
        let parent = run.inode(parent)?;
        let mode = subvol_protocol::attributes::FileKind::Regular.mode_bits() | permissions;
        let operation = Operation::CreateUnnamed { parent, mode, umask, uid, gid };
        let done = self.execute_in(run, &operation, 1, &[parent])?;
        let opened = self.attributes_of(done.inode).and_then(|attributes| {
            let handle = open.map(|flags| self.open_handle(run, done.inode, flags, false)).transpose()?;
            Ok((attributes, handle))
        });
        if matches!(opened, Err(Stop::Error(_))) && !self.subvolume.is_open(done.inode) {
            // Nobody will ever reach it.
            self.free_later(done.inode);
        }
        let (attributes, handle) = opened?;
        let ticket = convert::lineage(done.ticket);
        Ok(FileResponse::Created { attributes, handle, created: true, ticket })
    }

    pub(super) fn link(&mut self, run: &mut Run<'_>, file: FileRef, parent: InodeRef, name: &Name) -> Step {
        let (inode, _) = run.file(file)?;
        self.refuse_dying(run, inode)?;
        let parent = run.inode(parent)?;
        let operation = Operation::Link { inode, place: place(parent, name) };
        let done = self.execute_in(run, &operation, 0, &[inode, parent])?;
        let attributes = self.attributes_of(inode)?;
        Ok(FileResponse::Entry { attributes, ticket: Some(convert::lineage(done.ticket)) })
    }

    pub(super) fn unlink(
        &mut self,
        run: &mut Run<'_>,
        parent: InodeRef,
        name: &Name,
        directory: bool,
    ) -> Step {
        let parent = run.inode(parent)?;
        let place = place(parent, name);
        let operation =
            if directory { Operation::RemoveDirectory { place } } else { Operation::Unlink { place } };
        let done = self.execute_in(run, &operation, 0, &[parent])?;
        let links = match self.subvolume.attributes(done.inode) {
            Ok(item) => item.nlink,
            Err(EngineError::Refused(FsError::NotFound)) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(FileResponse::Removed { inode: done.inode, links, ticket: convert::lineage(done.ticket) })
    }

    pub(super) fn rename(
        &mut self,
        run: &mut Run<'_>,
        (parent, name): (InodeRef, &Name),
        (new_parent, new_name): (InodeRef, &Name),
        mode: RenameMode,
    ) -> Step {
        let (parent, new_parent) = (run.inode(parent)?, run.inode(new_parent)?);
        let target = match run.state.executed {
            Some(done) => done.detail,
            None => {
                let found = self.subvolume.view().entry(new_parent, new_name.as_bytes())?;
                found.map_or(0, |entry| entry.inode)
            }
        };
        let operation = Operation::Rename {
            from: place(parent, name),
            to: place(new_parent, new_name),
            mode: convert::rename_mode(mode),
        };
        if target != 0 && mode == RenameMode::Replace && run.state.executed.is_none() {
            self.log_before_replacing(parent, name)?;
        }
        // Everything slow is done or ends this call with a fetch: the pin is held for the records alone.
        let pin = match self.shared.options.bench.pin_point {
            PinPoint::BeforeFirstRecord => Some(self.subvolume.pin_log()),
            PinPoint::OnArrival => None,
        };
        let done = self.execute_in(run, &operation, target, &[parent, new_parent]);
        drop(pin);
        let done = done?;
        let replaced = Some(done.detail).filter(|&inode| inode != 0 && inode != done.inode);
        Ok(FileResponse::Renamed { inode: done.inode, replaced, ticket: convert::lineage(done.ticket) })
    }

    /// A file that replaces another is in the log before its new name is (S3). Its extents may be more than a batch holds,
    /// so they go there before the pin, which keeps records together.
    fn log_before_replacing(&mut self, parent: InodeNumber, name: &Name) -> Result<(), Stop> {
        self.shared.store.check_writable()?;
        if let Some(source) = self.subvolume.view().entry(parent, name.as_bytes())? {
            self.subvolume.log_inode_data(source.inode)?;
        }
        Ok(())
    }

    pub(super) fn set_attributes(&mut self, run: &mut Run<'_>, asked: &SetAttributes) -> Step {
        let (inode, flags) = run.file(asked.file)?;
        if asked.size.is_some() && flags.is_some_and(|flags| !flags.contains(OpenFlags::WRITE)) {
            return Err(not_open_for("writing"));
        }
        self.refuse_dying(run, inode)?;
        let time = |set: Option<SetTime>| -> Option<Timestamp> {
            set.map(|set| match set {
                SetTime::Now => self.now,
                SetTime::To(time) => convert::from_wire(time),
            })
        };
        let change = AttributeChange {
            mode: asked.permissions,
            uid: asked.uid,
            gid: asked.gid,
            size: asked.size,
            atime: time(asked.atime),
            mtime: time(asked.mtime),
        };
        let done = self.execute_in(run, &Operation::SetAttributes { inode, change }, 0, &[inode])?;
        if asked.size.is_some() {
            self.trim_later(inode);
        }
        let attributes = self.attributes_of(inode)?;
        Ok(FileResponse::AttributesSet { attributes, ticket: convert::lineage(done.ticket) })
    }

    pub(super) fn set_xattr(
        &mut self,
        run: &mut Run<'_>,
        inode: InodeRef,
        (name, value): (&XattrName, &XattrValue),
        mode: XattrMode,
    ) -> Step {
        let inode = run.inode(inode)?;
        let operation = Operation::SetXattr {
            inode,
            name: Bytes::copy_from_slice(name.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            mode: convert::xattr_mode(mode),
        };
        self.simple(run, &operation, inode)
    }

    pub(super) fn remove_xattr(&mut self, run: &mut Run<'_>, inode: InodeRef, name: &XattrName) -> Step {
        let inode = run.inode(inode)?;
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.simple(run, &Operation::RemoveXattr { inode, name }, inode)
    }

    /// A change whose reply has nothing but the ticket.
    fn simple(&mut self, run: &mut Run<'_>, operation: &Operation, inode: InodeNumber) -> Step {
        self.refuse_dying(run, inode)?;
        let done = self.execute_in(run, operation, 0, &[inode])?;
        Ok(FileResponse::Done { ticket: convert::lineage(done.ticket) })
    }

    /// A change of a range of a file.
    pub(super) fn change_range(
        &mut self,
        run: &mut Run<'_>,
        file: FileRef,
        make: impl FnOnce(InodeNumber) -> Operation,
    ) -> Step {
        let (inode, flags) = run.file(file)?;
        if flags.is_some_and(|flags| !flags.contains(OpenFlags::WRITE)) {
            return Err(not_open_for("writing"));
        }
        self.simple(run, &make(inode), inode)
    }

    pub(super) fn write(
        &mut self,
        run: &mut Run<'_>,
        file: FileRef,
        position: WritePosition,
        unprivileged: bool,
    ) -> Step {
        let (inode, flags) = run.file(file)?;
        let flags = flags.unwrap_or(OpenFlags::WRITE);
        if !flags.contains(OpenFlags::WRITE) {
            return Err(not_open_for("writing"));
        }
        self.refuse_dying(run, inode)?;
        let append = flags.contains(OpenFlags::APPEND) || position == WritePosition::Append;
        let offset = match position {
            WritePosition::At(offset) if !append => offset,
            _ => self.attributes_of(inode)?.size,
        };
        let length = run.ask.payload.len() as u64;
        let done = if length == 0 {
            self.attributes_of(inode)?;
            None
        } else {
            if run.state.executed.is_none() && self.is_over_share() {
                return Err(Stop::Dirty);
            }
            let data = run.ask.payload.clone();
            if unprivileged && run.state.executed.is_none() {
                self.remove_capabilities(inode)?;
            }
            let operation = Operation::Write { inode, offset, data, length, clear_set_id: unprivileged };
            Some(self.execute_in(run, &operation, offset, &[inode])?)
        };
        let response = FileResponse::Written {
            written: length as u32,
            position: done.map_or(offset, |done| done.detail),
            size: self.attributes_of(inode)?.size,
            ticket: convert::lineage(done.map_or_else(|| self.subvolume.ticket(), |done| done.ticket)),
        };
        if flags.0 & (OpenFlags::SYNC.0 | OpenFlags::DATA_SYNC.0) == 0 || length == 0 {
            return Ok(response);
        }
        self.make_durable(inode, |_| response)
    }

    /// Capabilities of a file do not survive a write by somebody who may not give them.
    fn remove_capabilities(&mut self, inode: InodeNumber) -> Result<(), Stop> {
        const NAME: &[u8] = b"security.capability";
        match self.subvolume.get_xattr(inode, NAME) {
            Err(EngineError::Refused(FsError::NoXattr)) => return Ok(()),
            other => drop(other?),
        }
        let operation = Operation::RemoveXattr { inode, name: Bytes::from_static(NAME) };
        self.subvolume.execute(&operation, self.now, None, 0)?;
        Ok(())
    }

    pub(super) fn open(&mut self, run: &mut Run<'_>, inode: InodeRef, flags: OpenFlags) -> Step {
        let inode = run.inode(inode)?;
        self.refuse_dying(run, inode)?;
        let attributes = self.attributes_of(inode)?;
        let is_directory = attributes.kind() == Some(subvol_protocol::attributes::FileKind::Directory);
        if flags.contains(OpenFlags::DIRECTORY) && !is_directory {
            return Err(ErrorCode::NotDirectory.into());
        }
        if is_directory && flags.contains(OpenFlags::WRITE) {
            return Err(ErrorCode::IsDirectory.into());
        }
        let mut ticket = None;
        if flags.contains(OpenFlags::TRUNCATE) && (attributes.size > 0 || run.state.executed.is_some()) {
            ticket = Some(convert::lineage(self.truncate(run, inode, 0)?.ticket));
        }
        let attributes = self.attributes_of(inode)?;
        let handle = self.open_handle(run, inode, flags, is_directory)?;
        Ok(FileResponse::Opened { handle, attributes, ticket })
    }
}
