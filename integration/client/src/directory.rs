//! [`Entries`]: a directory as a stream of entries, read page by page.
//!
//! Invariant: cookies are never reused, so entries that exist during the whole reading come exactly once, whatever else is created or
//! removed meanwhile.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{Stream, StreamExt, try_unfold};
use subvol_protocol::attributes::DirectoryEntry;

use crate::error::{ClientError, Result};
use crate::inode::InodeApi;
use crate::limits::DIRECTORY_PAGE;

/// The entries of a directory, without `.` and `..`, in the order they were created. A [`Stream`]; [`Self::next`] does without that
/// trait.
pub struct Entries(Pin<Box<dyn Stream<Item = Result<DirectoryEntry>> + Send>>);

struct Cursor {
    inodes: InodeApi,
    inode: u64,
    page: std::vec::IntoIter<DirectoryEntry>,
    cookie: u64,
    end: bool,
}

impl Entries {
    pub(crate) fn new(inodes: InodeApi, inode: u64, with_attributes: bool) -> Self {
        let start = Cursor { inodes, inode, page: Vec::new().into_iter(), cookie: 0, end: false };
        Self(Box::pin(try_unfold(start, move |mut cursor| async move {
            loop {
                if let Some(entry) = cursor.page.next() {
                    return Ok(Some((entry, cursor)));
                }
                if cursor.end {
                    return Ok(None);
                }
                let page = cursor
                    .inodes
                    .read_directory(cursor.inode, cursor.cookie, DIRECTORY_PAGE, with_attributes)
                    .await?;
                cursor.end = page.end;
                match page.entries.last() {
                    // A page that does not advance would be asked for again for ever.
                    Some(last) if last.cookie > cursor.cookie => cursor.cookie = last.cookie,
                    None if page.end => {}
                    _ => return Err(ClientError::unexpected("ReadDirectory")),
                }
                cursor.page = page.entries.into_iter();
            }
        })))
    }

    /// The next entry; `None` at the end and after an error.
    pub async fn next(&mut self) -> Option<Result<DirectoryEntry>> {
        self.0.next().await
    }

    /// All that is left.
    ///
    /// # Errors
    /// The first error.
    pub async fn collect(mut self) -> Result<Vec<DirectoryEntry>> {
        let mut entries = Vec::new();
        while let Some(entry) = self.next().await {
            entries.push(entry?);
        }
        Ok(entries)
    }
}

impl Stream for Entries {
    type Item = Result<DirectoryEntry>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entries")
    }
}
