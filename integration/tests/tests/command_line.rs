//! The command line as users run it: every verb, what it says, how it exits; and what two tenants, limits and a full store look like
//! from there (promise S8).

use std::path::Path;

use serde_json::Value;
use subvol_tests::{Server, Setup, Tool};

fn running() -> (Server, Tool) {
    let server = Server::start(Setup::default());
    let tool = Tool::beside(&server);
    (server, tool)
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

fn df(tool: &Tool, volume: &str) -> Value {
    tool.json(["df", &format!("{volume}:")])["volumes"][0].clone()
}

/// Writes `text` into a new local file and gives its path.
fn local(folder: &Path, name: &str, text: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("UTF-8").into()
}

#[test]
fn files_and_names() {
    let (mut server, tool) = running();
    let created = tool.json(["volume", "create", "work"]);
    assert_eq!((&created["volume"], &created["created"]), (&"work".into(), &true.into()), "{created}");
    tool.ok(["mkdir", "-p", "-m", "0750", "work:/a/b/c"]);
    let stat = tool.json(["stat", "work:/a/b/c"]);
    assert_eq!((&stat["kind"], &stat["mode"]), (&"directory".into(), &"0750".into()), "{stat}");

    assert_eq!(tool.run_with(["write", "work:/a/f"], b"hello ").success(), "");
    let told =
        tool.clone().with(["--json"]).run_with(["write", "--append", "--fsync", "work:/a/f"], b"world");
    let told: Value = serde_json::from_str(&told.success()).expect("JSON");
    assert_eq!((number(&told, "bytes"), &told["durable"]), (5, &true.into()), "{told}");
    assert_eq!(tool.ok(["cat", "work:/a/f"]), "hello world");
    assert_eq!(tool.ok(["cat", "work:/a/f", "work:/a/f"]), "hello worldhello world");
    tool.ok(["truncate", "5", "work:/a/f"]);
    assert_eq!(tool.ok(["cat", "work:/a/f"]), "hello");
    tool.ok(["truncate", "1G", "work:/a/f"]);
    let stat = tool.json(["stat", "work:/a/f"]);
    assert_eq!((number(&stat, "size"), number(&stat, "allocated")), (1 << 30, 4096), "{stat}");

    tool.ok(["mv", "work:/a/f", "work:/a/g"]);
    tool.run(["mv", "work:/a/f", "work:/a/g"]).failure(1, "no such");
    tool.run_with(["write", "work:/a/f"], b"second").success();
    tool.run(["mv", "--no-replace", "work:/a/f", "work:/a/g"]).failure(1, "taken");
    tool.ok(["mv", "--exchange", "work:/a/f", "work:/a/g"]);
    assert_eq!(tool.ok(["cat", "work:/a/g"]), "second");
    tool.ok(["mv", "work:/a/g", "work:/a/b"]);
    assert_eq!(tool.ok(["cat", "work:/a/b/g"]), "second");

    tool.ok(["ln", "work:/a/b/g", "work:/a/h"]);
    assert_eq!(number(&tool.json(["stat", "work:/a/h"]), "links"), 2);
    tool.ok(["ln", "-s", "b/g", "work:/a/s"]);
    assert_eq!(tool.json(["stat", "work:/a/s"])["link"], "b/g");
    assert_eq!(tool.json(["stat", "-L", "work:/a/s"])["kind"], "file");
    assert_eq!(tool.ok(["cat", "work:/a/s"]), "second");

    tool.ok(["chmod", "u+x,go-rwx", "work:/a/h"]);
    assert_eq!(tool.json(["stat", "work:/a/b/g"])["mode"], "0700");
    tool.ok(["chown", "12:34", "work:/a/h"]);
    let stat = tool.json(["stat", "work:/a/h"]);
    assert_eq!((number(&stat, "uid"), number(&stat, "gid")), (12, 34), "{stat}");

    tool.ok(["xattr", "set", "work:/a/h", "user.k", "v"]);
    tool.run(["xattr", "set", "--create", "work:/a/h", "user.k", "w"]).failure(1, "");
    assert_eq!(tool.ok(["xattr", "get", "work:/a/h", "user.k"]), "v");
    tool.run_with(["xattr", "set", "--replace", "work:/a/h", "user.k"], b"from input").success();
    assert_eq!(tool.json(["xattr", "get", "work:/a/h", "user.k"])["value"], "from input");
    assert_eq!(tool.json(["xattr", "list", "work:/a/h"])["xattrs"][0]["name"], "user.k");
    tool.ok(["xattr", "remove", "work:/a/h", "user.k"]);
    tool.run(["xattr", "get", "work:/a/h", "user.k"]).failure(1, "extended attribute");

    let names = tool.ok(["ls", "work:/a"]);
    assert_eq!(names, "b\nf\nh\ns\n");
    let long = tool.ok(["ls", "-l", "work:/a"]);
    assert!(long.contains("-rwx------ 2") && long.contains("s -> b/g"), "{long}");
    let rows = tool.json_lines(["ls", "-R", "work:/"]);
    let paths: Vec<&str> = rows.iter().filter_map(|row| row["path"].as_str()).collect();
    assert_eq!(paths, ["/a", "/a/b", "/a/f", "/a/h", "/a/s", "/a/b/c", "/a/b/g"]);

    tool.ok(["fsync", "work:/a/h", "work:/a"]);
    tool.ok(["fsync", "--data", "work:/a/h"]);
    tool.ok(["sync", "work:/"]);
    assert!(number(&tool.json(["sync"]), "durable_transid") > 0);

    tool.run(["rm", "work:/a"]).failure(1, "directory");
    tool.ok(["rm", "work:/a/f"]);
    tool.ok(["rm", "-f", "work:/a/f"]);
    tool.run(["rm", "work:/a/f"]).failure(1, "no such");
    tool.ok(["rm", "-r", "work:/a"]);
    tool.run(["rm", "-r", "work:/"]).failure(2, "root");
    assert_eq!(tool.ok(["ls", "work:/"]), "");
    assert_eq!((number(&df(&tool, "work"), "used_bytes"), number(&df(&tool, "work"), "used_inodes")), (0, 0));
    assert!(server.terminate().success());
}

#[test]
fn copies_single_files_in_both_directions() {
    let (_server, tool) = running();
    let folder = tempfile::tempdir().expect("a folder");
    tool.ok(["volume", "create", "work"]);
    let file = local(folder.path(), "file", b"content");
    tool.ok(["put", &file, "work:/renamed"]);
    assert_eq!(tool.ok(["cat", "work:/renamed"]), "content");
    tool.ok(["mkdir", "work:/d"]);
    tool.ok(["put", "--sync", &file, "work:/d"]);
    assert_eq!(tool.ok(["cat", "work:/d/file"]), "content");
    let back = folder.path().join("back");
    tool.ok(["get", "work:/d/file", back.to_str().expect("UTF-8")]);
    assert_eq!(std::fs::read(&back).expect("the copy"), b"content");
    tool.run(["put", "/no/such/file", "work:/x"]).failure(1, "/no/such/file");
    tool.run(["get", "work:/no-such", back.to_str().expect("UTF-8")]).failure(1, "no-such");
    let folder_word = folder.path().to_str().expect("UTF-8");
    tool.run(["put", folder_word, "work:/x"]).failure(2, "-r");
    tool.run(["get", "work:/d", folder_word]).failure(1, "-r");
}

#[test]
fn volumes_limits_and_status() {
    let (_server, tool) = running();
    tool.ok(["volume", "create", "work", "--max-bytes", "10M", "--max-inodes", "100"]);
    tool.run(["volume", "create", "work"]).failure(1, "taken");
    tool.run_with(["write", "work:/f"], &[1; 10_000]).success();
    let list = tool.json(["volume", "list"]);
    let volumes = list["volumes"].as_array().expect("a list");
    let work = volumes.iter().find(|volume| volume["volume"] == "work").expect("the volume");
    assert_eq!(
        (
            number(work, "used_bytes"),
            number(work, "max_bytes"),
            number(work, "used_inodes"),
            number(work, "max_inodes")
        ),
        (12_288, 10 << 20, 1, 100),
        "{work}"
    );
    let free = df(&tool, "work");
    assert_eq!(
        (number(&free, "total_bytes"), number(&free, "used_bytes"), number(&free, "available_bytes")),
        (10 << 20, 12_288, (10 << 20) - 12_288),
        "{free}"
    );
    assert_eq!((number(&free, "total_inodes"), number(&free, "available_inodes")), (100, 99), "{free}");
    let table = tool.ok(["df", "work:"]);
    assert!(table.contains("10.0 MiB") || table.contains("10 MiB"), "{table}");
    assert!(tool.ok(["df", "-i"]).contains("100"));

    let changed = tool.json(["volume", "set", "work", "--max-bytes", "none"]);
    assert_eq!(changed["changed"], true);
    assert!(number(&df(&tool, "work"), "total_bytes") > 10 << 20, "the store's size is the limit now");
    tool.run(["volume", "set", "work"]).failure(2, "nothing to set");

    let status = tool.json(["status"]);
    assert!(status["store"].is_object(), "{status}");
    assert_eq!(status["store"]["read_only"], false);
    let one = tool.json(["status", "work:"]);
    let volumes = one["volumes"].as_array().expect("a list");
    assert_eq!(volumes.len(), 1, "{one}");
    assert!(number(&volumes[0], "operations") >= 2, "{one}");
    assert!(tool.ok(["status"]).contains("writable"));

    let removed = tool.json(["volume", "remove", "work"]);
    assert_eq!(removed["removed"], true);
    tool.run(["volume", "remove", "work"]).failure(1, "no such volume");
    tool.run(["ls", "work:/"]).failure(1, "no such volume");
}

#[test]
fn mistakes_are_told_with_the_right_exit_code() {
    let (mut server, tool) = running();
    tool.ok(["volume", "create", "work"]);
    for (words, part) in [
        (&["frobnicate"][..], "unrecognized"),
        (&["ls", "/just/a/path"], "VOLUME:"),
        (&["ls", "-x", "work:/"], "-x"),
        (&["truncate", "lots", "work:/f"], "size"),
        (&["mv", "work:/a", "other:/b"], "same volume"),
        (&["volume", "create", "no/slash"], "forbidden"),
        (&["chmod", "u+y", "work:/a"], ""),
        (&["chown", "root", "work:/a"], ""),
        (&[][..], "usage"),
    ] {
        tool.run(words).failure(2, part);
    }
    for (words, part) in [
        (&["ls", "work:/none"][..], "work:/none"),
        (&["cat", "work:/none"], "work:/none"),
        (&["stat", "work:/none"], "work:/none"),
        (&["ls", "none:/"], "volume none"),
        (&["mkdir", "work:/"], "work:/"),
        (&["mkdir", "work:/a/b"], "work:/a/b"),
        (&["cat", "work:/"], "directory"),
        (&["ln", "work:/none", "work:/b"], "no such"),
        (&["fsync", "work:/none"], "no such"),
        (&["tenant", "remove", "none"], "tenant"),
    ] {
        let ended = tool.run(words);
        ended.failure(1, part);
        assert!(ended.out.is_empty(), "{}: results and complaints do not mix", ended.line);
    }
    // One bad target does not keep the others from being done.
    tool.run_with(["write", "work:/good"], b"x").success();
    let mixed = tool.run(["cat", "work:/bad", "work:/good"]);
    mixed.failure(1, "work:/bad");
    assert_eq!(mixed.out, b"x");

    let long = "x".repeat(256);
    tool.run(["mkdir", &format!("work:/{long}")]).failure(1, "too long");

    let nowhere = tempfile::tempdir().expect("a folder");
    Tool::elsewhere(nowhere.path()).run(["ls", "work:/"]).failure(1, "SUBVOLD_SERVER");
    let address = server.socket().to_str().expect("UTF-8").to_owned();
    let far = Tool::elsewhere(nowhere.path()).with(["--server", &address]);
    assert_eq!(far.ok(["ls", "work:/"]), "good\n", "the token beside the socket is found");
    let wrong = local(nowhere.path(), "wrong.token", b"not the token\n");
    far.token_file(Path::new(&wrong)).run(["ls", "work:/"]).failure(1, "token");
    Tool::elsewhere(nowhere.path())
        .with(["--server", "nonsense://x"])
        .run(["ls", "work:/"])
        .failure(2, "nonsense");
    Tool::elsewhere(nowhere.path())
        .with(["--server", "subvol://127.0.0.1:1"])
        .run(["ls", "work:/"])
        .failure(2, "token");

    assert!(server.terminate().success());
    tool.run(["ls", "work:/"]).failure(1, "server");
}

#[test]
fn help_completions_and_manual_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = Tool::elsewhere(folder.path());
    let help = tool.ok(["--help"]);
    for verb in [
        "tenant",
        "volume",
        "ls",
        "stat",
        "mkdir",
        "put",
        "get",
        "cat",
        "write",
        "rm",
        "mv",
        "ln",
        "chmod",
        "chown",
        "xattr",
        "truncate",
        "fsync",
        "sync",
        "df",
        "status",
        "bench",
        "completions",
        "man",
    ] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(verb)), "{verb} is not in the help");
        assert!(!tool.ok([verb, "--help"]).is_empty());
    }
    assert!(tool.ok(["--version"]).starts_with("subvol "));
    assert!(tool.ok(["completions", "bash"]).contains("subvol"));
    tool.ok(["man", "--out", "pages"]);
    assert!(folder.path().join("pages/subvol-put.1").exists());
}

