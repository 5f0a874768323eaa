//! Filling holes: entries are locked, filled, and published.

use super::RUN_BLOCKS;
use super::entry::{Entry, Kind};
use super::nodes::FANOUT;
use crate::sync::{AtomicU64, Backoff, Ordering};
use homenode_policy::Block;

/// Locked entries that are about to be filled. Dropped without [`Places::publish`], they are what they were before.
#[derive(Debug)]
#[must_use]
pub struct Places<'a> {
    entries: &'a [AtomicU64],
    before: Entry,
    run: bool,
}

impl<'a> Places<'a> {
    pub(super) fn lock(entries: &'a [AtomicU64], most: u64, run: bool) -> Option<Self> {
        let mut backoff = Backoff::default();
        let before = loop {
            let value = Entry(entries[0].load(Ordering::Acquire));
            match value.kind() {
                Kind::Hole | Kind::Reserved if value.is_locked() => backoff.wait(),
                Kind::Hole | Kind::Reserved => {
                    if try_lock(&entries[0], value) {
                        break value;
                    }
                }
                _ => return None,
            }
        };
        // In ascending order everywhere, so that two writers cannot wait for each other.
        let more = entries[1..].iter().take(usize::try_from(most - 1).unwrap_or(FANOUT));
        let count = 1 + more.take_while(|entry| try_lock(entry, before)).count();
        Some(Self {
            entries: &entries[..count],
            before,
            run,
        })
    }

    /// File blocks locked.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        if self.run {
            RUN_BLOCKS
        } else {
            self.entries.len() as u64
        }
    }

    /// Whether the pool keeps room for these already.
    #[must_use]
    pub fn reserved(&self) -> bool {
        self.before == Entry::RESERVED
    }

    /// Leaves only the first `blocks` (at least 1) locked.
    pub fn shorten(&mut self, blocks: u64) {
        let keep = if self.run {
            1
        } else {
            usize::try_from(blocks).map_or(self.entries.len(), |n| n.max(1))
        };
        let (kept, rest) = self.entries.split_at(keep.min(self.entries.len()));
        unlock(rest, self.before);
        self.entries = kept;
    }

    /// Maps the locked file blocks to consecutive blocks from `block` on, whose bytes are written already.
    pub fn publish(mut self, block: Block) {
        // Release: the bytes come before the entry that shows them.
        for (i, entry) in std::mem::take(&mut self.entries).iter().enumerate() {
            let value = if self.run {
                Entry::run(block)
            } else {
                Entry::block(block.plus(i as u64))
            };
            entry.store(value.0, Ordering::Release);
        }
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        unlock(self.entries, self.before);
    }
}

pub(super) fn try_lock(entry: &AtomicU64, empty: Entry) -> bool {
    // Acquire pairs with the release of the last locker; nothing was written under the lock that we read, but its zeroing
    // of the same bytes must come first.
    entry
        .compare_exchange(empty.0, empty.locked().0, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

fn unlock(entries: &[AtomicU64], before: Entry) {
    for entry in entries {
        entry.store(before.0, Ordering::Release);
    }
}
