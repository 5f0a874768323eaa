//! Disks, and whether somebody uses them.

use super::{InUse, Offer, OfferKind};
use crate::topology::paths::Paths;
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;
use homenode_shared::{MountLine, unescaped};
use std::path::Path;

const DISKS: &str = "sys/block";
/// sysfs counts the size of disks in these, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// The NVMe disks. With several paths to a disk the kernel shows the paths too (`nvme0c1n1`), hidden: they are no disks.
pub(super) fn nvme(tree: &Tree) -> Vec<Offer> {
    named(tree, OfferKind::Nvme, |name| {
        name.starts_with("nvme") && tree.number::<u8>(format!("{DISKS}/{name}/hidden")) != Some(1)
    })
}

/// The disks whose name is `wanted` and that are not empty.
pub(super) fn named(tree: &Tree, kind: OfferKind, wanted: impl Fn(&str) -> bool) -> Vec<Offer> {
    let names = tree.names(DISKS).into_iter().filter(|name| wanted(name));
    let disk = |name: String| {
        let sectors: u64 = tree.number(format!("{DISKS}/{name}/size"))?;
        let bytes = sectors.checked_mul(SECTOR_BYTES).filter(|bytes| *bytes > 0)?;
        Some(Offer {
            path: Some(format!("/dev/{name}").into()),
            home: home(tree, Path::new(&format!("{DISKS}/{name}"))),
            in_use: in_use(tree, &name),
            free_bytes: None,
            kind,
            bytes,
            name,
        })
    };
    names.filter_map(disk).collect()
}

/// The home of a disk or a partition whose directory this is.
pub(super) fn home(tree: &Tree, directory: &Path) -> Option<NodeId> {
    let above = tree.above(directory);
    let disk = above.iter().find(|path| !tree.exists(path.join("partition")))?;
    let below = disk.join("slaves");
    tree.home(disk)
        .or_else(|| Paths::read(tree).home(tree, disk.file_name()?.to_str()?))
        .or_else(|| common(tree.names(&below).iter().map(|name| home(tree, &below.join(name)))))
}

/// The home that all have.
fn common(mut homes: impl Iterator<Item = Option<NodeId>>) -> Option<NodeId> {
    let first = homes.next()??;
    homes.all(|home| home == Some(first)).then_some(first)
}

/// Use of a disk or a partition whose directory this is, by somebody else than a program that has it open.
pub(super) fn use_of(tree: &Tree, directory: &Path) -> Option<InUse> {
    let above = tree.above(directory);
    let name = above.first()?.file_name()?.to_str()?;
    if !tree.exists(directory.join("partition")) {
        return in_use(tree, name).filter(|found| *found != InUse::Partitioned);
    }
    let holders = || Some(tree.names(directory.join("holders"))).filter(|names| !names.is_empty());
    let swap = || has_line(tree, "proc/swaps", name).then_some(InUse::Swap);
    let mounted = mounted(tree, name).map(InUse::Mounted);
    mounted.or_else(swap).or_else(|| holders().map(InUse::Held))
}

/// Whether somebody uses the disk, or one of its partitions.
fn in_use(tree: &Tree, disk: &str) -> Option<InUse> {
    let directory = format!("{DISKS}/{disk}");
    let is_partition = |name: &String| tree.exists(format!("{directory}/{name}/partition"));
    let partitions: Vec<String> = tree.names(&directory).into_iter().filter(is_partition).collect();
    let parts = || partitions.iter().map(String::as_str).chain([disk]);
    if let Some(at) = parts().find_map(|part| mounted(tree, part)) {
        return Some(InUse::Mounted(at));
    }
    if parts().any(|part| has_line(tree, "proc/swaps", part)) {
        return Some(InUse::Swap);
    }
    let below = partitions
        .iter()
        .map(|part| format!("{directory}/{part}"))
        .chain([directory.clone()]);
    let holders: Vec<String> = below.flat_map(|path| tree.names(format!("{path}/holders"))).collect();
    if !holders.is_empty() {
        return Some(InUse::Held(holders));
    }
    (!partitions.is_empty()).then_some(InUse::Partitioned)
}

/// Where a device is mounted. mountinfo has its number, whatever name it was mounted by.
fn mounted(tree: &Tree, part: &str) -> Option<String> {
    let number = tree.text(format!("sys/class/block/{part}/dev"));
    let mounts = tree.bytes("proc/self/mountinfo")?;
    let same = |mount: &MountLine<'_>| {
        let (major, minor) = mount.device;
        number == Some(format!("{major}:{minor}")) || mount.source == format!("/dev/{part}").as_bytes()
    };
    let found = MountLine::all(&mounts).find(same)?;
    let at: Vec<u8> = unescaped(found.mount_point).collect();
    Some(String::from_utf8_lossy(&at).into_owned())
}

fn has_line(tree: &Tree, file: &str, part: &str) -> bool {
    let device = format!("/dev/{part}");
    let text = tree.text(file).unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().next() == Some(&device))
}
