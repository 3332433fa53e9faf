//! The oracle has to accept what the promises allow and, above all, to reject what they do not.

use super::{DurabilityOracle, Promise, Violation};
use crate::content::Content;
use crate::script::parse_operations;
use crate::{Model, Op, Time, Tree};

/// An oracle that was told of every operation of a script, times 1, 2, 3...
fn told(script: &str) -> DurabilityOracle {
    let mut oracle = DurabilityOracle::new(Model::default());
    tell(&mut oracle, script);
    oracle
}

fn tell(oracle: &mut DurabilityOracle, script: &str) {
    // The oracle's model is asked for names that exist, so scripts go on where the last one ended.
    for op in parse_operations(script).unwrap_or_else(|error| panic!("{error}")) {
        let now = Time::from(oracle.acknowledged() as u64 + 1);
        if matches!(&op, Op::Create { path, .. } if oracle.model().exists(path)) {
            continue;
        }
        oracle.acknowledge(&op, now).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
}

/// The image of a state that the first operations of a script lead to.
fn image(script: &str) -> Tree {
    told(script).model().tree()
}

fn rejected(oracle: &DurabilityOracle, image: &Tree, promise: Promise, path: &str, text: &str) {
    let violation = oracle.check(image).expect_err("the image must be rejected");
    assert_eq!((violation.promise, violation.path.as_str()), (promise, path), "{violation}");
    assert!(violation.explanation.contains(text), "{violation}");
}

fn data(image: &mut Tree, path: &str, change: impl FnOnce(&mut Content)) {
    let node = image.get_mut(path).expect(path);
    let content = node.content.as_mut().expect("a file");
    change(content);
    node.size = content.size();
    node.blocks = None;
}

#[test]
fn every_prefix_since_the_last_durable_point_is_allowed() {
    let script =
        "mkdir a; create a/f; sync; create a/g; link a/g h; chmod 600 h; rename a b; setx b/f user.a=1";
    let oracle = told(script);
    let ops = parse_operations(script).expect("script");
    let mut model = Model::default();
    for (index, op) in ops.iter().enumerate() {
        model.apply(op, Time::from(index as u64 + 1)).expect("apply");
        let verdict = oracle.check(&model.tree());
        match index {
            0 => assert_eq!(verdict.expect_err("before the sync").promise, Promise::S1),
            // The sync itself changes nothing, so its image is that of the operation before.
            1 | 2 => assert_eq!(verdict, Ok(3)),
            _ => assert_eq!(verdict, Ok(index + 1)),
        }
    }
}

#[test]
fn a_lost_fsync_is_s2_and_a_lost_commit_s1() {
    let lost = image("create f");
    rejected(&told("create f; create g; fsync g"), &lost, Promise::S2, "", "an fsync made 3 durable");
    rejected(&told("create f; create g; sync"), &lost, Promise::S1, "", "a commit made 3 durable");
    let with_handle = told("create f; o=create g; fsync o");
    assert_eq!(with_handle.check(&lost).expect_err("lost").promise, Promise::S2);
}

#[test]
fn an_fsync_of_one_file_covers_all_names_before_it() {
    let oracle = told("mkdir d; create d/f; sync; rename d e; create g; fsync g");
    rejected(&oracle, &image("mkdir d; create d/f; sync"), Promise::S2, "", "only");
}

#[test]
fn later_operations_without_earlier_ones_are_no_prefix() {
    let oracle = told("create f; create g");
    rejected(&oracle, &image("create x; unlink x; create g"), Promise::S1, "", "none of the prefixes 0 to 2");
}

#[test]
fn a_rename_shows_exactly_one_name() {
    let oracle = told("create a; sync; rename a b");
    rejected(&oracle, &image("create a; create b"), Promise::S1, "", "none of the prefixes");
    rejected(&oracle, &Model::default().tree(), Promise::S1, "", "only 0 operations");
    let mut both = oracle.model().tree();
    let node = both.get("b").expect("b").clone();
    both.insert("a", node);
    rejected(&oracle, &both, Promise::S1, "b", "the closest has 2 differences");
}

#[test]
fn wrong_attributes_are_s1() {
    let script = "create f; setx f user.a=1; link f l; symlink s -> t; fsync f";
    let oracle = told(script);
    assert_eq!(oracle.check(&image(script)), Ok(5));
    type Spoil = fn(&mut crate::Node);
    let table: [(&str, &str, Spoil); 7] = [
        ("f", "nlink", |node| node.nlink = 1),
        ("f", "mode", |node| node.mode = 0),
        ("f", "uid", |node| node.uid = 1),
        ("f", "xattr user.a is missing", |node| node.xattrs.clear()),
        ("f", "atime", |node| node.atime = Time::from(77)),
        ("f", "ctime is 77", |node| node.ctime = Time::from(77)),
        ("s", "target", |node| node.target = Some("u".into())),
    ];
    for (path, text, spoil) in table {
        let mut bad = image(script);
        spoil(bad.get_mut(path).expect(path));
        rejected(&oracle, &bad, Promise::S1, path, text);
    }
    let mut split = image(script);
    split.get_mut("l").expect("l").identity = 1;
    rejected(&oracle, &split, Promise::S1, "l", "same inode");
}

#[test]
fn a_removed_attribute_does_not_come_back() {
    let oracle = told("create f; setx f user.a=1; sync; rmx f user.a; fsync f");
    rejected(
        &oracle,
        &image("create f; setx f user.a=1; sync"),
        Promise::S2,
        "f",
        "user.a should not be there",
    );
}

#[test]
fn fsynced_data_must_be_there() {
    let oracle = told("write f 0-8K A; fsync f; chmod 600 f");
    let mut good = oracle.model().tree();
    assert_eq!(oracle.check(&good), Ok(4));
    data(&mut good, "f", |content| content.zero(4096, 1));
    rejected(&oracle, &good, Promise::S2, "f", "byte 4096 is 0x00 (zero); its fsync made");
    let mut short = oracle.model().tree();
    data(&mut short, "f", |content| content.resize(4096));
    rejected(&oracle, &short, Promise::S2, "f", "size is 4096, allowed: 8192 (since its fsync)");
    let mut unmapped = oracle.model().tree();
    unmapped.get_mut("f").expect("f").blocks = Some(1);
    rejected(&oracle, &unmapped, Promise::S2, "f", "1 blocks mapped, 2 were made durable");
}

#[test]
fn data_older_than_the_fsync_is_s2_and_older_than_the_commit_s3() {
    for (last, promise) in [("fsync f", Promise::S2), ("sync", Promise::S3)] {
        let oracle = told(&format!("write f 0-4K A; sync; write f 0-4K B; {last}"));
        let mut old = oracle.model().tree();
        data(&mut old, "f", |content| content.write_pattern(100, 10, crate::pattern::seed("A")));
        rejected(&oracle, &old, promise, "f", "older than allowed");
    }
}

#[test]
fn alien_bytes_are_s3_also_in_files_not_fsynced() {
    let oracle = told("write f 0-4K A; sync; write f 0-8K B; write g 0-4K C; fsync g");
    let mut alien = oracle.model().tree();
    data(&mut alien, "f", |content| content.write_pattern(5000, 10, crate::pattern::seed("C")));
    rejected(&oracle, &alien, Promise::S3, "f", "byte 5000 is");
    // Its own byte, but at another offset, is just as alien.
    let mut moved = oracle.model().tree();
    data(&mut moved, "f", |content| {
        let bytes = content.read(0, 64);
        content.write(4096, &bytes);
    });
    rejected(&oracle, &moved, Promise::S3, "f", "never written there");
}

#[test]
fn unsynced_data_may_be_there_or_not_byte_by_byte() {
    let oracle = told("write f 0-8K A; sync; write f 0-16K B; create g; fsync g");
    let all = oracle.model().tree();
    assert!(oracle.check(&all).is_ok());
    let mut none = all.clone();
    data(&mut none, "f", |content| {
        content.resize(8192);
        content.write_pattern(0, 8192, crate::pattern::seed("A"));
    });
    assert!(oracle.check(&none).is_ok());
    // Half of it, with the grown part a hole.
    let mut half = all.clone();
    data(&mut half, "f", |content| {
        content.write_pattern(0, 4096, crate::pattern::seed("A"));
        content.zero(8192, 8192);
    });
    assert!(oracle.check(&half).is_ok());
    // A hole where durable data was is not a gap.
    data(&mut half, "f", |content| content.zero(0, 4096));
    rejected(&oracle, &half, Promise::S3, "f", "the last commit made");
    let mut long = all.clone();
    data(&mut long, "f", |content| content.resize(16385));
    rejected(&oracle, &long, Promise::S3, "f", "size is 16385, allowed: 8192 to 16384");
}

#[test]
fn a_truncation_inside_the_prefix_cuts_for_good() {
    let oracle = told("write f 0-8K A; sync; trunc f 1000; trunc f 8K; create g; fsync g");
    let mut back = oracle.model().tree();
    assert!(oracle.check(&back).is_ok());
    data(&mut back, "f", |content| content.write_pattern(2000, 1, crate::pattern::seed("A")));
    rejected(&oracle, &back, Promise::S3, "f", "byte 2000");
    // Outside the prefix it has not happened.
    let oracle = told("write f 0-8K A; sync; trunc f 1000");
    let mut partly = image("write f 0-8K A; sync");
    assert_eq!(oracle.check(&partly), Ok(3));
    data(&mut partly, "f", |content| content.resize(1000));
    assert!(oracle.check(&partly).is_err(), "the size without the time of the truncation is no prefix");
}

#[test]
fn renamed_over_is_complete_old_or_complete_new() {
    let script = "write f 0-8K old; sync; write t 0-8K new; rename t f";
    let oracle = told(script);
    let new = oracle.model().tree();
    assert_eq!(oracle.check(&new), Ok(6));
    assert!(oracle.check(&image("write f 0-8K old; sync")).is_ok());
    for spoil in [|content: &mut Content| content.resize(0), |content: &mut Content| content.zero(4096, 4096)]
    {
        let mut bad = new.clone();
        data(&mut bad, "f", spoil);
        rejected(&oracle, &bad, Promise::S3, "f", "the rename that put it over another file");
    }
    // Over nothing there is no such promise.
    let oracle = told("write t 0-8K new; rename t f");
    let mut empty = oracle.model().tree();
    data(&mut empty, "f", |content| content.resize(0));
    assert!(oracle.check(&empty).is_ok());
    // What is written after the rename is ordinary again.
    let mut oracle = told(script);
    tell(&mut oracle, "write f 0-4K later");
    assert!(oracle.check(&oracle.model().tree()).is_ok());
}

#[test]
fn the_operation_in_flight_is_done_or_not() {
    let mut oracle = told("create f; fsync f");
    let before = oracle.model().tree();
    oracle.sent(&Op::write("f", 0, 4096, "A"), 9.into());
    assert!(oracle.check(&before).is_ok());
    let mut done = oracle.clone();
    done.acknowledge(&Op::write("f", 0, 4096, "A"), 9.into()).expect("write");
    assert!(oracle.check(&done.model().tree()).is_ok());
    oracle.sent(&Op::rename("f", "g"), 9.into());
    assert!(oracle.check(&before).is_ok());
    oracle.refused();
    let mut renamed = oracle.clone();
    renamed.acknowledge(&Op::rename("f", "g"), 9.into()).expect("rename");
    assert!(oracle.check(&renamed.model().tree()).is_err(), "refused means not done");
    // An fsync in flight promises nothing yet.
    let mut oracle = told("create f");
    oracle.sent(&Op::fsync("f"), 2.into());
    assert_eq!(oracle.check(&Model::default().tree()), Ok(0));
}

#[test]
fn fdatasync_may_leave_out_times_but_not_data() {
    let oracle = told("write f 0-4K A; fsync f; write f 4K-8K B; fdatasync f");
    let mut image = oracle.model().tree();
    assert!(oracle.check(&image).is_ok());
    image.get_mut("f").expect("f").mtime = 2.into();
    image.get_mut("f").expect("f").ctime = 2.into();
    assert!(oracle.check(&image).is_ok(), "times of the last fsync");
    let strict = told("write f 0-4K A; fsync f; write f 4K-8K B; fsync f");
    rejected(&strict, &image, Promise::S1, "f", "mtime is 2.000000000, allowed: 4.000000000");
    data(&mut image, "f", |content| content.resize(4096));
    rejected(&oracle, &image, Promise::S2, "f", "size is 4096");
}

#[test]
fn explicit_times_are_not_overwritten_by_late_data() {
    let oracle = told("create f; sync; write f 0-4K A; utimes f - 500; create g; fsync g");
    let mut image = oracle.model().tree();
    assert!(oracle.check(&image).is_ok());
    image.get_mut("f").expect("f").mtime = 3.into();
    rejected(&oracle, &image, Promise::S1, "f", "allowed: 500.0");
}

#[test]
fn one_can_go_on_after_a_crash() {
    let oracle = told("write f 0-8K A; sync; write f 8K-16K B; o=tmpfile /; create g; create h");
    let mut image = oracle.model().tree();
    image.remove("h");
    image.get_mut("").expect("root").size = 2;
    let root_time = Time::from(6);
    let root = image.get_mut("").expect("root");
    (root.mtime, root.ctime) = (root_time, root_time);
    data(&mut image, "f", |content| content.zero(8192, 8192));
    image.get_mut("f").expect("f").blocks = Some(3);
    let prefix = oracle.check(&image).expect("allowed");
    assert_eq!(prefix, 6);
    let model = oracle.recovered(&image, prefix);
    assert_eq!(image.diff(&model.tree()), Vec::<String>::new());
    assert_eq!((model.orphans(), model.usage().bytes), (0, 3 * 4096));
    let again: Result<usize, Violation> = DurabilityOracle::new(model).check(&image);
    assert_eq!(again, Ok(0));
}
