//! A durable pool's filesystem: made anew, and made again from its log.

use super::attr::{DIRECTORY, REGULAR, SYMLINK, TYPE_MASK};
use super::block_file::BlockFile;
use super::directory::{Directory, Entries};
use super::inode::{Body, Inode, State, Xattrs};
use super::metadata::{DIRECTORY_BYTES, inode_bytes, inode_bytes_with, names_bytes, node_bytes, xattr_bytes};
use super::placement::Policy;
use super::table::Batch;
use super::volume::Volume;
use super::{Error, Fs, Ino, NewInode};
use crate::log::planted::{Planted, is_planted};
use crate::log::{
    Change, Claim, Damage, Data, Extent, Features, GENERATIONS_BEHIND_MAX, Head, Journal, Kind, LogOptions,
    MemberRecord, Name, Named, Names, Node, Overview, Rare, Record, Segment, Shown, Superblock, Tables, Tail,
    Unreadable, claimed_behind, first_superblock, overlap, repair_superblocks, revoke, scan,
};
use crate::memory::by_member;
use crate::pool::{Machine, MemberKind};
use crate::{BLOCK_BYTES, Block, Clock, MemberId, Memory, MemoryError, NodeId};
use homenode_shared::{Asker, BlockMap, RUN_BLOCKS, Taker};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Why a durable pool cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A member cannot be read or written.
    #[error("a member of the pool cannot be read or written: its disk fails, or has no room for a file with holes")]
    Io,
    /// The log's snapshot is not whole.
    #[error("the snapshot of the pool's log is incomplete: run homenode fsck")]
    NoSnapshot,
    /// The log holds what cannot be.
    #[error("{0}: run homenode fsck")]
    Log(String),
    /// The tree that the log leads to is not sound.
    #[error("{first}, and {more} more faults: run homenode fsck", first = .0[0], more = .0.len() - 1)]
    Damaged(Vec<Damage>),
    /// A part of the log cannot be read.
    #[error("the pool's log on {0} cannot be read: run homenode fsck")]
    Unreadable(MemberId),
    /// Names, attributes and block maps need more memory than they may take.
    #[error(
        "names, attributes and block maps of the pool need {needs} bytes of memory, but the limit is {limit}: raise it (--metadata {more}M)",
        more = .needs.saturating_mul(2).div_ceil(1 << 20)
    )]
    Metadata {
        /// Bytes that they need.
        needs: u64,
        /// Their limit, in bytes.
        limit: u64,
    },
    /// This version may only read the pool.
    #[error("the pool uses `{0}`, so this version of Homenode may only read it: mount it read-only")]
    ReadOnly(Box<str>),
    /// A repair finds no room for its snapshot.
    #[error("the pool has no room for a new log of {0} bytes")]
    NoRoom(u64),
    /// A new pool is too small for a log.
    #[error("the pool is too small: its log does not fit")]
    TooSmall,
    /// It has more inodes than the machine's limit.
    #[error(
        "the pool has {0} inodes, and this machine allows {1}: half of fs.file-max, which `sysctl fs.file-max=N` raises, or one for each 4 KiB of \
         memory if that is less"
    )]
    TooManyFiles(u64, u64),
}

/// Makes durable what a process stored that was killed under this `witness`. Where some of that is lost the kernel says so once: from then on it is as
/// after a power cut.
pub(super) fn persist_life<M: Memory>(memory: &M, superblock: &Superblock, witness: u128) -> Result<(), MemoryError> {
    if superblock.witness != witness {
        return Ok(());
    }
    let mut members = superblock.members.iter();
    let persisted = members.try_for_each(|member| memory.persist_all(member.id));
    persisted.inspect_err(|_| {
        if repair_superblocks(memory, superblock).is_ok() {
            revoke(memory, &mut superblock.clone(), false);
        }
    })
}

/// Fails when a feature is in use that those who write must know, and that is not known here.
pub(super) fn require_writable(features: Features) -> Result<(), OpenError> {
    features
        .not_to_write()
        .map_or(Ok(()), |name| Err(OpenError::ReadOnly(name)))
}

impl From<MemoryError> for OpenError {
    fn from(MemoryError: MemoryError) -> Self {
        Self::Io
    }
}

impl From<Error> for OpenError {
    fn from(_: Error) -> Self {
        Self::Io
    }
}

