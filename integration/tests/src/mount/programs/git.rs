//! git: many small files, renames over lock files, mapped packs; its own checksums judge the data.

use super::{folder, workspace};
use crate::mount::MountUnderTest;
use crate::mount::command::script;

const CLONE: &str = r#"
git() { command git -c safe.directory='*' -c user.name=tester -c user.email=tester@example.org -c gc.auto=0 "$@"; }
git clone -q --no-hardlinks "$SOURCE" repository
cd repository
git fsck --strict --no-progress
test -z "$(git status --porcelain)"
# The same commit, file by file: what was checked out hashes to what was committed.
test "$(git -C "$SOURCE" rev-parse HEAD)" = "$(git rev-parse HEAD)"
git ls-files -z | xargs -0 git hash-object --no-filters > /dev/null
"#;

/// A file system on which times or inode numbers change by themselves makes git refresh its index for ever.
const INDEX: &str = r#"
cd repository
git() { command git -c safe.directory='*' "$@"; }
sleep 1.1
git status --porcelain > /dev/null
before=$(stat -c '%i %y' .git/index)
git status --porcelain > /dev/null
test "$before" = "$(stat -c '%i %y' .git/index)"
git diff-index --quiet HEAD
"#;

const WORK: &str = r#"
git() { command git -c safe.directory='*' -c user.name=tester -c user.email=tester@example.org -c gc.auto=0 "$@"; }
cd repository
for number in $(seq 20); do
    mkdir -p "work/$number"
    for file in $(seq 10); do echo "$number $file" > "work/$number/$file"; done
    git add -A
    git commit -q -m "change $number"
done
git mv work moved
git commit -q -m "moved"
git gc -q --prune=now
git fsck --strict --no-progress
git worktree add -q ../second -b second HEAD~5
( cd ../second
  test -z "$(git status --porcelain)"
  test "$(ls work | wc -l)" = 16
  echo more > more
  git add more
  git commit -q -m "in the second tree" )
git merge -q second -m "merged"
test "$(cat more)" = more
git worktree remove ../second
test ! -e ../second
git repack -q -a -d -f
git stash list
git checkout -q HEAD~3
git checkout -q -
git fsck --strict --no-progress
test -z "$(git status --porcelain)"
"#;

pub(super) fn run(mount: &MountUnderTest) {
    let folder = folder(mount, "git");
    script(&folder, &[("SOURCE", workspace())], CLONE);
    script(&folder, &[], INDEX);
    script(&folder, &[], WORK);
    script(&folder, &[], "rm -rf repository && test -z \"$(ls -A)\"");
}
