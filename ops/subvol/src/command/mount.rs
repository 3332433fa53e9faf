//! `subvol mount`: a volume as a file system of this machine. `subvol mount list`: those that are mounted.
//!
//! Unless told to stay in the foreground it starts itself once more, detached, and returns when that one serves the directory or says why
//! not.

use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context as _, bail};
use clap::Args;
use subvol_client::Label;
use subvol_mount::front::{FrontOptions, serve};
use subvol_mount::kernel::mounting::{MountSettings, mount};
use subvol_mount::remote::Remote;

use super::mount_options::MountOptions;
use super::mounts;
use crate::failure::usage;
use crate::globals::Globals;

/// Names the descriptor through which the detached process tells the one that started it how it went.
const READY_FD: &str = "SUBVOL_MOUNT_READY_FD";

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The volume; or `list`, alone, to show what is mounted
    #[arg(value_name = "VOLUME")]
    volume: Label,
    /// An existing directory
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Refuse changes
    #[arg(long)]
    read_only: bool,
    /// Stay in the foreground, and log to the standard error output
    #[arg(long, short)]
    foreground: bool,
    /// Options as in fstab, separated by commas: ro, allow_other, nosuid, nodev, noexec, hard (default) or soft (errors after some
    /// seconds without a server), locks=shared (default) or locks=local (locks count in this mount only, opening is cheaper),
    /// access_log=FILE (every request as a line of JSON), server=, token_file=, tenant=
    #[arg(short, value_name = "OPTIONS", num_args = 1)]
    o: Vec<String>,
    /// Tells the process that started this one
    #[arg(long, hide = true, env = READY_FD)]
    ready_fd: Option<i32>,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let Some(directory) = options.directory.clone() else {
        if options.volume.as_str() == "list" {
            return mounts::list(globals);
        }
        return Err(usage("name the directory to mount on: subvol mount VOLUME DIR"));
    };
    let mut chosen = MountOptions::default();
    for list in &options.o {
        chosen.add(list).map_err(usage)?;
    }
    chosen.read_only |= options.read_only;
    if !options.foreground && options.ready_fd.is_none() {
        return detach(&directory);
    }
    if options.ready_fd.is_none() {
        log_to_standard_error();
    }
    let reporter = options.ready_fd.map(Reporter::new);
    let globals = chosen.globals(globals)?;
    let result = here(&globals, &options.volume, &directory, &chosen, reporter.as_ref()).await;
    match (result, reporter) {
        (Err(error), Some(reporter)) => {
            reporter.failed(&format!("{error:#}"));
            Err(error)
        }
        (result, _) => result,
    }
}

/// What a mount in the foreground has to say; `RUST_LOG` chooses.
fn log_to_standard_error() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// Mounts and serves until unmounted.
async fn here(
    globals: &Globals,
    volume: &Label,
    directory: &Path,
    chosen: &MountOptions,
    reporter: Option<&Reporter>,
) -> anyhow::Result<()> {
    let (attached, source) = globals.mounted_volume(volume, chosen.soft, chosen.read_only).await?;
    let settings = MountSettings {
        source: source.clone(),
        read_only: chosen.read_only,
        // Root mounts for everybody; the files' permissions decide.
        allow_other: chosen.allow_other || rustix::process::geteuid().is_root(),
        no_suid: chosen.no_suid,
        no_dev: chosen.no_dev,
        no_exec: chosen.no_exec,
    };
    let backend = Rc::new(Remote::new(attached));
    let device = mount(directory, &settings)?;
    let front = FrontOptions {
        source,
        form: "remote",
        local_locks: chosen.local_locks,
        access_log: chosen.access_log.clone(),
    };
    let local = tokio::task::LocalSet::new();
    if let Some(reporter) = reporter {
        reporter.ready();
    }
    let served =
        local.run_until(end_with_signal(directory.to_path_buf(), serve(device, Rc::clone(&backend), front)));
    served.await.context("serving the mount")?;
    backend.close().await;
    Ok(())
}

/// A termination signal unmounts, so that nobody is left with a dead mount.
async fn end_with_signal(
    directory: PathBuf,
    serving: impl Future<Output = std::io::Result<()>>,
) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::pin!(serving);
    loop {
        tokio::select! {
            result = &mut serving => return result,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        // In a thread: unmounting may ask this very process.
        let directory = directory.clone();
        let unmounted =
            tokio::task::spawn_blocking(move || subvol_mount::kernel::mounting::unmount(&directory, true));
        tokio::select! {
            result = &mut serving => return result,
            outcome = unmounted => {
                if let Ok(Err(error)) = outcome {
                    tracing::error!("{error}");
                    return Ok(());
                }
            }
        }
    }
}

/// How the detached process tells the one that started it.
struct Reporter(std::cell::RefCell<Option<std::fs::File>>);

impl Reporter {
    fn new(descriptor: i32) -> Self {
        // SAFETY: the process that started this one left this descriptor open for it, and nobody else uses it.
        let file = unsafe { std::fs::File::from_raw_fd(descriptor) };
        Self(std::cell::RefCell::new(Some(file)))
    }

    fn say(&self, text: &str) {
        if let Some(mut file) = self.0.borrow_mut().take() {
            let _ = file.write_all(text.as_bytes());
        }
    }

    fn ready(&self) {
        self.say("ready");
    }

    fn failed(&self, why: &str) {
        self.say(why);
    }
}

/// Starts this command again in the background and waits until it serves.
fn detach(directory: &Path) -> anyhow::Result<()> {
    let (ours, theirs): (OwnedFd, OwnedFd) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let theirs = theirs.into_raw_fd();
    // The same words once more, under the same name: mount(8) calls this program by another one.
    let mut words = std::env::args_os();
    let mut command = Command::new(std::env::current_exe().context("this program's own path")?);
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    command.args(words).env(READY_FD, theirs.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(std::io::Error::from));
    }
    let child = command.spawn().context("starting the mount's process")?;
    // SAFETY: given up by `into_raw_fd` above and not used since; the child has its own copy.
    drop(unsafe { OwnedFd::from_raw_fd(theirs) });
    let mut said = String::new();
    std::fs::File::from(ours).read_to_string(&mut said).context("waiting for the mount's process")?;
    match said.as_str() {
        "ready" => Ok(()),
        "" => bail!(
            "the mount's process {} ended without a word; try again with --foreground to see why ({})",
            child.id(),
            directory.display()
        ),
        why => bail!("{why}"),
    }
}
