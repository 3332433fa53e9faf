//! Round trips without a server: a tree is scanned, kept in memory, and made again in another folder.

#![allow(clippy::indexing_slicing, reason = "a wrong index fails the test, as it should")]

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use subvol_client::FileKind;

use super::local::{LocalDirectory, finish_file};
use super::report::Report;
use super::scan::{Content, Item, Parent, Scanner, data_ranges};
use super::{SMALL, pieces};

fn scan(path: &Path, report: &Report) -> Vec<Item> {
    let mut items = Vec::new();
    let mut scanner = Scanner::new(report);
    assert!(scanner.scan(path, 1, None, &mut |item| {
        items.push(item);
        true
    }));
    items
}

/// What a volume in between would do: makes each item in the order in which they come.
fn make(items: Vec<Item>, into: &Path, report: &Arc<Report>) {
    let top = LocalDirectory::existing(into, Arc::clone(report)).expect("a folder");
    let mut directories: Vec<Arc<LocalDirectory>> = Vec::new();
    let mut firsts = FxHashMap::default();
    for item in items {
        let parent = match item.parent {
            Parent::Given(_) => Arc::clone(&top),
            Parent::Directory(number) => Arc::clone(&directories[number]),
        };
        let (facts, xattrs) = (item.facts, &item.xattrs);
        if facts.kind == FileKind::Directory {
            directories.push(match &item.name {
                Some(name) => parent.directory(name, facts, xattrs).expect("made"),
                None => parent.with_facts(facts, xattrs).expect("set"),
            });
            continue;
        }
        let name = item.name.expect("only the top has none");
        match item.content {
            Content::Bytes(bytes) => parent.small_file(&name, &bytes, &facts, xattrs).expect("made"),
            Content::Target(target) => parent.symlink(&name, &target, &facts, xattrs).expect("made"),
            Content::Empty => parent.special(&name, &facts, xattrs).expect("made"),
            Content::Again => {
                let (directory, first): &(Arc<LocalDirectory>, Vec<u8>) =
                    &firsts[&item.identity.expect("it has several names")];
                parent.hard_link(&name, directory, first).expect("linked");
            }
            Content::File(from) => {
                let to = parent.create(&name).expect("made");
                let ranges = data_ranges(&from, facts.size, facts.sparse).expect("sought");
                for (at, length) in pieces(ranges) {
                    let mut bytes = vec![0; length];
                    from.read_exact_at(&mut bytes, at).expect("read");
                    to.write_all_at(&bytes, at).expect("written");
                }
                to.set_len(facts.size).expect("grown");
                finish_file(&to, &facts, xattrs).expect("set");
            }
        }
        if let Some(identity) = item.identity {
            firsts.entry(identity).or_insert((parent, name));
        }
    }
}

/// Everything that must be the same, as text: kind, mode, times, links, content.
fn picture(path: &Path) -> Vec<String> {
    let report = Report::start("test", true);
    let mut names: FxHashMap<(u64, u64), usize> = FxHashMap::default();
    let mut lines: Vec<String> = scan(path, &report)
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            let content = match item.content {
                Content::File(_) => {
                    fs::read(&item.path).map(|bytes| format!("{:?}", crc(&bytes))).unwrap_or_default()
                }
                Content::Bytes(bytes) => format!("{}", bytes.escape_ascii()),
                other => format!("{other:?}"),
            };
            let facts = item.facts;
            let same = item.identity.map(|identity| *names.entry(identity).or_insert(index));
            format!(
                "{:?} {:?} {:o} {}:{} {} {:?} {:?} {:?} {same:?} {content}",
                item.path.strip_prefix(path),
                facts.kind,
                facts.permissions,
                facts.uid,
                facts.gid,
                facts.size,
                // A directory's access time changes by being scanned.
                (facts.kind != FileKind::Directory && facts.kind != FileKind::Regular).then_some(facts.rdev),
                facts.mtime,
                item.xattrs,
            )
        })
        .collect();
    lines.sort();
    assert_eq!(report.failures(), 0);
    lines
}

fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

