//! Memory of the nodes, and the mounts of tmpfs that hold some of it.

use crate::topology::sysfs::{Tree, meminfo_bytes, number_after};
use homenode_policy::NodeId;
use homenode_policy::doctor::{NodeMemory, Tmpfs};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const NODES: &str = "sys/devices/system/node";
const MOUNTS: &str = "proc/self/mounts";
/// What no file tells, in recordings: a line for each mount of tmpfs, `BYTES PLACE`.
const USED: &str = "homenode/tmpfs";

/// By node: counts since boot, by name.
pub(super) type PageCounts = BTreeMap<NodeId, BTreeMap<String, u64>>;

/// `numastat` of each node.
pub(super) fn page_counts(tree: &Tree) -> PageCounts {
    let counts = |node: NodeId| {
        let text = tree.text(format!("{NODES}/node{}/numastat", node.0))?;
        Some((node, named_counts(&text)))
    };
    nodes_of(tree).into_iter().filter_map(counts).collect()
}

/// Lines of a name and a number.
pub(super) fn named_counts(text: &str) -> BTreeMap<String, u64> {
    let count = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(count).collect()
}

/// Those with memory, ascending, with what was counted since `before`.
pub(super) fn nodes(tree: &Tree, before: &PageCounts) -> Vec<NodeMemory> {
    let now = page_counts(tree);
    let since = |node: NodeId, name: &str| {
        let count = |counts: &PageCounts| counts.get(&node)?.get(name).copied();
        count(&now)
            .zip(count(before))
            .map_or(0, |(now, before)| now.saturating_sub(before))
    };
    let memory = |node: NodeId| {
        let text = tree.text(format!("{NODES}/node{}/meminfo", node.0))?;
        let field = |name: &str| meminfo_bytes(&text, name).unwrap_or(0);
        let tmpfs_bytes = field("Shmem");
        Some(NodeMemory {
            node,
            bytes: Some(field("MemTotal")).filter(|bytes| *bytes > 0)?,
            free_bytes: field("MemFree"),
            // The kernel counts files in memory as page cache, too.
            cache_bytes: field("FilePages").saturating_sub(tmpfs_bytes),
            tmpfs_bytes,
            foreign_pages: since(node, "numa_foreign"),
            missed_pages: since(node, "numa_miss"),
            other_pages: since(node, "other_node"),
            interleaved_pages: since(node, "interleave_hit"),
        })
    };
    let mut nodes: Vec<NodeMemory> = nodes_of(tree).into_iter().filter_map(memory).collect();
    let machine = tree.text("proc/meminfo");
    if let ([only], Some(machine)) = (&mut nodes[..], machine) {
        // Kernels that set memory up on demand count it for the node only when it is first needed.
        let field = |name: &str, of_node: u64| meminfo_bytes(&machine, name).unwrap_or(of_node);
        only.bytes = field("MemTotal", only.bytes);
        only.free_bytes = field("MemFree", only.free_bytes);
    }
    nodes
}

fn nodes_of(tree: &Tree) -> Vec<NodeId> {
    let number = |name: &String| {
        let number = number_after(name, "node")?.try_into().ok()?;
        (*name == format!("node{number}")).then_some(NodeId(number))
    };
    tree.names(NODES).iter().filter_map(number).collect()
}

/// Those that hold something, the fullest first.
pub(super) fn tmpfs(tree: &Tree) -> Vec<Tmpfs> {
    let mounts = tree.text(MOUNTS).unwrap_or_default();
    let places = || mounts.lines().filter_map(parse).map(|(at, _)| at);
    let used = tree.told(USED, || {
        let line = |at: String| Some(format!("{} {at}\n", used_bytes(Path::new(&at))?));
        places().filter_map(line).collect()
    });
    let used: BTreeMap<&str, u64> = used
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(bytes, at)| Some((at, bytes.parse().ok()?)))
        .collect();
    let mount = |(at, policy): (String, String)| {
        let used_bytes = used.get(at.as_str()).copied().filter(|bytes| *bytes > 0)?;
        Some(Tmpfs { at, policy, used_bytes })
    };
    let mut found: Vec<Tmpfs> = mounts.lines().filter_map(parse).filter_map(mount).collect();
    found.sort_by(|a, b| (b.used_bytes, &a.at).cmp(&(a.used_bytes, &b.at)));
    // Mounts above each other are one to who asks by name.
    found.dedup_by(|a, b| a.at == b.at);
    found
}

/// `tmpfs /dev/shm tmpfs rw,size=64k,mpol=bind:0 0 0`: the place, and the policy where there is one.
fn parse(line: &str) -> Option<(String, String)> {
    let mut fields = line.split(' ');
    let at = fields.nth(1)?;
    let options = fields.next().filter(|kind| *kind == "tmpfs").and(fields.next())?;
    let policy = options.split(',').find_map(|option| option.strip_prefix("mpol="));
    Some((unescaped(at), policy.unwrap_or_default().to_owned()))
}

/// Spaces are written as `\040`. Other escapes are of names that nobody gives a mount.
fn unescaped(at: &str) -> String {
    at.replace("\\040", " ")
}

fn used_bytes(at: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(at).ok()?;
    space.f_blocks.checked_sub(space.f_bfree)?.checked_mul(space.f_frsize)
}
