//! Contents of files: written, appended, mapped, sparse, unlinked.

use crate::support::{Mounted, TestHost, created, direct, eventually, options, xattr};
use homenode_engine::CpuId;
use homenode_fuse::{Data, Host, Transport};
use rustix::fs::{Advice, FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn files_return_written_bytes() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    let pattern: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[0])
        .collect();
    fs::write(&path, &pattern).unwrap();
    assert_eq!(fs::read(&path).unwrap(), pattern);

    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"in the middle", 1_234_567).unwrap();
    let mut back = [0; 15];
    file.read_exact_at(&mut back, 1_234_566).unwrap();
    assert_eq!(&back[1..14], b"in the middle");
    assert_eq!((back[0], back[14]), (pattern[1_234_566], pattern[1_234_580]));

    drop_caches(&mounted.dir);
    file.read_exact_at(&mut back, 1_234_566).unwrap();
    assert_eq!(
        &back[1..14],
        b"in the middle",
        "also in the server, not in cached pages only"
    );

    let found = fs::metadata(&path).unwrap();
    assert_eq!(
        (found.len(), found.nlink(), found.mode() & 0o777),
        (3_000_000, 1, 0o644)
    );
    assert_eq!(found.blocks(), 3_000_000_u64.div_ceil(4096) * 8);

    file.set_len(10).unwrap();
    assert_eq!(fs::read(&path).unwrap(), &pattern[..10]);
    file.set_len(8192).unwrap();
    let grown = fs::read(&path).unwrap();
    assert!(grown[10..].iter().all(|&byte| byte == 0), "cut bytes came back");
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC");
    drop(file);
    mounted.finish();
}

#[test]
fn appends_do_not_overlap() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("log");
    File::create(&path).unwrap();
    std::thread::scope(|scope| {
        for (name, direct) in [(b'a', false), (b'b', false), (b'c', true), (b'd', true)] {
            let path = &path;
            scope.spawn(move || {
                let flags = if direct { libc::O_DIRECT } else { 0 };
                let mut file = OpenOptions::new().append(true).custom_flags(flags).open(path).unwrap();
                for _ in 0..200 {
                    file.write_all(&[name; 100]).unwrap();
                }
            });
        }
    });
    let log = fs::read(&path).unwrap();
    assert_eq!(log.len(), 4 * 200 * 100);
    assert!(
        log.chunks(100)
            .all(|record| record.iter().all(|&byte| byte == record[0])),
        "records are whole"
    );
    mounted.finish();
}

#[test]
fn direct_writers_of_one_file_do_not_disturb_each_other() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("data");
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let file = direct(path);
                for block in 0..128_u64 {
                    let at = (block * 4 + u64::from(writer)) * 16384;
                    file.write_all_at(&[writer + 1; 16384], at).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(&path).unwrap();
    let expected = |index: usize| u8::try_from(index % 4 + 1).unwrap();
    assert!(
        bytes
            .chunks(16384)
            .enumerate()
            .all(|(index, chunk)| chunk.iter().all(|&byte| byte == expected(index)))
    );
    // A buffered reader sees a later direct write.
    let file = direct(&path);
    file.write_all_at(&[9; 4096], 4096).unwrap();
    assert_eq!(fs::read(&path).unwrap()[4096..8192], [9; 4096]);
    drop(file);
    mounted.finish();
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let Some(mounted) = Mounted::new() else { return };
    let free = mounted.fs.statfs().free;
    let path = mounted.path("file");
    let mut file = created(&path);
    file.write_all(&vec![7; 1 << 20]).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop_caches(&mounted.dir);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert!(back.len() == 1 << 20 && back.iter().all(|&byte| byte == 7));
    drop(file);

    let unnamed = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(&mounted.dir)
        .unwrap();
    unnamed.write_all_at(b"no name", 0).unwrap();
    assert_eq!(unnamed.metadata().unwrap().len(), 7);
    drop(unnamed);
    // FORGET comes after close returns.
    eventually("the blocks are free again", || mounted.fs.statfs().free == free);
    mounted.finish();
}

#[test]
fn holes_and_reservations() {
    let Some(mounted) = Mounted::new() else { return };
    if mounted.is_kernel() {
        return; // tests/posix has the cases, with what large pages fill.
    }
    let path = mounted.path("sparse");
    let file = created(&path);
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"data", 1 << 30).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 8);
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 30));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 30)), Ok((1 << 30) + 4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(1 << 31)), Err(Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 1 << 30, 4096).unwrap();
    let mut back = [1; 4];
    file.read_exact_at(&mut back, 1 << 30).unwrap();
    assert_eq!((back, file.metadata().unwrap().blocks()), ([0; 4], 0));
    file.set_len(0).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!((found.len(), found.blocks()), (1 << 20, 2048));
    assert_eq!(xattr(&path, "user.homenode.map").unwrap(), b"", "reserved, not placed");

    let copy = File::create(mounted.path("copy")).unwrap();
    file.write_all_at(&[5; 10_000], 0).unwrap();
    seek(rustix::fs::SeekFrom::Start(0)).unwrap();
    assert_eq!(std::io::copy(&mut &file, &mut &copy).unwrap(), 1 << 20);
    assert_eq!(fs::read(mounted.path("copy")).unwrap()[9_998..10_002], [5, 5, 0, 0]);
    drop((file, copy));
    mounted.finish();
}

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
        eprintln!("SKIPPED: only files of the kernel have long maps");
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
    let longest = std::thread::scope(|scope| {
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
        let longest = (0..40).map(look).max();
        stop.store(true, Ordering::Relaxed);
        longest.unwrap()
    });
    assert!(
        longest < alone,
        "a map takes {alone:?}, and another call {longest:?} beside some"
    );
    drop(file);
    mounted.finish();
}

#[test]
fn a_full_pool_returns_enospc_and_stays_usable() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.path("other"), b"other").unwrap();
    let file = File::create(mounted.path("big")).unwrap();
    let chunk = vec![3; 1 << 20];
    let error = (0..1000)
        .find_map(|number| file.write_all_at(&chunk, number << 20).err())
        .expect("64 MiB are not endless");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(fs::read(mounted.path("other")).unwrap(), b"other");
    fs::remove_file(mounted.path("big")).unwrap();
    drop(file);
    eventually("the big file is gone", || !mounted.fs.has_unlinked());
    fs::write(mounted.path("next"), &chunk).unwrap();
    assert_eq!(fs::read(mounted.path("next")).unwrap(), chunk);
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
    let file = created(&path);
    file.write_all_at(b"bytes", 0).unwrap();
    file.sync_all().unwrap();
    drop_caches(&mounted.dir);
    let mut back = [0; 5];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"bytes");

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
