//! Paths, directories and trees.

use subvol_protocol::attributes::{DirectoryEntry, FileKind};
use subvol_protocol::error::ErrorCode;
use subvol_protocol::name::Name;

use super::fake::{Act, Fake};
use super::soon;
use crate::{ClientError, OpenOptions};

#[tokio::test]
async fn a_path_costs_one_trip() {
    let fake = Fake::normal();
    let volume = fake.volume().await;
    assert_eq!(volume.stat("/a/b//./c/f").await.unwrap().inode, 1000 + u64::from(b'f'));
    assert_eq!(fake.world.lock().names(), ["ResolvePath"]);
    volume.stat(["d"; 65].join("/")).await.unwrap();
    assert_eq!(fake.world.lock().count("ResolvePath"), 3);
}

#[tokio::test]
async fn links_are_followed_where_they_should_be() {
    let fake = Fake::normal();
    let volume = fake.volume().await;
    assert_eq!(volume.lookup("a/l").await.unwrap().kind(), Some(FileKind::Symlink));
    assert_eq!(volume.stat("a/l").await.unwrap().kind(), Some(FileKind::Regular));
    // The link's target is a file, so nothing can be below it.
    let error = volume.stat("a/l/x").await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotDirectory));
    let error = volume.stat("a/missing/x").await.unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("missing"), "{error}");
    assert!(!volume.exists("missing").await.unwrap());
    assert_eq!(volume.stat("f/").await.unwrap_err().code(), Some(ErrorCode::NotDirectory));
}

#[tokio::test]
async fn a_circle_of_links_ends() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "ReadLink" => Act::Say(subvol_protocol::response::Response::File(
            subvol_protocol::response::FileResponse::Link {
                target: subvol_protocol::name::LinkTarget::new("/l").unwrap(),
            },
        )),
        _ => Act::Normal,
    });
    let volume = fake.volume().await;
    let error = soon(volume.stat("l")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::LoopDetected));
}

#[tokio::test]
async fn impossible_names_are_refused_here() {
    let fake = Fake::normal();
    let volume = fake.volume().await;
    for path in ["", "/", "..", "a/..", "a\0b"] {
        assert!(matches!(volume.mkdir(path).await, Err(ClientError::Name { .. })), "{path:?}");
    }
    let long = volume.stat("x".repeat(256)).await.unwrap_err();
    assert_eq!(long.errno(), 36);
    assert!(fake.world.lock().names().is_empty());
}

#[tokio::test]
async fn creating_in_the_root_costs_one_trip() {
    let fake = Fake::normal();
    let volume = fake.volume().await;
    let file = volume.open("x", OpenOptions::new().create_new(true).write(true)).await.unwrap();
    drop(file);
    volume.mkdir("y").await.unwrap();
    assert_eq!(fake.world.lock().count("ResolvePath"), 0);
    assert_eq!(fake.world.lock().count("Create"), 2);
}

fn entry(number: u64, kind: FileKind) -> DirectoryEntry {
    let name = Name::new(format!("e{number}")).unwrap();
    DirectoryEntry { cookie: 300 + number, inode: 1000 + number, kind, name, attributes: None }
}

#[tokio::test]
async fn a_long_directory_is_read_page_by_page() {
    let fake = Fake::normal();
    fake.world.lock().entries = (0..2000).map(|number| entry(number, FileKind::Regular)).collect();
    let volume = fake.volume().await;
    let entries = soon(volume.list("/")).await.unwrap();
    assert_eq!(entries.len(), 2000);
    assert!(entries.is_sorted_by_key(|entry| entry.cookie));
    assert_eq!(fake.world.lock().count("ReadDirectory"), 4);
}

#[tokio::test]
async fn a_tree_is_removed_whatever_its_depth() {
    // Each directory holds one directory and one file until the depth is reached; what is removed is gone.
    const DEPTH: u64 = 3000;
    let mut removed = std::collections::HashSet::new();
    let fake = Fake::start(move |seen, world| {
        use subvol_protocol::request::{FileRequest, InodeRef};
        match seen.file() {
            Some(FileRequest::ReadDirectory { inode: InodeRef::Explicit(inode), .. }) => {
                let depth = inode.saturating_sub(1_000_000);
                let number = if *inode >= 1_000_000 { depth + 1 } else { 1 };
                let mut entries = Vec::new();
                if !removed.contains(&(*inode, b"file".to_vec())) {
                    let mut file = entry(1, FileKind::Regular);
                    file.name = Name::new("file").unwrap();
                    entries.push(file);
                }
                if number <= DEPTH && !removed.contains(&(*inode, b"sub".to_vec())) {
                    let mut sub = entry(2, FileKind::Directory);
                    (sub.inode, sub.name) = (1_000_000 + number, Name::new("sub").unwrap());
                    entries.push(sub);
                }
                world.entries = entries;
            }
            Some(
                FileRequest::Unlink { parent: InodeRef::Explicit(parent), name }
                | FileRequest::RemoveDirectory { parent: InodeRef::Explicit(parent), name },
            ) => {
                removed.insert((*parent, name.as_bytes().to_vec()));
            }
            _ => {}
        }
        Act::Normal
    });
    let volume = fake.volume().await;
    // Every directory has a file and itself, the top one included.
    assert_eq!(soon(volume.remove_all("d")).await.unwrap(), 2 * (DEPTH + 1));
}
