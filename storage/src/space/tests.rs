//! The space manager against a naive model of sets, through commits, aborts and crashes; and the cases by name.

use super::{
    AllocationWindow, Class, Geometry, Run, RunList, SlotState, SpaceError, SpaceManager, WINDOW_BLOCKS_MAX,
};
use crate::device::{Device, MemoryDevice, RecordingDevice};
use crate::format::group::{GROUP_BLOCKS, SLOTS, StoreId};
use crate::limits::{BLOCK, BLOCK_BYTES};
use proptest::prelude::*;
use std::collections::BTreeSet;

const STORE: StoreId = [5; 16];
const RING: u64 = 65536;

/// One full group and a short one of 100 blocks.
fn geometry() -> Geometry {
    Geometry::new((1 << 20) + RING + (GROUP_BLOCKS + 100) * BLOCK_BYTES, RING).expect("large enough")
}

fn list(runs: &[Run]) -> RunList {
    runs.iter().copied().collect()
}

/// A whole commit.
fn commit(device: &dyn Device, space: &SpaceManager, generation: u64, allocated: &[Run], freed: &[Run]) {
    let images = space.begin_commit(generation, list(allocated), list(freed)).expect("a legal commit");
    device.write_many(&images.requests()).expect("memory");
    device.flush().expect("memory");
    space.finish_commit(generation);
}

fn free_blocks(space: &SpaceManager) -> u64 {
    let inner = space.inner.lock();
    let counted: usize = inner.groups.iter().map(|group| group.live.count_free()).sum();
    assert!(inner.groups.iter().all(|group| group.live.count_free() == group.free));
    assert_eq!(counted as u64, space.statistics().free);
    counted as u64
}

#[test]
fn freed_blocks_are_not_reused_before_their_commit_is_finished() {
    let device = MemoryDevice::new(geometry().device_bytes());
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let total = free_blocks(&space);
    let everything: Vec<Run> = std::iter::from_fn(|| space.allocate(10_000, None)).collect();
    assert_eq!(free_blocks(&space), 0);
    commit(&device, &space, 2, &everything, &[]);
    let images = space.begin_commit(3, RunList::new(), list(&everything)).expect("a legal commit");
    assert_eq!(space.statistics().pinned, total);
    assert_eq!(space.allocate(1, None), None);
    device.write_many(&images.requests()).expect("memory");
    assert_eq!(space.finish_commit(3).blocks, total);
    assert_eq!(free_blocks(&space), total);
}

#[test]
fn a_block_allocated_and_freed_by_one_commit_is_free_after_it_and_pinned_until_then() {
    let device = MemoryDevice::new(geometry().device_bytes());
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let run = space.allocate(7, None).expect("space");
    space.begin_commit(2, list(&[run]), list(&[run])).expect("a legal commit");
    assert!(!space.is_durable(run));
    assert!(!space.inner.lock().groups[0].live.all_free(2..9));
    space.finish_commit(2);
    assert_eq!(free_blocks(&space), geometry().usable_blocks());
}

#[test]
fn double_frees_and_foreign_blocks_are_refused_without_a_trace() {
    let device = MemoryDevice::new(geometry().device_bytes());
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let run = space.allocate(8, None).expect("space");
    let half = Run::new(run.start + 4, 4);
    let refused = |allocated: &[Run], freed: &[Run]| {
        space.begin_commit(2, list(allocated), list(freed)).expect_err("an illegal commit")
    };
    assert!(matches!(refused(&[run], &[run, half]), SpaceError::ListedTwice { .. }));
    assert!(matches!(refused(&[], &[run]), SpaceError::NotInUse { .. }));
    assert!(matches!(refused(&[Run::new(run.end(), 1)], &[]), SpaceError::NotAllocated { .. }));
    assert!(matches!(refused(&[Run::new(0, 1)], &[]), SpaceError::OutsideGroups { .. }));
    commit(&device, &space, 2, &[run], &[half]);
    assert!(matches!(space.claim(Run::new(run.start, 1)), Err(SpaceError::ClaimedDurable { .. })));
    space.claim(half).expect("free after the commit");
    assert!(matches!(space.claim(half), Err(SpaceError::ClaimedTwice { .. })));
}

