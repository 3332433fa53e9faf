//! Between the protocol's values and the engine's.

use subvol_protocol::attributes::{
    Attributes, FileKind, Lineage, Timestamp as WireTimestamp, VolumeStatistics,
};
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::limits::{MAX_NAME, UNLIMITED};
use subvol_protocol::request::{NewKind, RenameMode, XattrMode};
use subvol_storage::error::FsError;
use subvol_storage::format::item::InodeItem;
use subvol_storage::limits::BLOCK_BYTES;
use subvol_storage::operation;
use subvol_storage::store::Store;
use subvol_storage::store::account::Account;
use subvol_storage::subvolume::Ticket;
use subvol_storage::types::{InodeNumber, Timestamp};

/// Attributes as they travel.
pub fn attributes(inode: InodeNumber, item: &InodeItem) -> Attributes {
    Attributes {
        inode,
        mode: item.mode,
        links: item.nlink,
        uid: item.uid,
        gid: item.gid,
        // Set from 32 bits and never changed.
        rdev: item.rdev as u32,
        size: item.size,
        blocks: item.blocks,
        atime: to_wire(item.atime),
        mtime: to_wire(item.mtime),
        ctime: to_wire(item.ctime),
        btime: to_wire(item.btime),
        version: item.version,
    }
}

fn to_wire(time: Timestamp) -> WireTimestamp {
    WireTimestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

/// A time as the engine keeps it.
pub fn from_wire(time: WireTimestamp) -> Timestamp {
    Timestamp::new(time.seconds, time.nanoseconds)
}

/// A point in a volume's history, as it travels.
pub fn lineage(ticket: Ticket) -> Lineage {
    Lineage { epoch: ticket.epoch, transid: ticket.transid, log_transid: ticket.log_transid }
}

/// The same in the engine's words.
pub fn ticket(lineage: Lineage) -> Ticket {
    Ticket { epoch: lineage.epoch, transid: lineage.transid, log_transid: lineage.log_transid }
}

/// The kind that type bits of a mode mean. Unknown bits can only come from damage; such an entry still has to be shown.
pub fn file_kind(mode_type: u32) -> FileKind {
    FileKind::from_mode(mode_type & subvol_protocol::attributes::MODE_TYPE_MASK).unwrap_or(FileKind::Regular)
}

/// Device number of a new inode.
pub fn device_number(kind: &NewKind) -> u64 {
    match kind {
        NewKind::CharacterDevice(number) | NewKind::BlockDevice(number) => u64::from(*number),
        _ => 0,
    }
}

/// What about a taken target.
pub fn rename_mode(mode: RenameMode) -> operation::RenameMode {
    match mode {
        RenameMode::Replace => operation::RenameMode::Replace,
        RenameMode::NoReplace => operation::RenameMode::NoReplace,
        RenameMode::Exchange => operation::RenameMode::Exchange,
        RenameMode::Whiteout => operation::RenameMode::Whiteout,
        RenameMode::WhiteoutNoReplace => operation::RenameMode::WhiteoutNoReplace,
    }
}

/// What about an existing attribute.
pub fn xattr_mode(mode: XattrMode) -> operation::XattrMode {
    match mode {
        XattrMode::Any => operation::XattrMode::Any,
        XattrMode::Create => operation::XattrMode::Create,
        XattrMode::Replace => operation::XattrMode::Replace,
    }
}

/// A refusal as it travels. No detail: errors such as `NotFound` are answered by the thousand.
pub fn refusal(error: FsError) -> WireError {
    match error {
        FsError::NotFound => ErrorCode::NotFound,
        FsError::Exists => ErrorCode::Exists,
        FsError::NotDirectory => ErrorCode::NotDirectory,
        FsError::IsDirectory => ErrorCode::IsDirectory,
        FsError::NotEmpty => ErrorCode::NotEmpty,
        FsError::InvalidArgument => ErrorCode::InvalidArgument,
        FsError::NameTooLong => ErrorCode::NameTooLong,
        FsError::TooManyLinks => ErrorCode::TooManyLinks,
        FsError::NotPermitted => ErrorCode::NotPermitted,
        FsError::FileTooBig => ErrorCode::FileTooBig,
        FsError::NoSpace => ErrorCode::NoSpace,
        FsError::QuotaBytes => ErrorCode::QuotaBytes,
        FsError::QuotaInodes => ErrorCode::QuotaInodes,
        FsError::NoXattr => ErrorCode::XattrNotFound,
        FsError::XattrTooBig => ErrorCode::XattrTooBig,
        FsError::NoMoreData => ErrorCode::SeekNoData,
        FsError::Io => ErrorCode::Io,
        FsError::ReadOnly => ErrorCode::ReadOnly,
        FsError::NotSupported => ErrorCode::NotSupported,
    }
    .into()
}

/// The numbers of `statfs`: the least of the volume's limit, its tenant's and the store.
pub fn statistics(store: &Store, volume: &Account, tenant: &Account) -> VolumeStatistics {
    let space = store.space().statistics();
    let (used, tenant_used) = (volume.usage(), tenant.usage());
    let (limits, tenant_limits) = (volume.limits(), tenant.limits());
    let left = |limit: Option<u64>, used: u64| limit.map_or(UNLIMITED, |limit| limit.saturating_sub(used));
    let left_bytes = left(limits.max_bytes, used.bytes).min(left(tenant_limits.max_bytes, tenant_used.bytes));
    let left_inodes =
        left(limits.max_inodes, used.inodes).min(left(tenant_limits.max_inodes, tenant_used.inodes));
    let available_bytes = left_bytes.min(space.available_for_growth.saturating_mul(BLOCK_BYTES));
    let least = |a: Option<u64>, b: Option<u64>| a.unwrap_or(UNLIMITED).min(b.unwrap_or(UNLIMITED));
    let total_inodes = match left_inodes {
        UNLIMITED => UNLIMITED,
        left => used.inodes.saturating_add(left).min(least(limits.max_inodes, tenant_limits.max_inodes)),
    };
    VolumeStatistics {
        block_size: BLOCK_BYTES as u32,
        max_name: MAX_NAME as u32,
        total_bytes: least(limits.max_bytes, tenant_limits.max_bytes).min(space.total * BLOCK_BYTES),
        used_bytes: used.bytes,
        available_bytes,
        total_inodes,
        used_inodes: used.inodes,
    }
}
