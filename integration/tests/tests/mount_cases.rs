//! Known cases of user-level faults of file systems, on mounts of every kind: names, directories, rules of rename, attributes, servers
//! that die. Each test quotes its case. Cases of two mounts are in `mount_two.rs`, of data in `mount_data.rs`, of programs (N19, N20,
//! N23, N25, N26) in `mount_programs.rs`.

use std::ffi::CStr;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, RenameFlags};
use subvol_tests::mount::command::{script, try_script};
use subvol_tests::mount::expect::{
    Mapping, allocate, errno, let_time_pass, names, punch, rename, stat, times,
};
use subvol_tests::mount::{self, Kind, each, each_pair};

fn permissions(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

fn is_dot(name: &CStr) -> bool {
    name.to_bytes() == b"." || name.to_bytes() == b".."
}

/// N1: `opendir d (10K files); readdir + unlink each; rmdir d`. All removed in one pass, no skipped name, no bad-cookie error.
#[test]
fn n1_remove_while_listing() {
    each(|mount| {
        let directory = mount.path("d");
        std::fs::create_dir(&directory).expect("a directory");
        for number in 0..10_000 {
            File::create(directory.join(format!("file-{number}"))).expect("a file");
        }
        let mut removed = 0;
        for entry in Dir::read_from(File::open(&directory).expect("the directory")).expect("a listing") {
            let entry = entry.expect("no bad cookie");
            if !is_dot(entry.file_name()) {
                std::fs::remove_file(directory.join(entry.file_name().to_str().expect("text")))
                    .expect("ours");
                removed += 1;
            }
        }
        assert_eq!(removed, 10_000);
        std::fs::remove_dir(&directory).expect("empty");
    });
}

/// N2: `5000 files; opendir; readdir while renaming each returned name`. Ends after a bounded number of entries; untouched names exactly
/// once.
#[test]
fn n2_rename_while_listing() {
    each(|mount| {
        let directory = mount.path("d");
        std::fs::create_dir(&directory).expect("a directory");
        for number in 0..5000 {
            File::create(directory.join(format!("a-{number}"))).expect("a file");
        }
        for number in 0..500 {
            File::create(directory.join(format!("untouched-{number}"))).expect("a file");
        }
        let (mut seen, mut untouched) = (0, Vec::new());
        for entry in Dir::read_from(File::open(&directory).expect("the directory")).expect("a listing") {
            let name = entry.expect("an entry").file_name().to_str().expect("text").to_owned();
            seen += 1;
            assert!(seen < 20_000, "the listing does not end");
            if name.starts_with("untouched") {
                untouched.push(name);
            } else if name.starts_with("a-") {
                std::fs::rename(directory.join(&name), directory.join(format!("b{}", &name[1..])))
                    .expect("ours");
            }
        }
        untouched.sort();
        let total = untouched.len();
        untouched.dedup();
        assert_eq!((untouched.len(), total), (500, 500), "untouched names exactly once");
        let left = names(&directory);
        assert_eq!(left.len(), 5500);
        assert_eq!(
            left.iter().filter(|name| name.starts_with("b-")).count(),
            5000,
            "every name was seen and renamed"
        );
    });
}

/// N4: rewinddir and a new open see new names.
#[test]
fn n4_rewinding_sees_new_names() {
    each(|mount| {
        let directory = mount.path("d");
        std::fs::create_dir(&directory).expect("a directory");
        File::create(directory.join("first")).expect("a file");
        let mut listing = Dir::read_from(File::open(&directory).expect("the directory")).expect("a listing");
        let count = |listing: &mut Dir| {
            listing.by_ref().filter(|entry| !is_dot(entry.as_ref().expect("an entry").file_name())).count()
        };
        assert_eq!(count(&mut listing), 1);
        File::create(directory.join("second")).expect("a file");
        listing.rewind();
        assert_eq!(count(&mut listing), 2, "after rewinding");
        std::fs::remove_file(directory.join("first")).expect("ours");
        listing.rewind();
        assert_eq!(count(&mut listing), 1, "after a removal and rewinding");
        assert_eq!(names(&directory).len(), 1, "a new open");
    });
}

/// N13: 4096-byte path limits; 2000-level tree made by relative mkdir/chdir; `rm -rf`, `find`, server-side remove do not overflow.
#[test]
fn n13_deep_paths() {
    each(|mount| {
        let long = mount.path(&"x/".repeat(2040));
        assert_eq!(errno(std::fs::symlink_metadata(&long)), libc::ENAMETOOLONG);
        assert_eq!(errno(File::create(mount.path(&"n".repeat(256)))), libc::ENAMETOOLONG);
        File::create(mount.path(&"n".repeat(255))).expect("the longest name");
        let mut level = File::open(mount.directory()).expect("the root");
        let down = |level: &File, name: &str| {
            rustix::fs::mkdirat(level, name, Mode::from_raw_mode(0o755)).expect("a directory");
            File::from(rustix::fs::openat(level, name, OFlags::RDONLY, Mode::empty()).expect("the directory"))
        };
        for name in std::iter::once("deep").chain(std::iter::repeat_n("d", 2000)) {
            level = down(&level, name);
        }
        let made =
            rustix::fs::openat(&level, "file", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644));
        drop((made.expect("a file"), level));
        let found = script(mount.directory(), &[], "find deep -type d | wc -l; find deep -name file | wc -l");
        assert_eq!(found, "2001\n1\n");
        script(mount.directory(), &[], "du -s deep > /dev/null; rm -rf deep; test ! -e deep");
    });
}

