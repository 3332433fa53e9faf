//! Everything that can go wrong, as stable numbers with an errno, a retry class and advice.
//!
//! Invariants: a number, once published, keeps its meaning for ever and is never given to another error; every error has an errno, so
//! a file system front end needs no table of its own. The table of `protocol.md` is compared with this one by a test.

use std::fmt;

use bincode::de::{Decode, Decoder};
use bincode::enc::{Encode, Encoder};
use bincode::error::{DecodeError, EncodeError};

use crate::limits::MAX_ERROR_DETAIL;
use crate::name::{NameError, Text};

/// Linux errno numbers, the ones used here. Spelled out because a protocol must not depend on the machine that compiles it.
pub mod errno {
    #![expect(missing_docs, reason = "the names are the documentation: see errno(3)")]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const E2BIG: i32 = 7;
    pub const EBADF: i32 = 9;
    pub const EAGAIN: i32 = 11;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const ERANGE: i32 = 34;
    pub const EDEADLK: i32 = 35;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EPROTO: i32 = 71;
    pub const EBADMSG: i32 = 74;
    pub const EMSGSIZE: i32 = 90;
    pub const EPROTONOSUPPORT: i32 = 93;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESHUTDOWN: i32 = 108;
    pub const ESTALE: i32 = 116;
    pub const EUCLEAN: i32 = 117;
    pub const EDQUOT: i32 = 122;
}

/// Whether sending the same request again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// No: the answer will be the same until somebody changes something.
    Never,
    /// Yes, after a short wait, on the same connection.
    SameConnection,
    /// Yes, with the same operation id, after connecting, authenticating and attaching again.
    AfterReconnect,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $errno:ident, $retry:ident, $message:literal;)+) => {
        /// A stable error number. Sent as a u16.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum ErrorCode {
            $($(#[$doc])* #[doc = $message] $name = $number,)+
        }

        impl ErrorCode {
            /// Every code, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The code with this number, if this version knows it.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// The name, as in `protocol.md`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// The Linux errno.
            #[must_use]
            pub const fn errno(self) -> i32 {
                match self { $(Self::$name => errno::$errno,)+ }
            }

            /// The name of the Linux errno.
            #[must_use]
            pub const fn errno_name(self) -> &'static str {
                match self { $(Self::$name => stringify!($errno),)+ }
            }

            /// Whether trying again can help.
            #[must_use]
            pub const fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry,)+ }
            }

            /// What happened and what to do next, for people.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $(Self::$name => $message,)+ }
            }
        }
    };
}

