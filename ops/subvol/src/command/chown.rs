//! `subvol chown`: by numbers, because names belong to a machine, not to a volume.

use clap::Args;

use super::volumes::for_each;
use crate::globals::Globals;
use crate::target::Target;

#[derive(Args, Debug)]
pub struct Options {
    /// UID, UID:GID or :GID, as numbers
    owner: Owner,
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
}

/// What to change; at least one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl std::str::FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| match part {
            "" => Ok(None),
            // The highest number means "leave it" to the kernel.
            part => match part.parse() {
                Ok(number) if number != u32::MAX => Ok(Some(number)),
                _ => Err(format!("`{part}` is no user or group number; `id -u NAME` tells a user's")),
            },
        };
        let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
        match (number(uid)?, number(gid)?) {
            (None, None) => Err("write UID, UID:GID or :GID".into()),
            (uid, gid) => Ok(Self { uid, gid }),
        }
    }
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let Owner { uid, gid } = options.owner;
    for_each(globals, options.targets, |volume, target| async move {
        volume.chown(&target.path, uid, gid).await?;
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        assert_eq!("1".parse(), Ok(Owner { uid: Some(1), gid: None }));
        assert_eq!("1:2".parse(), Ok(Owner { uid: Some(1), gid: Some(2) }));
        assert_eq!(":2".parse(), Ok(Owner { uid: None, gid: Some(2) }));
        for bad in ["", ":", "root", "1:x", "4294967295", "-1"] {
            assert!(bad.parse::<Owner>().is_err(), "{bad}");
        }
    }
}