/// N14: nlink after mkdir/rmdir/rename of subdirectory, incl. across parents and failing cases.
#[test]
fn n14_link_counts_of_directories() {
    each(|mount| {
        // btrfs, when this runs in a folder of it, counts 1 everywhere.
        std::fs::create_dir(mount.path("a")).expect("a directory");
        if stat(&mount.path("a")).nlink() == 1 {
            assert_eq!(mount.kind(), Kind::Plain);
            return;
        }
        let links = |name: &str| stat(&mount.path(name)).nlink();
        std::fs::create_dir(mount.path("b")).expect("a directory");
        std::fs::create_dir(mount.path("a/x")).expect("a directory");
        std::fs::create_dir(mount.path("a/y")).expect("a directory");
        assert_eq!((links("a"), links("b"), links("a/x")), (4, 2, 2));
        assert_eq!(errno(std::fs::create_dir(mount.path("a/x"))), libc::EEXIST);
        assert_eq!(links("a"), 4, "a failed mkdir");
        std::fs::rename(mount.path("a/x"), mount.path("b/x")).expect("ours");
        assert_eq!((links("a"), links("b")), (3, 3), "after a move");
        std::fs::create_dir(mount.path("b/x/z")).expect("a directory");
        assert_eq!(errno(std::fs::remove_dir(mount.path("b/x"))), libc::ENOTEMPTY);
        assert_eq!((links("b"), links("b/x")), (3, 3), "a failed rmdir");
        // Over an empty directory.
        std::fs::rename(mount.path("b/x"), mount.path("a/y")).expect("ours");
        assert_eq!((links("a"), links("b"), links("a/y")), (3, 2, 3));
        rename(&mount.path("a/y"), &mount.path("b"), RenameFlags::EXCHANGE).expect("both are there");
        assert_eq!((links("a"), links("b"), links("a/y")), (3, 3, 2), "after an exchange");
        std::fs::write(mount.path("file"), "").expect("a file");
        rename(&mount.path("a/y"), &mount.path("file"), RenameFlags::EXCHANGE).expect("both are there");
        assert_eq!((links("a"), links("a/y"), links("file")), (2, 1, 2), "after an exchange with a file");
        std::fs::remove_dir(mount.path("file")).expect("empty");
    });
}

