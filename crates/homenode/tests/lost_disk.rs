//! A disk below the cache that hangs for a while, and one that dies, under load: each call ends in time, and what was synced stays. The calls are the
//! library's, and those of a mount.
//!
//! The disk is a file on a mount of another pool; its server is stopped or killed. That pool's member is mapped, so that it loses nothing with its server.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Error, File, Mount, MountOptions, OpenOptions, Pool, PoolOptions, Transport};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{Files, KILLED, cached, can_mount, start};

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
        if !can_mount() {
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

/// Returns the bytes that a run of a file holds in a version.
fn content(file: u64, run: u64, version: u64) -> Vec<u8> {
    let word = file << 48 | run << 32 | version;
    word.to_le_bytes().repeat(RUN_BYTES / 8)
}

/// Ways to the files of the pool: the library, or a mount. The last one is the one before where there are no rings.
const WAYS: [Option<Transport>; 3] = [None, Some(Transport::Classic), Some(Transport::Auto)];

/// A pool on a disk, and its mount in this process. Nothing maps files of it.
struct Reached {
    mount: Option<Mount>,
    pool: Pool,
}

impl Reached {
    /// `None` where a way is the one before, and is skipped.
    fn new(disk: &Disk, way: Option<Transport>) -> Option<Self> {
        let pool = Pool::create_on(&[disk.path()], &cached()).unwrap();
        let mount = way.map(|transport| {
            let mut options = MountOptions::default();
            options.transport = transport;
            let directory = disk.files.0.join("tank");
            fs::create_dir(&directory).unwrap();
            pool.mount_with(directory, &options).unwrap()
        });
        let chosen = mount.as_ref().map(|mount| mount.transport().transport);
        let is_new = way != Some(Transport::Auto) || chosen != Some(Transport::Classic);
        if !is_new {
            support::skip("a mount by rings: they are not there");
        }
        is_new.then_some(Self { mount, pool })
    }

    fn file(&self, name: &str) -> Box<dyn Bytes> {
        match &self.mount {
            None => {
                let options = OpenOptions::new().read(true).write(true).create(true);
                Box::new(self.pool.open(name, &options).unwrap())
            }
            Some(mount) => {
                let mut options = fs::File::options();
                let options = options.read(true).write(true).create(true).truncate(false);
                Box::new(options.open(mount.directory().join(name)).unwrap())
            }
        }
    }

    /// Unmounts the pool, and makes all durable; then it is closed.
    fn put_away(self) -> Result<(), Error> {
        if let Some(mount) = self.mount {
            // Children of other tests have copies of descriptors until they execute.
            let start = Instant::now();
            while let Err(error) = mount.unmount(false) {
                assert!(error.errno() == 16 && start.elapsed() < BOUND, "{error}");
                thread::sleep(Duration::from_millis(5));
            }
            drop(mount);
        }
        self.pool.sync()
    }
}

/// A file of the pool; errors are told by number.
trait Bytes: Send + Sync {
    fn write(&self, from: &[u8], offset: u64) -> Result<(), i32>;
    fn read(&self, to: &mut [u8], offset: u64) -> Result<(), i32>;
    fn sync(&self) -> Result<(), i32>;
}

impl Bytes for File {
    fn write(&self, from: &[u8], offset: u64) -> Result<(), i32> {
        self.write_all_at(from, offset).map_err(|error| error.errno())
    }

    fn read(&self, to: &mut [u8], offset: u64) -> Result<(), i32> {
        self.read_exact_at(to, offset).map(drop).map_err(|error| error.errno())
    }

    fn sync(&self) -> Result<(), i32> {
        File::sync(self).map_err(|error| error.errno())
    }
}

impl Bytes for fs::File {
    fn write(&self, from: &[u8], offset: u64) -> Result<(), i32> {
        self.write_all_at(from, offset).map_err(number)
    }

    fn read(&self, to: &mut [u8], offset: u64) -> Result<(), i32> {
        self.read_exact_at(to, offset).map_err(number)
    }

    fn sync(&self) -> Result<(), i32> {
        self.sync_all().map_err(number)
    }
}

fn number(error: io::Error) -> i32 {
    error.raw_os_error().expect("the kernel's")
}

/// The last version of which all was synced, and what ended the writer.
type Written = (u64, Option<i32>);

/// Threads at work on a pool, until an error, or until they are told to end.
#[derive(Default)]
struct Work {
    is_over: AtomicBool,
    calls: AtomicU64,
}

impl Work {
    /// A call that succeeded, or the error that ends a thread.
    fn call(&self, act: impl FnOnce() -> Result<(), i32>) -> Result<(), i32> {
        let start = Instant::now();
        let result = act();
        assert!(start.elapsed() < BOUND, "a call took {:?}", start.elapsed());
        self.calls.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Overwrites a file and syncs it now and then; the last version of which all was synced, and what ended it.
    fn write(&self, file: &dyn Bytes, number: u64) -> Written {
        let mut synced = 0;
        for version in 1.. {
            for run in 0..FILE_BYTES / RUN_BYTES as u64 {
                if self.is_over.load(Ordering::Relaxed) {
                    return (synced, None);
                }
                let bytes = content(number, run, version);
                if let Err(error) = self.call(|| file.write(&bytes, run * RUN_BYTES as u64)) {
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

    fn read(&self, file: &dyn Bytes, number: u64) -> Option<i32> {
        let mut random = fastrand::Rng::with_seed(number);
        let mut bytes = vec![0; RUN_BYTES];
        while !self.is_over.load(Ordering::Relaxed) {
            let run = random.u64(..FILE_BYTES / RUN_BYTES as u64);
            if let Err(error) = self.call(|| file.read(&mut bytes, run * RUN_BYTES as u64)) {
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
fn work(reached: &Reached, trouble: impl FnOnce(&Work)) -> (Vec<Written>, Vec<Option<i32>>) {
    let files: Vec<_> = (0..WRITERS)
        .map(|number| {
            let file = reached.file(&format!("file{number}"));
            for run in 0..FILE_BYTES / RUN_BYTES as u64 {
                file.write(&content(number, run, 0), run * RUN_BYTES as u64).unwrap();
            }
            file.sync().unwrap();
            file
        })
        .collect();
    reached.pool.sync().unwrap();
    let (work, files) = (&Work::default(), &files);
    thread::scope(|scope| {
        let numbered = || (0..).zip(files);
        let writers: Vec<_> = numbered()
            .map(|(number, file)| scope.spawn(move || work.write(&**file, number)))
            .collect();
        let readers: Vec<_> = numbered()
            .map(|(number, file)| scope.spawn(move || work.read(&**file, number)))
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
    for way in WAYS {
        let Some(disk) = Disk::new("a_slow_or_hanging_disk_fails_no_call") else {
            return;
        };
        let Some(reached) = Reached::new(&disk, way) else {
            return;
        };
        let (writers, readers) = work(&reached, |work| {
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
        assert!(writers.iter().all(|(_, error)| error.is_none()), "{way:?}: {writers:?}");
        assert!(readers.iter().all(Option::is_none), "{way:?}: {readers:?}");
        reached.put_away().unwrap();
        let pool = Pool::open_on(&[disk.path()], &cached()).unwrap();
        check_synced(&pool, &writers);
    }
}

#[test]
fn a_disk_dying_under_load_is_reported_in_time_and_synced_data_is_kept() {
    let test = "a_disk_dying_under_load_is_reported_in_time_and_synced_data_is_kept";
    for way in WAYS {
        let Some(mut disk) = Disk::new(test) else { return };
        let Some(reached) = Reached::new(&disk, way) else {
            return;
        };
        let (writers, readers) = work(&reached, |work| {
            wait_for_calls(work, 500);
            disk.kill();
            thread::sleep(Duration::from_secs(2));
            work.is_over.store(true, Ordering::Relaxed);
        });
        // EROFS where the log was the first that could not be written.
        let is_told = |(_, error): &Written| matches!(error, Some(5 | 30));
        assert!(writers.iter().all(is_told), "{way:?}: {writers:?}");
        // All that some of them read is in a cache.
        let is_fine = |error: &Option<i32>| matches!(error, None | Some(5));
        assert!(readers.iter().all(is_fine), "{way:?}: {readers:?}");
        let start = Instant::now();
        assert!(reached.put_away().is_err());
        assert!(start.elapsed() < BOUND, "putting it away took {:?}", start.elapsed());
        disk.unmount();
        disk.serve(test);
        let pool = Pool::open_on(&[disk.path()], &cached()).unwrap();
        check_synced(&pool, &writers);
        pool.create_file("again").unwrap().sync().unwrap();
    }
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
