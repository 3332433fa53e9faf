//! Every request.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::values::{
    file, flags, handle, inode, label, lineage, lock_range, name, set_time, target, text, token, volume,
    xattr_name, xattr_value,
};
use super::{Samples, any_of, fields};
use crate::request::{
    AdminRequest, Create, Credentials, Features, FileRequest, NewKind, OperationId, RenameMode, Request,
    RequestEnvelope, SeekTarget, SessionRequest, SetAttributes, WritePosition, XattrMode,
};

pub(in crate::tests) fn session_requests() -> Samples<SessionRequest> {
    let credentials = prop_oneof![token().prop_map(Credentials::Token), Just(Credentials::UnixPeer)];
    vec![
        fields!(SessionRequest::Hello {
            protocol_version: any::<u16>(),
            features: any::<u64>().prop_map(Features),
            client_id: any::<[u8; 16]>(),
            client_name: text(),
        }),
        fields!(SessionRequest::Authenticate { credentials: credentials }),
        fields!(SessionRequest::Attach {
            volume: volume(),
            tenant: option::of(label()),
            read_only: any::<bool>()
        }),
        Just(SessionRequest::Ping).boxed(),
        Just(SessionRequest::Goodbye).boxed(),
    ]
}

pub(in crate::tests) fn admin_requests() -> Samples<AdminRequest> {
    let number = option::of(any::<u64>());
    let owner = option::of(label());
    vec![
        fields!(AdminRequest::TenantAdd { name: label() }),
        fields!(AdminRequest::TenantList { after: owner.clone() }),
        fields!(AdminRequest::TenantRemove { name: label() }),
        fields!(AdminRequest::TenantSet {
            name: label(),
            max_bytes: number.clone(),
            max_inodes: number.clone()
        }),
        fields!(AdminRequest::TokenReissue { name: label() }),
        fields!(AdminRequest::VolumeCreate {
            tenant: owner.clone(),
            name: label(),
            max_bytes: any::<u64>(),
            max_inodes: any::<u64>(),
        }),
        fields!(AdminRequest::VolumeList { tenant: owner.clone(), after: owner.clone() }),
        fields!(AdminRequest::VolumeRemove { tenant: owner.clone(), volume: volume() }),
        fields!(AdminRequest::VolumeSet {
            tenant: owner.clone(),
            volume: volume(),
            max_bytes: number.clone(),
            max_inodes: number.clone(),
        }),
        fields!(AdminRequest::Status { tenant: owner.clone(), volume: option::of(volume()) }),
        Just(AdminRequest::SyncStore).boxed(),
    ]
}

