//! Every limit of the engine in one place, asserted against each other at compile time.

/// Unit of allocation and of data checksums, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// [`BLOCK_BYTES`] as an index type.
pub const BLOCK: usize = BLOCK_BYTES as usize;
/// Size of a tree node, in bytes.
pub const NODE_BYTES: usize = 16384;
/// Largest value of one tree item, in bytes; larger things are cut into several items.
pub const ITEM_BYTES_MAX: usize = 4096;
/// Largest data extent, in bytes: its checksums (4 bytes a block) must fit one item.
pub const EXTENT_BYTES_MAX: u64 = 1 << 20;
/// Files up to this size live in their extent item, in bytes.
pub const INLINE_BYTES_MAX: usize = 2048;
/// Longest name of a directory entry or extended attribute, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Largest value of an extended attribute, in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Values above this are cut into pieces of [`XATTR_PIECE_BYTES`], in bytes.
pub const XATTR_INLINE_BYTES_MAX: usize = 1024;
/// Size of a piece of a large extended attribute value, in bytes.
pub const XATTR_PIECE_BYTES: usize = 4096;
/// Largest size of a file: the largest offset that fits `off_t`.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Most names of one inode (as btrfs and more than ext4's 65000).
pub const LINKS_MAX: u32 = 1_000_000;
/// Largest read or write in one operation, in bytes.
pub const IO_BYTES_MAX: usize = 1 << 20;
/// Most extents that one operation frees at once; more are left to background steps.
pub const EXTENTS_PER_STEP: usize = 2048;

/// Inode number of a subvolume's root directory.
pub const ROOT_INODE: u64 = 256;
/// First number handed out for inodes and directory entries.
pub const FIRST_FREE_ID: u64 = 257;
/// Reserved inode number below which orphans are listed.
pub const ORPHAN_DIRECTORY: u64 = 2;
/// Reserved "inode" of the root tree below which tenants are listed.
pub const TENANT_DIRECTORY: u64 = 1;
/// First number handed out for subvolumes; smaller ones are special trees.
pub const FIRST_SUBVOLUME_ID: u64 = 256;
/// Owner number of the root tree's nodes.
pub const ROOT_TREE_OWNER: u64 = 1;
/// Owner number of the references tree's nodes.
pub const REFERENCES_TREE_OWNER: u64 = 2;

/// `fsync` puts at most this much of a file's data into the log itself, in bytes; more goes to extents.
pub const LOG_INLINE_DATA_MAX: usize = 32 * 1024;
/// Un-written log records beyond this are handed to the log writer without an fsync, in bytes.
pub const LOG_BACKLOG_BYTES: usize = 1 << 20;
/// Largest batch the log writer writes at once, in bytes.
pub const LOG_BATCH_BYTES_MAX: usize = 4 << 20;
/// Replayed log that makes a commit on the way due, in bytes: memory stays bounded whatever the ring's size.
pub const REPLAY_COMMIT_BYTES: u64 = 32 << 20;
/// Dirty data of one subvolume that starts background writeback, in bytes.
pub const WRITEBACK_START_BYTES: u64 = 8 << 20;
/// Results of operations remembered per client for retries.
pub const LEDGER_ENTRIES_PER_CLIENT: usize = 4096;
/// Clients whose results a subvolume remembers.
pub const LEDGER_CLIENTS_MAX: usize = 1024;

const _: () = {
    assert!(EXTENT_BYTES_MAX / BLOCK_BYTES * 4 <= 1024);
    assert!(INLINE_BYTES_MAX <= BLOCK && INLINE_BYTES_MAX + 64 <= ITEM_BYTES_MAX);
    assert!(SYMLINK_BYTES_MAX <= ITEM_BYTES_MAX);
    assert!(XATTR_VALUE_BYTES_MAX.div_ceil(XATTR_PIECE_BYTES) <= 16);
    assert!(XATTR_PIECE_BYTES <= ITEM_BYTES_MAX);
    assert!(XATTR_INLINE_BYTES_MAX + NAME_BYTES_MAX + 64 <= ITEM_BYTES_MAX);
    assert!(ITEM_BYTES_MAX * 3 < NODE_BYTES);
    assert!(LOG_INLINE_DATA_MAX + BLOCK <= LOG_BACKLOG_BYTES);
    assert!(IO_BYTES_MAX as u64 <= EXTENT_BYTES_MAX);
    assert!(LOG_BACKLOG_BYTES < LOG_BATCH_BYTES_MAX);
    assert!(ROOT_INODE < FIRST_FREE_ID && ORPHAN_DIRECTORY < ROOT_INODE);
};
