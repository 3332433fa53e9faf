//! How full trees are, when they grow and shrink, and what they cost.

use super::*;
use crate::format::node::NODE_CAPACITY;

/// Numbers 0..count in an order that looks random and is always the same.
fn shuffled(count: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for index in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(index, (state >> 33) as usize % (index + 1));
    }
    numbers
}

fn leaves(census: &Census) -> usize {
    census.nodes.iter().filter(|node| node.2 == 0).count()
}

#[test]
fn appending_leaves_full_leaves_behind() {
    let mut store = Store::new(1 << 20);
    for number in 0..20_000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.check();
    let per_leaf = NODE_CAPACITY / 124;
    assert_eq!(leaves(&store.census()), 20_000usize.div_ceil(per_leaf));
}

#[test]
fn random_inserts_leave_leaves_two_thirds_full() {
    let mut store = Store::new(1 << 20);
    for number in shuffled(20_000) {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.check();
    let used = 20_000 * 124;
    assert!(leaves(&store.census()) * NODE_CAPACITY * 6 / 10 < used);
}

#[test]
fn three_levels_grow_and_shrink_to_one_empty_leaf() {
    let mut store = Store::new(256 << 10);
    for number in shuffled(4000) {
        store.apply(&[put(key(number), &value(number, 4000))]);
        if number % 500 == 0 {
            store.freeze();
        }
    }
    store.reopen(256 << 10);
    let census = store.census();
    assert_eq!(census.nodes[0].2, 2, "three levels");
    let full = census.nodes.len();
    for (index, number) in shuffled(4000).into_iter().rev().enumerate() {
        store.apply(&[delete(key(number))]);
        if index % 500 == 0 {
            store.check();
        }
        if index == 3600 {
            assert!(store.census().nodes.len() < full / 4, "nodes merge as the tree empties");
        }
        if index % 700 == 0 {
            store.freeze();
        }
    }
    store.check();
    assert_eq!(store.census().nodes.len(), 1);
    assert!(store.misses.get() > 1000, "the device was needed");
    store.reopen(0);
    assert!(store.get(&key(1)).is_none());
    store.apply(&[put(key(1), b"again")]);
    store.check();
}

#[test]
fn a_tree_loses_its_levels_with_its_items() {
    for leftmost in [true, false] {
        let mut store = Store::new(1 << 20);
        for number in 0..4000 {
            store.apply(&[put(key(number), &value(number, 4000))]);
        }
        store.reopen(1 << 20);
        assert_eq!(store.census().nodes[0].2, 2, "three levels");
        let kept = if leftmost { 0 } else { 3999 };
        for number in (0..4000).filter(|number| *number != kept) {
            store.apply(&[delete(key(number))]);
        }
        store.check();
        assert_eq!(store.census().nodes.len(), 1, "no root with a single child");
    }
}

#[test]
fn a_merge_brings_the_sibling_from_the_device() {
    for emptied in [0..131, 262..393] {
        let mut store = Store::new(1 << 20);
        for number in 0..393 {
            store.apply(&[put(key(number), &value(number, 100))]);
        }
        // Three full leaves; the middle one becomes sparse, but not enough to look for a merge itself.
        let middle: Vec<_> = (150..241).map(|number| delete(key(number))).collect();
        store.apply(&middle);
        store.reopen(0);
        assert_eq!(leaves(&store.census()), 3);
        let most: Vec<_> = emptied.skip(10).map(|number| delete(key(number))).collect();
        store.apply(&most);
        store.check();
        assert_eq!(leaves(&store.census()), 2, "merged with the middle leaf");
    }
}

#[test]
fn merging_keeps_sparse_trees_small_after_a_restart() {
    let mut store = Store::new(1 << 20);
    for number in 0..20_000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.reopen(1 << 20);
    for chunk in shuffled(20_000).chunks(50) {
        let mutations: Vec<_> = chunk.iter().filter(|n| *n % 20 != 0).map(|n| delete(key(*n))).collect();
        store.apply(&mutations);
    }
    store.check();
    let minimum = (1000usize * 124).div_ceil(NODE_CAPACITY);
    let count = leaves(&store.census());
    assert!(count <= minimum * 5, "{count} leaves where {minimum} would do");
}

#[test]
fn a_change_copies_its_path_once_per_generation() {
    let mut store = Store::new(1 << 20);
    for number in 0..2000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.freeze();
    assert_eq!(store.tree.dirty_nodes(), 0);
    store.apply(&[put(key(7), &value(1, 100))]);
    assert_eq!((store.tree.dirty_nodes(), store.superseded.len()), (2, 2), "the root and one leaf");
    store.apply(&[put(key(8), &value(1, 90)), delete(key(9))]);
    assert_eq!((store.tree.dirty_nodes(), store.superseded.len()), (2, 2), "in place");
    store.check();
}

#[test]
fn prepare_reads_the_path_and_no_more_siblings_than_a_merge_needs() {
    let mut store = Store::new(1 << 20);
    for number in 0..2000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.reopen(0);
    store.run(|store| store.tree.prepare(store, &[put(key(1000), b"x"), put(key(1001), b"x")]));
    assert_eq!(store.misses.replace(0), 2, "root and leaf");
    store.run(|store| store.tree.prepare(store, &[delete(key(1000))]));
    assert_eq!(store.misses.replace(0), 2, "the leaf stays full");
    let most: Vec<_> = (950..1050).map(|number| delete(key(number))).collect();
    store.run(|store| store.tree.prepare(store, &most));
    assert!((3..=5).contains(&store.misses.get()), "{} nodes", store.misses.get());
}

#[test]
fn a_small_tree_is_small_in_memory() {
    let mut store = Store::new(0);
    store.apply(&[put(key(1), &value(1, 100)), put(key(2), &value(1, 60))]);
    let Child::InMemory(root) = &store.tree.root else { panic!("not written yet") };
    assert!(root.memory_bytes() < 1024, "{} bytes", root.memory_bytes());
}

#[test]
fn written_nodes_are_released_and_found_in_the_cache() {
    let mut store = Store::new(64 << 20);
    for number in 0..20_000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.freeze();
    store.apply(&[put(key(5), b"next generation")]);
    store.finish();
    let Child::InMemory(root) = &store.tree.root else { panic!("the root was changed") };
    let node::Body::Internal(internal) = &root.body else { panic!("more than one leaf") };
    let held = internal.children.iter().filter(|child| matches!(child, Child::InMemory(_))).count();
    assert_eq!(held, 1, "only the path of the change is held");
    store.freeze();
    store.finish();
    assert!(matches!(store.tree.root, Child::OnDisk(_)));
    assert_eq!(store.get(&key(5)).as_deref(), Some(b"next generation".as_slice()));
    assert_eq!(store.misses.get(), 0, "the committer filled the cache");
}

#[test]
fn the_cache_keeps_to_its_capacity() {
    let mut store = Store::new(512 << 10);
    for number in 0..20_000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.reopen(512 << 10);
    for number in 0..20_000 {
        assert!(store.get(&key(number)).is_some());
        assert!(store.cache.memory_bytes() <= 512 << 10);
    }
    assert!(store.misses.get() >= 152, "more leaves than fit");
}

#[test]
fn gathered_nodes_stay_though_the_cache_keeps_none() {
    let mut store = Store::new(1 << 20);
    for number in 0..1000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.reopen(0);
    let cache = NodeCache::new(0);
    let mut gathered = Gathered::new(&cache);
    let mut found = 0;
    while let Err(missing) = store.tree.scan(&gathered, &Key::FIRST, &Key::LAST, |_, _| {
        found += 1;
        ControlFlow::Continue(())
    }) {
        gathered.insert(&store.read(&missing.pointer));
        found = 0;
    }
    assert_eq!((found, cache.memory_bytes()), (1000, 0));
}

#[test]
#[should_panic(expected = "was not prepared")]
fn applying_without_preparing_is_refused() {
    let mut store = Store::new(0);
    store.reopen(0);
    store.tree.apply(&Prepared::default(), store.generation, &[put(key(1), b"1")], &mut store.superseded);
}

#[test]
#[should_panic(expected = "delete of an absent item")]
fn deleting_an_absent_item_is_refused() {
    let mut store = Store::new(0);
    store.apply(&[put(key(1), b"1")]);
    store.apply(&[delete(key(2))]);
}

#[test]
#[should_panic(expected = "is frozen already")]
fn changing_a_frozen_generation_is_refused() {
    let mut store = Store::new(0);
    store.freeze();
    store.generation -= 1;
    store.apply(&[put(key(1), b"1")]);
}

#[test]
#[should_panic(expected = "a new generation starts with a freeze")]
fn skipping_a_freeze_is_refused() {
    let mut store = Store::new(0);
    store.apply(&[put(key(1), b"1")]);
    store.generation += 1;
    store.apply(&[put(key(1), b"1")]);
}
