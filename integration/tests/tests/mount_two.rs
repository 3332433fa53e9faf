//! Two mounts of one volume: what was done through one, once the call returned, is what the other one shows.
//!
//! `SEED`, `COHERENCE_OPERATIONS` (default 1500) and `APPEND_LINES` (default 1000) are the knobs of longer runs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use subvol_model::{Model, Op, Time};
use subvol_tests::mount::expect::{errno, names, stat, times};
use subvol_tests::mount::locks::{
    Family, Holder, hold_if_ordered, is_in_the_way, lock, lock_and_wait, unlock,
};
use subvol_tests::mount::perform::{Performer, place};
use subvol_tests::mount::picture::Viewer;
use subvol_tests::mount::{self, Kind, MountUnderTest};
use subvol_tests::{Random, next_operation, number_from_environment};

/// Whole trees are compared after so many operations; in between, what the operation touched.
const OPERATIONS_PER_TREE: u64 = 25;

/// What the model and the kernel's own layer see alike. The kernel keeps user attributes to files and directories, and clears set-id
/// bits on changes that the model leaves them at; tests of their own look at these.
fn is_comparable(op: &Op, model: &Model) -> bool {
    match op {
        Op::Chmod { mode, .. } => mode & 0o6000 == 0,
        Op::SetXattr { path, .. } | Op::RemoveXattr { path, .. } => {
            let tree = model.tree();
            let kind = tree.get(path).map(|node| node.kind);
            matches!(kind, Some(subvol_model::Kind::File | subvol_model::Kind::Directory))
        }
        _ => true,
    }
}

#[test]
fn what_one_did_the_other_sees() {
    mount::each_pair(|one, two| {
        let mut random = Random::from_environment("what_one_did_the_other_sees");
        let viewer = Viewer::from_now(one.kind() == Kind::Plain);
        let sides = [one.directory(), two.directory()];
        let (mut model, mut performer) = (Model::default(), Performer::default());
        // The model's root belongs to user 0 and has its own mode.
        let root_mode = model.tree().get("").expect("a root").mode;
        std::fs::set_permissions(sides[0], std::fs::Permissions::from_mode(root_mode)).expect("the root");
        let mut done = Vec::new();
        for step in 0..number_from_environment("COHERENCE_OPERATIONS", 1500) {
            let op = next_operation(&model, &mut random);
            if !is_comparable(&op, &model) {
                continue;
            }
            let side = random.below(2) as usize;
            done.push(format!("{step}, mount {side}: {op:?}"));
            let history = || done.iter().rev().take(30).rev().cloned().collect::<Vec<_>>().join("\n");
            let found = performer.apply(sides[side], &op);
            let wanted = model.apply(&op, Time::default());
            assert_eq!(
                found.is_ok(),
                wanted.is_ok(),
                "{op:?}: {found:?} instead of {wanted:?}, after\n{}",
                history()
            );
            let expected = model.tree();
            // First the other side, which was told nothing and has everything in its cache.
            for view in [1 - side, side] {
                for path in op.paths() {
                    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                    check(&viewer, sides[view], &expected, path, &history);
                    check(&viewer, sides[view], &expected, parent, &history);
                }
            }
            if step % OPERATIONS_PER_TREE == 0 {
                for directory in sides {
                    let tree = viewer
                        .tree(directory)
                        .unwrap_or_else(|error| panic!("{error}, after\n{}", history()));
                    let lines = expected.diff_with(&tree, viewer.compare());
                    assert!(
                        lines.is_empty(),
                        "{}:\n{}\nafter\n{}",
                        directory.display(),
                        lines.join("\n"),
                        history()
                    );
                }
            }
        }
    });
}

