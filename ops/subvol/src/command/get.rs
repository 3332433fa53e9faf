//! `subvol get`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use subvol_client::FileKind;

use super::volumes::Volumes;
use crate::failure::usage;
use crate::globals::Globals;
use crate::target::Target;
use crate::transfer::download::{Source, download};
use crate::transfer::local::LocalDirectory;
use crate::transfer::report::Report;

/// Copy files and directories of a volume here
///
/// Kept: permission bits, times to the nanosecond, symbolic and hard links, extended attributes, holes, pipes, sockets and devices; owners
/// if run by root. A local path that is a directory gets the files in it, else the one source gets that name. Files that exist are
/// replaced, never written through a link. A failed file is told and the rest goes on; then the exit code is 1.
#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    sources: Vec<Target>,
    /// Local file or directory
    #[arg(value_name = "LOCAL")]
    local: PathBuf,
    /// Directories with everything in them
    #[arg(short)]
    recursive: bool,
    /// The one source gets the local name even if that is a directory: its content goes into it
    #[arg(short = 'T')]
    no_target_directory: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let Options { sources, local, recursive, no_target_directory } = options;
    let into = local.is_dir() && !no_target_directory;
    if sources.len() > 1 && !into {
        return Err(usage(format!("{} is no directory; several sources need one", local.display())));
    }
    let report = Arc::new(Report::start("get", globals.json));
    let mut volumes = Volumes::new(globals);
    for target in &sources {
        let volume = volumes.get(&target.volume).await?;
        let found = match volume.lookup(&target.path).await {
            Ok(found) => found,
            Err(error) => {
                report.failed_by(target, &error);
                continue;
            }
        };
        if found.kind() == Some(FileKind::Directory) && !recursive {
            report.failed(target, &"it is a directory: give -r");
            continue;
        }
        let source = place(target, found, &local, into, &report)?;
        download(&volume, source, Arc::clone(&report)).await?;
        if report.stopped() {
            break;
        }
    }
    volumes.close().await;
    report.finish()
}

/// Finds out which name a source gets in which local directory.
fn place(
    target: &Target,
    attributes: subvol_client::Attributes,
    local: &Path,
    into: bool,
    report: &Arc<Report>,
) -> anyhow::Result<Source> {
    let open = |path: &Path| {
        LocalDirectory::existing(path, Arc::clone(report))
            .with_context(|| format!("local directory {}", path.display()))
    };
    let is_directory = attributes.kind() == Some(FileKind::Directory);
    let source = |directory, name| Source { path: target.path.clone(), attributes, directory, name };
    match (target.split(), into) {
        (Some((_, name)), true) => Ok(source(open(local)?, Some(name.to_vec()))),
        // The root has no name, and an existing directory that is meant itself needs none.
        _ if is_directory && local.is_dir() => Ok(source(open(local)?, None)),
        _ => {
            let name = local.file_name().map(OsStr::as_bytes);
            let name = name.ok_or_else(|| usage(format!("{} is no name for a file", local.display())))?;
            let parent = match local.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            Ok(source(open(parent)?, Some(name.to_vec())))
        }
    }
}
