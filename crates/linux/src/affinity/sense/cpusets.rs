//! The CPUs that a thread's control group lets it have.
//!
//! Read by thread, not by process: threads of one process may be in different groups (libvirt does so with virtual CPUs).
//! Groups are looked for in the list of mounts, then where they usually are, then as the first process sees them.

use super::gaps::Gaps;
use crate::topology::sysfs::{Tree, parse_list};
use homenode_policy::CpuId;
use homenode_shared::{MountLine, unescaped};
use std::collections::HashMap;
use std::sync::Arc;

/// Where systemd and others mount the groups: the first version's cpusets, and the second version alone or beside it.
const FIRST: [&str; 1] = ["sys/fs/cgroup/cpuset"];
const SECOND: [&str; 2] = ["sys/fs/cgroup/unified", "sys/fs/cgroup"];
/// File that every mount of the first version has; [`SECOND_FILE`] is that of the second.
const FIRST_FILE: &str = "cpuset.cpus";
const SECOND_FILE: &str = "cgroup.controllers";
/// A file that every group of the second version has but the one above all, which a namespace may hide.
const BELOW_FILE: &str = "cgroup.type";
/// Lists of mounts with their roots: of this process, then of the first process. `ip netns exec` mounts another /sys,
/// without groups in it.
const VIEWS: [(&str, &str); 2] = [("proc/self/mountinfo", ""), ("proc/1/mountinfo", "proc/1/root/")];

/// CPUs that a group lets its threads have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::affinity) enum Cpuset {
    /// No group restricts CPUs.
    All,
    /// These.
    Only(Vec<CpuId>),
    /// It cannot be seen from here: the groups are not mounted, or it is another namespace's.
    Unseen,
}

/// Sets by group, for one pass over the threads.
#[derive(Debug, Default)]
pub(in crate::affinity) struct Cpusets {
    by_group: HashMap<String, Cpuset>,
    places: HashMap<Version, Option<Place>>,
    has_unseen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Version {
    First,
    Second,
}

/// Where groups are seen.
#[derive(Clone, Debug)]
struct Place {
    directory: String,
    /// The group that is there; empty for the one above all.
    group: String,
}

impl Cpusets {
    /// The CPUs of the group that a thread's `cgroup` file tells.
    pub(in crate::affinity) fn of(&mut self, tree: &Tree, cgroup: &str) -> Cpuset {
        let set = self.find(tree, cgroup);
        self.has_unseen |= set == Cpuset::Unseen;
        set
    }

    fn find(&mut self, tree: &Tree, cgroup: &str) -> Cpuset {
        let first = cgroup.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers
                .split(',')
                .any(|controller| controller == "cpuset")
                .then_some(path)
        });
        let second = || cgroup.lines().find_map(|line| line.strip_prefix("0::"));
        let (version, path) = match (first, second) {
            (Some(path), _) => (Version::First, path),
            (None, second) => match second() {
                Some(path) => (Version::Second, path),
                None => return Cpuset::All,
            },
        };
        // A group outside of this namespace is shown as above its root.
        if path.split('/').any(|part| part == "..") {
            return Cpuset::Unseen;
        }
        let key = format!("{version:?} {path}");
        if let Some(known) = self.by_group.get(&key) {
            return known.clone();
        }
        let place = self.places.entry(version).or_insert_with(|| version.place(tree));
        let set = place
            .as_ref()
            .map_or(Cpuset::Unseen, |place| version.read(tree, place, path));
        self.by_group.insert(key, set.clone());
        set
    }

    /// Has groups read anew; where they are mounted stays known, once it is.
    pub(in crate::affinity) fn forget(&mut self) {
        self.by_group.clear();
        self.places.retain(|_, place| place.is_some());
    }

    /// Says so when there was a group that cannot be seen.
    pub(super) fn tell(&self, gaps: &mut Gaps) {
        if self.has_unseen {
            gaps.tell(
                "cpusets of threads",
                "their control groups are not mounted here, or are those of another namespace: who has fewer than all CPUs is \
                 taken for pinned by somebody else; root sees them, in the machine's own namespaces (nsenter --mount --cgroup \
                 --target 1)",
            );
        }
    }
}

impl Cpuset {
    /// Returns its CPUs among those that run; all of them where no group restricts CPUs, as far as is seen.
    pub(super) fn among(&self, online: &Arc<[CpuId]>) -> Arc<[CpuId]> {
        match self {
            Self::Only(cpus) => within(cpus, online).into(),
            Self::All | Self::Unseen => online.clone(),
        }
    }
}

