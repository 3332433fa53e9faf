//! The options that every verb has, and the way from them to a connected client.
//!
//! Invariant: a token reaches the client library from a file only; it is never an argument, because arguments end up in process lists.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "the comments of options are help texts, where brackets mean optional"
)]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use subvol_client::{
    Address, Client, ClientBuilder, Endpoint, Label, Retries, Timeouts, Volume, VolumeRef, discover,
    token_beside,
};

use crate::failure::usage;

/// Options of every verb.
#[derive(Args, Clone, Debug)]
pub struct Globals {
    /// The server: subvol://HOST[:PORT][/TENANT], subvol+unix:///PATH, or the path of a socket. Without it, the server that runs
    /// in the current folder (./subvold-data)
    #[arg(long, global = true, env = "SUBVOLD_SERVER", value_name = "ADDRESS")]
    pub server: Option<String>,
    /// A file with the token. Without it, the owner of a socket's folder is the administrator, and others use `default.token`
    /// beside the socket
    #[arg(long, global = true, env = "SUBVOLD_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Whose volumes are meant, for administrators
    #[arg(long, global = true, value_name = "TENANT")]
    pub tenant: Option<Label>,
    /// Print JSON: one document, or one per line where the result is a list of files. Sizes are in bytes, times in UTC; null for no
    /// limit; a name that is not UTF-8 also stands in hexadecimal under the key with `_hex`
    #[arg(long, global = true)]
    pub json: bool,
}

impl Globals {
    fn builder(&self) -> anyhow::Result<ClientBuilder> {
        let builder = match &self.server {
            Some(text) => {
                let address = self.address(text)?;
                let beside = match &address.endpoint {
                    Endpoint::Unix { path } => Some(token_beside(path)),
                    Endpoint::Tcp { .. } => None,
                };
                let builder = ClientBuilder::new(address);
                match (&self.token_file, beside) {
                    (Some(file), _) => builder.token_file(file)?,
                    (None, Some(Some(beside))) => builder.token_file(beside)?,
                    (None, Some(None)) => builder,
                    (None, None) => {
                        return Err(usage(format!(
                            "{} needs a token: put it into a file and name it with --token-file",
                            builder.address()
                        )));
                    }
                }
            }
            None => {
                let found = discover().context("give --server ADDRESS")?;
                let builder = ClientBuilder::new(found.address);
                match (&self.token_file, found.token) {
                    (Some(file), _) => builder.token_file(file)?,
                    (None, Some(token)) => builder.token(token),
                    (None, None) => builder,
                }
            }
        };
        let builder = builder.client_name("subvol");
        Ok(match &self.tenant {
            Some(tenant) => builder.tenant(tenant.clone()),
            None => builder,
        })
    }

    fn address(&self, text: &str) -> anyhow::Result<Address> {
        let text = if text.contains("://") {
            text.to_owned()
        } else {
            let path = std::path::absolute(text).context("the socket's path")?;
            let path = path.to_str().ok_or_else(|| usage("the socket's path is not text"))?;
            let escaped = path.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
            format!("subvol+unix://{escaped}")
        };
        text.parse().map_err(|error| usage(format!("--server {text}: {error}")))
    }

    /// Connects.
    ///
    /// # Errors
    /// No server, a refused token, a wrong address.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Ok(self.builder()?.connect().await?)
    }

    /// Opens a volume for a mount: with leases, and patient for ever unless `soft`. Also gives its name for people.
    ///
    /// # Errors
    /// As [`Self::volume`].
    pub async fn mounted_volume(
        &self,
        name: &Label,
        soft: bool,
        read_only: bool,
    ) -> anyhow::Result<(Volume, String)> {
        /// As good as for ever, and still a number that can be added to the clock.
        const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
        let mut timeouts = Timeouts::default();
        let mut retries = Retries { longest_wait: Duration::from_secs(1), ..Retries::default() };
        if !soft {
            timeouts.request = FOR_EVER;
            retries.attempts = u32::MAX;
        }
        // A few less than the server allows, so that acknowledgements never wait for a turn.
        let builder = self.builder()?.client_name("subvol mount").leases(true).max_in_flight(224);
        let builder = builder.timeouts(timeouts).retries(retries);
        let source = match &self.tenant {
            Some(tenant) => format!("subvol:{tenant}/{name}"),
            None => format!("subvol:{name}"),
        };
        let client = builder.connect().await?;
        let volume = client.open_volume(VolumeRef::Name(name.clone()), read_only).await;
        client.close().await;
        Ok((volume.with_context(|| format!("volume {name}"))?, source))
    }

    /// Connects and opens a volume.
    ///
    /// # Errors
    /// As [`Self::client`], and what opening gives.
    pub async fn volume(&self, name: &Label) -> anyhow::Result<Volume> {
        let client = self.client().await?;
        let volume = client.open_subvolume(name.as_str()).await.with_context(|| format!("volume {name}"));
        client.close().await;
        volume
    }
}
