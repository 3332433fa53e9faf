//! Known cases of user-level faults of file systems, on mounts of every kind: data, holes, large offsets. Each test quotes its case.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use subvol_tests::mount::command::script;
use subvol_tests::mount::expect::{Mapping, allocate, code, errno, punch, seek, stat};
use subvol_tests::mount::locks::{Family, lock, unlock};
use subvol_tests::mount::{Kind, MountUnderTest, each};
use subvol_tests::{Random, number_from_environment};

fn create(mount: &MountUnderTest, name: &str) -> File {
    File::options().read(true).write(true).create(true).truncate(true).open(mount.path(name)).expect("a file")
}

fn is_zero(file: &File, offset: u64, length: usize) -> bool {
    let mut bytes = vec![0xff; length];
    file.read_exact_at(&mut bytes, offset).expect("bytes");
    bytes.iter().all(|byte| *byte == 0)
}

/// N8: truncate up reads zeros; no bytes of others: canaries first, then holes by trunc/seek/punch. Only zeros.
#[test]
fn n8_holes_read_as_zeros() {
    each(|mount| {
        for round in 0..5 {
            std::fs::write(mount.path(&format!("canary-{round}")), vec![0xa5; 3 << 20]).expect("a file");
            let file = create(mount, "file");
            file.write_all_at(&[0x5a; 10_000], 0).expect("a write");
            file.set_len(100).expect("ours");
            file.set_len(1 << 20).expect("ours");
            assert!(is_zero(&file, 100, (1 << 20) - 100), "truncated down and up");
            file.write_all_at(b"x", 3 << 20).expect("a write");
            assert!(is_zero(&file, 100, (3 << 20) - 100), "a gap before a write");
            file.write_all_at(&[0x5a; 100_000], 5000).expect("a write");
            punch(&file, 6001, 90_000).expect("ours");
            assert!(is_zero(&file, 6001, 90_000), "punched");
            allocate(&file, 0, 4 << 20, 1 << 20).expect("ours");
            assert!(is_zero(&file, 4 << 20, 1 << 20), "allocated");
            allocate(&file, libc::FALLOC_FL_ZERO_RANGE, 5001, 900).expect("ours");
            assert!(is_zero(&file, 5001, 900), "zeroed");
            std::fs::remove_file(mount.path(&format!("canary-{round}"))).expect("ours");
        }
    });
}

/// A page in the cache behind the new end must not come back, whether it was read or mapped.
#[test]
fn n8_truncation_drops_what_was_mapped() {
    each(|mount| {
        let file = create(mount, "file");
        file.set_len(8192).expect("ours");
        let mapping = Mapping::new(&file, 8192).expect("a mapping");
        mapping.write(0, &[1; 8192]);
        file.set_len(100).expect("ours");
        file.set_len(8192).expect("ours");
        assert!(is_zero(&file, 100, 8092));
        mapping.write(5000, b"again");
        mapping.sync().expect("ours");
        drop(mapping);
        let bytes = std::fs::read(mount.path("file")).expect("the file");
        assert_eq!((&bytes[..100], &bytes[5000..5005]), (&[1; 100][..], &b"again"[..]));
        assert!(bytes[100..5000].iter().all(|byte| *byte == 0));
    });
}

/// N10: punch then copy, copy then overwrite: both files right.
#[test]
fn n10_copies_are_independent() {
    each(|mount| {
        let (one, two) = (create(mount, "one"), create(mount, "two"));
        let bytes = Random::new(10).bytes(300_000);
        one.write_all_at(&bytes, 0).expect("a write");
        punch(&one, 8192, 65_536).expect("ours");
        let mut expected = bytes;
        expected[8192..8192 + 65_536].fill(0);
        let (mut from, mut to) = (0, 0);
        while from < 300_000 {
            let copied = rustix::fs::copy_file_range(&one, Some(&mut from), &two, Some(&mut to), 300_000);
            assert!(copied.expect("a copy") > 0, "at {from}");
        }
        one.write_all_at(&[1; 20_000], 4000).expect("a write");
        assert!(std::fs::read(mount.path("two")).expect("the copy") == expected, "the copy");
        two.write_all_at(&[2; 20_000], 100_000).expect("a write");
        let mut found = vec![0; 20_000];
        one.read_exact_at(&mut found, 100_000).expect("bytes");
        assert!(found == expected[100_000..120_000], "the source");
    });
}

/// N11: read/write/punch/lock/SEEK at 4G-1, 4G, 16T, max; EFBIG past the limit; right sizes.
#[test]
fn n11_large_offsets() {
    each(|mount| {
        // A folder of the machine may have a lower limit.
        let largest = if mount.kind() == Kind::Plain { 1 << 43 } else { 1 << 44 };
        let file = create(mount, "file");
        for offset in [(1_u64 << 32) - 1, 1 << 32, (1 << 40) + 12_345, largest - 8192] {
            let text = format!("at {offset}");
            file.write_all_at(text.as_bytes(), offset).expect("a write");
            assert_eq!(file.metadata().expect("attributes").len(), offset + text.len() as u64);
            let mut found = vec![0; text.len()];
            file.read_exact_at(&mut found, offset).expect("bytes");
            assert_eq!(found, text.as_bytes());
            let block = offset / 4096 * 4096;
            assert_eq!(seek(&file, offset, libc::SEEK_DATA).expect("data"), offset);
            assert!(seek(&file, block - 4096 * 20, libc::SEEK_DATA).expect("data") <= offset);
            assert!(stat(&mount.path("file")).blocks() <= 128, "a sparse file");
            lock(&file, Family::OpenFile, true, offset, 10).expect("free");
            unlock(&file, Family::OpenFile, offset, 10).expect("ours");
            punch(&file, offset, 4096).expect("ours");
            let left = is_zero(&file, offset, text.len());
            assert!(left, "punched at {offset}");
        }
        assert_eq!(errno(seek(&file, largest, libc::SEEK_DATA)), libc::ENXIO);
        lock(&file, Family::OpenFile, true, i64::MAX as u64 - 10, 10).expect("free");
        // The last byte that a file can have: refused as too far, or really there.
        let last = i64::MAX as u64 - 1;
        let written = errno(file.write_at(b"x", last));
        assert!(matches!(written, 0 | libc::EFBIG), "{written}");
        if written == 0 {
            assert_eq!(file.metadata().expect("attributes").len(), last + 1);
            let mut byte = [0];
            assert_eq!((file.read_at(&mut byte, last).expect("a byte"), byte), (1, *b"x"));
        }
        file.set_len(0).expect("ours");
        assert_eq!(file.metadata().expect("attributes").blocks(), 0);
    });
}

