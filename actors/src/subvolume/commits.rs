//! A subvolume's part in a commit: freeze at a message boundary, go on at once, learn when it is durable.

use super::SubvolumeRoot;
use super::fetch::Target;
use super::job::{Fetch, Stop};
use super::run::Why;
use crate::limits::{FREEZE_AT_ONCE_BYTES, FREEZE_ROUNDS_MAX};
use crate::runtime::{self, Context, Handler, messages};
use crate::transaction_manager::FreezeResult;
use std::time::Duration;
use subvol_storage::subvolume::WritebackProgress;
use subvol_storage::types::TransactionId;

/// Hand over the state of this transaction.
pub struct Freeze {
    /// Which.
    pub transid: TransactionId,
}

/// This transaction is durable.
pub struct CommitDurable {
    /// Which.
    pub transid: TransactionId,
}

/// Go on preparing the freeze.
pub(super) struct ContinueFreeze;

messages!(Freeze, CommitDurable, ContinueFreeze);

/// A freeze that is being prepared.
pub(super) struct Freezing {
    transid: TransactionId,
    rounds: u32,
    waits_for_fetch: bool,
    /// A read failed and was tried again.
    read_again: bool,
}

impl SubvolumeRoot {
    /// Turns dirty pages into extents, in pieces while there are many, then freezes.
    pub(super) fn drive_freeze(&mut self) {
        let Some(freezing) = &mut self.freeze else { return };
        let transid = freezing.transid;
        freezing.waits_for_fetch = false;
        loop {
            match self.subvolume.prepare_freeze() {
                Ok(WritebackProgress::Done) => break,
                Ok(WritebackProgress::More) => {
                    let left = self.subvolume.dirty_bytes();
                    let Some(freezing) = &mut self.freeze else { return };
                    freezing.rounds += 1;
                    // Others get their turn, but a client that writes faster than this cannot put the commit off.
                    if left > FREEZE_AT_ONCE_BYTES && freezing.rounds < FREEZE_ROUNDS_MAX {
                        runtime::later(&self.mailbox, Duration::ZERO, ContinueFreeze);
                        return;
                    }
                }
                Err(error) => {
                    self.freeze_needs(error.into());
                    return;
                }
            }
        }
        let Ok(frozen) = self.subvolume.freeze(transid) else {
            // A pin is held: whoever releases it comes back here.
            return;
        };
        self.freeze = None;
        let result = FreezeResult { subvolume: self.subvolume.id(), frozen: Some(Box::new(frozen)) };
        self.shared.froze(result);
    }

    fn freeze_needs(&mut self, stop: Stop) {
        match stop {
            Stop::Fetch(fetch) => {
                if let Some(freezing) = &mut self.freeze {
                    freezing.waits_for_fetch = true;
                }
                let fetch: Fetch = fetch;
                self.fetch(Target::Freeze, fetch);
            }
            // Space for it was reserved when the pages became dirty, so the store must have failed.
            _ => {
                self.shared
                    .store
                    .fail(&format_args!("subvolume {} could not be frozen", self.subvolume.id()));
                self.freeze_failed();
            }
        }
    }

    /// One read error must not stop the store for everybody if it does not come back: true once in a freeze.
    pub(super) fn freeze_may_read_again(&mut self) -> bool {
        self.freeze.as_mut().is_some_and(|freezing| !std::mem::replace(&mut freezing.read_again, true))
    }

    pub(super) fn freeze_failed(&mut self) {
        if self.freeze.take().is_some() {
            self.shared.froze(FreezeResult { subvolume: self.subvolume.id(), frozen: None });
        }
    }
}

impl Handler<Freeze> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: Freeze, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.freeze =
            Some(Freezing { transid: message.transid, rounds: 0, waits_for_fetch: false, read_again: false });
        self.drive_freeze();
        self.after_messages();
    }
}

impl Handler<ContinueFreeze> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, _: ContinueFreeze, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        if self.freeze.as_ref().is_some_and(|freezing| !freezing.waits_for_fetch) {
            self.drive_freeze();
        }
        self.after_messages();
    }
}

impl Handler<CommitDurable> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: CommitDurable, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.now = runtime::now();
        self.subvolume.commit_durable(message.transid);
        self.stop_write_back(false);
        self.run_parked(Why::Dirty);
        self.after_messages();
    }
}
