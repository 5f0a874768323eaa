//! The disks that the open files of a process are on.

use crate::topology::sysfs::Tree;
use homenode_shared::MountLine;
use std::collections::{BTreeSet, HashMap};

/// No more files of a process are looked at: a server of many connections would cost much.
const FILES_MAX: usize = 1024;

/// Filesystems that are on no disk: what is written to them is not counted as bytes of disks.
const WITHOUT_DISK: [&str; 17] = [
    "autofs",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "hugetlbfs",
    "mqueue",
    "proc",
    "pstore",
    "ramfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];

/// The one disk that all files are on which a process has open for reading, and for writing. None where there are several,
/// none, or ones that are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenFiles {
    pub(super) read: Option<String>,
    pub(super) written: Option<String>,
}

impl OpenFiles {
    /// `disk` tells the disk of a device in sysfs.
    pub(super) fn read(tree: &Tree, process: u32, disk: impl Fn(&str) -> Option<String>) -> Self {
        let mut numbers = Vec::new();
        let listed = tree.some_numbers(format!("proc/{process}/fdinfo"), &mut numbers, FILES_MAX + 1);
        let mounts = tree.bytes(format!("proc/{process}/mountinfo"));
        let (Ok(()), Some(mounts)) = (listed, mounts) else {
            return Self::default();
        };
        if numbers.len() > FILES_MAX {
            return Self::default();
        }
        let mounts: HashMap<u64, Mount> = MountLine::all(&mounts).map(mount).collect();
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        for number in numbers {
            let Some(info) = tree.text(format!("proc/{process}/fdinfo/{number}")) else {
                continue;
            };
            let Some((access, mount)) = open_file(&info) else {
                continue;
            };
            // Pipes and sockets are on mounts that are not listed.
            let Some(mount) = mounts.get(&mount) else { continue };
            let place = match mount {
                Mount::Device(place) => Some(place.as_str()),
                Mount::WithoutDisk => continue,
                Mount::Unknown => None,
            };
            if access.reads {
                read.insert(place);
            }
            if access.writes {
                written.insert(place);
            }
        }
        // Two parts of a disk are one disk.
        let one = |places: BTreeSet<Option<&str>>| {
            let disks: BTreeSet<_> = places.into_iter().map(|place| place.and_then(&disk)).collect();
            let mut disks = disks.into_iter();
            let first = disks.next().flatten();
            if disks.next().is_none() { first } else { None }
        };
        Self {
            read: one(read),
            written: one(written),
        }
    }
}

/// Where a mounted filesystem is.
#[derive(Debug, PartialEq, Eq)]
enum Mount {
    /// The device in sysfs.
    Device(String),
    WithoutDisk,
    /// It may have several disks (btrfs), other filesystems below it (overlay), or a network.
    Unknown,
}

fn mount(line: MountLine<'_>) -> (u64, Mount) {
    let (major, minor) = line.device;
    let place = if major != 0 {
        Mount::Device(format!("sys/dev/block/{major}:{minor}"))
    } else if WITHOUT_DISK.iter().any(|kind| kind.as_bytes() == line.filesystem_type) {
        Mount::WithoutDisk
    } else {
        Mount::Unknown
    };
    (line.id, place)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    reads: bool,
    writes: bool,
}

/// How a file is open, and the number of its mount, of `fdinfo`.
fn open_file(info: &str) -> Option<(Access, u64)> {
    /// `include/uapi/asm-generic/fcntl.h`; the file itself is not open.
    const PATH_ONLY: u32 = 0o10_000_000;
    const ACCESS: u32 = 0o3;
    let field = |name: &str| {
        let mut values = info.lines().filter_map(|line| line.strip_prefix(name));
        values.next().map(str::trim)
    };
    let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
    let mount = field("mnt_id:")?.parse().ok()?;
    if flags & PATH_ONLY != 0 {
        return None;
    }
    let access = Access {
        reads: flags & ACCESS != 1,
        writes: flags & ACCESS != 0,
    };
    Some((access, mount))
}
