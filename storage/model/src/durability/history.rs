//! One file's life since its last durable point, and what a crash may have left of it.
//!
//! Events on data (write, zero, grow) since that point may be there or not, each byte by itself. A truncation is an
//! attribute operation: it is there exactly when the prefix includes it, and then nothing before it shows past its
//! size. A replacement (renamed over another file) inside the prefix makes the data of that moment durable.
//!
//! Data and times have their own durable points, since fdatasync may leave out times.

use super::{Cause, Promise};
use crate::content::Content;
use crate::filesystem::{Body, Inode};
use crate::operation::Op;
use crate::snapshot::Node;
use crate::time::Time;
use crate::{BLOCK, pattern};
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(crate) struct FileHistory {
    /// Every event since the oracle began.
    pub events: Vec<Event>,
    /// What the file held when its history began: bytes of it are not alien.
    origin: Content,
    data: Settled,
    /// First event that `data` does not include.
    data_from: usize,
    mtime: Time,
    ctime: Time,
    /// First event that `mtime` and `ctime` do not include.
    times_from: usize,
}

/// Data that is durable.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    content: Content,
    blocks: u64,
    cause: Cause,
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Length of the shortest prefix that includes it.
    index: usize,
    change: Change,
    /// Times of the file after it.
    mtime: Time,
    ctime: Time,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, end: u64, seed: u32 },
    Zero { offset: u64, end: u64, keep_size: bool },
    Grow { end: u64 },
    Truncate { size: u64 },
    Attributes { sets_mtime: bool },
    Replacement(Settled),
}

impl Event {
    /// What an operation that changed `inode` (given as it is afterwards) means for it; nothing for handles.
    pub fn of(op: &Op, index: usize, inode: &Inode) -> Option<Self> {
        let Body::File { content, .. } = &inode.body else {
            return None;
        };
        let change = match op {
            Op::Write { offset, length, seed, .. } | Op::WriteHandle { offset, length, seed, .. } => {
                Change::Write { offset: *offset, end: offset + length, seed: *seed }
            }
            Op::Append { length, seed, .. } => {
                let end = content.size();
                Change::Write { offset: end - length, end, seed: *seed }
            }
            Op::Punch { offset, length, .. } => {
                Change::Zero { offset: *offset, end: offset + length, keep_size: true }
            }
            Op::ZeroRange { offset, length, keep_size, .. } => {
                Change::Zero { offset: *offset, end: offset + length, keep_size: *keep_size }
            }
            Op::Allocate { keep_size: true, .. } => Change::Grow { end: 0 },
            Op::Allocate { offset, length, .. } => Change::Grow { end: offset + length },
            Op::Truncate { size, .. } => Change::Truncate { size: *size },
            Op::SetTimes { mtime, .. } => Change::Attributes { sets_mtime: mtime.is_some() },
            Op::Open { .. } | Op::OpenUnnamed { .. } | Op::CloseHandle { .. } => return None,
            _ => Change::Attributes { sets_mtime: false },
        };
        Some(Self { index, change, mtime: inode.mtime, ctime: inode.ctime })
    }

    /// The file was renamed over another one.
    pub fn replacement(index: usize, inode: &Inode) -> Self {
        let settled = Settled::of(inode, Cause::Replacement).expect("only files replace files");
        Self { index, change: Change::Replacement(settled), mtime: inode.mtime, ctime: inode.ctime }
    }

    /// Whether it changes data in a way that only an fsync of the file or a commit makes durable.
    fn is_data(&self) -> bool {
        matches!(self.change, Change::Write { .. } | Change::Zero { .. } | Change::Grow { .. })
    }
}

impl Settled {
    fn of(inode: &Inode, cause: Cause) -> Option<Self> {
        match &inode.body {
            Body::File { content, mapped } => {
                Some(Self { content: content.clone(), blocks: mapped.count(), cause })
            }
            _ => None,
        }
    }

