//! Attributes, and where bytes lie.

use crate::support::{
    Mounted, TestFs, eventually, filesystem, options, persistent_filesystem, set_xattr, tick, xattr, xattr_names,
};
use homenode_fuse::Data;
use homenode_fuse::wire::Opcode;
use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Attributes that were read before a change and arrive after it are not kept.
#[test]
fn a_change_beside_a_look_shows() {
    const ROUNDS: u32 = 1_000;
    let Some(mounted) = Mounted::new() else { return };
    let (dir, file) = (mounted.path("dir"), mounted.path("file"));
    fs::create_dir(&dir).unwrap();
    File::create(&file).unwrap();
    let look = |path: &Path| {
        rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
    };
    let (begun, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let wait = || {
        while begun.load(Ordering::SeqCst) % 2 == 0 && !is_over.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                wait();
                look(&dir);
                look(&file);
                begun.fetch_add(1, Ordering::SeqCst);
            }
        });
        let is_right = (0..ROUNDS).all(|round| {
            let before = begun.fetch_add(1, Ordering::SeqCst);
            let name = dir.join("below");
            let (links, mode) = if round % 2 == 0 {
                fs::create_dir(&name).unwrap();
                (3, 0o640)
            } else {
                fs::remove_dir(&name).unwrap();
                (2, 0o644)
            };
            set_xattr(&file, "system.posix_acl_access", &access_list(mode)).unwrap();
            while begun.load(Ordering::SeqCst) == before + 1 {
                std::thread::yield_now();
            }
            let (links_found, mode_found) = (fs::metadata(&dir).unwrap().nlink(), fs::metadata(&file).unwrap().mode());
            (links_found, mode_found & 0o777) == (links, mode)
        });
        is_over.store(true, Ordering::SeqCst);
        assert!(is_right, "an answer of before is kept");
    });
    mounted.finish();
}

/// An access control list that says what these permissions say.
fn access_list(mode: u32) -> Vec<u8> {
    let entry = |tag: u16, bits: u32| {
        let bits = u16::try_from(bits & 7).unwrap();
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
    };
    let entries = [entry(1, mode >> 6), entry(4, mode >> 3), entry(0x20, mode)];
    [&2_u32.to_le_bytes()[..], &entries.concat()].concat()
}

/// A reservation of several steps: the first of them sets the size already.
#[test]
fn all_that_makes_a_file_longer_is_reserved() {
    const BYTES: u64 = 56 << 20;
    let mut classic = options();
    classic.transport = homenode_fuse::Transport::Classic;
    for options in [options(), classic] {
        let Some(mounted) = Mounted::with(&options) else { return };
        let path = mounted.path("file");
        let file = File::create(&path).unwrap();
        set_xattr(&path, "user.homenode.reserve", b"extend").unwrap();
        file.set_len(5000).unwrap();
        file.set_len(BYTES).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.blocks() * 512), (BYTES, BYTES));
        assert_eq!(file.set_len(4 * BYTES).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(fs::metadata(&path).unwrap().len(), BYTES);
        file.set_len(BYTES / 2).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), BYTES / 2);
        drop(file);
        mounted.finish();
    }
}

/// The kernel's word to forget a removed file comes behind the answer to its removal.
#[test]
fn what_a_removal_gives_back_can_be_used_at_once() {
    let mut classic = options();
    classic.transport = homenode_fuse::Transport::Classic;
    for options in [options(), classic] {
        let Some(mounted) = Mounted::with(&options) else { return };
        mounted.fs.set_metadata_limit(1 << 20);
        type Change = fn(&Path) -> io::Result<()>;
        let kinds: [(Change, Change); 3] = [
            (|path| File::create_new(path).map(drop), |path| fs::remove_file(path)),
            (|path| fs::create_dir(path), |path| fs::remove_dir(path)),
            (|path| symlink("there", path), |path| fs::remove_file(path)),
        ];
        let path = |nth: usize| mounted.path(&format!("{nth:0100}"));
        for (make, remove) in kinds {
            let count = (0..).find(|nth| make(&path(*nth)).is_err()).unwrap();
            assert!(count > 100, "{count} names");
            for nth in 0..count {
                remove(&path(nth)).unwrap();
                make(&path(nth)).unwrap_or_else(|error| panic!("name {nth} of {count}: {error}"));
            }
            (0..count).for_each(|nth| remove(&path(nth)).unwrap());
        }
        mounted.finish();
    }
}

