//! Cases of hard links and counts (C), of files without names (D), of directories (E).

use super::{Case, Check, Script, case, made};
use std::fmt::Write;

const K: u64 = 1024;

#[rustfmt::skip] // One case is one entry; long scripts read better on their own line.
pub(super) const CASES: &[Case] = &[
    case(40, "one link removed, fsync by the other", "g/039",
        "mkdir a a/b; create a/b/foo; link a/b/foo a/b/bar; sync; unlink a/b/bar; fsync a/b/foo; CRASH", |c| {
            c.names("a/b", &["foo"]);
            c.nlink("a/b/foo", 1);
        }).then("unlink a/b/foo; rmdir a/b; rmdir a"),
    case(41, "one link removed, inode evicted, fsync by the other", "g/106",
        "mkdir d; create d/foo; link d/foo d/bar; sync; unlink d/bar; evict d/foo; fsync d/foo; CRASH",
        |c| c.names("d", &["foo"])).then("unlink d/foo; rmdir d"),
    made(43, "one link more on an inode with thousands", "g/040",
        || format!("{} sync; link foo l_3001; fsync foo; CRASH", thousands()), |c| {
            c.nlink("foo", 3002);
            c.size("", 3002);
            c.exist(&["l_1", "l_3000", "l_3001"]);
        }),
    made(44, "links removed and added again among thousands", "g/041",
        || format!("{} sync; unlink l_1; link foo l_3001; link foo l_1; unlink l_2; link foo l_3002; link foo l_3003;
            fsync foo; CRASH", thousands()), |c| {
            c.nlink("foo", 3003);
            c.absent(&["l_2"]);
            c.exist(&["l_1", "l_3", "l_3001", "l_3002", "l_3003"]);
        }),
    case(46, "link after an fsync, another file's fsync", "g/056",
        "write foo 0-4K A; fsync foo; link foo fl; create bar; fsync bar; CRASH", |c| {
            c.block("foo", "A");
            c.same_inode(&["foo", "fl"]);
        }),
    case(47, "the same over a committed base with an appended range", "g/057",
        "write foo 0-8K A; sync; write foo 8K-12K B; fsync foo; link foo fl; create bar; fsync bar; CRASH", |c| {
            c.content("foo", 12 * K, &[(0, 8 * K, "A"), (8 * K, 12 * K, "B")]);
            c.same_inode(&["foo", "fl"]);
        }),
    case(49, "fsync of a directory with many new links and new directories", "g/065",
        "create foo; mkdir m; sync; link foo m/foo2; link foo m/foo3; create hello; link hello m/hello2;
         mkdir m/x m/x/y m/x/y/z; link foo m/x/y/fy; link foo m/x/y/z/fz; create m/x/y/z/q; fsync m; fsync hello; CRASH",
        |c| {
            c.same_inode(&["foo", "m/foo2", "m/foo3", "m/x/y/fy", "m/x/y/z/fz"]);
            c.same_inode(&["hello", "m/hello2"]);
            c.exist(&["m/x/y/z/q"]);
        }).then("unlink foo hello m/foo2 m/foo3 m/hello2 m/x/y/fy m/x/y/z/fz m/x/y/z/q; rmdir m/x/y/z m/x/y m/x m"),
    case(50, "link into a new hierarchy, fsync of its top", "g/498 = CM-3",
        "mkdir A B A/C; create B/foo; fsync B/foo; link B/foo A/C/foo; fsync A; CRASH",
        |c| c.same_inode(&["B/foo", "A/C/foo"])),
    case(53, "a link inside a new directory does not hide later data", "g/782",
        "create foo; sync; mkdir dir; write foo 0-64K A; fsync foo; link foo dir/bar; fsync /; CRASH", |c| {
            c.names("/", &["dir", "foo"]);
            c.content("foo", 64 * K, &[(0, 64 * K, "A")]);
            c.same_inode(&["foo", "dir/bar"]);
        }),
    case(55, "the same name linked twice in one log", "derived",
        "create a; fsync a; link a b; fsync a; unlink b; fsync a; link a b; fsync a; CRASH; CRASH",
        |c| c.same_inode(&["a", "b"])),
    case(56, "the name of the first fsync is removed", "derived",
        "create a; fsync a; link a b; unlink a; fsync b; CRASH", |c| {
            c.names("/", &["b"]);
            c.nlink("b", 1);
        }),
    case(58, "fsync of an open file with no name left", "g/764",
        "mkdir d; o=create d/foo; sync; unlink d/foo; fsync o; CRASH", |c| c.names("d", &[])).then("rmdir d"),
    case(59, "nameless file with data and another fsync", "g/771",
        "mkdir d; write d/foo 0-64K A; o=open d/foo; unlink d/foo; fsync o; create d/bar; fsync d/bar; CRASH",
        |c| c.names("d", &["bar"])).then("unlink d/bar; rmdir d"),
    case(59, "nameless file with data and another fsync, committed first", "g/771",
        "mkdir d; write d/foo 0-64K A; sync; o=open d/foo; unlink d/foo; fsync o; create d/bar; fsync d/bar; CRASH",
        |c| c.names("d", &["bar"])).then("unlink d/bar; rmdir d"),
    case(61, "unnamed file given a name", "zfs PR4276",
        "mkdir d; o=tmpfile d; write o A; fsync o; linkat o d/f; fsync o; CRASH", |c| {
            c.block("d/f", "A");
            c.nlink("d/f", 1);
        }),
    // Its data was fsynced before the name came, so the name brings it along.
    case(61, "unnamed file given a name, not fsynced again", "derived",
        "mkdir d; o=tmpfile d; write o A; fsync o; linkat o d/f; CRASH", |c| {
            c.directory("d");
            if c.has("d/f") {
                c.block("d/f", "A");
            }
        }),
    case(65, "a tree removed, fsync of the parent", "12fcfd22",
        "mkdir f1 f1/foo; write f1/foo/x A; sync; unlink f1/foo/x; rmdir f1/foo; fsync f1; CRASH",
        |c| c.names("f1", &[])).then("rmdir f1"),
    case(68, "one of two links removed, fsync by the other", "zfs#8769",
        "write a A; link a b; unlink a; fsync b; CRASH", |c| {
            c.names("/", &["b"]);
            c.block("b", "A");
        }),
    case(73, "new directory", "g/321", "mkdir bar; fsync bar; CRASH", |c| c.directory("bar")).then("rmdir bar"),
    case(74, "entries both in the commit and in the log", "g/034",
        "mkdir d; create d/foo; sync; create d/bar; fsync d; fsync d/bar; CRASH", |c| c.names("d", &["foo", "bar"]))
        .then("unlink d/foo d/bar; rmdir d"),
    case(76, "new parents of a fsynced file", "derived",
        "mkdir -p a/b/c; create a/b/c/f; fsync a/b/c/f; CRASH", |c| c.file("a/b/c/f")),
    // The promise of a prefix is stronger than what the case asks of others: y must be there.
    case(79, "new entry below a fsynced directory", "de6bc7f5",
        "mkdir d d/s; create d/s/x; sync; create d/s/y; fsync d; CRASH", |c| c.names("d/s", &["x", "y"])),
];

