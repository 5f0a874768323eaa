//! Operations on a small tree, and their history.

use crate::sim::{Event, FRAMES_MEMBER, Kind, MEMBER_BYTES, SimMemory, member_bytes};
use crate::tree::Tree;
use homenode_engine::cache::{Cached, FrameIndex, SliceOptions};
use homenode_engine::fs::fallocate_mode::{COLLAPSE_RANGE, INSERT_RANGE, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use homenode_engine::fs::{
    Asking, Fs, Inode, NewInode, OpenError, POLICY_XATTR, Placement, RenameMode, SetAttr, SetTime, XattrMode,
};
use homenode_engine::log::{LogOptions, MemberRecord, NotGathered, PoolName, Superblock, gather};
use homenode_engine::pool::{Machine, MemberKind};
use homenode_engine::{BLOCK_BYTES, Clock, CpuId, MemberId, Memory, NodeId};
use homenode_shared::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Blocks of a member: so few that freed ones are soon used again.
pub(crate) const BLOCKS: usize = 160;
/// Blocks of a segment of the log.
const SEGMENT_BLOCKS: u32 = 8;
/// Bytes by which the log may be longer than twice its snapshot.
const SLACK_BYTES: u64 = 1 << 17;
/// Number of the history of a new pool.
pub(crate) const FIRST_HISTORY: u64 = 7;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ticks(Arc<AtomicI64>);

impl Clock for Ticks {
    /// Time that goes on with each look, and jumps now and then: an hour, 300 years, before 1970.
    fn now_ns(&self) -> i64 {
        const JUMPS_NS: [i64; 5] = [
            0,
            -3_600_000_000_000,
            9_000_000_000_000_000_000,
            0,
            -8_000_000_000_000_000_000,
        ];
        let looks = self.0.fetch_add(1, Ordering::Relaxed);
        let jump = usize::try_from(looks / 11).expect("the number is small") % JUMPS_NS.len();
        1_000_000 + looks + JUMPS_NS[jump]
    }
}

pub(crate) type SimFs = Fs<Cached<SimMemory>, Ticks>;

pub(crate) fn asking(slot: &Slot) -> Asking<'_> {
    Asking {
        waits: true,
        user: Some(0),
        slot,
        cpu: CpuId(0),
        node: &|| NodeId(0),
    }
}

fn machine() -> Machine {
    Machine {
        cpu_nodes: vec![NodeId(0)],
        nodes: vec![NodeId(0)],
        latency: vec![vec![10]],
        files_max: 1_000_000,
    }
}

/// Number of the pool's history from an opening on, under this witness, that gives up what was not durable.
pub(crate) fn history_from(witness: u128) -> u64 {
    100 + u64::try_from(witness).expect("witnesses of tests are small")
}

fn options(witness: u128) -> LogOptions {
    LogOptions {
        uuid: 7,
        name: PoolName::default(),
        nonce: 0x5ec2e7,
        witness,
        history: history_from(witness),
        segment_blocks: SEGMENT_BLOCKS,
        metadata_bytes_max: u64::MAX,
        slack_bytes: SLACK_BYTES,
    }
}

fn member(kind: Kind, id: MemberId, blocks: usize) -> MemberRecord {
    MemberRecord {
        id,
        kind: match kind {
            Kind::File => MemberKind::File,
            Kind::Pmem => MemberKind::Pmem,
            Kind::Disk { .. } => MemberKind::Block,
        },
        blocks: blocks as u64,
    }
}

/// The memory below a filesystem: with a cache for disks.
fn cached(kind: Kind, memory: &SimMemory, members: &[MemberRecord]) -> Cached<SimMemory> {
    let Kind::Disk { frames } = kind else {
        return Cached::without_cache(memory.clone());
    };
    let slice = SliceOptions {
        member: FRAMES_MEMBER,
        node: NodeId(0),
        frames,
    };
    let cached = Cached::new(memory.clone(), &[slice], &[vec![10]]);
    for member in members {
        let index = FrameIndex::new(member.blocks).expect("the disk is small");
        cached.add_disk(member.id, NodeId(0), index);
    }
    cached
}

