//! Tests of the data side: one file against the obvious model of it, crashes included.

use crate::error::{DataPointer, EngineError, FsError};
use crate::format::item::inode_flags;
use crate::fs::data_bench::{DataBench, FILE};
use crate::fs::data_cache::DataCache;
use crate::fs::read::{split_blocks, verify_blocks};
use crate::fs::reclaim::{Dropped, list_orphans, plan_drop_inode, plan_reclaim_step, plan_trim_step};
use crate::fs::replay_data::{plan_insert_data, plan_insert_extent};
use crate::fs::seek::{Seek, SeekKind, seek};
use crate::fs::writeback::plan_writeback;
use crate::limits::{BLOCK, BLOCK_BYTES, EXTENTS_PER_STEP, FILE_BYTES_MAX};
use crate::operation::{AttributeChange, Operation};
use crate::types::DeviceRange;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Blocks of a region that the steps touch.
const SPAN: u64 = 14;
/// Beginnings of the regions: the start of a file, around 4 GiB, and up to the largest offset.
const REGIONS: [u64; 3] = [0, (1 << 32) - 6 * BLOCK_BYTES, (1 << 63) - SPAN * BLOCK_BYTES];

#[derive(Clone, Debug)]
enum Step {
    Write { region: usize, offset: u64, length: u64, fill: u8 },
    Append { length: u64, fill: u8 },
    Truncate { region: usize, size: u64 },
    Allocate { region: usize, offset: u64, length: u64, keep_size: bool },
    Punch { region: usize, offset: u64, length: u64 },
    Zero { region: usize, offset: u64, length: u64, keep_size: bool },
    WriteBack { blocks: u64 },
    DropCache,
    Freeze { snapshot: bool },
    Durable,
    Fsync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let region = || prop_oneof![8 => Just(0_usize), 1 => Just(1), 1 => Just(2)];
    // Small numbers are for inline files, multiples for whole blocks.
    let place = || {
        prop_oneof![
            2 => 0..3000_u64,
            2 => (0..SPAN).prop_map(|block| block * BLOCK_BYTES),
            2 => 0..SPAN * BLOCK_BYTES,
        ]
    };
    let length = || {
        prop_oneof![
            2 => 1..3000_u64,
            2 => (1..8_u64).prop_map(|block| block * BLOCK_BYTES),
            2 => 1..SPAN * BLOCK_BYTES / 2,
        ]
    };
    let step = prop_oneof![
        6 => (region(), place(), length(), 1..=255_u8)
            .prop_map(|(region, offset, length, fill)| Step::Write { region, offset, length, fill }),
        1 => (length(), 1..=255_u8).prop_map(|(length, fill)| Step::Append { length, fill }),
        2 => (region(), place()).prop_map(|(region, size)| Step::Truncate { region, size }),
        2 => (region(), place(), length(), any::<bool>())
            .prop_map(|(region, offset, length, keep_size)| Step::Allocate { region, offset, length, keep_size }),
        2 => (region(), place(), length()).prop_map(|(region, offset, length)| Step::Punch { region, offset, length }),
        2 => (region(), place(), length(), any::<bool>())
            .prop_map(|(region, offset, length, keep_size)| Step::Zero { region, offset, length, keep_size }),
        3 => (1..12_u64).prop_map(|blocks| Step::WriteBack { blocks }),
        2 => Just(Step::DropCache),
        1 => any::<bool>().prop_map(|snapshot| Step::Freeze { snapshot }),
        1 => Just(Step::Durable),
        2 => Just(Step::Fsync),
    ];
    prop::collection::vec(step, 1..40)
}

/// The obvious file: mapped blocks, and whether they hold data or are only allocated.
#[derive(Clone, Default)]
struct Model {
    size: u64,
    blocks: BTreeMap<u64, ([u8; BLOCK], bool)>,
}

