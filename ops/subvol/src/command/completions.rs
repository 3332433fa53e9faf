//! `subvol completions SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::cli::Cli;
use crate::output;

#[derive(Args, Debug)]
pub struct Options {
    /// The shell, e.g. bash: `subvol completions bash > /etc/bash_completion.d/subvol`
    shell: Shell,
}

pub fn run(options: Options) -> anyhow::Result<()> {
    // Into memory first: the generator panics if its output is a closed pipe.
    let mut script = Vec::new();
    generate(options.shell, &mut Cli::command(), "subvol", &mut script);
    let mut out = output::stdout();
    std::io::Write::write_all(&mut out, &script)?;
    std::io::Write::flush(&mut out)?;
    Ok(())
}
