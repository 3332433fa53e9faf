//! `cargo xtask tidy`: rules of the source tree that no compiler checks.
//!
//! - dependencies between the crates point one way only (client -> protocol <- actors -> storage; nothing depends on ops);
//! - only the actors crate names actix; the engine names no runtime, no clock and no randomness;
//! - files stay small enough for one idea; every Rust file opens with what it is for;
//! - the top level holds what the layout says; words that do not belong are absent.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest source file, in lines; tests may be longer.
const LINES_MAX: usize = 450;
/// Longest test file, in lines.
const TEST_LINES_MAX: usize = 800;

/// Crate -> workspace crates that it may depend on outside of its tests.
const ALLOWED: [(&str, &[&str]); 10] = [
    ("subvol-protocol", &[]),
    ("subvol-model", &[]),
    ("subvol-storage", &[]),
    ("subvol-actors", &["subvol-protocol", "subvol-storage"]),
    ("subvol-client", &["subvol-protocol"]),
    ("subvol-tests", &["subvol-client", "subvol-model", "subvol-protocol"]),
    ("subvol-mount", &["subvol-client", "subvol-protocol"]),
    ("subvold", &["subvol-actors", "subvol-mount", "subvol-storage", "subvol-protocol"]),
    ("subvol", &["subvol-client", "subvol-mount", "subvol-protocol"]),
    ("xtask", &[]),
];

/// Crates that only some may name.
const WRAPPED: [(&str, &[&str]); 3] =
    [("actix", &["subvol-actors"]), ("actix-rt", &["subvol-actors"]), ("sled", &["subvol-actors"])];

/// What the engine must not use: it is synchronous and deterministic.
const ENGINE_BANS: [&str; 6] =
    ["std::time::Instant", "std::time::SystemTime", "SystemTime::now", "Instant::now", "tokio::", "rand::"];

/// Names at the top level, besides dotfiles.
const TOP_LEVEL: [&str; 13] = [
    "Cargo.toml",
    "Cargo.lock",
    "actors",
    "storage",
    "protocol",
    "integration",
    "ops",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "target",
];

pub fn run(root: &Path) -> Result<()> {
    let mut faults = Vec::new();
    dependencies(root, &mut faults)?;
    top_level(root, &mut faults)?;
    let files = tracked_files(root)?;
    for path in &files {
        source_file(root, path, &mut faults)?;
    }
    if files.len() < 50 {
        bail!("only {} files were checked: is this a git checkout?", files.len());
    }
    if faults.is_empty() {
        println!("tidy: {} files, no fault", files.len());
        return Ok(());
    }
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    bail!("{} faults", faults.len())
}

fn dependencies(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let output =
        crate::cargo(root, &["metadata", "--format-version", "1", "--no-deps", "--locked"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    let packages = metadata["packages"].as_array().context("packages")?;
    let ours: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    for package in packages {
        let name = package["name"].as_str().context("name")?;
        let Some(may) = allowed.get(name) else {
            faults.push(format!("crate {name} is not in the table of allowed dependencies"));
            continue;
        };
        for dependency in package["dependencies"].as_array().context("dependencies")? {
            let on = dependency["name"].as_str().context("name")?;
            let for_tests = dependency["kind"].as_str() == Some("dev");
            if ours.contains(on) && !may.contains(&on) && !for_tests {
                faults.push(format!("{name} must not depend on {on}"));
            }
            for (wrapped, by) in WRAPPED {
                if on == wrapped && !by.contains(&name) {
                    faults.push(format!("{name} must not name {wrapped}; only {by:?} may"));
                }
            }
        }
    }
    Ok(())
}

fn top_level(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let running_store = name.starts_with("subvold-data");
        if !TOP_LEVEL.contains(&name.as_str()) && !name.starts_with('.') && !running_store {
            faults.push(format!("{name} does not belong into the top level"));
        }
    }
    Ok(())
}

fn tracked_files(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output()?;
    let listing = String::from_utf8(output.stdout).context("paths are UTF-8")?;
    Ok(listing.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect())
}

fn source_file(root: &Path, path: &Path, faults: &mut Vec<String>) -> Result<()> {
    let shown = path.display();
    let Ok(text) = std::fs::read_to_string(root.join(path)) else { return Ok(()) };
    if path.ends_with("Cargo.lock") {
        return Ok(());
    }
    for word in foreign_words() {
        if text.contains(&word) {
            faults.push(format!("{shown}: contains {word:?}"));
        }
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return Ok(());
    }
    if !text.starts_with("//!") {
        faults.push(format!("{shown}: opens without saying what it is for"));
    }
    let lines = text.lines().count();
    let is_test = path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
    let most = if is_test { TEST_LINES_MAX } else { LINES_MAX };
    if lines > most {
        faults.push(format!("{shown}: {lines} lines, more than {most}: two ideas in one room?"));
    }
    if path.starts_with("storage/src") && !is_test {
        for ban in ENGINE_BANS {
            if text.contains(ban) {
                faults.push(format!("{shown}: the engine must not use {ban}"));
            }
        }
    }
    Ok(())
}

/// Put together here, so that this file does not contain them.
fn foreign_words() -> Vec<String> {
    vec![
        ["todo", "!("].concat(),
        ["unimplemented", "!("].concat(),
        ["/wo", "rk/"].concat(),
        ["FIX", "ME"].concat(),
    ]
}
