//! Blocks from the device for whoever met [`subvol_storage::error::EngineError::Missing`].
//!
//! Invariants: the device is read on the fetch threads only; what was fetched stays staged until whoever waited ran again,
//! so that a small cache cannot make it run for ever; a data block that fails its check is looked up again once, because it
//! may have been freed and reused between look-up and read: the same block failing twice is damaged.

use super::SubvolumeRoot;
use super::job::Fetch;
use crate::runtime::{Context, Handler, messages};
use std::sync::Arc;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_storage::error::DataPointer;
use subvol_storage::fs::plan::PageBytes;
use subvol_storage::limits::NODE_BYTES;
use subvol_storage::store::{Store, StoreError};
use subvol_storage::tree::Node;

/// Staged bytes above which they are dropped although somebody still waits for other blocks.
const STAGED_BYTES_MAX: u64 = 32 << 20;

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A parked request.
    Job(u64),
    /// The freeze for a commit.
    Freeze,
    /// Freeing in the background.
    Background,
    /// Turning dirty pages into extents ahead of the commit.
    WriteBack,
}

/// Blocks arrived.
pub struct Fetched {
    target: Target,
    result: Result<Blocks, (StoreError, Option<(u64, u64)>)>,
}

enum Blocks {
    Node(Arc<Node>),
    Data(Vec<(DataPointer, Vec<PageBytes>)>),
}

messages!(Fetched);

impl SubvolumeRoot {
    /// Reads blocks and comes back with [`Fetched`].
    pub(super) fn fetch(&mut self, target: Target, fetch: Fetch) {
        self.fetching += 1;
        let store = Arc::clone(&self.shared.store);
        let mailbox = self.mailbox.clone();
        self.shared.fetchers.run(move || mailbox.send(Fetched { target, result: read(&store, fetch) }));
    }

    fn stage(&mut self, blocks: Blocks) {
        match blocks {
            Blocks::Node(node) => {
                self.staged_bytes += NODE_BYTES as u64;
                self.subvolume.stage_node(node);
            }
            Blocks::Data(pieces) => {
                for (pointer, pages) in pieces {
                    self.staged_bytes += pointer.length;
                    self.subvolume.stage_data(&pointer, pages);
                }
            }
        }
    }

    /// A block could not be read. Returns whether it is worth looking it up again.
    fn failed(&mut self, target: Target, error: &StoreError, block: Option<(u64, u64)>) -> bool {
        if let Target::Job(token) = target {
            let suspect = self.parked.get_mut(&token).map(|parked| &mut parked.job.state.suspect);
            if let (StoreError::Corrupt(_), Some(suspect), Some(block)) = (error, suspect, block)
                && *suspect != Some(block)
            {
                *suspect = Some(block);
                return true;
            }
        }
        tracing::error!(subvolume = self.subvolume.id(), %error, "a block could not be read");
        if target == Target::Freeze && self.freeze_may_read_again() {
            return true;
        }
        match target {
            Target::Job(token) => {
                let code = match error {
                    StoreError::Corrupt(_) => ErrorCode::Corrupt,
                    _ => ErrorCode::Io,
                };
                self.fail_parked(token, WireError::new(code, &error.to_string()));
            }
            // Without the block the commit cannot be complete, and a commit that leaves something out would be a lie.
            Target::Freeze => {
                self.shared.store.fail(error);
                self.freeze_failed();
            }
            Target::Background => self.give_up_background(),
            Target::WriteBack => {
                self.write_back_fetched();
                self.stop_write_back(true);
            }
        }
        false
    }
}

fn read(store: &Store, fetch: Fetch) -> Result<Blocks, (StoreError, Option<(u64, u64)>)> {
    match fetch {
        Fetch::Node(missing) => {
            let block = (missing.pointer.address, missing.pointer.generation);
            store.read_node(&missing).map(Blocks::Node).map_err(|error| (error, Some(block)))
        }
        Fetch::Data(pointers) => {
            let mut pieces = Vec::with_capacity(pointers.len());
            for pointer in pointers {
                let block = (pointer.address, pointer.generation);
                let pages = store.read_data(&pointer).map_err(|error| (error, Some(block)))?;
                pieces.push((pointer, pages));
            }
            Ok(Blocks::Data(pieces))
        }
    }
}

impl Handler<Fetched> for SubvolumeRoot {
    type Result = ();

    fn handle(&mut self, message: Fetched, _: &mut Context<Self>) {
        let span = self.span.clone();
        let _inside = span.enter();
        self.now = crate::runtime::now();
        self.fetching -= 1;
        let again = match message.result {
            Ok(blocks) => {
                self.stage(blocks);
                true
            }
            Err((error, block)) => self.failed(message.target, &error, block),
        };
        if again {
            match message.target {
                Target::Job(token) => self.run_again(token),
                Target::Freeze => self.drive_freeze(),
                Target::Background => self.background_fetched(),
                Target::WriteBack => self.write_back_fetched(),
            }
        }
        if self.fetching == 0 || self.staged_bytes > STAGED_BYTES_MAX {
            self.subvolume.clear_staged();
            self.staged_bytes = 0;
        }
        self.after_messages();
    }
}