#[test]
fn a_tree_survives_the_way_through_items() {
    let from = tempfile::tempdir().expect("a folder");
    let root = from.path();
    fs::create_dir_all(root.join("a/b/c")).expect("made");
    fs::write(root.join("a/small"), b"hello").expect("written");
    fs::write(root.join("a/empty"), b"").expect("written");
    fs::write(root.join("a/b/large"), vec![7; SMALL as usize + 1]).expect("written");
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"a/\xff\n")), b"odd name").expect("written");
    symlink("../nowhere", root.join("a/link")).expect("linked");
    fs::hard_link(root.join("a/small"), root.join("a/b/again")).expect("linked");
    fs::hard_link(root.join("a/b/large"), root.join("z")).expect("linked");
    fs::set_permissions(root.join("a/small"), fs::Permissions::from_mode(0o4711)).expect("set");
    let fifo = root.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .expect("made");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000, 123_456_789);
    for path in ["a/small", "a/b/large"] {
        fs::File::options()
            .write(true)
            .open(root.join(path))
            .and_then(|file| file.set_modified(old))
            .expect("set");
    }
    for path in ["a/b/c", "a/b", "a", ""] {
        fs::File::open(root.join(path)).and_then(|file| file.set_modified(old)).expect("set");
    }
    // Not writable: its content must be made before its permissions are set.
    fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o555)).expect("set");

    let to = tempfile::tempdir().expect("a folder");
    let report = Arc::new(Report::start("test", true));
    make(scan(root, &report), to.path(), &report);
    assert_eq!(report.failures(), 0);
    assert_eq!(picture(root), picture(to.path()));
    // Again over what is there.
    make(scan(root, &report), to.path(), &report);
    assert_eq!(report.failures(), 0);
    assert_eq!(picture(root), picture(to.path()));
    for path in [root, to.path()] {
        fs::set_permissions(path.join("a/b"), fs::Permissions::from_mode(0o755)).expect("set");
    }
}

#[test]
fn holes_stay_holes() {
    let from = tempfile::tempdir().expect("a folder");
    let file = fs::File::create(from.path().join("sparse")).expect("made");
    file.write_all_at(b"middle", 8 << 20).expect("written");
    file.set_len(16 << 20).expect("grown");
    file.sync_all().expect("synced");
    let to = tempfile::tempdir().expect("a folder");
    let report = Arc::new(Report::start("test", true));
    make(scan(from.path(), &report), to.path(), &report);
    let copy = fs::metadata(to.path().join("sparse")).expect("there");
    assert_eq!(copy.len(), 16 << 20);
    assert!(copy.blocks() * 512 < 1 << 20, "{} blocks", copy.blocks());
    assert_eq!(picture(from.path()), picture(to.path()));
}

#[test]
fn a_link_at_the_target_is_replaced_and_not_written_through() {
    let from = tempfile::tempdir().expect("a folder");
    fs::write(from.path().join("name"), b"new").expect("written");
    fs::create_dir(from.path().join("sub")).expect("made");
    fs::write(from.path().join("sub/inner"), b"new").expect("written");
    let to = tempfile::tempdir().expect("a folder");
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("victim"), b"old").expect("written");
    symlink(outside.path().join("victim"), to.path().join("name")).expect("linked");
    let report = Arc::new(Report::start("test", true));
    let items = scan(from.path(), &report);
    let files: Vec<Item> =
        items.into_iter().filter(|item| !item.path.starts_with(from.path().join("sub"))).collect();
    make(files, to.path(), &report);
    assert_eq!(fs::read(outside.path().join("victim")).expect("there"), b"old");
    assert_eq!(fs::read(to.path().join("name")).expect("there"), b"new");
    // A link where a directory belongs is refused.
    symlink(outside.path(), to.path().join("sub")).expect("linked");
    let top = LocalDirectory::existing(to.path(), Arc::clone(&report)).expect("opened");
    let facts = scan(from.path(), &report).swap_remove(0).facts;
    assert!(top.directory(b"sub", facts, &Vec::new()).is_err());
}

#[test]
fn a_file_that_vanished_is_told_and_the_rest_goes_on() {
    let report = Report::start("test", true);
    let mut scanner = Scanner::new(&report);
    assert!(scanner.scan(Path::new("/nonexistent/file"), 1, None, &mut |_| true));
    assert_eq!(report.failures(), 1);
    assert!(report.finish().is_err());
}
