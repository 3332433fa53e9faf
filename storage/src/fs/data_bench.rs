//! One file in memory for tests of the data side: a tree, dirty pages, a device of plain blocks, an allocator that
//! hands out short runs, and a log.
//!
//! Checks on the way: no device block is written twice; every block allocated is referenced once or was released once.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::{InodeItem, file_type};
use crate::format::key::{ItemKind, Key};
use crate::fs::extents::{Mapping, extents_in, recount};
use crate::fs::pages::PageTable;
use crate::fs::plan::{PageBytes, Plan, Released};
use crate::fs::read::{ReadSegment, plan_read, split_blocks, verify_blocks};
use crate::fs::replay_data::{plan_insert_data, plan_insert_extent, unlogged_data};
use crate::fs::view::{BlockSource, Nodes, View};
use crate::fs::writeback::plan_writeback;
use crate::fs::{allocate, attributes, write};
use crate::limits::{BLOCK, BLOCK_BYTES, LOG_INLINE_DATA_MAX};
use crate::operation::{Operation, Resolved};
use crate::tree::{Mutation, Node, NodeCache, Superseded, Tree};
use crate::types::{DeviceRange, InodeNumber, Timestamp, TransactionId};
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::IntoBytes;

pub const FILE: InodeNumber = 300;

#[derive(Default)]
pub struct Blocks(FxHashMap<(u64, TransactionId), PageBytes>);

impl BlockSource for Blocks {
    fn block(&self, address: u64, generation: TransactionId) -> Option<PageBytes> {
        self.0.get(&(address, generation)).cloned()
    }
}

/// A record of the log.
#[derive(Clone, Debug)]
pub enum Record {
    Operation(Operation, Timestamp),
    Extent { offset: u64, checksums: Vec<u32>, address: u64, length: u64, generation: u64 },
    Data(u64, Bytes),
}

/// What a durable superblock would show.
#[derive(Clone)]
pub struct Commit {
    items: Vec<(Key, Vec<u8>)>,
    transid: TransactionId,
    /// Records before this one are in the tree.
    log_position: usize,
}

pub struct DataBench {
    pub tree: Tree,
    superseded: Superseded,
    nodes: NodeCache,
    staged: FxHashMap<u64, Arc<Node>>,
    pub pages: PageTable,
    pub blocks: Blocks,
    /// Every block ever written; shared with replays.
    pub device: FxHashMap<u64, [u8; BLOCK]>,
    next_address: u64,
    /// Device blocks in use.
    pub live: BTreeSet<u64>,
    /// Device blocks that a snapshot refers to.
    frozen: FxHashSet<u64>,
    pub usage: i64,
    pub transid: TransactionId,
    pub now: i64,
    replay: bool,
    pub log: Vec<Record>,
    pub commits: Vec<Commit>,
    /// The last commit is not durable yet.
    pub in_flight: bool,
}

impl DataBench {
    pub fn new() -> Self {
        let time = Timestamp::new(1, 0);
        let item = InodeItem {
            generation: 1,
            version: 1,
            size: 0,
            blocks: 0,
            parent: 0,
            rdev: 0,
            flags: 0,
            nlink: 1,
            mode: file_type::REGULAR | 0o644,
            uid: 0,
            gid: 0,
            xattrs: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let items = vec![(Key::new(FILE, ItemKind::Inode, 0), item.to_disk().as_bytes().to_vec())];
        Self::from_commit(&Commit { items, transid: 1, log_position: 0 })
    }

    fn from_commit(commit: &Commit) -> Self {
        let mut bench = Self {
            tree: Tree::empty(256, commit.transid),
            superseded: Superseded::new(0),
            nodes: NodeCache::new(1 << 20),
            staged: FxHashMap::default(),
            pages: PageTable::default(),
            blocks: Blocks::default(),
            device: FxHashMap::default(),
            next_address: 1 << 20,
            live: BTreeSet::new(),
            frozen: FxHashSet::default(),
            usage: 0,
            transid: commit.transid,
            now: 2,
            replay: false,
            log: Vec::new(),
            commits: vec![commit.clone()],
            in_flight: false,
        };
        let put = |(key, value): &(Key, Vec<u8>)| Mutation::put(*key, value.as_slice().into());
        bench.mutate(&commit.items.iter().map(put).collect::<Vec<_>>());
        bench.live = bench.referenced();
        bench.usage = (bench.item().expect("an inode").blocks * BLOCK_BYTES) as i64;
        bench
    }

    pub fn view<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        look(&View {
            tree: &self.tree,
            nodes: Nodes { cache: &self.nodes, staged: &self.staged },
            pages: &self.pages,
            blocks: &self.blocks,
            transid: self.transid,
            resolved: Resolved { now: Timestamp::new(self.now, 0), next_id: 1000, keep_orphan: false },
            replay: self.replay,
        })
    }

