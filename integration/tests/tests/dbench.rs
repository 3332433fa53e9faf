//! dbench's load over the command line: every answer must be the one the load file was recorded with.
//!
//! The long form: `cargo test -p subvol-tests --release -- --ignored --nocapture soak_dbench` (1, 8 and 16 clients, 60 seconds each).

use std::path::Path;

use subvol_tests::{Server, Setup, Tool};

const LOAD: &str = "/usr/share/dbench/client.txt";

#[test]
fn dbench_with_one_client() {
    run(1, 5);
}

#[test]
fn dbench_with_eight_clients() {
    run(8, 5);
}

#[ignore = "long: three minutes"]
#[test]
fn soak_dbench() {
    for clients in [1, 8, 16] {
        run(clients, 60);
    }
}

fn run(clients: u32, seconds: u32) {
    assert!(Path::new(LOAD).exists(), "{LOAD} is missing: install the package dbench");
    let mut server = Server::start(Setup { store_bytes: 8 << 30, ..Setup::default() });
    let tool = Tool::beside(&server);
    let (clients_word, seconds_word) = (clients.to_string(), seconds.to_string());
    let words =
        ["bench", "dbench", "--loadfile", LOAD, "--clients", &clients_word, "--seconds", &seconds_word];
    let result = tool.json(words);
    eprintln!("dbench, {clients} clients, {seconds} s: {result:#}");
    assert_eq!(result["errors"].as_u64(), Some(0), "{result:#}");
    assert!(result["throughput_mb_per_second"].as_f64().is_some_and(|rate| rate > 0.1), "{result:#}");
    assert!(server.terminate().success());
}
