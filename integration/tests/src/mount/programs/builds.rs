//! cargo and npm: thousands of small files, renames into place, and decisions made from modification times.

use super::folder;
use crate::mount::MountUnderTest;
use crate::mount::command::script;

const CARGO: &str = r#"
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
mkdir -p small/src small/helper/src
cat > small/Cargo.toml <<'END'
[package]
name = "small"
version = "0.1.0"
edition = "2021"
[dependencies]
helper = { path = "helper" }
[workspace]
END
cat > small/helper/Cargo.toml <<'END'
[package]
name = "helper"
version = "0.1.0"
edition = "2021"
END
cat > small/build.rs <<'END'
fn main() {
    let out = std::env::var("OUT_DIR").unwrap();
    std::fs::write(format!("{out}/made.rs"), "pub const MADE: u32 = 42;").unwrap();
    println!("cargo:rerun-if-changed=build.rs");
}
END
echo 'pub fn twice(x: u32) -> u32 { x * 2 }' > small/helper/src/lib.rs
cat > small/src/main.rs <<'END'
include!(concat!(env!("OUT_DIR"), "/made.rs"));
fn main() { println!("{}", helper::twice(MADE)); }
END
cd small
cargo build --offline 2>&1 | tee ../first
grep -q 'Compiling small' ../first
test "$(target/debug/small)" = 84
# Nothing changed: nothing is built.
cargo build --offline 2>&1 | tee ../second
if grep -q Compiling ../second; then echo 'the second build built something'; exit 1; fi
# One crate changed: it and what depends on it are built.
sleep 1.1
echo 'pub fn twice(x: u32) -> u32 { x + x + 1 }' > helper/src/lib.rs
cargo build --offline 2>&1 | tee ../third
test "$(grep -c Compiling ../third)" = 2
test "$(target/debug/small)" = 85
cargo build --offline --release -q
test "$(target/release/small)" = 85
cd ..
rm -rf small first second third
test -z "$(ls -A)"
"#;

/// Packages that are packed here, so that no registry is asked.
const NPM: &str = r#"
export HOME="$PWD" npm_config_cache="$PWD/cache" npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false
mkdir packages project
for number in $(seq 25); do
    mkdir -p "packages/p$number/lib/deep"
    echo "{\"name\": \"p$number\", \"version\": \"1.0.0\", \"main\": \"index.js\", \"bin\": {\"run-p$number\": \"run.js\"}}" \
        > "packages/p$number/package.json"
    echo "module.exports = $number + require('./lib/deep/f20.js');" > "packages/p$number/index.js"
    printf '#!/usr/bin/env node\nconsole.log(%s)\n' "$number" > "packages/p$number/run.js"
    for file in $(seq 40); do echo "module.exports = $file;" > "packages/p$number/lib/deep/f$file.js"; done
    ( cd packages && npm pack --silent "./p$number" > /dev/null )
done
cd project
echo '{"name": "project", "version": "1.0.0"}' > package.json
install() { npm install --offline --silent ../packages/*.tgz; }
check() {
    test "$(find node_modules -name 'f*.js' | wc -l)" = 1000
    node -e 'let s = 0; for (let i = 1; i <= 25; i++) s += require("p" + i); if (s !== 825) process.exit(1)'
    test "$(node_modules/.bin/run-p7)" = 7
}
install
check
rm -rf node_modules
test ! -e node_modules
install
check
npm ls --all > /dev/null
npm uninstall --silent --offline p3 p9
test ! -e node_modules/p3
npm ci --offline --silent
test "$(ls node_modules | wc -l)" = 23
cd ..
rm -rf packages project cache
"#;

pub(super) fn cargo(mount: &MountUnderTest) {
    script(&folder(mount, "cargo"), &[], CARGO);
}

pub(super) fn npm(mount: &MountUnderTest) {
    script(&folder(mount, "npm"), &[], NPM);
}
