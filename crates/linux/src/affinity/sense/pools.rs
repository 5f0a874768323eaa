//! Buffers of threads, as the servers of pools tell: bytes by thread and home, and the files they are of.
//!
//! The maker of a sensor supplies the way to ask servers ([`Ask`]). Answers are totals. Two answers differ by what moved in the time between them,
//! by the server's clock, and a period gets its share, for a while also without a new answer. Thread number and start time identify a thread.
//! Answers become a file of a recording, and are read from there again.
//!
//! Cost: a question and an answer for each server and period.

use super::gaps::Gaps;
use super::threads::TICKS_PER_SECOND;
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;
use homenode_policy::affinity::{FileId, PoolFile};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

/// Where a recording has what servers told.
const FILE: &str = "proc/homenode/tasks";
const TICK_MS: u64 = 1000 / TICKS_PER_SECOND;
/// Time without news after which nothing is said of a pool's threads.
const STALE_MS: u64 = 60_000;
const BUFFERS: &str = "bytes of threads in memory of pools";

/// Bytes by node, ascending.
pub type ByNode = Vec<(u16, u64)>;

/// Asks the servers of all pools.
pub type Ask = Box<dyn FnMut() -> Vec<PoolTasks>>;

/// Answer of a pool's server: bytes of the threads that use the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolTasks {
    /// Device number of its mount, major and minor; those who ask set it.
    #[serde(default)]
    pub pool: (u32, u32),
    /// Whether the server has answered; else `unseen` tells why not.
    pub answered: bool,
    /// Up to when its counts reach, in milliseconds of any clock.
    pub counted_ms: u64,
    /// Threads that moved bytes lately.
    pub threads: Vec<TaskBytes>,
    /// Files of theirs that may move.
    pub files: Vec<FilePlace>,
    /// Bytes that nodes still take of a file.
    pub room: ByNode,
    /// Data that is missing, and why.
    pub unseen: Vec<(String, String)>,
}

/// Bytes that one thread has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskBytes {
    /// Its number.
    pub thread: u32,
    /// Its start, in clock ticks since boot.
    pub started: u64,
    /// Bytes by home, since the server began to count it.
    pub homes: ByNode,
    /// Files it moves most bytes with, by inode number, with bytes a second.
    pub files: Vec<(u64, u64)>,
}

/// Place of a file that may move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlace {
    /// Number of its inode.
    pub inode: u64,
    /// Its bytes.
    pub homes: ByNode,
}

/// A thread's number and start.
type Who = (u32, u64);

/// The way to ask, and what is known of each pool.
pub(super) struct Pools {
    ask: Ask,
    known: HashMap<(u32, u32), Known>,
}

/// Counts of a pool's threads, by its server's answers.
#[derive(Debug)]
struct Known {
    /// Up to when its counts reach, by its clock.
    counted_ms: u64,
    /// End of the period in which that time moved on, by ours.
    heard_ms: u64,
    /// The counts of that time.
    homes: HashMap<Who, ByNode>,
    /// Bytes by thread in the last `moved_in_ms`.
    moved: HashMap<Who, ByNode>,
    moved_in_ms: u64,
    rates: HashMap<Who, Vec<(u64, u64)>>,
    files: Vec<PoolFile>,
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

/// Buffers of a period.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    threads: HashMap<Who, Buffer>,
    /// Ascending.
    pub(super) files: Vec<PoolFile>,
}

/// Buffers of a thread: bytes of the period by home, and its files with bytes a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffer {
    pub(super) memory: BTreeMap<NodeId, u64>,
    pub(super) files: Vec<(FileId, u64)>,
}

impl Buffers {
    /// Takes what is known of a thread out.
    pub(super) fn take(&mut self, thread: u32, started: u64) -> Buffer {
        self.threads.remove(&(thread, started)).unwrap_or_default()
    }
}

impl Pools {
    pub(super) fn new(ask: Ask) -> Self {
        Self {
            ask,
            known: HashMap::new(),
        }
    }

    /// Asks, and gives what was moved in a period, in clock ticks, that ends now.
    pub(super) fn read(&mut self, tree: &Tree, period: Range<u64>, gaps: &mut Gaps) -> Buffers {
        let told = if tree.is_live() {
            let told = (self.ask)();
            tree.keep(FILE, &serde_json::to_vec(&told).expect("they serialize to JSON"));
            told
        } else {
            match recorded(tree) {
                Ok(told) => told,
                Err(why) => {
                    gaps.tell(BUFFERS, why);
                    Vec::new()
                }
            }
        };
        self.since(
            &told,
            period.start.saturating_mul(TICK_MS)..period.end.saturating_mul(TICK_MS),
            gaps,
        )
    }

