//! A disk below a mounted pool that hangs, is slow or dies, under load. A file on a mount of another pool plays it: the server of that is stopped or killed, and
//! loses nothing of what it was given.

use super::*;
use rustix::process::{Pid, kill_process};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Threads that overwrite and sync a file each, while as many read the files.
const WRITERS: u64 = 8;
const FILE_BYTES: usize = 3 << 20;
const RUN_BYTES: usize = 32 << 10;
/// Time in which a call ends when the disk is dead.
const BOUND: Duration = Duration::from_secs(20);

struct Lost {
    pools: Pools,
    below: PathBuf,
    /// Server of the disk.
    server: Pid,
    mount: PathBuf,
}

impl Lost {
    fn new(test: &str) -> Self {
        let pools = Pools::new(test);
        let (below, mount) = (pools.0.dir("below"), pools.0.dir("mount"));
        succeed(&mut pools.homenode("pool create below a --size 160M"));
        succeed(&mut pools.homenode("up below below"));
        succeed(&mut pools.homenode("pool create tank below/disk --size 96M --direct --cache 8M"));
        succeed(&mut pools.homenode("up tank mount"));
        let server = server_pid(&below).unwrap();
        Self {
            pools,
            below,
            server,
            mount,
        }
    }
}

/// The last byte that was synced everywhere in a file, and what ended its writer.
type Written = (u8, io::Result<()>);

/// Threads at work on files of a mount, until an error, or until they are told to end.
#[derive(Default)]
struct Work {
    is_over: AtomicBool,
    calls: AtomicU64,
}

