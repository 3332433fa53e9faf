//! Arguments and the configuration file, and how they combine: an argument beats the file, the file beats the default.

use crate::local_mount::LocalMount;
use crate::logging::LogFormat;
use crate::size::ByteSize;
use anyhow::{Context as _, Result};
use clap::Parser;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use subvol_protocol::address::DEFAULT_PORT;

const DEFAULT_DATA: &str = "./subvold-data";
const DEFAULT_SIZE: u64 = 16 << 30;

/// File storage server: a file tree of its own for every customer, with exact limits and a cheap fsync
#[derive(Debug, Parser)]
#[command(version)]
pub struct Arguments {
    /// Folder of the catalog, the tokens, and by default the store and the socket [default: ./subvold-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File or block device that holds everything [default: DIR/store.img, made if it is missing]
    #[arg(long, value_name = "FILE|DEVICE")]
    store: Option<PathBuf>,
    /// Size of a store file that is made; it takes room only as it is filled [default: 16G]
    #[arg(long, value_name = "BYTES")]
    size: Option<ByteSize>,
    /// TCP address; the traffic is not encrypted [default: 127.0.0.1:7828, left out if it is taken]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Unix socket [default: DIR/subvold.sock]
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Threads for volumes [default: one per core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Mount a volume of this server, served inside the server itself: the fastest way to it. Repeat for more
    #[arg(long = "mount", value_name = "VOLUME=DIR")]
    mounts: Vec<LocalMount>,
    /// Configuration file (TOML) with the same names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Throw away the log of these volumes instead of replaying it; what was not committed is lost. Names are VOLUME,
    /// TENANT/VOLUME, or a number
    #[arg(long, value_name = "VOLUME", num_args = 1..)]
    discard_log: Vec<String>,
    /// If one of the two superblocks is damaged, go back to the other, which may be older than what was acknowledged
    #[arg(long)]
    accept_older_superblock: bool,
    /// Only open and read the catalog, and end; for the server itself, which must not die of a damaged one
    #[arg(long, hide = true)]
    pub probe_catalog: bool,
    /// Form of the log on the standard error output [default: text]
    #[arg(long, value_name = "text|json")]
    log_format: Option<LogFormat>,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfigFile {
    data: Option<PathBuf>,
    store: Option<PathBuf>,
    size: Option<ByteSize>,
    listen: Option<SocketAddr>,
    unix: Option<PathBuf>,
    threads: Option<usize>,
    log_format: Option<LogFormat>,
}

/// What counts in the end.
#[derive(Debug)]
pub struct Settings {
    /// Folder of the catalog.
    pub data: PathBuf,
    /// The store.
    pub store: PathBuf,
    /// Size of a new store file, in bytes.
    pub size: u64,
    /// TCP address.
    pub listen: SocketAddr,
    /// Somebody asked for it, so it must work.
    pub listen_is_explicit: bool,
    /// Unix socket.
    pub unix: PathBuf,
    /// Event loops for volumes; 0 = one per core.
    pub threads: usize,
    /// Volumes to be mounted.
    pub mounts: Vec<LocalMount>,
    /// Volumes whose log is thrown away.
    pub discard_log: Vec<String>,
    /// Go back to an older superblock when the other one is damaged.
    pub accept_older_superblock: bool,
    /// Form of the log.
    pub log_format: LogFormat,
}

impl Arguments {
    /// Reads the configuration file, if there is one, and fills in what nobody said.
    pub fn settle(self) -> Result<Settings> {
        let file = match &self.config {
            Some(path) => read_config(path)?,
            None => ConfigFile::default(),
        };
        let data = self.data.or(file.data).unwrap_or_else(|| DEFAULT_DATA.into());
        let listen = self.listen.or(file.listen);
        Ok(Settings {
            store: self.store.or(file.store).unwrap_or_else(|| data.join("store.img")),
            size: self.size.or(file.size).map_or(DEFAULT_SIZE, |size| size.0),
            listen: listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, DEFAULT_PORT).into()),
            listen_is_explicit: listen.is_some(),
            unix: self.unix.or(file.unix).unwrap_or_else(|| data.join("subvold.sock")),
            threads: self.threads.or(file.threads).unwrap_or(0),
            mounts: self.mounts,
            discard_log: self.discard_log,
            accept_older_superblock: self.accept_older_superblock,
            log_format: self.log_format.or(file.log_format).unwrap_or_default(),
            data,
        })
    }
}

fn read_config(path: &Path) -> Result<ConfigFile> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the configuration file {} cannot be read", path.display()))?;
    toml::from_str(&text).with_context(|| format!("the configuration file {} is wrong", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(words: &[&str]) -> Result<Settings> {
        Arguments::try_parse_from([&["subvold"], words].concat()).map_err(anyhow::Error::from)?.settle()
    }

    #[test]
    fn arguments_beat_the_file_and_the_file_beats_defaults() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("subvold.toml");
        std::fs::write(&path, "data = \"/d\"\nsize = \"2G\"\nlog-format = \"json\"\n").expect("written");
        let config = ["--config", path.to_str().expect("text")];
        let settings = settle(&config).expect("right");
        assert_eq!((settings.size, settings.store), (2 << 30, PathBuf::from("/d/store.img")));
        assert!(!settings.listen_is_explicit && settings.log_format == LogFormat::Json);
        let settings =
            settle(&[&config[..], &["--size", "64M", "--listen", "[::1]:9"]].concat()).expect("right");
        assert_eq!(settings.size, 64 << 20);
        assert!(settings.listen_is_explicit);
        std::fs::write(&path, "sice = 1\n").expect("written");
        assert!(settle(&config).is_err(), "a misspelt key must not be ignored");
        assert_eq!(settle(&[]).expect("right").unix, PathBuf::from("./subvold-data/subvold.sock"));
    }
}
