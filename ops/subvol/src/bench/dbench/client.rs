//! One client: the load file over one connection, one operation after another.
//!
//! Invariants: at most one request is under way; an operation's time runs from before its request until after its answer; an operation
//! that began in the measured time counts, also if it ends later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use subvol_client::protocol::name::Name;
use subvol_client::protocol::request::{FileRef, FileRequest, InodeRef, WritePosition};
use subvol_client::protocol::response::FileResponse;
use subvol_client::{
    AttributeChange, Attributes, ClientError, ErrorCode, FileKind, InodeApi, NewKind, OpenFlags, RenameMode,
    SetTime, Timestamp, Volume,
};

use super::load_file::{Handle, Line, LoadFile, Operation, PathIndex};
use super::paths::ClientPath;
use super::table::{KINDS, Kind};
use super::verdict::{Wrong, complaint};
use crate::bench::latency::Latencies;
use crate::bench::phase::{Clock, Phase};

/// Errors whose text is kept, per client.
const MAX_TOLD: usize = 10;
/// Bits of a create's options and values of its disposition.
const DIRECTORY_FILE: u64 = 1;
const FILE_CREATE: u64 = 2;
const FILE_OVERWRITE: u64 = 4;
const FILE_OVERWRITE_IF: u64 = 5;

const READ_WRITE: OpenFlags = OpenFlags::READ.with(OpenFlags::WRITE);
const READ_DIRECTORY: OpenFlags = OpenFlags::READ.with(OpenFlags::DIRECTORY);

/// What one client did in the measured time.
#[derive(Debug)]
pub struct ClientResult {
    pub latencies: Vec<Latencies>,
    pub bytes: u64,
    /// Over the whole run.
    pub errors: u64,
    pub told: Vec<String>,
    /// Operations over the whole run.
    pub operations: u64,
}

struct OpenFile {
    handle: u64,
    attributes: Attributes,
}

/// A client.
pub struct Replay {
    volume: Volume,
    inodes: InodeApi,
    load: Arc<LoadFile>,
    paths: Vec<ClientPath>,
    home: String,
    strict: bool,
    owner: (u32, u32),
    /// Inodes of directories by path, which only this client moves.
    directories: FxHashMap<String, u64>,
    open: FxHashMap<Handle, OpenFile>,
    data: Bytes,
    result: ClientResult,
}

/// Bytes that do not repeat soon: a store must not be able to save them.
fn data() -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = subvol_client::protocol::limits::MAX_PAYLOAD / 8;
    let mut bytes = Vec::with_capacity(words * 8);
    for _ in 0..words {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.into()
}

impl Replay {
    /// Client `number` of a volume of its own or shared.
    ///
    /// # Errors
    /// A path that does not fit with the client's name in it.
    pub fn new(volume: Volume, load: Arc<LoadFile>, number: usize, strict: bool) -> anyhow::Result<Self> {
        let paths = load.paths.iter().map(|path| ClientPath::new(path, number)).collect::<Result<_, _>>()?;
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ok(Self {
            inodes: volume.inodes().clone(),
            volume,
            load,
            paths,
            home: format!("/clients/client{number}"),
            strict,
            owner,
            directories: FxHashMap::default(),
            open: FxHashMap::default(),
            data: data(),
            result: ClientResult {
                latencies: vec![Latencies::default(); KINDS.len()],
                bytes: 0,
                errors: 0,
                told: Vec::new(),
                operations: 0,
            },
        })
    }

    /// Replays until the time is over.
    ///
    /// # Errors
    /// Getting ready failed, or the connection was lost for good.
    pub async fn run(mut self, clock: &Clock) -> anyhow::Result<ClientResult> {
        self.remove_home().await.context("removing what an earlier run left")?;
        if !clock.start().await {
            anyhow::bail!("another client could not get ready");
        }
        let load = Arc::clone(&self.load);
        'replay: loop {
            for line in &load.lines {
                let phase = clock.phase();
                if phase == Phase::Over {
                    break 'replay;
                }
                self.line(line, phase).await?;
                // A load of local no-ops must not keep the thread from the other clients.
                if self.result.operations.is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
        }
        for (_, file) in std::mem::take(&mut self.open) {
            self.inodes.close(file.handle).await.context("closing a file at the end")?;
        }
        self.remove_home().await.context("removing the client's files at the end")?;
        self.volume.close().await;
        Ok(self.result)
    }