/// Case 52: link matrix. Pairs of names, and every target of the fsync.
pub(super) fn matrix() -> Vec<Case> {
    let pairs = [
        ("foo", "bar"),
        ("foo", "A/bar"),
        ("A/foo", "bar"),
        ("A/foo", "A/bar"),
        ("bar", "A/bar"),
        ("A/bar", "bar"),
    ];
    // Plain functions, since the table's expectations capture nothing.
    let expectations: [fn(&mut Check<'_>); 6] = [
        |c| c.same_inode(&["foo", "bar"]),
        |c| c.same_inode(&["foo", "A/bar"]),
        |c| c.same_inode(&["A/foo", "bar"]),
        |c| c.same_inode(&["A/foo", "A/bar"]),
        |c| c.same_inode(&["bar", "A/bar"]),
        |c| c.same_inode(&["A/bar", "bar"]),
    ];
    let mut cases = Vec::new();
    for ((first, second), expect) in pairs.into_iter().zip(expectations) {
        for target in ["/", first, second, "A", "sibling"] {
            let script = format!(
                "mkdir A; create sibling; sync; create {first}; link {first} {second}; fsync {target}; CRASH"
            );
            let (number, name, source) = (52, "link matrix", "g/520, CM-7");
            cases.push(Case { number, name, source, script: Script::Owned(script), expect, cleanup: "" });
        }
    }
    cases
}

fn thousands() -> String {
    let mut script = String::from("create foo; ");
    for number in 1..=3000 {
        let _ = write!(script, "link foo l_{number}; ");
    }
    script
}
