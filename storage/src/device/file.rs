//! A regular file or a block device as a [`Device`].
//!
//! - One process at a time: an exclusive `flock` on a file, `O_EXCL` too on a block device (refuses mounted ones).
//! - Direct I/O where it works, found out by `statx` and one trial read; else through the page cache, with the same
//!   promises and about twice the cost of an fsync.
//! - `write_durable` is one `pwritev2(RWF_DSYNC)`: with direct I/O the bytes go to the medium with FUA or a flush of
//!   their own. It needs no second descriptor, and where the flag is unknown it is a write and a flush.
//! - A failed flush or durable write latches: see the head of [`super`].

use super::engine::Engine;
use super::transfer::{Memory, Transfer};
use super::{AlignedBuffer, Device, DeviceError, Operation, ReadRequest, WriteRequest, check_range};
use crate::limits::{BLOCK, BLOCK_BYTES};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FallocateFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes at the start of a file or device that decide whether something lives there.
const DETECT_BYTES: u64 = 1 << 20;

/// How batches reach the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// io_uring if it works, else threads.
    #[default]
    Auto,
    /// io_uring, or the device does not open.
    Uring,
    /// A few threads with `pread` and `pwrite`.
    Threads,
}

/// How often opening is tried while another process has the file.
const OPEN_ATTEMPTS: u32 = 100;
/// Pause between two attempts.
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// How to access a file or block device.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// How batches reach the kernel.
    pub engine: IoEngine,
    /// Direct I/O if it works; `false` = always through the page cache.
    pub direct: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { engine: IoEngine::Auto, direct: true }
    }
}

/// What [`detect`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// No such file.
    Missing,
    /// The first MiB holds only zeros.
    Empty {
        /// Bytes of the file or device.
        size: u64,
    },
    /// Something lives there: formatting would destroy it.
    Occupied {
        /// Bytes of the file or device.
        size: u64,
        /// First byte that is not zero.
        first_used: u64,
    },
}

/// Tells whether a file or block device is there and whether something lives on it. Takes no lock, changes nothing.
pub fn detect(path: &Path) -> Result<Contents, DeviceError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::Missing),
        Err(error) => return Err(open_error("open", path, error)),
    };
    let size = size_of(&mut file, path)?;
    let mut buffer = vec![0; 64 * 1024];
    let mut position = 0;
    while position < DETECT_BYTES {
        let count = match file.read_at(&mut buffer, position) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(open_error("read", path, error)),
        };
        if let Some(index) = buffer.iter().take(count).position(|&byte| byte != 0) {
            return Ok(Contents::Occupied { size, first_used: position + index as u64 });
        }
        position += count as u64;
    }
    Ok(Contents::Empty { size })
}

/// A regular file or block device, locked for this process.
pub struct FileDevice {
    path: PathBuf,
    file: Arc<File>,
    size: u64,
    /// Alignment that direct I/O wants of memory; 1 without direct I/O.
    memory_alignment: usize,
    engine: Engine,
    latched: AtomicBool,
    /// One flush at a time, where the page cache is used.
    flushing: Mutex<()>,
    durable_writes_work: AtomicBool,
    discard_works: AtomicBool,
}

impl FileDevice {
    /// Opens what exists. A size that is not a multiple of 4096 is rounded down. Waits up to two seconds for another process to
    /// let go: the kernel keeps the file of a killed server locked until the last write it had under way is done, which may be
    /// after the process is gone and the next one starts.
    pub fn open(path: &Path, options: FileOptions) -> Result<Self, DeviceError> {
        for _ in 1..OPEN_ATTEMPTS {
            match Self::try_open(path, options) {
                Err(DeviceError::InUse { .. }) => std::thread::sleep(OPEN_PAUSE),
                other => return other,
            }
        }
        Self::try_open(path, options)
    }

