//! Which disks the bytes of a thread are of.
//!
//! The kernel counts a thread's bytes in /proc, but not by disk: bytes read, written directly, and made dirty in the page cache. BPF programs (`bpf`)
//! report how they divide. Without them, the disk is taken if all of the process's open files on disks are on one; else it is unknown. Parts of
//! disks, and disks made of others (dm, md), are followed down to the disks; one that is made of several stays unknown too.
//!
//! Cost: a file of a few lines for each file a process has open, when one of its threads moves much; kept for as long as
//! settings are.

mod open_files;

use super::bpf::{DiskCount, DiskCounts, DiskKey};
use crate::topology::sysfs::Tree;
use homenode_policy::affinity::DeviceBytes;
use homenode_policy::topology::{DeviceKind, Topology};
use open_files::OpenFiles;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How deep disks may be made of disks that are made of disks.
const DEPTH_MAX: u32 = 8;

/// Bytes of disks, as the kernel counts them for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) read: u64,
    pub(super) written: u64,
}

impl Bytes {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
        }
    }

    pub(super) fn sum(self) -> u64 {
        self.read.saturating_add(self.written)
    }
}

/// Cache of facts about disks, forgotten when settings are read anew.
#[derive(Debug, Default)]
pub(super) struct Disks {
    /// Names that the topology has.
    names: BTreeSet<String>,
    by_number: HashMap<DiskKey, Option<String>>,
    by_process: HashMap<u32, OpenFiles>,
}

/// Bytes by disk; none is an unknown one. Ordered as the bytes of a thread are to be.
type ByDisk = BTreeMap<(bool, Option<String>), u64>;

impl Disks {
    pub(super) fn new(topology: &Topology) -> Self {
        let disks = topology.devices().iter();
        let disks = disks.filter(|device| matches!(device.kind, DeviceKind::Block | DeviceKind::Pmem));
        Self {
            names: disks.map(|device| device.name.clone()).collect(),
            ..Self::default()
        }
    }

    /// Divides what a thread moved, by what was counted of it. The files of its process are looked at if more than
    /// `busy_bytes` are left.
    pub(super) fn divide(
        &mut self,
        tree: &Tree,
        process: u32,
        bytes: Bytes,
        counted: Option<&DiskCounts>,
        busy_bytes: u64,
    ) -> Vec<DeviceBytes> {
        let mut by_disk = ByDisk::new();
        let mut add = |device: Option<String>, bytes: u64| {
            if bytes > 0 {
                *by_disk.entry((device.is_none(), device)).or_default() += bytes;
            }
        };
        let rest = match counted {
            Some(counted) => {
                let requests = requests(bytes, counted);
                for (key, bytes) in &requests.known {
                    add(self.disk(tree, *key), *bytes);
                }
                requests.rest
            }
            None => bytes,
        };
        if rest.sum() >= busy_bytes {
            let files = self.files(tree, process);
            add(files.read.clone(), rest.read);
            add(files.written.clone(), rest.written);
        } else {
            add(None, rest.sum());
        }
        let entries = by_disk.into_iter();
        entries
            .map(|((_, device), bytes)| DeviceBytes { device, bytes })
            .collect()
    }

    /// The disk that a number of the kernel's leads to.
    fn disk(&mut self, tree: &Tree, key: DiskKey) -> Option<String> {
        let names = &self.names;
        let find = || {
            only(
                whole_disks(tree, &format!("sys/dev/block/{}:{}", key.major, key.minor)),
                names,
            )
        };
        self.by_number.entry(key).or_insert_with(find).clone()
    }

    fn files(&mut self, tree: &Tree, process: u32) -> &OpenFiles {
        let names = &self.names;
        let look = || OpenFiles::read(tree, process, |place| only(whole_disks(tree, place), names));
        self.by_process.entry(process).or_insert_with(look)
    }
}

/// A thread's bytes by what the kernel calls the disks, and what of them is of no disk that was seen.
struct Requests {
    known: Vec<(DiskKey, u64)>,
    rest: Bytes,
}

/// Reads are divided as its requests are. What it made dirty and what it wrote directly are counted apart, but where it
/// did both the sum is the kernel's: what is more than it made dirty was direct, and what is more than both is taken as
/// made dirty too, between the kernel's count and ours.
fn requests(bytes: Bytes, counted: &DiskCounts) -> Requests {
    let parts = |part: fn(&DiskCount) -> u64| -> Vec<_> {
        let parts = counted.iter().map(|(key, count)| (*key, part(count)));
        parts.collect()
    };
    let sum = |parts: &[(DiskKey, u64)]| parts.iter().fold(0_u64, |sum, (_, part)| sum.saturating_add(*part));
    let reads = parts(|count| count.read);
    let direct = parts(|count| count.written);
    let dirtied = parts(|count| count.dirtied);
    let mut known = Vec::new();
    let read = bytes.read.min(sum(&reads));
    share(read, &reads, &mut known);
    let sent = bytes.written.saturating_sub(sum(&dirtied)).min(sum(&direct));
    share(sent, &direct, &mut known);
    let mut written = bytes.written - sent;
    if sum(&dirtied) > 0 {
        share(written, &dirtied, &mut known);
        written = 0;
    }
    let rest = Bytes {
        read: bytes.read - read,
        written,
    };
    Requests { known, rest }
}

/// Divides `total` in proportion; what rounding leaves goes to the last.
fn share(total: u64, parts: &[(DiskKey, u64)], to: &mut Vec<(DiskKey, u64)>) {
    let mut left_parts: u128 = parts.iter().map(|(_, part)| u128::from(*part)).sum();
    let mut left = total;
    for (key, part) in parts.iter().filter(|(_, part)| *part > 0) {
        let bytes = u128::from(left) * u128::from(*part) / left_parts;
        let bytes = u64::try_from(bytes).expect("a part of a u64 fits a u64");
        left_parts -= u128::from(*part);
        left -= bytes;
        to.push((*key, bytes));
    }
}

/// The disk, where there is but one, and it is one of the machine's.
fn only(disks: BTreeSet<String>, names: &BTreeSet<String>) -> Option<String> {
    let mut disks = disks.into_iter();
    let first = disks.next().filter(|first| names.contains(first))?;
    disks.next().is_none().then_some(first)
}

/// The disks that a device in sysfs is, is a part of, or is made of.
fn whole_disks(tree: &Tree, place: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut places = vec![(place.to_owned(), 0)];
    while let Some((place, depth)) = places.pop() {
        let above = tree.above(&place);
        let mut directories = above.iter();
        let mut disk = directories.next();
        if disk.is_some_and(|directory| tree.exists(directory.join("partition"))) {
            disk = directories.next();
        }
        let Some(disk) = disk else { continue };
        let slaves = tree.names(disk.join("slaves"));
        if slaves.is_empty() || depth == DEPTH_MAX {
            found.extend(disk.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        }
        if depth < DEPTH_MAX {
            places.extend(
                slaves
                    .iter()
                    .map(|slave| (format!("sys/class/block/{slave}"), depth + 1)),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests;
