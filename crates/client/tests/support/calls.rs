//! Calls of the C library, as programs make them, and a program that makes those which it is told.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Tells bytes from others: their number, and a sum in which each place counts differently.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let sum = bytes
        .iter()
        .fold(7_u64, |sum, byte| sum.wrapping_mul(1_000_003) ^ u64::from(*byte));
    format!("{} {sum:x}", bytes.len())
}

pub(crate) fn say(answer: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "= {answer}").unwrap();
    output.flush().unwrap();
}

pub(crate) fn open(path: &Path) -> File {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.unwrap_or_else(|_| File::open(path).unwrap())
}

pub(crate) fn pread(fd: c_int, bytes: usize, at: usize) -> Result<Vec<u8>, i32> {
    let mut buffer = vec![0xEE; bytes];
    // SAFETY: a buffer with its length.
    let read = unsafe { libc::pread64(fd, buffer.as_mut_ptr().cast(), bytes, at as i64) };
    buffer.truncate(usize::try_from(read).map_err(|_| errno())?);
    Ok(buffer)
}

pub(crate) fn pwrite(fd: c_int, bytes: &[u8], at: usize) -> Result<usize, i32> {
    // SAFETY: a buffer with its length.
    let written = unsafe { libc::pwrite64(fd, bytes.as_ptr().cast(), bytes.len(), at as i64) };
    usize::try_from(written).map_err(|_| errno())
}

