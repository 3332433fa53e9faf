//! The verbs: one file each, with its options and what it does.

pub mod bench;
pub mod cat;
pub mod chmod;
pub mod chown;
pub mod completions;
pub mod df;
pub mod fsync;
pub mod get;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mount;
pub mod mount_options;
pub mod mounts;
pub mod mv;
pub mod put;
pub mod rm;
pub mod stat;
pub mod status;
pub mod sync;
pub mod tenant;
pub mod truncate;
pub mod volume;
pub mod volumes;
pub mod write;
pub mod xattr;

use crate::cli::{Cli, Verb};

/// Does what the command line says.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    let globals = &cli.globals;
    match cli.verb {
        Verb::Tenant(verb) => tenant::run(globals, verb).await,
        Verb::Volume(verb) => volume::run(globals, verb).await,
        Verb::Ls(options) => ls::run(globals, options).await,
        Verb::Stat(options) => stat::run(globals, options).await,
        Verb::Mkdir(options) => mkdir::run(globals, options).await,
        Verb::Put(options) => put::run(globals, options).await,
        Verb::Get(options) => get::run(globals, options).await,
        Verb::Cat(options) => cat::run(globals, options).await,
        Verb::Write(options) => write::run(globals, options).await,
        Verb::Rm(options) => rm::run(globals, options).await,
        Verb::Mv(options) => mv::run(globals, options).await,
        Verb::Ln(options) => ln::run(globals, options).await,
        Verb::Chmod(options) => chmod::run(globals, options).await,
        Verb::Chown(options) => chown::run(globals, options).await,
        Verb::Xattr(verb) => xattr::run(globals, verb).await,
        Verb::Truncate(options) => truncate::run(globals, options).await,
        Verb::Fsync(options) => fsync::run(globals, options).await,
        Verb::Sync(options) => sync::run(globals, options).await,
        Verb::Df(options) => df::run(globals, options).await,
        Verb::Mount(options) => mount::run(globals, options).await,
        Verb::Umount(options) => mounts::unmount_all(&options),
        Verb::Top(options) => mounts::top(globals, options).await,
        Verb::Status(options) => status::run(globals, options).await,
        Verb::Bench(verb) => bench::run(globals, verb).await,
        Verb::Completions(options) => completions::run(options),
        Verb::Man(options) => man::run(&options),
    }
}
