//! Durable pools whose members are reached past the page cache, with less memory than data.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use homenode::{File, MemberKind, OpenOptions, Pool, PoolOptions};
use std::fs;
use std::path::PathBuf;
use std::thread;

const MIB: u64 = 1 << 20;
const FILE_BYTES: usize = 40 << 20;

/// A member beside the target, as /tmp may be a tmpfs, which has no page cache to be passed.
fn member(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("member");
    fs::File::create(&path).unwrap().set_len(96 * MIB).unwrap();
    path
}

fn options() -> PoolOptions {
    let mut options = PoolOptions::new().cache(8 * MIB);
    options.direct = true;
    options
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
fn more_is_kept_than_fits_into_the_cache() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let members = [member(&directory)];
    let pool = Pool::create_on(&members, &options()).unwrap();
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
    let fetched: u64 = cache.slices.iter().map(|slice| slice.fetched).sum();
    assert!(fetched > 0, "nothing was ever away: {cache:?}");
    drop(pool);
    let pool = Pool::open_on(&members, &options()).unwrap();
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
        let stat = read("stat")?;
        // Field 9, the seventh behind the name.
        let flags = stat.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse().ok()?;
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
fn keepers_run_on_the_nodes_of_their_slices() {
    /// `PF_MEMALLOC_NOIO` of the kernel: what `PR_SET_IO_FLUSHER` sets.
    const NO_IO: u64 = 0x0008_0000;
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let pool = Pool::create_on(&[member(&directory)], &options()).unwrap();
    let nodes: Vec<_> = pool.cache().slices.iter().map(|slice| slice.node).collect();
    // CAP_SYS_RESOURCE.
    let may_be_flusher = capabilities() >> 24 & 1 == 1;
    if !may_be_flusher {
        eprintln!("SKIPPED: whether keepers are flushers: only a process with CAP_SYS_RESOURCE may make them such");
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
