//! The command line: every verb and where its options are.

use clap::{Parser, Subcommand};

use crate::command::{
    bench, cat, chmod, chown, completions, df, fsync, get, ln, ls, man, mkdir, mount, mounts, mv, put, rm,
    stat, status, sync, tenant, truncate, volume, write, xattr,
};
use crate::globals::Globals;

/// Work with a subvold server: volumes, files, benchmarks
///
/// Files are written VOLUME:/path. Beside a running server nothing has to be configured; else give --server and --token-file.
///
/// Exit codes: 0 everything was done, 1 an operation failed, 2 the command line is wrong.
#[derive(Parser, Debug)]
#[command(name = "subvol", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Add, list, change and remove tenants (administrators)
    #[command(subcommand)]
    Tenant(tenant::Verb),
    /// Create, list, change and remove volumes
    #[command(subcommand)]
    Volume(volume::Verb),
    /// List directories
    Ls(ls::Options),
    /// Show the attributes of files
    Stat(stat::Options),
    /// Make directories
    Mkdir(mkdir::Options),
    /// Copy local files and directories into a volume
    Put(put::Options),
    /// Copy files and directories of a volume here
    Get(get::Options),
    /// Print files
    Cat(cat::Options),
    /// Write standard input into a file
    Write(write::Options),
    /// Remove files and directories
    Rm(rm::Options),
    /// Move, rename or exchange
    Mv(mv::Options),
    /// Make hard and symbolic links
    Ln(ln::Options),
    /// Change permission bits
    Chmod(chmod::Options),
    /// Change owner and group
    Chown(chown::Options),
    /// Read and change extended attributes
    #[command(subcommand)]
    Xattr(xattr::Verb),
    /// Cut or grow files
    Truncate(truncate::Options),
    /// Make files or directories durable, with every name and attribute changed in the volume before
    Fsync(fsync::Options),
    /// Make whole volumes durable, or the whole store
    Sync(sync::Options),
    /// Show usage and limits of volumes
    Df(df::Options),
    /// Show how the server and its volumes are doing
    Status(status::Options),
    /// Mount a volume as a file system of this machine; `mount list` shows those that are
    Mount(mount::Options),
    /// Unmount
    Umount(mounts::UnmountOptions),
    /// Show what a mount is doing
    Top(mounts::TopOptions),
    /// Measure
    #[command(subcommand)]
    Bench(bench::Verb),
    /// Print a completion script for a shell
    Completions(completions::Options),
    /// Write the manual pages
    Man(man::Options),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_lines_of_the_documentation_parse() {
        for line in [
            "subvol volume create work --max-bytes 10G",
            "subvol --json volume set work --max-bytes none --max-inodes 1000",
            "subvol put -r project work:/project",
            "subvol ls -l work:/project",
            "subvol mv work:/project work:/renamed",
            "subvol mv --exchange work:/a work:/b",
            "subvol sync work:/",
            "subvol sync",
            "subvol df -i work:/",
            "subvol status",
            "subvol mount work /mnt/work",
            "subvol mount --read-only --foreground work /mnt/work -o nosuid,locks=local",
            "subvol mount list",
            "subvol umount /mnt/work",
            "subvol top --mount /mnt/work --count 1",
            "subvol chmod u+x,go-w work:/a",
            "subvol chmod -- -x work:/a",
            "subvol xattr set work:/a user.k v",
            "subvol bench dbench --loadfile client.txt --clients 8 --seconds 60 --volumes 2 --warmup 5",
            "subvol bench ops --kind fsync --clients 4 --depth 2 --seconds 5",
            "subvol bench raw-device f --seconds 1",
            "subvol bench idle-volumes --count 10",
            "subvol ls work:/ --json --server subvol://h",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in [
            "subvol",
            "subvol ls /no/volume",
            "subvol volume create work --max-bytes lots",
            "subvol mv --exchange --no-replace v:/a v:/b",
            "subvol tenant add no/slash",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
