//! Running one operation: gather, then execute.
//!
//! ```text
//! resolve ─ plan ─ (log data first) ─ reserve space ─ prepare ─ charge │ record ─ tree ─ pages ─ usage
//!            reads only; may end with Missing or a refusal             │ cannot fail
//! ```

use super::{InodeTicket, Subvolume};
use crate::error::{EngineResult, FsError};
use crate::fs::allocate::{fulfil_preallocations, step_length};
use crate::fs::dispatch::plan_operation;
use crate::fs::plan::Plan;
use crate::limits::{BLOCK_BYTES, NODE_BYTES};
use crate::log::record;
use crate::operation::{Operation, Resolved};
use crate::space::{Class, Run, RunList};
use crate::tree::{Mutation, Prepared};
use crate::types::{InodeNumber, LogTransid, OperationId, ServerEpoch, Timestamp, TransactionId};

/// Blocks of one node.
pub(super) const NODE_BLOCKS: u64 = NODE_BYTES as u64 / BLOCK_BYTES;
/// Blocks reserved for a dirty page besides its own: the leaf that its extent item may have to copy.
const NODE_BLOCKS_PER_PAGE: u64 = NODE_BLOCKS;

/// When a change happened, in the store's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// Server epoch.
    pub epoch: ServerEpoch,
    /// Transaction.
    pub transid: TransactionId,
    /// Generation of the subvolume's log.
    pub log_transid: LogTransid,
}

/// An operation took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The inode that it made or acted on.
    pub inode: InodeNumber,
    /// When.
    pub ticket: Ticket,
    /// A number for the reply, as given to [`Subvolume::execute`].
    pub detail: u64,
    /// It had taken effect before: this was a retry.
    pub repeated: bool,
    /// An inode that lost its last name and can be freed now by background steps.
    pub reclaim: Option<InodeNumber>,
}

impl Subvolume {
    /// Runs an operation. `detail` is remembered for a retry with the same id.
    pub fn execute(
        &mut self,
        operation: &Operation,
        now: Timestamp,
        id: Option<OperationId>,
        detail: u64,
    ) -> EngineResult<Done> {
        if let Some(entry) = id.and_then(|id| self.ledger.find(&id)) {
            let ticket = self.ticket();
            let (inode, detail) = (entry.inode, entry.detail);
            return Ok(Done { inode, ticket, detail, repeated: true, reclaim: None });
        }
        self.store.check_writable()?;
        if range_of(operation).is_some() {
            return self.execute_in_pieces(operation, now, id, detail);
        }
        self.execute_one(operation, now, id, detail)
    }

    fn execute_one(
        &mut self,
        operation: &Operation,
        now: Timestamp,
        id: Option<OperationId>,
        detail: u64,
    ) -> EngineResult<Done> {
        // The plan must name the transaction that the change will belong to.
        self.join();
        let mut resolved = Resolved { now, next_id: self.next_id, keep_orphan: false };
        let mut plan = plan_operation(&self.view_with(resolved, false), operation)?;
        if plan.unnamed.is_some_and(|(inode, _)| self.is_open(inode)) {
            resolved.keep_orphan = true;
            plan = plan_operation(&self.view_with(resolved, false), operation)?;
        }
        // An inode may also stay because it is too large to be freed at once. Replay may find less of it (data that was
        // never logged), free it, and then meet records of it: so the decision is the record's, not replay's.
        resolved.keep_orphan = plan.unnamed.is_some_and(|(_, kept)| kept);
        if plan.no_change {
            let inode = plan.inode;
            return Ok(Done { inode, ticket: self.ticket(), detail, repeated: false, reclaim: None });
        }
        if plan.log_data_first.iter().any(|&inode| self.has_unlogged_data(inode)) {
            for inode in std::mem::take(&mut plan.log_data_first) {
                self.log_inode_data(inode)?;
            }
            // Logging may have turned pages into extents: the plan is stale.
            plan = plan_operation(&self.view_with(resolved, false), operation)?;
            resolved.keep_orphan = plan.unnamed.is_some_and(|(_, kept)| kept);
        }
        let class = if frees_space(operation) { Class::Release } else { Class::Growth };
        let prepared = self.make_ready(&mut plan, class, true)?;
        let log_transid = self.log.append(|out, sequence| {
            record::append_operation(out, sequence, &resolved, id, operation);
        });
        if let Some(id) = id {
            self.ledger.remember(&id, plan.inode, detail);
        }
        self.carry_out(&plan, &prepared);
        for &inode in &plan.touched {
            self.note_change(inode, log_transid);
        }
        let reclaim = plan.unnamed.and_then(|(inode, kept)| (kept && !self.is_open(inode)).then_some(inode));
        let ticket = Ticket { log_transid, ..self.ticket() };
        Ok(Done { inode: plan.inode, ticket, detail, repeated: false, reclaim })
    }

