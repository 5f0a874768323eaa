//! The filesystem's tree as plain tables, made by playing the log.
//!
//! Names, attributes and extended attributes follow the log to its end. A file's blocks and size wait until they are settled: at the end they
//! are taken over when all that was stored is there, and given up when it may not be. So a file is after a power cut as it was when it
//! was settled last, but for bytes that were overwritten in place.

use super::codec::{Record, Records};
use super::planted::{Planted, is_planted};
use super::scan::Shown;
use super::{Attributes, Change, Malformed};
use crate::fs::{FILE_BYTES_MAX, Ino, attr, check_name, check_volume_name, check_volume_size};
use crate::{BLOCK_BYTES, Block, MemberId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The filesystem's tree.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Inodes by number.
    pub inodes: HashMap<Ino, Node>,
    /// Names of each directory.
    pub names: HashMap<Ino, BTreeMap<Box<[u8]>, Ino>>,
    /// Volumes by name.
    pub volumes: BTreeMap<Box<str>, Ino>,
    /// The last number that an inode had.
    pub last: u64,
    /// Files whose changes are not all settled, or whose bytes are in the log.
    unsettled: HashSet<Ino>,
    /// Bytes of snapshots end here.
    has_snapshot_end: bool,
}

/// An inode.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Mode, owner and the like; `None` when the log never told.
    pub attributes: Option<Attributes>,
    /// Access, modification, change and birth, in ns since the epoch.
    pub times_ns: [i64; 4],
    /// Target of a symbolic link.
    pub target: Option<Box<[u8]>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Size and blocks.
    pub data: Data,
    /// Sequence number of the group that made it.
    made: u64,
    /// Sequence number of the last group that set its times.
    timed: u64,
    /// Changes of size and blocks that are not settled, in order.
    pending: Vec<Pending>,
    /// Bytes that are in the log, by file block, with the group's number.
    bytes: BTreeMap<u64, (u64, Arc<[u8]>)>,
}

/// Size and blocks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// In bytes.
    pub size: u64,
    /// Blocks by the first file block: how many, and the first of them in the pool; `None`: promised only.
    pub extents: BTreeMap<u64, (u64, Option<Block>)>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    sequence: u64,
    time_ns: i64,
    change: DataChange,
}

#[derive(Clone, Copy, Debug)]
enum DataChange {
    Extent { at: u64, blocks: u64, first: Option<Block> },
    NoExtents { at: u64, blocks: u64 },
    Size(u64),
    Grown(u64),
}

/// A fault of the tables: what a sound log cannot lead to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A name leads nowhere.
    #[error("`{name}` in directory {dir} names inode {ino}, which is not there", dir = .dir.0, ino = .ino.0)]
    Dangling {
        /// The directory.
        dir: Ino,
        /// The name, as text.
        name: String,
        /// The inode it names.
        ino: Ino,
    },
    /// Names in something that is no directory, or not there.
    #[error("inode {ino} has names in it and is no directory", ino = .0.0)]
    NoDirectory(Ino),
    /// A directory has more than one name, or none that leads to the root.
    #[error("directory {ino} is not reached from the root by exactly one way", ino = .0.0)]
    Shape(Ino),
    /// The root is not there.
    #[error("there is no root directory")]
    NoRoot,
    /// An inode without attributes.
    #[error("inode {ino} has no attributes", ino = .0.0)]
    NoAttributes(Ino),
    /// A name that no directory can have.
    #[error("directory {dir} has the name `{name}`, which is none", dir = .dir.0)]
    Name {
        /// The directory.
        dir: Ino,
        /// The name, as text.
        name: String,
    },
    /// A type that no inode has, or blocks or a size that its type cannot have.
    #[error("inode {ino} has a type, a size or blocks that it cannot have", ino = .0.0)]
    Body(Ino),
    /// A volume whose inode is missing, or is none of a volume.
    #[error("volume `{0}` has no inode of its own")]
    Volume(Box<str>),
    /// Blocks that no member has, or that hold superblocks or the log.
    #[error("file {ino} has {blocks} blocks from block {} of {} on, which are not for files", .first.index(), .first.member(), ino = .ino.0)]
    Outside {
        /// The file.
        ino: Ino,
        /// The first.
        first: Block,
        /// How many.
        blocks: u64,
    },
    /// Blocks that two files have.
    #[error("file {ino} has {blocks} blocks from block {} of {} on, some of which another file has too", .first.index(), .first.member(), ino = .ino.0)]
    Twice {
        /// The file.
        ino: Ino,
        /// The first.
        first: Block,
        /// How many.
        blocks: u64,
    },
    /// More blocks are promised to files than the pool has.
    #[error("{0} blocks are promised to files, more than the pool has room for")]
    Promised(u64),
    /// An inode without a name, in a log that has lost some.
    #[error("inode {ino} has no name", ino = .0.0)]
    Nameless(Ino),
    /// An inode of which the log has lost a part: blocks, its size, or other things.
    #[error("inode {ino} has lost a part of what the log told of it", ino = .0.0)]
    Torn(Ino),
    /// Parts of the log that cannot be read.
    #[error("the log is damaged: {0}")]
    Log(String),
    /// A copy of a member's superblock is no superblock.
    #[error("the superblock at the {} of {member} is damaged", if *.at_end { "end" } else { "start" })]
    Superblock {
        /// The member.
        member: MemberId,
        /// Which copy.
        at_end: bool,
    },
}

