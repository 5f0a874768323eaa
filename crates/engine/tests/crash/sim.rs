//! Memory that forgets: what survives a crash of the machine is what was made durable, and any part of the rest.
//!
//! The fault model. Bytes are kept in units: sectors of 512 bytes for a file on a disk, cache lines of 64 bytes for persistent memory. Stores to one
//! unit survive in their order, up to any of them; a store to a line is several stores of 8 bytes. Units are independent of each other, so a long
//! store may be torn anywhere between two units. What [`Memory::persist`] returned for has survived. When only the process is killed, all stores
//! survive.

use crate::workload::BLOCKS;
use homenode_engine::{BLOCK_BYTES, Block, Disks, MemberId, Memory, MemoryError, Starved};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Kinds of members that are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file on a disk.
    File,
    /// Persistent memory.
    Pmem,
    /// A disk below a cache.
    Disk { frames: u32 },
}

/// A disk below a cache with fewer frames than a small member has blocks.
pub(crate) const DISK: Kind = Kind::Disk { frames: 24 };
/// Frames of the caches that seeds choose.
const FRAMES: std::ops::RangeInclusive<u32> = 6..=200;

impl Kind {
    pub(crate) const fn is_disk(self) -> bool {
        matches!(self, Self::Disk { .. })
    }

    /// Returns the kind with another number of frames, if it has any; half of the time few of them.
    pub(crate) fn varied(self, random: &mut fastrand::Rng) -> Self {
        match self {
            Self::Disk { .. } => Self::Disk {
                frames: if random.bool() {
                    random.u32(FRAMES)
                } else {
                    random.u32(6..32)
                },
            },
            other => other,
        }
    }

    /// Frames of the cache.
    const fn frames(self) -> u32 {
        match self {
            Self::Disk { frames } => frames,
            Self::File | Self::Pmem => 0,
        }
    }

    fn log_frames(self) -> u64 {
        u64::from(self.frames() / 4).clamp(1, 256)
    }

    const fn unit_bytes(self) -> usize {
        match self {
            Self::File | Self::Disk { .. } => 512,
            Self::Pmem => 64,
        }
    }

    const fn atom_bytes(self) -> usize {
        match self {
            Self::File | Self::Disk { .. } => 512,
            Self::Pmem => 8,
        }
    }
}

/// Events of the memory, in order.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Bytes were stored.
    Store(usize, Box<[u8]>),
    /// Bytes are durable from now on: where, and how many.
    Persist(usize, usize),
    /// Stores that were not durable are lost: where, and how many bytes.
    Lose(usize, usize),
    /// Something was not made durable, and the caller was told.
    Fault,
    /// A thread of the workload begins with its nth operation.
    Begin(usize, usize),
    /// A thread of the workload has ended its nth operation.
    End(usize, usize),
}

/// Bytes of a member, and of the place that it has.
pub(crate) const MEMBER_BYTES: usize = BLOCKS * BLOCK_BYTES;

pub(crate) const FRAMES_MEMBER: MemberId = MemberId(2048);

/// Members that there are places for, at most.
const PLACES_MAX: usize = 3;

/// Bytes of a member on a disk of `bytes` bytes: a large one has one member.
pub(crate) fn member_bytes(bytes: usize) -> usize {
    if bytes > PLACES_MAX * MEMBER_BYTES {
        bytes
    } else {
        MEMBER_BYTES
    }
}

/// The memory of all members, shared by the filesystem and the test. There are a few places for members; a member's number, divided by how
/// many there are, leaves the place that it has.
#[derive(Clone, Debug)]
pub(crate) struct SimMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    places: usize,
    member_bytes: usize,
    state: Mutex<State>,
    /// Calls of 256 that let other threads go first.
    pauses: AtomicU8,
    /// Action in the middle of the next load.
    at_load: Mutex<Hook>,
    at_forget: Mutex<Hook>,
    /// How long it takes to make all bytes durable, in ms.
    commit_ms: AtomicU64,
    /// Frames of the cache.
    frames: Mutex<Vec<u8>>,
}

