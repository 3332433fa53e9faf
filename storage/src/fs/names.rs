//! Names in directories: the three items that make one, and the slot that a name gets.
//!
//! Invariant: a name is always three items together: by name, by entry id (the order of readdir) and the inode's back
//! reference. They are put and deleted together, here only.

use crate::error::{EngineError, EngineResult, FsError};
use crate::format::item::EntryItem;
use crate::format::key::{ItemKind, Key};
use crate::fs::plan::Plan;
use crate::fs::view::{FoundEntry, SLOT_PROBES, View, name_slot};
use crate::tree::ItemValue;
use crate::types::InodeNumber;
use std::ops::ControlFlow;

/// A name that is put into a directory.
#[derive(Clone, Copy)]
pub struct NewName<'a> {
    /// The directory.
    pub directory: InodeNumber,
    /// The name.
    pub name: &'a [u8],
    /// Offset of its by-name item: free, or that of a name which it replaces.
    pub slot: u64,
    /// New identifier: offset of its by-index item and of the back reference.
    pub entry_id: u64,
    /// What it stands for.
    pub inode: InodeNumber,
    /// `st_mode` type bits of that inode.
    pub mode_type: u32,
}

/// Puts the three items of a name.
pub fn put_name(plan: &mut Plan, new: &NewName<'_>) {
    let entry = |other| {
        let mut value = ItemValue::new();
        EntryItem { inode: new.inode, other, mode_type: new.mode_type, name: new.name }.write_to(&mut value);
        value
    };
    plan.put(Key::new(new.directory, ItemKind::EntryByName, new.slot), entry(new.entry_id));
    plan.put(Key::new(new.directory, ItemKind::EntryByIndex, new.entry_id), entry(new.slot));
    plan.put(
        Key::new(new.inode, ItemKind::BackReference, new.entry_id),
        new.directory.to_le_bytes().as_slice(),
    );
}

/// Deletes the three items of a name.
pub fn delete_name(plan: &mut Plan, directory: InodeNumber, entry: &FoundEntry) {
    plan.delete(Key::new(directory, ItemKind::EntryByName, entry.slot));
    delete_replaced_name(plan, directory, entry);
}

/// Deletes the items of a name whose by-name item is overwritten by the name that replaces it.
pub fn delete_replaced_name(plan: &mut Plan, directory: InodeNumber, entry: &FoundEntry) {
    plan.delete(Key::new(directory, ItemKind::EntryByIndex, entry.entry_id));
    plan.delete(Key::new(entry.inode, ItemKind::BackReference, entry.entry_id));
}

/// What the slots of a name hold.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The name, when it is there.
    pub found: Option<FoundEntry>,
    /// The first slot that is not taken; `None` when all are.
    pub free: Option<u64>,
}

impl Probe {
    /// The slot for a name that must not exist yet: `Exists`, or `NoSpace` when 256 other names have the same hash.
    pub fn free_slot(&self) -> Result<u64, EngineError> {
        match (self.found, self.free) {
            (Some(_), _) => Err(FsError::Exists.into()),
            (None, Some(slot)) => Ok(slot),
            (None, None) => Err(FsError::NoSpace.into()),
        }
    }
}

/// Looks at all slots of a name, in one pass.
pub fn probe(view: &View<'_>, directory: InodeNumber, name: &[u8]) -> EngineResult<Probe> {
    let base = name_slot(name);
    let from = Key::new(directory, ItemKind::EntryByName, base);
    let to = Key::new(directory, ItemKind::EntryByName, base | SLOT_PROBES);
    let mut found = None;
    let mut broken = None;
    // Slots can have gaps where names were removed, so the first free one may lie before the name itself.
    let mut next = base;
    let mut gap = None;
    view.scan(&from, &to, |key, bytes| {
        if key.offset > next && gap.is_none() {
            gap = Some(next);
        }
        next = key.offset + 1;
        match EntryItem::parse(key, bytes) {
            Ok(entry) if entry.name == name => {
                found = Some(FoundEntry {
                    inode: entry.inode,
                    entry_id: entry.other,
                    slot: key.offset,
                    mode_type: entry.mode_type,
                });
                ControlFlow::Break(())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                broken = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = broken {
        return Err(error.into());
    }
    let free = gap.or_else(|| (next <= base | SLOT_PROBES).then_some(next));
    Ok(Probe { found, free })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::test_support::Bench;
    use crate::limits::ROOT_INODE;

    fn fill(bench: &mut Bench, slot: u64, name: &[u8]) {
        let mut value = Vec::new();
        EntryItem { inode: 900, other: 1000 + slot % 256, mode_type: 0, name }.write_to(&mut value);
        bench.put_item(Key::new(ROOT_INODE, ItemKind::EntryByName, slot), &value);
    }

    #[test]
    fn equal_hashes_take_successive_slots_and_gaps_are_used_again() {
        let mut bench = Bench::new();
        let base = name_slot(b"wanted");
        let look = |bench: &Bench| {
            bench.view(false, |view| probe(view, ROOT_INODE, b"wanted")).expect("a sound tree")
        };
        assert_eq!(look(&bench).free_slot(), Ok(base));
        for probe in [0, 1, 3] {
            fill(&mut bench, base + probe, format!("other{probe}").as_bytes());
        }
        assert_eq!(look(&bench).free_slot(), Ok(base + 2));
        // The name behind a gap is found all the same.
        fill(&mut bench, base + 5, b"wanted");
        assert_eq!(look(&bench).found.map(|found| found.slot), Some(base + 5));
        assert_eq!(look(&bench).free_slot(), Err(FsError::Exists.into()));
    }

    #[test]
    fn a_full_run_of_slots_is_no_space() {
        let mut bench = Bench::new();
        let base = name_slot(b"wanted");
        for probe in 0..=SLOT_PROBES {
            fill(&mut bench, base + probe, format!("other{probe}").as_bytes());
        }
        let create = bench.make("wanted", crate::format::item::file_type::REGULAR);
        assert_eq!(bench.refused(&create), FsError::NoSpace);
    }

    #[test]
    fn a_damaged_entry_is_an_error_and_not_an_absent_name() {
        let mut bench = Bench::new();
        bench.put_item(Key::new(ROOT_INODE, ItemKind::EntryByName, name_slot(b"wanted")), b"short");
        let answer = bench.view(false, |view| probe(view, ROOT_INODE, b"wanted"));
        assert!(matches!(answer, Err(EngineError::Corrupt(_))), "{answer:?}");
    }
}
