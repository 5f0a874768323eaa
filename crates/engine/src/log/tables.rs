//! The filesystem's tree as plain tables, made by playing the log.
//!
//! Names, attributes and extended attributes follow the log to its end. A file's blocks and size wait until they are settled: at the end they
//! are taken over when all that was stored is there, and given up when it may not be. So a file is after a power cut as it was when it
//! was settled last, but for bytes that were overwritten in place.
//!
//! A pool is opened as fast as this is played. `node` is what each inode costs, `names` what each name does.

mod by_number;
mod check;
mod names;
mod node;

pub use check::Damage;
pub(crate) use check::{Claim, Overview};
pub(crate) use names::{Name, Names};
pub use node::{Data, Extent, Extents, Node};
pub(crate) use node::{Rare, fits};

use super::codec::{Record, Records};
use super::planted::{Planted, is_planted};
use super::scan::Shown;
use super::{Change, Malformed};
use crate::fs::{Ino, attr};
use crate::{BLOCK_BYTES, Block};
use by_number::ByNumber;
pub(crate) use by_number::Places;
use names::Met;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The filesystem's tree.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Inodes by number, also such as have no name.
    nodes: ByNumber<Node>,
    /// Inodes by their places.
    kinds: Vec<Kind>,
    /// Places of those with names in them, some of them twice.
    directories: Vec<usize>,
    /// Names that lead to each, in the order of `nodes`; made when playing ends.
    named: Vec<Named>,
    /// Volumes by name.
    pub volumes: BTreeMap<Box<str>, Ino>,
    /// The last number that an inode had.
    pub last: u64,
    /// All that was stored is there: what is not settled counts at the end.
    all_is_there: bool,
    /// The inode that was made last, and its group's sequence number.
    made: Option<(Ino, u64)>,
    /// Files whose changes are not all settled, or whose bytes are in the log.
    unsettled: HashMap<Ino, Unsettled>,
    /// Faults of names, found when playing ends.
    found: Vec<Damage>,
    /// Inodes without a name are dropped.
    is_nameless_dropped: bool,
    /// Bytes of snapshots end here.
    has_snapshot_end: bool,
}

/// Names that lead to an inode, and what follows from the names in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named {
    /// How many names lead to it.
    pub(crate) links: u32,
    /// How many directories have a name in it.
    pub(crate) directories: u32,
    /// Bytes of the names that lead to it.
    pub(crate) name_bytes: u64,
    /// The directory that a directory's name is in; 0: none.
    parent: u64,
    pub(crate) kind: Kind,
    /// Whether there are names in it.
    has_names: bool,
    /// Whether it is a volume's.
    pub(crate) is_volume: bool,
}

/// Type of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Without attributes.
    #[default]
    Unknown,
    Directory,
    Other,
}

/// Changes and bytes of a file that wait.
#[derive(Clone, Debug, Default)]
struct Unsettled {
    /// Changes of size and blocks that are not settled, in order.
    pending: Vec<Pending>,
    /// Bytes that are in the log, by file block, with the group's number.
    bytes: BTreeMap<u64, (u64, Arc<[u8]>)>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    sequence: u64,
    time_ns: i64,
    change: DataChange,
}

#[derive(Clone, Copy, Debug)]
enum DataChange {
    Extent(Extent),
    NoExtents { at: u64, blocks: u64 },
    Size(u64),
    Grown(u64),
}

impl Named {
    /// The directory that a directory's name is in.
    pub(crate) fn parent(&self) -> Option<Ino> {
        (self.parent > 0).then_some(Ino(self.parent))
    }

    /// Whether it is the root, or has a name. One with names in it is a fault without its own, and stays to be found.
    fn is_reached(&self, ino: Ino) -> bool {
        self.links > 0 || self.has_names || self.is_volume || ino == Ino::ROOT
    }
}

impl Tables {
    /// Empty tables. `all_is_there` tells that nothing that was stored is lost.
    pub(crate) fn new(all_is_there: bool) -> Self {
        Self {
            all_is_there,
            ..Self::default()
        }
    }