    /// The present ticket: everything acknowledged so far is not newer.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            epoch: self.store.identity().epoch,
            transid: self.transid(),
            log_transid: self.log.progress().newest(),
        }
    }

    pub(super) fn note_change(&self, inode: InodeNumber, log_transid: LogTransid) {
        if let Some(open) = self.open.get(&inode) {
            let ticket: &InodeTicket = &open.ticket;
            ticket.changed(log_transid, self.has_unlogged_data(inode));
        }
    }

    /// Space, memory and limits for a plan; its preallocations become part of it. On any error nothing is held.
    pub(super) fn make_ready(
        &mut self,
        plan: &mut Plan,
        class: Class,
        enforce: bool,
    ) -> EngineResult<Prepared> {
        let preallocated: u64 = plan.preallocate.iter().map(|request| request.length / BLOCK_BYTES).sum();
        let nodes = self.node_bound(plan.mutations.len() as u64 + preallocated.min(64));
        let pages = plan.reserve_blocks * (1 + NODE_BLOCKS_PER_PAGE);
        let needed = preallocated + nodes + pages;
        if enforce && self.store.space().available(class) < needed {
            return Err(FsError::NoSpace.into());
        }
        let taken = self.preallocate(plan)?;
        let ready = self
            .tree
            .prepare(&self.view_now().nodes, &plan.mutations)
            .map_err(Into::into)
            .and_then(|prepared| self.charge(plan, enforce).map(|()| prepared));
        match &ready {
            Ok(_) => taken.iter().for_each(|run| self.space.allocated.push(run)),
            Err(_) => taken.iter().for_each(|run| self.store.space().release_unwritten(run)),
        }
        ready
    }

    fn charge(&self, plan: &Plan, enforce: bool) -> EngineResult<()> {
        self.account.charge(plan.bytes, plan.inodes, enforce)?;
        if let Err(refused) = self.tenant_account.charge(plan.bytes, plan.inodes, enforce) {
            self.account.charge(-plan.bytes, -plan.inodes, false)?;
            return Err(refused.into());
        }
        Ok(())
    }

    /// The second half: nothing here can fail.
    pub(super) fn carry_out(&mut self, plan: &Plan, prepared: &Prepared) {
        assert!(self.dirty, "a change outside of a transaction");
        self.tree.apply(prepared, self.transid, &plan.mutations, &mut self.space.superseded);
        for effect in &plan.pages {
            self.pages.apply(effect);
        }
        for released in &plan.released {
            let run = Run::of_bytes(released.range.address, released.range.length);
            self.space.released.push(run);
        }
        for claimed in &plan.claimed {
            self.space.allocated.push(Run::of_bytes(claimed.address, claimed.length));
        }
        self.next_id += plan.ids_used;
        self.balance_reservation();
    }

    /// Puts items without a record: only for what replay need not repeat.
    pub(super) fn apply_mutations(&mut self, mutations: &[Mutation]) -> EngineResult<()> {
        let prepared = self.tree.prepare(&self.view_now().nodes, mutations)?;
        self.tree.apply(&prepared, self.transid, mutations, &mut self.space.superseded);
        self.balance_reservation();
        Ok(())
    }

    /// Makes the reservation what it must be: a block for each page that needs one, blocks for each dirty node, and for
    /// the leaf that each dirty page's extent item may copy.
    pub(super) fn balance_reservation(&mut self) {
        let nodes = self.pages.dirty_pages() * NODE_BLOCKS_PER_PAGE + self.tree.dirty_nodes() * NODE_BLOCKS;
        let wanted = self.pages.reserved_pages() + nodes;
        let held = self.space.reserved_blocks;
        if wanted > held {
            self.store.space().reserve_forced(wanted - held);
        } else if wanted < held {
            self.store.space().unreserve(held - wanted);
        }
        self.space.reserved_blocks = wanted;
        self.store.space().note_nodes(self.space.node_blocks, nodes);
        self.space.node_blocks = nodes;
    }

    /// Most blocks of nodes that this many mutations can make dirty: each may copy a path and split each node on it.
    fn node_bound(&self, mutations: u64) -> u64 {
        mutations.min(64) * (self.tree.height() + 1) * NODE_BLOCKS
    }

    /// Takes blocks for the plan's preallocations and adds their extent items to its mutations.
    fn preallocate(&self, plan: &mut Plan) -> EngineResult<RunList> {
        let space = self.store.space();
        let mut allocate = |blocks| space.allocate(blocks, None).map(|run| (run.address(), run.blocks));
        let (ranges, all_found) = fulfil_preallocations(plan, self.transid, &mut allocate);
        let mut taken = RunList::new();
        ranges.iter().for_each(|range| taken.push(Run::of_bytes(range.address, range.length)));
        if all_found {
            return Ok(taken);
        }
        taken.iter().for_each(|run| space.release_unwritten(run));
        Err(FsError::NoSpace.into())
    }

    /// Runs an operation on a file range in pieces of bounded work. Each piece is an operation of its own, with a record
    /// of its own: they are atomic each, not together. A range that is run again after `Missing` repeats pieces that took
    /// effect, which changes nothing.
    fn execute_in_pieces(
        &mut self,
        operation: &Operation,
        now: Timestamp,
        id: Option<OperationId>,
        detail: u64,
    ) -> EngineResult<Done> {
        let mut rest = operation.clone();
        loop {
            let Some((inode, offset, length, allocates)) = range_of(&rest) else {
                return self.execute_one(&rest, now, id, detail);
            };
            let step = step_length(&self.view_now(), inode, offset, length, allocates)?;
            if step >= length {
                return self.execute_one(&rest, now, id, detail);
            }
            let (piece, after) = split_range(&rest, step);
            self.execute_one(&piece, now, None, detail)?;
            rest = after;
        }
    }
}

