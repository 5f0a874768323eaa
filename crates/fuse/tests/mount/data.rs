//! Contents of files, beside many threads and calls that wait. tests/posix has each call by itself.

use crate::support::{LONG_LOAD, Mounted, TestHost, eventually, options, xattr};
use homenode_engine::CpuId;
use homenode_fuse::{Data, Host, Transport};
use rustix::fs::{Advice, FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_map_of_several_steps_counts_all_bytes_beside_other_readers() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    for at in [0, 100 << 20, 1 << 30, 5 << 30] {
        file.write_all_at(b"x", at).unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let map = String::from_utf8(xattr(&path, "user.homenode.map").unwrap()).unwrap();
                    let bytes = |on: &str| on.split_once('=').unwrap().1.parse::<u64>().unwrap();
                    let all = map.split(',').map(bytes).sum::<u64>();
                    // The kernel may put each of the four in a huge page meanwhile.
                    let more = all.checked_sub(4 * 4096).expect("the map counts all four pages");
                    assert_eq!(more % ((2 << 20) - 4096), 0, "{map}");
                }
            });
        }
    });
    drop(file);
    mounted.finish();
}

#[test]
fn long_maps_leave_a_reader_for_others() {
    let mut options = options();
    (options.transport, options.data) = (Transport::Classic, Data::Auto);
    let Some(mounted) = Mounted::with(&options) else { return };
    if !mounted.is_kernel() {
        crate::support::skip("only files of the kernel have long maps");
        return;
    }
    let path = mounted.path("sparse");
    let file = File::create(&path).unwrap();
    for nth in 0..4000 {
        file.write_all_at(b"x", nth << 26).unwrap();
    }
    let map = || drop(xattr(&path, "user.homenode.map").unwrap());
    let start = Instant::now();
    map();
    let alone = start.elapsed();
    let stop = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    map();
                }
            });
        }
        let look = |number| {
            std::thread::sleep(Duration::from_millis(10));
            let start = Instant::now();
            assert!(!mounted.path(&format!("none {number}")).exists());
            start.elapsed()
        };
        let mut took: Vec<_> = (0..40).map(look).collect();
        stop.store(true, Ordering::Relaxed);
        took.sort_unstable();
        took[took.len() * 9 / 10]
    });
    assert!(
        most < alone,
        "a map takes {alone:?}, and nine of ten other calls up to {most:?} beside some"
    );
    drop(file);
    mounted.finish();
}

#[test]
fn calls_that_wait_for_space_do_not_block_others() {
    // A ring has two entries.
    let mut options = options();
    options.buffer_bytes = 2 * (128 << 10) * TestHost.possible_cpus() as u64;
    let Some(mounted) = Mounted::with(&options) else { return };
    let allocate = |name: &str, bytes| {
        let file = File::create(mounted.path(name)).unwrap();
        (fallocate(&file, FallocateFlags::empty(), 0, bytes), file)
    };
    let (all, file) = allocate("all", 64 << 20);
    all.unwrap();
    // Its room may come back at any moment, so calls without room wait.
    fs::remove_file(mounted.path("all")).unwrap();
    let stop = AtomicBool::new(false);
    let (waited, most) = std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8)
            .map(|thread| {
                let (allocate, stop) = (&allocate, &stop);
                scope.spawn(move || {
                    TestHost.pin_to_cpu(CpuId(0)).unwrap();
                    let mut longest = Duration::ZERO;
                    while !stop.load(Ordering::Relaxed) {
                        let start = Instant::now();
                        let refused = allocate(&format!("file {thread}"), 1 << 20).0;
                        assert_eq!(refused, Err(Errno::NOSPC));
                        longest = longest.max(start.elapsed());
                    }
                    longest
                })
            })
            .collect();
        TestHost.pin_to_cpu(CpuId(0)).unwrap();
        let mut took: Vec<_> = (0..100)
            .map(|number| {
                let start = Instant::now();
                assert!(!mounted.path(&format!("none {number}")).exists());
                std::thread::sleep(Duration::from_millis(2));
                start.elapsed()
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        took.sort_unstable();
        let waited = waiting.into_iter().map(|thread| thread.join().unwrap()).max();
        (waited.unwrap(), took[took.len() * 9 / 10])
    });
    assert!(waited >= Duration::from_millis(200), "no call waited: {waited:?}");
    assert!(most < Duration::from_millis(100), "nine of ten took up to {most:?}");
    drop(file);
    mounted.finish();
}

