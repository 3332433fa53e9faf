//! [`Client`]: a server and an identity. Volumes and administration start here.
//!
//! Invariant: each open volume has a connection of its own, because a connection attaches one volume; the client's own connection
//! carries administration only.

use subvol_protocol::name::Label;
use subvol_protocol::request::VolumeRef;

use crate::admin::Admin;
use crate::channel::Channel;
use crate::config::{Attachment, ClientBuilder, Settings};
use crate::error::{ClientError, Result};
use crate::volume::Volume;

/// A connected and authenticated client. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    settings: Settings,
}

impl Client {
    /// Sets up a client of the server at `address`, e.g. `subvol://files.example/acme` or `subvol+unix:///run/subvold.sock`.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn builder(address: &str) -> Result<ClientBuilder> {
        Ok(ClientBuilder::new(address.parse()?))
    }

    /// Sets up a client of the server that [`crate::discover()`] finds.
    ///
    /// # Errors
    /// [`ClientError::NoServer`] with what was tried.
    pub fn builder_from_environment() -> Result<ClientBuilder> {
        ClientBuilder::from_environment()
    }

    pub(crate) async fn connect_with(settings: Settings) -> Result<Self> {
        let channel = Channel::connect(settings.clone()).await?;
        Ok(Self { channel, settings })
    }

    /// Opens a volume of this tenant by name, for reading and changing.
    ///
    /// # Errors
    /// [`ClientError::Name`] for a name no volume can have; `UnknownVolume`; and what connecting can give.
    pub async fn open_subvolume(&self, name: &str) -> Result<Volume> {
        let label = Label::new(name).map_err(|error| ClientError::name(name, error))?;
        self.open_volume(VolumeRef::Name(label), false).await
    }

    /// Opens the volume that the address names.
    ///
    /// # Errors
    /// [`ClientError::Argument`] if it names none, else as [`Self::open_subvolume`].
    pub async fn open_addressed(&self) -> Result<Volume> {
        match &self.settings.address.volume {
            Some(label) => self.open_volume(VolumeRef::Name(label.clone()), false).await,
            None => Err(ClientError::Argument(format!(
                "the address {} names no volume; write subvol://host/tenant/volume",
                self.settings.address
            ))),
        }
    }

    /// Opens a volume by name or number; `read_only` makes the server refuse every change through it.
    ///
    /// # Errors
    /// As [`Self::open_subvolume`].
    pub async fn open_volume(&self, volume: VolumeRef, read_only: bool) -> Result<Volume> {
        let mut settings = self.settings.clone();
        let tenant = settings.address.tenant.clone();
        settings.attach = Some(Attachment { volume, tenant, read_only });
        let owner = settings.owner;
        Ok(Volume::new(Channel::connect(settings).await?, owner))
    }

    /// Administration, of the tenant that the address names or that the credentials belong to.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.channel.clone(), self.settings.address.tenant.clone())
    }

    /// The tenant the credentials belong to; `None` for an administrator without one.
    #[must_use]
    pub fn tenant(&self) -> Option<Label> {
        self.channel.greeting().tenant.clone()
    }

    /// The credentials are an administrator's.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.channel.greeting().admin
    }

    /// The server's epoch: grows with every start.
    #[must_use]
    pub fn server_epoch(&self) -> u64 {
        self.channel.greeting().server_epoch
    }

    /// Asks the server for a sign of life and returns how long the trip took.
    ///
    /// # Errors
    /// What any request can give.
    pub async fn ping(&self) -> Result<std::time::Duration> {
        let start = std::time::Instant::now();
        self.channel.ping().await?;
        Ok(start.elapsed())
    }

    /// Says goodbye. Volumes opened from here stay open.
    pub async fn close(self) {
        self.channel.close().await;
    }
}