impl From<Unreadable> for OpenError {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Memory(member) => Self::Unreadable(member),
            other => Self::Log(other.to_string()),
        }
    }
}

/// The filesystem's tree as the log has it, and where the log ends.
#[derive(Debug)]
pub struct Replayed {
    /// The tree.
    pub tables: Tables,
    /// Bytes that the log has and that may not be where they belong, with their places.
    pub(super) saved: Vec<(Ino, Block, Arc<[u8]>)>,
    pub(super) snapshot: Vec<Segment>,
    pub(super) tail: Tail,
    /// A group that was durable, as one behind the log's end tells; 0 when there is none.
    pub(super) claimed: u64,
    pub(super) all_is_there: bool,
}

/// Blocks of a segment at most: 16 MiB, which is more than any log has. A made-up superblock costs no more memory.
const SEGMENT_BLOCKS_MAX: u32 = 4096;

/// Whether a segment can be one: it lies in the members, and holds no superblock.
pub(super) fn within(superblock: &Superblock, (first, blocks): Segment) -> bool {
    let member = superblock.members.iter().find(|member| member.id == first.member());
    let end = first.index() + u64::from(blocks);
    blocks <= SEGMENT_BLOCKS_MAX && member.is_some_and(|member| first.index() > 0 && end < member.blocks)
}

impl Replayed {
    /// Plays the log of the pool whose superblock this is. What is not settled counts when the superblock's witness is `witness`.
    ///
    /// # Errors
    /// [`OpenError`] when there is no log that can be played; the tree itself is not checked.
    pub fn read<M: Memory>(memory: &M, superblock: &Superblock, witness: u128) -> Result<Self, OpenError> {
        let is_within = |segment| within(superblock, segment);
        let all_is_there = superblock.witness == witness;
        let mut tables = Tables::new(all_is_there);
        let snapshot = scan(memory, superblock.snapshot, u64::MAX, &is_within, &mut |group| {
            tables.play_snapshot(group)
        })?;
        if !tables.end_snapshot() {
            return Err(OpenError::NoSnapshot);
        }
        // Nothing of the snapshot's is the tail's.
        let is_within = |segment| is_within(segment) && snapshot.segments.iter().all(|one| !overlap(*one, segment));
        let (until, end) = if all_is_there {
            (u64::MAX, None)
        } else {
            let (last, scanned) = last_met(memory, superblock.tail, &is_within);
            (last, Some(scanned?))
        };
        let tail = scan(memory, superblock.tail, until, &is_within, &mut |group| {
            tables.play(group)
        })?;
        let claimed = claimed_behind(memory, end.as_ref().unwrap_or(&tail), superblock.tail.nonce, &is_within);
        let saved = tables.finish();
        tables.drop_nameless();
        Ok(Self {
            tables,
            saved,
            snapshot: snapshot.segments,
            tail,
            claimed,
            all_is_there,
        })
    }

    /// The fault of a log that ends before a group that was durable; `None` when it does not.
    pub(super) fn cut_short(&self, superblock: &Superblock) -> Option<String> {
        let (found, end) = (self.tail.sequence, superblock.end.max(self.claimed));
        (found < end)
            .then(|| format!("the log ends at group {found}, but reached at least {end}: later changes are lost"))
    }

    /// All faults of the tree.
    #[must_use]
    pub fn check(&self, superblock: &Superblock) -> Vec<Damage> {
        self.look_over(superblock, &mut |_, _| {}).damage
    }

    /// [`Replayed::check`], with what else is seen on the way. Shows each inode, with what leads to it.
    fn look_over(&self, superblock: &Superblock, show: &mut dyn FnMut(&Node, &Named)) -> Overview {
        let mut segments: Vec<Segment> = self.segments().collect();
        segments.sort_unstable();
        let is_for_files = |first: Block, blocks: u64| {
            let member = superblock.members.iter().find(|member| member.id == first.member());
            let end = first.index() + blocks;
            let is_inside = member.is_some_and(|member| first.index() > 0 && end < member.blocks);
            // The last one that begins before these end: segments do not overlap.
            let before = segments.partition_point(|(at, _)| *at < first.plus(blocks));
            let segment = before.checked_sub(1).map(|nth| segments[nth]);
            is_inside && segment.is_none_or(|(at, count)| at.plus(count.into()) <= first)
        };
        let mut overview = self.tables.look_over(&is_for_files, show);
        let placed = overview.claims.iter().map(|(_, blocks, _)| *blocks);
        let needed = placed.fold(overview.promised, u64::saturating_add);
        if overview.promised > 0 && needed > self.blocks_for_files(superblock) {
            overview.damage.push(Damage::Promised(overview.promised));
        }
        overview
    }

