//! `subvol stat`.

use clap::Args;
use subvol_client::FileKind;

use super::volumes::for_each;
use crate::globals::Globals;
use crate::target::Target;
use crate::{output, show};

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
    /// Of what a symbolic link at the end points to
    #[arg(short = 'L')]
    follow: bool,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let (json, follow) = (globals.json, options.follow);
    for_each(globals, options.targets, |volume, target| async move {
        let found =
            if follow { volume.stat(&target.path).await? } else { volume.lookup(&target.path).await? };
        let link = match found.kind() {
            Some(FileKind::Symlink) => Some(volume.inodes().read_link(found.inode).await?),
            _ => None,
        };
        if json {
            let mut fields = show::attributes(&found);
            fields.insert("volume".into(), target.volume.as_str().into());
            show::insert_bytes(&mut fields, "path", &target.path);
            if let Some(link) = &link {
                show::insert_bytes(&mut fields, "link", link.as_bytes());
            }
            output::json(&serde_json::Value::Object(fields))?;
            return Ok(());
        }
        let arrow = link.map(|link| format!(" -> {}", show::escaped(link.as_bytes()))).unwrap_or_default();
        let kind = found.kind().map_or("unknown", show::kind_name);
        let (major, minor) = show::device_numbers(found.rdev);
        let device = if found.rdev == 0 { String::new() } else { format!("  device {major},{minor}") };
        output::line(format!("  File: {target}{arrow}"))?;
        output::line(format!("  Kind: {kind}{device}  inode {}  links {}", found.inode, found.links))?;
        output::line(format!("  Size: {}  allocated {}", found.size, found.blocks.saturating_mul(4096)))?;
        output::line(format!(
            "  Mode: {:04o} {}  owner {}  group {}",
            found.mode & 0o7777,
            show::mode(found.mode),
            found.uid,
            found.gid
        ))?;
        for (title, time) in [
            ("Access", found.atime),
            ("Modify", found.mtime),
            ("Change", found.ctime),
            (" Birth", found.btime),
        ] {
            output::line(format!("{title}: {}", show::time_full(time)))?;
        }
        Ok(())
    })
    .await
}