/// All come to one ring, most of whose entries hold long reads.
#[test]
fn a_user_with_one_read_does_not_wait_for_all_long_ones_of_two_others() {
    const READERS: u32 = 24;
    let mut options = options();
    (options.transport, options.data) = (Transport::Auto, Data::Pool);
    let Some(mounted) = Mounted::with(&options) else { return };
    if mounted.server.transport().transport != Transport::Uring {
        return crate::support::skip(format_args!("no rings here: {}", mounted.server.transport().reason));
    }
    let path = mounted.path("file");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let is_slow = &mounted.fs.pool().memory().is_slow;
    is_slow.store(true, Ordering::Relaxed);
    let median = std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (file, is_slow) = (&file, &is_slow);
            scope.spawn(move || {
                TestHost.pin_to_cpu(CpuId(0)).unwrap();
                let user = Uid::from_raw(1000 + reader % 2);
                set_thread_res_uid(user, user, user).unwrap();
                let mut bytes = vec![0; 1 << 20];
                while is_slow.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut bytes, 0).unwrap();
                }
            });
        }
        let other = scope.spawn(|| {
            TestHost.pin_to_cpu(CpuId(0)).unwrap();
            let nobody = Uid::from_raw(65534);
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut took: Vec<_> = (0..9)
                .map(|_| {
                    std::thread::sleep(LONG_LOAD);
                    let start = Instant::now();
                    file.read_exact_at(&mut [0; 512], 0).unwrap();
                    start.elapsed()
                })
                .collect();
            took.sort_unstable();
            took[took.len() / 2]
        });
        let median = other.join();
        is_slow.store(false, Ordering::Relaxed);
        median.unwrap()
    });
    assert!(
        median < LONG_LOAD * READERS / 3,
        "half of the reads took {median:?} and more"
    );
    drop(file);
    mounted.finish();
}

#[test]
fn far_more_threads_than_cpus_make_progress() {
    let Some(mounted) = Mounted::new() else { return };
    let free = mounted.fs.statfs().free;
    let rounds = |thread: u8| {
        let (path, new) = (
            mounted.path(&format!("file {thread}")),
            mounted.path(&format!("new {thread}")),
        );
        for round in 0..30_u8 {
            let bytes = vec![thread ^ round; 40_000];
            let file = File::create(&new).unwrap();
            fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
            file.write_all_at(&bytes, 1).unwrap();
            file.sync_all().unwrap();
            fs::rename(&new, &path).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 40_001);
            drop(file);
            assert!(fs::read(&path).unwrap()[1..] == bytes, "thread {thread}, round {round}");
            OpenOptions::new().write(true).open(&path).unwrap().set_len(5).unwrap();
            assert_eq!(fs::read(&path).unwrap(), [&[0], &bytes[..4]].concat());
            if round % 3 == 0 {
                fs::remove_file(&path).unwrap();
                assert!(!path.exists());
            }
        }
        fs::remove_file(&path).unwrap();
    };
    std::thread::scope(|scope| {
        let rounds = &rounds;
        for thread in 0..64 {
            scope.spawn(move || rounds(thread));
        }
    });
    assert_eq!(fs::read_dir(&mounted.dir).unwrap().count(), 0);
    eventually("all room is free again", || mounted.fs.statfs().free == free);
    mounted.finish();
}

// Nothing here touches a mapping of a file of the mount: the server is in this process, and could not have memory mapped for it while a
// thread waits for the page. tests/posix/map.rs does.
#[test]
fn written_bytes_are_read_back_from_the_server_and_locks_exclude() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    let mut bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ n >> 8).to_le_bytes()[0]).collect();
    file.write_all_at(&bytes, 0).unwrap();
    file.write_all_at(b"in the middle", 1_234_567).unwrap();
    bytes[1_234_567..1_234_580].copy_from_slice(b"in the middle");
    file.sync_all().unwrap();
    drop_caches(&mounted.dir);
    let mut back = [0; 15];
    file.read_exact_at(&mut back, 1_234_566).unwrap();
    assert_eq!(back, bytes[1_234_566..1_234_581]);
    assert!(fs::read(&path).unwrap() == bytes);

    let again = File::open(&path).unwrap();
    file.try_lock().unwrap();
    assert!(again.try_lock().is_err(), "flock excludes");
    file.unlock().unwrap();
    again.try_lock().unwrap();
    drop((file, again));
    mounted.finish();
}

/// Drops the mount's cached pages, so that the next read asks the server.
fn drop_caches(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        if let Ok(file) = File::open(entry.unwrap().path()) {
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
    }
}
