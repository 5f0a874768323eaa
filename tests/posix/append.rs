//! Flags that change how descriptors write and read: O_APPEND, O_DIRECT, O_SYNC.

use crate::actor::Actor;
use crate::observe::size;
use crate::stage::{content, create, edit, open, read_at, stage, write_at};
use rustix::fs::{OFlags, SeekFrom};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn appends_go_to_the_end_at_any_offset() {
    let stage = stage!();
    let path = stage.file("f", b"one ");
    let append = open(&path, OFlags::RDWR | OFlags::APPEND).unwrap();
    rustix::fs::seek(&append, SeekFrom::Start(0)).unwrap();
    rustix::io::write(&append, b"two ").unwrap();
    assert_eq!(
        rustix::fs::tell(&append).unwrap(),
        8,
        "the offset is behind what was written"
    );
    write_at(&edit(&path), 8, b"three ");
    rustix::io::write(&append, b"four").unwrap();
    assert_eq!(content(&path), b"one two three four");
    // pwrite(2), BUGS: on Linux a positioned write appends, too.
    rustix::io::pwrite(&append, b"!", 0).unwrap();
    assert_eq!(content(&path), b"one two three four!");
    assert_eq!(rustix::io::pread(&append, &mut [0; 100], 0).unwrap(), 19);
}

#[test]
fn appending_can_be_switched_on_and_off() {
    let stage = stage!();
    let path = stage.file("f", b"12345");
    let fd = edit(&path);
    rustix::io::write(&fd, b"a").unwrap();
    rustix::fs::fcntl_setfl(&fd, OFlags::APPEND).unwrap();
    rustix::io::write(&fd, b"b").unwrap();
    rustix::fs::fcntl_setfl(&fd, OFlags::empty()).unwrap();
    rustix::fs::seek(&fd, SeekFrom::Start(1)).unwrap();
    rustix::io::write(&fd, b"c").unwrap();
    assert_eq!(content(&path), b"ac345b");
}

#[test]
fn appending_ends_when_its_flag_is_cleared() {
    let stage = stage!();
    let path = stage.file("f", b"0123");
    let fd = open(&path, OFlags::RDWR | OFlags::APPEND).unwrap();
    rustix::fs::fcntl_setfl(&fd, OFlags::empty()).unwrap();
    rustix::io::pwrite(&fd, b"x", 0).unwrap();
    // The kernel's own file of the open keeps the flags that it was made with.
    let is_kernel = stage.has_tmpfs_bytes() && !stage.is_reference();
    assert_eq!(content(&path), if is_kernel { &b"0123x"[..] } else { b"x123" });
}

#[test]
fn concurrent_appends_are_neither_lost_nor_torn() {
    const RECORDS: usize = 500;
    let stage = stage!();
    let path = stage.file("f", []);
    let stamps = ["first-process", "second-process-longer", "thread", "direct-thread"];
    let mut actors = [Actor::start(), Actor::start()];
    for (actor, stamp) in actors.iter_mut().zip(stamps) {
        actor.tell(&format!("append {RECORDS} {stamp} {}", path.display()));
    }
    std::thread::scope(|scope| {
        for (stamp, flags) in [(stamps[2], OFlags::empty()), (stamps[3], OFlags::DIRECT)] {
            let path = &path;
            scope.spawn(move || {
                let fd = open(path, OFlags::WRONLY | OFlags::APPEND | flags).unwrap();
                for _ in 0..RECORDS {
                    let record = format!("{stamp}\n");
                    assert_eq!(rustix::io::write(&fd, record.as_bytes()).unwrap(), record.len());
                }
            });
        }
    });
    for actor in &mut actors {
        assert_eq!(actor.answer(), "ok");
    }
    let text = String::from_utf8(content(&path)).unwrap();
    let mut counts = HashMap::new();
    for line in text.lines() {
        *counts.entry(line).or_insert(0) += 1;
    }
    assert_eq!(counts, stamps.map(|stamp| (stamp, RECORDS)).into());
}

#[test]
fn records_appended_beside_truncating_opens_are_whole() {
    const OPENS: usize = 2_000;
    let stage = stage!();
    let path = stage.file("f", []);
    let record = [&[b'r'; 99][..], b"\n"].concat();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fd = open(&path, OFlags::WRONLY | OFlags::APPEND).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(rustix::io::write(&fd, &record).unwrap(), record.len());
            }
        });
        let (reader, mut read) = (edit(&path), vec![0; 1 << 20]);
        let is_whole = (0..OPENS).all(|_| {
            drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
            let count = rustix::io::pread(&reader, &mut read, 0).unwrap();
            !read[..count].contains(&0)
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(is_whole, "a hole where records were");
    });
    assert!(content(&path).chunks(record.len()).all(|found| found == record));
}

