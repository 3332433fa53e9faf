//! Addresses that people write: which server, and which tenant and volume on it.
//!
//! ```text
//! subvol://host[:port][/tenant[/volume]]
//! subvol+unix:///path/to.sock[?tenant=T][&volume=V]
//! ```
//! Invariants: formatting and parsing are inverse; an address never holds a secret (a user part is refused, because addresses end up in
//! process lists and mount tables).

use std::fmt;
use std::str::FromStr;

use crate::name::{Label, NameError};

/// The port when an address names none.
pub const DEFAULT_PORT: u16 = 7828;
/// Bytes of a socket's path that the kernel takes, without the terminating zero.
pub const MAX_SOCKET_PATH: usize = 107;
/// Bytes of a host name.
const MAX_HOST: usize = 253;

/// A server, and optionally a tenant and a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// How to reach the server.
    pub endpoint: Endpoint,
    /// Whose volume; `None` for the tenant the credentials belong to.
    pub tenant: Option<Label>,
    /// Which volume; `None` for administration.
    pub volume: Option<Label>,
}

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// TCP.
    Tcp {
        /// A host name, an IPv4 address or an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A unix socket with an absolute path.
    Unix {
        /// The path.
        path: String,
    },
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Begins with neither scheme.
    #[error("an address begins with subvol:// or subvol+unix://")]
    Scheme,
    /// Contains `@`.
    #[error("an address holds no credentials; give the token in a file or the environment")]
    Credentials,
    /// The host is missing, too long, or has characters no host has.
    #[error("`{0}` is not a host name or IP address")]
    Host(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` is not a port number")]
    Port(String),
    /// The tenant's name breaks the rule of names.
    #[error("`{0}` is not the name of a tenant: {1}")]
    Tenant(String, NameError),
    /// The volume's name breaks the rule of names.
    #[error("`{0}` is not the name of a volume: {1}")]
    Volume(String, NameError),
    /// More behind the volume.
    #[error("`{0}` follows the volume; a path inside a volume is not part of its address")]
    Extra(String),
    /// The socket's path is not absolute, too long, or badly escaped.
    #[error(
        "`{0}` is not an absolute socket path of at most 107 bytes (`%`, `?` and `#` are written %25, %3F and %23)"
    )]
    Path(String),
    /// A parameter other than `tenant` and `volume`, or one of them twice.
    #[error("`{0}` is not a parameter of an address; there are tenant=NAME and volume=NAME")]
    Parameter(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(rest) = text.strip_prefix("subvol+unix://") {
            parse_unix(rest)
        } else if let Some(rest) = text.strip_prefix("subvol://") {
            parse_tcp(rest)
        } else {
            Err(AddressError::Scheme)
        }
    }
}

fn tenant(text: &str) -> Result<Label, AddressError> {
    Label::new(text).map_err(|error| AddressError::Tenant(text.into(), error))
}

fn volume(text: &str) -> Result<Label, AddressError> {
    Label::new(text).map_err(|error| AddressError::Volume(text.into(), error))
}

fn parse_tcp(rest: &str) -> Result<Address, AddressError> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return Err(AddressError::Credentials);
    }
    let bad_host = || AddressError::Host(authority.into());
    let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
        let (host, behind) = bracketed.split_once(']').ok_or_else(bad_host)?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| bad_host())?;
        match behind {
            "" => (host, None),
            _ => (host, Some(behind.strip_prefix(':').ok_or_else(bad_host)?)),
        }
    } else {
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        if host.is_empty() || host.len() > MAX_HOST || !host.bytes().all(allowed) {
            return Err(bad_host());
        }
        (host, port)
    };
    let port = match port {
        None => DEFAULT_PORT,
        // `parse` alone would take "+80".
        Some(text) if text.bytes().all(|b| b.is_ascii_digit()) => match text.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err(AddressError::Port(text.into())),
        },
        Some(text) => return Err(AddressError::Port(text.into())),
    };
    let (tenant_text, volume_text) = path.split_once('/').unwrap_or((path, ""));
    if let Some((_, extra)) = volume_text.split_once('/') {
        return Err(AddressError::Extra(extra.into()));
    }
    let volume = if volume_text.is_empty() { None } else { Some(volume(volume_text)?) };
    // A volume without a tenant ("//v") is refused as an empty tenant name rather than read as something else.
    let tenant = if tenant_text.is_empty() && volume.is_none() { None } else { Some(tenant(tenant_text)?) };
    Ok(Address { endpoint: Endpoint::Tcp { host: host.into(), port }, tenant, volume })
}

