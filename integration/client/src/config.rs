//! How a client is set up: where, as whom, how patient.
//!
//! Invariant: the token is only in [`ClientBuilder`] and [`Settings`], behind a type whose `Debug` hides it.

use std::path::Path;
use std::time::Duration;

use subvol_protocol::address::Address;
use subvol_protocol::limits::MAX_IN_FLIGHT;
use subvol_protocol::name::Label;
use subvol_protocol::request::{Credentials, VolumeRef};
use subvol_protocol::token::Token;

use crate::client::Client;
use crate::discover;
use crate::error::{ClientError, Result};
use crate::limits;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// One attempt to connect, authenticate and attach. Default 10 s.
    pub connect: Duration,
    /// One request, with its waiting for a turn and every reconnect in between. Default 120 s.
    pub request: Duration,
    /// A connection that owes answers and shows no sign of life for so long is replaced. Default 30 s.
    pub silence: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: limits::CONNECT_TIMEOUT,
            request: limits::REQUEST_TIMEOUT,
            silence: limits::SILENCE_TIMEOUT,
        }
    }
}

/// How often a lost connection is tried again. The waits double, each cut by a random part, so that the clients of a restarted server do
/// not all come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Attempts for the very first connection, at least 1. Default 1: a server that does not run is told at once.
    pub first_connection: u32,
    /// Attempts to replace a lost connection, and times that one request is sent before it is taken for the one that breaks
    /// connections (at least twice). Default 10.
    pub attempts: u32,
    /// The wait before the second attempt. Default 50 ms.
    pub first_wait: Duration,
    /// The longest wait. Default 3 s.
    pub longest_wait: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            first_connection: 1,
            attempts: limits::RECONNECT_ATTEMPTS,
            first_wait: limits::FIRST_WAIT,
            longest_wait: limits::LONGEST_WAIT,
        }
    }
}

/// Sets up a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    address: Address,
    credentials: Credentials,
    client_name: String,
    timeouts: Timeouts,
    retries: Retries,
    max_in_flight: u32,
    owner: (u32, u32),
    leases: bool,
    hard: bool,
}

impl ClientBuilder {
    /// A client of the server at `address`. Without a token it identifies itself by the user id behind its unix socket.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            credentials: Credentials::UnixPeer,
            client_name: "subvol-client".into(),
            timeouts: Timeouts::default(),
            retries: Retries::default(),
            max_in_flight: MAX_IN_FLIGHT,
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            leases: false,
            hard: false,
        }
    }

    /// The token of a tenant or an administrator.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.credentials = Credentials::Token(token);
        self
    }

    /// Reads the token from a file, without the white space around it.
    ///
    /// # Errors
    /// [`ClientError::Io`] if the file cannot be read, [`ClientError::Name`] if it holds no token.
    pub fn token_file(self, path: impl AsRef<Path>) -> Result<Self> {
        Ok(self.token(discover::read_token(path.as_ref())?))
    }

    /// The name for the server's logs and status; cut at 64 bytes.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// How long things may take.
    #[must_use]
    pub const fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// How often a lost connection is tried again.
    #[must_use]
    pub const fn retries(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    /// Unanswered requests of one connection, 1 to 256; the server's limit holds as well.
    #[must_use]
    pub fn max_in_flight(mut self, requests: u32) -> Self {
        self.max_in_flight = requests.clamp(1, MAX_IN_FLIGHT);
        self
    }

    /// Ask for leases on every volume, and follow losses by inode: for those who keep what they are told, and subscribe to
    /// [`crate::Volume::lease_events`].
    #[must_use]
    pub const fn leases(mut self, leases: bool) -> Self {
        self.leases = leases;
        self
    }

    /// Requests wait as long as it takes and a lost connection is tried again for ever, whatever [`Self::timeouts`] and
    /// [`Self::retries`] say, as on a hard mount. Who gives up waiting drops the future. Off by default.
    #[must_use]
    pub const fn hard(mut self, hard: bool) -> Self {
        self.hard = hard;
        self
    }

    /// Owner and group of what the path calls create. Default: those of this process.
    #[must_use]
    pub const fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Whose volumes are meant, in place of the address's tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Label) -> Self {
        self.address.tenant = Some(tenant);
        self
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Connects and authenticates, which shows that address and token are right.
    ///
    /// # Errors
    /// [`ClientError::Io`] or [`ClientError::Timeout`] if there is no server, [`ClientError::Server`] if it refuses.
    pub async fn connect(self) -> Result<Client> {
        let (mut timeouts, mut retries) = (self.timeouts, self.retries);
        if self.hard {
            timeouts.request = Duration::MAX;
            retries.attempts = u32::MAX;
        }
        let settings = Settings {
            address: self.address,
            credentials: self.credentials,
            client_name: self.client_name,
            timeouts,
            retries,
            max_in_flight: self.max_in_flight,
            owner: self.owner,
            leases: self.leases,
            attach: None,
        };
        Client::connect_with(settings).await
    }

    /// As [`discover::discover`], as a builder.
    pub(crate) fn from_environment() -> Result<Self> {
        let found = discover::discover()?;
        let builder = Self::new(found.address);
        match found.token {
            Some(token) => Ok(builder.token(token)),
            // A unix socket tells the server who this is; a network address without a token can only be refused.
            None if matches!(builder.address.endpoint, subvol_protocol::address::Endpoint::Unix { .. }) => {
                Ok(builder)
            }
            None => Err(ClientError::NoServer(format!(
                "{} needs a token; put it into a file and set SUBVOLD_TOKEN_FILE to its path",
                builder.address
            ))),
        }
    }
}

/// What every connection of a client has in common, and which volume it attaches.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub address: Address,
    pub credentials: Credentials,
    pub client_name: String,
    pub timeouts: Timeouts,
    pub retries: Retries,
    pub max_in_flight: u32,
    pub owner: (u32, u32),
    pub leases: bool,
    pub attach: Option<Attachment>,
}

/// The volume of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub volume: VolumeRef,
    pub tenant: Option<Label>,
    pub read_only: bool,
}
