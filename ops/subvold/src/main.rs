//! The subvold server: reads its arguments, opens or makes the store, serves until it is told to stop. Composition only.

mod arguments;
mod local_mount;
mod logging;
mod probe;
mod size;
mod store;

use anyhow::{Context as _, Result};
use arguments::Settings;
use clap::Parser as _;
use sd_notify::NotifyState;
use std::process::ExitCode;
use subvol_actors::{Server, ServerHandle, ServerOptions};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("subvold: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = arguments::Arguments::parse();
    let only_probe = arguments.probe_catalog;
    let settings = arguments.settle()?;
    if only_probe {
        return probe::run(&settings);
    }
    logging::start(settings.log_format);
    let server = start(&settings)?;
    let signal = server.stop_signal().context("signals cannot be received")?;
    let mounted = local_mount::start(&server, &settings.mounts)?;
    announce(&settings, &server);
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let name = signal.wait();
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    println!("subvold: {name}: committing and stopping");
    // First, so that the kernel hands over what it still has.
    drop(mounted);
    server.shutdown()?;
    Ok(())
}

fn start(settings: &Settings) -> Result<ServerHandle> {
    let opened = store::prepare(settings)?;
    probe::check(settings)?;
    let mut options = ServerOptions::new(settings.data.clone(), opened.device);
    options.discard_logs = opened.discard_logs;
    options.accept_older_superblock = settings.accept_older_superblock;
    options.unix = Some(settings.unix.clone());
    options.tcp = Some(settings.listen);
    options.tcp_optional = !settings.listen_is_explicit;
    options.threads = settings.threads;
    Ok(Server::start(options)?)
}

/// Says where it listens, and what to type next.
fn announce(settings: &Settings, server: &ServerHandle) {
    let addresses = server.addresses();
    println!("subvold serves {}", settings.store.display());
    if let Some(path) = &addresses.unix {
        println!("  unix socket  {}", path.display());
    }
    match addresses.tcp {
        Some(address) => println!("  tcp          {address}"),
        None => {
            println!("  tcp          none: {} is taken (choose another port with --listen)", settings.listen)
        }
    }
    println!("  token        {}", settings.data.join("default.token").display());
    let server = match &addresses.unix {
        Some(_) if settings.unix == std::path::Path::new("./subvold-data/subvold.sock") => String::new(),
        Some(path) => format!("--server subvol+unix://{} ", absolute(path).display()),
        None => String::new(),
    };
    println!("Next:");
    println!("  subvol {server}volume create work");
    println!("  subvol {server}put FILE work:/FILE");
    println!("  subvol {server}status");
}

fn absolute(path: &std::path::Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
