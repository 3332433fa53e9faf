//! `subvol put`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use subvol_client::{FileKind, Volume};

use crate::failure::usage;
use crate::globals::Globals;
use crate::target::Target;
use crate::transfer::report::Report;
use crate::transfer::upload::{Source, upload};

/// Copy local files and directories into a volume
///
/// Kept: permission bits, times to the nanosecond, symbolic and hard links, extended attributes, holes, pipes, sockets and devices; owners
/// if run by root. A target that is a directory gets the files in it, else the one source gets the target's name. Files that exist are
/// replaced. A failed file is told and the rest goes on; then the exit code is 1. Durable only with --sync.
#[derive(Args, Debug)]
pub struct Options {
    /// Local files or directories
    #[arg(required = true, value_name = "LOCAL")]
    sources: Vec<PathBuf>,
    /// VOLUME:/path
    #[arg(value_parser = Target::parser(), value_name = "TARGET")]
    target: Target,
    /// Directories with everything in them
    #[arg(short)]
    recursive: bool,
    /// The one source gets the target's name even if that is a directory: its content goes into it
    #[arg(short = 'T')]
    no_target_directory: bool,
    /// Make the whole volume durable before returning
    #[arg(long)]
    sync: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let Options { sources, target, recursive, no_target_directory, sync } = options;
    if !recursive && let Some(directory) = sources.iter().find(|source| source.is_dir()) {
        return Err(usage(format!("{} is a directory: give -r", directory.display())));
    }
    let volume = globals.volume(&target.volume).await?;
    let sources = place(&volume, &target, sources, no_target_directory).await?;
    let report = Arc::new(Report::start("put", globals.json));
    upload(&volume, sources, Arc::clone(&report)).await?;
    if sync && !report.stopped() {
        volume.sync().await.context("everything was copied, but making it durable failed")?;
    }
    volume.close().await;
    report.finish()
}

/// Finds out which name each source gets in which directory.
async fn place(
    volume: &Volume,
    target: &Target,
    sources: Vec<PathBuf>,
    exact: bool,
) -> anyhow::Result<Vec<Source>> {
    let existing = match volume.stat(&target.path).await {
        Ok(found) => Some(found),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error).with_context(|| target.to_string()),
    };
    let directory = existing.filter(|found| found.kind() == Some(FileKind::Directory));
    match (directory, exact) {
        (Some(directory), false) => sources
            .into_iter()
            .map(|local| Ok(Source { name: Some(base_name(&local)?), parent: directory.inode, local }))
            .collect(),
        _ => {
            let mut sources = sources.into_iter();
            let (Some(local), None) = (sources.next(), sources.next()) else {
                return Err(usage(format!("{target} is no directory; several sources need one")));
            };
            match (target.split(), directory) {
                (Some((parent, name)), _) => {
                    let parent = volume.stat(parent).await.with_context(|| {
                        format!("the directory of {target}; make it with `subvol mkdir -p`")
                    })?;
                    Ok(vec![Source { local, parent: parent.inode, name: Some(name.to_vec()) }])
                }
                (None, Some(directory)) => Ok(vec![Source { local, parent: directory.inode, name: None }]),
                (None, None) => Err(usage(format!("{target} has no name of its own"))),
            }
        }
    }
}

/// The last name of a local path, also of `.` and of paths that end in `..`.
fn base_name(local: &Path) -> anyhow::Result<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let resolved;
    let name = match local.file_name() {
        Some(name) => name,
        None => {
            resolved = std::fs::canonicalize(local).with_context(|| local.display().to_string())?;
            resolved
                .file_name()
                .ok_or_else(|| usage(format!("{} has no name of its own; give -T", local.display())))?
        }
    };
    Ok(name.as_bytes().to_vec())
}