impl Version {
    fn place(self, tree: &Tree) -> Option<Place> {
        let (usual, file) = match self {
            Self::First => (&FIRST[..], FIRST_FILE),
            Self::Second => (&SECOND[..], SECOND_FILE),
        };
        let is_there = |place: &Place| tree.exists(format!("{}/{file}", place.directory));
        VIEWS.into_iter().find_map(|(mounts, root)| {
            let mounts = tree.bytes(mounts).unwrap_or_default();
            let places = MountLine::all(&mounts).filter_map(|mount| self.mounted(mount, root));
            // The one with the most groups.
            let found = places.filter(is_there).min_by_key(|place| place.group.len());
            found.or_else(|| {
                let mut usual = usual.iter().map(|directory| Place {
                    directory: format!("{root}{directory}"),
                    group: String::new(),
                });
                usual.find(is_there)
            })
        })
    }

    /// Returns the place of a mount; `None` if the mount is not of this version.
    fn mounted(self, mount: MountLine<'_>, root: &str) -> Option<Place> {
        let is_it = match self {
            Self::First => mount.filesystem_type == b"cgroup" && mount.has_option("cpuset"),
            Self::Second => mount.filesystem_type == b"cgroup2",
        };
        if !is_it {
            return None;
        }
        let text = |field| String::from_utf8(unescaped(field).collect()).ok();
        let (group, directory) = (text(mount.root)?, text(mount.mount_point)?);
        Some(Place {
            directory: format!("{root}{}", directory.trim_start_matches('/')),
            group: group.trim_end_matches('/').to_owned(),
        })
    }

    /// Groups of the second version without the controller have the CPUs of the nearest one above that has it, which may
    /// be above all that is seen here.
    fn read(self, tree: &Tree, place: &Place, path: &str) -> Cpuset {
        let below = path.strip_prefix(&*place.group);
        let Some(below) = below.filter(|below| below.is_empty() || below.starts_with('/')) else {
            return Cpuset::Unseen;
        };
        let mut below = below.trim_end_matches('/');
        let list = |below: &str, name: &str| list(tree, &format!("{}{below}/{name}", place.directory));
        if self == Self::First {
            let found = list(below, "cpuset.effective_cpus").or_else(|| list(below, "cpuset.cpus"));
            return found.map_or(Cpuset::Unseen, Cpuset::Only);
        }
        loop {
            if let Some(cpus) = list(below, "cpuset.cpus.effective") {
                return Cpuset::Only(cpus);
            }
            match below.rfind('/') {
                Some(end) => below = &below[..end],
                None if !place.group.is_empty() => return Cpuset::Unseen,
                None if tree.exists(format!("{}/{BELOW_FILE}", place.directory)) => return Cpuset::Unseen,
                None => return Cpuset::All,
            }
        }
    }
}

fn list(tree: &Tree, path: &str) -> Option<Vec<CpuId>> {
    let cpus = parse_list(&tree.text(path)?)?;
    (!cpus.is_empty()).then(|| cpus.into_iter().map(CpuId).collect())
}

