//! Reading the catalog in a process of its own before the server does.
//!
//! The library that keeps the catalog may panic on damaged files, and a panic ends the server. So a child reads it first; if
//! the child dies, the catalog is moved aside and the server rebuilds it. An ordinary error is the server's own to handle.

use crate::arguments::Settings;
use anyhow::{Context as _, Result};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use subvol_actors::tenants::catalog;

/// The child's part.
pub fn run(settings: &Settings) -> Result<()> {
    catalog::probe(&settings.data).context("the catalog cannot be read")
}

/// The server's part, with the store locked, so that no other server uses the catalog.
pub fn check(settings: &Settings) -> Result<()> {
    let Ok(program) = std::env::current_exe() else { return Ok(()) };
    let status = Command::new(program)
        .arg("--probe-catalog")
        .arg("--data")
        .arg(&settings.data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    // Exit code 101 is a panic that unwinds; a signal is one that aborts.
    if let Ok(status) = status
        && (status.signal().is_some() || status.code() == Some(101))
    {
        tracing::error!(%status, "reading the catalog ends the process that does it; it is moved aside and rebuilt");
        catalog::set_aside(&settings.data)?;
    }
    Ok(())
}