impl Tables {
    /// Plays records as one group, to its end: what a log of nothing else leads to.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn of_records(records: &[u8]) -> Result<Self, Malformed> {
        let mut tables = Self::default();
        let (sequence, time_ns) = (1, 0);
        let records = Records::new(records);
        tables.play(&Shown {
            sequence,
            time_ns,
            records,
        })?;
        tables.finish(true);
        tables.drop_nameless();
        Ok(tables)
    }

    /// Plays one group.
    pub(crate) fn play(&mut self, group: &Shown<'_>) -> Result<(), Malformed> {
        for record in group.records.clone() {
            match record? {
                Record::Change(change) => self.change(group, &change),
                Record::Birth { ino, ns } => self.node(ino).times_ns[3] = ns,
                Record::Settled {
                    ino,
                    through,
                    at,
                    blocks,
                } => {
                    let node = self.node(ino);
                    node.settle(through.min(group.sequence));
                    node.bytes
                        .retain(|block, _| !(at..at.saturating_add(blocks)).contains(block));
                }
                Record::SettledAll { through } => self.settle_all(through),
                Record::Bytes { ino, at, bytes } => {
                    let node = self.node(ino);
                    for (block, bytes) in (at..).zip(bytes.chunks(BLOCK_BYTES)) {
                        node.bytes.insert(block, (group.sequence, bytes.into()));
                    }
                    self.unsettled.insert(ino);
                }
                Record::Opened { dropped } => {
                    if dropped {
                        self.drop_pending();
                    }
                }
                Record::LastInode { ino } => self.last = self.last.max(ino.0),
                Record::SnapshotEnd => self.has_snapshot_end = true,
                Record::Needs { .. } | Record::Next { .. } => {}
            }
        }
        Ok(())
    }

    /// Whether what was played so far ends as a snapshot does: all of it is settled.
    pub(crate) fn end_snapshot(&mut self) -> bool {
        self.settle_all(u64::MAX);
        std::mem::take(&mut self.has_snapshot_end)
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.inodes.entry(ino).or_default()
    }

    fn change(&mut self, group: &Shown<'_>, change: &Change<'_>) {
        let now_ns = group.time_ns;
        match *change {
            Change::Inode { ino, attributes } => {
                self.last = self.last.max(ino.0);
                let node = self.node(ino);
                if node.attributes.replace(attributes).is_none() {
                    node.times_ns = [now_ns; 4];
                    node.made = group.sequence;
                }
                node.times_ns[2] = now_ns;
            }
            Change::Target { ino, target } => self.node(ino).target = Some(target.into()),
            Change::Times {
                ino,
                atime_ns,
                mtime_ns,
                ctime_ns,
            } => {
                let node = self.node(ino);
                node.timed = group.sequence;
                for (time, new) in node.times_ns.iter_mut().zip([atime_ns, mtime_ns, ctime_ns]) {
                    *time = new.unwrap_or(*time);
                }
            }
            Change::Name { dir, name, ino } => {
                let met = self.names.entry(dir).or_default().insert(name.into(), ino);
                self.touch_names(dir, [Some(ino), met], now_ns);
            }
            Change::NoName { dir, name } => {
                let met = self.names.get_mut(&dir).and_then(|names| names.remove(name));
                self.touch_names(dir, [met, None], now_ns);
            }
            Change::Xattr { ino, name, value } => {
                let node = self.node(ino);
                node.xattrs.insert(name.into(), value.into());
                node.times_ns[2] = now_ns;
            }
            Change::NoXattr { ino, name } => {
                let node = self.node(ino);
                node.xattrs.remove(name);
                node.times_ns[2] = now_ns;
            }
            Change::Extent { ino, at, blocks, first } => {
                self.data_change(group, ino, DataChange::Extent { at, blocks, first });
            }
            Change::NoExtents { ino, at, blocks } => {
                self.data_change(group, ino, DataChange::NoExtents { at, blocks });
            }
            Change::Size { ino, bytes } => self.data_change(group, ino, DataChange::Size(bytes)),
            Change::Grown { ino, bytes } => self.data_change(group, ino, DataChange::Grown(bytes)),
            Change::Volume { name, ino } => drop(self.volumes.insert(name.into(), ino)),
            Change::NoVolume { name } => drop(self.volumes.remove(name)),
        }
    }

    /// A change of names in `dir` moves the directory's times, and those of what it names and named.
    fn touch_names(&mut self, dir: Ino, named: [Option<Ino>; 2], now_ns: i64) {
        for ino in named.into_iter().flatten() {
            self.node(ino).times_ns[2] = now_ns;
        }
        let times = &mut self.node(dir).times_ns;
        (times[1], times[2]) = (now_ns, now_ns);
    }

    fn data_change(&mut self, group: &Shown<'_>, ino: Ino, change: DataChange) {
        let node = self.node(ino);
        let pending = Pending {
            sequence: group.sequence,
            time_ns: group.time_ns,
            change,
        };
        // It has no bytes yet.
        let is_early = is_planted(Planted::EarlySize) && matches!(change, DataChange::Grown(_));
        if node.made == group.sequence || is_early {
            node.take_over(&pending);
        } else {
            node.pending.push(pending);
            self.unsettled.insert(ino);
        }
    }

    fn settle_all(&mut self, through: u64) {
        let inodes = &mut self.inodes;
        self.unsettled.retain(|ino| {
            let Some(node) = inodes.get_mut(ino) else { return false };
            node.settle(through);
            node.bytes
                .retain(|_, (sequence, _)| *sequence > through || is_planted(Planted::StaleBytes));
            !(node.pending.is_empty() && node.bytes.is_empty())
        });
    }

    /// Gives up what is not settled.
    fn drop_pending(&mut self) {
        for ino in self.unsettled.drain() {
            if let Some(node) = self.inodes.get_mut(&ino) {
                node.pending.clear();
                node.bytes.clear();
            }
        }
    }

    /// Ends playing. When `all_is_there`, what is not settled is taken over; else it is given up, and bytes that the log has
    /// are returned with their files and places.
    pub(crate) fn finish(&mut self, all_is_there: bool) -> Vec<(Ino, Block, Arc<[u8]>)> {
        let mut saved = Vec::new();
        for ino in &self.unsettled {
            let Some(node) = self.inodes.get_mut(ino) else { continue };
            if all_is_there {
                node.settle(u64::MAX);
                continue;
            }
            for (at, (_, bytes)) in &node.bytes {
                if let Some(place) = node.data.place(*at) {
                    saved.push((*ino, place, Arc::clone(bytes)));
                }
            }
        }
        self.drop_pending();
        saved
    }

    /// Drops what has no name: files that were removed while they were open.
    pub(crate) fn drop_nameless(&mut self) {
        let mut named: HashSet<Ino> = self.names.values().flat_map(BTreeMap::values).copied().collect();
        named.extend(self.volumes.values());
        named.insert(Ino::ROOT);
        // One with names in it is a fault, and stays to be found.
        let names = &self.names;
        let has_names = |ino: &Ino| names.get(ino).is_some_and(|names: &BTreeMap<_, _>| !names.is_empty());
        self.inodes.retain(|ino, _| named.contains(ino) || has_names(ino));
        self.names.retain(|dir, names| !names.is_empty() || named.contains(dir));
    }

    /// All faults of the tables. `is_free_for_files` tells whether blocks are a file's to have.
    #[must_use]
    pub fn check(&self, is_for_files: &dyn Fn(Block, u64) -> bool) -> Vec<Damage> {
        let mut damage = Vec::new();
        let is_directory = |ino: &Ino| {
            let attributes = self.inodes.get(ino).and_then(|node| node.attributes);
            attributes.is_some_and(|attributes| attributes.mode & attr::TYPE_MASK == attr::DIRECTORY)
        };
        if !is_directory(&Ino::ROOT) {
            damage.push(Damage::NoRoot);
        }
        let mut parents: HashMap<Ino, Ino> = HashMap::new();
        for (dir, names) in &self.names {
            if !is_directory(dir) && !names.is_empty() {
                damage.push(Damage::NoDirectory(*dir));
            }
            for (name, ino) in names {
                if check_name(name).is_err() {
                    damage.push(Damage::Name {
                        dir: *dir,
                        name: String::from_utf8_lossy(name).into_owned(),
                    });
                }
                if self.inodes.get(ino).is_none_or(|node| node.attributes.is_none()) {
                    damage.push(Damage::Dangling {
                        dir: *dir,
                        name: String::from_utf8_lossy(name).into_owned(),
                        ino: *ino,
                    });
                } else if is_directory(ino) && (*ino == Ino::ROOT || parents.insert(*ino, *dir).is_some()) {
                    damage.push(Damage::Shape(*ino));
                }
            }
        }
        damage.extend(self.unreached(&parents).map(Damage::Shape));
        let nameless = |dir: &&Ino| **dir != Ino::ROOT && is_directory(dir) && !parents.contains_key(dir);
        damage.extend(self.names.keys().filter(nameless).map(|dir| Damage::Shape(*dir)));
        let volumes: HashSet<Ino> = self.volumes.values().copied().collect();
        for (ino, node) in &self.inodes {
            match node.attributes {
                None => damage.push(Damage::NoAttributes(*ino)),
                Some(attributes) => {
                    let (kind, data) = (attributes.mode & attr::TYPE_MASK, &node.data);
                    if !fits(
                        kind,
                        volumes.contains(ino),
                        data.size,
                        data.end(),
                        node.target.is_some(),
                    ) {
                        damage.push(Damage::Body(*ino));
                    }
                }
            }
        }
        let mut named: HashSet<Ino> = if self.volumes.is_empty() {
            HashSet::new()
        } else {
            self.names.values().flat_map(BTreeMap::values).copied().collect()
        };
        for (name, ino) in &self.volumes {
            let attributes = self.inodes.get(ino).and_then(|node| node.attributes);
            let is_device =
                attributes.is_some_and(|attributes| attributes.mode & attr::TYPE_MASK == attr::BLOCK_DEVICE);
            // A second volume of the inode is none either.
            if !is_device || !named.insert(*ino) || check_volume_name(name).is_err() {
                damage.push(Damage::Volume(name.clone()));
            }
        }
        self.check_blocks(is_for_files, &mut damage);
        damage.sort_by_key(|damage| format!("{damage:?}"));
        damage
    }

    /// Directories from which no way leads up to the root.
    fn unreached<'a>(&'a self, parents: &'a HashMap<Ino, Ino>) -> impl Iterator<Item = Ino> + 'a {
        parents.keys().copied().filter(|ino| {
            let mut at = *ino;
            // A way up is no longer than there are directories.
            for _ in 0..=parents.len() {
                match parents.get(&at) {
                    Some(parent) => at = *parent,
                    None => return at != Ino::ROOT,
                }
            }
            true
        })
    }

    fn check_blocks(&self, is_for_files: &dyn Fn(Block, u64) -> bool, damage: &mut Vec<Damage>) {
        let mut all: Vec<(Block, u64, Ino)> = Vec::new();
        for (ino, node) in &self.inodes {
            for (blocks, first) in node.data.extents.values() {
                if let Some(first) = *first {
                    all.push((first, *blocks, *ino));
                }
            }
        }
        all.sort_unstable();
        let mut end = None;
        for (first, blocks, ino) in all {
            if !is_for_files(first, blocks) {
                damage.push(Damage::Outside { ino, first, blocks });
                continue;
            }
            if end.is_some_and(|end| first < end) {
                damage.push(Damage::Twice { ino, first, blocks });
            }
            end = end.max(Some(first.plus(blocks)));
        }
    }
}