/// N38: 1 TiB file with three 4K blocks: st_blocks small, `cp`, `tar -S` keep it sparse, quota charges only data.
#[test]
fn n38_sparse_files_end_to_end() {
    each(|mount| {
        let file = create(mount, "sparse");
        file.set_len(1 << 40).expect("ours");
        for offset in [0, 1 << 39, (1 << 40) - 4096] {
            file.write_all_at(&[7; 4096], offset).expect("a write");
        }
        file.sync_all().expect("ours");
        assert!(stat(&mount.path("sparse")).blocks() <= 3 * 16, "{}", stat(&mount.path("sparse")).blocks());
        assert_eq!(seek(&file, 4096, libc::SEEK_DATA).expect("data"), 1 << 39);
        assert_eq!(seek(&file, 1 << 39, libc::SEEK_HOLE).expect("a hole"), (1 << 39) + 4096);
        assert_eq!(seek(&file, (1 << 40) - 4096, libc::SEEK_HOLE).expect("the end"), 1 << 40);
        script(
            mount.directory(),
            &[],
            "cp --sparse=auto sparse copy; tar -Scf sparse.tar sparse; mkdir out; tar -C out -xSf sparse.tar
             for file in copy out/sparse; do
                 test $(stat -c %s $file) = 1099511627776; test $(stat -c %b $file) -le 48
             done
             test $(stat -c %s sparse.tar) -le 100000
             cmp -n 8192 sparse copy
             for skip in 134217728 268435455; do
                 test \"$(dd if=copy bs=4096 skip=$skip count=1 status=none | tr -d '\\007' | wc -c)\" = 0
             done",
        );
    });
}

/// Random reads, writes and mappings of one file through several handles at once agree with a copy in memory.
#[test]
fn several_handles_see_one_file() {
    each(|mount| {
        let mut random = Random::from_environment("several_handles_see_one_file");
        let mut copy = vec![0_u8; 256 * 1024];
        let first = create(mount, "file");
        first.set_len(copy.len() as u64).expect("ours");
        let again = || File::options().read(true).write(true).open(mount.path("file")).expect("the file");
        let (second, mut third) = (again(), again());
        let mapping = Mapping::new(&second, copy.len()).expect("a mapping");
        for step in 0..number_from_environment("HANDLE_STEPS", 3000) {
            let offset = random.below(copy.len() as u64 - 9000) as usize;
            let length = 1 + random.below(9000) as usize;
            let bytes = random.bytes(length);
            match random.below(6) {
                0 => first.write_all_at(&bytes, offset as u64).expect("a write"),
                1 => {
                    third.seek(SeekFrom::Start(offset as u64)).expect("a position");
                    third.write_all(&bytes).expect("a write");
                }
                2 => mapping.write(offset, &bytes),
                choice => {
                    let mut found = vec![0; length];
                    match choice {
                        3 => first.read_exact_at(&mut found, offset as u64).expect("bytes"),
                        4 => {
                            third.seek(SeekFrom::Start(offset as u64)).expect("a position");
                            third.read_exact(&mut found).expect("bytes");
                        }
                        _ => again().read_exact_at(&mut found, offset as u64).expect("bytes"),
                    }
                    assert!(
                        found == copy[offset..offset + length],
                        "step {step}: {length} bytes at {offset}"
                    );
                    continue;
                }
            }
            copy[offset..offset + length].copy_from_slice(&bytes);
        }
        mapping.sync().expect("ours");
        drop((mapping, first, second, third));
        assert!(std::fs::read(mount.path("file")).expect("the file") == copy, "in the end");
    });
}

/// A file that was removed lives on for whoever has it open, and a file that never had a name can get one.
#[test]
fn files_without_names() {
    each(|mount| {
        let file = create(mount, "file");
        file.write_all_at(&[3; 50_000], 0).expect("a write");
        std::fs::remove_file(mount.path("file")).expect("ours");
        assert_eq!(file.metadata().expect("attributes").nlink(), 0);
        file.write_all_at(&[4; 50_000], 50_000).expect("a write");
        file.sync_all().expect("ours");
        let mut bytes = vec![0; 100_000];
        file.read_exact_at(&mut bytes, 0).expect("bytes");
        assert!(bytes[..50_000] == [3; 50_000] && bytes[50_000..] == [4; 50_000]);
        use rustix::fs::{AtFlags, CWD, Mode, OFlags};
        let unnamed =
            rustix::fs::open(mount.directory(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
        let unnamed = File::from(unnamed.expect("a file without a name"));
        unnamed.write_all_at(b"named in the end", 0).expect("a write");
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
        let target = mount.path("named");
        assert_eq!(code(rustix::fs::linkat(CWD, own, CWD, &target, AtFlags::SYMLINK_FOLLOW)), 0);
        assert_eq!(std::fs::read(target).expect("the file"), b"named in the end");
    });
}
