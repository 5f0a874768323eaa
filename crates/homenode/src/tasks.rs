//! Bytes by thread and home: what the threads that use a pool copy, and which of their files could move.
//!
//! Threads of this process are known by slots ([`crate::asking`] notes the holder of each), callers of a mount by the server's tables, users of
//! kernel files by BPF programs. Counting runs only while a caller asks, about once a second. Thread number and start time identify a thread.
//!
//! Not counted: page-cache hits of a mount, mappings, and durable pools on files, whose pages are where the kernel put them.
//! Cost: of a question, a small file for each thread that moved bytes lately, and a look where each of their busy files lies.

use crate::mover::Files;
use crate::pool::Inner;
use homenode_engine::NodeId;
use homenode_fuse::{FILES_MAX, TaskCount};
pub use homenode_linux::affinity::{ByNode, FilePlace, PoolTasks, TaskBytes};
use homenode_linux::process::{own_thread, start_ticks};
use homenode_policy::mover::RATE_MIN;
use homenode_shared::SlotNumber;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;

/// Threads that are told at most.
const THREADS_MAX: usize = 4096;
/// Files whose places are told at most.
const PLACES_MAX: usize = 64;
/// Seconds without bytes after which a thread is forgotten.
const FORGET_S: f64 = 60.0;

/// Threads of this process that hold slots of a pool, by the slot.
#[derive(Debug, Default)]
pub(crate) struct Holders(Mutex<BTreeMap<usize, Holder>>);

#[derive(Debug)]
struct Holder {
    slot: SlotNumber,
    thread: u32,
    /// Bytes by home that earlier holders of the slot have copied.
    before: Vec<u64>,
}

impl Inner {
    /// Notes that the calling thread has just claimed a slot.
    pub(crate) fn note_holder(&self, slot: SlotNumber) {
        let holder = Holder {
            slot,
            thread: own_thread(),
            before: self.fs.pool().homes(slot),
        };
        self.holders.0.lock().insert(slot.index(), holder);
    }

    /// Bytes of threads of this process since each claimed its slot. One that has ended may still be among them.
    fn own_threads(&self) -> Vec<TaskCount> {
        let pool = self.fs.pool();
        if !pool.counts_by_place() {
            return Vec::new();
        }
        let count = |holder: &Holder| {
            let now = pool.homes(holder.slot);
            let bytes = now
                .iter()
                .zip(&holder.before)
                .map(|(now, before)| now.saturating_sub(*before));
            let homes = pool.nodes().iter().copied().zip(bytes);
            TaskCount {
                thread: holder.thread,
                homes: homes.filter(|(_, bytes)| *bytes > 0).collect(),
                files: Vec::new(),
            }
        };
        let holders = self.holders.0.lock();
        holders
            .values()
            .map(count)
            .filter(|count| !count.homes.is_empty())
            .collect()
    }

    /// Tells what the threads of this process have copied.
    pub(crate) fn tasks(&self) -> PoolTasks {
        let told = |count: TaskCount| {
            Some(TaskBytes {
                thread: count.thread,
                started: start_ticks(count.thread)?,
                homes: by_node(count.homes),
                files: Vec::new(),
            })
        };
        PoolTasks {
            answered: true,
            counted_ms: now_ms(),
            threads: self.own_threads().into_iter().filter_map(told).collect(),
            ..PoolTasks::default()
        }
    }
}

/// Milliseconds of a clock that all programs of the machine read.
pub(crate) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

fn by_node(homes: impl IntoIterator<Item = (NodeId, u64)>) -> ByNode {
    homes.into_iter().map(|(node, bytes)| (node.0, bytes)).collect()
}

/// Bytes that threads which call a mount have moved, since each was seen first.
#[derive(Debug)]
pub(crate) struct Ledger {
    threads: BTreeMap<u32, Moved>,
    /// Up to when bytes are in it, by [`now_ms`].
    counted_ms: u64,
    /// Bytes of threads that found no room, here or in a table.
    lost_bytes: u64,
}

#[derive(Debug, Default)]
struct Moved {
    started: u64,
    homes: BTreeMap<NodeId, u64>,
    /// Bytes a second, smoothed over some seconds.
    files: BTreeMap<u64, f64>,
    /// Bytes at the last look.
    latest: u64,
    idle_s: f64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            threads: BTreeMap::new(),
            counted_ms: now_ms(),
            lost_bytes: 0,
        }
    }
}