impl Model {
    fn bytes(&mut self, from: u64, to: u64, mut change: impl FnMut(&mut [u8], bool, u64) -> bool) {
        for block in from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES) {
            let start = block * BLOCK_BYTES;
            let (first, last) = (from.max(start) - start, to.min(start + BLOCK_BYTES) - start);
            let (mut bytes, mut is_data) = self.blocks.get(&block).copied().unwrap_or(([0; BLOCK], false));
            is_data = change(&mut bytes[first as usize..last as usize], is_data, block);
            self.blocks.insert(block, (bytes, is_data));
        }
    }

    fn write(&mut self, offset: u64, length: u64, fill: u8) {
        self.bytes(offset, offset + length, |bytes, _, _| {
            bytes.fill(fill);
            true
        });
        self.size = self.size.max(offset + length);
    }

    fn truncate(&mut self, size: u64) {
        if size <= self.size {
            self.blocks.retain(|&block, _| block < size.div_ceil(BLOCK_BYTES));
            if let Some((bytes, _)) = self.blocks.get_mut(&(size / BLOCK_BYTES)) {
                bytes[(size % BLOCK_BYTES) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    fn allocate(&mut self, offset: u64, length: u64, keep_size: bool) {
        self.bytes(offset, offset + length, |_, is_data, _| is_data);
        if !keep_size {
            self.size = self.size.max(offset + length);
        }
    }

    fn punch(&mut self, offset: u64, length: u64) {
        let before = self.blocks.clone();
        let mut whole = Vec::new();
        self.bytes(offset, offset + length, |bytes, is_data, block| {
            bytes.fill(0);
            if bytes.len() == BLOCK || !before.contains_key(&block) {
                whole.push(block);
            }
            is_data
        });
        self.blocks.retain(|block, _| !whole.contains(block));
    }

    fn zero(&mut self, offset: u64, length: u64, keep_size: bool) {
        self.bytes(offset, offset + length, |bytes, is_data, _| {
            bytes.fill(0);
            is_data && bytes.len() < BLOCK
        });
        if !keep_size {
            self.size = self.size.max(offset + length);
        }
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let length = (length as u64).min(self.size.saturating_sub(offset)) as usize;
        let mut bytes = Vec::with_capacity(length);
        let mut position = offset;
        while bytes.len() < length {
            let from = (position % BLOCK_BYTES) as usize;
            let count = (BLOCK - from).min(length - bytes.len());
            match self.blocks.get(&(position / BLOCK_BYTES)) {
                Some((block, _)) => bytes.extend_from_slice(&block[from..from + count]),
                None => bytes.resize(bytes.len() + count, 0),
            }
            position += count as u64;
        }
        bytes
    }

    fn seek(&self, offset: u64, kind: SeekKind) -> Result<u64, FsError> {
        if offset >= self.size {
            return Err(FsError::NoMoreData);
        }
        let is_data = |block: u64| self.blocks.get(&block).is_some_and(|(_, is_data)| *is_data);
        if kind == SeekKind::Data {
            let block = offset / BLOCK_BYTES;
            let found = self.blocks.range(block..).find(|(_, (_, is_data))| *is_data);
            let found = found.map(|(block, _)| offset.max(block * BLOCK_BYTES));
            return found.filter(|&found| found < self.size).ok_or(FsError::NoMoreData);
        }
        let mut block = offset / BLOCK_BYTES;
        while is_data(block) {
            block += 1;
        }
        Ok(offset.max(block * BLOCK_BYTES).min(self.size))
    }
}

fn compare(bench: &DataBench, model: &Model) {
    bench.check();
    let item = bench.item().expect("an inode");
    assert_eq!(item.size, model.size);
    assert_eq!(item.blocks, model.blocks.len() as u64, "mapped blocks");
    for region in REGIONS {
        let length = (SPAN * BLOCK_BYTES * 2) as usize;
        assert!(bench.read(region, length) == model.read(region, length), "contents from {region}");
        let odd = region + 777;
        assert!(bench.read(odd, 9000) == model.read(odd, 9000), "contents from {odd}");
        for block in 0..SPAN {
            for kind in [SeekKind::Data, SeekKind::Hole] {
                let offset = region + block * BLOCK_BYTES + block;
                let found = match bench.view(|view| seek(view, FILE, offset, kind)) {
                    Ok(Seek::Found(found)) => Ok(found),
                    Err(EngineError::Refused(error)) => Err(error),
                    other => panic!("{other:?}"),
                };
                assert_eq!(found, model.seek(offset, kind), "{kind:?} from {offset}");
            }
        }
    }
}

/// The operation of a step, and the model after it.
fn operation(step: &Step, model: &mut Model) -> Option<Operation> {
    let clip = |offset: u64, length: u64| length.min(FILE_BYTES_MAX.saturating_sub(offset));
    // At the very end of the largest file nothing is left of a range.
    let none_left = |region: usize, offset: u64| clip(REGIONS[region] + offset, 1) == 0;
    Some(match *step {
        Step::Allocate { region, offset, .. }
        | Step::Punch { region, offset, .. }
        | Step::Zero { region, offset, .. }
            if none_left(region, offset) =>
        {
            return None;
        }
        Step::Write { region, offset, length, fill } => {
            let offset = REGIONS[region] + offset;
            write(model, offset, clip(offset, length), fill)
        }
        Step::Append { length, fill } => {
            let offset = model.size;
            write(model, offset, clip(offset, length), fill)
        }
        Step::Truncate { region, size } => {
            let size = REGIONS[region] + size;
            model.truncate(size);
            let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
            Operation::SetAttributes { inode: FILE, change }
        }
        Step::Allocate { region, offset, length, keep_size } => {
            let offset = REGIONS[region] + offset;
            let length = clip(offset, length);
            model.allocate(offset, length, keep_size);
            Operation::Allocate { inode: FILE, offset, length, keep_size }
        }
        Step::Punch { region, offset, length } => {
            let offset = REGIONS[region] + offset;
            let length = clip(offset, length);
            model.punch(offset, length);
            Operation::PunchHole { inode: FILE, offset, length }
        }
        Step::Zero { region, offset, length, keep_size } => {
            let offset = REGIONS[region] + offset;
            let length = clip(offset, length);
            model.zero(offset, length, keep_size);
            Operation::ZeroRange { inode: FILE, offset, length, keep_size }
        }
        _ => return None,
    })
}

fn write(model: &mut Model, offset: u64, length: u64, fill: u8) -> Operation {
    if length > 0 {
        model.write(offset, length, fill);
    }
    let data = Bytes::from(vec![fill; length as usize]);
    Operation::Write { inode: FILE, offset, data, length, clear_set_id: false }
}

fn run(steps: &[Step]) {
    let mut bench = DataBench::new();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::WriteBack { blocks } => bench.write_back(*blocks),
            Step::DropCache => bench.drop_cache(),
            Step::Freeze { snapshot } => bench.freeze(*snapshot),
            Step::Durable => bench.commit_durable(),
            Step::Fsync => {
                bench.fsync();
                crash(&bench, &model);
            }
            _ => {
                let Some(operation) = operation(step, &mut model) else { continue };
                assert_eq!(bench.run(&operation), Ok(()), "{operation:?}");
            }
        }
        compare(&bench, &model);
    }
    // Whatever the state, the log leads to one that adds up, of the same size.
    for commit in bench.commits.iter().rev().take(1 + usize::from(bench.in_flight)) {
        let replayed = bench.replayed(commit);
        assert_eq!(replayed.item().map(|item| item.size), Ok(model.size));
    }
    let item = bench.item().expect("an inode");
    let mut plan = Default::default();
    assert_eq!(bench.view(|view| plan_drop_inode(view, FILE, &item, &mut plan)), Ok(Dropped::Whole));
    bench.execute(plan);
    bench.check();
    assert_eq!((bench.usage, bench.live.len(), bench.pages.dirty_pages()), (0, 0, 0));
}

/// Promise S2: after an fsync, the file is the same whatever commit a crash falls back to.
fn crash(bench: &DataBench, model: &Model) {
    for commit in bench.commits.iter().rev().take(1 + usize::from(bench.in_flight)) {
        let replayed = bench.replayed(commit);
        compare(&replayed, model);
        assert_eq!(replayed.item(), bench.item(), "attributes");
    }
}

proptest! {
    #[test]
    fn a_file_is_what_the_obvious_model_says(steps in steps()) {
        run(&steps);
    }
}

#[test]
fn a_write_without_privilege_takes_the_set_id_bits_that_give_rights() {
    for (before, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o4600, 0o600), (0o1777, 0o1777)] {
        for clear_set_id in [false, true] {
            let mut bench = DataBench::new();
            let change = AttributeChange { mode: Some(before), ..AttributeChange::default() };
            assert_eq!(bench.run(&Operation::SetAttributes { inode: FILE, change }), Ok(()));
            let made = bench.item().expect("an inode");
            let data = Bytes::from_static(b"x");
            let write = Operation::Write { inode: FILE, offset: 0, data, length: 1, clear_set_id };
            assert_eq!(bench.run(&write), Ok(()));
            let item = bench.item().expect("an inode");
            assert_eq!(item.mode & 0o7777, if clear_set_id { after } else { before });
            assert!(item.ctime > made.ctime);
            let replayed = bench.replayed(&bench.commits[0]);
            assert_eq!(replayed.item().map(|item| item.mode), Ok(item.mode), "in replay");
        }
    }
}

