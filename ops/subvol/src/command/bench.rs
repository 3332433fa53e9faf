//! `subvol bench`: the verbs of `crate::bench`.

use clap::Subcommand;

use crate::bench::{dbench, idle_volumes, ops, raw_device};
use crate::globals::Globals;

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Replay a dbench 4 load file
    Dbench(dbench::Options),
    /// Metadata operations and durable writes per second
    Ops(ops::Options),
    /// What a file system does at best: durable 4 KiB overwrites of one file, one after another
    RawDevice(raw_device::Options),
    /// Server memory per idle volume (administrators)
    IdleVolumes(idle_volumes::Options),
}

pub async fn run(globals: &Globals, verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Dbench(options) => dbench::run(globals, options).await,
        Verb::Ops(options) => ops::run(globals, options).await,
        Verb::RawDevice(options) => raw_device::run(globals, options),
        Verb::IdleVolumes(options) => idle_volumes::run(globals, options).await,
    }
}
