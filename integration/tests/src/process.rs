//! Child processes that never outlive the tests.
//!
//! Invariant: every child gets SIGKILL from the kernel when the test process ends, however it ends. The kernel ties that to the thread
//! that made the child, so one thread that lives as long as the process makes them all.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a child.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(mut command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    // SAFETY: between fork and exec only prctl is called, which is a plain system call: no allocation, no lock.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
    }
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, received) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in received {
                // Whoever ordered is gone: dropping the child leaves it to the death signal.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = mpsc::channel();
    let gone = |_| io::Error::other("the spawning thread is gone");
    spawner
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .send((command, answer))
        .map_err(|_| gone(()))?;
    child.recv().map_err(|_| gone(()))?
}

/// Lets a child survive writes above its file size limit, which then fail with `EFBIG`: the way to make a device fail without any
/// privilege, see [`limit_file_size`].
pub fn ignore_file_limit_signal(command: &mut Command) {
    // SAFETY: between fork and exec only signal is called, which is a plain system call; an ignored signal stays ignored over exec.
    unsafe {
        command.pre_exec(|| {
            if libc::signal(libc::SIGXFSZ, libc::SIG_IGN) == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// From now on every write of that process behind the first `bytes` of any file fails; `None` ends that.
///
/// # Errors
/// The kernel's.
pub fn limit_file_size(pid: u32, bytes: Option<u64>) -> io::Result<()> {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // Only the soft limit, so that it can be lifted again.
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
    Ok(())
}

/// Waits for a child's end; `None` if it does not come in time.
pub fn wait(child: &mut Child, bound: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < bound => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => return None,
            Err(error) => panic!("waiting for a child: {error}"),
        }
    }
}
