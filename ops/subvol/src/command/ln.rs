//! `subvol ln`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use clap::Args;
use subvol_client::FileKind;

use crate::failure::usage;
use crate::globals::Globals;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path of the file that gets a further name; with -s the text of the link, which may be anything
    #[arg(value_name = "FILE|TEXT")]
    existing: OsString,
    /// VOLUME:/path of the new name; into it if it is a directory
    #[arg(value_parser = Target::parser())]
    new: Target,
    /// A symbolic link
    #[arg(short)]
    symbolic: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let Options { existing, mut new, symbolic } = options;
    let old = match symbolic {
        true => None,
        false => Some(Target::parse(&existing).map_err(usage)?),
    };
    if old.as_ref().is_some_and(|old| old.volume != new.volume) {
        return Err(usage("both names of a file must be in the same volume"));
    }
    let volume = globals.volume(&new.volume).await?;
    if let Ok(found) = volume.stat(&new.path).await
        && found.kind() == Some(FileKind::Directory)
    {
        let path = old.as_ref().map_or(existing.as_bytes(), |old| &old.path);
        let (_, name) = crate::target::split_path(path)
            .ok_or_else(|| usage(format!("{new} is a directory: name the link in it")))?;
        new = new.join(name);
    }
    match old {
        None => volume.symlink(existing.as_bytes(), &new.path).await,
        Some(old) => volume.link(&old.path, &new.path).await,
    }
    .with_context(|| new.to_string())?;
    volume.close().await;
    Ok(())
}
