//! Finding a server without being told: environment first, then the data folder of a server started here.
//!
//! - `SUBVOLD_SERVER`: an address as in [`subvol_protocol::address`];
//! - else `./subvold-data/subvold.sock`;
//! - `SUBVOLD_TOKEN_FILE`: a file with the token; else, for a socket, whoever owns its folder needs none (the server takes
//!   him for the administrator), and others use `default.token` beside it, if it is there.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use subvol_protocol::address::{Address, Endpoint};
use subvol_protocol::limits::MAX_TOKEN;
use subvol_protocol::name::NameError;
use subvol_protocol::token::Token;

use crate::error::{ClientError, Result};

/// The environment variable with the server's address.
const SERVER: &str = "SUBVOLD_SERVER";
/// The environment variable with the path of the token's file.
const TOKEN_FILE: &str = "SUBVOLD_TOKEN_FILE";
/// Where a server that was started in this folder listens.
const LOCAL_SOCKET: &str = "subvold-data/subvold.sock";
/// The token's file beside a socket.
const DEFAULT_TOKEN: &str = "default.token";

/// Where to connect and as whom.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// The address.
    pub address: Address,
    /// The token, if there is one.
    pub token: Option<Token>,
}

/// Finds a server.
///
/// # Errors
/// [`ClientError::NoServer`] with what was tried; [`ClientError::Address`] or [`ClientError::Io`] if what is set is wrong.
pub fn discover() -> Result<Discovered> {
    let folder = env::current_dir().map_err(|error| ClientError::io("the current folder", error))?;
    discover_in(&folder, env::var(SERVER).ok(), env::var_os(TOKEN_FILE).map(PathBuf::from))
}

/// As [`discover`], with what it takes from its surroundings as arguments.
fn discover_in(folder: &Path, server: Option<String>, token_file: Option<PathBuf>) -> Result<Discovered> {
    let address: Address = match server {
        Some(text) => text.parse()?,
        None => {
            let socket = folder.join(LOCAL_SOCKET);
            if !socket.exists() {
                return Err(ClientError::NoServer(format!(
                    "{SERVER} is not set and {} does not exist; start subvold in this folder, or set {SERVER} to its address",
                    socket.display()
                )));
            }
            let path = socket
                .to_str()
                .ok_or_else(|| ClientError::NoServer(format!("{} is not UTF-8", socket.display())))?;
            let address =
                Address { endpoint: Endpoint::Unix { path: path.into() }, tenant: None, volume: None };
            // Parsing checks the length, so that a deep folder gets this error rather than the kernel's.
            address.to_string().parse()?
        }
    };
    let token = match (token_file, &address.endpoint) {
        (Some(file), _) => Some(read_token(&file)?),
        (None, Endpoint::Unix { path }) => match token_beside(path) {
            Some(file) => Some(read_token(&file)?),
            None => None,
        },
        (None, Endpoint::Tcp { .. }) => None,
    };
    Ok(Discovered { address, token })
}

/// The file of the token to use with a socket: none for the owner of the folder, whom the server knows as the
/// administrator by the user id behind the socket. A token would make him an ordinary tenant.
pub fn token_beside(socket: impl AsRef<Path>) -> Option<PathBuf> {
    let file = socket.as_ref().with_file_name(DEFAULT_TOKEN);
    let folder = file.parent()?;
    let owner = std::fs::metadata(folder).ok()?.uid();
    (owner != rustix::process::geteuid().as_raw() && file.exists()).then_some(file)
}

/// Reads a token without the white space around it.
pub(crate) fn read_token(file: &Path) -> Result<Token> {
    use std::io::Read;
    let shown = file.display().to_string();
    let what = || format!("reading the token file {shown}; check its path and permissions");
    let mut bytes = Vec::with_capacity(2 * MAX_TOKEN);
    std::fs::File::open(file)
        // Bounded: the path may name a device.
        .and_then(|file| file.take(2 * MAX_TOKEN as u64).read_to_end(&mut bytes))
        .map_err(|error| ClientError::io(what(), error))?;
    let token = Token::new(bytes.trim_ascii());
    bytes.fill(0);
    token.map_err(|error: NameError| ClientError::name(format!("token file {shown}"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_socket_and_the_token_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = discover_in(folder.path(), None, None).expect_err("nothing is there");
        assert!(matches!(&error, ClientError::NoServer(text) if text.contains(SERVER)), "{error}");
        let data = folder.path().join("subvold-data");
        std::fs::create_dir(&data).expect("a folder");
        std::fs::write(data.join("subvold.sock"), b"").expect("a file");
        assert!(discover_in(folder.path(), None, None).expect("found").token.is_none());
        std::fs::write(data.join(DEFAULT_TOKEN), b" sesame\n").expect("a file");
        // The folder is ours: the user id behind the socket says more than the token.
        assert!(discover_in(folder.path(), None, None).expect("found").token.is_none());
        let found = discover_in(folder.path(), None, Some(data.join(DEFAULT_TOKEN))).expect("found");
        assert_eq!(found.token.as_ref().map(Token::expose), Some(b"sesame".as_slice()));
        assert!(!format!("{found:?}").contains("sesame"));
    }

    #[test]
    fn the_environment_comes_first_and_its_mistakes_are_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        let given = |server: &str, token: &Path| {
            discover_in(folder.path(), Some(server.into()), Some(token.to_path_buf()))
        };
        assert!(matches!(given("nonsense", &token), Err(ClientError::Address(_))));
        assert!(matches!(given("subvol://host/t", &token), Err(ClientError::Io { .. })));
        std::fs::write(&token, b"\n").expect("a file");
        assert!(matches!(given("subvol://host/t", &token), Err(ClientError::Name { .. })));
        std::fs::write(&token, b"x").expect("a file");
        let found = given("subvol://host/t", &token).expect("found");
        assert_eq!(found.address.to_string(), "subvol://host:7828/t");
        // Nothing is guessed for a server elsewhere.
        let found = discover_in(folder.path(), Some("subvol://host".into()), None).expect("found");
        assert!(found.token.is_none());
    }
}
