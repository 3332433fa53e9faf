//! Local directory trees: made for a test, and compared after they went through a volume.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::Random;

/// Number of names below a directory, itself not counted.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn count(root: &Path) -> u64 {
    let mut names = 0;
    let mut ahead = vec![root.to_path_buf()];
    while let Some(directory) = ahead.pop() {
        for entry in std::fs::read_dir(&directory).expect("a readable directory") {
            let entry = entry.expect("an entry");
            names += 1;
            if entry.file_type().expect("a kind").is_dir() {
                ahead.push(entry.path());
            }
        }
    }
    names
}

/// Directories of source code that this machine's cargo keeps, until they hold `names` names; fewer if there are fewer.
#[must_use]
pub fn sources(names: u64) -> (Vec<PathBuf>, u64) {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let Some(home) = home else { return (Vec::new(), 0) };
    let below =
        |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut crates: Vec<PathBuf> = below(home.join("registry/src")).flat_map(below).collect();
    crates.retain(|path| path.is_dir());
    crates.sort();
    let (mut taken, mut total) = (Vec::new(), 0);
    for path in crates {
        if total >= names {
            break;
        }
        total += 1 + count(&path);
        taken.push(path);
    }
    (taken, total)
}

/// Makes a tree of `files` files under `root` with everything that a copy can lose.
///
/// # Panics
/// If the file system refuses.
pub fn generate(root: &Path, files: u64, random: &mut Random) {
    std::fs::create_dir_all(root).expect("a directory");
    for number in 0..files {
        let directory = root.join(format!("part-{}/deep/{}", number % 17, number % 101));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join(format!("file-{number}"));
        let length = match number % 50 {
            0 => 0,
            1 => 300_000,
            _ => random.below(6000),
        };
        std::fs::write(&path, random.bytes(length as usize)).expect("a file");
        let mode = [0o644, 0o600, 0o755, 0o4755, 0o440, 0o1777][number as usize % 6];
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("permissions");
        let file = std::fs::File::options().read(true).open(&path).expect("the file");
        let time = SystemTime::UNIX_EPOCH
            + Duration::new(1_000_000 + random.below(1_500_000_000), random.below(1_000_000_000) as u32);
        file.set_modified(time).expect("a time");
    }
    special(root, random);
}

fn special(root: &Path, random: &mut Random) {
    let odd = root.join("odd");
    std::fs::create_dir_all(odd.join("empty")).expect("a directory");
    let named = |bytes: &[u8]| odd.join(OsString::from_vec(bytes.to_vec()));
    for name in
        [&b"with space"[..], b"new\nline", b"not-utf8-\xff\xfe", "grün".as_bytes(), b"-dash", &[b'x'; 255]]
    {
        std::fs::write(named(name), name).expect("a file");
    }
    symlink("with space", odd.join("link")).expect("a link");
    symlink("/nowhere/at/all", odd.join("dangling")).expect("a link");
    std::fs::hard_link(odd.join("with space"), odd.join("second name")).expect("a hard link");
    std::fs::hard_link(odd.join("with space"), odd.join("empty/third name")).expect("a hard link");
    rustix::fs::mknodat(rustix::fs::CWD, odd.join("pipe"), rustix::fs::FileType::Fifo, 0o640.into(), 0)
        .expect("a pipe");
    let sparse = std::fs::File::create(odd.join("sparse")).expect("a file");
    sparse.set_len(64 << 20).expect("a size");
    std::os::unix::fs::FileExt::write_all_at(&sparse, &random.bytes(5000), 40 << 20).expect("data");
    // Not every local file system keeps them.
    let _ = rustix::fs::setxattr(
        odd.join("with space"),
        "user.comment",
        b"kept \x00 exactly",
        rustix::fs::XattrFlags::empty(),
    );
    std::fs::set_permissions(odd.join("empty"), std::fs::Permissions::from_mode(0o2750))
        .expect("permissions");
    let directory = std::fs::File::open(odd.join("empty")).expect("a directory");
    directory.set_modified(SystemTime::UNIX_EPOCH + Duration::new(77, 1)).expect("a time");
}

/// Everything that differs between two trees, at most ten lines. Access times are not compared: reading changes them.
///
/// # Panics
/// If a tree cannot be read.
#[must_use]
pub fn differences(expected: &Path, found: &Path) -> Vec<String> {
    let (left, right) = (facts(expected), facts(found));
    let mut lines = Vec::new();
    for (path, fact) in &left {
        match right.get(path) {
            None => lines.push(format!("{} is missing", path.display())),
            Some(other) if other != fact => {
                lines.push(format!("{}: should be {fact:?}, is {other:?}", path.display()));
            }
            Some(_) if fact.kind == "file" => {
                let read = |root: &Path| std::fs::read(root.join(path)).expect("a readable file");
                if read(expected) != read(found) {
                    lines.push(format!("{}: other content", path.display()));
                }
            }
            Some(_) => {}
        }
        if lines.len() >= 10 {
            return lines;
        }
    }
    let unexpected = right.keys().filter(|path| !left.contains_key(*path));
    lines.extend(unexpected.take(10).map(|path| format!("{} should not be there", path.display())));
    lines
}

#[derive(Debug, PartialEq, Eq)]
struct Fact {
    kind: &'static str,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: (i64, i64),
    links: u64,
    /// The first path in order that names the same inode.
    first: PathBuf,
    target: Option<PathBuf>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    sparse: bool,
}

fn facts(root: &Path) -> BTreeMap<PathBuf, Fact> {
    let mut paths = vec![PathBuf::new()];
    let mut next = 0;
    while let Some(directory) = paths.get(next).cloned() {
        next += 1;
        let full = root.join(&directory);
        if std::fs::symlink_metadata(&full).expect("metadata").is_dir() {
            for entry in std::fs::read_dir(&full).expect("a readable directory") {
                paths.push(directory.join(entry.expect("an entry").file_name()));
            }
        }
    }
    paths.sort();
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut facts = BTreeMap::new();
    for path in paths {
        let full = root.join(&path);
        let metadata = std::fs::symlink_metadata(&full).expect("metadata");
        let kind = metadata.file_type();
        let (is_file, is_directory) = (kind.is_file(), kind.is_dir());
        let fact = Fact {
            kind: match () {
                () if is_file => "file",
                () if is_directory => "directory",
                () if kind.is_symlink() => "link",
                () if kind.is_fifo() => "pipe",
                () => "other",
            },
            // A link's own mode means nothing on Linux.
            mode: if kind.is_symlink() { 0 } else { metadata.mode() },
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: if is_file { metadata.size() } else { 0 },
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            links: if is_directory { 0 } else { metadata.nlink() },
            first: first.entry(metadata.ino()).or_insert_with(|| path.clone()).clone(),
            target: std::fs::read_link(&full).ok(),
            xattrs: xattrs(&full),
            sparse: is_file && metadata.size() > 1 << 20 && metadata.blocks() * 512 < metadata.size() / 2,
        };
        facts.insert(path, fact);
    }
    facts
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names) else { return BTreeMap::new() };
    let names =
        names.get(..length).unwrap_or_default().split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .filter(|name| name.starts_with(b"user."))
        .map(|name| {
            let mut value = vec![0; 65_536];
            let length = rustix::fs::lgetxattr(path, name, &mut value).expect("a listed attribute");
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect()
}
