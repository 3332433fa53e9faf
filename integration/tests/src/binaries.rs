//! Where the two programs under test are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The server.
#[must_use]
pub fn subvold() -> PathBuf {
    folder().join("subvold")
}

/// The command line.
#[must_use]
pub fn subvol() -> PathBuf {
    folder().join("subvol")
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(find)
}

fn has_both(folder: &Path) -> bool {
    folder.join("subvold").is_file() && folder.join("subvol").is_file()
}

fn find() -> PathBuf {
    if let Some(folder) = std::env::var_os("SUBVOLD_BIN_DIR").map(PathBuf::from) {
        assert!(has_both(&folder), "SUBVOLD_BIN_DIR={} lacks subvold or subvol", folder.display());
        return folder;
    }
    // A test's own file is target/PROFILE/deps/NAME-HASH: the programs of the same profile are two steps up.
    let own = std::env::current_exe().unwrap_or_else(|error| panic!("the test's own path: {error}"));
    let profile = own.parent().and_then(Path::parent).map(Path::to_path_buf);
    let profile = profile.unwrap_or_else(|| panic!("{} is in no target folder", own.display()));
    let release = profile.with_file_name("release");
    if has_both(&release) {
        return release;
    }
    // Built rather than taken as found: a program older than its sources would be tested in its place.
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "-p", "subvold", "-p", "subvol"]);
    if profile.file_name().is_some_and(|name| name == "release") {
        build.arg("--release");
    }
    if let Some(target) = profile.parent() {
        build.env("CARGO_TARGET_DIR", target);
    }
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = build.status().unwrap_or_else(|error| panic!("cargo build: {error}"));
    assert!(status.success() && has_both(&profile), "building subvold and subvol failed: {status}");
    profile
}