/// What an aborted commit left in the idle slot must not count after later commits that do not touch its group.
#[test]
fn a_slot_of_an_aborted_commit_never_counts() {
    let device = MemoryDevice::new(geometry().device_bytes());
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let run = space.allocate(5, None).expect("space");
    let images = space.begin_commit(2, list(&[run]), RunList::new()).expect("a legal commit");
    device.write_many(&images.requests()).expect("memory");
    let _ = space.abort_commit();
    commit(&device, &space, 3, &[], &[]);
    let space = SpaceManager::load(&device, geometry(), STORE, 3).expect("load");
    assert!(!space.is_durable(run));

    // The same across a restart: the slot is found at load, and overwritten by the next commit.
    let run = space.allocate(5, None).expect("space");
    let images = space.begin_commit(4, list(&[run]), RunList::new()).expect("a legal commit");
    device.write_many(&images.requests()).expect("memory");
    let space = SpaceManager::load(&device, geometry(), STORE, 3).expect("load");
    commit(&device, &space, 4, &[], &[]);
    let space = SpaceManager::load(&device, geometry(), STORE, 4).expect("load");
    assert!(!space.is_durable(run));
    assert_eq!(free_blocks(&space), geometry().usable_blocks());
}

#[test]
fn a_rotted_bitmap_is_refused_and_repaired_by_rebuilding() {
    let device = MemoryDevice::new(geometry().device_bytes());
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let run = space.allocate(5, None).expect("space");
    commit(&device, &space, 2, &[run], &[]);
    commit(&device, &space, 3, &[], &[]);
    // Slot 1 of group 0 is of generation 2 and counts. Its bitmap rots; slot 0 is whole, but older.
    let address = geometry().slot_address(0, 1);
    let mut slot = vec![0; BLOCK];
    device.read(address, &mut slot).expect("memory");
    slot[2000] ^= 1;
    device.write(address, &slot).expect("memory");
    match SpaceManager::load(&device, geometry(), STORE, 3) {
        Err(SpaceError::BitmapDamaged { group: 0, generation: 3, slots }) => {
            assert_eq!(slots[0], SlotState::Whole(1));
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a stale bitmap was believed"),
    }
    // Another store's bitmaps are not believed either.
    assert!(SpaceManager::load(&device, geometry(), [6; 16], 3).is_err());

    let used = list(&[run]).into_sorted_merged().expect("disjoint");
    let space = SpaceManager::rebuild(geometry(), STORE, 3, &used).expect("inside the groups");
    for generation in 4..7 {
        commit(&device, &space, generation, &[], &[]);
        let space = SpaceManager::load(&device, geometry(), STORE, generation).expect("load");
        assert!(space.is_durable(run));
        assert_eq!(free_blocks(&space), geometry().usable_blocks() - 5);
    }
}

#[test]
fn every_crash_within_a_commit_loads_as_the_commit_before() {
    let device = RecordingDevice::new(MemoryDevice::new(geometry().device_bytes()));
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let kept = space.allocate(300, None).expect("space");
    commit(&device, &space, 2, &[kept], &[]);
    let last = geometry().group(1).start;
    let added = [space.allocate(9, None).expect("space"), space.allocate(9, Some(last + 50)).expect("space")];
    device.restart();
    commit(&device, &space, 3, &added, &[Run::new(kept.start, 100)]);
    let free = geometry().usable_blocks() - 300;
    for at in 0..device.position() {
        for image in device.crash_images(at, 60) {
            let loaded = SpaceManager::load(&image, geometry(), STORE, 2).expect("the commit before");
            assert!(loaded.is_durable(kept) && !loaded.is_durable(added[0]) && !loaded.is_durable(added[1]));
            assert_eq!(free_blocks(&loaded), free);
            // And the next commit heals whatever was torn.
            commit(&image, &loaded, 3, &[], &[]);
            let healed = SpaceManager::load(&image, geometry(), STORE, 3).expect("healed");
            assert_eq!(free_blocks(&healed), free);
        }
    }
    let after = SpaceManager::load(&device.image_at(device.position()), geometry(), STORE, 3).expect("load");
    assert!(after.is_durable(added[0]) && after.is_durable(added[1]));
    assert_eq!(free_blocks(&after), free - 18 + 100);
}

#[test]
fn windows_never_eat_what_others_were_promised() {
    let device = MemoryDevice::new(geometry().device_bytes());
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let total = free_blocks(&space);
    let promised = space.available_for_growth() - 10;
    space.try_reserve(promised, Class::Growth).expect("almost everything");
    let mut greedy = AllocationWindow::new();
    space.try_reserve(4, Class::Growth).expect("a little");
    let first = greedy.take_exact(&space, 4).expect("promised");
    space.unreserve(4);
    assert!(greedy.held() <= 6, "{greedy:?} took what was promised");
    let mut other = AllocationWindow::new();
    let mut taken = Vec::new();
    let mut missing = promised;
    while missing > 0 {
        let run = other.take(&space, missing.min(1000)).expect("promised");
        space.unreserve(run.blocks);
        missing -= run.blocks;
        taken.push(run);
    }
    other.give_back(&space);
    greedy.give_back(&space);
    taken.push(first);
    taken.into_iter().for_each(|run| space.release_unwritten(run));
    assert_eq!(free_blocks(&space), total);
    assert_eq!(space.statistics().reserved, 0);
}

#[test]
fn windows_double_and_stay_contiguous() {
    let device = MemoryDevice::new(geometry().device_bytes());
    let space = SpaceManager::format(&device, geometry(), STORE).expect("format");
    let mut window = AllocationWindow::new();
    let mut end = None;
    for _ in 0..3000 {
        let run = window.take_exact(&space, 4).expect("space");
        assert!(end.is_none_or(|end| end == run.start));
        end = Some(run.end());
        assert!(window.held() < WINDOW_BLOCKS_MAX);
    }
    window.give_back(&space);
    assert_eq!(free_blocks(&space), geometry().usable_blocks() - 12_000);
    assert_eq!(space.allocate_exact_len(GROUP_BLOCKS + 1, None), None);
}

#[derive(Clone, Debug)]
enum Op {
    Allocate(u64),
    AllocateExact(u64),
    WindowTake(u64),
    WindowExact(u64),
    GiveBack,
    Release(usize),
    Free(usize, u64),
    Begin,
    Finish,
    Abort(u64),
    Crash { seed: u64, superblock: bool, replay: bool },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..30u64).prop_map(Op::Allocate),
        2 => (1..9u64).prop_map(Op::AllocateExact),
        4 => (1..12u64).prop_map(Op::WindowTake),
        2 => (1..6u64).prop_map(Op::WindowExact),
        1 => Just(Op::GiveBack),
        2 => any::<usize>().prop_map(Op::Release),
        6 => (any::<usize>(), 1..10u64).prop_map(|(index, blocks)| Op::Free(index, blocks)),
        4 => Just(Op::Begin),
        4 => Just(Op::Finish),
        1 => any::<u64>().prop_map(Op::Abort),
        1 => (any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(seed, superblock, replay)| Op::Crash { seed, superblock, replay }),
    ]
}

