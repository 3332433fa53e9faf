//! `subvol tenant add|list|remove|set`.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use subvol_client::{Label, Limits, NewTenant};

use crate::failure::usage;
use crate::globals::Globals;
use crate::{output, size};

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Add a tenant and print its token, which is shown only now
    Add(AddOptions),
    /// List tenants with usage and limits
    List,
    /// Remove a tenant that has no volumes
    Remove {
        /// Its name
        name: Label,
    },
    /// Change a tenant's limits, over all its volumes; or give it a new token
    Set(SetOptions),
}

#[derive(Args, Debug)]
pub struct AddOptions {
    /// Its name: letters, digits, `-`, `_`, `.`; at most 63
    name: Label,
    /// Write the token into this new file, readable by its owner only, instead of printing it
    #[arg(long, value_name = "FILE")]
    token_out: Option<PathBuf>,
    /// Limit in bytes, such as 10G
    #[arg(long, value_parser = size::parse_limit, value_name = "SIZE")]
    max_bytes: Option<u64>,
    /// Limit in inodes, such as 1M
    #[arg(long, value_parser = size::parse_limit, value_name = "COUNT")]
    max_inodes: Option<u64>,
}

#[derive(Args, Debug)]
pub struct SetOptions {
    /// Its name
    name: Label,
    /// Limit in bytes, such as 10G; none removes it
    #[arg(long, value_parser = size::parse_limit, value_name = "SIZE|none")]
    max_bytes: Option<u64>,
    /// Limit in inodes, such as 1M; none removes it
    #[arg(long, value_parser = size::parse_limit, value_name = "COUNT|none")]
    max_inodes: Option<u64>,
    /// Make a new token and print it; the old one stops working for new connections
    #[arg(long)]
    new_token: bool,
    /// Write the new token into this new file instead of printing it
    #[arg(long, value_name = "FILE", requires = "new_token")]
    token_out: Option<PathBuf>,
}

pub async fn run(globals: &Globals, verb: Verb) -> anyhow::Result<()> {
    if let Verb::Set(SetOptions { max_bytes: None, max_inodes: None, new_token: false, .. }) = &verb {
        return Err(usage("nothing to set: give --max-bytes, --max-inodes or --new-token"));
    }
    let client = globals.client().await?;
    let admin = client.admin();
    match verb {
        Verb::Add(options) => {
            // Before the token exists: a path that cannot be written must not cost the only copy of it.
            let mut file = options.token_out.as_deref().map(create_secret_file).transpose()?;
            let name = options.name.as_str();
            let made = admin.tenant_add(name).await.with_context(|| format!("adding tenant {name}"));
            let made = remove_on_error(made, options.token_out.as_deref())?;
            tell_token(globals, name, &made, options.token_out.as_deref(), file.as_mut())?;
            let limits = Limits { max_bytes: options.max_bytes, max_inodes: options.max_inodes };
            if limits != Limits::default() {
                admin.tenant_set(name, limits).await.with_context(|| {
                    format!(
                        "the tenant was added, but without its limits; repeat with `subvol tenant set {name}`"
                    )
                })?;
            }
        }
        Verb::List => list(globals, &admin.tenant_list().await?)?,
        Verb::Remove { name } => {
            admin.tenant_remove(name.as_str()).await.with_context(|| format!("removing tenant {name}"))?;
            done(globals, "removed", name.as_str())?;
        }
        Verb::Set(options) => {
            let name = options.name.as_str();
            let limits = Limits { max_bytes: options.max_bytes, max_inodes: options.max_inodes };
            if limits != Limits::default() {
                admin.tenant_set(name, limits).await.with_context(|| format!("changing tenant {name}"))?;
            }
            if options.new_token {
                let mut file = options.token_out.as_deref().map(create_secret_file).transpose()?;
                let made = admin.token_reissue(name).await.with_context(|| format!("tenant {name}"));
                let made = remove_on_error(made, options.token_out.as_deref())?;
                tell_token(globals, name, &made, options.token_out.as_deref(), file.as_mut())?;
            } else {
                done(globals, "changed", name)?;
            }
        }
    }
    client.close().await;
    Ok(())
}

fn create_secret_file(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("--token-out {}: the file must not exist yet", path.display()))
}

fn remove_on_error<T>(result: anyhow::Result<T>, path: Option<&Path>) -> anyhow::Result<T> {
    if let (Err(_), Some(path)) = (&result, path) {
        // It is empty and was made by us; the first error is the one to tell.
        let _ = std::fs::remove_file(path);
    }
    result
}

fn tell_token(
    globals: &Globals,
    name: &str,
    made: &NewTenant,
    path: Option<&Path>,
    file: Option<&mut std::fs::File>,
) -> anyhow::Result<()> {
    let secret = made.token.expose();
    if let (Some(path), Some(file)) = (path, file) {
        file.write_all(secret)
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.sync_all())
            .with_context(|| {
                format!(
                    "writing the token to {}; get a new one with `subvol tenant set {name} --new-token`",
                    path.display()
                )
            })?;
        if globals.json {
            output::json(
                &json!({"tenant": name, "number": made.tenant, "token_file": path.display().to_string()}),
            )?;
        } else {
            output::line(format!("tenant {name}: token written to {}", path.display()))?;
        }
        return Ok(());
    }
    let secret =
        std::str::from_utf8(secret).context("the server's token is not text; use --token-out FILE")?;
    if globals.json {
        output::json(&json!({"tenant": name, "number": made.tenant, "token": secret}))?;
    } else {
        // The token alone on standard output, so that a script can take it.
        eprintln!("tenant {name}: this token is shown only now");
        output::line(secret)?;
    }
    Ok(())
}

fn done(globals: &Globals, what: &str, name: &str) -> std::io::Result<()> {
    if globals.json {
        output::json(&json!({"tenant": name, what: true}))
    } else {
        output::line(format!("tenant {name}: {what}"))
    }
}

fn list(globals: &Globals, tenants: &[subvol_client::TenantSummary]) -> std::io::Result<()> {
    if globals.json {
        let tenants: Vec<_> = tenants
            .iter()
            .map(|tenant| {
                json!({
                    "tenant": tenant.name.as_str(),
                    "number": tenant.tenant,
                    "volumes": tenant.volumes,
                    "used_bytes": tenant.used_bytes,
                    "max_bytes": size::json_limit(tenant.max_bytes),
                    "used_inodes": tenant.used_inodes,
                    "max_inodes": size::json_limit(tenant.max_inodes),
                })
            })
            .collect();
        return output::json(&json!({ "tenants": tenants }));
    }
    let rows: Vec<Vec<String>> = tenants
        .iter()
        .map(|tenant| {
            vec![
                tenant.name.to_string(),
                tenant.volumes.to_string(),
                size::bytes(tenant.used_bytes),
                size::limit_bytes(tenant.max_bytes),
                tenant.used_inodes.to_string(),
                size::limit_count(tenant.max_inodes),
            ]
        })
        .collect();
    output::line(output::table(&["TENANT", "VOLUMES", "USED", "LIMIT", "INODES", "LIMIT"], &rows, 1))
}
