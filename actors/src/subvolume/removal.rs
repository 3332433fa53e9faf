//! Emptying a removed volume: name by name from the leaves up, in short steps, while everybody else goes on.
//!
//! Where it stands needs no record of its own: the volume is marked as dying, what is left is what is left, and after a
//! restart the walk begins again at the root directory. When nothing is left but the empty root directory, a commit makes
//! that durable, and the next one takes the volume out of the root tree.

use super::SubvolumeRoot;
use super::job::Stop;
use crate::limits::{ORPHANS_PER_LIST, REMOVAL_ENTRIES_PER_STEP};
use crate::runtime::{self, Context, Handler, messages};
use crate::transaction_manager::CommitReason;
use bytes::Bytes;
use std::sync::Arc;
use subvol_storage::format::item::file_type;
use subvol_storage::format::root_item::root_flags;
use subvol_storage::limits::ROOT_INODE;
use subvol_storage::operation::{Operation, Place};
use subvol_storage::subvolume::Subvolume;
use subvol_storage::transaction::commit::RootChange;
use subvol_storage::types::InodeNumber;

/// Mark the volume as dying and begin to free what it holds. Told when the next commit will contain the mark.
pub struct Remove(pub tokio::sync::oneshot::Sender<()>);

/// The emptied state is durable.
struct Emptied;

/// The volume is out of the root tree.
struct Gone;

messages!(Remove, Emptied, Gone);

/// A walk over the volume.
#[derive(Debug)]
pub(super) struct Removal {
    /// Directories from the root down, each with its place.
    path: Vec<(InodeNumber, Option<Place>)>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Walking,
    Committing,
    GivenUp,
}

impl Removal {
    /// The walk of a volume that was dying when it was loaded.
    pub(super) fn of(subvolume: &Subvolume) -> Option<Self> {
        (subvolume.description().flags & root_flags::DYING != 0).then(Self::begin)
    }

    fn begin() -> Self {
        Self { path: vec![(ROOT_INODE, None)], state: State::Walking }
    }

    pub(super) fn has_work(&self) -> bool {
        self.state == State::Walking
    }

    /// A damaged block: what is left stays, until somebody repairs or discards it.
    pub(super) fn give_up(&mut self) {
        tracing::error!("a removed volume cannot be freed completely: a block of it is damaged");
        self.state = State::GivenUp;
    }
}

impl SubvolumeRoot {
    /// Removes some names, or notices that nothing is left.
    pub(super) fn removal_step(&mut self) -> Result<(), Stop> {
        let Some(removal) = self.removal.as_ref().filter(|removal| removal.has_work()) else { return Ok(()) };
        let (directory, place) = removal.path.last().cloned().unwrap_or((ROOT_INODE, None));
        let batch = self.subvolume.read_directory(directory, 0, REMOVAL_ENTRIES_PER_STEP, false)?;
        for entry in &batch.entries {
            let inner = Place { parent: directory, name: entry.name.clone() };
            if entry.mode_type == file_type::DIRECTORY {
                if let Some(removal) = &mut self.removal {
                    removal.path.push((entry.inode, Some(inner)));
                }
                return Ok(());
            }
            self.remove_name(Operation::Unlink { place: inner })?;
        }
        if !batch.end {
            return Ok(());
        }
        match place {
            Some(place) => {
                self.remove_name(Operation::RemoveDirectory { place })?;
                if let Some(removal) = &mut self.removal {
                    removal.path.pop();
                }
                Ok(())
            }
            None => self.finish_removal(),
        }
    }

    fn remove_name(&mut self, operation: Operation) -> Result<(), Stop> {
        let done = self.subvolume.execute(&operation, self.now, None, 0)?;
        self.operations += 1;
        if let Some(inode) = done.reclaim {
            self.free_later(inode);
        }
        Ok(())
    }

    /// The root directory is empty: what it carries itself, and files without names, go last.
    fn finish_removal(&mut self) -> Result<(), Stop> {
        let names: Vec<Bytes> = self.subvolume.list_xattrs(ROOT_INODE)?;
        for name in names {
            self.remove_name(Operation::RemoveXattr { inode: ROOT_INODE, name })?;
        }
        let orphans = self.subvolume.orphans(0, ORPHANS_PER_LIST)?;
        if !orphans.is_empty() {
            self.free.extend(orphans);
            return Ok(());
        }
        if let Some(removal) = &mut self.removal {
            removal.state = State::Committing;
        }
        self.commit_then(Vec::new(), Emptied);
        Ok(())
    }

    /// Commits, then sends `message` here.
    fn commit_then<M>(&self, changes: Vec<RootChange>, message: M)
    where
        Self: Handler<M>,
        M: runtime::Message<Result = ()> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let mailbox = self.mailbox.clone();
        runtime::spawn(async move {
            if shared.commit(CommitReason::Removal, changes).await.is_ok() {
                mailbox.send(message);
            }
        });
    }
}

impl Handler<Remove> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: Remove, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.subvolume.add_flags(root_flags::DYING);
        let _ = message.0.send(());
        self.removal = Some(Removal::begin());
        self.after_messages();
    }
}

impl Handler<Emptied> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, _: Emptied, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        if self.subvolume.is_dirty() || self.subvolume.is_frozen() {
            // A background step came in between; its result has to be durable first.
            self.commit_then(Vec::new(), Emptied);
        } else {
            self.commit_then(vec![RootChange::RemoveSubvolume(self.subvolume.id())], Gone);
        }
    }
}

impl Handler<Gone> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, _: Gone, context: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        if self.subvolume.is_dirty() || self.subvolume.is_frozen() {
            // The next commit would look for an owner, and write the root again.
            self.commit_then(vec![RootChange::RemoveSubvolume(self.subvolume.id())], Gone);
            return;
        }
        tracing::info!(subvolume = self.subvolume.id(), "a removed volume is gone");
        self.shared.registry.unload(self.subvolume.id());
        runtime::stop(context);
    }
}
