//! The three families of Linux file locks, for one process and for several.
//!
//! POSIX locks belong to a process: to see two owners, a second process has to hold one. That is the test's own program, started again
//! on a test that does nothing unless [`ORDER`] is set; see [`hold_if_ordered`].

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::FlockOperation;

use crate::process;

/// The variable with what a holder shall lock.
pub const ORDER: &str = "SUBVOL_TEST_LOCK";

/// What a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `fcntl(F_SETLK)`: owned by a process, gone with any close of the file.
    Posix,
    /// `fcntl(F_OFD_SETLK)`: owned by an open file.
    OpenFile,
    /// `flock`: owned by an open file, the whole file.
    Whole,
}

/// Takes an exclusive lock, or a shared one, or fails with `EAGAIN`. `Family::Whole` ignores the range; a length of 0 is to the end.
///
/// # Errors
/// The kernel's.
pub fn lock(file: &File, family: Family, exclusive: bool, start: u64, length: u64) -> io::Result<()> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    match family {
        Family::Posix => range(file, libc::F_SETLK, kind, start, length).map(drop),
        Family::OpenFile => range(file, libc::F_OFD_SETLK, kind, start, length).map(drop),
        Family::Whole => {
            let operation = if exclusive {
                FlockOperation::NonBlockingLockExclusive
            } else {
                FlockOperation::NonBlockingLockShared
            };
            Ok(rustix::fs::flock(file, operation)?)
        }
    }
}

/// As [`lock`], waits instead of failing.
///
/// # Errors
/// The kernel's.
pub fn lock_and_wait(file: &File, family: Family, start: u64, length: u64) -> io::Result<()> {
    match family {
        Family::Posix => range(file, libc::F_SETLKW, libc::F_WRLCK, start, length).map(drop),
        Family::OpenFile => range(file, libc::F_OFD_SETLKW, libc::F_WRLCK, start, length).map(drop),
        Family::Whole => Ok(rustix::fs::flock(file, FlockOperation::LockExclusive)?),
    }
}

/// Gives a lock back.
///
/// # Errors
/// The kernel's.
pub fn unlock(file: &File, family: Family, start: u64, length: u64) -> io::Result<()> {
    match family {
        Family::Posix => range(file, libc::F_SETLK, libc::F_UNLCK, start, length).map(drop),
        Family::OpenFile => range(file, libc::F_OFD_SETLK, libc::F_UNLCK, start, length).map(drop),
        Family::Whole => Ok(rustix::fs::flock(file, FlockOperation::Unlock)?),
    }
}

/// Whether somebody else's lock is in the way of an exclusive one (`F_OFD_GETLK`).
///
/// # Errors
/// The kernel's.
pub fn is_in_the_way(file: &File, start: u64, length: u64) -> io::Result<bool> {
    let found = range(file, libc::F_OFD_GETLK, libc::F_WRLCK, start, length)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

fn range(file: &File, command: i32, kind: i32, start: u64, length: u64) -> io::Result<libc::flock> {
    // SAFETY: plain numbers, for which zeros are a value.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = kind as i16;
    wanted.l_whence = libc::SEEK_SET as i16;
    (wanted.l_start, wanted.l_len) = (start as i64, length as i64);
    // SAFETY: a descriptor that is open, and a structure that lives through the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut wanted) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(wanted) }
}

/// Another process that holds a POSIX lock until it is dropped or killed.
#[derive(Debug)]
pub struct Holder {
    child: Child,
}

impl Holder {
    /// Starts a process that takes an exclusive POSIX lock at once. The test program must have a test `lock_holder` that calls
    /// [`hold_if_ordered`].
    ///
    /// # Errors
    /// What the process was refused with.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(path: &Path, start: u64, length: u64) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe().expect("the test's own path"));
        command.args(["--exact", "lock_holder", "--nocapture", "--ignored"]);
        command.env(ORDER, format!("{start} {length} {}", path.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = process::spawn(command)?;
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut holder = Self { child };
        for line in output.lines() {
            // The harness may have begun the line.
            let line = line?;
            let Some((_, word)) = line.split_once("holder: ") else { continue };
            let number: i32 = word.trim().parse().expect("an errno");
            return if number == 0 { Ok(holder) } else { Err(io::Error::from_raw_os_error(number)) };
        }
        let status = holder.child.wait()?;
        panic!("the holder ended without a word: {status}");
    }

    /// Whether another process may take this exclusive lock now.
    ///
    /// # Panics
    /// If it is refused with anything but "held".
    #[must_use]
    pub fn may(path: &Path, start: u64, length: u64) -> bool {
        match Self::start(path, start, length) {
            Ok(_) => true,
            Err(error) => {
                let number = error.raw_os_error();
                assert!(matches!(number, Some(libc::EAGAIN | libc::EACCES)), "{}: {error}", path.display());
                false
            }
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The holder's side: does nothing in an ordinary run.
///
/// # Panics
/// If the order makes no sense.
pub fn hold_if_ordered() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let mut words = order.splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
    let (start, length) = (number(), number());
    let path = PathBuf::from(words.next().expect("a path"));
    let opened = File::options().read(true).write(true).open(path);
    let locked = opened.and_then(|file| lock(&file, Family::Posix, true, start, length).map(|()| file));
    let told = match &locked {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1),
    };
    println!("holder: {told}");
    let _ = io::stdout().flush();
    // Until the test is done with this process; the lock lives as long as the file.
    let _ = io::stdin().read(&mut [0]);
}
