//! `subvol cat`: files to standard output, read ahead.

use std::io::Write;

use bytes::Bytes;
use clap::Args;
use futures_util::stream::{StreamExt, iter};
use subvol_client::{File, OpenOptions};

use super::volumes::for_each;
use crate::globals::Globals;
use crate::output;
use crate::target::Target;

/// Bytes of one read.
const PIECE: u64 = 256 * 1024;
/// Reads under way at a time.
const AHEAD: usize = 8;

#[derive(Args, Debug)]
pub struct Options {
    /// VOLUME:/path
    #[arg(required = true, value_parser = Target::parser(), value_name = "TARGET")]
    targets: Vec<Target>,
}

pub async fn run(globals: &Globals, options: Options) -> anyhow::Result<()> {
    for_each(globals, options.targets, |volume, target| async move {
        let file = volume.open(&target.path, OpenOptions::new().read(true)).await?;
        copy_out(&file).await?;
        file.close().await?;
        Ok(())
    })
    .await
}

async fn copy_out(file: &File) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let size = file.attributes().await?.size;
    let mut pieces = iter(0..size.div_ceil(PIECE))
        .map(|index| file.read_at(index * PIECE, PIECE as usize))
        .buffered(AHEAD);
    let mut end = 0;
    while let Some(piece) = pieces.next().await {
        let piece: Bytes = piece?;
        out.write_all(&piece)?;
        end += piece.len() as u64;
        if (piece.len() as u64) < PIECE {
            break;
        }
    }
    // What was appended meanwhile belongs to the file as well.
    if end >= size {
        loop {
            let piece = file.read_at(end, PIECE as usize).await?;
            if piece.is_empty() {
                break;
            }
            out.write_all(&piece)?;
            end += piece.len() as u64;
        }
    }
    out.flush()?;
    Ok(())
}
