//! Every response and push.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::values::{
    attributes, entry, label, lineage, lock_range, name, statistics, target, text, token, wire_error,
    xattr_name, xattr_value,
};
use super::{Samples, any_of, fields};
use crate::limits::ServerLimits;
use crate::name::XattrNames;
use crate::request::Features;
use crate::response::{
    AdminResponse, FileResponse, Push, RecallTarget, Response, SessionResponse, StatusReport, StoreStatus,
    TenantSummary, UnpinSample, VolumeStatus, VolumeSummary,
};

pub(in crate::tests) fn session_responses() -> Samples<SessionResponse> {
    let limits = fields!(ServerLimits {
        max_body: any::<u32>(),
        max_payload: any::<u32>(),
        max_in_flight: any::<u32>(),
        max_compound_steps: any::<u32>(),
        operation_window: any::<u32>(),
    });
    vec![
        fields!(SessionResponse::HelloOk {
            version: any::<u16>(),
            features: any::<u64>().prop_map(Features),
            server_epoch: any::<u64>(),
            limits: limits,
        }),
        fields!(SessionResponse::AuthOk { tenant: option::of(label()), admin: any::<bool>() }),
        fields!(SessionResponse::Attached {
            subvolume: any::<u64>(),
            root: any::<u64>(),
            lineage: lineage(),
            read_only: any::<bool>(),
            statistics: statistics(),
        }),
        Just(SessionResponse::Pong).boxed(),
        Just(SessionResponse::Farewell).boxed(),
    ]
}

pub(in crate::tests) fn file_responses() -> Samples<FileResponse> {
    let ticket = lineage;
    let maybe = || option::of(lineage());
    let names = vec(xattr_name(), 0..9).prop_map(|names| XattrNames::join(&names).expect("short"));
    vec![
        fields!(FileResponse::Done { ticket: ticket() }),
        fields!(FileResponse::Entry { attributes: attributes(), ticket: maybe() }),
        fields!(FileResponse::Created {
            attributes: attributes(),
            handle: option::of(any::<u64>()),
            created: any::<bool>(),
            ticket: ticket(),
        }),
        fields!(FileResponse::Removed { inode: any::<u64>(), links: any::<u32>(), ticket: ticket() }),
        fields!(FileResponse::Renamed {
            inode: any::<u64>(),
            replaced: option::of(any::<u64>()),
            ticket: ticket(),
        }),
        fields!(FileResponse::Link { target: target() }),
        fields!(FileResponse::Attributes { attributes: attributes() }),
        fields!(FileResponse::AttributesSet { attributes: attributes(), ticket: ticket() }),
        fields!(FileResponse::Directory { entries: vec(entry(), 0..9), end: any::<bool>() }),
        fields!(FileResponse::Xattr { value: xattr_value() }),
        fields!(FileResponse::XattrNames { names: names }),
        fields!(FileResponse::Statistics { statistics: statistics() }),
        fields!(FileResponse::Path { found: vec(attributes(), 0..5) }),
        fields!(FileResponse::Opened { handle: any::<u64>(), attributes: attributes(), ticket: maybe() }),
        Just(FileResponse::Closed).boxed(),
        fields!(FileResponse::Read { length: any::<u32>(), end_of_file: any::<bool>() }),
        fields!(FileResponse::Written {
            written: any::<u32>(),
            position: any::<u64>(),
            size: any::<u64>(),
            ticket: ticket(),
        }),
        fields!(FileResponse::Found { offset: any::<u64>() }),
        fields!(FileResponse::Synced { durable: lineage() }),
        fields!(FileResponse::Listed {
            entries: vec(entry(), 0..5),
            end: any::<bool>(),
            up_to: any::<u64>()
        }),
        fields!(FileResponse::LeasesBegun {
            granted: any::<bool>(),
            recall_milliseconds: any::<u32>(),
            silence_milliseconds: any::<u32>(),
            resumed: any::<bool>(),
        }),
        fields!(FileResponse::Reclaimed { lost: vec(any::<u64>(), 0..5) }),
        Just(FileResponse::Noted).boxed(),
        fields!(FileResponse::LockFound { blocker: option::of(lock_range()) }),
    ]
}