/// Bytes at an address that is a multiple of 4096.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn filled(value: u8, length: usize) -> Self {
        let bytes = vec![value; length + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, length }
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

fn direct(path: &std::path::Path) -> OwnedFd {
    open(path, OFlags::RDWR | OFlags::DIRECT).unwrap()
}

#[test]
fn direct_and_cached_descriptors_see_the_same_file() {
    let stage = stage!();
    let path = stage.at("f");
    let cached = create(&path);
    let direct = direct(&path);
    write_at(&direct, 0, Aligned::filled(1, 65_536).all());
    assert_eq!(read_at(&cached, 0, 65_536), [1; 65_536]);
    write_at(&direct, 8192, Aligned::filled(2, 4096).all());
    assert_eq!(
        read_at(&cached, 8192, 4096),
        [2; 4096],
        "the cache kept old bytes over a direct write"
    );
    write_at(&cached, 12_288, &[3; 4096]);
    let mut into = Aligned::filled(0, 16_384);
    assert_eq!(rustix::io::pread(&direct, into.all(), 0).unwrap(), 16_384);
    assert_eq!(into.all()[8192..12_288], [2; 4096]);
    assert_eq!(into.all()[12_288..], [3; 4096], "the direct read missed a cached write");
}

#[test]
fn unaligned_direct_access_works() {
    // tmpfs and this filesystem take any alignment; open(2) leaves it to the filesystem, and EINVAL would be the other answer.
    let stage = stage!();
    let path = stage.file("f", []);
    let direct = direct(&path);
    let bytes: Vec<u8> = (0..=255).cycle().take(10_001).collect();
    assert_eq!(rustix::io::pwrite(&direct, &bytes[1..], 333).unwrap(), 10_000);
    assert_eq!(size(&path), 10_333);
    assert_eq!(read_at(&direct, 333, 20_000), bytes[1..]);
    assert_eq!(content(&path)[..333], [0; 333]);
    assert_eq!(read_at(&direct, 10_333, 1), b"");
    assert_eq!(read_at(&direct, 10_000, 4096).len(), 333);
}

#[test]
fn direct_appends_reach_the_end() {
    let stage = stage!();
    let path = stage.file("f", [1; 4096]);
    let append = open(&path, OFlags::WRONLY | OFlags::DIRECT | OFlags::APPEND).unwrap();
    rustix::io::write(&append, Aligned::filled(2, 4096).all()).unwrap();
    assert_eq!(content(&path), [[1; 4096], [2; 4096]].concat());
}

#[test]
fn direct_writers_of_separate_blocks_do_not_disturb_each_other() {
    const BYTES: u64 = 256 * 4096;
    let stage = stage!();
    for (name, length) in [("grows", 0), ("has holes", BYTES)] {
        let path = stage.file(name, []);
        rustix::fs::ftruncate(edit(&path), length).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4_u8 {
                let fd = direct(&path);
                scope.spawn(move || {
                    let mut block = Aligned::filled(writer + 1, 4096);
                    for index in 0..64 {
                        write_at(&fd, (index * 4 + u64::from(writer)) * 4096, block.all());
                    }
                });
            }
        });
        let all = content(&path);
        assert_eq!(all.len() as u64, BYTES);
        for (index, block) in all.chunks(4096).enumerate() {
            assert!(
                block.iter().all(|&byte| usize::from(byte) == index % 4 + 1),
                "{name}: block {index} is not its writer's"
            );
        }
    }
}

#[test]
fn synchronous_descriptors_write_like_others() {
    let stage = stage!();
    for (name, flags) in [
        ("sync", OFlags::SYNC),
        ("dsync", OFlags::DSYNC),
        ("both", OFlags::SYNC | OFlags::DIRECT),
    ] {
        let path = stage.file(name, []);
        let fd = open(&path, OFlags::RDWR | flags).unwrap();
        write_at(&fd, 0, Aligned::filled(9, 8192).all());
        assert_eq!(content(&path), [9; 8192]);
        assert!(rustix::fs::fcntl_getfl(&fd).unwrap().contains(flags));
    }
}