type Blocks = BTreeSet<u64>;
/// Bitmap slots to be written, by address.
type Slots = Vec<(u64, Vec<u8>)>;

/// What a transaction did so far.
#[derive(Clone, Default)]
struct Changes {
    allocated: Blocks,
    freed: Blocks,
}

/// The naive model: sets of single blocks. Only the blocks in `holes` take part; all others are filled beforehand, so
/// that the store is small and nearly full.
struct World {
    device: MemoryDevice,
    space: SpaceManager,
    window: AllocationWindow,
    generation: u64,
    holes: Blocks,
    durable: Blocks,
    running: Changes,
    pending: Option<(Changes, Slots)>,
}

impl World {
    fn new() -> Self {
        let geometry = geometry();
        let device = MemoryDevice::new(geometry.device_bytes());
        let space = SpaceManager::format(&device, geometry, STORE).expect("format");
        let (first, second) = (geometry.group(0), geometry.group(1));
        // Holes of 1 to 9 blocks every 700, and the whole short group.
        let mut holes: Blocks = (second.start + SLOTS as u64..second.end()).collect();
        let mut filled = Vec::new();
        let mut position = first.start + SLOTS as u64;
        while position < first.end() {
            let hole = position % 9 + 1;
            holes.extend((position..position + hole).filter(|block| *block < first.end()));
            let end = (position + 700).min(first.end());
            if position + hole < end {
                filled.push(Run::new(position + hole, end - position - hole));
            }
            position = end;
        }
        filled.iter().for_each(|run| space.claim(*run).expect("free"));
        commit(&device, &space, 2, &filled, &[]);
        Self {
            device,
            space,
            window: AllocationWindow::new(),
            generation: 2,
            holes,
            durable: Blocks::new(),
            running: Changes::default(),
            pending: None,
        }
    }

