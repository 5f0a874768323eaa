//! Who keeps a mount busy: processes with a file, directory, program or mapping there, and other mount namespaces. And who has a
//! device open.

use crate::failure::plain;
use crate::mountinfo::{Device, Located, mounts_of};
use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, statx};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// More are summed up.
const NAMED_MAX: usize = 5;
/// A program may have any name.
const NAME_CHARS_MAX: usize = 64;

/// The processes that hold something on the mount, as `name (pid)`.
pub(crate) fn of(located: &Located) -> Vec<String> {
    some_named(processes().into_iter().filter(|pid| holds(*pid, located)).collect())
}

/// The processes that have this very file open, a block device say, as `name (pid)`.
pub(crate) fn of_file(path: &Path) -> Vec<String> {
    some_named(with_open(|file| file == path))
}

/// Processes and loop devices that have a disk or a partition of it open.
pub(crate) fn of_disk(disk: &Path) -> Vec<String> {
    let mut holders = some_named(with_open(|file| is_on(file, disk)));
    for entry in fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok) {
        let file = fs::read(entry.path().join("loop/backing_file")).unwrap_or_default();
        if is_on(Path::new(OsStr::from_bytes(file.trim_ascii_end())), disk) {
            holders.push(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    holders
}

/// Whether a file is a disk, whose name ends in a digit, or a partition of the disk.
pub(crate) fn is_on(file: &Path, disk: &Path) -> bool {
    let rest = file.as_os_str().as_bytes().strip_prefix(disk.as_os_str().as_bytes());
    rest.is_some_and(|rest| match rest {
        [] => true,
        [b'p', number @ ..] => !number.is_empty() && number.iter().all(u8::is_ascii_digit),
        _ => false,
    })
}

fn with_open(is_meant: impl Fn(&Path) -> bool) -> Vec<u32> {
    let has = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        let mut links = files.filter_map(|entry| Some(entry.ok()?.path()));
        links.any(|link| fs::read_link(&link).is_ok_and(|target| is_meant(&target) && uses(&link, &target)))
    };
    processes().into_iter().filter(has).collect()
}

/// Whether a descriptor, a link in a process's list, uses the file that it names. It need not: O_PATH takes no right to the file, and in another namespace the name may be
/// another file's.
fn uses(link: &Path, target: &Path) -> bool {
    let what = |path: &Path| {
        // Asks no server of a filesystem.
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO).ok()?;
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        // A device is the same by any of its nodes.
        Some(match kind {
            FileType::BlockDevice => (kind, found.stx_rdev_major, found.stx_rdev_minor, 0),
            _ => (kind, found.stx_dev_major, found.stx_dev_minor, found.stx_ino),
        })
    };
    let info = fs::read_to_string(link.to_string_lossy().replacen("/fd/", "/fdinfo/", 1)).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let is_path = flags
        .is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & OFlags::PATH.bits() != 0));
    !is_path && what(link).is_some_and(|used| what(target) == Some(used))
}

/// The processes that keep a file locked by flock(2), as `name (pid)`; those that have it open where the one that locked it has ended.
pub(crate) fn of_lock(path: &Path) -> Vec<String> {
    let Ok(found) = fs::metadata(path) else {
        return Vec::new();
    };
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let lockers = table.lines().filter_map(|line| locker(line, &file));
    let alive: Vec<u32> = lockers
        .filter(|pid| Path::new("/proc").join(pid.to_string()).exists())
        .collect();
    if alive.is_empty() {
        of_file(path)
    } else {
        some_named(alive)
    }
}

/// `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`; whoever waits has an arrow in front.
fn locker(line: &str, file: &str) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let is_lock = fields.next()? == "FLOCK";
    let pid = fields.nth(2)?.parse().ok()?;
    (is_lock && fields.next()? == file).then_some(pid)
}

/// The other mount namespaces that have `device` mounted, each as `name (pid)` of its first process.
pub(crate) fn other_namespaces(device: Device) -> Vec<String> {
    some_named(in_other_namespaces(device))
}

