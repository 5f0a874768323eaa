//! Memory-mapped files: shared and private, coherent with read and write, faults beyond the end.

use crate::actor::Actor;
use crate::observe::{Times, sectors, size, tick};
use crate::stage::{assert_errno, content, edit, mode, open, read_at, stage, write_at};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;

/// A mapping of a file, unmapped when dropped. Accesses are volatile: other mappings and the file change underneath.
#[derive(Debug)]
pub(crate) struct Map {
    start: *mut u8,
    length: usize,
}

impl Map {
    pub(crate) fn shared(file: impl AsFd, offset: u64, length: usize) -> Self {
        Self::new(file, offset, length, MapFlags::SHARED).expect("the file can be mapped")
    }

    fn new(file: impl AsFd, offset: u64, length: usize, flags: MapFlags) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address, so no memory in use changes; the range is reached through `Map` alone.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, flags, file, offset) }?;
        Ok(Self {
            start: start.cast(),
            length,
        })
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        assert!(at < self.length);
        // SAFETY: `at` lies within the mapping.
        let place = unsafe { self.start.add(at) };
        // SAFETY: `place` is mapped readable, and any byte is a valid u8. Beyond the file's end the process gets SIGBUS.
        unsafe { place.read_volatile() }
    }

    pub(crate) fn set(&mut self, at: usize, value: u8) {
        assert!(at < self.length);
        // SAFETY: `at` lies within the mapping.
        let place = unsafe { self.start.add(at) };
        // SAFETY: `place` is mapped writable. Beyond the file's end the process gets SIGBUS.
        unsafe { place.write_volatile(value) }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (index, &value) in bytes.iter().enumerate() {
            self.set(at + index, value);
        }
    }

    fn read(&self, at: usize, length: usize) -> Vec<u8> {
        (at..at + length).map(|at| self.byte(at)).collect()
    }

    fn sync(&self) {
        // SAFETY: the range is this mapping's own; msync changes no memory.
        unsafe { rustix::mm::msync(self.start.cast::<c_void>(), self.length, MsyncFlags::SYNC) }
            .expect("msync succeeds");
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own and nothing refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.cast::<c_void>(), self.length) };
        unmapped.expect("an own mapping can be unmapped");
    }
}

#[test]
fn shared_writes_are_read_back() {
    let stage = stage!();
    let path = stage.file("f", [1; 10_000]);
    let file = edit(&path);
    let mut map = Map::shared(&file, 0, 10_000);
    map.write(4090, b"mapped bytes");
    assert_eq!(read_at(&file, 4090, 12), b"mapped bytes");
    assert_eq!(&content(&path)[4090..4102], b"mapped bytes");
    assert_eq!(size(&path), 10_000);
}

#[test]
fn writes_are_seen_through_a_mapping() {
    let stage = stage!();
    let path = stage.file("f", [1; 10_000]);
    let file = edit(&path);
    let map = Map::shared(&file, 0, 10_000);
    assert_eq!(map.byte(5000), 1);
    write_at(&file, 5000, b"written");
    assert_eq!(map.read(5000, 7), b"written");
    let other = edit(&path);
    write_at(&other, 9000, b"other");
    assert_eq!(map.read(9000, 5), b"other");
}

#[test]
fn two_mappings_of_one_file_agree() {
    let stage = stage!();
    let path = stage.file("f", [0; 8192]);
    let (mut one, two) = (Map::shared(edit(&path), 0, 8192), Map::shared(edit(&path), 4096, 4096));
    one.write(4096, b"same page");
    assert_eq!(two.read(0, 9), b"same page");
}

#[test]
fn msync_keeps_the_bytes_after_unmap() {
    let stage = stage!();
    let path = stage.file("f", [0; 8192]);
    let mut map = Map::shared(edit(&path), 0, 8192);
    map.write(100, b"synced");
    map.sync();
    drop(map);
    assert_eq!(&content(&path)[100..106], b"synced");
    let direct = open(&path, OFlags::RDONLY | OFlags::DIRECT).unwrap();
    assert_eq!(
        &read_at(&direct, 0, 4096)[100..106],
        b"synced",
        "what msync wrote is in the file itself"
    );
}

#[test]
fn private_writes_stay_private() {
    let stage = stage!();
    let path = stage.file("f", [1; 4096]);
    let mut map = Map::new(edit(&path), 0, 4096, MapFlags::PRIVATE).unwrap();
    map.write(0, b"mine");
    assert_eq!(map.read(0, 4), b"mine");
    assert_eq!(content(&path), [1; 4096]);
}

