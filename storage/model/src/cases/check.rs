//! The words in which a case says what must hold of a recovered image. Failures are collected, not thrown, so that one
//! run shows all of them.

use crate::content::Content;
use crate::operation::parent;
use crate::pattern;
use crate::snapshot::{Kind, Node, Tree, shown};
use std::collections::BTreeMap;

/// An image and what is wrong with it so far.
pub struct Check<'a> {
    image: &'a Tree,
    failures: Vec<String>,
}

impl<'a> Check<'a> {
    pub(super) fn new(image: &'a Tree) -> Self {
        Self { image, failures: Vec::new() }
    }

    pub(super) fn finish(self) -> Result<(), Vec<String>> {
        if self.failures.is_empty() { Ok(()) } else { Err(self.failures) }
    }

    /// The image.
    pub fn image(&self) -> &'a Tree {
        self.image
    }

    /// Notes a failure unless `holds`.
    pub fn that(&mut self, holds: bool, failure: &str) {
        if !holds {
            self.failures.push(failure.into());
        }
    }

    fn node(&mut self, path: &str) -> Option<&'a Node> {
        let node = self.image.get(path);
        self.that(node.is_some(), &format!("{} is missing", shown(path)));
        node
    }

    /// Whether a path is there, without judging.
    pub fn has(&self, path: &str) -> bool {
        self.image.get(path).is_some()
    }

    /// The paths are there.
    pub fn exist(&mut self, paths: &[&str]) {
        for path in paths {
            self.node(path);
        }
    }

    /// The paths are not there.
    pub fn absent(&mut self, paths: &[&str]) {
        for path in paths {
            self.that(!self.has(path), &format!("{path} should not be there"));
        }
    }

    /// Exactly one of the paths is there.
    pub fn one_of(&mut self, paths: &[&str]) {
        let count = paths.iter().filter(|path| self.has(path)).count();
        self.that(count == 1, &format!("exactly one of {paths:?} should be there, {count} are"));
    }

    /// The directory has exactly these names.
    pub fn names(&mut self, directory: &str, names: &[&str]) {
        self.kind(directory, Kind::Directory);
        let below = |path: &str| !path.is_empty() && parent(path) == directory.trim_matches('/');
        let found: Vec<&str> = self.image.iter().map(|(path, _)| path).filter(|path| below(path)).collect();
        let mut found: Vec<&str> = found.iter().map(|path| path.rsplit('/').next().unwrap_or(path)).collect();
        let mut names = names.to_vec();
        found.sort_unstable();
        names.sort_unstable();
        self.that(found == names, &format!("{} should have {names:?}, has {found:?}", shown(directory)));
    }

    /// Kind of a path.
    pub fn kind(&mut self, path: &str, kind: Kind) {
        if let Some(node) = self.node(path) {
            self.that(node.kind == kind, &format!("{} should be {kind:?}, is {:?}", shown(path), node.kind));
        }
    }

    /// The path is a directory.
    pub fn directory(&mut self, path: &str) {
        self.kind(path, Kind::Directory);
    }

    /// The path is a regular file.
    pub fn file(&mut self, path: &str) {
        self.kind(path, Kind::File);
    }

    /// Link count.
    pub fn nlink(&mut self, path: &str, nlink: u32) {
        if let Some(node) = self.node(path) {
            self.that(node.nlink == nlink, &format!("{path}: nlink should be {nlink}, is {}", node.nlink));
        }
    }

    /// Size in bytes.
    pub fn size(&mut self, path: &str, size: u64) {
        if let Some(node) = self.node(path) {
            self.that(node.size == size, &format!("{path}: size should be {size}, is {}", node.size));
        }
    }

    /// Mapped blocks, if the image tells.
    pub fn blocks(&mut self, path: &str, blocks: u64) {
        if let Some(found) = self.node(path).and_then(|node| node.blocks) {
            self.that(found == blocks, &format!("{path}: {blocks} blocks should be mapped, {found} are"));
        }
    }

    /// A regular file of `size` bytes: patterns at their ranges, later ones over earlier ones, zeros elsewhere. The
    /// pattern `""` stands for zeros.
    pub fn content(&mut self, path: &str, size: u64, pieces: &[(u64, u64, &str)]) {
        self.file(path);
        let Some(found) = self.node(path).and_then(|node| node.content.as_ref()) else {
            return self.that(false, &format!("{path} has no content"));
        };
        let mut expected = Content::default();
        expected.resize(size);
        for (start, end, name) in pieces {
            if name.is_empty() {
                expected.zero(*start, end - start);
            } else {
                expected.write_pattern(*start, end - start, pattern::seed(name));
            }
        }
        assert_eq!(expected.size(), size, "a case's pieces lie inside the file");
        if let Some(at) = expected.first_difference(found) {
            let line = format!("{path}: content differs at {at} (size {} for {size})", found.size());
            self.that(false, &line);
        }
    }

    /// The content that `write path "name"` gives.
    pub fn quoted(&mut self, path: &str, name: &str) {
        self.content(path, crate::script::QUOTED_LENGTH, &[(0, crate::script::QUOTED_LENGTH, name)]);
    }

    /// The content that `write path name` gives.
    pub fn block(&mut self, path: &str, name: &str) {
        self.content(path, crate::BLOCK, &[(0, crate::BLOCK, name)]);
    }

    /// The paths are names of one inode, and it has no others.
    pub fn same_inode(&mut self, paths: &[&str]) {
        let found: Vec<u64> = paths.iter().filter_map(|path| Some(self.node(path)?.identity)).collect();
        self.that(found.windows(2).all(|pair| pair[0] == pair[1]), &format!("{paths:?} should be one inode"));
        self.nlink(paths[0], paths.len() as u32);
    }

    /// The two paths are different inodes.
    pub fn different_inodes(&mut self, left: &str, right: &str) {
        if let (Some(a), Some(b)) = (self.node(left), self.node(right)) {
            self.that(a.identity != b.identity, &format!("{left} and {right} should be two inodes"));
        }
    }

    /// The path has exactly these extended attributes.
    pub fn xattrs(&mut self, path: &str, expected: &[(&str, &str)]) {
        if let Some(node) = self.node(path) {
            let map = expected.iter().map(|(name, value)| ((*name).into(), value.as_bytes().to_vec()));
            let equal = node.xattrs == map.collect::<BTreeMap<String, Vec<u8>>>();
            let names: Vec<&String> = node.xattrs.keys().collect();
            self.that(equal, &format!("{path}: xattrs should be {expected:?}, has {names:?}"));
        }
    }

    /// What must hold of every image: link counts, directory sizes and parents agree.
    pub(super) fn consistent(&mut self) {
        let mut names: BTreeMap<u64, u32> = BTreeMap::new();
        let (mut children, mut subdirectories) = (BTreeMap::<&str, u64>::new(), BTreeMap::<&str, u32>::new());
        for (path, node) in self.image.iter() {
            *names.entry(node.identity).or_default() += 1;
            if path.is_empty() {
                continue;
            }
            let above = parent(path);
            *children.entry(above).or_default() += 1;
            if node.kind == Kind::Directory {
                *subdirectories.entry(above).or_default() += 1;
            }
            let inside = self.image.get(above).is_some_and(|node| node.kind == Kind::Directory);
            self.that(inside, &format!("{path} is not in a directory"));
        }
        for (path, node) in self.image.iter() {
            let (nlink, size) = match node.kind {
                Kind::Directory => (
                    2 + subdirectories.get(path).copied().unwrap_or(0),
                    children.get(path).copied().unwrap_or(0),
                ),
                _ => (names[&node.identity], node.size),
            };
            if (node.nlink, node.size) != (nlink, size) {
                let found = (node.nlink, node.size);
                let path = shown(path);
                self.that(
                    false,
                    &format!("{path}: (nlink, size) should be {:?}, is {found:?}", (nlink, size)),
                );
            }
        }
    }
}
