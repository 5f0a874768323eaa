//! Disks as members: devices, their partitions, and files that are reached past the page cache. Files on a tmpfs play the devices (loop(4)).

use super::troubles::line_of;
use super::*;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// A disk that a file of a test's directory plays.
pub(super) struct Disk(pub(super) PathBuf);

impl Disk {
    /// A disk of `bytes` bytes, made by losetup(8) with these options.
    pub(super) fn new(pools: &Pools, name: &str, bytes: u64, options: &[&str]) -> Self {
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
fn used_or_unsuitable_disks_are_refused_and_unchanged() {
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
    says(&told, &["another command works on it; open in", &own]);
    drop(exclusive);
    assert!(fs::read(pools.path("disk")).unwrap() == before, "the disk was written");
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

fn synced(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

fn content(seed: u8, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    for (at, sector) in bytes.chunks_mut(512).enumerate() {
        sector.fill(seed ^ at.to_le_bytes()[0]);
    }
    bytes
}

/// Links to a disk and to a partition, as in /dev/disk/by-id.
fn linked(pools: &Pools, targets: [&Path; 2]) -> [PathBuf; 2] {
    let links = pools.0.dir("links");
    let mut names = ["first", "second"].iter();
    targets.map(|target| {
        let link = links.join(names.next().unwrap());
        std::os::unix::fs::symlink(target, &link).unwrap();
        link
    })
}

fn assert_holds(mount: &Path, files: u8) {
    for seed in 0..files {
        let read = fs::read(mount.join(format!("{seed}"))).unwrap();
        assert!(read == content(seed, 20 << 20), "bytes of file {seed} of {files}");
    }
}

#[test]
fn a_pool_on_partitions_keeps_synced_data_and_changes_nothing_else() {
    let (pools, mount) = need_pools!("disks");
    let one = Disk::new(&pools, "one", 48 * MIB, &["--sector-size=4096"]);
    let two = Disk::new(&pools, "two", 96 * MIB, &["--partscan"]);
    let part = two.partition(2, 30 * MIB, 48 * MIB);
    // The name that was given is the one that is kept.
    let [first, second] = linked(&pools, [&one.0, &part]);
    let before = fs::read(pools.path("two")).unwrap();
    let all = [&*first, &*second, Path::new("file")];
    succeed(&mut create(&pools, &all, "--size 32M --cache 64M"));
    let listed = pools.listed().remove(0);
    let members = serde_json::json!([first, second, pools.path("file")]);
    assert_eq!(listed["members"], members);
    let kinds = (&listed["kinds"][0], &listed["kinds"][1]);
    assert_eq!(kinds, (&"block".into(), &"block".into()));
    assert!(line_of(&pools, "tank").contains(&format!("{} (block)", first.display())));
    for (round, cache) in (0..3).zip(["", "--cache 32M", "--cache 64M"]) {
        pools.run(&format!("up tank mount {cache}"));
        assert_holds(&mount, round);
        let status = status(&mount);
        for (number, path) in (0..).zip(members.as_array().unwrap()) {
            let member = &status["members"][number];
            assert_eq!((&member["backing"], &member["errors"]), (path, &0.into()));
        }
        let open = ["is in use", "; open in homenode ("];
        pools.refused("pool export tank", &open);
        synced(&mount.join(format!("{round}")), &content(round, 20 << 20));
        end_server(&mount, Signal::KILL);
        succeed(Command::new("umount").arg("-l").arg(&mount));
    }
    assert!(pools.run("fsck tank").contains("sound"));
    let (after, end) = (fs::read(pools.path("two")).unwrap(), 78 << 20);
    assert!(after[..30 << 20] == before[..30 << 20] && after[end..] == before[end..]);
}

#[test]
fn a_pool_on_disks_is_repaired_renamed_and_moved() {
    let (pools, mount) = need_pools!("disks-moved");
    let disks = ["one", "two"].map(|name| Disk::new(&pools, name, 64 * MIB, &[]));
    succeed(&mut create(&pools, &[&disks[0].0, &disks[1].0], ""));
    pools.run("up tank mount --cache 64M");
    (0..3).for_each(|seed| synced(&mount.join(format!("{seed}")), &content(seed, 20 << 20)));
    down(&mount);
    let disk = File::options().write(true).open(&disks[0].0).unwrap();
    disk.write_all_at(&[1; 4096], 0).unwrap();
    drop(disk);
    for (options, code) in [("", 4), ("--repair", 1), ("", 0)] {
        let checked = pools.homenode(&format!("fsck {options} tank")).output().unwrap();
        assert_eq!(checked.status.code(), Some(code), "{options}");
    }
    pools.run("pool export tank");
    let [first, second] = linked(&pools, [&disks[0].0, &disks[1].0]);
    fs::write(pools.path("links/other"), "no member").unwrap();
    std::os::unix::fs::symlink(&first, pools.path("links/zero")).unwrap();
    let known = pools.run("pool import links");
    let [one, two] = [&first, &second].map(|path| format!("{} (block)", path.display()));
    assert!(
        known.contains(&two) && (known.contains(&one) || known.contains("links/zero (block)")),
        "{known}"
    );
    pools.run("up tank mount --cache 64M");
    let three = Disk::new(&pools, "three", 96 * MIB, &[]);
    succeed(pools.homenode("pool add mount").arg(&three.0));
    for member in 0..2 {
        pools.run(&format!("pool drain mount {member}"));
        pools.run(&format!("pool remove mount {member}"));
    }
    assert_eq!(pools.listed()[0]["members"], serde_json::json!([three.0]));
    down(&mount);
    for disk in [&first, &second] {
        let looked = fail(1, pools.homenode("pool import").arg(disk));
        assert!(looked.contains("no member of a pool"), "{looked}");
    }
    pools.run("up tank mount --cache 64M");
    assert_holds(&mount, 3);
    down(&mount);
    // A disk that left holds nothing; one of a pool that is known here stays its own.
    let make = |name: &str, options: &str| {
        let mut make = pools.homenode(&format!("pool create {name} {options}"));
        make.arg(&disks[0].0);
        make
    };
    succeed(&mut make("other", ""));
    let taken = "is a member of pool other (";
    refused(&mut make("third", "--force"), &[taken]);
    pools.run("pool export other");
    refused(
        &mut make("third", ""),
        &[taken, "`homenode pool create --force` makes a new pool of it"],
    );
    // Not when another one cannot be taken: nothing is written then.
    refused(
        make("third", "--force").arg("/dev/homenode-nowhere"),
        &["there is no device"],
    );
    refused(make("third", "--force").arg(&three.0), &["is a member of pool tank ("]);
    refused(&mut make("third", ""), &[taken]);
    succeed(&mut make("third", "--force"));
    assert_eq!(pools.listed().len(), 2);
}

/// A bad sector under one of a member's two superblocks.
#[test]
fn a_superblock_that_cannot_be_read_is_written_again() {
    let (pools, mount) = need_pools!("disks-superblock");
    let disk = Disk::new(&pools, "disk", 64 * MIB, &[]);
    succeed(&mut create(&pools, &[&disk.0], ""));
    pools.run("up tank mount --cache 16M");
    synced(&mount.join("kept"), b"content");
    pools.run("down mount");
    let backing = File::options().write(true).open(pools.path("disk")).unwrap();
    let lose_last_block = || {
        backing.set_len(64 * MIB - 4096).unwrap();
        succeed(Command::new("blockdev").arg("--flushbufs").arg(&disk.0));
    };
    lose_last_block();
    pools.run("up tank mount --cache 16M");
    assert_eq!(fs::read(mount.join("kept")).unwrap(), b"content");
    pools.run("down mount");
    assert_eq!(backing.metadata().unwrap().len(), 64 * MIB, "it was not written");
    lose_last_block();
    let told = describe(&pools.homenode("fsck --repair tank").output().unwrap());
    let damaged = "superblock at the end of member 0";
    assert!(told.contains(damaged) && told.contains("1 fault repaired"), "{told}");
    pools.run("fsck tank");
}

#[test]
fn unreadable_bytes_are_errors_and_status_counts_them() {
    let (pools, mount) = need_pools!("disks-errors");
    let disk = Disk::new(&pools, "disk", 64 * MIB, &[]);
    succeed(&mut create(&pools, &[&disk.0], ""));
    pools.run("up tank mount --cache 64M");
    synced(&mount.join("large"), &content(1, 40 << 20));
    pools.run("down mount");
    pools.run("up tank mount --cache 64M");
    File::options()
        .write(true)
        .open(pools.path("disk"))
        .unwrap()
        .set_len(40 * MIB)
        .unwrap();
    let errno = fs::read(mount.join("large")).unwrap_err().raw_os_error();
    assert_eq!(errno, Some(rustix::io::Errno::IO.raw_os_error()));
    let told = pools.run("status mount");
    says(&told, &["member 0 has failed", "times to read or write"]);
    assert!(status(&mount)["members"][0]["errors"].as_u64().unwrap() > 0);
    end_server(&mount, Signal::KILL);
}

/// Reads of blocks that are being read, writes of parts of them, and cuts, all on one CPU, so that they come to the same ring.
#[test]
fn requests_for_blocks_in_flight_do_not_block_each_other() {
    let (pools, mount) = need_pools!("disks-meet");
    let disk = Disk::new(&pools, "disk", 64 * MIB, &[]);
    succeed(&mut create(&pools, &[&disk.0], ""));
    for transport in ["auto", "classic"] {
        pools.run(&format!("up tank mount --cache 16M --transport {transport}"));
        synced(&mount.join("file"), &content(9, MET_BYTES));
        let (ended, ends) = std::sync::mpsc::channel();
        for number in 0..8 {
            let (path, ended) = (mount.join("file"), ended.clone());
            std::thread::spawn(move || {
                meet(number, &path);
                ended.send(()).unwrap();
            });
        }
        drop(ended);
        for _ in 0..8 {
            let told = ends.recv_timeout(Duration::from_secs(30));
            if told.is_err() {
                // What hangs ends with it.
                end_server(&mount, Signal::KILL);
            }
            told.expect("a thread failed, or waits for ever");
        }
        down(&mount);
        assert!(pools.run("fsck tank").contains("sound"));
    }
}

const MET_BYTES: usize = 40 << 20;

/// Works on the file for 2 s as thread `number`, at the same places as all other threads, in order.
fn meet(number: u64, path: &Path) {
    let bytes = content(9, MET_BYTES);
    let mut cpu = rustix::thread::CpuSet::new();
    cpu.set(0);
    rustix::thread::sched_setaffinity(None, &cpu).unwrap();
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(direct).open(path).unwrap();
    let (mut read, end) = (vec![0; 64 << 10], Instant::now() + Duration::from_secs(2));
    let mut at = 0;
    while Instant::now() < end {
        at = (at + 37 * 4096) % (MET_BYTES - read.len() - (1 << 20));
        match number {
            0 => file.set_len(MET_BYTES as u64 - at as u64 % MIB).unwrap(),
            1 => {
                let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, keep, at as u64, 64 << 10).unwrap();
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(at as u64)).unwrap();
            }
            2..5 => file.write_all_at(&bytes[at + 512..at + 1024], at as u64 + 512).unwrap(),
            _ => {
                file.read_exact_at(&mut read, at as u64).unwrap();
                assert!(read == bytes[at..at + read.len()], "bytes at {at}");
            }
        }
    }
}

#[test]
fn a_cache_too_small_for_the_reads_is_reported() {
    let (pools, mount) = need_pools!("disks-small");
    let disk = Disk::new(&pools, "disk", 64 * MIB, &[]);
    succeed(&mut create(&pools, &[&disk.0], ""));
    pools.run("up tank mount --cache 16M");
    synced(&mount.join("file"), &content(1, 24 << 20));
    let told = |pools: &Pools| {
        let doctor = pools.homenode("doctor").output().unwrap();
        String::from_utf8(doctor.stdout).unwrap()
    };
    let small = format!("the cache of the pool tank at {} is small on node 0: ", mount.display());
    assert!(!told(&pools).contains(&small));
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let file = File::options()
        .read(true)
        .custom_flags(direct)
        .open(mount.join("file"))
        .unwrap();
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..4 {
        (0..24).for_each(|at| file.read_exact_at(&mut bytes, at * MIB).unwrap());
    }
    drop(file);
    let slice = &status(&mount)["cache"][0];
    assert!(slice["returned_bytes"].as_u64() >= Some(8 << 20), "{slice}");
    let told = told(&pools);
    assert!(told.contains(&small), "{told}");
    down(&mount);
}

#[test]
fn a_pool_without_disks_has_no_cache_and_says_so() {
    let (pools, mount) = need_pools!("no-cache");
    succeed(&mut create(&pools, &[Path::new("a")], "--size 32M"));
    let told = pools.homenode("up tank mount --cache 64M").output().unwrap();
    assert!(told.status.success());
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(told.contains("cache: nothing is cached"), "{told}");
    let disk = Disk::new(&pools, "disk", 32 * MIB, &[]);
    refused(pools.homenode("pool add mount").arg(&disk.0), &["no cache for disks"]);
    pools.refused("pool add mount b --size 32M --direct", &["no cache for disks"]);
    assert!(!pools.path("b").exists());
    down(&mount);
}

#[test]
fn a_cache_is_for_durable_pools() {
    let pools = Pools::new("cache-refused");
    pools.refused("up mount --cache 64M", &["--cache is for disks of durable pools"]);
    fail(2, &mut pools.homenode("up tank mount --cache 25%"));
    fail(2, &mut pools.homenode("pool create tank a --cache 0"));
    for bytes in ["1", "1000T"] {
        let mut create = pools.homenode(&format!("pool create tank a --size 64M --direct --cache {bytes}"));
        refused(&mut create, &["a cache cannot have", "give --cache from"]);
        assert!(!pools.path("a").exists());
    }
}
