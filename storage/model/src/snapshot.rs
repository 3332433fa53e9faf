//! A comparable image of a whole namespace, built from the model or from the system under test.
//!
//! Inode numbers are not compared: [`Node::identity`] only says which paths of one tree are the same inode, so two trees
//! agree when the same paths are linked together.

use crate::content::Content;
use crate::filesystem::{Body, Inode, Model, ROOT};
use crate::operation::SpecialKind;
use crate::time::Time;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Special(SpecialKind),
}

/// Everything that can be seen of one name.
#[derive(Clone, Debug)]
pub struct Node {
    /// Equal for two paths of the same tree exactly when they name the same inode.
    pub identity: u64,
    /// Kind of file.
    pub kind: Kind,
    /// Permission bits, without the kind.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub nlink: u32,
    /// Bytes of a file, entries of a directory, length of a symbolic link's target, else zero.
    pub size: u64,
    /// Mapped 4 KiB blocks; `None` where the system under test cannot tell, which compares equal to anything.
    pub blocks: Option<u64>,
    /// Last access.
    pub atime: Time,
    /// Last change of data.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Target of a symbolic link.
    pub target: Option<String>,
    /// Bytes of a regular file.
    pub content: Option<Content>,
}

/// What [`Tree::diff_with`] looks at besides names, kinds, identities, owners, modes, link counts and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Times of everything but regular files' mtime and ctime.
    pub times: bool,
    /// mtime and ctime of regular files.
    pub file_times: bool,
    /// Size and content of regular files.
    pub data: bool,
    /// Mapped blocks of regular files.
    pub blocks: bool,
}

impl Compare {
    /// Everything.
    pub const ALL: Self = Self { times: true, file_times: true, data: true, blocks: true };
    /// Everything but times.
    pub const NO_TIMES: Self = Self { times: false, file_times: false, data: true, blocks: true };
    /// What the prefix promise (S1) covers: not the data of regular files, nor what follows from writing it.
    pub const NAMESPACE: Self = Self { times: true, file_times: false, data: false, blocks: false };
}

/// Image of a namespace: path to node. The root's path is the empty string.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Adds what `path` names (no leading slash). Returns what was there before, which a walker should never see.
    pub fn insert(&mut self, path: &str, node: Node) -> Option<Node> {
        self.nodes.insert(path.into(), node)
    }

    /// Takes a path out.
    pub fn remove(&mut self, path: &str) -> Option<Node> {
        self.nodes.remove(path)
    }

    /// What a path names.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path.trim_matches('/'))
    }

    /// For tests that spoil an image on purpose.
    pub fn get_mut(&mut self, path: &str) -> Option<&mut Node> {
        self.nodes.get_mut(path.trim_matches('/'))
    }

    /// All paths in order, with what they name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// Number of paths, the root included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is not even a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Every difference as one readable line, `self` being what is expected. Empty means equal.
    pub fn diff(&self, other: &Self) -> Vec<String> {
        self.diff_with(other, Compare::ALL)
    }

    /// As [`Tree::diff`], looking only at what `compare` asks for.
    pub fn diff_with(&self, other: &Self, compare: Compare) -> Vec<String> {
        self.differences(other, compare)
            .into_iter()
            .map(|(path, line)| format!("{}: {line}", shown(&path)))
            .collect()
    }

    /// Differences as (path, description).
    pub(crate) fn differences(&self, other: &Self, compare: Compare) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let (left_names, right_names) = (self.first_names(), other.first_names());
        for (path, left) in &self.nodes {
            let Some(right) = other.nodes.get(path) else {
                found.push((path.clone(), format!("{:?} is missing", left.kind)));
                continue;
            };
            let mut lines = Vec::new();
            if left_names[&left.identity] != right_names[&right.identity] {
                lines.push(format!(
                    "should be the same inode as {}, is the same as {}",
                    shown(left_names[&left.identity]),
                    shown(right_names[&right.identity])
                ));
            }
            left.compare(right, compare, &mut lines);
            found.extend(lines.into_iter().map(|line| (path.clone(), line)));
        }
        for (path, right) in &other.nodes {
            if !self.nodes.contains_key(path) {
                found.push((path.clone(), format!("{:?} should not be there", right.kind)));
            }
        }
        found
    }

    /// A digest of everything but the inode numbers, to compare runs.
    pub fn digest(&self) -> u64 {
        let names = self.first_names();
        let mut text = Vec::new();
        for (path, node) in &self.nodes {
            let node = Node { identity: 0, ..node.clone() };
            text.extend_from_slice(
                format!("{path}\0{}\0{node:?}\n", names[&self.nodes[path].identity]).as_bytes(),
            );
        }
        Content::from_bytes(&text).hash()
    }

    /// Identity to the first path that has it.
    fn first_names(&self) -> BTreeMap<u64, &str> {
        let mut names = BTreeMap::new();
        for (path, node) in &self.nodes {
            names.entry(node.identity).or_insert(path.as_str());
        }
        names
    }
}

impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        self.differences(other, Compare::ALL).is_empty()
    }
}

