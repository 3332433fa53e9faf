//! `subvol write`: standard input into a file, written behind while more is read.
//!
//! Invariant: at most [`AHEAD`] pieces are in memory; nothing is claimed durable unless `--fsync` returned.

use std::io::Read;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::json;
use subvol_client::OpenOptions;

use crate::globals::Globals;
use crate::mode::parse_octal;
use crate::output;
use crate::target::Target;

/// Bytes of one write.
const PIECE: u64 = 512 * 1024;
/// Writes under way at a time.
const AHEAD: usize = 8;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path; replaced if it exists
    #[arg(value_parser = Target::parser(), value_name = "TARGET")]
    target: Target,
    /// Add to the end instead of replacing
    #[arg(short, long)]
    append: bool,
    /// Permission bits in octal of a file that is created
    #[arg(short, long, value_parser = parse_octal, default_value = "0644")]
    mode: u32,
    /// Make it durable before returning
    #[arg(long)]
    fsync: bool,
}

/// Reads a piece that is only short at the end of the input.
fn read_piece() -> std::io::Result<Bytes> {
    let mut piece = Vec::new();
    std::io::stdin().lock().take(PIECE).read_to_end(&mut piece)?;
    Ok(piece.into())
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    let target = &options.target;
    let context = || target.to_string();
    let volume = globals.volume(&target.volume).await?;
    let open = OpenOptions::new().write(true).create(true).mode(options.mode).truncate(!options.append);
    let file = volume.open(&target.path, open.append(options.append)).await.with_context(context)?;
    let mut written = 0;
    let mut writes = FuturesUnordered::new();
    loop {
        let piece = tokio::task::spawn_blocking(read_piece).await?.context("reading standard input")?;
        if piece.is_empty() {
            break;
        }
        let (offset, length) = (written, piece.len() as u64);
        written += length;
        if options.append {
            // One after another: each finds the end that the one before made.
            file.append(piece).await.with_context(context)?;
            continue;
        }
        writes.push(file.write_bytes_at(offset, piece));
        while writes.len() >= AHEAD
            && let Some(done) = writes.next().await
        {
            done.with_context(context)?;
        }
    }
    while let Some(done) = writes.next().await {
        done.with_context(context)?;
    }
    drop(writes);
    if options.fsync {
        file.sync().await.with_context(context)?;
    }
    file.close().await.with_context(context)?;
    if globals.json {
        output::json(&json!({"bytes": written, "durable": options.fsync}))?;
    }
    volume.close().await;
    Ok(())
}
