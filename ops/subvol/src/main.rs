//! `subvol`: the command line of subvold. Administration, files, benchmarks, all over the client library.
//!
//! Invariants: exit code 0 means that everything asked for was done, 1 that an operation failed, 2 that the command line was wrong;
//! results go to standard output, complaints to standard error; no secret is printed except a new token by the verb that made it.

#![warn(clippy::indexing_slicing)]

mod bench;
mod cli;
mod command;
mod failure;
mod globals;
mod mode;
mod output;
mod show;
mod size;
mod target;
mod transfer;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // As mount(8) calls it for the type fuse.subvol.
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let as_helper = arguments.first().is_some_and(|program| {
        std::path::Path::new(program).file_name().is_some_and(|name| name == "mount.fuse.subvol")
    });
    let cli = if as_helper {
        cli::Cli::parse_from(command::mount_options::from_mount_helper(&arguments))
    } else {
        cli::Cli::parse()
    };
    // One thread: a request then wakes nobody across threads. What blocks goes to the runtime's own blocking threads.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::tell(&anyhow::Error::new(error).context("starting the runtime")),
    };
    let result = runtime.block_on(command::run(cli));
    // A read of standard input that still blocks must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::tell(&error),
    }
}
