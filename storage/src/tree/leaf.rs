//! The items of one leaf in memory: a sorted array of slots, and a heap that the values lie in.
//!
//! Both grow as needed, so a small idle tree costs some hundred bytes and not a whole node. What counts against the
//! node's size is [`Leaf::used`], computed as on disk; the heap may hold more, because replaced and removed values
//! stay in it until there are enough of them to pay for a squeeze.
//!
//! Invariants: keys grow strictly; `used() <= NODE_CAPACITY`; the heap stays far below 64 KiB (offsets are 16 bits);
//! `live` is the sum of the lengths of all values.

use crate::format::key::{ItemKind, Key};
use crate::format::node::{NODE_CAPACITY, SLOT_BYTES};
use crate::limits::ITEM_BYTES_MAX;
use std::cmp::Ordering;
use std::mem::size_of;

/// Dead bytes in the heap below which squeezing it is not worth the copy.
const DEAD_BYTES_MIN: usize = 2048;

/// [`Key`] and place of a value in 24 bytes: a `Key` member would have padding that nothing else can use.
#[derive(Clone, Copy)]
struct Slot {
    inode: u64,
    offset: u64,
    data_offset: u16,
    data_length: u16,
    kind: ItemKind,
}

const _: () = {
    assert!(size_of::<Slot>() == SLOT_BYTES);
    // Live values, as many dead ones before a squeeze, and the value that is being added.
    assert!(2 * NODE_CAPACITY + DEAD_BYTES_MIN + 2 * ITEM_BYTES_MAX <= u16::MAX as usize);
};

impl Slot {
    fn key(&self) -> Key {
        Key::new(self.inode, self.kind, self.offset)
    }

    fn compare(&self, key: &Key) -> Ordering {
        self.inode
            .cmp(&key.inode)
            .then_with(|| (self.kind as u8).cmp(&(key.kind as u8)))
            .then_with(|| self.offset.cmp(&key.offset))
    }

    fn range(&self) -> std::ops::Range<usize> {
        let start = usize::from(self.data_offset);
        start..start + usize::from(self.data_length)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Leaf {
    slots: Vec<Slot>,
    heap: Vec<u8>,
    live: usize,
}

impl Leaf {
    /// An empty leaf with room for so many items and bytes of values.
    pub fn with_capacity(items: usize, bytes: usize) -> Self {
        Self { slots: Vec::with_capacity(items), heap: Vec::with_capacity(bytes), live: 0 }
    }

    /// Items.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// What the items take in a node on disk, in bytes.
    pub fn used(&self) -> usize {
        self.slots.len() * SLOT_BYTES + self.live
    }

    /// Memory held, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.heap.capacity()
    }

    /// Index of the item with this key, or the index at which it would stand.
    pub fn find(&self, key: &Key) -> Result<usize, usize> {
        self.slots.binary_search_by(|slot| slot.compare(key))
    }

    /// Key of the item at `index`.
    pub fn key(&self, index: usize) -> Key {
        self.slots[index].key()
    }

    /// Value of the item at `index`.
    pub fn value(&self, index: usize) -> &[u8] {
        &self.heap[self.slots[index].range()]
    }

    /// All items in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Key, &[u8])> + ExactSizeIterator {
        self.slots.iter().map(|slot| (slot.key(), &self.heap[slot.range()]))
    }

    /// Adds an item behind all others; it must fit.
    pub fn push(&mut self, key: &Key, value: &[u8]) {
        assert!(self.slots.last().is_none_or(|last| last.compare(key).is_lt()), "keys of a leaf grow");
        self.insert_at(self.slots.len(), key, value);
    }

    /// Inserts or replaces an item. When it does not fit, the leaf is split and its right part returned.
    pub fn put(&mut self, key: &Key, value: &[u8]) -> Option<Leaf> {
        assert!(value.len() <= ITEM_BYTES_MAX, "item of {} bytes", value.len());
        let index = match self.find(key) {
            Err(index) => index,
            Ok(index) => {
                let old = self.slots[index].range();
                if value.len() <= old.len() {
                    self.heap[old.start..old.start + value.len()].copy_from_slice(value);
                    self.slots[index].data_length = value.len() as u16;
                    self.live -= old.len() - value.len();
                    return None;
                }
                self.remove_at(index);
                index
            }
        };
        if self.used() + SLOT_BYTES + value.len() <= NODE_CAPACITY {
            self.insert_at(index, key, value);
            return None;
        }
        Some(self.split(index, key, value))
    }

