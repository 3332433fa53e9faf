//! Everything that must hold of a store at any moment (invariants I3, I6, I8), looked at item by item.
//!
//! [`check_volume`] looks at one subvolume's tree as it is in memory, dirty data included. [`check_space`] compares what
//! all trees of the last commit refer to with the bitmaps, both ways; it wants a store without changes since then.

use super::machine::Machine;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use subvol_storage::format::item::{EntryItem, InodeItem, XattrItem, inode_flags};
use subvol_storage::format::key::{ItemKind, Key};
use subvol_storage::fs::extents::{Extent, Mapping};
use subvol_storage::fs::view::{SLOT_PROBES, name_slot};
use subvol_storage::limits::{BLOCK_BYTES, NODE_BYTES, ORPHAN_DIRECTORY, ROOT_INODE, ROOT_TREE_OWNER};
use subvol_storage::space::Run;
use subvol_storage::store::Store;
use subvol_storage::tree::{BlockPointer, Missing, Node, NodeSource, Tree, TreeVisitor};
use subvol_storage::types::Usage;

/// Nodes from the caches, else from the device.
struct Reading<'a> {
    store: &'a Store,
    owner: u64,
}

impl NodeSource for Reading<'_> {
    fn cached(&self, pointer: &BlockPointer) -> Option<Arc<Node>> {
        let cached = self.store.nodes().cached(pointer);
        cached.or_else(|| self.store.read_node(&Missing { pointer: *pointer, owner: self.owner }).ok())
    }
}

#[derive(Default)]
struct Collector {
    items: BTreeMap<Key, Vec<u8>>,
    nodes: Vec<Option<BlockPointer>>,
}

impl TreeVisitor for Collector {
    fn node(&mut self, node: &Node) {
        self.nodes.push(node.pointer());
    }

    fn item(&mut self, key: &Key, value: &[u8]) {
        self.items.insert(*key, value.to_vec());
    }
}

/// What a check found wrong.
#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    fn that(&mut self, holds: bool, line: impl FnOnce() -> String) {
        if !holds && self.0.len() < 20 {
            self.0.push(line());
        }
    }
}

/// Both checks on a quiet store, every subvolume.
pub fn check_all(machine: &mut Machine) -> Vec<String> {
    let mut lines = check_space(machine);
    for volume in 0..machine.volumes.len() {
        lines
            .extend(check_volume(machine, volume).into_iter().map(|line| format!("volume {volume}: {line}")));
    }
    lines
}

/// Checks one subvolume.
pub fn check_volume(machine: &Machine, volume: usize) -> Vec<String> {
    let engine = &machine.volumes[volume].engine;
    let view = engine.view();
    let mut tree = Collector::default();
    let source = Reading { store: &machine.store, owner: engine.id() };
    if let Err(error) = view.tree.check(&source, &mut tree) {
        return vec![error.to_string()];
    }
    let mut findings = Findings::default();
    let over_holes = |inode| view.pages.file(inode).map_or(0, |file| file.over_holes(0, u64::MAX));
    let survey = Survey::new(&tree.items, &mut findings);
    survey.names(&mut findings);
    survey.inodes(&mut findings);
    survey.extents(&over_holes, &mut findings);
    let usage = engine.account().usage();
    let counted = survey.usage();
    findings.that(usage == counted, || format!("usage says {usage:?}, a recount {counted:?}"));
    let next_id = view.resolved.next_id;
    findings
        .that(survey.newest_id() < next_id, || format!("next id {next_id}, {} is taken", survey.newest_id()));
    findings.0
}

/// Of a directory entry: inode, type bits, name, hash slot.
type Name = (u64, u32, Vec<u8>, u64);

struct Survey<'a> {
    items: &'a BTreeMap<Key, Vec<u8>>,
    inodes: BTreeMap<u64, InodeItem>,
    /// (directory, entry id) to what the by-name item says.
    by_name: BTreeMap<(u64, u64), Name>,
    by_index: BTreeMap<(u64, u64), Name>,
    /// (inode, entry id) to directory.
    back: BTreeMap<(u64, u64), u64>,
    orphans: BTreeSet<u64>,
    extents: BTreeMap<u64, Vec<Extent>>,
    xattrs: BTreeMap<u64, u32>,
    /// Pieces of large attributes that there are, and that the attributes speak of: inode and offset.
    pieces: BTreeSet<(u64, u64)>,
    pieces_wanted: BTreeSet<(u64, u64)>,
}

