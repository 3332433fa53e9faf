//! Promise S6 on the real server: a request that was executed and whose reply was lost takes effect once, over lost connections and over
//! kills; a client that lost acknowledged changes is told, once, and never told success.

use std::time::Duration;

use bytes::Bytes;
use subvol_client::protocol::request::{FileRef, WritePosition};
use subvol_client::{
    Address, ClientBuilder, ClientError, Endpoint, OpenOptions, RenameMode, Retries, Volume,
};
use subvol_tests::proxy::Proxy;
use subvol_tests::{Server, Setup, eventually, soon};

/// A volume over a proxy, by a client that reconnects for as long as a test may take.
async fn through_proxy(server: &Server, name: &str) -> (Proxy, Volume) {
    drop(server.volume(name).await);
    let proxy = Proxy::start(&server.beside().join("proxy.sock"), &server.socket());
    let path = proxy.path().to_str().expect("UTF-8").into();
    let address = Address { endpoint: Endpoint::Unix { path }, tenant: None, volume: None };
    let retries = Retries { attempts: 2000, longest_wait: Duration::from_millis(50), ..Retries::default() };
    let builder = ClientBuilder::new(address).token(server.token()).owner(0, 0).retries(retries);
    let client = soon("connecting", builder.connect()).await.expect("a connection");
    let volume = soon("opening", client.open_subvolume(name)).await.expect("the volume");
    (proxy, volume)
}

/// What happens between the execution of a request and its repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    /// Only the connection breaks.
    LostConnection,
    /// The server is killed after the operation became durable.
    DurableThenKill,
    /// The server is killed and may have forgotten the operation.
    Kill,
}

/// Sends a change whose reply is lost, lets `between` happen, and returns the answer to the repetition. With `meddle`, another client
/// changes the names in between, if the operation cannot have been forgotten.
async fn lose_reply<T: Send + 'static>(
    server: &mut Server,
    proxy: &Proxy,
    name: &str,
    between: Between,
    request: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    meddle: impl AsyncFnOnce(Volume),
) -> Result<T, ClientError> {
    let before = proxy.swallowed();
    proxy.swallow_replies(true);
    let asked = tokio::spawn(request);
    eventually("the server replies and the reply is lost", async || proxy.swallowed() > before).await;
    // Nobody comes back before the stage is set.
    proxy.refuse(true);
    proxy.cut();
    if between == Between::DurableThenKill {
        let volume = server.volume(name).await;
        soon("another client's fsync", volume.fsync("")).await.expect("durable");
        volume.close().await;
    }
    if between != Between::LostConnection {
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
        });
    }
    if between != Between::Kill {
        let volume = server.volume(name).await;
        meddle(volume).await;
    }
    proxy.swallow_replies(false);
    proxy.refuse(false);
    soon("the repeated request", asked).await.expect("no panic")
}

