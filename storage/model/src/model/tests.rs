//! The rules of the model, each by example: the model is what everything else is judged by.

use crate::script::parse_operations;
use crate::{BLOCK, Limits, Model, ModelError, Op, Time};

/// Runs a script whose operations must all succeed, one second apart; returns the model and the last time used.
fn run(script: &str) -> (Model, u64) {
    let mut model = Model::default();
    let ops = parse_operations(script).unwrap_or_else(|error| panic!("{error}"));
    let mut now = 0;
    for op in &ops {
        now += 1;
        model.apply(op, now.into()).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
    (model, now)
}

/// Applies one scripted operation to a copy and checks that a refusal changes nothing.
fn attempt(model: &Model, script: &str) -> Result<(), ModelError> {
    let mut copy = model.clone();
    let ops = parse_operations(script).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ops.len(), 1, "{script} is one operation");
    let result = copy.apply(&ops[0], Time::from(1000));
    if result.is_err() {
        assert_eq!(model.tree().diff(&copy.tree()), Vec::<String>::new(), "{script} was refused");
        assert_eq!(model.usage(), copy.usage());
    }
    result
}

#[test]
fn errors_are_those_of_posix() {
    use ModelError as E;
    let (model, _) =
        run("mkdir d d/sub e; create f g d/x; symlink s -> d; mkfifo p; setx f user.a=1; h=open f");
    let long = "n".repeat(256);
    let table: &[(&str, E)] = &[
        ("create f", E::Exists),
        ("create /", E::Exists),
        ("create d/.", E::Exists),
        ("create none/f", E::NotFound),
        ("create f/x", E::NotDirectory),
        ("create s/x", E::NotDirectory),
        ("mkdir d", E::Exists),
        ("symlink f -> t", E::Exists),
        ("mkfifo d", E::Exists),
        ("link d q", E::NotPermitted),
        ("link f g", E::Exists),
        ("link none q", E::NotFound),
        ("unlink d", E::IsDirectory),
        ("unlink none", E::NotFound),
        ("unlink .", E::IsDirectory),
        ("unlink f/x", E::NotDirectory),
        ("rmdir d", E::NotEmpty),
        ("rmdir f", E::NotDirectory),
        ("rmdir e/.", E::InvalidArgument),
        ("rmdir e/..", E::NotEmpty),
        ("rmdir /", E::Busy),
        ("rename none q", E::NotFound),
        ("rename e d", E::NotEmpty),
        ("rename e f", E::NotDirectory),
        ("rename f e", E::IsDirectory),
        ("rename d d/sub/new", E::InvalidArgument),
        ("rename d d/sub", E::InvalidArgument),
        ("rename d/sub d", E::NotEmpty),
        ("rename f d", E::IsDirectory),
        ("rename d/x d", E::NotEmpty),
        ("rename d/. q", E::Busy),
        ("rename f d/..", E::Busy),
        ("rename f g noreplace", E::Exists),
        ("rename f / noreplace", E::Exists),
        ("exchange f none", E::NotFound),
        ("exchange d d/sub", E::InvalidArgument),
        ("exchange d/sub d", E::InvalidArgument),
        ("append d 4K A", E::IsDirectory),
        ("append s 4K A", E::InvalidArgument),
        ("trunc d 0", E::IsDirectory),
        ("trunc p 0", E::InvalidArgument),
        ("trunc f 9223372036854775808", E::FileTooBig),
        ("falloc f 0+0", E::InvalidArgument),
        ("punch f 4K+0", E::InvalidArgument),
        ("zero f 9223372036854775807+1", E::FileTooBig),
        ("setx f user.a=2 create", E::Exists),
        ("setx f user.b=2 replace", E::NoData),
        ("setx f user.b=*65537", E::TooBig),
        ("rmx f user.b", E::NoData),
        ("chmod 600 s", E::NotSupported),
        ("fsync none", E::NotFound),
        ("h=tmpfile f", E::NotDirectory),
    ];
    for (script, error) in table {
        assert_eq!(attempt(&model, script), Err(*error), "{script}");
    }
    assert_eq!(attempt(&model, &format!("create {long}")), Err(E::NameTooLong));
    assert_eq!(attempt(&model, &format!("setx f {long}=1")), Err(E::OutOfRange));
    let mut copy = model.clone();
    assert_eq!(copy.apply(&Op::CloseHandle { handle: "none".into() }, Time::default()), Err(E::BadHandle));
    let too_far = Op::Write { path: "f".into(), offset: u64::MAX, length: 2, seed: 1 };
    assert_eq!(copy.apply(&too_far, Time::default()), Err(E::FileTooBig));
}

