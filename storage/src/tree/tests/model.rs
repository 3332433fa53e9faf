//! Random programs of changes, reads, commits in steps and restarts, compared with a `BTreeMap` after every step.

use super::*;
use proptest::prelude::*;

/// A cache of some four nodes: nearly everything is missing, again and again.
const CACHE_BYTES: u64 = 64 << 10;
/// Keys are drawn from this many.
const KEYS: u64 = 4096;

#[derive(Clone, Debug)]
enum Op {
    /// Puts (with a length) and deletes (of what exists) in one batch.
    Batch(Vec<(u64, Option<usize>)>),
    /// Puts many keys: first, count, step, length.
    Fill(u64, u64, u64, usize),
    /// Deletes what exists among many keys, in batches of so many.
    Clear(u64, u64, usize),
    Read(u64, u64, usize),
    Freeze,
    Assign,
    Finish,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let length = || prop_oneof![4 => 0usize..200, 2 => 200usize..1500, 1 => 3000usize..=4096];
    let change = (0..KEYS, proptest::option::weighted(0.6, length()));
    prop_oneof![
        8 => proptest::collection::vec(change, 1..12).prop_map(Op::Batch),
        3 => (0..KEYS, 1..1200u64, 1..4u64, length()).prop_map(|(first, count, step, length)| Op::Fill(first, count, step, length)),
        1 => (0..64u64, 2000..2200u64, Just(4001usize)).prop_map(|(first, count, length)| Op::Fill(first, count, 1, length)),
        4 => (0..KEYS, 1..2500u64, 1..300usize).prop_map(|(first, count, batch)| Op::Clear(first, count, batch)),
        6 => (0..KEYS, 0..KEYS, 0..50usize).prop_map(|(from, to, limit)| Op::Read(from, to, limit)),
        3 => Just(Op::Freeze),
        2 => Just(Op::Assign),
        2 => Just(Op::Finish),
        1 => Just(Op::Reopen),
    ]
}

fn run(store: &mut Store, op: &Op, step: u64) {
    match op {
        Op::Batch(changes) => {
            let mut keys = BTreeSet::new();
            let mut mutations = Vec::new();
            for (number, length) in changes {
                let key = key(*number);
                match length {
                    _ if !keys.insert(key) => {}
                    Some(length) => mutations.push(put(key, &value(step + number, *length))),
                    None if store.model.contains_key(&key) => mutations.push(delete(key)),
                    None => {}
                }
            }
            store.apply(&mutations);
        }
        Op::Fill(first, count, stride, length) => {
            let numbers = (0..*count).map(|index| (first + index * stride) % KEYS);
            for chunk in numbers.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().chunks(100) {
                let mutations: Vec<_> =
                    chunk.iter().map(|n| put(key(*n), &value(step + n, *length))).collect();
                store.apply(&mutations);
            }
        }
        Op::Clear(first, count, batch) => {
            let range = key(*first)..key(first + count);
            let keys: Vec<Key> = store.model.range(range).map(|(key, _)| *key).collect();
            for chunk in keys.chunks(*batch) {
                // Not in the order of keys, which must not matter.
                let mutations: Vec<_> = chunk.iter().rev().map(|key| delete(*key)).collect();
                store.apply(&mutations);
            }
        }
        Op::Read(from, to, limit) => read(store, &key(*from), &key(*to), *limit),
        Op::Freeze => store.freeze(),
        Op::Assign => store.assign(),
        Op::Finish => store.finish(),
        Op::Reopen => store.reopen(CACHE_BYTES),
    }
}

fn read(store: &Store, from: &Key, to: &Key, limit: usize) {
    let owned = |(key, value): (&Key, &Vec<u8>)| (*key, ItemValue::from_slice(value));
    assert_eq!(store.get(from).as_deref(), store.model.get(from).map(Vec::as_slice));
    let floor = store.run(|store| store.tree.floor(store, from));
    assert_eq!(floor, store.model.range(..=*from).next_back().map(owned));
    let ceiling = store.run(|store| store.tree.ceiling(store, from));
    assert_eq!(ceiling, store.model.range(*from..).next().map(owned));
    let scanned = store.run(|store| {
        let mut found = Vec::new();
        store.tree.scan(store, from, to, |key, value| {
            if found.len() == limit {
                return ControlFlow::Break(());
            }
            found.push((*key, ItemValue::from_slice(value)));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    });
    if from <= to {
        assert!(store.model.range(*from..=*to).map(owned).take(limit).eq(scanned));
    } else {
        assert!(scanned.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_sorted_map_across_commits_and_restarts(ops in proptest::collection::vec(op(), 1..60)) {
        let mut store = Store::new(CACHE_BYTES);
        for (step, op) in ops.iter().enumerate() {
            run(&mut store, op, step as u64);
            store.check();
        }
        store.reopen(CACHE_BYTES);
        store.check();
        run(&mut store, &Op::Clear(0, KEYS, 64), 0);
        store.check();
        let census = store.census();
        prop_assert_eq!(census.nodes.len(), 1, "an empty tree is one leaf");
        store.reopen(CACHE_BYTES);
        prop_assert_eq!(store.device.len(), 1, "and one block on the device");
    }
}