#[test]
fn extended_attributes_and_placement() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    set_xattr(&path, "user.color", b"blue").unwrap();
    set_xattr(&path, "trusted.secret", b"1").unwrap();
    assert_eq!(xattr(&path, "user.color").unwrap(), b"blue");
    assert_eq!(
        rustix::fs::setxattr(&path, "user.color", b"red", XattrFlags::CREATE),
        Err(Errno::EXIST)
    );
    assert_eq!(
        xattr(&path, "user.none").unwrap_err().raw_os_error(),
        Some(libc::ENODATA)
    );
    let names = xattr_names(&path).unwrap();
    assert!(names.split(|&byte| byte == 0).any(|name| name == b"user.color"));
    assert!(!names.windows(4).any(|part| part == b"map\0"), "the map is not listed");

    if mounted.is_kernel() {
        // Its pages are on nodes of the machine, not on made-up ones.
        assert_eq!(xattr(&path, "user.homenode.map").unwrap(), b"0=4096");
        return mounted.finish();
    }
    // Each file on the node of the CPU that wrote it: even CPUs are node 0, odd ones node 1.
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    for cpu in [0, 1].into_iter().filter(|&cpu| allowed.is_set(cpu)) {
        let path = mounted.path(&format!("written on {cpu}"));
        let script = "dd if=/dev/zero of=\"$1\" bs=64k count=4 2>/dev/null";
        let status = Command::new("taskset")
            .args(["-c", &cpu.to_string(), "sh", "-c", script, "sh"])
            .arg(&path)
            .status();
        assert!(status.unwrap().success());
        let map = String::from_utf8(xattr(&path, "user.homenode.map").unwrap()).unwrap();
        assert_eq!(map, format!("{cpu}={}", 4 * 65536));
    }
    let reserved = File::create(mounted.path("reserved")).unwrap();
    rustix::fs::fallocate(&reserved, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    let map = xattr(&mounted.path("reserved"), "user.homenode.map").unwrap();
    assert_eq!(map, b"", "reserved, not placed");
    drop(reserved);
    set_xattr(&mounted.dir, "user.homenode.policy", b"node:1").unwrap();
    let inheriting = mounted.path("inheriting");
    fs::write(&inheriting, vec![1; 8192]).unwrap();
    assert_eq!(xattr(&inheriting, "user.homenode.map").unwrap(), b"1=8192");
    mounted.finish();
}

/// A shared mapping of the first 8 KiB of a file, unmapped when dropped.
struct Mapped(*mut libc::c_void);

impl Mapped {
    const BYTES: usize = 8192;

    fn new(file: &File) -> Self {
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping of an open file, no address asked for.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(map, libc::MAP_FAILED);
        Self(map)
    }

    fn store(&self) {
        // SAFETY: the first byte of a mapping that may be written.
        unsafe { self.0.cast::<u8>().write_volatile(1) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody uses any more.
        unsafe { libc::munmap(self.0, Self::BYTES) };
    }
}

#[test]
fn attributes_of_a_closed_file_are_fetched_once() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, [1; 100]).unwrap();
    eventually("the writer has closed", || mounted.fs.open_count() == 0);
    let asked = || mounted.server.statistics().request_count();
    fs::metadata(&path).unwrap();
    let before = asked();
    for _ in 0..10 {
        assert_eq!(fs::metadata(&path).unwrap().len(), 100);
    }
    assert_eq!(asked(), before);
    mounted.finish();
}

#[test]
fn attributes_of_a_new_file_are_fetched_after_it_grows_and_show_stores() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    let file = File::create_new(&path).unwrap();
    let asked = mounted.asked(Opcode::GetAttr);
    for _ in 0..10 {
        rustix::fs::fstat(&file).unwrap();
    }
    assert_eq!(mounted.asked(Opcode::GetAttr), asked);
    // Another descriptor makes room, and stores through a mapping.
    let other = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::ftruncate(&other, Mapped::BYTES as u64).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    let map = Mapped::new(&other);
    // A page of the pool's would come from the server, in this process, which may want memory mapped meanwhile.
    if mounted.is_kernel() {
        map.store();
        assert_ne!(file.metadata().unwrap().blocks(), 0);
    }
    drop((map, other, file));
    mounted.finish();
}

/// An answer on its way may be older than a store that somebody makes by a mapping, and the kernel takes all of it.
#[test]
fn attributes_of_a_file_open_for_writing_are_fetched_after_a_change() {
    let Some(mounted) = Mounted::of(persistent_filesystem, &options()) else {
        return;
    };
    let path = mounted.path("file");
    let file = File::create_new(&path).unwrap();
    let fetched = |act: &dyn Fn()| {
        act();
        // The directory's, too.
        fs::metadata(mounted.path("")).unwrap();
        let before = mounted.asked(Opcode::GetAttr);
        rustix::fs::stat(&path).unwrap();
        mounted.asked(Opcode::GetAttr) - before
    };
    let change = || fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fetched(&change), 1);
    let link = || fs::hard_link(&path, mounted.path("other")).unwrap();
    assert_eq!(fetched(&link), 1);
    drop(file);
    // The kernel tells of it later.
    eventually("nobody can write", || fetched(&change) == 0);
    mounted.finish();
}