impl Node {
    fn compare(&self, other: &Self, compare: Compare, lines: &mut Vec<String>) {
        fn field<T: PartialEq + Debug>(lines: &mut Vec<String>, name: &str, left: &T, right: &T) {
            if left != right {
                lines.push(format!("{name} should be {left:?}, is {right:?}"));
            }
        }
        field(lines, "kind", &self.kind, &other.kind);
        if self.mode != other.mode {
            lines.push(format!("mode should be {:o}, is {:o}", self.mode, other.mode));
        }
        field(lines, "uid", &self.uid, &other.uid);
        field(lines, "gid", &self.gid, &other.gid);
        field(lines, "nlink", &self.nlink, &other.nlink);
        field(lines, "target", &self.target, &other.target);
        for (name, value) in &self.xattrs {
            match other.xattrs.get(name) {
                None => lines.push(format!("xattr {name} is missing")),
                Some(found) if found != value => lines.push(format!("xattr {name} has another value")),
                Some(_) => {}
            }
        }
        for name in other.xattrs.keys().filter(|name| !self.xattrs.contains_key(*name)) {
            lines.push(format!("xattr {name} should not be there"));
        }
        let file = self.kind == Kind::File && other.kind == Kind::File;
        if compare.times {
            field(lines, "atime", &self.atime, &other.atime);
        }
        if if file { compare.file_times } else { compare.times } {
            field(lines, "mtime", &self.mtime, &other.mtime);
            field(lines, "ctime", &self.ctime, &other.ctime);
        }
        if !file || compare.data {
            field(lines, "size", &self.size, &other.size);
        }
        if let (true, Some(left), Some(right)) = (compare.data, &self.content, &other.content)
            && let Some(at) = left.first_difference(right)
        {
            lines.push(format!(
                "content differs at {at}: should be {:#04x}, is {:#04x} ({left:?}, {right:?})",
                left.byte(at),
                right.byte(at)
            ));
        }
        if let (true, Some(left), Some(right)) = (compare.blocks, self.blocks, other.blocks) {
            field(lines, "blocks", &left, &right);
        }
    }
}

/// A path as messages show it.
pub(crate) fn shown(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

impl Model {
    /// The image of the current namespace. Files without a name are not in it.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        let mut open = vec![(String::new(), ROOT)];
        while let Some((path, number)) = open.pop() {
            if let Body::Directory { entries, .. } = &self.inode(number).body {
                for (name, child) in entries {
                    let child_path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                    open.push((child_path, *child));
                }
            }
            tree.nodes.insert(path, node(number, self.inode(number)));
        }
        tree
    }

    /// What one path names.
    pub fn stat(&self, path: &str) -> Result<Node, crate::ModelError> {
        let number = self.resolve(path)?;
        Ok(node(number, self.inode(number)))
    }
}

fn node(number: u64, inode: &Inode) -> Node {
    let (kind, size, blocks, target, content) = match &inode.body {
        Body::File { content, mapped } => {
            (Kind::File, content.size(), mapped.count(), None, Some(content.clone()))
        }
        Body::Directory { entries, .. } => (Kind::Directory, entries.len() as u64, 0, None, None),
        Body::Symlink(target) => (Kind::Symlink, target.len() as u64, 0, Some(target.clone()), None),
        Body::Special(kind) => (Kind::Special(*kind), 0, 0, None, None),
    };
    Node {
        identity: number,
        kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size,
        blocks: Some(blocks),
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        xattrs: inode.xattrs.clone(),
        target,
        content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Op;

    fn model(ops: &[Op]) -> Model {
        let mut model = Model::default();
        for (now, op) in (1_u64..).zip(ops) {
            model.apply(op, now.into()).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        }
        model
    }

    #[test]
    fn inode_numbers_do_not_matter_but_identity_does() {
        let link = Op::Link { existing: "a".into(), path: "b".into() };
        let plain = model(&[Op::create("a"), link.clone()]);
        let mut shifted = model(&[Op::create("x"), Op::Unlink { path: "x".into() }]);
        shifted.apply(&Op::create("a"), 1.into()).expect("create");
        shifted.apply(&link, 2.into()).expect("link");
        let mut tree = shifted.tree();
        let expected = plain.tree();
        assert_eq!(expected.diff(&tree), Vec::<String>::new());
        assert_eq!(expected.digest(), tree.digest());
        tree.get_mut("b").expect("b").identity = 9;
        assert_eq!(expected.diff(&tree), ["b: should be the same inode as a, is the same as b"]);
        assert_ne!(expected.digest(), tree.digest());
    }

    #[test]
    fn every_kind_of_difference_has_a_line() {
        let left = model(&[Op::create("f"), Op::write("f", 0, 5000, "A"), Op::mkdir("d")]).tree();
        let mut right = left.clone();
        assert!(left == right);
        let file = right.get_mut("f").expect("f");
        (file.mode, file.uid, file.nlink, file.blocks) = (0o600, 7, 2, Some(1));
        file.mtime = Time::new(9, 9);
        file.xattrs.insert("user.a".into(), vec![]);
        file.content.as_mut().expect("content").zero(4100, 1);
        let directory = right.remove("d").expect("d");
        right.insert("e", directory);
        let diff = left.diff(&right);
        for part in [
            "mode should be 644, is 600",
            "uid should be 0, is 7",
            "nlink should be 1, is 2",
            "blocks should be 2, is 1",
            "mtime should be",
            "xattr user.a should not be there",
            "content differs at 4100",
            "d: Directory is missing",
            "e: Directory should not be there",
        ] {
            assert!(diff.iter().any(|line| line.contains(part)), "{part} not in {diff:#?}");
        }
        assert_eq!(left.diff_with(&right, Compare::NO_TIMES).len(), diff.len() - 1);
        let names_only = left.diff_with(&right, Compare::NAMESPACE);
        assert!(!names_only.iter().any(|line| line.contains("content") || line.contains("blocks")));
    }
}
