//! What can go wrong on the client's side, each with an errno and a text that says what to do next.
//!
//! Invariant: no error text contains a token.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use subvol_protocol::address::AddressError;
use subvol_protocol::error::{ErrorCode, WireError, errno};
use subvol_protocol::name::NameError;

/// The result of everything here.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

const ETIMEDOUT: i32 = 110;

/// Why a call failed. Cheap to clone: a lost connection fails everything that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with an error.
    #[error("{0}")]
    Server(#[from] WireError),
    /// The machine refused a file or socket operation.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, and what to check.
        what: String,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// No answer within [`crate::Timeouts::request`].
    #[error(
        "{operation} got no answer within {after:?}{}",
        if *.changing { "; it may have been done or not: look at the result before repeating it" }
        else { "; check the server and the network, then try again" }
    )]
    Timeout {
        /// Name of the request.
        operation: &'static str,
        /// How long was waited.
        after: Duration,
        /// It would have changed something.
        changing: bool,
    },
    /// The server sent something that the protocol does not allow.
    #[error("the server broke the protocol: {0}; compare the versions of client and server")]
    Protocol(String),
    /// The connection was lost and could not be replaced within the allowed attempts. A change that was under way may have been done.
    #[error(
        "the connection to {server} was lost and {attempts} attempts to replace it failed: {cause}; check that the server runs, then \
         try again (changes under way may have been done or not)"
    )]
    Lost {
        /// The server's address.
        server: String,
        /// Attempts made.
        attempts: u32,
        /// The last attempt's error.
        cause: String,
    },
    /// A path component, label or token breaks its rule.
    #[error("`{name}`: {error}")]
    Name {
        /// What was given, escaped.
        name: String,
        /// The rule.
        error: NameError,
    },
    /// An argument that cannot be sent.
    #[error("{0}")]
    Argument(String),
    /// The text is not an address.
    #[error("{0}")]
    Address(#[from] AddressError),
    /// Nothing tells which server to use.
    #[error("no server found: {0}")]
    NoServer(String),
    /// The connection was lost under a request that was for that connection only. The next event tells of the next one.
    #[error("the connection was lost meanwhile; wait for the next one, then claim everything again")]
    Interrupted,
    /// The client, volume or runtime was shut down.
    #[error("the connection was closed by this program; open the volume again")]
    Closed,
}

impl ClientError {
    /// The Linux errno that tells a caller the same.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Server(error) => error.code.errno(),
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(errno::EIO),
            Self::Timeout { .. } => ETIMEDOUT,
            Self::Protocol(_) => errno::EPROTO,
            Self::Lost { .. } | Self::Interrupted => errno::EIO,
            Self::Name { error, .. } => ErrorCode::from(*error).errno(),
            Self::Argument(_) | Self::Address(_) => errno::EINVAL,
            Self::NoServer(_) => errno::ENOENT,
            Self::Closed => errno::ESHUTDOWN,
        }
    }

    /// The server's code, if the server answered.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Server(error) => Some(error.code),
            _ => None,
        }
    }

    /// There is no such entry, inode, volume or tenant.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.code(),
            Some(
                ErrorCode::NotFound
                    | ErrorCode::StaleInode
                    | ErrorCode::UnknownVolume
                    | ErrorCode::UnknownTenant
            )
        )
    }

    /// Changes made before were lost in a restart of the server. Reported once; write the data again.
    #[must_use]
    pub fn is_lost_changes(&self) -> bool {
        self.code() == Some(ErrorCode::StaleLineage)
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source) }
    }

    pub(crate) fn name(name: impl AsRef<[u8]>, error: NameError) -> Self {
        let mut shown = name.as_ref().escape_ascii().to_string();
        // A name that is too long is not repeated in full.
        if shown.len() > 80 {
            shown.truncate(77);
            shown.push_str("...");
        }
        Self::Name { name: shown, error }
    }

    pub(crate) fn server(code: ErrorCode, detail: &str) -> Self {
        Self::Server(WireError::new(code, detail))
    }

    /// An answer of the wrong kind.
    pub(crate) fn unexpected(operation: &'static str) -> Self {
        Self::Protocol(format!("{operation} was answered with something else"))
    }
}

impl From<ClientError> for io::Error {
    fn from(error: ClientError) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}
