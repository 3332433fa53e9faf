//! Cases of attributes, symbolic links and special files (G), and of a whole random-looking tree (E 77).

use super::{Case, case, made};
use crate::operation::SpecialKind;
use crate::snapshot::Kind;
use crate::time::Time;
use std::fmt::Write;

const K: u64 = 1024;

#[rustfmt::skip] // One case is one entry; long scripts read better on their own line.
pub(super) const CASES: &[Case] = &[
    case(77, "fsync of every file and directory", "g/547",
        "mkdir -p a/b; mkdir c; write a/f 0-10000 A; write a/b/g 4K-8K B; link a/f c/h; symlink c/s -> ../a;
         setx a/b user.x=1; chmod 750 c; trunc a/b/g 5000; exchange a/b c; falloc c/g 16K+8K keep;
         fsync a/f; fsync c/g; fsync a; fsync a/b; fsync c; CRASH", |c| {
            c.content("a/f", 10000, &[(0, 10000, "A")]);
            c.same_inode(&["a/f", "a/b/h"]);
            c.content("c/g", 5000, &[(4 * K, 5000, "B")]);
            c.blocks("c/g", 3);
            c.xattrs("c", &[("user.x", "1")]);
            c.kind("a/b/s", Kind::Symlink);
            c.names("a", &["b", "f"]);
            c.names("c", &["g"]);
        }),
    case(113, "a deleted xattr stays deleted", "g/066",
        "create f; setx f user.a1=1; setx f user.a2=2; setx f user.a3=3; sync; rmx f user.a2; fsync f; CRASH",
        |c| c.xattrs("f", &[("user.a1", "1"), ("user.a3", "3")])),
    case(113, "a second xattr deleted after the first crash", "g/066",
        "create f; setx f user.a1=1; setx f user.a2=2; setx f user.a3=3; sync; rmx f user.a2; fsync f; CRASH;
         fsync f; rmx f user.a1; link f fl; create q; fsync q; CRASH", |c| {
            c.xattrs("f", &[("user.a3", "3")]);
            c.same_inode(&["f", "fl"]);
        }),
    made(115, "thousands of xattrs", "g/745", || {
        let mut script = String::from("create f; sync; ");
        for number in 0..2000 {
            let _ = write!(script, "setx f user.name{number}=value{number}; ");
        }
        script + "sync; write f 8K-24K A; fsync f; CRASH"
    }, |c| {
        c.content("f", 24 * K, &[(8 * K, 24 * K, "A")]);
        let names: Vec<(String, String)> =
            (0..2000).map(|number| (format!("user.name{number}"), format!("value{number}"))).collect();
        let names: Vec<(&str, &str)> = names.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        c.xattrs("f", &names);
    }),
    case(116, "xattr replaced by a large one", "g/037, g/486",
        "create f; setx f user.a=1 create; fsync f; setx f user.a=*2K replace; fsync f; CRASH", |c| {
            let value = c.image().get("f").and_then(|node| node.xattrs.get("user.a"));
            let large = crate::pattern::bytes(crate::pattern::seed("user.a"), 0, 2048);
            c.that(value == Some(&large), "user.a should have the large value");
        }),
    case(118, "extreme times", "g/622, g/635, btrfs/236",
        "write f 0-4K A; utimes f -2147483648.999999999 4294967296.123456789; fsync f; CRASH", |c| {
            let times = c.image().get("f").map(|node| (node.atime, node.mtime));
            let expected = (Time::new(-2_147_483_648, 999_999_999), Time::new(4_294_967_296, 123_456_789));
            c.that(times == Some(expected), &format!("times should be {expected:?}, are {times:?}"));
        }),
    case(118, "explicit mtime after a write that is not durable yet", "btrfs/236",
        "create f g; sync; write f 0-4K A; utimes f - 77.000000001; fsync g; CRASH", |c| {
            let mtime = c.image().get("f").map(|node| node.mtime);
            c.that(mtime == Some(Time::new(77, 1)), &format!("mtime should be the explicit one, is {mtime:?}"));
        }),
    case(121, "symbolic link renamed between two fsyncs of the directory", "g/690, g/779",
        "mkdir d; sync; fsync d; symlink d/b -> t; rename d/b d/z; fsync d; CRASH", only_z),
    case(121, "the same with an fsync before the rename", "g/690, g/779",
        "mkdir d; sync; fsync d; symlink d/b -> t; fsync d; rename d/b d/z; fsync d; CRASH", only_z),
    case(122, "symbolic link renamed and its old name linked", "g/479",
        "mkdir d; symlink d/foo -> t; sync; create d/f1; fsync d/f1; rename d/foo d/bar; link d/bar d/foo; create f2;
         fsync f2; CRASH", |c| {
            c.same_inode(&["d/foo", "d/bar"]);
            c.kind("d/foo", Kind::Symlink);
        }),
    case(122, "pipe renamed and its old name linked", "g/479",
        "mkdir d; mkfifo d/foo; sync; create d/f1; fsync d/f1; rename d/foo d/bar; link d/bar d/foo; create f2;
         fsync f2; CRASH", |c| {
            c.same_inode(&["d/foo", "d/bar"]);
            c.kind("d/foo", Kind::Special(SpecialKind::Fifo));
        }),
    case(122, "device renamed and its old name linked", "g/479",
        "mkdir d; mknod d/foo c 259; sync; create d/f1; fsync d/f1; rename d/foo d/bar; link d/bar d/foo; create f2;
         fsync f2; CRASH", |c| {
            c.same_inode(&["d/foo", "d/bar"]);
            c.kind("d/foo", Kind::Special(SpecialKind::Character(259)));
        }),
];

fn only_z(check: &mut super::Check<'_>) {
    check.names("d", &["z"]);
    let target = check.image().get("d/z").and_then(|node| node.target.clone());
    check.that(target.as_deref() == Some("t"), "the target should be t");
}
