//! A volume's tree into a local directory.
//!
//! Invariants: jobs are taken newest first, so what waits is bounded by depth times one page of a directory; a local directory is open only
//! while something in it is to be done; a file's further names wait for the first, which has begun before them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt, iter};
use subvol_client::protocol::request::{FileRef, FileRequest, InodeRef, SeekTarget};
use subvol_client::protocol::response::FileResponse;
use subvol_client::{Attributes, ClientError, ErrorCode, FileKind, InodeApi, Volume};
use tokio::sync::Semaphore;

use super::facts::Facts;
use super::firsts::Firsts;
use super::local::{LocalDirectory, finish_file};
use super::report::Report;
use super::worker::Worker;
use super::{ITEMS_AHEAD, LARGE_AHEAD, PIECES_AHEAD, SMALL, Xattrs, pieces};
use crate::show::escaped;
use crate::target::join;

/// Entries asked for at a time.
const PAGE: u32 = 512;

/// What to copy and where it goes.
#[derive(Debug)]
pub struct Source {
    /// For messages.
    pub path: Vec<u8>,
    pub attributes: Attributes,
    pub directory: Arc<LocalDirectory>,
    /// `None`: the local directory is this source itself.
    pub name: Option<Vec<u8>>,
}

/// Why a file failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}")]
    Local(#[from] io::Error),
    #[error("{0}")]
    Text(&'static str),
}

/// Something to do.
enum Job {
    /// Copy this.
    Node(Source),
    /// Read on behind the cookie.
    Page { inode: u64, cookie: u64, path: Vec<u8>, directory: Arc<LocalDirectory> },
}

/// Copies; failures are in the report.
///
/// # Errors
/// The thread for local files cannot be started.
pub async fn download(volume: &Volume, source: Source, report: Arc<Report>) -> anyhow::Result<()> {
    let download = Download {
        inodes: volume.inodes(),
        volume,
        report: &report,
        worker: Worker::start()?,
        firsts: Firsts::default(),
        large: Semaphore::new(LARGE_AHEAD),
    };
    download.run(Job::Node(source)).await;
    Ok(())
}

struct Download<'a> {
    inodes: &'a InodeApi,
    volume: &'a Volume,
    report: &'a Report,
    worker: Worker,
    firsts: Firsts,
    large: Semaphore,
}