fn tenant_summary() -> BoxedStrategy<TenantSummary> {
    fields!(TenantSummary {
        name: label(),
        tenant: any::<u64>(),
        volumes: any::<u64>(),
        used_bytes: any::<u64>(),
        max_bytes: any::<u64>(),
        used_inodes: any::<u64>(),
        max_inodes: any::<u64>(),
    })
}

fn volume_summary() -> BoxedStrategy<VolumeSummary> {
    fields!(VolumeSummary {
        tenant: label(),
        name: label(),
        subvolume: any::<u64>(),
        used_bytes: any::<u64>(),
        max_bytes: any::<u64>(),
        used_inodes: any::<u64>(),
        max_inodes: any::<u64>(),
        attached: any::<u32>(),
    })
}

fn store_status() -> BoxedStrategy<StoreStatus> {
    let unpins = vec(fields!(UnpinSample { ranges: any::<u64>(), microseconds: any::<u64>() }), 0..5);
    (any::<[u64; 20]>(), any::<bool>(), unpins, vec((text(), any::<u64>()), 0..5))
        .prop_map(|(n, read_only, unpins, fallbacks)| StoreStatus {
            server_epoch: n[0],
            uptime_milliseconds: n[1],
            read_only,
            transid: n[2],
            durable_transid: n[3],
            total_bytes: n[4],
            free_bytes: n[5],
            pinned_bytes: n[6],
            dirty_bytes: n[7],
            log_backlog_bytes: n[8],
            commits: n[9],
            commit_last_microseconds: n[10],
            commit_mean_microseconds: n[11],
            commit_max_microseconds: n[12],
            unpins,
            fallbacks,
            fsync_fast_path: n[13],
            fsync_slow_path: n[14],
            log_batches: n[15],
            actor_messages: n[16],
            sessions: n[17],
            memory_bytes: n[18],
            cache_bytes: n[19],
        })
        .boxed()
}

fn volume_status() -> BoxedStrategy<VolumeStatus> {
    fields!(VolumeStatus {
        summary: volume_summary(),
        epoch: any::<u64>(),
        log_transid: any::<u64>(),
        log_transid_committed: any::<u64>(),
        log_backlog_bytes: any::<u64>(),
        dirty_bytes: any::<u64>(),
        pinned_bytes: any::<u64>(),
        orphans: any::<u64>(),
        operations: any::<u64>(),
    })
}

pub(in crate::tests) fn admin_responses() -> Samples<AdminResponse> {
    let report =
        fields!(StatusReport { store: option::of(store_status()), volumes: vec(volume_status(), 0..5) });
    vec![
        Just(AdminResponse::Done).boxed(),
        fields!(AdminResponse::TenantToken { tenant: any::<u64>(), token: token() }),
        fields!(AdminResponse::Tenants { tenants: vec(tenant_summary(), 0..5), more: any::<bool>() }),
        fields!(AdminResponse::VolumeCreated { subvolume: any::<u64>() }),
        fields!(AdminResponse::Volumes { volumes: vec(volume_summary(), 0..5), more: any::<bool>() }),
        report.prop_map(|report| AdminResponse::Status(Box::new(report))).boxed(),
        fields!(AdminResponse::StoreSynced { transid: any::<u64>() }),
    ]
}

pub(in crate::tests) fn responses() -> Samples<Response> {
    let result = prop_oneof![any_of(file_responses()).prop_map(Ok), wire_error().prop_map(Err)];
    vec![
        wire_error().prop_map(Response::Error).boxed(),
        any_of(session_responses()).prop_map(Response::Session).boxed(),
        any_of(admin_responses()).prop_map(Response::Admin).boxed(),
        any_of(file_responses()).prop_map(Response::File).boxed(),
        fields!(Response::Compound { results: vec(result, 0..5) }),
    ]
}

pub(in crate::tests) fn response() -> BoxedStrategy<Response> {
    any_of(responses())
}

fn recall_target() -> BoxedStrategy<RecallTarget> {
    fields!(RecallTarget { inode: any::<u64>(), name: option::of(name()) })
}

pub(in crate::tests) fn pushes() -> Samples<Push> {
    vec![
        fields!(Push::Shutdown { reason: text(), grace_milliseconds: any::<u32>() }),
        fields!(Push::Recall { recall: any::<u64>(), targets: vec(recall_target(), 0..5) }),
    ]
}

pub(in crate::tests) fn push() -> BoxedStrategy<Push> {
    any_of(pushes())
}
