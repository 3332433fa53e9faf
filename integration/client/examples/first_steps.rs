//! First steps with the client library. Start a server in this folder, then run this.

use subvol_client::{Client, ClientError, OpenOptions, RenameMode};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ClientError> {
    // SUBVOLD_SERVER and SUBVOLD_TOKEN_FILE, else ./subvold-data/subvold.sock and the token beside it.
    let client = Client::builder_from_environment()?.client_name("first-steps").connect().await?;
    let volume_name = std::env::args().nth(1).unwrap_or_else(|| "default".into());
    let volume = client.open_subvolume(&volume_name).await?;

    // A file is complete under its final name or not there at all: write beside it, make it durable, move it over.
    volume.mkdir_all("first-steps").await?;
    let options = OpenOptions::new().write(true).create(true).truncate(true);
    let file = volume.open("first-steps/greeting.new", options).await?;
    file.write_at(0, b"hello\n").await?;
    file.sync().await?;
    file.close().await?;
    volume.rename("first-steps/greeting.new", "first-steps/greeting", RenameMode::Replace).await?;
    volume.fsync("first-steps").await?;

    let mut entries = volume.read_dir("first-steps").await?;
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        println!("{:>8} {:?} {}", entry.inode, entry.kind, entry.name.as_bytes().escape_ascii());
    }
    print!("{}", String::from_utf8_lossy(&volume.read("first-steps/greeting").await?));

    let statistics = volume.statfs().await?;
    println!("{} bytes in {} inodes", statistics.used_bytes, statistics.used_inodes);
    println!("{} names removed", volume.remove_all("first-steps").await?);
    volume.close().await;
    client.close().await;
    Ok(())
}
