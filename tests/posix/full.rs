//! A full filesystem: ENOSPC to the writer, nothing lost, freed space usable at once. Each test fills a mount of its own.

use crate::actor::Actor;
use crate::map::Map;
use crate::mount;
use crate::observe::{names, size};
use crate::stage::{Stage, assert_errno, content, create, edit, eventually, open, read_at, write_at};
use rustix::fs::{FallocateFlags, OFlags, fallocate, ftruncate, statvfs, unlink};
use rustix::io::Errno;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Writes until nothing more goes in; the file that took it all.
pub(crate) fn fill(stage: &Stage) -> PathBuf {
    let path = stage.at("filler");
    let fd = create(&path);
    let bytes = vec![0xAB; MIB];
    let mut offset = 0;
    for length in [MIB, 4096] {
        loop {
            match rustix::io::pwrite(&fd, &bytes[..length], offset) {
                Ok(count) => offset += count as u64,
                Err(error) => break assert_eq!(error, Errno::NOSPC),
            }
        }
    }
    path
}

fn free(stage: &Stage) -> u64 {
    statvfs(stage.path()).unwrap().f_bfree
}

#[test]
fn every_block_can_be_used_and_used_again() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let before = free(&stage);
    for round in 0..3 {
        let path = fill(&stage);
        let left = free(&stage);
        assert!(left <= 8, "round {round}: {left} blocks are free and cannot be used");
        assert!(size(&path) >= (before - 8) * 4096);
        assert!(content(&path).iter().all(|&byte| byte == 0xAB));
        unlink(&path).unwrap();
        eventually("all is free again", || free(&stage) == before);
    }
}

#[test]
fn freed_space_is_usable_at_once() {
    let Some(mount) = mount::small("16M") else { return };
    let stage = Stage::on(&mount);
    // In a process of its own: children that other tests fork here would hold a file open a moment longer.
    let mut actor = Actor::start();
    for way in ["unlink", "close", "rename", "truncate", "open"] {
        let answer = actor.ask(&format!("refill {way} 60 {}", stage.path().display()));
        assert_eq!(answer, "ok", "right after {way}");
    }
}

#[test]
fn a_removed_open_file_is_awaited_only_once() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    if stage.has_tmpfs_bytes() {
        return; // The kernel refuses writes there, and asks nobody.
    }
    let big = stage.file("big", vec![3; 4 * MIB]);
    let writer = create(stage.at("writer"));
    let filler = fill(&stage);
    let held = edit(&filler);
    unlink(&filler).unwrap();
    let start = Instant::now();
    for _ in 0..20 {
        assert_errno!(rustix::io::pwrite(&writer, &[1; 4096], 0), NOSPC);
        assert_errno!(fallocate(&writer, FallocateFlags::empty(), 0, MIB as u64), NOSPC);
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "40 calls without room took {took:?}");
    // Files that are just being forgotten are waited for all the same.
    unlink(&big).unwrap();
    write_at(&writer, 0, &[1; 8192]);
    drop(held);
}

#[test]
fn a_store_to_a_hole_without_room_is_a_bus_error() {
    let Some(mount) = mount::small("16M") else { return };
    let stage = Stage::on(&mount);
    if !stage.has_tmpfs_bytes() {
        return; // Stores wait in the page cache, and the writer is told by fsync.
    }
    let hole = stage.at("hole");
    ftruncate(create(&hole), 1 << 20).unwrap();
    fill(&stage);
    let mut actor = Actor::start();
    actor.tell(&format!("store-mapped 500000 {}", hole.display()));
    assert_eq!(actor.answer(), "");
    assert_eq!(actor.end().signal(), Some(7), "SIGBUS");
}

/// A request of the kernel that writes pages back may find room for some of them only.
#[test]
fn stores_that_find_room_in_part_fail_their_sync() {
    let Some(mount) = mount::small("16M") else { return };
    let stage = Stage::on(&mount);
    if stage.has_tmpfs_bytes() {
        return; // A store without room is a bus error.
    }
    for (name, left) in [("some", 64 << 10), ("half", 512 << 10), ("all", 2 << 20)] {
        let file = create(stage.at(name));
        ftruncate(&file, MIB as u64).unwrap();
        let filler = fill(&stage);
        ftruncate(edit(&filler), size(&filler) - left).unwrap();
        let mut map = Map::shared(&file, 0, MIB);
        (0..MIB).step_by(4096).for_each(|at| map.set(at, 7));
        let synced = rustix::fs::fsync(&file);
        assert_eq!(
            synced,
            if left > MIB as u64 { Ok(()) } else { Err(Errno::NOSPC) },
            "{name}"
        );
        drop(map);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let kept = (0..256).filter(|page| read_at(&file, page * 4096, 1) == [7]).count() as u64;
        assert!(kept >= (left / 4096).min(256) - 8, "{name}: {kept} pages");
        unlink(&filler).unwrap();
        unlink(stage.at(name)).unwrap();
        eventually("all is free again", || free(&stage) > 3000);
    }
}

#[test]
fn stores_into_a_reserved_extension_find_room() {
    let Some(mount) = mount::small("16M") else { return };
    let stage = Stage::on(&mount);
    if stage.is_reference() {
        return; // A tmpfs does not know the attribute.
    }
    let (name, value) = (c"user.homenode.reserve", b"extend");
    rustix::fs::setxattr(stage.path(), name, value, rustix::fs::XattrFlags::empty()).unwrap();
    let file = create(stage.at("mapped"));
    ftruncate(&file, 2 * MIB as u64).unwrap();
    let filler = fill(&stage);
    assert_errno!(ftruncate(create(stage.at("more")), 2 * MIB as u64), NOSPC);
    let mut map = Map::shared(&file, 0, 2 * MIB);
    (0..2 * MIB).step_by(4096).for_each(|at| map.set(at, 7));
    rustix::fs::fsync(&file).unwrap();
    drop(map);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!((0..512).all(|page| read_at(&file, page * 4096, 1) == [7]));
    unlink(&filler).unwrap();
}

