//! A volume as the model sees it: everything that can be read of every name, by a plain walk.
//!
//! Times: the model runs with a clock that stands at zero. What the server stamped during the test (a time not before the walk's
//! `since`) therefore becomes zero; times that a test set itself lie far in the past or the future and stay exact.

use std::collections::{BTreeMap, HashMap};

use subvol_client::protocol::request::FileRef;
use subvol_client::{Attributes, ClientError, FileKind, Timestamp, Volume};
use subvol_model::{Content, Kind, Node, SpecialKind, Time, Tree};

/// How a walk looks at things.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// Times from here to [`Walk::FAR`] seconds later are the server's own and become zero. Seconds since 1970.
    pub since: i64,
    /// Whether allocated blocks are part of the image.
    pub blocks: bool,
}

impl Walk {
    /// Seconds after `since` that the server's clock can reach during a test.
    pub const FAR: i64 = 7 * 86_400;

    /// A walk for a test that begins now.
    #[must_use]
    pub fn from_now() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A minute of slack: clocks are set.
        Self { since: now.map_or(0, |now| now.as_secs() as i64) - 60, blocks: true }
    }

    fn time(self, time: Timestamp) -> Time {
        if (self.since..self.since + Self::FAR).contains(&time.seconds) {
            Time::default()
        } else {
            Time::new(time.seconds, time.nanoseconds)
        }
    }
}

/// The image of a volume.
///
/// # Errors
/// The client's.
///
/// # Panics
/// If the server shows something impossible: a name twice, a kind that is none.
pub async fn image_of(volume: &Volume, walk: Walk) -> Result<Tree, ClientError> {
    let mut tree = Tree::default();
    let mut known: HashMap<u64, Node> = HashMap::new();
    let root = volume.lookup("").await?;
    let mut ahead = vec![(String::new(), root)];
    while let Some((path, attributes)) = ahead.pop() {
        let node = match known.get(&attributes.inode) {
            Some(node) => node.clone(),
            None => {
                let node = node(volume, &attributes, walk).await?;
                known.insert(attributes.inode, node.clone());
                node
            }
        };
        if node.kind == Kind::Directory {
            let mut entries = volume.inodes().read_directory(attributes.inode, 0, 1024, true).await?;
            loop {
                let last = entries.entries.last().map(|entry| entry.cookie);
                for entry in entries.entries {
                    let name = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
                    let child = if path.is_empty() { name } else { format!("{path}/{name}") };
                    let attributes = entry.attributes.expect("attributes were asked for");
                    assert_eq!(attributes.inode, entry.inode, "{child}: entry and attributes disagree");
                    assert_eq!(attributes.kind(), Some(entry.kind), "{child}: entry and attributes disagree");
                    ahead.push((child, attributes));
                }
                match last {
                    Some(cookie) if !entries.end => {
                        entries =
                            volume.inodes().read_directory(attributes.inode, cookie, 1024, true).await?;
                    }
                    _ => break,
                }
            }
        }
        assert!(tree.insert(&path, node).is_none(), "{path} was listed twice");
    }
    Ok(tree)
}

async fn node(volume: &Volume, attributes: &Attributes, walk: Walk) -> Result<Node, ClientError> {
    let inodes = volume.inodes();
    let number = attributes.inode;
    let kind = match attributes.kind() {
        Some(FileKind::Regular) => Kind::File,
        Some(FileKind::Directory) => Kind::Directory,
        Some(FileKind::Symlink) => Kind::Symlink,
        Some(FileKind::Fifo) => Kind::Special(SpecialKind::Fifo),
        Some(FileKind::Socket) => Kind::Special(SpecialKind::Socket),
        Some(FileKind::CharacterDevice) => Kind::Special(SpecialKind::Character(attributes.rdev)),
        Some(FileKind::BlockDevice) => Kind::Special(SpecialKind::Block(attributes.rdev)),
        None => panic!("inode {number} has mode {:o}, which is no kind of file", attributes.mode),
    };
    let mut xattrs = BTreeMap::new();
    for name in inodes.list_xattrs(number).await?.iter() {
        let value = inodes.get_xattr(number, name).await?.as_bytes().to_vec();
        xattrs.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    let target = match kind {
        Kind::Symlink => {
            Some(String::from_utf8_lossy(inodes.read_link(number).await?.as_bytes()).into_owned())
        }
        _ => None,
    };
    let content = match kind {
        Kind::File => Some(content(volume, attributes).await?),
        _ => None,
    };
    Ok(Node {
        identity: number,
        kind,
        mode: attributes.mode & 0o7777,
        uid: attributes.uid,
        gid: attributes.gid,
        nlink: attributes.links,
        size: attributes.size,
        blocks: walk.blocks.then_some(attributes.blocks),
        atime: walk.time(attributes.atime),
        mtime: walk.time(attributes.mtime),
        ctime: walk.time(attributes.ctime),
        xattrs,
        target,
        content,
    })
}

async fn content(volume: &Volume, attributes: &Attributes) -> Result<Content, ClientError> {
    let file = FileRef::inode(attributes.inode);
    let mut content = Content::default();
    let mut offset = 0;
    while offset < attributes.size {
        let (bytes, end) = volume.inodes().read(file, offset, 1 << 20).await?;
        assert!(!bytes.is_empty() || end, "inode {}: an empty read before the end", attributes.inode);
        content.write(offset, &bytes);
        offset += bytes.len() as u64;
        if end {
            break;
        }
    }
    assert_eq!(offset, attributes.size, "inode {}: size and bytes disagree", attributes.inode);
    content.resize(attributes.size);
    Ok(content)
}

/// What the image says a volume uses: bytes and inodes, each inode once.
#[must_use]
pub fn recount(tree: &Tree) -> (u64, u64) {
    let nodes: BTreeMap<u64, u64> =
        tree.iter().map(|(_, node)| (node.identity, node.blocks.unwrap_or(0))).collect();
    (nodes.values().map(|blocks| blocks * subvol_model::BLOCK).sum(), nodes.len() as u64 - 1)
}
