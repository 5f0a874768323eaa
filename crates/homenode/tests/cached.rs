//! Durable pools whose members are reached past the page cache, with less memory than data.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{File, MemberKind, MountOptions, OpenOptions, Pool, Transport};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};
use support::{cached, can_mount};

const MIB: u64 = 1 << 20;
const FILE_BYTES: usize = 40 << 20;

/// A member beside the target, as /tmp may be a tmpfs, which has no page cache to be passed.
fn member(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("member");
    fs::File::create(&path).unwrap().set_len(96 * MIB).unwrap();
    path
}

fn byte_of(thread: usize, at: usize) -> u8 {
    (at / 512 * 7 + thread * 31).to_le_bytes()[0]
}

fn check(file: &File, thread: usize, at: usize, bytes: usize) {
    let mut read = vec![0; bytes];
    assert_eq!(file.read_at(&mut read, at as u64).unwrap(), bytes);
    for (nth, byte) in read.iter().enumerate() {
        assert_eq!(*byte, byte_of(thread, at + nth), "byte {} of thread {thread}", at + nth);
    }
}

#[test]
fn a_pool_holds_more_data_than_its_cache() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let members = [member(&directory)];
    let pool = Pool::create_on(&members, &cached()).unwrap();
    assert_eq!(pool.status().members[0].kind, MemberKind::Block);
    thread::scope(|scope| {
        for thread in 0..2 {
            let pool = &pool;
            scope.spawn(move || {
                let file = pool.create_file(format!("file{thread}")).unwrap();
                let mut random = fastrand::Rng::with_seed(thread as u64);
                let all: Vec<u8> = (0..FILE_BYTES).map(|at| byte_of(thread, at)).collect();
                for at in (0..FILE_BYTES).step_by(100_000) {
                    let end = (at + 100_000).min(FILE_BYTES);
                    file.write_all_at(&all[at..end], at as u64).unwrap();
                    // Some of it is away by now.
                    let back = random.usize(..end - 512);
                    check(&file, thread, back, 512.min(end - back));
                    let part = random.usize(..end - 100);
                    file.write_all_at(&all[part..part + 100], part as u64).unwrap();
                }
                file.sync().unwrap();
            });
        }
    });
    let cache = pool.cache();
    let fetched: u64 = cache.slices.iter().map(|slice| slice.fetched_bytes).sum();
    assert!(fetched > 0, "no block was ever evicted: {cache:?}");
    drop(pool);
    let pool = Pool::open_on(&members, &cached()).unwrap();
    for thread in 0..2 {
        let file = pool
            .open(format!("file{thread}"), &OpenOptions::new().read(true))
            .unwrap();
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            check(&file, thread, at, 1 << 20);
        }
        let word = file.with_bytes(4096, 8, |lent| lent.word(0)).unwrap();
        assert_eq!(word, u64::from_le_bytes([byte_of(thread, 4096); 8]));
    }
}

/// Status of the threads that tend the cache: their names, their flags, and the CPUs that they may run on.
fn keepers() -> Vec<(String, u64, String)> {
    let keeper = |task: fs::DirEntry| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).ok();
        let name = read("comm")?.trim().to_owned();
        let flags = homenode_linux::process::Stat::parse(read("stat")?.as_bytes())?.flags;
        let status = read("status")?;
        let cpus = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        name.starts_with("keeper ")
            .then(|| (name, flags, cpus.trim().to_owned()))
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(Result::ok).filter_map(keeper).collect()
}

