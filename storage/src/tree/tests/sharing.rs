//! Who else may hold a node while a tree changes: readers, snapshots, and a committer in another thread.

use super::*;
use std::thread;

#[test]
fn a_node_that_somebody_holds_does_not_change_under_them() {
    let mut store = Store::new(0);
    store.apply(&[put(key(1), b"old")]);
    let Child::InMemory(held) = store.tree.root.clone() else { panic!("not written yet") };
    store.apply(&[put(key(1), b"new")]);
    assert_eq!(held.items().next(), Some((key(1), b"old".as_slice())));
    assert_eq!(store.tree.dirty_nodes(), 1, "the clone takes the place of the node");
    assert!(store.superseded.is_empty(), "it was never written");
    store.check();
}

#[test]
fn a_frozen_tree_stays_as_it_was() {
    let mut store = Store::new(1 << 20);
    for number in 0..3000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    let before = store.census().items;
    store.freeze();
    for number in 0..3000 {
        store.apply(&[delete(key(number))]);
    }
    let mut census = Census::default();
    let commit = store.commit.as_ref().expect("started");
    commit.frozen.check(&Direct(&store), &mut census).expect("a valid tree");
    assert!(census.items == before);
    store.check();
}

#[test]
fn a_committer_in_another_thread_gives_addresses_while_the_tree_goes_on() {
    for round in 0..20 {
        let mut store = Store::new(1 << 20);
        for number in 0..2000 {
            store.apply(&[put(key(number), &value(number, 100))]);
        }
        store.freeze();
        let commit = store.commit.take().expect("started");
        let committer = thread::spawn(move || {
            for (index, node) in commit.unwritten.iter().enumerate() {
                node.assign((index as u64 + 1) * NODE_BYTES as u64);
                let mut bytes = vec![0; NODE_BYTES];
                node.encode_into(&mut bytes, OWNER);
            }
            commit.unwritten
        });
        for number in (round..2000).step_by(40) {
            store.apply(&[put(key(number), b"changed"), delete(key(number + 1))]);
        }
        let written = committer.join().expect("no panic");
        store.check();
        let superseded = std::mem::take(&mut store.superseded);
        let addresses: BTreeSet<u64> = superseded.resolve().map(|node| node.pointer.address).collect();
        let kept: BTreeSet<u64> = store.census().nodes.iter().filter_map(|node| node.0).collect();
        assert_eq!(addresses.len() + kept.len(), written.len());
        assert!(addresses.is_disjoint(&kept), "live or superseded");
    }
}

#[test]
fn nodes_shared_with_a_snapshot_are_kept_with_their_children() {
    let mut store = Store::new(1 << 20);
    for number in 0..3000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.freeze();
    store.finish();
    let snapshot = store.generation - 1;
    store.superseded = Superseded::new(snapshot);
    store.apply(&[put(key(7), b"changed")]);
    let shared: Vec<_> = std::mem::take(&mut store.superseded).resolve().collect();
    let nodes: Vec<_> = shared.iter().map(|node| node.shared.as_ref().expect("shared")).collect();
    assert_eq!(nodes.iter().map(|node| node.level()).collect::<Vec<_>>(), [1, 0]);
    assert!(nodes[0].child_pointers().flatten().any(|child| child == shared[1].pointer));
    assert!(nodes[1].items().any(|(found, _)| found == key(7)), "with the item as it was");

    // Born after the snapshot: not shared. (The snapshot's own tree is not part of this store: its nodes go.)
    for node in &shared {
        store.device.remove(&node.pointer.address);
    }
    store.freeze();
    store.finish();
    store.superseded = Superseded::new(snapshot);
    store.apply(&[put(key(7), b"changed again")]);
    assert!(std::mem::take(&mut store.superseded).resolve().all(|node| node.shared.is_none()));
}

#[test]
fn a_cached_node_holds_no_other_node() {
    let mut store = Store::new(0);
    for number in 0..1000 {
        store.apply(&[put(key(number), &value(number, 100))]);
    }
    store.freeze();
    store.assign();
    let mut commit = store.commit.take().expect("started");
    let root = commit.unwritten.pop().expect("a root");
    let leaf = Arc::downgrade(&commit.unwritten[0]);
    let cache = NodeCache::new(1 << 20);
    cache.insert(&root);
    let cached = cache.cached(&root.pointer().expect("assigned")).expect("there is room");
    assert!(root.child_pointers().eq(cached.child_pointers()));
    store.tree.release_written();
    drop((root, commit));
    assert!(leaf.upgrade().is_none(), "leaves are not kept by the cached root");
}