/// Adds a tenant and gives the tool of somebody who has its token and nothing else.
fn tenant(server: &Server, admin: &Tool, name: &str, limits: &[&str]) -> Tool {
    let token = server.beside().join(format!("{name}.token"));
    let token_word = token.to_str().expect("UTF-8");
    let words = [&["tenant", "add", name, "--token-out", token_word][..], limits].concat();
    admin.ok(words);
    let socket = server.socket().to_str().expect("UTF-8").to_owned();
    Tool::elsewhere(Path::new("/")).with(["--server", &socket]).token_file(&token)
}

#[test]
fn two_tenants_do_not_see_each_other() {
    let (server, admin) = running();
    let red = tenant(&server, &admin, "red", &[]);
    let blue = tenant(&server, &admin, "blue", &[]);
    red.ok(["volume", "create", "secret"]);
    red.run_with(["write", "secret:/f"], b"red's").success();
    blue.ok(["volume", "create", "own"]);
    // The same name is free for everybody.
    blue.ok(["volume", "create", "shared-name"]);
    red.ok(["volume", "create", "shared-name"]);
    blue.run_with(["write", "shared-name:/f"], b"blue's").success();
    red.run(["cat", "shared-name:/f"]).failure(1, "no such");

    // A foreign volume and one that nobody has give the very same answer, but for the name asked for.
    let same = |words: &[&str]| {
        let ask = |name: &str| {
            let words: Vec<String> = words.iter().map(|word| word.replace('@', name)).collect();
            let ended = blue.run(&words);
            assert_eq!(ended.code, 1, "{}: {}", ended.line, ended.err);
            (ended.err.replace(name, "@"), ended.out)
        };
        assert_eq!(ask("secret"), ask("nobody"), "{words:?}");
    };
    same(&["ls", "@:/"]);
    same(&["cat", "@:/f"]);
    same(&["df", "@:"]);
    same(&["status", "@:"]);
    same(&["volume", "remove", "@"]);
    same(&["volume", "set", "@", "--max-bytes", "1"]);
    same(&["sync", "@:/"]);
    for words in [&["--tenant", "red", "ls", "secret:/"][..], &["--tenant", "nobody", "ls", "secret:/"]] {
        blue.run(words).failure(1, "");
    }
    let foreign = blue.run(["--tenant", "red", "volume", "list"]);
    let unknown = blue.run(["--tenant", "nobody", "volume", "list"]);
    assert_eq!(
        (foreign.code, foreign.err.replace("red", "@")),
        (unknown.code, unknown.err.replace("nobody", "@"))
    );

    // What belongs to the whole store is not a tenant's to see or to do.
    for words in [&["tenant", "list"][..], &["tenant", "add", "x"], &["tenant", "remove", "red"], &["sync"]] {
        let ended = blue.run(words);
        assert_eq!(ended.code, 1, "{}: {}", ended.line, ended.err);
        assert!(!ended.err.contains("secret"), "{}", ended.err);
    }
    let status = blue.json(["status"]);
    assert!(status["store"].is_null(), "{status}");
    for text in [status.to_string(), blue.json(["volume", "list"]).to_string(), blue.ok(["df"])] {
        assert!(text.contains("own") && !text.contains("secret") && !text.contains("red\""), "{text}");
    }

    // By number as well: volumes are numbered over all tenants.
    let list = red.json(["volume", "list"]);
    assert_eq!(list["volumes"].as_array().expect("a list").len(), 2);
    let tenants = admin.json(["tenant", "list"]);
    let names: Vec<&str> =
        tenants["tenants"].as_array().expect("a list").iter().filter_map(|t| t["tenant"].as_str()).collect();
    assert!(names.contains(&"red") && names.contains(&"blue"), "{tenants}");

    admin.run(["tenant", "remove", "red"]).failure(1, "");
    red.ok(["volume", "remove", "secret"]);
    red.ok(["volume", "remove", "shared-name"]);
    admin.ok(["tenant", "remove", "red"]);
    red.run(["volume", "list"]).failure(1, "token");
    assert_eq!(blue.ok(["cat", "shared-name:/f"]), "blue's");
}