/// N16: which of atime/mtime/ctime change for each op on file and parent; `utimes` after write is not overwritten by late flush; mmap
/// write updates mtime; rename and link update ctime.
#[test]
fn n16_times() {
    each(|mount| {
        let directory = mount.path("d");
        std::fs::create_dir(&directory).expect("a directory");
        let file = directory.join("file");
        std::fs::write(&file, vec![1; 10_000]).expect("a file");
        let changed = |what: &str, path: &Path, act: &dyn Fn(), [mtime, ctime]: [bool; 2]| {
            let (before, parent_before) = (times(path), times(&directory));
            let_time_pass();
            act();
            let (after, parent_after) = (times(path), times(&directory));
            assert_eq!([after[1] > before[1], after[2] > before[2]], [mtime, ctime], "{what}: mtime, ctime");
            [parent_after[1] > parent_before[1], parent_after[2] > parent_before[2]]
        };
        let open = || File::options().read(true).write(true).open(&file).expect("the file");
        let own = |what: &str, act: &dyn Fn(), expected: [bool; 2]| {
            assert_eq!(changed(what, &file, act, expected), [false, false], "{what}: the parent");
        };
        own("write", &|| open().write_all(b"x").expect("a write"), [true, true]);
        own(
            "append",
            &|| {
                File::options()
                    .append(true)
                    .open(&file)
                    .and_then(|mut file| file.write_all(b"x"))
                    .expect("ours")
            },
            [true, true],
        );
        own("truncate", &|| open().set_len(5000).expect("ours"), [true, true]);
        own("truncate to the same size", &|| open().set_len(5000).expect("ours"), [true, true]);
        own("open with truncation", &|| drop(File::create(&file).expect("ours")), [true, true]);
        own("allocate", &|| allocate(&open(), 0, 0, 8192).expect("ours"), [true, true]);
        own("punch", &|| punch(&open(), 0, 4096).expect("ours"), [true, true]);
        own("read", &|| drop(std::fs::read(&file).expect("ours")), [false, false]);
        own("chmod", &|| permissions(&file, 0o600), [false, true]);
        own("chown", &|| std::os::unix::fs::chown(&file, Some(0), Some(0)).expect("ours"), [false, true]);
        own(
            "set an attribute",
            &|| rustix::fs::setxattr(&file, "user.x", b"1", rustix::fs::XattrFlags::empty()).expect("ours"),
            [false, true],
        );
        own(
            "remove an attribute",
            &|| rustix::fs::removexattr(&file, "user.x").expect("ours"),
            [false, true],
        );
        own(
            "mapped write",
            &|| {
                let opened = open();
                let mapping = Mapping::new(&opened, 4096).expect("a mapping");
                mapping.write(100, b"mapped");
                mapping.sync().expect("ours");
            },
            [true, true],
        );
        let second = directory.join("second");
        let naming = [true, true];
        assert_eq!(
            changed("link", &file, &|| std::fs::hard_link(&file, &second).expect("ours"), [false, true]),
            naming
        );
        assert_eq!(
            changed("unlink", &file, &|| std::fs::remove_file(&second).expect("ours"), [false, true]),
            naming
        );
        assert_eq!(
            changed(
                "rename",
                &file,
                &|| {
                    std::fs::rename(&file, &second)
                        .and_then(|()| std::fs::rename(&second, &file))
                        .expect("ours");
                },
                [false, true]
            ),
            naming
        );
        // What was set stays, also when the writer closes later.
        let mut opened = open();
        opened.write_all(&[7; 9000]).expect("a write");
        let wanted = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_234_567, 123_456_789);
        File::open(&file).and_then(|other| other.set_modified(wanted)).expect("ours");
        drop(opened);
        assert_eq!(times(&file)[1], 1_234_567_123_456_789, "the time that was set");
        File::open(&file).and_then(|file| file.sync_all()).expect("ours");
        assert_eq!(times(&file)[1], 1_234_567_123_456_789, "also after fsync");
    });
}

