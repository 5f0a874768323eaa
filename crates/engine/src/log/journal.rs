//! Writing the log: appending groups, making them durable, and the blocks that wait until they may be used again.
//!
//! Space for the log. One empty segment is kept for each in use, and one more for each behind the last snapshot, so that the next snapshot fits in a
//! full pool. An operation reserves space for all that it may append before it takes a lock ([`Room`]), so appending never fails for want of space.
//! If all reservations fill `w` segments, 2 `w` more stay empty. Beyond those, adding ([`Effect::Adds`]) needs 5, all else 1.
//! Derivation: docs/decisions/014-log.md, Room.
//!
//! Locks: the writer's is taken below those of all objects, and above the pool's, the superblock's and that of the empty segments.

mod members;

use super::Change;
use super::codec::{self, Group, HEADER_BYTES, NEXT_BYTES, Record};
use super::planted::{Planted, is_planted};
use super::scan::{Segment, Tail};
use super::superblock::{Features, Head, MemberRecord, PoolName, Superblock};
use super::turn::Turn;
use crate::fs::Ino;
use crate::memory::by_member;
use crate::pool::{MemberKind, Pool};
use crate::{BLOCK_BYTES, Block, MemberId, Memory, MemoryError};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Empty segments beyond those that a snapshot needs, as long as there is room: what adds something, and half a segment of promises with it.
const SPARE_SEGMENTS: usize = 7;
/// Time after which a full pool has another snapshot written, though the log is short.
const SNAPSHOT_PERIOD_NS: i64 = 30_000_000_000;

/// Effect of an operation on the size of the log's next snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It grows.
    Adds,
    /// It may grow by a record, though the pool's room does not shrink.
    Splits,
    /// It does not grow, and nothing is freed.
    Keeps,
    /// It does not grow.
    Frees,
}

impl Effect {
    /// Empty segments that are kept beyond those that a snapshot needs, and those that are promised.
    const fn least_segments(self) -> usize {
        match self {
            Self::Adds => 5,
            Self::Splits | Self::Keeps | Self::Frees => 1,
        }
    }

    /// Whether the snapshot may grow.
    pub(crate) const fn grows(self) -> bool {
        matches!(self, Self::Adds | Self::Splits)
    }

    /// Bytes of the last segment that are kept from such an operation, if no empty one is left: an eighth for opening the pool and for commits, and the
    /// rest of a half for operations that free.
    const fn kept_bytes(self, segment_bytes: u64) -> u64 {
        match self {
            Self::Frees => segment_bytes / 8,
            _ => segment_bytes / 2,
        }
    }
}

/// Room in the log that an operation was promised, until dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    promised: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        // Relaxed: what was appended is seen under the writer's lock.
        self.promised.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of a group of a snapshot, from which on the next record goes to another one.
pub(super) const SNAPSHOT_GROUP_BYTES: usize = 16 << 10;
/// Segments that are set aside because they cannot be written, at most.
const BAD_SEGMENTS_MAX: u64 = 8;
/// The witness of a pool that none was there for: nothing counts but what is durable.
const NO_WITNESS: u128 = 0;
/// Locks that syncs are spread over, each held shared while a sync goes on, and alone by [`Journal::await_syncs`].
const SYNCING: usize = 64;

/// Options of a durable pool's log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Identity of the pool.
    pub uuid: u128,
    /// Name of a new pool.
    pub name: PoolName,
    /// Secret of the log: random.
    pub nonce: u64,
    /// See [`Superblock::witness`].
    pub witness: u128,
    /// A random number, for the [history](Superblock::history) of a pool that is new or loses something as it is opened.
    pub history: u64,
    /// Blocks of a segment: a power of two, at least 64 where anything may be stored.
    pub segment_blocks: u32,
    /// Memory that metadata may take, in bytes: a pool that needs more is not opened.
    pub metadata_bytes_max: u64,
    /// Bytes by which the log may be longer than twice its last snapshot.
    pub slack_bytes: u64,
}

/// The log of a durable pool.
#[derive(Debug)]
pub(crate) struct Journal {
    options: LogOptions,
    writer: Mutex<Writer>,
    /// Empty segments.
    pub(crate) spare: Mutex<Vec<Segment>>,
    /// Fewer empty segments are left than there should be. Changed with the lock above.
    short: AtomicBool,
    /// Bytes of groups that were promised.
    promised: AtomicU64,
    /// Held while empty segments are taken from the pool.
    filling: Mutex<()>,
    /// The pool is being opened.
    is_opening: AtomicBool,
    /// Groups are made durable by one thread for all that wait.
    forcing: Turn,
    /// Sequence number of the last group that is durable.
    forced: AtomicU64,
    /// Sequence number of a group that no crash takes away: it and all before are durable, with all that they need.
    durable: AtomicU64,
    /// Something could not be written or made durable: nothing is acknowledged any more.
    failed: AtomicBool,
    /// The pool is only read. `failed` is set then, too.
    is_read_only: bool,
    /// Stores may be lost that were made before: the superblocks' witness must not be believed.
    has_lost: AtomicBool,
    /// Copies of the superblock at the ends of members are not durable; else it may be those at the starts.
    failed_at_end: AtomicBool,
    /// Blocks of segments that could not be written, kept away from everybody.
    bad_blocks: AtomicU64,
    /// Superblock as it was written last.
    superblock: Mutex<Superblock>,
    /// Blocks that were freed, by the log's end at that time.
    quarantine: Mutex<Vec<(u64, Option<Block>, u64)>>,
    /// Entries that are in it, or being given back.
    quarantined: AtomicUsize,
    /// See [`Journal::goes_on`].
    syncing: [RwLock<()>; SYNCING],
    /// Held while a file's blocks move to other places of it.
    pub(crate) shifting: Mutex<()>,
    /// Held while everything is made durable, or a snapshot is made.
    pub(crate) settling: Mutex<()>,
    /// Files whose bytes may not be durable.
    pub(crate) dirty: Mutex<Vec<Ino>>,
    /// Files whose changes must be settled before any group is forced, and how often that was asked for.
    needed: Mutex<HashMap<Ino, u64>>,
    /// Held for reading by a rename whose group may need a file's changes, for writing by a sync that waits until there are no such groups.
    pub(crate) naming: RwLock<()>,
    /// Sequence number through which the changes of all files are settled.
    pub(crate) settled_all: AtomicU64,
    /// Bytes of the log, and those of its last snapshot.
    bytes: AtomicU64,
    snapshot_bytes: AtomicU64,
    /// When the last snapshot was written; 0 for none since the pool was opened.
    snapshot_ns: AtomicI64,
    /// Sequence number of the log's end when the last snapshot was put in place.
    snapshot_end: AtomicU64,
    /// Bytes of empty segments that were too few for a snapshot since the last one that was written.
    too_few: AtomicU64,
    /// Bytes of metadata at that time.
    too_few_for: AtomicU64,
}