    /// Plays records as one group, to its end: what a log of nothing else leads to.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn of_records(records: &[u8]) -> Result<Self, Malformed> {
        let mut tables = Self::new(true);
        let (sequence, time_ns) = (1, 0);
        let records = Records::new(records);
        tables.play(Shown {
            sequence,
            time_ns,
            records,
        })?;
        tables.finish();
        tables.drop_nameless();
        Ok(tables)
    }

    /// All inodes.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, &Node)> {
        let all = self.nodes.iter().zip(&self.named);
        let live = all.filter(|((ino, _), named)| self.is_live(*ino, named));
        live.map(|((ino, node), _)| (*ino, node))
    }

    /// The inodes by their places, each with what leads to it; `None` for those that are dropped. And where each number's is.
    pub(crate) fn into_inodes(self) -> (Places, impl Iterator<Item = Option<(Ino, Node, Named)>>) {
        let keeps_all = !self.is_nameless_dropped;
        let (places, nodes) = self.nodes.into_parts();
        let all = nodes.zip(self.named);
        let live = move |((ino, node), named): ((Ino, Node), Named)| {
            (keeps_all || named.is_reached(ino)).then_some((ino, node, named))
        };
        (places, all.map(live))
    }

    /// Plays one group of a snapshot: it comes before all of the tail, whose groups are numbered apart.
    pub(crate) fn play_snapshot(&mut self, group: Shown<'_>) -> Result<(), Malformed> {
        self.play(Shown { sequence: 0, ..group })
    }

    pub(crate) fn play(&mut self, group: Shown<'_>) -> Result<(), Malformed> {
        let (sequence, now_ns) = (group.sequence, group.time_ns);
        for record in group.records {
            match record? {
                Record::Change(change) => self.change(sequence, now_ns, &change),
                Record::Birth { ino, ns } => self.node(ino).times_ns[3] = ns,
                Record::Settled {
                    ino,
                    through,
                    at,
                    blocks,
                } => self.settle(ino, through.min(sequence), &(at..at.saturating_add(blocks))),
                Record::SettledAll { through } => self.settle_all(through),
                // In their place already, as all that was stored.
                Record::Bytes { .. } if self.all_is_there => {}
                Record::Bytes { ino, at, bytes } => {
                    let saved = &mut self.unsettled.entry(ino).or_default().bytes;
                    for (block, bytes) in (at..).zip(bytes.chunks(BLOCK_BYTES)) {
                        saved.insert(block, (sequence, bytes.into()));
                    }
                }
                Record::Opened { dropped } => {
                    if dropped {
                        self.unsettled.clear();
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
        self.nodes.get_or_insert(ino)
    }

    fn change(&mut self, sequence: u64, now_ns: i64, change: &Change<'_>) {
        match *change {
            Change::Inode { ino, attributes } => {
                self.last = self.last.max(ino.0);
                let place = self.nodes.place_or_insert(ino);
                if self.kinds.len() <= place {
                    self.kinds.resize(place + 1, Kind::Unknown);
                }
                self.kinds[place] = match attributes.mode & attr::TYPE_MASK {
                    attr::DIRECTORY => Kind::Directory,
                    _ => Kind::Other,
                };
                let node = self.nodes.at_mut(place);
                if node.attributes.replace(attributes).is_none() {
                    node.times_ns = [now_ns; 4];
                    self.made = Some((ino, sequence));
                }
                node.touch(sequence, now_ns);
            }
            Change::Target { ino, target } => self.node(ino).rare().target = Some(target.into()),
            Change::Times {
                ino,
                atime_ns,
                mtime_ns,
                ctime_ns,
            } => {
                let node = self.node(ino);
                node.timed = sequence;
                for (time, new) in node.times_ns.iter_mut().zip([atime_ns, mtime_ns]) {
                    *time = new.unwrap_or(*time);
                }
                if let Some(ns) = ctime_ns {
                    node.touch(sequence, ns);
                }
            }
            Change::Name { dir, name, ino } => {
                self.names(dir, sequence, now_ns).put(name, ino, sequence, now_ns);
                // An inode that comes later has its own times.
                if let Some(node) = self.nodes.get_mut(ino) {
                    node.touch(sequence, now_ns);
                }
            }
            Change::NoName { dir, name } => {
                let mut all = Vec::new();
                let names = self.names(dir, sequence, now_ns);
                names.remove(name, sequence, now_ns, &mut |met| all.push(met));
                self.touch_met(all);
            }
            Change::Xattr { ino, name, value } => {
                let node = self.node(ino);
                node.rare().xattrs.insert(name.into(), value.into());
                node.touch(sequence, now_ns);
            }
            Change::NoXattr { ino, name } => {
                let node = self.node(ino);
                node.rare().xattrs.remove(name);
                node.touch(sequence, now_ns);
            }
            Change::Extent { ino, at, blocks, first } => {
                self.data_change(
                    sequence,
                    now_ns,
                    ino,
                    DataChange::Extent(Extent::new(at, blocks, first)),
                );
            }
            Change::NoExtents { ino, at, blocks } => {
                self.data_change(sequence, now_ns, ino, DataChange::NoExtents { at, blocks });
            }
            Change::Size { ino, bytes } => self.data_change(sequence, now_ns, ino, DataChange::Size(bytes)),
            Change::Grown { ino, bytes } => self.data_change(sequence, now_ns, ino, DataChange::Grown(bytes)),
            Change::Volume { name, ino } => drop(self.volumes.insert(name.into(), ino)),
            Change::NoVolume { name } => drop(self.volumes.remove(name)),
        }
    }

    /// The names of a directory that is being changed.
    fn names(&mut self, dir: Ino, sequence: u64, now_ns: i64) -> &mut Names {
        let place = self.nodes.place_or_insert(dir);
        let node = self.nodes.at_mut(place);
        node.times_ns[1] = now_ns;
        node.touch(sequence, now_ns);
        let names = &mut node.rare().names;
        if names.as_slice().is_empty() {
            self.directories.push(place);
        }
        names
    }

    /// Moves times of change of what lost a name, where nothing has moved them since.
    fn touch_met(&mut self, all: Vec<Met>) {
        for met in all {
            if let Some(node) = self.nodes.get_mut(met.ino)
                && node.changed < met.sequence
            {
                node.touch(met.sequence, met.time_ns);
            }
        }
    }

    fn data_change(&mut self, sequence: u64, time_ns: i64, ino: Ino, change: DataChange) {
        let node = self.nodes.get_or_insert(ino);
        let pending = Pending {
            sequence,
            time_ns,
            change,
        };
        // It has no bytes yet.
        let is_early = is_planted(Planted::EarlySize) && matches!(change, DataChange::Grown(_));
        if self.made == Some((ino, sequence)) || is_early {
            node.take_over(&pending);
        } else {
            self.unsettled.entry(ino).or_default().pending.push(pending);
        }
    }

    /// A file's changes up to `through` are settled, and the bytes of some of its blocks are in their place.
    fn settle(&mut self, ino: Ino, through: u64, in_place: &Range<u64>) {
        let Some(unsettled) = self.unsettled.get_mut(&ino) else {
            return;
        };
        unsettled.settle(self.nodes.get_or_insert(ino), through);
        unsettled.forget_bytes(in_place, |_| false);
        if unsettled.is_empty() {
            self.unsettled.remove(&ino);
        }
    }

    fn settle_all(&mut self, through: u64) {
        let nodes = &mut self.nodes;
        self.unsettled.retain(|ino, unsettled| {
            unsettled.settle(nodes.get_or_insert(*ino), through);
            unsettled
                .bytes
                .retain(|_, (sequence, _)| *sequence > through || is_planted(Planted::StaleBytes));
            !unsettled.is_empty()
        });
    }

    /// Ends playing. When all is there, what is not settled is taken over; else it is given up, and bytes that the log has
    /// are returned with their files and places.
    pub(crate) fn finish(&mut self) -> Vec<(Ino, Block, Arc<[u8]>)> {
        let mut saved = Vec::new();
        for (ino, mut unsettled) in std::mem::take(&mut self.unsettled) {
            let Some(node) = self.nodes.get_mut(ino) else { continue };
            if self.all_is_there {
                unsettled.settle(node, u64::MAX);
                continue;
            }
            for (at, (_, bytes)) in unsettled.bytes {
                if let Some(place) = node.data.extents.place(at) {
                    saved.push((ino, place, bytes));
                }
            }
        }
        self.sort_names();
        self.count_names();
        saved
    }

    /// Drops what has no name: files that were removed while they were open.
    pub(crate) fn drop_nameless(&mut self) {
        self.is_nameless_dropped = true;
    }

    fn is_live(&self, ino: Ino, named: &Named) -> bool {
        !self.is_nameless_dropped || named.is_reached(ino)
    }

    fn sort_names(&mut self) {
        self.directories.sort_unstable();
        self.directories.dedup();
        let mut all = Vec::new();
        for place in &self.directories {
            let (dir, found) = (self.nodes.at(*place).0, &mut self.found);
            let names = &mut self.nodes.at_mut(*place).rare().names;
            names.finish(&mut |met| all.push(met), &mut |name| {
                found.push(Damage::name(dir, name))
            });
        }
        self.touch_met(all);
    }

    /// Makes `named`.
    fn count_names(&mut self) {
        self.kinds.resize(self.nodes.len(), Kind::Unknown);
        let of_kind = |kind: &Kind| Named {
            kind: *kind,
            ..Named::default()
        };
        let mut named: Vec<Named> = self.kinds.iter().map(of_kind).collect();
        for place in &self.directories {
            let (dir, node) = self.nodes.at(*place);
            let mut directories = 0;
            for (name, ino) in node.names() {
                let target = self.nodes.place(ino).map(|place| &mut named[place]);
                if target.as_ref().is_none_or(|target| target.kind == Kind::Unknown) {
                    self.found.push(Damage::dangling(*dir, name, ino));
                }
                let Some(target) = target else { continue };
                target.links += 1;
                target.name_bytes += name.len() as u64;
                if target.kind == Kind::Directory {
                    target.parent = dir.0;
                    directories += 1;
                }
            }
            named[*place].directories = directories;
            named[*place].has_names = node.names().next().is_some();
        }
        for place in self.volumes.values().filter_map(|ino| self.nodes.place(*ino)) {
            named[place].is_volume = true;
        }
        self.named = named;
    }
}

impl Unsettled {
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.bytes.is_empty()
    }

    /// Has the node take changes over that came with the groups up to `through`.
    fn settle(&mut self, node: &mut Node, through: u64) {
        let count = self.pending.partition_point(|pending| pending.sequence <= through);
        if count == 0 {
            return;
        }
        let mut settled = std::mem::take(&mut self.pending);
        self.pending = settled.split_off(count);
        for pending in settled {
            match pending.change {
                DataChange::Extent(extent) => {
                    // Bytes that stay in their place are still what the log has.
                    let place = |block| extent.first().map(|first| first.plus(block - extent.at));
                    let extents = &node.data.extents;
                    self.forget_bytes(&extent.file_blocks(), |block| place(block) == extents.place(block));
                }
                DataChange::NoExtents { at, blocks } => self.forget_bytes(&(at..at + blocks), |_| false),
                DataChange::Size(_) | DataChange::Grown(_) => {}
            }
            node.take_over(&pending);
        }
    }

    /// Forgets the log's bytes of blocks in `range`, but of such as stay.
    fn forget_bytes(&mut self, range: &Range<u64>, stays: impl Fn(u64) -> bool) {
        if self.bytes.is_empty() || range.is_empty() {
            return;
        }
        let gone = self.bytes.range(range.clone()).map(|(block, _)| *block);
        let gone: Vec<u64> = gone.filter(|block| !stays(*block)).collect();
        for block in gone {
            self.bytes.remove(&block);
        }
    }
}

impl Node {
    fn take_over(&mut self, pending: &Pending) {
        let data = &mut self.data;
        match pending.change {
            DataChange::Extent(extent) => data.extents.put(extent),
            DataChange::NoExtents { at, blocks } => data.extents.cut(at, blocks),
            DataChange::Size(size) => data.size = size,
            DataChange::Grown(size) => data.size = data.size.max(size),
        }
        // What is taken over late must not move times that were set since.
        if pending.sequence > self.timed {
            self.times_ns[1] = pending.time_ns;
            self.touch(self.changed.max(pending.sequence), pending.time_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec;
    use super::*;
    use crate::log::Attributes;

    const FILE: Ino = Ino(2);

    fn inode(ino: Ino, kind: u32) -> Change<'static> {
        let attributes = Attributes {
            mode: kind | 0o700,
            uid: 0,
            gid: 0,
            rdev: 0,
            placement: None,
        };
        Change::Inode { ino, attributes }
    }

    fn name(dir: Ino, name: &[u8], ino: Ino) -> Change<'_> {
        Change::Name { dir, name, ino }
    }

    /// Tables of groups, each at the time of its number.
    fn play(groups: &[&[Change<'_>]]) -> Tables {
        let mut tables = Tables::new(true);
        for (nth, group) in (1..).zip(groups) {
            let mut bytes = Vec::new();
            let records = group.iter().map(|change| Record::Change(*change));
            records.for_each(|record| codec::encode(&mut bytes, &record));
            let group = Shown {
                sequence: nth,
                time_ns: i64::try_from(nth).expect("the number is small"),
                records: Records::new(&bytes),
            };
            tables.play(group).expect("the group holds records");
        }
        tables.finish();
        tables.drop_nameless();
        tables
    }

    fn changed_ns(tables: &Tables, ino: Ino) -> i64 {
        let mut all = tables.inodes();
        all.find(|(found, _)| *found == ino).expect("it has a name").1.times_ns[2]
    }

    #[test]
    fn losing_a_name_updates_the_change_time_unless_it_is_later() {
        let root = inode(Ino::ROOT, attr::DIRECTORY);
        let made = [
            root,
            inode(FILE, attr::REGULAR),
            name(Ino::ROOT, b"a", FILE),
            name(Ino::ROOT, b"b", FILE),
        ];
        let removed = Change::NoName {
            dir: Ino::ROOT,
            name: b"a",
        };
        assert_eq!(changed_ns(&play(&[&made, &[removed]]), FILE), 2);
        let other = [inode(Ino(3), attr::REGULAR), name(Ino::ROOT, b"a", Ino(3))];
        assert_eq!(changed_ns(&play(&[&made, &other]), FILE), 2, "the name was replaced");
        let set = Change::Times {
            ino: FILE,
            atime_ns: None,
            mtime_ns: None,
            ctime_ns: Some(77),
        };
        assert_eq!(changed_ns(&play(&[&made, &[removed], &[set]]), FILE), 77);
    }

    #[test]
    fn a_name_may_precede_its_inode_and_keeps_the_inodes_times() {
        let names = [inode(Ino::ROOT, attr::DIRECTORY), name(Ino::ROOT, b"a", FILE)];
        let tables = play(&[&names, &[inode(FILE, attr::REGULAR)]]);
        assert_eq!(changed_ns(&tables, FILE), 2);
        assert!(tables.check(&|_, _| true).is_empty());
    }

    #[test]
    fn directory_cycles_are_found_and_a_long_chain_is_sound() {
        let mut all = vec![inode(Ino::ROOT, attr::DIRECTORY)];
        for ino in 2..100_000 {
            all.push(inode(Ino(ino), attr::DIRECTORY));
            all.push(name(Ino(ino - 1), b"d", Ino(ino)));
        }
        assert!(play(&[&all]).check(&|_, _| true).is_empty());
        let circle = [
            inode(Ino::ROOT, attr::DIRECTORY),
            inode(Ino(2), attr::DIRECTORY),
            inode(Ino(3), attr::DIRECTORY),
            inode(Ino(4), attr::DIRECTORY),
            name(Ino(2), b"d", Ino(3)),
            name(Ino(3), b"d", Ino(2)),
            name(Ino(3), b"e", Ino(4)),
        ];
        let damage = play(&[&circle]).check(&|_, _| true);
        assert_eq!(damage, [2, 3, 4].map(|ino| Damage::Shape(Ino(ino))));
    }
}