async fn nothing(volume: Volume) {
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_whose_reply_was_lost_is_done_once() {
    let mut server = Server::start(Setup::default());
    for (number, between) in
        [Between::LostConnection, Between::DurableThenKill, Between::Kill].into_iter().enumerate()
    {
        let name = format!("rename-{number}");
        let (proxy, volume) = through_proxy(&server, &name).await;
        soon("writing", volume.write("a", "the old one")).await.expect("a file");
        soon("fsync", volume.fsync("a")).await.expect("durable");
        let inode = soon("looking", volume.lookup("a")).await.expect("the file").inode;
        let root = volume.inodes().root();
        let worker = volume.clone();
        let rename = async move { worker.inodes().rename(root, "a", root, "b", RenameMode::Replace).await };
        // Done again, the rename would now put the new `a` over the old one.
        let new_file = async |other: Volume| {
            soon("another client's write", other.write("a", "the new one")).await.expect("a file");
            other.close().await;
        };
        let renamed = lose_reply(&mut server, &proxy, &name, between, rename, new_file).await;
        let (moved, replaced) = renamed.unwrap_or_else(|error| panic!("{between:?}: {error}"));
        assert_eq!((moved, replaced), (inode, None), "{between:?}");
        let found = soon("looking", volume.lookup("b")).await.expect("the renamed file");
        assert_eq!(found.inode, inode, "{between:?}: the rename was done twice");
        let text = soon("reading", volume.read("b")).await.expect("the renamed file");
        assert_eq!(&text[..], b"the old one", "{between:?}");
        let again = soon("looking", volume.exists("a")).await.expect("an answer");
        assert_eq!(again, between != Between::Kill, "{between:?}: the new file under the old name");
        volume.close().await;
    }
    assert!(server.terminate().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_and_creations_whose_reply_was_lost_are_done_once() {
    let mut server = Server::start(Setup::default());
    for (number, between) in
        [Between::LostConnection, Between::DurableThenKill, Between::Kill].into_iter().enumerate()
    {
        let name = format!("append-{number}");
        let (proxy, volume) = through_proxy(&server, &name).await;
        soon("writing", volume.write("log", "first ")).await.expect("a file");
        soon("fsync", volume.fsync("log")).await.expect("durable");
        let file = FileRef::inode(soon("looking", volume.lookup("log")).await.expect("the file").inode);
        let worker = volume.clone();
        let append = async move {
            worker.inodes().write(file, WritePosition::Append, Bytes::from_static(b"second ")).await
        };
        let appended = lose_reply(&mut server, &proxy, &name, between, append, nothing).await;
        let (position, size, _) = appended.unwrap_or_else(|error| panic!("{between:?}: {error}"));
        assert_eq!((position, size), (6, 13), "{between:?}");
        let size = soon("looking", volume.lookup("log")).await.expect("the file").size;
        assert_eq!(size, 13, "{between:?}: the append was done {} times", (size - 6) / 7);
        let text = soon("reading", volume.read("log")).await.expect("the file");
        // The kill may take the bytes of a write that only the names' fsync followed, never its size.
        if between != Between::DurableThenKill {
            assert_eq!(&text[..], b"first second ", "{between:?}");
        }

        let worker = volume.clone();
        let root = worker.inodes().root();
        let make = async move {
            let kind = subvol_client::NewKind::Directory;
            worker.inodes().create(root, "new", kind, 0o755, (0, 0), true, None).await
        };
        let made = lose_reply(&mut server, &proxy, &name, between, make, nothing).await;
        let made = made.unwrap_or_else(|error| panic!("{between:?}: the directory met itself: {error}"));
        assert!(made.created, "{between:?}");
        assert_eq!(soon("looking", volume.lookup("new")).await.expect("it").inode, made.attributes.inode);
        volume.close().await;
    }
    assert!(server.terminate().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_whose_reply_was_lost_does_not_meet_the_next_file() {
    let mut server = Server::start(Setup::default());
    for (number, between) in [Between::LostConnection, Between::DurableThenKill].into_iter().enumerate() {
        let name = format!("removal-{number}");
        let (proxy, volume) = through_proxy(&server, &name).await;
        soon("writing", volume.write("f", "old")).await.expect("a file");
        soon("fsync", volume.fsync("f")).await.expect("durable");
        let root = volume.inodes().root();
        let worker = volume.clone();
        let remove = async move { worker.inodes().unlink(root, "f").await };
        let new_file = async |other: Volume| {
            soon("another client's write", other.write("f", "new")).await.expect("a file");
            other.close().await;
        };
        let removed = lose_reply(&mut server, &proxy, &name, between, remove, new_file).await;
        removed.unwrap_or_else(|error| panic!("{between:?}: {error}"));
        let text = soon("reading", volume.read("f")).await.unwrap_or_else(|error| {
            panic!("{between:?}: the removal took the next file of that name: {error}")
        });
        assert_eq!(&text[..], b"new");
        volume.close().await;
    }
    assert!(server.terminate().success());
}

/// Rounds of a test that needs a loss; a kill may also lose nothing.
const ROUNDS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_writes_are_told_once_to_every_handle_and_never_as_success() {
    let mut server = Server::start(Setup::default());
    let volume = server.volume("lost").await;
    let mut losses = 0;
    for round in 0..ROUNDS {
        let path = format!("f{round}");
        let options = OpenOptions::new().read(true).write(true).create(true);
        let first = soon("opening", volume.open(&path, options)).await.expect("a file");
        let second = soon("opening", volume.open(&path, options)).await.expect("a file");
        let idle = soon("opening", volume.open(&path, options)).await.expect("a file");
        soon("writing", first.write_at(0, b"durable")).await.expect("a write");
        soon("fsync", first.sync()).await.expect("durable");
        soon("writing", first.write_at(0, b"LOST-01")).await.expect("a write");
        soon("writing", second.write_at(3, b"LOST-02")).await.expect("a write");
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
        });
        let there = soon("reading", volume.read(&path)).await.expect("the file");
        let lost = &there[..] == b"durable";
        losses += usize::from(lost);
        for (file, what) in [(&first, "the first handle"), (&second, "the second handle")] {
            let told = soon("fsync", file.sync()).await;
            match (&told, lost) {
                (Err(error), true) => assert!(error.is_lost_changes(), "{what}: {error}"),
                (Ok(()), true) => panic!("{what}: an fsync claimed success for lost data"),
                (Ok(()), false) => {}
                (Err(error), false) => panic!("{what}: nothing was lost, yet: {error}"),
            }
            let again = soon("fsync", file.sync()).await;
            again.unwrap_or_else(|error| panic!("{what}: told twice: {error}"));
        }
        soon("closing", first.close()).await.expect("told already");
        soon("closing", second.close()).await.expect("told already");
        soon("closing", idle.close()).await.expect("it wrote nothing");
        let after = soon("reading", volume.read(&path)).await.expect("the file");
        assert_eq!(after, there, "an fsync changes nothing");
    }
    assert!(losses > 0, "no kill lost anything: this run proves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_changes_are_told_by_close_and_by_the_fsync_of_a_directory() {
    let mut server = Server::start(Setup::default());
    let volume = server.volume("lost").await;
    let mut losses = 0;
    for round in 0..ROUNDS {
        let (path, directory) = (format!("f{round}"), format!("d{round}"));
        soon("writing", volume.write(&path, "durable")).await.expect("a file");
        soon("sync", volume.sync()).await.expect("durable");
        let file =
            soon("opening", volume.open(&path, OpenOptions::new().write(true))).await.expect("the file");
        soon("writing", file.write_at(0, b"LOST-01")).await.expect("a write");
        soon("mkdir", volume.mkdir(&directory)).await.expect("a directory");
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
        });
        let lost_data = &soon("reading", volume.read(&path)).await.expect("the file")[..] == b"durable";
        let lost_name = !soon("looking", volume.exists(&directory)).await.expect("an answer");
        losses += usize::from(lost_data && lost_name);
        let closed = soon("closing", file.close()).await;
        assert_eq!(closed.is_err(), lost_data, "{closed:?}");
        assert!(closed.err().is_none_or(|error| error.is_lost_changes()));
        let told = soon("fsync", volume.fsync("")).await;
        assert_eq!(told.is_err(), lost_name, "{told:?}");
        assert!(told.err().is_none_or(|error| error.is_lost_changes()));
        soon("fsync", volume.fsync("")).await.expect("told once");
        // A sync of the whole volume answers for everything, so it tells by itself, and once as well.
        let told = soon("sync", volume.sync()).await;
        assert_eq!(told.is_err(), lost_data || lost_name, "{told:?}");
        assert!(told.err().is_none_or(|error| error.is_lost_changes()));
        soon("sync", volume.sync()).await.expect("told once");
    }
    assert!(losses > 0, "no kill lost anything: this run proves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_made_durable_is_not_told_as_lost() {
    let mut server = Server::start(Setup::default());
    let volume = server.volume("kept").await;
    let options = OpenOptions::new().read(true).write(true).create(true);
    for whole_volume in [false, true] {
        let path = format!("f-{whole_volume}");
        let file = soon("opening", volume.open(&path, options)).await.expect("a file");
        soon("writing", file.write_at(0, b"kept")).await.expect("a write");
        let other = server.volume("kept").await;
        if whole_volume {
            soon("sync", other.sync()).await.expect("durable");
        } else {
            soon("fsync", other.fsync(&path)).await.expect("durable");
        }
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
        });
        let told = soon("fsync", file.sync()).await;
        match told {
            Ok(()) => {}
            // The log does not say whose fsync put data into it: the server may warn this client, once. It must not after a commit.
            Err(error) if error.is_lost_changes() && !whole_volume => {}
            Err(error) => panic!("nothing was lost (whole volume: {whole_volume}), yet: {error}"),
        }
        soon("fsync", file.sync()).await.expect("warned once");
        assert_eq!(&soon("reading", volume.read(&path)).await.expect("the file")[..], b"kept");
        soon("closing", file.close()).await.expect("nothing was lost");
    }
}
