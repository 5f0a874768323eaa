//! Memory of the nodes, and the mounts of tmpfs that hold some of it.

use crate::topology::nodes::{self, Meminfo, NODES};
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;
use homenode_policy::doctor::{NodeMemory, Tmpfs};
use homenode_shared::unescaped;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const MOUNTS: &str = "/proc/self/mounts";
/// In recordings: a line for each mount of tmpfs, `BYTES POLICY PLACE`, where the policy may be empty.
const TMPFS: &str = "homenode/tmpfs";

/// Counters of each node since boot, by name.
pub(super) type PageCounts = BTreeMap<NodeId, BTreeMap<String, u64>>;

/// `numastat` of each node.
pub(super) fn page_counts(tree: &Tree) -> PageCounts {
    let counts = |node: NodeId| {
        let text = tree.text(format!("{NODES}/node{}/numastat", node.0))?;
        Some((node, named_counts(&text)))
    };
    nodes::ids(tree, NODES).into_iter().filter_map(counts).collect()
}

/// Lines of a name and a number.
pub(super) fn named_counts(text: &str) -> BTreeMap<String, u64> {
    let count = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(count).collect()
}

/// Returns the nodes with memory, ascending, with the pages counted since `before`.
pub(super) fn nodes(tree: &Tree, before: &PageCounts) -> Vec<NodeMemory> {
    let now = page_counts(tree);
    let since = |node: NodeId, name: &str| {
        let count = |counts: &PageCounts| counts.get(&node)?.get(name).copied();
        count(&now)
            .zip(count(before))
            .map_or(0, |(now, before)| now.saturating_sub(before))
    };
    let memory = |(node, info): (NodeId, Meminfo)| NodeMemory {
        node,
        bytes: info.total,
        free_bytes: info.free,
        // The kernel counts files in memory as page cache, too.
        cache_bytes: info.file_pages.saturating_sub(info.shmem),
        tmpfs_bytes: info.shmem,
        foreign_pages: since(node, "numa_foreign"),
        missed_pages: since(node, "numa_miss"),
        other_pages: since(node, "other_node"),
        interleaved_pages: since(node, "interleave_hit"),
    };
    // A kernel without NUMA tells nothing of nodes.
    let told = nodes::ids(tree, NODES);
    let nodes = nodes::with_memory(tree).into_iter();
    nodes.filter(|(node, _)| told.contains(node)).map(memory).collect()
}

/// Returns the mounts of tmpfs that hold something, the fullest first. No file tells the bytes that a mount holds, and the
/// file of mounts tells much that is nobody's business; so recordings have a file of their own.
pub(super) fn tmpfs(tree: &Tree) -> Vec<Tmpfs> {
    let told = tree.told(TMPFS, || {
        // A name that is no text is of one mount alone.
        fs::read(MOUNTS).map_or_else(|_| String::new(), |text| held(&String::from_utf8_lossy(&text)))
    });
    let mut found: Vec<Tmpfs> = told.lines().filter_map(holding).collect();
    found.sort_by(|a, b| (b.used_bytes, &a.at).cmp(&(a.used_bytes, &b.at)));
    // Mounts above each other are one to who asks by name.
    found.dedup_by(|a, b| a.at == b.at);
    found
}

/// The lines of [`TMPFS`] for these mounts of the machine we run on.
fn held(mounts: &str) -> String {
    let line = |(at, policy): (String, String)| Some(format!("{} {policy} {at}\n", used_bytes(Path::new(&at))?));
    mounts.lines().filter_map(parse).filter_map(line).collect()
}

/// A line of [`TMPFS`].
fn holding(line: &str) -> Option<Tmpfs> {
    let mut fields = line.splitn(3, ' ');
    let used_bytes = fields.next()?.parse().ok().filter(|bytes| *bytes > 0)?;
    let policy = fields.next()?.to_owned();
    let at = fields.next()?.to_owned();
    Some(Tmpfs { at, policy, used_bytes })
}

/// Returns the place and the policy (or none) of a mount such as `tmpfs /dev/shm tmpfs rw,size=64k,mpol=bind:0 0 0`.
fn parse(line: &str) -> Option<(String, String)> {
    let mut fields = line.split(' ');
    let at = fields.nth(1)?;
    let options = fields.next().filter(|kind| *kind == "tmpfs").and(fields.next())?;
    let policy = options.split(',').find_map(|option| option.strip_prefix("mpol="));
    let at: Vec<u8> = unescaped(at.as_bytes()).collect();
    Some((String::from_utf8(at).ok()?, policy.unwrap_or_default().to_owned()))
}

fn used_bytes(at: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(at).ok()?;
    space.f_blocks.checked_sub(space.f_bfree)?.checked_mul(space.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_mounts_and_their_policies_are_read() {
        let of = |line: &str| parse(line);
        let found = |at: &str, policy: &str| Some((at.to_owned(), policy.to_owned()));
        assert_eq!(of("tmpfs /dev/shm tmpfs rw,size=64k 0 0"), found("/dev/shm", ""));
        assert_eq!(
            of("x /a\\040b tmpfs rw,mpol=bind:0,size=1g 0 0"),
            found("/a b", "bind:0")
        );
        for line in ["/dev/vda / ext4 rw,mpol=bind:0 0 0", "tmpfs /dev/shm", ""] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn usage_of_this_machines_mounts_is_read() {
        let text = held("/dev/vda / ext4 rw 0 0\nx /nowhere tmpfs rw 0 0\nx / tmpfs rw,mpol=local 0 0\n");
        // Whatever is mounted there holds something.
        let lines: Vec<Tmpfs> = text.lines().filter_map(holding).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!((&*lines[0].at, &*lines[0].policy), ("/", "local"));
        assert!(lines[0].used_bytes > 0);
    }
}
