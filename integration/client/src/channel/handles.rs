//! Handles that outlive connections: the library's own numbers, and what the server calls them now.
//!
//! Invariants: callers see only the library's numbers, which are never reused; a request is translated when it is sent, so a request
//! that is sent again on a new connection gets that connection's number; a handle keeps its unsynced history until it is closed.

use rustc_hash::FxHashMap;
use subvol_protocol::attributes::Lineage;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::request::{FileRef, FileRequest, HandleRef, OpenFlags, Request, SetAttributes};

use super::by_inode::{InodeHistory, inode_of};
use super::lineage::{Tracker, to_present};

/// What the server calls a handle.
#[derive(Debug)]
pub(super) enum ServerHandle {
    /// This, on the current connection.
    Live(u64),
    /// Nothing yet: it is being opened again.
    Reopening,
    /// Nothing: opening it again failed.
    Dead(WireError),
}

#[derive(Debug)]
pub(super) struct Handle {
    pub inode: u64,
    /// Without `TRUNCATE`: opening again must not cut the file.
    pub flags: OpenFlags,
    pub server: ServerHandle,
    /// A close is on its way; a second one could hit another handle that got the same number.
    pub closing: bool,
    pub unsynced: Tracker,
}

/// All handles of a connection, and the history of what was changed without one.
#[derive(Debug, Default)]
pub(super) struct Handles {
    map: FxHashMap<u64, Handle>,
    last: u64,
    /// Namespace changes, and changes by inode number.
    pub loose: Tracker,
    /// Everything, for a sync of the volume.
    pub all: Tracker,
    /// What was changed of each inode without a handle, if it is followed by inode.
    pub inodes: Option<InodeHistory>,
}

/// How a request is to be sent.
pub(super) enum Outgoing {
    /// As it is.
    AsIs,
    /// In this form; with the point of history it presents.
    Translated(Request, Option<Lineage>),
    /// Not now.
    Not(Instead),
}

/// What happens to a request that is not sent.
pub(super) enum Instead {
    /// It waits: its handle is being opened again.
    Wait,
    /// It fails: its handle is unknown or could not be opened again.
    Refused(WireError),
    /// It is done: it closes a handle that is already gone.
    NothingToClose,
}

pub(crate) fn handle_of(request: &FileRequest) -> Option<HandleRef> {
    let file = match request {
        FileRequest::Close { handle, .. } => return Some(*handle),
        FileRequest::Link { file, .. }
        | FileRequest::GetAttributes { file }
        | FileRequest::SetAttributes(SetAttributes { file, .. })
        | FileRequest::Read { file, .. }
        | FileRequest::Write { file, .. }
        | FileRequest::WriteUnprivileged { file, .. }
        | FileRequest::Allocate { file, .. }
        | FileRequest::PunchHole { file, .. }
        | FileRequest::ZeroRange { file, .. }
        | FileRequest::Seek { file, .. }
        | FileRequest::Fsync { file, .. } => *file,
        _ => return None,
    };
    match file {
        FileRef::Handle(handle) => Some(handle),
        FileRef::Inode(_) => None,
    }
}

fn handle_mut(request: &mut FileRequest) -> Option<&mut HandleRef> {
    let file = match request {
        FileRequest::Close { handle, .. } => return Some(handle),
        FileRequest::Link { file, .. }
        | FileRequest::GetAttributes { file }
        | FileRequest::SetAttributes(SetAttributes { file, .. })
        | FileRequest::Read { file, .. }
        | FileRequest::Write { file, .. }
        | FileRequest::WriteUnprivileged { file, .. }
        | FileRequest::Allocate { file, .. }
        | FileRequest::PunchHole { file, .. }
        | FileRequest::ZeroRange { file, .. }
        | FileRequest::Seek { file, .. }
        | FileRequest::Fsync { file, .. } => file,
        _ => return None,
    };
    match file {
        FileRef::Handle(handle) => Some(handle),
        FileRef::Inode(_) => None,
    }
}

fn needs_translation(request: &FileRequest) -> bool {
    matches!(handle_of(request), Some(HandleRef::Explicit(_)))
        || matches!(
            request,
            FileRequest::Fsync { lineage: None, .. } | FileRequest::SyncVolume { lineage: None }
        )
}

