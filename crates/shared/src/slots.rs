//! Slots: how blocks are taken away from a file while threads copy without locks.
//!
//! A thread *enters* an inode's [`Gate`] by writing the inode's number into its own slot and then looking whether the gate
//! is closed. Whoever takes blocks away *closes* the gate and then waits until no slot names the inode. Each side writes
//! before it reads, so at least one of them sees the other (Dekker's argument): either the copying thread finds the gate
//! closed and steps back, or the closing thread finds the slot and waits.
//!
//! Invariants: a slot is written by the thread that claimed it only; it names at most one inode; a thread stopped at any
//! instruction delays only those who take blocks from that inode.
//! Cost: entering is a store to a cache line that no other thread writes; closing is a system call.

use crate::barrier::Barriers;
use crate::gate::Gate;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Backoff, Ordering};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Value of a slot whose thread works on no inode.
const IDLE: u64 = 0;
/// Value of a slot whose thread is inside no inode in particular.
const NOBODYS: u64 = u64::MAX;

/// All slots of one pool.
#[derive(Debug)]
pub struct Slots {
    cells: Box<[SlotCell]>,
    /// Slots ever claimed: those behind it are idle for sure.
    high: AtomicUsize,
    barriers: Barriers,
}

/// 128 bytes: two lines, because adjacent lines are prefetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct SlotCell {
    inode: AtomicU64,
    claimed: AtomicBool,
}

impl Slots {
    /// A table for at most `count` threads at a time.
    #[must_use]
    pub fn new(count: usize) -> Arc<Self> {
        let cell = || SlotCell {
            inode: AtomicU64::new(IDLE),
            claimed: AtomicBool::new(false),
        };
        Arc::new(Self {
            cells: (0..count).map(|_| cell()).collect(),
            high: AtomicUsize::new(0),
            barriers: Barriers::new(),
        })
    }

    /// Most threads that can hold a slot at a time.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// How many more threads may hold a slot, at this moment.
    #[must_use]
    pub fn left(&self) -> usize {
        // Relaxed: a figure.
        let cells = self.cells.iter();
        cells.filter(|cell| !cell.claimed.load(Ordering::Relaxed)).count()
    }

    /// Claims a slot for the calling thread; `None` when all are taken.
    #[must_use]
    pub fn claim(self: &Arc<Self>) -> Option<Slot> {
        let free = |cell: &&SlotCell| {
            // Relaxed: a look first, as the line of one that is taken is its thread's. Acquire pairs with the release of the slot by its last thread: its
            // counters are ours now.
            !cell.claimed.load(Ordering::Relaxed)
                && cell
                    .claimed
                    .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        };
        let index = self.cells.iter().position(|cell| free(&cell))?;
        // SeqCst: ordered before this thread's first entry, so that whoever closes a gate and misses the new mark is
        // seen by that entry.
        self.high.fetch_max(index + 1, Ordering::SeqCst);
        Some(Slot {
            table: Arc::clone(self),
            index,
            one_thread: PhantomData,
        })
    }