impl<'a> Survey<'a> {
    fn new(items: &'a BTreeMap<Key, Vec<u8>>, findings: &mut Findings) -> Self {
        let mut survey = Self {
            items,
            inodes: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_index: BTreeMap::new(),
            back: BTreeMap::new(),
            orphans: BTreeSet::new(),
            extents: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            pieces: BTreeSet::new(),
            pieces_wanted: BTreeSet::new(),
        };
        for (key, bytes) in items {
            if let Err(line) = survey.add(key, bytes) {
                findings.that(false, || line);
            }
        }
        survey
    }

    fn add(&mut self, key: &Key, bytes: &[u8]) -> Result<(), String> {
        let broken = |error: subvol_storage::error::Corruption| error.to_string();
        match key.kind {
            ItemKind::Inode => {
                self.inodes.insert(key.inode, InodeItem::parse(key, bytes).map_err(broken)?);
            }
            ItemKind::BackReference => {
                let directory = bytes.try_into().map_err(|_| format!("{key:?} has a bad length"))?;
                self.back.insert((key.inode, key.offset), u64::from_le_bytes(directory));
            }
            ItemKind::EntryByName => {
                let entry = EntryItem::parse(key, bytes).map_err(broken)?;
                if key.offset & !SLOT_PROBES != name_slot(entry.name) {
                    return Err(format!("{key:?} stands in the slot of another name"));
                }
                let value = (entry.inode, entry.mode_type, entry.name.to_vec(), key.offset);
                if self.by_name.insert((key.inode, entry.other), value).is_some() {
                    return Err(format!("{key:?} shares its entry id"));
                }
            }
            ItemKind::EntryByIndex => {
                let entry = EntryItem::parse(key, bytes).map_err(broken)?;
                let value = (entry.inode, entry.mode_type, entry.name.to_vec(), entry.other);
                self.by_index.insert((key.inode, key.offset), value);
            }
            ItemKind::Xattr => {
                let item = XattrItem::parse(key, bytes).map_err(broken)?;
                for piece in 0..u64::from(item.pieces) {
                    self.pieces_wanted.insert((key.inode, key.offset << 4 | piece));
                }
                *self.xattrs.entry(key.inode).or_default() += 1;
            }
            ItemKind::XattrPiece => {
                self.pieces.insert((key.inode, key.offset));
            }
            ItemKind::SymlinkTarget => {}
            ItemKind::Extent => {
                let extent = Extent::parse(key, bytes).map_err(broken)?;
                self.extents.entry(key.inode).or_default().push(extent);
            }
            ItemKind::Orphan if key.inode == ORPHAN_DIRECTORY => {
                self.orphans.insert(key.offset);
            }
            _ => return Err(format!("{key:?} does not belong into a subvolume")),
        }
        Ok(())
    }

    /// A name is three items.
    fn names(&self, findings: &mut Findings) {
        findings.that(self.by_name == self.by_index, || {
            let odd = self.by_name.iter().find(|(key, value)| self.by_index.get(key) != Some(value));
            let other = self.by_index.iter().find(|(key, value)| self.by_name.get(key) != Some(value));
            format!("names by hash and by index differ: {odd:?} {other:?}")
        });
        let from_names: BTreeMap<(u64, u64), u64> =
            self.by_name.iter().map(|(&(directory, id), value)| ((value.0, id), directory)).collect();
        findings.that(from_names == self.back, || {
            format!("names {from_names:?} but back references {:?}", self.back)
        });
        for ((directory, _), (inode, mode_type, name, _)) in &self.by_name {
            let parent = self.inodes.get(directory);
            findings.that(parent.is_some_and(|item| item.is_directory() && item.nlink > 0), || {
                format!("{directory} has the entry {name:?} and is no directory")
            });
            match self.inodes.get(inode) {
                None => findings
                    .that(false, || format!("{name:?} in {directory} names the missing inode {inode}")),
                Some(item) => {
                    findings
                        .that(item.mode & 0o170_000 == *mode_type, || format!("{name:?} has another type"));
                    findings.that(!item.is_directory() || item.parent == *directory, || {
                        format!("directory {inode} in {directory} says its parent is {}", item.parent)
                    });
                }
            }
        }
    }

