//! Options of a mount as fstab has them: words separated by commas.

use std::path::PathBuf;

use crate::globals::Globals;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    pub read_only: bool,
    pub allow_other: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    pub soft: bool,
    pub local_locks: bool,
    pub access_log: Option<PathBuf>,
    server: Option<String>,
    token_file: Option<PathBuf>,
    tenant: Option<String>,
}

impl MountOptions {
    /// Takes a list in. The later of two contradicting words counts.
    ///
    /// # Errors
    /// A text for people.
    pub fn add(&mut self, list: &str) -> Result<(), String> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
            let needed =
                || value.filter(|value| !value.is_empty()).ok_or(format!("the option {key} needs a value"));
            match key {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "allow_other" => self.allow_other = true,
                "nosuid" => self.no_suid = true,
                "suid" => self.no_suid = false,
                "nodev" => self.no_dev = true,
                "dev" => self.no_dev = false,
                "noexec" => self.no_exec = true,
                "exec" => self.no_exec = false,
                "hard" => self.soft = false,
                "soft" => self.soft = true,
                "locks" => {
                    self.local_locks = match needed()? {
                        "local" => true,
                        "shared" => false,
                        other => return Err(format!("locks={other}: it is shared or local")),
                    };
                }
                "access_log" => self.access_log = Some(needed()?.into()),
                "server" => self.server = Some(needed()?.to_owned()),
                "token_file" => self.token_file = Some(needed()?.into()),
                "tenant" => self.tenant = Some(needed()?.to_owned()),
                // For mount(8) and the service manager, or what is always so.
                "defaults"
                | "auto"
                | "noauto"
                | "user"
                | "nouser"
                | "users"
                | "nofail"
                | "_netdev"
                | "noatime"
                | "nodiratime"
                | "relatime"
                | "default_permissions"
                | "async"
                | "comment" => {}
                _ if key.starts_with("x-") => {}
                _ => {
                    return Err(format!(
                        "the mount option {key} is unknown; `subvol mount --help` lists them"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The global options with what these say about the server.
    pub fn globals(&self, globals: &Globals) -> anyhow::Result<Globals> {
        let mut globals = globals.clone();
        if let Some(server) = &self.server {
            globals.server = Some(server.clone());
        }
        if let Some(file) = &self.token_file {
            globals.token_file = Some(file.clone());
        }
        if let Some(tenant) = &self.tenant {
            let label =
                tenant.parse().map_err(|error| crate::failure::usage(format!("tenant={tenant}: {error}")))?;
            globals.tenant = Some(label);
        }
        Ok(globals)
    }
}

/// What mount(8) runs for the type `fuse.subvol`, said in this program's own way.
///
/// `mount.fuse.subvol VOLUME DIR [-sfnv] [-o OPTIONS]`
#[must_use]
pub fn from_mount_helper(arguments: &[std::ffi::OsString]) -> Vec<std::ffi::OsString> {
    let mut said: Vec<std::ffi::OsString> = vec!["subvol".into(), "mount".into()];
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            // Sloppy, fake, no mtab, verbose: nothing of it applies.
            Some("-s" | "-f" | "-n" | "-v") => {}
            Some("-o") => {
                said.push("-o".into());
                said.extend(rest.next().cloned());
            }
            Some("-t") => {
                let _ = rest.next();
            }
            _ => said.push(argument.clone()),
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fstab_is_understood() {
        let mut options = MountOptions::default();
        options
            .add("rw,nosuid,nodev,soft,locks=local,server=/run/subvold.sock,x-systemd.automount,_netdev")
            .expect("all known");
        assert!(
            options.no_suid && options.no_dev && options.soft && options.local_locks && !options.read_only
        );
        assert_eq!(options.server.as_deref(), Some("/run/subvold.sock"));
        options.add("ro,hard").expect("known");
        assert!(options.read_only && !options.soft);
        for bad in ["writeback-please", "locks=some", "server", "server="] {
            assert!(options.add(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_helper_of_mount_speaks_its_own_way() {
        let words = ["mount.fuse.subvol", "work", "/mnt", "-n", "-o", "ro,nosuid"].map(Into::into);
        let expected: Vec<std::ffi::OsString> =
            ["subvol", "mount", "work", "/mnt", "-o", "ro,nosuid"].map(Into::into).to_vec();
        assert_eq!(from_mount_helper(&words), expected);
    }
}
