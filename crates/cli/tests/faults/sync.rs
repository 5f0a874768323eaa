//! Programs that sync what they write, when their server is killed. Bytes in the pool's blocks are gone, and nothing is acknowledged
//! from then on; bytes in files of the kernel are there for as long as somebody has them open.

use super::machine::*;
use crate::command::harness::*;
use memmap2::MmapMut;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const PAGE_BYTES: usize = 4096;
const PAGES: usize = 64;

/// A new file of [`PAGES`] pages, open, and mapped for as long as the test runs.
fn mapped(path: &Path) -> (File, MmapMut) {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len((PAGES * PAGE_BYTES) as u64).unwrap();
    // SAFETY: nobody else opens the file, and nobody makes it shorter.
    let map = unsafe { MmapMut::map_mut(&file) }.unwrap();
    // Without a server a page that the kernel dropped could not come back: a store would be SIGBUS.
    map.lock().unwrap();
    (file, map)
}

/// Kills the server of `dir`; returns when its mount answers ENOTCONN.
fn kill_server(dir: &Path) {
    signal(server_pid(dir).unwrap(), Signal::KILL);
    let errno = || fs::metadata(dir).err().and_then(|error| error.raw_os_error());
    wait_until("the mount has lost its server", || errno() == Some(107));
}

#[test]
fn fsync_and_msync_fail_after_the_server_was_killed() {
    on_each_transport("sync", |_, dir, transport| {
        up_with(transport, "pool", &dir);
        let (file, mut map) = mapped(&dir.join("file"));
        let directory = File::open(&dir).unwrap();
        let sync_each = |map: &MmapMut| -> [io::Result<()>; 4] {
            [map.flush(), file.sync_all(), file.sync_data(), directory.sync_all()]
        };
        map.fill(1);
        for synced in sync_each(&map) {
            synced.unwrap();
        }
        map.fill(2);
        kill_server(&dir);
        for round in 0..3 {
            for (call, synced) in ["msync", "fsync", "fdatasync", "fsync of a directory"]
                .iter()
                .zip(sync_each(&map))
            {
                assert!(synced.is_err(), "{transport}, round {round}: {call} succeeded");
            }
            map.fill(3 + round);
        }
    });
}

#[test]
fn open_kernel_files_work_after_the_server_was_killed() {
    on_each_transport("outlive", |_, dir, transport| {
        if !kernel_can_hold_bytes(transport, &dir) {
            return;
        }
        let (file, mut map) = mapped(&dir.join("file"));
        map.fill(1);
        kill_server(&dir);
        for byte in 2..5 {
            map.fill(byte);
            map.flush().unwrap();
            let mut back = [0; 3 * PAGE_BYTES];
            file.read_exact_at(&mut back, PAGE_BYTES as u64).unwrap();
            assert!(back.iter().all(|&found| found == byte), "{transport}");
            let end = (PAGES * PAGE_BYTES) as u64;
            file.write_all_at(&[byte; 5000], end).unwrap();
            file.sync_all().unwrap();
            file.read_exact_at(&mut back[..5000], end).unwrap();
            assert!(back[..5000].iter().all(|&found| found == byte), "{transport}");
        }
        let errno = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());
        assert_eq!(errno(file.metadata().map(drop)), Some(107), "{transport}: stat");
        assert_eq!(
            errno(File::open(dir.join("file")).map(drop)),
            Some(107),
            "{transport}: open"
        );
    });
}

/// Mounts a pool whose bytes are in files of the kernel, where it can hold them.
pub(super) fn kernel_can_hold_bytes(transport: &str, dir: &Path) -> bool {
    up_with(transport, "auto", dir);
    let is_kernel = status(dir)["fuse"]["data"] == "kernel";
    if !is_kernel {
        skipped("this kernel passes no reads and writes through");
        down(dir);
    }
    is_kernel
}

/// Commits as LMDB does with MDB_WRITEMAP: a data page, msync, one of two meta pages that names it, msync.
fn commit(map: &mut MmapMut, number: u64) -> io::Result<()> {
    let page_of = |number: u64, pages: usize| usize::try_from(number).unwrap() % pages;
    let data = 2 + page_of(number, PAGES - 2);
    for page in [data, page_of(number, 2)] {
        let start = page * PAGE_BYTES;
        map[start..start + 8].copy_from_slice(&number.to_le_bytes());
        map.flush_range(start, PAGE_BYTES)?;
    }
    Ok(())
}

#[test]
fn a_mapped_database_acknowledges_nothing_after_the_server_was_killed() {
    const COMMITS_BEFORE: u64 = 100;
    const COMMITS_MAX: u64 = 1_000_000;
    on_each_transport("writemap", |_, dir, transport| {
        up_with(transport, "pool", &dir);
        let (_file, mut map) = mapped(&dir.join("data.mdb"));
        let acknowledged = AtomicU64::new(0);
        thread::scope(|scope| {
            let database = scope.spawn(|| {
                let failed = (1..=COMMITS_MAX).find(|&number| {
                    let done = commit(&mut map, number);
                    acknowledged.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                    done.is_err()
                });
                failed.is_some()
            });
            let count = || acknowledged.load(Ordering::Relaxed);
            wait_until("the database is at work", || {
                count() >= COMMITS_BEFORE || database.is_finished()
            });
            kill_server(&dir);
            let when_gone = count();
            assert!(database.join().unwrap(), "{transport}: a commit fails");
            // One may have had its last answer, and not been counted yet.
            assert!(count() <= when_gone + 1, "{transport}: {} after {when_gone}", count());
        });
    });
}