    fn inodes(&self, findings: &mut Findings) {
        let (mut names, mut entries) = (BTreeMap::<u64, u32>::new(), BTreeMap::<u64, (u64, u32)>::new());
        for ((directory, _), (inode, mode_type, ..)) in &self.by_name {
            *names.entry(*inode).or_default() += 1;
            let count = entries.entry(*directory).or_default();
            count.0 += 1;
            count.1 += u32::from(*mode_type == 0o040_000);
        }
        for (inode, item) in &self.inodes {
            let names = names.get(inode).copied().unwrap_or(0);
            let (size, subdirectories) = entries.get(inode).copied().unwrap_or((0, 0));
            let expected = match item.is_directory() {
                true if names == 0 && *inode != ROOT_INODE => 0,
                true => 2 + subdirectories,
                false => names,
            };
            findings.that(item.nlink == expected, || {
                format!("inode {inode}: nlink {} but {expected} by its names", item.nlink)
            });
            findings.that(!item.is_directory() || item.size == size, || {
                format!("directory {inode}: size {} but {size} entries", item.size)
            });
            let xattrs = self.xattrs.get(inode).copied().unwrap_or(0);
            // What nobody can reach may be half removed.
            findings.that(item.xattrs == xattrs || item.nlink == 0, || {
                format!("inode {inode}: counts {} xattrs, has {xattrs}", item.xattrs)
            });
            let waits = item.nlink == 0 || item.flags & inode_flags::TRIM_PENDING != 0;
            findings.that(waits == self.orphans.contains(inode), || {
                format!("inode {inode}: orphan item {}, nlink {}", !waits, item.nlink)
            });
            if item.is_symlink() {
                let target = self.items.get(&Key::new(*inode, ItemKind::SymlinkTarget, 0));
                findings.that(target.is_some_and(|bytes| bytes.len() as u64 == item.size), || {
                    format!("symbolic link {inode} has no sound target")
                });
            }
        }
        for (inode, offset) in self.pieces.symmetric_difference(&self.pieces_wanted) {
            let removed = self.inodes.get(inode).is_some_and(|item| item.nlink == 0);
            findings.that(removed, || {
                format!("inode {inode}: piece {offset} of an attribute is lost or left over")
            });
        }
        for orphan in &self.orphans {
            findings.that(self.inodes.contains_key(orphan), || format!("orphan {orphan} has no inode"));
        }
        for key in self.items.keys().filter(|key| key.kind != ItemKind::Orphan) {
            findings.that(self.inodes.contains_key(&key.inode), || format!("{key:?} has no inode"));
        }
        self.reachable(findings);
    }

    fn reachable(&self, findings: &mut Findings) {
        let mut children: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for ((directory, _), (inode, ..)) in &self.by_name {
            children.entry(*directory).or_default().push(*inode);
        }
        let (mut seen, mut open) = (BTreeSet::from([ROOT_INODE]), vec![ROOT_INODE]);
        while let Some(directory) = open.pop() {
            for child in children.get(&directory).into_iter().flatten() {
                if seen.insert(*child) {
                    open.push(*child);
                }
            }
        }
        for (inode, item) in &self.inodes {
            findings
                .that(item.nlink == 0 || seen.contains(inode), || format!("inode {inode} cannot be reached"));
        }
    }

    fn extents(&self, over_holes: &dyn Fn(u64) -> u64, findings: &mut Findings) {
        let mut device: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (inode, extents) in &self.extents {
            let Some(item) = self.inodes.get(inode) else { continue };
            findings.that(item.is_regular(), || format!("inode {inode} has extents and is no file"));
            let mut end = 0;
            for extent in extents {
                findings.that(extent.offset >= end, || {
                    format!("inode {inode}: extents overlap at {}", extent.offset)
                });
                end = extent.end();
                let past = extent.end() > item.size.next_multiple_of(BLOCK_BYTES);
                let kept = matches!(extent.mapping, Mapping::Preallocated { .. });
                let trimming = item.flags & inode_flags::TRIM_PENDING != 0;
                findings.that(!past || kept || trimming, || {
                    format!("inode {inode}: data past the end at {}", extent.offset)
                });
                if let Some(released) = extent.device() {
                    let (start, length) = (released.range.address, released.range.length);
                    let before = device.range(..start + length).next_back();
                    findings.that(before.is_none_or(|(at, (bytes, _))| at + bytes <= start), || {
                        format!("device bytes {start}+{length} belong to inode {inode} and to {before:?}")
                    });
                    device.insert(start, (length, *inode));
                }
            }
        }
        for (inode, item) in &self.inodes {
            let mapped: u64 =
                self.extents.get(inode).into_iter().flatten().map(|e| e.length / BLOCK_BYTES).sum();
            let dirty = over_holes(*inode);
            findings.that(item.blocks == mapped + dirty, || {
                format!("inode {inode}: {} blocks, {mapped} mapped and {dirty} dirty", item.blocks)
            });
        }
    }