    async fn remove_home(&self) -> Result<(), ClientError> {
        match self.volume.remove_all(&self.home).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn line(&mut self, line: &Line, phase: Phase) -> anyhow::Result<()> {
        let kind = Kind::of(&line.operation);
        let begin = Instant::now();
        let outcome = self.operation(&line.operation).await;
        let took = begin.elapsed();
        self.result.operations += 1;
        let bytes = match &line.operation {
            Operation::Write { size, .. } | Operation::Read { size, .. } if outcome.is_ok() => *size,
            _ => 0,
        };
        if phase == Phase::Measured {
            if let Some(latencies) = self.result.latencies.get_mut(kind as usize) {
                latencies.record(took);
            }
            self.result.bytes += bytes;
        }
        if let Some(complaint) = complaint(line, &outcome, self.strict) {
            self.result.errors += 1;
            if self.result.told.len() < MAX_TOLD {
                let text = format!("{}: line {}: {} {complaint}", self.home, line.number, kind.name());
                eprintln!("subvol: {text}");
                self.result.told.push(text);
            }
        }
        match outcome {
            // Nothing else will work either.
            Err(Wrong::Status(error)) if error.code().is_none() => {
                Err(error).with_context(|| format!("line {}", line.number))
            }
            _ => Ok(()),
        }
    }

    async fn operation(&mut self, operation: &Operation) -> Result<(), Wrong> {
        match *operation {
            Operation::CreateX { path, options, disposition, handle } => {
                let (number, attributes) = self.create_x(path, options, disposition).await?;
                if let Some(old) = self.open.insert(handle, OpenFile { handle: number, attributes }) {
                    self.inodes.close(old.handle).await?;
                }
            }
            Operation::Close { handle } => {
                let file = self.open.remove(&handle).ok_or(Wrong::NoHandle(handle))?;
                self.inodes.close(file.handle).await?;
            }
            Operation::Rename { from, to } => self.rename(from, to).await?,
            Operation::Unlink { path } => {
                let (parent, name) = self.place(path).await?;
                self.inodes.unlink(parent, name).await?;
            }
            Operation::Rmdir { path } => {
                let (parent, name) = self.place(path).await?;
                self.inodes.rmdir(parent, name).await?;
                self.directories.clear();
            }
            Operation::Mkdir { path } => {
                let (parent, name) = self.place(path).await?;
                self.inodes.create(parent, name, NewKind::Directory, 0o777, self.owner, true, None).await?;
            }
            Operation::Deltree { path } => {
                self.directories.clear();
                let full = &self.path(path)?.full;
                self.volume.remove_all(full).await?;
            }
            Operation::PathInfo { path } => {
                if self.path(path)?.name.is_none() {
                    self.inodes.attributes(FileRef::inode(self.inodes.root())).await?;
                } else {
                    let (parent, name) = self.place(path).await?;
                    self.inodes.lookup(parent, name).await?;
                }
            }
            Operation::FileInfo { handle } => {
                self.inodes.attributes(self.file(handle)?).await?;
            }
            Operation::FsInfo => {
                self.inodes.statfs().await?;
            }
            Operation::SetFileInfo { handle } => self.set_times(handle).await?,
            Operation::Find { path, max } => self.find(path, max).await?,
            Operation::Write { handle, offset, size, done } => {
                let bytes = self.data.slice(..(size as usize).min(self.data.len()));
                self.inodes.write(self.file(handle)?, WritePosition::At(offset), bytes).await?;
                if size != done {
                    return Err(Wrong::Length(size));
                }
            }
            Operation::Read { handle, offset, size, done } => {
                let (bytes, _) = self.inodes.read(self.file(handle)?, offset, size as u32).await?;
                if bytes.len() as u64 != done {
                    return Err(Wrong::Length(bytes.len() as u64));
                }
            }
            Operation::Lock { handle } | Operation::Unlock { handle } => drop(self.file(handle)?),
            Operation::Flush { handle } => {
                self.inodes.fsync(self.file(handle)?, false).await?;
            }
            Operation::Sleep { microseconds } => {
                tokio::time::sleep(Duration::from_micros(microseconds)).await;
            }
        }
        Ok(())
    }

    fn path(&self, index: PathIndex) -> Result<&ClientPath, ClientError> {
        self.paths.get(index).ok_or(ClientError::Argument("a path that the load file does not have".into()))
    }

    fn file(&self, handle: Handle) -> Result<FileRef, Wrong> {
        self.open.get(&handle).map(|file| FileRef::handle(file.handle)).ok_or(Wrong::NoHandle(handle))
    }

    /// The inode of a path's directory, asked for once.
    async fn parent(&mut self, index: PathIndex) -> Result<u64, ClientError> {
        let path = self.path(index)?;
        if path.parents.is_empty() {
            return Ok(self.inodes.root());
        }
        if let Some(inode) = self.directories.get(&path.directory) {
            return Ok(*inode);
        }
        let found = self.inodes.resolve(self.inodes.root(), path.parents.clone()).await?;
        let last = found
            .last()
            .filter(|last| found.len() == path.parents.len() && last.kind() == Some(FileKind::Directory));
        let inode = last.ok_or(ClientError::Server(ErrorCode::NotFound.into()))?.inode;
        let directory = path.directory.clone();
        self.directories.insert(directory, inode);
        Ok(inode)
    }

    async fn place(&mut self, index: PathIndex) -> Result<(u64, Name), ClientError> {
        let parent = self.parent(index).await?;
        let name = self.path(index)?.name.clone();
        // The root can be listed and deltreed, nothing else.
        Ok((parent, name.ok_or(ClientError::Server(ErrorCode::IsDirectory.into()))?))
    }

    async fn create_x(
        &mut self,
        path: PathIndex,
        options: u64,
        disposition: u64,
    ) -> Result<(u64, Attributes), ClientError> {
        if self.path(path)?.name.is_none() {
            return self.inodes.open(self.inodes.root(), READ_DIRECTORY).await;
        }
        let (parent, name) = self.place(path).await?;
        if options & DIRECTORY_FILE != 0 {
            let made =
                self.inodes.create(parent, &name, NewKind::Directory, 0o700, self.owner, true, None).await;
            return match made {
                Ok(made) => self.inodes.open(made.attributes.inode, READ_DIRECTORY).await,
                Err(error) if error.code() == Some(ErrorCode::Exists) => {
                    self.open_by_name(parent, name, READ_DIRECTORY).await
                }
                Err(error) => Err(error),
            };
        }
        let flags = match disposition {
            FILE_CREATE => READ_WRITE,
            FILE_OVERWRITE | FILE_OVERWRITE_IF => READ_WRITE.with(OpenFlags::TRUNCATE),
            _ => {
                return match self.open_by_name(parent, name.clone(), READ_WRITE).await {
                    Err(error) if error.code() == Some(ErrorCode::IsDirectory) => {
                        self.open_by_name(parent, name, READ_DIRECTORY).await
                    }
                    other => other,
                };
            }
        };
        let made =
            self.inodes.create(parent, &name, NewKind::Regular, 0o600, self.owner, false, Some(flags)).await;
        match made {
            Ok(made) => {
                let handle =
                    made.handle.ok_or(ClientError::Protocol("a created file without a handle".into()))?;
                Ok((handle, made.attributes))
            }
            Err(error) if matches!(error.code(), Some(ErrorCode::Exists | ErrorCode::IsDirectory)) => {
                self.open_by_name(parent, name, READ_DIRECTORY).await
            }
            Err(error) => Err(error),
        }
    }

    /// Look-up and opening in one trip.
    async fn open_by_name(
        &self,
        parent: u64,
        name: Name,
        flags: OpenFlags,
    ) -> Result<(u64, Attributes), ClientError> {
        let steps = vec![
            FileRequest::Lookup { parent: InodeRef::Explicit(parent), name },
            FileRequest::Open { inode: InodeRef::FromStep(0), flags },
        ];
        match self.volume.compound(steps, Bytes::new()).await?.pop() {
            Some(Ok(FileResponse::Opened { handle, attributes, .. })) => Ok((handle, attributes)),
            Some(Err(error)) => Err(error.into()),
            _ => Err(ClientError::Protocol("opening was answered with something else".into())),
        }
    }

    async fn rename(&mut self, from: PathIndex, to: PathIndex) -> Result<(), ClientError> {
        let (parent, name) = self.place(from).await?;
        let (new_parent, new_name) = self.place(to).await?;
        self.inodes.rename(parent, name, new_parent, new_name, RenameMode::Replace).await?;
        // If it was a directory, whatever is remembered below it is elsewhere now.
        if self.directories.contains_key(&self.path(from)?.full) {
            self.directories.clear();
        }
        Ok(())
    }

    /// What dbench sets: some seconds before what the file had when it was opened.
    async fn set_times(&mut self, handle: Handle) -> Result<(), Wrong> {
        let file = self.open.get(&handle).ok_or(Wrong::NoHandle(handle))?;
        let before = |time: Timestamp, seconds| {
            SetTime::To(Timestamp { seconds: time.seconds.saturating_sub(seconds), nanoseconds: 0 })
        };
        let change = AttributeChange {
            atime: Some(before(file.attributes.atime, 10)),
            mtime: Some(before(file.attributes.mtime, 12)),
            ..AttributeChange::default()
        };
        self.inodes.set_attributes(FileRef::handle(file.handle), change).await?;
        Ok(())
    }

    async fn find(&mut self, index: PathIndex, max: u64) -> Result<(), ClientError> {
        let parent = self.parent(index).await?;
        let path = self.path(index)?;
        if !path.pattern {
            return match path.name.clone() {
                Some(name) => self.inodes.lookup(parent, name).await.map(drop),
                None => Ok(()),
            };
        }
        let (mut left, mut cookie) = (max, 0);
        while left > 0 {
            let asked = left.min(1024) as u32;
            let page = self.inodes.read_directory(parent, cookie, asked, false).await?;
            left = left.saturating_sub(page.entries.len() as u64);
            match page.entries.last() {
                Some(last) if !page.end && last.cookie > cookie => cookie = last.cookie,
                _ => break,
            }
        }
        Ok(())
    }
}