    fn since(&mut self, told: &[PoolTasks], period: Range<u64>, gaps: &mut Gaps) -> Buffers {
        let mut buffers = Buffers::default();
        self.known.retain(|pool, _| told.iter().any(|one| one.pool == *pool));
        for one in told {
            for (what, why) in &one.unseen {
                let (major, minor) = one.pool;
                // A server tells of its own pool, whose name it need not know.
                let of_pool = if one.answered {
                    format!(" on device {major}:{minor}")
                } else {
                    String::new()
                };
                gaps.tell(&format!("{what}{of_pool}"), why);
            }
            if one.answered {
                self.note(one, period.end);
            }
            if let Some(known) = self.known.get(&one.pool)
                && period.end.saturating_sub(known.heard_ms) < STALE_MS
            {
                known.tell(one.pool, period.end.saturating_sub(period.start), &mut buffers);
            }
        }
        buffers.files.sort_by_key(|file| file.id);
        buffers.files.dedup_by_key(|file| file.id);
        buffers
    }

    fn note(&mut self, answer: &PoolTasks, now_ms: u64) {
        let counted_ms = answer.counted_ms;
        let homes: HashMap<Who, ByNode> = answer
            .threads
            .iter()
            .map(|task| (task.who(), task.homes.clone()))
            .collect();
        let known = self.known.entry(answer.pool).or_insert_with(|| Known {
            counted_ms,
            heard_ms: now_ms,
            homes: homes.clone(),
            moved: HashMap::new(),
            moved_in_ms: 1,
            rates: HashMap::new(),
            files: Vec::new(),
        });
        known.rates = answer
            .threads
            .iter()
            .map(|task| (task.who(), task.files.clone()))
            .collect();
        let by_node = |homes: &ByNode| homes.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect();
        let file = |place: &FilePlace| PoolFile {
            id: FileId {
                pool: answer.pool,
                inode: place.inode,
            },
            lies: by_node(&place.homes),
            room: by_node(&answer.room),
        };
        known.files = answer.files.iter().map(file).collect();
        if counted_ms == known.counted_ms {
            // What is counted beyond that time is of the next answer.
            return;
        }
        if let Some(passed_ms) = counted_ms.checked_sub(known.counted_ms) {
            // A thread that comes anew did all of it in between.
            let moved = |(who, homes): (&Who, &ByNode)| (*who, moved(known.homes.get(who), homes));
            known.moved = homes.iter().map(moved).collect();
            (known.moved_in_ms, known.heard_ms) = (passed_ms, now_ms);
        }
        (known.counted_ms, known.homes) = (counted_ms, homes);
    }
}

impl TaskBytes {
    fn who(&self) -> Who {
        (self.thread, self.started)
    }
}

/// Returns the bytes since `before`, all of them for a thread that is new. In one pass: an answer may be long, and a user's.
fn moved(before: Option<&ByNode>, now: &ByNode) -> ByNode {
    let before: HashMap<u16, u64> = before.into_iter().flatten().copied().collect();
    let since = |(node, bytes): &(u16, u64)| {
        // A server that began anew has counted less.
        let moved = before.get(node).and_then(|before| bytes.checked_sub(*before));
        (*node, moved.unwrap_or(*bytes))
    };
    now.iter().map(since).filter(|(_, bytes)| *bytes > 0).collect()
}

impl Known {
    /// Adds what is of a period.
    fn tell(&self, pool: (u32, u32), period_ms: u64, buffers: &mut Buffers) {
        for (who, homes) in &self.moved {
            let buffer = buffers.threads.entry(*who).or_default();
            for (node, bytes) in homes {
                let part = u128::from(*bytes) * u128::from(period_ms) / u128::from(self.moved_in_ms);
                let sum = buffer.memory.entry(NodeId(*node)).or_default();
                *sum = sum.saturating_add(u64::try_from(part).unwrap_or(u64::MAX));
            }
            let files = self.rates.get(who).into_iter().flatten();
            buffer
                .files
                .extend(files.map(|(inode, rate)| (FileId { pool, inode: *inode }, *rate)));
        }
        buffers.files.extend(self.files.iter().cloned());
    }
}

/// Reads the answers of a recording. Machines that were not recorded have none.
fn recorded(tree: &Tree) -> Result<Vec<PoolTasks>, &'static str> {
    let mut bytes = Vec::new();
    match tree.read(FILE, &mut bytes) {
        Ok(()) => serde_json::from_slice(&bytes).map_err(|_| "their recording cannot be understood"),
        Err(_) if tree.is_recorded() => Err("the recording has no answers of the pools' servers"),
        Err(_) => {
            tree.keep(FILE, b"[]");
            Ok(Vec::new())
        }
    }
}
