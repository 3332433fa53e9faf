//! `subvol chmod`.

use clap::Args;
use subvol_client::FileKind;

use super::volumes::for_each;
use crate::globals::Globals;
use crate::mode::ModeChange;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// Octal such as 0644, or clauses such as u+x,go-w
    mode: ModeChange,
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let change = &options.mode;
    for_each(globals, options.targets, |volume, target| async move {
        let permissions = match change {
            ModeChange::Exact(permissions) => *permissions,
            ModeChange::Symbolic(_) => {
                let found = volume.stat(&target.path).await?;
                change.apply(found.mode, found.kind() == Some(FileKind::Directory))
            }
        };
        volume.chmod(&target.path, permissions).await?;
        Ok(())
    })
    .await
}
