//! fallocate(2) in its modes.

use crate::mount;
use crate::observe::{sectors, size};
use crate::stage::{Stage, assert_errno, content, create, edit, open, read_at, stage, write_at};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek, statvfs};
use std::os::fd::OwnedFd;

const PLAIN: FallocateFlags = FallocateFlags::empty();
const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;

#[test]
fn space_is_reserved_and_the_file_grows() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    let fd = edit(&path);
    fallocate(&fd, PLAIN, 0, 1 << 20).unwrap();
    assert_eq!((size(&path), sectors(&path)), (1 << 20, 2048));
    let all = content(&path);
    assert_eq!(&all[..7], b"content");
    assert!(all[7..].iter().all(|&byte| byte == 0));
    fallocate(&fd, PLAIN, 0, 4096).unwrap();
    assert_eq!((size(&path), sectors(&path)), (1 << 20, 2048), "old bytes stay");
    fallocate(&fd, PLAIN, 2 << 20, 1).unwrap();
    assert_eq!((size(&path), sectors(&path)), ((2 << 20) + 1, 2056));
}

#[test]
fn reserved_space_is_filled_without_taking_more() {
    let stage = stage!();
    let path = stage.at("f");
    let fd = create(&path);
    fallocate(&fd, PLAIN, 0, 1 << 20).unwrap();
    write_at(&fd, 10_000, b"written");
    write_at(&fd, 500_000, &[7; 100_000]);
    assert_eq!(sectors(&path), 2048);
    let all = content(&path);
    assert_eq!(&all[10_000..10_007], b"written");
    assert!(all[..10_000].iter().chain(&all[10_007..500_000]).all(|&byte| byte == 0));
}

#[test]
fn space_can_be_reserved_behind_the_end() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    let fd = edit(&path);
    fallocate(&fd, KEEP, 0, 100_000).unwrap();
    assert_eq!((size(&path), sectors(&path)), (7, 25 * 8));
    assert_eq!(content(&path), b"content");
    write_at(&fd, 50_000, b"x");
    assert_eq!((size(&path), sectors(&path)), (50_001, 25 * 8));
    assert_eq!(read_at(&fd, 7, 49_993), [0; 49_993]);
    rustix::fs::ftruncate(&fd, 4096).unwrap();
    assert_eq!(sectors(&path), 8, "truncate gives back what lies behind the end");
}

#[test]
fn a_punched_hole_is_zero_and_free() {
    let stage = stage!();
    let path = stage.file("f", [9; 40_960]);
    let fd = edit(&path);
    fallocate(&fd, PUNCH, 4096, 8192).unwrap();
    assert_eq!((size(&path), sectors(&path)), (40_960, 8 * 8));
    let all = content(&path);
    assert!(all[4096..12_288].iter().all(|&byte| byte == 0));
    assert!(all[..4096].iter().chain(&all[12_288..]).all(|&byte| byte == 9));
    assert_eq!(seek(&fd, SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(&fd, SeekFrom::Data(4096)), Ok(12_288));
    write_at(&fd, 5000, b"x");
    assert_eq!(
        read_at(&fd, 4096, 904),
        [0; 904],
        "old bytes came back around a write into the hole"
    );
    assert_eq!(sectors(&path), 9 * 8);
}

#[test]
fn a_partly_punched_block_reads_zero_and_stays_allocated() {
    let stage = stage!();
    let path = stage.file("f", [9; 8192]);
    let fd = edit(&path);
    // Room that was promised, too; and again and again.
    fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 8192).unwrap();
    for _ in 0..50 {
        fallocate(&fd, PUNCH, 100, 50).unwrap();
    }
    fallocate(&fd, PUNCH, 4000, 200).unwrap();
    assert_eq!(sectors(&path), 16);
    let all = content(&path);
    let zero = |index: usize| (100..150).contains(&index) || (4000..4200).contains(&index);
    assert!(all.iter().enumerate().all(|(index, &byte)| (byte == 0) == zero(index)));
}

#[test]
fn punching_over_and_behind_the_end_keeps_the_length() {
    let stage = stage!();
    let path = stage.file("f", [9; 10_000]);
    let fd = edit(&path);
    fallocate(&fd, PUNCH, 9000, 1 << 30).unwrap();
    fallocate(&fd, PUNCH, 1 << 40, 4096).unwrap();
    let all = content(&path);
    assert_eq!(all.len(), 10_000);
    assert!(
        all.iter()
            .enumerate()
            .all(|(index, &byte)| (byte == 0) == (index >= 9000))
    );
}