/// Inode, offset, length of an operation on a range of a file, and whether it allocates.
fn range_of(operation: &Operation) -> Option<(InodeNumber, u64, u64, bool)> {
    match operation {
        Operation::Allocate { inode, offset, length, .. }
        | Operation::ZeroRange { inode, offset, length, .. } => Some((*inode, *offset, *length, true)),
        Operation::PunchHole { inode, offset, length } => Some((*inode, *offset, *length, false)),
        _ => None,
    }
}

/// The first `step` bytes of an operation on a range, and the rest.
fn split_range(operation: &Operation, step: u64) -> (Operation, Operation) {
    let (mut piece, mut after) = (operation.clone(), operation.clone());
    if let Operation::Allocate { length, .. }
    | Operation::ZeroRange { length, .. }
    | Operation::PunchHole { length, .. } = &mut piece
    {
        *length = step;
    }
    if let Operation::Allocate { offset, length, .. }
    | Operation::ZeroRange { offset, length, .. }
    | Operation::PunchHole { offset, length, .. } = &mut after
    {
        *offset += step;
        *length -= step;
    }
    (piece, after)
}

/// Operations that must work on a full device and at a full quota.
fn frees_space(operation: &Operation) -> bool {
    match operation {
        Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::RemoveXattr { .. }
        | Operation::PunchHole { .. } => true,
        // A whiteout is a new inode: a full device must not fill the room for deletes with them.
        Operation::Rename { mode, .. } => !mode.leaves_whiteout(),
        Operation::SetAttributes { change, .. } => change.size.is_some(),
        _ => false,
    }
}
