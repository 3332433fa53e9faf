//! Cases of data (F): holes, truncation, preallocation; and of the log's own space (I) that need no faults.

use super::{Case, case, made};
use std::fmt::Write;

const K: u64 = 1024;
const M: u64 = K * K;

#[rustfmt::skip] // One case is one entry; long scripts read better on their own line.
pub(super) const CASES: &[Case] = &[
    case(82, "punch less than a block", "g/059",
        "write f 0-16K A; fsync f; sync; punch f 8000+4096; punch f 15000+100; fsync f; CRASH", |c| {
            c.content("f", 16 * K, &[(0, 16 * K, "A"), (8000, 12096, ""), (15000, 15100, "")]);
            c.blocks("f", 4);
        }),
    case(83, "overlapping punches", "g/177",
        "write f 0-128K A; fsync f; punch f 96K+32K; punch f 64K+128K; punch f 32K+96K; fsync f; CRASH", |c| {
            c.content("f", 128 * K, &[(0, 32 * K, "A")]);
            c.blocks("f", 8);
        }),
    made(85, "punch at offset 0 with many extents", "btrfs/201", || many_pieces("punch f 0+64K"), |c| {
        c.content("f", 16 * M, &[(0, 16 * M, "A"), (0, 64 * K, "")]);
        c.blocks("f", 4096 - 16);
    }),
    made(85, "large middle range punched and a late write", "btrfs/159",
        || many_pieces("punch f 1M+13M; write f 15M-15364K B"), |c| {
            c.content("f", 16 * M, &[(0, 16 * M, "A"), (M, 14 * M, ""), (15 * M, 15 * M + 4 * K, "B")]);
            c.blocks("f", 3 * 256);
        }),
    case(86, "shrink, then grow", "g/101",
        "write f 0-125K A; sync; trunc f 64K; trunc f 125K; fsync f; CRASH",
        |c| c.content("f", 125 * K, &[(0, 64 * K, "A")])),
    case(86, "shrink to nothing, then grow", "g/101",
        "write f 0-125K A; sync; trunc f 0; trunc f 253K; fsync f; CRASH", |c| {
            c.content("f", 253 * K, &[]);
            c.blocks("f", 0);
        }),
    case(88, "preallocation past the end", "g/483, CM-8",
        "write f 0-256K A; sync; falloc f 256K+1M keep; fsync f; CRASH", |c| {
            c.content("f", 256 * K, &[(0, 256 * K, "A")]);
            c.blocks("f", 64 + 256);
        }),
    case(88, "two preallocations past the end, a write at the start", "g/677",
        "write f 0-16M A; falloc f 16M+1M keep; falloc f 20M+1M keep; sync; write f 0-4K B; fsync f; CRASH", |c| {
            c.content("f", 16 * M, &[(0, 16 * M, "A"), (0, 4 * K, "B")]);
            c.blocks("f", 4096 + 512);
        }),
    case(89, "zero range past the end, size kept", "CM-9",
        "write f 0-16K A; fsync f; zero f 16K+4K keep; fdatasync f; CRASH", |c| {
            c.content("f", 16 * K, &[(0, 16 * K, "A")]);
            c.blocks("f", 5);
        }),
    case(91, "tiny file and a tiny allocation", "g/512",
        "write f 0-21 A; falloc f 40+40; fsync f; CRASH", |c| c.content("f", 80, &[(0, 21, "A")])),
    case(92, "allocation of 1K after a large write", "g/468",
        "write f 0-4M A; fsync f; falloc f 4M+1K; fsync f; CRASH", |c| {
            c.content("f", 4 * M + K, &[(0, 4 * M, "A")]);
            c.blocks("f", 1025);
        }),
    case(92, "allocation of 4K, size kept, fdatasync", "g/468",
        "write f 0-4M A; fsync f; falloc f 4M+4K keep; fdatasync f; CRASH", |c| {
            c.content("f", 4 * M, &[(0, 4 * M, "A")]);
            c.blocks("f", 1025);
        }),
    case(92, "allocation of 100M, fdatasync", "g/468",
        "write f 0-4M A; fsync f; falloc f 4M+100M; fdatasync f; CRASH", |c| {
            c.content("f", 104 * M, &[(0, 4 * M, "A")]);
            c.blocks("f", 104 * 256);
        }),
    case(92, "allocation of 100M, size kept", "g/468",
        "write f 0-4M A; fsync f; falloc f 4M+100M keep; fsync f; CRASH", |c| {
            c.content("f", 4 * M, &[(0, 4 * M, "A")]);
            c.blocks("f", 104 * 256);
        }),
    case(98, "writes into preallocation across commits", "btrfs/240",
        "create f; falloc f 0+1M; falloc f 3M+3M; write f 3M-4M A; write f 5M-6M B; fsync f; sync; write f 4M-5M C;
         fsync f; write f 0-1M D; trunc f 5M; fsync f; CRASH", |c| {
            c.content("f", 5 * M, &[(0, M, "D"), (3 * M, 4 * M, "A"), (4 * M, 5 * M, "C")]);
            c.blocks("f", 3 * 256);
        }),
    case(100, "size grows over a hole in preallocation", "btrfs/172",
        "create f; falloc f 4K+8K keep; punch f 4K+4K; trunc f 12K; fsync f; CRASH", |c| {
            c.content("f", 12 * K, &[]);
            c.blocks("f", 1);
        }),
    case(112, "a small file grows out of its inline form", "derived",
        "write f 0-100 A; fsync f; write f 100-8K B; fsync f; trunc f 50; fsync f; trunc f 5000; fsync f; CRASH",
        |c| c.content("f", 5000, &[(0, 50, "A")])),
    case(143, "fsync of a new file that may get a deleted one's space", "e688b725",
        "write big 0-4M A; sync; unlink big; write new 0-4M B; fsync new; CRASH", |c| {
            c.names("/", &["new"]);
            c.content("new", 4 * M, &[(0, 4 * M, "B")]);
        }),
    // The deletion may have been lost; then all of the old data must be.
    case(143, "deleted file's space, nothing fsynced", "4bef0848",
        "write keep K; write big 0-4M A; sync; unlink big; write new 0-4M B; CRASH", |c| {
            c.block("keep", "K");
            if c.has("big") {
                c.content("big", 4 * M, &[(0, 4 * M, "A")]);
            }
        }),
    made(152, "many names deleted, one inserted again, fsync", "4751dc99", many_deletions, |c| {
        c.size("d", 101);
        c.exist(&["d/f1", "d/f902", "d/f1000"]);
        c.absent(&["d/f2", "d/f900"]);
        c.quoted("d/f1", "again");
    }),
    case(154, "rename after an fsync, fsync of an unrelated file", "d4682ba0",
        "write f A; fsync f; rename f g; create other; fsync other; CRASH", |c| {
            c.names("/", &["g", "other"]);
            c.block("g", "A");
        }),
    case(157, "directory renamed later in the log, its name taken again", "derived",
        "mkdir d; create d/f; fsync d/f; rename d e; fsync e; mkdir d; fsync d; CRASH", |c| {
            c.file("e/f");
            c.names("d", &[]);
        }).then("unlink e/f; rmdir e d"),
];

/// A file written in 64K pieces next to one with a large attribute, committed; then `end` and an fsync.
fn many_pieces(end: &str) -> String {
    let mut script = String::from("create other f; setx other user.large=*63K; ");
    for piece in 0..256 {
        let _ = write!(script, "write f {}K-{}K A; ", piece * 64, piece * 64 + 64);
    }
    format!("{script} sync; {end}; fsync f; CRASH")
}

fn many_deletions() -> String {
    let mut script = String::from("mkdir d; create");
    for number in 1..=1000 {
        let _ = write!(script, " d/f{number}");
    }
    script.push_str("; sync; unlink");
    for number in 1..=900 {
        let _ = write!(script, " d/f{number}");
    }
    script + "; write d/f1 \"again\"; fsync d/f1; CRASH"
}
