//! `subvol bench raw-device`: the limit of the file system below.
//!
//! One durable 4 KiB overwrite after another, on a file that was written with zeros before, past the page cache. No server can make one
//! client's small writes durable faster on this device; more only by sharing one write between several.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rustix::fs::OFlags;
use serde_json::json;

use super::latency::Latencies;
use crate::failure::usage;
use crate::globals::Globals;
use crate::{output, size};

const BLOCK: usize = 4096;
/// Bytes written at a time while the file is prepared.
const PREPARE: usize = 1024 * 1024;

#[derive(Args, Debug)]
pub struct Options {
    /// A file that does not exist yet, on the file system in question; removed at the end
    file: PathBuf,
    /// How long to measure
    #[arg(long, default_value_t = 5.0, value_parser = positive_seconds)]
    seconds: f64,
    /// Size of the file
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    size: u64,
    /// Buffered writes, each followed by fdatasync, instead of O_DIRECT and O_DSYNC
    #[arg(long)]
    buffered: bool,
}

/// Seconds of a measurement, more than none and at most a year.
pub fn positive_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 31_536_000.0 => Ok(seconds),
        _ => Err(format!("`{text}` is no number of seconds above 0")),
    }
}

pub fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let blocks = options.size / BLOCK as u64;
    if blocks == 0 {
        return Err(usage("--size must be at least 4096"));
    }
    let _removed = prepare(&options.file, blocks)
        .with_context(|| format!("preparing {}; it must be a new file", options.file.display()))?;
    let latencies = measure(&options, blocks).with_context(|| {
        format!(
            "writing {}; a file system without O_DIRECT can be measured with --buffered",
            options.file.display()
        )
    })?;
    let per_second = if latencies.mean() > 0.0 { 1000.0 / latencies.mean() } else { 0.0 };
    if globals.json {
        output::json(&json!({
            "bench": "raw-device",
            "mode": if options.buffered { "write+fdatasync" } else { "O_DIRECT|O_DSYNC" },
            "block_bytes": BLOCK,
            "per_second": per_second,
            "latency": latencies.json(),
        }))?;
    } else {
        output::line(format!("{per_second:.0} durable 4 KiB overwrites/s, one at a time"))?;
        output::line(format!("latency: {}", latencies.text()))?;
    }
    Ok(())
}

/// Removes the file.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It may be gone already, and there is nobody to tell.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes zeros, so that no overwrite has to find space.
fn prepare(path: &Path, blocks: u64) -> io::Result<Removed> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let removed = Removed(path.to_owned());
    let zeros = vec![0; PREPARE];
    let (mut at, end) = (0, blocks * BLOCK as u64);
    while at < end {
        let part = zeros.get(..(end - at).min(PREPARE as u64) as usize).unwrap_or(&zeros);
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    file.sync_all()?;
    Ok(removed)
}

fn measure(options: &Options, blocks: u64) -> io::Result<Latencies> {
    let flags = if options.buffered { OFlags::empty() } else { OFlags::DIRECT | OFlags::DSYNC };
    let file: File = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(&options.file)?;
    // O_DIRECT wants memory aligned to a block: somewhere in twice as much there is such a block.
    let mut memory = vec![0_u8; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let block = memory
        .get_mut(start..start.saturating_add(BLOCK))
        .ok_or_else(|| io::Error::other("no aligned memory"))?;
    let mut latencies = Latencies::default();
    let limit = Duration::from_secs_f64(options.seconds);
    let begin = Instant::now();
    for number in 0_u64.. {
        let now = Instant::now();
        if now.duration_since(begin) >= limit {
            break;
        }
        // Never the same bytes twice: a device may skip those.
        if let Some(head) = block.first_chunk_mut::<8>() {
            *head = number.to_le_bytes();
        }
        file.write_all_at(block, number % blocks * BLOCK as u64)?;
        if options.buffered {
            rustix::fs::fdatasync(&file)?;
        }
        latencies.record(now.elapsed());
    }
    Ok(latencies)
}
