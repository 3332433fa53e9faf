//! From an inode upwards: is one directory above another, and by what path can an inode be reached (for messages).
//!
//! Invariant: both walks end also on a damaged tree whose parents form a circle.

use crate::error::EngineResult;
use crate::format::item::{EntryItem, damaged};
use crate::format::key::{ItemKind, Key};
use crate::fs::view::View;
use crate::limits::ROOT_INODE;
use crate::types::InodeNumber;
use std::ops::ControlFlow;

/// Longest path that [`path_of`] tells, in bytes; of longer ones it tells the end.
pub const PATH_BYTES_MAX: usize = 4096;

/// Is `ancestor` the directory itself or above it?
///
/// Reads one inode per level. Errors: those of reading; `Corrupt` when the parents form a circle.
pub fn is_self_or_ancestor(
    view: &View<'_>,
    ancestor: InodeNumber,
    directory: InodeNumber,
) -> EngineResult<bool> {
    let mut current = directory;
    let mut circle = CircleGuard::new(directory);
    loop {
        if current == ancestor {
            return Ok(true);
        }
        if current == ROOT_INODE {
            return Ok(false);
        }
        current = view.directory(current)?.parent;
        if !circle.step(current) {
            let key = Key::new(current, ItemKind::Inode, 0);
            return Err(damaged(&key, "directory that is its own ancestor").into());
        }
    }
}

/// A path of the inode from the root of the subvolume, or `None` when it has no name. An inode with several names is
/// told by its oldest. Costs two reads per level: for messages, not for operations.
pub fn path_of(view: &View<'_>, inode: InodeNumber) -> EngineResult<Option<Vec<u8>>> {
    if inode == ROOT_INODE {
        return Ok(Some(b"/".to_vec()));
    }
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut length = 0;
    let mut current = inode;
    while current != ROOT_INODE {
        let Some((directory, name)) = oldest_name(view, current)? else {
            return Ok(None);
        };
        length += name.len() + 1;
        names.push(name);
        // This bounds the walk in a circle, too.
        if length > PATH_BYTES_MAX {
            names.push(b"...".to_vec());
            break;
        }
        current = directory;
    }
    let mut path = Vec::with_capacity(length + 4);
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Ok(Some(path))
}

/// The directory and name of the back reference with the smallest entry id.
fn oldest_name(view: &View<'_>, inode: InodeNumber) -> EngineResult<Option<(InodeNumber, Vec<u8>)>> {
    let from = Key::new(inode, ItemKind::BackReference, 0);
    let to = Key::new(inode, ItemKind::BackReference, u64::MAX);
    let mut reference = None;
    view.scan(&from, &to, |key, bytes| {
        reference = Some((*key, <[u8; 8]>::try_from(bytes)));
        ControlFlow::Break(())
    })?;
    let Some((key, directory)) = reference else {
        return Ok(None);
    };
    let directory =
        u64::from_le_bytes(directory.map_err(|_| damaged(&key, "back reference of a wrong length"))?);
    let entry_key = Key::new(directory, ItemKind::EntryByIndex, key.offset);
    let value = view
        .get(&entry_key)?
        .ok_or_else(|| damaged(&entry_key, "missing, though a back reference points to it"))?;
    Ok(Some((directory, EntryItem::parse(&entry_key, &value)?.name.to_vec())))
}

/// Finds out that a walk goes in a circle: remembers one place, moved forward at every power of two.
struct CircleGuard {
    remembered: InodeNumber,
    steps: u64,
    move_at: u64,
}

impl CircleGuard {
    fn new(start: InodeNumber) -> Self {
        Self { remembered: start, steps: 0, move_at: 1 }
    }

    /// The walk reached `inode`; false when it was there before.
    fn step(&mut self, inode: InodeNumber) -> bool {
        if inode == self.remembered && inode != ROOT_INODE {
            return false;
        }
        self.steps += 1;
        if self.steps == self.move_at {
            self.remembered = inode;
            self.move_at *= 2;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EngineError;
    use crate::fs::test_support::Bench;
    use crate::operation::Operation;

    fn path(bench: &Bench, inode: InodeNumber) -> Option<String> {
        let path = bench.view(false, |view| path_of(view, inode)).expect("a sound tree");
        path.map(|path| String::from_utf8(path).expect("names of tests are text"))
    }

    #[test]
    fn paths_follow_renames_and_the_oldest_name() {
        let mut bench = Bench::new();
        bench.mkdir("a");
        bench.mkdir("a/b");
        let file = bench.file("a/b/f");
        bench.done(&Operation::Link { inode: file, place: bench.place("g") });
        assert_eq!(path(&bench, file).as_deref(), Some("/a/b/f"));
        assert_eq!(path(&bench, ROOT_INODE).as_deref(), Some("/"));
        bench.done(&Operation::Unlink { place: bench.place("a/b/f") });
        assert_eq!(path(&bench, file).as_deref(), Some("/g"));
        bench.opens.insert(file, 1);
        bench.done(&Operation::Unlink { place: bench.place("g") });
        assert_eq!(path(&bench, file), None);
    }

    #[test]
    fn deep_directories_are_walked_and_told_in_part() {
        let mut bench = Bench::new();
        let mut deepest = ROOT_INODE;
        let top = bench.mkdir("top");
        for level in 0..3000 {
            let parent = if level == 0 { top } else { deepest };
            let mut operation = bench.make("x", crate::format::item::file_type::DIRECTORY);
            if let Operation::Create { place, .. } = &mut operation {
                place.parent = parent;
            }
            deepest = bench.done(&operation);
        }
        let above = |bench: &Bench, high, low| bench.view(false, |view| is_self_or_ancestor(view, high, low));
        assert_eq!(above(&bench, top, deepest), Ok(true));
        assert_eq!(above(&bench, deepest, top), Ok(false));
        assert_eq!(above(&bench, top, top), Ok(true));
        let told = path(&bench, deepest).expect("a sound tree");
        assert!(told.starts_with("/.../x/x") && told.len() < PATH_BYTES_MAX + 16, "{}", told.len());
    }

    #[test]
    fn a_circle_of_parents_is_damage_and_no_endless_walk() {
        let mut bench = Bench::new();
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| bench.mkdir(name));
        for (inode, parent) in [(a, b), (b, c), (c, d), (d, b)] {
            bench.poke(inode, |item| item.parent = parent);
        }
        let answer = bench.view(false, |view| is_self_or_ancestor(view, 9999, a));
        assert!(matches!(answer, Err(EngineError::Corrupt(_))), "{answer:?}");
        bench.poke(d, |item| item.parent = d);
        let answer = bench.view(false, |view| is_self_or_ancestor(view, 9999, a));
        assert!(matches!(answer, Err(EngineError::Corrupt(_))), "{answer:?}");
    }
}