impl Download<'_> {
    async fn run(&self, first: Job) {
        let mut ahead = vec![first];
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < ITEMS_AHEAD
                && let Some(job) = ahead.pop()
            {
                if self.report.stopped() {
                    ahead.clear();
                    break;
                }
                running.push(self.job(job));
            }
            match running.next().await {
                Some(more) => ahead.extend(more),
                None if ahead.is_empty() => return,
                None => {}
            }
        }
    }

    async fn job(&self, job: Job) -> Vec<Job> {
        let (shown, result) = match job {
            Job::Node(source) => {
                let shown = source.path.clone();
                (shown, self.node(source).await)
            }
            Job::Page { inode, cookie, path, directory } => {
                let shown = path.clone();
                (shown, self.page(inode, cookie, path, directory).await)
            }
        };
        match result {
            Ok(more) => more,
            Err(error) => {
                match error {
                    Failure::Client(error) => self.report.failed_by(escaped(&shown), &error),
                    error => self.report.failed(escaped(&shown), &error),
                }
                Vec::new()
            }
        }
    }

    async fn page(
        &self,
        inode: u64,
        cookie: u64,
        path: Vec<u8>,
        directory: Arc<LocalDirectory>,
    ) -> Result<Vec<Job>, Failure> {
        let page = self.inodes.read_directory(inode, cookie, PAGE, true).await?;
        let mut jobs = Vec::with_capacity(page.entries.len() + 1);
        let last = page.entries.last().map(|entry| entry.cookie);
        if !page.end {
            let cookie = last
                .filter(|last| *last > cookie)
                .ok_or(Failure::Text("the server gave a page of the directory that leads nowhere"))?;
            let (path, directory) = (path.clone(), Arc::clone(&directory));
            jobs.push(Job::Page { inode, cookie, path, directory });
        }
        for entry in page.entries {
            let attributes = match entry.attributes {
                Some(attributes) => attributes,
                None => self.inodes.attributes(FileRef::inode(entry.inode)).await?,
            };
            jobs.push(Job::Node(Source {
                path: join(&path, entry.name.as_bytes()),
                attributes,
                directory: Arc::clone(&directory),
                name: Some(entry.name.as_bytes().to_vec()),
            }));
        }
        Ok(jobs)
    }

    async fn node(&self, source: Source) -> Result<Vec<Job>, Failure> {
        let Source { path, attributes, directory, name } = source;
        let facts = Facts::remote(&attributes).ok_or(Failure::Text("this version does not know its kind"))?;
        let inode = attributes.inode;
        if facts.kind == FileKind::Directory {
            let xattrs = self.xattrs(inode).await?;
            let directory = self
                .worker
                .run(move || match name {
                    Some(name) => directory.directory(&name, facts, &xattrs),
                    None => directory.with_facts(facts, &xattrs),
                })
                .await?;
            self.report.done(FileKind::Directory);
            return Ok(vec![Job::Page { inode, cookie: 0, path, directory }]);
        }
        let name = name.ok_or(Failure::Text("it is no directory, but the local target is one"))?;
        if facts.links < 2 {
            self.file(inode, facts, directory, name).await?;
            self.report.done(facts.kind);
            return Ok(Vec::new());
        }
        match self.firsts.claim(inode, &directory, &name) {
            Ok(made) => {
                self.file(inode, facts, directory, name).await?;
                made.send_replace(true);
                self.report.done(facts.kind);
            }
            Err(mut first) => {
                if !first.is_made().await {
                    return Err(Failure::Text("its first name could not be copied"));
                }
                self.worker.run(move || directory.hard_link(&name, &first.directory, &first.name)).await?;
                self.report.linked();
            }
        }
        Ok(Vec::new())
    }

    async fn file(
        &self,
        inode: u64,
        facts: Facts,
        directory: Arc<LocalDirectory>,
        name: Vec<u8>,
    ) -> Result<(), Failure> {
        match facts.kind {
            FileKind::Regular if facts.size > SMALL || facts.sparse => {
                self.large(inode, facts, directory, name).await
            }
            FileKind::Regular => {
                let (bytes, xattrs) = self.small(inode, facts.size as u32).await?;
                let moved = bytes.len() as u64;
                self.worker.run(move || directory.small_file(&name, &bytes, &facts, &xattrs)).await?;
                self.report.moved(moved);
                Ok(())
            }
            FileKind::Symlink => {
                let xattrs = self.xattrs(inode).await?;
                let target = self.inodes.read_link(inode).await?;
                self.worker.run(move || directory.symlink(&name, target.as_bytes(), &facts, &xattrs)).await?;
                Ok(())
            }
            _ => {
                let xattrs = self.xattrs(inode).await?;
                self.worker.run(move || directory.special(&name, &facts, &xattrs)).await?;
                Ok(())
            }
        }
    }

    /// Content and names of extended attributes in one trip.
    async fn small(&self, inode: u64, size: u32) -> Result<(Bytes, Xattrs), Failure> {
        let number = InodeRef::Explicit(inode);
        let mut steps = vec![FileRequest::ListXattrs { inode: number }];
        if size > 0 {
            steps.push(FileRequest::Read { file: FileRef::Inode(number), offset: 0, length: size });
        }
        let (results, bytes) = self.volume.compound_read(steps, Bytes::new()).await?;
        let mut names = None;
        for result in results {
            match result {
                Ok(FileResponse::XattrNames { names: found }) => names = Some(found),
                Ok(_) => {}
                Err(error) => return Err(ClientError::from(error).into()),
            }
        }
        let names = names.ok_or(Failure::Text("the server did not list its extended attributes"))?;
        let names: Vec<Vec<u8>> = names.iter().map(<[u8]>::to_vec).collect();
        Ok((bytes, self.values(inode, names).await?))
    }

    async fn xattrs(&self, inode: u64) -> Result<Xattrs, Failure> {
        let names = self.inodes.list_xattrs(inode).await?;
        let names: Vec<Vec<u8>> = names.iter().map(<[u8]>::to_vec).collect();
        self.values(inode, names).await
    }

    async fn values(&self, inode: u64, names: Vec<Vec<u8>>) -> Result<Xattrs, Failure> {
        let mut xattrs = Xattrs::new();
        for name in names {
            match self.inodes.get_xattr(inode, &name).await {
                Ok(value) => xattrs.push((name, value.as_bytes().to_vec())),
                // Removed since it was listed.
                Err(error) if error.code() == Some(ErrorCode::XattrNotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(xattrs)
    }

    /// A file in pieces, without its holes.
    async fn large(
        &self,
        inode: u64,
        facts: Facts,
        directory: Arc<LocalDirectory>,
        name: Vec<u8>,
    ) -> Result<(), Failure> {
        let _turn = self.large.acquire().await;
        let ranges = self.data_ranges(inode, facts).await?;
        let xattrs = self.xattrs(inode).await?;
        let file = Arc::new(self.worker.run(move || directory.create(&name)).await?);
        let mut reads = iter(pieces(ranges))
            .map(|(at, length)| self.piece(inode, Arc::clone(&file), at, length))
            .buffer_unordered(PIECES_AHEAD);
        while let Some(moved) = reads.next().await {
            self.report.moved(moved?);
        }
        drop(reads);
        let finish = move || {
            file.set_len(facts.size)?;
            finish_file(&file, &facts, &xattrs)
        };
        Ok(self.worker.run(finish).await?)
    }

    async fn piece(&self, inode: u64, file: Arc<File>, at: u64, length: usize) -> Result<u64, Failure> {
        let (bytes, _) = self.inodes.read(FileRef::inode(inode), at, length as u32).await?;
        let moved = bytes.len() as u64;
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&bytes, at)).await;
        written.map_err(io::Error::other)??;
        Ok(moved)
    }

    async fn data_ranges(&self, inode: u64, facts: Facts) -> Result<Vec<(u64, u64)>, Failure> {
        if !facts.sparse {
            return Ok(if facts.size == 0 { Vec::new() } else { vec![(0, facts.size)] });
        }
        let seek = async |at, target| match self.inodes.seek(FileRef::inode(inode), at, target).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.code() == Some(ErrorCode::SeekNoData) => Ok(None),
            Err(error) => Err(error),
        };
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < facts.size
            && let Some(start) = seek(at, SeekTarget::Data).await?
        {
            let end = seek(start, SeekTarget::Hole).await?.unwrap_or(start).min(facts.size);
            if start >= end {
                break;
            }
            ranges.push((start, end));
            at = end;
        }
        Ok(ranges)
    }
}
