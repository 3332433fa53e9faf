//! What a decoded request must also obey before anybody acts on it: ranges, combinations, references between steps.
//!
//! Bytes that decode can still ask nonsense; this is the one gate for it, pure and without look-ups. What needs the file system to be
//! judged (does the inode exist?) is not judged here.

use super::{
    Create, FileRef, FileRequest, HandleRef, InodeRef, LockFamily, LockRange, OpenFlags, Request,
    RequestEnvelope, WritePosition,
};
use crate::attributes::{ATTRIBUTES_LENGTH, MAX_ENTRY_LENGTH, MODE_PERMISSION_MASK};
use crate::error::{ErrorCode, WireError};
use crate::limits::{
    MAX_BODY, MAX_COMPOUND_STEPS, MAX_DIRECTORY_BYTES, MAX_DIRECTORY_ENTRIES, MAX_ERROR_DETAIL,
    MAX_FILE_SIZE, MAX_INODE_LIST, MAX_PATH_COMPONENTS, MAX_PAYLOAD, MAX_SYMLINK, MAX_XATTR_LIST,
    MAX_XATTR_VALUE,
};

type Checked = Result<(), WireError>;

fn invalid(detail: &str) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, detail)
}

fn require(condition: bool, detail: &str) -> Checked {
    if condition { Ok(()) } else { Err(invalid(detail)) }
}

impl RequestEnvelope {
    /// Checks everything that can be checked without the file system. `payload_length` is that of the request's frame.
    ///
    /// # Errors
    /// `InvalidArgument`, `FileTooBig` or `TooLarge`, with a detail that names the argument.
    pub fn validate(&self, payload_length: usize) -> Checked {
        if let Some(operation) = self.operation {
            require(operation.sequence != 0, "an operation sequence of 0: they start at 1")?;
        }
        let takes_payload = match &self.request {
            Request::Session(_) | Request::Admin(_) => false,
            Request::File(request) => {
                request.check(&[])?;
                request.takes_payload()
            }
            Request::Compound { steps } => check_steps(steps)?,
        };
        require(takes_payload || payload_length == 0, "a payload that no write takes")?;
        // A write at the very end of the address range would wrap; its length is only known here.
        let end_fits = |step: &FileRequest| match step {
            FileRequest::Write { position: WritePosition::At(offset), .. }
            | FileRequest::WriteUnprivileged { position: WritePosition::At(offset), .. } => {
                *offset <= MAX_FILE_SIZE.saturating_sub(payload_length as u64)
            }
            _ => true,
        };
        let fits = match &self.request {
            Request::File(request) => end_fits(request),
            Request::Compound { steps } => steps.iter().all(end_fits),
            Request::Session(_) | Request::Admin(_) => true,
        };
        if fits { Ok(()) } else { Err(ErrorCode::FileTooBig.into()) }
    }
}

/// Bytes of body around the results of a compound.
const REPLY_OVERHEAD: usize = 16;
/// Bytes that any result without a variable part fits in, an error with the longest detail included.
const FIXED_REPLY: usize = MAX_ERROR_DETAIL + 64;

/// Returns whether one of the steps takes the request's payload.
fn check_steps(steps: &[FileRequest]) -> Result<bool, WireError> {
    require(!steps.is_empty(), "a compound without steps")?;
    if steps.len() > MAX_COMPOUND_STEPS {
        return Err(WireError::new(ErrorCode::TooLarge, "more than 32 steps in a compound"));
    }
    for (index, step) in steps.iter().enumerate() {
        step.check(&steps[..index])?;
    }
    let takers = steps.iter().filter(|step| step.takes_payload()).count();
    let givers = steps.iter().filter(|step| matches!(step, FileRequest::Read { .. })).count();
    require(takers <= 1, "more than one write in a compound")?;
    require(givers <= 1, "more than one read in a compound")?;
    // Found out before the first step runs: a reply that cannot be sent would hide what the steps did.
    let reply: usize = steps.iter().map(FileRequest::reply_bound).sum();
    if REPLY_OVERHEAD + reply > MAX_BODY {
        return Err(WireError::new(ErrorCode::TooLarge, "the replies of the compound could exceed one body"));
    }
    Ok(takers == 1)
}

