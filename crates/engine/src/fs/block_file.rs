//! A file's bytes in blocks of the pool: the block map, the gate, the size.
//!
//! Every operation of `super::file` that the pool's bodies support is carried out below here: `data` reads and writes, `extents`
//! changes whole ranges, `advice` takes advice and reads much at a time, `relocate` moves blocks between members.

mod advice;
mod bring;
mod data;
mod extents;
mod ranges;
mod relocate;

pub(crate) use data::FILE_BYTES_MAX;
pub(super) use extents::Merged;

pub use advice::{Advice, READS_MAX, ReadAt};

use bring::ReadAhead;
pub(super) use ranges::Ranges;

use super::{Asking, Error, Ino, Inode, Result};
use crate::Block;
use homenode_shared::{BlockMap, Found, Gate, Nodes, Pass, Slot, Slots, Taker};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Bytes in blocks of the pool.
#[derive(Debug, Default)]
pub(super) struct BlockFile {
    pub(super) gate: Gate,
    pub(super) map: BlockMap,
    /// In bytes. Grows after the data is there; shrinks with the gate closed only.
    pub(super) size: AtomicU64,
    /// Placed and reserved blocks.
    pub(super) blocks: Count,
    /// File blocks whose bytes may not be durable.
    pub(super) dirty: Ranges,
    /// File blocks that a sync or commit is making durable, or could not.
    pub(super) saving: Ranges,
    /// Held to share while blocks are noted as dirty, told to the log and put into the map; alone while the dirty ranges are taken.
    pub(super) publishing: RwLock<()>,
    /// Number of the log's last group about its blocks or size; 0 when all are settled.
    pub(super) changed: AtomicU64,
    /// Number of the last group that has bytes of the file.
    pub(super) inlined: AtomicU64,
    /// Somebody makes it durable by himself: what he writes is clean again soon.
    pub(super) is_synced: AtomicBool,
    /// Held by the thread that makes it durable by itself, or takes its dirty ranges.
    pub(super) syncing: Mutex<()>,
    /// Held by the thread that closes the gate.
    exclusive: Mutex<()>,
    /// Where those who read it in order are.
    ahead: ReadAhead,
    /// Held alone by appends, cuts and shifts, and in a durable pool by every write that extends the file. In a pool of memory such writes share it.
    pub(super) appending: RwLock<()>,
}

