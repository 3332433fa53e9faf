//! `cargo xtask demo`: the server's main job on an embedded default store, without any configuration.

use crate::{cargo, run as run_step};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take to answer: creating the store writes the log ring once.
const START_LIMIT: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct Options {
    /// Stop the server at the end instead of leaving it in the foreground
    #[arg(long)]
    once: bool,
    /// Data directory
    #[arg(long, default_value = "subvold-data")]
    data: PathBuf,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    run_step(&mut cargo(root, &["build", "--release", "--locked", "-p", "subvold", "-p", "subvol"]))?;
    show(&root.join("target/release"), options)
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM, so that the server commits and closes.
        let stop = Command::new("kill").arg(self.0.id().to_string()).status();
        if stop.is_err() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

fn show(bin: &Path, options: &Options) -> Result<()> {
    let child = Command::new(bin.join("subvold"))
        .args(["--data".as_ref(), options.data.as_os_str()])
        .stdout(Stdio::inherit())
        .spawn()
        .context("cannot start the server")?;
    let mut server = Server(child);
    let tool = Tool { bin, socket: options.data.join("subvold.sock") };
    wait_for(&mut server, &tool)?;

    if !tool.output(&["volume", "list"], "")?.contains("demo") {
        tool.show(&["volume", "create", "demo"], "")?;
    }
    tool.show(&["write", "demo:/hello.txt"], "Hello from a subvolume of my own.\n")?;
    tool.show(&["fsync", "demo:/hello.txt"], "")?;
    tool.show(&["cat", "demo:/hello.txt"], "")?;
    tool.show(&["ls", "-l", "demo:/"], "")?;
    tool.show(&["df", "demo:/"], "")?;
    let back = tool.output(&["cat", "demo:/hello.txt"], "")?;
    if back != "Hello from a subvolume of my own.\n" {
        bail!("read back something else: {back:?}");
    }
    println!("\nThat was it: written, made durable by fsync, read back.");
    if options.once {
        return Ok(());
    }
    println!("The server goes on until Ctrl-C. In another terminal:");
    println!("  {} --help", bin.join("subvol").display());
    server.0.wait()?;
    Ok(())
}

fn wait_for(server: &mut Server, tool: &Tool<'_>) -> Result<()> {
    let start = Instant::now();
    loop {
        if let Some(status) = server.0.try_wait()? {
            bail!("the server ended ({status}); its message stands above");
        }
        if tool.socket.exists() && tool.output(&["volume", "list"], "").is_ok() {
            return Ok(());
        }
        if start.elapsed() > START_LIMIT {
            bail!("the server does not answer after {} s", START_LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

struct Tool<'a> {
    bin: &'a Path,
    socket: PathBuf,
}

impl Tool<'_> {
    fn output(&self, words: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(self.bin.join("subvol"))
            .arg("--server")
            .arg(format!("subvol+unix://{}", std::path::absolute(&self.socket)?.display()))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        child.stdin.take().context("a pipe")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("subvol {} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn show(&self, words: &[&str], input: &str) -> Result<()> {
        println!("\n$ subvol {}", words.join(" "));
        print!("{}", self.output(words, input)?);
        Ok(())
    }
}