/// N17: `df` in a limited subvolume shows limit and use in bytes and inodes, changes at once, never negative.
#[test]
fn n17_statfs_changes_at_once() {
    each(|mount| {
        let ask = || rustix::fs::statvfs(mount.directory()).expect("statistics");
        let before = ask();
        assert!(
            before.f_bfree <= before.f_blocks
                && before.f_bavail <= before.f_bfree
                && before.f_ffree <= before.f_files
        );
        assert!(before.f_namemax == 255, "names of 255 bytes");
        if mount.kind() == Kind::Plain {
            return;
        }
        let block = before.f_frsize;
        std::fs::write(mount.path("file"), vec![1; 1 << 20]).expect("a file");
        let after = ask();
        let used = |found: &rustix::fs::StatVfs| (found.f_blocks - found.f_bfree) * block;
        assert_eq!(used(&after) - used(&before), 1 << 20, "bytes at once");
        assert_eq!((after.f_files - after.f_ffree) - (before.f_files - before.f_ffree), 1, "inodes at once");
        std::fs::remove_file(mount.path("file")).expect("ours");
        let start = Instant::now();
        while used(&ask()) != used(&before) {
            assert!(start.elapsed() < Duration::from_secs(10), "removed bytes still count");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// N31: set-id bits cleared by write, truncate, fallocate, chown by others; default ACL inherited; umask ignored where ACL says.
#[test]
fn n31_set_id_bits_and_inherited_lists() {
    each(|mount| {
        permissions(mount.directory(), 0o777);
        let acts = [
            "printf x >> file",
            "truncate -s 100 file",
            "fallocate -l 9000 file",
            "dd if=/dev/zero of=file bs=1 count=1 conv=notrunc status=none",
        ];
        for act in acts {
            std::fs::write(mount.path("file"), "content").expect("a file");
            permissions(&mount.path("file"), 0o6777);
            assert_eq!(stat(&mount.path("file")).mode() & 0o7777, 0o6777);
            script(
                mount.directory(),
                &[],
                &format!("setpriv --reuid=65534 --regid=65534 --clear-groups bash -c '{act}'"),
            );
            assert_eq!(stat(&mount.path("file")).mode() & 0o7777, 0o777, "after: {act}");
        }
        permissions(&mount.path("file"), 0o6777);
        std::os::unix::fs::chown(mount.path("file"), Some(1), Some(1)).expect("root may");
        assert_eq!(stat(&mount.path("file")).mode() & 0o7777, 0o777, "after chown");
        let shown = script(
            mount.directory(),
            &[],
            "mkdir listed; setfacl -m d:u:nobody:rwx,d:g::rwx,d:o::rx listed
             umask 077; touch listed/file; mkdir listed/below; touch listed/below/file
             getfacl -n -c -p -E listed/file listed/below/file | sort -u; stat -c %a listed/file listed/below",
        );
        for line in ["user:65534:rwx", "group::rwx", "mask::rw-", "other::r--", "664", "775"] {
            assert!(shown.lines().any(|found| found == line), "{line:?} is missing:\n{shown}");
        }
        // Set-group-id directories hand their group down.
        std::fs::create_dir(mount.path("group")).expect("a directory");
        std::os::unix::fs::chown(mount.path("group"), None, Some(7)).expect("chown");
        permissions(&mount.path("group"), 0o2775);
        DirBuilder::new().mode(0o755).create(mount.path("group/below")).expect("a directory");
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(mount.path("group/file"))
            .expect("a file");
        assert_eq!((stat(&mount.path("group/below")).gid(), stat(&mount.path("group/file")).gid()), (7, 7));
        assert_eq!(stat(&mount.path("group/below")).mode() & 0o2000, 0o2000);
    });
}

/// N32: `find -xdev`, `du`, `tar --one-file-system`, `rsync -x`: no false loop; a subvolume has a distinct st_dev.
#[test]
fn n32_one_file_system() {
    each(|mount| {
        script(
            mount.directory(),
            &[],
            "mkdir -p a/b/c; echo x > a/b/c/f
             test $(find . -xdev | wc -l) = 5
             du -x . > /dev/null
             tar --one-file-system -cf /dev/null .
             mkdir copy; rsync -ax a/ copy/; test -e copy/b/c/f",
        );
        let device = |path: &Path| stat(path).dev();
        assert_eq!(device(mount.directory()), device(&mount.path("a/b")));
        if mount.kind() != Kind::Plain {
            assert_ne!(device(mount.directory()), device(Path::new("/")));
            assert_ne!(device(mount.directory()), device(mount.directory().parent().expect("a parent")));
        }
    });
}

/// N34: onto non-empty dir ENOTEMPTY/EEXIST; file over dir EISDIR; dir over file ENOTDIR; into own child EINVAL; same inode no-op;
/// NOREPLACE EEXIST; EXCHANGE mixed types; across subvolumes EXDEV.
#[test]
fn n34_rules_of_rename() {
    each(|mount| {
        let at = |name: &str| mount.path(name);
        for name in ["full", "full/below", "empty", "other"] {
            std::fs::create_dir(at(name)).expect("a directory");
        }
        std::fs::write(at("file"), "file").expect("a file");
        std::fs::write(at("second"), "second").expect("a file");
        let move_ = |from: &str, to: &str| errno(std::fs::rename(at(from), at(to)));
        assert!(matches!(move_("other", "full"), libc::ENOTEMPTY | libc::EEXIST));
        assert_eq!(move_("file", "empty"), libc::EISDIR);
        assert_eq!(move_("empty", "file"), libc::ENOTDIR);
        assert_eq!(move_("full", "full/below/x"), libc::EINVAL);
        assert!(matches!(move_("full/below", "full"), libc::ENOTEMPTY | libc::EEXIST));
        assert_eq!(move_("missing", "x"), libc::ENOENT);
        std::fs::hard_link(at("file"), at("same")).expect("a link");
        assert_eq!(move_("file", "same"), 0);
        assert!(
            names(mount.directory()).contains("file") && names(mount.directory()).contains("same"),
            "a no-op"
        );
        let with = |from: &str, to: &str, flags| errno(rename(&at(from), &at(to), flags));
        assert_eq!(with("file", "second", RenameFlags::NOREPLACE), libc::EEXIST);
        assert_eq!(with("file", "third", RenameFlags::NOREPLACE), 0);
        assert_eq!(with("third", "missing", RenameFlags::EXCHANGE), libc::ENOENT);
        assert_eq!(with("third", "full", RenameFlags::EXCHANGE), 0, "a file and a directory");
        assert!(stat(&at("full")).is_file() && at("third/below").is_dir());
        assert_eq!(with("third", "third/below", RenameFlags::EXCHANGE), libc::EINVAL);
        symlink("nowhere", at("link")).expect("a link");
        assert_eq!(with("link", "third", RenameFlags::EXCHANGE), 0, "a link and a directory");
        assert_eq!(std::fs::read_link(at("third")).expect("a link"), Path::new("nowhere"));
        assert_eq!(move_("empty", "other"), 0, "a directory over an empty one");
        let outside = tempfile::tempdir_in("/dev/shm").expect("a folder");
        assert_eq!(errno(std::fs::rename(at("full"), outside.path().join("x"))), libc::EXDEV);
        assert_eq!(errno(std::fs::hard_link(at("full"), outside.path().join("x"))), libc::EXDEV);
    });
}

/// N37: server dies while df, ls, umount, kill -9 are run: each returns or is killable within the bound; mount comes back without
/// remount.
#[test]
fn n37_the_server_dies_while_the_mount_is_used() {
    each(|mount| {
        if mount.kind() != Kind::Remote {
            return;
        }
        std::fs::create_dir(mount.path("d")).expect("a directory");
        std::fs::write(mount.path("d/file"), "kept").expect("a file");
        File::open(mount.path("d/file")).and_then(|file| file.sync_all()).expect("durable");
        let (mut held, server_pid) = (
            File::options().append(true).open(mount.path("d/file")).expect("the file"),
            mount.server().map(|server| server.pid()),
        );
        let pid = rustix::process::Pid::from_raw(server_pid.expect("a server") as i32).expect("a process");
        // A server that does not answer is worse than one that is gone.
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("ours");
        let bounded = |what: &str| {
            let start = Instant::now();
            let ended = try_script(
                Path::new("/"),
                &[("DIR", mount.directory())],
                &format!("timeout -s KILL 3 {what} || true"),
            );
            assert!(start.elapsed() < Duration::from_secs(20), "{what} cannot be killed: {ended:?}");
        };
        for what in [
            "df \"$DIR\"",
            "ls -l \"$DIR/d\"",
            "cat \"$DIR/d/file\"",
            "touch \"$DIR/new\"",
            "rm -f \"$DIR/d/none\"",
        ] {
            bounded(what);
        }
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("ours");
        std::fs::write(mount.path("after"), "it goes on").expect("it goes on");
        mount.server().expect("a server").kill();
        for what in ["df \"$DIR\"", "ls -l \"$DIR/d\"", "stat \"$DIR/missing\""] {
            bounded(what);
        }
        mount.server().expect("a server").restart();
        let start = Instant::now();
        while std::fs::read(mount.path("d/file")).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "the mount does not come back");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(std::fs::read(mount.path("d/file")).expect("the file"), b"kept");
        held.write_all(b" and more").expect("the open file lives on");
        held.sync_all().expect("nothing of it was lost");
        std::fs::write(mount.path("again"), "works").expect("it works");
    });
}

/// A mount inside of the server ends with it: calls fail, none hangs; and what was made durable is there when both are back.
#[test]
fn n37_a_local_mount_comes_back_with_its_server() {
    each(|mount| {
        if mount.kind() != Kind::Local {
            return;
        }
        std::fs::write(mount.path("file"), "kept").expect("a file");
        File::open(mount.path("file")).and_then(|file| file.sync_all()).expect("durable");
        let held = File::options().append(true).open(mount.path("file")).expect("the file");
        mount.server().expect("a server").kill();
        let start = Instant::now();
        assert_ne!(errno(std::fs::symlink_metadata(mount.path("missing"))), 0);
        assert_ne!(errno((&held).write_all(b"lost").and_then(|()| held.sync_all())), 0);
        assert!(start.elapsed() < Duration::from_secs(5), "calls hang without a server");
        drop(held);
        mount.cut_off();
        mount.server().expect("a server").restart();
        mount.await_mounted();
        assert_eq!(std::fs::read(mount.path("file")).expect("the file"), b"kept");
        // A server that is stopped properly takes its mounts along.
        assert!(mount.server().expect("a server").terminate().success());
        assert!(!mount::is_mounted(mount.directory()), "the mount outlives its server");
    });
}

/// A mount ends as a user expects: not while a file is open, then at once; and what was written is there next time.
#[test]
fn unmounting_and_mounting_again() {
    each_pair(|one, two| {
        if two.kind() == Kind::Plain {
            return;
        }
        let held = File::create(two.path("file")).expect("a file");
        assert_eq!(errno(two.unmount()), libc::EBUSY, "a file is open");
        drop(held);
        std::fs::write(two.path("file"), "written").expect("a file");
        two.unmount().expect("nothing is open");
        assert!(!mount::is_mounted(two.directory()));
        assert_eq!(std::fs::read(one.path("file")).expect("the file"), b"written");
        std::fs::write(one.path("file"), "changed").expect("a file");
        two.mount();
        assert_eq!(std::fs::read(two.path("file")).expect("the file"), b"changed");
    });
}
