//! Free memory on nodes, for pages that are still to come.
//!
//! The kernel drops clean page cache only when no node has free memory, so new tmpfs pages leave a node that is full of cache. The keeper has cache
//! dropped ahead of writers, never program memory. If free memory is fragmented, it allocates huge pages briefly so that the kernel compacts the
//! node. The node's `compact` file is not used: it can wait for ever for pages locked for a stopped FUSE server; a page fault does not.
//!
//! Cost: a node's meminfo a look, 10 µs, every 20 to 80 ms, and buddyinfo once a second; making room takes a thread for the kernel's reclaim,
//! about 1 GB/s; compacting at most 1 % of a CPU, and 500 ms at a time.

use crate::memory::cgroup::Limits;
use crate::memory::mapping::{HUGE_BYTES, Mapping};
use crate::topology::nodes::Meminfo;
use homenode_engine::{BLOCK_BYTES, NodeId};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Most free memory that is kept on a node: what two writers at 3 GB/s take in 170 ms.
const TARGET_BYTES_MAX: u64 = 1 << 30;
/// Most of it where pages have to be moved for it: they take as much for a moment.
const TARGET_MOVED_BYTES_MAX: u64 = 256 << 20;
/// Part of a node's memory that is kept free at most: one in this many.
const TARGET_PART: u64 = 4;
/// Change of free memory that counts: one part of a node in this many.
const CHANGE_PART: u64 = 256;
/// Room above its reserve from which on a starved node counts as fed again.
const FED_BYTES: u64 = 64 << 20;
/// Most free memory in pieces of 2 MiB that is kept, of free memory of twice as much.
const HUGE_TARGET_BYTES_MAX: u64 = 256 << 20;
/// Part of a node's memory that is kept in such pieces at most: one in this many.
const HUGE_TARGET_PART: u64 = 8;
/// Most time in which such pieces are made.
const HUGE_TIME_MAX: Duration = Duration::from_millis(500);
/// Time between two looks at such pieces.
const HUGE_PERIOD: Duration = Duration::from_secs(1);
/// Bytes that one step has the kernel drop at most, some 30 ms.
const STEP_BYTES: u64 = 32 << 20;
/// Time between two looks while free memory changes.
const PERIOD_MIN: Duration = Duration::from_millis(20);
/// Time between two looks while free memory does not change.
const PERIOD_MAX: Duration = Duration::from_millis(80);
/// Rest after a step that made no room, and after compacting, as a multiple of its time: 1 % of a CPU.
const REST: u32 = 100;

/// Keeps memory free on each of some nodes.
#[derive(Debug)]
pub struct RoomKeeper {
    nodes: Vec<Node>,
    period: Duration,
    next_huge: Instant,
}

#[derive(Debug)]
struct Node {
    id: NodeId,
    meminfo: File,
    means: Means,
    /// Free memory at which the kernel turns to another node.
    kept_bytes: u64,
    /// Whether it has neither free memory nor page cache to drop.
    is_starved: bool,
    free_before: u64,
    /// Whether room is being made: begun below the target, ended a quarter above it.
    is_short: bool,
    rests_until: Option<Instant>,
    compacts_again: Option<Instant>,
}

/// How the kernel is made to drop page cache of one node.
#[derive(Debug)]
enum Means {
    /// The node's `reclaim` file (Linux 6.17 and newer).
    File(File),
    /// Pages of this process that are moved there, and freed.
    Moving,
}

impl RoomKeeper {
    /// A keeper of `nodes`. One of a single node does nothing: there the kernel drops the cache itself.
    #[must_use]
    pub fn new(nodes: &[NodeId]) -> Self {
        let many = if nodes.len() > 1 { nodes } else { &[] };
        let nodes = many.iter().filter_map(|node| Node::open(*node).ok()).collect();
        let period = PERIOD_MIN;
        Self {
            nodes,
            period,
            next_huge: Instant::now(),
        }
    }

    /// Nodes that had nothing left to give at the last look, neither free memory nor page cache to drop.
    #[must_use]
    pub fn starved(&self) -> Vec<NodeId> {
        let starved = self.nodes.iter().filter(|node| node.is_starved);
        starved.map(|node| node.id).collect()
    }

    /// Looks at each node, and makes a step of room on it where less is free than a part of the node, and less than `wanted` bytes.
    /// Returns the time until the next look, none when a step should follow at once.
    pub fn keep(&mut self, wanted: u64) -> Duration {
        // Nodes whose figures cannot be read (taken offline) have no room to keep.
        let infos: Vec<Meminfo> = self.nodes.iter().map(|node| node.info().unwrap_or_default()).collect();
        let nodes = self
            .nodes
            .iter()
            .map(|node| node.id)
            .zip(infos.iter().map(|info| info.free));
        let roomiest = nodes.max_by_key(|(_, free)| *free).unwrap_or((NodeId(0), 0));
        if Instant::now() >= self.next_huge && !self.nodes.is_empty() {
            let buddies = std::fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
            self.make_huge(&buddies, &infos, wanted);
            self.next_huge = Instant::now() + HUGE_PERIOD;
        }
        let (mut goes_on, mut changes) = (false, false);
        for (node, info) in self.nodes.iter_mut().zip(&infos) {
            let before = std::mem::replace(&mut node.free_before, info.free);
            // It has to have some to spare before it counts as fed again, or writers would be sent back and forth.
            node.is_starved = info.room() < if node.is_starved { FED_BYTES } else { 1 };
            changes |= before.abs_diff(info.free) > info.total / CHANGE_PART;
            let taken = before.saturating_sub(info.free);
            goes_on |= node.keep(info, taken, wanted, roomiest);
        }
        let longer = (self.period * 2).min(PERIOD_MAX);
        self.period = if changes { PERIOD_MIN } else { longer };
        if goes_on { Duration::ZERO } else { self.period }
    }