/// Returns the CPUs of `cpus` that are in `room` too; both ascending.
pub(in crate::affinity) fn within(cpus: &[CpuId], room: &[CpuId]) -> Vec<CpuId> {
    let inside = |cpu: &CpuId| room.binary_search(cpu).is_ok();
    cpus.iter().copied().filter(inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::made::Made;

    fn cpus(numbers: &[u32]) -> Cpuset {
        Cpuset::Only(numbers.iter().copied().map(CpuId).collect())
    }

    #[test]
    fn cpusets_of_cgroup_v2_are_read() {
        let machine = Made::of(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
            ("sys/fs/cgroup/system.slice/cpuset.cpus.effective", "2-3\n"),
            ("sys/fs/cgroup/system.slice/a.service/cgroup.procs", ""),
        ]);
        let mut sets = Cpusets::default();
        assert_eq!(sets.of(&machine.tree(), "0::/system.slice\n"), cpus(&[2, 3]));
        assert_eq!(sets.of(&machine.tree(), "0::/system.slice/a.service\n"), cpus(&[2, 3]));
        assert_eq!(
            sets.of(&machine.tree(), "0::/user.slice\n"),
            cpus(&[0, 1, 2, 3, 4, 5, 6, 7])
        );
        assert_eq!(sets.of(&machine.tree(), "0::/\n"), cpus(&[0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(sets.of(&machine.tree(), "0::/../system.slice\n"), Cpuset::Unseen);
        assert_eq!(sets.of(&machine.tree(), ""), Cpuset::All);
    }

    #[test]
    fn cgroup_v1_wins_if_it_has_the_cpuset_controller() {
        let machine = Made::of(&[
            ("sys/fs/cgroup/unified/cgroup.controllers", "\n"),
            ("sys/fs/cgroup/cpuset/cpuset.cpus", "0-3\n"),
            ("sys/fs/cgroup/cpuset/db/cpuset.effective_cpus", "1\n"),
            ("sys/fs/cgroup/cpuset/old/cpuset.cpus", "0,2\n"),
        ]);
        let mut sets = Cpusets::default();
        assert_eq!(
            sets.of(&machine.tree(), "9:name=systemd:/\n3:cpu,cpuset:/db\n0::/\n"),
            cpus(&[1])
        );
        assert_eq!(sets.of(&machine.tree(), "3:cpuset:/old\n0::/\n"), cpus(&[0, 2]));
        assert_eq!(sets.of(&machine.tree(), "3:cpuset:/gone\n0::/\n"), Cpuset::Unseen);
        assert_eq!(sets.of(&machine.tree(), "9:name=systemd:/\n0::/x\n"), Cpuset::All);
    }

    /// Mounts as in a network namespace that `ip netns exec` has entered.
    #[test]
    fn groups_mounted_elsewhere_are_found() {
        let machine = Made::of(&[
            ("proc/self/mountinfo", "22 1 0:21 / /sys rw - sysfs sysfs rw\n"),
            (
                "proc/1/mountinfo",
                "31 22 0:28 /a /x/groups rw,relatime shared:9 - cgroup2 cgroup2 rw\n\
                 33 31 0:30 / /y rw,relatime - cgroup cgroup rw,cpuset\n",
            ),
            ("proc/1/root/x/groups/cgroup.controllers", "cpuset\n"),
            ("proc/1/root/x/groups/b/cpuset.cpus.effective", "2\n"),
            ("proc/1/root/y/cpuset.cpus", "0-3\n"),
            ("proc/1/root/y/db/cpuset.cpus", "1\n"),
        ]);
        let mut sets = Cpusets::default();
        assert_eq!(sets.of(&machine.tree(), "0::/a/b\n"), cpus(&[2]));
        assert_eq!(sets.of(&machine.tree(), "3:cpuset:/db\n0::/\n"), cpus(&[1]));
        assert!(!sets.has_unseen);
        assert_eq!(sets.of(&machine.tree(), "0::/c\n"), Cpuset::Unseen);
        assert!(sets.has_unseen);
    }

    #[test]
    fn unseen_parent_groups_may_restrict_cpusets() {
        let machine = Made::of(&[
            ("proc/self/mountinfo", "31 22 0:28 /a /groups rw - cgroup2 cgroup2 rw\n"),
            ("groups/cgroup.controllers", "\n"),
            ("groups/c/cpuset.cpus.effective", "2\n"),
        ]);
        let mut sets = Cpusets::default();
        assert_eq!(sets.of(&machine.tree(), "0::/a/c\n"), cpus(&[2]));
        assert_eq!(sets.of(&machine.tree(), "0::/a/b\n"), Cpuset::Unseen);
        assert_eq!(sets.of(&machine.tree(), "0::/a\n"), Cpuset::Unseen);
        assert_eq!(sets.of(&machine.tree(), "0::/ab/c\n"), Cpuset::Unseen);
        assert_eq!(sets.of(&machine.tree(), "0::/a/c/\n"), cpus(&[2]));
        // A container with a namespace of its own.
        let machine = Made::of(&[
            ("sys/fs/cgroup/cgroup.controllers", "\n"),
            ("sys/fs/cgroup/cgroup.type", "domain\n"),
        ]);
        assert_eq!(Cpusets::default().of(&machine.tree(), "0::/\n"), Cpuset::Unseen);
    }

    /// A container's own group is where the one above all usually is.
    #[test]
    fn the_mount_list_tells_which_group_is_mounted() {
        let machine = Made::of(&[
            (
                "proc/self/mountinfo",
                "33 31 0:30 /docker/id /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n",
            ),
            ("sys/fs/cgroup/cpuset/cpuset.cpus", "0-1\n"),
            ("sys/fs/cgroup/cpuset/db/cpuset.cpus", "1\n"),
        ]);
        let mut sets = Cpusets::default();
        assert_eq!(sets.of(&machine.tree(), "3:cpuset:/docker/id\n0::/\n"), cpus(&[0, 1]));
        assert_eq!(sets.of(&machine.tree(), "3:cpuset:/docker/id/db\n0::/\n"), cpus(&[1]));
    }

    #[test]
    fn unmounted_groups_give_no_cpuset() {
        let machine = Made::new();
        let mut sets = Cpusets::default();
        assert_eq!(sets.of(&machine.tree(), "0::/a\n"), Cpuset::Unseen);
        machine.file("sys/fs/cgroup/cgroup.controllers", "cpuset\n");
        sets.forget();
        assert_eq!(sets.of(&machine.tree(), "0::/a\n"), Cpuset::All);
    }
}