#[test]
fn a_new_token_replaces_the_old_one() {
    let (server, admin) = running();
    let red = tenant(&server, &admin, "red", &[]);
    red.ok(["volume", "create", "v"]);
    let told = admin.json(["tenant", "set", "red", "--new-token"]);
    let token = told["token"].as_str().expect("a token");
    red.run(["volume", "list"]).failure(1, "token");
    let path = local(server.beside(), "new.token", token.as_bytes());
    red.token_file(Path::new(&path)).run(["volume", "list"]).failure(2, "");
    let socket = server.socket().to_str().expect("UTF-8").to_owned();
    let renewed = Tool::elsewhere(Path::new("/")).with(["--server", &socket]).token_file(Path::new(&path));
    assert!(renewed.ok(["volume", "list"]).contains('v'));
}

#[test]
fn limits_are_exact_to_the_block_and_the_inode() {
    let (mut server, admin) = running();
    let red = tenant(&server, &admin, "red", &[]);
    // 244 blocks fit into a million bytes.
    red.ok(["volume", "create", "v", "--max-bytes", "1000000", "--max-inodes", "3"]);
    red.run_with(["write", "v:/f"], &vec![1; 244 * 4096]).success();
    assert_eq!(number(&df(&red, "v"), "used_bytes"), 244 * 4096);
    red.run_with(["write", "v:/g"], b"x").failure(1, "limit in bytes");
    assert_eq!(number(&df(&red, "v"), "used_bytes"), 244 * 4096, "a refused write uses nothing");
    // What needs no new block works, and so does every removal.
    red.ok(["truncate", "2G", "v:/f"]);
    red.ok(["chmod", "600", "v:/f"]);
    red.ok(["mv", "v:/f", "v:/h"]);
    red.ok(["ln", "v:/h", "v:/second"]);
    red.ok(["rm", "v:/second"]);
    red.ok(["truncate", "4096", "v:/h"]);
    assert_eq!(number(&df(&red, "v"), "used_bytes"), 4096);
    // The third inode is allowed, the fourth is not.
    red.run_with(["write", "v:/i"], b"").success();
    assert_eq!(number(&df(&red, "v"), "used_inodes"), 3);
    for words in [&["mkdir", "v:/j"][..], &["ln", "-s", "x", "v:/j"], &["write", "v:/j"]] {
        red.run(words).failure(1, "limit in inodes");
    }
    red.ok(["rm", "v:/i"]);
    red.ok(["mkdir", "v:/j"]);
    assert_eq!(number(&df(&red, "v"), "available_inodes"), 0);

    // A tenant's limit holds over all its volumes together.
    red.ok(["volume", "create", "w"]);
    admin.ok(["tenant", "set", "red", "--max-bytes", "40960", "--max-inodes", "5"]);
    red.run_with(["write", "w:/a"], &[1; 9 * 4096]).success();
    red.run_with(["write", "w:/b"], b"x").failure(1, "limit in bytes");
    let tenants = admin.json(["tenant", "list"]);
    let list = tenants["tenants"].as_array().expect("a list");
    let row = list.iter().find(|tenant| tenant["tenant"] == "red").expect("red");
    assert_eq!((number(row, "used_bytes"), number(row, "used_inodes")), (40_960, 5), "{row}");
    assert_eq!(number(&df(&red, "w"), "available_bytes"), 0, "df knows the tenant's limit");
    // Somebody else is not concerned.
    admin.ok(["volume", "create", "free"]);
    admin.run_with(["write", "free:/f"], &[1; 100_000]).success();
    // A limit below what is used stops growth and nothing else.
    red.ok(["volume", "set", "w", "--max-bytes", "4096"]);
    red.ok(["rm", "w:/a"]);
    assert_eq!(number(&df(&red, "w"), "used_bytes"), 0);
    assert!(server.terminate().success());
}

