//! Descriptors of a program while its files are learned: those that it has are all in use, or their numbers are expected.

use crate::support::calls::{errno, open, say};
use crate::support::{Mounted, Program};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Part of a program: a thread learns a file again and again, by descriptors with large numbers, while another closes the smallest number and opens it again.
pub(crate) fn numbers(path: &Path) {
    const ROUNDS: usize = 300;
    const LARGE: i32 = 100;
    static ENDS: AtomicBool = AtomicBool::new(false);
    let (file, mut small) = (open(path), File::open("/dev/null").unwrap());
    let number = small.as_raw_fd();
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || {
            let mut odd = 0;
            while !ENDS.load(Ordering::Relaxed) {
                drop(small);
                small = File::open("/dev/null").unwrap();
                odd += u32::from(small.as_raw_fd() != number);
            }
            odd
        });
        for _ in 0..ROUNDS {
            let large = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LARGE) };
            assert!(large >= LARGE, "{}", errno());
            use_file(large);
            // The last one: nothing is mapped any more.
            assert_eq!(unsafe { libc::close(large) }, 0);
        }
        ENDS.store(true, Ordering::Relaxed);
        say(&closing.join().unwrap().to_string());
    });
}

#[test]
fn library_descriptors_do_not_take_the_programs_numbers() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut program = Program::start("numbers", &path, true);
    assert_eq!(program.answer(), "0", "numbers that were another's");
    assert!(program.end().0 > 1000);
}

#[test]
fn full_descriptor_table_falls_back_to_system_calls() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut program = Program::start("full", &path, true);
    assert_eq!(program.answer(), "done");
    let (copies, _) = program.end();
    assert!(copies > CALLS as u64, "{copies} copies");
}