    fn try_open(path: &Path, options: FileOptions) -> Result<Self, DeviceError> {
        let kind = std::fs::metadata(path).map_err(|error| open_error("open", path, error))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DeviceError::NotStorage { path: path.to_owned() });
        }
        // Without O_CREAT, O_EXCL means nothing for files, and "nobody has it mounted" for block devices.
        let exclusive = if kind.is_block_device() { libc::O_EXCL } else { 0 };
        let open =
            |flags| OpenOptions::new().read(true).write(true).custom_flags(exclusive | flags).open(path);
        if options.direct {
            match open(libc::O_DIRECT) {
                Ok(mut file) => {
                    lock(&file, path)?;
                    let size = size_of(&mut file, path)?;
                    if let Some(alignment) = direct_alignment(&file, size) {
                        return Self::finish(path, file, size, alignment, options.engine);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(busy_or("open", path, error)),
            }
            tracing::warn!(path = %path.display(), "direct I/O does not work here, using the page cache");
        }
        let mut file = open(0).map_err(|error| busy_or("open", path, error))?;
        lock(&file, path)?;
        let size = size_of(&mut file, path)?;
        Self::finish(path, file, size, 1, options.engine)
    }

    /// Creates a sparse file of `size` bytes (a multiple of 4096) and opens it. Fails if the path exists.
    pub fn create(path: &Path, size: u64, options: FileOptions) -> Result<Self, DeviceError> {
        assert!(size.is_multiple_of(BLOCK_BYTES), "a device of {size} bytes is not in blocks");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| open_error("create", path, error))?;
        let made = file.set_len(size).and_then(|()| file.sync_all()).and_then(|()| sync_parent(path));
        drop(file);
        made.map_err(|error| open_error("size", path, error))
            .and_then(|()| Self::open(path, options))
            .inspect_err(|_| {
                // Nothing was stored yet; a half-made file would only block the next attempt.
                let _ = std::fs::remove_file(path);
            })
    }

    fn finish(
        path: &Path,
        file: File,
        size: u64,
        memory_alignment: usize,
        engine: IoEngine,
    ) -> Result<Self, DeviceError> {
        let file = Arc::new(file);
        let engine = Engine::open(engine, &file)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            size,
            memory_alignment,
            engine,
            latched: AtomicBool::new(false),
            flushing: Mutex::new(()),
            durable_writes_work: AtomicBool::new(true),
            discard_works: AtomicBool::new(true),
        })
    }

    /// Whether reads and writes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.memory_alignment > 1
    }

    fn check(&self, operation: Operation, offset: u64, length: usize) -> Result<(), DeviceError> {
        check_range(operation, offset, length as u64, self.size)?;
        if operation != Operation::Read && self.latched.load(Ordering::Acquire) {
            return Err(DeviceError::Latched { operation });
        }
        Ok(())
    }

    /// A copy of `memory` that direct I/O accepts, if it does not accept `memory` itself.
    fn bounce(&self, memory: &[u8]) -> Option<AlignedBuffer> {
        let fits = memory.is_empty() || memory.as_ptr().addr().is_multiple_of(self.memory_alignment);
        (!fits).then(|| AlignedBuffer::copy_of(memory))
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) -> Result<(), DeviceError> {
        self.engine.run(&self.file, transfers).map_err(DeviceError::from)
    }

    fn latch<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        result.inspect_err(|error| {
            if !self.latched.swap(true, Ordering::AcqRel) {
                tracing::error!(path = %self.path.display(), %error, "the device failed, no more writes");
            }
        })
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.read_many(&mut [ReadRequest { offset, buffer }])
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.write_many(&[WriteRequest { offset, data }])
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        for request in writes {
            self.check(Operation::Write, request.offset, request.data.len())?;
        }
        let copies: Vec<_> = writes.iter().map(|request| self.bounce(request.data)).collect();
        let mut transfers: Vec<_> = writes
            .iter()
            .zip(&copies)
            .map(|(request, copy)| {
                Transfer::new(request.offset, Memory::Write(copy.as_deref().unwrap_or(request.data)))
            })
            .collect();
        self.run(&mut transfers)
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        for request in reads.iter() {
            self.check(Operation::Read, request.offset, request.buffer.len())?;
        }
        let mut copies: Vec<_> = reads.iter().map(|request| self.bounce(request.buffer)).collect();
        let mut transfers: Vec<_> = reads
            .iter_mut()
            .zip(&mut copies)
            .map(|(request, copy)| {
                let buffer = copy.as_deref_mut().unwrap_or(&mut *request.buffer);
                Transfer::new(request.offset, Memory::Read(buffer))
            })
            .collect();
        self.run(&mut transfers)?;
        drop(transfers);
        for (request, copy) in reads.iter_mut().zip(&copies) {
            if let Some(copy) = copy {
                request.buffer.copy_from_slice(copy);
            }
        }
        Ok(())
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let turn = (!self.is_direct()).then(|| self.flushing.lock());
        self.check(Operation::DurableWrite, offset, data.len())?;
        if self.durable_writes_work.load(Ordering::Relaxed) {
            let copy = self.bounce(data);
            let mut transfer = Transfer::new(offset, Memory::Write(copy.as_deref().unwrap_or(data)));
            let written = transfer.run_by(|memory, position| match memory {
                Memory::Write(rest) => {
                    let parts = [IoSlice::new(rest)];
                    Ok(rustix::io::pwritev2(&*self.file, &parts, position, ReadWriteFlags::DSYNC)?)
                }
                Memory::Read(_) => unreachable!("a durable write writes"),
            });
            match written {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                    self.durable_writes_work.store(false, Ordering::Relaxed);
                }
                other => {
                    let error = |source| DeviceError::io(Operation::DurableWrite, offset, data.len(), source);
                    return self.latch(other.map_err(error));
                }
            }
        }
        drop(turn);
        self.write(offset, data)?;
        self.flush()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // The system reports a failed write of its page cache to one flush only, whoever calls first. Two at once would let
        // the other one believe in data that is lost; so there they queue, and the second sees the latch. Direct writes
        // report their own errors, and an fsync must not wait for a commit's flush.
        let _turn = (!self.is_direct()).then(|| self.flushing.lock());
        self.check(Operation::Flush, 0, 0)?;
        // EINTR tells nothing about what was flushed, but unlike an I/O error it leaves the pages dirty.
        let flushed = loop {
            match self.file.sync_data() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.latch(flushed.map_err(|source| DeviceError::io(Operation::Flush, 0, 0, source)))
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, offset, length, self.size)?;
        if length == 0 || !self.discard_works.load(Ordering::Relaxed) {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&*self.file, flags, offset, length) {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => {
                self.discard_works.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(DeviceError::io(Operation::Discard, offset, length as usize, error.into())),
        }
    }

    fn describe(&self) -> String {
        let access = if self.is_direct() { "direct I/O" } else { "page cache" };
        format!("{} ({} bytes, {access}, {})", self.path.display(), self.size, self.engine.name())
    }
}

