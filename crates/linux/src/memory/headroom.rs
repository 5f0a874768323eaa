//! How much memory a node can still give, so that `mpol=bind` never meets a full node.
//!
//! An allocation bound to a full node calls the OOM killer, whatever the other nodes have. So members are populated
//! only while the node would keep a reserve, and while the process's memory control group has room too. Both are the
//! kernel's figures, read again every few milliseconds and counted down in between.

use crate::memory::cgroup::Limits;
use crate::memory::mapping::nodes_with_memory;
use crate::topology::nodes::{self, Meminfo};
use homenode_engine::NodeId;
use parking_lot::Mutex;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: &str = "/sys/devices/system/node";

/// How long the kernel's figures are believed. A node fills at some GB/s at most: 20 ms are well within the reserve.
const AGE_MAX: Duration = Duration::from_millis(20);
/// The least a node keeps: above the kernel's own watermarks, and room for what populates at the same time elsewhere.
const RESERVE_BYTES_MIN: u64 = 64 << 20;
/// Share of a large node that is kept: one part in this many.
const RESERVE_PART: u64 = 50;

/// Bytes of the memory of `node`.
///
/// # Errors
/// `NotFound` when there is no such node; otherwise what reading its meminfo said.
pub fn total_bytes(node: NodeId) -> io::Result<u64> {
    meminfo(node).map(|info| info.total)
}

/// The nodes whose memory this process may take (cpuset); `None` where the kernel does not say.
#[must_use]
pub fn allowed_nodes() -> Option<Vec<NodeId>> {
    nodes_in(&fs::read_to_string("/proc/self/status").ok()?)
}

fn nodes_in(status: &str) -> Option<Vec<NodeId>> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Mems_allowed_list:"))?;
    nodes::list(list)
}

/// Bytes that members can still take on `node`: free memory and page cache that can be dropped, less a reserve of 2 %
/// (64 MiB at least), and no more than the process's memory control group allows.
///
/// # Errors
/// `NotFound` when there is no such node; otherwise what reading its meminfo said.
pub fn free_bytes(node: NodeId) -> io::Result<u64> {
    room(node, &Limits::of_this_process())
}

/// Bytes that all nodes together may still give this process: [`u64::MAX`] without a memory control group's limit.
#[must_use]
pub fn group_free_bytes() -> u64 {
    Limits::of_this_process().room()
}

fn room(node: NodeId, limits: &Limits) -> io::Result<u64> {
    Ok(meminfo(node)?.room().min(limits.room()))
}

/// Counts down the room on one node, and that of the process's memory control groups, which all nodes share.
#[derive(Debug)]
pub(super) struct Headroom {
    node: NodeId,
    left: Countdown,
    groups: Arc<Groups>,
}

/// The room of the process's memory control groups.
#[derive(Debug)]
pub(super) struct Groups {
    limits: Limits,
    left: Countdown,
}

/// A figure of the kernel's, and what was taken since it was read.
#[derive(Debug, Default)]
struct Countdown(Mutex<Reading>);

#[derive(Debug, Default)]
struct Reading {
    left: u64,
    at: Option<Instant>,
}

impl Headroom {
    pub(super) fn new(node: NodeId, groups: Arc<Groups>) -> Self {
        let left = Countdown::default();
        Self { node, left, groups }
    }

    /// Takes `bytes` if the node has them and the groups allow them.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let groups = &self.groups;
        if !groups.left.take(bytes, || groups.limits.room()) {
            return false;
        }
        // A node whose figures cannot be read (taken offline) has none.
        let enough = self
            .left
            .take(bytes, || meminfo(self.node).map_or(0, |info| info.room()));
        if !enough {
            groups.left.give_back(bytes);
        }
        enough
    }
}

impl Groups {
    pub(super) fn new(limits: Limits) -> Self {
        let left = Countdown::default();
        Self { limits, left }
    }
}

impl Countdown {
    fn take(&self, bytes: u64, read: impl Fn() -> u64) -> bool {
        let mut last = self.0.lock();
        let stale = last.at.is_none_or(|at| at.elapsed() > AGE_MAX);
        if stale || last.left < bytes {
            last.left = read();
            last.at = Some(Instant::now());
        }
        let enough = last.left >= bytes;
        if enough {
            last.left -= bytes;
        }
        enough
    }

    fn give_back(&self, bytes: u64) {
        let mut last = self.0.lock();
        last.left = last.left.saturating_add(bytes);
    }
}

impl Meminfo {
    /// Memory that it can still give, but for a reserve.
    pub(crate) fn room(&self) -> u64 {
        let reclaimable = self.clean_cache() + self.slab / 2;
        let reserve = (self.total / RESERVE_PART).max(RESERVE_BYTES_MIN);
        (self.free + reclaimable).saturating_sub(reserve)
    }
}