    pub fn item(&self) -> EngineResult<InodeItem> {
        self.view(|view| view.inode(FILE))
    }

    fn mutate(&mut self, mutations: &[Mutation]) {
        let prepared = self.view(|view| self.tree.prepare(&view.nodes, mutations)).expect("all in memory");
        self.tree.apply(&prepared, self.transid, mutations, &mut self.superseded);
    }

    /// Runs until no data is missing; every block read is verified.
    fn gather<R>(&mut self, look: impl Fn(&View<'_>) -> EngineResult<R>) -> EngineResult<R> {
        loop {
            let result = self.view(&look);
            let Err(EngineError::MissingData(pointer)) = &result else { return result };
            let bytes: Vec<u8> = self.read_device(pointer.address, pointer.length);
            verify_blocks(pointer, &bytes).expect("sound data");
            for (address, page) in split_blocks(pointer, &bytes) {
                self.blocks.0.insert((address, pointer.generation), page);
            }
        }
    }

    fn read_device(&self, address: u64, length: u64) -> Vec<u8> {
        let blocks = (address..address + length).step_by(BLOCK);
        blocks.flat_map(|block| self.device.get(&block).expect("a block that was written").to_vec()).collect()
    }

    /// Short runs, sometimes adjacent to the one before.
    fn allocate(next_address: &mut u64, live: &mut BTreeSet<u64>, wanted: u64) -> Option<(u64, u64)> {
        let blocks = wanted.min(1 + *next_address / BLOCK_BYTES % 4);
        let address = *next_address;
        *next_address += blocks * BLOCK_BYTES + if blocks == 3 { BLOCK_BYTES } else { 0 };
        each_block(DeviceRange { address, length: blocks * BLOCK_BYTES }, |block| {
            assert!(live.insert(block))
        });
        Some((address, blocks))
    }

    fn release(&mut self, released: &[Released]) {
        for released in released {
            each_block(released.range, |block| {
                assert!(self.live.remove(&block), "{block} was released twice")
            });
        }
    }

    pub fn execute(&mut self, mut plan: Plan) {
        let reserved = self.pages.reserved_pages();
        let (next, live) = (&mut self.next_address, &mut self.live);
        let (_, all) = allocate::fulfil_preallocations(&mut plan, self.transid, &mut |wanted| {
            Self::allocate(next, live, wanted)
        });
        assert!(all);
        self.mutate(&plan.mutations);
        plan.pages.iter().for_each(|effect| self.pages.apply(effect));
        assert!(self.pages.reserved_pages() <= reserved + plan.reserve_blocks);
        self.release(&plan.released);
        for &range in &plan.claimed {
            each_block(range, |block| assert!(self.live.insert(block), "{block} was claimed twice"));
        }
        self.usage += plan.bytes;
    }

    /// Runs an operation and logs it.
    pub fn run(&mut self, operation: &Operation) -> EngineResult<()> {
        let plan = self.gather(|view| plan_of(view, operation))?;
        self.execute(plan);
        self.log.push(Record::Operation(operation.clone(), Timestamp::new(self.now, 0)));
        self.now += 1;
        Ok(())
    }

    pub fn write_back(&mut self, max_blocks: u64) {
        let (mut next, mut live) = (self.next_address, std::mem::take(&mut self.live));
        let before = self.pages.reserved_pages();
        let mut taken = 0;
        let plan = self
            .view(|view| {
                plan_writeback(view, FILE, max_blocks, &mut |wanted| {
                    let run = Self::allocate(&mut next, &mut live, wanted);
                    taken += run.map_or(0, |(_, blocks)| blocks);
                    run
                })
            })
            .expect("nothing is missing");
        (self.next_address, self.live) = (next, live);
        self.mutate(&plan.mutations);
        self.pages.complete_writeback(FILE, &plan.taken);
        assert!(before - self.pages.reserved_pages() >= taken, "more space was taken than reserved");
        self.release(&plan.released);
        for write in &plan.writes {
            let (chunks, _) = write.buffer.as_chunks::<BLOCK>();
            for (index, (chunk, (_, page))) in chunks.iter().zip(&write.blocks).enumerate() {
                assert_eq!(chunk, page.as_ref());
                let address = write.address + (index * BLOCK) as u64;
                assert!(!self.frozen.contains(&address), "a block of a snapshot was written");
                assert!(self.device.insert(address, *chunk).is_none(), "a block was written twice");
                self.blocks.0.insert((address, write.generation), Arc::clone(page));
            }
        }
    }

    pub fn drop_cache(&mut self) {
        self.blocks.0.clear();
    }

    pub fn commit_durable(&mut self) {
        if self.in_flight {
            self.pages.commit_durable();
            self.in_flight = false;
        }
    }

    /// Starts a commit.
    pub fn freeze(&mut self, snapshot: bool) {
        self.commit_durable();
        self.write_back(u64::MAX);
        assert_eq!(self.pages.dirty_pages(), 0);
        self.pages.freeze();
        self.tree.freeze();
        if snapshot {
            self.frozen.extend(self.live.iter().copied());
            self.pages.set_shared_through(self.transid);
        }
        self.transid += 1;
        let mut items = Vec::new();
        let scanned = self.view(|view| {
            view.scan(&Key::FIRST, &Key::LAST, |key, value| {
                items.push((*key, value.to_vec()));
                ControlFlow::Continue(())
            })
        });
        assert_eq!(scanned, Ok(()));
        self.commits.push(Commit { items, transid: self.transid, log_position: self.log.len() });
        self.in_flight = true;
    }

    /// Logs the file's data.
    pub fn fsync(&mut self) {
        if self.pages.unlogged_bytes(FILE) > LOG_INLINE_DATA_MAX as u64 {
            self.write_back(u64::MAX);
        }
        let unlogged = self.view(|view| unlogged_data(view, FILE)).expect("all in memory");
        for extent in unlogged.extents {
            let pointer = extent.pointer(FILE).expect("a regular extent");
            self.log.push(Record::Extent {
                offset: extent.offset,
                checksums: pointer.checksums,
                address: pointer.address,
                length: pointer.length,
                generation: pointer.generation,
            });
        }
        self.log.extend(unlogged.data.into_iter().map(|(offset, data)| Record::Data(offset, data)));
        self.pages.mark_logged(FILE);
        assert_eq!(self.pages.unlogged_bytes(FILE), 0);
    }

    /// The state after a crash that falls back to a commit, with the log replayed.
    pub fn replayed(&self, commit: &Commit) -> Self {
        let mut bench = Self::from_commit(commit);
        bench.device.clone_from(&self.device);
        bench.next_address = 1 << 40;
        bench.replay = true;
        for record in &self.log[commit.log_position..] {
            let plan = match record {
                Record::Operation(operation, time) => {
                    bench.now = time.seconds;
                    let mut operation = operation.clone();
                    if let Operation::Write { data, .. } = &mut operation {
                        *data = Bytes::new();
                    }
                    bench.gather(|view| plan_of(view, &operation))
                }
                Record::Extent { offset, checksums, address, length, generation } => bench.gather(|view| {
                    plan_insert_extent(view, FILE, *offset, checksums, *address, *length, *generation)
                }),
                Record::Data(offset, data) => {
                    bench.gather(|view| plan_insert_data(view, FILE, *offset, data))
                }
            };
            bench.execute(plan.expect("replay succeeds"));
            bench.check();
        }
        bench
    }

    /// The file's bytes.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let plan = self.view(|view| plan_read(view, FILE, offset, length)).expect("a readable file");
        let mut bytes = Vec::new();
        for segment in plan.segments {
            match segment {
                ReadSegment::Zeros(length) => bytes.resize(bytes.len() + length, 0),
                ReadSegment::Memory { page, from, to } => bytes.extend_from_slice(&page[from..to]),
                ReadSegment::Device { pointer, skip, length } => {
                    let blocks = self.read_device(pointer.address, pointer.length);
                    assert_eq!(verify_blocks(&pointer, &blocks), Ok(()));
                    bytes.extend_from_slice(&blocks[skip..skip + length]);
                }
            }
        }
        assert_eq!(bytes.len(), plan.length);
        bytes
    }

