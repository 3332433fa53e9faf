//! `subvol man --out DIR`: a manual page for every verb.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};

use crate::cli::Cli;

#[derive(Args, Debug)]
pub struct Options {
    /// Folder for the pages; made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let context = || format!("writing manual pages into {}", options.out.display());
    std::fs::create_dir_all(&options.out).with_context(context)?;
    clap_mangen::generate_to(Cli::command(), &options.out).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_gets_a_page() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        run(&Options { out: folder.path().join("man") }).expect("pages");
        for page in ["subvol.1", "subvol-put.1", "subvol-bench-dbench.1"] {
            assert!(folder.path().join("man").join(page).exists(), "{page}");
        }
    }
}
