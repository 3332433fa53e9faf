//! `subvol sync`.

use clap::Args;
use serde_json::json;

use super::volumes::for_each;
use crate::globals::Globals;
use crate::output;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME: or VOLUME:/path, the whole volume in both cases; without any, the whole store (administrators)
    #[arg(value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    if !options.targets.is_empty() {
        return for_each(globals, options.targets, |volume, _| async move { Ok(volume.sync().await?) }).await;
    }
    let client = globals.client().await?;
    let transid = client.admin().sync_store().await?;
    if globals.json {
        output::json(&json!({"durable_transid": transid}))?;
    }
    client.close().await;
    Ok(())
}