/// Writes every second block and makes each an extent of its own.
fn in_pieces(pieces: u64) -> DataBench {
    let mut bench = DataBench::new();
    for piece in 0..pieces {
        let data = Bytes::from(vec![7; BLOCK]);
        let offset = piece * 2 * BLOCK_BYTES;
        let write = Operation::Write { inode: FILE, offset, data, length: BLOCK_BYTES, clear_set_id: false };
        assert_eq!(bench.run(&write), Ok(()));
    }
    bench.write_back(u64::MAX);
    bench.check();
    bench
}

fn truncate(size: u64) -> Operation {
    let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
    Operation::SetAttributes { inode: FILE, change }
}

#[test]
fn a_shrink_of_many_extents_is_finished_by_steps_and_growth_waits_for_them() {
    let pieces = EXTENTS_PER_STEP as u64 * 5 / 2;
    let mut bench = in_pieces(pieces);
    assert_eq!(bench.run(&truncate(100)), Ok(()));
    bench.check();
    assert_ne!(bench.item().expect("an inode").flags & inode_flags::TRIM_PENDING, 0);
    assert_eq!(bench.view(|view| list_orphans(view, 0, 10)), Ok(vec![FILE]));
    assert_eq!(bench.run(&truncate(5000)), Err(EngineError::TrimFirst(FILE)));
    let allocate = Operation::Allocate { inode: FILE, offset: 0, length: 1 << 20, keep_size: true };
    assert_eq!(bench.run(&allocate), Err(EngineError::TrimFirst(FILE)));
    let mut steps = 0;
    while bench.item().expect("an inode").flags & inode_flags::TRIM_PENDING != 0 {
        let plan = bench.view(|view| plan_trim_step(view, FILE)).expect("a step");
        bench.execute(plan);
        bench.check();
        steps += 1;
    }
    assert_eq!(steps, 2);
    assert_eq!(bench.view(|view| list_orphans(view, 0, 10)), Ok(vec![]));
    assert_eq!(bench.item().expect("an inode").blocks, 1);
    assert_eq!(bench.run(&truncate(5000)), Ok(()));
    let mut expected = vec![7; 100];
    expected.resize(5000, 0);
    assert_eq!(bench.read(0, 10_000), expected);
    assert_eq!(bench.view(|view| plan_trim_step(view, FILE)).map(|plan| plan.no_change), Ok(true));
}