error_codes! {
    NotFound = 100, ENOENT, Never, "No such entry or inode. Look the path up again.";
    Exists = 101, EEXIST, Never, "The name is taken. Choose another, or remove the entry first.";
    NotDirectory = 102, ENOTDIR, Never, "The operation needs a directory. Check the path's components.";
    IsDirectory = 103, EISDIR, Never, "The operation does not work on a directory. Use the directory operation instead.";
    NotEmpty = 104, ENOTEMPTY, Never, "The directory has entries. Remove them first.";
    NameTooLong = 105, ENAMETOOLONG, Never, "A name is longer than allowed. Shorten it to 255 bytes.";
    InvalidName = 106, EINVAL, Never, "A name is empty, `.` or `..`, or has a forbidden byte. Use another name.";
    InvalidArgument = 107, EINVAL, Never, "An argument is out of its range or does not fit the others. The detail names it.";
    FileTooBig = 108, EFBIG, Never, "The size or range ends beyond 2^63-1 bytes. Use a smaller offset.";
    TooManyLinks = 109, EMLINK, Never, "The inode cannot have more names. Copy the file instead of linking it.";
    XattrNotFound = 110, ENODATA, Never, "The inode has no such extended attribute. List its attributes to see which it has.";
    XattrTooBig = 111, E2BIG, Never, "The extended attribute's value or the list of names is too large. Store a smaller value.";
    XattrRange = 112, ERANGE, Never, "The extended attribute does not fit the length the caller allowed. Ask again with more room.";
    CrossVolume = 113, EXDEV, Never, "Source and target are in different volumes. Copy the data instead.";
    LoopDetected = 114, ELOOP, Never, "The path runs through too many symbolic links. Check the links for a cycle.";
    DirectoryLoop = 115, EINVAL, Never, "A directory cannot move into itself. Choose a target outside of it.";
    SeekNoData = 116, ENXIO, Never, "There is no data or hole at or behind the offset. Treat it as the end of the file.";
    NotSupported = 117, EOPNOTSUPP, Never, "The server or this kind of file does not support the operation. Do without it.";
    NotPermitted = 118, EPERM, Never, "The operation is not allowed on this kind of inode, whoever asks. Use another operation.";

    NoSpace = 200, ENOSPC, Never, "The store is full. Delete something (deleting always works) or enlarge the store.";
    QuotaBytes = 201, EDQUOT, Never, "The limit in bytes of the volume or tenant is reached. Delete something or raise the limit.";
    QuotaInodes = 202, EDQUOT, Never, "The limit in inodes of the volume or tenant is reached. Delete files or raise the limit.";

    Io = 300, EIO, Never, "The device failed, or data written earlier could not be stored. See the server's log; write the data again.";
    Corrupt = 301, EUCLEAN, Never, "Stored bytes fail their checksum; the detail says which. Restore that file from a copy.";
    ReadOnly = 302, EROFS, Never, "The volume is attached read-only or the store went read-only after an error. See the status report.";
    Busy = 303, EBUSY, SameConnection, "Something else is using it now. Try again in a moment.";
    LockConflict = 304, EAGAIN, Never, "Another owner holds a lock in the way. Wait for it, or try again later.";
    Deadlock = 305, EDEADLK, Never, "Waiting for this lock would never end: its holder waits for one of yours. Release yours first.";
    Interrupted = 306, EINTR, Never, "The wait was cancelled by its client. Ask again if it is still wanted.";

    PermissionDenied = 400, EACCES, Never, "These credentials may not do that. Use those of the tenant or an administrator.";
    NotAuthenticated = 401, EACCES, Never, "Authentication is missing or was refused. Check the token and send `Authenticate` first.";
    UnknownVolume = 402, ENOENT, Never, "The tenant has no such volume. List its volumes, or create it.";
    UnknownTenant = 403, ENOENT, Never, "There is no such tenant. List the tenants, or add it.";
    NotAttached = 404, EINVAL, Never, "The connection has no volume. Send `Attach` first.";

    BadFrame = 500, EBADMSG, Never, "The bytes are not a valid frame or message. Compare the client with the protocol document.";
    UnsupportedVersion = 501, EPROTONOSUPPORT, Never, "Client and server have no protocol version in common. Update the older one.";
    TooLarge = 502, EMSGSIZE, Never, "A message or payload is larger than the server's limits. Split the request.";
    TooManyRequests = 503, EAGAIN, SameConnection, "More requests are unanswered than the server's limit. Wait for replies, then send again.";
    OutOfOrder = 504, EPROTO, Never, "The request does not fit the connection's state. Follow Hello, Authenticate, Attach.";

    StaleHandle = 600, EBADF, Never, "The handle is unknown to this connection. Open the file again.";
    StaleLineage = 601, ESTALE, Never, "The server restarted and lost changes that were not durable. Check the file and write it again.";
    OperationExpired = 602, ESTALE, Never, "The operation id is too old to tell whether it was done. Look at the result, then decide.";
    ShuttingDown = 603, ESHUTDOWN, AfterReconnect, "The server is stopping. Connect again in a moment and repeat the request.";
    StaleInode = 604, ESTALE, Never, "The inode no longer exists. Look the path up again.";
    Fenced = 605, ESTALE, AfterReconnect, "A recall was not acknowledged in time, so the leases ended. Drop what is kept, connect again.";

    Internal = 900, EIO, Never, "The server broke a promise to itself. Report it with the server's log; the request may have been done.";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl From<NameError> for ErrorCode {
    fn from(error: NameError) -> Self {
        match error {
            NameError::TooLong => Self::NameTooLong,
            NameError::Empty | NameError::ForbiddenByte | NameError::Dots | NameError::NotText => {
                Self::InvalidName
            }
        }
    }
}

/// An error as it travels: the code that programs decide by, and a detail that people read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// The code.
    pub code: ErrorCode,
    /// What was hit: a name, an offset, a limit. At most 512 bytes, may be empty, never of another tenant, never a secret.
    pub detail: Text<MAX_ERROR_DETAIL>,
}

impl WireError {
    /// An error with a detail; the detail is cut at 512 bytes.
    #[must_use]
    pub fn new(code: ErrorCode, detail: &str) -> Self {
        Self { code, detail: Text::new(detail) }
    }
}

impl From<ErrorCode> for WireError {
    fn from(code: ErrorCode) -> Self {
        Self { code, detail: Text::default() }
    }
}

impl From<NameError> for WireError {
    fn from(error: NameError) -> Self {
        Self::new(error.into(), &error.to_string())
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.message())?;
        if !self.detail.as_str().is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for WireError {}

impl Encode for WireError {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.code as u16).encode(encoder)?;
        self.detail.encode(encoder)
    }
}

impl<Context> Decode<Context> for WireError {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let number = u16::decode(decoder)?;
        let detail = Text::<MAX_ERROR_DETAIL>::decode(decoder)?;
        // A newer server may know errors that this version does not. The request still failed, and that must reach the caller.
        Ok(match ErrorCode::from_number(number) {
            Some(code) => Self { code, detail },
            None => Self::new(ErrorCode::Internal, &format!("unknown error code {number}: {detail}")),
        })
    }
}
bincode::impl_borrow_decode!(WireError);