    /// Has a node compacted that has too few pieces of 2 MiB. One a look: it may take long, and the others' room is looked at in between.
    fn make_huge(&mut self, buddyinfo: &str, infos: &[Meminfo], wanted: u64) {
        let nodes = self.nodes.iter_mut().zip(infos);
        let due = nodes.filter(|(node, info)| {
            let free_huge = free_huge_bytes(buddyinfo, node.id);
            free_huge.is_some_and(|bytes| node.is_huge_due(info, bytes, wanted))
        });
        // The one that waits longest: a node that cannot be compacted is due again and again.
        if let Some((node, info)) = due.min_by_key(|(node, _)| node.compacts_again) {
            node.make_huge(info, wanted);
        }
    }
}

impl Node {
    fn open(id: NodeId) -> io::Result<Self> {
        let directory = format!("/sys/devices/system/node/node{}", id.0);
        Ok(Self {
            id,
            meminfo: File::open(format!("{directory}/meminfo"))?,
            means: Means::of(&directory),
            kept_bytes: kept_bytes(&std::fs::read_to_string("/proc/zoneinfo")?, id),
            is_starved: false,
            free_before: 0,
            is_short: false,
            rests_until: None,
            compacts_again: None,
        })
    }

    fn info(&self) -> io::Result<Meminfo> {
        let mut text = [0; 4096];
        let bytes = self.meminfo.read_at(&mut text, 0)?;
        Ok(Meminfo::parse(&String::from_utf8_lossy(&text[..bytes])))
    }

    /// Makes a step of room if there is too little; returns whether that helped, and more is needed. `taken` is what the node has
    /// lost since the last look.
    fn keep(&mut self, info: &Meminfo, taken: u64, wanted: u64, roomiest: (NodeId, u64)) -> bool {
        let target = wanted.min(info.total / TARGET_PART).min(self.means.target_bytes_max());
        let enough = target + target / 4;
        let usable = |info: &Meminfo| info.free.saturating_sub(self.kept_bytes);
        let before = usable(info);
        self.is_short = before < if self.is_short { enough } else { target };
        let short = enough.saturating_sub(before).min(info.clean_cache());
        let now = Instant::now();
        if !self.is_short
            || short < HUGE_BYTES as u64
            || self.means.would_disturb(before, taken, target)
            || self.rests_until.is_some_and(|end| now < end)
        {
            return false;
        }
        // The node's own figures tell what came of it.
        let _ = self.means.make(self.id, short, info.free, roomiest);
        let after = self.info().map_or(0, |info| usable(&info));
        let has_helped = after >= before + HUGE_BYTES as u64;
        self.rests_until = (!has_helped).then(|| now + now.elapsed() * REST);
        has_helped && after < enough
    }
}

impl Node {
    /// Whether too little of its free memory, of which there is enough, is in pieces of 2 MiB: `free_huge` bytes; and its rest is over.
    fn is_huge_due(&self, info: &Meminfo, free_huge: u64, wanted: u64) -> bool {
        is_in_pieces(info, free_huge, wanted) && self.compacts_again.is_none_or(|end| Instant::now() >= end)
    }

    /// Has the node compacted.
    fn make_huge(&mut self, info: &Meminfo, wanted: u64) {
        let start = Instant::now();
        let target = huge_target(info, wanted);
        // The next look tells what came of it. Pieces that are there are taken first. More than wanted: each CPU keeps some of what is freed.
        let _ = make_huge(self.id, target + target / 4);
        self.compacts_again = Some(start + start.elapsed() * REST);
    }
}

/// Whether a node has free memory enough, and too little of it in pieces of 2 MiB.
fn is_in_pieces(info: &Meminfo, free_huge: u64, wanted: u64) -> bool {
    let target = huge_target(info, wanted);
    free_huge < target && info.free >= 2 * target
}

/// Free memory that is kept in pieces of 2 MiB.
fn huge_target(info: &Meminfo, wanted: u64) -> u64 {
    wanted.min(info.total / HUGE_TARGET_PART).min(HUGE_TARGET_BYTES_MAX)
}

