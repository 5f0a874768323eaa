//! Files by io_uring: on a tmpfs, and on the disk with and without the page cache.

use crate::whole;
use homenode_engine::blk::conformance::{Data, check};
use homenode_engine::blk::{Delay, Distribution, Driver, Durability, Errno, Faults, Outcome, Rates, Request};
use homenode_linux::driver::{Arena, OpenError, UringFile, UringOptions};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

pub(crate) fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(io::stderr(), "SKIPPED: {reason} ({test})");
}

/// A file of `bytes` in a new directory of `parent`.
pub(crate) fn make(parent: &str, bytes: u64) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(parent).unwrap();
    let path = directory.path().join("device");
    File::create_new(&path).unwrap().set_len(bytes).unwrap();
    (directory, path)
}

pub(crate) fn disk() -> String {
    std::env::temp_dir().to_str().unwrap().to_owned()
}

pub(crate) fn buffers() -> Arc<Arena> {
    Arena::new(8 * MIB, None).unwrap()
}

const BUFFERED: UringOptions = UringOptions {
    direct: false,
    read_only: false,
    poll: false,
    queues: 2,
    depth: 32,
};

/// Does `with` with each kind of file there is here.
fn each(bytes: u64, mut with: impl FnMut(&UringFile, &Arc<Arena>, &Path)) {
    for (parent, direct) in [("/dev/shm".to_owned(), false), (disk(), false), (disk(), true)] {
        let (_directory, path) = make(&parent, bytes);
        let buffers = buffers();
        let options = UringOptions { direct, ..BUFFERED };
        match UringFile::open(&path, Arc::clone(&buffers), options) {
            Err(OpenError::NotDirect(_)) if direct => skip("direct I/O needs a disk"),
            opened => with(&opened.unwrap(), &buffers, &path),
        }
    }
}

pub(crate) fn keeps(driver: &impl Driver, buffers: &Arena) {
    let start = Instant::now();
    check(driver, buffers, Data::Kept, || whole::ns(start)).unwrap();
}

#[test]
fn the_driver_conforms() {
    each(8 * MIB, |file, buffers, _| {
        let limits = file.limits();
        assert_eq!(limits.device_bytes, 8 * MIB);
        assert!(limits.can_discard && limits.can_zero, "{limits:?}");
        keeps(file, buffers);
        keeps(&Delay::new(file.clone(), Distribution::Uniform(0, 100_000), 1), buffers);
        let refused = Rates {
            refused: 300,
            ..Rates::default()
        };
        keeps(&Faults::new(file.clone(), refused, 2), buffers);
    });
}

#[test]
fn two_cores_read_back_their_writes() {
    each(8 * MIB, |file, buffers, _| {
        whole::two_cores(file, buffers, 5000);
        let delayed = Delay::new(file.clone(), Distribution::Uniform(0, 100_000), 3);
        whole::two_cores(&Faults::new(delayed, whole::FAULTS, 4), buffers, 2000);
    });
}

#[test]
fn durable_writes_and_discards_work() {
    each(MIB, |file, buffers, path| {
        let block = file.limits().block_bytes.max(4096);
        buffers.write(0, &vec![6; 3 * block as usize]);
        let at = u64::from(block);
        let requests = [
            Request::write(0, 3 * block, 0).durability(Durability::FlushBeforeAndForced),
            Request::flush(),
            Request::write_zeroes(0, block),
            Request::discard(at, block),
        ];
        let expected = [Ok(3 * block), Ok(0), Ok(block), Ok(block)];
        assert_eq!(whole::carry_out(file, &requests), expected);
        let mut found = vec![1; 3 * block as usize];
        File::open(path).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert!(found[..block as usize].iter().all(|byte| *byte == 0));
        assert!(found[2 * block as usize..].iter().all(|byte| *byte == 6));
        assert_eq!(path.metadata().unwrap().size(), MIB);
    });
}

#[test]
fn a_bad_buffer_fails_only_its_request() {
    each(MIB, |file, buffers, _| whole::bad_buffers(file, buffers));
}