#[test]
fn keeper_threads_run_on_their_slices_nodes() {
    /// `PF_MEMALLOC_NOIO` of the kernel: what `PR_SET_IO_FLUSHER` sets.
    const NO_IO: u64 = 0x0008_0000;
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let pool = Pool::create_on(&[member(&directory)], &cached()).unwrap();
    let nodes: Vec<_> = pool.cache().slices.iter().map(|slice| slice.node).collect();
    // CAP_SYS_RESOURCE.
    let may_be_flusher = capabilities() >> 24 & 1 == 1;
    if !may_be_flusher {
        support::skip("whether keepers are flushers: only a process with CAP_SYS_RESOURCE may make them such");
    }
    for (slice, node) in nodes.iter().enumerate() {
        let list = fs::read_to_string(format!("/sys/devices/system/node/node{}/cpulist", node.0)).unwrap();
        let is_there = |(name, flags, cpus): &(String, u64, String)| {
            *name == format!("keeper {slice}") && *cpus == list.trim() && (!may_be_flusher || flags & NO_IO != 0)
        };
        // They begin by themselves.
        let mut found = Vec::new();
        let there = (0..1000).any(|_| {
            thread::sleep(std::time::Duration::from_millis(1));
            found = keepers();
            found.iter().any(is_there)
        });
        assert!(there, "keeper {slice} is not on {list}: {found:?}");
    }
}

fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(own.trim(), 16).unwrap()
}

/// Threads of the crowd: many more than CPUs.
const CROWD: u64 = 64;
/// Bytes of the file of each: together far more than the cache has.
const CROWD_FILE_BYTES: u64 = MIB;
/// Time that the crowd works, and that a thread of it may wait for one call: the disk of the machine may be busy with others.
const CROWD_TIME: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A file of a thread of the crowd, in the library or on a mount.
struct CrowdFile<'a> {
    write: &'a dyn Fn(&[u8], u64) -> io::Result<()>,
    read: &'a dyn Fn(&mut [u8], u64) -> io::Result<()>,
    sync: &'a dyn Fn() -> io::Result<()>,
}

/// Writes, reads back and syncs for a while, from when all have `begun`; returns the number of rounds, and the longest call.
fn work(file: &CrowdFile<'_>, thread: u64, begun: &AtomicU64) -> (u64, Duration) {
    let mut random = fastrand::Rng::with_seed(thread);
    let mut content = vec![0; usize::try_from(CROWD_FILE_BYTES).unwrap()];
    // Of memory that was never touched the kernel sends FUSE a page or less at a time.
    random.fill(&mut content);
    let mut worst = Duration::ZERO;
    let mut timed = |act: &mut dyn FnMut() -> io::Result<()>| {
        let start = Instant::now();
        act().unwrap();
        worst = worst.max(start.elapsed());
    };
    timed(&mut || (file.write)(&content, 0));
    begun.fetch_add(1, Ordering::Relaxed);
    let start = Instant::now();
    while begun.load(Ordering::Relaxed) < CROWD && start.elapsed() < CALL_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (mut rounds, end) = (0, Instant::now() + CROWD_TIME);
    while Instant::now() < end {
        let range = |random: &mut fastrand::Rng| {
            let start = random.usize(..content.len() - (64 << 10));
            // Whole blocks, and parts of some.
            let start = if random.bool() { start & !4095 } else { start };
            start..start + random.usize(1..64 << 10)
        };
        let (written, read) = (range(&mut random), range(&mut random));
        random.fill(&mut content[written.clone()]);
        timed(&mut || (file.write)(&content[written.clone()], written.start as u64));
        let mut back = vec![0; read.len()];
        timed(&mut || (file.read)(&mut back, read.start as u64));
        assert!(
            back == content[read],
            "thread {thread} reads other bytes in round {rounds}"
        );
        if random.u8(..8) == 0 {
            timed(&mut || (file.sync)());
        }
        rounds += 1;
    }
    let mut back = vec![0; content.len()];
    timed(&mut || (file.read)(&mut back, 0));
    assert!(back == content, "thread {thread} has other bytes in the end");
    (rounds, worst)
}

