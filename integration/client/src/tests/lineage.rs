//! S6: "When a restarted server lost acknowledged state that was never made durable, the client's next fsync/close on it fails; it never
//! claims success."

use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{FileRef, WritePosition};

use super::fake::{Act, Fake};
use super::soon;
use crate::{File, NewKind, OpenOptions, Volume};

/// A server that restarts, and loses what was not synced, when it is asked for `StatFs`.
fn forgetful() -> Fake {
    Fake::start(|seen, world| {
        // Once only: after the restart it answers.
        if seen.name() == "StatFs" && world.epoch < 3 && world.count("StatFs") % 2 == 1 {
            world.restart();
            return Act::Drop;
        }
        Act::Normal
    })
}

async fn restart(volume: &Volume) {
    // The second time it is answered, with an error this fake gives.
    let error = soon(volume.statfs()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotSupported));
}

async fn open(volume: &Volume, name: &str) -> File {
    volume.open(name, OpenOptions::new().write(true)).await.unwrap()
}

#[tokio::test]
async fn a_lost_write_is_reported_once_by_the_handle_that_made_it() {
    let fake = forgetful();
    let volume = fake.volume().await;
    let (written, synced, untouched) =
        (open(&volume, "fa").await, open(&volume, "fb").await, open(&volume, "fc").await);
    written.write_at(0, b"x").await.unwrap();
    synced.write_at(0, b"x").await.unwrap();
    synced.sync().await.unwrap();
    restart(&volume).await;
    soon(untouched.sync()).await.unwrap();
    soon(synced.sync_data()).await.unwrap();
    let error = soon(written.sync()).await.unwrap_err();
    assert!(error.is_lost_changes(), "{error}");
    assert_eq!(error.errno(), 116);
    // Reported; what is written from now on counts.
    soon(written.sync()).await.unwrap();
    soon(written.write_at(0, b"y")).await.unwrap();
    soon(written.sync()).await.unwrap();
    soon(written.close()).await.unwrap();
    soon(synced.close()).await.unwrap();
}

#[tokio::test]
async fn a_write_after_the_restart_does_not_hide_the_loss() {
    let fake = forgetful();
    let volume = fake.volume().await;
    let file = open(&volume, "fa").await;
    file.write_at(0, b"x").await.unwrap();
    restart(&volume).await;
    soon(file.write_at(1, b"y")).await.unwrap();
    assert!(soon(file.sync()).await.unwrap_err().is_lost_changes());
    soon(file.sync()).await.unwrap();
}

#[tokio::test]
async fn close_reports_the_loss_too() {
    let fake = forgetful();
    let volume = fake.volume().await;
    let file = open(&volume, "fa").await;
    file.write_at(0, b"x").await.unwrap();
    restart(&volume).await;
    assert!(soon(file.close()).await.unwrap_err().is_lost_changes());
    assert_eq!(volume.inodes().channel.open_handles(), 0);
}

#[tokio::test]
async fn lost_names_fail_the_next_sync_of_anything_once() {
    let fake = forgetful();
    let volume = fake.volume().await;
    let file = open(&volume, "fa").await;
    volume.inodes().create(256, "n", NewKind::Directory, 0o755, (0, 0), true, None).await.unwrap();
    restart(&volume).await;
    assert!(soon(file.sync()).await.unwrap_err().is_lost_changes());
    soon(file.sync()).await.unwrap();
    // The sync of the whole volume keeps its own account.
    assert!(soon(volume.sync()).await.unwrap_err().is_lost_changes());
    soon(volume.sync()).await.unwrap();
}

/// With leases, a loss is told by the inodes that lost something and by no others.
#[tokio::test]
async fn lost_changes_by_number_are_told_by_their_inodes_only() {
    let fake = forgetful();
    let volume = fake.volume_of(fake.builder().leases(true)).await;
    let inodes = volume.inodes();
    let by_number = FileRef::inode;
    let made = inodes.create(256, "n", NewKind::Regular, 0o644, (0, 0), true, None).await.unwrap();
    for inode in [300, 301, 302] {
        inodes.write(by_number(inode), WritePosition::At(0), "x".into()).await.unwrap();
    }
    inodes.fsync(by_number(301), false).await.unwrap();
    restart(&volume).await;
    soon(inodes.fsync(by_number(301), false)).await.unwrap();
    soon(inodes.fsync(by_number(999), false)).await.unwrap();
    soon(inodes.write(by_number(300), WritePosition::At(0), "y".into())).await.unwrap();
    for inode in [256, made.attributes.inode, 300, 302] {
        let error = soon(inodes.fsync(by_number(inode), false)).await.unwrap_err();
        assert!(error.is_lost_changes(), "{inode}: {error}");
        soon(inodes.fsync(by_number(inode), false)).await.unwrap();
    }
    // The sync of the whole volume keeps its own account.
    assert!(soon(volume.sync()).await.unwrap_err().is_lost_changes());
    soon(volume.sync()).await.unwrap();
}

/// What was written by number is the history of a handle of the same file, too.
#[tokio::test]
async fn a_handle_answers_for_what_was_done_to_its_inode_by_number() {
    let fake = forgetful();
    let volume = fake.volume_of(fake.builder().leases(true)).await;
    let file = open(&volume, "fa").await;
    let number = FileRef::inode(file.inode());
    volume.inodes().write(number, WritePosition::At(0), "x".into()).await.unwrap();
    restart(&volume).await;
    assert!(soon(file.sync()).await.unwrap_err().is_lost_changes());
    soon(file.sync()).await.unwrap();
    soon(volume.inodes().fsync(number, false)).await.unwrap();
}

#[tokio::test]
async fn two_restarts_are_both_checked() {
    let fake = forgetful();
    let volume = fake.volume().await;
    let file = open(&volume, "fa").await;
    file.write_at(0, b"x").await.unwrap();
    restart(&volume).await;
    // The first life's write survived after all, the second life's will not.
    fake.world.lock().lost_before = 0;
    soon(file.write_at(0, b"y")).await.unwrap();
    soon(file.sync()).await.unwrap();
    soon(file.write_at(0, b"z")).await.unwrap();
    restart(&volume).await;
    assert!(soon(file.sync()).await.unwrap_err().is_lost_changes());
    soon(file.sync()).await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_gone_fails_its_requests_and_its_close() {
    let fake = forgetful();
    let volume = fake.volume().await;
    let (dirty, clean) = (open(&volume, "fa").await, open(&volume, "fb").await);
    dirty.write_at(0, b"x").await.unwrap();
    fake.world.lock().stale_inodes = vec![dirty.inode(), clean.inode()];
    restart(&volume).await;
    let error = soon(dirty.write_at(0, b"x")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::StaleInode));
    assert!(soon(dirty.close()).await.unwrap_err().is_lost_changes());
    soon(clean.close()).await.unwrap();
    assert_eq!(volume.inodes().channel.open_handles(), 0);
}