    fn pending_changes(&self) -> Changes {
        self.pending.as_ref().map(|(changes, _)| changes.clone()).unwrap_or_default()
    }

    fn live(&self) -> Blocks {
        let pending = self.pending_changes();
        self.durable.iter().chain(&pending.allocated).chain(&self.running.allocated).copied().collect()
    }

    fn took(&mut self, run: Option<Run>, most: u64) {
        let Some(run) = run else { return };
        assert!(run.blocks >= 1 && run.blocks <= most);
        let live = self.live();
        for block in run.start..run.end() {
            assert!(self.holes.contains(&block), "block {block} is in durable use");
            assert!(!live.contains(&block), "block {block} is durable, pinned or allocated");
            self.running.allocated.insert(block);
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Allocate(most) => {
                let run = self.space.allocate(most, None);
                assert_eq!(
                    run.is_none(),
                    self.live().len() as u64 + self.window.held() == self.holes.len() as u64
                );
                self.took(run, most);
            }
            Op::AllocateExact(blocks) => {
                let run = self.space.allocate_exact_len(blocks, None);
                assert!(run.is_none_or(|run| run.blocks == blocks));
                self.took(run, blocks);
            }
            Op::WindowTake(most) => {
                if self.space.try_reserve(most, Class::Growth).is_ok() {
                    let run = self.window.take(&self.space, most);
                    self.space.unreserve(most);
                    assert!(run.is_some(), "a promise was not kept");
                    self.took(run, most);
                }
            }
            Op::WindowExact(blocks) => {
                if self.space.try_reserve(blocks, Class::Release).is_ok() {
                    let run = self.window.take_exact(&self.space, blocks);
                    self.space.unreserve(blocks);
                    assert!(run.is_none_or(|run| run.blocks == blocks));
                    self.took(run, blocks);
                }
            }
            Op::GiveBack => self.window.give_back(&self.space),
            Op::Release(index) => {
                let candidates: Vec<u64> =
                    self.running.allocated.difference(&self.running.freed).copied().collect();
                if !candidates.is_empty() {
                    let block = candidates[index % candidates.len()];
                    self.space.release_unwritten(Run::new(block, 1));
                    self.running.allocated.remove(&block);
                }
            }
            Op::Free(index, blocks) => {
                let pending = self.pending_changes();
                let candidates: Vec<u64> = self
                    .live()
                    .into_iter()
                    .filter(|block| !pending.freed.contains(block) && !self.running.freed.contains(block))
                    .collect();
                if !candidates.is_empty() {
                    let from = index % candidates.len();
                    self.running.freed.extend(candidates.iter().skip(from).take(blocks as usize));
                }
            }
            Op::Begin if self.pending.is_none() => {
                self.generation += 1;
                let changes = std::mem::take(&mut self.running);
                let runs =
                    |blocks: &Blocks| blocks.iter().map(|block| Run::new(*block, 1)).collect::<RunList>();
                let images = self
                    .space
                    .begin_commit(self.generation, runs(&changes.allocated), runs(&changes.freed))
                    .expect("a legal commit");
                let slots = images.slots.iter().map(|(address, slot)| (*address, slot.to_vec())).collect();
                self.pending = Some((changes, slots));
            }
            Op::Finish => {
                if let Some((changes, slots)) = self.pending.take() {
                    self.write(&slots, None);
                    let blocks = changes.freed.len() as u64;
                    assert_eq!(self.space.finish_commit(self.generation).blocks, blocks);
                    self.committed(changes);
                }
            }
            Op::Abort(seed) => {
                if let Some((changes, slots)) = self.pending.take() {
                    self.write(&slots, Some(seed));
                    let (allocated, freed) = self.space.abort_commit();
                    assert_eq!(allocated.blocks(), changes.allocated.len() as u64);
                    assert_eq!(freed.blocks(), changes.freed.len() as u64);
                    self.running.allocated.extend(changes.allocated);
                    self.running.freed.extend(changes.freed);
                }
            }
            Op::Crash { seed, superblock, replay } => self.crash(seed, superblock, replay),
            Op::Begin => {}
        }
    }