#[test]
fn the_size_of_an_open_file_is_fetched_at_most_once_a_tick() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    // Might be mapped.
    let mut file = File::create_new(&path).unwrap();
    file.write_all(&[1; 100]).unwrap();
    let before = mounted.asked(Opcode::GetAttr);
    let start = Instant::now();
    for _ in 0..2000 {
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 100);
    }
    // Ticks are a millisecond or longer.
    let ticks = u64::try_from(start.elapsed().as_millis()).unwrap();
    assert!(mounted.asked(Opcode::GetAttr) - before <= ticks + 2);
    file.write_all(b"more").unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 104, "a write is seen at once");
    file.set_len(10).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 10);
    drop(file);
    mounted.finish();
}

#[test]
fn the_kernel_keeps_attributes_current_for_writes_without_mappings() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    for round in 1..=20_u64 {
        file.write_all(&[1; 4096]).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.blocks()), (round * 4096, round * 8));
        let asked = || mounted.asked(Opcode::GetAttr) + mounted.asked(Opcode::StatX);
        let before = asked();
        let again = fs::metadata(&path).unwrap();
        assert_eq!(again.modified().unwrap(), found.modified().unwrap());
        drop(File::open(&path).unwrap());
        assert_eq!(asked(), before);
        std::thread::sleep(Duration::from_millis(5));
    }
    // A second one, which may map, is asked for from its open on.
    let other = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let map = Mapped::new(&other);
    let before = fs::metadata(&path).unwrap();
    tick();
    if mounted.is_kernel() {
        map.store();
        assert!(fs::metadata(&path).unwrap().modified().unwrap() > before.modified().unwrap());
    }
    drop((file, other, map));
    mounted.finish();
}

#[test]
fn security_labels_are_unsupported_until_one_is_set() {
    let Some(mounted) = Mounted::new() else { return };
    if Path::new("/sys/fs/selinux/enforce").exists() {
        return mounted.finish();
    }
    let (path, other) = (mounted.path("file"), mounted.path("other"));
    File::create(&path).unwrap();
    File::create(&other).unwrap();
    assert_eq!(
        xattr(&path, "user.none").unwrap_err().raw_os_error(),
        Some(libc::ENODATA)
    );
    let refused = |path| xattr(path, "security.selinux").unwrap_err().raw_os_error();
    assert_eq!(refused(&path), Some(libc::EOPNOTSUPP));
    set_xattr(&path, "security.selinux", b"label").unwrap();
    assert_eq!(xattr(&path, "security.selinux").unwrap(), b"label");
    assert_eq!(refused(&other), Some(libc::ENODATA));
    mounted.finish();
}

#[test]
fn a_store_through_a_mapping_is_visible_to_the_next_stat_of_any_process() {
    let Some(mounted) = Mounted::new() else { return };
    if !mounted.is_kernel() {
        return mounted.finish(); // The server hears of a store when its page is written back.
    }
    let path = mounted.path("file");
    File::create(&path).unwrap().set_len(Mapped::BYTES as u64).unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                fs::metadata(&path).unwrap();
            }
        });
        for round in 0.. {
            if Instant::now() >= end {
                break;
            }
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let map = Mapped::new(&file);
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, mode, 0, Mapped::BYTES as u64).unwrap();
            // For a moment tmpfs may tell what it had: who asked before has taken the page off the count, and not yet off the blocks.
            let punched = Instant::now();
            while fs::metadata(&path).unwrap().blocks() != 0 {
                assert!(punched.elapsed() < Duration::from_secs(1), "round {round}");
            }
            // In turns with the open file and without: the mapping alone keeps the writer.
            let file = (round % 2 == 0).then_some(file);
            map.store();
            assert_ne!(fs::metadata(&path).unwrap().blocks(), 0, "round {round}");
            drop(file);
        }
    });
    mounted.finish();
}

/// A size that grows keeps what fallocate reserved behind it, as on ext4 and a tmpfs; the same size again gives it up.
#[test]
fn a_file_that_grows_keeps_what_is_reserved_behind_its_end() {
    const BYTES: u64 = 16 << 20;
    let data = [Data::Auto, Data::Pool].map(|data| {
        let mut options = options();
        options.data = data;
        options
    });
    let durable: [fn() -> Arc<TestFs>; 2] = [filesystem, persistent_filesystem];
    for (options, make) in data.iter().flat_map(|options| durable.map(|make| (options, make))) {
        let Some(mounted) = Mounted::of(make, options) else {
            return;
        };
        let file = File::create(mounted.path("file")).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, BYTES).unwrap();
        let reserved = || file.metadata().unwrap().blocks() * 512;
        for (size, expected) in [(4096, BYTES), (9000, BYTES), (9000, 12_288)] {
            file.set_len(size).unwrap();
            assert_eq!(
                (file.metadata().unwrap().len(), reserved()),
                (size, expected),
                "{options:?}"
            );
        }
        drop(file);
        mounted.finish();
    }
}