/// Free memory of `node` in aligned pieces of 2 MiB and more, in buddyinfo; `None` if it has no such line.
fn free_huge_bytes(buddyinfo: &str, node: NodeId) -> Option<u64> {
    let start = format!("Node {}, zone", node.0);
    let zones = buddyinfo.lines().filter_map(|line| line.strip_prefix(&start));
    // The first word is the zone's name, then counts of pieces of 1, 2, 4 … pages.
    let bytes = |zone: &str| -> u64 {
        let counts = zone.split_whitespace().skip(1).zip(0..);
        let sizes = counts.map(|(count, order)| (count.parse().unwrap_or(0), (BLOCK_BYTES as u64) << order));
        let huge = sizes.filter(|(_, bytes)| *bytes >= HUGE_BYTES as u64);
        huge.map(|(count, bytes): (u64, u64)| count * bytes).sum()
    };
    zones.map(bytes).reduce(|all, bytes| all + bytes)
}

impl Means {
    fn of(directory: &str) -> Self {
        let file = OpenOptions::new().write(true).open(format!("{directory}/reclaim"));
        file.map_or(Self::Moving, Self::File)
    }

    fn target_bytes_max(&self) -> u64 {
        match self {
            Self::File(_) => TARGET_BYTES_MAX,
            Self::Moving => TARGET_MOVED_BYTES_MAX,
        }
    }

    /// Whether making room now would take from writers what they are about to take: moving takes all that is free for a moment. So it
    /// waits for them to rest, until little is left.
    fn would_disturb(&self, free: u64, taken: u64, target: u64) -> bool {
        matches!(self, Self::Moving) && taken >= HUGE_BYTES as u64 && free >= target / 4
    }

    /// Makes up to `short` more bytes free on `node`, of which `free` are.
    fn make(&mut self, node: NodeId, short: u64, free: u64, roomiest: (NodeId, u64)) -> io::Result<()> {
        match self {
            Self::File(file) => {
                let bytes = short.min(STEP_BYTES);
                // 0: only files' pages. EAGAIN: less than that could be dropped.
                file.write_all(format!("{bytes} swappiness=0").as_bytes())
            }
            // The kernel drops cache for a page that must come here once nothing is free: all that is free is taken first.
            Self::Moving => move_in(node, free + short, roomiest),
        }
    }
}

/// Free memory below which the kernel takes no pages of `node` while another has some: the low watermarks of its zones, in
/// zoneinfo.
fn kept_bytes(zoneinfo: &str, node: NodeId) -> u64 {
    let nodes = zoneinfo.split("Node ").skip(1);
    let zones = nodes.filter(|zone| zone.starts_with(&format!("{},", node.0)));
    let low = |zone: &str| -> Option<u64> {
        zone.lines()
            .find_map(|line| line.trim().strip_prefix("low ")?.trim().parse().ok())
    };
    zones.filter_map(low).sum::<u64>() * BLOCK_BYTES as u64
}

/// Takes `bytes` of huge pages on `node`, for which the kernel compacts it where they are not there, and frees them.
fn make_huge(node: NodeId, bytes: u64) -> io::Result<()> {
    let switch = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let is_forbidden = switch.is_ok_and(|text| text.contains("[never]"));
    if is_forbidden || Limits::of_this_process().room() / 2 < bytes {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)? / HUGE_BYTES * HUGE_BYTES;
    let mapping = Mapping::reserve(bytes)?;
    mapping.fill()?;
    mapping.advise(libc::MADV_HUGEPAGE)?;
    mapping.prefer(0, bytes, node)?;
    take_huge(&mapping, bytes).map(drop)
}

/// Takes `bytes` of huge pages. Ends at the first 2 MiB of small ones, which make nothing, or after [`HUGE_TIME_MAX`]; returns the bytes taken.
fn take_huge(mapping: &Mapping, bytes: usize) -> io::Result<usize> {
    let start = Instant::now();
    let mut taken = 0;
    while taken < bytes && start.elapsed() < HUGE_TIME_MAX {
        let before = page_faults()?;
        mapping.populate(taken, HUGE_BYTES)?;
        taken += HUGE_BYTES;
        if page_faults()? - before > 1 {
            break;
        }
    }
    Ok(taken)
}

/// Page faults of this thread that needed no disk: one for each page that it gets, of any size.
fn page_faults() -> io::Result<i64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel writes the structure behind the pointer, which lives until the call returns.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so the kernel has written all of it.
    Ok(unsafe { usage.assume_init() }.ru_minflt)
}

/// Moves `bytes` of pages of this process to `node` from the node that has most free memory, and frees them. The kernel drops page
/// cache for them, and never ends a process.
fn move_in(node: NodeId, bytes: u64, (from, free): (NodeId, u64)) -> io::Result<()> {
    if from == node || free.min(Limits::of_this_process().room()) / 2 < bytes {
        return Err(io::Error::other(
            "no other node has the room that this takes for a moment",
        ));
    }
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)? / HUGE_BYTES * HUGE_BYTES;
    let mapping = Mapping::reserve(bytes)?;
    mapping.fill()?;
    // A huge page would need 2 MiB in one piece there.
    mapping.advise(libc::MADV_NOHUGEPAGE)?;
    mapping.prefer(0, bytes, from)?;
    for offset in (0..bytes).step_by(HUGE_BYTES) {
        mapping.populate(offset, HUGE_BYTES)?;
        mapping.move_pages(offset, HUGE_BYTES, None, node)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
