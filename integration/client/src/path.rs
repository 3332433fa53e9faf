//! Walking paths: one trip for up to 64 components, links followed by the client.
//!
//! Invariants: a path is relative to the volume's root, with or without a leading slash; `..` never leaves the root; the walk keeps the
//! inodes of the directories it came through, so `..` behind a link means the link target's parent, as everywhere.

use std::collections::VecDeque;

use subvol_protocol::attributes::{Attributes, FileKind};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::limits::MAX_PATH_COMPONENTS;
use subvol_protocol::name::{Name, NameError};
use subvol_protocol::request::FileRef;

use crate::error::{ClientError, Result};
use crate::inode::InodeApi;
use crate::limits::{MAX_LINKS_FOLLOWED, MAX_PATH};

enum Component {
    Parent,
    Entry(Name),
}

/// A directory and a name in it.
pub(crate) struct Place {
    pub parent: u64,
    pub name: Name,
}

fn split(path: &[u8], into: &mut Vec<Component>) -> Result<()> {
    if path.len() > MAX_PATH {
        return Err(ClientError::name(path, NameError::TooLong));
    }
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => into.push(Component::Parent),
            name => into.push(Component::Entry(Name::new(name).map_err(|e| ClientError::name(name, e))?)),
        }
    }
    Ok(())
}

/// The walk: directories behind, components ahead.
struct Walk<'a> {
    inodes: &'a InodeApi,
    ancestors: Vec<u64>,
    ahead: VecDeque<Component>,
    links: u32,
}

impl Walk<'_> {
    fn here(&self) -> u64 {
        self.ancestors.last().copied().unwrap_or_else(|| self.inodes.root())
    }

    /// Puts a link's target in front of what is ahead.
    async fn follow(&mut self, link: u64) -> Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS_FOLLOWED {
            return Err(ClientError::Server(ErrorCode::LoopDetected.into()));
        }
        let target = self.inodes.read_link(link).await?;
        if target.as_bytes().starts_with(b"/") {
            self.ancestors.clear();
        }
        let mut components = Vec::new();
        split(target.as_bytes(), &mut components)?;
        for component in components.into_iter().rev() {
            self.ahead.push_front(component);
        }
        Ok(())
    }

    /// Goes to the end. `None` means that the walk ended in the directory [`Self::here`] by `..` or because the path was empty.
    async fn run(&mut self, follow_last: bool) -> Result<Option<Attributes>> {
        let mut last = None;
        while !self.ahead.is_empty() {
            if matches!(self.ahead.front(), Some(Component::Parent)) {
                self.ahead.pop_front();
                self.ancestors.pop();
                last = None;
                continue;
            }
            let mut names = Vec::new();
            while names.len() < MAX_PATH_COMPONENTS
                && let Some(Component::Entry(_)) = self.ahead.front()
                && let Some(Component::Entry(name)) = self.ahead.pop_front()
            {
                names.push(name);
            }
            let asked = names.len();
            let found = self.inodes.resolve(self.here(), names.clone()).await?;
            if found.len() > asked {
                return Err(ClientError::unexpected("ResolvePath"));
            }
            for (step, attributes) in found.iter().enumerate() {
                match attributes.kind() {
                    Some(FileKind::Directory) => {
                        self.ancestors.push(attributes.inode);
                        last = Some(*attributes);
                    }
                    kind => {
                        for name in names.drain(step + 1..).rev() {
                            self.ahead.push_front(Component::Entry(name));
                        }
                        let at_end = self.ahead.is_empty();
                        if kind == Some(FileKind::Symlink) && (follow_last || !at_end) {
                            self.follow(attributes.inode).await?;
                            last = None;
                            break;
                        }
                        if at_end {
                            return Ok(Some(*attributes));
                        }
                        return Err(ClientError::server(ErrorCode::NotDirectory, &shown(names.get(step))));
                    }
                }
            }
            let all_directories = found.iter().all(|a| a.kind() == Some(FileKind::Directory));
            if all_directories && found.len() < asked {
                let missing = shown(names.get(found.len()));
                return Err(ClientError::server(ErrorCode::NotFound, &missing));
            }
        }
        Ok(last)
    }
}

fn shown(name: Option<&Name>) -> String {
    name.map(|name| name.as_bytes().escape_ascii().to_string()).unwrap_or_default()
}

impl InodeApi {
    fn walk(&self, path: &[u8]) -> Result<Walk<'_>> {
        let mut components = Vec::new();
        split(path, &mut components)?;
        Ok(Walk { inodes: self, ancestors: Vec::new(), ahead: components.into(), links: 0 })
    }

    /// What a path names; a link at its end is followed if asked for.
    pub(crate) async fn resolve_path(&self, path: &[u8], follow_last: bool) -> Result<Attributes> {
        let mut walk = self.walk(path)?;
        // A trailing slash means the directory behind a link, as everywhere.
        let follow_last = follow_last || path.ends_with(b"/");
        match walk.run(follow_last).await? {
            Some(attributes) if path.ends_with(b"/") && attributes.kind() != Some(FileKind::Directory) => {
                Err(ClientError::Server(ErrorCode::NotDirectory.into()))
            }
            Some(attributes) => Ok(attributes),
            None => self.attributes(FileRef::inode(walk.here())).await,
        }
    }

    /// The directory that holds the last component, and that component. Costs no trip for an entry of the root.
    pub(crate) async fn resolve_place(&self, path: &[u8]) -> Result<Place> {
        let mut walk = self.walk(path)?;
        let Some(Component::Entry(name)) = walk.ahead.pop_back() else {
            return Err(ClientError::name(path, NameError::Dots));
        };
        if let Some(attributes) = walk.run(true).await?
            && attributes.kind() != Some(FileKind::Directory)
        {
            return Err(ClientError::Server(ErrorCode::NotDirectory.into()));
        }
        Ok(Place { parent: walk.here(), name })
    }
}