#[test]
fn a_large_inode_goes_in_steps_and_its_usage_with_it() {
    let mut bench = in_pieces(EXTENTS_PER_STEP as u64 * 5 / 2);
    let mut item = bench.item().expect("an inode");
    let mut plan = crate::fs::plan::Plan::default();
    assert_eq!(bench.view(|view| plan_drop_inode(view, FILE, &item, &mut plan)), Ok(Dropped::Later));
    assert!(plan.mutations.is_empty() && plan.released.is_empty() && plan.bytes == 0);
    assert_eq!(
        bench.view(|view| plan_reclaim_step(view, FILE)).map(|plan| plan.no_change),
        Ok(true),
        "has a name"
    );
    item.nlink = 0;
    let key = crate::format::key::Key::new(FILE, crate::format::key::ItemKind::Inode, 0);
    plan.put(key, zerocopy::IntoBytes::as_bytes(&item.to_disk()));
    plan.put(crate::fs::orphan::orphan_key(FILE), [1].as_slice());
    bench.execute(plan);
    let mut steps = 0;
    loop {
        let plan = bench.view(|view| plan_reclaim_step(view, FILE)).expect("a step");
        let (inodes, last) = (plan.inodes, plan.no_change);
        bench.execute(plan);
        bench.check();
        if last {
            break;
        }
        steps += 1;
        assert_eq!(inodes, if steps == 3 { -1 } else { 0 });
    }
    assert_eq!((steps, bench.usage, bench.live.len()), (3, 0, 0));
    assert_eq!(bench.view(|view| list_orphans(view, 0, 10)), Ok(vec![]));
}