#[test]
fn a_full_store_refuses_growth_and_lets_everything_be_removed() {
    let setup = Setup { store_bytes: 64 << 20, ..Setup::default() };
    let mut server = Server::start(setup);
    let tool = Tool::beside(&server);
    tool.ok(["volume", "create", "v"]);
    let available = number(&df(&tool, "v"), "available_bytes");
    assert!(available > 20 << 20, "{available} bytes of 64 MiB can be used");
    for round in 0..3 {
        let mut files = 0;
        let refused = loop {
            let ended =
                tool.run_with(["write", "--fsync", &format!("v:/f{files}")], &vec![files as u8; 1 << 20]);
            if ended.code != 0 {
                break ended;
            }
            files += 1;
            assert!(files < 64, "more than the store holds");
        };
        refused.failure(1, "full");
        assert!(
            files >= (available / 2) >> 20,
            "round {round}: full after {files} MiB of {} MiB",
            available >> 20
        );
        for file in 0..files {
            let ended = tool.run(["cat", &format!("v:/f{file}")]);
            assert!(
                ended.code == 0 && ended.out == vec![file as u8; 1 << 20],
                "round {round}: file {file} changed"
            );
        }
        // Small files until even those do not fit.
        let mut small = 0;
        while small < 200 && tool.run_with(["write", &format!("v:/s{small}")], &[5; 4096]).code == 0 {
            small += 1;
        }
        if round == 1 {
            server.kill();
            server.restart();
        }
        for file in 0..files {
            tool.ok(["rm", &format!("v:/f{file}")]);
        }
        tool.run(["rm", "-r", "-f", &format!("v:/f{files}")]).success();
        for file in 0..small {
            tool.ok(["rm", "-f", &format!("v:/s{file}")]);
        }
        tool.ok(["rm", "-f", &format!("v:/s{small}")]);
        tool.ok(["sync"]);
        assert_eq!(tool.ok(["ls", "v:/"]), "", "round {round}");
        let after = df(&tool, "v");
        assert_eq!((number(&after, "used_bytes"), number(&after, "used_inodes")), (0, 0), "{after}");
        let back = number(&after, "available_bytes");
        assert!(back >= available - (1 << 20), "round {round}: {back} of {available} bytes came back");
    }
    tool.ok(["volume", "remove", "v"]);
    assert!(server.terminate().success());
}
