//! Memory of the nodes, and the mounts of tmpfs that hold some of it.

use crate::topology::nodes::{self, Meminfo, NODES};
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;
use homenode_policy::doctor::{NodeMemory, Tmpfs};
use homenode_shared::{MountLine, unescaped};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const MOUNTS: &str = "/proc/self/mountinfo";
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
    let told = tree.told(TMPFS, || held(&fs::read(MOUNTS).unwrap_or_default()));
    let mut found: Vec<Tmpfs> = told.lines().filter_map(holding).collect();
    found.sort_by(|a, b| (b.used_bytes, &a.at).cmp(&(a.used_bytes, &b.at)));
    // Mounts above each other are one to who asks by name.
    found.dedup_by(|a, b| a.at == b.at);
    found
}

/// The lines of [`TMPFS`] for these mounts of the machine we run on, but for those below a mount whose server may never answer.
fn held(mounts: &[u8]) -> String {
    let served = MountLine::all(mounts).filter(has_server);
    let served: Vec<Vec<u8>> = served.map(|mount| unescaped(mount.mount_point).collect()).collect();
    let is_served = |at: &str| {
        let below = |mount: &Vec<u8>| {
            at.as_bytes()
                .strip_prefix(&mount[..])
                .is_some_and(|rest| rest.starts_with(b"/"))
        };
        served.iter().any(below)
    };
    let line = |mount: MountLine<'_>| {
        let (at, policy) = place_and_policy(&mount).filter(|(at, _)| !is_served(at))?;
        Some(format!("{} {policy} {at}\n", used_bytes(Path::new(&at), mount.id)?))
    };
    MountLine::all(mounts).filter_map(line).collect()
}

/// Whether a lookup in a mount may wait for a server, which a user may have stopped. The root of a container answers, or nothing would run there.
fn has_server(mount: &MountLine<'_>) -> bool {
    const SERVED: [&[u8]; 7] = [b"fuse", b"nfs", b"cifs", b"smb3", b"9p", b"ceph", b"autofs"];
    mount.mount_point != b"/" && SERVED.iter().any(|kind| mount.filesystem_type.starts_with(kind))
}

fn holding(line: &str) -> Option<Tmpfs> {
    let mut fields = line.splitn(3, ' ');
    let used_bytes = fields.next()?.parse().ok().filter(|bytes| *bytes > 0)?;
    let policy = fields.next()?.to_owned();
    let at = fields.next()?.to_owned();
    Some(Tmpfs { at, policy, used_bytes })
}

/// Returns the place and the policy (or none) of a mount of tmpfs, which may have the option `mpol=bind:0`.
fn place_and_policy(mount: &MountLine<'_>) -> Option<(String, String)> {
    if mount.filesystem_type != b"tmpfs" {
        return None;
    }
    let mut options = mount.options.split(|byte| *byte == b',');
    let policy = options.find_map(|option| option.strip_prefix(b"mpol="));
    // A name that is no text is of one mount alone.
    let at = String::from_utf8(unescaped(mount.mount_point).collect()).ok()?;
    Some((at, String::from_utf8_lossy(policy.unwrap_or_default()).into_owned()))
}

/// Bytes that the mount holds; `None` where another mount is above it, whose server may never answer.
fn used_bytes(at: &Path, mount: u64) -> Option<u64> {
    // Opened so, a file asks no server.
    let place = rustix::fs::open(at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if mount_of(&place) != Some(mount) {
        return None;
    }
    let space = rustix::fs::fstatvfs(&place).ok()?;
    space.f_blocks.checked_sub(space.f_bfree)?.checked_mul(space.f_frsize)
}

/// The number of the mount that an open file lies on.
fn mount_of(file: &OwnedFd) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_mounts_and_their_policies_are_read() {
        let of = |line: &str| place_and_policy(&MountLine::parse(line.as_bytes())?);
        let found = |at: &str, policy: &str| Some((at.to_owned(), policy.to_owned()));
        assert_eq!(
            of("29 1 0:26 / /dev/shm rw shared:3 - tmpfs tmpfs rw,size=64k"),
            found("/dev/shm", "")
        );
        assert_eq!(
            of("29 1 0:26 / /a\\040b rw - tmpfs x rw,mpol=bind:0,size=1g"),
            found("/a b", "bind:0")
        );
        assert_eq!(of("29 1 8:1 / / rw - ext4 /dev/vda rw,mpol=bind:0"), None);
    }

    #[test]
    fn usage_of_visible_mounts_is_read() {
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let id = mount_of(&root).unwrap();
        let line = |id: u64, at: &str, kind: &str| format!("{id} 1 0:1 / {at} rw - {kind} x rw,mpol=local\n");
        // Whatever is mounted there holds something, and covers another mount.
        let text = [
            line(id + 1, "/", "tmpfs"),
            line(id, "/", "ext4"),
            line(id, "/nowhere", "tmpfs"),
            line(id, "/", "tmpfs"),
            line(id, "/served", "fuse.sshfs"),
            line(id, "/served/../", "tmpfs"),
        ];
        let text = held(text.concat().as_bytes());
        let lines: Vec<Tmpfs> = text.lines().filter_map(holding).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!((&*lines[0].at, &*lines[0].policy), ("/", "local"));
        assert!(lines[0].used_bytes > 0);
    }
}
