//! `subvol ls`: directories, sorted by name.
//!
//! Invariant: a directory is collected and sorted before it is printed; a recursion keeps a list, not a stack, so depth costs nothing.

use std::io::Write;

use clap::Args;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use subvol_client::{Attributes, DirectoryEntry, FileKind, Volume};

use super::volumes::for_each;
use crate::globals::Globals;
use crate::target::{Target, join};
use crate::{output, show};

/// Link targets asked for at a time.
const LINKS_AHEAD: usize = 64;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path; a file is listed itself
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
    /// Mode, links, owner, group, size, modification time in UTC, and the target of symbolic links
    #[arg(short)]
    long: bool,
    /// Also everything below
    #[arg(short = 'R')]
    recursive: bool,
    /// Also names that begin with a dot
    #[arg(short)]
    all: bool,
}

struct Row {
    name: Vec<u8>,
    attributes: Attributes,
    link: Option<Vec<u8>>,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let Options { targets, long, recursive, all } = options;
    let headings = recursive || targets.len() > 1;
    let lister = Lister { json: globals.json, long, recursive, all, headings };
    for_each(globals, targets, |volume, target| lister.list(volume, target)).await
}

#[derive(Clone, Copy)]
struct Lister {
    json: bool,
    long: bool,
    recursive: bool,
    all: bool,
    headings: bool,
}

impl Lister {
    async fn list(self, volume: Volume, target: Target) -> anyhow::Result<()> {
        let mut found = volume.lookup(&target.path).await?;
        // Without -l a link to a directory is followed, as ls does.
        if found.kind() == Some(FileKind::Symlink) && !self.long {
            found = volume.stat(&target.path).await.unwrap_or(found);
        }
        if found.kind() != Some(FileKind::Directory) {
            let link = match found.kind() {
                Some(FileKind::Symlink) => {
                    Some(volume.inodes().read_link(found.inode).await?.as_bytes().to_vec())
                }
                _ => None,
            };
            let parent = target.split().map_or(&b"/"[..], |(parent, _)| parent).to_vec();
            let name = target.split().map_or(&b"/"[..], |(_, name)| name).to_vec();
            self.print(&parent, &[Row { name, attributes: found, link }])?;
            return Ok(());
        }
        let mut ahead = vec![target];
        let mut first = true;
        while let Some(directory) = ahead.pop() {
            let rows = self.rows(&volume, &directory.path).await?;
            if self.headings && !self.json {
                output::line(format!("{}{directory}:", if first { "" } else { "\n" }))?;
            }
            first = false;
            self.print(&directory.path, &rows)?;
            if self.recursive {
                let is_directory = |row: &&Row| row.attributes.kind() == Some(FileKind::Directory);
                ahead.extend(rows.iter().rev().filter(is_directory).map(|row| directory.join(&row.name)));
            }
        }
        Ok(())
    }

    async fn rows(self, volume: &Volume, path: &[u8]) -> anyhow::Result<Vec<Row>> {
        let mut entries = volume.read_dir_with_attributes(path).await?.collect().await?;
        entries.retain(|entry| self.all || !entry.name.as_bytes().starts_with(b"."));
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let rows = iter(entries)
            .map(|entry| self.row(volume, entry))
            .buffered(LINKS_AHEAD)
            // Removed between the listing and the question about it.
            .try_filter_map(|row| async move { Ok(row) })
            .try_collect()
            .await?;
        Ok(rows)
    }

    async fn row(self, volume: &Volume, entry: DirectoryEntry) -> subvol_client::Result<Option<Row>> {
        let details = async {
            let attributes = match entry.attributes {
                Some(attributes) => attributes,
                None => {
                    let file = subvol_client::protocol::request::FileRef::inode(entry.inode);
                    volume.inodes().attributes(file).await?
                }
            };
            let link = if entry.kind == FileKind::Symlink && (self.long || self.json) {
                Some(volume.inodes().read_link(entry.inode).await?.as_bytes().to_vec())
            } else {
                None
            };
            Ok(Row { name: entry.name.as_bytes().to_vec(), attributes, link })
        };
        match details.await {
            Ok(row) => Ok(Some(row)),
            Err(subvol_client::ClientError::Server(error))
                if error.code == subvol_client::ErrorCode::StaleInode
                    || error.code == subvol_client::ErrorCode::NotFound =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn print(self, directory: &[u8], rows: &[Row]) -> std::io::Result<()> {
        let mut out = output::stdout();
        if self.json {
            for row in rows {
                let mut fields = show::attributes(&row.attributes);
                show::insert_bytes(&mut fields, "name", &row.name);
                show::insert_bytes(&mut fields, "path", &join(directory, &row.name));
                if let Some(link) = &row.link {
                    show::insert_bytes(&mut fields, "link", link);
                }
                writeln!(out, "{}", serde_json::Value::Object(fields))?;
            }
        } else if self.long {
            write_long(&mut out, rows)?;
        } else {
            for row in rows {
                writeln!(out, "{}", show::escaped(&row.name))?;
            }
        }
        out.flush()
    }
}

fn size_cell(attributes: &Attributes) -> String {
    match attributes.kind() {
        Some(FileKind::CharacterDevice | FileKind::BlockDevice) => {
            let (major, minor) = show::device_numbers(attributes.rdev);
            format!("{major}, {minor}")
        }
        _ => attributes.size.to_string(),
    }
}

fn write_long(out: &mut impl Write, rows: &[Row]) -> std::io::Result<()> {
    let width = |cell: &dyn Fn(&Row) -> usize| rows.iter().map(cell).max().unwrap_or(0);
    let links = width(&|row| row.attributes.links.to_string().len());
    let uids = width(&|row| row.attributes.uid.to_string().len());
    let gids = width(&|row| row.attributes.gid.to_string().len());
    let sizes = width(&|row| size_cell(&row.attributes).len());
    for row in rows {
        let a = &row.attributes;
        write!(
            out,
            "{} {:>links$} {:>uids$} {:>gids$} {:>sizes$} {} {}",
            show::mode(a.mode),
            a.links,
            a.uid,
            a.gid,
            size_cell(a),
            show::time_short(a.mtime),
            show::escaped(&row.name),
        )?;
        match &row.link {
            Some(link) => writeln!(out, " -> {}", show::escaped(link))?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}