    /// The promise that loss of this data breaks, and how it came to be durable.
    fn promise(&self) -> (Promise, &'static str) {
        match self.cause {
            Cause::Fsync => (Promise::S2, "its fsync"),
            Cause::Commit => (Promise::S3, "the last commit"),
            Cause::Creation => (Promise::S3, "its creation"),
            Cause::Replacement => (Promise::S3, "the rename that put it over another file"),
        }
    }
}

impl FileHistory {
    /// The history of a regular file that is durable as it is; `None` for anything else.
    pub fn begin(inode: &Inode, cause: Cause) -> Option<Self> {
        let data = Settled::of(inode, cause)?;
        let (events, origin) = (Vec::new(), data.content.clone());
        let (mtime, ctime) = (inode.mtime, inode.ctime);
        Some(Self { events, origin, data, data_from: 0, mtime, ctime, times_from: 0 })
    }

    /// The file as it is now became durable.
    pub fn settle(&mut self, inode: &Inode, times: bool, cause: Cause) {
        self.data = Settled::of(inode, cause).expect("an inode never changes its kind");
        self.data_from = self.events.len();
        if times {
            (self.mtime, self.ctime) = (inode.mtime, inode.ctime);
            self.times_from = self.events.len();
        }
    }

    /// Whether a crash that left `prefix` operations may have left this of the file.
    pub fn judge(&self, prefix: usize, found: &Node) -> Result<(), (Promise, String)> {
        self.judge_times(prefix, found).map_err(|explanation| (Promise::S1, explanation))?;
        let (start, events) = self.since_durable(prefix);
        let (promise, by) = start.promise();
        self.judge_size(start, events, prefix, found)
            .map_err(|line| (promise, format!("{line} (since {by})")))?;
        let Some(content) = &found.content else {
            return Ok(());
        };
        if content.size() != found.size {
            return Err((Promise::S1, "the image's size and content disagree".into()));
        }
        let quiet = !events.iter().any(Event::is_data);
        let blocks_fixed = quiet && !events.iter().any(|event| applies_truncation(event, prefix).is_some());
        if quiet && blocks_fixed {
            if let Some(blocks) = found.blocks.filter(|blocks| *blocks != start.blocks) {
                let line = format!("{blocks} blocks mapped, {} were made durable by {by}", start.blocks);
                return Err((promise, line));
            }
            // Sizes agree already; equal blocks need no look at their bytes.
            if *content == start.content {
                return Ok(());
            }
        }
        self.judge_bytes(start, events, prefix, content)
    }

    /// The durable data under a prefix, and the events after it.
    fn since_durable(&self, prefix: usize) -> (&Settled, &[Event]) {
        let events = &self.events[self.data_from..];
        let last = events.iter().enumerate().rev().find_map(|(at, event)| match &event.change {
            Change::Replacement(settled) if event.index <= prefix => Some((settled, &events[at + 1..])),
            _ => None,
        });
        last.unwrap_or((&self.data, events))
    }

    fn judge_times(&self, prefix: usize, found: &Node) -> Result<(), String> {
        let (mut mtimes, mut ctimes) = (vec![self.mtime], vec![self.ctime]);
        for event in &self.events[self.times_from..] {
            if event.is_data() {
                mtimes.push(event.mtime);
                ctimes.push(event.ctime);
            } else if event.index <= prefix {
                let sets_mtime =
                    matches!(event.change, Change::Truncate { .. } | Change::Attributes { sets_mtime: true });
                if sets_mtime {
                    mtimes = vec![event.mtime];
                }
                ctimes = vec![event.ctime];
            }
        }
        for (name, allowed, value) in [("mtime", mtimes, found.mtime), ("ctime", ctimes, found.ctime)] {
            if !allowed.contains(&value) {
                let allowed: Vec<String> = allowed.iter().map(Time::to_string).collect();
                return Err(format!("{name} is {value}, allowed: {}", allowed.join(" ")));
            }
        }
        Ok(())
    }

