//! Space manager of one member: a binary buddy allocator over its blocks.
//!
//! Owns which blocks of the member are free. A free block lies in exactly one free run; a run of order `n` is 2^n blocks
//! and starts at a multiple of 2^n.
//!
//! Invariants: no two free runs overlap; two buddies are never both free below [`MAX_ORDER`] (they would be one run).
//! Cost: [`Buddy::allocate`] and one piece of [`Buddy::free`] look at no more than a few words an order, whatever the
//! size of the member; memory is 1 bit a block for each order that is in use there, and only where it is.
//! Deterministic: the lowest address wins.
//! Source: MBS-LVM, section 2.3 ("maintains the storage spaces … with the buddy system").

mod run_set;

use alloc::vec::Vec;
use core::fmt;
use run_set::RunSet;

/// The largest order: 2^18 blocks, 1 GiB.
pub const MAX_ORDER: u32 = 18;

/// How many orders there are: 4 KiB, 8 KiB … 1 GiB.
pub const ORDERS: u32 = MAX_ORDER + 1;

/// The order of a huge page: 512 blocks, 2 MiB. Runs of this size are kept whole as long as smaller ones will do.
pub const HUGE_ORDER: u32 = 9;

const _: () = assert!(crate::BLOCK_BYTES << HUGE_ORDER == 2 << 20);
const _: () = assert!(crate::BLOCK_BYTES << MAX_ORDER == 1 << 30);

/// The free space of one member, in blocks from its start.
pub struct Buddy {
    /// Free runs by order; a run is named by its start divided by its size.
    free_runs: Vec<RunSet>,
    blocks: u64,
    free_blocks: u64,
}

