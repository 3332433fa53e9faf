//! What verbs with several targets share: each volume opened once, each failure told and counted, the rest done.

use std::future::Future;

use subvol_client::{Label, Volume};

use crate::failure::Told;
use crate::globals::Globals;
use crate::target::Target;

/// Opened volumes by name.
pub struct Volumes<'a> {
    globals: &'a Globals,
    open: Vec<(Label, Volume)>,
}

impl<'a> Volumes<'a> {
    pub const fn new(globals: &'a Globals) -> Self {
        Self { globals, open: Vec::new() }
    }

    /// The volume, opened if it is not yet.
    pub async fn get(&mut self, name: &Label) -> anyhow::Result<Volume> {
        if let Some((_, volume)) = self.open.iter().find(|(open, _)| open == name) {
            return Ok(volume.clone());
        }
        let volume = self.globals.volume(name).await?;
        self.open.push((name.clone(), volume.clone()));
        Ok(volume)
    }

    /// Says goodbye to all.
    pub async fn close(self) {
        for (_, volume) in self.open {
            volume.close().await;
        }
    }
}

/// Does the same with each target; tells each failure, goes on, and fails at the end.
pub async fn for_each<F>(
    globals: &Globals,
    targets: Vec<Target>,
    mut work: impl FnMut(Volume, Target) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut volumes = Volumes::new(globals);
    let mut failed = 0;
    for target in targets {
        // Without its volume no target has anything to say.
        let volume = volumes.get(&target.volume).await?;
        let shown = target.to_string();
        if let Err(error) = work(volume, target).await {
            // Standard output is gone, not this target. The client's own errors hold theirs behind an `Arc`.
            if error.chain().any(|cause| cause.is::<std::io::Error>()) {
                return Err(error);
            }
            eprintln!("subvol: {shown}: {error:#}");
            failed += 1;
        }
    }
    volumes.close().await;
    if failed == 0 { Ok(()) } else { Err(Told(failed).into()) }
}
