//! A disk below the cache that hangs for a while, and one that dies, under load: each call ends in time, and what was synced stays.
//!
//! The disk is a file on a mount of another pool; its server is stopped or killed. That pool's member is mapped, so that it loses nothing with its server.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Error, File, OpenOptions, Pool, PoolOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{Files, KILLED, start};

const MIB: u64 = 1 << 20;
/// Environment variable that makes this test's own process the disk's server: where it mounts the pool.
const MOUNT: &str = "HOMENODE_TEST_MOUNT";
/// Threads that write, and as many that read.
const WRITERS: u64 = 8;
const FILE_BYTES: u64 = 3 * MIB;
const RUN_BYTES: usize = 32 << 10;
/// Time in which a call ends when the disk is dead.
const BOUND: Duration = Duration::from_secs(15);
/// Time for which the disk hangs: less than after which calls give up.
const HANGS: Duration = Duration::from_secs(2);

/// A disk that another process serves.
struct Disk {
    files: Files,
    server: Option<Child>,
}

impl Disk {
    /// `None` where nobody can have one.
    fn new(test: &str) -> Option<Self> {
        if let (Some(member), Some(mount)) = (std::env::var_os(KILLED), std::env::var_os(MOUNT)) {
            serve(Path::new(&member), Path::new(&mount));
        }
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED: only root may mount, and /dev/fuse is needed");
            return None;
        }
        let files = Files::new(test);
        let member = files.member("member", 160 * MIB);
        drop(Pool::create_on(&[member], &PoolOptions::new()).unwrap());
        fs::create_dir(files.0.join("mount")).unwrap();
        let mut disk = Self { files, server: None };
        disk.serve(test);
        fs::File::create(disk.path()).unwrap().set_len(96 * MIB).unwrap();
        fs::File::open(disk.path()).unwrap().sync_all().unwrap();
        Some(disk)
    }

    fn path(&self) -> PathBuf {
        self.files.0.join("mount/disk")
    }

    fn serve(&mut self, test: &str) {
        let (member, mount) = (self.files.0.join("member"), self.files.0.join("mount"));
        let variables: [(&str, &OsStr); 2] = [(KILLED, member.as_ref()), (MOUNT, mount.as_ref())];
        self.server = Some(start(test, &variables).0);
    }

    fn signal(&self, signal: Signal) {
        let server = self.server.as_ref().unwrap();
        kill_process(Pid::from_child(server), signal).unwrap();
    }

    fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn unmount(&self) {
        let unmounted = Command::new("umount")
            .arg("-l")
            .arg(self.files.0.join("mount"))
            .status();
        assert!(unmounted.unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.kill();
        }
    }
}

fn serve(member: &Path, mount: &Path) -> ! {
    let pool = Pool::open_on(&[member.to_owned()], &PoolOptions::new()).unwrap();
    let _mount = pool.mount(mount).unwrap();
    println!("up");
    loop {
        thread::park();
    }
}

fn options() -> PoolOptions {
    let mut options = PoolOptions::new().cache(8 * MIB);
    options.direct = true;
    options
}

/// Returns the bytes that a run of a file holds in a version.
fn content(file: u64, run: u64, version: u64) -> Vec<u8> {
    let word = file << 48 | run << 32 | version;
    word.to_le_bytes().repeat(RUN_BYTES / 8)
}

/// The last version of which all was synced, and what ended the writer.
type Written = (u64, Option<Error>);

/// Threads at work on a pool, until an error, or until they are told to end.
#[derive(Default)]
struct Work {
    is_over: AtomicBool,
    calls: AtomicU64,
}

