//! Buffers of threads, as the servers of pools tell: bytes by thread and home, and the files they are of.
//!
//! Servers are asked by the command's protocol, so whoever makes a sensor brings the way to ask ([`Ask`]). Counts are since a server began
//! to count; those of a period are what two answers differ by. A thread is known by its number and its start, so that none is taken for
//! one that had its number before. What was told becomes a file of a recording, and is read from there again.
//!
//! Cost: a question and an answer for each server and period.

use super::gaps::Gaps;
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;
use homenode_policy::affinity::{FileId, PoolFile};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Where a recording has what servers told.
const FILE: &str = "proc/homenode/tasks";
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

/// The way to ask, and the last answers.
pub(super) struct Pools {
    ask: Ask,
    /// Pools that have answered.
    known: HashSet<(u32, u32)>,
    before: HashMap<((u32, u32), Who), ByNode>,
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
            known: HashSet::new(),
            before: HashMap::new(),
        }
    }

    /// Asks, and gives what was moved since the last call.
    pub(super) fn read(&mut self, tree: &Tree, gaps: &mut Gaps) -> Buffers {
        let told = if tree.is_live() {
            let told = (self.ask)();
            tree.keep(FILE, &serde_json::to_vec(&told).expect("numbers and strings"));
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
        self.since(&told, gaps)
    }

    fn since(&mut self, told: &[PoolTasks], gaps: &mut Gaps) -> Buffers {
        let mut buffers = Buffers::default();
        let mut now = HashMap::new();
        for one in told {
            let pool = one.pool;
            let is_known = self.known.contains(&pool);
            for task in &one.threads {
                let who = (task.thread, task.started);
                let before = self.before.get(&(pool, who));
                // A thread that comes anew did all of it in the period.
                if is_known {
                    let buffer = buffers.threads.entry(who).or_default();
                    for (node, bytes) in &task.homes {
                        let before = before.and_then(|homes| homes.iter().find(|(known, _)| known == node));
                        // A server that began anew has counted less.
                        let did = before
                            .and_then(|(_, before)| bytes.checked_sub(*before))
                            .unwrap_or(*bytes);
                        if did > 0 {
                            let sum = buffer.memory.entry(NodeId(*node)).or_default();
                            *sum = sum.saturating_add(did);
                        }
                    }
                    let files = task
                        .files
                        .iter()
                        .map(|(inode, rate)| (FileId { pool, inode: *inode }, *rate));
                    buffer.files.extend(files);
                }
                now.insert((pool, who), task.homes.clone());
            }
            let by_node = |homes: &ByNode| homes.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect();
            let file = |place: &FilePlace| PoolFile {
                id: FileId {
                    pool,
                    inode: place.inode,
                },
                lies: by_node(&place.homes),
                room: by_node(&one.room),
            };
            buffers.files.extend(one.files.iter().map(file));
            one.unseen.iter().for_each(|(what, why)| gaps.tell(what, why));
        }
        buffers.files.sort_by_key(|file| file.id);
        buffers.files.dedup_by_key(|file| file.id);
        let answered = told.iter().filter(|one| one.answered);
        self.known = answered.map(|one| one.pool).collect();
        self.before = now;
        buffers
    }
}

/// Reads the answers of a recording. Machines that were not recorded have none.
fn recorded(tree: &Tree) -> Result<Vec<PoolTasks>, &'static str> {
    let mut bytes = Vec::new();
    match tree.read(FILE, &mut bytes) {
        Ok(()) => serde_json::from_slice(&bytes).map_err(|_| "what was recorded of them cannot be understood"),
        Err(_) if tree.is_recorded() => Err("the recording is of a version that did not ask the pools' servers"),
        Err(_) => {
            tree.keep(FILE, b"[]");
            Ok(Vec::new())
        }
    }
}