#[test]
fn a_seek_and_a_punch_over_many_extents_go_in_bounded_steps() {
    let mut bench = DataBench::new();
    let end = EXTENTS_PER_STEP as u64 * 3 * BLOCK_BYTES;
    for offset in (0..end).step_by(BLOCK) {
        let data = Bytes::from(vec![7; BLOCK]);
        let write = Operation::Write { inode: FILE, offset, data, length: BLOCK_BYTES, clear_set_id: false };
        assert_eq!(bench.run(&write), Ok(()));
        bench.write_back(1);
    }
    let (mut offset, mut steps) = (5, 0);
    loop {
        steps += 1;
        match bench.view(|view| seek(view, FILE, offset, SeekKind::Hole)) {
            Ok(Seek::From(next)) => offset = next,
            other => {
                assert_eq!(other, Ok(Seek::Found(end)));
                break;
            }
        }
    }
    assert_eq!(steps, 3);
    let mut offset = 5;
    let mut pieces = 0;
    while offset < end {
        let length = bench
            .view(|view| crate::fs::allocate::step_length(view, FILE, offset, end - offset, false))
            .expect("a length");
        assert_eq!(bench.run(&Operation::PunchHole { inode: FILE, offset, length }), Ok(()));
        bench.check();
        offset += length;
        pieces += 1;
    }
    assert_eq!((pieces, bench.item().expect("an inode").blocks), (3, 1));
}

#[test]
fn ranges_past_the_largest_file_are_refused() {
    let mut bench = DataBench::new();
    let data = Bytes::from_static(b"ab");
    let write =
        |offset| Operation::Write { inode: FILE, offset, data: data.clone(), length: 2, clear_set_id: false };
    assert_eq!(bench.run(&write(FILE_BYTES_MAX - 1)), Err(FsError::FileTooBig.into()));
    assert_eq!(bench.run(&write(u64::MAX)), Err(FsError::FileTooBig.into()));
    assert_eq!(bench.run(&write(FILE_BYTES_MAX - 2)), Ok(()));
    assert_eq!(bench.read(FILE_BYTES_MAX - 3, 100), b"\0ab");
    for (offset, length, error) in [
        (0, 0, FsError::InvalidArgument),
        (1, u64::MAX, FsError::FileTooBig),
        (5, FILE_BYTES_MAX, FsError::FileTooBig),
    ] {
        let punch = Operation::PunchHole { inode: FILE, offset, length };
        assert_eq!(bench.run(&punch), Err(error.into()));
        let allocate = Operation::Allocate { inode: FILE, offset, length, keep_size: true };
        assert_eq!(bench.run(&allocate), Err(error.into()));
    }
    let punch = Operation::PunchHole { inode: FILE, offset: 0, length: FILE_BYTES_MAX };
    assert_eq!(bench.run(&punch), Ok(()));
    bench.check();
    // The partial block at the largest offset stays, zeroed; see `Model::punch`.
    assert_eq!(bench.item().expect("an inode").blocks, 1);
}

