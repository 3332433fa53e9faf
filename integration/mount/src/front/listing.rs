//! Listing directories.
//!
//! Positions are the server's cookies, which are larger than the two this front end makes itself: 1 behind `.`, 2 behind `..`. A listing
//! is bounded by the largest cookie of its beginning, so that renaming what it finds does not feed it for ever; the bound is kept by
//! directory, since the kernel opens directories by itself. Two listings of one directory at a time share the newer bound.

use subvol_protocol::attributes::FileKind;
use subvol_protocol::limits::MAX_DIRECTORY_ENTRIES;
use subvol_protocol::request::FileRequest;
use subvol_protocol::response::FileResponse;

use super::dispatch::Asked;
use super::names::{inode_ref, unexpected};
use super::{Front, Outcome, Output};
use crate::backend::Backend;
use crate::kernel::abi::{Dirent, EntryOut, ReadIn};
use crate::kernel::reply::{self, Listing};
use crate::limits::MAX_LISTING;

const BEHIND_DOT: u64 = 1;
const BEHIND_DOTS: u64 = 2;
/// Bytes of a short name, for a guess at how many entries fit.
const SHORT_NAME: usize = 8;

impl<B: Backend> Front<B> {
    /// Whether a listing that goes on at this position is at its end: the kernel always asks once more.
    pub(super) fn is_listed(&self, inode: u64, offset: u64) -> bool {
        offset > BEHIND_DOTS && self.with_node(inode, |node| node.listed_to == Some(offset)) == Some(true)
    }

    pub(super) async fn list(&self, asked: &Asked, read: &ReadIn, plus: bool) -> Outcome {
        let room = (read.size as usize).min(MAX_LISTING);
        let mut listing = Listing::new(room, plus);
        let directory = FileKind::Directory as u32;
        let dots = [(BEHIND_DOT, b".".as_slice()), (BEHIND_DOTS, b"..")];
        for (behind, name) in dots {
            // The number of `..` is not looked at by anybody: the kernel knows its own tree.
            if read.offset < behind && !listing.add(asked.inode, behind, directory, name, None) {
                return Ok(Output::bytes(listing.bytes().to_vec().into()));
            }
        }
        let first = read.offset <= BEHIND_DOTS;
        let after_cookie = if first { 0 } else { read.offset };
        let up_to = if first { 0 } else { self.with_node(asked.inode, |node| node.bound).unwrap_or(0) };
        let each = size_of::<Dirent>() + SHORT_NAME + if plus { size_of::<EntryOut>() } else { 0 };
        let max_entries = (room / each).clamp(1, MAX_DIRECTORY_ENTRIES) as u32;
        let request = FileRequest::ListDirectory {
            inode: inode_ref(asked.inode),
            after_cookie,
            up_to,
            max_entries,
            with_attributes: plus,
        };
        let (entries, end, up_to) = match self.ask(request).await? {
            FileResponse::Listed { entries, end, up_to } => (entries, end, up_to),
            _ => return Err(unexpected()),
        };
        let mut named = smallvec::SmallVec::new();
        let mut last = None;
        let mut full = false;
        for entry in &entries {
            let attributes = entry.attributes.as_ref().filter(|_| plus && !full);
            let out = attributes.map(|attributes| {
                let nodeid = self.inodes.borrow().nodeid(attributes.inode);
                reply::entry(nodeid, attributes, self.validity(asked.inode, attributes.inode, asked.since))
            });
            if !full && listing.add_entry(entry, out.as_ref()) {
                last = Some(entry.cookie);
                if let Some(attributes) = attributes {
                    let sure = self.is_sure(attributes.inode, asked.since);
                    self.inodes.borrow_mut().named(attributes, sure);
                    named.push(attributes.inode);
                }
            } else {
                full = true;
                if plus {
                    self.inodes.borrow_mut().not_named(entry.inode);
                }
            }
        }
        let _ = self.with_node(asked.inode, |node| {
            // Of two listings at a time the later bound counts: a late part of the older one must not cut the newer short.
            node.bound = node.bound.max(up_to);
            node.listed_to = last.filter(|_| end && !full && up_to == node.bound);
        });
        let mut output = Output::bytes(listing.bytes().to_vec().into());
        output.named = named;
        Ok(output)
    }
}