impl Handles {
    pub fn new(by_inode: bool) -> Self {
        Self { inodes: by_inode.then(InodeHistory::default), ..Self::default() }
    }

    /// Takes in a handle the server opened; returns the library's number.
    pub fn register(&mut self, inode: u64, flags: OpenFlags, server: ServerHandle) -> u64 {
        self.last += 1;
        let flags = OpenFlags(flags.0 & !OpenFlags::TRUNCATE.0);
        let handle = Handle { inode, flags, server, closing: false, unsynced: Tracker::default() };
        self.map.insert(self.last, handle);
        self.last
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Handle> {
        self.map.get_mut(&number)
    }

    pub fn remove(&mut self, number: u64) {
        self.map.remove(&number);
    }

    /// The connection is gone, and with it every number the server gave; see [`Self::to_reopen`].
    pub fn connection_lost(&mut self) {
        for handle in self.map.values_mut() {
            handle.closing = false;
            if matches!(handle.server, ServerHandle::Live(_)) {
                handle.server = ServerHandle::Reopening;
            }
        }
    }

    /// The handles to open again on a new connection.
    pub fn to_reopen(&self) -> impl Iterator<Item = u64> {
        self.map
            .iter()
            .filter(|(_, handle)| matches!(handle.server, ServerHandle::Reopening))
            .map(|(number, _)| *number)
    }

    /// Number of open handles, for tests of leaks.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Puts in the server's handle numbers and the history to present.
    pub fn translate(&mut self, request: &Request) -> Outgoing {
        match request {
            Request::File(step) if needs_translation(step) => {
                let mut step = step.clone();
                match self.translate_step(&mut step) {
                    Ok(presented) => Outgoing::Translated(Request::File(step), presented),
                    Err(instead) => Outgoing::Not(instead),
                }
            }
            Request::Compound { steps } if steps.iter().any(needs_translation) => {
                let mut steps = steps.clone();
                let mut presented = None;
                for step in &mut steps {
                    match self.translate_step(step) {
                        Ok(lineage) => presented = to_present(presented, lineage),
                        Err(Instead::NothingToClose) => {
                            return Outgoing::Not(Instead::Refused(ErrorCode::StaleHandle.into()));
                        }
                        Err(instead) => return Outgoing::Not(instead),
                    }
                }
                Outgoing::Translated(Request::Compound { steps }, presented)
            }
            _ => Outgoing::AsIs,
        }
    }

    fn translate_step(&mut self, step: &mut FileRequest) -> Result<Option<Lineage>, Instead> {
        let (mut unsynced, mut opened) = (None, None);
        let closes = matches!(step, FileRequest::Close { .. });
        if let Some(HandleRef::Explicit(number)) = handle_mut(step) {
            let Some(handle) = self.map.get_mut(number) else {
                return Err(Instead::Refused(ErrorCode::StaleHandle.into()));
            };
            match &handle.server {
                ServerHandle::Live(server) => *number = *server,
                ServerHandle::Reopening => return Err(Instead::Wait),
                ServerHandle::Dead(error) => {
                    let error = error.clone();
                    let clean = handle.unsynced.is_empty();
                    return Err(match (closes, clean) {
                        (true, true) => Instead::NothingToClose,
                        // The file is gone and so is what was written: that is what this code says.
                        (true, false) => {
                            Instead::Refused(WireError::new(ErrorCode::StaleLineage, error.detail.as_str()))
                        }
                        (false, _) => Instead::Refused(error),
                    });
                }
            }
            handle.closing |= closes;
            unsynced = handle.unsynced.oldest();
            opened = Some(handle.inode);
        }
        let (place, presented) = match step {
            FileRequest::Fsync { lineage, file, .. } => {
                // What was done by number to the inode of a handle is that file's history, too.
                let by_inode = match (&self.inodes, opened.or_else(|| inode_of(file))) {
                    (Some(history), Some(inode)) => history.oldest(inode),
                    _ => None,
                };
                (lineage, to_present(to_present(unsynced, by_inode), self.loose.oldest()))
            }
            FileRequest::SyncVolume { lineage } => (lineage, self.all.oldest()),
            FileRequest::Close { lineage, .. } => (lineage, unsynced),
            _ => return Ok(None),
        };
        // A caller that keeps its own account is taken at its word.
        *place = place.or(presented);
        Ok(*place)
    }
}