/// One path on one side against the model: there or not, attributes, content, names.
fn check(
    viewer: &Viewer,
    side: &Path,
    expected: &subvol_model::Tree,
    path: &str,
    history: &dyn Fn() -> String,
) {
    let shown = side.display();
    let found = viewer.node(side, path);
    let Some(wanted) = expected.get(path) else {
        let number = errno(found);
        assert!(
            matches!(number, libc::ENOENT | libc::ENOTDIR),
            "{shown}: {path} should be gone, errno {number}, after\n{}",
            history()
        );
        return;
    };
    let found = found.unwrap_or_else(|error| panic!("{shown}: {path}: {error}, after\n{}", history()));
    let single = |node| {
        let mut tree = subvol_model::Tree::default();
        tree.insert(path, node);
        tree
    };
    let lines = single(wanted.clone()).diff_with(&single(found), viewer.compare());
    assert!(lines.is_empty(), "{shown}: {}\nafter\n{}", lines.join("\n"), history());
    if wanted.kind == subvol_model::Kind::Directory {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below = expected.iter().filter_map(|(name, _)| name.strip_prefix(&prefix));
        let below = below.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect();
        let listed = names(&place(side, path));
        assert_eq!(listed, below, "{shown}: names in {path:?}, after\n{}", history());
    }
}

/// N7: 8 writers x lines of fixed size on two mounts: exact line count, no torn or overlaid line.
#[test]
fn n7_appends_from_both_sides_lose_nothing() {
    mount::each_pair(|one, two| {
        let lines = number_from_environment("APPEND_LINES", 1000);
        let directories = [one.directory(), two.directory()];
        File::create(one.path("log")).expect("a file");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = directories[writer % 2].join("log");
                scope.spawn(move || {
                    let mut file = File::options().append(true).open(path).expect("the file");
                    for line in 0..lines {
                        let text = format!("{writer} {line:08} {}\n", "x".repeat(85));
                        file.write_all(text.as_bytes()).expect("an append");
                    }
                });
            }
        });
        for directory in directories {
            assert_eq!(stat(&directory.join("log")).size(), 8 * 97 * lines, "{}", directory.display());
            let text = std::fs::read_to_string(directory.join("log")).expect("text");
            let mut next = [0; 8];
            for line in text.lines() {
                assert!(line.len() == 96 && line.ends_with(&"x".repeat(85)), "a torn line: {line:?}");
                let writer = usize::from(line.as_bytes()[0] - b'0');
                assert_eq!(
                    line[2..10].parse(),
                    Ok(next[writer]),
                    "the lines of writer {writer} are in their order"
                );
                next[writer] += 1;
            }
            assert_eq!(next, [lines; 8], "{}", directory.display());
        }
    });
}

fn open(mount: &MountUnderTest, name: &str) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(mount.path(name))
        .expect("a file")
}

