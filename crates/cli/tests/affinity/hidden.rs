//! Where /sys hides the control groups, as `ip netns exec` has it, and they are mounted elsewhere.

use super::harness::*;
use super::load::{Load, mask};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group with CPUs 0 and 1, and the load in it.
struct Group(PathBuf);

impl Group {
    /// Returns `None` where no cpusets can be made.
    fn of(load: &Load) -> Option<Self> {
        let first = Path::new("/sys/fs/cgroup/cpuset");
        let is_first = first.join("cpuset.cpus").exists();
        let root = if is_first { first } else { Path::new("/sys/fs/cgroup") };
        if !is_first {
            // It may be so already; what cannot be is seen when the group has no cpuset.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+cpuset");
        }
        let group = Self(root.join(format!("homenode-test-{}", load.id())));
        let is_made = fs::create_dir(&group.0).is_ok() && group.0.join("cpuset.cpus").exists();
        if !is_made {
            skipped("cpusets that can be made");
            return None;
        }
        if is_first {
            let nodes = fs::read_to_string(root.join("cpuset.mems")).unwrap();
            fs::write(group.0.join("cpuset.mems"), nodes).unwrap();
        }
        group.set("0-1");
        fs::write(group.0.join("cgroup.procs"), load.id().to_string()).unwrap();
        Some(group)
    }

    fn set(&self, cpus: &str) {
        fs::write(self.0.join("cpuset.cpus"), cpus).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let above = self.0.parent().unwrap().join("cgroup.procs");
        for process in fs::read_to_string(self.0.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
            let _ = fs::write(&above, process);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// The cpuset is narrowed to CPUs that the thread was not given.
#[test]
fn a_cpuset_narrowed_meanwhile_is_seen() {
    let Some(load) = Load::start() else { return };
    let Some(group) = Group::of(&load) else { return };
    let (id, journal) = (load.id().to_string(), load.journal());
    let (journal, config) = (journal.to_str().unwrap(), load.config());
    let script = r#"
        mkdir "$2.groups" && mount --bind "$5" "$2.groups" || exit
        umount --lazy /sys && mount -t sysfs sysfs /sys || exit
        for i in 1 2 3 4 5; do
            "$1" affinity apply --period=1 --journal "$2" --config "$3" > "$2.said"
            test -e "$2" && break
        done
        cpu=$(sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$4/status")
        echo $((1 - cpu)) > "$2.groups/$6/cpuset.cpus"
        "$1" affinity revert --journal "$2"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", script, "sh", BINARY, journal]);
    command.arg(config).arg(id);
    command.arg(group.0.parent().unwrap()).arg(group.0.file_name().unwrap());
    fs::create_dir_all(load.journal().parent().unwrap()).unwrap();
    let output = command.output().unwrap();
    let (said, warned) = (text(output.stdout), text(output.stderr));
    assert!(said.starts_with("1 value restored\n"), "{said}{warned}");
    assert_eq!(warned, "");
    let applied = fs::read_to_string(load.path().join("state/journal.said")).unwrap();
    assert!(!applied.contains("cpusets of threads"), "{applied}");
    group.set("0-1");
    assert_eq!(mask(load.id()), "0-1");
}