    /// Blocks that are neither superblocks nor the log's.
    pub(super) fn blocks_for_files(&self, superblock: &Superblock) -> u64 {
        let members = superblock.members.iter().map(|member| member.blocks.saturating_sub(2));
        let log: u64 = self.segments().map(|(_, blocks)| u64::from(blocks)).sum();
        members.sum::<u64>().saturating_sub(log)
    }

    /// Segments of the log.
    fn segments(&self) -> impl Iterator<Item = Segment> {
        self.snapshot.iter().chain(&self.tail.segments).copied()
    }

    /// Blocks in use of each member: superblocks, the log and files; ascending.
    fn used(&self, superblock: &Superblock, claims: &[Claim]) -> HashMap<MemberId, Vec<Range<u64>>> {
        let mut used: HashMap<MemberId, Vec<Range<u64>>> = HashMap::new();
        let mut add = |first: Block, blocks: u64| {
            let range = first.index()..first.index() + blocks;
            used.entry(first.member()).or_default().push(range);
        };
        for member in &superblock.members {
            add(Block::new(member.id, 0), 1);
            add(Block::new(member.id, member.blocks - 1), 1);
        }
        self.segments().for_each(|(first, blocks)| add(first, blocks.into()));
        claims.iter().for_each(|(first, blocks, _)| add(*first, *blocks));
        used.values_mut()
            .for_each(|ranges| ranges.sort_by_key(|range| range.start));
        used
    }
}

/// The last group before the first one that needs changes which were never settled, in the part of the log that can be read, and its end.
pub(super) fn last_met<M: Memory>(
    memory: &M,
    head: Head,
    is_within: &dyn Fn(Segment) -> bool,
) -> (u64, Result<Tail, Unreadable>) {
    let mut needs = Needs::default();
    let scanned = scan(memory, head, u64::MAX, is_within, &mut |group: Shown<'_>| {
        for record in group.records {
            match record? {
                Record::Needs { ino } => needs.note(ino, group.sequence),
                Record::Settled { ino, through, .. } => needs.settle(ino, through.min(group.sequence), group.sequence),
                Record::SettledAll { through } => needs.settle_all(through, group.sequence),
                Record::Change(
                    Change::Extent { ino, .. }
                    | Change::NoExtents { ino, .. }
                    | Change::Size { ino, .. }
                    | Change::Grown { ino, .. },
                ) => drop(needs.changed.insert(ino, group.sequence)),
                _ => {}
            }
        }
        Ok(())
    });
    (needs.last_met(), scanned)
}

/// Groups that count only when changes of a file are settled, as the log tells of them.
#[derive(Default)]
struct Needs {
    /// Group of each file's last change so far.
    changed: HashMap<Ino, u64>,
    settled: HashMap<Ino, u64>,
    settled_all: u64,
    /// Needs by file: the group that needs, and the group of the change that it needs.
    unmet: HashMap<Ino, Vec<(u64, u64)>>,
    /// The group that needed, and the group that settled it.
    met: Vec<(u64, u64)>,
}

impl Needs {
    fn note(&mut self, ino: Ino, sequence: u64) {
        let last = self.changed.get(&ino).copied().unwrap_or(0);
        let settled = self.settled.get(&ino).copied().unwrap_or(0).max(self.settled_all);
        if settled < last {
            self.unmet.entry(ino).or_default().push((sequence, last));
        }
    }

    fn settle(&mut self, ino: Ino, through: u64, at: u64) {
        self.settled.insert(ino, through);
        if let Some(unmet) = self.unmet.get_mut(&ino) {
            self.met.extend(
                unmet
                    .extract_if(.., |(_, last)| *last <= through)
                    .map(|(need, _)| (need, at)),
            );
        }
    }

