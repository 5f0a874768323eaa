//! Memory of atomics, so that racing copies are defined; it fails when asked to, and shows what was never written.
//!
//! The fault model: [`Memory::populate`] may fail at any time, for as long as the test wants; accesses may panic, or fail, from one of them on. Memory
//! that was just populated holds [`POISON`], so bytes that the engine forgot to zero are seen. An access outside of
//! populated memory, or to a member that was taken away, panics: on real memory it would be a fault.

use homenode_engine::{BLOCK_BYTES, Block, MemberId, Memory, MemoryError, Starved};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    members: RwLock<Vec<Option<Arc<Storage>>>>,
    populated_blocks: AtomicU64,
    zeroed_bytes: AtomicU64,
    populate_delay_ms: AtomicU64,
    /// Accesses until the first that fails, with it; 0 for none.
    until_fault: AtomicU64,
    /// Whether a failing access panics, else it says so.
    panics: AtomicBool,
    faults: AtomicU64,
}

#[derive(Debug)]
struct Storage {
    blocks: u64,
    runs: Box<[RunWords]>,
    /// Blocks that the home node has memory for.
    limit_blocks: AtomicU64,
}

impl TestMemory {
    pub(crate) fn add(&self, member: MemberId, blocks: u64) {
        let storage = Storage {
            blocks,
            runs: (0..blocks.div_ceil(RUN)).map(|_| OnceLock::new()).collect(),
            limit_blocks: AtomicU64::new(blocks),
        };
        let mut members = self.members.write();
        assert_eq!(members.len(), usize::from(member.0), "members are numbered in turn");
        members.push(Some(Arc::new(storage)));
    }

    /// From now on an access to it is a fault.
    pub(crate) fn remove(&self, member: MemberId) {
        self.members.write()[usize::from(member.0)] = None;
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

    /// Blocks populated so far.
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

    fn storage(&self, member: MemberId) -> Arc<Storage> {
        let members = self.members.read();
        let storage = members.get(usize::from(member.0)).and_then(Option::as_ref);
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
        let start = block.index() as usize * BLOCK_BYTES + offset;
        let mut done = 0;
        while done < bytes {
            let at = start + done;
            let run = storage.run(at as u64 / (RUN * BLOCK_BYTES as u64));
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
        self.for_each_word(to, offset, from.len(), |word, part, done| {
            put(word, part.clone(), &from[done..done + part.len()]);
        });
        Ok(())
    }

    /// Returns true, so that the engine announces its copies.
    fn gains(&self, _bytes: usize, _to_write: bool) -> bool {
        true
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
        true
    }

    fn populate(&self, member: MemberId, first: u64, blocks: u64) -> Result<(), Starved> {
        let storage = self.storage(member);
        assert!(first.is_multiple_of(RUN), "populating starts at a run");
        assert!(
            blocks == RUN || first + blocks == storage.blocks,
            "only the last run may be shorter"
        );
        if first + blocks > storage.limit_blocks.load(Ordering::Relaxed) {
            return Err(Starved);
        }
        std::thread::sleep(Duration::from_millis(self.populate_delay_ms.load(Ordering::Relaxed)));
        let words = blocks as usize * WORDS_PER_BLOCK;
        let fresh = (0..words).map(|_| AtomicU64::new(POISON)).collect();
        let run = &storage.runs[(first / RUN) as usize];
        assert!(run.set(fresh).is_ok(), "populated twice");
        self.populated_blocks.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }
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
