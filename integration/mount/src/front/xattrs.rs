//! Extended attributes, and the one that tells of the mount itself.

use std::rc::Rc;

use bytes::Bytes;
use subvol_protocol::name::{XattrName, XattrValue};
use subvol_protocol::request::{FileRequest, XattrMode};
use subvol_protocol::response::FileResponse;

use super::dispatch::Asked;
use super::inodes::absent;
use super::names::{inode_ref, unexpected};
use super::{Front, Outcome, Output, errno};
use crate::backend::{Backend, Failure};
use crate::counters::{REPORT_ATTRIBUTE, Report};
use crate::kernel::abi::GetXattrOut;
use crate::kernel::reply::ROOT_NODE;

/// The bit of an attribute whose absence is remembered.
fn absence(name: &[u8]) -> u8 {
    match name {
        b"security.capability" => absent::CAPABILITY,
        b"system.posix_acl_access" => absent::ACCESS_ACL,
        b"system.posix_acl_default" => absent::DEFAULT_ACL,
        _ => 0,
    }
}

fn xattr_name(name: &[u8]) -> Result<XattrName, Failure> {
    // Longer or odder than any that can exist.
    XattrName::new(name).map_err(|error| Failure(subvol_protocol::error::ErrorCode::from(error).errno()))
}

/// The bytes, or only their number if the caller has no room.
fn sized(room: u32, bytes: &[u8]) -> Outcome {
    if room == 0 {
        return Ok(Output::of(&GetXattrOut { size: bytes.len() as u32, padding: 0 }));
    }
    if bytes.len() > room as usize {
        return Err(Failure(errno::ERANGE));
    }
    Ok(Output::bytes(Bytes::copy_from_slice(bytes)))
}

impl<B: Backend> Front<B> {
    /// What is known not to exist, and what the mount tells of itself.
    pub(super) fn get_xattr_here(&self, asked: &Asked, room: u32, name: &[u8]) -> Option<Outcome> {
        let bit = absence(name);
        if bit != 0 && self.with_node(asked.inode, |node| node.absent & bit != 0) == Some(true) {
            return Some(Err(Failure(errno::ENODATA)));
        }
        if asked.nodeid == ROOT_NODE && name == REPORT_ATTRIBUTE.as_bytes() {
            let report = serde_json::to_vec(&self.report()).unwrap_or_default();
            return Some(sized(room, &report));
        }
        None
    }

    fn report(&self) -> Report {
        Report {
            source: self.options.source.clone(),
            form: self.options.form.to_owned(),
            connected: self.backend.is_connected(),
            leases: self.backend.has_leases(),
            inodes: self.inodes.borrow().len() as u64,
            under_way: self.under_way.borrow().len() as u64,
            ..self.counters.report()
        }
    }

    pub(super) async fn get_xattr(&self, asked: &Asked, room: u32, name: &[u8]) -> Outcome {
        let request = FileRequest::GetXattr { inode: inode_ref(asked.inode), name: xattr_name(name)? };
        match self.ask(request).await {
            Ok(FileResponse::Xattr { value }) => sized(room, value.as_bytes()),
            Ok(_) => Err(unexpected()),
            Err(Failure(errno::ENODATA)) => {
                if self.is_sure(asked.inode, asked.since) {
                    let _ = self.with_node(asked.inode, |node| node.absent |= absence(name));
                }
                Err(Failure(errno::ENODATA))
            }
            Err(failure) => Err(failure),
        }
    }

    pub(super) async fn set_xattr(
        self: &Rc<Self>,
        asked: &Asked,
        flags: u32,
        name: &[u8],
        value: &[u8],
    ) -> Outcome {
        let mode = match flags as i32 {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Failure(errno::EINVAL)),
        };
        let value = XattrValue::new(value).map_err(|_| Failure(libc::E2BIG))?;
        let request =
            FileRequest::SetXattr { inode: inode_ref(asked.inode), name: xattr_name(name)?, value, mode };
        self.change_xattr(asked, name, request).await
    }

    pub(super) async fn remove_xattr(self: &Rc<Self>, asked: &Asked, name: &[u8]) -> Outcome {
        let request = FileRequest::RemoveXattr { inode: inode_ref(asked.inode), name: xattr_name(name)? };
        match self.change_xattr(asked, name, request).await {
            // No list is what was asked for, as on other file systems.
            Err(Failure(errno::ENODATA))
                if matches!(absence(name), absent::ACCESS_ACL | absent::DEFAULT_ACL) =>
            {
                Ok(Output::empty())
            }
            outcome => outcome,
        }
    }

    async fn change_xattr(self: &Rc<Self>, asked: &Asked, name: &[u8], request: FileRequest) -> Outcome {
        let changing = self.changing(&[asked.inode]);
        let answer = self.ask(request).await;
        drop(changing);
        // An access list also sets the mode.
        let _ = self.with_node(asked.inode, |node| {
            node.absent &= !absence(name);
            node.mode = None;
        });
        answer.map(|_| Output::empty())
    }

    pub(super) async fn list_xattrs(&self, asked: &Asked, room: u32) -> Outcome {
        match self.ask(FileRequest::ListXattrs { inode: inode_ref(asked.inode) }).await? {
            FileResponse::XattrNames { names } => sized(room, names.as_bytes()),
            _ => Err(unexpected()),
        }
    }

    /// Takes a file's capabilities away, as a change by somebody who may not keep them must.
    pub(super) async fn drop_capabilities(self: &Rc<Self>, asked: &Asked) -> Result<(), Failure> {
        const NAME: &[u8] = b"security.capability";
        if self.with_node(asked.inode, |node| node.absent & absent::CAPABILITY != 0) == Some(true) {
            return Ok(());
        }
        match self.remove_xattr(asked, NAME).await {
            Ok(_) | Err(Failure(errno::ENODATA)) => {}
            Err(failure) => return Err(failure),
        }
        if self.is_sure(asked.inode, asked.since) {
            let _ = self.with_node(asked.inode, |node| node.absent |= absent::CAPABILITY);
        }
        Ok(())
    }
}
