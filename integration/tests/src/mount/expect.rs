//! Small words that tests of directories share: what a call must give, what a directory shows.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The errno of a result; 0 for success.
pub fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
}

/// As [`errno`] for calls of rustix.
pub fn code<T>(result: rustix::io::Result<T>) -> i32 {
    result.err().map_or(0, rustix::io::Errno::raw_os_error)
}

/// The names in a directory.
///
/// # Panics
/// If it cannot be listed, or lists a name twice.
#[must_use]
pub fn names(directory: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
    {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(names.insert(name.clone()), "{}: {name} is listed twice", directory.display());
    }
    names
}

/// Attributes, without following a symbolic link.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn stat(path: &Path) -> Metadata {
    std::fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// atime, mtime and ctime, in nanoseconds since 1970.
#[must_use]
pub fn times(path: &Path) -> [i128; 3] {
    let found = stat(path);
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    [
        nanoseconds(found.atime(), found.atime_nsec()),
        nanoseconds(found.mtime(), found.mtime_nsec()),
        nanoseconds(found.ctime(), found.ctime_nsec()),
    ]
}

/// Makes the next change's time differ from the last one's, also where the kernel's coarse clock counts.
pub fn let_time_pass() {
    std::thread::sleep(std::time::Duration::from_millis(30));
}

/// Where the next data or hole begins (`SEEK_DATA`, `SEEK_HOLE`).
///
/// # Errors
/// The kernel's; `ENXIO` behind the last.
pub fn seek(file: &File, offset: u64, whence: i32) -> io::Result<u64> {
    // SAFETY: a plain system call on a descriptor that is open.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found as u64) }
}

/// `fallocate`.
///
/// # Errors
/// The kernel's.
pub fn allocate(file: &File, mode: i32, offset: u64, length: u64) -> io::Result<()> {
    // SAFETY: a plain system call on a descriptor that is open.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a hole.
///
/// # Errors
/// The kernel's.
pub fn punch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    allocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, length)
}

/// Renames with flags.
///
/// # Errors
/// The kernel's.
pub fn rename(from: &Path, to: &Path, flags: rustix::fs::RenameFlags) -> io::Result<()> {
    use rustix::fs::CWD;
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}

/// A path as C takes it.
///
/// # Panics
/// If it contains a NUL.
#[must_use]
pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without NUL")
}

/// A shared mapping of the first bytes of a file, for writing.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    /// Maps.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(file: &File, length: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a descriptor that is open; unmapped when dropped.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { start: start.cast(), length })
        }
    }

    /// Writes bytes at an offset.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length, "within the mapping");
        // SAFETY: within the mapping, which lives as long as self; only this test's thread touches it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }

    /// Writes changed pages to the file and waits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: exactly the range that was mapped.
        let done = unsafe { libc::msync(self.start.cast(), self.length, libc::MS_SYNC) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, and nobody has a reference into it.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}