    fn usage(&self) -> Usage {
        let blocks: u64 = self.inodes.values().map(|item| item.blocks).sum();
        Usage { bytes: blocks * BLOCK_BYTES, inodes: self.inodes.len() as u64 - 1 }
    }

    fn newest_id(&self) -> u64 {
        let inode = self.inodes.keys().next_back().copied().unwrap_or(0);
        self.by_name.keys().map(|(_, id)| *id).max().unwrap_or(0).max(inode)
    }
}

/// What a block is used for: the tree's owner and, for data, the extent's key.
type Use = (u64, Option<Key>);

/// Every block that the last commit refers to is marked and every marked block is referred to, once.
pub fn check_space(machine: &Machine) -> Vec<String> {
    let store = &machine.store;
    let mut findings = Findings::default();
    let mut used: BTreeMap<u64, Use> = BTreeMap::new();
    let superblock = machine.committer.superblock();
    let mut trees: Vec<(u64, BlockPointer)> = Vec::new();
    trees.extend(superblock.root_tree.map(|root| (ROOT_TREE_OWNER, root)));
    let mut tenants: BTreeMap<u64, Usage> = BTreeMap::new();
    for (id, root) in store.roots() {
        trees.extend(root.root.map(|pointer| (id, pointer)));
        let usage = tenants.entry(root.tenant).or_default();
        usage.bytes += root.usage.bytes;
        usage.inodes += root.usage.inodes;
    }
    for (tenant, usage) in tenants {
        let found = store.tenant_account(tenant).usage();
        findings.that(found == usage, || {
            format!("tenant {tenant}: {found:?} in use, {usage:?} by its subvolumes")
        });
    }
    for (owner, pointer) in trees {
        let mut tree = Collector::default();
        if let Err(error) = Tree::open(owner, pointer).check(&Reading { store, owner }, &mut tree) {
            findings.that(false, || format!("tree {owner}: {error}"));
            continue;
        }
        let nodes = tree.nodes.into_iter().flatten().map(|node| (node.address, NODE_BYTES as u64, None));
        let data =
            tree.items.iter().filter(|(key, _)| key.kind == ItemKind::Extent).filter_map(|(key, bytes)| {
                let released = Extent::parse(key, bytes).ok()?.device()?;
                Some((released.range.address, released.range.length, Some(*key)))
            });
        for (address, length, what) in nodes.chain(data) {
            for block in address / BLOCK_BYTES..(address + length) / BLOCK_BYTES {
                if let Some(other) = used.insert(block, (owner, what)) {
                    findings.that(false, || {
                        format!("block {block} belongs to {what:?} of {owner} and to {other:?}")
                    });
                }
            }
        }
    }
    // What is used is marked, and what is left over is free: together they are all blocks there are, so nothing is
    // marked in vain. (Blocks one by one would be the same and a thousand times slower; they find the culprit.)
    let space = store.space();
    let marked = used.keys().all(|&block| space.is_durable(Run::new(block, 1)));
    let free = space.statistics().free;
    if !marked || used.len() as u64 + free != space.geometry().usable_blocks() {
        findings.that(false, || format!("{} blocks in use and {free} free are not all", used.len()));
        find_culprits(store, &used, &mut findings);
    }
    findings.0
}

fn find_culprits(store: &Store, used: &BTreeMap<u64, Use>, findings: &mut Findings) {
    for group in 0..store.space().geometry().groups() {
        let run = store.space().geometry().group(group);
        // The first two blocks of a group are its bitmaps.
        for block in run.start + 2..run.end() {
            match (store.space().is_durable(Run::new(block, 1)), used.get(&block)) {
                (true, None) => {
                    findings.that(false, || format!("block {block} is marked but nothing refers to it"))
                }
                (false, Some(what)) => {
                    findings.that(false, || format!("block {block} of {what:?} is not marked"))
                }
                _ => {}
            }
        }
    }
}
