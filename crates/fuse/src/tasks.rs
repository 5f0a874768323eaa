//! Bytes that a mount's callers move, by thread and home: a table of each server thread.
//!
//! A request's header has the number of the calling thread, and the slot of the server's thread has counted where the bytes lie that
//! were copied meanwhile. A table has room for [`THREADS_MAX`] threads; a full one loses the one with the fewest bytes, and counts
//! them. Nothing is counted before somebody asks, nor after [`LEASE`] requests without anyone asking.
//! Not seen: reads and writes that the kernel serves from its page cache.
//!
//! Cost: of a request that moves bytes, two looks at a slot's counters (a line a node) and an uncontended lock; nothing while nobody asks.

use homenode_engine::NodeId;
use homenode_engine::fs::Ino;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads that one table tells apart.
pub(crate) const THREADS_MAX: usize = 256;
/// Files that are told of a thread.
pub const FILES_MAX: usize = 4;
/// Requests that are counted after the last look.
const LEASE: u32 = 1 << 20;

/// Bytes that a thread has moved since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Number of the thread.
    pub thread: u32,
    /// Bytes by home, ascending; nodes with none left out.
    pub homes: Vec<(NodeId, u64)>,
    /// Files with the most bytes, by inode number, at most [`FILES_MAX`].
    pub files: Vec<(u64, u64)>,
}

/// Counts of all tables since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// A thread is in it once for each table that has seen it.
    pub threads: Vec<TaskCount>,
    /// Bytes of threads that found no room.
    pub lost_bytes: u64,
}

/// Requests that are still counted. A load and a store by the server's thread: a renewal between them is lost, which
/// matters only to who has not asked for very long.
#[derive(Debug, Default)]
pub(crate) struct Lease(AtomicU32);

impl Lease {
    /// Whether the next request is to be counted.
    pub(crate) fn counts(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Somebody has asked: as many requests more are counted.
    pub(crate) fn renew(&self, requests: u32) {
        self.0.store(requests, Ordering::Relaxed);
    }

    /// Nobody will ask any more.
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether nothing is counted from now on.
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The table of one server thread.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    lease: Lease,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    places: HashMap<u32, usize>,
    entries: Vec<Entry>,
    lost_bytes: u64,
    /// Bytes that the slot had counted before the request under way.
    before: Vec<u64>,
    after: Vec<u64>,
}

#[derive(Debug)]
struct Entry {
    thread: u32,
    bytes: u64,
    homes: Vec<u64>,
    files: [(u64, u64); FILES_MAX],
}

impl Tasks {
    /// Whether the next request is to be counted.
    pub(crate) fn counts(&self) -> bool {
        self.lease.counts()
    }

    /// Runs a request of `thread` that moves bytes of a file. `look` adds what the slot has counted by home, of `homes` nodes.
    pub(crate) fn count<R>(
        &self,
        thread: u32,
        file: Ino,
        homes: usize,
        look: impl Fn(&mut [u64]),
        request: impl FnOnce() -> R,
    ) -> R {
        let looked = |sums: &mut Vec<u64>| {
            sums.clear();
            sums.resize(homes, 0);
            look(sums);
        };
        looked(&mut self.lock().before);
        let result = request();
        let mut table = self.lock();
        let table = &mut *table;
        looked(&mut table.after);
        for (after, before) in table.after.iter_mut().zip(&table.before) {
            *after = after.wrapping_sub(*before);
        }
        table.note(thread, file.0);
        result
    }

