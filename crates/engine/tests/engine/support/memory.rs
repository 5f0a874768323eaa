//! Memory of atomics, so that racing copies are defined; it fails when asked to, and shows what was never written.
//!
//! The fault model: [`Memory::populate`] may fail at any time, for as long as the test wants; accesses may panic, or fail, from one of them on. Memory
//! that was just populated holds [`POISON`], so bytes that the engine forgot to zero are seen. An access outside of
//! populated memory, or to a member that was taken away, panics: on real memory it would be a fault.
//!
//! Members may be disks, below a cache: then frames are memory, and a disk's bytes are reached by requests alone. Both hold [`POISON`] at first. Requests may be
//! slow, hang until the test lets them go on, and fail: all, or those of some blocks; of one that fails a part was carried out.

use homenode_engine::{BLOCK_BYTES, Block, Disks, MemberId, Memory, MemoryError, Starved};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Value of every word of fresh memory: no test writes it.
pub(crate) const POISON: u64 = 0xdead_beef_dead_beef;

/// How accesses fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Panic,
    Error,
}

/// How the panic of an access reads.
pub(crate) const ON_PURPOSE: &str = "memory failed on purpose";

const WORD: usize = 8;
const WORDS_PER_BLOCK: usize = BLOCK_BYTES / WORD;
const RUN: u64 = homenode_shared::RUN_BLOCKS;

/// The words of a run of 2 MiB, once it is populated.
type RunWords = OnceLock<Box<[AtomicU64]>>;

/// The bytes of all members.
#[derive(Debug, Default)]
pub(crate) struct TestMemory {
    members: RwLock<BTreeMap<MemberId, Arc<Storage>>>,
    populated_blocks: AtomicU64,
    zeroed_bytes: AtomicU64,
    populate_delay_ms: AtomicU64,
    /// Accesses until the first that fails, with it; 0 for none.
    until_fault: AtomicU64,
    /// Whether a failing access panics, else it says so.
    panics: AtomicBool,
    faults: AtomicU64,
    /// Number of the member that takes no stores, and one more; 0 for none.
    unstorable: AtomicU64,
    depopulates: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

/// How requests of a disk fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble {
    /// Blocks of which reads fail.
    pub(crate) unread: Range<u64>,
    /// Blocks of which writes fail.
    pub(crate) unwritten: Range<u64>,
    pub(crate) fails_flush: bool,
    /// Time that each request takes.
    pub(crate) delay: Duration,
    /// Requests wait until this is so no more.
    pub(crate) hangs: bool,
}

/// Disk of a test, behind its member's number.
#[derive(Debug, Default)]
struct Requests {
    trouble: Mutex<Trouble>,
    changed: Condvar,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    /// Blocks of each write.
    written: Mutex<Vec<Range<u64>>>,
}

impl Requests {
    /// Lets a request through, when it is its time; whether it may succeed.
    fn admit(&self, fails: impl FnOnce(&Trouble) -> bool) -> bool {
        let mut trouble = self.trouble.lock();
        while trouble.hangs {
            self.changed.wait(&mut trouble);
        }
        let (delay, fails) = (trouble.delay, fails(&trouble));
        drop(trouble);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        !fails
    }
}

#[derive(Debug)]
struct Storage {
    blocks: u64,
    runs: Box<[RunWords]>,
    /// Requests, if the member is a disk.
    requests: Option<Requests>,
    /// Blocks that the home node has memory for.
    limit_blocks: AtomicU64,
}