#[test]
fn locks_of_open_files_exclude_between_mounts() {
    mount::each_pair(|one, two| {
        for family in [Family::OpenFile, Family::Whole] {
            let name = format!("{family:?}");
            let (left, right) = (open(one, &name), open(two, &name));
            lock(&left, family, true, 0, 100).expect("free");
            assert_eq!(errno(lock(&right, family, true, 0, 100)), libc::EAGAIN, "{family:?}");
            assert_eq!(errno(lock(&right, family, false, 50, 1)), libc::EAGAIN, "{family:?}");
            unlock(&left, family, 0, 100).expect("ours");
            lock(&left, family, false, 0, 100).expect("free");
            lock(&right, family, false, 0, 100).expect("both may read");
            assert_eq!(
                errno(lock(&right, family, true, 0, 100)),
                libc::EAGAIN,
                "{family:?}: no upgrade beside a reader"
            );
            drop(left);
            // The kernel tells a file system of the last close in the background.
            let start = Instant::now();
            while errno(lock(&right, family, true, 0, 100)) == libc::EAGAIN {
                assert!(
                    start.elapsed() < Duration::from_secs(5),
                    "{family:?}: closing the file gives the lock back"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Ranges beside each other do not meet, and the middle can be given back.
        let (left, right) = (open(one, "ranges"), open(two, "ranges"));
        lock(&left, Family::OpenFile, true, 0, 300).expect("free");
        unlock(&left, Family::OpenFile, 100, 100).expect("ours");
        lock(&right, Family::OpenFile, true, 100, 100).expect("the middle is free");
        assert!(is_in_the_way(&right, 0, 100).expect("an answer"));
        assert!(is_in_the_way(&right, 299, 0).expect("an answer"));
        assert!(!is_in_the_way(&right, 300, 0).expect("an answer"));
        // The two families do not know of each other.
        lock(&left, Family::Whole, true, 0, 0).expect("free");
        lock(&right, Family::OpenFile, true, 400, 10).expect("free");
    });
}

#[test]
fn posix_locks_exclude_between_mounts() {
    mount::each_pair(|one, two| {
        drop(open(one, "posix"));
        let holder = Holder::start(&one.path("posix"), 10, 10).expect("free");
        assert!(!Holder::may(&two.path("posix"), 19, 1), "held through the other mount");
        assert!(!Holder::may(&one.path("posix"), 10, 1), "held through the same mount");
        assert!(Holder::may(&two.path("posix"), 20, 0), "behind it is free");
        drop(holder);
        assert!(Holder::may(&two.path("posix"), 0, 0), "the process is gone, and with it its lock");
    });
}

#[test]
fn a_waiter_gets_the_lock_when_the_other_mount_gives_it_back() {
    mount::each_pair(|one, two| {
        for family in [Family::OpenFile, Family::Whole] {
            let name = format!("wait-{family:?}");
            let (left, right) = (open(one, &name), open(two, &name));
            lock(&left, family, true, 0, 10).expect("free");
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let start = Instant::now();
                    lock_and_wait(&right, family, 0, 10).expect("in the end");
                    start.elapsed()
                });
                std::thread::sleep(Duration::from_millis(300));
                assert!(!waiter.is_finished(), "{family:?}: the lock is held");
                unlock(&left, family, 0, 10).expect("ours");
                let waited = waiter.join().expect("the waiter");
                assert!(waited >= Duration::from_millis(250), "{family:?}: waited only {waited:?}");
                assert!(waited < Duration::from_secs(5), "{family:?}: woken only after {waited:?}");
            });
            assert_eq!(errno(lock(&left, family, true, 0, 10)), libc::EAGAIN, "{family:?}: now the other's");
        }
    });
}