    /// Enters like [`Slot::enter`], for a slot of this table that the calling thread has claimed and not released.
    ///
    /// # Panics
    /// When this slot is inside an inode already, or there is none of that number.
    #[inline]
    #[must_use]
    pub fn enter<'a>(&'a self, slot: SlotNumber, gate: &Gate, number: u64) -> Option<Pass<'a>> {
        debug_assert_ne!(number, IDLE);
        let cell = &self.cells[slot.0];
        // Relaxed: no other thread writes it.
        assert!(
            cell.inode.load(Ordering::Relaxed) == IDLE,
            "a slot names one inode at a time"
        );
        // Relaxed: the barrier orders this store before the load of the gate below.
        cell.inode.store(number, Ordering::Relaxed);
        self.barriers.often();
        let pass = Pass { cell };
        let seen = gate.look();
        if seen.is_clear() {
            return Some(pass);
        }
        if seen.is_closed() {
            return None;
        }
        gate.wake_one();
        Some(pass)
    }

    /// Closes `gate` of inode `number` and waits until no thread is inside. One closer at a time: the caller holds the
    /// inode's lock. The calling thread itself must not be inside.
    pub fn close(&self, gate: &Gate, number: u64) {
        gate.shut();
        // Whoever enters and does not see the store is seen below.
        self.barriers.seldom();
        // SeqCst: a slot that was claimed before the store is seen here.
        let high = self.high.load(Ordering::SeqCst);
        for cell in &self.cells[..high] {
            let mut backoff = Backoff::default();
            // Acquire pairs with the release in `Pass`: that thread's copies are done.
            while cell.inode.load(Ordering::Acquire) == number {
                backoff.wait();
            }
        }
    }

    /// Threads that are inside an inode now, whichever it is. What the caller took out of reach before, no other thread reaches.
    pub(crate) fn inside(&self) -> Inside {
        self.barriers.seldom();
        // SeqCst: as in `close`.
        let high = self.high.load(Ordering::SeqCst);
        let named = self.cells[..high].iter().enumerate().map(|(at, cell)| {
            // Acquire pairs with the release in `Pass`.
            (at, cell.inode.load(Ordering::Acquire))
        });
        Inside(named.filter(|(_, inode)| *inode != IDLE).collect())
    }

    /// Whether they were all seen to leave. One that enters the same inode again and again may be taken for one that stays, for a while.
    pub(crate) fn have_left(&self, inside: &mut Inside) -> bool {
        inside
            .0
            .retain(|(at, inode)| self.cells[*at].inode.load(Ordering::Acquire) == *inode);
        inside.0.is_empty()
    }

    /// Barrier of a thread inside a slot between what it stored and its look whether that is noted. Pairs with [`Slots::barrier_outside`].
    #[inline(always)]
    pub fn barrier_inside(&self) {
        self.barriers.often();
    }

    /// Barrier of a thread between taking such a note away and reading what was stored: it reads all stores of those who found the note. Costs a
    /// system call, and an interrupt of each CPU that runs a thread of this process.
    pub fn barrier_outside(&self) {
        self.barriers.seldom();
    }

    /// Opens `gate` again.
    pub fn open(&self, gate: &Gate) {
        gate.open();
    }
}

/// Slots that named an inode, each with it.
#[derive(Debug)]
pub(crate) struct Inside(Vec<(usize, u64)>);

/// Names a slot where the [`Slot`] itself cannot be reached, as in a thread-local word. For the thread that has it only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotNumber(usize);

impl SlotNumber {
    /// The first of every table.
    pub const FIRST: Self = Self(0);

    /// Below [`Slots::capacity`].
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

/// Slot of one thread; released when dropped. It can move to another thread but not be used by two.
#[derive(Debug)]
pub struct Slot {
    table: Arc<Slots>,
    index: usize,
    one_thread: PhantomData<Cell<()>>,
}

impl Slot {
    /// Number of this slot in its table: below [`Slots::capacity`], and no other living slot's.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of this slot, for [`Slots::enter`].
    #[inline]
    #[must_use]
    pub fn number(&self) -> SlotNumber {
        SlotNumber(self.index)
    }

    /// Enters inode `number` (not 0) through its gate; `None` when the gate is closed. Inside until the pass is dropped.
    ///
    /// # Panics
    /// When this slot is inside an inode already.
    #[inline]
    #[must_use]
    pub fn enter<'a>(&'a self, gate: &Gate, number: u64) -> Option<Pass<'a>> {
        self.table.enter(self.number(), gate, number)
    }

    /// Is inside no inode, and yet counts as inside: for a thread that uses what others take out of reach. Until the pass is dropped.
    ///
    /// # Panics
    /// When this slot is inside an inode already.
    #[must_use]
    pub fn stay(&self) -> Pass<'_> {
        let cell = &self.table.cells[self.index];
        assert!(
            cell.inode.load(Ordering::Relaxed) == IDLE,
            "a slot names one inode at a time"
        );
        // Relaxed: as in `enter`.
        cell.inode.store(NOBODYS, Ordering::Relaxed);
        self.table.barriers.often();
        Pass { cell }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Release pairs with the acquire in `claim`.
        self.table.cells[self.index].claimed.store(false, Ordering::Release);
    }
}