#[derive(Default)]
struct Hook(Option<Box<dyn FnOnce() + Send>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hook").field(&self.0.is_some()).finish()
    }
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    events: Vec<Event>,
    /// Calls of persist until the first that fails; `None` for never.
    until_fault: Option<u64>,
    /// Calls of persist that fail then.
    faults: u64,
    /// Whether they panic instead.
    panics: bool,
    /// The place of a member that takes nothing any more.
    failed_place: Option<usize>,
    /// Writes that fail of 256 writes of a disk outside the log, on average.
    failing: u8,
    /// The block of a disk that cannot be written.
    failed_block: Option<usize>,
    /// Blocks that cannot be read until they are written as a whole.
    unreadable: BTreeSet<usize>,
    /// Whether events are kept.
    records: bool,
}

impl SimMemory {
    pub(crate) fn new(kind: Kind, bytes: Vec<u8>) -> Self {
        let member_bytes = member_bytes(bytes.len());
        let places = bytes.len() / member_bytes;
        let state = State {
            bytes,
            events: Vec::new(),
            until_fault: None,
            faults: 0,
            panics: false,
            failed_place: None,
            failing: 0,
            failed_block: None,
            unreadable: BTreeSet::new(),
            records: true,
        };
        Self(Arc::new(Inner {
            kind,
            places,
            member_bytes,
            state: Mutex::new(state),
            pauses: AtomicU8::new(0),
            at_load: Mutex::default(),
            at_forget: Mutex::default(),
            commit_ms: AtomicU64::new(0),
            frames: Mutex::new(vec![0x5a; kind.frames() as usize * BLOCK_BYTES]),
        }))
    }

    /// Makes the disk slow: how long it takes to make all bytes durable, in ms.
    pub(crate) fn slow_down(&self, ms: u64) {
        self.0.commit_ms.store(ms, Ordering::Relaxed);
    }

    /// Has something happen in the middle of the next load.
    pub(crate) fn at_load(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.at_load.lock() = Hook(Some(Box::new(act)));
    }

    /// Has something happen when blocks are given back the next time.
    pub(crate) fn at_forget(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.at_forget.lock() = Hook(Some(Box::new(act)));
    }

    /// Keeps no events from now on.
    pub(crate) fn forget_events(&self) {
        let mut state = self.0.state.lock();
        state.records = false;
        state.events = Vec::new();
    }

    /// Lets other threads go first in so many of 256 calls.
    pub(crate) fn pause_often(&self, pauses: u8) {
        self.0.pauses.store(pauses, Ordering::Relaxed);
    }

    fn pause(&self) {
        let pauses = self.0.pauses.load(Ordering::Relaxed);
        if pauses > 0 && fastrand::u8(..) < pauses {
            if fastrand::bool() {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(fastrand::u64(1..60)));
            }
        }
    }

    /// Bytes as they are now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.state.lock().bytes.clone()
    }

    /// Takes what happened since the last time.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.state.lock().events)
    }

    pub(crate) fn mark(&self, event: Event) {
        self.0.state.lock().events.push(event);
    }

    /// Has calls of persist fail, so many of them, after so many more.
    pub(crate) fn fail_after(&self, calls: u64, faults: u64) {
        let mut state = self.0.state.lock();
        (state.until_fault, state.faults) = (Some(calls), faults);
    }

    /// Has a call of persist panic after so many more.
    pub(crate) fn panic_after(&self, calls: u64) {
        self.fail_after(calls, 1);
        self.0.state.lock().panics = true;
    }

    /// Has the member at a place take nothing any more.
    pub(crate) fn fail_place(&self, place: usize) {
        self.0.state.lock().failed_place = Some(place);
    }

    /// Has a block of a disk take nothing any more.
    pub(crate) fn fail_block(&self, block: usize) {
        self.0.state.lock().failed_block = Some(block);
    }

    /// Has a block give nothing until it is written as a whole, by a call.
    pub(crate) fn spoil(&self, block: usize) {
        self.0.state.lock().unreadable.insert(block);
    }

    /// Has so many of 256 writes of a disk fail from now on: but not those of the log's end.
    pub(crate) fn fail_often(&self, of_256: u8) {
        self.0.state.lock().failing = of_256;
    }

    /// Places for members.
    pub(crate) fn places(&self) -> usize {
        self.0.places
    }

    fn address(&self, block: Block, offset: usize) -> usize {
        let place = usize::from(block.member().0) % self.0.places;
        let within = usize::try_from(block.index()).expect("a small member") * BLOCK_BYTES + offset;
        assert!(within < self.0.member_bytes, "{block:?} is in the member");
        place * self.0.member_bytes + within
    }

    fn fail_if_due(&self) -> Result<(), MemoryError> {
        let mut state = self.0.state.lock();
        if state.until_fault == Some(0) && state.faults > 0 {
            state.faults -= 1;
            state.events.push(Event::Fault);
            let panics = state.panics;
            drop(state);
            assert!(!panics, "planned panic");
            return Err(MemoryError);
        }
        state.until_fault = state.until_fault.map(|calls| calls.saturating_sub(1));
        Ok(())
    }

    fn note_persist(&self, start: usize, bytes: usize) -> Result<(), MemoryError> {
        self.fail_if_due()?;
        if self.0.state.lock().failed_place == Some(start / self.0.member_bytes) {
            return Err(MemoryError);
        }
        self.note_durable(start, bytes);
        Ok(())
    }

    fn note_durable(&self, start: usize, bytes: usize) {
        let mut state = self.0.state.lock();
        if state.records {
            state.events.push(Event::Persist(start, bytes));
        }
        drop(state);
        // What others store now is not among what this makes durable.
        self.pause();
    }
}