/// Turn of a write that moves a file's end.
#[expect(dead_code, reason = "held until it is dropped")]
enum Extending<'a> {
    Alone(RwLockWriteGuard<'a, ()>),
    Shared(RwLockReadGuard<'a, ()>),
}

impl BlockFile {
    /// An empty file, or a hole, of `size` bytes.
    pub(super) fn of_size(size: u64) -> Self {
        Self {
            size: AtomicU64::new(size),
            ..Self::default()
        }
    }

    /// Calls `act` for what is placed in `range` (file blocks), one stretch of blocks after the other, until it fails.
    pub(super) fn each_placed<E>(
        &self,
        nodes: &Nodes,
        range: Range<u64>,
        mut act: impl FnMut(Block, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut at = range.start;
        while at < range.end {
            at += match self.map.find(nodes, at, range.end - at) {
                Found::Placed { block, blocks } => {
                    act(block, blocks)?;
                    blocks
                }
                Found::Empty { blocks } => blocks,
            };
        }
        Ok(())
    }

    /// Keeps appenders out while a write moves the end. Several such writes go on side by side, but not in a durable pool: there each
    /// zeroes the file's last block behind the size, where another thread may have just written.
    fn extend(&self, asking: &Asking<'_>, is_durable: bool) -> Result<Extending<'_>> {
        let turn = match is_durable {
            true if asking.waits => Some(Extending::Alone(self.appending.write())),
            true => self.appending.try_write().map(Extending::Alone),
            false if asking.waits => Some(Extending::Shared(self.appending.read())),
            false => self.appending.try_read().map(Extending::Shared),
        };
        turn.ok_or(Error::Away)
    }

    /// Whether `bytes` bytes at `offset` lie within the size, as it is past the gate.
    fn check_within(&self, offset: u64, bytes: u64) -> Result<()> {
        // Acquire: as whoever reads below it.
        let size = self.size.load(Ordering::Acquire);
        let end = offset.checked_add(bytes).filter(|end| *end <= size);
        end.map(|_| ()).ok_or(Error::TooBig)
    }
}

impl Inode {
    /// Enters the file to copy without a lock; waits while blocks are being taken away.
    #[inline]
    pub(super) fn enter<'a>(&self, file: &BlockFile, slot: &'a Slot) -> Pass<'a> {
        match slot.enter(&file.gate, self.ino.0) {
            Some(pass) => pass,
            None => self.wait_and_enter(file, slot),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_and_enter<'a>(&self, file: &BlockFile, slot: &'a Slot) -> Pass<'a> {
        // Held until this thread is inside: the next sleeper is woken then.
        let _baton = file.gate.sleep();
        if let Some(pass) = slot.enter(&file.gate, self.ino.0) {
            return pass;
        }
        // Closed again meanwhile: this thread takes its turn among those that close. Few do, as few have the baton.
        let _turn = file.exclusive.lock();
        slot.enter(&file.gate, self.ino.0)
            .expect("the gate is closed only while the lock is held")
    }

    /// [`Inode::enter`], or [`Error::Away`] where it would wait and the asking thread may not.
    #[inline]
    pub(super) fn enter_as<'a>(&self, file: &BlockFile, asking: &Asking<'a>) -> Result<Pass<'a>> {
        match asking.slot.enter(&file.gate, self.ino.0) {
            Some(pass) => Ok(pass),
            None if asking.waits => Ok(self.wait_and_enter(file, asking.slot)),
            None => Err(Error::Away),
        }
    }

    /// Shuts everyone out who copies without a lock, until dropped.
    pub(super) fn close<'a>(&'a self, file: &'a BlockFile, slots: &'a Slots) -> Closed<'a> {
        self.close_with(file, slots, file.exclusive.lock())
    }

    /// [`Inode::close`]; `None` where others close the gate and nobody `waits` here.
    pub(super) fn close_or_leave<'a>(
        &'a self,
        file: &'a BlockFile,
        slots: &'a Slots,
        waits: bool,
    ) -> Option<Closed<'a>> {
        let lock = if waits {
            file.exclusive.lock()
        } else {
            file.exclusive.try_lock()?
        };
        Some(self.close_with(file, slots, lock))
    }

    fn close_with<'a>(&'a self, file: &'a BlockFile, slots: &'a Slots, lock: MutexGuard<'a, ()>) -> Closed<'a> {
        slots.close(&file.gate, self.ino.0);
        Closed {
            ino: self.ino,
            taker: Taker {
                home: 0,
                user: self.uid(),
                asker: self.asker(None),
            },
            file,
            slots,
            _lock: lock,
        }
    }
}

/// The gate of a file is closed; opens when dropped.
#[derive(Debug)]
pub(super) struct Closed<'a> {
    ino: Ino,
    /// Whom nodes are taken for.
    taker: Taker,
    file: &'a BlockFile,
    slots: &'a Slots,
    _lock: MutexGuard<'a, ()>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.slots.open(&self.file.gate);
    }
}

/// A count of blocks that several CPUs add to at once: one word while it is small, a line per CPU once it is not.
#[derive(Debug, Default)]
pub(super) struct Count {
    base: AtomicI64,
    stripes: OnceLock<Box<[Stripe; STRIPES]>>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicI64);

const STRIPES: usize = 8;
/// Below this many blocks (2 MiB) a file is one writer's, and the stripes' 512 bytes would be much beside its data.
const STRIPED_FROM: i64 = 512;

impl Count {
    /// Adds; `cpu` spreads the adders.
    #[inline]
    pub(super) fn add(&self, cpu: u32, blocks: u64) {
        let blocks = i64::try_from(blocks).expect("a file has less than 2^51 blocks");
        if let Some(stripes) = self.stripes.get() {
            stripes[cpu as usize % STRIPES].0.fetch_add(blocks, Ordering::Relaxed);
        } else if self.base.fetch_add(blocks, Ordering::Relaxed) >= STRIPED_FROM {
            self.stripes.get_or_init(Box::default);
        }
    }

    /// Adds without making stripes: a reservation is no write, and stripes are memory that no account has.
    pub(super) fn add_reserved(&self, blocks: u64) {
        let blocks = i64::try_from(blocks).expect("a file has less than 2^51 blocks");
        self.base.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, blocks: u64) {
        self.base
            .fetch_sub(i64::try_from(blocks).expect("blocks < 2^51"), Ordering::Relaxed);
    }

    pub(super) fn sum(&self) -> u64 {
        let stripes: i64 = self
            .stripes
            .get()
            .map_or(0, |all| all.iter().map(|one| one.0.load(Ordering::Relaxed)).sum());
        u64::try_from(self.base.load(Ordering::Relaxed) + stripes).unwrap_or(0)
    }
}