fn parse_unix(rest: &str) -> Result<Address, AddressError> {
    let (escaped, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = unescape(escaped)
        .filter(|path| {
            path.starts_with('/') && path.len() > 1 && path.len() <= MAX_SOCKET_PATH && !path.contains('\0')
        })
        .ok_or_else(|| AddressError::Path(escaped.into()))?;
    let mut address = Address { endpoint: Endpoint::Unix { path }, tenant: None, volume: None };
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let bad = || AddressError::Parameter(parameter.into());
        let (key, value) = parameter.split_once('=').ok_or_else(bad)?;
        let repeated = match key {
            "tenant" => address.tenant.replace(tenant(value)?),
            "volume" => address.volume.replace(volume(value)?),
            _ => return Err(bad()),
        };
        if repeated.is_some() {
            return Err(bad());
        }
    }
    Ok(address)
}

/// Undoes `%XX`; `None` for a bad escape, a fragment, or bytes that are not UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'#' => return None,
            b'%' => {
                let digit = |b: u8| char::from(b).to_digit(16);
                (digit(rest.next()?)? * 16 + digit(rest.next()?)?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp { host, port } => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "subvol://{open}{host}{close}:{port}")?;
                for name in [&self.tenant, &self.volume].into_iter().flatten() {
                    write!(f, "/{name}")?;
                }
            }
            Endpoint::Unix { path } => {
                f.write_str("subvol+unix://")?;
                for c in path.chars() {
                    match c {
                        '%' => f.write_str("%25")?,
                        '?' => f.write_str("%3F")?,
                        '#' => f.write_str("%23")?,
                        c => write!(f, "{c}")?,
                    }
                }
                let mut separator = '?';
                for (key, name) in [("tenant", &self.tenant), ("volume", &self.volume)] {
                    if let Some(name) = name {
                        write!(f, "{separator}{key}={name}")?;
                        separator = '&';
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parsed_is_formatted_back() {
        for text in [
            "subvol://files.example:7828/acme/build",
            "subvol://10.0.0.1:1/acme",
            "subvol://[::1]:65535/acme/v.1",
            "subvol://localhost:7828",
            "subvol+unix:///run/subvold.sock",
            "subvol+unix:///run/subvold.sock?volume=v",
            "subvol+unix:///a%25%3F%23b?tenant=t&volume=v",
        ] {
            assert_eq!(text.parse::<Address>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn the_parts_end_up_where_they_belong() {
        let address: Address = "subvol://h/t/v".parse().expect("valid");
        assert_eq!(address.endpoint, Endpoint::Tcp { host: "h".into(), port: DEFAULT_PORT });
        assert_eq!(address.tenant, Label::new("t").ok());
        assert_eq!(address.volume, Label::new("v").ok());
        let address: Address = "subvol+unix:///s%20ock?volume=v".parse().expect("valid");
        assert_eq!(address.endpoint, Endpoint::Unix { path: "/s ock".into() });
        assert_eq!((address.tenant, address.volume), (None, Label::new("v").ok()));
        assert_eq!("subvol://h/".parse::<Address>(), "subvol://h".parse());
        assert_eq!("subvol://h/t/".parse::<Address>(), "subvol://h/t".parse());
    }

    #[test]
    fn each_mistake_has_its_error() {
        use AddressError as E;
        let long = format!("subvol+unix:///{}", "x".repeat(MAX_SOCKET_PATH));
        type Expected = fn(&E) -> bool;
        let cases: [(&str, Expected); 20] = [
            ("", |e| *e == E::Scheme),
            ("http://h/t/v", |e| *e == E::Scheme),
            ("subvol://me:secret@h/t/v", |e| *e == E::Credentials),
            ("subvol://", |e| matches!(e, E::Host(_))),
            ("subvol://:80/t/v", |e| matches!(e, E::Host(_))),
            ("subvol://a b/t/v", |e| matches!(e, E::Host(_))),
            ("subvol://[::1/t/v", |e| matches!(e, E::Host(_))),
            ("subvol://[h]:1/t/v", |e| matches!(e, E::Host(_))),
            ("subvol://h:0/t/v", |e| matches!(e, E::Port(_))),
            ("subvol://h:+80/t/v", |e| matches!(e, E::Port(_))),
            ("subvol://h:65536/t/v", |e| matches!(e, E::Port(_))),
            ("subvol://h:/t/v", |e| matches!(e, E::Port(_))),
            ("subvol://h//v", |e| matches!(e, E::Tenant(_, NameError::Empty))),
            ("subvol://h/t/v!", |e| matches!(e, E::Volume(_, NameError::ForbiddenByte))),
            ("subvol://h/t/v/deeper", |e| matches!(e, E::Extra(_))),
            ("subvol+unix://relative", |e| matches!(e, E::Path(_))),
            ("subvol+unix:///x%2", |e| matches!(e, E::Path(_))),
            ("subvol+unix:///x?a=b", |e| matches!(e, E::Parameter(_))),
            ("subvol+unix:///x?volume=a&volume=b", |e| matches!(e, E::Parameter(_))),
            (&long, |e| matches!(e, E::Path(_))),
        ];
        for (text, expected) in cases {
            let error = text.parse::<Address>().expect_err(text);
            assert!(expected(&error), "{text}: {error:?}");
        }
    }
}
