//! A real server process on a folder of its own.
//!
//! Invariants: [`Server::start`] returns when the server answers a hello, or panics with everything it printed; dropping kills it and
//! removes its folder.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use subvol_client::{Address, Client, ClientBuilder, Endpoint, ErrorCode, Limits, Retries, Token, Volume};

use crate::raw::Raw;
use crate::{binaries, process, soon};

/// How long a start may take: formatting writes the log ring once, and replay reads it.
pub const START_BOUND: Duration = Duration::from_secs(90);
/// How long a stop may take: it commits everything.
pub const STOP_BOUND: Duration = Duration::from_secs(60);

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of the store when it is made; sparse.
    pub store_bytes: u64,
    /// The unix socket, if it is not the usual one in the data folder.
    pub socket: Option<PathBuf>,
    /// Make a write above the process's file size limit an error instead of its end, so that a test can make the device fail.
    pub survives_file_limit: bool,
    /// Further arguments.
    pub arguments: Vec<OsString>,
}

impl Default for Setup {
    fn default() -> Self {
        // Small: the log ring is a share of it and is written with zeros at the first start, and tests start many servers.
        Self { store_bytes: 1 << 30, socket: None, survives_file_limit: false, arguments: Vec::new() }
    }
}

impl Setup {
    /// The arguments for a data folder.
    #[must_use]
    pub fn arguments(&self, data: &Path) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec!["--data".into(), data.into()];
        let mut add = |name: &str, value: String| all.extend([name.into(), value.into()]);
        add("--size", self.store_bytes.to_string());
        if let Some(path) = &self.socket {
            add("--unix", path.display().to_string());
        }
        // Any free port: servers of tests that run side by side must not meet.
        add("--listen", "127.0.0.1:0".into());
        all.extend(self.arguments.iter().cloned());
        all
    }
}

/// A start that failed.
#[derive(Debug)]
pub struct Refused {
    /// How the process ended.
    pub status: ExitStatus,
    /// Everything it printed.
    pub output: String,
}

/// A running server, or one that was stopped and can be started again.
#[derive(Debug)]
pub struct Server {
    setup: Setup,
    data: PathBuf,
    child: Option<Child>,
    output: Arc<Mutex<String>>,
    // Last, so that the process is gone before its folder is removed.
    _folder: Option<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the server printed:\n{}---", self.output());
        }
    }
}