#[test]
fn link_counts_of_directories_follow_every_move() {
    let (model, _) = run("mkdir p q p/d; create q/f; exchange p/d q/f; mkdir q/f/x; rename q/f p/e");
    let nlink = |path: &str| model.stat(path).expect(path).nlink;
    assert_eq!((nlink(""), nlink("p"), nlink("q"), nlink("p/e")), (4, 3, 2, 3));
    assert_eq!((model.stat("p").expect("p").size, model.stat("q").expect("q").size), (2, 0));
}

#[test]
fn a_directory_replaces_only_an_empty_one() {
    let (model, _) = run("mkdir a a/x b; rename a b");
    assert!(model.exists("b/x") && !model.exists("a"));
    assert_eq!(model.stat("").expect("root").nlink, 3);
    assert_eq!(model.usage().inodes, 2);
    assert_eq!(model.entries(), 2);
}

#[test]
fn renaming_onto_the_same_inode_does_nothing() {
    let (mut model, now) = run("create a; link a b");
    let before = model.tree();
    for op in [Op::rename("a", "b"), Op::rename("a", "a")] {
        model.apply(&op, (now + 5).into()).expect("rename");
    }
    assert!(before == model.tree());
}

#[test]
fn times_follow_the_table() {
    // Script, file, whether mtime and ctime of the file change, parent, whether its times change.
    let table = [
        ("create new", "new", true, true, "", true),
        ("link f l", "f", false, true, "", true),
        ("unlink g2", "g", false, true, "", true),
        ("rename f d/f", "d/f", false, true, "d", true),
        ("rename f d/f", "d/f", false, true, "", true),
        ("rename g g2", "g", false, false, "", false),
        ("exchange f d", "f", false, true, "", true),
        ("append f 1 A", "f", true, true, "", false),
        ("append f 0 A", "f", false, false, "", false),
        ("trunc f 5", "f", true, true, "", false),
        ("falloc f 0+1 keep", "f", true, true, "", false),
        ("punch f 0+1", "f", true, true, "", false),
        ("zero f 0+1", "f", true, true, "", false),
        ("setx f user.a=1", "f", false, true, "", false),
        ("rmx g user.a", "g", false, true, "", false),
        ("chmod 600 f", "f", false, true, "", false),
        ("chown 1:1 f", "f", false, true, "", false),
        ("rmdir d", "", true, true, "", true),
        ("fsync f", "f", false, false, "", false),
    ];
    let (model, _) = run("mkdir d; create f g; link g g2; setx g user.a=1");
    for (script, file, mtime, ctime, parent, parent_times) in table {
        let mut after = model.clone();
        let now = Time::from(100);
        after.apply(&parse_operations(script).expect(script)[0], now).expect(script);
        let (node, parent) = (after.stat(file).expect(file), after.stat(parent).expect(parent));
        assert_eq!(node.mtime == now, mtime, "{script}: mtime of the file");
        assert_eq!(node.ctime == now, ctime, "{script}: ctime of the file");
        assert_eq!(parent.mtime == now && parent.ctime == now, parent_times, "{script}: times of the parent");
    }
    let (model, now) = run("create f; utimes f -5.999999999 -");
    let node = model.stat("f").expect("f");
    assert_eq!((node.atime, node.mtime, node.ctime), (Time::new(-5, 999_999_999), 1.into(), now.into()));
}

#[test]
fn mapped_blocks_are_exact() {
    let table = [
        ("create f; write f 4095-4097 A", 2, 4097),
        ("create f; trunc f 1M", 0, 1 << 20),
        ("create f; write f 0-16K A; punch f 4097+8190", 4, 16384),
        ("create f; write f 0-16K A; punch f 4096+8192", 2, 16384),
        ("create f; write f 0-16K A; trunc f 4097", 2, 4097),
        ("create f; falloc f 8K+8K keep", 2, 0),
        ("create f; falloc f 8K+8K keep; trunc f 0", 0, 0),
        ("create f; falloc f 8K+8K keep; trunc f 4K", 2, 4096),
        ("create f; falloc f 8K+8K", 2, 16384),
        ("create f; zero f 100+100 keep", 1, 0),
        ("create f; write f 0-8K A; zero f 0+8K", 2, 8192),
        ("create f; falloc f 1T+1T keep", 1 << 28, 0),
    ];
    for (script, blocks, size) in table {
        let (model, _) = run(script);
        let node = model.stat("f").expect("f");
        assert_eq!((node.blocks, node.size), (Some(blocks), size), "{script}");
        assert_eq!(model.usage().bytes, blocks * BLOCK, "{script}");
    }
}

