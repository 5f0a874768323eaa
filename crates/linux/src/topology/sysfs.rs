//! Small reads below a root directory: `/` for the machine itself, any other for a recorded one.
//!
//! A file that is missing or does not parse reads as `None`: sysfs differs between kernels, and what one of them does
//! not tell is simply not known.

use homenode_policy::{CpuId, NodeId};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The tree below a root directory.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// Where `path` (relative, such as `sys/block`) is for the kernel we run on.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The text of a file without white space around it.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    pub(crate) fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// A list of CPUs or nodes such as `0-3,8`.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Option<Vec<u32>> {
        parse_list(&self.text(path)?)
    }

    /// The names in a directory, those with numbers in the order of the numbers. None when there is no such directory.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_by_cached_key(|name| (prefix(name).to_owned(), number_after(name, prefix(name)), name.clone()));
        names
    }

    /// The last part of where a link points, such as the driver's name of `…/driver`.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The home of a device: the node of the nearest device above it that has one. Virtio disks and cards, for example,
    /// have none of their own, but the PCI function they sit on has. The kernel's -1 means that the firmware did not say.
    pub(crate) fn home(&self, device: impl AsRef<Path>) -> Option<NodeId> {
        let root = fs::canonicalize(&self.root).ok()?;
        let real = fs::canonicalize(self.path(device)).ok()?;
        let above = real.ancestors().take_while(|path| path.starts_with(&root));
        above
            .filter_map(|path| fs::read_to_string(path.join("numa_node")).ok())
            .find_map(|text| text.trim().parse().ok())
            .map(NodeId)
    }
}

/// `name` up to its first digit.
fn prefix(name: &str) -> &str {
    name.split(|c: char| c.is_ascii_digit()).next().unwrap_or(name)
}

/// The number that follows `prefix` in `name` up to the end or the next letter.
pub(crate) fn number_after(name: &str, prefix: &str) -> Option<u32> {
    let rest = name.strip_prefix(prefix)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Reads `0-3,8` and also what some kernels write: `0, 1, 2`.
pub(crate) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last >= homenode_policy::topology::CPUS_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Reads a mask such as `ff,00000001`: words of 32 bits, the highest first.
pub(crate) fn parse_mask(text: &str) -> Option<Vec<CpuId>> {
    let mut cpus = Vec::new();
    for (index, word) in text.trim().rsplit(',').enumerate() {
        let word = u32::from_str_radix(word, 16).ok()?;
        let first = u32::try_from(index).ok()? * 32;
        cpus.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| CpuId(first + bit)));
    }
    Some(cpus)
}

/// Bytes of a field in the lines of a meminfo file: `Node 0 MemFree: 8 kB` of a node, `MemFree: 8 kB` of the machine.
pub(crate) fn meminfo_bytes(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.split_whitespace().next_back()? == field).then_some(value)
    })?;
    let kilobytes: u64 = value.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("0, 1, 5"), Some(vec![0, 1, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-4294967295"), None);
        assert_eq!(parse_list("x"), None);
    }

    #[test]
    fn masks() {
        let cpus = |numbers: &[u32]| Some(numbers.iter().copied().map(CpuId).collect::<Vec<_>>());
        assert_eq!(parse_mask("3"), cpus(&[0, 1]));
        assert_eq!(parse_mask("80000000,00000001"), cpus(&[0, 63]));
        assert_eq!(parse_mask("0"), cpus(&[]));
        assert_eq!(parse_mask("zz"), None);
    }

    #[test]
    fn names_sort_by_number() {
        let root = tempfile::tempdir().unwrap();
        for name in ["rx-10", "rx-2", "tx-0", "rx-1"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        assert_eq!(Tree::new(root.path()).names("."), ["rx-1", "rx-2", "rx-10", "tx-0"]);
        assert!(Tree::new(root.path()).names("missing").is_empty());
    }
}
