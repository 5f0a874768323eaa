use super::*;
use crate::topology::made::Made;
use std::fs;

const KIB: u64 = 1024;
const GIB: u64 = KIB * KIB * KIB;

/// `sda` with two parts, `nvme0n1`; `dm-0` on a part, `dm-1` on `dm-0`, `md0` on both disks.
fn stacked() -> Made {
    let machine = Made::new();
    machine
        .disk("8:0", "pci/sda", &[])
        .disk("8:1", "pci/sda/sda1", &[])
        .file("sys/devices/pci/sda/sda1/partition", "1")
        .disk("8:2", "pci/sda/sda2", &[])
        .file("sys/devices/pci/sda/sda2/partition", "2")
        .disk("259:0", "nvme/nvme0n1", &[])
        .disk("253:0", "virtual/dm-0", &["sda2"])
        .disk("253:1", "virtual/dm-1", &["dm-0"])
        .disk("9:0", "virtual/md0", &["sda1", "nvme0n1"])
        .disk("7:0", "virtual/loop0", &[]);
    machine
}

impl Made {
    fn disk(&self, number: &str, place: &str, slaves: &[&str]) -> &Self {
        let name = place.rsplit('/').next().unwrap();
        let directory = self.root().join("sys/devices").join(place);
        fs::create_dir_all(directory.join("slaves")).unwrap();
        for slave in slaves {
            fs::create_dir(directory.join("slaves").join(slave)).unwrap();
        }
        let directory = directory.to_str().unwrap();
        self.link(&format!("sys/dev/block/{number}"), directory)
            .link(&format!("sys/class/block/{name}"), directory)
    }

    fn opened(&self, process: u32, number: u32, flags: &str, mount: u32) -> &Self {
        let text = format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t{mount}\nino:\t7\n");
        self.file(&format!("proc/{process}/fdinfo/{number}"), &text)
    }

    fn mounts(&self, process: u32) -> &Self {
        let text = "\
            20 1 8:2 / / rw,noatime shared:1 - ext4 /dev/sda2 rw\n\
            21 1 8:1 / /boot rw - ext4 /dev/sda1 rw\n\
            22 1 259:0 / /data rw - xfs /dev/nvme0n1 rw\n\
            23 1 0:30 / /tmp rw - tmpfs tmpfs rw\n\
            24 1 0:31 / /home rw - btrfs /dev/nvme0n1 rw\n\
            25 1 9:0 / /both rw - ext4 /dev/md0 rw\n";
        self.file(&format!("proc/{process}/mountinfo"), text)
    }
}

fn disks() -> Disks {
    Disks {
        names: ["sda", "nvme0n1"].map(str::to_owned).into(),
        ..Disks::default()
    }
}

fn key(major: u32, minor: u32) -> DiskKey {
    DiskKey { major, minor }
}

fn count(read: u64, written: u64, dirtied: u64) -> DiskCount {
    DiskCount { read, written, dirtied }
}

#[test]
fn partitions_and_mapped_devices_resolve_to_their_disk() {
    let machine = stacked();
    let mut disks = disks();
    let mut disk = |major, minor| disks.disk(&machine.tree(), key(major, minor));
    for (major, minor) in [(8, 0), (8, 1), (8, 2), (253, 0), (253, 1)] {
        assert_eq!(disk(major, minor).as_deref(), Some("sda"), "{major}:{minor}");
    }
    assert_eq!(disk(259, 0).as_deref(), Some("nvme0n1"));
    // Two disks, one that is no disk of the machine's, and none.
    for (major, minor) in [(9, 0), (7, 0), (0, 0), (77, 7)] {
        assert_eq!(disk(major, minor), None, "{major}:{minor}");
    }
}

/// The disk and the bytes; `?` where it is not known.
fn divided(bytes: (u64, u64), counted: Option<&DiskCounts>, busy_bytes: u64) -> Vec<(String, u64)> {
    let machine = stacked();
    machine
        .mounts(5)
        .opened(5, 3, "0100002", 22)
        .opened(5, 4, "0100000", 20);
    let (read, written) = bytes;
    let parts = disks().divide(&machine.tree(), 5, Bytes { read, written }, counted, busy_bytes);
    let name = |device: Option<String>| device.unwrap_or_else(|| "?".to_owned());
    parts.into_iter().map(|part| (name(part.device), part.bytes)).collect()
}