#[test]
fn bytes_cut_away_never_come_back() {
    let (model, _) = run("create f; write f 0-10000 A; trunc f 5000; trunc f 10000; write f 9000-9001 B");
    let bytes = model.read("f", 0, 20_000).expect("read");
    assert_eq!(bytes.len(), 10_000);
    assert_eq!(bytes[..5000], crate::pattern::bytes(crate::pattern::seed("A"), 0, 5000));
    assert!(bytes[5000..9000].iter().chain(&bytes[9001..]).all(|byte| *byte == 0));
}

#[test]
fn a_handle_keeps_a_file_alive() {
    let (mut model, now) = run("create f; write f 0-8K A; o=open f; unlink f; write o 8K-12K B; fsync o");
    assert_eq!((model.orphans(), model.usage().bytes, model.usage().inodes), (1, 12288, 1));
    let link = Op::LinkHandle { handle: "o".into(), path: "again".into() };
    assert_eq!(
        model.apply(&link, now.into()),
        Err(ModelError::NotFound),
        "only unnamed files get a name back"
    );
    model.apply(&Op::CloseHandle { handle: "o".into() }, now.into()).expect("close");
    assert_eq!((model.orphans(), model.usage().bytes, model.usage().inodes), (0, 0, 0));
}

#[test]
fn an_unnamed_file_gets_one_name() {
    let (mut model, _) = run("mkdir d; o=tmpfile d; write o 0-4K A; linkat o d/f; close o");
    assert_eq!(model.stat("d/f").expect("d/f").nlink, 1);
    model.close_all();
    assert_eq!(model.usage().inodes, 2);
    // Opening again under the same name must not free what is opened.
    let (model, _) = run("o=tmpfile /; linkat o f; unlink f; o=tmpfile /");
    assert_eq!(model.orphans(), 1);
}

#[test]
fn limits_are_enforced_before_anything_changes() {
    let limits = Limits { links: 3, file_size: 20_000, bytes: 8192, inodes: 3, ..Limits::default() };
    let mut model = Model::new(limits, Time::default());
    for op in parse_operations("create f; write f 0-8K A; link f g; mkdir a").expect("script") {
        model.apply(&op, 1.into()).expect("within the limits");
    }
    assert_eq!(attempt(&model, "append f 1 A"), Err(ModelError::QuotaExceeded));
    assert_eq!(attempt(&model, "falloc f 0+8K"), Ok(()), "maps nothing new");
    assert_eq!(attempt(&model, "trunc f 20001"), Err(ModelError::FileTooBig));
    assert_eq!(
        attempt(&model, "mkdir b"),
        Err(ModelError::TooManyLinks),
        "the root has two and one subdirectory"
    );
    assert_eq!(attempt(&model, "mkdir a/b"), Ok(()));
    model.apply(&Op::create("last"), 1.into()).expect("third inode");
    assert_eq!(attempt(&model, "create more"), Err(ModelError::QuotaExceeded));
    model.apply(&Op::Link { existing: "f".into(), path: "h".into() }, 1.into()).expect("third link");
    assert_eq!(attempt(&model, "link f i"), Err(ModelError::TooManyLinks));
}

#[test]
fn what_is_made_in_a_set_group_id_directory_gets_its_group() {
    let (model, _) = run(
        "mkdir d; chown 1:7 d; chmod 2750 d; create d/f; mkdir d/sub; mkfifo d/sub/p; symlink d/s -> t; \
         chmod 750 d; create d/late",
    );
    let owned = |path: &str| {
        let node = model.stat(path).expect(path);
        (node.uid, node.gid, node.mode & 0o2000)
    };
    assert_eq!(owned("d/f"), (0, 7, 0));
    assert_eq!(owned("d/sub"), (0, 7, 0o2000));
    assert_eq!(owned("d/sub/p"), (0, 7, 0));
    assert_eq!(owned("d/s"), (0, 7, 0));
    assert_eq!(owned("d/late"), (0, 0, 0));
}