impl Buddy {
    /// A space of `blocks` blocks, none of them free yet: they are given with [`Buddy::free`] once there is memory behind
    /// them.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self {
            free_runs: (0..ORDERS).map(|order| RunSet::new(blocks >> order)).collect(),
            blocks,
            free_blocks: 0,
        }
    }

    /// How many blocks are managed, free or not.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many blocks are free.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// The order of the largest free run.
    #[must_use]
    pub fn largest_order(&self) -> Option<u32> {
        self.largest_order_below(ORDERS)
    }

    /// How many blocks are free in runs of at least 2 MiB.
    #[must_use]
    pub fn whole_blocks(&self) -> u64 {
        let whole = (HUGE_ORDER..ORDERS).map(|order| self.free_runs[order as usize].len() << order);
        whole.sum()
    }

    /// Makes the run of `blocks` blocks from `start` free, and joins it with its free neighbours. Any run will do: it
    /// need not be one that was allocated in one go.
    ///
    /// # Panics
    /// When a block of the run is free already, or beyond the end.
    pub fn free(&mut self, start: u64, blocks: u64) {
        let end = start.checked_add(blocks).filter(|end| *end <= self.blocks);
        let end = end.unwrap_or_else(|| panic!("free of {blocks} blocks at {start}: only {} exist", self.blocks));
        let mut at = start;
        while at < end {
            let order = at.trailing_zeros().min((end - at).ilog2()).min(MAX_ORDER);
            self.free_run(at, order);
            at += 1 << order;
        }
    }

    /// Takes an aligned run of 2^`order` blocks. The smallest run that will do is used, so that large ones survive, and
    /// among those the one at the lowest address.
    pub fn allocate(&mut self, order: u32) -> Option<u64> {
        let from = (order..ORDERS).find(|from| !self.free_runs[*from as usize].is_empty())?;
        let start = self.free_runs[from as usize]
            .first_from(0)
            .expect("the order has a free run: its bit is set")
            << from;
        self.free_runs[from as usize].remove(start >> from);
        for half in order..from {
            self.free_runs[half as usize].insert((start >> half) + 1);
        }
        self.free_blocks -= 1 << order;
        Some(start)
    }

    /// Takes one aligned run of at most `blocks` blocks, as `(start, blocks)`: a power of two, the largest not above
    /// `blocks` that there is. Less than 2 MiB is taken from 2 MiB runs that are broken already, even if it gets less
    /// than asked for, before a whole one is broken. `None` when nothing is free or `blocks` is 0.
    pub fn allocate_up_to(&mut self, blocks: u64) -> Option<(u64, u64)> {
        self.allocate_some(blocks, 1)
    }

    /// [`Buddy::allocate_up_to`], but a whole run is broken before less than `least` blocks are taken.
    pub fn allocate_some(&mut self, blocks: u64, least: u64) -> Option<(u64, u64)> {
        let least = least.checked_ilog2()?;
        let wanted = blocks.checked_ilog2()?.min(MAX_ORDER);
        let fits = |order: &u32| !self.free_runs[*order as usize].is_empty();
        let order = if wanted >= HUGE_ORDER {
            match (wanted..ORDERS).find(fits) {
                Some(_) => wanted,
                None => self.largest_order_below(wanted)?,
            }
        } else if (wanted..HUGE_ORDER).any(|order| fits(&order)) {
            wanted
        } else {
            let smaller = self.largest_order_below(wanted);
            let is_whole = || (HUGE_ORDER..ORDERS).any(|order| fits(&order));
            match smaller.filter(|smaller| *smaller >= least || !is_whole()) {
                Some(smaller) => smaller,
                None => wanted,
            }
        };
        self.allocate(order).map(|start| (start, 1 << order))
    }

    /// Takes up to `most` blocks of the smallest free run that there is, as `(start, blocks)`: holes are used up before
    /// anything whole is broken. `None` when nothing is free or `most` is 0.
    pub fn allocate_smallest(&mut self, most: u64) -> Option<(u64, u64)> {
        let most = most.checked_ilog2()?.min(MAX_ORDER);
        let smallest = (0..ORDERS).find(|order| !self.free_runs[*order as usize].is_empty())?;
        let order = smallest.min(most);
        self.allocate(order).map(|start| (start, 1 << order))
    }

    /// Panics unless the free runs are disjoint, joined as far as they can be, and add up. Reads the whole bitmap.
    pub fn check_invariants(&self) {
        let mut free_blocks = 0;
        for order in 0..ORDERS {
            let runs = &self.free_runs[order as usize];
            runs.check_invariants();
            free_blocks += runs.len() << order;
            for run in runs.iter() {
                assert!(
                    (run + 1) << order <= self.blocks,
                    "run {run} of order {order} beyond the end"
                );
                assert!(
                    order == MAX_ORDER || !runs.contains(run ^ 1),
                    "buddies {run} of order {order} not joined"
                );
                for above in order + 1..ORDERS {
                    let outer = run >> (above - order);
                    assert!(
                        !self.free_runs[above as usize].contains(outer),
                        "run {run} of order {order} free twice, again in order {above}"
                    );
                }
            }
        }
        assert_eq!(free_blocks, self.free_blocks, "count of free blocks");
    }

    fn largest_order_below(&self, limit: u32) -> Option<u32> {
        (0..limit)
            .rev()
            .find(|order| !self.free_runs[*order as usize].is_empty())
    }

    /// Frees one aligned run and joins it with its buddy as long as that is free too.
    fn free_run(&mut self, start: u64, order: u32) {
        self.assert_used(start, order);
        let mut run = start >> order;
        let mut joined = order;
        while joined < MAX_ORDER && self.free_runs[joined as usize].contains(run ^ 1) {
            self.free_runs[joined as usize].remove(run ^ 1);
            run >>= 1;
            joined += 1;
        }
        self.free_runs[joined as usize].insert(run);
        self.free_blocks += 1 << order;
    }

    /// A block given twice would be handed to two files: worth a look at every order that has free runs.
    fn assert_used(&self, start: u64, order: u32) {
        for (other, runs) in (0..ORDERS).zip(&self.free_runs) {
            if runs.is_empty() {
                continue;
            }
            let overlap = if other >= order {
                runs.contains(start >> other)
            } else {
                let end = (start + (1 << order)) >> other;
                runs.first_from(start >> other).is_some_and(|run| run < end)
            };
            assert!(
                !overlap,
                "free of {} blocks at {start}: some are free already",
                1u64 << order
            );
        }
    }
}

impl fmt::Debug for Buddy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buddy")
            .field("blocks", &self.blocks)
            .field("free_blocks", &self.free_blocks)
            .field("free_runs", &self.free_runs)
            .finish()
    }
}

#[cfg(test)]
mod tests;
