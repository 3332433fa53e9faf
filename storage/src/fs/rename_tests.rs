//! The rules of rename as a table, and what each kind of rename leaves behind.

use crate::error::FsError;
use crate::format::item::InodeItem;
use crate::fs::test_support::Bench;
use crate::limits::{LINKS_MAX, ROOT_INODE};
use crate::operation::Operation;
use crate::operation::RenameMode::{self, Exchange, NoReplace, Replace};

fn rename(bench: &Bench, from: &str, to: &str, mode: RenameMode) -> Operation {
    Operation::Rename { from: bench.place(from), to: bench.place(to), mode }
}

/// Directories `d` (with `d/e/g`, `d/f`), `empty`, `full` (with `full/x`), files `f`, `f2` (another name: `link`).
fn furnished() -> Bench {
    let mut bench = Bench::new();
    for directory in ["d", "d/e", "d/e/g", "empty", "full"] {
        bench.mkdir(directory);
    }
    for file in ["d/f", "full/x", "f", "f2"] {
        bench.file(file);
    }
    let inode = bench.at("f2");
    bench.done(&Operation::Link { inode, place: bench.place("link") });
    bench.verify();
    bench
}

#[test]
fn the_table_of_refusals() {
    let mut bench = furnished();
    let before = bench.items();
    for (from, to, mode, error) in [
        ("none", "new", Replace, FsError::NotFound),
        ("none", "f", NoReplace, FsError::NotFound),
        ("f", "none", Exchange, FsError::NotFound),
        ("f", "f2", NoReplace, FsError::Exists),
        ("f", "f", NoReplace, FsError::Exists),
        ("f2", "link", NoReplace, FsError::Exists),
        ("f", "empty", Replace, FsError::IsDirectory),
        ("f", "full", Replace, FsError::IsDirectory),
        ("d/f", "d", Replace, FsError::NotEmpty),
        ("empty", "f", Replace, FsError::NotDirectory),
        ("empty", "full", Replace, FsError::NotEmpty),
        ("d/e", "d", Replace, FsError::NotEmpty),
        ("d", "d/new", Replace, FsError::InvalidArgument),
        ("d", "d/new", NoReplace, FsError::InvalidArgument),
        ("d", "d/f", Replace, FsError::InvalidArgument),
        ("d", "d/e/g/new", Replace, FsError::InvalidArgument),
        ("d", "d/e", Exchange, FsError::InvalidArgument),
        ("d/e", "d", Exchange, FsError::InvalidArgument),
        ("d/e/g", "d", Exchange, FsError::InvalidArgument),
        ("d/f", "d", Exchange, FsError::InvalidArgument),
        ("d", "d/f", Exchange, FsError::InvalidArgument),
        ("f/x", "new", Replace, FsError::NotDirectory),
        ("f", "f2/x", Replace, FsError::NotDirectory),
        ("f", "..", Replace, FsError::InvalidArgument),
        ("d/e/..", "new", Replace, FsError::InvalidArgument),
    ] {
        let error_is = bench.refused(&rename(&bench, from, to, mode));
        assert_eq!(error_is, error, "{from} -> {to} {mode:?}");
    }
    let long = "x".repeat(256);
    assert_eq!(bench.refused(&rename(&bench, "f", &long, Replace)), FsError::NameTooLong);
    assert_eq!(bench.items(), before, "what is refused changes nothing");
}

#[test]
fn two_names_of_one_inode_both_stay() {
    let mut bench = furnished();
    let before = bench.items();
    for (from, to, mode) in
        [("f2", "link", Replace), ("f", "f", Replace), ("d", "d", Replace), ("f2", "link", Exchange)]
    {
        let inode = bench.at(from);
        assert_eq!(bench.run(&rename(&bench, from, to, mode)), Ok(inode));
        assert!(bench.last.no_change);
    }
    assert_eq!(bench.items(), before);
}

