//! Directories as they are read: every entry once, whatever goes on beside, and positions that stay.

use crate::observe::look;
use crate::stage::{create, open, stage};
use rustix::fs::{FileType, OFlags, symlink, unlink};
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// One record of getdents64(2).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    inode: u64,
    /// Where the next one is: what telldir(3) tells.
    next: i64,
    kind: u8,
    name: String,
}

/// One call with a buffer of this many bytes; empty at the end.
fn read_some(dir: &OwnedFd, bytes: usize) -> Vec<Entry> {
    let mut buffer = vec![0_u8; bytes];
    // SAFETY: the buffer is writable and as long as is said, until the call returns.
    let count = unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
    let count = usize::try_from(count).expect("the directory can be read");
    let mut entries = Vec::new();
    let mut rest = &buffer[..count];
    while !rest.is_empty() {
        let (inode, rest_of_it) = rest.split_first_chunk().unwrap();
        let (next, rest_of_it) = rest_of_it.split_first_chunk().unwrap();
        let (length, rest_of_it) = rest_of_it.split_first_chunk().unwrap();
        let (kind, name) = rest_of_it.split_first().unwrap();
        let name = CStr::from_bytes_until_nul(name).unwrap().to_str().unwrap().to_owned();
        entries.push(Entry {
            inode: native_u64(*inode),
            next: native_u64(*next).cast_signed(),
            kind: *kind,
            name,
        });
        rest = &rest[usize::from(native_u16(*length))..];
    }
    entries
}

#[allow(
    clippy::host_endian_bytes,
    reason = "the kernel's structures have the machine's byte order"
)]
fn native_u64(bytes: [u8; 8]) -> u64 {
    u64::from_ne_bytes(bytes)
}

#[allow(
    clippy::host_endian_bytes,
    reason = "the kernel's structures have the machine's byte order"
)]
fn native_u16(bytes: [u8; 2]) -> u16 {
    u16::from_ne_bytes(bytes)
}

fn read_all(dir: &OwnedFd, bytes: usize) -> Vec<Entry> {
    let mut all = Vec::new();
    loop {
        let some = read_some(dir, bytes);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn open_dir(path: &Path) -> OwnedFd {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY).unwrap()
}

fn fill(dir: &Path, count: usize) {
    for index in 0..count {
        drop(create(dir.join(format!("kept-{index}"))));
    }
}

/// How often each name that begins with `kept-` was seen.
fn kept(entries: &[Entry]) -> HashMap<&str, u32> {
    let mut seen = HashMap::new();
    for entry in entries.iter().filter(|entry| entry.name.starts_with("kept-")) {
        *seen.entry(&*entry.name).or_insert(0) += 1;
    }
    seen
}

#[test]
fn an_empty_directory_has_two_entries() {
    let stage = stage!();
    let dir = stage.dir("dir");
    let mut entries = read_all(&open_dir(&dir), 32_768);
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<_> = entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, [".", ".."]);
    assert_eq!(entries[0].inode, look(&dir).st_ino);
    assert_eq!(entries[1].inode, look(stage.path()).st_ino);
    assert!(entries.iter().all(|entry| entry.kind == libc::DT_DIR));
}

#[test]
fn entries_have_inode_and_kind() {
    let stage = stage!();
    stage.file("file", []);
    stage.dir("dir");
    symlink("x", stage.at("link")).unwrap();
    crate::special::make_fifo(&stage.at("fifo"));
    let device = |name, kind| {
        let (path, mode) = (stage.at(name), crate::stage::mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, rustix::fs::makedev(1, 3)).unwrap();
    };
    device("char", FileType::CharacterDevice);
    device("block", FileType::BlockDevice);
    device("socket", FileType::Socket);
    let kinds: HashMap<_, _> = [
        ("file", libc::DT_REG),
        ("dir", libc::DT_DIR),
        ("link", libc::DT_LNK),
        ("fifo", libc::DT_FIFO),
        ("char", libc::DT_CHR),
        ("block", libc::DT_BLK),
        ("socket", libc::DT_SOCK),
    ]
    .into();
    let entries = read_all(&open_dir(stage.path()), 32_768);
    assert_eq!(entries.len(), kinds.len() + 2);
    for entry in entries.iter().filter(|entry| !entry.name.starts_with('.')) {
        assert_eq!(entry.kind, kinds[&*entry.name], "{}", entry.name);
        assert_eq!(entry.inode, look(stage.at(&entry.name)).st_ino, "{}", entry.name);
    }
}

