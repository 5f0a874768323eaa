//! A durable pool whose disk takes its time: who waits for it, and who does not. Each test by both transports.

use crate::support::{
    Disk, Mounted, TestFs, TestHost, durable_filesystem, eventually, filesystem, options, persistent_filesystem,
};
use homenode_engine::CpuId;
use homenode_fuse::{Host, Server, Transport};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// More fsyncs than there are threads that read the device.
const SYNCS: usize = 8;
/// In this time an operation that waits for nothing is done.
const SOON: Duration = Duration::from_secs(5);

/// Runs `test` on a mount of each transport.
fn by_both(test: impl Fn(&Mounted)) {
    by_both_of(durable_filesystem, test);
}

/// [`by_both`] on a filesystem that `make` makes.
fn by_both_of(make: fn() -> Arc<TestFs>, test: impl Fn(&Mounted)) {
    for transport in [Transport::Uring, Transport::Classic] {
        let mut options = options();
        options.transport = if transport == Transport::Uring {
            Transport::Auto
        } else {
            transport
        };
        let Some(mounted) = Mounted::of(make, &options) else {
            return;
        };
        if mounted.server.transport().transport != transport {
            crate::support::skip(format_args!("no rings here: {}", mounted.server.transport().reason));
            continue;
        }
        test(&mounted);
    }
}

fn disk(mounted: &Mounted) -> &Disk {
    mounted.fs.pool().memory().disk()
}

/// A file that is open past the page cache, so that reads reach the server, with `bytes` bytes in it that are not durable.
fn file(mounted: &Mounted, name: &str, bytes: usize) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(mounted.path(name))
        .unwrap();
    file.write_all_at(&vec![7; bytes], 0).unwrap();
    file
}

/// A file for each fsync.
fn files(mounted: &Mounted) -> Vec<File> {
    (0..SYNCS)
        .map(|nth| file(mounted, &format!("file-{nth}"), 4096))
        .collect()
}

/// Calls `then` when fsyncs of all files have begun and wait for the disk; returns what each fsync returned.
fn synced(mounted: &Mounted, files: &[File], then: impl FnOnce()) -> Vec<io::Result<()>> {
    let disk = disk(mounted);
    disk.stick(0);
    thread::scope(|scope| {
        let sync = |file| {
            scope.spawn(move || {
                on_cpu_0();
                File::sync_all(file)
            })
        };
        let syncs: Vec<_> = files.iter().map(sync).collect();
        eventually("one waits for the disk", || disk.state().waiting > 0);
        then();
        syncs.into_iter().map(|sync| sync.join().unwrap()).collect()
    })
}

/// Keeps this thread on CPU 0, so that all come to the same ring.
fn on_cpu_0() {
    TestHost.pin_to_cpu(CpuId(0)).unwrap();
}

/// Service of a caller on the same CPU while an fsync waits.
fn check_served(mounted: &Mounted, read: &File, name: &str) {
    let start = Instant::now();
    let mut byte = [0; 512];
    read.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [7; 512]);
    let made = File::create(mounted.path(name)).unwrap();
    made.write_all_at(b"new", 0).unwrap();
    assert_eq!(made.metadata().unwrap().len(), 3);
    std::fs::rename(mounted.path(name), mounted.path("renamed")).unwrap();
    assert!(
        start.elapsed() < SOON,
        "the call waited for the disk: {:?}",
        start.elapsed()
    );
}

/// Runs `act`, which waits for a write of so many bytes or more to the disk, and `others` beside it, which must not wait, all on CPU 0.
fn while_waiting(
    mounted: &Mounted,
    bytes: usize,
    act: impl FnOnce() -> io::Result<()> + Send,
    others: impl FnOnce() + Send,
) {
    let disk = disk(mounted);
    disk.stick(bytes);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            on_cpu_0();
            act()
        });
        eventually("it waits for the disk", || disk.state().waiting > 0);
        let others = scope.spawn(|| {
            on_cpu_0();
            others();
        });
        let start = Instant::now();
        while !others.is_finished() && start.elapsed() < 2 * SOON {
            thread::sleep(Duration::from_millis(1));
        }
        let is_served = others.is_finished() && !waits.is_finished();
        // So that the test ends.
        disk.release();
        others.join().unwrap();
        waits.join().unwrap().unwrap();
        assert!(is_served, "the others waited, or nobody did");
    });
}