#[test]
fn bytes_are_divided_by_requests_and_dirty_pages() {
    let divided = |bytes, counted: Vec<(DiskKey, DiskCount)>| divided(bytes, Some(&counted), u64::MAX);
    let of = |parts: &[(&str, u64)]| -> Vec<(String, u64)> {
        parts.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect()
    };
    let (sda, nvme) = (key(8, 0), key(259, 0));
    // Reads of two disks.
    let reads = vec![(sda, count(KIB, 0, 0)), (nvme, count(3 * KIB, 0, 0))];
    assert_eq!(
        divided((4 * KIB, 0), reads.clone()),
        of(&[("nvme0n1", 3 * KIB), ("sda", KIB)])
    );
    // Requests of a disk made of others are counted again below: the sum is the kernel's.
    assert_eq!(divided((2 * KIB, 0), reads), of(&[("nvme0n1", 1536), ("sda", 512)]));
    // Direct writes to one disk, buffered ones to another.
    let mixed = vec![(sda, count(0, 0, 4 * KIB)), (nvme, count(0, 64 * KIB, 0))];
    assert_eq!(
        divided((0, 68 * KIB), mixed),
        of(&[("nvme0n1", 64 * KIB), ("sda", 4 * KIB)])
    );
    // Few dirty pages say nothing of much that is written directly, to the same disk or another.
    let few = vec![(sda, count(0, GIB, 4 * KIB)), (nvme, count(0, 0, 40 * KIB))];
    assert_eq!(
        divided((0, GIB + 44 * KIB), few),
        of(&[("nvme0n1", 40 * KIB), ("sda", GIB + 4 * KIB)])
    );
    // Direct writes to a disk made of others are counted again below.
    let twice = vec![(sda, count(0, 8 * KIB, 0)), (key(253, 0), count(0, 8 * KIB, 4 * KIB))];
    assert_eq!(divided((0, 12 * KIB), twice), of(&[("sda", 12 * KIB)]));
    // Pages of the last moment may be in one of the counts alone.
    assert_eq!(
        divided((0, 12 * KIB), vec![(sda, count(0, 0, 8 * KIB))]),
        of(&[("sda", 12 * KIB)])
    );
    assert_eq!(
        divided((0, 4 * KIB), vec![(sda, count(0, KIB, 8 * KIB))]),
        of(&[("sda", 4 * KIB)])
    );
    // It was counted for the thread when it was made dirty, in an earlier period.
    assert_eq!(divided((0, 0), vec![(sda, count(0, 4 * KIB, 0))]), of(&[]));
    // Dirty pages of a filesystem without a disk of its own, and nothing counted at all.
    assert_eq!(
        divided((0, KIB), vec![(key(0, 0), count(0, 0, KIB))]),
        of(&[("?", KIB)])
    );
    assert_eq!(divided((KIB, KIB), vec![]), of(&[("?", 2 * KIB)]));
    let huge = vec![(sda, count(u64::MAX, u64::MAX, 0)), (nvme, count(u64::MAX, 0, 5))];
    let sum: u128 = divided((u64::MAX, 0), huge)
        .iter()
        .map(|(_, bytes)| u128::from(*bytes))
        .sum();
    assert_eq!(sum, u128::from(u64::MAX));
}

#[test]
fn open_files_tell_the_disk_without_counts() {
    let all = |name: &str, bytes| vec![(name.to_owned(), bytes)];
    assert_eq!(divided((0, 9), None, 5), all("nvme0n1", 9));
    assert_eq!(divided((0, 9), None, 10), all("?", 9));
    // Files to read from are on both disks.
    assert_eq!(divided((9, 0), None, 5), all("?", 9));
    assert_eq!(divided((9, 9), None, 5), [all("nvme0n1", 9), all("?", 9)].concat());
}

#[test]
fn open_files_of_a_process_are_read() {
    let machine = stacked();
    let tree = machine.tree();
    let seen = |process| {
        let files = disks().files(&tree, process).clone();
        (files.read, files.written)
    };
    let some = |name: &str| Some(name.to_owned());
    // Two parts of a disk, a pipe, a file in memory, one that is open as a path only.
    machine
        .mounts(1)
        .opened(1, 0, "02", 20)
        .opened(1, 1, "01", 21)
        .opened(1, 2, "02", 14);
    machine.opened(1, 3, "02", 23).opened(1, 4, "010100002", 22);
    assert_eq!(seen(1), (some("sda"), some("sda")));
    // One that may be on several disks.
    machine
        .mounts(2)
        .opened(2, 0, "0", 20)
        .opened(2, 1, "01", 20)
        .opened(2, 2, "01", 24);
    assert_eq!(seen(2), (some("sda"), None));
    machine.mounts(3).opened(3, 0, "02", 25);
    assert_eq!(seen(3), (None, None));
    machine.mounts(4).opened(4, 0, "x", 20);
    assert_eq!(seen(4), (None, None));
    // No list of mounts, no files, no process.
    machine.opened(6, 0, "02", 20);
    machine.mounts(7);
    for process in [6, 7, 8] {
        assert_eq!(seen(process), (None, None));
    }
}
