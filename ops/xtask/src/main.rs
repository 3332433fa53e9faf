//! Developer commands: `cargo xtask demo`, `cargo xtask test`, `cargo xtask tidy`, `cargo xtask soak`.
//!
//! Invariant: what the README and continuous integration run is these commands, so nobody has to remember steps.

mod demo;
mod soak;
mod test;
mod tidy;
mod tools;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of subvold")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build and start the server on an embedded store, and show its main job
    Demo(demo::Options),
    /// Install what the tests need, then run every check and test
    Test(test::Options),
    /// Check the rules of the source tree: dependency directions, file sizes, words that do not belong
    Tidy,
    /// Long runs that the tests only sample
    Soak(soak::Options),
}

fn main() -> Result<()> {
    let root = workspace_root()?;
    match Arguments::parse().command {
        Verb::Demo(options) => demo::run(&root, &options),
        Verb::Test(options) => test::run(&root, &options),
        Verb::Tidy => tidy::run(&root),
        Verb::Soak(options) => soak::run(&root, &options),
    }
}

/// The directory of the workspace's `Cargo.toml`.
fn workspace_root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = own.ancestors().nth(2).context("xtask lies two folders below the workspace")?;
    Ok(root.to_path_buf())
}

/// Runs a command and fails with its name when it fails.
fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", describe(command));
    let status = command.status().with_context(|| format!("cannot start {}", describe(command)))?;
    if !status.success() {
        bail!("failed ({status}): {}", describe(command));
    }
    Ok(())
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

/// A cargo command in the workspace.
fn cargo(root: &Path, words: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root).args(words);
    command
}