#[test]
fn waiting_fsyncs_share_one_forced_write_and_do_not_block_others() {
    by_both(|mounted| {
        let read = file(mounted, "read", 4096);
        let files = files(mounted);
        let (disk, ended) = (disk(mounted), AtomicUsize::new(0));
        disk.stick(0);
        let before = disk.state().done;
        thread::scope(|scope| {
            let sync = |file: &File| {
                on_cpu_0();
                file.sync_all().unwrap();
                ended.fetch_add(1, Ordering::Relaxed);
            };
            let first = &files[0];
            scope.spawn(move || sync(first));
            eventually("the first waits for the disk", || disk.state().waiting == 1);
            for file in &files[1..] {
                scope.spawn(move || sync(file));
            }
            scope
                .spawn(|| {
                    on_cpu_0();
                    // The others have come to the server by then, or are behind this thread in its queue.
                    eventually("all have asked", || {
                        mounted.asked(homenode_fuse::wire::Opcode::FSync) == SYNCS as u64
                    });
                    check_served(mounted, &read, "made");
                })
                .join()
                .unwrap();
            assert_eq!(ended.load(Ordering::Relaxed), 0, "an fsync returned too early");
            disk.release();
        });
        let forced = disk.state().done - before;
        assert!((2..=4).contains(&forced), "{forced} forced writes for {SYNCS} fsyncs");
    });
}

/// Past the page cache no fsync follows such a write.
#[test]
fn a_synchronous_write_returns_when_durable_and_blocks_no_other_call() {
    by_both(|mounted| {
        let read = file(mounted, "read", 4096);
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let mut options = File::options();
        let file = options
            .write(true)
            .create(true)
            .custom_flags(flags)
            .open(mounted.path("file"))
            .unwrap();
        let others = || check_served(mounted, &read, "made");
        while_waiting(mounted, 0, || file.write_all_at(&[1; 4096], 0), others);
    });
}

/// A file of 4 KiB whose inode's number is that of another one by the last two digits of base 64, as the pools' locks are.
fn alike(mounted: &Mounted, other: &File) -> File {
    let number = |file: &File| file.metadata().unwrap().ino() % 64;
    let mut files = (0..).map(|nth| file(mounted, &format!("alike-{nth}"), 4096));
    files.find(|file| number(file) == number(other)).unwrap()
}

#[test]
fn a_short_fsync_does_not_wait_for_a_long_one() {
    by_both(|mounted| {
        let long = file(mounted, "long", 1 << 20);
        let short = alike(mounted, &long);
        // Forced writes of the log are smaller.
        let others = || short.sync_data().unwrap();
        while_waiting(mounted, 64 << 10, || long.sync_all(), others);
    });
}

/// Less than a run of blocks of a long file, which two CPUs may take in turns; more than a forced write of the log.
const RUN_BYTES_MIN: usize = 128 << 10;

/// It writes the processor's caches back, which takes a second for some GiB.
#[test]
fn a_long_fsync_of_persistent_memory_does_not_block_others() {
    by_both_of(persistent_filesystem, |mounted| {
        let (long, read) = (file(mounted, "long", 8 << 20), file(mounted, "read", 4096));
        let short = alike(mounted, &long);
        let others = || {
            short.sync_all().unwrap();
            check_served(mounted, &read, "made");
        };
        while_waiting(mounted, RUN_BYTES_MIN, || long.sync_all(), others);
    });
}

/// A file that takes another's name must be durable before that name is.
#[test]
fn an_fsync_that_needs_another_file_durable_does_not_block_others() {
    by_both_of(persistent_filesystem, |mounted| {
        let (read, short) = (file(mounted, "read", 4096), file(mounted, "short", 4096));
        file(mounted, "old", 4096).sync_all().unwrap();
        file(mounted, "new", 8 << 20);
        fs::rename(mounted.path("new"), mounted.path("old")).unwrap();
        let others = || check_served(mounted, &read, "made");
        while_waiting(mounted, RUN_BYTES_MIN, || short.sync_all(), others);
    });
}

/// The kernel tells of interrupts ahead of inodes that are to be forgotten.
#[test]
fn a_signal_sends_no_request() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGURG, nothing as *const () as usize) };
    by_both(|mounted| {
        let (file, disk) = (file(mounted, "file", 4096), disk(mounted));
        disk.stick(0);
        thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let file = &file;
            let waits = scope.spawn(move || {
                // SAFETY: it has no conditions.
                tell.send(unsafe { libc::pthread_self() }).unwrap();
                file.sync_all()
            });
            let thread = told.recv().unwrap();
            eventually("it waits for the disk", || disk.state().waiting == 1);
            for _ in 0..10 {
                // SAFETY: the thread is joined below.
                assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGURG) }, 0);
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(mounted.asked(homenode_fuse::wire::Opcode::Interrupt), 0);
            disk.release();
            waits.join().unwrap().unwrap();
        });
    });
}

