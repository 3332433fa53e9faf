//! Nodes as a device that lies may hand them out: each is refused with its reason, none panics.

use super::*;
use crate::format::node::{HEADER_BYTES, NODE_CAPACITY, SLOT_BYTES, checksum, verify};
use proptest::prelude::*;

const GENERATION: u64 = 1;

/// The first leaf and the root of a tree of two levels, as written, with the pointers to them.
fn written() -> [(Vec<u8>, BlockPointer); 2] {
    let mut store = Store::new(0);
    for number in 0..900 {
        store.apply(&[put(key(number), &value(number, (number % 50) as usize))]);
    }
    store.freeze();
    store.assign();
    let commit = store.commit.as_ref().expect("started");
    let nodes = [&commit.unwritten[0], commit.unwritten.last().expect("a root")];
    let encoded = nodes.map(|node| {
        let mut bytes = vec![0; NODE_BYTES];
        node.encode_into(&mut bytes, OWNER);
        (bytes, node.pointer().expect("assigned"))
    });
    assert_eq!((encoded[0].1.level, encoded[1].1.level), (0, 1));
    encoded
}

/// Changes bytes and makes the checksum right again.
fn forged(bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut forged = bytes.to_vec();
    change(&mut forged);
    let sum = checksum(&forged);
    forged[4..8].copy_from_slice(&sum.to_le_bytes());
    forged
}

fn slot(index: usize) -> usize {
    HEADER_BYTES + index * SLOT_BYTES
}

#[test]
fn every_flipped_bit_is_found() {
    for (mut bytes, pointer) in written() {
        verify(&bytes, &pointer, OWNER).expect("valid");
        for bit in 0..NODE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&bytes, &pointer, OWNER).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn another_node_than_the_expected_one_is_refused() {
    let [(bytes, pointer), _] = written();
    let refusal = |pointer: BlockPointer, owner| verify(&bytes, &pointer, owner).expect_err("refused");
    assert_eq!(
        refusal(BlockPointer { address: 8192, ..pointer }, OWNER),
        NodeError::Address { found: pointer.address, expected: 8192 }
    );
    assert_eq!(
        refusal(BlockPointer { generation: 2, ..pointer }, OWNER),
        NodeError::Generation { found: GENERATION, expected: 2 }
    );
    assert_eq!(
        refusal(BlockPointer { level: 1, ..pointer }, OWNER),
        NodeError::Level { found: 0, expected: 1 }
    );
    assert_eq!(refusal(pointer, 7), NodeError::Owner { found: OWNER, expected: 7 });
}

#[test]
fn each_malformation_has_its_reason() {
    let [(leaf, leaf_pointer), (root, root_pointer)] = written();
    let of_leaf = |change: fn(&mut [u8])| verify(&forged(&leaf, change), &leaf_pointer, OWNER);
    let of_root = |change: fn(&mut [u8])| verify(&forged(&root, change), &root_pointer, OWNER);
    assert_eq!(verify(&leaf[1..], &leaf_pointer, OWNER), Err(NodeError::Length { found: NODE_BYTES - 1 }));
    assert_eq!(verify(&[], &leaf_pointer, OWNER), Err(NodeError::Length { found: 0 }));
    assert_eq!(verify(&[0; NODE_BYTES], &leaf_pointer, OWNER), Err(NodeError::Magic { found: 0 }));
    assert_eq!(of_leaf(|bytes| bytes[40] = 1), Err(NodeError::Reserved));
    assert_eq!(of_leaf(|bytes| bytes[slot(0) + 17] = 1), Err(NodeError::Reserved));
    assert_eq!(of_leaf(|bytes| bytes[slot(3) + 16] = 200), Err(NodeError::Kind { slot: 3, kind: 200 }));
    assert_eq!(
        of_leaf(|bytes| bytes.copy_within(slot(3)..slot(3) + 17, slot(4))),
        Err(NodeError::Order { slot: 4 })
    );
    assert_eq!(of_leaf(|bytes| bytes[slot(5) + 20] += 1), Err(NodeError::Data { slot: 5 }), "overlap");
    assert_eq!(of_leaf(|bytes| bytes[slot(5) + 19] = 0xff), Err(NodeError::Data { slot: 5 }), "bounds");
    assert!(matches!(of_leaf(|bytes| bytes[35] = 0xff), Err(NodeError::Data { .. })), "data start");
    assert!(matches!(of_leaf(|bytes| bytes[32..34].fill(0xff)), Err(NodeError::Count { count: 0xffff })));
    assert_eq!(of_root(|bytes| bytes[32..34].fill(0)), Err(NodeError::Count { count: 0 }));
    assert_eq!(of_root(|bytes| bytes[NODE_BYTES - 16] = 1), Err(NodeError::Child { slot: 0 }), "alignment");
    assert_eq!(of_root(|bytes| bytes[NODE_BYTES - 16..][..8].fill(0)), Err(NodeError::Child { slot: 0 }));
    assert_eq!(of_root(|bytes| bytes[NODE_BYTES - 8] = 9), Err(NodeError::Child { slot: 0 }), "younger");
    let gap = slot(usize::from(u16::from_le_bytes([root[32], root[33]])));
    assert!(gap < NODE_CAPACITY);
    assert_eq!(
        verify(&forged(&root, |bytes| bytes[gap] = 1), &root_pointer, OWNER),
        Err(NodeError::Reserved)
    );
}

#[test]
fn no_pointer_makes_a_node_of_a_high_level_acceptable() {
    let [_, (root, pointer)] = written();
    let bytes = forged(&root, |bytes| bytes[36] = 200);
    let pointer = BlockPointer { level: 200, ..pointer };
    assert_eq!(verify(&bytes, &pointer, OWNER), Err(NodeError::Level { found: 200, expected: 200 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// Bytes changed on purpose, with a correct checksum: refused, or a valid node that means exactly its bytes.
    #[test]
    fn forged_nodes_never_panic(
        which in 0..2usize,
        changes in proptest::collection::vec((0..NODE_BYTES, any::<u8>(), any::<bool>()), 1..6),
    ) {
        thread_local! {
            static WRITTEN: [(Vec<u8>, BlockPointer); 2] = written();
        }
        let (bytes, pointer) = WRITTEN.with(|nodes| nodes[which].clone());
        let bytes = forged(&bytes, |bytes| {
            for (position, byte, near) in &changes {
                // Half of the changes hit the header and the first slots, where the structure is.
                bytes[if *near { position % 256 } else { *position }] = *byte;
            }
        });
        let verified = verify(&bytes, &pointer, OWNER);
        match Node::decode(&bytes, &pointer, OWNER) {
            Err(error) => prop_assert_eq!(verified, Err(error)),
            Ok(node) => {
                prop_assert_eq!(verified, Ok(()));
                let mut again = vec![0; NODE_BYTES];
                node.encode_into(&mut again, OWNER);
                prop_assert!(bytes == again);
            }
        }
    }
}