/// N22: kill -9 of a client: its locks become free, not at once but within the server's grace.
#[test]
fn n22_locks_of_a_killed_mount_become_free() {
    mount::each_pair(|one, two| {
        if two.kind() != Kind::Remote {
            return;
        }
        let (left, right) = (open(one, "held"), open(two, "held"));
        lock(&right, Family::OpenFile, true, 0, 0).expect("free");
        assert_eq!(errno(lock(&left, Family::OpenFile, true, 0, 0)), libc::EAGAIN);
        two.kill();
        drop(right);
        let start = Instant::now();
        while errno(lock(&left, Family::OpenFile, true, 0, 0)) == libc::EAGAIN {
            assert!(start.elapsed() < Duration::from_secs(15), "the lock of a dead mount is still held");
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("free after {:.1} s", start.elapsed().as_secs_f64());
        lock(&left, Family::OpenFile, true, 0, 0).expect("ours since");
        // The other side can come back, and sees who holds it now.
        two.mount();
        assert_eq!(errno(lock(&open(two, "held"), Family::OpenFile, true, 0, 0)), libc::EAGAIN);
    });
}

/// A dead mount must not hold up the others for longer than its lease.
#[test]
fn a_killed_mount_does_not_stop_the_other() {
    mount::each_pair(|one, two| {
        if two.kind() != Kind::Remote {
            return;
        }
        for number in 0..50 {
            std::fs::write(one.path(&format!("file-{number}")), "before").expect("a file");
            std::fs::read(two.path(&format!("file-{number}"))).expect("the file");
        }
        two.kill();
        let start = Instant::now();
        for number in 0..50 {
            std::fs::write(one.path(&format!("file-{number}")), "after it").expect("a file");
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(15), "50 writes after the other mount died took {took:?}");
        two.mount();
        for number in 0..50 {
            assert_eq!(std::fs::read(two.path(&format!("file-{number}"))).expect("the file"), b"after it");
        }
    });
}

/// N28, N35: write and close here, open and read there: all of it, at once, no zeros in front and no short size.
#[test]
fn n28_n35_open_after_close_sees_everything() {
    mount::each_pair(|one, two| {
        let mut random = Random::from_environment("open_after_close");
        for round in 0..200 {
            let (from, to) = if round % 2 == 0 { (&*one, &*two) } else { (&*two, &*one) };
            let name = format!("file-{}", round % 7);
            // Asked for before it exists: what is remembered as missing must come to life.
            if round < 7 {
                assert_eq!(errno(File::open(to.path(&name))), libc::ENOENT);
            }
            let length = 1 + random.below(60_000) as usize;
            let bytes = random.bytes(length);
            std::fs::write(from.path(&name), &bytes).expect("a file");
            let found = std::fs::read(to.path(&name)).expect("the file");
            assert_eq!(found.len(), length, "round {round}");
            assert!(found == bytes, "round {round}: other bytes");
            assert_eq!(times(&from.path(&name))[1..], times(&to.path(&name))[1..], "round {round}");
        }
    });
}

/// N28: delete and recreate here; there never an old page or an old size, also through a file that is open.
#[test]
fn n28_delete_and_recreate() {
    mount::each_pair(|one, two| {
        for round in 0..100_u64 {
            let old = vec![b'o'; 9000];
            std::fs::write(one.path("file"), &old).expect("a file");
            let mut held = File::open(two.path("file")).expect("the file");
            let mut first = [0; 10];
            held.read_exact(&mut first).expect("bytes");
            let inode = stat(&two.path("file")).ino();
            std::fs::remove_file(one.path("file")).expect("ours");
            assert_eq!(errno(std::fs::symlink_metadata(two.path("file"))), libc::ENOENT, "round {round}");
            let new = vec![b'n'; 100 + round as usize];
            std::fs::write(one.path("file"), &new).expect("a file");
            assert!(std::fs::read(two.path("file")).expect("the new file") == new, "round {round}");
            assert!(
                one.kind() == Kind::Plain || stat(&two.path("file")).ino() != inode,
                "an inode number came again"
            );
            // The open one lives on as it was.
            let mut rest = Vec::new();
            held.seek(SeekFrom::Start(0)).and_then(|_| held.read_to_end(&mut rest)).expect("the old file");
            assert!(rest == old, "round {round}: {} bytes of the old file", rest.len());
            assert_eq!(held.metadata().expect("attributes").nlink(), 0, "round {round}");
        }
    });
}

/// N5: rename over a file that is open elsewhere: the old handle reads old data to its end, a new open sees the new file at once on both.
#[test]
fn n5_rename_over_an_open_file() {
    mount::each_pair(|one, two| {
        std::fs::write(one.path("document"), "version 0").expect("a file");
        for round in 1..100 {
            let (editor, reader) = if round % 2 == 0 { (&*one, &*two) } else { (&*two, &*one) };
            let held = File::open(reader.path("document")).expect("the file");
            std::fs::write(editor.path(".document.new"), format!("version {round}")).expect("a file");
            std::fs::rename(editor.path(".document.new"), editor.path("document")).expect("ours");
            for side in [editor, reader] {
                let text = std::fs::read_to_string(side.path("document")).expect("text");
                assert_eq!(text, format!("version {round}"));
                assert_eq!(errno(std::fs::symlink_metadata(side.path(".document.new"))), libc::ENOENT);
            }
            let mut old = [0; 32];
            let length = held.read_at(&mut old, 0).expect("the old file");
            assert_eq!(old[..length], *format!("version {}", round - 1).as_bytes());
            std::fs::hard_link(editor.path("document"), reader.path("second")).map_or_else(
                // Two mounts are two devices for the kernel.
                |error| assert_eq!(error.raw_os_error(), Some(libc::EXDEV)),
                |()| std::fs::remove_file(reader.path("second")).expect("ours"),
            );
        }
    });
}

/// N29: rename a directory with more than 1024 children, then use paths under the old and the new name at once.
#[test]
fn n29_rename_a_directory_under_the_others_feet() {
    mount::each_pair(|one, two| {
        std::fs::create_dir(one.path("old")).expect("a directory");
        for number in 0..1100 {
            std::fs::write(one.path(&format!("old/file-{number}")), number.to_string()).expect("a file");
        }
        assert_eq!(names(&two.path("old")).len(), 1100);
        let standing = File::open(two.path("old")).expect("the directory");
        let held = File::open(two.path("old/file-7")).expect("the file");
        std::fs::rename(one.path("old"), one.path("new")).expect("ours");
        for side in [&*two, &*one] {
            assert_eq!(errno(std::fs::read(side.path("old/file-3"))), libc::ENOENT);
            assert_eq!(errno(std::fs::symlink_metadata(side.path("old"))), libc::ENOENT);
            assert_eq!(names(&side.path("new")).len(), 1100);
            assert_eq!(std::fs::read_to_string(side.path("new/file-1099")).expect("text"), "1099");
        }
        // Whoever stands in it goes along.
        let below =
            rustix::fs::openat(&standing, "file-9", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        let mut text = String::new();
        File::from(below.expect("still there")).read_to_string(&mut text).expect("text");
        assert_eq!(text, "9");
        let mut byte = [0];
        held.read_exact_at(&mut byte, 0).expect("still open");
        // A new directory under the old name is another one.
        std::fs::create_dir(two.path("old")).expect("the name is free");
        assert!(names(&one.path("old")).is_empty());
        std::fs::write(one.path("old/file-1"), "other").expect("a file");
        assert_eq!(std::fs::read_to_string(two.path("new/file-1")).expect("text"), "1");
        assert_eq!(std::fs::read_to_string(two.path("old/file-1")).expect("text"), "other");
    });
}

/// N40: after a change through one of two names, both names on both mounts agree.
#[test]
fn n40_two_names_and_two_mounts_agree() {
    mount::each_pair(|one, two| {
        std::fs::create_dir_all(one.path("a/b")).expect("directories");
        std::fs::write(one.path("first"), "0123456789").expect("a file");
        std::fs::hard_link(one.path("first"), one.path("a/b/second")).expect("a link");
        let agree = |what: &str| {
            let sides = [&*one, &*two];
            let all = sides.map(|side| ["first", "a/b/second"].map(|name| stat(&side.path(name))));
            let shown = |found: &std::fs::Metadata| {
                (
                    found.ino(),
                    found.mode(),
                    found.uid(),
                    found.gid(),
                    found.nlink(),
                    found.size(),
                    found.blocks(),
                )
            };
            let moments = |found: &std::fs::Metadata| {
                (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
            };
            for found in all.iter().flatten() {
                assert_eq!(
                    (shown(found), moments(found)),
                    (shown(&all[0][0]), moments(&all[0][0])),
                    "{what}"
                );
            }
        };
        agree("after linking");
        std::fs::set_permissions(two.path("a/b/second"), std::fs::Permissions::from_mode(0o640))
            .expect("chmod");
        agree("after chmod");
        std::os::unix::fs::chown(one.path("first"), Some(1), Some(2)).expect("chown");
        agree("after chown");
        File::options()
            .write(true)
            .open(two.path("first"))
            .and_then(|file| file.set_len(4))
            .expect("truncate");
        agree("after truncate");
        let mut file = File::options().append(true).open(one.path("a/b/second")).expect("the file");
        file.write_all(&[7; 50_000]).expect("an append");
        agree("after append");
        std::fs::rename(two.path("a/b/second"), two.path("a/third")).expect("rename");
        std::fs::rename(one.path("a/third"), one.path("a/b/second")).expect("rename");
        agree("after renames");
    });
}

/// The other process of [`Holder`].
#[ignore = "does nothing by itself"]
#[test]
fn lock_holder() {
    hold_if_ordered();
}
