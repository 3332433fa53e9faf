//! Requests about the connection: hello, who are you, which volume, are you there, goodbye.
//!
//! The order is fixed: `Hello`, `Authenticate`, then administration or `Attach`, then file requests. Anything else is `OutOfOrder`,
//! `NotAuthenticated` or `NotAttached`.

use bincode::{Decode, Encode};

use crate::limits::MAX_CLIENT_NAME;
use crate::name::{Label, Text};
use crate::token::Token;

/// About the connection itself.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum SessionRequest {
    /// The first request of every connection. Reply: `HelloOk`.
    Hello {
        /// The newest protocol version the client speaks. The server answers with the newest that both speak.
        protocol_version: u16,
        /// What the client can use.
        features: Features,
        /// A random id the client keeps as long as it may retry operations: over reconnects, not over its own restart.
        client_id: [u8; 16],
        /// For logs and the status report.
        client_name: Text<MAX_CLIENT_NAME>,
    },
    /// Proves who the client is. Reply: `AuthOk`, or `NotAuthenticated` after a delay.
    Authenticate {
        /// The proof.
        credentials: Credentials,
    },
    /// Binds the connection to one volume; all file requests then mean that volume. Once per connection. Reply: `Attached`.
    Attach {
        /// Which volume.
        volume: VolumeRef,
        /// Whose volume; only an administrator may name a tenant other than its own.
        tenant: Option<Label>,
        /// Refuse every change through this connection.
        read_only: bool,
    },
    /// Asks for a `Pong`; keeps the connection alive through middle boxes.
    Ping,
    /// The client is done: the server closes its handles, replies `Farewell` and closes the connection.
    Goodbye,
}

impl SessionRequest {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Authenticate { .. } => "Authenticate",
            Self::Attach { .. } => "Attach",
            Self::Ping => "Ping",
            Self::Goodbye => "Goodbye",
        }
    }
}

/// Optional parts of the protocol, one bit each. Both sides use only what both named. Unknown bits are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Features(pub u64);

impl Features {
    /// No optional part.
    pub const NONE: Self = Self(0);
    /// Leases and locks: the client understands `Recall` pushes and may send `BeginLeases`.
    pub const LEASES: Self = Self(1);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What both name.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// A proof of identity.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Credentials {
    /// A bearer token, of a tenant or of the administrator.
    Token(Token),
    /// The user id that the kernel reports for the other end of a unix socket. Refused on other sockets.
    UnixPeer,
}

/// Which volume.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum VolumeRef {
    /// By its name within the tenant.
    Name(Label),
    /// By its subvolume number.
    Id(u64),
}
