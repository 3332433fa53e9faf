//! Local trees into a volume.
//!
//! Invariants: an item waits for the inode of its directory, which was sent before it, so nothing waits for something that has not begun;
//! whatever fails gives up its promise of an inode, and what depends on it fails too; directories get their times after everything in
//! them, deepest first.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt, iter};
use rustc_hash::FxHashMap;
use subvol_client::protocol::name::{LinkTarget, Name, XattrName, XattrValue};
use subvol_client::protocol::request::{
    Create, FileRef, FileRequest, InodeRef, SetAttributes, WritePosition,
};
use subvol_client::{
    Attributes, ClientError, ErrorCode, FileKind, InodeApi, NewKind, StepResult, Volume, XattrMode,
};
use tokio::sync::{Semaphore, mpsc, watch};

use super::facts::Facts;
use super::local_read::read_piece;
use super::report::Report;
use super::scan::{Content, Item, Parent, Scanner, data_ranges};
use super::{ITEMS_AHEAD, LARGE_AHEAD, PIECES_AHEAD, SCANNED_AHEAD, Xattrs, pieces};

/// Extended attributes that fit into the request that makes a file: their number and bytes.
const XATTRS_ALONG: (usize, usize) = (16, 32 * 1024);

/// A local file or directory and where it goes.
#[derive(Debug)]
pub struct Source {
    pub local: PathBuf,
    /// Inode of the directory.
    pub parent: u64,
    /// `None`: the directory is this source itself.
    pub name: Option<Vec<u8>>,
}

/// An inode number that comes, or never does.
type Promise = watch::Receiver<Option<u64>>;
type Keeper = watch::Sender<Option<u64>>;

/// Why an item failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}")]
    Local(#[from] std::io::Error),
    #[error("{0}")]
    Text(&'static str),
}

/// Copies; failures are in the report.
///
/// # Errors
/// The scanning thread cannot be started.
pub async fn upload(volume: &Volume, sources: Vec<Source>, report: Arc<Report>) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::channel(SCANNED_AHEAD);
    let scanned = Arc::clone(&report);
    std::thread::Builder::new().name("scan".into()).spawn(move || {
        let mut scanner = Scanner::new(&scanned);
        for source in sources {
            let mut send = |item| !scanned.stopped() && sender.blocking_send(item).is_ok();
            if !scanner.scan(&source.local, source.parent, source.name, &mut send) {
                return;
            }
        }
    })?;
    let uid = rustix::process::geteuid();
    let upload = Upload {
        inodes: volume.inodes(),
        volume,
        report: &report,
        keep_owner: uid.is_root(),
        owner: (uid.as_raw(), rustix::process::getegid().as_raw()),
        large: Semaphore::new(LARGE_AHEAD),
    };
    upload.run(receiver).await;
    Ok(())
}

struct Upload<'a> {
    inodes: &'a InodeApi,
    volume: &'a Volume,
    report: &'a Report,
    keep_owner: bool,
    owner: (u32, u32),
    large: Semaphore,
}

/// What an item depends on and what depends on it.
struct Place {
    parent: Parent,
    directory: Option<Promise>,
    /// The first name of the same file.
    first: Option<Promise>,
    keeper: Option<Keeper>,
}

