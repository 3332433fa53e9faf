//! `subvol volume create|list|remove|set`.

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use subvol_client::{Label, Limits, VolumeRef, VolumeSummary};

use crate::failure::usage;
use crate::globals::Globals;
use crate::{output, size};

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Create an empty volume
    Create(LimitOptions),
    /// List volumes with usage and limits
    List,
    /// Remove a volume with everything in it; refused while somebody has it open
    Remove {
        /// Its name
        name: Label,
    },
    /// Change a volume's limits
    Set(LimitOptions),
}

#[derive(Args, Debug)]
pub struct LimitOptions {
    /// Its name: letters, digits, `-`, `_`, `.`; at most 63
    name: Label,
    /// Limit in bytes, such as 10G; none for no limit
    #[arg(long, value_parser = size::parse_limit, value_name = "SIZE|none")]
    max_bytes: Option<u64>,
    /// Limit in inodes, such as 1M; none for no limit
    #[arg(long, value_parser = size::parse_limit, value_name = "COUNT|none")]
    max_inodes: Option<u64>,
}

impl LimitOptions {
    const fn limits(&self) -> Limits {
        Limits { max_bytes: self.max_bytes, max_inodes: self.max_inodes }
    }
}

pub async fn run(globals: &Globals, verb: Verb) -> anyhow::Result<()> {
    if let Verb::Set(LimitOptions { max_bytes: None, max_inodes: None, .. }) = &verb {
        return Err(usage("nothing to set: give --max-bytes or --max-inodes"));
    }
    let client = globals.client().await?;
    let admin = client.admin();
    match verb {
        Verb::Create(options) => {
            let name = options.name.as_str();
            let number = admin
                .volume_create(name, options.limits())
                .await
                .with_context(|| format!("creating volume {name}"))?;
            if globals.json {
                output::json(&json!({"volume": name, "number": number, "created": true}))?;
            } else {
                output::line(format!("volume {name}: created"))?;
            }
        }
        Verb::List => list(globals, &admin.volume_list().await?)?,
        Verb::Remove { name } => {
            let volume = VolumeRef::Name(name.clone());
            admin.volume_remove(volume).await.with_context(|| format!("removing volume {name}"))?;
            done(globals, "removed", name.as_str())?;
        }
        Verb::Set(options) => {
            let volume = VolumeRef::Name(options.name.clone());
            let name = options.name.as_str();
            admin
                .volume_set(volume, options.limits())
                .await
                .with_context(|| format!("changing volume {name}"))?;
            done(globals, "changed", name)?;
        }
    }
    client.close().await;
    Ok(())
}

fn done(globals: &Globals, what: &str, name: &str) -> std::io::Result<()> {
    if globals.json {
        output::json(&json!({"volume": name, what: true}))
    } else {
        output::line(format!("volume {name}: {what}"))
    }
}

/// One volume for programs.
pub fn summary_json(volume: &VolumeSummary) -> serde_json::Value {
    json!({
        "tenant": volume.tenant.as_str(),
        "volume": volume.name.as_str(),
        "number": volume.subvolume,
        "used_bytes": volume.used_bytes,
        "max_bytes": size::json_limit(volume.max_bytes),
        "used_inodes": volume.used_inodes,
        "max_inodes": size::json_limit(volume.max_inodes),
        "attached": volume.attached,
    })
}

fn list(globals: &Globals, volumes: &[VolumeSummary]) -> std::io::Result<()> {
    if globals.json {
        let volumes: Vec<_> = volumes.iter().map(summary_json).collect();
        return output::json(&json!({ "volumes": volumes }));
    }
    let rows: Vec<Vec<String>> = volumes
        .iter()
        .map(|volume| {
            vec![
                volume.name.to_string(),
                volume.tenant.to_string(),
                size::bytes(volume.used_bytes),
                size::limit_bytes(volume.max_bytes),
                volume.used_inodes.to_string(),
                size::limit_count(volume.max_inodes),
                volume.attached.to_string(),
            ]
        })
        .collect();
    let header = ["VOLUME", "TENANT", "USED", "LIMIT", "INODES", "LIMIT", "ATTACHED"];
    output::line(output::table(&header, &rows, 2))
}