    /// Device blocks that the file refers to, each once.
    pub fn referenced(&self) -> BTreeSet<u64> {
        let (extents, _) =
            self.view(|view| extents_in(view, FILE, 0, u64::MAX, usize::MAX)).expect("sound extents");
        let mut found = BTreeSet::new();
        for extent in &extents {
            assert_ne!(extent.mapping, Mapping::Hole);
            if let Some(device) = extent.device() {
                each_block(device.range, |block| assert!(found.insert(block), "{block} is referenced twice"));
            }
        }
        found
    }

    /// Everything that must add up.
    pub fn check(&self) {
        assert_eq!(self.live, self.referenced(), "blocks in use and blocks referenced");
        let blocks = match self.item() {
            Ok(item) => item.blocks,
            Err(EngineError::Refused(FsError::NotFound)) => 0,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(self.view(|view| recount(view, FILE)), Ok(blocks));
        assert_eq!(self.usage, (blocks * BLOCK_BYTES) as i64);
        let file = self.pages.file(FILE);
        assert_eq!(self.pages.dirty_pages(), file.map_or(0, |file| file.len() as u64));
        let pages = || file.into_iter().flat_map(|file| file.range(0, u64::MAX));
        assert_eq!(self.pages.reserved_pages(), pages().filter(|(_, page)| page.reserved()).count() as u64);
        let unlogged: usize = self.pages.unlogged(FILE).map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(self.pages.unlogged_bytes(FILE), unlogged as u64);
    }
}

pub fn plan_of(view: &View<'_>, operation: &Operation) -> EngineResult<Plan> {
    match operation {
        Operation::Write { inode, offset, data, length, clear_set_id } => {
            write::plan_write(view, *inode, *offset, data, *length, *clear_set_id)
        }
        Operation::SetAttributes { inode, change } => attributes::plan_set_attributes(view, *inode, change),
        Operation::Allocate { inode, offset, length, keep_size } => {
            allocate::plan_allocate(view, *inode, *offset, *length, *keep_size)
        }
        Operation::PunchHole { inode, offset, length } => {
            allocate::plan_punch(view, *inode, *offset, *length)
        }
        Operation::ZeroRange { inode, offset, length, keep_size } => {
            allocate::plan_zero(view, *inode, *offset, *length, *keep_size)
        }
        other => panic!("not an operation on data: {other:?}"),
    }
}

fn each_block(range: DeviceRange, visit: impl FnMut(u64)) {
    (range.address..range.address + range.length).step_by(BLOCK).for_each(visit);
}