impl FileRequest {
    /// Whether the request's payload belongs to it.
    #[must_use]
    pub const fn takes_payload(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteUnprivileged { .. })
    }

    /// The most bytes of body its result can take.
    #[must_use]
    pub fn reply_bound(&self) -> usize {
        FIXED_REPLY
            + match self {
                Self::ReadDirectory { max_entries, .. } | Self::ListDirectory { max_entries, .. } => {
                    MAX_DIRECTORY_BYTES.min(*max_entries as usize * MAX_ENTRY_LENGTH)
                }
                Self::GetXattr { .. } => MAX_XATTR_VALUE,
                Self::ListXattrs { .. } => MAX_XATTR_LIST,
                Self::ReadLink { .. } => MAX_SYMLINK,
                Self::ResolvePath { components, .. } => components.len() * ATTRIBUTES_LENGTH,
                Self::ReclaimInodes { inodes } => inodes.len() * size_of::<u64>(),
                _ => 0,
            }
    }

    /// `earlier` are the steps before this one; empty for a request that stands alone.
    fn check(&self, earlier: &[Self]) -> Checked {
        let inode = |reference: InodeRef| check_inode(reference, earlier);
        let file = |reference: FileRef| check_file(reference, earlier);
        match self {
            Self::Lookup { parent, .. }
            | Self::Unlink { parent, .. }
            | Self::RemoveDirectory { parent, .. } => inode(*parent),
            Self::Create(create) => {
                inode(create.parent)?;
                check_create(create)
            }
            Self::CreateUnnamed { parent, permissions, open, .. } => {
                inode(*parent)?;
                check_permissions(*permissions)?;
                check_flags(*open)
            }
            Self::Link { file: linked, parent, .. } => {
                file(*linked)?;
                inode(*parent)
            }
            Self::Rename { parent, new_parent, .. } => {
                inode(*parent)?;
                inode(*new_parent)
            }
            Self::ReadLink { inode: number }
            | Self::GetXattr { inode: number, .. }
            | Self::SetXattr { inode: number, .. }
            | Self::ListXattrs { inode: number }
            | Self::RemoveXattr { inode: number, .. } => inode(*number),
            Self::GetAttributes { file: number } | Self::Fsync { file: number, .. } => file(*number),
            Self::SetAttributes(change) => {
                file(change.file)?;
                check_permissions(change.permissions.unwrap_or(0))?;
                check_range(0, change.size.unwrap_or(0))
            }
            Self::ReadDirectory { inode: number, max_entries, .. }
            | Self::ListDirectory { inode: number, max_entries, .. } => {
                inode(*number)?;
                require(
                    (1..=MAX_DIRECTORY_ENTRIES as u32).contains(max_entries),
                    "max_entries is not 1 to 1024",
                )
            }
            Self::CreateMasked { create, umask } => {
                inode(create.parent)?;
                check_create(create)?;
                check_umask(*umask)?;
                require(create.open.is_none(), "a masked creation opens nothing")
            }
            Self::CreateUnnamedMasked { parent, permissions, umask, .. } => {
                inode(*parent)?;
                check_permissions(*permissions)?;
                check_umask(*umask)
            }
            Self::ReclaimInodes { inodes }
            | Self::ForgetInodes { inodes }
            | Self::AcknowledgeRecalls { recalls: inodes } => {
                require(inodes.len() <= MAX_INODE_LIST, "a list of more than 8192 numbers")?;
                require(earlier.is_empty(), "a list of numbers inside a compound")
            }
            Self::Lock { lock, .. } => {
                require(earlier.is_empty(), "a lock inside a compound")?;
                check_lock(lock)
            }
            Self::TestLock { lock } => check_lock(lock),
            Self::StatFs | Self::SyncVolume { .. } | Self::BeginLeases | Self::CancelLock { .. } => Ok(()),
            Self::ResolvePath { base, components } => {
                inode(*base)?;
                require((1..=MAX_PATH_COMPONENTS).contains(&components.len()), "not 1 to 64 path components")
            }
            Self::Open { inode: number, flags } => {
                inode(*number)?;
                check_flags(*flags)
            }
            Self::Close { handle, .. } => check_handle(*handle, earlier),
            Self::Read { file: number, offset, length } => {
                file(*number)?;
                if *length as usize > MAX_PAYLOAD {
                    return Err(WireError::new(ErrorCode::TooLarge, "a read of more than 1 MiB"));
                }
                // Reading at and behind the end is legal and gives nothing; only the offset itself must be possible.
                check_range(*offset, 0)
            }
            Self::Write { file: number, position } | Self::WriteUnprivileged { file: number, position } => {
                file(*number)?;
                match position {
                    WritePosition::At(offset) => check_range(*offset, 0),
                    WritePosition::Append => Ok(()),
                }
            }
            Self::Allocate { file: number, offset, length, .. }
            | Self::PunchHole { file: number, offset, length }
            | Self::ZeroRange { file: number, offset, length, .. } => {
                file(*number)?;
                require(*length != 0, "a length of 0")?;
                check_range(*offset, *length)
            }
            Self::Seek { file: number, offset, .. } => {
                file(*number)?;
                check_range(*offset, 0)
            }
        }
    }
}

