//! Making things durable: fsync, sync, and what a close has to tell.

use super::SubvolumeRoot;
use super::convert;
use super::job::{Run, Step, Stop};
use crate::metrics::count;
use subvol_protocol::attributes::{FileKind, Lineage};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{FileRef, HandleRef};
use subvol_protocol::response::FileResponse;
use subvol_storage::subvolume::Ticket;
use subvol_storage::types::InodeNumber;

impl SubvolumeRoot {
    pub(super) fn fsync(&mut self, run: &Run<'_>, file: FileRef, lineage: Option<Lineage>) -> Step {
        if run.state.fetches == 0 {
            count(&self.shared.counters.fsync_message);
        }
        let (inode, data, ticket) = match file {
            FileRef::Inode(reference) => {
                let inode = run.inode(reference)?;
                let kind = self.attributes_of(inode)?.kind();
                (inode, kind != Some(FileKind::Directory), None)
            }
            FileRef::Handle(reference) => {
                let number = run.handle_number(reference)?;
                let handle = run.ask.session.handles.get(number).ok_or(ErrorCode::StaleHandle)?;
                (handle.inode, !handle.is_directory, Some(handle.ticket))
            }
        };
        self.check_lineage(lineage, data)?;
        if self.shared.store.failure().is_some() {
            return Err(ErrorCode::Io.into());
        }
        if ticket.is_some_and(|ticket| ticket.is_durable(self.subvolume.progress())) {
            return Ok(FileResponse::Synced { durable: convert::lineage(self.subvolume.ticket()) });
        }
        self.make_durable(inode, |durable| FileResponse::Synced { durable })
    }

    /// Puts what is needed into the log; the reply goes out when it is durable.
    pub(super) fn make_durable(
        &mut self,
        inode: InodeNumber,
        respond: impl FnOnce(Lineage) -> FileResponse,
    ) -> Step {
        self.subvolume.log_inode_data(inode)?;
        let now = self.subvolume.ticket();
        let Ok(closed) = self.subvolume.close_log() else { return Err(Stop::Pinned) };
        let response = respond(convert::lineage(Ticket { log_transid: closed.ticket, ..now }));
        if closed.generations.is_empty() && self.subvolume.progress().committed() >= closed.ticket {
            return Ok(response);
        }
        Err(Stop::Log {
            response: Box::new(response),
            ticket: closed.ticket,
            generations: closed.generations,
        })
    }

    pub(super) fn sync_volume(&mut self, lineage: Option<Lineage>) -> Step {
        self.check_lineage(lineage, true)?;
        if self.shared.store.failure().is_some() {
            return Err(ErrorCode::Io.into());
        }
        let durable = convert::lineage(self.subvolume.ticket());
        Err(Stop::Commit { response: Box::new(FileResponse::Synced { durable }) })
    }

    pub(super) fn close(&mut self, run: &Run<'_>, handle: HandleRef, lineage: Option<Lineage>) -> Step {
        let number = run.handle_number(handle)?;
        let handle = run.ask.session.handles.remove(number).ok_or(ErrorCode::StaleHandle)?;
        let durable = handle.ticket.is_durable(self.subvolume.progress());
        self.close_inode(handle.inode);
        self.check_lineage(lineage, !handle.is_directory)?;
        // What the failed store still has only in memory can never be stored: whoever has it open is told (S7).
        if !durable && self.shared.store.failure().is_some() {
            return Err(ErrorCode::Io.into());
        }
        Ok(FileResponse::Closed)
    }

    /// One handle less. The last one of an inode without names frees it: at once if a step is enough, so that usage is
    /// exact when the reply is read, else in the background.
    pub(super) fn close_inode(&mut self, inode: InodeNumber) {
        if self.subvolume.close_inode(inode) && !matches!(self.free_some(inode), Ok(false)) {
            self.free_later(inode);
        }
    }

    /// Was what the client knows about lost in a restart? Then no success may hide it (S6).
    fn check_lineage(&self, lineage: Option<Lineage>, data: bool) -> Result<(), Stop> {
        match lineage {
            Some(known) if self.subvolume.has_lost(&convert::ticket(known), data) => {
                Err(ErrorCode::StaleLineage.into())
            }
            _ => Ok(()),
        }
    }
}
