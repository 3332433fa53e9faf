//! The command line as a user runs it.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::server::Server;
use crate::{binaries, process};

/// How long one command may take.
pub const BOUND: Duration = Duration::from_secs(240);

/// `subvol`, run in a folder, with options in front of the verb.
#[derive(Clone, Debug)]
pub struct Tool {
    folder: PathBuf,
    options: Vec<OsString>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// The command, for messages.
    pub line: String,
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: String,
}

impl Tool {
    /// A user who stands beside the data folder and configures nothing.
    #[must_use]
    pub fn beside(server: &Server) -> Self {
        Self { folder: server.beside().into(), options: Vec::new() }
    }

    /// A user who stands elsewhere and configures nothing.
    #[must_use]
    pub fn elsewhere(folder: &Path) -> Self {
        Self { folder: folder.into(), options: Vec::new() }
    }

    /// With further options.
    #[must_use]
    pub fn with(mut self, options: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// With the token in a file.
    #[must_use]
    pub fn token_file(self, path: &Path) -> Self {
        self.with([OsStr::new("--token-file"), path.as_os_str()])
    }

    /// Runs a verb without input.
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Ended {
        self.run_with(words, b"")
    }

    /// Runs a verb with standard input.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn run_with<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>, input: &[u8]) -> Ended {
        let words: Vec<OsString> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let shown = words.iter().take(12).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let line = format!("subvol {shown}");
        let mut command = Command::new(binaries::subvol());
        command.args(&self.options).args(&words).current_dir(&self.folder);
        command.env_remove("SUBVOLD_SERVER").env_remove("SUBVOLD_TOKEN_FILE").env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process::spawn(command).expect("the command line's program");
        let mut pipe = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        // A command that fails early does not read its input.
        let writer = std::thread::spawn(move || {
            let _ = pipe.write_all(&input);
        });
        let out = read(child.stdout.take().expect("a pipe"));
        let err = read(child.stderr.take().expect("a pipe"));
        let status = process::wait(&mut child, BOUND);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let (out, err) = (out.join().expect("a reader"), err.join().expect("a reader"));
        let _ = writer.join();
        let err = String::from_utf8_lossy(&err).into_owned();
        let Some(status) = status else { panic!("{line}: not done after {BOUND:?}; it said: {err}") };
        let code = status.code().unwrap_or_else(|| panic!("{line}: ended by a signal: {status}; {err}"));
        Ended { line, code, out, err }
    }

    /// Runs a verb that must succeed; gives its standard output.
    pub fn ok<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> String {
        self.run(words).success()
    }

    /// Runs a verb with `--json` that must succeed; gives the one document it prints.
    ///
    /// # Panics
    /// If it is no JSON.
    pub fn json<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> serde_json::Value {
        let text = self.clone().with(["--json"]).ok(words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
    }

    /// As [`Self::json`] for verbs that print one document per line.
    ///
    /// # Panics
    /// If a line is no JSON.
    pub fn json_lines<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Vec<serde_json::Value> {
        let text = self.clone().with(["--json"]).ok(words);
        let parse =
            |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("no JSON ({error}): {line}"));
        text.lines().map(parse).collect()
    }
}

impl Ended {
    /// It must have succeeded without a complaint; gives its standard output.
    ///
    /// # Panics
    /// If it has not.
    pub fn success(self) -> String {
        assert_eq!(self.code, 0, "{}: {}", self.line, self.err);
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// It must have failed with this code, said so on standard error in words that contain `part`, and printed no panic.
    ///
    /// # Panics
    /// If it has not.
    pub fn failure(&self, code: i32, part: &str) {
        let Self { line, err, .. } = self;
        assert_eq!(self.code, code, "{line}: {err}");
        assert!(err.to_lowercase().contains(&part.to_lowercase()), "{line}: {part:?} is not in: {err}");
        assert!(!err.contains("panicked"), "{line}: {err}");
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}
