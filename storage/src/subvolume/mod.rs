//! A subvolume: one value that owns a tree, its dirty data and its log. Whoever owns it (an actor, a test) calls it from
//! one thread; so there are no locks and nothing is ever half done.
//!
//! Every change runs in two halves (see `execute.rs`): the first reads, and may end with `Missing`, having changed
//! nothing; the second cannot fail. Invariants:
//! 1. a record enters the log before the tree changes, in the same call;
//! 2. the transaction of a change is the one that the subvolume joined: after a freeze for N everything is N + 1;
//! 3. usage equals 4096 times the mapped blocks and the number of inodes, at every moment;
//! 4. blocks that the tree lets go of are listed for this transaction and are not reusable before it is durable;
//! 5. every dirty page that needs a block has one reserved, and every dirty node has its blocks reserved.

mod data;
mod execute;
mod freeze;
mod query;
mod replay;

pub use data::{Closed, WritebackProgress};
pub use execute::{Done, Ticket};
pub use freeze::{Frozen, RootDescription};

use crate::error::EngineResult;
use crate::format::item::{InodeItem, file_type};
use crate::format::key::{ItemKind, Key};
use crate::format::root_item::RootItem;
use crate::fs::pages::PageTable;
use crate::fs::plan::PageBytes;
use crate::fs::view::{BlockSource, Nodes, View};
use crate::limits::{FIRST_FREE_ID, ROOT_INODE};
use crate::log::generation::{LogPin, LogProgress, SubvolumeLog};
use crate::log::ledger::Ledger;
use crate::operation::Resolved;
use crate::space::{AllocationWindow, RunList};
use crate::store::Store;
use crate::store::account::Account;
use crate::store::data_write::DataWrite;
use crate::tree::{Mutation, Node, Superseded, Tree};
use crate::types::{InodeNumber, LogTransid, SubvolumeId, TenantId, Timestamp, TransactionId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
pub struct Subvolume {
    store: Arc<Store>,
    id: SubvolumeId,
    tree: Tree,
    transid: TransactionId,
    /// Joined `transid` by a change, and not frozen since.
    dirty: bool,
    next_id: u64,
    account: Arc<Account>,
    tenant_account: Arc<Account>,
    pages: PageTable,
    log: SubvolumeLog,
    ledger: Ledger,
    open: FxHashMap<InodeNumber, OpenInode>,
    /// Nodes fetched for an operation that is being run again; the cache may have dropped them by then.
    staged_nodes: FxHashMap<u64, Arc<Node>>,
    blocks: BlockTable,
    space: TransactionSpace,
    /// Extents of the running transaction and of the one being committed, by address: an fsync refers to them.
    writes: BTreeMap<u64, Arc<DataWrite>>,
    previous_writes: BTreeMap<u64, Arc<DataWrite>>,
    new_writes: Vec<Arc<DataWrite>>,
    writes_swept_at: usize,
    frozen: Option<TransactionId>,
    description: RootDescription,
    recovered_log_transid: LogTransid,
}

/// Blocks that moved in the running transaction, and what is reserved for it.
struct TransactionSpace {
    allocated: RunList,
    released: RunList,
    superseded: Superseded,
    window: AllocationWindow,
    reserved_blocks: u64,
    /// Part of `reserved_blocks` that is for tree nodes.
    node_blocks: u64,
}

/// Clean file blocks in memory.
struct BlockTable {
    store: Arc<Store>,
    /// Fetched for an operation that is being run again.
    staged: FxHashMap<(u64, TransactionId), PageBytes>,
}

struct OpenInode {
    count: u32,
    ticket: Arc<InodeTicket>,
}

/// What a session reads to answer an fsync of a handle without asking the owner.
#[derive(Debug, Default)]
pub struct InodeTicket {
    last_change: AtomicU64,
    unlogged: AtomicBool,
}

impl InodeTicket {
    /// Is everything of this inode, and every operation acknowledged before, durable?
    pub fn is_durable(&self, progress: &LogProgress) -> bool {
        !self.unlogged.load(Ordering::Acquire)
            && progress.is_durable(self.last_change.load(Ordering::Acquire))
    }

    fn changed(&self, transid: LogTransid, unlogged: bool) {
        self.last_change.fetch_max(transid, Ordering::AcqRel);
        self.unlogged.store(unlogged, Ordering::Release);
    }
}

impl BlockSource for BlockTable {
    fn block(&self, address: u64, generation: TransactionId) -> Option<PageBytes> {
        if !self.staged.is_empty()
            && let Some(block) = self.staged.get(&(address, generation))
        {
            return Some(Arc::clone(block));
        }
        self.store
            .data()
            .block(address, generation)
            .or_else(|| self.store.in_flight().block(address, generation))
            // Written between the two look-ups: it left the one after it entered the other.
            .or_else(|| self.store.data().block(address, generation))
    }
}

impl Drop for Subvolume {
    fn drop(&mut self) {
        self.store.close_log(self.id, self.log.open_transid() + 1);
    }
}

impl Subvolume {
    /// A new subvolume with an empty root directory; dirty, so the next commit makes it durable.
    pub fn create(store: Arc<Store>, id: SubvolumeId, description: RootDescription) -> Self {
        let root = RootItem {
            root: None,
            tenant: description.tenant,
            flags: description.flags,
            next_id: FIRST_FREE_ID,
            usage: Default::default(),
            limits: description.limits,
            covered_sequence: 0,
            last_snapshot_generation: 0,
            origin: description.origin,
            created: description.created,
            name: description.name.clone(),
        };
        let mut subvolume = Self::open(store, id, &root);
        subvolume.join();
        let now = description.created;
        let item = InodeItem {
            generation: subvolume.transid,
            version: 1,
            size: 0,
            blocks: 0,
            parent: ROOT_INODE,
            rdev: 0,
            flags: 0,
            nlink: 2,
            mode: file_type::DIRECTORY | 0o755,
            uid: description.root_uid,
            gid: description.root_gid,
            xattrs: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let value = crate::tree::ItemValue::from_slice(zerocopy::IntoBytes::as_bytes(&item.to_disk()));
        let put = [Mutation::put(Key::new(ROOT_INODE, ItemKind::Inode, 0), value)];
        subvolume.apply_mutations(&put).expect("an empty tree is in memory");
        subvolume
    }

    /// The subvolume as the root tree has it. Nothing is read.
    pub fn open(store: Arc<Store>, id: SubvolumeId, root: &RootItem) -> Self {
        let running = store.running();
        let tree = match root.root {
            Some(pointer) => Tree::open(id, pointer),
            None => Tree::empty(id, running),
        };
        let tenant_account = store.tenant_account(root.tenant);
        Self {
            id,
            tree,
            transid: running,
            dirty: false,
            next_id: root.next_id,
            account: Arc::new(Account::new(root.usage, root.limits)),
            tenant_account,
            pages: PageTable::default(),
            log: SubvolumeLog::new(
                id,
                store.identity().epoch,
                root.covered_sequence,
                store.first_log_transid(id),
            ),
            ledger: Ledger::default(),
            open: FxHashMap::default(),
            staged_nodes: FxHashMap::default(),
            blocks: BlockTable { store: Arc::clone(&store), staged: FxHashMap::default() },
            space: TransactionSpace {
                allocated: RunList::new(),
                released: RunList::new(),
                superseded: Superseded::new(root.last_snapshot_generation),
                window: AllocationWindow::default(),
                reserved_blocks: 0,
                node_blocks: 0,
            },
            writes: BTreeMap::new(),
            previous_writes: BTreeMap::new(),
            new_writes: Vec::new(),
            writes_swept_at: data::WRITES_SWEPT_AT_MIN,
            frozen: None,
            description: RootDescription::of(root),
            recovered_log_transid: 0,
            store,
        }
    }

    /// Its number.
    pub fn id(&self) -> SubvolumeId {
        self.id
    }

    /// Whose it is.
    pub fn tenant(&self) -> TenantId {
        self.description.tenant
    }

    /// Name, limits and the like.
    pub fn description(&self) -> &RootDescription {
        &self.description
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// What sessions read without asking.
    pub fn progress(&self) -> &Arc<LogProgress> {
        self.log.progress()
    }

    /// Usage and limits, shared.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Usage and limits of its tenant, shared.
    pub fn tenant_account(&self) -> &Arc<Account> {
        &self.tenant_account
    }

    /// Has it changed since the last freeze?
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Is the commit that it was frozen for still under way?
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Transaction that its next change belongs to.
    pub fn transid(&self) -> TransactionId {
        if self.dirty { self.transid } else { self.store.running() }
    }

    /// Number of the open generation of its log.
    pub fn log_transid(&self) -> LogTransid {
        self.log.open_transid()
    }

    /// Bytes of records that are not in the ring.
    pub fn log_backlog_bytes(&self) -> usize {
        self.log.pending_bytes()
    }

    /// Dirty file data in memory, in bytes.
    pub fn dirty_bytes(&self) -> u64 {
        self.pages.dirty_bytes()
    }

    /// Blocks let go of in the running transaction: not reusable before it is durable.
    pub fn pinned_blocks(&self) -> u64 {
        self.space.released.blocks() + self.space.superseded.len() as u64 * 4
    }

    /// Keeps the log's open generation from closing; see [`SubvolumeLog::pin`].
    pub fn pin_log(&self) -> LogPin {
        self.log.pin()
    }

    /// Is the log pinned?
    pub fn is_log_pinned(&self) -> bool {
        self.log.is_pinned()
    }

    /// Keeps a node that was fetched for an operation of this subvolume until [`Self::clear_staged`].
    pub fn stage_node(&mut self, node: Arc<Node>) {
        if let Some(pointer) = node.pointer() {
            self.staged_nodes.insert(pointer.address, node);
        }
    }

    /// Keeps data that was fetched for an operation of this subvolume until [`Self::clear_staged`].
    pub fn stage_data(&mut self, pointer: &crate::error::DataPointer, pages: Vec<PageBytes>) {
        for (index, page) in pages.into_iter().enumerate() {
            let address = pointer.address + index as u64 * crate::limits::BLOCK_BYTES;
            self.blocks.staged.insert((address, pointer.generation), page);
        }
    }

    /// No operation waits for a fetch any more.
    pub fn clear_staged(&mut self) {
        self.staged_nodes = FxHashMap::default();
        self.blocks.staged = FxHashMap::default();
    }

    /// Another handle of the inode; returns what its session reads at fsync.
    pub fn open_inode(&mut self, inode: InodeNumber) -> EngineResult<Arc<InodeTicket>> {
        if !self.open.contains_key(&inode) {
            self.view_now().inode(inode)?;
        }
        let unlogged = self.has_unlogged_data(inode);
        let newest = self.log.progress().newest();
        let entry = self.open.entry(inode).or_insert_with(|| {
            let ticket = Arc::new(InodeTicket::default());
            ticket.changed(newest, unlogged);
            OpenInode { count: 0, ticket }
        });
        entry.count += 1;
        Ok(Arc::clone(&entry.ticket))
    }

    /// A handle of the inode is gone. Returns whether it was the last.
    pub fn close_inode(&mut self, inode: InodeNumber) -> bool {
        let Some(entry) = self.open.get_mut(&inode) else { return false };
        entry.count -= 1;
        let last = entry.count == 0;
        if last {
            self.open.remove(&inode);
        }
        last
    }

    /// Does somebody have it open?
    pub fn is_open(&self, inode: InodeNumber) -> bool {
        self.open.contains_key(&inode)
    }

    /// Inodes that are open.
    pub fn open_inodes(&self) -> usize {
        self.open.len()
    }

    /// Joins the running transaction if it has not changed in it yet.
    fn join(&mut self) {
        if !self.dirty {
            self.transid = self.store.join(self.id);
            self.dirty = true;
        }
    }

    fn view_now(&self) -> View<'_> {
        self.view_with(
            Resolved { now: Timestamp::default(), next_id: self.next_id, keep_orphan: false },
            false,
        )
    }

    fn view_with(&self, resolved: Resolved, replay: bool) -> View<'_> {
        View {
            tree: &self.tree,
            nodes: Nodes { cache: self.store.nodes(), staged: &self.staged_nodes },
            pages: &self.pages,
            blocks: &self.blocks,
            transid: self.transid,
            resolved,
            replay,
        }
    }

    fn has_unlogged_data(&self, inode: InodeNumber) -> bool {
        self.pages
            .file(inode)
            .is_some_and(|file| self.pages.unlogged_bytes(inode) > 0 || !file.unlogged_extents().is_empty())
    }
}
