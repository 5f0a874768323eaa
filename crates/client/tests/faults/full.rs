//! A program whose descriptors are all in use while its files are learned.

use crate::support::calls::{errno, open, say};
use crate::support::{Mounted, Program};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

const CALLS: usize = 40;
/// Most descriptors that are free meanwhile: learning takes one at a time.
const FREE_MAX: usize = 2;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Mappings of files in a directory.
fn mappings(directory: &Path) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains(directory.to_str().unwrap()))
        .count()
}

/// Sets how many descriptors the process may have; gives the number before.
fn limit_descriptors(count: u64) -> u64 {
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let before = std::mem::replace(&mut limit.rlim_cur, count);
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    before
}

/// Reads and writes, and sees that a call that goes well leaves errno alone.
fn use_file(fd: RawFd) {
    let mut buffer = [0_u8; 100];
    for _ in 0..CALLS {
        unsafe { *libc::__errno_location() = 4711 };
        let read = unsafe { libc::pread64(fd, buffer.as_mut_ptr().cast(), 100, 50) };
        assert_eq!((read, errno()), (100, 4711));
        let written = unsafe { libc::pwrite64(fd, buffer.as_ptr().cast(), 100, 50) };
        assert_eq!((written, errno()), (100, 4711));
        assert_eq!(buffer, [b'a'; 100]);
    }
}

/// The program.
pub(crate) fn part(path: &Path) {
    let directory = path.parent().unwrap();
    let none = File::open("/dev/null").unwrap();
    for free in 0..=FREE_MAX {
        let before = descriptors();
        let file = open(path);
        let limit = limit_descriptors(before as u64 + 20);
        let mut all: Vec<_> = std::iter::from_fn(|| none.try_clone().ok()).collect();
        assert_eq!(errno(), libc::EMFILE);
        all.truncate(all.len() - free);
        use_file(file.as_raw_fd());
        limit_descriptors(limit);
        drop(all);
        assert_eq!(descriptors(), before + 1, "{free} were free");
        use_file(file.as_raw_fd());
        drop(file);
        assert_eq!(mappings(directory), 0, "{free} were free");
    }
    say("done");
}

#[test]
fn descriptors_that_are_all_in_use_make_system_calls_and_are_not_lost() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut program = Program::start("full", &path, true);
    assert_eq!(program.answer(), "done");
    let (copies, _) = program.end();
    assert!(copies > CALLS as u64, "{copies} copies");
}