impl Ledger {
    /// Up to when bytes are in it, by [`now_ms`].
    pub(crate) fn counted_ms(&self) -> u64 {
        self.counted_ms
    }

    /// Adds what was counted since the last call and up to a later time; `started` tells a thread's start, if it is there.
    pub(crate) fn note(
        &mut self,
        counted_ms: u64,
        counts: Vec<TaskCount>,
        lost_bytes: u64,
        started: impl Fn(u32) -> Option<u64>,
    ) {
        let passed_s = (counted_ms.saturating_sub(self.counted_ms) as f64 / 1000.0).max(0.001);
        self.counted_ms = counted_ms;
        self.note_after(passed_s, counts, lost_bytes, started);
    }

    fn note_after(
        &mut self,
        passed_s: f64,
        counts: Vec<TaskCount>,
        lost_bytes: u64,
        started: impl Fn(u32) -> Option<u64>,
    ) {
        self.lost_bytes += lost_bytes;
        // Half of a rate is of the last second.
        let kept = 0.5_f64.powf(passed_s);
        self.threads.retain(|thread, moved| {
            moved.files.values_mut().for_each(|rate| *rate *= kept);
            moved.latest = 0;
            moved.idle_s += passed_s;
            moved.idle_s < FORGET_S && started(*thread) == Some(moved.started)
        });
        for count in counts {
            let moved = match self.threads.get_mut(&count.thread) {
                Some(moved) => moved,
                None => {
                    let Some(started) = started(count.thread) else { continue };
                    self.make_room();
                    let moved = self.threads.entry(count.thread).or_default();
                    moved.started = started;
                    moved
                }
            };
            moved.idle_s = 0.0;
            for (node, bytes) in count.homes {
                *moved.homes.entry(node).or_default() += bytes;
                moved.latest += bytes;
            }
            for (file, bytes) in count.files {
                *moved.files.entry(file).or_default() += bytes as f64 / passed_s * (1.0 - kept);
            }
        }
        for moved in self.threads.values_mut() {
            let mut files: Vec<(u64, f64)> = std::mem::take(&mut moved.files).into_iter().collect();
            files.sort_by(|(_, a), (_, b)| b.total_cmp(a));
            moved.files = files
                .into_iter()
                .take(FILES_MAX)
                .filter(|(_, rate)| *rate >= 1.0)
                .collect();
        }
    }

    /// A full ledger loses the thread that moved least at the last look.
    fn make_room(&mut self) {
        if self.threads.len() < THREADS_MAX {
            return;
        }
        let least = self.threads.iter().min_by_key(|(_, moved)| moved.latest);
        if let Some(thread) = least.map(|(thread, _)| *thread) {
            let lost = self.threads.remove(&thread).map_or(0, |moved| moved.latest);
            self.lost_bytes += lost;
        }
    }

    /// Tells all that is known, with `own` of this process's threads; where files lie that one thread moves [`RATE_MIN`] of is asked of `files`.
    pub(crate) fn tell(&self, mut own: PoolTasks, files: &dyn Files, nodes: &[NodeId]) -> PoolTasks {
        let mut busy: BTreeMap<u64, f64> = BTreeMap::new();
        let rate_min = RATE_MIN as f64;
        for (thread, moved) in &self.threads {
            let files = moved.files.iter().filter(|(_, rate)| **rate >= rate_min);
            for (file, rate) in files.clone() {
                *busy.entry(*file).or_default() += rate;
            }
            let files = files.map(|(file, rate)| (*file, whole(*rate))).collect();
            let mut homes = moved.homes.clone();
            // A thread of this process may call the mount as well.
            if let Some(place) = own.threads.iter().position(|task| task.thread == *thread) {
                for (node, bytes) in own.threads.swap_remove(place).homes {
                    *homes.entry(NodeId(node)).or_default() += bytes;
                }
            }
            own.threads.push(TaskBytes {
                thread: *thread,
                started: moved.started,
                homes: by_node(homes),
                files,
            });
        }
        let mut busiest: Vec<(u64, f64)> = busy.into_iter().collect();
        busiest.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        busiest.truncate(PLACES_MAX);
        let place = |(file, _): (u64, f64)| {
            Some(FilePlace {
                inode: file,
                homes: by_node(files.map(file)?),
            })
        };
        own.files = busiest.into_iter().filter_map(place).collect();
        own.room = by_node(nodes.iter().map(|node| (*node, files.room(*node))));
        if self.lost_bytes > 0 {
            let why = format!(
                "{} bytes are of threads that moved least, and there are more threads than its server tells apart",
                self.lost_bytes
            );
            own.unseen.push(("bytes of threads that use the pool".to_owned(), why));
        }
        own.counted_ms = self.counted_ms;
        own
    }
}