/// A new pool of one member, with places for some more.
pub(crate) fn format(kind: Kind, places: usize) -> (SimFs, SimMemory) {
    let bytes = vec![0; places * MEMBER_BYTES];
    format_in(kind, bytes, BLOCKS, SEGMENT_BLOCKS, SLACK_BYTES)
}

/// A new pool of so many blocks, more than members have else, with segments of so many.
pub(crate) fn format_of(kind: Kind, blocks: usize, segment_blocks: u32) -> (SimFs, SimMemory) {
    format_slack(kind, blocks, segment_blocks, SLACK_BYTES)
}

/// [`format_of`] with a log that may be longer than twice its snapshot by so many bytes.
pub(crate) fn format_slack(kind: Kind, blocks: usize, segment_blocks: u32, slack_bytes: u64) -> (SimFs, SimMemory) {
    format_in(kind, vec![0; blocks * BLOCK_BYTES], blocks, segment_blocks, slack_bytes)
}

fn format_in(kind: Kind, bytes: Vec<u8>, blocks: usize, segment_blocks: u32, slack_bytes: u64) -> (SimFs, SimMemory) {
    let memory = SimMemory::new(kind, bytes);
    let root = new(0o040_755);
    let members = [(member(kind, MemberId(0), blocks), NodeId(0))];
    let options = LogOptions {
        segment_blocks,
        slack_bytes,
        history: FIRST_HISTORY,
        ..options(1)
    };
    let below = cached(kind, &memory, &members.map(|(member, _)| member));
    let fs = Fs::format(&machine(), below, Ticks::default(), root, options, &members);
    (fs.expect("the pool has room"), memory)
}

/// Opens the pool that these bytes are, under a witness: 1 is the one it was used under.
pub(crate) fn open(kind: Kind, bytes: Vec<u8>, witness: u128) -> Result<(SimFs, SimMemory), OpenError> {
    open_as(kind, bytes, witness, false)
}

/// [`open`], also of a pool that is only read, on memory of which nothing can be written.
pub(crate) fn open_as(
    kind: Kind,
    bytes: Vec<u8>,
    witness: u128,
    is_read: bool,
) -> Result<(SimFs, SimMemory), OpenError> {
    open_with(kind, bytes, (witness, SEGMENT_BLOCKS), is_read)
}

/// [`open_as`] with new segments of so many blocks.
pub(crate) fn open_with(
    kind: Kind,
    bytes: Vec<u8>,
    sizes: (u128, u32),
    is_read: bool,
) -> Result<(SimFs, SimMemory), OpenError> {
    open_on(kind, SimMemory::new(kind, bytes), sizes, is_read)
}

/// [`open_with`] on memory that has its faults.
pub(crate) fn open_on(
    kind: Kind,
    memory: SimMemory,
    (witness, segment_blocks): (u128, u32),
    is_read: bool,
) -> Result<(SimFs, SimMemory), OpenError> {
    let superblock =
        newest_superblock(&memory.bytes()).map_err(|why| OpenError::Log(format!("superblocks: {why:?}")))?;
    let ticks = Ticks(Arc::new(AtomicI64::new(1 << 40)));
    let home = |_| NodeId(0);
    let options = LogOptions {
        nonce: superblock.tail.nonce,
        segment_blocks,
        ..options(witness)
    };
    let below = cached(kind, &memory, &superblock.members);
    if is_read {
        memory.fail_after(0, u64::MAX);
        let fs = Fs::open_to_read(&machine(), below, ticks, options, superblock, &home)?;
        return Ok((fs, memory));
    }
    let fs = Fs::open_durable(&machine(), below, ticks, options, superblock, &home)?;
    Ok((fs, memory))
}

/// The superblock that counts, of all that lie at the ends of the members' places.
pub(crate) fn newest_superblock(bytes: &[u8]) -> Result<Superblock, NotGathered> {
    let of_place = |place: &[u8]| {
        let copy = |at: usize| place[at..at + BLOCK_BYTES].try_into().expect("a block");
        Superblock::newer(copy(0), copy(place.len() - BLOCK_BYTES)).ok()
    };
    let all: Vec<Superblock> = bytes.chunks(member_bytes(bytes.len())).filter_map(of_place).collect();
    let gathered = gather(&all)?;
    let is_whole = gathered.members.iter().all(Option::is_some);
    if is_whole {
        Ok(gathered.newest)
    } else {
        Err(NotGathered::Nothing)
    }
}

