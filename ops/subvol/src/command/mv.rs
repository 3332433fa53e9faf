//! `subvol mv`.

use anyhow::Context;
use clap::Args;
use subvol_client::{FileKind, RenameMode};

use crate::failure::usage;
use crate::globals::Globals;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path
    #[arg(value_parser = Target::parser())]
    from: Target,
    /// VOLUME:/path in the same volume; into it if it is a directory
    #[arg(value_parser = Target::parser())]
    to: Target,
    /// Swap the two; both must exist
    #[arg(long, conflicts_with = "no_replace")]
    exchange: bool,
    /// Fail if the new name is taken
    #[arg(long)]
    no_replace: bool,
    /// The new name is the second argument even if that is a directory
    #[arg(short = 'T')]
    no_target_directory: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let Options { from, mut to, exchange, no_replace, no_target_directory } = options;
    if from.volume != to.volume {
        return Err(usage("both must be in the same volume; copy with `subvol get` and `subvol put`"));
    }
    let mode = match (exchange, no_replace) {
        (true, _) => RenameMode::Exchange,
        (_, true) => RenameMode::NoReplace,
        _ => RenameMode::Replace,
    };
    let volume = globals.volume(&from.volume).await?;
    if !exchange
        && !no_target_directory
        && let Ok(found) = volume.stat(&to.path).await
        && found.kind() == Some(FileKind::Directory)
    {
        let (_, name) = from.split().ok_or_else(|| usage(format!("{from} has no name of its own")))?;
        to = to.join(name);
    }
    volume.rename(&from.path, &to.path, mode).await.with_context(|| format!("{from} to {to}"))?;
    volume.close().await;
    Ok(())
}