fn check_create(create: &Create) -> Checked {
    check_permissions(create.permissions)?;
    let regular = matches!(create.kind, super::NewKind::Regular);
    require(regular || create.exclusive, "only a regular file can be created without exclusive")?;
    match create.open {
        None => Ok(()),
        Some(_) if !regular => Err(invalid("only a regular file can be opened as it is created")),
        Some(flags) => check_flags(flags),
    }
}

fn check_permissions(permissions: u32) -> Checked {
    require(permissions & !MODE_PERMISSION_MASK == 0, "permissions beyond 07777")
}

fn check_umask(umask: u32) -> Checked {
    require(umask & !0o777 == 0, "a mask beyond 0777")
}

fn check_lock(lock: &LockRange) -> Checked {
    require(lock.inode != 0, "inode 0")?;
    require(lock.start <= lock.last, "a lock that ends before it starts")?;
    if lock.last > MAX_FILE_SIZE {
        return Err(ErrorCode::FileTooBig.into());
    }
    let whole = lock.start == 0 && lock.last == MAX_FILE_SIZE;
    require(whole || lock.family == LockFamily::Range, "a flock of a part of a file")
}

fn check_flags(flags: OpenFlags) -> Checked {
    require(OpenFlags::ALL.contains(flags), "unknown open flags")?;
    let changes = OpenFlags::TRUNCATE.0 | OpenFlags::APPEND.0;
    require(flags.0 & changes == 0 || flags.contains(OpenFlags::WRITE), "truncate or append without write")
}

fn check_range(offset: u64, length: u64) -> Checked {
    match offset.checked_add(length) {
        Some(end) if end <= MAX_FILE_SIZE => Ok(()),
        _ => Err(ErrorCode::FileTooBig.into()),
    }
}

fn check_inode(reference: InodeRef, earlier: &[FileRequest]) -> Checked {
    match reference {
        InodeRef::Explicit(number) => require(number != 0, "inode 0"),
        InodeRef::FromStep(step) => require(
            earlier.get(usize::from(step)).is_some_and(FileRequest::gives_inode),
            "an inode from a step that is not earlier or gives none",
        ),
    }
}

fn check_handle(reference: HandleRef, earlier: &[FileRequest]) -> Checked {
    match reference {
        HandleRef::Explicit(_) => Ok(()),
        HandleRef::FromStep(step) => require(
            earlier.get(usize::from(step)).is_some_and(FileRequest::gives_handle),
            "a handle from a step that is not earlier or gives none",
        ),
    }
}

fn check_file(reference: FileRef, earlier: &[FileRequest]) -> Checked {
    match reference {
        FileRef::Inode(inode) => check_inode(inode, earlier),
        FileRef::Handle(handle) => check_handle(handle, earlier),
    }
}