fn new(mode: u32) -> NewInode {
    NewInode {
        uid: 3,
        gid: 4,
        ..NewInode::of_root(mode)
    }
}

/// An operation. Names are of the root and of its directory `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create(&'static str),
    Mkdir(&'static str),
    Symlink(&'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str, RenameMode),
    /// A rename that leaves a whiteout.
    Whiteout(&'static str, &'static str),
    Write(&'static str, u64, usize),
    Append(&'static str, usize),
    Truncate(&'static str, u64),
    Allocate(&'static str, Range, u64, u64),
    Chmod(&'static str, u32),
    SetXattr(&'static str, usize),
    RemoveXattr(&'static str),
    Mknod(&'static str),
    Chown(&'static str),
    SetAcl(&'static str, &'static [u8]),
    SetPolicy(&'static str),
    MakeVolume,
    WriteVolume(u64, usize),
    /// Overwrites as a block device does where the volume has blocks.
    OverwriteVolume(u64, usize),
    DiscardVolume(u64, u64),
    ZeroVolume(u64, u64),
    RemoveVolume,
    /// A block device's flush.
    SyncVolume,
    Sync(&'static str),
    SyncAll,
    Snapshot,
    /// Does what a thread that tends the cache does in one turn.
    Tend,
    AddMember,
    /// Drains the first member that is not drained, or the last.
    Drain {
        last: bool,
    },
    /// Removes the first member that is drained.
    RemoveMember,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    Reserve,
    ReserveKeepSize,
    Punch,
    Zero,
    Collapse,
    Insert,
}

/// An access list with a named user, in the kernel's form: owner, user 5, group, mask, others.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 5, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 6, 0,
    255, 255, 255, 255, 32, 0, 1, 0, 255, 255, 255, 255,
];

/// A run of operations on a pool, with what it showed after each.
pub(crate) struct Run {
    pub(crate) kind: Kind,
    /// Members that join are persistent memory, whatever the others are.
    pub(crate) mixes: bool,
    pub(crate) fs: Arc<SimFs>,
    /// Number of the thread whose run it is, and the directory that it has for itself: the only one has all.
    pub(crate) thread: usize,
    directory: Option<String>,
    root: Arc<Inode>,
    pub(crate) memory: SimMemory,
    /// Bytes of the disk before anything that the memory tells of.
    pub(crate) base: Vec<u8>,
    /// The witness it is used under.
    pub(crate) witness: u128,
    /// Whether it was opened, not made: a crash may come at once.
    pub(crate) is_opened: bool,
    pub(crate) slot: Slot,
    pub(crate) operations: Vec<Operation>,
    /// Operations that were carried out, by number.
    pub(crate) done: BTreeSet<usize>,
    /// The tree before the first operation, and after each.
    pub(crate) trees: Vec<Tree>,
    /// For each of them: operations up to which each file is durable, and names are.
    pub(crate) synced: Vec<Synced>,
    stamp: u8,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Synced {
    pub(crate) names: usize,
    pub(crate) files: BTreeMap<u64, usize>,
    /// Operations that put a file in the place of another, with that file: once they show, its bytes do.
    pub(crate) needs: Vec<(usize, u64)>,
}

impl Run {
    pub(crate) fn new(kind: Kind) -> Self {
        Self::with_places(kind, 1)
    }

    /// A run on a pool of one member, with places for more.
    pub(crate) fn with_places(kind: Kind, places: usize) -> Self {
        let (fs, memory) = format(kind, places);
        Self::of(kind, fs, memory, vec![0; places * MEMBER_BYTES], 1)
    }

    /// A run on a pool that a crash left.
    pub(crate) fn after_crash(kind: Kind, base: Vec<u8>) -> Self {
        let (fs, memory) = open(kind, base.clone(), 2).expect("a crash leaves a pool that can be opened");
        Self::of(kind, fs, memory, base, 2)
    }

    fn of(kind: Kind, fs: SimFs, memory: SimMemory, base: Vec<u8>, witness: u128) -> Self {
        let slot = fs.slots().claim().expect("the first slot is free");
        let tree = Tree::of(&fs, &slot);
        Self {
            kind,
            mixes: false,
            root: fs.root(),
            fs: Arc::new(fs),
            thread: 0,
            directory: None,
            memory,
            base,
            witness,
            is_opened: witness > 1,
            slot,
            operations: Vec::new(),
            done: BTreeSet::new(),
            trees: vec![tree],
            synced: vec![Synced::default()],
            stamp: 0,
        }
    }

    /// The run of another thread on the same pool, in a directory of its own.
    pub(crate) fn beside(&self, thread: usize, directory: &str) -> Self {
        let root = self.find(directory).expect("the directory was made");
        let slot = self.fs.slots().claim().expect("slots are free");
        Self {
            kind: self.kind,
            mixes: self.mixes,
            fs: Arc::clone(&self.fs),
            thread,
            directory: Some(directory.to_owned()),
            memory: self.memory.clone(),
            base: self.base.clone(),
            witness: self.witness,
            is_opened: self.is_opened,
            operations: Vec::new(),
            done: BTreeSet::new(),
            trees: vec![Tree::below(&self.fs, &slot, Arc::clone(&root))],
            synced: vec![Synced::default()],
            stamp: u8::try_from(60 * thread).expect("the number is small"),
            slot,
            root,
        }
    }

    /// Tree of the run in `fs`: the pool of the run itself, or one that a crash left.
    pub(crate) fn tree_in(&self, fs: &SimFs, slot: &Slot) -> Option<Tree> {
        let Some(directory) = &self.directory else {
            return Some(Tree::of(fs, slot));
        };
        let root = fs.lookup(&fs.root(), directory.as_bytes()).ok()?;
        Some(Tree::below(fs, slot, root))
    }

    /// Carries out an operation; one that is refused changes nothing.
    pub(crate) fn step(&mut self, operation: Operation) -> bool {
        let nth = self.operations.len() + 1;
        self.operations.push(operation);
        self.memory.mark(Event::Begin(self.thread, nth));
        let mut synced = self.synced.last().expect("the list is never empty").clone();
        let is_done = self.carry_out(operation).is_some();
        if is_done {
            self.done.insert(nth);
            match operation {
                Operation::Sync(path) => {
                    synced.names = nth;
                    let inode = self.find(path).expect("the file is durable");
                    synced.files.insert(inode.ino().0, nth);
                }
                Operation::SyncVolume => {
                    synced.names = nth;
                    let volume = self.fs.volume("v").expect("the volume is durable");
                    synced.files.insert(volume.inode().ino().0, nth);
                }
                Operation::SyncAll | Operation::Snapshot => {
                    let all = self.trees.last().expect("the list is never empty").bytes.keys();
                    synced.files.extend(all.map(|ino| (*ino, nth)));
                    synced.names = nth;
                }
                Operation::Rename(from, to, RenameMode::Replace) | Operation::Whiteout(from, to) => {
                    let before = &self.trees.last().expect("the list is never empty").names;
                    let at = |path: &str| before.get([b"/", path.as_bytes()].concat().as_slice());
                    if let (Some(moved), Some(met)) = (at(from), at(to))
                        && moved.ino != met.ino
                    {
                        synced.needs.push((nth, moved.ino));
                    }
                }
                _ => {}
            }
        }
        self.memory.mark(Event::End(self.thread, nth));
        let tree = self.tree_in(&self.fs, &self.slot).expect("nobody else removes it");
        self.trees.push(tree);
        self.synced.push(synced);
        is_done
    }

    /// Whether the file is there that an operation makes durable.
    pub(crate) fn has(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Sync(path) if self.find(path).is_some())
    }

    fn find(&self, path: &str) -> Option<Arc<Inode>> {
        path.split('/').try_fold(Arc::clone(&self.root), |dir, name| {
            self.fs.lookup(&dir, name.as_bytes()).ok()
        })
    }

    fn parent<'a>(&self, path: &'a str) -> Option<(Arc<Inode>, &'a [u8])> {
        match path.split_once('/') {
            None => Some((Arc::clone(&self.root), path.as_bytes())),
            Some((dir, name)) => Some((self.find(dir)?, name.as_bytes())),
        }
    }

    /// Bytes that no other write has.
    fn stamped(&mut self, count: usize) -> Vec<u8> {
        self.stamp = self.stamp % 250 + 1;
        vec![self.stamp; count]
    }

    fn carry_out(&mut self, operation: Operation) -> Option<()> {
        match operation {
            Operation::Write(path, offset, count) => {
                let (inode, bytes) = (self.find(path)?, self.stamped(count));
                self.fs
                    .write(&asking(&self.slot), &inode, offset, &bytes, false)
                    .ok()
                    .map(drop)
            }
            Operation::Append(path, count) => {
                let (inode, bytes) = (self.find(path)?, self.stamped(count));
                self.fs
                    .append(&asking(&self.slot), &inode, &bytes, false)
                    .ok()
                    .map(drop)
            }
            Operation::Truncate(path, size) => {
                let inode = self.find(path)?;
                self.fs.truncate_step(&inode, size, 0).ok().map(drop)
            }
            Operation::Allocate(path, range, offset, count) => {
                let inode = self.find(path)?;
                let mode = match range {
                    Range::Reserve => 0,
                    Range::ReserveKeepSize => KEEP_SIZE,
                    Range::Punch => PUNCH_HOLE | KEEP_SIZE,
                    Range::Zero => ZERO_RANGE,
                    Range::Collapse => COLLAPSE_RANGE,
                    Range::Insert => INSERT_RANGE,
                };
                self.fs.fallocate(&asking(&self.slot), &inode, mode, offset, count).ok()
            }
            Operation::MakeVolume => self.fs.create_volume("v", 1 << 16, Placement::Local).ok().map(drop),
            Operation::WriteVolume(offset, count) => {
                let (volume, bytes) = (self.fs.volume("v").ok()?, self.stamped(count));
                self.fs
                    .write_volume(&asking(&self.slot), &volume, offset, &bytes)
                    .ok()
                    .map(drop)
            }
            Operation::OverwriteVolume(offset, count) => {
                let (volume, bytes) = (self.fs.volume("v").ok()?, self.stamped(count));
                let asking = (self.slot.number(), CpuId(0));
                let done = self
                    .fs
                    .write_straight(asking, &volume, offset, count, |memory, stretch| {
                        let (block, in_block) = stretch.place.expect("only blocks are written straight");
                        let from = &bytes[stretch.done..][..stretch.bytes];
                        memory.store(block, in_block, from).expect("memory does not fail");
                    });
                (done > 0).then_some(())
            }
            Operation::DiscardVolume(offset, bytes) => {
                let volume = self.fs.volume("v").ok()?;
                self.fs.discard_volume(&asking(&self.slot), &volume, offset, bytes).ok()
            }
            Operation::ZeroVolume(offset, bytes) => {
                let volume = self.fs.volume("v").ok()?;
                self.fs.zero_volume(&asking(&self.slot), &volume, offset, bytes).ok()
            }
            Operation::SyncVolume => {
                let volume = self.fs.volume("v").ok()?;
                self.fs.sync(&self.slot, volume.inode()).ok()
            }
            Operation::RemoveVolume => {
                let volume = self.fs.volume("v").ok()?;
                self.fs.remove_volume(&volume).ok()
            }
            Operation::Sync(path) => self.fs.sync(&self.slot, &*self.find(path)?).ok(),
            Operation::SyncAll => self.fs.sync_all(&self.slot).ok(),
            Operation::Snapshot => self.fs.compact(&self.slot).ok(),
            Operation::Tend => {
                self.fs.pool().memory().tend(0, Duration::ZERO);
                Some(())
            }
            Operation::AddMember | Operation::Drain { .. } | Operation::RemoveMember => self.change_members(operation),
            _ => self.change_names(operation),
        }
    }

    fn change_members(&mut self, operation: Operation) -> Option<()> {
        let mut members = self.fs.pool().status().members;
        match operation {
            Operation::AddMember => {
                let id = self.fs.pool().next_member();
                let place = |id: MemberId| usize::from(id.0) % self.memory.places();
                if members.iter().any(|member| place(member.id) == place(id)) {
                    return None;
                }
                let mut record = member(self.kind, id, BLOCKS);
                if self.mixes {
                    record.kind = MemberKind::Pmem;
                }
                if record.kind == MemberKind::Block {
                    let index = FrameIndex::new(record.blocks).expect("the disk is small");
                    self.fs.pool().memory().add_disk(id, NodeId(0), index);
                }
                let added = self.fs.add_member(record, NodeId(0), 0);
                added.inspect_err(|_| self.fs.pool().memory().remove_disk(id)).ok()
            }
            Operation::Drain { last } => {
                members.retain(|member| !member.draining);
                let member = if last { members.last() } else { members.first() };
                self.fs.drain(member?.id, &mut |_, _| {}).ok().map(drop)
            }
            Operation::RemoveMember => {
                let member = members.iter().find(|member| member.draining)?;
                self.fs.remove_member(member.id, 0).ok()?;
                self.fs.pool().memory().remove_disk(member.id);
                Some(())
            }
            _ => unreachable!("{operation:?} changes no member"),
        }
    }

    fn change_names(&mut self, operation: Operation) -> Option<()> {
        match operation {
            Operation::Create(path) => {
                let (dir, name) = self.parent(path)?;
                self.fs.create(&dir, name, new(0o100_644)).ok().map(drop)
            }
            Operation::Mkdir(path) => {
                let (dir, name) = self.parent(path)?;
                self.fs.create(&dir, name, new(0o040_755)).ok().map(drop)
            }
            Operation::Symlink(path) => {
                let (dir, name) = self.parent(path)?;
                self.fs.symlink(&dir, name, b"target", 1, 2).ok().map(drop)
            }
            Operation::Link(path, other) => {
                let inode = self.find(path)?;
                let (dir, name) = self.parent(other)?;
                self.fs.link(&inode, &dir, name).ok()
            }
            Operation::Unlink(path) => {
                let (dir, name) = self.parent(path)?;
                self.fs.unlink(&dir, name).ok()
            }
            Operation::Rmdir(path) => {
                let (dir, name) = self.parent(path)?;
                self.fs.rmdir(&dir, name).ok()
            }
            Operation::Whiteout(path, other) => {
                let ((from, old), (to, new)) = (self.parent(path)?, self.parent(other)?);
                let mode = RenameMode::Replace;
                self.fs.rename_with_whiteout(&from, old, &to, new, mode, (0, 0)).ok()
            }
            Operation::Rename(path, other, mode) => {
                let ((from, name), (to, new_name)) = (self.parent(path)?, self.parent(other)?);
                self.fs.rename(&from, name, &to, new_name, mode).ok()
            }
            Operation::Chmod(path, mode) => {
                let set = SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                };
                self.fs.set_attr(&*self.find(path)?, &set).ok().map(drop)
            }
            Operation::SetXattr(path, count) => {
                let (inode, value) = (self.find(path)?, self.stamped(count));
                self.fs
                    .set_xattr(&inode, b"user.x", &value, XattrMode::Either, false)
                    .ok()
            }
            Operation::RemoveXattr(path) => self.fs.remove_xattr(&*self.find(path)?, b"user.x").ok(),
            Operation::Mknod(path) => {
                let (dir, name) = self.parent(path)?;
                let device = NewInode {
                    rdev: 0x103,
                    ..new(0o020_600)
                };
                self.fs.create(&dir, name, device).ok().map(drop)
            }
            Operation::Chown(path) => {
                let set = SetAttr {
                    uid: Some(9),
                    gid: Some(8),
                    kill_priv: true,
                    mtime: Some(SetTime::At(5)),
                    ..SetAttr::default()
                };
                self.fs.set_attr(&*self.find(path)?, &set).ok().map(drop)
            }
            Operation::SetAcl(path, name) => {
                let inode = self.find(path)?;
                self.fs.set_xattr(&inode, name, ACL, XattrMode::Either, true).ok()
            }
            Operation::SetPolicy(path) => {
                let inode = self.find(path)?;
                self.fs
                    .set_xattr(&inode, POLICY_XATTR, b"node:0", XattrMode::Either, false)
                    .ok()
            }
            _ => unreachable!("{operation:?} changes no name"),
        }
    }
}
