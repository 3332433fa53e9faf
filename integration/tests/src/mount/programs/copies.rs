//! rsync and tar: everything that a file can carry comes through, and a second pass finds nothing to do.

use std::path::Path;

use super::folder;
use crate::Random;
use crate::local_tree::{differences, generate};
use crate::mount::MountUnderTest;
use crate::mount::command::script;

const FILES: u64 = 400;

/// A tree on the machine's own disk, with access control lists.
fn source() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("source-").tempdir().expect("a folder");
    generate(&folder.path().join("tree"), FILES, &mut Random::new(7));
    script(
        folder.path(),
        &[],
        "setfacl -m u:nobody:r,g:daemon:rw tree/odd/'with space'
         setfacl -m d:u:nobody:rwx,d:g::r tree/odd/empty",
    );
    folder
}

fn same(expected: &Path, found: &Path, what: &str) {
    let lines = differences(expected, found);
    assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
    let lists = |root: &Path| script(root, &[], "getfacl -R -n -p . | LC_ALL=C sort");
    assert_eq!(lists(expected), lists(found), "{what}: access control lists");
}

pub(super) fn rsync(mount: &MountUnderTest) {
    let (source, target) = (source(), folder(mount, "rsync"));
    let tree = source.path().join("tree");
    // Without the window of -1 rsync takes times within the same second for equal and leaves them.
    let copy = |options: &str, target: &str| {
        script(
            mount.directory(),
            &[("TREE", &tree)],
            &format!(
                "rsync -aHAXS --modify-window=-1 --numeric-ids --itemize-changes {options} \"$TREE\"/ rsync/{target}/"
            ),
        )
    };
    assert!(copy("", "copy").lines().count() as u64 > FILES, "the first pass copies");
    same(&tree, &target.join("copy"), "after rsync");
    assert_eq!(copy("", "copy"), "", "the second pass has nothing to do");
    assert_eq!(copy("--checksum", "copy"), "", "nor by content");
    script(
        &tree,
        &[],
        "echo changed > part-1/changed; rm -r part-2; printf more >> 'odd/with space'; mv part-3 part-three",
    );
    assert_ne!(copy("--delete --inplace --no-whole-file", "copy"), "");
    same(&tree, &target.join("copy"), "after rsync --delete --inplace");
    assert_eq!(copy("--delete", "copy"), "", "and again nothing to do");
    // Within the mount, with hard links to the other copy: only new names.
    let linked = copy("--link-dest=../copy", "linked");
    assert!(
        linked.lines().all(|line| !line.starts_with(">f")),
        "data was copied in spite of --link-dest:\n{linked}"
    );
    script(&target, &[], "rm -rf linked copy && test -z \"$(ls -A)\"");
}

pub(super) fn tar(mount: &MountUnderTest) {
    let (source, target) = (source(), folder(mount, "tar"));
    let tree = source.path().join("tree");
    let pack = "tar --numeric-owner --acls --xattrs --xattrs-include='user.*' --sparse --format=posix";
    // In: packed on the disk, unpacked in the mount.
    script(source.path(), &[], &format!("{pack} -cf in.tar tree"));
    script(&target, &[("FROM", source.path())], &format!("{pack} -xpf \"$FROM\"/in.tar"));
    same(&tree, &target.join("tree"), "unpacked in the mount");
    script(&target, &[("FROM", source.path())], &format!("{pack} --compare -f \"$FROM\"/in.tar"));
    // Out: packed in the mount, unpacked on the disk.
    script(&target, &[], &format!("{pack} -cf out.tar tree"));
    script(
        source.path(),
        &[("FROM", &target)],
        &format!("mkdir back && cd back && {pack} -xpf \"$FROM\"/out.tar"),
    );
    same(&target.join("tree"), &source.path().join("back/tree"), "unpacked from the mount");
    script(&target, &[], "rm -rf tree out.tar && test -z \"$(ls -A)\"");
}
