//! A directory that is judged as a file system: a mount of a real server, or, to try a test's own logic, a folder of this machine.
//!
//! Invariants: a test sees directories only, so that the same test runs on every kind; no mount and no process survives the test that
//! made it; a file system that does not answer is cut off after [`BOUND`], which fails the test's calls instead of hanging them.
//!
//! `SUBVOL_TEST_DIR=DIR` runs everything in a folder of `DIR` (two "mounts" are then the same folder).
//! `SUBVOL_MOUNT_KIND=local|remote` runs one kind only.

pub mod command;
pub mod expect;
pub mod locks;
pub mod perform;
pub mod picture;
pub mod programs;
pub mod suites;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Server, Setup, Tool, binaries, process};

/// The volume that is mounted.
pub const VOLUME: &str = "mounted";
/// How long a test may work on a mount before it is cut off, unless it says otherwise.
pub const BOUND: Duration = Duration::from_secs(300);
/// How long it may take until a mount is there, or is gone.
const MOUNT_BOUND: Duration = Duration::from_secs(30);

/// How a directory comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder of this machine; judges the test, not the product.
    Plain,
    /// Served inside of the server's process.
    Local,
    /// Served by a process of its own over a socket.
    Remote,
}

/// One mounted directory.
#[derive(Debug)]
pub struct MountUnderTest {
    directory: PathBuf,
    kind: Kind,
    server: Option<Arc<Mutex<Server>>>,
    process: Option<Child>,
    /// Ends the watch over the mount.
    _watch: Option<Sender<()>>,
    // Last: removed when nothing is mounted on it any more.
    _folder: Option<Arc<tempfile::TempDir>>,
}

/// The kinds to test.
#[must_use]
pub fn kinds() -> Vec<Kind> {
    if plain_directory().is_some() {
        return vec![Kind::Plain];
    }
    match std::env::var("SUBVOL_MOUNT_KIND").as_deref() {
        Ok("local") => vec![Kind::Local],
        Ok("remote") => vec![Kind::Remote],
        Ok(other) => panic!("SUBVOL_MOUNT_KIND={other} is neither local nor remote"),
        Err(_) => vec![Kind::Local, Kind::Remote],
    }
}

/// Runs a test on one mount of every kind.
pub fn each(body: impl Fn(&mut MountUnderTest)) {
    each_within(BOUND, body);
}

/// As [`each`] with a bound of its own.
pub fn each_within(bound: Duration, body: impl Fn(&mut MountUnderTest)) {
    for kind in kinds() {
        eprintln!("on a {kind:?} mount:");
        let [mut mount] = start([kind], Setup { store_bytes: 8 << 30, ..Setup::default() }, bound);
        body(&mut mount);
    }
}

/// Runs a test on two mounts of one volume, the second of which is always remote and can be killed on its own.
pub fn each_pair(body: impl Fn(&mut MountUnderTest, &mut MountUnderTest)) {
    for kind in kinds() {
        let second = if kind == Kind::Plain { Kind::Plain } else { Kind::Remote };
        eprintln!("on a {kind:?} and a {second:?} mount:");
        let [mut one, mut two] = start([kind, second], Setup::default(), BOUND);
        body(&mut one, &mut two);
    }
}

/// Mounts a new volume of a new server. At most the first mount is [`Kind::Local`].
///
/// # Panics
/// If a mount does not come up.
#[must_use]
pub fn start<const N: usize>(kinds: [Kind; N], setup: Setup, bound: Duration) -> [MountUnderTest; N] {
    if kinds.contains(&Kind::Plain) {
        let base = plain_directory().expect("SUBVOL_TEST_DIR");
        let folder =
            tempfile::Builder::new().prefix("plain-").tempdir_in(base).expect("a folder in SUBVOL_TEST_DIR");
        open_to_all(folder.path());
        let folder = Arc::new(folder);
        return kinds.map(|kind| MountUnderTest {
            directory: folder.path().to_path_buf(),
            kind,
            server: None,
            process: None,
            _watch: None,
            _folder: Some(Arc::clone(&folder)),
        });
    }
    let limit = (setup.store_bytes / 2).to_string();
    let mut server = Server::start(setup);
    // With limits, so that its free space is its own and not what the device has left.
    Tool::beside(&server).ok(["volume", "create", VOLUME, "--max-bytes", &limit, "--max-inodes", "1M"]);
    let folders = kinds.map(|_| {
        let folder = tempfile::Builder::new().prefix("subvol-mount-").tempdir().expect("a folder");
        open_to_all(folder.path());
        folder
    });
    if let Some(index) = kinds.iter().position(|kind| *kind == Kind::Local) {
        assert!(server.terminate().success(), "the server without a mount");
        let argument = format!("{VOLUME}={}", folders[index].path().display());
        server.setup_mut().arguments.extend(["--mount".into(), argument.into()]);
        server.restart();
    }
    let server = Arc::new(Mutex::new(server));
    let mut folders = folders.into_iter();
    kinds.map(|kind| {
        let folder = folders.next().expect("one for each");
        let directory = folder.path().to_path_buf();
        let mut mount = MountUnderTest {
            _watch: Some(watch(directory.clone(), bound)),
            directory,
            kind,
            server: Some(Arc::clone(&server)),
            process: None,
            _folder: Some(Arc::new(folder)),
        };
        match kind {
            Kind::Remote => mount.mount(),
            _ => mount.await_mounted(),
        }
        mount
    })
}