/// Whether the kernel knows nodes; one without NUMA has the machine's memory only, here called node 0.
pub(super) fn has_nodes() -> bool {
    Path::new(NODES).exists()
}

/// The figures of `node`. Where it is the only node with memory they are the machine's: a kernel that initialises
/// memory on demand counts it for the machine at once, but for the node only when it is first needed.
fn meminfo(node: NodeId) -> io::Result<Meminfo> {
    let machine = Path::new("/proc/meminfo");
    if !has_nodes() {
        return if node == NodeId(0) {
            read(machine)
        } else {
            Err(io::ErrorKind::NotFound.into())
        };
    }
    let own = read(Path::new(&format!("{NODES}/node{}/meminfo", node.0)))?;
    let only = nodes_with_memory().is_ok_and(|nodes| nodes == [node]);
    if only { read(machine) } else { Ok(own) }
}

fn read(path: &Path) -> io::Result<Meminfo> {
    fs::read_to_string(path).map(|text| Meminfo::parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "\nNode 3 MemTotal:        4096000 kB\nNode 3 MemFree:         1024000 kB\n\
        Node 3 Active(anon):       100 kB\nNode 3 Active(file):     20000 kB\nNode 3 Inactive(file):   30000 kB\n\
        Node 3 Dirty:             5000 kB\nNode 3 Writeback:         1000 kB\nNode 3 SReclaimable:     8000 kB\n";

    #[test]
    fn nodes_that_a_process_may_take_memory_of_are_parsed() {
        let status = "Name:\tx\nMems_allowed:\t00000000,00000005\nMems_allowed_list:\t0,2-3\n";
        assert_eq!(nodes_in(status), Some([0, 2, 3].map(NodeId).to_vec()));
        assert_eq!(nodes_in("Name:\tx\n"), None);
        assert!(allowed_nodes().is_some_and(|nodes| !nodes.is_empty()));
    }

    #[test]
    fn a_nodes_meminfo_is_parsed() {
        let info = Meminfo::parse(NODE);
        let kb = |n: u64| n * 1024;
        assert_eq!(
            info,
            Meminfo {
                total: kb(4_096_000),
                free: kb(1_024_000),
                file: kb(50_000),
                dirty: kb(6_000),
                slab: kb(8_000),
                ..Meminfo::default()
            }
        );
        assert_eq!(info.room(), kb(1_024_000 + 44_000 + 4_000 - 81_920));
    }

    #[test]
    fn the_machines_meminfo_is_parsed() {
        assert_eq!(Meminfo::parse(&NODE.replace("Node 3 ", "")), Meminfo::parse(NODE));
    }

    #[test]
    fn a_small_node_keeps_the_least_reserve() {
        let info = Meminfo {
            total: 256 << 20,
            free: 100 << 20,
            ..Meminfo::default()
        };
        assert_eq!(info.room(), 36 << 20);
        assert_eq!(Meminfo { free: 10 << 20, ..info }.room(), 0);
    }

    #[test]
    fn headroom_of_this_machine_is_read() {
        let (total, free) = (total_bytes(NodeId(0)).unwrap(), free_bytes(NodeId(0)).unwrap());
        assert!(free < total, "{free} of {total}");
        assert_eq!(total_bytes(NodeId(999)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn room_is_counted_down_between_readings() {
        let headroom = Headroom::new(NodeId(0), Arc::new(Groups::new(Limits::default())));
        assert!(headroom.take(0));
        *headroom.left.0.lock() = read_just_now(10);
        assert!(headroom.take(7));
        assert_eq!(headroom.left.0.lock().left, 3);
        assert!(!headroom.take(u64::MAX));
        assert!(headroom.left.0.lock().left > 3, "asking too much reads again");
    }

    #[test]
    fn nodes_share_the_room_of_the_groups() {
        let groups = Arc::new(Groups::new(Limits::default()));
        let nodes = [NodeId(0), NodeId(999)].map(|node| Headroom::new(node, Arc::clone(&groups)));
        nodes.iter().for_each(|node| *node.left.0.lock() = read_just_now(100));
        *groups.left.0.lock() = read_just_now(100);
        assert!(nodes[0].take(60));
        assert_eq!(groups.left.0.lock().left, 40);
        assert!(nodes[1].take(40), "another node takes the rest");
        assert_eq!(groups.left.0.lock().left, 0);
        *groups.left.0.lock() = read_just_now(100);
        assert!(!nodes[1].take(90), "there is no such node");
        assert_eq!(groups.left.0.lock().left, 100, "unused room is returned");
    }

    fn read_just_now(left: u64) -> Reading {
        let at = Some(Instant::now() + Duration::from_secs(60));
        Reading { left, at }
    }
}
