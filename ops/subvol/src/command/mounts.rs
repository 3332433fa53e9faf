//! What is mounted: `subvol mount list`, `subvol umount`, `subvol top --mount`.
//!
//! A mount tells of itself through an extended attribute of its root, so nothing but the mount has to be found.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use subvol_mount::counters::{REPORT_ATTRIBUTE, Report};
use subvol_mount::kernel::mounting::unmount;

use crate::globals::Globals;
use crate::{output, size};

#[derive(Args, Debug)]
pub struct UnmountOptions {
    /// Where it is mounted
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Take it out of the tree at once; it ends when its last user is gone
    #[arg(long, short = 'z')]
    lazy: bool,
}

pub fn unmount_all(options: &UnmountOptions) -> anyhow::Result<()> {
    options.directories.iter().try_for_each(|directory| Ok(unmount(directory, options.lazy)?))
}

#[derive(Args, Debug)]
pub struct TopOptions {
    /// The mounted directory
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Looks; without it, until interrupted
    #[arg(long)]
    count: Option<u64>,
}

/// How long a mount may take to tell of itself. One whose server is away does not answer: the kernel asks for its root first.
const PATIENCE: Duration = Duration::from_secs(2);

/// As [`report`], but does not wait for a mount whose server is away. The thread that still waits ends with the process.
fn report_in_time(directory: &Path) -> anyhow::Result<Report> {
    let (tell, told) = std::sync::mpsc::channel();
    let path = directory.to_path_buf();
    std::thread::spawn(move || {
        // Nobody listens any more if it took too long.
        let _ = tell.send(report(&path));
    });
    told.recv_timeout(PATIENCE).with_context(|| format!("{} does not answer", directory.display()))?
}

/// The report of the mount at a directory.
fn report(directory: &Path) -> anyhow::Result<Report> {
    let mut bytes = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(directory, REPORT_ATTRIBUTE, &mut bytes[..]).with_context(|| {
        format!("{} is no mount of a subvold volume, or it does not answer", directory.display())
    })?;
    serde_json::from_slice(bytes.get(..length).unwrap_or_default()).context("the mount's report")
}

/// Mount points of this file system's type.
fn mounted() -> anyhow::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("the kernel's list of mounts")?;
    Ok(table.lines().filter_map(mount_point).collect())
}

/// The fifth field of a line whose type, behind the dash, is ours. Blanks in it are written as octal numbers.
fn mount_point(line: &str) -> Option<PathBuf> {
    let (fields, kind) = line.split_once(" - ")?;
    if kind.split(' ').next()? != "fuse.subvol" {
        return None;
    }
    let escaped = fields.split(' ').nth(4)?;
    Some(PathBuf::from(
        escaped.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\"),
    ))
}

pub fn list(globals: &Globals) -> anyhow::Result<()> {
    let mounts: Vec<(PathBuf, anyhow::Result<Report>)> =
        mounted()?.into_iter().map(|directory| (directory.clone(), report_in_time(&directory))).collect();
    if globals.json {
        let list: Vec<_> = mounts
            .iter()
            .map(|(directory, report)| json!({ "directory": directory, "report": report.as_ref().ok() }))
            .collect();
        output::json(&json!({ "mounts": list }))?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = mounts
        .into_iter()
        .map(|(directory, report)| match report {
            Ok(report) => vec![
                directory.display().to_string(),
                report.source,
                report.form,
                if report.connected { "connected" } else { "waiting" }.to_owned(),
                format!("{} s", report.age_seconds),
                report.process.to_string(),
            ],
            Err(_) => vec![directory.display().to_string(), "does not answer".to_owned()],
        })
        .collect();
    output::line(output::table(&["DIRECTORY", "VOLUME", "FORM", "SERVER", "AGE", "PROCESS"], &rows, 0))?;
    Ok(())
}

pub async fn top(globals: &Globals, options: TopOptions) -> anyhow::Result<()> {
    let interval = Duration::try_from_secs_f64(options.interval)
        .map_err(|_| crate::failure::usage("--interval is a number of seconds"))?;
    let mut before = report(&options.mount)?;
    let mut looks = 0;
    while options.count.is_none_or(|count| looks < count) {
        tokio::time::sleep(interval).await;
        let now = report(&options.mount)?;
        if globals.json {
            output::json(&serde_json::to_value(&now)?)?;
        } else {
            output::line(difference(&before, &now))?;
        }
        before = now;
        looks += 1;
    }
    Ok(())
}

/// What happened between two looks, busiest operations first.
fn difference(before: &Report, now: &Report) -> String {
    let mut rows: Vec<_> = now
        .operations
        .iter()
        .map(|(name, report)| {
            let old = before.operations.get(name).copied().unwrap_or_default();
            let count = report.count.saturating_sub(old.count);
            let time = report.microseconds.saturating_sub(old.microseconds);
            (name, count, report.errors.saturating_sub(old.errors), time)
        })
        .filter(|row| row.1 > 0)
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.1));
    let total: u64 = rows.iter().map(|row| row.1).sum();
    let here = now.answered_here.saturating_sub(before.answered_here);
    let mut text = format!(
        "{} {}  requests {total}  answered here {here}  round trips {}  recalls {}  read {}  written {}  inodes {}\n",
        now.source,
        if now.connected { "connected" } else { "waiting for the server" },
        now.round_trips.saturating_sub(before.round_trips),
        now.recalls.saturating_sub(before.recalls),
        size::bytes(now.bytes_read.saturating_sub(before.bytes_read)),
        size::bytes(now.bytes_written.saturating_sub(before.bytes_written)),
        now.inodes,
    );
    for (name, count, errors, time) in rows {
        let each = time as f64 / count as f64;
        text.push_str(&format!("  {name:<14} {count:>9}  errors {errors:>6}  {each:>9.1} us each\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_in_the_kernels_list() {
        let line = r"36 35 98:0 / /mnt/my\040work rw,noatime shared:1 - fuse.subvol subvol:work rw,user_id=0";
        assert_eq!(mount_point(line), Some(PathBuf::from("/mnt/my work")));
        assert_eq!(mount_point("36 35 98:0 / /mnt rw - ext4 /dev/sda rw"), None);
    }
}
