//! `remove_all`: a tree removed with a list on the heap, so its depth costs no stack.
//!
//! Invariant: every directory on the list was found by a name in its parent; links are unlinked, never entered.

use futures_util::stream::{StreamExt, iter};
use subvol_protocol::attributes::FileKind;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::name::Name;

use crate::error::{ClientError, Result};
use crate::inode::InodeApi;
use crate::limits::{DIRECTORY_PAGE, REMOVALS_AHEAD, REMOVE_ROUNDS};

/// A directory to be emptied and removed.
struct Frame {
    inode: u64,
    /// Where its name is; `None` for the root, which stays.
    name: Option<(u64, Name)>,
    rounds: u32,
}

/// What others removed first is removed.
fn gone<T>(result: Result<T>) -> Result<u64> {
    match result {
        Ok(_) => Ok(1),
        Err(error) if error.is_not_found() => Ok(0),
        Err(error) => Err(error),
    }
}

impl InodeApi {
    pub(crate) async fn remove_tree(&self, path: &[u8]) -> Result<u64> {
        let target = self.resolve_path(path, false).await?;
        let name = if target.inode == self.root() {
            None
        } else {
            let place = self.resolve_place(path).await?;
            Some((place.parent, place.name))
        };
        if target.kind() != Some(FileKind::Directory) {
            return match name {
                Some((parent, name)) => gone(self.unlink(parent, name).await),
                None => Err(ClientError::unexpected("ResolvePath")),
            };
        }
        let mut frames = vec![Frame { inode: target.inode, name, rounds: 0 }];
        let mut removed = 0;
        while let Some(frame) = frames.last_mut() {
            let inode = frame.inode;
            let (count, directories) = match self.empty_of_files(inode).await {
                Err(error) if error.is_not_found() => (0, Vec::new()),
                other => other?,
            };
            removed += count;
            if !directories.is_empty() {
                frame.rounds += 1;
                if frame.rounds > REMOVE_ROUNDS {
                    return Err(ClientError::Server(ErrorCode::NotEmpty.into()));
                }
                frames.extend(directories);
                continue;
            }
            let Some((parent, name)) = &frame.name else { break };
            match gone(self.rmdir(*parent, name).await) {
                Ok(count) => removed += count,
                // Somebody put something into it meanwhile.
                Err(error) if error.code() == Some(ErrorCode::NotEmpty) && frame.rounds < REMOVE_ROUNDS => {
                    frame.rounds += 1;
                    continue;
                }
                Err(error) => return Err(error),
            }
            frames.pop();
        }
        Ok(removed)
    }

    /// Unlinks what is not a directory, many at a time; returns how many, and the directories of the last page that has some.
    async fn empty_of_files(&self, inode: u64) -> Result<(u64, Vec<Frame>)> {
        let mut removed = 0;
        let mut cookie = 0;
        loop {
            let page = self.read_directory(inode, cookie, DIRECTORY_PAGE, false).await?;
            let Some(last) = page.entries.last() else { return Ok((removed, Vec::new())) };
            if last.cookie <= cookie {
                return Err(ClientError::unexpected("ReadDirectory"));
            }
            cookie = last.cookie;
            let (directories, files): (Vec<_>, Vec<_>) =
                page.entries.into_iter().partition(|entry| entry.kind == FileKind::Directory);
            let mut unlinks = iter(files)
                .map(|entry| async move { gone(self.unlink(inode, entry.name).await) })
                .buffer_unordered(REMOVALS_AHEAD);
            while let Some(count) = unlinks.next().await {
                removed += count?;
            }
            if !directories.is_empty() || page.end {
                let frame = |entry: subvol_protocol::attributes::DirectoryEntry| Frame {
                    inode: entry.inode,
                    name: Some((inode, entry.name)),
                    rounds: 0,
                };
                return Ok((removed, directories.into_iter().map(frame).collect()));
            }
        }
    }
}
