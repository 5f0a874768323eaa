//! Members on a disk that loses what it is given, and the witness that all is there still. Only root may make such a disk.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{OpenOptions, Pool, PoolOptions};
use homenode_engine::MemberId;
use homenode_linux::memory::{MemberFile, witness};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable that makes this test's own process tell the witness of a member.
const ASKED: &str = "HOMENODE_TEST_WITNESS";

/// An ext4 in a sparse file on a tmpfs: when that is full, the disk writes nothing new.
struct Disk(PathBuf);

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Disk {
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            support::skip("only root may mount");
            return None;
        }
        let disk = Self(std::env::temp_dir().join(format!("homenode-{name}-{}", std::process::id())));
        let (tmpfs, image) = (disk.0.join("tmpfs"), disk.0.join("tmpfs/image"));
        fs::create_dir_all(&tmpfs).unwrap();
        fs::create_dir_all(disk.mounted()).unwrap();
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "none"])
            .arg(&tmpfs));
        File::create(&image).unwrap().set_len(200 << 20).unwrap();
        // A journal would end with the first error.
        run(Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image));
        disk.mount();
        Some(disk)
    }

    fn mounted(&self) -> PathBuf {
        self.0.join("mount")
    }

    fn mount(&self) {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(self.0.join("tmpfs/image"))
            .arg(self.mounted()));
    }

    fn member(&self) -> PathBuf {
        let path = self.mounted().join("member");
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        path
    }

    fn fill(&self) {
        let mut file = File::create(self.0.join("tmpfs/fill")).unwrap();
        while file.write_all(&[1; 1 << 16]).is_ok() {}
        while file.write_all(&[1; 1 << 12]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("tmpfs/fill")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mounted in ["bound", "mount", "tmpfs"] {
            let mut umount = Command::new("umount");
            let _ = umount
                .arg("-l")
                .arg(self.0.join(mounted))
                .stderr(Stdio::null())
                .status();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_disk_that_lost_bytes_fails_every_later_sync() {
    let Some(disk) = Disk::new("errors") else { return };
    let member = disk.member();
    let old = vec![7; 8192];
    let pool = Pool::create_on(std::slice::from_ref(&member), &options()).unwrap();
    let files = ["a", "b"].map(|name| pool.create_file(name).unwrap());
    for file in &files {
        file.write_all_at(&old, 0).unwrap();
        file.sync().unwrap();
    }
    disk.fill();
    for file in &files {
        file.write_all_at(&vec![8; 4 << 20], 8192).unwrap();
    }
    // The kernel tells one of them, or the commit; and the disk works again then.
    assert!(files[0].sync().is_err());
    disk.empty();
    for file in &files {
        assert!(file.sync().is_err(), "a sync after lost bytes succeeded");
        assert!(file.sync().is_err(), "a later sync succeeded");
    }
    assert!(pool.sync().is_err());
    assert!(pool.create_file("c").is_err(), "the pool can only be read");
    drop((files, pool));
    // As after a power cut, though the machine went on.
    let pool = Pool::open_on(&[member], &options()).unwrap();
    for name in ["a", "b"] {
        let file = pool.open(name, &OpenOptions::new().read(true)).unwrap();
        assert_eq!(file.metadata().len(), 8192, "bytes that were never durable show");
        let mut read = vec![0; 8192];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == old);
    }
    pool.create_file("c").unwrap().sync().unwrap();
}

/// Groups of the log that the page cache has and the disk does not.
#[test]
fn a_pool_that_is_opened_after_lost_bytes_is_on_the_disk() {
    let Some(disk) = Disk::new("lost") else { return };
    let (member, copy) = (disk.member(), disk.0.join("copy"));
    let pool = Pool::create_on(std::slice::from_ref(&member), &options()).unwrap();
    pool.create_file("a").unwrap().sync().unwrap();
    // Empty segments take no room on the disk any more.
    let mut dig = Command::new("fallocate");
    run(dig.arg("--dig-holes").arg(disk.0.join("tmpfs/image")));
    disk.fill();
    for nth in 0..500 {
        // Until the commit fails.
        let _ = pool.create_file(format!("lost{nth}"));
    }
    assert!(pool.sync().is_err());
    disk.empty();
    drop(pool);
    let pool = Pool::open_on(std::slice::from_ref(&member), &options()).unwrap();
    pool.create_file("c").unwrap().sync().unwrap();
    let mut dd = Command::new("dd");
    dd.args(["iflag=direct", "bs=1M", "conv=sparse", "status=none"]);
    run(dd
        .arg(format!("if={}", member.display()))
        .arg(format!("of={}", copy.display())));
    let pool = Pool::open_on(&[copy], &options()).unwrap();
    assert!(
        pool.metadata("a").is_ok() && pool.metadata("c").is_ok(),
        "a synced file is gone"
    );
}

/// A member that is written once would fill the disk.
fn options() -> PoolOptions {
    let mut options = PoolOptions::new();
    options.unwritten = true;
    options
}

fn witness_of(path: &Path) -> u128 {
    let file = MemberFile::open_to_read(path).unwrap();
    witness([(MemberId(0), &file)]).unwrap()
}

#[test]
fn a_witness_identifies_the_page_cache() {
    if let Some(path) = std::env::var_os(ASKED) {
        println!("witness {}", witness_of(Path::new(&path)));
        return;
    }
    let Some(disk) = Disk::new("witness") else { return };
    let member = disk.member();
    let first = witness_of(&member);
    assert_eq!(first, witness_of(&member));
    // Another mount of the same filesystem has its page cache; also in a namespace of its own, as services are started.
    let bound = disk.0.join("bound");
    fs::create_dir(&bound).unwrap();
    run(Command::new("mount").arg("--bind").arg(disk.mounted()).arg(&bound));
    assert_eq!(first, witness_of(&bound.join("member")), "a bind mount");
    let mut elsewhere = Command::new("unshare");
    elsewhere.arg("--mount").arg(std::env::current_exe().unwrap());
    elsewhere.args(["a_witness_identifies_the_page_cache", "--exact", "--nocapture"]);
    let told = elsewhere.env(ASKED, bound.join("member")).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains(&format!("witness {first}\n")),
        "in another namespace: {told}"
    );
    // A copy is another file, and the page cache goes with the last mount.
    let copy = disk.mounted().join("copy");
    fs::copy(&member, &copy).unwrap();
    assert_ne!(first, witness_of(&copy), "a copy has the same witness");
    run(Command::new("umount").arg(&bound));
    run(Command::new("umount").arg(disk.mounted()));
    disk.mount();
    assert_ne!(first, witness_of(&member), "after another mount");
}
