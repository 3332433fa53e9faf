//! One contiguous read or write, and how it goes on after a short or interrupted system call.
//!
//! A short transfer goes on at the last whole block: direct I/O refuses to continue at an odd byte, and repeating the
//! same bytes of the same request is harmless. A transfer that does not move for [`STALLS_MAX`] calls fails instead of
//! spinning for ever.

use super::Operation;
use crate::limits::BLOCK;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Calls in a row without a whole block of progress before the transfer fails.
const STALLS_MAX: u32 = 64;

/// The caller's memory.
pub(super) enum Memory<'a> {
    /// To be filled.
    Read(&'a mut [u8]),
    /// To be written.
    Write(&'a [u8]),
}

/// What to do after a system call.
#[derive(Debug)]
pub(super) enum Step {
    /// All bytes are moved.
    Finished,
    /// Call again with the rest.
    Again,
    /// Give up.
    Failed(io::Error),
}

/// One contiguous read or write of a batch.
pub(super) struct Transfer<'a> {
    start: u64,
    memory: Memory<'a>,
    done: usize,
    stalls: u32,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(start: u64, memory: Memory<'a>) -> Self {
        Self { start, memory, done: 0, stalls: 0 }
    }

    pub(super) fn operation(&self) -> Operation {
        match self.memory {
            Memory::Read(_) => Operation::Read,
            Memory::Write(_) => Operation::Write,
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of the whole request.
    pub(super) fn length(&self) -> usize {
        match &self.memory {
            Memory::Read(buffer) => buffer.len(),
            Memory::Write(data) => data.len(),
        }
    }

    /// Address on the device of the next byte to move.
    pub(super) fn position(&self) -> u64 {
        self.start + self.done as u64
    }

    /// The memory still to be moved.
    pub(super) fn rest(&mut self) -> Memory<'_> {
        match &mut self.memory {
            Memory::Read(buffer) => Memory::Read(&mut buffer[self.done..]),
            Memory::Write(data) => Memory::Write(&data[self.done..]),
        }
    }

    /// Takes the outcome of one system call over the rest.
    pub(super) fn advance(&mut self, outcome: io::Result<usize>) -> Step {
        let before = self.done;
        match outcome {
            Ok(0) => return Step::Failed(self.nothing_moved()),
            Ok(bytes) => {
                let reached = self.done + bytes;
                assert!(reached <= self.length(), "the system moved more than asked");
                if reached == self.length() {
                    self.done = reached;
                    return Step::Finished;
                }
                self.done = reached / BLOCK * BLOCK;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Step::Again,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.stalls < STALLS_MAX => {
                std::thread::yield_now();
            }
            Err(error) => return Step::Failed(error),
        }
        if self.done > before {
            self.stalls = 0;
            return Step::Again;
        }
        self.stalls += 1;
        if self.stalls > STALLS_MAX { Step::Failed(self.nothing_moved()) } else { Step::Again }
    }

    /// Runs the transfer to its end in this thread.
    pub(super) fn run(&mut self, file: &File) -> io::Result<()> {
        self.run_by(|memory, position| match memory {
            Memory::Read(buffer) => file.read_at(buffer, position),
            Memory::Write(data) => file.write_at(data, position),
        })
    }

    /// Runs the transfer to its end by repeated calls of `call(memory, position)`.
    pub(super) fn run_by(
        &mut self,
        mut call: impl FnMut(Memory<'_>, u64) -> io::Result<usize>,
    ) -> io::Result<()> {
        if self.length() == 0 {
            return Ok(());
        }
        loop {
            let position = self.position();
            let outcome = call(self.rest(), position);
            match self.advance(outcome) {
                Step::Finished => return Ok(()),
                Step::Again => {}
                Step::Failed(error) => return Err(error),
            }
        }
    }

    fn nothing_moved(&self) -> io::Error {
        match self.memory {
            // The file was cut short behind our back, or the device shrank.
            Memory::Read(_) => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the device ends before its size")
            }
            Memory::Write(_) => io::Error::new(io::ErrorKind::WriteZero, "the device takes no more bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_transfers_go_on_at_whole_blocks() {
        let data = vec![7; 3 * BLOCK];
        let mut transfer = Transfer::new(8192, Memory::Write(&data));
        assert!(matches!(transfer.advance(Ok(BLOCK + 512)), Step::Again));
        assert_eq!(transfer.position(), 8192 + BLOCK as u64);
        assert!(matches!(transfer.advance(Err(io::ErrorKind::Interrupted.into())), Step::Again));
        assert!(matches!(transfer.advance(Ok(2 * BLOCK)), Step::Finished));
    }

    #[test]
    fn a_transfer_that_does_not_move_fails() {
        let data = vec![7; 2 * BLOCK];
        let mut transfer = Transfer::new(0, Memory::Write(&data));
        let failed = (0..1000).find_map(|_| match transfer.advance(Ok(512)) {
            Step::Failed(error) => Some(error.kind()),
            _ => None,
        });
        assert_eq!(failed, Some(io::ErrorKind::WriteZero));
        let mut transfer = Transfer::new(0, Memory::Write(&data));
        assert!(matches!(transfer.advance(Ok(0)), Step::Failed(_)));
    }
}