    fn settle_all(&mut self, through: u64, at: u64) {
        self.settled_all = through;
        for unmet in self.unmet.values_mut() {
            self.met.extend(
                unmet
                    .extract_if(.., |(_, last)| *last <= through)
                    .map(|(need, _)| (need, at)),
            );
        }
        self.unmet.retain(|_, unmet| !unmet.is_empty());
    }

    /// The last group that counts. What settles counts no more than others behind a group whose need is not met: so a cut can bring another
    /// one before it.
    fn last_met(mut self) -> u64 {
        let unmet = self.unmet.into_values().flatten();
        let mut end = unmet.map(|(need, _)| need).min().unwrap_or(u64::MAX);
        self.met.sort_unstable();
        for (need, at) in self.met.into_iter().rev() {
            if need < end && at >= end {
                end = need;
            }
        }
        if end == u64::MAX { end } else { end - 1 }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Makes a new durable pool of `members`, each with its home, and its empty filesystem. The memory behind them is there.
    ///
    /// # Errors
    /// [`OpenError::TooSmall`], [`OpenError::Io`].
    ///
    /// # Panics
    /// Without a member, or with more than a superblock has room for.
    pub fn format(
        machine: &Machine,
        memory: M,
        clock: C,
        root: NewInode,
        options: LogOptions,
        members: &[(MemberRecord, NodeId)],
    ) -> Result<Self, OpenError> {
        assert!(options.segment_blocks <= SEGMENT_BLOCKS_MAX, "{options:?}");
        let now_ns = clock.now_ns();
        let mut fs = Self::without_log(machine, memory, clock, Arc::new(super::new_root(now_ns)), 1);
        for (member, home) in members {
            let ends = [0..1, member.blocks - 1..member.blocks];
            if member.blocks < 2 {
                return Err(OpenError::TooSmall);
            }
            fs.pool.restore(member.id, member.kind, *home, member.blocks, &ends);
        }
        let segment = || {
            let first = fs.pool.take_whole(options.segment_blocks.into());
            first
                .map(|first| (first, options.segment_blocks))
                .ok_or(OpenError::TooSmall)
        };
        let (snapshot, tail) = (segment()?, segment()?);
        let records = members.iter().map(|(member, _)| *member).collect();
        let superblock = first_superblock(&options, records, [snapshot, tail]);
        let end = Tail {
            segments: vec![tail],
            at: 0,
            sequence: 0,
            crc: superblock.tail.seed,
            has_unread: false,
        };
        let journal = Journal::new(options, superblock, vec![snapshot], end);
        journal.opened();
        if !journal.fill_spare(&fs.pool) {
            return Err(OpenError::TooSmall);
        }
        fs.journal = Some(Box::new(journal));
        fs.put_root(root);
        fs.begin()?;
        Ok(fs)
    }

    /// Opens the durable pool whose superblock this is; `home_of` tells each member's home. What was not durable counts when
    /// the superblock's witness is `options.witness`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_durable(
        machine: &Machine,
        memory: M,
        clock: C,
        options: LogOptions,
        superblock: Superblock,
        home_of: &dyn Fn(MemberId) -> NodeId,
    ) -> Result<Self, OpenError> {
        require_writable(superblock.features)?;
        let (mut fs, replayed) = Self::restored(machine, memory, clock, &options, &superblock, home_of)?;
        persist_life(fs.pool.memory(), &superblock, options.witness)?;
        let Replayed {
            saved,
            snapshot,
            tail,
            all_is_there,
            ..
        } = replayed;
        repair_superblocks(fs.pool.memory(), &superblock)?;
        let mut places = Vec::with_capacity(saved.len());
        for (_, place, bytes) in saved {
            // Whole blocks: one that a power cut has torn may be unreadable until then.
            fs.pool.memory().store_clean(place, 0, &bytes)?;
            places.push((place, bytes.len()));
        }
        by_member(&mut places).try_for_each(|places| fs.pool.memory().persist_each(places))?;
        // A killed process may have left groups in the processor's caches. Those behind them are acknowledged from here on.
        for (first, blocks) in snapshot.iter().chain(&tail.segments) {
            if fs.pool.kind(first.member()) == Some(MemberKind::Pmem) {
                fs.pool.memory().persist(*first, 0, *blocks as usize * BLOCK_BYTES)?;
            }
        }
        let is_to_be_left = tail.has_unread;
        let mut journal = Journal::new(options, superblock, snapshot, tail);
        journal.fill_at_opening(&fs.pool);
        fs.journal = Some(Box::new(journal));
        let journal = fs.journal.as_deref().expect("the journal was set above");
        if is_to_be_left {
            journal.go_on(&fs.pool, fs.now_ns())?;
        }
        let dropped = !all_is_there && !is_planted(Planted::DroppedComeBack);
        let opened = Record::Opened { dropped };
        journal.append_records(&fs.pool, fs.now_ns(), [opened].into_iter());
        fs.begin()?;
        Ok(fs)
    }