    fn committed(&mut self, changes: Changes) {
        self.durable.extend(changes.allocated);
        self.durable.retain(|block| !changes.freed.contains(block));
    }

    /// Writes slots: all, or by a seed some of their sectors.
    fn write(&self, slots: &[(u64, Vec<u8>)], torn: Option<u64>) {
        for (number, (address, slot)) in slots.iter().enumerate() {
            let mut bytes = vec![0; BLOCK];
            self.device.read(*address, &mut bytes).expect("memory");
            for (sector, piece) in slot.chunks(512).enumerate() {
                if torn.is_none_or(|seed| seed.rotate_right(number as u32 * 8 + sector as u32) & 1 == 1) {
                    bytes[sector * 512..][..512].copy_from_slice(piece);
                }
            }
            self.device.write(*address, &bytes).expect("memory");
        }
    }

    fn crash(&mut self, seed: u64, superblock: bool, replay: bool) {
        let mut lost = self.running.allocated.clone();
        let mut generation = self.space.committed_generation();
        if let Some((changes, slots)) = self.pending.take() {
            self.write(&slots, (!superblock).then_some(seed));
            if superblock {
                generation = self.generation;
                self.committed(changes);
            } else {
                lost.extend(changes.allocated);
            }
        }
        self.space = SpaceManager::load(&self.device, geometry(), STORE, generation).expect("load");
        self.generation = generation;
        self.window = AllocationWindow::new();
        self.running = Changes::default();
        for block in self.holes.iter() {
            let expected = self.durable.contains(block);
            assert_eq!(self.space.is_durable(Run::new(*block, 1)), expected, "block {block}");
        }
        if replay {
            lost.retain(|block| !self.durable.contains(block));
            lost.iter().for_each(|block| self.space.claim(Run::new(*block, 1)).expect("free in the commit"));
            self.running.allocated = lost;
        }
    }

    fn check(&self) {
        let used = self.live().len() as u64 + self.window.held();
        assert_eq!(free_blocks(&self.space), self.holes.len() as u64 - used);
        assert_eq!(self.space.statistics().reserved, 0);
        assert_eq!(self.space.statistics().pinned, self.pending_changes().freed.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_manager_behaves_like_sets_of_blocks(ops in proptest::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.check();
        }
        // Freeing everything brings back every block.
        world.apply(&Op::Finish);
        world.apply(&Op::GiveBack);
        world.apply(&Op::Free(0, u64::MAX));
        world.apply(&Op::Begin);
        world.apply(&Op::Finish);
        prop_assert_eq!(free_blocks(&world.space), world.holes.len() as u64);
    }
}
