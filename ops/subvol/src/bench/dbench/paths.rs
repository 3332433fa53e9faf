//! A load file's paths as one client sees them.

use subvol_client::protocol::name::Name;

/// What stands for a client's own name, in the file.
const CLIENT: &str = "client1";

/// A path, taken apart once and not at every operation.
#[derive(Debug)]
pub struct ClientPath {
    /// The whole path.
    pub full: String,
    /// The directory's path, by which it is remembered; empty for the root.
    pub directory: String,
    /// The directory's components.
    pub parents: Vec<Name>,
    /// The last component; `None` for the root.
    pub name: Option<Name>,
    /// The last component is a pattern.
    pub pattern: bool,
}

impl ClientPath {
    /// Puts the client's name in, as dbench does, and takes the path apart.
    ///
    /// # Errors
    /// With the client's name in it, a component is too long.
    pub fn new(path: &str, client: usize) -> anyhow::Result<Self> {
        let full = path.replace(CLIENT, &format!("client{client}"));
        let mut parents = full
            .split('/')
            .filter(|name| !name.is_empty() && *name != ".")
            .map(Name::new)
            .collect::<Result<Vec<_>, _>>()?;
        let name = parents.pop();
        let directory = parents.iter().fold(String::new(), |mut directory, name| {
            directory.push('/');
            directory.push_str(&String::from_utf8_lossy(name.as_bytes()));
            directory
        });
        let pattern = name.as_ref().is_some_and(|name| {
            name.as_bytes().iter().any(|byte| matches!(byte, b'<' | b'>' | b'*' | b'?' | b'"'))
        });
        Ok(Self { full, directory, parents, name, pattern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_name_is_put_in() {
        let path = ClientPath::new("/clients/client1/~dmtmp/A.*", 7).expect("a path");
        assert_eq!(path.full, "/clients/client7/~dmtmp/A.*");
        assert_eq!(path.directory, "/clients/client7/~dmtmp");
        assert_eq!(path.parents.len(), 3);
        assert!(path.pattern);
        let top = ClientPath::new("/clients", 0).expect("a path");
        assert_eq!((top.directory.as_str(), top.parents.len(), top.pattern), ("", 0, false));
        assert!(ClientPath::new("/", 0).expect("a path").name.is_none());
    }
}