/// A rate is far below 2^53.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a rate of bytes, which is cut at the ends"
)]
fn whole(rate: f64) -> u64 {
    rate as u64
}

/// Users of files of the kernel, as BPF programs counted them since the last question.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// When the programs' counts were taken last, by [`now_ms`].
    counted_ms: u64,
    threads: Vec<TaskCount>,
    /// Numbers in these.
    numbers: usize,
    lost_bytes: u64,
    /// Where the busy files lay lately.
    places: Places,
}

/// Bytes of files by node.
pub(crate) type Places = BTreeMap<u64, Vec<(NodeId, u64)>>;

/// Numbers of bytes that are kept until the next question: 4 MiB.
const REACHED_MAX: usize = 1 << 18;

/// Divides what threads, or CPUs of nodes, reached of files among the nodes that each file lies on by `map`. Files of which little was reached are on no node.
pub(crate) fn divide(
    reached: impl Iterator<Item = (u32, u64, u64)> + Clone,
    map: impl Fn(u64) -> Vec<(NodeId, u64)>,
) -> (Vec<TaskCount>, Places) {
    let mut of_files: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, file, bytes) in reached.clone() {
        *of_files.entry(file).or_default() += bytes;
    }
    let busy = of_files.into_iter().filter(|(_, sum)| *sum >= RATE_MIN);
    let places: Places = busy.map(|(file, _)| (file, map(file))).collect();
    let mut counts: BTreeMap<u32, TaskCount> = BTreeMap::new();
    for (thread, file, bytes) in reached {
        let Some(lies) = places.get(&file) else { continue };
        let count = counts.entry(thread).or_default();
        count.thread = thread;
        let all: u64 = lies.iter().map(|(_, bytes)| bytes).sum();
        let part = |on: u64| u64::try_from(u128::from(bytes) * u128::from(on) / u128::from(all.max(1))).unwrap_or(0);
        for (node, on) in lies {
            match count.homes.iter_mut().find(|(home, _)| home == node) {
                Some((_, bytes)) => *bytes += part(*on),
                None => count.homes.push((*node, part(*on))),
            }
        }
        count.files.push((file, bytes));
    }
    (counts.into_values().collect(), places)
}

impl Reach {
    /// When the counts were taken last, by [`now_ms`].
    pub(crate) fn counted_ms(&self) -> u64 {
        self.counted_ms
    }

    /// Adds what was reached since the last call and up to `counted_ms`.
    pub(crate) fn note(&mut self, counted_ms: u64, (threads, places): (Vec<TaskCount>, Places)) {
        self.counted_ms = counted_ms;
        let numbers: usize = threads.iter().map(|one| 1 + one.homes.len() + one.files.len()).sum();
        if self.numbers + numbers > REACHED_MAX {
            let homes = threads.iter().flat_map(|count| &count.homes);
            self.lost_bytes += homes.map(|(_, bytes)| bytes).sum::<u64>();
        } else {
            self.threads.extend(threads);
            self.numbers += numbers;
        }
        self.places = places;
    }

    /// Takes the counts.
    pub(crate) fn take(&mut self) -> (Vec<TaskCount>, u64) {
        self.numbers = 0;
        (std::mem::take(&mut self.threads), std::mem::take(&mut self.lost_bytes))
    }

    /// Tells where a busy file lay when it was last looked at.
    pub(crate) fn place(&self, file: u64) -> Option<Vec<(NodeId, u64)>> {
        self.places.get(&file).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pool, PoolOptions, Size};
    use std::sync::mpsc::channel;
    use std::thread;