impl Upload<'_> {
    async fn run(&self, mut items: mpsc::Receiver<Item>) {
        let mut directories: Vec<(Promise, Facts, PathBuf)> = Vec::new();
        let mut files: FxHashMap<(u64, u64), Promise> = FxHashMap::default();
        let mut running = FuturesUnordered::new();
        let mut open = true;
        while open || !running.is_empty() {
            tokio::select! {
                item = items.recv(), if open && running.len() < ITEMS_AHEAD => match item {
                    Some(item) if !self.report.stopped() => {
                        let place = place(&item, &mut directories, &mut files);
                        running.push(self.item(item, place));
                    }
                    _ => open = false,
                },
                Some(()) = running.next(), if !running.is_empty() => {}
            }
        }
        drop(items);
        let mut finished = iter(directories.into_iter().rev())
            .map(|(promise, facts, path)| self.finish_directory(promise, facts, path))
            .buffered(ITEMS_AHEAD);
        while finished.next().await.is_some() {}
    }

    async fn item(&self, item: Item, place: Place) {
        let (path, kind, again) =
            (item.path.clone(), item.facts.kind, matches!(item.content, Content::Again));
        let keeper = place.keeper.clone();
        match self.make(item, place).await {
            Ok(inode) => {
                if let Some(keeper) = keeper {
                    keeper.send_replace(Some(inode));
                }
                if again { self.report.linked() } else { self.report.done(kind) }
            }
            Err(Failure::Client(error)) => self.report.failed_by(path.display(), &error),
            Err(error) => self.report.failed(path.display(), &error),
        }
    }

    async fn finish_directory(&self, promise: Promise, facts: Facts, path: PathBuf) {
        let Some(inode) = *promise.borrow() else { return };
        if self.report.stopped() {
            return;
        }
        if let Err(error) = self.set(facts.to_set(FileRef::inode(inode), self.keep_owner)).await {
            self.report.failed_by(path.display(), &error);
        }
    }

    async fn set(&self, set: SetAttributes) -> Result<Attributes, ClientError> {
        let SetAttributes { file, permissions, uid, gid, size, atime, mtime } = set;
        let change = subvol_client::AttributeChange { permissions, uid, gid, size, atime, mtime };
        self.inodes.set_attributes(file, change).await
    }

    async fn make(&self, item: Item, place: Place) -> Result<u64, Failure> {
        let parent = match (place.parent, place.directory) {
            (Parent::Given(inode), _) => inode,
            (Parent::Directory(_), directory) => {
                kept(directory).await.ok_or(Failure::Text("its directory could not be made"))?
            }
        };
        let Some(name) = item.name.as_deref() else {
            return match item.facts.kind {
                FileKind::Directory => {
                    self.set_xattrs(parent, &item.xattrs).await?;
                    Ok(parent)
                }
                _ => Err(Failure::Text("it is no directory, but the target is one")),
            };
        };
        let name = Name::new(name).map_err(|_| Failure::Text("no volume can hold this name"))?;
        let entry = Entry { parent, name, facts: item.facts, xattrs: item.xattrs };
        match item.content {
            Content::Again => {
                let first =
                    kept(place.first).await.ok_or(Failure::Text("its first name could not be copied"))?;
                self.link(first, &entry).await
            }
            Content::File(file) => self.large_file(&entry, file).await,
            Content::Bytes(bytes) => self.small(&entry, NewKind::Regular, bytes).await,
            Content::Target(target) => {
                let target = LinkTarget::new(target).map_err(|_| Failure::Text("its target is too long"))?;
                self.small(&entry, NewKind::Symlink(target), Bytes::new()).await
            }
            Content::Empty => {
                let kind = match entry.facts.kind {
                    FileKind::Directory => NewKind::Directory,
                    FileKind::Fifo => NewKind::Fifo,
                    FileKind::Socket => NewKind::Socket,
                    FileKind::CharacterDevice => NewKind::CharacterDevice(entry.facts.rdev),
                    FileKind::BlockDevice => NewKind::BlockDevice(entry.facts.rdev),
                    FileKind::Regular | FileKind::Symlink => {
                        return Err(Failure::Text("it changed meanwhile"));
                    }
                };
                self.small(&entry, kind, Bytes::new()).await
            }
        }
    }

    fn create(&self, entry: &Entry, kind: NewKind) -> FileRequest {
        let (uid, gid) = if self.keep_owner { (entry.facts.uid, entry.facts.gid) } else { self.owner };
        FileRequest::Create(Create {
            parent: InodeRef::Explicit(entry.parent),
            name: entry.name.clone(),
            kind,
            permissions: entry.facts.permissions,
            uid,
            gid,
            exclusive: true,
            open: None,
        })
    }

    /// Everything in one trip: the inode, its content, its extended attributes, its times.
    async fn small(&self, entry: &Entry, kind: NewKind, bytes: Bytes) -> Result<u64, Failure> {
        let made = InodeRef::FromStep(0);
        let mut steps = vec![self.create(entry, kind.clone())];
        if !bytes.is_empty() {
            steps.push(FileRequest::Write { file: FileRef::Inode(made), position: WritePosition::At(0) });
        }
        let along = fits_along(&entry.xattrs);
        if along {
            for (name, value) in &entry.xattrs {
                steps.push(set_xattr(made, name, value)?);
            }
        }
        // A directory gets its times at the end.
        if entry.facts.kind != FileKind::Directory {
            steps.push(FileRequest::SetAttributes(entry.facts.to_set(FileRef::Inode(made), self.keep_owner)));
        }
        let length = bytes.len() as u64;
        let results = self.volume.compound(steps, bytes.clone()).await?;
        let inode = match (results.first(), results.last()) {
            (Some(Err(error)), _) if error.code == ErrorCode::Exists => {
                self.replace(entry, kind, bytes, along).await?
            }
            (Some(Ok(first)), last) => {
                let inode =
                    first.inode().ok_or(Failure::Text("the server did not say which inode it made"))?;
                if let Some(Err(error)) = last {
                    return Err(ClientError::from(error.clone()).into());
                }
                inode
            }
            (Some(Err(error)), _) => return Err(ClientError::from(error.clone()).into()),
            (None, _) => return Err(Failure::Text("the server answered nothing")),
        };
        self.report.moved(length);
        if !along {
            self.set_xattrs(inode, &entry.xattrs).await?;
        }
        Ok(inode)
    }

    /// The name is taken: a file of the same kind gets the content, a directory stays, anything else makes room.
    async fn replace(&self, entry: &Entry, kind: NewKind, bytes: Bytes, along: bool) -> Result<u64, Failure> {
        let there = self.inodes.lookup(entry.parent, &entry.name).await?;
        let inode = InodeRef::Explicit(there.inode);
        let mut steps = Vec::new();
        let made = match (there.kind(), entry.facts.kind) {
            (Some(FileKind::Directory), FileKind::Directory) => inode,
            (Some(FileKind::Directory), _) => return Err(Failure::Text("a directory has its name")),
            (_, FileKind::Directory) => {
                return Err(Failure::Text("something else than a directory has its name"));
            }
            (Some(FileKind::Regular), FileKind::Regular) => {
                let cut = SetAttributes { size: Some(0), ..SetAttributes::none(FileRef::Inode(inode)) };
                steps.push(FileRequest::SetAttributes(cut));
                inode
            }
            _ => {
                steps.push(FileRequest::Unlink {
                    parent: InodeRef::Explicit(entry.parent),
                    name: entry.name.clone(),
                });
                steps.push(self.create(entry, kind));
                InodeRef::FromStep(1)
            }
        };
        if !bytes.is_empty() {
            steps.push(FileRequest::Write { file: FileRef::Inode(made), position: WritePosition::At(0) });
        }
        if along {
            for (name, value) in &entry.xattrs {
                steps.push(set_xattr(made, name, value)?);
            }
        }
        if entry.facts.kind != FileKind::Directory {
            steps.push(FileRequest::SetAttributes(entry.facts.to_set(FileRef::Inode(made), self.keep_owner)));
        }
        if steps.is_empty() {
            return Ok(there.inode);
        }
        let results = self.volume.compound(steps, bytes).await?;
        if let Some(Err(error)) = results.last() {
            return Err(ClientError::from(error.clone()).into());
        }
        match made {
            InodeRef::Explicit(number) => Ok(number),
            InodeRef::FromStep(step) => inode_of(&results, usize::from(step)),
        }
    }

    async fn link(&self, first: u64, entry: &Entry) -> Result<u64, Failure> {
        let file = FileRef::inode(first);
        match self.inodes.link(file, entry.parent, &entry.name).await {
            Err(error) if error.code() == Some(ErrorCode::Exists) => {
                let there = self.inodes.lookup(entry.parent, &entry.name).await?;
                if there.inode != first {
                    if there.kind() == Some(FileKind::Directory) {
                        return Err(Failure::Text("a directory has its name"));
                    }
                    self.inodes.unlink(entry.parent, &entry.name).await?;
                    self.inodes.link(file, entry.parent, &entry.name).await?;
                }
            }
            other => drop(other?),
        }
        Ok(first)
    }

    /// A file in pieces, without its holes.
    async fn large_file(&self, entry: &Entry, file: std::fs::File) -> Result<u64, Failure> {
        let _turn = self.large.acquire().await;
        let facts = entry.facts;
        let file = Arc::new(file);
        let ranges = {
            let file = Arc::clone(&file);
            blocking(move || data_ranges(&file, facts.size, facts.sparse)).await?
        };
        let bare = Entry { xattrs: Xattrs::new(), name: entry.name.clone(), ..*entry };
        let inode = self.small(&bare, NewKind::Regular, Bytes::new()).await?;
        let mut writes = iter(pieces(ranges))
            .map(|(at, length)| self.piece(Arc::clone(&file), inode, at, length))
            .buffer_unordered(PIECES_AHEAD);
        while let Some(written) = writes.next().await {
            self.report.moved(written?);
        }
        drop(writes);
        self.set_xattrs(inode, &entry.xattrs).await?;
        // The size as well: a hole at the end was not written.
        let set = facts.to_set(FileRef::inode(inode), self.keep_owner);
        self.set(SetAttributes { size: Some(facts.size), ..set }).await?;
        Ok(inode)
    }

    async fn piece(
        &self,
        file: Arc<std::fs::File>,
        inode: u64,
        at: u64,
        length: usize,
    ) -> Result<u64, Failure> {
        let bytes = blocking(move || read_piece(&file, at, length)).await?;
        let moved = bytes.len() as u64;
        if moved > 0 {
            self.inodes.write(FileRef::inode(inode), WritePosition::At(at), bytes).await?;
        }
        Ok(moved)
    }

    async fn set_xattrs(&self, inode: u64, xattrs: &Xattrs) -> Result<(), Failure> {
        for (name, value) in xattrs {
            self.inodes.set_xattr(inode, name, value, XattrMode::Any).await?;
        }
        Ok(())
    }
}