/// Fills the filesystem, frees it in one way or another and writes again without a pause; `rounds` times.
pub(crate) fn refill(way: &str, rounds: u32, dir: &Path) -> Result<(), Errno> {
    let (path, empty) = (dir.join("filler"), dir.join("empty"));
    let new = OFlags::RDWR | OFlags::CREATE;
    let next = open(dir.join("next"), new)?;
    drop(open(&empty, new)?);
    for _ in 0..rounds {
        ftruncate(&next, 0)?;
        let fd = open(&path, new)?;
        let mut offset = 0;
        while let Ok(count) = rustix::io::pwrite(&fd, &[1; MIB], offset) {
            offset += count as u64;
        }
        if way == "close" {
            unlink(&path)?;
        }
        drop(fd);
        match way {
            "close" => {}
            "unlink" => unlink(&path)?,
            "rename" => {
                rustix::fs::rename(&empty, &path)?;
            }
            "truncate" => crate::stage::truncate(&path, 0)?,
            _ => drop(open(&path, OFlags::WRONLY | OFlags::TRUNC)?),
        }
        rustix::io::pwrite(&next, &[2; 8192], 0)?;
        drop(open(&empty, new)?);
    }
    Ok(())
}

#[test]
fn a_full_filesystem_reads_and_overwrites() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let small = stage.file("small", [5; 8192]);
    let filler = fill(&stage);
    assert_eq!(content(&small), [5; 8192]);
    write_at(&edit(&small), 1000, &[6; 4000]);
    assert_eq!(content(&small)[1000..5000], [6; 4000]);
    assert_errno!(rustix::io::pwrite(edit(&small), b"x", 100_000), NOSPC);
    assert_eq!(size(&small), 8192, "a write that failed moved the end");
    assert!(content(&filler).iter().all(|&byte| byte == 0xAB));
}

#[test]
fn accepted_bytes_can_be_read() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let filler = fill(&stage);
    let length = size(&filler);
    assert!(content(&filler).iter().all(|&byte| byte == 0xAB));
    ftruncate(edit(&filler), length - 3 * 4096).unwrap();
    // Room for three blocks: a longer write is cut, and says so.
    let fd = edit(&filler);
    let took = rustix::io::pwrite(&fd, &[0xCD; 10 * 4096], length - 3 * 4096);
    match took {
        Ok(count) => assert!((1..=3 * 4096 + 4096 * 8).contains(&count), "{count}"),
        Err(error) => assert_eq!(error, Errno::NOSPC),
    }
    let end = length - 3 * 4096 + took.unwrap_or(0) as u64;
    assert_eq!(size(&filler), end);
    assert!(
        read_at(&fd, length - 3 * 4096, 1 << 20)
            .iter()
            .all(|&byte| byte == 0xCD)
    );
}

#[test]
fn truncate_and_punch_make_room() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let filler = fill(&stage);
    let fd = edit(&filler);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&fd, punch, 4 * MIB as u64, 2 * MIB as u64).unwrap();
    let one = stage.file("one", vec![1; 2 * MIB]);
    ftruncate(&fd, size(&filler) - 2 * MIB as u64).unwrap();
    let two = stage.file("two", vec![2; 2 * MIB]);
    assert!(content(one).iter().all(|&byte| byte == 1));
    assert!(content(two).iter().all(|&byte| byte == 2));
    assert!(read_at(&fd, 4 * MIB as u64, 2 * MIB).iter().all(|&byte| byte == 0));
}

#[test]
fn names_can_still_be_removed_and_moved() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    stage.dir("dir");
    let filler = fill(&stage);
    rustix::fs::rename(&filler, stage.at("dir/moved")).unwrap();
    rustix::fs::chmod(stage.at("dir/moved"), crate::stage::mode(0o600)).unwrap();
    unlink(stage.at("dir/moved")).unwrap();
    rustix::fs::rmdir(stage.at("dir")).unwrap();
    stage.file("new", [1; 100_000]);
    assert_eq!(names(stage.path()), ["new"]);
}

#[test]
fn a_direct_writer_gets_enospc_too() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let filler = fill(&stage);
    let path = stage.at("direct");
    let fd = match open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT) {
        Ok(fd) => fd,
        // tmpfs takes the room of a name from the same pages.
        Err(error) => {
            assert!(stage.is_reference() && error == Errno::NOSPC);
            return;
        }
    };
    let block = vec![1_u8; 4096];
    assert_errno!(rustix::io::pwrite(&fd, &block, 0), NOSPC);
    unlink(&filler).unwrap();
    eventually("there is room again", || {
        rustix::io::pwrite(&fd, &block, 0) == Ok(block.len())
    });
    assert_eq!(content(&path), block);
}

#[test]
fn many_writers_reach_the_end_together() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let before = free(&stage);
    std::thread::scope(|scope| {
        for writer in 1..=4_u8 {
            let fd = create(stage.at(writer.to_string()));
            scope.spawn(move || {
                let mut offset = 0;
                loop {
                    match rustix::io::pwrite(&fd, &[writer; 20_000], offset) {
                        Ok(count) => offset += count as u64,
                        Err(error) => break assert_eq!(error, Errno::NOSPC),
                    }
                }
            });
        }
    });
    for writer in 1..=4_u8 {
        let path = stage.at(writer.to_string());
        assert!(
            content(&path).iter().all(|&byte| byte == writer),
            "bytes of another file"
        );
        unlink(&path).unwrap();
    }
    eventually("all is free again", || free(&stage) == before);
}