/// Writes each byte from a buffer of its own.
fn write_bytes(fd: c_int, bytes: &[u8], at: usize) -> isize {
    let buffer = |byte: &u8| libc::iovec {
        iov_base: std::ptr::from_ref(byte).cast_mut().cast(),
        iov_len: 1,
    };
    let buffers: Vec<_> = bytes.iter().map(buffer).collect();
    let count = buffers.len().try_into().unwrap();
    // SAFETY: so many buffers, of a byte each.
    unsafe { libc::pwritev(fd, buffers.as_ptr(), count, at as i64) }
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Bytes of a read of the commands that read much.
const PAGE: usize = 4096;

/// Sets an access list. The rights of its mask become those of the group in the mode.
fn set_list(fd: c_int, rights: u16) {
    const NAMED_USER: u16 = 2;
    const MASK: u16 = 0x10;
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (kind, rights) in [(1_u16, 7), (NAMED_USER, 4), (4, 4), (MASK, rights), (0x20, 0)] {
        let id = if kind == NAMED_USER { 7 } else { u32::MAX };
        list.extend([kind.to_le_bytes(), rights.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    let name = c"system.posix_acl_access".as_ptr();
    // SAFETY: a name with its end, and a value with its length.
    let set = unsafe { libc::fsetxattr(fd, name, list.as_ptr().cast(), list.len(), 0) };
    assert_eq!(set, 0, "error {}", errno());
}

/// Carries out what it is told.
pub(crate) fn commands(path: &Path) {
    let mut files = vec![open(path)];
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let number = |nth: usize| words[nth].parse::<usize>().unwrap();
        let file = &files[0];
        let fd = file.as_raw_fd();
        say(&match words[0] {
            "read" => {
                let (at, bytes) = (number(1), number(2));
                match at % 3 {
                    0 => digest(&pread(fd, bytes, at).unwrap()),
                    // In three pieces.
                    _ => digest(&readv(fd, bytes, at)),
                }
            }
            "write" => {
                let (at, bytes) = (number(1), vec![u8::try_from(number(3)).unwrap(); number(2)]);
                match at % 3 {
                    0 => pwrite(fd, &bytes, at).unwrap().to_string(),
                    _ => writev(fd, &bytes, at).to_string(),
                }
            }
            "many" => write_bytes(fd, &vec![u8::try_from(number(3)).unwrap(); number(2)], number(1)).to_string(),
            "scatter" => {
                // Threads with so many reads each, all over the first bytes, in the orders of seeds.
                let (threads, count, bytes, seed) = (number(1), number(2), number(3), number(4) as u64);
                let read = |seed| {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for _ in 0..count {
                        assert_eq!(pread(fd, PAGE, random.usize(..bytes - PAGE)), Ok(vec![b'a'; PAGE]));
                    }
                };
                std::thread::scope(|scope| {
                    (0..threads as u64).for_each(|thread| _ = scope.spawn(move || read(seed + thread)));
                });
                String::new()
            }
            "scan" => {
                let all = (0..number(1)).step_by(PAGE);
                all.for_each(|at| assert_eq!(pread(fd, PAGE, at), Ok(vec![b'a'; PAGE])));
                String::new()
            }
            "truncate" => {
                file.set_len(number(1) as u64).unwrap();
                String::new()
            }
            "allocate" => allocate(fd, 0, number(1), number(2)).to_string(),
            "keep" => allocate(fd, libc::FALLOC_FL_KEEP_SIZE, number(1), number(2)).to_string(),
            "punch" => allocate(fd, PUNCH, number(1), number(2)).to_string(),
            "copy" => copy(fd, number(1), number(2), number(3)).to_string(),
            "store" => {
                let bytes = vec![u8::try_from(number(3)).unwrap(); number(2)];
                with_mapping(fd, number(1), number(2), |at| at.copy_from_slice(&bytes));
                String::new()
            }
            "load" => {
                let mut loaded = String::new();
                with_mapping(fd, number(1), number(2), |at| loaded = digest(at));
                loaded
            }
            "size" => status(fd).st_size.to_string(),
            "status" => {
                // By descriptor and by path, in turn.
                let both = |_| (status(fd), status_at(path));
                let (status, other) = (1..number(1)).fold(both(0), |_, turn| both(turn));
                let numbers = |of: &libc::stat64| (of.st_size, of.st_mode);
                assert_eq!(numbers(&status), numbers(&other));
                format!(
                    "{} {:o} {} {}",
                    status.st_size,
                    status.st_mode & 0o7777,
                    status.st_mtime,
                    status.st_mtime_nsec
                )
            }
            "list" => {
                set_list(fd, u16::try_from(number(1)).unwrap());
                String::new()
            }
            "times" => {
                let times = (0..number(1))
                    .map(|_| status(fd))
                    .map(|of| (of.st_mtime, of.st_mtime_nsec));
                let times: Vec<_> = times.collect();
                let back = times.windows(2).filter(|pair| pair[1] < pair[0]).count();
                format!("{back} times it went back")
            }
            "close" => {
                files.clear();
                String::new()
            }
            "reopen" => {
                files.clear();
                files.push(open(path));
                String::new()
            }
            other => panic!("no command {other}"),
        });
    }
}

/// fstat(2). The standard library calls statx(2).
pub(crate) fn status(fd: c_int) -> libc::stat64 {
    let mut status = std::mem::MaybeUninit::uninit();
    // SAFETY: room for one.
    assert_eq!(unsafe { libc::fstat64(fd, status.as_mut_ptr()) }, 0);
    // SAFETY: the call has filled it.
    unsafe { status.assume_init() }
}

/// stat(2).
fn status_at(path: &Path) -> libc::stat64 {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let mut status = std::mem::MaybeUninit::uninit();
    // SAFETY: a string, and room for one.
    assert_eq!(unsafe { libc::stat64(path.as_ptr(), status.as_mut_ptr()) }, 0);
    // SAFETY: the call has filled it.
    unsafe { status.assume_init() }
}

/// fallocate(2)'s mode that makes a hole.
pub(crate) const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

pub(crate) fn allocate(fd: c_int, mode: c_int, at: usize, bytes: usize) -> c_int {
    // SAFETY: takes numbers.
    unsafe { libc::fallocate(fd, mode, at as i64, bytes as i64) }
}

/// copy_file_range(2) within a file.
pub(crate) fn copy(fd: c_int, from: usize, to: usize, bytes: usize) -> isize {
    let (mut from, mut to) = (from as i64, to as i64);
    unsafe { libc::copy_file_range(fd, &raw mut from, fd, &raw mut to, bytes, 0) }
}

/// Maps a part of a file, gives it to `act`, and unmaps it.
pub(crate) fn with_mapping(fd: c_int, at: usize, bytes: usize, act: impl FnOnce(&mut [u8])) {
    let (start, both) = (at / 4096 * 4096, libc::PROT_READ | libc::PROT_WRITE);
    let length = at - start + bytes;
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), length, both, libc::MAP_SHARED, fd, start as i64) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let memory = mapped.cast::<u8>().wrapping_add(at - start);
    act(unsafe { std::slice::from_raw_parts_mut(memory, bytes) });
    assert_eq!(unsafe { libc::munmap(mapped, length) }, 0);
}

fn pieces(buffer: *mut u8, bytes: usize) -> [libc::iovec; 3] {
    let cuts = [0, bytes / 3, bytes / 2, bytes];
    std::array::from_fn(|nth| libc::iovec {
        iov_base: buffer.wrapping_add(cuts[nth]).cast(),
        iov_len: cuts[nth + 1] - cuts[nth],
    })
}

pub(crate) fn readv(fd: c_int, bytes: usize, at: usize) -> Vec<u8> {
    let mut buffer = vec![0xEE; bytes];
    let pieces = pieces(buffer.as_mut_ptr(), bytes);
    // SAFETY: three pieces of the buffer.
    let read = unsafe { libc::preadv64(fd, pieces.as_ptr(), 3, at as i64) };
    buffer.truncate(read.try_into().unwrap());
    buffer
}

pub(crate) fn writev(fd: c_int, bytes: &[u8], at: usize) -> isize {
    let pieces = pieces(bytes.as_ptr().cast_mut(), bytes.len());
    // SAFETY: three pieces of the buffer.
    unsafe { libc::pwritev64(fd, pieces.as_ptr(), 3, at as i64) }
}
