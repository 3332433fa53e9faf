//! `SEEK_DATA` and `SEEK_HOLE`, exact to the block: dirty pages and stored data are data; gaps and preallocated space
//! without a dirty page are holes; so is everything from the end of the file on.

use crate::error::{EngineResult, FsError};
use crate::fs::extents::{Extent, Mapping, extents_in};
use crate::fs::pages::FilePages;
use crate::fs::view::View;
use crate::limits::{BLOCK_BYTES, EXTENTS_PER_STEP};
use crate::types::InodeNumber;

/// What is sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte in a hole; the end of the file is one.
    Hole,
}

/// How far a seek came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// At this offset it is.
    Found(u64),
    /// Not before this offset: seek again from there. (One call looks at [`EXTENTS_PER_STEP`] extents at most, so that
    /// a file in a million pieces does not stop its subvolume.)
    From(u64),
}

/// Seeks from `offset` on.
///
/// Errors: `NotFound`; `InvalidArgument` (not a regular file); `NoMoreData` (at or past the end, or no data up to it).
pub fn seek(view: &View<'_>, inode: InodeNumber, offset: u64, kind: SeekKind) -> EngineResult<Seek> {
    let item = view.inode(inode)?;
    if !item.is_regular() {
        return Err(FsError::InvalidArgument.into());
    }
    if offset >= item.size {
        return Err(FsError::NoMoreData.into());
    }
    let start = offset / BLOCK_BYTES * BLOCK_BYTES;
    let (extents, complete) = extents_in(view, inode, start, item.size, EXTENTS_PER_STEP)?;
    let horizon = match extents.last() {
        Some(last) if !complete => last.end().min(item.size),
        _ => item.size,
    };
    let ground = Ground { extents: &extents, pages: view.pages.file(inode) };
    let mut position = offset;
    while position < horizon {
        let (is_data, end) = ground.at(position, horizon);
        if is_data == (kind == SeekKind::Data) {
            return Ok(Seek::Found(position));
        }
        position = end;
    }
    if horizon < item.size {
        return Ok(Seek::From(horizon));
    }
    match kind {
        SeekKind::Hole => Ok(Seek::Found(item.size)),
        SeekKind::Data => Err(FsError::NoMoreData.into()),
    }
}

struct Ground<'a> {
    extents: &'a [Extent],
    pages: Option<&'a FilePages>,
}

impl Ground<'_> {
    /// Is there data at a byte, and up to where (at least) does that hold?
    fn at(&self, position: u64, horizon: u64) -> (bool, u64) {
        let block = position / BLOCK_BYTES;
        if self.pages.is_some_and(|pages| pages.page(block).is_some()) {
            return (true, (block + 1) * BLOCK_BYTES);
        }
        let index = self.extents.partition_point(|extent| extent.end() <= position);
        let end = match self.extents.get(index) {
            Some(extent) if extent.offset <= position => match extent.mapping {
                Mapping::Preallocated { .. } | Mapping::Hole => extent.end(),
                Mapping::Inline { .. } | Mapping::Regular { .. } => return (true, extent.end()),
            },
            Some(next) => next.offset,
            None => horizon,
        };
        let page = self.pages.and_then(|pages| pages.range(block, end.div_ceil(BLOCK_BYTES)).next());
        (false, page.map_or(end, |(block, _)| block * BLOCK_BYTES))
    }
}
