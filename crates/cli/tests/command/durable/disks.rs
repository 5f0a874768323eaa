//! Disks as members: devices, their partitions, and files that are reached past the page cache. Files on a tmpfs play the devices (loop(4)).

use super::*;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

/// A disk that a file of a test's directory plays.
struct Disk(PathBuf);

impl Disk {
    /// A disk of `bytes` bytes, made by losetup(8) with these options.
    fn new(pools: &Pools, name: &str, bytes: u64, options: &[&str]) -> Self {
        let file = pools.path(name);
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let mut losetup = Command::new("losetup");
        losetup
            .args(["--find", "--show", "--direct-io=on"])
            .args(options)
            .arg(file);
        Self(succeed(&mut losetup).trim().into())
    }

    fn partition(&self, number: u32, first: u64, bytes: u64) -> PathBuf {
        let sectors = |bytes: u64| (bytes / 512).to_string();
        let mut add = Command::new("addpart");
        succeed(
            add.arg(&self.0)
                .args([number.to_string(), sectors(first), sectors(bytes)]),
        );
        format!("{}p{number}", self.0.display()).into()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

const MIB: u64 = 1 << 20;

fn create(pools: &Pools, paths: &[&Path], options: &str) -> Command {
    let mut create = pools.homenode("pool create tank");
    create.args(paths).args(options.split_whitespace());
    create
}

#[test]
fn disks_that_are_used_hold_something_or_do_not_fit_are_refused_and_stay_as_they_are() {
    need_mounts!();
    let pools = Pools::new("disks-refused");
    let disk = Disk::new(&pools, "disk", 64 * MIB, &["--partscan"]);
    let [one, two] = [1, 2].map(|number| disk.partition(number, u64::from(number) * 20 * MIB, 20 * MIB));
    succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&one));
    let before = fs::read(pools.path("disk")).unwrap();
    let holds = ["holds an ext2, ext3 or ext4 filesystem", "--force"];
    refused(&mut create(&pools, &[&one], ""), &holds);
    let mounted = pools.0.dir("mounted");
    succeed(Command::new("mount").args(["-o", "ro,noload"]).arg(&one).arg(&mounted));
    let at = format!("is in use: mounted on {}: unmount that first", mounted.display());
    for (path, force) in [(&*one, "--force"), (&*one, ""), (&*disk.0, "--force")] {
        refused(&mut create(&pools, &[path], force), &[path.to_str().unwrap(), &at]);
    }
    succeed(Command::new("umount").arg(&mounted));
    // The disk, a part of it, and by another name.
    refused(&mut create(&pools, &[&disk.0, &two], "--force"), &["is in use"]);
    let link = pools.path("link");
    std::os::unix::fs::symlink(&two, &link).unwrap();
    refused(&mut create(&pools, &[&two, &link], ""), &["was given twice"]);
    let holder = File::open(&two).unwrap();
    let exclusive = File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed())
        .open(&two)
        .unwrap();
    drop(holder);
    let told = fail(1, &mut create(&pools, &[&two], ""));
    let own = format!("({})", std::process::id());
    assert!(
        told.contains("another command works on it; open in") && told.contains(&own),
        "{told}"
    );
    drop(exclusive);
    assert!(fs::read(pools.path("disk")).unwrap() == before, "it was written to");
    let small = Disk::new(&pools, "small", 8 * MIB, &[]);
    refused(
        &mut create(&pools, &[&small.0], ""),
        &["has 8388608 B and needs 16777216 B: give a larger one"],
    );
    let read_only = Disk::new(&pools, "read-only", 32 * MIB, &["--read-only"]);
    refused(
        &mut create(&pools, &[&read_only.0], ""),
        &["is read-only: `blockdev --setrw`"],
    );
    for options in ["", "--size 32M"] {
        let nowhere = Path::new("/dev/homenode-nowhere");
        refused(
            &mut create(&pools, &[nowhere], options),
            &["there is no device /dev/homenode-nowhere"],
        );
    }
    assert!(pools.listed().is_empty());
}

#[test]
fn a_cache_is_for_durable_pools() {
    let pools = Pools::new("cache-refused");
    refused(
        &mut pools.homenode("up mount --cache 64M"),
        &["--cache is for disks of durable pools"],
    );
    fail(2, &mut pools.homenode("up tank mount --cache 25%"));
    fail(2, &mut pools.homenode("pool create tank a --cache 0"));
}