    /// Opens a durable pool as [`Fs::open_durable`] does, to be read only. Bytes of the log that a power cut has kept from their
    /// places are [shown there](Memory::show_instead). Bytes that are not there, as on a missing member, are errors when
    /// they are read.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_to_read(
        machine: &Machine,
        memory: M,
        clock: C,
        options: LogOptions,
        superblock: Superblock,
        home_of: &dyn Fn(MemberId) -> NodeId,
    ) -> Result<Self, OpenError> {
        let (mut fs, replayed) = Self::restored(machine, memory, clock, &options, &superblock, home_of)?;
        let saved = replayed.saved.into_iter();
        let saved = saved.map(|(_, place, bytes)| (place, bytes)).collect();
        fs.pool.memory().show_instead(saved)?;
        let journal = Journal::new(options, superblock, replayed.snapshot, replayed.tail);
        fs.journal = Some(Box::new(journal.read_only()));
        Ok(fs)
    }

    /// The filesystem that the log leads to, without a journal, and what else was read.
    fn restored(
        machine: &Machine,
        memory: M,
        clock: C,
        options: &LogOptions,
        superblock: &Superblock,
        home_of: &dyn Fn(MemberId) -> NodeId,
    ) -> Result<(Self, Replayed), OpenError> {
        let mut replayed = Replayed::read(&memory, superblock, options.witness)?;
        if let Some(fault) = replayed.cut_short(superblock) {
            return Err(OpenError::Log(fault));
        }
        let mut needs = 0;
        let Overview {
            damage, claims, inodes, ..
        } = replayed.look_over(superblock, &mut |node, named| needs += needed_bytes(node, named));
        if !damage.is_empty() {
            return Err(OpenError::Damaged(damage));
        }
        if inodes > machine.files_max {
            return Err(OpenError::TooManyFiles(inodes, machine.files_max));
        }
        let limit = options.metadata_bytes_max;
        if needs > limit {
            return Err(OpenError::Metadata { needs, limit });
        }
        let last = replayed.tables.last.max(Ino::ROOT.0);
        let root = Arc::new(super::new_root(clock.now_ns()));
        let mut fs = Self::without_log(machine, memory, clock, root, last);
        let used = replayed.used(superblock, &claims);
        drop(claims);
        for member in &superblock.members {
            let home = home_of(member.id);
            fs.pool
                .restore(member.id, member.kind, home, member.blocks, &used[&member.id]);
        }
        fs.build(std::mem::take(&mut replayed.tables), inodes)?;
        let (needs, _) = fs.metadata_bytes();
        if needs > limit {
            return Err(OpenError::Metadata { needs, limit });
        }
        Ok((fs, replayed))
    }

    /// Makes what was appended durable, and then the superblocks.
    fn begin(&self) -> Result<(), OpenError> {
        let journal = self.journal.as_deref().expect("a durable pool has a log");
        let slot = self.slots.claim().expect("all slots of a new pool are free");
        journal.opened();
        if journal.is_new() {
            self.write_snapshot(journal, &slot)?;
            return Ok(());
        }
        self.settle_all(journal, &slot)?;
        // So often that a member that was away while the pool was used is further behind than a crash leaves any (`log::gather`).
        for _ in 0..=GENERATIONS_BEHIND_MAX {
            journal.change_superblock(&self.pool, |_| {})?;
        }
        Ok(())
    }

    /// Puts all that the tables have in place: `live` inodes.
    fn build(&mut self, mut tables: Tables, live: u64) -> Result<(), OpenError> {
        let volumes = std::mem::take(&mut tables.volumes);
        let mut charged: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut directories: Vec<(Arc<Inode>, Names)> = Vec::new();
        let (places, nodes) = tables.into_inodes();
        // A reference for the first name of each: counting one later would cost a cache line.
        let mut unnamed: Vec<Option<Arc<Inode>>> = Vec::with_capacity(nodes.size_hint().0);
        let mut all = Batch::new(live);
        for node in nodes {
            let Some((ino, mut node, named)) = node else {
                unnamed.push(None);
                continue;
            };
            let rare = node.take_rare().map(|rare| *rare).unwrap_or_default();
            let Rare { target, xattrs, names } = rare;
            let (inode, bytes) = restored_inode(ino, &node, &named, target, xattrs);
            if let Some(file) = inode.blocks() {
                self.build_map(&inode, file, &node.data)?;
            }
            let (of_user, inodes) = charged.entry(inode.uid()).or_default();
            *of_user += bytes;
            *inodes += 1;
            if ino == Ino::ROOT {
                self.root = Arc::clone(&inode);
            }
            if inode.is_directory() {
                directories.push((Arc::clone(&inode), names));
            }
            all.add(&inode);
            unnamed.push(Some(inode));
        }
        self.table.put_all(all);
        let mut find = |ino| {
            let place = places.find(ino).expect("the check of the tables passed");
            let again = || self.table.find(ino).expect("an inode is in `unnamed` or in the table");
            unnamed[place].take().unwrap_or_else(again)
        };
        for (dir, names) in directories {
            let directory = dir.directory().expect("the list holds directories only");
            let names = names.into_sorted().into_iter();
            *directory.entries.write() = Entries::of(names.map(|Name { key, name, ino, .. }| (key, name, find(ino))));
        }
        for (name, ino) in volumes {
            let volume = Arc::new(Volume::new(&name, find(ino)));
            self.volumes.lock().insert(name, volume);
        }
        for (uid, (bytes, inodes)) in charged {
            self.metadata.add(uid, bytes, inodes);
        }
        Ok(())
    }

    /// Puts a file's blocks in its map, and its size.
    fn build_map(&self, inode: &Inode, file: &BlockFile, data: &Data) -> Result<(), OpenError> {
        let taker = Taker {
            home: 0,
            user: inode.uid(),
            asker: Asker::Root,
        };
        file.size.store(data.size, Ordering::Relaxed);
        for extent in data.extents.iter() {
            let Extent { at, blocks, .. } = extent;
            let Some(first) = extent.first() else {
                let mut got = 0;
                self.pool.reserve(blocks).map_err(|_| OpenError::Io)?;
                file.map
                    .reserve(&self.nodes, taker, at..at + blocks, &mut got)
                    .map_err(|_| OpenError::Io)?;
                file.blocks.add_reserved(got);
                continue;
            };
            let mut done = 0;
            while done < blocks {
                let (at, left) = (at + done, blocks - done);
                let is_run = at.is_multiple_of(RUN_BLOCKS) && left >= RUN_BLOCKS;
                let places = match is_run.then(|| file.map.lock_empty_run(&self.nodes, taker, at)) {
                    Some(Ok(Some(places))) => Some(places),
                    _ => file
                        .map
                        .lock_empty(&self.nodes, taker, at, left)
                        .map_err(|_| OpenError::Io)?,
                };
                let places = places.expect("extents do not overlap: each was put in the place of others");
                let count = places.blocks().min(left);
                places.publish(first.plus(done));
                file.blocks.add(0, count);
                done += count;
            }
        }
        debug_assert!(data.size.div_ceil(BLOCK) <= BlockMap::LIMIT);
        Ok(())
    }
}

