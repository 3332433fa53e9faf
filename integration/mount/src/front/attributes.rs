//! Attributes: reading and changing them, and what they say about the volume.

use std::rc::Rc;

use subvol_protocol::attributes::{Attributes, FileKind, SetTime, Timestamp};
use subvol_protocol::request::{FileRef, FileRequest, SetAttributes};
use subvol_protocol::response::FileResponse;

use super::dispatch::Asked;
use super::names::unexpected;
use super::{Front, Outcome, Output};
use crate::backend::{Backend, Failure};
use crate::kernel::abi::{SetAttrIn, fattr};
use crate::kernel::reply;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// The permissions of a mode without the bits that a change of owner or content takes away; `None` if there are none. A set-group-id bit
/// without execution by the group means something else (mandatory locking, once) and stays.
pub(super) const fn without_set_id(mode: u32) -> Option<u32> {
    let mut taken = mode & SET_USER_ID;
    if mode & GROUP_EXECUTE != 0 {
        taken |= mode & SET_GROUP_ID;
    }
    if taken == 0 { None } else { Some(mode & 0o7777 & !taken) }
}

/// A time as the kernel sends it: seconds in a number that is signed in truth.
#[expect(clippy::cast_possible_wrap, reason = "as the kernel has it")]
const fn time(seconds: u64, nanoseconds: u32) -> SetTime {
    SetTime::To(Timestamp { seconds: seconds as i64, nanoseconds })
}

impl<B: Backend> Front<B> {
    pub(super) async fn attributes(&self, inode: u64, since: u64) -> Result<Attributes, Failure> {
        match self.ask(FileRequest::GetAttributes { file: FileRef::inode(inode) }).await? {
            FileResponse::Attributes { attributes } => {
                self.learned(&attributes, since);
                Ok(attributes)
            }
            _ => Err(unexpected()),
        }
    }

    fn learned(&self, attributes: &Attributes, since: u64) {
        let mode = self.is_sure(attributes.inode, since).then_some(attributes.mode);
        let _ = self.with_node(attributes.inode, |node| node.mode = mode);
    }

    /// The mode, from memory if it is sure.
    pub(super) async fn mode(&self, asked: &Asked) -> Result<u32, Failure> {
        match self.with_node(asked.inode, |node| node.mode).flatten() {
            Some(mode) => Ok(mode),
            None => Ok(self.attributes(asked.inode, asked.since).await?.mode),
        }
    }

    pub(super) async fn get_attributes(&self, asked: &Asked) -> Outcome {
        let attributes = self.attributes(asked.inode, asked.since).await?;
        let valid = self.validity(asked.inode, asked.inode, asked.since).attributes;
        Ok(Output::of(&reply::attributes(&attributes, valid)))
    }

    pub(super) async fn statx(&self, asked: &Asked) -> Outcome {
        let attributes = self.attributes(asked.inode, asked.since).await?;
        let valid = self.validity(asked.inode, asked.inode, asked.since).attributes;
        Ok(Output::of(&reply::statx(&attributes, valid)))
    }

    pub(super) async fn set_attributes(self: &Rc<Self>, asked: &Asked, set: &SetAttrIn) -> Outcome {
        let has = |bit: u32| set.valid & bit != 0;
        let mut change = SetAttributes {
            permissions: has(fattr::MODE).then_some(set.mode & 0o7777),
            uid: has(fattr::UID).then_some(set.uid),
            gid: has(fattr::GID).then_some(set.gid),
            size: has(fattr::SIZE).then_some(set.size),
            ..SetAttributes::none(FileRef::inode(asked.inode))
        };
        if has(fattr::ATIME_NOW) {
            change.atime = Some(SetTime::Now);
        } else if has(fattr::ATIME) {
            change.atime = Some(time(set.atime, set.atimensec));
        }
        if has(fattr::MTIME_NOW) {
            change.mtime = Some(SetTime::Now);
        } else if has(fattr::MTIME) {
            change.mtime = Some(time(set.mtime, set.mtimensec));
        }
        let chown = change.uid.is_some() || change.gid.is_some();
        let kills = chown || (change.size.is_some() && has(fattr::KILL_SUIDGID));
        if kills && change.permissions.is_none() {
            let mode = self.mode(asked).await?;
            if FileKind::from_mode(mode) != Some(FileKind::Directory) {
                change.permissions = without_set_id(mode);
            }
            if FileKind::from_mode(mode) == Some(FileKind::Regular) {
                self.drop_capabilities(asked).await?;
            }
        }
        let changing = self.changing(&[asked.inode]);
        let answer = self.ask(FileRequest::SetAttributes(change)).await;
        drop(changing);
        let attributes = match answer? {
            FileResponse::AttributesSet { attributes, .. } => attributes,
            _ => return Err(unexpected()),
        };
        self.learned(&attributes, asked.since);
        if change.permissions.is_some() {
            // The mode and the access list speak of the same thing: one may have changed the other.
            let _ = self.with_node(asked.inode, |node| node.absent &= !super::inodes::absent::ACCESS_ACL);
        }
        let valid = self.validity(asked.inode, asked.inode, asked.since).attributes;
        Ok(Output::of(&reply::attributes(&attributes, valid)))
    }

    pub(super) async fn statfs(&self) -> Outcome {
        match self.ask(FileRequest::StatFs).await? {
            FileResponse::Statistics { statistics } => Ok(Output::of(&reply::statfs(&statistics))),
            _ => Err(unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without_set_id;

    #[test]
    fn set_id_bits_go_unless_they_mean_something_else() {
        assert_eq!(without_set_id(0o104_755), Some(0o755));
        assert_eq!(without_set_id(0o106_755), Some(0o755));
        assert_eq!(without_set_id(0o102_755), Some(0o755));
        assert_eq!(without_set_id(0o102_745), None, "no execution by the group");
        assert_eq!(without_set_id(0o106_745), Some(0o2745));
        assert_eq!(without_set_id(0o100_755), None);
    }
}