#[test]
fn ten_thousand_entries_are_listed_once_each() {
    let stage = stage!();
    fill(stage.path(), 10_000);
    for bytes in [32_768, 1000] {
        let entries = read_all(&open_dir(stage.path()), bytes);
        assert_eq!(entries.len(), 10_002);
        assert_eq!(kept(&entries).len(), 10_000);
    }
    stage.file("one more", []);
    let entries = read_all(&open_dir(stage.path()), 32_768);
    assert_eq!(entries.len(), 10_003, "a cached listing notices");
}

#[test]
fn untouched_entries_are_listed_once_while_others_change() {
    let stage = stage!();
    fill(stage.path(), 10_000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u32.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let path = stage.at(format!("passing-{}", round % 1000));
                drop(create(&path));
                if round % 3 == 0 {
                    rustix::fs::rename(&path, stage.at("passing-on")).unwrap();
                } else {
                    unlink(&path).unwrap();
                }
            }
        });
        for _ in 0..5 {
            let entries = read_all(&open_dir(stage.path()), 4096);
            let seen = kept(&entries);
            let wrong: Vec<_> = seen.iter().filter(|(_, count)| **count != 1).collect();
            if seen.len() != 10_000 || !wrong.is_empty() {
                done.store(true, Ordering::Relaxed);
                panic!("{} of 10000 seen, more than once: {wrong:?}", seen.len());
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn everything_can_be_removed_while_it_is_read() {
    let stage = stage!();
    let dir = stage.dir("dir");
    fill(&dir, 3000);
    let fd = open_dir(&dir);
    loop {
        let some = read_some(&fd, 2000);
        if some.is_empty() {
            break;
        }
        for entry in some.iter().filter(|entry| entry.name.starts_with("kept-")) {
            unlink(dir.join(&entry.name)).unwrap();
        }
    }
    rustix::fs::rmdir(&dir).expect("one pass removed everything");
}

#[test]
fn a_position_leads_back_to_its_entry() {
    let stage = stage!();
    fill(stage.path(), 1000);
    let fd = open_dir(stage.path());
    let all = read_all(&fd, 4096);
    for index in [0, 1, 2, 3, 500, 998, 1000] {
        let next = u64::try_from(all[index].next).unwrap();
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(next)).unwrap();
        let found = read_some(&fd, 4096);
        assert_eq!(found[0].name, all[index + 1].name, "after entry {index}");
    }
    // Positions stay when other entries go.
    let next = u64::try_from(all[500].next).unwrap();
    for entry in all[..400].iter().filter(|entry| entry.name.starts_with("kept-")) {
        unlink(stage.at(&entry.name)).unwrap();
    }
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(next)).unwrap();
    assert_eq!(read_all(&fd, 4096).len(), all.len() - 501);
    rustix::fs::seek(
        &fd,
        rustix::fs::SeekFrom::Start(u64::try_from(all.last().unwrap().next).unwrap()),
    )
    .unwrap();
    assert_eq!(read_some(&fd, 4096), []);
}

#[test]
fn rewinding_shows_new_entries() {
    let stage = stage!();
    stage.file("one", []);
    let fd = open_dir(stage.path());
    assert_eq!(read_all(&fd, 4096).len(), 3);
    stage.file("two", []);
    unlink(stage.at("one")).unwrap();
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).unwrap();
    let names: Vec<_> = read_all(&fd, 4096)
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| name.len() > 2)
        .collect();
    assert_eq!(names, ["two"]);
}

#[test]
fn a_buffer_too_small_for_a_name_is_refused() {
    let stage = stage!();
    stage.file("n".repeat(255), []);
    let fd = open_dir(stage.path());
    let mut buffer = [0_u8; 100];
    let mut last = 1;
    for _ in 0..3 {
        // SAFETY: the buffer is writable and as long as is said, until the call returns.
        last = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
        if last <= 0 {
            break;
        }
    }
    assert_eq!((last, crate::stage::last_errno()), (-1, rustix::io::Errno::INVAL));
    assert_eq!(read_all(&open_dir(stage.path()), 4096).len(), 3);
}

#[test]
fn listings_agree_with_lookups_after_every_change() {
    let stage = stage!();
    for round in 0..100 {
        let (a, b) = (stage.at(format!("a{round}")), stage.at(format!("b{round}")));
        drop(create(&a));
        assert_eq!(crate::observe::names(stage.path()).len(), 1);
        rustix::fs::rename(&a, &b).unwrap();
        assert_eq!(crate::observe::names(stage.path()), [format!("b{round}")]);
        assert!(!a.exists() && b.exists());
        unlink(&b).unwrap();
        assert!(crate::observe::names(stage.path()).is_empty());
    }
}