#[test]
fn a_shrunk_file_returns_errors() {
    each(MIB, |file, buffers, path| {
        let mut core = whole::device(file, 1).join(0).unwrap();
        let half = u32::try_from(MIB / 2).unwrap();
        buffers.write(0, &vec![5; half as usize]);
        assert_eq!(whole::one(&mut core, Request::write(0, half, 0)), Ok(half));
        // Within a block, whatever its size.
        File::options().write(true).open(path).unwrap().set_len(5000).unwrap();
        let failed: Outcome = Err(Errno::IO);
        assert_eq!(whole::one(&mut core, Request::read(MIB / 4, 4096, 0)), failed);
        assert_eq!(whole::one(&mut core, Request::read(4096, 4096, 0)), failed);
        assert_eq!(whole::one(&mut core, Request::read(0, 4096, 4096)), Ok(4096));
        assert_eq!(whole::one(&mut core, Request::write(MIB / 2, 4096, 0)), Ok(4096));
        assert_eq!(whole::one(&mut core, Request::read(MIB / 2, 4096, 0)), Ok(4096));
    });
}

/// A tmpfs of 1 MiB, which ends with the test.
pub(crate) struct Small(TempDir);

impl Small {
    pub(crate) fn new() -> Option<Self> {
        let small = Self(tempfile::tempdir().unwrap());
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", "size=1M", "homenode-test"])
            .arg(small.path());
        if !command.output().is_ok_and(|output| output.status.success()) {
            skip("needs permission to mount a small tmpfs");
            return None;
        }
        Some(small)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

#[test]
fn a_full_disk_fails_its_request_and_others_continue() {
    let Some(small) = Small::new() else { return };
    let path = small.path().join("device");
    File::create_new(&path).unwrap().set_len(4 * MIB).unwrap();
    let buffers = buffers();
    buffers.write(0, &vec![3; 4 << 20]);
    let file = UringFile::open(&path, Arc::clone(&buffers), BUFFERED).unwrap();
    let mut core = whole::device(&file, 1).join(0).unwrap();
    let piece = 64 << 10;
    let write = |index: u64| Request::write(index * u64::from(piece), piece, index * u64::from(piece));
    let outcomes: Vec<_> = (0..64).map(|index| whole::one(&mut core, write(index))).collect();
    let done = outcomes.iter().filter(|outcome| **outcome == Ok(piece)).count();
    let full: Outcome = Err(Errno::NO_SPACE);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == full).count(), 64 - done);
    assert!((8..=16).contains(&done), "{outcomes:?}");
    assert_eq!(whole::one(&mut core, Request::read(0, piece, 0)), Ok(piece));
    assert_eq!(whole::one(&mut core, Request::discard(0, piece)), Ok(piece));
    assert_eq!(whole::one(&mut core, write(63)), Ok(piece));
}

#[test]
fn a_dropped_queue_writes_no_memory() {
    each(8 * MIB, |file, buffers, path| {
        let bytes = vec![7; 8 << 20];
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .write_all_at(&bytes, 0)
            .unwrap();
        for round in 0..10 {
            buffers.write(0, &vec![0; 8 << 20]);
            let mut core = whole::device(file, 1).join(0).unwrap();
            for index in 0..32 {
                let at = index * 256 * 1024;
                core.submit(Request::read(at, 256 << 10, 8 * MIB - 256 * 1024 - at))
                    .unwrap();
            }
            core.run(round, |_| {});
            drop(core);
            let look = || {
                let mut found = vec![0; 8 << 20];
                buffers.read(0, &mut found);
                found
            };
            let before = look();
            std::thread::sleep(Duration::from_millis(5));
            assert!(look() == before);
        }
    });
}

#[test]
fn files_that_are_no_devices_are_refused_with_the_reason() {
    let (directory, path) = make(&disk(), 100);
    let text = |path: &Path, direct| {
        let options = UringOptions { direct, ..BUFFERED };
        let refused = UringFile::open(path, Arena::new(4096, None).unwrap(), options);
        refused.unwrap_err().to_string()
    };
    let at = path.display();
    assert_eq!(
        text(&path, false),
        format!("{at} has 100 bytes, less than a block of 512: make it larger first (`truncate --size`)")
    );
    assert!(text(directory.path(), false).ends_with("is a directory: name a file in it, or a disk"));
    assert!(text(Path::new("/dev/null"), false).ends_with("is neither a file nor a disk: name one of these"));
    let missing = text(&directory.path().join("missing"), false);
    assert!(missing.contains("No such file"), "{missing}");
    assert!(missing.ends_with("check the name, or make it first (`truncate --size`)"));
    // The kernel's own files take no direct I/O.
    let kernel = text(Path::new("/proc/self/comm"), true);
    assert!(kernel.contains("has no direct I/O"), "{kernel}");
}