#[test]
fn writeback_keeps_what_it_got_when_space_runs_out() {
    let mut bench = DataBench::new();
    let data = Bytes::from(vec![7; 8 * BLOCK]);
    let write =
        Operation::Write { inode: FILE, offset: 0, data, length: 8 * BLOCK_BYTES, clear_set_id: false };
    assert_eq!(bench.run(&write), Ok(()));
    let nothing = bench.view(|view| plan_writeback(view, FILE, 100, &mut |_| None));
    assert_eq!(nothing.map(|plan| plan.taken), Err(FsError::NoSpace.into()));
    let mut runs = vec![(1 << 20, 2), (1 << 22, 1)];
    let plan = bench.view(|view| plan_writeback(view, FILE, 100, &mut |_| runs.pop())).expect("some space");
    assert_eq!((plan.taken, plan.writes.len()), (vec![0, 1, 2], 2));
}

#[test]
fn odd_log_records_are_refused_and_those_of_dead_inodes_do_nothing() {
    let mut bench = DataBench::new();
    let data = Bytes::from(vec![7; 2 * BLOCK]);
    let write =
        Operation::Write { inode: FILE, offset: 0, data, length: 2 * BLOCK_BYTES, clear_set_id: false };
    assert_eq!(bench.run(&write), Ok(()));
    bench.view(|view| {
        let insert = |inode, offset, checksums: &[u32], address, length| {
            plan_insert_extent(view, inode, offset, checksums, address, length, 1)
        };
        for (offset, count, address, length) in [
            (1, 1, BLOCK_BYTES, BLOCK_BYTES),
            (0, 1, 0, BLOCK_BYTES),
            (0, 2, BLOCK_BYTES, BLOCK_BYTES),
            (0, 0, BLOCK_BYTES, 0),
            (u64::MAX - 4095, 1, BLOCK_BYTES, BLOCK_BYTES),
            (0, 1, u64::MAX - 4095, BLOCK_BYTES),
        ] {
            let result = insert(FILE, offset, &[0; 2][..count], address, length);
            assert!(matches!(result, Err(EngineError::Corrupt(_))), "{result:?}");
        }
        let gone = insert(FILE + 1, 0, &[0], BLOCK_BYTES, BLOCK_BYTES).expect("a plan");
        assert!(gone.no_change && gone.claimed.is_empty() && gone.mutations.is_empty());
        let past_end = insert(FILE, 2 * BLOCK_BYTES, &[0], BLOCK_BYTES, BLOCK_BYTES).expect("a plan");
        assert!(past_end.no_change && past_end.claimed.is_empty());
        let cut = insert(FILE, BLOCK_BYTES, &[0, 0], BLOCK_BYTES, 2 * BLOCK_BYTES).expect("a plan");
        assert_eq!(cut.claimed, [DeviceRange { address: BLOCK_BYTES, length: BLOCK_BYTES }]);
        let gone = plan_insert_data(view, FILE + 1, 0, &Bytes::from_static(b"a")).expect("a plan");
        assert!(gone.no_change && gone.pages.is_empty());
    });
}

#[test]
fn a_damaged_block_is_named_and_the_cache_keeps_its_bound() {
    let bytes = vec![5; 2 * BLOCK];
    let sum = crc32c::crc32c(&bytes[..BLOCK]);
    let pointer = |checksums| DataPointer {
        inode: FILE,
        file_offset: 8192,
        address: 1 << 20,
        length: 2 * BLOCK_BYTES,
        generation: 1,
        checksums,
    };
    let sound = pointer(vec![sum, sum]);
    assert_eq!(verify_blocks(&sound, &bytes), Ok(()));
    let damaged = verify_blocks(&pointer(vec![sum, !sum]), &bytes).expect_err("a wrong checksum");
    assert_eq!(damaged.address, (1 << 20) + BLOCK_BYTES);
    assert!(verify_blocks(&pointer(vec![sum]), &bytes).is_err());
    assert!(verify_blocks(&pointer(vec![sum, sum]), &bytes[1..]).is_err());
    let cache = DataCache::new(1 << 20);
    for (address, page) in (0..1000).flat_map(|_| split_blocks(&sound, &bytes)) {
        cache.insert(address + cache.memory_bytes(), 1, page);
    }
    assert!(cache.memory_bytes() <= 1 << 20);
}
