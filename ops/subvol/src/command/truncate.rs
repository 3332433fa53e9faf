//! `subvol truncate`.

use clap::Args;

use super::volumes::for_each;
use crate::globals::Globals;
use crate::size;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// The new size, such as 0 or 10G; what is new reads as zeros
    #[arg(value_parser = size::parse)]
    size: u64,
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let size = options.size;
    for_each(globals, options.targets, |volume, target| async move {
        volume.truncate(&target.path, size).await?;
        Ok(())
    })
    .await
}