#[derive(Debug)]
struct Writer {
    group: Vec<u8>,
    segments: Vec<Segment>,
    /// How many of the first segments are the snapshot's.
    of_snapshot: usize,
    at: usize,
    sequence: u64,
    nonce: u64,
    crc: u32,
    is_snapshot: bool,
    /// Stretches that are not durable: block, first byte and number of bytes.
    unforced: Vec<(Block, usize, usize)>,
}

/// A log that is written beside the one in use, to take its place.
#[derive(Debug)]
pub(crate) struct Snapshot {
    head: Head,
    writer: Writer,
}

/// Ends the log when it is dropped by a panic: none that was there before, as of a thread whose destructors sync.
pub(crate) struct InHand<'a>(&'a Journal, bool);

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        if !self.1 && std::thread::panicking() {
            self.0.fail();
        }
    }
}

impl Journal {
    pub(crate) fn uuid(&self) -> u128 {
        self.options.uuid
    }

    /// Number of the pool's history: see [`Superblock::history`].
    pub(crate) fn history(&self) -> u64 {
        self.superblock.lock().history
    }

    /// A journal that goes on behind `tail`, with the snapshot's segments given apart.
    pub(crate) fn new(options: LogOptions, mut superblock: Superblock, snapshot: Vec<Segment>, tail: Tail) -> Self {
        if superblock.witness != options.witness {
            // What was not durable is given up. Written together with the new witness: until then the next opening finds the old one, and does likewise.
            superblock.history = options.history;
        }
        superblock.witness = options.witness;
        let (snapshot_segments, settled_all) = (snapshot.len(), tail.sequence);
        let segments: Vec<Segment> = snapshot.into_iter().chain(tail.segments).collect();
        Self {
            options,
            bytes: AtomicU64::new(bytes_of(&segments)),
            snapshot_bytes: AtomicU64::new(bytes_of(&segments[..snapshot_segments])),
            snapshot_ns: AtomicI64::new(0),
            snapshot_end: AtomicU64::new(0),
            too_few: AtomicU64::new(0),
            too_few_for: AtomicU64::new(0),
            writer: Mutex::new(Writer {
                group: Vec::new(),
                segments,
                of_snapshot: snapshot_segments,
                at: tail.at,
                sequence: tail.sequence,
                nonce: superblock.tail.nonce,
                crc: tail.crc,
                is_snapshot: false,
                unforced: Vec::new(),
            }),
            spare: Mutex::default(),
            short: AtomicBool::new(true),
            promised: AtomicU64::new(0),
            filling: Mutex::default(),
            is_opening: AtomicBool::new(true),
            forcing: Turn::default(),
            forced: AtomicU64::new(tail.sequence),
            durable: AtomicU64::new(superblock.end),
            failed: AtomicBool::new(false),
            is_read_only: false,
            has_lost: AtomicBool::new(false),
            failed_at_end: AtomicBool::new(false),
            bad_blocks: AtomicU64::new(0),
            superblock: Mutex::new(superblock),
            quarantine: Mutex::default(),
            quarantined: AtomicUsize::new(0),
            syncing: std::array::from_fn(|_| RwLock::default()),
            shifting: Mutex::default(),
            settling: Mutex::default(),
            dirty: Mutex::default(),
            needed: Mutex::default(),
            naming: RwLock::default(),
            settled_all: AtomicU64::new(settled_all),
        }
    }