fn open_error(action: &'static str, path: &Path, source: io::Error) -> DeviceError {
    DeviceError::Open { action, path: path.to_owned(), source: Arc::new(source) }
}

fn busy_or(action: &'static str, path: &Path, source: io::Error) -> DeviceError {
    match source.raw_os_error() {
        Some(libc::EBUSY) => DeviceError::InUse { path: path.to_owned() },
        _ => open_error(action, path, source),
    }
}

fn lock(file: &File, path: &Path) -> Result<(), DeviceError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => DeviceError::InUse { path: path.to_owned() },
        TryLockError::Error(error) => open_error("lock", path, error),
    })
}

/// Bytes, rounded down to blocks. The end of a block device is its size; its metadata says 0.
fn size_of(file: &mut File, path: &Path) -> Result<u64, DeviceError> {
    let kind = file.metadata().map_err(|error| open_error("inspect", path, error))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(DeviceError::NotStorage { path: path.to_owned() });
    }
    let size = file.seek(SeekFrom::End(0)).map_err(|error| open_error("size", path, error))?;
    Ok(size / BLOCK_BYTES * BLOCK_BYTES)
}

/// The alignment of memory that direct I/O wants on this file; `None` if direct I/O in blocks does not work.
fn direct_alignment(file: &File, size: u64) -> Option<usize> {
    let mut alignment = BLOCK;
    if let Ok(info) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && info.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let (memory, offset) = (info.stx_dio_mem_align as usize, info.stx_dio_offset_align as usize);
        let works = |value: usize| value.is_power_of_two() && value <= BLOCK;
        if !works(memory) || !works(offset) {
            return None;
        }
        // Below 8 the bounce test would call byte-aligned memory direct-capable on drivers that round.
        alignment = memory.max(8);
    }
    // Some systems accept the flag and refuse the first request.
    let mut buffer = AlignedBuffer::zeroed(BLOCK);
    if size >= BLOCK_BYTES && file.read_at(&mut buffer, 0).is_err() {
        return None;
    }
    Some(alignment)
}

/// A created file survives a crash only when its directory is synced too.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
