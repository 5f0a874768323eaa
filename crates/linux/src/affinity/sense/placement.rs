//! Where the pages lie that a process has mapped, by node, from its `numa_maps`.
//!
//! Page cache that is read without being mapped belongs to no process, and is not in it.

use super::Error;
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;
use homenode_shared::MountLine;
use std::collections::BTreeMap;
use std::path::Path;

/// A process's mapped memory on one node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeBytes {
    /// Its own: heap, stacks, and what it has written of private mappings.
    pub anonymous: u64,
    /// Page cache of files on disks.
    pub file: u64,
    /// Files in memory: tmpfs, shared memory, memfd.
    pub tmpfs: u64,
}

/// The pages of `process` by node, of the machine below `root`.
///
/// # Errors
/// The file cannot be read: no such process, another user's, or a kernel without NUMA.
pub fn placement(root: &Path, process: u32) -> Result<BTreeMap<NodeId, NodeBytes>, Error> {
    let tree = Tree::new(root);
    let path = format!("proc/{process}/numa_maps");
    let maps = tree
        .try_text(&path)
        .map_err(|source| Error::read(&tree, &path, source))?;
    let mounts = tree.bytes(format!("proc/{process}/mountinfo")).unwrap_or_default();
    Ok(sum(&maps, &Mounts::parse(&mounts)))
}

fn sum(maps: &str, mounts: &Mounts) -> BTreeMap<NodeId, NodeBytes> {
    let mut nodes: BTreeMap<NodeId, NodeBytes> = BTreeMap::new();
    for line in maps.lines() {
        let field = |name: &str| {
            line.split(' ')
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
        let page_bytes = number("kernelpagesize_kB").unwrap_or(4).saturating_mul(1024);
        let pages: Vec<(NodeId, u64)> = line.split(' ').filter_map(pages).collect();
        let all: u64 = pages.iter().map(|(_, count)| count).sum();
        // Of a private mapping of a file that is written in part, the line does not tell on which node the copies lie:
        // they are counted by their share.
        let anonymous = match field("file") {
            Some(name) if !name.starts_with("/anon_hugepage") => number("anon").unwrap_or(0).min(all),
            _ => all,
        };
        let in_memory = field("file").is_some_and(|name| mounts.is_in_memory(name));
        for (node, count) in pages {
            let own = (u128::from(count) * u128::from(anonymous))
                .checked_div(u128::from(all))
                .unwrap_or(0);
            let own = u64::try_from(own).unwrap_or(count);
            let bytes = nodes.entry(node).or_default();
            bytes.anonymous += own * page_bytes;
            let shared = (count - own) * page_bytes;
            if in_memory {
                bytes.tmpfs += shared;
            } else {
                bytes.file += shared;
            }
        }
    }
    nodes
}

/// Reads `N2=17` as 17 pages on node 2.
pub(crate) fn pages(word: &str) -> Option<(NodeId, u64)> {
    let (node, count) = word.strip_prefix('N')?.split_once('=')?;
    Some((NodeId(node.parse().ok()?), count.parse().ok()?))
}

/// Where filesystems are mounted, and whether they are in memory.
struct Mounts(Vec<(String, bool)>);

impl Mounts {
    fn parse(mountinfo: &[u8]) -> Self {
        let mount = |line: MountLine<'_>| {
            let at = std::str::from_utf8(line.mount_point).ok()?;
            let in_memory = [&b"tmpfs"[..], b"ramfs", b"devtmpfs", b"hugetlbfs"].contains(&line.filesystem_type);
            Some((at.trim_end_matches('/').to_owned(), in_memory))
        };
        Self(MountLine::all(mountinfo).filter_map(mount).collect())
    }

    /// Both files write spaces in names as `\040`. Shared memory without a name has one that no mount has.
    fn is_in_memory(&self, name: &str) -> bool {
        const UNNAMED: [&str; 4] = ["/memfd:", "/SYSV", "/dev/zero", "/anon_hugepage"];
        if UNNAMED.iter().any(|start| name.starts_with(start)) {
            return true;
        }
        let holds = |(at, _): &&(String, bool)| {
            name.strip_prefix(at.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // Of mounts at the same place the last is on top.
        let nearest = self.0.iter().filter(holds).max_by_key(|(at, _)| at.len());
        nearest.is_some_and(|(_, in_memory)| *in_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_by_kind_and_node() {
        let mounts = Mounts::parse(
            b"21 1 254:0 / / rw - ext4 /dev/vda rw\n22 21 0:20 / /dev/shm rw shared:1 - tmpfs shm rw\n\
             23 22 254:1 / /dev/shm/disk rw - ext4 /dev/vdb rw\n",
        );
        let maps = "\
5000 default anon=6 dirty=6 active=0 N0=2 N1=4 kernelpagesize_kB=4
6000 default heap anon=512 dirty=512 N1=512 kernelpagesize_kB=4
7000 default file=/usr/lib/libc.so.6 mapped=9 mapmax=30 N0=9 kernelpagesize_kB=4
8000 default file=/usr/lib/libc.so.6 anon=3 dirty=3 mapped=9 N0=3 N1=6 kernelpagesize_kB=4
9000 bind:1 file=/dev/shm/a\\040b dirty=7 N1=7 kernelpagesize_kB=4
a000 default file=/memfd:x\\040(deleted) dirty=5 N0=5 kernelpagesize_kB=4
b000 default file=/dev/shm/disk/data mapped=1 N2=1 kernelpagesize_kB=4
c000 default file=/dev/shmoo mapped=1 N2=1 kernelpagesize_kB=4
d000 default file=/anon_hugepage\\040(deleted) huge anon=3 dirty=3 N2=3 kernelpagesize_kB=2048
e000 default file=/empty
f000 default stack
";
        let pages = |anonymous: u64, file: u64, tmpfs: u64| NodeBytes {
            anonymous: anonymous * 4096,
            file: file * 4096,
            tmpfs: tmpfs * 4096,
        };
        let expected = BTreeMap::from([
            (NodeId(0), pages(2 + 1, 9 + 2, 5)),
            (NodeId(1), pages(4 + 512 + 2, 4, 7)),
            (NodeId(2), pages(3 * 512, 2, 0)),
        ]);
        assert_eq!(sum(maps, &mounts), expected);
    }

    #[test]
    fn pages_of_this_process_are_read() {
        let block = vec![1_u8; 8 << 20];
        let nodes = match placement(Path::new("/"), std::process::id()) {
            Ok(nodes) => nodes,
            Err(error) => {
                eprintln!("SKIPPED: this kernel tells no pages of nodes: {error}");
                return;
            }
        };
        let own: u64 = nodes.values().map(|bytes| bytes.anonymous).sum();
        assert!(own >= block.len() as u64, "{nodes:?}");
        assert!(
            nodes.values().any(|bytes| bytes.file > 0),
            "the program itself is mapped: {nodes:?}"
        );
        let error = placement(Path::new("/"), u32::MAX).unwrap_err().to_string();
        assert!(error.contains("numa_maps"), "{error}");
    }
}
