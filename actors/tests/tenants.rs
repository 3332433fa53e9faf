//! Tenants and volumes: isolation, limits, administration, and what survives a lost catalog.

mod support;

use std::time::{Duration, Instant};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::limits::UNLIMITED;
use subvol_protocol::request::*;
use subvol_protocol::response::{AdminResponse, FileResponse, SessionResponse};
use support::*;

fn add_tenant(admin: &mut Client, tenant: &str) -> subvol_protocol::token::Token {
    match admin.admin(AdminRequest::TenantAdd { name: label(tenant) }).expect("added") {
        AdminResponse::TenantToken { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

fn as_tenant(place: &Place, token: subvol_protocol::token::Token) -> Client {
    let mut client = Client::connect(&place.socket());
    client.hello();
    client.log_in(token).expect("logged in");
    client
}

/// S8: a tenant sees, names and measures nothing of another.
#[test]
fn tenants_do_not_find_each_other() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut admin = place.admin();
    let token = add_tenant(&mut admin, "acme");
    let mut acme = as_tenant(&place, token.clone());
    let secret = acme.create_volume("secret", UNLIMITED, UNLIMITED).expect("created");
    let mut other = place.tenant("default");
    let unknown = code(other.attach("nothing"));
    assert_eq!(unknown, ErrorCode::UnknownVolume);
    assert_eq!(code(other.attach("secret")), unknown);
    assert_eq!(code(other.attach_to(VolumeRef::Id(secret), None)), unknown);
    let foreign = |name: &str| Some(label(name));
    let by_tenant = code(other.attach_to(VolumeRef::Name(label("secret")), foreign("acme")));
    assert_eq!(by_tenant, code(other.attach_to(VolumeRef::Name(label("secret")), foreign("nobody"))));
    assert_eq!(code(other.admin(AdminRequest::TenantList { after: None })), ErrorCode::PermissionDenied);
    assert_eq!(code(other.admin(AdminRequest::SyncStore)), ErrorCode::PermissionDenied);
    let remove = AdminRequest::VolumeRemove { tenant: None, volume: VolumeRef::Id(secret) };
    assert_eq!(code(other.admin(remove)), unknown);
    assert_eq!(
        code(other.admin(AdminRequest::VolumeList { tenant: foreign("acme"), after: None })),
        by_tenant
    );
    let report = other.status();
    assert!(report.store.is_none() && report.volumes.is_empty());
    let report = admin.status();
    assert_eq!(report.volumes.len(), 1);
    assert!(report.store.is_some_and(|store| store.sessions == 3 && store.memory_bytes > 0));
    // An administrator names tenants.
    match admin.attach_to(VolumeRef::Name(label("secret")), foreign("acme")) {
        Ok(SessionResponse::Attached { subvolume, .. }) => assert_eq!(subvolume, secret),
        other => panic!("{other:?}"),
    }
    // A new token ends the old one.
    let mut admin = place.admin();
    admin.admin(AdminRequest::TokenReissue { name: label("acme") }).expect("issued");
    let mut late = Client::connect(&place.socket());
    late.hello();
    assert_eq!(code(late.log_in(token)), ErrorCode::NotAuthenticated);
    server.shutdown().expect("stopped");
}

#[test]
fn limits_are_exact_and_deleting_always_works() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.tenant("default");
    client.create_volume("small", 16 * 4096, 3).expect("created");
    client.attach("small").expect("attached");
    let (_, handle) = client.create("a");
    client.write(handle, 0, &vec![1; 16 * 4096]).expect("exactly the limit");
    assert_eq!(code(client.write(handle, 16 * 4096, b"x")), ErrorCode::QuotaBytes);
    client.write(handle, 0, b"overwriting needs nothing").expect("written");
    let (_, open) = client.create("b");
    client.create("c");
    assert_eq!(code(client.file(create_request("d"))), ErrorCode::QuotaInodes);
    match client.file(FileRequest::StatFs) {
        Ok(FileResponse::Statistics { statistics }) => {
            assert_eq!((statistics.total_bytes, statistics.used_bytes), (16 * 4096, 16 * 4096));
            assert_eq!(
                (statistics.available_bytes, statistics.total_inodes, statistics.used_inodes),
                (0, 3, 3)
            );
        }
        other => panic!("{other:?}"),
    }
    client.file(FileRequest::Unlink { parent: ROOT, name: name("b") }).expect("removed");
    assert_eq!(code(client.file(create_request("d"))), ErrorCode::QuotaInodes, "b is still open");
    client.file(FileRequest::Close { handle: HandleRef::Explicit(open), lineage: None }).expect("closed");
    client.create("d");
    let raise = AdminRequest::VolumeSet {
        tenant: None,
        volume: VolumeRef::Name(label("small")),
        max_bytes: Some(UNLIMITED),
        max_inodes: None,
    };
    client.admin(raise).expect("raised");
    client.write(handle, 16 * 4096, b"x").expect("written");
    let mut admin = place.admin();
    let set = AdminRequest::TenantSet { name: label("default"), max_bytes: Some(0), max_inodes: None };
    admin.admin(set).expect("set");
    assert_eq!(code(client.write(handle, 1 << 20, b"x")), ErrorCode::QuotaBytes);
    server.shutdown().expect("stopped");
    // Limits survive.
    let server = place.start();
    let mut client = place.volume("small");
    let (_, handle) = match client.file(FileRequest::Lookup { parent: ROOT, name: name("a") }) {
        Ok(FileResponse::Entry { attributes, .. }) => (attributes.inode, attributes.inode),
        other => panic!("{other:?}"),
    };
    let write = FileRequest::Write { file: FileRef::inode(handle), position: WritePosition::At(1 << 20) };
    assert_eq!(code(client.file_with(write, b"x")), ErrorCode::QuotaBytes);
    assert_eq!(code(client.file(create_request("e"))), ErrorCode::QuotaInodes);
    server.shutdown().expect("stopped");
}

#[test]
fn a_removed_volume_disappears_at_once_and_its_space_comes_back() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut admin = place.admin();
    admin.admin(AdminRequest::SyncStore).expect("committed");
    let free = admin.store_status().free_bytes;
    let mut client = place.volume("v");
    let mut parent = ROOT;
    for depth in 0..4 {
        let create = FileRequest::Create(Create {
            parent,
            name: name(&format!("d{depth}")),
            kind: NewKind::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            exclusive: true,
            open: None,
        });
        let Ok(FileResponse::Created { attributes, .. }) = client.file(create) else { panic!("not created") };
        parent = InodeRef::Explicit(attributes.inode);
        for number in 0..200 {
            let FileRequest::Create(mut create) = create_request(&format!("f{number}")) else {
                panic!("a create")
            };
            create.parent = parent;
            create.open = None;
            client.file(FileRequest::Create(create)).expect("created");
        }
    }
    let (_, handle) = client.create("large");
    for part in 0..20 {
        client.write(handle, part << 20, &vec![5; 1 << 20]).expect("written");
    }
    let value = subvol_protocol::name::XattrValue::new(vec![1; 60_000]).expect("a value");
    let xattr = subvol_protocol::name::XattrName::new("user.large").expect("a name");
    client
        .file(FileRequest::SetXattr { inode: ROOT, name: xattr, value, mode: XattrMode::Any })
        .expect("set");
    client.file(FileRequest::SyncVolume { lineage: None }).expect("committed");
    let remove = AdminRequest::VolumeRemove { tenant: None, volume: VolumeRef::Name(label("v")) };
    assert_eq!(code(client.admin(remove.clone())), ErrorCode::Busy);
    drop(client);
    let mut client = place.tenant("default");
    let begun = Instant::now();
    while let Err(error) = client.admin(remove.clone()) {
        assert_eq!(error.code, ErrorCode::Busy, "the other connection is ending");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(code(client.attach("v")), ErrorCode::UnknownVolume);
    assert_eq!(code(client.admin(remove)), ErrorCode::UnknownVolume);
    let subvolume = client.create_volume("v", UNLIMITED, UNLIMITED).expect("the name is free at once");
    // A crash in the middle: the rest is freed after the restart.
    place.kill(server);
    let server = place.start();
    let mut admin = place.admin();
    let begun = Instant::now();
    // The default tenant's new volume costs its root node.
    while server.store().roots().len() > 1 || admin.store_status().free_bytes + (1 << 16) < free {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", admin.status());
        std::thread::sleep(Duration::from_millis(20));
        admin.admin(AdminRequest::SyncStore).expect("committed");
    }
    assert!(server.store().root(subvolume).is_some());
    server.shutdown().expect("stopped");
}

#[test]
fn a_lost_catalog_is_rebuilt() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut admin = place.admin();
    let token = add_tenant(&mut admin, "acme");
    as_tenant(&place, token.clone()).create_volume("v", UNLIMITED, UNLIMITED).expect("created");
    server.shutdown().expect("stopped");
    std::fs::remove_dir_all(place.folder.path().join("catalog")).expect("removed");
    let server = place.start();
    let mut client = as_tenant(&place, token.clone());
    client.attach("v").expect("tokens come back from the export");
    server.shutdown().expect("stopped");
    std::fs::remove_dir_all(place.folder.path().join("catalog")).expect("removed");
    std::fs::write(place.folder.path().join("catalog.json"), "nonsense").expect("written");
    let server = place.start();
    let mut late = Client::connect(&place.socket());
    late.hello();
    assert_eq!(code(late.log_in(token)), ErrorCode::NotAuthenticated);
    place.tenant("acme").attach("v").expect("with the new token from the file");
    let remove = AdminRequest::TenantRemove { name: label("acme") };
    let mut admin = place.admin();
    assert_eq!(code(admin.admin(remove.clone())), ErrorCode::NotEmpty);
    let mut volume =
        AdminRequest::VolumeRemove { tenant: Some(label("acme")), volume: VolumeRef::Name(label("v")) };
    let begun = Instant::now();
    while admin.admin(volume.clone()).is_err_and(|error| error.code == ErrorCode::Busy) {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    admin.admin(remove).expect("removed");
    volume = AdminRequest::VolumeList { tenant: Some(label("acme")), after: None };
    assert_eq!(code(admin.admin(volume)), ErrorCode::UnknownTenant);
    server.shutdown().expect("stopped");
}

/// Volumes that nobody uses cost neither memory nor time to start.
#[test]
fn many_volumes_start_quickly_and_leave_memory_when_idle() {
    let place = Place::new(512 * MIB);
    let mut options = place.options();
    options.commit_interval = Duration::from_millis(50);
    options.unload_after = Duration::from_millis(100);
    options.orphan_grace = Duration::ZERO;
    let server = subvol_actors::Server::start(options).expect("started");
    let mut client = place.tenant("default");
    const COUNT: usize = 2000;
    for hundred in 0..COUNT / 100 {
        let ids: Vec<u64> = (0..100)
            .map(|number| {
                let create = AdminRequest::VolumeCreate {
                    tenant: None,
                    name: label(&format!("v{hundred}-{number}")),
                    max_bytes: UNLIMITED,
                    max_inodes: UNLIMITED,
                };
                client.send(&Request::Admin(create).into(), &[])
            })
            .collect();
        for id in ids {
            client.wait(id);
        }
    }
    let begun = Instant::now();
    while server.shared().registry.count() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} stay", server.shared().registry.count());
        std::thread::sleep(Duration::from_millis(20));
    }
    server.shutdown().expect("stopped");
    let begun = Instant::now();
    let server = place.start();
    let took = begun.elapsed();
    eprintln!("{COUNT} volumes: started in {took:?}");
    assert!(took < Duration::from_secs(2));
    assert_eq!(server.shared().registry.count(), 0, "nothing is opened before somebody attaches");
    let mut names = Vec::new();
    let mut after = None;
    loop {
        let list = AdminRequest::VolumeList { tenant: None, after: after.clone() };
        let Ok(AdminResponse::Volumes { volumes, more }) = place.tenant("default").admin(list) else {
            panic!("no list")
        };
        names.extend(volumes.into_iter().map(|volume| volume.name));
        after = names.last().cloned();
        if !more {
            break;
        }
    }
    assert!(names.len() == COUNT && names.is_sorted());
    server.shutdown().expect("stopped");
}

/// A volume takes space that nobody reserved: on a full store it is refused, and deleting still works.
#[test]
fn a_full_store_takes_no_more_volumes() {
    let place = Place::new(256 * MIB);
    let server = place.start();
    let mut client = place.volume("v");
    let (_, handle) = client.create("a");
    let mut at = 0;
    for size in [1 << 20, 4096] {
        let data = vec![1; size];
        while client.write(handle, at, &data).is_ok() {
            at += size as u64;
        }
    }
    assert_eq!(code(client.create_volume("w", UNLIMITED, UNLIMITED)), ErrorCode::NoSpace);
    client.file(FileRequest::Unlink { parent: ROOT, name: name("a") }).expect("removed");
    client.file(FileRequest::Close { handle: HandleRef::Explicit(handle), lineage: None }).expect("closed");
    client.file(FileRequest::SyncVolume { lineage: None }).expect("committed");
    client.create_volume("w", UNLIMITED, UNLIMITED).expect("created");
    server.shutdown().expect("stopped");
}