    const N0: NodeId = NodeId(0);
    const N1: NodeId = NodeId(1);
    const MIB: u64 = 1 << 20;

    fn count(thread: u32, homes: &[(NodeId, u64)], files: &[(u64, u64)]) -> TaskCount {
        TaskCount {
            thread,
            homes: homes.to_vec(),
            files: files.to_vec(),
        }
    }

    /// Files of 10 MiB on node 1, but file 9, which is not there.
    struct Fake;

    impl Files for Fake {
        fn map(&self, file: u64) -> Option<Vec<(NodeId, u64)>> {
            (file != 9).then(|| vec![(N1, 10 * MIB)])
        }

        fn move_to(&self, _: u64, _: NodeId) -> Result<u64, String> {
            Err("nothing moves".to_owned())
        }

        fn room(&self, node: NodeId) -> u64 {
            u64::from(node.0) + 5
        }
    }

    fn told(ledger: &Ledger) -> PoolTasks {
        ledger.tell(PoolTasks::default(), &Fake, &[N0, N1])
    }

    #[test]
    fn counts_are_added_and_rates_computed() {
        let mut ledger = Ledger::default();
        let started = |thread: u32| (thread != 13).then_some(5);
        for _ in 0..20 {
            let counts = vec![
                count(7, &[(N0, MIB), (N1, 9 * MIB)], &[(3, 8 * MIB), (9, 2 * MIB)]),
                count(7, &[(N1, MIB)], &[(3, MIB)]),
                // It has ended.
                count(13, &[(N1, MIB)], &[]),
            ];
            ledger.note_after(1.0, counts, 1, started);
        }
        let tasks = told(&ledger);
        let [task] = &tasks.threads[..] else {
            panic!("{tasks:?}")
        };
        assert_eq!((task.thread, task.started), (7, 5));
        assert_eq!(task.homes, [(0, 20 * MIB), (1, 200 * MIB)]);
        let rates: Vec<(u64, u64)> = task
            .files
            .iter()
            .map(|(file, rate)| (*file, (rate + MIB / 2) / MIB))
            .collect();
        assert_eq!(rates, [(3, 9), (9, 2)]);
        let place = FilePlace {
            inode: 3,
            homes: vec![(1, 10 * MIB)],
        };
        assert_eq!(
            (&tasks.files[..], &tasks.room[..]),
            (&[place][..], &[(0, 5), (1, 6)][..])
        );
        // Only its reason has a number: the daemon logs each kind once.
        let (what, why) = &tasks.unseen[0];
        assert_eq!(what, "bytes of threads that use the pool");
        assert!(why.starts_with("20 bytes are of"), "{why}");
        // A burst of one second is half of it at most, and then it fades.
        ledger.note_after(1.0, vec![count(7, &[(N1, 100 * MIB)], &[(4, 100 * MIB)])], 0, started);
        let rate = |ledger: &Ledger| {
            told(ledger).threads[0]
                .files
                .iter()
                .find(|(file, _)| *file == 4)
                .map(|(_, rate)| rate / MIB)
        };
        assert_eq!(rate(&ledger), Some(50));
        ledger.note_after(3.0, vec![], 0, started);
        assert_eq!(rate(&ledger), Some(6));
        ledger.note_after(FORGET_S, vec![], 0, started);
        assert_eq!(told(&ledger).threads, []);
    }

    #[test]
    fn a_thread_with_a_reused_id_starts_from_zero() {
        let mut ledger = Ledger::default();
        ledger.note_after(1.0, vec![count(7, &[(N0, MIB)], &[])], 0, |_| Some(5));
        ledger.note_after(1.0, vec![count(7, &[(N1, MIB)], &[])], 0, |_| Some(6));
        let tasks = told(&ledger);
        assert_eq!(
            (tasks.threads[0].started, &tasks.threads[0].homes[..]),
            (6, &[(1, MIB)][..])
        );
    }

