//! The calls that carry bytes: vectors, flags per call, from file to file.

use crate::stage::{Stage, assert_errno, content, create, edit, open, read_at, stage, write_at};
use rustix::fs::{OFlags, SeekFrom, copy_file_range, seek, sendfile};
use rustix::io::{Errno, IoSlice, IoSliceMut, ReadWriteFlags, preadv2, pwritev2, readv, writev};
use rustix::pipe::{SpliceFlags, pipe, splice};
use std::path::PathBuf;

/// 100,000 bytes of a pattern whose period is no power of two.
fn pattern() -> Vec<u8> {
    (0..=250_u8).cycle().take(100_000).collect()
}

fn source(stage: &Stage) -> PathBuf {
    stage.file("source", pattern())
}

#[test]
fn positioned_calls_keep_the_offset() {
    let stage = stage!();
    let fd = edit(source(&stage));
    seek(&fd, SeekFrom::Start(5)).unwrap();
    write_at(&fd, 50, b"positioned");
    assert_eq!(read_at(&fd, 50, 10), b"positioned");
    assert_eq!(rustix::fs::tell(&fd), Ok(5));
    let mut byte = [0];
    rustix::io::read(&fd, &mut byte).unwrap();
    assert_eq!((byte, rustix::fs::tell(&fd)), ([5], Ok(6)));
}

#[test]
fn seeking_works_from_every_origin() {
    let stage = stage!();
    let fd = edit(source(&stage));
    assert_eq!(seek(&fd, SeekFrom::End(10)), Ok(100_010));
    assert_eq!(seek(&fd, SeekFrom::Current(-20)), Ok(99_990));
    assert_eq!(seek(&fd, SeekFrom::Start(1 << 40)), Ok(1 << 40));
    assert_eq!(rustix::io::read(&fd, &mut [0; 1]), Ok(0));
    let twin = rustix::io::dup(&fd).unwrap();
    seek(&twin, SeekFrom::Start(7)).unwrap();
    assert_eq!(rustix::fs::tell(&fd), Ok(7), "duplicates share the offset");
}

#[test]
fn vectors_are_gathered_and_scattered() {
    let stage = stage!();
    let fd = create(stage.at("f"));
    let (a, b, c) = (vec![1; 10], vec![2; 5000], vec![3; 1]);
    let parts = [IoSlice::new(&a), IoSlice::new(&[]), IoSlice::new(&b), IoSlice::new(&c)];
    assert_eq!(writev(&fd, &parts), Ok(5011));
    assert_eq!(content(stage.at("f")), [a, b, c].concat());
    seek(&fd, SeekFrom::Start(0)).unwrap();
    let (mut x, mut y) = ([0; 12], [0; 10_000]);
    assert_eq!(
        readv(&fd, &mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y)]),
        Ok(5011)
    );
    assert_eq!(x, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
    assert_eq!((y[4997], y[4998], y[4999]), (2, 3, 0));
}

#[test]
fn many_small_vectors_are_transferred() {
    let stage = stage!();
    let fd = create(stage.at("f"));
    let bytes = pattern();
    let parts: Vec<_> = bytes.chunks(100).take(1000).map(IoSlice::new).collect();
    assert_eq!(writev(&fd, &parts), Ok(100_000));
    assert!(content(stage.at("f")) == bytes);
    let too_many: Vec<_> = (0..1025).map(|_| IoSlice::new(b"x")).collect();
    // rustix gives no more than IOV_MAX to the kernel.
    assert_eq!(writev(&fd, &too_many), Ok(1024));
}

#[test]
fn per_call_flags_are_followed() {
    let stage = stage!();
    let path = stage.file("f", b"12345");
    let fd = edit(&path);
    let one = [IoSlice::new(b"end")];
    assert_eq!(pwritev2(&fd, &one, 0, ReadWriteFlags::APPEND), Ok(3));
    assert_eq!(content(&path), b"12345end");
    assert_eq!(
        pwritev2(&fd, &one, 1, ReadWriteFlags::DSYNC | ReadWriteFlags::SYNC),
        Ok(3)
    );
    assert_eq!(content(&path), b"1end5end");
    let mut bytes = [0; 4];
    assert_eq!(
        preadv2(&fd, &mut [IoSliceMut::new(&mut bytes)], 2, ReadWriteFlags::HIPRI),
        Ok(4)
    );
    assert_eq!(&bytes, b"nd5e");
    let unknown = ReadWriteFlags::from_bits_retain(1 << 30);
    assert_errno!(pwritev2(&fd, &one, 0, unknown), OPNOTSUPP);
}