impl Work {
    /// A call that succeeded, or the error that ends a thread.
    fn call<T>(&self, act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let start = Instant::now();
        let result = act();
        assert!(start.elapsed() < BOUND, "a call took {:?}", start.elapsed());
        self.calls.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Overwrites a file and syncs it now and then; the last version of which all was synced, and what ended it.
    fn write(&self, file: &File, number: u64) -> Written {
        let mut synced = 0;
        for version in 1.. {
            for run in 0..FILE_BYTES / RUN_BYTES as u64 {
                if self.is_over.load(Ordering::Relaxed) {
                    return (synced, None);
                }
                let bytes = content(number, run, version);
                if let Err(error) = self.call(|| file.write_all_at(&bytes, run * RUN_BYTES as u64)) {
                    return (synced, Some(error));
                }
            }
            match self.call(|| file.sync()) {
                Ok(()) => synced = version,
                Err(error) => return (synced, Some(error)),
            }
        }
        unreachable!("there are versions enough")
    }

    fn read(&self, file: &File, number: u64) -> Option<Error> {
        let mut random = fastrand::Rng::with_seed(number);
        let mut bytes = vec![0; RUN_BYTES];
        while !self.is_over.load(Ordering::Relaxed) {
            let run = random.u64(..FILE_BYTES / RUN_BYTES as u64);
            if let Err(error) = self.call(|| file.read_exact_at(&mut bytes, run * RUN_BYTES as u64)) {
                return Some(error);
            }
            check(&bytes, number, run, 0);
        }
        None
    }
}

/// Checks that bytes are a run's, of such a version or newer: another thread may be at work on them.
fn check(bytes: &[u8], file: u64, run: u64, least: u64) {
    for word in bytes.as_chunks().0 {
        let word = u64::from_le_bytes(*word);
        assert_eq!(word >> 32, file << 16 | run, "another run's word: {word:#x}");
        assert!(word & 0xffff_ffff >= least, "{word:#x} is older than {least}");
    }
}

/// Runs writers and readers, and `trouble` beside them; returns what each writer and each reader came to.
fn work(pool: &Pool, trouble: impl FnOnce(&Work)) -> (Vec<Written>, Vec<Option<Error>>) {
    let both = OpenOptions::new().read(true).write(true).create(true);
    let files: Vec<File> = (0..WRITERS)
        .map(|number| {
            let file = pool.open(format!("file{number}"), &both).unwrap();
            for run in 0..FILE_BYTES / RUN_BYTES as u64 {
                file.write_all_at(&content(number, run, 0), run * RUN_BYTES as u64)
                    .unwrap();
            }
            file
        })
        .collect();
    pool.sync().unwrap();
    let (work, files) = (&Work::default(), &files);
    thread::scope(|scope| {
        let numbered = || (0..).zip(files);
        let writers: Vec<_> = numbered()
            .map(|(number, file)| scope.spawn(move || work.write(file, number)))
            .collect();
        let readers: Vec<_> = numbered()
            .map(|(number, file)| scope.spawn(move || work.read(file, number)))
            .collect();
        trouble(work);
        let writers = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (
            writers,
            readers.into_iter().map(|reader| reader.join().unwrap()).collect(),
        )
    })
}

fn wait_for_calls(work: &Work, count: u64) {
    let (before, start) = (work.calls.load(Ordering::Relaxed), Instant::now());
    while work.calls.load(Ordering::Relaxed) < before + count {
        assert!(start.elapsed() < BOUND, "no call makes progress");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_slow_or_hanging_disk_fails_no_call() {
    let Some(disk) = Disk::new("a_slow_or_hanging_disk_fails_no_call") else {
        return;
    };
    let pool = Pool::create_on(&[disk.path()], &options()).unwrap();
    let (writers, readers) = work(&pool, |work| {
        wait_for_calls(work, 500);
        disk.signal(Signal::STOP);
        thread::sleep(HANGS);
        disk.signal(Signal::CONT);
        wait_for_calls(work, 500);
        // Slow: it works for a tenth of the time.
        for _ in 0..50 {
            disk.signal(Signal::STOP);
            thread::sleep(Duration::from_millis(45));
            disk.signal(Signal::CONT);
            thread::sleep(Duration::from_millis(5));
        }
        wait_for_calls(work, 500);
        work.is_over.store(true, Ordering::Relaxed);
    });
    for (_, error) in &writers {
        assert!(error.is_none(), "{error:?}");
    }
    assert!(readers.iter().all(Option::is_none), "{readers:?}");
    pool.sync().unwrap();
    drop(pool);
    let pool = Pool::open_on(&[disk.path()], &options()).unwrap();
    check_synced(&pool, &writers);
}

#[test]
fn a_disk_dying_under_load_is_reported_in_time_and_synced_data_is_kept() {
    let test = "a_disk_dying_under_load_is_reported_in_time_and_synced_data_is_kept";
    let Some(mut disk) = Disk::new(test) else { return };
    let pool = Pool::create_on(&[disk.path()], &options()).unwrap();
    let (writers, readers) = work(&pool, |work| {
        wait_for_calls(work, 500);
        disk.kill();
        thread::sleep(Duration::from_secs(2));
        work.is_over.store(true, Ordering::Relaxed);
    });
    for (_, error) in &writers {
        // EROFS where the log was the first that could not be written.
        let errno = error.as_ref().map(Error::errno);
        assert!(errno == Some(5) || errno == Some(30), "{error:?}");
    }
    // All that some of them read is in the cache.
    let is_fine = |error: &Option<Error>| error.as_ref().is_none_or(|error| error.errno() == 5);
    assert!(readers.iter().all(is_fine), "{readers:?}");
    let start = Instant::now();
    assert!(pool.sync().is_err());
    drop(pool);
    assert!(start.elapsed() < BOUND, "putting it away took {:?}", start.elapsed());
    disk.unmount();
    disk.serve(test);
    let pool = Pool::open_on(&[disk.path()], &options()).unwrap();
    check_synced(&pool, &writers);
    pool.create_file("again").unwrap().sync().unwrap();
}

fn check_synced(pool: &Pool, writers: &[Written]) {
    for (number, (synced, _)) in (0..).zip(writers) {
        let bytes = support::read(pool, &format!("file{number}"));
        assert_eq!(bytes.len() as u64, FILE_BYTES);
        for (run, bytes) in (0..).zip(bytes.chunks_exact(RUN_BYTES)) {
            check(bytes, number, run, *synced);
        }
    }
}