#[test]
fn bytes_after_the_end_in_the_last_page_are_zero_and_not_stored() {
    let stage = stage!();
    let path = stage.file("f", [9; 5000]);
    let file = edit(&path);
    let mut map = Map::shared(&file, 0, 8192);
    assert_eq!(map.read(5000, 3192), vec![0; 3192]);
    map.write(5000, b"beyond the end");
    map.sync();
    assert_eq!(size(&path), 5000);
    drop(map);
    rustix::fs::ftruncate(&file, 6000).unwrap();
    if stage.has_tmpfs_bytes() {
        return; // tmpfs has no other copy of the page, and keeps what was stored there.
    }
    assert!(
        read_at(&file, 5000, 1000) == [0; 1000],
        "bytes stored beyond the end appeared when the file grew"
    );
}

#[test]
fn a_touch_beyond_the_end_is_a_bus_error() {
    let stage = stage!();
    let path = stage.file("f", [3; 4096]);
    let mut actor = Actor::start();
    assert_eq!(actor.ask(&format!("touch-mapped 4095 {}", path.display())), "3");
    actor.tell(&format!("touch-mapped 4096 {}", path.display()));
    assert_eq!(actor.answer(), "");
    assert_eq!(actor.end().signal(), Some(7), "SIGBUS");
}

#[test]
fn truncate_removes_mapped_pages() {
    let stage = stage!();
    let path = stage.file("f", [5; 16_384]);
    let file = edit(&path);
    let map = Map::shared(&file, 0, 16_384);
    assert_eq!(map.byte(10_000), 5);
    rustix::fs::ftruncate(&file, 4096).unwrap();
    rustix::fs::ftruncate(&file, 16_384).unwrap();
    assert_eq!(map.read(0, 4096), vec![5; 4096]);
    assert_eq!(
        map.read(4096, 12_288),
        vec![0; 12_288],
        "old bytes came back through the mapping"
    );
}

#[test]
fn a_mapped_hole_can_be_filled() {
    let stage = stage!();
    let path = stage.file("f", []);
    let file = edit(&path);
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    let mut map = Map::shared(&file, 0, 1 << 20);
    assert_eq!(map.byte(500_000), 0);
    map.write(500_000, b"filled");
    map.sync();
    assert_eq!(read_at(&file, 500_000, 6), b"filled");
    assert_eq!(read_at(&file, 500_006, 10), [0; 10]);
}

#[test]
fn a_mapping_outlives_descriptor_and_name() {
    let stage = stage!();
    let path = stage.file("f", [7; 4096]);
    let file = edit(&path);
    let mut map = Map::shared(&file, 0, 4096);
    drop(file);
    rustix::fs::unlink(&path).unwrap();
    map.write(10, b"alive");
    map.sync();
    assert_eq!(map.read(9, 6), b"\x07alive");
}

#[test]
fn a_stored_byte_updates_the_modification_time() {
    let stage = stage!();
    if stage.is_reference() {
        return; // tmpfs does not learn of stores through a mapping.
    }
    let path = stage.file("f", [0; 4096]);
    let before = Times::of(&path);
    tick();
    let mut map = Map::shared(edit(&path), 0, 4096);
    map.set(0, 1);
    map.sync();
    drop(map);
    let after = Times::of(&path);
    assert!(after.modify_ns > before.modify_ns);
    assert!(after.change_ns > before.change_ns);
}

#[test]
fn stores_to_a_mapping_show_in_the_next_stat() {
    let stage = stage!();
    if !stage.has_tmpfs_bytes() {
        return; // The server hears of a store when its page is written back.
    }
    let path = stage.file("f", []);
    let file = edit(&path);
    rustix::fs::ftruncate(&file, 64 << 20).unwrap();
    let mut map = Map::shared(&file, 0, 64 << 20);
    let mut last = sectors(&path);
    for round in 0..20 {
        map.set(round * (3 << 20), 1);
        let now = sectors(&path);
        assert!(now > last, "round {round}: {now} after {last}");
        last = now;
    }
}

#[test]
fn a_mapping_needs_a_fitting_descriptor() {
    let stage = stage!();
    let path = stage.file("f", [0; 4096]);
    let read_only = open(&path, OFlags::RDONLY).unwrap();
    assert_errno!(Map::new(&read_only, 0, 4096, MapFlags::SHARED), ACCESS);
    assert!(Map::new(&read_only, 0, 4096, MapFlags::PRIVATE).is_ok());
    let write_only = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, mode(0)).unwrap();
    assert_errno!(Map::new(&write_only, 0, 4096, MapFlags::SHARED), ACCESS);
    assert_errno!(Map::new(edit(&path), 100, 4096, MapFlags::SHARED), INVAL);
}
