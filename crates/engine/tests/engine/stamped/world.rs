//! The files that all threads work on, and the stamps in them.

use crate::support::{Bytes, Caller, TestFs, assert_empty, filesystem_on, new_file, sized};
use fastrand::Rng;
use homenode_engine::fs::{Asking, Inode, fallocate_mode as mode};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const WORD: u64 = 8;
pub(crate) const FILES: usize = 2;
pub(crate) const NODES: u16 = 3;
const MIB: u64 = 1 << 20;

/// Threads that have a region of each file for themselves.
pub(crate) const OWNERS: u64 = 2;
/// Bytes of each owner's region: enough for a whole aligned 2 MiB.
const OWN_BYTES: u64 = 3 * MIB;
/// Where everyone writes and takes away.
pub(crate) const SHARED: Range<u64> = OWNERS * OWN_BYTES..SIZE;
pub(crate) const SIZE: u64 = 10 * MIB;

/// 16 MiB: two of three members hold all files and what is in the CPUs' grants.
pub(crate) const MEMBER_BLOCKS: u64 = 16 * MIB / 4096;
const _: () = assert!((FILES as u64 * SIZE + 8 * MIB) < (NODES as u64 - 1) * MEMBER_BLOCKS * 4096);

const RUN_FOR: Duration = Duration::from_secs(5);
/// A run may take so much longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rounds that each thread does at least.
pub(crate) const ROUNDS_MIN: u64 = 6;

pub(crate) struct World {
    pub(crate) fs: TestFs,
    pub(crate) files: Vec<Arc<Inode>>,
    end: Instant,
    /// Threads that have done too few rounds to show anything.
    behind: AtomicUsize,
}

/// The bytes of each file that owner `number` has for itself.
pub(crate) fn region(number: u64) -> Range<u64> {
    number * OWN_BYTES..(number + 1) * OWN_BYTES
}

impl World {
    pub(crate) fn new(bytes: Bytes) -> Self {
        let (fs, _) = filesystem_on(bytes, NODES, MEMBER_BLOCKS);
        let files: Vec<_> = (0..FILES).map(|file| new_file(&fs, &file.to_string())).collect();
        for inode in &files {
            fs.set_attr(inode, &sized(SIZE)).expect("the inode is a file");
        }
        Self {
            fs,
            files,
            end: Instant::now() + RUN_FOR,
            behind: AtomicUsize::new(0),
        }
    }

    /// On a busy machine all go on until the slowest thread has its rounds.
    fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.end + PATIENCE || (now >= self.end && self.behind.load(Ordering::Relaxed) == 0)
    }

    /// Repeats a round of a thread's work until the time is over; gives the number of rounds.
    pub(crate) fn repeat(&self, mut round: impl FnMut()) -> u64 {
        self.repeat_if(|| {
            round();
            true
        })
    }

    /// Repeats rounds that say whether they did their work; those that did count.
    pub(crate) fn repeat_if(&self, mut round: impl FnMut() -> bool) -> u64 {
        self.behind.fetch_add(1, Ordering::Relaxed);
        let mut rounds = 0;
        while !self.is_over() {
            if round() {
                rounds += 1;
                if rounds == ROUNDS_MIN {
                    self.behind.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        rounds
    }

    /// Punches or zeroes the bytes from `from` to `to`.
    pub(crate) fn clear(&self, asking: &Asking<'_>, inode: &Inode, how: u32, from: u64, to: u64) {
        let cleared = self.fs.fallocate(asking, inode, how | mode::KEEP_SIZE, from, to - from);
        cleared.expect("it is within the file, and the pool has room");
    }

    /// Runs one thread's work; gives its rounds.
    pub(crate) fn work(&self, number: u64, mut random: Rng, work: fn(&Self, &Caller, &mut Rng, u64) -> u64) -> u64 {
        let caller = Caller::on_cpu(&self.fs, number as u32);
        work(self, &caller, &mut random, number)
    }

    /// The words from byte `from` to `to`, less if the file ends before.
    pub(crate) fn read(&self, asking: &Asking<'_>, inode: &Inode, from: u64, to: u64) -> Vec<u64> {
        let mut bytes = vec![0xee; (to - from) as usize];
        let read = self.fs.read(asking, inode, from, &mut bytes).expect("a file inode");
        let (words, odd) = bytes[..read].as_chunks();
        assert!(odd.is_empty(), "the file ends within a word");
        words.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// The books agree, and with the files everything goes.
    pub(crate) fn finish(&self) {
        self.fs.check_invariants();
        for (file, inode) in self.files.iter().enumerate() {
            self.fs
                .unlink(&self.fs.root(), file.to_string().as_bytes())
                .expect("the name exists");
            self.fs.unpin(inode, 1);
        }
        assert_empty(&self.fs);
    }
}

/// A stretch of words within `within`: often a few, sometimes blocks, sometimes a whole aligned 2 MiB.
pub(crate) fn stretch(random: &mut Rng, within: &Range<u64>) -> (u64, u64) {
    let (unit, units) = match random.u64(..20) {
        0..=9 => (WORD, 1 + random.u64(..1200)),
        10..=18 => (4096, 1 + random.u64(..20)),
        _ => (2 * MIB, 1),
    };
    let first = within.start.next_multiple_of(unit);
    let count = ((within.end - first) / unit).max(1);
    let from = first + random.u64(..count) * unit;
    (from, (from + units * unit).min(within.end))
}

/// Returns the words to write from byte `from` to `to` of `file`: file, writer, a number of the write, and the word's place.
pub(crate) fn stamps(file: usize, writer: u64, from: u64, to: u64, turn: u64) -> Vec<u64> {
    let common = (file as u64 + 1) << 56 | writer << 48 | (turn & 0xffff) << 32;
    (from / WORD..to / WORD).map(|place| common | place).collect()
}

pub(crate) fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Panics unless each word is zero or was written for this place of this file.
pub(crate) fn assert_stamps(words: &[u64], file: usize, from: u64) {
    for (place, word) in (from / WORD..).zip(words) {
        let fits = *word >> 56 == file as u64 + 1 && *word & 0xffff_ffff == place;
        assert!(*word == 0 || fits, "{word:#018x} at word {place:#x} of file {file}");
    }
}

pub(crate) fn assert_own(read: &[u64], written: &[u64], file: usize, from: u64) {
    assert_eq!(read.len(), written.len(), "the file is too short");
    let differs = read.iter().zip(written).position(|(read, written)| read != written);
    if let Some(at) = differs {
        panic!(
            "word {:#x} of file {file} is {:#018x} where {:#018x} was written",
            from / WORD + at as u64,
            read[at],
            written[at]
        );
    }
}
