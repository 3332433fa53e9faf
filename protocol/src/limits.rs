//! Every limit of the wire, in one place.
//!
//! A limit here is a promise in both directions: a peer may use all of it, and nobody has to keep more memory than it allows. The
//! server repeats the ones a client plans with in [`ServerLimits`]; a client uses those, not its own constants.

use bincode::{Decode, Encode};

/// Bytes of the fixed frame header.
pub const HEADER_LENGTH: usize = 32;
/// Version of the frame layout, byte 3 of every header. A change of the layout is a change of this number.
pub const FRAME_VERSION: u8 = 1;
/// The newest protocol version this crate speaks (see [`crate::request::SessionRequest::Hello`]).
pub const PROTOCOL_VERSION: u16 = 1;
/// The oldest protocol version this crate still speaks.
pub const OLDEST_PROTOCOL_VERSION: u16 = 1;

/// Bytes of a message body. Also bounds what decoding a body may allocate.
pub const MAX_BODY: usize = 256 * 1024;
/// Bytes of raw payload behind a body: the most one read or write moves.
pub const MAX_PAYLOAD: usize = 1024 * 1024;
/// Bytes of a body before authentication, when the peer may be anybody.
pub const MAX_BODY_BEFORE_AUTHENTICATION: usize = 4096;
/// Requests of one connection that may be unanswered at a time. One more is answered with `TooManyRequests`.
pub const MAX_IN_FLIGHT: u32 = 256;
/// How many of a client's newest operation sequences the server can recognise as already done, per volume. A client never has an
/// unanswered operation that is older than this behind its newest one.
pub const OPERATION_WINDOW: u32 = 1024;

/// Bytes of one directory entry's name.
pub const MAX_NAME: usize = 255;
/// Bytes of an extended attribute's name, prefix included.
pub const MAX_XATTR_NAME: usize = 255;
/// Bytes of an extended attribute's value.
pub const MAX_XATTR_VALUE: usize = 65_536;
/// Bytes of the names of all extended attributes of one inode, each with a terminating zero (what `listxattr` may return).
pub const MAX_XATTR_LIST: usize = 65_536;
/// Bytes of a symbolic link's target.
pub const MAX_SYMLINK: usize = 4095;
/// Components of one `ResolvePath`.
pub const MAX_PATH_COMPONENTS: usize = 64;
/// Entries of one `ReadDirectory` reply; the server also stops early when the body would grow beyond [`MAX_DIRECTORY_BYTES`].
pub const MAX_DIRECTORY_ENTRIES: usize = 1024;
/// Encoded bytes of all entries of one `ReadDirectory` reply, as counted by
/// [`crate::attributes::DirectoryEntry::encoded_length`]. Leaves room for the rest of the body.
pub const MAX_DIRECTORY_BYTES: usize = 192 * 1024;
/// The largest file size and the largest end of any range, in bytes: what a signed 64-bit offset can express.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Numbers in one list of inodes or recalls.
pub const MAX_INODE_LIST: usize = 8192;
/// What one recall names at most; more things are an empty list, which means all.
pub const MAX_RECALL_TARGETS: usize = 8;

/// Steps of one compound request.
pub const MAX_COMPOUND_STEPS: usize = 32;

/// Bytes of a tenant's or a volume's name.
pub const MAX_LABEL: usize = 63;
/// Bytes of a volume's name.
pub const MAX_VOLUME_NAME: usize = MAX_LABEL;
/// Bytes of a tenant's name.
pub const MAX_TENANT_NAME: usize = MAX_LABEL;
/// Bytes of a credential token.
pub const MAX_TOKEN: usize = 256;
/// Bytes of the name a client gives itself, for logs and status.
pub const MAX_CLIENT_NAME: usize = 64;
/// Bytes of the free text in an error.
pub const MAX_ERROR_DETAIL: usize = 512;
/// Bytes of a reason's name in the status report and of the text in a push.
pub const MAX_REASON: usize = 128;
/// Tenants or volumes of one list reply; longer lists are read page by page.
pub const MAX_LIST_PAGE: usize = 512;
/// Reasons, histogram samples or volumes in one status report, each.
pub const MAX_STATUS_ROWS: usize = 256;

/// "No limit" for a quota. A number rather than an option, so that comparing usage with a limit needs no special case.
pub const UNLIMITED: u64 = u64::MAX;

// A name, its attributes and its neighbours must fit however unlucky; so must one full xattr value and one full xattr list.
const _: () = assert!(MAX_DIRECTORY_BYTES + 4096 <= MAX_BODY);
const _: () = assert!(MAX_XATTR_VALUE + MAX_XATTR_NAME + 4096 <= MAX_BODY);
const _: () = assert!(MAX_XATTR_LIST + 4096 <= MAX_BODY);
const _: () = assert!(MAX_SYMLINK + MAX_NAME + 4096 <= MAX_BODY);
const _: () = assert!(MAX_PATH_COMPONENTS * (MAX_NAME + 8) + 4096 <= MAX_BODY);
// The decoder counts list elements at their size in memory, not on the wire: full lists must stay below the limit in both measures.
const _: () =
    assert!(MAX_DIRECTORY_ENTRIES * size_of::<crate::attributes::DirectoryEntry>() + 4096 <= MAX_BODY);
const _: () = assert!(MAX_COMPOUND_STEPS * size_of::<crate::request::FileRequest>() + 4096 <= MAX_BODY);
const _: () = assert!(MAX_COMPOUND_STEPS * size_of::<crate::response::StepResult>() + 4096 <= MAX_BODY);
const _: () =
    assert!(MAX_LIST_PAGE * (size_of::<crate::response::VolumeSummary>() + MAX_LABEL * 2 + 64) <= MAX_BODY);
const _: () = assert!(
    MAX_STATUS_ROWS * (size_of::<crate::response::VolumeStatus>() + MAX_LABEL * 2 + 64) <= MAX_BODY / 2
);
const _: () = assert!(MAX_STATUS_ROWS * (MAX_REASON + 16 + 16) + 4096 <= MAX_BODY / 2);
const _: () = assert!(MAX_INODE_LIST * size_of::<u64>() + 4096 <= MAX_BODY);
const _: () = assert!(OPERATION_WINDOW >= 2 * MAX_IN_FLIGHT);
const _: () = assert!(MAX_BODY + MAX_PAYLOAD + HEADER_LENGTH < u32::MAX as usize);
const _: () = assert!(OLDEST_PROTOCOL_VERSION <= PROTOCOL_VERSION);

/// The limits a server tells a client in its answer to `Hello`. Never larger than this file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ServerLimits {
    /// Bytes of a body.
    pub max_body: u32,
    /// Bytes of a payload.
    pub max_payload: u32,
    /// Unanswered requests of one connection.
    pub max_in_flight: u32,
    /// Steps of a compound request.
    pub max_compound_steps: u32,
    /// See [`OPERATION_WINDOW`].
    pub operation_window: u32,
}

impl ServerLimits {
    /// What this version of the protocol allows at most.
    pub const FULL: Self = Self {
        max_body: MAX_BODY as u32,
        max_payload: MAX_PAYLOAD as u32,
        max_in_flight: MAX_IN_FLIGHT,
        max_compound_steps: MAX_COMPOUND_STEPS as u32,
        operation_window: OPERATION_WINDOW,
    };
}
