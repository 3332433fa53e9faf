//! `subvol rm`.

use clap::Args;
use subvol_client::FileKind;

use super::volumes::for_each;
use crate::failure::usage;
use crate::globals::Globals;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path; links are removed, not followed
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
    /// Directories with everything in them
    #[arg(short)]
    recursive: bool,
    /// What is missing is no error
    #[arg(short)]
    force: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let (recursive, force) = (options.recursive, options.force);
    // The root cannot go, and emptying a volume is what `volume remove` and `rm -r VOLUME:/*` of a shell are mistaken for.
    if let Some(target) = options.targets.iter().find(|target| target.path.iter().all(|byte| *byte == b'/')) {
        return Err(usage(format!(
            "{target} is the root, which stays; remove what is in it, or the volume with `subvol volume remove {}`",
            target.volume
        )));
    }
    for_each(globals, options.targets, |volume, target| async move {
        let result = async {
            if !recursive {
                return volume.unlink(&target.path).await;
            }
            // So that a missing target is an error, and only what others remove meanwhile is not.
            let found = volume.lookup(&target.path).await?;
            match found.kind() {
                Some(FileKind::Directory) => volume.remove_all(&target.path).await.map(drop),
                _ => volume.unlink(&target.path).await,
            }
        };
        match result.await {
            Err(error) if force && error.is_not_found() => Ok(()),
            Err(error) if error.code() == Some(subvol_client::ErrorCode::IsDirectory) => {
                Err(anyhow::anyhow!("it is a directory; remove it with everything in it by -r"))
            }
            other => Ok(other?),
        }
    })
    .await
}