/// Memory that an inode and its names take when they are built, as [`Fs::metadata_bytes`] counts it then, or little more.
fn needed_bytes(node: &Node, named: &Named) -> u64 {
    let body = match named.kind {
        Kind::Directory => DIRECTORY_BYTES,
        Kind::Unknown | Kind::Other => node.target().map_or(0, <[u8]>::len),
    };
    let xattrs = node.xattrs().map(|(name, value)| xattr_bytes(name, value));
    let names = names_bytes(named.links, named.name_bytes);
    inode_bytes_with(body) + names + xattrs.sum::<u64>() + node_bytes(map_nodes(&node.data))
}

/// Nodes that the map of a file takes at most.
fn map_nodes(data: &Data) -> usize {
    let end = data.extents.end();
    if end <= BlockMap::INLINE_BLOCKS {
        return 0;
    }
    // Blocks that a node stands for: of the lowest ones, then of those above, up to the root.
    let (mut nodes, mut span) = (0, RUN_BLOCKS);
    loop {
        let mut seen = 0;
        for Extent { at, blocks, .. } in data.extents.iter() {
            let end = at + blocks;
            nodes += end.div_ceil(span) - seen.max(at / span);
            seen = end.div_ceil(span);
            if span == RUN_BLOCKS {
                // Whole runs need none.
                nodes -= (end / span).saturating_sub(at.div_ceil(span));
            }
        }
        if end <= span {
            return usize::try_from(nodes).unwrap_or(usize::MAX);
        }
        span *= RUN_BLOCKS;
    }
}