/// Runs the crowd on two CPUs; `job` opens the file of a thread, and works on it.
fn crowd(what: &str, job: impl Fn(u64, &AtomicU64) -> (u64, Duration) + Sync) {
    let begun = AtomicU64::new(0);
    let rounds: Vec<(u64, Duration)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CROWD)
            .map(|number| {
                let (job, begun) = (&job, &begun);
                scope.spawn(move || {
                    let mut cpus = rustix::thread::CpuSet::new();
                    let may = rustix::thread::sched_getaffinity(None).unwrap();
                    let two = (0..rustix::thread::CpuSet::MAX_CPU)
                        .filter(|cpu| may.is_set(*cpu))
                        .take(2);
                    two.for_each(|cpu| cpus.set(cpu));
                    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
                    job(number, begun)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let least = rounds.iter().map(|(rounds, _)| *rounds).min().unwrap();
    let total: u64 = rounds.iter().map(|(rounds, _)| rounds).sum();
    let worst = rounds.iter().map(|(_, worst)| *worst).max().unwrap();
    eprintln!("{what}: {total} rounds of {CROWD} threads, {least} at least, the longest call {worst:?}");
    assert!(
        least > 0 && worst < CALL_TIMEOUT,
        "{what}: {least} rounds of one thread, {worst:?}"
    );
}

#[test]
fn many_threads_share_a_small_cache_fairly() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let pool = Pool::create_on(&[member(&directory)], &cached()).unwrap();
    crowd("library", |thread, begun| {
        let file = pool.create_file(format!("file{thread}")).unwrap();
        let file = CrowdFile {
            write: &|bytes, at| Ok(file.write_all_at(bytes, at)?),
            read: &|bytes, at| Ok(file.read_exact_at(bytes, at).map(drop)?),
            sync: &|| Ok(file.sync()?),
        };
        work(&file, thread, begun)
    });
    if !can_mount() {
        return;
    }
    for transport in [Transport::Auto, Transport::Classic] {
        let mount = directory.path().join("mount");
        fs::create_dir_all(&mount).unwrap();
        let mut mounting = MountOptions::default();
        mounting.transport = transport;
        let mounted = pool.mount_with(&mount, &mounting).unwrap();
        let what = format!("mount, {}", mounted.transport().transport);
        crowd(&what, |thread, begun| {
            let both = || fs::File::options().read(true).write(true).clone();
            let file = both().open(mount.join(format!("file{thread}"))).unwrap();
            let file = CrowdFile {
                write: &|bytes, at| file.write_all_at(bytes, at),
                read: &|bytes, at| file.read_exact_at(bytes, at),
                sync: &|| file.sync_all(),
            };
            work(&file, thread, begun)
        });
        mounted.unmount(false).unwrap();
        mounted.wait().unwrap();
    }
}

/// A disk of more blocks than any process can have an index for: refused, and as it was.
#[test]
fn a_disk_whose_index_finds_no_memory_is_refused_before_it_is_written() {
    // A tmpfs takes files of such sizes.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let huge = directory.path().join("huge");
    fs::File::create(&huge).unwrap().set_len(1 << 62).unwrap();
    let refused = |error: homenode::Error| {
        let (text, errno) = (error.to_string(), error.errno());
        let names = text.contains(&huge.display().to_string());
        assert!(names && text.contains("4366270464 MiB"), "{text}");
        assert_eq!(errno, 12, "ENOMEM");
    };
    match Pool::create_on(std::slice::from_ref(&huge), &cached()) {
        Err(error) if error.to_string().contains("direct") => {
            support::skip("this kernel's tmpfs takes no direct requests");
            return;
        }
        made => refused(made.unwrap_err()),
    }
    let own = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let pool = Pool::create_on(&[member(&own)], &cached()).unwrap();
    let tables = pool.cache().table_bytes;
    let new = homenode::NewFile {
        direct: true,
        ..Default::default()
    };
    refused(pool.add_file(&huge, new).unwrap_err());
    assert_eq!(pool.status().members.len(), 1);
    assert_eq!(pool.cache().table_bytes, tables);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&huge).unwrap());
    assert_eq!(blocks, 0, "the file was written to");
}
