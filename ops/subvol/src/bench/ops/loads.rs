//! What one client of `bench ops` does.
//!
//! Invariant: everything that is not the measured operation (directories, files to look up, their first content) is made before the clock
//! starts, except a new directory every so many creates.

use std::cell::RefCell;
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use subvol_client::protocol::request::{FileRef, FileRequest, WritePosition};
use subvol_client::{ClientError, InodeApi, NewKind, OpenFlags, Volume};

use super::Kind;
use crate::bench::latency::Latencies;
use crate::bench::phase::{Clock, Phase};

const BLOCK: usize = 4096;
/// Blocks of a file that is written to.
const BLOCKS: u64 = 256;
/// Files made at a time before the clock starts.
const PREPARE_AHEAD: usize = 128;

/// What one or all clients did in the measured time.
#[derive(Debug, Default)]
pub struct ClientResult {
    pub latencies: Latencies,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl ClientResult {
    /// Takes in another's.
    pub fn add(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }
}

/// What each client does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub kind: Kind,
    pub depth: usize,
    pub files: usize,
    pub separate: bool,
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// A client that is ready.
struct Ready<'a> {
    load: Load,
    volume: &'a Volume,
    inodes: &'a InodeApi,
    owner: (u32, u32),
    /// The client's own directory.
    home: u64,
    names: Vec<String>,
    numbers: Vec<u64>,
    clock: &'a Clock,
    result: RefCell<ClientResult>,
}

impl Load {
    /// Gets ready, waits for the others, works until the time is over.
    ///
    /// # Errors
    /// Getting ready failed.
    pub async fn run(self, volume: Volume, number: usize, clock: &Clock) -> anyhow::Result<ClientResult> {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let home =
            volume.mkdir(format!("/client{number}")).await.context("making the client's directory")?.inode;
        let mut ready = Ready {
            load: self,
            volume: &volume,
            inodes: volume.inodes(),
            owner,
            home,
            names: Vec::new(),
            numbers: Vec::new(),
            clock,
            result: RefCell::default(),
        };
        if matches!(self.kind, Kind::Lookup | Kind::Getattr) {
            ready.make_files().await.context("making the files")?;
        }
        let handles = match self.kind {
            Kind::Fsync => ready.open_files().await.context("making the files")?,
            _ => vec![0; self.depth],
        };
        if !clock.start().await {
            anyhow::bail!("another client could not get ready");
        }
        let slots = handles.into_iter().enumerate().map(|(slot, handle)| ready.slot(number, slot, handle));
        join_all(slots).await;
        let result = ready.result.into_inner();
        volume.close().await;
        Ok(result)
    }
}

impl Ready<'_> {
    async fn make_files(&mut self) -> Result<(), ClientError> {
        self.names = (0..self.load.files).map(|index| format!("file{index}")).collect();
        let made: Vec<u64> = iter(&self.names)
            .map(|name| self.create(self.home, name.clone()))
            .buffered(PREPARE_AHEAD)
            .try_collect()
            .await?;
        self.numbers = made;
        Ok(())
    }

    async fn create(&self, parent: u64, name: String) -> Result<u64, ClientError> {
        let made = self.inodes.create(parent, name, NewKind::Regular, 0o644, self.owner, true, None).await?;
        Ok(made.attributes.inode)
    }

    /// One file for each slot, written in full and durable.
    async fn open_files(&self) -> Result<Vec<u64>, ClientError> {
        let mut handles = Vec::with_capacity(self.load.depth);
        for slot in 0..self.load.depth {
            let name = format!("file{slot}");
            let flags = Some(OpenFlags::READ.with(OpenFlags::WRITE));
            let made =
                self.inodes.create(self.home, name, NewKind::Regular, 0o644, self.owner, true, flags).await?;
            let handle =
                made.handle.ok_or(ClientError::Protocol("a created file without a handle".into()))?;
            let content = Bytes::from(vec![1; BLOCK * BLOCKS as usize]);
            self.inodes.write(FileRef::handle(handle), WritePosition::At(0), content).await?;
            self.inodes.fsync(FileRef::handle(handle), false).await?;
            handles.push(handle);
        }
        Ok(handles)
    }

    /// One operation after another until the time is over or one fails.
    async fn slot(&self, number: usize, slot: usize, handle: u64) {
        // Never 0, which would stay 0.
        let mut random = Random((number * 65_537 + slot + 1) as u64 * 0x9e37_79b9);
        let mut directory = self.home;
        for count in 0_u64.. {
            let phase = self.clock.phase();
            if phase == Phase::Over {
                break;
            }
            if self.load.kind == Kind::Create && count.is_multiple_of(self.load.files as u64) {
                let name = format!("d{slot}-{count}");
                let made =
                    self.inodes.create(self.home, name, NewKind::Directory, 0o755, self.owner, true, None);
                match made.await {
                    Ok(made) => directory = made.attributes.inode,
                    Err(error) => return self.failed(&error),
                }
            }
            let begin = Instant::now();
            let done = self.once(&mut random, directory, handle, count).await;
            let took = begin.elapsed();
            match done {
                Ok(()) if phase == Phase::Measured => self.result.borrow_mut().latencies.record(took),
                Ok(()) => {}
                Err(error) => return self.failed(&error),
            }
        }
    }

    fn failed(&self, error: &ClientError) {
        let mut result = self.result.borrow_mut();
        result.errors += 1;
        if result.first_error.is_none() {
            eprintln!("subvol: {error}");
            result.first_error = Some(error.to_string());
        }
    }

    async fn once(
        &self,
        random: &mut Random,
        directory: u64,
        handle: u64,
        count: u64,
    ) -> Result<(), ClientError> {
        match self.load.kind {
            Kind::Create => self.create(directory, format!("f{count}")).await.map(drop),
            Kind::Lookup => match self.names.get(random.below(self.names.len())) {
                Some(name) => self.inodes.lookup(self.home, name).await.map(drop),
                None => Ok(()),
            },
            Kind::Getattr => match self.numbers.get(random.below(self.numbers.len())) {
                Some(number) => self.inodes.attributes(FileRef::inode(*number)).await.map(drop),
                None => Ok(()),
            },
            Kind::Fsync => {
                let file = FileRef::handle(handle);
                let offset = random.below(BLOCKS as usize) as u64 * BLOCK as u64;
                let position = WritePosition::At(offset);
                let mut block = vec![0; BLOCK];
                if let Some(head) = block.first_chunk_mut::<8>() {
                    *head = count.to_le_bytes();
                }
                if self.load.separate {
                    self.inodes.write(file, position, block.into()).await?;
                    return self.inodes.fsync(file, false).await.map(drop);
                }
                let fsync = FileRequest::Fsync { file, data_only: false, lineage: None };
                let steps = vec![FileRequest::Write { file, position }, fsync];
                match self.volume.compound(steps, block.into()).await?.pop() {
                    Some(Err(error)) => Err(error.into()),
                    _ => Ok(()),
                }
            }
        }
    }
}