#[test]
fn copies_within_the_filesystem() {
    let stage = stage!();
    let from = open(source(&stage), OFlags::RDONLY).unwrap();
    let to = create(stage.at("to"));
    let (mut at, mut into) = (1000, 77);
    let mut left = 90_000;
    while left > 0 {
        let count = copy_file_range(&from, Some(&mut at), &to, Some(&mut into), left).unwrap();
        assert_ne!(count, 0);
        left -= count;
    }
    assert_eq!((at, into), (91_000, 90_077));
    let copy = content(stage.at("to"));
    assert!(copy[77..] == pattern()[1000..91_000]);
    assert!(copy[..77].iter().all(|&byte| byte == 0));
    assert_eq!(
        rustix::fs::tell(&from),
        Ok(0),
        "given offsets leave the descriptor's own"
    );
    at = 100_000;
    assert_eq!(copy_file_range(&from, Some(&mut at), &to, None, 10), Ok(0), "the end");
}

#[test]
fn copies_within_a_file() {
    let stage = stage!();
    let path = source(&stage);
    let fd = edit(&path);
    let (mut at, mut into) = (0, 50_000);
    assert_errno!(copy_file_range(&fd, Some(&mut at), &fd, Some(&mut into), 60_000), INVAL);
    (at, into) = (0, 60_000);
    assert_eq!(
        copy_file_range(&fd, Some(&mut at), &fd, Some(&mut into), 30_000),
        Ok(30_000)
    );
    let all = content(&path);
    assert!(all[60_000..90_000] == pattern()[..30_000]);
    assert!(all[..60_000] == pattern()[..60_000] && all[90_000..] == pattern()[90_000..]);
}

#[test]
fn copies_need_suitable_descriptors() {
    let stage = stage!();
    let path = source(&stage);
    let (read_only, write_only) = (
        open(&path, OFlags::RDONLY).unwrap(),
        open(&path, OFlags::WRONLY).unwrap(),
    );
    let append = open(&path, OFlags::WRONLY | OFlags::APPEND).unwrap();
    let dir = open(stage.path(), OFlags::RDONLY).unwrap();
    let other = create(stage.at("other"));
    assert_errno!(copy_file_range(&write_only, None, &other, None, 10), BADF);
    assert_errno!(copy_file_range(&other, None, &read_only, None, 10), BADF);
    assert_errno!(copy_file_range(&other, None, &append, None, 10), BADF);
    assert_errno!(copy_file_range(&dir, None, &other, None, 10), ISDIR);
}

#[test]
fn sendfile_reads_and_writes_the_mount() {
    let stage = stage!();
    let from = open(source(&stage), OFlags::RDONLY).unwrap();
    let to = create(stage.at("to"));
    let mut at = 500;
    let mut sent = 0;
    while sent < 80_000 {
        let count = sendfile(&to, &from, Some(&mut at), 80_000 - sent).unwrap();
        assert_ne!(count, 0);
        sent += count;
    }
    assert_eq!(at, 80_500);
    assert!(content(stage.at("to")) == pattern()[500..80_500]);
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(sendfile(&near, &from, None, 300), Ok(300));
    let mut bytes = [0; 300];
    std::io::Read::read_exact(&mut &far, &mut bytes).unwrap();
    assert_eq!(bytes[..], pattern()[..300]);
}

#[test]
fn splice_reads_and_writes_the_mount() {
    let stage = stage!();
    let from = open(source(&stage), OFlags::RDONLY).unwrap();
    let to = create(stage.at("to"));
    let (exit, entry) = pipe().unwrap();
    let (mut at, mut into) = (3_u64, 9_u64);
    while at < 99_999 {
        let count = splice(&from, Some(&mut at), &entry, None, 30_000, SpliceFlags::MOVE).unwrap();
        let mut left = count;
        while left > 0 {
            left -= splice(&exit, None, &to, Some(&mut into), left, SpliceFlags::MOVE).unwrap();
        }
    }
    assert!(content(stage.at("to"))[9..] == pattern()[3..]);
}

#[test]
fn transfers_to_unmapped_memory_fail() {
    let stage = stage!();
    let path = source(&stage);
    let fd = edit(&path);
    // An address that is not mapped: EFAULT, and the file stays as it was.
    // SAFETY: the kernel checks the address before it writes there; nothing in this process lies on page 1.
    let count = unsafe {
        libc::pread(
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            std::ptr::without_provenance_mut(4096),
            10,
            0,
        )
    };
    assert_eq!((count, crate::stage::last_errno()), (-1, Errno::FAULT));
    // SAFETY: as above; the kernel only reads there.
    let count = unsafe {
        libc::pwrite(
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            std::ptr::without_provenance(4096),
            10,
            0,
        )
    };
    assert_eq!((count, crate::stage::last_errno()), (-1, Errno::FAULT));
    assert!(content(&path) == pattern());
}

#[test]
fn a_large_write_is_one_write() {
    let stage = stage!();
    let path = stage.at("f");
    let fd = create(&path);
    let bytes: Vec<u8> = pattern().into_iter().cycle().take((8 << 20) + 123).collect();
    assert_eq!(rustix::io::pwrite(&fd, &bytes, 1), Ok(bytes.len()));
    let mut back = vec![0; bytes.len()];
    assert_eq!(rustix::io::pread(&fd, &mut back, 1), Ok(bytes.len()));
    assert!(back == bytes);
}
