//! The volumes a bench makes for itself and removes.

use anyhow::Context;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use subvol_client::{Admin, Client, ErrorCode, Label, Limits, VolumeRef};

/// Requests under way at a time.
const AHEAD: usize = 32;
/// How often a volume that is still attached is tried again: the server notices a closed connection a moment later.
const REMOVE_ATTEMPTS: u32 = 100;
/// Between attempts.
const REMOVE_WAIT: std::time::Duration = std::time::Duration::from_millis(50);

/// Names of volumes of this run.
#[derive(Clone, Debug)]
pub struct BenchVolumes {
    names: Vec<Label>,
}

impl BenchVolumes {
    /// Creates so many volumes without limits. If one cannot be created, those that were are removed.
    ///
    /// # Errors
    /// The first error.
    pub async fn create(client: &Client, count: usize) -> anyhow::Result<Self> {
        let run = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64);
        let names = (0..count)
            .map(|index| Label::new(&format!("bench-{run:x}-{:x}-{index}", std::process::id())))
            .collect::<Result<Vec<_>, _>>()
            .context("a volume's name")?;
        let admin = &client.admin();
        let created: Result<(), _> = iter(&names)
            .map(|name| async move { admin.volume_create(name.as_str(), Limits::default()).await.map(drop) })
            .buffer_unordered(AHEAD)
            .try_collect()
            .await;
        let volumes = Self { names };
        if let Err(error) = created {
            // Those that do not exist are no problem; the first error is the one to tell.
            let _ = volumes.remove(client).await;
            return Err(error).context("creating volumes for the bench");
        }
        Ok(volumes)
    }

    /// The volume of a client: they are spread evenly.
    pub fn of_client(&self, client: usize) -> Option<&Label> {
        self.names.get(client % self.names.len().max(1))
    }

    /// All.
    pub fn names(&self) -> &[Label] {
        &self.names
    }

    /// Removes all.
    ///
    /// # Errors
    /// The first error, with the names to remove by hand.
    pub async fn remove(&self, client: &Client) -> anyhow::Result<()> {
        let admin = &client.admin();
        iter(&self.names)
            .map(|name| remove_one(admin, name))
            .buffer_unordered(AHEAD)
            .try_collect()
            .await
            .with_context(|| {
                let first = self.names.first().map(Label::to_string).unwrap_or_default();
                format!("removing the bench's volumes, {first} and those with the same beginning; remove them by hand")
            })
    }
}

async fn remove_one(admin: &Admin, name: &Label) -> subvol_client::Result<()> {
    let mut attempt = 0;
    loop {
        match admin.volume_remove(VolumeRef::Name(name.clone())).await {
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.code() == Some(ErrorCode::Busy) && attempt < REMOVE_ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(REMOVE_WAIT).await;
            }
            other => return other,
        }
    }
}