    /// Takes what was counted, in `nodes`' order, and has more counted.
    pub(crate) fn take(&self, nodes: &[NodeId], counts: &mut TaskCounts) {
        self.lease.renew(LEASE);
        let mut table = self.lock();
        table.places.clear();
        let told = |entry: Entry| {
            let homes = nodes.iter().copied().zip(entry.homes).filter(|(_, bytes)| *bytes > 0);
            let files = entry.files.into_iter().filter(|(_, bytes)| *bytes > 0);
            TaskCount {
                thread: entry.thread,
                homes: homes.collect(),
                files: files.collect(),
            }
        };
        counts.threads.extend(table.entries.drain(..).map(told));
        counts.lost_bytes += std::mem::take(&mut table.lost_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Counts only: a thread that panicked left them whole enough.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Adds `after`, which has the bytes of a request by now.
    fn note(&mut self, thread: u32, file: u64) {
        let bytes = self.after.iter().sum();
        if bytes == 0 {
            return;
        }
        let place = self.places.get(&thread).copied();
        let place = place.unwrap_or_else(|| self.enter(thread));
        let entry = &mut self.entries[place];
        entry.bytes += bytes;
        for (sum, more) in entry.homes.iter_mut().zip(&self.after) {
            *sum += more;
        }
        note_file(&mut entry.files, file, bytes);
    }

    /// Gives a thread an entry, if need be that of the thread with the fewest bytes.
    fn enter(&mut self, thread: u32) -> usize {
        let entry = Entry {
            thread,
            bytes: 0,
            homes: vec![0; self.after.len()],
            files: Default::default(),
        };
        let place = if self.entries.len() < THREADS_MAX {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let least = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.bytes);
            let place = least.expect("the table is full, so a least entry exists").0;
            let lost = std::mem::replace(&mut self.entries[place], entry);
            self.places.remove(&lost.thread);
            self.lost_bytes += lost.bytes;
            place
        };
        self.places.insert(thread, place);
        place
    }
}

/// Adds bytes of a file. One that is not among them takes the place of the one with the fewest bytes, and those: so what was used most
/// is among them, and is told with no fewer bytes than it had.
fn note_file(files: &mut [(u64, u64); FILES_MAX], file: u64, bytes: u64) {
    if let Some((_, sum)) = files.iter_mut().find(|(known, sum)| *known == file && *sum > 0) {
        *sum += bytes;
    } else if let Some(least) = files.iter_mut().min_by_key(|(_, sum)| *sum) {
        *least = (file, least.1 + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(4)];

    /// A table, and a slot that has counted by home.
    #[derive(Default)]
    struct Server {
        tasks: Tasks,
        counted: RefCell<[u64; 3]>,
    }

    impl Server {
        fn serve(&self, thread: u32, file: u64, home: usize, bytes: u64) {
            let look = |sums: &mut [u64]| {
                sums.iter_mut()
                    .zip(*self.counted.borrow())
                    .for_each(|(sum, more)| *sum += more)
            };
            let request = || self.counted.borrow_mut()[home] += bytes;
            self.tasks.count(thread, Ino(file), NODES.len(), look, request);
        }

        fn take(&self) -> TaskCounts {
            let mut counts = TaskCounts::default();
            self.tasks.take(&NODES, &mut counts);
            counts
        }
    }

    #[test]
    fn requests_count_by_thread_and_home() {
        let server = Server::default();
        server.serve(7, 1, 0, 100);
        server.serve(7, 2, 2, 50);
        server.serve(9, 1, 1, 10);
        server.serve(9, 1, 1, 0);
        server.serve(11, 1, 1, 0);
        let task = |thread, homes: &[(u16, u64)], files: &[(u64, u64)]| TaskCount {
            thread,
            homes: homes.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect(),
            files: files.to_vec(),
        };
        let counts = server.take();
        assert_eq!(
            counts.threads,
            [
                task(7, &[(0, 100), (4, 50)], &[(1, 100), (2, 50)]),
                task(9, &[(1, 10)], &[(1, 10)])
            ]
        );
        assert_eq!(server.take(), TaskCounts::default());
        server.serve(9, 1, 1, 10);
        assert_eq!(server.take().threads, [task(9, &[(1, 10)], &[(1, 10)])]);
    }

    #[test]
    fn a_full_table_drops_the_smallest_entry_and_counts_its_bytes() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let server = Server::default();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut all = 0;
        for round in 0..20_000 {
            // Some threads move far more than all others together.
            let (thread, bytes) = match round % 4 {
                0 => (random.u32(1..=16), 100_000),
                _ => (random.u32(100..2000), random.u64(1..100)),
            };
            server.serve(thread, random.u64(1..20), random.usize(..3), bytes);
            *model.entry(thread).or_default() += bytes;
            all += bytes;
        }
        let counts = server.take();
        assert_eq!(counts.threads.len(), THREADS_MAX);
        let found: BTreeMap<u32, u64> = counts
            .threads
            .iter()
            .map(|task| (task.thread, task.homes.iter().map(|(_, bytes)| bytes).sum()))
            .collect();
        assert_eq!(found.values().sum::<u64>() + counts.lost_bytes, all);
        assert!(counts.lost_bytes > 0);
        for thread in 1..=16 {
            assert_eq!(found[&thread], model[&thread], "thread {thread}");
        }
        for task in &counts.threads {
            assert!(found[&task.thread] <= model[&task.thread] && task.files.len() <= FILES_MAX);
        }
    }

    #[test]
    fn the_most_used_file_is_reported_with_at_least_its_bytes() {
        let server = Server::default();
        for round in 0..1000 {
            server.serve(7, 1, 0, 30);
            server.serve(7, 2 + round % 50, 0, 10);
        }
        let files = server.take().threads[0].files.clone();
        let most = files.iter().max_by_key(|(_, bytes)| *bytes).unwrap();
        assert!(most.0 == 1 && most.1 >= 30_000, "{files:?}");
        assert_eq!(files.iter().map(|(_, bytes)| bytes).sum::<u64>(), 40_000);
    }

    #[test]
    fn counting_starts_with_the_first_question_and_stops_later() {
        let server = Server::default();
        assert!(!server.tasks.counts());
        server.take();
        let counted = (0..LEASE + 5).filter(|_| server.tasks.counts()).count();
        assert_eq!(counted, LEASE as usize);
        server.take();
        assert!(server.tasks.counts());
    }
}
