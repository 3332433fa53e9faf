//! A subvolume in memory for tests of planning: a tree, dirty pages, no log, no device.
//!
//! Executes the namespace part of plans only (mutations, usage, identifiers), and can [`Bench::verify`] every invariant
//! of a subvolume tree after each of them.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{EntryItem, InodeItem, XattrItem, file_type};
use crate::format::key::{ItemKind, Key};
use crate::fs::dispatch::plan_operation;
use crate::fs::orphan::orphan_key;
use crate::fs::pages::PageTable;
use crate::fs::plan::{PageBytes, Plan};
use crate::fs::reclaim::{Dropped, plan_drop_inode};
use crate::fs::view::{BlockSource, Nodes, View};
use crate::limits::{FIRST_FREE_ID, ORPHAN_DIRECTORY, ROOT_INODE};
use crate::operation::{Operation, Place, Resolved};
use crate::tree::{Change, Mutation, Node, NodeCache, Superseded, Tree};
use crate::types::{InodeNumber, Timestamp, TransactionId};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Time of making the root.
pub const EPOCH: Timestamp = Timestamp::new(1000, 0);

struct NoBlocks;

impl BlockSource for NoBlocks {
    fn block(&self, _: u64, _: TransactionId) -> Option<PageBytes> {
        None
    }
}

/// See the module.
pub struct Bench {
    tree: Tree,
    superseded: Superseded,
    cache: NodeCache,
    /// What a device would hold, by address.
    device: FxHashMap<u64, Arc<Node>>,
    generation: u64,
    pages: PageTable,
    /// Next identifier.
    pub next_id: u64,
    /// Time of the next operation; each operation that succeeds takes a second.
    pub now: Timestamp,
    /// Handles by inode: an inode that is open stays as an orphan.
    pub opens: BTreeMap<InodeNumber, u32>,
    /// Inodes in use without the root.
    pub inodes: i64,
    /// The plan executed last.
    pub last: Plan,
}

impl Bench {
    /// An empty root of mode 755.
    pub fn new() -> Self {
        let mut bench = Self {
            tree: Tree::empty(256, 1),
            superseded: Superseded::new(0),
            cache: NodeCache::new(1 << 20),
            device: FxHashMap::default(),
            generation: 1,
            pages: PageTable::default(),
            next_id: FIRST_FREE_ID,
            now: EPOCH,
            opens: BTreeMap::new(),
            inodes: 0,
            last: Plan::default(),
        };
        let root = InodeItem {
            generation: 1,
            version: 1,
            size: 0,
            blocks: 0,
            parent: ROOT_INODE,
            rdev: 0,
            flags: 0,
            nlink: 2,
            mode: file_type::DIRECTORY | 0o755,
            uid: 0,
            gid: 0,
            xattrs: 0,
            atime: EPOCH,
            mtime: EPOCH,
            ctime: EPOCH,
            btime: EPOCH,
        };
        bench.put_item(Key::new(ROOT_INODE, ItemKind::Inode, 0), root.to_disk().as_bytes());
        bench.now.seconds += 1;
        bench
    }