    fn judge_size(
        &self,
        start: &Settled,
        events: &[Event],
        prefix: usize,
        found: &Node,
    ) -> Result<(), String> {
        let mut allowed = BTreeSet::from([(start.content.size(), start.content.size())]);
        for event in events {
            if let Some(size) = applies_truncation(event, prefix) {
                allowed = BTreeSet::from([(size, size)]);
                continue;
            }
            let end = match event.change {
                Change::Write { end, .. } | Change::Zero { end, keep_size: false, .. } => end,
                Change::Grow { end } => end,
                _ => continue,
            };
            // A write may have become durable in part, so any size on the way is allowed.
            allowed = allowed.into_iter().map(|(low, high)| (low, high.max(end))).collect();
        }
        if allowed.iter().any(|(low, high)| (*low..=*high).contains(&found.size)) {
            return Ok(());
        }
        let text: Vec<String> = allowed
            .iter()
            .map(|(low, high)| if low == high { format!("{low}") } else { format!("{low} to {high}") })
            .collect();
        Err(format!("size is {}, allowed: {}", found.size, text.join(" or ")))
    }

    fn judge_bytes(
        &self,
        start: &Settled,
        events: &[Event],
        prefix: usize,
        content: &Content,
    ) -> Result<(), (Promise, String)> {
        // Where both are zero a byte is always allowed: it was zero at the durable point, or something cut it.
        let blocks: BTreeSet<u64> = content.kept_blocks().chain(start.content.kept_blocks()).collect();
        for index in blocks {
            let first = index * BLOCK;
            let last = (first + BLOCK).min(content.size());
            let near: Vec<&Event> = events.iter().filter(|event| event.may_touch(first, last)).collect();
            if near.is_empty() && content.block(index) == start.content.block(index) {
                continue;
            }
            for offset in first..last {
                let (byte, durable) = (content.byte(offset), start.content.byte(offset));
                let allowed = near.iter().fold(byte == durable, |allowed, event| match event.change {
                    Change::Write { offset: from, end, seed } if (from..end).contains(&offset) => {
                        allowed || byte == pattern::byte(seed, offset)
                    }
                    Change::Zero { offset: from, end, .. } if (from..end).contains(&offset) => {
                        allowed || byte == 0
                    }
                    Change::Truncate { size } if event.index <= prefix && offset >= size => byte == 0,
                    _ => allowed,
                });
                if !allowed {
                    return Err(self.explain_byte(start, offset, byte, durable));
                }
            }
        }
        Ok(())
    }

    fn explain_byte(&self, start: &Settled, offset: u64, byte: u8, durable: u8) -> (Promise, String) {
        let written = self.events.iter().any(|event| match event.change {
            Change::Write { offset: from, end, seed } => {
                (from..end).contains(&offset) && byte == pattern::byte(seed, offset)
            }
            _ => false,
        });
        if byte != 0 && !written && byte != self.origin.byte(offset) {
            let line = format!("byte {offset} is {byte:#04x}, which was never written there to this file");
            return (Promise::S3, line);
        }
        let (promise, by) = start.promise();
        let what = if byte == 0 { "zero" } else { "older than allowed" };
        (promise, format!("byte {offset} is {byte:#04x} ({what}); {by} made {durable:#04x} or newer durable"))
    }
}

impl Event {
    fn may_touch(&self, first: u64, last: u64) -> bool {
        match self.change {
            Change::Write { offset, end, .. } | Change::Zero { offset, end, .. } => {
                offset < last && end > first
            }
            Change::Truncate { size } => size < last,
            _ => false,
        }
    }
}

/// The size a truncation sets, if the prefix includes it.
fn applies_truncation(event: &Event, prefix: usize) -> Option<u64> {
    match event.change {
        Change::Truncate { size } if event.index <= prefix => Some(size),
        _ => None,
    }
}