/// Whether an inode of type `kind`, which may be a volume's, can have this size in bytes and blocks up to `end`.
pub(crate) fn fits(kind: u32, is_volume: bool, size: u64, end: u64, has_target: bool) -> bool {
    let is_empty = size == 0 && end == 0;
    match kind {
        attr::REGULAR => size <= FILE_BYTES_MAX,
        attr::BLOCK_DEVICE if is_volume => check_volume_size(size).is_ok() && end <= size / BLOCK_BYTES as u64,
        attr::SYMLINK => is_empty && has_target,
        attr::DIRECTORY | attr::BLOCK_DEVICE | attr::CHARACTER_DEVICE | attr::FIFO | attr::SOCKET => is_empty,
        _ => false,
    }
}

impl Node {
    /// Takes changes over that came with the groups up to `through`.
    fn settle(&mut self, through: u64) {
        let count = self.pending.partition_point(|pending| pending.sequence <= through);
        let settled: Vec<Pending> = self.pending.drain(..count).collect();
        settled.iter().for_each(|pending| self.take_over(pending));
    }

    fn take_over(&mut self, pending: &Pending) {
        let Self { data, bytes, .. } = self;
        match pending.change {
            DataChange::Extent { at, blocks, first } => {
                // Bytes that stay in their place are still what the log has.
                let stays = |block: &u64| first.map(|first| first.plus(block - at)) == data.place(*block);
                bytes.retain(|block, _| !(at..at + blocks).contains(block) || stays(block));
                data.cut(at, blocks);
                data.extents.insert(at, (blocks, first));
            }
            DataChange::NoExtents { at, blocks } => {
                data.cut(at, blocks);
                bytes.retain(|block, _| !(at..at + blocks).contains(block));
            }
            DataChange::Size(size) => data.size = size,
            DataChange::Grown(size) => data.size = data.size.max(size),
        }
        // What is taken over late must not move times that were set since.
        if pending.sequence > self.timed {
            (self.times_ns[1], self.times_ns[2]) = (pending.time_ns, pending.time_ns);
        }
    }
}

impl Data {
    /// Where the last extent ends, in blocks.
    fn end(&self) -> u64 {
        let last = self.extents.last_key_value();
        last.map_or(0, |(at, (blocks, _))| at + blocks)
    }

    /// The pool's block at file block `at`.
    fn place(&self, at: u64) -> Option<Block> {
        let (start, (blocks, first)) = self.extents.range(..=at).next_back()?;
        let into = at - start;
        first.filter(|_| into < *blocks).map(|first| first.plus(into))
    }

    /// Takes `blocks` file blocks from `at` on out.
    fn cut(&mut self, at: u64, blocks: u64) {
        let end = at.saturating_add(blocks);
        let before = self.extents.range(..at).next_back().map(|(start, _)| *start);
        let touched: Vec<u64> = before
            .into_iter()
            .chain(self.extents.range(at..end).map(|(start, _)| *start))
            .collect();
        for start in touched {
            let (count, first) = self.extents[&start];
            if start + count <= at {
                continue;
            }
            self.extents.remove(&start);
            if start < at {
                self.extents.insert(start, (at - start, first));
            }
            if start + count > end {
                let rest = first.map(|first| first.plus(end - start));
                self.extents.insert(end, (start + count - end, rest));
            }
        }
    }
}