/// The first process of each other mount namespace that has `device` mounted.
pub(crate) fn in_other_namespaces(device: Device) -> Vec<u32> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut first = BTreeMap::new();
    for pid in processes() {
        // Else it is gone already, or not ours to look at.
        if let Some(namespace) = namespace(&pid.to_string()) {
            first.entry(namespace).or_insert(pid);
        }
    }
    first.retain(|other, _| Some(other) != namespace("self").as_ref());
    let has = |pid: &u32| mounts_of(&pid.to_string()).is_ok_and(|mounts| mounts.iter().any(|one| one.device == device));
    first.into_values().filter(has).collect()
}

/// Every process but this one, ascending.
fn processes() -> Vec<u32> {
    let own = std::process::id();
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .collect();
    pids.sort_unstable();
    pids
}

fn some_named(mut holders: Vec<u32>) -> Vec<String> {
    holders.sort_unstable();
    let more = holders.len().saturating_sub(NAMED_MAX);
    let mut named: Vec<String> = holders.into_iter().take(NAMED_MAX).map(named).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    named
}

fn holds(pid: u32, located: &Located) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let below = |path: &Path| fs::read_link(path).is_ok_and(|target| target.starts_with(&located.path));
    let entries = |name: &str| {
        fs::read_dir(process.join(name))
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
    };
    ["cwd", "root", "exe"].iter().any(|name| below(&process.join(name)))
        || entries("fd").any(|entry| below(&entry.path()))
        || entries("map_files").any(|entry| below(&entry.path()))
}

fn named(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A server was started by the name /proc/self/exe.
    let name = match name.trim_end() {
        "exe" => fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default(),
        name => name.as_bytes().to_vec(),
    };
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name: String = String::from_utf8_lossy(name).chars().take(NAME_CHARS_MAX).collect();
    format!("{} ({pid})", plain(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_and_its_partitions_are_on_the_disk() {
        let is_on = |file: &str| super::is_on(Path::new(file), Path::new("/dev/ublkb1"));
        assert!(is_on("/dev/ublkb1") && is_on("/dev/ublkb1p1") && is_on("/dev/ublkb1p128"));
        for other in [
            "/dev/ublkb",
            "/dev/ublkb10",
            "/dev/ublkb10p1",
            "/dev/ublkb1p",
            "/dev/ublkb1p1x",
            "",
        ] {
            assert!(!is_on(other), "{other}");
        }
    }

    #[test]
    fn who_has_a_file_open_by_its_path_alone_does_not_hold_it() {
        let path = std::env::temp_dir().join(format!("homenode-holders-{}", std::process::id()));
        fs::write(&path, "").expect("a temporary file");
        let open = |flags| rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).expect("it is there");
        let holders = [OFlags::PATH, OFlags::RDONLY].map(|flags| {
            let input = std::process::Stdio::from(open(flags | OFlags::CLOEXEC));
            let child = std::process::Command::new("sleep").arg("60").stdin(input).spawn();
            let mut child = child.expect("every machine has it");
            let holders = of_file(&path);
            child.kill().expect("it is there");
            child.wait().expect("it is there");
            holders
        });
        fs::remove_file(&path).expect("it is there");
        let [without, with] = holders;
        assert!(without.is_empty(), "{without:?}");
        assert_eq!(with.len(), 1, "{with:?}");
    }

    #[test]
    fn only_holders_of_locks_on_the_file_are_found() {
        let file = "fd:01:5678";
        assert_eq!(
            locker("1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF", file),
            Some(1234)
        );
        for other in [
            "1: FLOCK  ADVISORY  WRITE 1234 fd:01:56789 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF",
            "1: POSIX  ADVISORY  READ 1234 fd:01:5678 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 fd:01:5678 0 EOF",
            "",
        ] {
            assert_eq!(locker(other, file), None, "{other}");
        }
    }
}
