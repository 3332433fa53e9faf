//! The kernel's side of the FUSE protocol as it lies in memory: numbers and structures of `linux/fuse.h`, version 7.45, those used here.
//!
//! Invariant: every structure has the size that the kernel's has, asserted at the end. Only this crate's `kernel` module sees them.

#![expect(missing_docs, reason = "the names are those of linux/fuse.h, which documents them")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 45;

macro_rules! opcodes {
    ($($name:ident = $number:literal;)+) => {
        /// What a request is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode { $($name = $number,)+ }

        impl Opcode {
            /// Every operation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }

            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }
        }
    };
}

opcodes! {
    Lookup = 1; Forget = 2; GetAttr = 3; SetAttr = 4; ReadLink = 5; Symlink = 6; MkNod = 8; MkDir = 9; Unlink = 10; RmDir = 11;
    Rename = 12; Link = 13; Open = 14; Read = 15; Write = 16; StatFs = 17; Release = 18; Fsync = 20; SetXattr = 21; GetXattr = 22;
    ListXattr = 23; RemoveXattr = 24; Flush = 25; Init = 26; OpenDir = 27; ReadDir = 28; ReleaseDir = 29; FsyncDir = 30; GetLk = 31;
    SetLk = 32; SetLkW = 33; Access = 34; Create = 35; Interrupt = 36; Bmap = 37; Destroy = 38; Ioctl = 39; Poll = 40;
    NotifyReply = 41; BatchForget = 42; Fallocate = 43; ReadDirPlus = 44; Rename2 = 45; Lseek = 46; CopyFileRange = 47; SyncFs = 50;
    TmpFile = 51; Statx = 52;
}

/// Flags of `INIT`; those from bit 32 on travel in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Flags of an answer to `OPEN`.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
}

/// Bits of `SetAttrIn::valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub const LK_FLOCK: u32 = 1 << 0;
pub const FSYNC_DATA_ONLY: u32 = 1 << 0;

/// Numbers of notifications.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    /// All names become stale at once; since 7.44 (Linux 6.16).
    pub const INC_EPOCH: i32 = 8;
}

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident ($size:literal) { $($field:ident: $type:ty,)* })+) => {
        $($(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);)+
    };
}

structures! {
    InHeader (40) { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16, }
    OutHeader (16) { len: u32, error: i32, unique: u64, }
    Attr (88) {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut (128) {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut (104) { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    InitIn (64) { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    InitOut (64) {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    ForgetIn (8) { nlookup: u64, }
    ForgetOne (16) { nodeid: u64, nlookup: u64, }
    BatchForgetIn (8) { count: u32, dummy: u32, }
    GetAttrIn (16) { flags: u32, dummy: u32, fh: u64, }
    SetAttrIn (88) {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MkNodIn (16) { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkDirIn (8) { mode: u32, umask: u32, }
    RenameIn (8) { newdir: u64, }
    Rename2In (16) { newdir: u64, flags: u32, padding: u32, }
    LinkIn (8) { oldnodeid: u64, }
    OpenIn (8) { flags: u32, open_flags: u32, }
    CreateIn (16) { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut (16) { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn (24) { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn (24) { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn (40) { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteIn (40) { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteOut (8) { size: u32, padding: u32, }
    StatFsOut (80) {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32,
        spare: [u32; 6],
    }
    FsyncIn (16) { fh: u64, fsync_flags: u32, padding: u32, }
    SetXattrIn (16) { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    GetXattrIn (8) { size: u32, padding: u32, }
    GetXattrOut (8) { size: u32, padding: u32, }
    FileLock (24) { start: u64, end: u64, kind: u32, pid: u32, }
    LkIn (48) { fh: u64, owner: u64, lock: FileLock, lk_flags: u32, padding: u32, }
    LkOut (24) { lock: FileLock, }
    InterruptIn (8) { unique: u64, }
    FallocateIn (32) { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn (24) { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut (8) { offset: u64, }
    Dirent (24) { ino: u64, off: u64, namelen: u32, kind: u32, }
    StatxIn (24) { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    SxTime (16) { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    Statx (256) {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: [u16; 1], ino: u64, size: u64,
        blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32,
        rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut (288) { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    NotifyInvalInodeOut (24) { ino: u64, off: i64, len: i64, }
    NotifyInvalEntryOut (16) { parent: u64, namelen: u32, flags: u32, }
}