    /// The journal of a pool that is only read: nothing is appended, and nothing is written.
    pub(crate) fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self.failed = AtomicBool::new(true);
        self
    }

    /// Whether the pool is only read.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Sequence number of the last group.
    pub(crate) fn end(&self) -> u64 {
        self.writer.lock().sequence
    }

    /// Whether nothing can be made durable any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Ends the log.
    pub(crate) fn fail(&self) {
        // Relaxed: whoever acknowledges something looks behind a lock that orders it, or has seen the failure himself.
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Ends the log if the thread panics before this is dropped: what it had in hand is on no list.
    pub(crate) fn in_hand(&self) -> InHand<'_> {
        InHand(self, std::thread::panicking())
    }

    /// Ends the log because stores may be lost. The witness goes before anybody can see that the log has ended: a process that is killed then is followed
    /// by one that trusts nothing.
    fn lose<M: Memory>(&self, pool: &Pool<M>) {
        self.has_lost.store(true, Ordering::Relaxed);
        self.revoke(pool);
        self.fail();
    }

    /// Makes bytes of the log durable: [`Memory::persist`]. A failure ends the log, but for a page that cannot be reached, which stays so and is known.
    ///
    /// # Errors
    /// The errors of [`Memory::persist`].
    pub(crate) fn persist<M: Memory>(
        &self,
        pool: &Pool<M>,
        at: Block,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        // Before: a page that is lost meanwhile says nothing of the others.
        let is_there = pool.memory().is_there(at, offset, bytes);
        let persisted = pool.memory().persist(at, offset, bytes);
        persisted.inspect_err(|_| {
            if is_there {
                self.lose(pool);
            }
        })
    }

    /// Makes bytes of files durable: [`Memory::persist`]. The kernel tells once that stores to a file were lost, to one caller, and not which: a failure
    /// ends the log then. Of a disk it is known which: they stay to be made durable.
    ///
    /// # Errors
    /// The errors of [`Memory::persist`].
    pub(crate) fn persist_data<M: Memory>(&self, pool: &Pool<M>, at: Block, bytes: usize) -> Result<(), MemoryError> {
        let is_there = pool.memory().is_there(at, 0, bytes);
        let persisted = pool.memory().persist(at, 0, bytes);
        persisted.inspect_err(|_| {
            if is_there && pool.memory().has_lost(at.member()) {
                self.lose(pool);
            }
        })
    }

    /// [`Journal::persist_data`] of many stretches; also of those behind one that fails.
    ///
    /// # Errors
    /// The errors of [`Memory::persist`].
    pub(crate) fn persist_each<M: Memory>(
        &self,
        pool: &Pool<M>,
        mut stretches: Vec<(Block, usize)>,
    ) -> Result<(), MemoryError> {
        let (memory, all) = (pool.memory(), stretches.len());
        stretches.retain(|(at, bytes)| memory.is_there(*at, 0, *bytes));
        let are_there = if stretches.len() == all {
            Ok(())
        } else {
            Err(MemoryError)
        };
        let persisted = by_member(&mut stretches).map(|of_member| {
            memory.persist_each(of_member).inspect_err(|_| {
                if memory.has_lost(of_member[0].0.member()) {
                    self.lose(pool);
                }
            })
        });
        persisted.fold(are_there, Result::and)
    }

    /// [`Journal::persist_data`] of all bytes of a member.
    ///
    /// # Errors
    /// The errors of [`Memory::persist_all`].
    pub(crate) fn persist_all<M: Memory>(&self, pool: &Pool<M>, member: MemberId) -> Result<(), MemoryError> {
        pool.memory().persist_all(member).inspect_err(|_| {
            if pool.memory().has_lost(member) {
                self.lose(pool);
            }
        })
    }

    /// To be held by a sync of a file as long as it goes on, from before it looks at the file's blocks. With it nothing is waited for but disks: who waits for
    /// all syncs has their end.
    pub(crate) fn goes_on(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        self.syncing_of(ino).read()
    }

    /// [`Journal::goes_on`], unless somebody waits for the syncs of such files.
    pub(crate) fn try_goes_on(&self, ino: Ino) -> Option<RwLockReadGuard<'_, ()>> {
        self.syncing_of(ino).try_read()
    }

    fn syncing_of(&self, ino: Ino) -> &RwLock<()> {
        &self.syncing[usize::try_from(ino.0 % SYNCING as u64).expect("ino % SYNCING fits a usize")]
    }

    /// Waits for the syncs that go on now.
    pub(crate) fn await_syncs(&self) {
        self.syncing.iter().for_each(|files| drop(files.write()));
    }

    /// Whether a group is to be forced with which a file must be settled first.
    pub(crate) fn has_needs(&self) -> bool {
        !self.needed.lock().is_empty()
    }

    /// Files that groups up to the log's end need settled, each with a mark for [`Journal::met`], and that end.
    pub(crate) fn needed(&self) -> (Vec<(Ino, u64)>, u64) {
        // Held for both: groups are appended with their needs.
        let writer = self.writer.lock();
        let needed = self.needed.lock().iter().map(|(ino, mark)| (*ino, *mark)).collect();
        (needed, writer.sequence)
    }

    /// A file is settled: it is needed no more, unless that was asked for again since the mark was read.
    pub(crate) fn met(&self, ino: Ino, mark: u64) {
        let mut needed = self.needed.lock();
        if needed.get(&ino) == Some(&mark) {
            needed.remove(&ino);
        }
    }

    /// Appends a group of changes; returns its sequence number. A failure sticks, and is told when the group is to be durable.
    pub(crate) fn append<M: Memory>(&self, pool: &Pool<M>, now_ns: i64, changes: &[Change<'_>]) -> u64 {
        self.append_records(pool, now_ns, changes.iter().map(|change| Record::Change(*change)))
    }

    /// [`Journal::append`] for records of any kind.
    pub(crate) fn append_records<'a, M: Memory>(
        &self,
        pool: &Pool<M>,
        now_ns: i64,
        records: impl Iterator<Item = Record<'a>>,
    ) -> u64 {
        self.append_needing(pool, now_ns, records, None)
    }

    /// [`Journal::append_records`] of a group that counts only when the changes of the file `needs` are settled that came before: they must be
    /// before any group is forced.
    pub(crate) fn append_needing<'a, M: Memory>(
        &self,
        pool: &Pool<M>,
        now_ns: i64,
        records: impl Iterator<Item = Record<'a>>,
        needs: Option<Ino>,
    ) -> u64 {
        let mut writer = self.writer.lock();
        if self.has_failed() || writer.append(self, pool, now_ns, records).is_err() {
            self.fail();
        }
        // Under the lock: nobody forces the group without it, and no settling before the group counts.
        if let Some(ino) = needs {
            // The group's number, which no other need has.
            self.needed.lock().insert(ino, writer.sequence);
        }
        writer.sequence
    }

    /// Makes all groups up to `through` durable, with all that others have appended meanwhile.
    ///
    /// # Errors
    /// [`MemoryError`], for ever after the first.
    pub(crate) fn force<M: Memory>(&self, pool: &Pool<M>, through: u64) -> Result<(), MemoryError> {
        // Acquire pairs with the release below: what was made durable is.
        while self.forced.load(Ordering::Acquire) < through {
            self.forcing.lead_or_wait(|| {
                let _in_hand = self.in_hand();
                let (unforced, end) = {
                    let mut writer = self.writer.lock();
                    (std::mem::take(&mut writer.unforced), writer.sequence)
                };
                for (block, offset, bytes) in unforced {
                    if self.persist(pool, block, offset, bytes).is_err() {
                        self.fail();
                    }
                }
                self.forced.store(end, Ordering::Release);
            });
        }
        if self.has_failed() {
            self.revoke(pool);
            return Err(MemoryError);
        }
        Ok(())
    }

    /// Notes that no crash takes the group `through` away, and none before it.
    pub(crate) fn note_durable(&self, through: u64) {
        // Relaxed: a number that stands alone.
        self.durable.fetch_max(through, Ordering::Relaxed);
    }

    /// Takes the witness out of the superblocks when stores may be lost, before anybody is told: the pool is opened as after a power cut then.
    pub(crate) fn revoke<M: Memory>(&self, pool: &Pool<M>) {
        let mut superblock = self.superblock.lock();
        if self.has_lost.load(Ordering::Relaxed) && superblock.witness != NO_WITNESS {
            revoke(
                pool.memory(),
                &mut superblock,
                self.failed_at_end.load(Ordering::Relaxed),
            );
        }
    }

    /// Keeps blocks back that a file had until now, or room that was reserved for it: a crash may bring back the record that gave them to it.
    pub(crate) fn quarantine(&self, first: Option<Block>, blocks: u64) {
        let end = self.end();
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        self.quarantine.lock().push((end, first, blocks));
    }

    /// Has memory forget blocks that were freed before the group `through`: their newest bytes were not durable, and nobody wants them. With the settling
    /// lock held.
    pub(crate) fn forget_freed<M: Memory>(&self, pool: &Pool<M>, through: u64) {
        // Whoever makes a file durable and found them in its map before has ended then.
        self.await_syncs();
        let kept = self.quarantine.lock().clone();
        let freed = kept.into_iter().filter(|(end, ..)| *end <= through);
        let placed = freed.filter_map(|(_, first, blocks)| Some((first?, blocks)));
        placed.for_each(|(first, blocks)| pool.memory().forget(first, blocks));
    }

    /// Whether blocks or room are kept back.
    pub(crate) fn has_quarantined(&self) -> bool {
        // Acquire: who sees that they are given back sees the room.
        self.quarantined.load(Ordering::Acquire) > 0
    }

    /// Blocks and room that are kept back, with what is being given back just now: `u64::MAX` where that is not known.
    pub(crate) fn kept_blocks(&self) -> u64 {
        let kept = self.quarantine.lock();
        // Relaxed: it was counted before it came into the list.
        if kept.len() < self.quarantined.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        kept.iter().map(|(.., blocks)| blocks).sum()
    }

    /// Blocks that are kept back, and room that was reserved, in blocks.
    pub(crate) fn quarantined_blocks(&self) -> (u64, u64) {
        self.quarantine
            .lock()
            .iter()
            .fold((0, 0), |(placed, reserved), (_, first, blocks)| match first {
                Some(_) => (placed + blocks, reserved),
                None => (placed, reserved + blocks),
            })
    }

    /// Gives back blocks that were freed before the group `through`, which is durable as all before it.
    pub(crate) fn release<M: Memory>(&self, pool: &Pool<M>, through: u64) {
        let mut kept = self.quarantine.lock();
        let (free, still): (Vec<_>, Vec<_>) = kept.drain(..).partition(|(end, ..)| *end <= through);
        *kept = still;
        drop(kept);
        let count = free.len();
        for (_, first, blocks) in free {
            match first {
                Some(first) => pool.free(first, blocks),
                None => pool.unreserve(blocks),
            }
        }
        self.quarantined.fetch_sub(count, Ordering::Release);
    }

    /// Blocks of the log, used and empty.
    pub(crate) fn segment_blocks(&self) -> u64 {
        let used = bytes_of(&self.writer.lock().segments);
        (used + bytes_of(&self.spare.lock())) / BLOCK_BYTES as u64 + self.bad_blocks.load(Ordering::Relaxed)
    }

    /// Takes empty segments until there are as many as there should be; false when the pool has no room for them.
    pub(crate) fn fill_spare<M: Memory>(&self, pool: &Pool<M>) -> bool {
        let _one_at_a_time = self.filling.lock();
        self.fill(pool, SPARE_SEGMENTS)
    }

    /// Leads the log on to another segment: the rest of its last one is of no use.
    ///
    /// # Errors
    /// When nothing can be written there either.
    pub(crate) fn go_on<M: Memory>(&self, pool: &Pool<M>, now_ns: i64) -> Result<(), MemoryError> {
        self.writer.lock().go_on(self, pool, now_ns)
    }

    /// [`Journal::fill_spare`] of a pool that is being opened. A full pool may have no gap for larger segments than before: it goes on with segments as they
    /// were, of which there were enough.
    pub(crate) fn fill_at_opening<M: Memory>(&mut self, pool: &Pool<M>) {
        let (_, before) = *self.writer.lock().segments.last().expect("a log has a segment");
        if !self.fill_spare(pool) && before < self.options.segment_blocks {
            let large = std::mem::take(self.spare.get_mut());
            large
                .into_iter()
                .for_each(|(first, blocks)| pool.free(first, blocks.into()));
            self.options.segment_blocks = before;
            self.fill_spare(pool);
        }
    }

    /// Takes empty segments until there are `more` than a snapshot needs. With the lock for it.
    fn fill<M: Memory>(&self, pool: &Pool<M>, more: usize) -> bool {
        while !self.has_spare(more) {
            let Some(segment) = self.take_new(pool) else {
                return false;
            };
            self.spare.lock().push(segment);
        }
        true
    }

    /// Whether there are `more` empty segments than a snapshot needs.
    fn has_spare(&self, more: usize) -> bool {
        self.missing_spare(more) == 0
    }

    /// Bytes of empty segments that are missing until there are `more` than a snapshot needs.
    fn missing_spare(&self, more: usize) -> u64 {
        // Both: a segment that comes into use is in neither, or in both, without.
        let writer = self.writer.lock();
        let spare = self.spare.lock();
        let missing = |more: usize| self.wanted_bytes(&writer, more).saturating_sub(bytes_of(&spare));
        if missing(SPARE_SEGMENTS) == 0 {
            self.short.store(false, Ordering::Relaxed);
        }
        missing(more)
    }

    /// Bytes of `more` empty segments than a snapshot needs. What lies behind the last snapshot takes up to half as much again in the next one, as that
    /// tells a new inode's size and times: so much is kept twice, as the snapshot that follows is as long. The segment that is written to is among `more`.
    fn wanted_bytes(&self, writer: &Writer, more: usize) -> u64 {
        let (_, behind) = writer.segments[writer.of_snapshot..]
            .split_last()
            .expect("a segment follows the snapshot");
        bytes_of(&writer.segments) + bytes_of(behind) + more as u64 * self.segment_bytes()
    }

    /// Promises room for groups of `bytes` bytes, unless there may be too little.
    #[inline]
    pub(crate) fn promise_at_once(&self, bytes: u64) -> Option<Room<'_>> {
        let room = self.count(bytes);
        // Relaxed: one who sees late that a segment came into use has room in it, as have all who are promised half of one together.
        let all = self.promised.load(Ordering::Relaxed);
        (!self.short.load(Ordering::Relaxed) && 2 * all <= self.segment_bytes()).then_some(room)
    }

    /// Whether so much is promised that `bytes` bytes more are [not promised at once](Self::promise_at_once).
    pub(crate) fn has_promised_much(&self, bytes: u64) -> bool {
        2 * (self.promised.load(Ordering::Relaxed) + bytes) > self.segment_bytes()
    }

    /// Promises room for groups of `bytes` bytes with this effect; `None` when the pool has too little for them and all that is promised.
    pub(crate) fn promise<M: Memory>(&self, pool: &Pool<M>, effect: Effect, bytes: u64) -> Option<Room<'_>> {
        self.promise_at_once(bytes)
            .or_else(|| self.promise_new(pool, effect, bytes))
    }

    #[cold]
    fn promise_new<M: Memory>(&self, pool: &Pool<M>, effect: Effect, bytes: u64) -> Option<Room<'_>> {
        let _one_at_a_time = self.filling.lock();
        let room = self.count(bytes);
        let promised = self.spare_for(self.promised.load(Ordering::Relaxed));
        // Before any is taken: each is written then, and its room would be missing elsewhere meanwhile. Where something is to be freed, all help.
        let missing = self.missing_spare(effect.least_segments() + promised);
        if effect.grows() && !pool.can_commit(missing / BLOCK_BYTES as u64) {
            return None;
        }
        let before = self.spare.lock().len();
        let is_full = self.fill(pool, Effect::Adds.least_segments() + promised);
        if is_full || self.has_spare(effect.least_segments() + promised) {
            return Some(room);
        }
        self.give_back(pool, before);
        None
    }

    /// Gives empty segments back but for so many, and those that there should be. With the lock for taking them.
    fn give_back<M: Memory>(&self, pool: &Pool<M>, kept: usize) {
        let excess = {
            let wanted = self.wanted_bytes(&self.writer.lock(), SPARE_SEGMENTS);
            let mut spare = self.spare.lock();
            let excess = fitting(spare.iter().rev(), bytes_of(&spare).saturating_sub(wanted));
            let kept = kept.max(spare.len() - excess).min(spare.len());
            spare.split_off(kept)
        };
        excess
            .into_iter()
            .for_each(|(first, blocks)| pool.free(first, blocks.into()));
    }

    /// Promises room for groups of `bytes` bytes, whether there is some or not.
    pub(crate) fn count(&self, bytes: u64) -> Room<'_> {
        self.promised.fetch_add(bytes, Ordering::Relaxed);
        let promised = &self.promised;
        Room { promised, bytes }
    }

    /// Promises room in what is left of the log, where a snapshot has no room.
    pub(crate) fn promise_rest(&self, effect: Effect, bytes: u64) -> Option<Room<'_>> {
        let room = self.count(bytes);
        self.has_rest(effect).then_some(room)
    }

    /// Whether the log has room for all that is promised, and for the bytes that are kept from such an operation.
    pub(crate) fn has_rest(&self, effect: Effect) -> bool {
        let writer = self.writer.lock();
        let last = writer.segment_bytes();
        let rest = bytes_of(&self.spare.lock()) + (last - writer.at) as u64;
        rest >= effect.kept_bytes(last as u64) + self.promised.load(Ordering::Relaxed)
    }

    /// Whether there are the empty segments that a snapshot needs.
    pub(crate) fn has_snapshot_room(&self) -> bool {
        self.has_spare(0)
    }

    /// Whether the room that others were promised is all that is missing for a promise.
    pub(crate) fn fits_alone(&self, effect: Effect, bytes: u64) -> bool {
        self.has_spare(effect.least_segments() + self.spare_for(bytes))
    }

    /// Empty segments that promises of `bytes` bytes take. A group that does not fit leaves a segment's end empty, less than its own length.
    fn spare_for(&self, bytes: u64) -> usize {
        2 * usize::try_from((2 * bytes).div_ceil(self.segment_bytes())).expect("the log fits in memory")
    }

    fn segment_bytes(&self) -> u64 {
        u64::from(self.options.segment_blocks) * BLOCK_BYTES as u64
    }

    fn take_new<M: Memory>(&self, pool: &Pool<M>) -> Option<Segment> {
        let blocks = self.options.segment_blocks;
        loop {
            let first = pool.take_whole(u64::from(blocks))?;
            // A disk's filesystem takes twice as long for the first forced write to a place. Segments of a pool that is being opened were written
            // before, or are soon.
            let is_disk = pool.kind(first.member()) == Some(MemberKind::Block);
            if is_disk || pool.memory().inline_bytes_max() == 0 || self.is_opening.load(Ordering::Relaxed) {
                return Some((first, blocks));
            }
            let bytes = blocks as usize * BLOCK_BYTES;
            let zeroed = pool.memory().zero(first, 0, bytes);
            if zeroed.and_then(|()| self.persist(pool, first, 0, bytes)).is_ok() {
                return Some((first, blocks));
            }
            // Its pages are lost, as nobody else's: another will do.
            self.bad_blocks.fetch_add(blocks.into(), Ordering::Relaxed);
            if self.has_failed() || self.bad_blocks.load(Ordering::Relaxed) > BAD_SEGMENTS_MAX * u64::from(blocks) {
                return None;
            }
        }
    }

    /// The pool is there from now on.
    pub(crate) fn opened(&self) {
        self.is_opening.store(false, Ordering::Relaxed);
    }

    /// Whether anything was appended since the last snapshot.
    pub(crate) fn has_grown(&self) -> bool {
        self.end() > self.snapshot_end.load(Ordering::Relaxed)
    }

    /// Whether the pool was never opened.
    pub(crate) fn is_new(&self) -> bool {
        self.superblock.lock().generation == 0
    }

    /// Whether empty segments are missing.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Whether a snapshot is worth it: the log is twice as long as its last snapshot, and some bytes.
    pub(crate) fn is_long(&self) -> bool {
        self.is_longer_than(2, self.options.slack_bytes)
    }

    /// Whether a snapshot cannot wait: those who write are faster than those who tend the log.
    pub(crate) fn is_too_long(&self) -> bool {
        self.is_longer_than(4, 2 * self.options.slack_bytes)
    }

    /// Whether a snapshot gives blocks back, if there are to be any: a segment behind the last one, and what is kept empty for that.
    pub(crate) fn can_be_shorter(&self) -> bool {
        self.is_longer_than(1, self.segment_bytes())
    }

    /// Whether a snapshot may give blocks back in a full pool: now and then also where the log is short, as the snapshot may be shorter than the last one.
    pub(crate) fn may_be_shorter(&self, now_ns: i64) -> bool {
        let is_old = now_ns.saturating_sub(self.snapshot_ns.load(Ordering::Relaxed)) >= SNAPSHOT_PERIOD_NS;
        self.has_grown() && (is_old || self.can_be_shorter())
    }

    /// A snapshot was written at that time.
    pub(crate) fn note_snapshot(&self, now_ns: i64) {
        self.snapshot_ns.store(now_ns, Ordering::Relaxed);
    }

    fn is_longer_than(&self, snapshots: u64, bytes: u64) -> bool {
        // Relaxed: figures.
        let snapshot = self.snapshot_bytes.load(Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed) > snapshots * snapshot + bytes
    }

    fn take_spare<M: Memory>(&self, pool: &Pool<M>) -> Result<Segment, MemoryError> {
        let spare = {
            let mut spare = self.spare.lock();
            self.short.store(true, Ordering::Relaxed);
            let stays = spare.iter().rposition(|(first, _)| !pool.is_draining(first.member()));
            stays.map(|at| spare.swap_remove(at))
        };
        // One on a member that drains, where there is no other: the log is moved off it later.
        let any = || self.spare.lock().pop();
        spare.or_else(|| self.take_new(pool)).or_else(any).ok_or(MemoryError)
    }

    /// Begins a snapshot of what the log says up to the sequence number that is returned with it; what is appended from now on goes to a new
    /// segment, which follows the snapshot.
    pub(crate) fn begin_snapshot<M: Memory>(&self, pool: &Pool<M>) -> Result<(Snapshot, Head), MemoryError> {
        if self.has_failed() {
            return Err(MemoryError);
        }
        let nonce = self.options.nonce;
        let (first, blocks) = self.take_spare(pool)?;
        let mut writer = self.writer.lock();
        if let Err(error) = writer.go_on(self, pool, 0) {
            self.spare.lock().push((first, blocks));
            return Err(error);
        }
        let (tail_first, tail_blocks) = *writer.segments.last().expect("a segment was pushed just now");
        let tail = Head {
            first: tail_first,
            blocks: tail_blocks,
            sequence: writer.sequence + 1,
            nonce,
            seed: writer.crc,
        };
        // Another secret than the tail's, and than that of any snapshot before.
        let head = Head::of_new((first, blocks), !nonce ^ writer.sequence);
        let mut writer = Writer::new(&head);
        writer.begin();
        Ok((Snapshot { head, writer }, tail))
    }

    /// Appends records to a snapshot.
    pub(crate) fn append_snapshot<'a, M: Memory>(
        &self,
        pool: &Pool<M>,
        snapshot: &mut Snapshot,
        records: impl Iterator<Item = Record<'a>>,
    ) -> Result<(), MemoryError> {
        snapshot.writer.gather(self, pool, 0, false, records)
    }

    /// Writes what is left of a snapshot's records.
    pub(crate) fn end_snapshot<M: Memory>(&self, pool: &Pool<M>, snapshot: &mut Snapshot) -> Result<(), MemoryError> {
        snapshot.writer.write(self, pool, 0, false)
    }

    /// Puts a snapshot in the place of what was before `tail`, when all that `tail` leads to is durable. Gives the old segments back.
    pub(crate) fn publish_snapshot<M: Memory>(
        &self,
        pool: &Pool<M>,
        snapshot: Snapshot,
        tail: Head,
    ) -> Result<(), MemoryError> {
        let Snapshot { head, writer: new } = snapshot;
        let late = is_planted(Planted::SuperblockFirst);
        let mut unforced = new.unforced.iter().filter(|_| !late);
        let persisted = unforced.try_for_each(|(block, offset, bytes)| self.persist(pool, *block, *offset, *bytes));
        if let Err(error) = persisted {
            self.spare.lock().extend(new.segments);
            return Err(error);
        }
        // A failure ends the log: the segments of both are kept.
        self.change_superblock(pool, |superblock| {
            (superblock.snapshot, superblock.tail) = (head, tail);
        })?;
        let mut writer = self.writer.lock();
        let kept = writer.segments.iter().position(|(first, _)| *first == tail.first);
        let kept = kept.expect("the tail's first segment is still in the list");
        let old: Vec<Segment> = writer.segments.drain(..kept).collect();
        writer.segments.splice(0..0, new.segments.iter().copied());
        self.bytes.store(bytes_of(&writer.segments), Ordering::Relaxed);
        self.snapshot_bytes.store(bytes_of(&new.segments), Ordering::Relaxed);
        self.snapshot_end.store(writer.sequence, Ordering::Relaxed);
        self.too_few.store(0, Ordering::Relaxed);
        writer.of_snapshot = new.segments.len();
        let wanted = self.wanted_bytes(&writer, SPARE_SEGMENTS);
        drop(writer);
        let mut spare = self.spare.lock();
        spare.extend(old);
        let excess = fitting(spare.iter(), bytes_of(&spare).saturating_sub(wanted));
        let excess: Vec<Segment> = spare.drain(..excess).collect();
        drop(spare);
        excess
            .into_iter()
            .for_each(|(first, blocks)| pool.free(first, blocks.into()));
        Ok(())
    }

    /// Gives a snapshot up.
    pub(crate) fn drop_snapshot(&self, snapshot: Snapshot) {
        self.spare.lock().extend(snapshot.writer.segments);
    }

    /// A snapshot of so many bytes of metadata found too few empty segments: another one needs more, or less metadata. It may have cost the segment
    /// that was to follow it.
    pub(crate) fn note_too_few(&self, metadata: u64) {
        // 0 is for none.
        self.too_few
            .store(bytes_of(&self.spare.lock()).max(1), Ordering::Relaxed);
        self.too_few_for.store(metadata, Ordering::Relaxed);
    }

    /// Whether there are more bytes of empty segments than were too few for the last snapshot that was begun, or a quarter less of metadata.
    pub(crate) fn may_fit(&self, metadata: u64) -> bool {
        let too_few = self.too_few.load(Ordering::Relaxed);
        too_few == 0
            || bytes_of(&self.spare.lock()) > too_few
            || metadata < self.too_few_for.load(Ordering::Relaxed) / 4 * 3
    }

    /// Changes the superblocks, one copy after the other.
    pub(crate) fn change_superblock<M: Memory>(
        &self,
        pool: &Pool<M>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), MemoryError> {
        let mut superblock = self.superblock.lock();
        // Under the lock: a witness that was taken out must not come back.
        if self.has_failed() {
            return Err(MemoryError);
        }
        let mut new = superblock.clone();
        new.end = self.durable.load(Ordering::Relaxed);
        change(&mut new);
        new.generation += 1;
        let members = new.members.clone();
        // Some copies may be written, or lost: the same number must not be given to others.
        if let Err(Failed { at_end }) = write_superblocks(pool.memory(), &mut new, &members, false) {
            self.failed_at_end.store(at_end, Ordering::Relaxed);
            // Others who change it hold the settling lock.
            drop(superblock);
            self.lose(pool);
            return Err(MemoryError);
        }
        *superblock = new;
        Ok(())
    }
}

