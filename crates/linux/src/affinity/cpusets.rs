//! The CPUs that a thread's control group lets it have.
//!
//! Read by thread, not by process: threads of one process may be in different groups (libvirt does so with virtual CPUs).

use crate::topology::sysfs::{Tree, parse_list};
use homenode_policy::CpuId;
use std::collections::HashMap;

/// Where systemd and others mount the groups: the first version's cpusets, and the second version alone or beside it.
const FIRST: &str = "sys/fs/cgroup/cpuset";
const SECOND: &str = "sys/fs/cgroup";
const SECOND_BESIDE: &str = "sys/fs/cgroup/unified";

/// Sets by group, for one pass over the threads.
#[derive(Debug, Default)]
pub(super) struct Cpusets {
    by_group: HashMap<String, Option<Vec<CpuId>>>,
}

impl Cpusets {
    /// The CPUs of the group that a thread's `cgroup` file tells. None where no group restricts CPUs, and where the group
    /// cannot be seen from here (another namespace's).
    pub(super) fn of(&mut self, tree: &Tree, cgroup: &str) -> Option<Vec<CpuId>> {
        let first = cgroup.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers
                .split(',')
                .any(|controller| controller == "cpuset")
                .then_some(path)
        });
        let (version, path) = match first {
            Some(path) => ('1', path),
            None => ('2', cgroup.lines().find_map(|line| line.strip_prefix("0::"))?),
        };
        // A group outside of this namespace is shown as above its root.
        if path.split('/').any(|part| part == "..") {
            return None;
        }
        let key = format!("{version}{path}");
        if let Some(known) = self.by_group.get(&key) {
            return known.clone();
        }
        let set = if version == '1' {
            first_version(tree, path)
        } else {
            second_version(tree, path)
        };
        self.by_group.insert(key, set.clone());
        set
    }
}

fn first_version(tree: &Tree, path: &str) -> Option<Vec<CpuId>> {
    let names = ["cpuset.effective_cpus", "cpuset.cpus"];
    names
        .iter()
        .find_map(|name| list(tree, &format!("{FIRST}{path}/{name}")))
}

/// Groups without the controller have the CPUs of the nearest one above that has it.
fn second_version(tree: &Tree, path: &str) -> Option<Vec<CpuId>> {
    let mount = [SECOND_BESIDE, SECOND]
        .into_iter()
        .find(|mount| tree.exists(format!("{mount}/cgroup.controllers")))?;
    let mut path = path.trim_end_matches('/');
    loop {
        if let Some(cpus) = list(tree, &format!("{mount}{path}/cpuset.cpus.effective")) {
            return Some(cpus);
        }
        path = &path[..path.rfind('/')?];
    }
}

fn list(tree: &Tree, path: &str) -> Option<Vec<CpuId>> {
    let cpus = parse_list(&tree.text(path)?)?;
    (!cpus.is_empty()).then(|| cpus.into_iter().map(CpuId).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::new(root.path());
        (root, tree)
    }

    fn cpus(numbers: &[u32]) -> Option<Vec<CpuId>> {
        Some(numbers.iter().copied().map(CpuId).collect())
    }

    #[test]
    fn the_second_version() {
        let (_root, tree) = machine(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
            ("sys/fs/cgroup/system.slice/cpuset.cpus.effective", "2-3\n"),
            ("sys/fs/cgroup/system.slice/a.service/cgroup.procs", ""),
        ]);
        let mut sets = Cpusets::default();
        assert_eq!(sets.of(&tree, "0::/system.slice\n"), cpus(&[2, 3]));
        assert_eq!(sets.of(&tree, "0::/system.slice/a.service\n"), cpus(&[2, 3]));
        assert_eq!(sets.of(&tree, "0::/user.slice\n"), cpus(&[0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(sets.of(&tree, "0::/\n"), cpus(&[0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(sets.of(&tree, "0::/../system.slice\n"), None);
        assert_eq!(sets.of(&tree, ""), None);
    }

    #[test]
    fn the_first_version_wins_where_it_has_the_controller() {
        let (_root, tree) = machine(&[
            ("sys/fs/cgroup/unified/cgroup.controllers", "\n"),
            ("sys/fs/cgroup/cpuset/db/cpuset.effective_cpus", "1\n"),
            ("sys/fs/cgroup/cpuset/old/cpuset.cpus", "0,2\n"),
        ]);
        let mut sets = Cpusets::default();
        assert_eq!(sets.of(&tree, "9:name=systemd:/\n3:cpu,cpuset:/db\n0::/\n"), cpus(&[1]));
        assert_eq!(sets.of(&tree, "3:cpuset:/old\n0::/\n"), cpus(&[0, 2]));
        assert_eq!(sets.of(&tree, "3:cpuset:/gone\n0::/\n"), None);
        assert_eq!(sets.of(&tree, "9:name=systemd:/\n0::/x\n"), None);
    }
}