#[test]
fn holes_in_large_runs() {
    const RUN: usize = 2 << 20;
    let stage = stage!();
    let path = stage.file("f", vec![9; 3 * RUN]);
    let fd = edit(&path);
    fallocate(&fd, PUNCH, RUN as u64 - 4096, RUN as u64 + 8192).unwrap();
    let all = content(&path);
    let zero = |index: usize| (RUN - 4096..2 * RUN + 4096).contains(&index);
    assert!(all.iter().enumerate().all(|(index, &byte)| (byte == 0) == zero(index)));
    assert_eq!(sectors(&path), (2 * RUN as u64 - 8192) / 512);
}

/// What ZERO_RANGE leaves, where it is offered at all: tmpfs has none.
fn zero(stage: &Stage, fd: &OwnedFd, flags: FallocateFlags, offset: u64, length: u64) -> bool {
    let result = fallocate(fd, flags, offset, length);
    if stage.has_tmpfs_bytes() {
        assert_errno!(result, OPNOTSUPP);
        return false;
    }
    result.unwrap();
    true
}

#[test]
fn a_zeroed_range_keeps_its_space() {
    let stage = stage!();
    let path = stage.file("f", [9; 40_960]);
    let fd = edit(&path);
    if !zero(&stage, &fd, ZERO, 1000, 20_000) {
        return;
    }
    assert_eq!((size(&path), sectors(&path)), (40_960, 80));
    let all = content(&path);
    assert!(
        all.iter()
            .enumerate()
            .all(|(index, &byte)| (byte == 0) == (1000..21_000).contains(&index))
    );
    write_at(&fd, 2000, b"x");
    assert_eq!((&read_at(&fd, 1999, 3)[..], sectors(&path)), (&b"\0x\0"[..], 80));
}

#[test]
fn zeroing_behind_the_end_grows_the_file_unless_the_size_is_kept() {
    let stage = stage!();
    let path = stage.file("f", [9; 1000]);
    let fd = edit(&path);
    if !zero(&stage, &fd, ZERO | KEEP, 500, 100_000) {
        return;
    }
    assert_eq!((size(&path), sectors(&path)), (1000, 25 * 8));
    assert!(zero(&stage, &fd, ZERO, 500, 100_000));
    assert_eq!(size(&path), 100_500);
    assert!(
        content(&path)
            .iter()
            .enumerate()
            .all(|(index, &byte)| (byte == 9) == (index < 500))
    );
}

#[test]
fn unsupported_fallocate_modes_are_refused() {
    let stage = stage!();
    let path = stage.file("f", [9; 40_960]);
    let fd = edit(&path);
    for flags in [
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
    ] {
        assert_errno!(fallocate(&fd, flags, 4096, 4096), OPNOTSUPP);
    }
    assert_errno!(fallocate(&fd, FallocateFlags::PUNCH_HOLE, 0, 4096), OPNOTSUPP);
    assert_eq!(content(&path), [9; 40_960]);
}

#[test]
fn fallocate_refuses_bad_arguments() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    let fd = edit(&path);
    assert_errno!(fallocate(&fd, PLAIN, 0, 0), INVAL);
    assert_errno!(fallocate(&fd, PUNCH, 0, 0), INVAL);
    assert_errno!(fallocate(&fd, PLAIN, u64::MAX, 4096), INVAL);
    assert_errno!(fallocate(&fd, PLAIN, 0, u64::MAX), INVAL);
    assert_errno!(fallocate(&fd, PLAIN, i64::MAX as u64, 4096), FBIG);
    let dir = open(stage.path(), OFlags::RDONLY).unwrap();
    assert_errno!(fallocate(&dir, PLAIN, 0, 4096), BADF);
    assert_eq!(content(&path), b"content");
}

#[test]
fn promised_space_can_be_written_in_a_full_filesystem() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let fd = create(stage.at("promised"));
    fallocate(&fd, PLAIN, 0, 8 << 20).unwrap();
    crate::full::fill(&stage);
    write_at(&fd, 0, &vec![7; 8 << 20]);
    assert!(read_at(&fd, 0, 8 << 20).iter().all(|&byte| byte == 7));
}

#[test]
fn too_large_a_reservation_is_refused_without_effect() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let space = statvfs(stage.path()).unwrap();
    let path = stage.file("f", b"content");
    let fd = edit(&path);
    let before = statvfs(stage.path()).unwrap().f_bfree;
    assert_errno!(fallocate(&fd, PLAIN, 0, (space.f_blocks + 1000) * 4096), NOSPC);
    assert_eq!(statvfs(stage.path()).unwrap().f_bfree, before);
    assert_eq!((size(&path), sectors(&path)), (7, 8));
    fallocate(&fd, PLAIN, 0, before / 2 * 4096).unwrap();
    let after = statvfs(stage.path()).unwrap().f_bfree;
    assert_eq!(before - after, before / 2 - 1, "one block was there");
}