#[test]
fn a_plain_move_changes_the_times_of_both_parents_and_the_ctime_of_the_moved() {
    let mut bench = furnished();
    let (file, old, new) = (bench.at("d/f"), bench.at("d"), bench.at("full"));
    let attributes = |bench: &Bench| [file, old, new].map(|inode| bench.item(inode));
    let [file_before, old_before, new_before] = attributes(&bench);
    let now = bench.now;
    bench.done(&rename(&bench, "d/f", "full/y", Replace));
    bench.verify();
    assert_eq!((bench.last.ids_used, bench.last.inodes, bench.last.inode), (1, 0, file));
    assert!(bench.last.log_data_first.is_empty() && bench.last.unnamed.is_none());
    let next = |item: InodeItem| InodeItem { version: item.version + 1, ctime: now, ..item };
    let [file_after, old_after, new_after] = attributes(&bench);
    assert_eq!(file_after, next(file_before));
    assert_eq!(old_after, InodeItem { size: old_before.size - 1, mtime: now, ..next(old_before) });
    assert_eq!(new_after, InodeItem { size: new_before.size + 1, mtime: now, ..next(new_before) });
    assert_eq!(bench.at("full/y"), file);
}

#[test]
fn within_one_directory_its_inode_is_written_once() {
    let mut bench = furnished();
    let before = bench.item(ROOT_INODE);
    for (from, to, mode) in [("f", "n", NoReplace), ("n", "f2", Replace), ("f2", "empty", Exchange)] {
        let old = bench.item(ROOT_INODE);
        bench.done(&rename(&bench, from, to, mode));
        bench.verify();
        let new = bench.item(ROOT_INODE);
        assert_eq!((new.version, new.nlink), (old.version + 1, before.nlink));
    }
    assert_eq!(bench.item(ROOT_INODE).size, before.size - 1);
}

#[test]
fn moved_directories_take_their_link_counts_along() {
    let mut bench = furnished();
    let moved = bench.at("d/e");
    bench.done(&rename(&bench, "d/e", "full/e", Replace));
    bench.verify();
    assert_eq!(bench.item(moved).parent, bench.at("full"));
    // Over an empty directory, into it from elsewhere, and back up.
    bench.done(&rename(&bench, "full/e", "empty", Replace));
    bench.verify();
    assert_eq!(bench.at("empty"), moved);
    bench.done(&rename(&bench, "empty/g", "d/g", Replace));
    bench.done(&rename(&bench, "empty", "d/g/e", Replace));
    bench.verify();
    // A directory over its own sibling inside one parent.
    bench.mkdir("d/h");
    bench.done(&rename(&bench, "d/g", "d/h", Replace));
    bench.verify();
    assert_eq!(bench.at("d/h/e"), moved);
}

#[test]
fn a_victim_goes_at_once_stays_open_or_keeps_its_other_names() {
    let mut bench = furnished();
    let (victim, source) = (bench.at("f"), bench.at("d/f"));
    bench.done(&rename(&bench, "d/f", "f", Replace));
    bench.verify();
    assert_eq!((bench.last.unnamed, bench.last.inodes), (Some((victim, false)), -1));
    // Promise S3: complete old or complete new.
    assert_eq!(bench.last.log_data_first.as_slice(), [source]);

    let open = bench.file("open");
    bench.opens.insert(open, 1);
    bench.done(&rename(&bench, "f", "open", Replace));
    bench.verify();
    assert_eq!((bench.last.unnamed, bench.last.inodes), (Some((open, true)), 0));
    assert!(bench.last.touched.contains(&open));
    bench.close(open);
    bench.verify();

    let linked = bench.at("link");
    let now = bench.now;
    bench.done(&rename(&bench, "open", "f2", Replace));
    bench.verify();
    assert_eq!(bench.last.unnamed, None);
    let item = bench.item(linked);
    assert_eq!((item.nlink, item.ctime), (1, now));

    let directory = bench.at("empty");
    bench.opens.insert(directory, 1);
    let other = bench.mkdir("other");
    bench.done(&rename(&bench, "other", "empty", Replace));
    bench.verify();
    assert_eq!((bench.last.unnamed, bench.at("empty")), (Some((directory, true)), other));
    assert!(bench.last.log_data_first.is_empty(), "directories have no data");
    bench.close(directory);
    bench.verify();
}