/// Blocks that a range of bytes touches.
fn blocks_of(at: usize, bytes: usize) -> std::ops::Range<usize> {
    at / BLOCK_BYTES..(at + bytes).div_ceil(BLOCK_BYTES)
}

/// Bytes of frames from `offset` bytes behind the start of `at` on.
fn in_frames(at: Block, offset: usize) -> usize {
    usize::try_from(at.index()).expect("a frame") * BLOCK_BYTES + offset
}

impl Disks for SimMemory {
    fn is_disk(&self, _: MemberId) -> bool {
        self.0.kind.is_disk()
    }

    fn read(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        self.pause();
        for (at, frame) in (0..).zip(frames) {
            let from = self.address(first.plus(at), 0);
            let bytes = self.0.state.lock().bytes[from..from + BLOCK_BYTES].to_vec();
            self.store(*frame, 0, &bytes)?;
        }
        Ok(())
    }

    fn writes_at_a_time(&self, _: MemberId) -> usize {
        32
    }

    fn write(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        let is_log = frames.iter().all(|frame| frame.index() < self.0.kind.log_frames());
        let fails_often = !is_log && fastrand::u8(..) < self.0.state.lock().failing;
        let start = self.address(first, 0) / BLOCK_BYTES;
        let failed_block = self.0.state.lock().failed_block;
        let fails = fails_often || failed_block.is_some_and(|block| (start..start + frames.len()).contains(&block));
        let written = self.fail_if_due().and(if fails { Err(MemoryError) } else { Ok(()) });
        // It stops in the middle.
        let count = written.map_or_else(|_| fastrand::usize(..frames.len()), |()| frames.len());
        for (at, frame) in (0..).zip(&frames[..count]) {
            let mut bytes = vec![0; BLOCK_BYTES];
            self.load(*frame, 0, &mut bytes)?;
            self.store(first.plus(at), 0, &bytes)?;
        }
        written
    }

    fn flush(&self, member: MemberId) -> Result<(), MemoryError> {
        self.persist_all(member).inspect_err(|_| {
            let start = self.address(Block::new(member, 0), 0);
            self.mark(Event::Lose(start, self.0.member_bytes));
        })
    }
}