/// An inode as the tables have it, without names and blocks, and the bytes that its owner is charged with.
fn restored_inode(
    ino: Ino,
    node: &Node,
    named: &Named,
    target: Option<Box<[u8]>>,
    xattrs: Xattrs,
) -> (Arc<Inode>, u64) {
    let attributes = node.attributes.expect("the check of the tables passed");
    let kind = attributes.mode & TYPE_MASK;
    let is_volume = named.is_volume;
    let body = match kind {
        _ if is_volume => Body::Volume(BlockFile::default()),
        REGULAR => Body::File(BlockFile::default()),
        DIRECTORY => Body::Directory(Box::new(Directory::new(named.parent().unwrap_or(Ino::ROOT)))),
        SYMLINK => Body::Symlink(target.unwrap_or_default()),
        _ => Body::Special,
    };
    let links = match kind {
        DIRECTORY => 2 + named.directories,
        _ if is_volume || is_planted(Planted::LinksCopied) => 1,
        _ => named.links,
    };
    let attributes_bytes: u64 = xattrs.iter().map(|(name, value)| xattr_bytes(name, value)).sum();
    let charged = inode_bytes(&body) + names_bytes(named.links, named.name_bytes) + attributes_bytes;
    let [atime_ns, mtime_ns, ctime_ns, btime_ns] = node.times_ns;
    // Made where it stays: there may be a million.
    let inode = Arc::new(Inode {
        ino,
        rdev: attributes.rdev,
        mode: attributes.mode.into(),
        uid: attributes.uid.into(),
        policy: Policy::default(),
        told: 0.into(),
        atime_ns: atime_ns.into(),
        mtime_ns: mtime_ns.into(),
        ctime_ns: ctime_ns.into(),
        btime_ns,
        state: Mutex::new(State {
            gid: attributes.gid,
            charged,
            xattrs: (!xattrs.is_empty()).then(|| Box::new(xattrs)),
            links,
            ..State::default()
        }),
        body,
    });
    inode.policy.store(attributes.placement);
    (inode, charged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ino = Ino(46);
    const B: Ino = Ino(47);

    /// Files A and B each take another's name, in groups 10 and 12.
    fn two_needs() -> Needs {
        let mut needs = Needs::default();
        for (ino, sequence) in [(A, 10), (B, 12)] {
            needs.changed.insert(ino, sequence);
            needs.note(ino, sequence);
        }
        needs
    }

    #[test]
    fn settling_after_an_unmet_need_does_not_meet_it() {
        let mut needs = two_needs();
        needs.settle(A, 13, 14);
        assert_eq!(
            needs.last_met(),
            9,
            "group 14 does not count, so A is not settled either"
        );
        let mut needs = two_needs();
        needs.settle_all(11, 14);
        assert_eq!(needs.last_met(), 9);
    }

    #[test]
    fn a_need_is_met_by_groups_that_count() {
        let mut needs = two_needs();
        needs.settle(A, 10, 11);
        assert_eq!(needs.last_met(), 11, "A was settled before B's need");
        let mut needs = two_needs();
        needs.settle(A, 13, 14);
        needs.settle(B, 14, 15);
        assert_eq!(needs.last_met(), u64::MAX);
        let mut needs = two_needs();
        needs.settle(B, 13, 14);
        needs.settle(A, 9, 15);
        assert_eq!(needs.last_met(), 9, "A is settled only up to before its change");
        let mut needs = two_needs();
        needs.settle_all(14, 15);
        // Settled already when it is needed.
        needs.note(A, 16);
        assert_eq!(needs.last_met(), u64::MAX);
    }
}
