//! Mounting and unmounting: with mount(2) where the process may, through `fusermount3` where it may not.
//!
//! Errors say what is missing and what to do about it.

use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::device::Device;

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSettings {
    /// What `mount` and `df` show as the source.
    pub source: String,
    /// Refuse changes.
    pub read_only: bool,
    /// Other users than the mounting one may use it, within the files' permissions.
    pub allow_other: bool,
    /// Ignore set-id bits.
    pub no_suid: bool,
    /// Ignore device files.
    pub no_dev: bool,
    /// Run no programs.
    pub no_exec: bool,
}

/// Why a file system could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// No FUSE in this kernel or container.
    #[error(
        "cannot open /dev/fuse ({0}). Load the kernel module with `modprobe fuse`; in a container, pass the device in (for example `--device /dev/fuse --cap-add SYS_ADMIN`)"
    )]
    NoDevice(io::Error),
    /// The mount point does not do.
    #[error("{}: {error}. The mount point must be an existing directory", path.display())]
    MountPoint {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// mount(2) refused.
    #[error("mounting on {} was refused ({error}). Mount as root, or install the package fuse3, whose fusermount3 mounts for users", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// fusermount3 refused.
    #[error("fusermount3 could not mount on {}: {detail}. Users need access to /dev/fuse (usually mode 0666), and `allow_other` needs the line user_allow_other in /etc/fuse.conf", path.display())]
    Helper {
        /// Where.
        path: PathBuf,
        /// What it said.
        detail: String,
    },
    /// Unmounting failed.
    #[error("cannot unmount {}: {error}. See with `fuser -m` who uses it, or unmount with --lazy", path.display())]
    Unmount {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Mounts on a directory and returns the connection to the kernel.
///
/// # Errors
/// [`MountError`].
pub fn mount(directory: &Path, settings: &MountSettings) -> Result<Device, MountError> {
    let bad = |error| MountError::MountPoint { path: directory.to_path_buf(), error };
    let directory = directory.canonicalize().map_err(bad)?;
    if !directory.metadata().map_err(bad)?.is_dir() {
        return Err(bad(io::ErrorKind::NotADirectory.into()));
    }
    let descriptor = if rustix::process::geteuid().is_root() {
        mount_directly(&directory, settings)?
    } else {
        mount_by_helper(&directory, settings)?
    };
    Device::new(descriptor).map_err(MountError::NoDevice)
}

fn mount_directly(directory: &Path, settings: &MountSettings) -> Result<OwnedFd, MountError> {
    use rustix::fs::{Mode, OFlags};
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| MountError::NoDevice(error.into()))?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, settings.read_only);
    flags.set(MountFlags::NOSUID, settings.no_suid);
    flags.set(MountFlags::NODEV, settings.no_dev);
    flags.set(MountFlags::NOEXEC, settings.no_exec);
    let allow_other = if settings.allow_other { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{allow_other}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let text = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
    rustix::mount::mount(
        text(&settings.source).as_c_str(),
        directory,
        c"fuse.subvol",
        flags,
        Some(text(&options).as_c_str()),
    )
    .map_err(|error| MountError::Refused { path: directory.to_path_buf(), error: error.into() })?;
    Ok(device)
}

/// The set-uid helper mounts and sends the descriptor back over a socket.
fn mount_by_helper(directory: &Path, settings: &MountSettings) -> Result<OwnedFd, MountError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let refused = |detail: String| MountError::Helper { path: directory.to_path_buf(), detail };
    // The helper's end must survive its exec, so it is not closed on exec.
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)
        .map_err(|error| refused(error.to_string()))?;
    let _ = rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC);
    let mut options =
        format!("fsname={},subtype=subvol,default_permissions", settings.source.replace(',', "\\,"));
    for (set, option) in
        [(settings.read_only, ",ro"), (settings.allow_other, ",allow_other"), (settings.no_exec, ",noexec")]
    {
        if set {
            options.push_str(option);
        }
    }
    let output = Command::new("fusermount3")
        .arg("-o")
        .arg(&options)
        .arg("--")
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output();
    drop(theirs);
    match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Refused { path: directory.to_path_buf(), error: Errno::PERM.into() });
        }
        Err(error) => return Err(refused(error.to_string())),
        Ok(output) if !output.status.success() => {
            return Err(refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(_) => {}
    }
    receive_descriptor(&ours).map_err(|error| refused(error.to_string()))
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut byte = [0_u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::Error::other("the helper sent no descriptor"))
}

/// Unmounts. `lazy`: takes it out of the tree at once, the rest when its last user is gone.
///
/// # Errors
/// [`MountError::Unmount`].
pub fn unmount(directory: &Path, lazy: bool) -> Result<(), MountError> {
    let failed = |error| MountError::Unmount { path: directory.to_path_buf(), error };
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
    match rustix::mount::unmount(directory, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let mut arguments: Vec<OsString> = vec!["-u".into()];
            if lazy {
                arguments.push("-z".into());
            }
            arguments.push("--".into());
            arguments.push(directory.into());
            let output = Command::new("fusermount3").args(arguments).output().map_err(failed)?;
            if output.status.success() {
                return Ok(());
            }
            Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())))
        }
        Err(error) => Err(failed(error.into())),
    }
}
