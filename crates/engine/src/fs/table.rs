//! All live inodes by number.

use super::Ino;
use super::inode::Inode;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Locks that inodes are spread over.
const SHARDS: usize = 64;

/// Inodes that are taken with a shard locked: some microseconds.
const TAKEN_AT_ONCE: usize = 64;

/// Room for so many inodes a shard stays when they are gone.
const CAPACITY_KEPT: usize = 512;

#[derive(Debug)]
pub(super) struct Table {
    shards: [RwLock<HashMap<u64, Arc<Inode>>>; SHARDS],
    /// The last number given out.
    last: AtomicU64,
    live: AtomicU64,
    files_max: u64,
}

/// Inodes that are put together.
#[derive(Debug)]
pub(super) struct Batch {
    shards: [Vec<(u64, Arc<Inode>)>; SHARDS],
}

impl Batch {
    /// Room for so many.
    pub(super) fn new(inodes: u64) -> Self {
        // Numbers are handed out in sequence: shards fill alike.
        let share = usize::try_from(inodes).expect("the number of inodes in memory fits a usize") / SHARDS + 1;
        Self {
            shards: std::array::from_fn(|_| Vec::with_capacity(share)),
        }
    }

    pub(super) fn add(&mut self, inode: &Arc<Inode>) {
        self.shards[shard_of(inode.ino)].push((inode.ino.0, Arc::clone(inode)));
    }
}

impl Table {
    /// A table for at most `files_max` inodes, the next of which is numbered behind `last`.
    pub(super) fn new(files_max: u64, last: u64) -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
            last: AtomicU64::new(last),
            live: AtomicU64::new(0),
            files_max,
        }
    }

    /// The number of a new inode, and room for it; `None` when there are too many.
    pub(super) fn reserve(&self) -> Option<Ino> {
        if self.live.fetch_add(1, Ordering::Relaxed) >= self.files_max {
            self.give_up();
            return None;
        }
        Some(Ino(self.last.fetch_add(1, Ordering::Relaxed) + 1))
    }

    /// Gives the room of an inode back that was not put.
    pub(super) fn give_up(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Puts an inode that has a number already, and counts it.
    pub(super) fn put_counted(&self, inode: Arc<Inode>) {
        self.live.fetch_add(1, Ordering::Relaxed);
        self.put(inode);
    }

    /// Puts inodes that have numbers already, and counts them. Shard after shard: each is in the cache then.
    pub(super) fn put_all(&self, inodes: Batch) {
        for (shard, inodes) in self.shards.iter().zip(inodes.shards) {
            self.live.fetch_add(inodes.len() as u64, Ordering::Relaxed);
            shard.write().extend(inodes);
        }
    }

    /// The last number given out.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Puts an inode where [`Table::find`] finds it.
    pub(super) fn put(&self, inode: Arc<Inode>) {
        self.shard(inode.ino).write().insert(inode.ino.0, inode);
    }

    pub(super) fn find(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).read().get(&ino.0).cloned()
    }

    pub(super) fn remove(&self, ino: Ino) {
        let mut shard = self.shard(ino).write();
        if shard.remove(&ino.0).is_some() {
            self.give_up();
        }
        // To twice of what is there: the next ones find room.
        if shard.capacity() > CAPACITY_KEPT && shard.len() < shard.capacity() / 8 {
            let twice = 2 * shard.len();
            shard.shrink_to(twice);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// How many there may be.
    pub(super) fn files_max(&self) -> u64 {
        self.files_max
    }

    /// Numbers of the inodes of a shard; `None` behind the last one.
    pub(super) fn inodes_of(&self, shard: usize) -> Option<Vec<Ino>> {
        let shard = self.shards.get(shard)?.read();
        Some(shard.keys().copied().map(Ino).collect())
    }

    /// Visits each inode that is there all the time; one that comes or goes meanwhile, or not.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        let Ok(()) = self.try_for_each(|inode| {
            visit(inode);
            Ok::<_, Infallible>(())
        });
    }

    /// [`Table::for_each`] until a visit fails.
    pub(super) fn try_for_each<E>(&self, mut visit: impl FnMut(&Arc<Inode>) -> Result<(), E>) -> Result<(), E> {
        for shard in &self.shards {
            // Not under the lock: visiting may take long, and may evict. Nor is it held for all: each inode's count is in no cache.
            let numbers: Vec<u64> = shard.read().keys().copied().collect();
            for numbers in numbers.chunks(TAKEN_AT_ONCE) {
                let inodes: Vec<_> = {
                    let shard = shard.read();
                    numbers.iter().filter_map(|number| shard.get(number).cloned()).collect()
                };
                inodes.iter().try_for_each(&mut visit)?;
            }
        }
        Ok(())
    }

    fn shard(&self, ino: Ino) -> &RwLock<HashMap<u64, Arc<Inode>>> {
        &self.shards[shard_of(ino)]
    }
}

fn shard_of(ino: Ino) -> usize {
    usize::try_from(ino.0 % SHARDS as u64).expect("ino % SHARDS fits a usize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::inode::Body;

    #[test]
    fn a_visit_keeps_few_inodes_of_a_shard() {
        const OF_SHARD: u64 = 1000;
        let table = Table::new(u64::MAX, 0);
        for number in 1..=OF_SHARD {
            let ino = Ino(number * SHARDS as u64);
            table.put(Arc::new(Inode::new(ino, crate::fs::attr::FIFO, 0, Body::Special, 0)));
        }
        let mut visited = 0;
        table.for_each(|_| {
            visited += 1;
            let shard = table.shards[0].read();
            let kept = shard.values().filter(|inode| Arc::strong_count(inode) > 1).count();
            assert!(kept <= TAKEN_AT_ONCE, "{kept} are kept");
        });
        assert_eq!(visited, OF_SHARD);
    }
}
