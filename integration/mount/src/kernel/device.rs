//! The connection to the kernel: requests are read from it, answers and notifications written to it.
//!
//! Invariants: one read gives one whole request; one write is one whole message. The descriptor never blocks in a read; writes do not
//! wait for anybody, except notifications, which may wait for locks of the kernel: those are for a thread of their own
//! ([`crate::front::notifier`]).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::abi::{NotifyInvalEntryOut, NotifyInvalInodeOut, OutHeader, notify};
use super::request::{Incoming, Malformed};
use crate::limits::{COPIED_PAYLOAD, MAX_WRITE, READ_BUFFER};

/// An open `/dev/fuse` with a mounted file system. Clones share it.
#[derive(Clone, Debug)]
pub struct Device(Arc<OwnedFd>);

/// What a read gave.
pub enum ReadOutcome {
    /// A request.
    Request(Incoming),
    /// Bytes that are none, with the number to answer if there is one.
    Malformed(Malformed),
    /// Nothing now.
    Empty,
    /// The file system was unmounted.
    Unmounted,
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where requests are read into.
pub struct ReadBuffer(BytesMut);

impl ReadBuffer {
    /// A buffer for the largest request.
    #[must_use]
    pub fn new() -> Self {
        Self(BytesMut::zeroed(READ_BUFFER))
    }

    /// The bytes of a large write are handed on without a copy; then the buffer is made anew.
    fn payload(&mut self, from: usize, to: usize) -> Bytes {
        if to - from <= COPIED_PAYLOAD {
            return Bytes::copy_from_slice(&self.0[from..to]);
        }
        let used = std::mem::replace(&mut self.0, BytesMut::zeroed(READ_BUFFER));
        used.freeze().slice(from..to)
    }
}

impl Default for ReadBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Device {
    /// Takes over a descriptor of `/dev/fuse` and makes its reads return at once.
    ///
    /// # Errors
    /// When the descriptor takes no flags.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)
            .or_else(|_| rustix::fs::fcntl_setfl(&descriptor, rustix::fs::OFlags::NONBLOCK))?;
        Ok(Self(Arc::new(descriptor)))
    }

    /// Reads the next request.
    ///
    /// # Errors
    /// Those of the device, except the ones with a meaning of their own ([`ReadOutcome`]).
    pub fn read(&self, buffer: &mut ReadBuffer) -> io::Result<ReadOutcome> {
        loop {
            return match rustix::io::read(&*self.0, &mut buffer.0[..]) {
                Ok(length) => Ok(match Incoming::decode(&buffer.0[..length]) {
                    Ok((mut incoming, payload)) => {
                        if let Some((from, to)) = payload {
                            incoming.payload = buffer.payload(from, to);
                        }
                        ReadOutcome::Request(incoming)
                    }
                    Err(malformed) => ReadOutcome::Malformed(malformed),
                }),
                // An interrupted read, and a request that was taken back while it was read.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) => Ok(ReadOutcome::Empty),
                Err(Errno::NODEV) => Ok(ReadOutcome::Unmounted),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Answers a request with bytes. Returns whether the kernel took it; not if the request was taken back meanwhile.
    pub fn answer(&self, unique: u64, parts: &[&[u8]]) -> bool {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let header = OutHeader { len: (size_of::<OutHeader>() + body) as u32, error: 0, unique };
        let result = self.write(&header, parts);
        if let Err(error) = result {
            tracing::debug!(unique, %error, "an answer was not taken");
        }
        result.is_ok()
    }

    /// Answers a request with an errno.
    pub fn refuse(&self, unique: u64, errno: i32) {
        let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -errno, unique };
        if let Err(error) = self.write(&header, &[]) {
            tracing::debug!(unique, errno, %error, "an answer was not taken");
        }
    }

    fn write(&self, header: &OutHeader, parts: &[&[u8]]) -> Result<(), Errno> {
        let mut slices: smallvec::SmallVec<[IoSlice<'_>; 6]> = smallvec::SmallVec::new();
        slices.push(IoSlice::new(header.as_bytes()));
        slices.extend(parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        loop {
            match rustix::io::writev(&*self.0, &slices) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn tell(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let header = OutHeader { len: (size_of::<OutHeader>() + body) as u32, error: code, unique: 0 };
        self.write(&header, parts)
    }

    /// Drops what the kernel keeps of an inode: attributes, and with `data` its pages. May wait for requests under way.
    ///
    /// # Errors
    /// `NOENT` if the kernel does not know the inode.
    pub fn forget_inode(&self, nodeid: u64, data: bool) -> Result<(), Errno> {
        // A negative offset leaves the pages alone; length 0 means to the end.
        let message = NotifyInvalInodeOut { ino: nodeid, off: if data { 0 } else { -1 }, len: 0 };
        self.tell(notify::INVAL_INODE, &[message.as_bytes()])
    }

    /// Drops a name, present or absent, and what the kernel keeps of its directory. May wait for requests under way.
    ///
    /// # Errors
    /// `NOENT` if the kernel does not know the name.
    pub fn forget_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let message = NotifyInvalEntryOut { parent, namelen: name.len() as u32, flags: 0 };
        self.tell(notify::INVAL_ENTRY, &[message.as_bytes(), name, b"\0"])
    }

    /// Makes all names stale.
    ///
    /// # Errors
    /// `INVAL` from a kernel older than 6.16.
    pub fn forget_all_names(&self) -> Result<(), Errno> {
        self.tell(notify::INC_EPOCH, &[])
    }
}

const _: () = assert!(READ_BUFFER >= MAX_WRITE + 4096);
