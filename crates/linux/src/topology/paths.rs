//! Disks that NVMe controllers reach by several paths (native multipath).
//!
//! The kernel shows the disk, `nvme0n1`, and hidden beside it a path for each controller, `nvme0c1n1`. The disk has neither
//! queues nor hardware behind it: each request goes through a path, which the kernel chooses among those that are best.

use super::sysfs::{Tree, number_after};
use homenode_policy::NodeId;
use std::collections::BTreeMap;

const DISKS: &str = "sys/block";

/// Disks with paths, each with the paths that its requests may go through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths(BTreeMap<String, Vec<String>>);

/// State of a path, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Best,
    /// Used where none is better.
    Slow,
    Down,
}

impl Paths {
    pub(crate) fn read(tree: &Tree) -> Self {
        let mut all: BTreeMap<String, Vec<(State, String)>> = BTreeMap::new();
        for path in tree.names(DISKS) {
            if let Some(disk) = disk_of(&path) {
                all.entry(disk).or_default().push((state(tree, &path), path));
            }
        }
        let used = all.into_iter().map(|(disk, mut paths)| {
            paths.sort();
            let best = paths[0].0;
            paths.retain(|(state, _)| *state == best && best != State::Down);
            (disk, paths.into_iter().map(|(_, path)| path).collect())
        });
        Self(used.collect())
    }

    /// The directory with a disk's queues and, above it, its hardware: of its path, where it uses one only.
    pub(crate) fn directory(&self, disk: &str) -> String {
        match self.0.get(disk).map(Vec::as_slice) {
            Some([path]) => format!("{DISKS}/{path}"),
            _ => format!("{DISKS}/{disk}"),
        }
    }

    /// The home of a disk with paths: that of all the paths which it uses.
    pub(crate) fn home(&self, tree: &Tree, disk: &str) -> Option<NodeId> {
        let mut homes = self
            .0
            .get(disk)?
            .iter()
            .map(|path| tree.home(format!("{DISKS}/{path}")));
        let first = homes.next()??;
        homes.all(|home| home == Some(first)).then_some(first)
    }

    /// How many paths a disk uses; none for a disk without paths.
    pub(crate) fn count(&self, disk: &str) -> Option<usize> {
        self.0.get(disk).map(Vec::len)
    }
}

/// The disk whose path has this name: `nvme0n1` of `nvme0c1n1`.
pub(crate) fn disk_of(name: &str) -> Option<String> {
    let (subsystem, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (controller, namespace) = rest.split_once('n')?;
    let numbers = [subsystem, controller, namespace];
    let is_number = |text: &str| number_after(text, "").is_some_and(|number| number.to_string() == text);
    numbers
        .into_iter()
        .all(is_number)
        .then(|| format!("nvme{subsystem}n{namespace}"))
}

/// Returns the state of a path, which is taken to be well as far as the kernel does not tell.
fn state(tree: &Tree, path: &str) -> State {
    let directory = format!("{DISKS}/{path}");
    let controller = tree.above(&directory).into_iter().nth(1);
    let is_live = controller.and_then(|controller| tree.text(controller.join("state")));
    let access = tree.text(format!("{directory}/ana_state"));
    match (is_live.as_deref(), access.as_deref()) {
        (None | Some("live"), None | Some("optimized")) => State::Best,
        (None | Some("live"), Some("non-optimized")) => State::Slow,
        _ => State::Down,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_paths_are_parsed() {
        let table = [
            ("nvme0c1n1", Some("nvme0n1")),
            ("nvme12c3n45", Some("nvme12n45")),
            ("nvme0n1", None),
            ("nvme0c1", None),
            ("nvmec1n1", None),
            ("nvme0c1n1p1", None),
            ("sdc1n1", None),
        ];
        for (name, expected) in table {
            assert_eq!(disk_of(name).as_deref(), expected, "{name}");
        }
    }
}
