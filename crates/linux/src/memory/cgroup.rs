//! Memory that the control groups above this process still allow, version 1 and 2.
//!
//! Pages of a member are charged to the group of the thread that populates them. A group at its limit calls its own OOM
//! killer, so the room is asked before.

use homenode_shared::{MountLine, unescaped};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The least a group keeps, as a node does, for what the process needs besides: its text, which counts as page cache, and
/// buffers that come when first used. A server without room for its text faults forever, as nobody else is in its group to
/// be killed.
const KEPT_BYTES_MIN: u64 = 64 << 20;
/// Share of a large limit that is kept: one part in this many.
const KEPT_PART: u64 = 64;

/// How long the groups of this process are taken for the same.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The groups whose limits hold for this process: its own and those above.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    groups: Vec<Group>,
}

#[derive(Debug, PartialEq, Eq)]
struct Group {
    limit: PathBuf,
    usage: PathBuf,
    stat: PathBuf,
    /// Names in the stat file of page cache that can be dropped.
    cache: &'static [&'static str],
}

impl Limits {
    /// Returns the groups of this process; none where there are no groups, or they cannot be read.
    pub(crate) fn of_this_process() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        Self::of(&directories(&groups, &mounts))
    }

    /// [`Limits::of_this_process`] as they were within the last second: where much is mounted, to find them takes milliseconds.
    pub(crate) fn lately() -> Arc<Self> {
        static LAST: Mutex<Option<(Instant, Arc<Limits>)>> = Mutex::new(None);
        let mut last = LAST.lock();
        match &*last {
            Some((found, limits)) if found.elapsed() < KEPT_FOR => Arc::clone(limits),
            _ => {
                let limits = Arc::new(Self::of_this_process());
                *last = Some((Instant::now(), Arc::clone(&limits)));
                limits
            }
        }
    }

    /// Returns the groups at these directories.
    pub(super) fn of(directories: &[PathBuf]) -> Self {
        let groups = directories.iter().filter_map(|directory| Group::at(directory));
        Self {
            groups: groups.collect(),
        }
    }

    /// Bytes that every group still allows; [`u64::MAX`] without a limit.
    pub(crate) fn room(&self) -> u64 {
        self.groups.iter().filter_map(Group::room).min().unwrap_or(u64::MAX)
    }
}

impl Group {
    fn at(directory: &Path) -> Option<Self> {
        let version_2 = directory.join("memory.max");
        let version_1 = directory.join("memory.limit_in_bytes");
        let stat = directory.join("memory.stat");
        if version_2.exists() {
            let usage = directory.join("memory.current");
            Some(Self {
                limit: version_2,
                usage,
                stat,
                cache: &["inactive_file", "active_file"],
            })
        } else if version_1.exists() {
            let usage = directory.join("memory.usage_in_bytes");
            Some(Self {
                limit: version_1,
                usage,
                stat,
                cache: &["total_inactive_file", "total_active_file"],
            })
        } else {
            None
        }
    }

    /// Returns the bytes that the group still allows; `None` when the group sets no limit (`max`), or its files cannot be read.
    fn room(&self) -> Option<u64> {
        let number = |path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        // Above `memory.high` the kernel has who takes memory sleep, and a pool's pages do not go away again.
        let high = self.limit.with_file_name("memory.high");
        let limit = [number(&self.limit), number(&high)].into_iter().flatten().min()?;
        // Version 1 says "no limit" with the largest number of whole pages.
        if limit > 1 << 62 {
            return None;
        }
        let cache = fs::read_to_string(&self.stat).map_or(0, |text| sum(&text, self.cache));
        let kept = (limit / KEPT_PART).max(KEPT_BYTES_MIN);
        Some(
            limit
                .saturating_sub(kept)
                .saturating_sub(number(&self.usage)?.saturating_sub(cache)),
        )
    }
}

/// The sum of the named lines of a stat file.
fn sum(text: &str, names: &[&str]) -> u64 {
    let values = text.lines().filter_map(|line| line.split_once(' '));
    values
        .filter(|(name, _)| names.contains(name))
        .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
        .sum()
}

/// The directories of the groups of a process, innermost first, from its /proc cgroup and mountinfo.
fn directories(cgroup: &str, mountinfo: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let version_2 = controllers.is_empty();
        if !version_2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let mut mounts = MountLine::all(mountinfo);
        let Some((root, mounted)) = mounts.find_map(|mount| place(mount, version_2)) else {
            continue;
        };
        // Inside a container the mount may show a part of the hierarchy only; what lies above cannot be read.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        found.extend(below.ancestors().map(|group| mounted.join(group)));
    }
    found
}

/// Root and place of a mount of the memory controller.
fn place(mount: MountLine<'_>, version_2: bool) -> Option<(PathBuf, PathBuf)> {
    let fits = if version_2 {
        mount.filesystem_type == b"cgroup2"
    } else {
        mount.filesystem_type == b"cgroup" && mount.has_option("memory")
    };
    let path = |field| PathBuf::from(OsString::from_vec(unescaped(field).collect()));
    fits.then(|| (path(mount.root), path(mount.mount_point)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn paths(found: &[PathBuf]) -> Vec<&str> {
        found
            .iter()
            .map(|path| path.to_str().unwrap().trim_end_matches('/'))
            .collect()
    }

    #[test]
    fn cgroups_of_both_versions_are_found() {
        let found = directories("5:cpu:/x\n4:memory:/a/b\n0::/c\n", MOUNTS);
        assert_eq!(
            paths(&found),
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/unified/c",
                "/sys/fs/cgroup/unified"
            ]
        );
    }

    #[test]
    fn a_mounted_subtree_of_the_hierarchy_is_resolved() {
        let mounts = b"41 31 0:38 /docker/1 /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw\n";
        assert_eq!(
            paths(&directories("0::/docker/1/inner\n", mounts)),
            ["/sys/fs/cgroup/inner", "/sys/fs/cgroup"]
        );
        assert_eq!(paths(&directories("0::/elsewhere\n", mounts)), ["/sys/fs/cgroup"]);
        assert!(directories("0::/\n", b"").is_empty());
    }

    #[test]
    fn the_room_of_a_group_is_its_limit_minus_its_use() {
        let directory = std::env::temp_dir().join(format!("homenode-cgroup-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "5000\n");
        write(
            "memory.stat",
            "anon 1000\ninactive_file 600\nactive_file 400\nfile 9999\n",
        );
        let group = Group::at(&directory).unwrap();
        assert_eq!(group.room(), None);
        write("memory.max", "6400000000\n");
        assert_eq!(group.room(), Some(6_400_000_000 - 100_000_000 - 4_000));
        write("memory.high", "6300000000\n");
        assert!(group.room().is_some_and(|room| room < 6_300_000_000), "it would sleep");
        write("memory.high", "max\n");
        write("memory.max", "100000000\n");
        assert_eq!(group.room(), Some(100_000_000 - KEPT_BYTES_MIN - 4_000), "a small one");
        // Nothing but page cache is left to be had, and that is the server itself.
        write("memory.current", "100000000\n");
        write("memory.stat", "inactive_file 0\nactive_file 30000000\n");
        assert_eq!(group.room(), Some(0));
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(Group::at(&directory), None);
    }

    #[test]
    fn this_process_has_room() {
        assert!(Limits::of_this_process().room() > 0);
    }
}
