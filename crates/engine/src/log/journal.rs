//! Writing the log: appending groups, making them durable, and the blocks that wait until they may be used again.
//!
//! Segments of the log are blocks of the pool. What adds something needs an empty segment for each one in use, and [`SPARE_SEGMENTS`] more: so a
//! snapshot always finds room, and removing works in a full pool. The last group that adds may fill a segment; a snapshot of all that may need
//! one more than it was, and one begins behind it; then there are [`LEAST_SEGMENTS`] more than are in use, and one to remove with. Locks: the
//! writer's is taken below those of all objects, and above the pool's.

use super::Change;
use super::codec::{self, Group, HEADER_BYTES, Record};
use super::planted::{Planted, is_planted};
use super::scan::{Segment, Tail};
use super::superblock::{Features, Head, MemberRecord, PoolName, Superblock};
use super::turn::Turn;
use crate::fs::Ino;
use crate::pool::Pool;
use crate::{BLOCK_BYTES, Block, Memory, MemoryError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Empty segments beyond one for each in use, as long as something is added.
const SPARE_SEGMENTS: usize = 6;
/// Empty segments beyond one for each in use, without which a snapshot comes before anything else.
const LEAST_SEGMENTS: usize = 1;
/// Bytes of the group that leads to the next segment.
const NEXT_BYTES: usize = codec::padded(HEADER_BYTES + 13);
/// Bytes of a group of a snapshot, from which on the next record goes to another one.
pub(super) const SNAPSHOT_GROUP_BYTES: usize = 16 << 10;
/// Locks that files are spread over while they are made durable.
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
    spare: Mutex<Vec<Segment>>,
    /// Fewer empty segments are left than there should be.
    short: AtomicBool,
    /// The pool is being opened.
    is_opening: AtomicBool,
    /// Groups are made durable by one thread for all that wait.
    forcing: Turn,
    /// Sequence number of the last group that is durable.
    forced: AtomicU64,
    /// Something could not be made durable: nothing is acknowledged any more.
    failed: AtomicBool,
    /// The pool is only read. `failed` is set then, too.
    is_read_only: bool,
    /// Superblock as it was written last.
    superblock: Mutex<Superblock>,
    /// Blocks that were freed, by the log's end at that time.
    quarantine: Mutex<Vec<(u64, Block, u64)>>,
    /// Held while a file is made durable, by its number.
    syncing: [Mutex<()>; SYNCING],
    /// Held while a file's blocks move to other places of it.
    pub(crate) shifting: Mutex<()>,
    /// Held while everything is made durable, or a snapshot is made.
    pub(crate) settling: Mutex<()>,
    /// Files whose bytes may not be durable.
    pub(crate) dirty: Mutex<Vec<Ino>>,
    /// Files whose changes must be settled before any group is forced, and how often that was asked for.
    needed: Mutex<HashMap<Ino, u64>>,
    /// Sequence number through which the changes of all files are settled.
    pub(crate) settled_all: AtomicU64,
    /// Bytes of the log, and those of its last snapshot.
    bytes: AtomicU64,
    snapshot_bytes: AtomicU64,
    /// Sequence number of the log's end when the last snapshot was put in place.
    snapshot_end: AtomicU64,
}

#[derive(Debug)]
struct Writer {
    group: Vec<u8>,
    segments: Vec<Segment>,
    at: usize,
    sequence: u64,
    nonce: u64,
    crc: u32,
    /// Stretches that are not durable: block, first byte and number of bytes.
    unforced: Vec<(Block, usize, usize)>,
}

/// A log that is written beside the one in use, to take its place.
#[derive(Debug)]
pub(crate) struct Snapshot {
    head: Head,
    writer: Writer,
}