    #[test]
    fn a_full_ledger_drops_the_least_active_thread() {
        let mut ledger = Ledger::default();
        let threads = u32::try_from(THREADS_MAX).unwrap();
        let counts = (1..=threads).map(|thread| count(thread, &[(N0, u64::from(thread) + 100)], &[]));
        ledger.note_after(1.0, counts.collect(), 0, |_| Some(5));
        let again = (1..=threads)
            .filter(|thread| *thread != 77)
            .map(|thread| count(thread, &[(N0, 50)], &[]));
        let again: Vec<TaskCount> = again.chain([count(threads + 1, &[(N0, 9)], &[])]).collect();
        ledger.note_after(1.0, again, 0, |_| Some(5));
        let tasks = told(&ledger);
        assert_eq!(tasks.threads.len(), THREADS_MAX);
        assert!(tasks.threads.iter().all(|task| task.thread != 77));
        assert!(tasks.threads.iter().any(|task| task.thread == threads + 1));
        assert_eq!(ledger.lost_bytes, 0, "an idle thread lost bytes");
    }

    #[test]
    fn kernel_files_count_by_their_nodes() {
        let reached = [(7, 1, 3 * MIB), (7, 1, MIB), (8, 1, MIB), (8, 2, MIB - 1)];
        let map = |file| match file {
            1 => vec![(N0, 25), (N1, 75)],
            _ => panic!("a thread with few bytes was looked at"),
        };
        let mut reach = Reach::default();
        reach.note(1, divide(reached.into_iter(), map));
        assert_eq!((reach.place(1), reach.place(2)), (Some(map(1)), None));
        let (counts, lost) = reach.take();
        assert_eq!((reach.take(), lost), ((vec![], 0), 0));
        let mut ledger = Ledger::default();
        ledger.note_after(1.0, counts, 0, |_| Some(5));
        let homes = |tasks: &PoolTasks| tasks.threads.iter().map(|task| task.homes.clone()).collect::<Vec<_>>();
        assert_eq!(
            homes(&told(&ledger)),
            [vec![(0, MIB), (1, 3 * MIB)], vec![(0, MIB / 4), (1, 3 * MIB / 4)]]
        );
        // What nobody takes does not grow for ever.
        // A thread's number, bytes on two nodes, and one file.
        let most = REACHED_MAX / 4;
        for thread in 0..u32::try_from(most).unwrap() + 5 {
            reach.note(2, divide([(thread, 1, MIB)].into_iter(), map));
        }
        let (counts, lost) = reach.take();
        assert_eq!((counts.len(), lost), (most, 5 * MIB));
    }

    #[test]
    fn library_threads_are_distinguished_even_on_one_slot() {
        let pool = Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(4 << 20)).node(N0)).unwrap();
        let file = pool.create_file("f").unwrap();
        thread::scope(|scope| {
            let (tell, told) = channel();
            let (end, ended) = channel::<()>();
            // One after the other has the same slot; the second one is still there when it is asked for.
            let run = |bytes: u64, wait: Option<std::sync::mpsc::Receiver<()>>| {
                let (tell, file) = (tell.clone(), &file);
                scope.spawn(move || {
                    for _ in 0..bytes {
                        file.write_all_at(b"x", 0).unwrap();
                    }
                    tell.send(own_thread()).unwrap();
                    wait.map(|ended| ended.recv());
                })
            };
            run(100, None).join().unwrap();
            let first = told.recv().unwrap();
            run(7, Some(ended));
            let second = told.recv().unwrap();
            let tasks = pool.tasks();
            let of = |thread| tasks.threads.iter().find(|task| task.thread == thread);
            assert_eq!(of(first), None, "the thread has ended");
            let second = of(second).unwrap();
            assert_eq!((&second.homes[..], second.started > 0), (&[(0, 7)][..], true));
            end.send(()).unwrap();
        });
    }

    #[test]
    fn a_pool_in_files_reports_no_homes() {
        let member = std::env::temp_dir().join(format!("homenode-tasks-{}", std::process::id()));
        std::fs::File::create(&member).unwrap().set_len(64 * MIB).unwrap();
        let pool = Pool::create_on(std::slice::from_ref(&member), &PoolOptions::new()).unwrap();
        std::fs::remove_file(member).unwrap();
        pool.create_file("f").unwrap().write_all_at(b"x", 0).unwrap();
        assert_eq!(pool.tasks().threads, [], "a pool in files reports homes");
    }
}
