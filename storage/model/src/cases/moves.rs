//! Cases of renames: reuse of old names (A) and moves between directories (B).

use super::{Case, case, made};
use std::fmt::Write;

const K: u64 = 1024;

#[rustfmt::skip] // One case is one entry; long scripts read better on their own line.
pub(super) const CASES: &[Case] = &[
    case(1, "new file takes the old name of a renamed file", "g/342",
        "mkdir a; write a/foo 0-16K A; sync; rename a/foo a/bar; write a/foo 0-16K B; fsync a/foo; CRASH", |c| {
            c.content("a/foo", 16 * K, &[(0, 16 * K, "B")]);
            c.content("a/bar", 16 * K, &[(0, 16 * K, "A")]);
        }),
    case(2, "new file takes the old name, the renamed one is fsynced", "g/376",
        "mkdir d; create d/foo; sync; rename d/foo d/bar; create d/foo; fsync d/bar; CRASH",
        |c| c.different_inodes("d/foo", "d/bar")),
    case(4, "new file takes the old name of a renamed directory", "g/341",
        "mkdir a a/x; write a/x/foo A; sync; rename a/x a/y; create a/x; fsync a/x; CRASH", |c| {
            c.file("a/x");
            c.block("a/y/foo", "A");
        }),
    case(5, "one of two links removed, its name reused", "g/480",
        "mkdir d; create d/foo; link d/foo d/bar; sync; unlink d/bar; create d/bar; fsync d/bar; CRASH", |c| {
            c.nlink("d/foo", 1);
            c.different_inodes("d/foo", "d/bar");
        }),
    case(7, "renames and a link into the vacated name", "g/526",
        "mkdir d; write d/1 \"x\"; write d/2 \"y\"; sync; rename d/1 d/3; rename d/2 d/4; link d/3 d/2;
         write d/1 \"z\"; fsync d/1; CRASH", |c| {
            for (path, name) in [("d/1", "z"), ("d/2", "x"), ("d/3", "x"), ("d/4", "y")] {
                c.quoted(path, name);
            }
            c.same_inode(&["d/2", "d/3"]);
        }),
    case(8, "rename, unlink, link, create", "g/527",
        "mkdir d; write d/1 \"x\"; write d/2 \"y\"; sync; rename d/1 d/3; unlink d/2; link d/3 d/2;
         write d/1 \"z\"; fsync d/1; CRASH", |c| {
            c.quoted("d/1", "z");
            c.quoted("d/2", "x");
            c.same_inode(&["d/2", "d/3"]);
            c.names("d", &["1", "2", "3"]);
        }),
    case(10, "directory moved away and recreated, file fsynced inside", "12fcfd22",
        "mkdir f1 f2 f1/d; write f1/d/old A; sync; rename f1/d f2/d; mkdir f1/d; create f1/d/g; fsync f1/d/g; CRASH",
        |c| {
            c.block("f2/d/old", "A");
            c.names("f1/d", &["g"]);
        }),
    case(11, "directory moved, a file takes its name and follows it", "g/784",
        "mkdir d1 d2; sync; rename d1 d2/d1; create d1; fsync d1; rename d1 d2/foo; fsync d2/foo; CRASH", |c| {
            c.directory("d2/d1");
            c.file("d2/foo");
            c.names("/", &["d2"]);
        }),
    case(13, "rename over a persisted file, fsync of a sibling and the parent", "CM-1",
        "mkdir A; create A/bar; fsync A/bar; mkdir B; write B/bar \"second\"; rename B/bar A/bar; create A/foo;
         fsync A/foo; fsync A; CRASH", |c| {
            c.names("A", &["bar", "foo"]);
            c.quoted("A/bar", "second");
        }),
    case(14, "nested rename dance", "CM-2",
        "mkdir A A/C; rename A/C B; create B/bar; fsync B/bar; rename B/bar A/bar; rename A B; fsync B/bar; CRASH",
        |c| {
            c.names("/", &["B"]);
            c.names("B", &["bar"]);
            c.nlink("B/bar", 1);
        }),
    case(16, "rename of a directory, fsync of a new file inside", "CM-10",
        "mkdir A; sync; rename A B; create B/foo; fsync B/foo; CRASH", |c| {
            c.file("B/foo");
            c.absent(&["A", "A/foo"]);
        }),
    case(17, "fsync, rename, fsync", "g/322", "write foo 0-1M A; fsync foo; rename foo bar; fsync bar; CRASH", |c| {
        c.names("/", &["bar"]);
        c.content("bar", K * K, &[(0, K * K, "A")]);
    }),
    case(19, "shrink, rename, fsync", "g/534",
        "write foo 0-8000 A; fsync foo; trunc foo 3000; rename foo bar; fsync bar; CRASH", |c| {
            c.names("/", &["bar"]);
            c.content("bar", 3000, &[(0, 3000, "A")]);
        }),
    case(20, "grow after a rename, a sibling's fsync between", "btrfs/243",
        "create foo; write bar 0-1M A; sync; fsync bar; rename bar bar2; rename foo foo2; trunc bar2 2M; fsync foo2;
         fsync bar2; CRASH", |c| {
            c.names("/", &["bar2", "foo2"]);
            c.content("bar2", 2 * K * K, &[(0, K * K, "A")]);
        }),
    case(22, "exchange of two files", "derived", "write a A; write b B; sync; exchange a b; fsync a; CRASH", |c| {
        c.block("a", "B");
        c.block("b", "A");
    }),
    // After the exchange the directory is q/f.
    case(23, "exchange of a directory and a file in different parents", "derived",
        "mkdir p q p/d; write p/d/x A; write q/f B; sync; exchange p/d q/f; fsync q/f/x; CRASH", |c| {
            c.block("q/f/x", "A");
            c.block("p/d", "B");
            c.nlink("p", 2);
            c.nlink("q", 3);
        }),
    // Without an fsync both are right; never anything between.
    case(25, "replace by rename without fsync", "5a3f23d5",
        "write f 0-64K old; sync; write f.tmp 0-64K new; rename f.tmp f; CRASH", |c| {
            let old = !c.has("f.tmp") && is(c, "f", "old");
            let new = !c.has("f.tmp") && is(c, "f", "new");
            let between = c.has("f.tmp") && is(c, "f", "old");
            c.that(old || new || between, "f should be complete old or complete new");
        }),
    made(26, "long chain of renames", "derived", chain, |c| {
        for number in 1..=50 {
            c.quoted(&format!("d/{}", number + 1), &format!("{number}"));
        }
        c.size("d/1", 0);
        c.size("d", 51);
    }),
    case(28, "file moved, fsync of the old grandparent", "g/335",
        "mkdir a a/b c; create a/b/foo; sync; rename a/b/foo c/foo; create a/bar; fsync a; CRASH", |c| {
            c.file("c/foo");
            c.names("a/b", &[]);
            c.file("a/bar");
        }),
    case(28, "file moved, fsync of the old grandparent and the file", "g/335",
        "mkdir a a/b c; create a/b/foo; sync; rename a/b/foo c/foo; create a/bar; fsync a; fsync c/foo; CRASH", |c| {
            c.file("c/foo");
            c.names("a/b", &[]);
        }),
    case(29, "link removed, neighbour moved out, inode fsynced", "g/336",
        "mkdir a b c; create a/foo; link a/foo b/fl; create b/bar; sync; unlink b/fl; rename b/bar c/bar;
         fsync a/foo; CRASH", |c| {
            c.names("b", &[]);
            c.file("c/bar");
            c.nlink("a/foo", 1);
        }),
    case(31, "directory fsynced and evicted, file moved out, unrelated fsync", "g/640",
        "mkdir A B; write A/foo \"h\"; sync; create A/bar; fsync A; evict A; rename A/foo B/foo; create baz;
         fsync baz; CRASH", |c| {
            c.one_of(&["A/foo", "B/foo"]);
            c.quoted("B/foo", "h");
            c.exist(&["A/bar", "baz"]);
        }),
    made(32, "large directory, child directory moved out", "btrfs/239", large_directory, |c| {
        c.directory("dira");
        c.absent(&["t/dira"]);
        c.content("t/file1", 64 * K, &[(0, 64 * K, "A")]);
        c.size("t", 1200);
        c.that(c.image().get("t").is_some_and(|node| node.mode == 0o700), "t should have mode 700");
    }),
    case(34, "move into a directory, xattr between the fsyncs; file older", "g/321",
        "create foo; mkdir bar; fsync foo; rename foo bar/foo; fsync bar; setx bar/foo user.a=b; fsync bar/foo; CRASH",
        |c| {
            c.names("/", &["bar"]);
            c.xattrs("bar/foo", &[("user.a", "b")]);
        }),
    case(34, "move into a directory, xattr between the fsyncs; directory older", "g/321",
        "mkdir bar; create foo; fsync foo; rename foo bar/foo; fsync bar; setx bar/foo user.a=b; fsync bar/foo; CRASH",
        |c| {
            c.names("/", &["bar"]);
            c.xattrs("bar/foo", &[("user.a", "b")]);
        }),
    case(35, "unrelated move, fsync of its old parent, then of our file", "g/073",
        "write foo 0-8K A; fsync foo; mkdir d1 d2; create d1/bar; sync; write foo 8K-16K B; rename d1/bar d2/bar;
         fsync d1; fsync foo; CRASH", |c| {
            c.content("foo", 16 * K, &[(0, 8 * K, "A"), (8 * K, 16 * K, "B")]);
            c.one_of(&["d1/bar", "d2/bar"]);
            c.exist(&["d2/bar"]);
        }),
];

fn is(check: &super::Check<'_>, path: &str, pattern: &str) -> bool {
    let mut expected = crate::Content::default();
    expected.write_pattern(0, 64 * K, crate::pattern::seed(pattern));
    check.image().get(path).and_then(|node| node.content.as_ref()) == Some(&expected)
}

fn chain() -> String {
    let mut script = String::from("mkdir d; ");
    for number in 1..=50 {
        let _ = write!(script, "write d/{number} \"{number}\"; ");
    }
    script.push_str("sync; ");
    for number in (1..=50).rev() {
        let _ = write!(script, "rename d/{number} d/{}; ", number + 1);
    }
    script + "create d/1; fsync d/1; CRASH"
}

fn large_directory() -> String {
    let mut script = String::from("mkdir t; create");
    for number in 1..=1200 {
        let _ = write!(script, " t/file{number}");
    }
    script
        + "; mkdir t/dira; sync; chmod 700 t; fsync t; rename t/dira dira; write t/file1 0-64K A; fsync t/file1; CRASH"
}