fn bytes_of(segments: &[Segment]) -> u64 {
    let blocks: u64 = segments.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
    blocks * BLOCK_BYTES as u64
}

/// How many segments, from the first on, have no more than so many bytes together.
fn fitting<'a>(segments: impl Iterator<Item = &'a Segment>, bytes: u64) -> usize {
    let sums = segments.scan(0, |sum, segment| {
        *sum += bytes_of(std::slice::from_ref(segment));
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= bytes).count()
}

/// A copy of the superblock was not made durable: one at the end of a member, or at its start.
#[derive(Debug)]
pub(crate) struct Failed {
    at_end: bool,
}

/// Writes the copies at the starts of `members`, then those at their ends, or the other way round: at each moment one of each member is whole.
pub(crate) fn write_superblocks<M: Memory>(
    memory: &M,
    superblock: &mut Superblock,
    members: &[MemberRecord],
    ends_first: bool,
) -> Result<(), Failed> {
    for at_end in [ends_first, !ends_first] {
        for MemberRecord { id, blocks, .. } in members.iter().copied() {
            superblock.own = id;
            let block = Block::new(id, if at_end { blocks - 1 } else { 0 });
            let stored = memory.store_clean(block, 0, &superblock.encode()[..]);
            let persisted = stored.and_then(|()| match is_planted(Planted::BothSuperblocks) {
                true => Ok(()),
                false => memory.persist(block, 0, BLOCK_BYTES),
            });
            persisted.map_err(|MemoryError| Failed { at_end })?;
        }
    }
    Ok(())
}

/// Takes the witness out of the superblocks: what the next life finds is not all that was stored. The copies that may not be whole come first.
pub(crate) fn revoke<M: Memory>(memory: &M, superblock: &mut Superblock, ends_first: bool) {
    superblock.witness = NO_WITNESS;
    // A change that failed may have left the number in between.
    superblock.generation += 2;
    for member in superblock.members.clone() {
        // Where not even that can be made durable, the page cache shows the copy that was stored first. Other members may be on other disks.
        let _ = write_superblocks(memory, superblock, &[member], ends_first);
    }
}

/// Writes each copy of the newest superblock anew that a crash left damaged or old, so that no member is ever two changes behind, and none has
/// a single copy when that is written.
pub(crate) fn repair_superblocks<M: Memory>(memory: &M, newest: &Superblock) -> Result<(), MemoryError> {
    for member in &newest.members {
        let mut copies = Vec::new();
        for index in [0, member.blocks - 1] {
            let (place, mut copy) = (Block::new(member.id, index), [0; BLOCK_BYTES]);
            let loaded = memory.load(place, 0, &mut copy).ok();
            // One that cannot be read is as a damaged one: a disk may put it elsewhere when it is written.
            let found = loaded.and_then(|()| Superblock::decode(&copy).ok());
            copies.push((found.map(|found| found.generation), place));
        }
        // A damaged one first: the other one is whole meanwhile.
        copies.sort_unstable();
        for (_, place) in copies.iter().filter(|(found, _)| *found != Some(newest.generation)) {
            let own = Superblock {
                own: member.id,
                ..newest.clone()
            };
            memory.store_clean(*place, 0, &own.encode()[..])?;
            memory.persist(*place, 0, BLOCK_BYTES)?;
        }
    }
    Ok(())
}

/// The superblock of a new pool whose log begins with these segments.
pub(crate) fn first_superblock(options: &LogOptions, members: Vec<MemberRecord>, first: [Segment; 2]) -> Superblock {
    Superblock {
        features: Features::default(),
        uuid: options.uuid,
        name: options.name,
        generation: 0,
        own: members[0].id,
        witness: options.witness,
        end: 0,
        history: options.history,
        snapshot: Head::of_new(first[0], !options.nonce),
        tail: Head::of_new(first[1], options.nonce),
        members,
    }
}

impl Writer {
    /// The writer of a snapshot.
    fn new(head: &Head) -> Self {
        Self {
            group: Vec::new(),
            segments: vec![(head.first, head.blocks)],
            of_snapshot: 1,
            at: 0,
            sequence: 0,
            nonce: head.nonce,
            crc: head.seed,
            is_snapshot: true,
            unforced: Vec::new(),
        }
    }

    fn append<'a, M: Memory>(
        &mut self,
        journal: &Journal,
        pool: &Pool<M>,
        time_ns: i64,
        records: impl Iterator<Item = Record<'a>>,
    ) -> Result<(), MemoryError> {
        self.begin();
        self.gather(journal, pool, time_ns, true, records)?;
        self.write(journal, pool, time_ns, false)
    }

    /// Adds to the group that was begun. A large one is cut into parts, or groups of their own: a part and the largest record fit into a segment.
    fn gather<'a, M: Memory>(
        &mut self,
        journal: &Journal,
        pool: &Pool<M>,
        time_ns: i64,
        as_parts: bool,
        records: impl Iterator<Item = Record<'a>>,
    ) -> Result<(), MemoryError> {
        // What cannot be read of a snapshot is lost by the group.
        let part_bytes = if as_parts { usize::MAX } else { SNAPSHOT_GROUP_BYTES }.min(self.segment_bytes() / 4);
        for record in records {
            let before = self.group.len();
            codec::encode(&mut self.group, &record);
            // It ends before a record that does not fit into the segment: a snapshot leaves less than a record of each empty.
            let rest = self.segment_bytes() - self.at;
            let fits = codec::padded(self.group.len()) + NEXT_BYTES <= rest;
            if before > HEADER_BYTES && (before >= part_bytes || !fits) {
                let last = self.group.split_off(before);
                self.write(journal, pool, time_ns, as_parts)?;
                self.begin();
                self.group.extend_from_slice(&last);
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.group.clear();
        self.group.resize(HEADER_BYTES, 0);
    }

    fn segment_bytes(&self) -> usize {
        let (_, blocks) = self.segments.last().expect("a log has at least one segment");
        *blocks as usize * BLOCK_BYTES
    }

    /// Writes the group that was begun.
    fn write<M: Memory>(
        &mut self,
        journal: &Journal,
        pool: &Pool<M>,
        time_ns: i64,
        more: bool,
    ) -> Result<(), MemoryError> {
        let bytes = codec::padded(self.group.len()) + NEXT_BYTES;
        if bytes > self.segment_bytes() {
            return Err(MemoryError);
        }
        if self.at + bytes > self.segment_bytes() {
            let group = std::mem::take(&mut self.group);
            self.go_on(journal, pool, time_ns)?;
            self.group = group;
        }
        self.store(journal, pool, time_ns, more)
    }

    /// Leads on to an empty segment.
    fn go_on<M: Memory>(&mut self, journal: &Journal, pool: &Pool<M>, time_ns: i64) -> Result<(), MemoryError> {
        let (first, blocks) = journal.take_spare(pool)?;
        self.begin();
        codec::encode(&mut self.group, &Record::Next { first, blocks });
        self.store(journal, pool, time_ns, false)?;
        self.segments.push((first, blocks));
        self.at = 0;
        if !self.is_snapshot {
            let more = u64::from(blocks) * BLOCK_BYTES as u64;
            journal.bytes.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    fn store<M: Memory>(
        &mut self,
        journal: &Journal,
        pool: &Pool<M>,
        time_ns: i64,
        more: bool,
    ) -> Result<(), MemoryError> {
        let header = Group {
            sequence: self.sequence + 1,
            nonce: self.nonce,
            time_ns,
            more,
            durable: match self.is_snapshot {
                true => 0,
                false if is_planted(Planted::ClaimedEarly) => self.sequence,
                false => journal.durable.load(Ordering::Relaxed),
            },
        };
        self.crc = codec::seal(&mut self.group, self.crc, header);
        let (segment, _) = *self.segments.last().expect("a log has at least one segment");
        // The checksums go on from this group: without it nothing behind it counts.
        let stored = pool.memory().append(segment, self.at, &self.group);
        stored.inspect_err(|_| journal.fail())?;
        let bytes = self.group.len();
        match self.unforced.last_mut() {
            Some((last, offset, count)) if *last == segment && *offset + *count == self.at => *count += bytes,
            _ => self.unforced.push((segment, self.at, bytes)),
        }
        self.at += bytes;
        self.sequence += 1;
        Ok(())
    }
}