/// What to make, and where.
struct Entry {
    parent: u64,
    name: Name,
    facts: Facts,
    xattrs: Xattrs,
}

/// Writes down what the item promises and finds what it waits for.
fn place(
    item: &Item,
    directories: &mut Vec<(Promise, Facts, PathBuf)>,
    files: &mut FxHashMap<(u64, u64), Promise>,
) -> Place {
    let directory = match item.parent {
        Parent::Given(_) => None,
        Parent::Directory(number) => directories.get(number).map(|(promise, ..)| promise.clone()),
    };
    let mut place = Place { parent: item.parent, directory, first: None, keeper: None };
    if item.facts.kind == FileKind::Directory {
        let (keeper, promise) = watch::channel(None);
        directories.push((promise, item.facts, item.path.clone()));
        place.keeper = Some(keeper);
    } else if let Some(identity) = item.identity {
        if matches!(item.content, Content::Again) {
            place.first = files.get(&identity).cloned();
        } else {
            let (keeper, promise) = watch::channel(None);
            files.insert(identity, promise);
            place.keeper = Some(keeper);
        }
    }
    place
}

/// The inode, once it is there; `None` if it never will be.
async fn kept(promise: Option<Promise>) -> Option<u64> {
    let mut promise = promise?;
    let known = promise.wait_for(Option::is_some).await.ok()?;
    *known
}

fn fits_along(xattrs: &Xattrs) -> bool {
    let (count, bytes) = XATTRS_ALONG;
    xattrs.len() <= count
        && xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= bytes
}

fn set_xattr(inode: InodeRef, name: &[u8], value: &[u8]) -> Result<FileRequest, Failure> {
    let bad = |_| Failure::Text("no volume can hold one of its extended attributes");
    let (name, value) = (XattrName::new(name).map_err(bad)?, XattrValue::new(value).map_err(bad)?);
    Ok(FileRequest::SetXattr { inode, name, value, mode: XattrMode::Any })
}

fn inode_of(results: &[StepResult], step: usize) -> Result<u64, Failure> {
    match results.get(step) {
        Some(Ok(response)) => response.inode(),
        _ => None,
    }
    .ok_or(Failure::Text("the server did not say which inode it made"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    Ok(tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)??)
}