#[test]
fn exchanges_swap_any_two_kinds() {
    let mut bench = furnished();
    for (from, to) in
        [("f", "f2"), ("f", "d/f"), ("full", "f"), ("d/e", "full"), ("empty", "d"), ("d/f", "f2")]
    {
        let before = (bench.at(from), bench.at(to));
        let now = bench.now;
        bench.done(&rename(&bench, from, to, Exchange));
        bench.verify();
        assert_eq!((bench.last.ids_used, bench.last.inodes), (2, 0));
        assert_eq!(bench.last.unnamed, None);
        for inode in [before.0, before.1, bench.place(from).parent, bench.place(to).parent] {
            assert_eq!(bench.item(inode).ctime, now);
            assert!(bench.last.touched.contains(&inode));
        }
        assert_eq!((bench.at(to), bench.at(from)), before);
        // And back, so that the paths of the table stay right.
        bench.done(&rename(&bench, from, to, Exchange));
        bench.verify();
        assert_eq!((bench.at(from), bench.at(to)), before);
    }
}

#[test]
fn the_limit_on_subdirectories_counts_only_arrivals() {
    let mut bench = furnished();
    let full = bench.at("full");
    bench.mkdir("full/sub");
    bench.poke(full, |item| item.nlink = LINKS_MAX);
    assert_eq!(bench.refused(&rename(&bench, "empty", "full/new", Replace)), FsError::TooManyLinks);
    assert_eq!(bench.refused(&rename(&bench, "empty", "full/x", Exchange)), FsError::TooManyLinks);
    bench.done(&rename(&bench, "full/sub", "full/sub2", Replace));
    bench.done(&rename(&bench, "empty", "full/sub2", Exchange));
    bench.done(&rename(&bench, "empty", "full/sub2", Replace));
    bench.done(&rename(&bench, "f", "full/y", Replace));
    assert_eq!(bench.item(full).nlink, LINKS_MAX);
}

#[test]
fn a_removed_directory_is_no_place_to_move_to() {
    let mut bench = furnished();
    let directory = bench.at("empty");
    let into = rename(&bench, "f", "empty/f", Replace);
    bench.opens.insert(directory, 1);
    bench.done(&Operation::RemoveDirectory { place: bench.place("empty") });
    assert_eq!(bench.refused(&into), FsError::NotFound);
    bench.verify();
}

#[test]
fn a_whiteout_takes_the_old_name_in_the_same_step() {
    let mut bench = furnished();
    let (moved, before) = (bench.at("f"), bench.items().len());
    bench.done(&rename(&bench, "f", "d/moved", RenameMode::Whiteout));
    assert_eq!((bench.at("d/moved"), bench.last.ids_used, bench.last.inodes), (moved, 3, 1));
    let item = bench.item(bench.at("f"));
    assert_eq!((item.mode, item.rdev, item.nlink), (crate::format::item::file_type::CHARACTER_DEVICE, 0, 1));
    assert!(bench.items().len() > before);
    bench.verify();
    assert_eq!(
        bench.refused(&rename(&bench, "f2", "d/moved", RenameMode::WhiteoutNoReplace)),
        FsError::Exists
    );
    bench.done(&rename(&bench, "f2", "d/moved", RenameMode::Whiteout));
    bench.done(&rename(&bench, "d/e", "gone", RenameMode::WhiteoutNoReplace));
    assert_eq!(bench.item(bench.at("d")).nlink, 2, "a directory left it, a whiteout is none");
    bench.verify();
}
