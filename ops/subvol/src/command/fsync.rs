//! `subvol fsync`.

use clap::Args;
use subvol_client::protocol::request::FileRef;

use super::volumes::for_each;
use crate::globals::Globals;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
    /// Times may stay behind
    #[arg(long)]
    data: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let data_only = options.data;
    for_each(globals, options.targets, |volume, target| async move {
        let found = volume.stat(&target.path).await?;
        volume.inodes().fsync(FileRef::inode(found.inode), data_only).await?;
        Ok(())
    })
    .await
}