impl Memory for SimMemory {
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        self.pause();
        if from.member() == FRAMES_MEMBER {
            let at = in_frames(from, offset);
            to.copy_from_slice(&self.0.frames.lock()[at..at + to.len()]);
            return Ok(());
        }
        let act = self.0.at_load.lock().0.take();
        act.into_iter().for_each(|act| act());
        let at = self.address(from, offset);
        let state = self.0.state.lock();
        if state.unreadable.range(blocks_of(at, to.len())).next().is_some() {
            return Err(MemoryError);
        }
        to.copy_from_slice(&state.bytes[at..at + to.len()]);
        Ok(())
    }

    fn forget(&self, _at: Block, _blocks: u64) {
        let act = self.0.at_forget.lock().0.take();
        act.into_iter().for_each(|act| act());
    }

    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.pause();
        if to.member() == FRAMES_MEMBER {
            let at = in_frames(to, offset);
            self.0.frames.lock()[at..at + from.len()].copy_from_slice(from);
            return Ok(());
        }
        let at = self.address(to, offset);
        let mut state = self.0.state.lock();
        // Also of whole blocks: a page of a mapping is read before it is written to.
        if state.unreadable.range(blocks_of(at, from.len())).next().is_some() {
            return Err(MemoryError);
        }
        state.bytes[at..at + from.len()].copy_from_slice(from);
        if state.records {
            state.events.push(Event::Store(at, from.into()));
        }
        drop(state);
        self.pause();
        Ok(())
    }

    fn store_clean(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let at = self.address(to, offset);
        let whole = at.div_ceil(BLOCK_BYTES)..(at + from.len()) / BLOCK_BYTES;
        self.0.state.lock().unreadable.retain(|block| !whole.contains(block));
        self.store(to, offset, from)
    }

    fn zero(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        self.store(at, offset, &vec![0; bytes])
    }

    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError> {
        let mut bytes = vec![0; usize::try_from(blocks).expect("the number is small") * BLOCK_BYTES];
        self.load(from, 0, &mut bytes)?;
        self.store(to, 0, &bytes)
    }

    fn populate(&self, _: MemberId, _: u64, _: u64) -> Result<(), Starved> {
        Ok(())
    }

    fn persist(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        self.note_persist(self.address(at, offset), bytes)
    }

    fn persist_all(&self, member: MemberId) -> Result<(), MemoryError> {
        std::thread::sleep(Duration::from_millis(self.0.commit_ms.load(Ordering::Relaxed)));
        self.note_persist(self.address(Block::new(member, 0), 0), self.0.member_bytes)
    }

    fn inline_bytes_max(&self) -> usize {
        match self.0.kind {
            Kind::File => 32 << 10,
            Kind::Pmem | Kind::Disk { .. } => 0,
        }
    }
}

/// A store to a unit: where, and the bytes.
type Stored = (usize, Box<[u8]>);

/// The disk behind the memory, played from events: what is durable, and the stores to each unit that are not yet.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    kind: Kind,
    pub(crate) durable: Vec<u8>,
    pending: BTreeMap<usize, Vec<Stored>>,
}

impl Disk {
    pub(crate) fn new(kind: Kind, durable: Vec<u8>) -> Self {
        Self {
            kind,
            durable,
            pending: BTreeMap::new(),
        }
    }

    pub(crate) fn play(&mut self, event: &Event) {
        match event {
            Event::Store(at, bytes) => {
                let (unit, atom) = (self.kind.unit_bytes(), self.kind.atom_bytes());
                let mut done = 0;
                while done < bytes.len() {
                    let start = at + done;
                    let count = (atom - start % atom).min(bytes.len() - done);
                    let stores = self.pending.entry(start / unit).or_default();
                    stores.push((start, bytes[done..done + count].into()));
                    done += count;
                }
            }
            Event::Persist(at, bytes) => {
                let unit = self.kind.unit_bytes();
                let units = at / unit..(at + bytes).div_ceil(unit);
                let now: Vec<usize> = self.pending.range(units).map(|(unit, _)| *unit).collect();
                for unit in now {
                    for (start, bytes) in self.pending.remove(&unit).expect("the unit is pending") {
                        self.durable[start..start + bytes.len()].copy_from_slice(&bytes);
                    }
                }
            }
            Event::Lose(at, bytes) => {
                let unit = self.kind.unit_bytes();
                let units = at / unit..(at + bytes).div_ceil(unit);
                self.pending.retain(|unit, _| !units.contains(unit));
            }
            Event::Fault | Event::Begin(..) | Event::End(..) => {}
        }
    }

    /// The bytes after a crash of the machine in which of each unit as many of its stores survive as `survive` says, given the unit's place
    /// among those with such stores and their number.
    pub(crate) fn after_crash(&self, mut survive: impl FnMut(usize, usize) -> usize) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (place, stores) in self.pending.values().enumerate() {
            let count = survive(place, stores.len());
            for (start, stored) in &stores[..count] {
                bytes[*start..start + stored.len()].copy_from_slice(stored);
            }
        }
        bytes
    }

    /// Number of units with stores that are not durable.
    pub(crate) fn pending_units(&self) -> usize {
        self.pending.len()
    }
}
