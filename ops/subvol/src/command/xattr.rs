//! `subvol xattr get|set|list|remove`. Names are full names, such as `user.comment`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use subvol_client::XattrMode;

use crate::failure::usage;
use crate::globals::Globals;
use crate::target::Target;
use crate::{output, show};

/// Bytes of a value, as the protocol allows; one more is read to notice a longer one.
const MAX_VALUE: u64 = subvol_client::protocol::limits::MAX_XATTR_VALUE as u64;

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Print a value, exactly
    Get(NameOptions),
    /// Set a value
    Set(SetOptions),
    /// List names
    List {
        /// VOLUME:/path
        #[arg(value_parser = Target::parser())]
        target: Target,
    },
    /// Remove an attribute
    Remove(NameOptions),
}

#[derive(Args, Debug)]
pub struct NameOptions {
    /// VOLUME:/path
    #[arg(value_parser = Target::parser())]
    target: Target,
    /// Full name, such as user.comment
    name: OsString,
}

#[derive(Args, Debug)]
pub struct SetOptions {
    /// VOLUME:/path
    #[arg(value_parser = Target::parser())]
    target: Target,
    /// Full name, such as user.comment
    name: OsString,
    /// The value; without it, standard input
    #[arg(allow_hyphen_values = true)]
    value: Option<OsString>,
    /// Fail if there is one
    #[arg(long, conflicts_with = "replace")]
    create: bool,
    /// Fail if there is none
    #[arg(long)]
    replace: bool,
}

pub async fn run(globals: &Globals, verb: Verb) -> anyhow::Result<()> {
    let (Verb::Get(NameOptions { target, .. })
    | Verb::Set(SetOptions { target, .. })
    | Verb::List { target }
    | Verb::Remove(NameOptions { target, .. })) = &verb;
    let target = target.clone();
    let volume = globals.volume(&target.volume).await?;
    let context = || target.to_string();
    match verb {
        Verb::Get(NameOptions { name, .. }) => {
            let value = volume.get_xattr(&target.path, name.as_bytes()).await.with_context(context)?;
            if globals.json {
                let mut fields = Map::new();
                show::insert_bytes(&mut fields, "name", name.as_bytes());
                show::insert_bytes(&mut fields, "value", &value);
                output::json(&Value::Object(fields))?;
            } else {
                let mut out = output::stdout();
                out.write_all(&value)?;
                out.flush()?;
            }
        }
        Verb::Set(SetOptions { name, value, create, replace, .. }) => {
            let value = match value {
                Some(value) => value.into_vec(),
                None => tokio::task::spawn_blocking(read_value).await??,
            };
            let mode = match (create, replace) {
                (true, _) => XattrMode::Create,
                (_, true) => XattrMode::Replace,
                _ => XattrMode::Any,
            };
            volume.set_xattr(&target.path, name.as_bytes(), value, mode).await.with_context(context)?;
        }
        Verb::List { .. } => {
            let names = volume.list_xattrs(&target.path).await.with_context(context)?;
            if globals.json {
                let names: Vec<Value> = names
                    .iter()
                    .map(|name| {
                        let mut fields = Map::new();
                        show::insert_bytes(&mut fields, "name", name);
                        Value::Object(fields)
                    })
                    .collect();
                output::json(&json!({ "xattrs": names }))?;
            } else {
                for name in names {
                    output::line(show::escaped(&name))?;
                }
            }
        }
        Verb::Remove(NameOptions { name, .. }) => {
            volume.remove_xattr(&target.path, name.as_bytes()).await.with_context(context)?;
        }
    }
    volume.close().await;
    Ok(())
}

fn read_value() -> anyhow::Result<Vec<u8>> {
    let mut value = Vec::new();
    std::io::stdin().lock().take(MAX_VALUE + 1).read_to_end(&mut value).context("reading standard input")?;
    if value.len() as u64 > MAX_VALUE {
        return Err(usage(format!("a value has at most {MAX_VALUE} bytes")));
    }
    Ok(value)
}