/// Making a file longer is as long as fallocate where it reserves room: here it waits until freed blocks are given back.
#[test]
fn a_file_that_reserves_what_it_grows_by_does_not_block_others() {
    by_both(|mounted| {
        let (grows, read) = (file(mounted, "grows", 4096), file(mounted, "read", 4096));
        let name = std::ffi::CString::new(mounted.path("grows").as_os_str().as_encoded_bytes()).unwrap();
        let (attribute, value) = (c"user.homenode.reserve", b"extend");
        // SAFETY: strings with their ends, and a value with its length.
        let set = unsafe { libc::setxattr(name.as_ptr(), attribute.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
        assert_eq!(set, 0);
        // More than is free, but for what is given back.
        let free = mounted.fs.statfs().free * 4096;
        drop(file(mounted, "goes", 8 << 20));
        fs::remove_file(mounted.path("goes")).unwrap();
        let others = || check_served(mounted, &read, "made");
        while_waiting(mounted, 0, || grows.set_len(free - (4 << 20)), others);
    });
}

/// Room for the log is taken with a forced write: whoever needs it waits, and nobody else.
#[test]
fn a_change_that_waits_for_log_space_does_not_block_others() {
    by_both(|mounted| {
        let (read, disk) = (file(mounted, "read", 4096), disk(mounted));
        disk.stick(128 << 10);
        thread::scope(|scope| {
            let (mounted, read) = (&mounted, &read);
            let maker = scope.spawn(move || {
                on_cpu_0();
                // Names until the log goes on in another segment.
                let make = |nth: usize| File::create(mounted.path(&format!("{nth:0>200}")));
                (0..2000).try_for_each(|nth| make(nth).map(drop))
            });
            eventually("a change waits for the disk", || disk.state().waiting > 0);
            let reader = scope.spawn(move || {
                on_cpu_0();
                let start = Instant::now();
                read.read_exact_at(&mut [0; 512], 0).unwrap();
                read.metadata().unwrap();
                start.elapsed()
            });
            assert!(reader.join().unwrap() < SOON);
            assert!(!maker.is_finished());
            disk.release();
            maker.join().unwrap().unwrap();
        });
    });
}

#[test]
fn every_fsync_reports_a_failed_disk() {
    by_both(|mounted| {
        let files = files(mounted);
        let disk = disk(mounted);
        let results = synced(mounted, &files, || {
            disk.state().fails = true;
            disk.release();
        });
        let is_told = |result: &io::Result<()>| {
            result
                .as_ref()
                .is_err_and(|error| error.raw_os_error() == Some(libc::EIO))
        };
        assert!(results.iter().all(is_told), "{results:?}");
        let refused = files[0]
            .write_all_at(&[1; 4096], 0)
            .map_err(|error| error.raw_os_error());
        assert_eq!(refused, Err(Some(libc::EROFS)));
    });
}

#[test]
fn a_mount_ends_during_fsyncs() {
    by_both(|mounted| {
        let results = synced(mounted, &files(mounted), || mounted.server.stop().unwrap());
        assert!(results.iter().all(Result::is_err), "an fsync succeeded: {results:?}");
        disk(mounted).release();
        mounted.server.wait().unwrap();
    });
}

#[test]
fn an_old_server_spares_the_mount_that_got_its_number() {
    by_both(|old| {
        drop(file(old, "file", 4096));
        let disk = disk(old);
        disk.stick(0);
        let mut child = Command::new("sync").arg(old.path("file")).spawn().unwrap();
        eventually("it waits for the disk", || disk.state().waiting > 0);
        assert!(
            Command::new("umount")
                .args(["-l", "-f"])
                .arg(&old.dir)
                .status()
                .unwrap()
                .success()
        );
        child.wait().unwrap();
        let new = Server::mount(filesystem(), Arc::new(TestHost), &old.dir, &options()).unwrap();
        if new.device() != old.server.device() {
            crate::support::skip("another mount got the number");
        }
        // A thread of it is at work still.
        assert!(!old.server.ends_within(Duration::from_millis(1)));
        old.server.unmount(false).unwrap_err();
        old.server.stop().unwrap_err();
        fs::write(old.path("new"), "it serves").unwrap();
        new.stop().unwrap();
        disk.release();
        old.server.wait().unwrap();
    });
}

#[test]
fn a_killed_process_leaves_only_its_fsync_behind() {
    by_both(|mounted| {
        let (kept, disk) = (file(mounted, "file", 4096), disk(mounted));
        disk.stick(0);
        let mut child = Command::new("sync").arg(mounted.path("file")).spawn().unwrap();
        eventually("it waits for the disk", || disk.state().waiting > 0);
        child.kill().unwrap();
        disk.release();
        assert!(!child.wait().unwrap().success());
        kept.write_all_at(&[7; 4096], 0).unwrap();
        kept.sync_all().unwrap();
    });
}