impl Server {
    /// Starts a server on a new folder.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(setup: Setup) -> Self {
        let folder = tempfile::Builder::new().prefix("subvold-test-").tempdir().expect("a temporary folder");
        let data = folder.path().join("subvold-data");
        let mut server = Self::stopped(setup, data, Some(folder));
        server.restart();
        server
    }

    /// A server that does not run yet, on a data folder that the caller keeps.
    #[must_use]
    pub fn at(setup: Setup, data: PathBuf) -> Self {
        Self::stopped(setup, data, None)
    }

    fn stopped(setup: Setup, data: PathBuf, folder: Option<tempfile::TempDir>) -> Self {
        Self { setup, data, child: None, output: Arc::default(), _folder: folder }
    }

    /// Starts it again after [`Self::kill`] or [`Self::terminate`].
    ///
    /// # Panics
    /// If it does not come up.
    pub fn restart(&mut self) {
        if let Err(refused) = self.try_start() {
            panic!("the server ended with {}:\n{}", refused.status, refused.output);
        }
    }

    /// Starts it and waits until it answers or ends.
    ///
    /// # Errors
    /// What it printed before it ended by itself.
    ///
    /// # Panics
    /// If it does neither in time.
    pub fn try_start(&mut self) -> Result<(), Refused> {
        assert!(self.child.is_none(), "the server runs already");
        let mut command = Command::new(binaries::subvold());
        command.args(self.setup.arguments(&self.data));
        // Nothing of the developer's own environment.
        command.env_remove("SUBVOLD_SERVER").env_remove("SUBVOLD_TOKEN_FILE").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.output = Arc::default();
        if self.setup.survives_file_limit {
            process::ignore_file_limit_signal(&mut command);
        }
        let mut child = process::spawn(command).expect("the server's program");
        let out = child.stdout.take().map(|pipe| collect(pipe, &self.output));
        let err = child.stderr.take().map(|pipe| collect(pipe, &self.output));
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                for reader in [out, err].into_iter().flatten() {
                    let _ = reader.join();
                }
                return Err(Refused { status, output: self.output() });
            }
            if answers(&self.socket()) {
                self.child = Some(child);
                return Ok(());
            }
            if start.elapsed() > START_BOUND {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the server does not answer after {START_BOUND:?}:\n{}", self.output());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// kill -9.
    ///
    /// # Panics
    /// If it does not run, or ended before by itself.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("a running server");
        if let Some(status) = child.try_wait().expect("a child") {
            panic!("the server ended by itself with {status}:\n{}", self.output());
        }
        child.kill().expect("a child");
        child.wait().expect("a child");
    }

    /// SIGTERM; gives how it ended.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("a running server");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child");
        match process::wait(&mut child, STOP_BOUND) {
            Some(status) => status,
            None => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the server did not stop within {STOP_BOUND:?}:\n{}", self.output());
            }
        }
    }

    /// Other settings for the next start.
    pub const fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    /// Everything the current process printed.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The folder the data folder is in: where a user who started the server by hand stands.
    #[must_use]
    pub fn beside(&self) -> &Path {
        self.data.parent().unwrap_or(&self.data)
    }

    /// The unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.setup.socket.clone().unwrap_or_else(|| self.data.join("subvold.sock"))
    }

    /// The file with the first token.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.data.join("default.token")
    }

    /// The first token.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn token(&self) -> Token {
        let bytes = std::fs::read(self.token_file()).expect("default.token");
        Token::new(bytes.trim_ascii()).expect("a token")
    }

    /// The address of the unix socket.
    ///
    /// # Panics
    /// If the path is no UTF-8.
    #[must_use]
    pub fn address(&self) -> Address {
        let path = self.socket().to_str().expect("a path of UTF-8").into();
        Address { endpoint: Endpoint::Unix { path }, tenant: None, volume: None }
    }

    /// The TCP address it says it listens on.
    ///
    /// # Panics
    /// If it names none.
    #[must_use]
    pub fn tcp(&self) -> SocketAddr {
        let output = self.output();
        let words = output.split(|c: char| c.is_whitespace() || "\"',()=".contains(c));
        words
            .filter_map(|word| word.trim_start_matches("subvol://").trim_end_matches(['/', '.']).parse().ok())
            .find(|address: &SocketAddr| address.port() != 0)
            .unwrap_or_else(|| panic!("the server names no TCP address:\n{output}"))
    }

    /// The process.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }

    /// Bytes of memory it occupies now.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a process");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        let kilobytes = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
        kilobytes.expect("a number") * 1024
    }

    /// A client of the user who owns the server's folder: the administrator, in the first tenant.
    #[must_use]
    pub fn builder(&self) -> ClientBuilder {
        ClientBuilder::new(self.address()).owner(0, 0).client_name("subvol-tests")
    }

    /// As [`Self::builder`], connected.
    ///
    /// # Panics
    /// If the server does not take it.
    pub async fn client(&self) -> Client {
        soon("connecting", self.builder().connect()).await.expect("a connection")
    }

    /// A client that gives up as soon as its connection breaks: it sees nothing of the next server.
    ///
    /// # Panics
    /// If the server does not take it.
    pub async fn mortal_client(&self) -> Client {
        let retries = Retries { attempts: 1, first_wait: Duration::from_millis(1), ..Retries::default() };
        soon("connecting", self.builder().retries(retries).connect()).await.expect("a connection")
    }

    /// Opens a volume, which is made if it is missing.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn volume(&self, name: &str) -> Volume {
        let client = self.client().await;
        let volume = open_or_create(&client, name).await;
        client.close().await;
        volume
    }
}

/// Opens a volume, which is made if it is missing.
///
/// # Panics
/// If the server refuses.
pub async fn open_or_create(client: &Client, name: &str) -> Volume {
    let opened = soon("opening a volume", client.open_subvolume(name)).await;
    match opened {
        Err(error) if error.code() == Some(ErrorCode::UnknownVolume) => {
            let made = soon("creating a volume", client.admin().volume_create(name, Limits::default())).await;
            made.unwrap_or_else(|error| panic!("creating {name}: {error}"));
            let volume = soon("opening a volume", client.open_subvolume(name)).await.expect("the new volume");
            let root = soon("looking", volume.stat("")).await.expect("a root");
            // The model's root belongs to user 0, whoever runs the tests.
            if (root.uid, root.gid) != (0, 0) {
                soon("chown", volume.chown("", Some(0), Some(0))).await.expect("an owner");
                soon("fsync", volume.fsync("")).await.expect("an fsync");
            }
            volume
        }
        other => other.unwrap_or_else(|error| panic!("opening {name}: {error}")),
    }
}

fn answers(socket: &Path) -> bool {
    let Ok(mut connection) = Raw::unix(socket) else { return false };
    connection.hello([0; 16]).is_ok()
}

fn collect(
    mut pipe: impl std::io::Read + Send + 'static,
    into: &Arc<Mutex<String>>,
) -> std::thread::JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut chunk) {
            let text = String::from_utf8_lossy(&chunk[..length]);
            into.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push_str(&text);
        }
    })
}