    /// Calls `look` with a view of the present state, again and again while it misses a node that
    /// [`Bench::cool_down`] took out of memory: one more node is there each time.
    pub fn view<R>(
        &self,
        keep_orphan: bool,
        mut look: impl FnMut(&View<'_>) -> EngineResult<R>,
    ) -> EngineResult<R> {
        let mut staged = FxHashMap::default();
        loop {
            let answer = look(&View {
                tree: &self.tree,
                nodes: Nodes { cache: &self.cache, staged: &staged },
                pages: &self.pages,
                blocks: &NoBlocks,
                transid: self.generation,
                resolved: Resolved { now: self.now, next_id: self.next_id, keep_orphan },
                replay: false,
            });
            let Err(EngineError::Missing(missing)) = answer else { return answer };
            let address = missing.pointer.address;
            let before = staged.insert(address, Arc::clone(&self.device[&address]));
            assert!(before.is_none(), "node {address} is missing again");
        }
    }

    /// As after a commit and with an empty cache: every node must be fetched again.
    pub fn cool_down(&mut self) {
        for node in self.tree.freeze().unwritten() {
            let address = (self.device.len() as u64 + 1) * crate::limits::NODE_BYTES as u64;
            node.assign(address);
            self.device.insert(address, node.detached());
        }
        self.tree.release_written();
        self.generation += 1;
    }

    /// Plans and executes; the inode of the reply.
    pub fn run(&mut self, operation: &Operation) -> EngineResult<InodeNumber> {
        let mut plan = self.view(false, |view| plan_operation(view, operation))?;
        if plan.unnamed.is_some_and(|(inode, _)| self.opens.contains_key(&inode)) {
            plan = self.view(true, |view| plan_operation(view, operation))?;
        }
        self.execute(&plan);
        self.now.seconds += 1;
        self.last = plan;
        Ok(self.last.inode)
    }

    /// As [`Bench::run`] for what must succeed.
    pub fn done(&mut self, operation: &Operation) -> InodeNumber {
        self.run(operation).unwrap_or_else(|error| panic!("{operation:?}: {error}"))
    }

    /// As [`Bench::run`]; the refusal as such.
    pub fn refused(&mut self, operation: &Operation) -> FsError {
        match self.run(operation) {
            Err(EngineError::Refused(error)) => error,
            other => panic!("{operation:?} should be refused: {other:?}"),
        }
    }

    /// A handle is closed; the last one of an inode without names takes it along.
    pub fn close(&mut self, inode: InodeNumber) {
        let opens = self.opens.get_mut(&inode).expect("the inode is open");
        *opens -= 1;
        if *opens > 0 {
            return;
        }
        self.opens.remove(&inode);
        let item = self.item(inode);
        if item.nlink > 0 {
            return;
        }
        let planned = self.view(false, |view| {
            let mut plan = Plan::default();
            let dropped = plan_drop_inode(view, inode, &item, &mut plan)?;
            assert_eq!(dropped, Dropped::Whole, "files of tests are small");
            Ok(plan)
        });
        let mut plan = planned.expect("a sound tree");
        if plan.mutations.iter().all(|mutation| mutation.key != orphan_key(inode)) {
            plan.delete(orphan_key(inode));
        }
        plan.inodes = -1;
        self.execute(&plan);
    }

    /// The inode.
    pub fn attributes(&self, inode: InodeNumber) -> EngineResult<InodeItem> {
        self.view(false, |view| view.inode(inode))
    }

    /// The inode, which must exist.
    pub fn item(&self, inode: InodeNumber) -> InodeItem {
        self.attributes(inode).unwrap_or_else(|error| panic!("inode {inode}: {error}"))
    }

    /// The inode that a path from the root (`a/b`; empty = the root) leads to.
    pub fn at(&self, path: &str) -> InodeNumber {
        let components = path.split('/').filter(|name| !name.is_empty());
        components.fold(ROOT_INODE, |parent, name| {
            let found = self.view(false, |view| crate::fs::lookup::lookup(view, parent, name.as_bytes()));
            found.unwrap_or_else(|error| panic!("{path}: {error}")).0
        })
    }

    /// The place that a path names; its directory must exist.
    pub fn place(&self, path: &str) -> Place {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Place { parent: self.at(parent), name: Bytes::copy_from_slice(name.as_bytes()) }
    }

    /// An operation that makes an inode of these type bits.
    pub fn make(&self, path: &str, kind: u32) -> Operation {
        let target = if kind == file_type::SYMLINK { Bytes::from_static(b"target") } else { Bytes::new() };
        Operation::Create {
            place: self.place(path),
            mode: kind | 0o644,
            umask: 0,
            uid: 7,
            gid: 8,
            rdev: 0,
            target,
        }
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, path: &str) -> InodeNumber {
        self.done(&self.make(path, file_type::DIRECTORY))
    }

    /// Makes a regular file.
    pub fn file(&mut self, path: &str) -> InodeNumber {
        self.done(&self.make(path, file_type::REGULAR))
    }

    /// Puts an item past all planning: to damage a tree, or to reach a limit.
    pub fn put_item(&mut self, key: Key, value: &[u8]) {
        let mut plan = Plan::default();
        plan.put(key, value);
        self.execute(&plan);
    }

    /// Changes an inode past all planning.
    pub fn poke(&mut self, inode: InodeNumber, change: impl FnOnce(&mut InodeItem)) {
        let mut item = self.item(inode);
        change(&mut item);
        self.put_item(Key::new(inode, ItemKind::Inode, 0), item.to_disk().as_bytes());
    }

    /// All items of the tree.
    pub fn items(&self) -> BTreeMap<Key, Vec<u8>> {
        self.view(false, |view| {
            let mut items = BTreeMap::new();
            view.scan(&Key::FIRST, &Key::LAST, |key, bytes| {
                items.insert(*key, bytes.to_vec());
                ControlFlow::Continue(())
            })?;
            Ok(items)
        })
        .expect("a sound tree")
    }

    fn execute(&mut self, plan: &Plan) {
        assert!(!plan.no_change || plan.mutations.is_empty() && plan.ids_used == 0, "no change that changes");
        let keys: BTreeSet<Key> = plan.mutations.iter().map(|mutation| mutation.key).collect();
        assert_eq!(keys.len(), plan.mutations.len(), "a key twice in {:?}", plan.mutations);
        for Mutation { key, change } in &plan.mutations {
            let there = self.view(false, |view| view.get(key)).expect("a sound tree").is_some();
            assert!(there || *change != Change::Delete, "{key:?} is deleted and is not there");
        }
        let prepared = self
            .view(false, |view| Ok(view.tree.prepare(&view.nodes, &plan.mutations)?))
            .expect("nothing else can fail");
        self.tree.apply(&prepared, self.generation, &plan.mutations, &mut self.superseded);
        self.next_id += plan.ids_used;
        self.inodes += plan.inodes;
    }

    /// Panics unless every invariant of a subvolume tree holds.
    pub fn verify(&self) {
        let items = self.items();
        let mut inodes = BTreeMap::new();
        for (key, bytes) in &items {
            if key.kind == ItemKind::Inode {
                inodes.insert(key.inode, InodeItem::parse(key, bytes).expect("a sound inode"));
            }
        }
        let mut names: BTreeMap<InodeNumber, u32> = BTreeMap::new();
        let mut counts: BTreeMap<InodeNumber, (u64, u32, u64, u32, u64)> = BTreeMap::new();
        for (key, bytes) in &items {
            match key.kind {
                ItemKind::Inode => {}
                ItemKind::EntryByName => {
                    let entry = EntryItem::parse(key, bytes).expect("a sound entry");
                    let by_index = Key::new(key.inode, ItemKind::EntryByIndex, entry.other);
                    let twin = EntryItem { other: key.offset, ..entry };
                    let found = EntryItem::parse(&by_index, &items[&by_index]).expect("a sound entry");
                    assert_eq!(found, twin);
                    let back = Key::new(entry.inode, ItemKind::BackReference, entry.other);
                    assert_eq!(items[&back], key.inode.to_le_bytes());
                    let item = &inodes[&entry.inode];
                    assert_eq!(entry.mode_type, item.mode & file_type::MASK);
                    *names.entry(entry.inode).or_default() += 1;
                    let count = counts.entry(key.inode).or_default();
                    count.0 += 1;
                    if item.is_directory() {
                        count.1 += 1;
                        assert_eq!(item.parent, key.inode, "parent of {}", entry.inode);
                    }
                }
                ItemKind::EntryByIndex => counts.entry(key.inode).or_default().2 += 1,
                ItemKind::BackReference => *names.entry(key.inode).or_default() += 1 << 16,
                ItemKind::Xattr => {
                    let item = XattrItem::parse(key, bytes).expect("a sound attribute");
                    let count = counts.entry(key.inode).or_default();
                    count.3 += 1;
                    count.4 += u64::from(item.pieces);
                    for piece in 0..u64::from(item.pieces) {
                        let piece = Key::new(key.inode, ItemKind::XattrPiece, key.offset << 4 | piece);
                        assert!(items.contains_key(&piece), "{piece:?} is missing");
                    }
                }
                ItemKind::XattrPiece => {
                    let left = items.range(..key).filter(|(other, _)| {
                        other.inode == key.inode
                            && other.kind == ItemKind::Xattr
                            && other.offset == key.offset >> 4
                    });
                    assert_eq!(left.count(), 1, "{key:?} has no header");
                }
                ItemKind::SymlinkTarget => assert_eq!(inodes[&key.inode].size, bytes.len() as u64),
                ItemKind::Orphan => {
                    assert_eq!(key.inode, ORPHAN_DIRECTORY);
                    assert_eq!(inodes[&key.offset].nlink, 0, "orphan {} has names", key.offset);
                    assert!(self.opens.contains_key(&key.offset), "orphan {} is not open", key.offset);
                }
                _ => panic!("{key:?} does not belong here"),
            }
        }
        for (inode, item) in &inodes {
            let (size, subdirectories, by_index, xattrs, _) = counts.get(inode).copied().unwrap_or_default();
            let mut nlink = names.get(inode).copied().unwrap_or_default();
            assert_eq!(nlink & 0xffff, nlink >> 16, "names and back references of {inode}");
            nlink &= 0xffff;
            assert_eq!(item.xattrs, xattrs);
            if item.is_directory() {
                assert_eq!((size, size), (item.size, by_index), "size of {inode}");
                assert!(nlink == 1 || nlink == 0 && (*inode == ROOT_INODE || item.nlink == 0));
                nlink = if item.nlink == 0 { 0 } else { 2 + subdirectories };
            }
            assert_eq!(item.nlink, nlink, "link count of {inode}");
            assert_eq!(item.nlink == 0, items.contains_key(&orphan_key(*inode)), "orphan item of {inode}");
        }
        for key in items.keys().filter(|key| key.kind != ItemKind::Orphan) {
            assert!(inodes.contains_key(&key.inode), "{key:?} has no inode");
        }
        assert_eq!(self.inodes, inodes.len() as i64 - 1, "inodes in use");
    }
}