impl Journal {
    /// A journal that goes on behind `tail`, with the snapshot's segments given apart.
    pub(crate) fn new(options: LogOptions, superblock: Superblock, snapshot: Vec<Segment>, tail: Tail) -> Self {
        let (snapshot_segments, settled_all) = (snapshot.len(), tail.sequence);
        let segments: Vec<Segment> = snapshot.into_iter().chain(tail.segments).collect();
        Self {
            options,
            bytes: AtomicU64::new(bytes_of(&segments)),
            snapshot_bytes: AtomicU64::new(bytes_of(&segments[..snapshot_segments])),
            snapshot_end: AtomicU64::new(0),
            writer: Mutex::new(Writer {
                group: Vec::new(),
                segments,
                at: tail.at,
                sequence: tail.sequence,
                nonce: superblock.tail.nonce,
                crc: tail.crc,
                unforced: Vec::new(),
            }),
            spare: Mutex::default(),
            short: AtomicBool::new(true),
            is_opening: AtomicBool::new(true),
            forcing: Turn::default(),
            forced: AtomicU64::new(tail.sequence),
            failed: AtomicBool::new(false),
            is_read_only: false,
            superblock: Mutex::new(superblock),
            quarantine: Mutex::default(),
            syncing: std::array::from_fn(|_| Mutex::default()),
            shifting: Mutex::default(),
            settling: Mutex::default(),
            dirty: Mutex::default(),
            needed: Mutex::default(),
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

    /// Number of members.
    pub(crate) fn members(&self) -> u64 {
        self.superblock.lock().members.len() as u64
    }

    /// Sequence number of the last group.
    pub(crate) fn end(&self) -> u64 {
        self.writer.lock().sequence
    }

    /// Whether nothing can be made durable any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The lock of a file that is being made durable.
    pub(crate) fn syncing(&self, ino: Ino) -> &Mutex<()> {
        &self.syncing[usize::try_from(ino.0 % SYNCING as u64).expect("below SYNCING")]
    }

    /// Files that must be settled first, each with a mark for [`Journal::met`].
    pub(crate) fn needed(&self) -> Vec<(Ino, u64)> {
        self.needed.lock().iter().map(|(ino, mark)| (*ino, *mark)).collect()
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
        if writer.append(self, pool, now_ns, records).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        // Under the lock: nobody forces the group without it, and no settling before the group counts.
        if let Some(ino) = needs {
            *self.needed.lock().entry(ino).or_default() += 1;
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
                let (unforced, end) = {
                    let mut writer = self.writer.lock();
                    (std::mem::take(&mut writer.unforced), writer.sequence)
                };
                for (block, offset, bytes) in unforced {
                    if pool.memory().persist(block, offset, bytes).is_err() {
                        self.failed.store(true, Ordering::Relaxed);
                    }
                }
                self.forced.store(end, Ordering::Release);
            });
        }
        if self.has_failed() { Err(MemoryError) } else { Ok(()) }
    }

    /// Keeps blocks back that a file had until now: a crash may bring back the record that gave them to it.
    pub(crate) fn quarantine(&self, first: Block, blocks: u64) {
        let end = self.end();
        self.quarantine.lock().push((end, first, blocks));
    }

    /// A file is settled, whatever was asked for: nothing of it can be changed now.
    pub(crate) fn met_all(&self, ino: Ino) {
        self.needed.lock().remove(&ino);
    }

    /// Blocks that are kept back.
    pub(crate) fn quarantined_blocks(&self) -> u64 {
        self.quarantine.lock().iter().map(|(.., blocks)| blocks).sum()
    }

    /// Gives back blocks that were freed before the group `through`, which is durable as all before it.
    pub(crate) fn release<M: Memory>(&self, pool: &Pool<M>, through: u64) {
        let mut kept = self.quarantine.lock();
        let (free, still): (Vec<_>, Vec<_>) = kept.drain(..).partition(|(end, ..)| *end <= through);
        *kept = still;
        drop(kept);
        free.into_iter().for_each(|(_, first, blocks)| pool.free(first, blocks));
    }

    /// Blocks of the log, used and empty.
    pub(crate) fn segment_blocks(&self) -> u64 {
        let used = bytes_of(&self.writer.lock().segments);
        (used + bytes_of(&self.spare.lock())) / BLOCK_BYTES as u64
    }

    /// Takes empty segments until there are as many as there should be; false when the pool has no room for them.
    pub(crate) fn fill_spare<M: Memory>(&self, pool: &Pool<M>) -> bool {
        let wanted = self.writer.lock().segments.len() + SPARE_SEGMENTS;
        let is_full = self.fill_to(pool, wanted);
        if is_full {
            self.short.store(false, Ordering::Relaxed);
        }
        is_full
    }

    /// Takes empty segments for a group of `bytes` bytes, if it is so large that it was not reckoned with; false when the pool has no room for them.
    pub(crate) fn has_room_for<M: Memory>(&self, pool: &Pool<M>, bytes: u64) -> bool {
        let segment_bytes = u64::from(self.options.segment_blocks) * BLOCK_BYTES as u64;
        // A segment's end may stay empty, less than half of it.
        let more = usize::try_from(2 * bytes / segment_bytes).expect("its records are in memory");
        let used = self.writer.lock().segments.len();
        more == 0 || self.fill_to(pool, used + LEAST_SEGMENTS + 2 * more)
    }