impl MountUnderTest {
    /// The root of the volume.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A path in the volume.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// How it is mounted.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The server; `None` for a plain folder.
    #[must_use]
    pub fn server(&self) -> Option<MutexGuard<'_, Server>> {
        self.server.as_ref().map(|server| server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts the process of a remote mount, for the first time or again.
    ///
    /// # Panics
    /// If it ends before the mount is there.
    pub fn mount(&mut self) {
        assert!(self.kind == Kind::Remote && self.process.is_none(), "only a remote mount, and once");
        let mut command = Command::new(binaries::subvol());
        command.args(["mount", "--foreground", VOLUME]).arg(&self.directory).env("NO_COLOR", "1");
        command.env_remove("SUBVOLD_SERVER").env_remove("SUBVOLD_TOKEN_FILE");
        command.stdin(Stdio::null());
        // The command line finds the server in the folder where a user would stand.
        let beside = self.server().expect("a server").beside().to_path_buf();
        command.current_dir(beside);
        self.process = Some(process::spawn(command).expect("the mount's process"));
        self.await_mounted();
    }

    /// kill -9 of a remote mount's process; what is left of the mount is taken away.
    ///
    /// # Panics
    /// If the mount has no process of its own.
    pub fn kill(&mut self) {
        let mut child = self.process.take().expect("a remote mount's process");
        child.kill().expect("a child");
        child.wait().expect("a child");
        cut_off(&self.directory);
    }

    /// Unmounts as a user does, and waits until the process of a remote mount is gone.
    ///
    /// # Errors
    /// The kernel's, for instance when files are open.
    ///
    /// # Panics
    /// If the process does not end.
    pub fn unmount(&mut self) -> std::io::Result<()> {
        unmount_with(&self.directory, 0)?;
        if let Some(mut child) = self.process.take() {
            assert!(
                process::wait(&mut child, MOUNT_BOUND).is_some(),
                "the process of the mount goes on without it"
            );
        }
        Ok(())
    }

    /// kill -9 of the server, and its restart. A local mount dies with its server and comes back with it; a remote one lives on.
    ///
    /// # Panics
    /// If the server or the mount does not come back.
    pub fn crash_server(&self) {
        if let Some(mut server) = self.server() {
            server.kill();
            if self.kind == Kind::Local {
                cut_off(&self.directory);
            }
            server.restart();
        }
        let start = Instant::now();
        while self.kind == Kind::Local && !is_mounted(&self.directory) {
            assert!(start.elapsed() < MOUNT_BOUND, "the mount does not come back with its server");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Takes away what is left of a mount that nobody serves.
    pub fn cut_off(&self) {
        cut_off(&self.directory);
    }

    /// Waits until it is mounted.
    ///
    /// # Panics
    /// If that takes too long, or if the mount's process ends.
    pub fn await_mounted(&mut self) {
        let start = Instant::now();
        while !is_mounted(&self.directory) {
            if let Some(process) = &mut self.process
                && let Some(status) = process.try_wait().expect("a child")
            {
                panic!("the mount's process ended with {status} and mounted nothing");
            }
            assert!(
                start.elapsed() < MOUNT_BOUND,
                "{:?}: nothing is mounted after {MOUNT_BOUND:?}",
                self.kind
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for MountUnderTest {
    fn drop(&mut self) {
        if self.kind == Kind::Plain {
            return;
        }
        if unmount_with(&self.directory, 0).is_err() {
            cut_off(&self.directory);
        }
        if let Some(mut child) = self.process.take()
            && process::wait(&mut child, Duration::from_secs(5)).is_none()
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn plain_directory() -> Option<PathBuf> {
    std::env::var_os("SUBVOL_TEST_DIR").map(PathBuf::from)
}

/// Other users have to come through.
fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("a folder of ours");
}

/// Whether something is mounted on a folder.
///
/// # Panics
/// If the kernel does not tell.
#[must_use]
pub fn is_mounted(folder: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == folder))
}

fn unmount_with(folder: &Path, flags: i32) -> std::io::Result<()> {
    let path = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes())?;
    // SAFETY: a string that ends in NUL and lives through the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Ends a mount whatever is open on it and whether or not anybody still serves it: calls under way fail.
fn cut_off(folder: &Path) {
    let _ = unmount_with(folder, libc::MNT_FORCE);
    let _ = unmount_with(folder, libc::MNT_DETACH);
}

fn watch(folder: PathBuf, bound: Duration) -> Sender<()> {
    let (keep, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
            eprintln!("the test is not done after {bound:?}: its mount is cut off");
            cut_off(&folder);
        }
    });
    keep
}