impl TestMemory {
    /// Has the next thread that gives a member's memory back say so, and wait until the test goes on.
    pub(crate) fn hold_depopulating(&self) -> (Receiver<()>, Sender<()>) {
        let ((begun, has_begun), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        *self.depopulates.lock() = Some((begun, goes_on));
        (has_begun, go_on)
    }

    pub(crate) fn add(&self, member: MemberId, blocks: u64) {
        self.add_storage(member, blocks, None);
    }

    /// Adds memory that is all there.
    pub(crate) fn add_frames(&self, member: MemberId, frames: u64) {
        self.add_storage(member, frames, None).fill();
    }

    pub(crate) fn add_disk(&self, member: MemberId, blocks: u64) {
        self.add_storage(member, blocks, Some(Requests::default())).fill();
    }

    /// Adds a disk of `other`: both reach the same bytes.
    pub(crate) fn share_disk(&self, other: &Self, member: MemberId) {
        self.members.write().insert(member, other.storage(member));
    }

    pub(crate) fn block_of_disk(&self, member: MemberId, at: u64) -> [u8; BLOCK_BYTES] {
        let storage = self.storage(member);
        let words = storage.block(at).iter();
        let bytes: Vec<u8> = words
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .collect();
        bytes.try_into().expect("a block has that many bytes")
    }

    fn add_storage(&self, member: MemberId, blocks: u64, requests: Option<Requests>) -> Arc<Storage> {
        let storage = Arc::new(Storage {
            blocks,
            runs: (0..blocks.div_ceil(RUN)).map(|_| OnceLock::new()).collect(),
            requests,
            limit_blocks: AtomicU64::new(blocks),
        });
        let other = self.members.write().insert(member, Arc::clone(&storage));
        assert!(other.is_none(), "a number is used once");
        storage
    }

    /// From now on an access to it is a fault.
    pub(crate) fn remove(&self, member: MemberId) {
        self.members.write().remove(&member).expect("the member exists");
    }

    /// Changes how requests of a disk fail.
    pub(crate) fn trouble(&self, disk: MemberId, change: impl FnOnce(&mut Trouble)) {
        let storage = self.storage(disk);
        let requests = storage.requests();
        change(&mut requests.trouble.lock());
        requests.changed.notify_all();
    }

    /// Blocks of the writes of a disk since the last time.
    pub(crate) fn take_written(&self, disk: MemberId) -> Vec<Range<u64>> {
        let storage = self.storage(disk);
        std::mem::take(&mut storage.requests().written.lock())
    }

    /// Reads, writes and flushes of a disk so far.
    pub(crate) fn requests(&self, disk: MemberId) -> [u64; 3] {
        let storage = self.storage(disk);
        let requests = storage.requests();
        [&requests.reads, &requests.writes, &requests.flushes].map(|count| count.load(Ordering::Relaxed))
    }

    /// Whether populating fails from now on.
    pub(crate) fn set_starved(&self, member: MemberId, starved: bool) {
        self.set_limit_blocks(member, if starved { 0 } else { u64::MAX });
    }

    /// Populating fails when more than so many blocks would be populated.
    pub(crate) fn set_limit_blocks(&self, member: MemberId, limit_blocks: u64) {
        self.storage(member).limit_blocks.store(limit_blocks, Ordering::Relaxed);
    }

    /// How long populating takes from now on.
    pub(crate) fn set_populate_delay_ms(&self, delay_ms: u64) {
        self.populate_delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    pub(crate) fn populated_blocks(&self) -> u64 {
        self.populated_blocks.load(Ordering::Relaxed)
    }

    /// Bytes the engine asked to zero so far.
    pub(crate) fn zeroed_bytes(&self) -> u64 {
        self.zeroed_bytes.load(Ordering::Relaxed)
    }

    /// Accesses fail from the `count`th on; 0 for none.
    pub(crate) fn fail_from(&self, count: u64, fault: Fault) {
        self.panics.store(fault == Fault::Panic, Ordering::Relaxed);
        self.until_fault.store(count, Ordering::Relaxed);
    }

    /// Stores to a member fail from now on.
    pub(crate) fn fail_stores(&self, member: MemberId) {
        self.unstorable.store(u64::from(member.0) + 1, Ordering::Relaxed);
    }

    /// Accesses that failed so far.
    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    fn access(&self) -> Result<(), MemoryError> {
        let less = |count: u64| (count > 1).then(|| count - 1);
        let before = self
            .until_fault
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if before != Err(1) {
            return Ok(());
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics.load(Ordering::Relaxed), "{ON_PURPOSE}");
        Err(MemoryError)
    }

    /// A disk, or an error when it was taken away: by a thread that did not know that yet.
    fn disk(&self, member: MemberId) -> Result<Arc<Storage>, MemoryError> {
        self.members.read().get(&member).cloned().ok_or(MemoryError)
    }

    fn storage(&self, member: MemberId) -> Arc<Storage> {
        let members = self.members.read();
        let storage = members.get(&member);
        Arc::clone(storage.unwrap_or_else(|| panic!("access to {member}, which has no memory")))
    }

    /// Calls `each` with every word that `bytes` bytes from `offset` bytes behind `block` touch, the bytes of it that are
    /// meant (as a range from its start), and how many bytes came before.
    fn for_each_word(
        &self,
        block: Block,
        offset: usize,
        bytes: usize,
        mut each: impl FnMut(&AtomicU64, std::ops::Range<usize>, usize),
    ) {
        let storage = self.storage(block.member());
        assert!(storage.requests.is_none(), "a disk is reached by requests");
        storage.for_each_word(block.index(), offset, bytes, &mut each);
    }
}

impl Storage {
    fn for_each_word(
        &self,
        block: u64,
        offset: usize,
        bytes: usize,
        each: &mut dyn FnMut(&AtomicU64, Range<usize>, usize),
    ) {
        let start = block as usize * BLOCK_BYTES + offset;
        let mut done = 0;
        while done < bytes {
            let at = start + done;
            let run = self.run(at as u64 / (RUN * BLOCK_BYTES as u64));
            let end_of_run = run.len() * WORD;
            let mut in_run = at % (RUN as usize * BLOCK_BYTES);
            while done < bytes && in_run < end_of_run {
                let in_word = in_run % WORD;
                let now = (WORD - in_word).min(bytes - done);
                each(&run[in_run / WORD], in_word..in_word + now, done);
                done += now;
                in_run += now;
            }
        }
    }
}

impl Storage {
    fn requests(&self) -> &Requests {
        self.requests.as_ref().expect("it is a disk")
    }

    /// Populates all of it.
    fn fill(&self) {
        for (run, words) in (0..).zip(&self.runs) {
            self.fill_run(words, RUN.min(self.blocks - run * RUN));
        }
    }

    fn fill_run(&self, run: &RunWords, blocks: u64) {
        let words = blocks as usize * WORDS_PER_BLOCK;
        let fresh = (0..words).map(|_| AtomicU64::new(POISON)).collect();
        assert!(run.set(fresh).is_ok(), "populated twice");
    }

    /// Copies a block to one of another storage.
    fn copy_block(&self, from: u64, to: &Self, at: u64) {
        for (from, to) in self.block(from).iter().zip(to.block(at)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn block(&self, block: u64) -> &[AtomicU64] {
        let first = (block % RUN) as usize * WORDS_PER_BLOCK;
        &self.run(block / RUN)[first..first + WORDS_PER_BLOCK]
    }

    fn run(&self, run: u64) -> &[AtomicU64] {
        let words = self.runs.get(run as usize).and_then(OnceLock::get);
        words.unwrap_or_else(|| {
            panic!(
                "access beyond the populated memory: run {run} of {} blocks",
                self.blocks
            )
        })
    }
}

impl Memory for TestMemory {
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        self.access()?;
        self.for_each_word(from, offset, to.len(), |word, part, done| {
            let bytes = word.load(Ordering::Relaxed).to_le_bytes();
            to[done..done + part.len()].copy_from_slice(&bytes[part]);
        });
        Ok(())
    }

    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.access()?;
        if self.unstorable.load(Ordering::Relaxed) == u64::from(to.member().0) + 1 {
            return Err(MemoryError);
        }
        self.for_each_word(to, offset, from.len(), |word, part, done| {
            put(word, part.clone(), &from[done..done + part.len()]);
        });
        Ok(())
    }

    fn zero(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        self.access()?;
        self.zeroed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.for_each_word(at, offset, bytes, |word, part, _| {
            put(word, part.clone(), &[0; WORD][part]);
        });
        Ok(())
    }

    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError> {
        self.access()?;
        let mut stage = [0; BLOCK_BYTES];
        for i in 0..blocks {
            self.load(from.plus(i), 0, &mut stage)?;
            self.store(to.plus(i), 0, &stage)?;
        }
        Ok(())
    }

    fn depopulate(&self, _: MemberId) -> bool {
        let mut depopulates = self.depopulates.lock();
        if let Some((begun, goes_on)) = depopulates.take() {
            begun.send(()).expect("the test waits for it");
            goes_on.recv().expect("the test tells it");
        }
        true
    }

    fn populate(&self, member: MemberId, first: u64, blocks: u64) -> Result<(), Starved> {
        let storage = self.storage(member);
        if storage.requests.is_some() {
            return Ok(());
        }
        assert!(first.is_multiple_of(RUN), "populating starts at a run");
        assert!(
            blocks == RUN || first + blocks == storage.blocks,
            "only the last run may be shorter"
        );
        if first + blocks > storage.limit_blocks.load(Ordering::Relaxed) {
            return Err(Starved);
        }
        std::thread::sleep(Duration::from_millis(self.populate_delay_ms.load(Ordering::Relaxed)));
        storage.fill_run(&storage.runs[(first / RUN) as usize], blocks);
        self.populated_blocks.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }
}

impl Disks for TestMemory {
    fn is_disk(&self, member: MemberId) -> bool {
        self.storage(member).requests.is_some()
    }

    fn read(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        self.access()?;
        let disk = self.disk(first.member())?;
        let blocks = first.index()..first.index() + frames.len() as u64;
        disk.requests().reads.fetch_add(1, Ordering::Relaxed);
        let is_read = disk.requests().admit(|trouble| overlap(&trouble.unread, &blocks));
        let count = if is_read { frames.len() } else { frames.len() / 2 };
        for (at, frame) in blocks.zip(&frames[..count]) {
            disk.copy_block(at, &self.storage(frame.member()), frame.index());
        }
        if is_read { Ok(()) } else { Err(MemoryError) }
    }

    fn writes_at_a_time(&self, _: MemberId) -> usize {
        32
    }

    fn write(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        self.access()?;
        let disk = self.storage(first.member());
        let blocks = first.index()..first.index() + frames.len() as u64;
        disk.requests().writes.fetch_add(1, Ordering::Relaxed);
        disk.requests().written.lock().push(blocks.clone());
        let is_written = disk.requests().admit(|trouble| overlap(&trouble.unwritten, &blocks));
        let count = if is_written { frames.len() } else { frames.len() / 2 };
        for (at, frame) in blocks.zip(&frames[..count]) {
            self.storage(frame.member()).copy_block(frame.index(), &disk, at);
        }
        if is_written { Ok(()) } else { Err(MemoryError) }
    }

    fn flush(&self, member: MemberId) -> Result<(), MemoryError> {
        self.access()?;
        let disk = self.disk(member)?;
        disk.requests().flushes.fetch_add(1, Ordering::Relaxed);
        if disk.requests().admit(|trouble| trouble.fails_flush) {
            Ok(())
        } else {
            Err(MemoryError)
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Replaces part of a word; a whole one in one go, so that a reader never sees half of it.
fn put(word: &AtomicU64, part: std::ops::Range<usize>, from: &[u8]) {
    if let Ok(whole) = from.try_into() {
        word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        return;
    }
    let replaced = |old: u64| {
        let mut bytes = old.to_le_bytes();
        bytes[part.clone()].copy_from_slice(from);
        Some(u64::from_le_bytes(bytes))
    };
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replaced)
        .expect("the closure always answers");
}
