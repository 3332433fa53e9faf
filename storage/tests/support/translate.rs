//! Between the words of the model and those of the engine.

use bytes::Bytes;
use subvol_model::{self as model, Kind, ModelError, SpecialKind, Time};
use subvol_storage::error::FsError;
use subvol_storage::format::item::{InodeItem, file_type};
use subvol_storage::operation::{RenameMode, XattrMode};
use subvol_storage::types::Timestamp;

pub fn time(time: Timestamp) -> Time {
    Time::new(time.seconds, time.nanoseconds)
}

pub fn timestamp(time: Time) -> Timestamp {
    Timestamp::new(time.seconds, time.nanoseconds)
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("names of tests are text")
}

pub fn rename_mode(mode: model::RenameMode) -> RenameMode {
    match mode {
        model::RenameMode::Replace => RenameMode::Replace,
        model::RenameMode::NoReplace => RenameMode::NoReplace,
        model::RenameMode::Exchange => RenameMode::Exchange,
    }
}

pub fn xattr_mode(mode: model::XattrMode) -> XattrMode {
    match mode {
        model::XattrMode::Any => XattrMode::Any,
        model::XattrMode::Create => XattrMode::Create,
        model::XattrMode::Replace => XattrMode::Replace,
    }
}

/// Type bits and device number.
pub fn special(kind: SpecialKind) -> (u32, u64) {
    match kind {
        SpecialKind::Fifo => (file_type::FIFO, 0),
        SpecialKind::Socket => (file_type::SOCKET, 0),
        SpecialKind::Character(rdev) => (file_type::CHARACTER_DEVICE, rdev.into()),
        SpecialKind::Block(rdev) => (file_type::BLOCK_DEVICE, rdev.into()),
    }
}

pub fn kind(item: &InodeItem) -> Kind {
    match item.mode & file_type::MASK {
        file_type::REGULAR => Kind::File,
        file_type::DIRECTORY => Kind::Directory,
        file_type::SYMLINK => Kind::Symlink,
        file_type::FIFO => Kind::Special(SpecialKind::Fifo),
        file_type::SOCKET => Kind::Special(SpecialKind::Socket),
        file_type::CHARACTER_DEVICE => Kind::Special(SpecialKind::Character(item.rdev as u32)),
        file_type::BLOCK_DEVICE => Kind::Special(SpecialKind::Block(item.rdev as u32)),
        other => panic!("kind {other:o}"),
    }
}

/// The refusal as the model says it.
pub fn refusal(error: FsError) -> ModelError {
    match error {
        FsError::NotFound => ModelError::NotFound,
        FsError::Exists => ModelError::Exists,
        FsError::NotDirectory => ModelError::NotDirectory,
        FsError::IsDirectory => ModelError::IsDirectory,
        FsError::NotEmpty => ModelError::NotEmpty,
        FsError::InvalidArgument => ModelError::InvalidArgument,
        FsError::NameTooLong => ModelError::NameTooLong,
        FsError::TooManyLinks => ModelError::TooManyLinks,
        FsError::NotPermitted => ModelError::NotPermitted,
        FsError::NoXattr => ModelError::NoData,
        FsError::NotSupported => ModelError::NotSupported,
        FsError::FileTooBig => ModelError::FileTooBig,
        FsError::NoSpace => ModelError::NoSpace,
        FsError::QuotaBytes | FsError::QuotaInodes => ModelError::QuotaExceeded,
        FsError::XattrTooBig => ModelError::TooBig,
        other => panic!("{other} is not expected here"),
    }
}
