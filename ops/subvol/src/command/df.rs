//! `subvol df`: usage and limits.

use clap::Args;
use serde_json::json;
use subvol_client::{UNLIMITED, VolumeStatistics};

use super::volumes::Volumes;
use crate::globals::Globals;
use crate::target::Target;
use crate::{output, size};

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:; without any, all volumes
    #[arg(value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
    /// Inodes instead of bytes
    #[arg(short)]
    inodes: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let names = if options.targets.is_empty() {
        let client = globals.client().await?;
        let names = client.admin().volume_list().await?.into_iter().map(|volume| volume.name).collect();
        client.close().await;
        names
    } else {
        options.targets.into_iter().map(|target| target.volume).collect::<Vec<_>>()
    };
    let mut volumes = Volumes::new(globals);
    let mut all = Vec::new();
    for name in names {
        let statistics = volumes.get(&name).await?.statfs().await?;
        all.push((name, statistics));
    }
    volumes.close().await;
    if globals.json {
        let volumes: Vec<_> = all.iter().map(|(name, numbers)| as_json(name.as_str(), numbers)).collect();
        output::json(&json!({ "volumes": volumes }))?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> =
        all.iter().map(|(name, numbers)| row(name.as_str(), numbers, options.inodes)).collect();
    let header = if options.inodes {
        ["VOLUME", "INODES", "USED", "AVAILABLE", "USE%"]
    } else {
        ["VOLUME", "SIZE", "USED", "AVAILABLE", "USE%"]
    };
    output::line(output::table(&header, &rows, 1))?;
    Ok(())
}

/// Inodes that can still be made; [`UNLIMITED`] for no limit.
const fn free_inodes(numbers: &VolumeStatistics) -> u64 {
    if numbers.total_inodes == UNLIMITED {
        UNLIMITED
    } else {
        numbers.total_inodes.saturating_sub(numbers.used_inodes)
    }
}

/// Rounded up, as df does; of what can be used at all. A dash without a limit.
fn percent(used: u64, available: u64) -> String {
    if available == UNLIMITED {
        return "-".into();
    }
    let total = u128::from(used) + u128::from(available);
    if total == 0 { "-".into() } else { format!("{}%", (u128::from(used) * 100).div_ceil(total)) }
}

fn row(name: &str, numbers: &VolumeStatistics, inodes: bool) -> Vec<String> {
    let cells = if inodes {
        [
            size::limit_count(numbers.total_inodes),
            numbers.used_inodes.to_string(),
            size::limit_count(free_inodes(numbers)),
            percent(numbers.used_inodes, free_inodes(numbers)),
        ]
    } else {
        [
            size::limit_bytes(numbers.total_bytes),
            size::bytes(numbers.used_bytes),
            size::limit_bytes(numbers.available_bytes),
            percent(numbers.used_bytes, numbers.available_bytes),
        ]
    };
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn as_json(name: &str, numbers: &VolumeStatistics) -> serde_json::Value {
    json!({
        "volume": name,
        "total_bytes": size::json_limit(numbers.total_bytes),
        "used_bytes": numbers.used_bytes,
        "available_bytes": size::json_limit(numbers.available_bytes),
        "total_inodes": size::json_limit(numbers.total_inodes),
        "used_inodes": numbers.used_inodes,
        "available_inodes": size::json_limit(free_inodes(numbers)),
        "block_size": numbers.block_size,
        "max_name": numbers.max_name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_up_and_never_divide_by_zero() {
        assert_eq!(percent(1, 999), "1%");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(5, 0), "100%");
        assert_eq!(percent(5, UNLIMITED), "-");
        assert_eq!(percent(u64::MAX - 1, u64::MAX - 1), "50%");
    }
}
