//! `subvol mkdir`.

use clap::Args;

use super::volumes::for_each;
use crate::globals::Globals;
use crate::mode::parse_octal;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
    /// Also the directories above; one that exists is no error
    #[arg(short)]
    parents: bool,
    /// Permission bits in octal, of the last directory
    #[arg(short, long, value_parser = parse_octal, default_value = "0755")]
    mode: u32,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let (parents, mode) = (options.parents, options.mode);
    for_each(globals, options.targets, |volume, target| async move {
        if !parents {
            volume.mkdir_with(&target.path, mode).await?;
            return Ok(());
        }
        let Some((above, _)) = target.split() else {
            volume.mkdir_all(&target.path).await?;
            return Ok(());
        };
        volume.mkdir_all(above).await?;
        match volume.mkdir_with(&target.path, mode).await {
            Err(error) if error.code() == Some(subvol_client::ErrorCode::Exists) => {
                // Fails if what is there is no directory.
                volume.mkdir_all(&target.path).await?;
            }
            other => drop(other?),
        }
        Ok(())
    })
    .await
}
