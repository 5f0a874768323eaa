//! Direct writes that are in flight together (libaio's system calls, io_uring), beside buffered readers of the same file.
//!
//! A buffered reader may bring a page into the cache while a direct write of the same bytes is in flight. The page must not
//! outlive the write's completion: after it every reader gets the new bytes.

use crate::stage::{create, edit, open, read_at, stage};
use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITES: usize = 10;
const WRITE_BYTES: usize = 64 << 10;
const FILE_BYTES: usize = WRITES * WRITE_BYTES;
const READERS: usize = 2;
/// On a mount with FUSE_ASYNC_DIO two rounds and more of 300 end with old bytes.
const ROUNDS_MIN: u32 = 300;
const ROUNDS: u32 = 2000;
const TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes as O_DIRECT wants them.
#[repr(align(4096))]
struct Aligned([u8; FILE_BYTES]);

/// Something that has several writes in flight at once.
trait Writer {
    /// Fills the file with the bytes, in [`WRITES`] pieces that are submitted together, and waits for all completions.
    fn write_all(&mut self, file: &OwnedFd, bytes: &Aligned);
}

/// A context of io_submit(2).
struct Libaio(libc::c_ulong);

impl Libaio {
    fn new() -> Self {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the context to the variable behind the pointer.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, WRITES, &raw mut context) };
        assert_eq!(result, 0, "io_setup: {}", std::io::Error::last_os_error());
        Self(context)
    }
}

impl Writer for Libaio {
    fn write_all(&mut self, file: &OwnedFd, bytes: &Aligned) {
        const IOCB_CMD_PWRITE: u16 = 1;
        // SAFETY: zeros are a valid iocb.
        let zeroed: libc::iocb = unsafe { std::mem::zeroed() };
        let mut blocks = [zeroed; WRITES];
        for (index, block) in blocks.iter_mut().enumerate() {
            block.aio_lio_opcode = IOCB_CMD_PWRITE;
            block.aio_fildes = file.as_raw_fd().cast_unsigned();
            block.aio_buf = bytes.0[index * WRITE_BYTES..].as_ptr().addr() as u64;
            block.aio_nbytes = WRITE_BYTES as u64;
            block.aio_offset = i64::try_from(index * WRITE_BYTES).unwrap();
        }
        let mut pointers = blocks.each_mut().map(|block| &raw mut *block);
        // SAFETY: blocks, pointers and bytes live until all completions have come, below.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.0, WRITES, pointers.as_mut_ptr()) };
        assert_eq!(usize::try_from(submitted), Ok(WRITES));
        // An io_event: data, object, result, second result.
        let mut events = [[0_i64; 4]; WRITES];
        let no_timeout = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: the kernel writes at most WRITES events of 32 bytes to the array.
        let completed = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.0,
                WRITES,
                WRITES,
                events.as_mut_ptr(),
                no_timeout,
            )
        };
        assert_eq!(usize::try_from(completed), Ok(WRITES));
        assert!(
            events.iter().all(|event| usize::try_from(event[2]) == Ok(WRITE_BYTES)),
            "{events:?}"
        );
    }
}

impl Drop for Libaio {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own; nothing is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

impl Writer for IoUring {
    fn write_all(&mut self, file: &OwnedFd, bytes: &Aligned) {
        for (index, piece) in bytes.0.chunks(WRITE_BYTES).enumerate() {
            let length = u32::try_from(WRITE_BYTES).unwrap();
            let write = opcode::Write::new(types::Fd(file.as_raw_fd()), piece.as_ptr(), length)
                .offset((index * WRITE_BYTES) as u64)
                .build();
            // SAFETY: file and bytes live until all completions have come, below.
            unsafe { self.submission().push(&write) }.expect("the ring has room for each write");
        }
        self.submit_and_wait(WRITES).unwrap();
        let results: Vec<i32> = self.completion().map(|entry| entry.result()).collect();
        assert!(
            results.len() == WRITES && results.iter().all(|&bytes| usize::try_from(bytes) == Ok(WRITE_BYTES)),
            "{results:?}"
        );
    }
}

/// Counts the rounds after whose last completion a buffered reader still got old bytes.
fn stale_rounds(path: &Path, mut writer: impl Writer) -> u32 {
    rustix::fs::ftruncate(create(path), FILE_BYTES as u64).unwrap();
    let direct = open(path, OFlags::WRONLY | OFlags::DIRECT).unwrap();
    let buffered = edit(path);
    let end = AtomicBool::new(false);
    let mut bytes = Box::new(Aligned([0; FILE_BYTES]));
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let reader = edit(path);
                while !end.load(Ordering::Relaxed) {
                    read_at(&reader, 0, FILE_BYTES);
                }
            });
        }
        let start = Instant::now();
        let mut stale = 0;
        for round in 0..ROUNDS {
            if start.elapsed() > TIME_MAX && round >= ROUNDS_MIN {
                break;
            }
            bytes.0.fill(u8::try_from(round % 251).unwrap());
            writer.write_all(&direct, &bytes);
            stale += u32::from(read_at(&buffered, 0, FILE_BYTES) != bytes.0);
        }
        end.store(true, Ordering::Relaxed);
        stale
    })
}

#[test]
fn buffered_readers_see_libaio_writes_once_they_complete() {
    let stage = stage!();
    assert_eq!(stale_rounds(&stage.at("f"), Libaio::new()), 0, "rounds with old bytes");
}

#[test]
fn buffered_readers_see_io_uring_writes_once_they_complete() {
    let stage = stage!();
    let ring = match IoUring::new(16) {
        Ok(ring) => ring,
        Err(error) => return crate::mount::skip(&format!("io_uring cannot be used: {error}")),
    };
    assert_eq!(stale_rounds(&stage.at("f"), ring), 0, "rounds with old bytes");
}