/// Proof that a thread is inside an inode. Leaves when dropped.
#[derive(Debug)]
pub struct Pass<'a> {
    cell: &'a SlotCell,
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: our copies are done before anyone sees the slot idle.
        self.cell.inode.store(IDLE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn claims_up_to_capacity_and_again_after_release() {
        let slots = Slots::new(2);
        let first = slots.claim().expect("a slot is free");
        let second = slots.claim().expect("a slot is free");
        assert!(slots.claim().is_none());
        assert_ne!(first.index(), second.index());
        drop(first);
        assert_eq!(slots.claim().expect("the slot was released").index(), 0);
    }

    #[test]
    fn entering_a_closed_gate_fails_and_leaves_the_slot_idle() {
        let slots = Slots::new(1);
        let slot = slots.claim().expect("a slot is free");
        let gate = Gate::default();
        slots.close(&gate, 7);
        assert!(slot.enter(&gate, 7).is_none());
        slots.open(&gate);
        assert!(slot.enter(&gate, 7).is_some());
        slots.close(&gate, 7);
    }

    /// Fails without the closing side's barrier, where two CPUs are idle: the store into the slot waits behind stores that
    /// miss the cache, and the load of the gate does not.
    #[cfg(not(miri))]
    #[test]
    fn a_closed_gate_is_empty() {
        const LINES: usize = 1 << 20;
        let (slots, gate) = (Slots::new(1), Gate::default());
        let (taken, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let far: Vec<AtomicU64> = (0..LINES * 8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let slot = slots.claim().expect("a slot is free");
                let (mut line, mut was_taken) = (0, false);
                while !done.load(Ordering::Relaxed) {
                    for _ in 0..8 {
                        // An odd factor and any constant: every line in turn, no two of them neighbours.
                        line = (line * 5 + 350_891) % LINES;
                        far[line * 8].store(1, Ordering::Relaxed);
                    }
                    if let Some(_inside) = slot.enter(&gate, 7) {
                        for _ in 0..5 {
                            was_taken |= taken.load(Ordering::Relaxed);
                            std::hint::spin_loop();
                        }
                    }
                }
                was_taken
            });
            let wait = |rounds| (0..rounds).for_each(|_| std::hint::spin_loop());
            for round in 0..400_000 {
                slots.close(&gate, 7);
                taken.store(true, Ordering::Relaxed);
                wait(20);
                taken.store(false, Ordering::Relaxed);
                slots.open(&gate);
                wait(round % 64);
            }
            done.store(true, Ordering::Relaxed);
            assert!(!inside.join().expect("no thread panics"), "inside a closed gate");
        });
    }

    #[test]
    #[should_panic(expected = "one inode at a time")]
    fn entering_twice_is_a_bug() {
        let slots = Slots::new(1);
        let slot = slots.claim().expect("a slot is free");
        let (one, two) = (Gate::default(), Gate::default());
        let _inside = slot.enter(&one, 1);
        let _nested = slot.enter(&two, 2);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;

    /// A copying thread and a thread that takes the bytes away never touch them at once.
    #[test]
    fn copying_and_taking_away_exclude_each_other() {
        loom::model(|| {
            let slots = Slots::new(2);
            let gate = Arc::new(Gate::default());
            let bytes = Arc::new(UnsafeCell::new(0_u32));
            let writer = {
                let (slots, gate, bytes) = (slots.clone(), gate.clone(), bytes.clone());
                loom::thread::spawn(move || {
                    let slot = slots.claim().expect("one of two slots is free");
                    if let Some(_pass) = slot.enter(&gate, 1) {
                        // SAFETY: loom checks that nobody else accesses the cell meanwhile: that is the test.
                        bytes.with_mut(|at| unsafe { *at += 1 });
                    }
                })
            };
            slots.close(&gate, 1);
            // SAFETY: as above.
            bytes.with_mut(|at| unsafe { *at += 10 });
            slots.open(&gate);
            writer.join().expect("the thread does not panic");
        });
    }

    /// A thread that claims its slot only after the closer looked is kept out by the gate.
    #[test]
    fn two_entries_around_a_close() {
        loom::model(|| {
            let slots = Slots::new(2);
            let gate = Arc::new(Gate::default());
            let bytes = Arc::new(UnsafeCell::new(0_u32));
            let slot = slots.claim().expect("one of two slots is free");
            let closer = {
                let (slots, gate, bytes) = (slots.clone(), gate.clone(), bytes.clone());
                loom::thread::spawn(move || {
                    slots.close(&gate, 1);
                    // SAFETY: loom checks exclusion.
                    bytes.with_mut(|at| unsafe { *at += 10 });
                    slots.open(&gate);
                })
            };
            for _ in 0..2 {
                if let Some(_pass) = slot.enter(&gate, 1) {
                    // SAFETY: loom checks exclusion.
                    bytes.with_mut(|at| unsafe { *at += 1 });
                }
            }
            closer.join().expect("the thread does not panic");
        });
    }
}