impl Work {
    /// A call that succeeded, or the error that ends a thread.
    fn call(&self, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let start = Instant::now();
        let result = act();
        assert!(start.elapsed() < BOUND, "a call took {:?}", start.elapsed());
        self.calls.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Overwrites a file and syncs it; the last byte that was synced everywhere in it, and what ended it.
    fn write(&self, file: &File) -> Written {
        let mut synced = 0;
        for byte in 1..=u8::MAX {
            let write = |at: usize| self.call(|| file.write_all_at(&[byte; RUN_BYTES], at as u64));
            for at in (0..FILE_BYTES).step_by(RUN_BYTES) {
                if self.is_over.load(Ordering::Relaxed) {
                    return (synced, Ok(()));
                }
                if let Err(error) = write(at) {
                    return (synced, Err(error));
                }
            }
            match self.call(|| file.sync_all()) {
                Ok(()) => synced = byte,
                Err(error) => return (synced, Err(error)),
            }
        }
        panic!("the disk is as fast as memory");
    }

    fn read(&self, file: &File) -> io::Result<()> {
        let mut random = fastrand::Rng::new();
        let mut bytes = vec![0; RUN_BYTES];
        while !self.is_over.load(Ordering::Relaxed) {
            let at = random.usize(..FILE_BYTES / RUN_BYTES) * RUN_BYTES;
            self.call(|| file.read_exact_at(&mut bytes, at as u64))?;
        }
        Ok(())
    }

    fn wait_for_calls(&self, count: u64) {
        let (before, start) = (self.calls.load(Ordering::Relaxed), Instant::now());
        while self.calls.load(Ordering::Relaxed) < before + count {
            assert!(start.elapsed() < BOUND, "no call makes progress");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs the threads, and `trouble` beside them; returns what each writer and each reader came to.
fn work(mount: &Path, trouble: impl FnOnce(&Work)) -> (Vec<Written>, Vec<io::Result<()>>) {
    let open = |number| {
        let path = mount.join(format!("{number}"));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        file.write_all_at(&vec![0; FILE_BYTES], 0).unwrap();
        file.sync_all().unwrap();
        file
    };
    let (work, files) = (&Work::default(), &(0..WRITERS).map(open).collect::<Vec<_>>());
    thread::scope(|scope| {
        let writers: Vec<_> = files.iter().map(|file| scope.spawn(move || work.write(file))).collect();
        let readers: Vec<_> = files.iter().map(|file| scope.spawn(move || work.read(file))).collect();
        trouble(work);
        let writers = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (
            writers,
            readers.into_iter().map(|reader| reader.join().unwrap()).collect(),
        )
    })
}

/// Checks that all bytes of each file are the last that were synced, or newer.
fn check(mount: &Path, writers: &[Written]) {
    for (number, (synced, _)) in writers.iter().enumerate() {
        let bytes = fs::read(mount.join(format!("{number}"))).unwrap();
        assert_eq!(bytes.len(), FILE_BYTES);
        let oldest = bytes.iter().min().unwrap();
        assert!(oldest >= synced, "file {number}: {oldest} is older than {synced}");
    }
}

#[test]
fn a_slow_or_hanging_disk_fails_no_call_on_a_mount() {
    need_mounts!();
    let lost = Lost::new("slow-disk");
    let (writers, readers) = work(&lost.mount, |work| {
        let stop_for = |time| {
            signal(lost.server, Signal::STOP);
            thread::sleep(Duration::from_millis(time));
            signal(lost.server, Signal::CONT);
        };
        work.wait_for_calls(300);
        stop_for(2000);
        work.wait_for_calls(300);
        // Slow: it works for a tenth of the time.
        for _ in 0..40 {
            stop_for(45);
            thread::sleep(Duration::from_millis(5));
        }
        work.wait_for_calls(300);
        work.is_over.store(true, Ordering::Relaxed);
    });
    assert!(writers.iter().all(|(_, ended)| ended.is_ok()), "{writers:?}");
    assert!(readers.iter().all(Result::is_ok), "{readers:?}");
    down(&lost.mount);
    succeed(&mut lost.pools.homenode("up tank mount"));
    check(&lost.mount, &writers);
    down(&lost.mount);
    down(&lost.below);
}

#[test]
fn a_dying_disk_is_reported_to_all_callers_in_time_and_to_down() {
    need_mounts!();
    let lost = Lost::new("dead-disk");
    let (writers, readers) = work(&lost.mount, |work| {
        work.wait_for_calls(300);
        kill_server(&lost.below, Signal::KILL);
        thread::sleep(Duration::from_secs(2));
        work.is_over.store(true, Ordering::Relaxed);
    });
    let errno = |ended: &io::Result<()>| ended.as_ref().err().and_then(io::Error::raw_os_error);
    for (_, ended) in &writers {
        // EROFS where the log was the first that could not be written.
        assert!([Some(5), Some(30)].contains(&errno(ended)), "{ended:?}");
    }
    // The kernel has all that some of them read.
    assert!(
        readers.iter().all(|ended| [None, Some(5)].contains(&errno(ended))),
        "{readers:?}"
    );
    assert!(status(&lost.mount)["members"][0]["errors"].as_u64().unwrap() > 0);
    let start = Instant::now();
    refused(
        &mut lost.pools.homenode("down mount"),
        &["is unmounted", "could not be closed"],
    );
    assert!(start.elapsed() < BOUND, "down took {:?}", start.elapsed());
    down(&lost.below);
    succeed(&mut lost.pools.homenode("up below below"));
    succeed(&mut lost.pools.homenode("up tank mount"));
    check(&lost.mount, &writers);
    fs::write(lost.mount.join("again"), "it works").unwrap();
    down(&lost.mount);
    assert!(succeed(&mut lost.pools.homenode("fsck tank")).contains("sound"));
    down(&lost.below);
}

/// umount(8) does not wait for the server.
#[test]
fn a_pool_is_mounted_again_and_checked_right_after_it_is_unmounted() {
    need_mounts!();
    let pools = Pools::new("again");
    let mount = pools.0.dir("mount");
    succeed(&mut pools.homenode("pool create tank a --size 32M"));
    for round in 0..2 {
        succeed(&mut pools.homenode("up tank mount"));
        fs::write(mount.join("file"), [round; 5000]).unwrap();
        let server = server_pid(&mount).unwrap().as_raw_nonzero();
        let slow = "--inject=msync,fdatasync,fsync:delay_enter=700000";
        let mut tracer = Command::new("strace")
            .args([
                "--follow-forks",
                "--output=/dev/null",
                "--trace=msync,fdatasync,fsync",
                slow,
            ])
            .arg(format!("--attach={server}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("all threads are traced", || {
            let tasks = fs::read_dir(format!("/proc/{server}/task")).unwrap();
            let is_traced = |task: io::Result<fs::DirEntry>| {
                let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
                status
                    .lines()
                    .any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
            };
            tasks.into_iter().all(is_traced)
        });
        assert!(Command::new("umount").arg(&mount).status().unwrap().success());
        if round == 1 {
            assert!(succeed(&mut pools.homenode("fsck tank")).contains("sound"));
        } else {
            succeed(&mut pools.homenode("up tank mount"));
            assert_eq!(fs::read(mount.join("file")).unwrap(), [round; 5000]);
            down(&mount);
        }
        tracer.wait().unwrap();
    }
}

#[test]
fn down_reports_a_server_that_is_killed_while_it_puts_the_pool_away() {
    const ATTEMPTS: usize = 10;
    need_mounts!();
    let lost = Lost::new("put-away");
    let is_told = || {
        fs::write(lost.mount.join("file"), vec![1; 16 << 20]).unwrap();
        let server = server_pid(&lost.mount).unwrap();
        let mut command = lost.pools.homenode("down mount");
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it is unmounted", || mounts_below(&lost.mount).is_empty());
        let _ = kill_process(server, Signal::KILL);
        let told = command.wait_with_output().unwrap();
        let errors = String::from_utf8(told.stderr).unwrap();
        let is_told = errors.contains("killed before it had put the pool away");
        assert_eq!(told.status.code(), Some(i32::from(is_told)), "{errors}");
        succeed(&mut lost.pools.homenode("up tank mount"));
        is_told
    };
    // A server that has put the pool away is not there to be killed.
    assert!((0..ATTEMPTS).any(|_| is_told()), "no server was killed in time");
    down(&lost.mount);
    down(&lost.below);
}

#[test]
fn down_does_not_end_a_pool_whose_file_has_no_name() {
    need_mounts!();
    let pools = Pools::new("unnamed");
    succeed(&mut pools.homenode("pool create tank a --size 32M"));
    let mount = pools.0.dir("mount");
    succeed(&mut pools.homenode("up tank mount"));
    fs::write(mount.join("file"), "precious").unwrap();
    fs::remove_file(pools.path("a")).unwrap();
    refused(
        &mut pools.homenode("down mount"),
        &["member 0", "no longer at", "copy", "--force"],
    );
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"precious");
    succeed(&mut pools.homenode("down mount --force"));
    assert_nothing_mounted(pools.0.path());
    // Nothing is promised of a pool whose file is gone.
    let forgot = succeed(&mut pools.homenode("pool export tank --force"));
    assert!(
        forgot.contains("forgot the name tank") && forgot.contains("needs the files"),
        "{forgot}"
    );
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    need_mounts!();
    let pools = Pools::new("sizes");
    fs::File::create(pools.path("a")).unwrap().set_len(32 << 20).unwrap();
    let told = fail(1, &mut pools.homenode("pool create tank a --size 64M"));
    assert!(told.contains("has 32 MiB, where --size asks for 64 MiB"), "{told}");
    succeed(&mut pools.homenode("pool create tank a --size 32M"));
}

#[test]
fn an_exported_pool_of_a_killed_server_is_no_pool_of_memory() {
    need_mounts!();
    let pools = Pools::new("exported");
    succeed(&mut pools.homenode("pool create tank a --size 32M"));
    let mount = pools.0.dir("mount");
    succeed(&mut pools.homenode("up tank mount"));
    kill_server(&mount, Signal::KILL);
    succeed(&mut pools.homenode("pool export tank"));
    let output = pools.homenode("down mount").output().unwrap();
    let said = describe(&output);
    assert!(
        said.contains("durable pool tank")
            && said.contains("keep all written data")
            && !said.contains("memory are lost"),
        "{said}"
    );
    succeed(&mut pools.homenode("pool import a"));
}
