//! Reading a directory, a batch at a time.
//!
//! Invariants: entries come in the order of their cookies; a cookie is the entry id, never used again, so a reader may
//! continue after any cookie whatever was added or removed meanwhile; a name that exists all the time is seen exactly
//! once. A renamed name gets a new, larger cookie: who renames what he reads must stop at the identifiers that were
//! handed out when he opened the directory, or he meets his own names for ever.

use crate::error::{Corruption, EngineError, EngineResult, FsError};
use crate::format::item::{EntryItem, InodeItem};
use crate::format::key::{ItemKind, Key};
use crate::fs::view::View;
use crate::types::InodeNumber;
use bytes::Bytes;
use std::ops::ControlFlow;

/// Cookies below this are the client's own: it makes `.` and `..` itself (cookies 1 and 2), they are not stored.
pub const FIRST_COOKIE: u64 = 3;

const _: () = assert!(FIRST_COOKIE < crate::limits::FIRST_FREE_ID);

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Where to continue after it.
    pub cookie: u64,
    /// The inode it stands for.
    pub inode: InodeNumber,
    /// `st_mode` type bits.
    pub mode_type: u32,
    /// The name.
    pub name: Bytes,
    /// Attributes, when asked for. `None` also for an entry whose inode is missing (a damaged tree): the rest of the
    /// directory must stay readable.
    pub attributes: Option<InodeItem>,
}

/// Some entries of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryBatch {
    /// In the order of their cookies.
    pub entries: Vec<DirectoryEntry>,
    /// Are these the last ones?
    pub end: bool,
}

/// The entries after a cookie (0 = from the start), at most `max_entries`.
///
/// Errors: `NotFound`, `NotDirectory`. A directory that was removed while open is empty.
pub fn read_directory(
    view: &View<'_>,
    directory: InodeNumber,
    after_cookie: u64,
    max_entries: usize,
    with_attributes: bool,
) -> EngineResult<DirectoryBatch> {
    let item = view.directory(directory)?;
    let Some(first) = after_cookie.checked_add(1).filter(|_| item.size > 0) else {
        return Ok(DirectoryBatch { entries: Vec::new(), end: true });
    };
    let mut batch = DirectoryBatch { entries: Vec::new(), end: true };
    let mut broken: Option<Corruption> = None;
    let from = Key::new(directory, ItemKind::EntryByIndex, first);
    let to = Key::new(directory, ItemKind::EntryByIndex, u64::MAX);
    view.scan(&from, &to, |key, bytes| {
        if batch.entries.len() >= max_entries {
            batch.end = false;
            return ControlFlow::Break(());
        }
        match EntryItem::parse(key, bytes) {
            Ok(entry) => batch.entries.push(DirectoryEntry {
                cookie: key.offset,
                inode: entry.inode,
                mode_type: entry.mode_type,
                name: Bytes::copy_from_slice(entry.name),
                attributes: None,
            }),
            Err(error) => {
                broken = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    if let Some(error) = broken {
        return Err(error.into());
    }
    if with_attributes {
        add_attributes(view, &mut batch)?;
    }
    Ok(batch)
}

/// A missing node after half of the entries ends the batch there: running all of it again for every node that is not
/// in memory would read a large cold directory in quadratic time.
fn add_attributes(view: &View<'_>, batch: &mut DirectoryBatch) -> EngineResult<()> {
    let enough = batch.entries.len().div_ceil(2).max(1);
    for index in 0..batch.entries.len() {
        let entry = &mut batch.entries[index];
        match view.inode(entry.inode) {
            Ok(item) => entry.attributes = Some(item),
            Err(EngineError::Refused(FsError::NotFound)) => {}
            Err(EngineError::Missing(_)) if index >= enough => {
                batch.entries.truncate(index);
                batch.end = false;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::test_support::Bench;
    use crate::limits::ROOT_INODE;
    use crate::operation::{Operation, RenameMode};

    fn read(bench: &Bench, after: u64, most: usize, attributes: bool) -> DirectoryBatch {
        bench
            .view(false, |view| read_directory(view, ROOT_INODE, after, most, attributes))
            .expect("a sound tree")
    }

    #[test]
    fn batches_join_without_gaps_while_names_come_and_go() {
        let mut bench = Bench::new();
        assert_eq!(read(&bench, 0, 10, true), DirectoryBatch { entries: Vec::new(), end: true });
        for number in 0..25 {
            bench.file(&format!("f{number}"));
        }
        let (mut seen, mut after) = (Vec::new(), 0);
        loop {
            let batch = read(&bench, after, 10, true);
            for entry in &batch.entries {
                assert!(entry.cookie > after && entry.cookie >= FIRST_COOKIE);
                after = entry.cookie;
                let item = entry.attributes.expect("asked for");
                assert_eq!(Ok(item), bench.attributes(entry.inode));
                seen.push(String::from_utf8(entry.name.to_vec()).expect("names of tests are text"));
            }
            // What was read goes, as `rm -r` does it; something new comes.
            for entry in &batch.entries {
                let place = crate::operation::Place { parent: ROOT_INODE, name: entry.name.clone() };
                bench.done(&Operation::Unlink { place });
            }
            if batch.end {
                break;
            }
        }
        assert_eq!(seen, (0..25).map(|number| format!("f{number}")).collect::<Vec<_>>());
        bench.verify();
    }

    #[test]
    fn the_end_is_told_exactly() {
        let mut bench = Bench::new();
        bench.file("a");
        bench.file("b");
        assert!(read(&bench, 0, 2, false).end);
        let one = read(&bench, 0, 1, false);
        assert!(!one.end && one.entries[0].attributes.is_none());
        assert!(read(&bench, u64::MAX, 1, false).end);
        assert_eq!(read(&bench, 0, 0, false), DirectoryBatch { entries: Vec::new(), end: false });
    }

    #[test]
    fn a_renamed_name_moves_behind_all_others_and_its_cookie_is_not_used_again() {
        let mut bench = Bench::new();
        bench.file("a");
        bench.file("b");
        let first = read(&bench, 0, 1, false).entries[0].cookie;
        let handed_out = bench.next_id;
        let rename =
            Operation::Rename { from: bench.place("a"), to: bench.place("c"), mode: RenameMode::Replace };
        bench.done(&rename);
        let all = read(&bench, 0, 9, false);
        let names: Vec<_> = all.entries.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, [b"b", b"c"]);
        assert!(all.entries[1].cookie >= handed_out && all.entries[0].cookie > first);
    }

    #[test]
    fn files_are_no_directories_and_missing_inodes_do_not_hide_the_rest() {
        let mut bench = Bench::new();
        let file = bench.file("a");
        let answer = bench.view(false, |view| read_directory(view, file, 0, 1, false));
        assert_eq!(answer, Err(FsError::NotDirectory.into()));
        let mut value = Vec::new();
        EntryItem { inode: 4000, other: 5, mode_type: 0, name: b"lost" }.write_to(&mut value);
        bench.put_item(Key::new(ROOT_INODE, ItemKind::EntryByIndex, 300), &value);
        let batch = read(&bench, 0, 9, true);
        assert_eq!(batch.entries.len(), 2);
        assert!(batch.entries[1].attributes.is_none());
    }
}