    fn fill_to<M: Memory>(&self, pool: &Pool<M>, wanted: usize) -> bool {
        while self.spare.lock().len() < wanted {
            let Some(segment) = self.take_new(pool) else {
                return false;
            };
            self.spare.lock().push(segment);
        }
        true
    }

    fn take_new<M: Memory>(&self, pool: &Pool<M>) -> Option<Segment> {
        let blocks = self.options.segment_blocks;
        let first = pool.take_whole(u64::from(blocks))?;
        // A disk's filesystem takes twice as long for the first forced write to a place. A failure is told when it is written to. Segments of a
        // pool that is being opened were written before, or are soon.
        if pool.memory().inline_bytes_max() > 0 && !self.is_opening.load(Ordering::Relaxed) {
            let bytes = blocks as usize * BLOCK_BYTES;
            let zeroed = pool.memory().zero(first, 0, bytes);
            let _ = zeroed.and_then(|()| pool.memory().persist(first, 0, bytes));
        }
        Some((first, blocks))
    }

    /// The pool is there from now on.
    pub(crate) fn opened(&self) {
        self.is_opening.store(false, Ordering::Relaxed);
    }

    /// Whether room is missing for the log of something that `adds`, or frees.
    pub(crate) fn lacks_room<M: Memory>(&self, pool: &Pool<M>, adds: bool) -> bool {
        if !self.is_short() || self.fill_spare(pool) {
            return false;
        }
        let used = self.writer.lock().segments.len();
        adds || self.spare.lock().len() < used + LEAST_SEGMENTS
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
        // Relaxed: who sees it late is one more of those for whom two segments are kept.
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

    /// Whether a snapshot gives blocks back, if there are to be any.
    pub(crate) fn can_be_shorter(&self) -> bool {
        self.is_longer_than(1, 2 * u64::from(self.options.segment_blocks) * BLOCK_BYTES as u64)
    }

    fn is_longer_than(&self, snapshots: u64, bytes: u64) -> bool {
        // Relaxed: figures.
        let snapshot = self.snapshot_bytes.load(Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed) > snapshots * snapshot + bytes
    }

    fn take_spare<M: Memory>(&self, pool: &Pool<M>) -> Result<Segment, MemoryError> {
        self.short.store(true, Ordering::Relaxed);
        let spare = self.spare.lock().pop();
        spare.or_else(|| self.take_new(pool)).ok_or(MemoryError)
    }

    /// Begins a snapshot of what the log says up to the sequence number that is returned with it; what is appended from now on goes to a new
    /// segment, which follows the snapshot.
    pub(crate) fn begin_snapshot<M: Memory>(&self, pool: &Pool<M>) -> Result<(Snapshot, Head), MemoryError> {
        let nonce = self.options.nonce;
        let (first, blocks) = self.take_spare(pool)?;
        let mut writer = self.writer.lock();
        writer.go_on(self, pool, 0)?;
        let (tail_first, tail_blocks) = *writer.segments.last().expect("it was entered just now");
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

    /// Puts a snapshot in the place of what was before `tail`, when all that `tail` leads to is durable. Gives the old segments back.
    pub(crate) fn publish_snapshot<M: Memory>(
        &self,
        pool: &Pool<M>,
        snapshot: Snapshot,
        tail: Head,
    ) -> Result<(), MemoryError> {
        let Snapshot { head, writer: mut new } = snapshot;
        if let Err(error) = new.write(self, pool, 0, false) {
            self.spare.lock().extend(new.segments);
            return Err(error);
        }
        let late = is_planted(Planted::SuperblockFirst);
        for (block, offset, bytes) in new.unforced.iter().filter(|_| !late) {
            pool.memory().persist(*block, *offset, *bytes)?;
        }
        self.change_superblock(pool, |superblock| {
            (superblock.snapshot, superblock.tail) = (head, tail);
        })?;
        let mut writer = self.writer.lock();
        let kept = writer.segments.iter().position(|(first, _)| *first == tail.first);
        let kept = kept.expect("the tail's first segment stays");
        let old: Vec<Segment> = writer.segments.drain(..kept).collect();
        writer.segments.splice(0..0, new.segments.iter().copied());
        self.bytes.store(bytes_of(&writer.segments), Ordering::Relaxed);
        self.snapshot_bytes.store(bytes_of(&new.segments), Ordering::Relaxed);
        self.snapshot_end.store(writer.sequence, Ordering::Relaxed);
        let wanted = writer.segments.len() + SPARE_SEGMENTS;
        drop(writer);
        let mut spare = self.spare.lock();
        spare.extend(old);
        let excess = spare.len().saturating_sub(wanted);
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

    /// Changes the superblocks, one copy after the other.
    pub(crate) fn change_superblock<M: Memory>(
        &self,
        pool: &Pool<M>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), MemoryError> {
        let mut superblock = self.superblock.lock();
        let mut new = superblock.clone();
        change(&mut new);
        new.generation += 1;
        new.witness = self.options.witness;
        write_superblock(pool.memory(), &mut new)?;
        *superblock = new;
        Ok(())
    }
}

fn bytes_of(segments: &[Segment]) -> u64 {
    let blocks: u64 = segments.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
    blocks * BLOCK_BYTES as u64
}

/// Writes the copies at the starts of all members, then those at their ends: at each moment one of each member is whole.
pub(crate) fn write_superblock<M: Memory>(memory: &M, superblock: &mut Superblock) -> Result<(), MemoryError> {
    for at_end in [false, true] {
        for MemberRecord { id, blocks, .. } in superblock.members.clone() {
            superblock.own = id;
            let block = Block::new(id, if at_end { blocks - 1 } else { 0 });
            memory.store(block, 0, &superblock.encode()[..])?;
            if !is_planted(Planted::BothSuperblocks) {
                memory.persist(block, 0, BLOCK_BYTES)?;
            }
        }
    }
    Ok(())
}

/// Writes each copy that a crash left damaged or old again, so that the other one is not the only one when that is written, and no member stays
/// behind the others by more than one change.
pub(crate) fn repair_superblocks<M: Memory>(memory: &M, superblock: &Superblock) -> Result<(), MemoryError> {
    for member in &superblock.members {
        let places = [0, member.blocks - 1].map(|index| Block::new(member.id, index));
        let mut copies = [[0; BLOCK_BYTES]; 2];
        for (place, copy) in places.iter().zip(&mut copies) {
            memory.load(*place, 0, copy)?;
        }
        let generations = copies.map(|copy| Superblock::decode(&copy).ok().map(|superblock| superblock.generation));
        let newest = usize::from(generations[1] > generations[0]);
        let mut own = superblock.clone();
        own.own = member.id;
        // The other one first: the newer one stays until that is whole.
        for nth in [1 - newest, newest] {
            if generations[nth] != Some(superblock.generation) {
                memory.store(places[nth], 0, &own.encode()[..])?;
                memory.persist(places[nth], 0, BLOCK_BYTES)?;
            }
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
        snapshot: Head::of_new(first[0], !options.nonce),
        tail: Head::of_new(first[1], options.nonce),
        members,
    }
}

impl Writer {
    /// The writer of an empty log.
    fn new(head: &Head) -> Self {
        Self {
            group: Vec::new(),
            segments: vec![(head.first, head.blocks)],
            at: 0,
            sequence: 0,
            nonce: head.nonce,
            crc: head.seed,
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
            if self.group.len() >= part_bytes {
                self.write(journal, pool, time_ns, as_parts)?;
                self.begin();
            }
            codec::encode(&mut self.group, &record);
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.group.clear();
        self.group.resize(HEADER_BYTES, 0);
    }

    fn segment_bytes(&self) -> usize {
        let (_, blocks) = self.segments.last().expect("a log has a segment");
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
        self.store(pool, time_ns, more)
    }

    /// Leads on to an empty segment.
    fn go_on<M: Memory>(&mut self, journal: &Journal, pool: &Pool<M>, time_ns: i64) -> Result<(), MemoryError> {
        let (first, blocks) = journal.take_spare(pool)?;
        self.begin();
        codec::encode(&mut self.group, &Record::Next { first, blocks });
        self.store(pool, time_ns, false)?;
        self.segments.push((first, blocks));
        self.at = 0;
        let more = u64::from(blocks) * BLOCK_BYTES as u64;
        journal.bytes.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    fn store<M: Memory>(&mut self, pool: &Pool<M>, time_ns: i64, more: bool) -> Result<(), MemoryError> {
        let header = Group {
            sequence: self.sequence + 1,
            nonce: self.nonce,
            time_ns,
            more,
        };
        self.crc = codec::seal(&mut self.group, self.crc, header);
        let (segment, _) = *self.segments.last().expect("a log has a segment");
        pool.memory().store_clean(segment, self.at, &self.group)?;
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