    /// Removes the item with this key; it must be there.
    pub fn remove(&mut self, key: &Key) {
        let Ok(index) = self.find(key) else { panic!("delete of an absent item: {key:?}") };
        self.remove_at(index);
    }

    /// Takes over all items of `left`, whose keys are all smaller.
    pub fn absorb_left(&mut self, left: &Leaf) {
        let mut merged = Self::with_capacity(left.len() + self.len(), left.live + self.live);
        for (key, value) in left.iter().chain(self.iter()) {
            merged.push(&key, value);
        }
        *self = merged;
    }

    /// Takes over all items of `right`, whose keys are all larger.
    pub fn absorb_right(&mut self, right: &Leaf) {
        for (key, value) in right.iter() {
            self.push(&key, value);
        }
    }

    /// A copy that will be changed: squeezed, with room for a few more items.
    pub fn copy(&self) -> Self {
        let mut slots = Vec::with_capacity(self.slots.len() + 8);
        slots.extend_from_slice(&self.slots);
        let mut heap = Vec::with_capacity(self.live + 1024);
        if self.heap.len() == self.live {
            heap.extend_from_slice(&self.heap);
        } else {
            squeeze(&mut slots, &self.heap, &mut heap);
        }
        Self { slots, heap, live: self.live }
    }

    /// Splits and inserts the item at `index`: by bytes in the middle, except that an item behind all others gets a
    /// leaf of its own. Names and extents are appended in the order of their keys: halves would stay half empty.
    fn split(&mut self, index: usize, key: &Key, value: &[u8]) -> Leaf {
        let count = self.slots.len();
        assert!(count > 0, "an empty leaf has room for any item");
        if index == count {
            let mut right = Self::with_capacity(1, value.len());
            right.push(key, value);
            return right;
        }
        let added = SLOT_BYTES + value.len();
        let half = (self.used() + added) / 2;
        // The items as if the new one stood among them already; `left_count` of them stay here.
        let (mut left_count, mut left_bytes) = (0, 0);
        while left_count < count && left_bytes < half {
            left_bytes += match left_count.cmp(&index) {
                Ordering::Less => SLOT_BYTES + self.slots[left_count].range().len(),
                Ordering::Equal => added,
                Ordering::Greater => SLOT_BYTES + self.slots[left_count - 1].range().len(),
            };
            left_count += 1;
        }
        let inserts_left = index < left_count;
        let first_right = if inserts_left { left_count - 1 } else { left_count };
        let mut right = Self::with_capacity(count + 1 - first_right, NODE_CAPACITY / 2);
        for slot in &self.slots[first_right..] {
            right.push(&slot.key(), &self.heap[slot.range()]);
        }
        self.slots.truncate(first_right);
        self.live -= right.live;
        self.squeeze();
        if inserts_left {
            self.insert_at(index, key, value);
        } else {
            right.insert_at(index - first_right, key, value);
        }
        right
    }

    fn insert_at(&mut self, index: usize, key: &Key, value: &[u8]) {
        assert!(self.used() + SLOT_BYTES + value.len() <= NODE_CAPACITY, "the leaf overflows");
        let dead = self.heap.len() - self.live;
        if dead > DEAD_BYTES_MIN && dead > self.live / 2 {
            self.squeeze();
        }
        let slot = Slot {
            inode: key.inode,
            offset: key.offset,
            data_offset: u16::try_from(self.heap.len()).expect("the heap of a leaf stays below 64 KiB"),
            data_length: value.len() as u16,
            kind: key.kind,
        };
        self.heap.extend_from_slice(value);
        self.slots.insert(index, slot);
        self.live += value.len();
    }

    fn remove_at(&mut self, index: usize) {
        let slot = self.slots.remove(index);
        self.live -= slot.range().len();
        if self.slots.is_empty() {
            self.heap.clear();
        }
    }

    fn squeeze(&mut self) {
        let mut heap = Vec::with_capacity(self.live + 1024);
        squeeze(&mut self.slots, &self.heap, &mut heap);
        self.heap = heap;
    }
}

/// Copies the values of all slots from one heap to the end of another.
fn squeeze(slots: &mut [Slot], from: &[u8], to: &mut Vec<u8>) {
    for slot in slots {
        let value = &from[slot.range()];
        slot.data_offset = to.len() as u16;
        to.extend_from_slice(value);
    }
}