pub(in crate::tests) fn file_requests() -> Samples<FileRequest> {
    let id = any::<u32>;
    let kind = prop_oneof![
        Just(NewKind::Regular),
        Just(NewKind::Directory),
        target().prop_map(NewKind::Symlink),
        Just(NewKind::Fifo),
        Just(NewKind::Socket),
        id().prop_map(NewKind::CharacterDevice),
        id().prop_map(NewKind::BlockDevice),
    ];
    let create = fields!(Create {
        parent: inode(),
        name: name(),
        kind: kind,
        permissions: id(),
        uid: id(),
        gid: id(),
        exclusive: any::<bool>(),
        open: option::of(flags()),
    });
    let change = fields!(SetAttributes {
        file: file(),
        permissions: option::of(id()),
        uid: option::of(id()),
        gid: option::of(id()),
        size: option::of(any::<u64>()),
        atime: option::of(set_time()),
        mtime: option::of(set_time()),
    });
    let rename = prop::sample::select(vec![
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
        RenameMode::Whiteout,
        RenameMode::WhiteoutNoReplace,
    ]);
    let xattr_mode = prop::sample::select(vec![XattrMode::Any, XattrMode::Create, XattrMode::Replace]);
    let position = prop_oneof![any::<u64>().prop_map(WritePosition::At), Just(WritePosition::Append)];
    let seek = prop::sample::select(vec![SeekTarget::Data, SeekTarget::Hole]);
    let (offset, length) = (any::<u64>, any::<u64>);
    vec![
        fields!(FileRequest::Lookup { parent: inode(), name: name() }),
        create.clone().prop_map(FileRequest::Create).boxed(),
        fields!(FileRequest::CreateUnnamed {
            parent: inode(),
            permissions: id(),
            uid: id(),
            gid: id(),
            open: flags(),
        }),
        fields!(FileRequest::Link { file: file(), parent: inode(), name: name() }),
        fields!(FileRequest::Unlink { parent: inode(), name: name() }),
        fields!(FileRequest::RemoveDirectory { parent: inode(), name: name() }),
        fields!(FileRequest::Rename {
            parent: inode(),
            name: name(),
            new_parent: inode(),
            new_name: name(),
            mode: rename,
        }),
        fields!(FileRequest::ReadLink { inode: inode() }),
        fields!(FileRequest::GetAttributes { file: file() }),
        change.prop_map(FileRequest::SetAttributes).boxed(),
        fields!(FileRequest::ReadDirectory {
            inode: inode(),
            after_cookie: any::<u64>(),
            max_entries: id(),
            with_attributes: any::<bool>(),
        }),
        fields!(FileRequest::GetXattr { inode: inode(), name: xattr_name() }),
        fields!(FileRequest::SetXattr {
            inode: inode(),
            name: xattr_name(),
            value: xattr_value(),
            mode: xattr_mode,
        }),
        fields!(FileRequest::ListXattrs { inode: inode() }),
        fields!(FileRequest::RemoveXattr { inode: inode(), name: xattr_name() }),
        Just(FileRequest::StatFs).boxed(),
        fields!(FileRequest::ResolvePath { base: inode(), components: vec(name(), 0..5) }),
        fields!(FileRequest::Open { inode: inode(), flags: flags() }),
        fields!(FileRequest::Close { handle: handle(), lineage: option::of(lineage()) }),
        fields!(FileRequest::Read { file: file(), offset: offset(), length: id() }),
        fields!(FileRequest::Write { file: file(), position: position.clone() }),
        fields!(FileRequest::Allocate {
            file: file(),
            offset: offset(),
            length: length(),
            keep_size: any::<bool>(),
        }),
        fields!(FileRequest::PunchHole { file: file(), offset: offset(), length: length() }),
        fields!(FileRequest::ZeroRange {
            file: file(),
            offset: offset(),
            length: length(),
            keep_size: any::<bool>(),
        }),
        fields!(FileRequest::Seek { file: file(), offset: offset(), target: seek }),
        fields!(FileRequest::Fsync {
            file: file(),
            data_only: any::<bool>(),
            lineage: option::of(lineage())
        }),
        fields!(FileRequest::SyncVolume { lineage: option::of(lineage()) }),
        fields!(FileRequest::CreateMasked { create: create, umask: id() }),
        fields!(FileRequest::CreateUnnamedMasked {
            parent: inode(),
            permissions: id(),
            umask: id(),
            uid: id(),
            gid: id(),
        }),
        fields!(FileRequest::WriteUnprivileged { file: file(), position: position }),
        fields!(FileRequest::ListDirectory {
            inode: inode(),
            after_cookie: any::<u64>(),
            up_to: any::<u64>(),
            max_entries: id(),
            with_attributes: any::<bool>(),
        }),
        Just(FileRequest::BeginLeases).boxed(),
        fields!(FileRequest::ReclaimInodes { inodes: vec(any::<u64>(), 0..5) }),
        fields!(FileRequest::ForgetInodes { inodes: vec(any::<u64>(), 0..5) }),
        fields!(FileRequest::AcknowledgeRecalls { recalls: vec(any::<u64>(), 0..5) }),
        fields!(FileRequest::Lock {
            lock: lock_range(),
            wait: option::of(any::<u64>()),
            reclaim: any::<bool>(),
        }),
        fields!(FileRequest::CancelLock { wait: any::<u64>() }),
        fields!(FileRequest::TestLock { lock: lock_range() }),
    ]
}

pub(in crate::tests) fn requests() -> Samples<Request> {
    vec![
        any_of(session_requests()).prop_map(Request::Session).boxed(),
        any_of(admin_requests()).prop_map(Request::Admin).boxed(),
        any_of(file_requests()).prop_map(Request::File).boxed(),
        fields!(Request::Compound { steps: vec(any_of(file_requests()), 0..6) }),
    ]
}

pub(in crate::tests) fn envelope() -> BoxedStrategy<RequestEnvelope> {
    let id = fields!(OperationId { client: any::<[u8; 16]>(), sequence: any::<u64>() });
    fields!(RequestEnvelope { operation: option::of(id), request: any_of(requests()) })
}
