//! Sparse files, SEEK_HOLE and SEEK_DATA, st_blocks, statfs(2).

use crate::mount;
use crate::observe::{look, sectors, size};
use crate::stage::{Stage, assert_errno, create, edit, eventually, read_at, run, stage, write_at};
use rustix::fs::{OFlags, SeekFrom, ftruncate, seek, statvfs};
use std::os::fd::OwnedFd;
use std::process::Command;

const PAGE: u64 = 4096;

/// 1 MiB long; data in blocks 4 to 7 and 100.
fn sparse(stage: &Stage) -> OwnedFd {
    let fd = create(stage.at("sparse"));
    write_at(&fd, 4 * PAGE, &[1; 16_384]);
    write_at(&fd, 100 * PAGE + 10, b"x");
    // Last: a hole of a file that is large already may be filled in large pages.
    ftruncate(&fd, 1 << 20).unwrap();
    fd
}

/// Numbers that df(1) prints.
fn df(stage: &Stage, options: &[&str]) -> Vec<u64> {
    let text = run(Command::new("df").args(options).arg(stage.path()));
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn holes_take_no_space_and_read_as_zeros() {
    let stage = stage!();
    let fd = sparse(&stage);
    let before = sectors(stage.at("sparse"));
    assert!(before == 5 * 8 || stage.has_large_pages() && before < 2048, "{before}");
    assert_eq!(size(stage.at("sparse")), 1 << 20);
    let all = read_at(&fd, 0, 1 << 20);
    let data = |index: usize| (4 * 4096..8 * 4096).contains(&index);
    assert!(
        all.iter()
            .enumerate()
            .all(|(index, &byte)| byte == u8::from(data(index)) || index == 100 * 4096 + 10)
    );
    assert_eq!(sectors(stage.at("sparse")), before, "reading fills no hole");
}

#[test]
fn data_and_holes_are_found() {
    let stage = stage!();
    let fd = sparse(&stage);
    let data = |offset| seek(&fd, SeekFrom::Data(offset));
    let hole = |offset| seek(&fd, SeekFrom::Hole(offset));
    if stage.has_large_pages() {
        assert!(data(0).unwrap() <= 4 * PAGE && hole(0).unwrap() <= 100 * PAGE);
        assert!(data(200 * PAGE).is_err() && hole(100 * PAGE).unwrap() <= 200 * PAGE);
        return;
    }
    assert_eq!(data(0), Ok(4 * PAGE));
    assert_eq!(data(4 * PAGE), Ok(4 * PAGE));
    assert_eq!(
        data(5 * PAGE + 17),
        Ok(5 * PAGE + 17),
        "an offset within data is its own answer"
    );
    assert_eq!(data(8 * PAGE), Ok(100 * PAGE));
    assert_eq!(hole(0), Ok(0));
    assert_eq!(hole(17), Ok(17), "an offset within a hole is its own answer");
    assert_eq!(hole(4 * PAGE), Ok(8 * PAGE));
    assert_eq!(hole(6 * PAGE + 1), Ok(8 * PAGE));
    assert_eq!(hole(100 * PAGE), Ok(101 * PAGE));
    assert_errno!(data(101 * PAGE), NXIO);
    assert_errno!(data(1 << 20), NXIO);
    assert_errno!(hole(1 << 20), NXIO);
    assert_errno!(hole(1 << 30), NXIO);
    assert_eq!(
        rustix::fs::tell(&fd).unwrap(),
        101 * PAGE,
        "the offset is the last answer"
    );
}

#[test]
fn the_end_of_a_file_is_a_hole() {
    let stage = stage!();
    let path = stage.file("f", [1; 5000]);
    let fd = edit(&path);
    assert_eq!(seek(&fd, SeekFrom::Hole(0)), Ok(5000));
    assert_eq!(seek(&fd, SeekFrom::Data(4999)), Ok(4999));
    assert_errno!(seek(&fd, SeekFrom::Data(5000)), NXIO);
    let empty = edit(stage.file("empty", []));
    assert_errno!(seek(&empty, SeekFrom::Data(0)), NXIO);
    assert_errno!(seek(&empty, SeekFrom::Hole(0)), NXIO);
    ftruncate(&empty, 100).unwrap();
    assert_eq!(seek(&empty, SeekFrom::Hole(0)), Ok(0));
    assert_errno!(seek(&empty, SeekFrom::Data(0)), NXIO);
}

#[test]
fn distant_data_is_found() {
    let stage = stage!();
    let fd = create(stage.at("f"));
    let far = 3_u64 << 40;
    write_at(&fd, far + 7 * PAGE, b"far");
    if stage.has_large_pages() {
        let found = seek(&fd, SeekFrom::Data(0)).unwrap();
        assert!((far..=far + 7 * PAGE).contains(&found));
        return;
    }
    assert_eq!(seek(&fd, SeekFrom::Data(0)), Ok(far + 7 * PAGE));
    assert_eq!(seek(&fd, SeekFrom::Data(1 << 21)), Ok(far + 7 * PAGE));
    assert_eq!(seek(&fd, SeekFrom::Hole(far + 7 * PAGE)), Ok(far + 7 * PAGE + 3));
    assert_eq!(sectors(stage.at("f")), 8);
}

#[test]
fn blocks_are_counted_in_units_of_512_bytes() {
    let stage = stage!();
    for (bytes, expected) in [(0, 0), (1, 8), (4096, 8), (4097, 16), (1 << 20, 2048)] {
        let path = stage.file(bytes.to_string(), vec![1; bytes]);
        assert_eq!(sectors(&path), expected, "{bytes} bytes");
        assert!(look(&path).st_blksize >= 4096);
    }
}

#[test]
fn copying_a_sparse_file_keeps_it_sparse() {
    let stage = stage!();
    drop(sparse(&stage));
    let mut copy = Command::new("cp");
    run(copy.arg("--sparse=auto").args([stage.at("sparse"), stage.at("copy")]));
    assert!(sectors(stage.at("copy")) <= sectors(stage.at("sparse")));
    assert!(std::fs::read(stage.at("copy")).unwrap() == std::fs::read(stage.at("sparse")).unwrap());
}

#[test]
fn the_filesystem_reports_its_space() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let start = statvfs(stage.path()).unwrap();
    assert_eq!(start.f_frsize, PAGE);
    assert_eq!(start.f_namemax, 255);
    // The size is per node; a machine may have several.
    assert!(
        start.f_blocks >= (64 << 20) / PAGE && start.f_blocks.is_multiple_of((64 << 20) / PAGE),
        "{} blocks",
        start.f_blocks
    );
    assert!(start.f_bfree <= start.f_blocks && start.f_bavail <= start.f_bfree);
    assert!(start.f_files > 1000 && start.f_ffree <= start.f_files);
    let path = stage.file("f", vec![1; 10 << 20]);
    let full = statvfs(stage.path()).unwrap();
    assert_eq!(start.f_bfree - full.f_bfree, (10 << 20) / PAGE, "exact at rest");
    assert_eq!(
        df(&stage, &["--output=used,avail", "-B1"]),
        [(full.f_blocks - full.f_bfree) * PAGE, full.f_bavail * PAGE]
    );
    rustix::fs::unlink(&path).unwrap();
    eventually("all is free again", || {
        statvfs(stage.path()).unwrap().f_bfree == start.f_bfree
    });
}

#[test]
fn the_filesystem_counts_its_inodes() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let used = || {
        let found = statvfs(stage.path()).unwrap();
        found.f_files - found.f_ffree
    };
    // The kernel forgets inodes a moment after their last use, of the mount's own probes too.
    let mut start = used();
    eventually("the number of inodes stays", || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        std::mem::replace(&mut start, used()) == start
    });
    let dir = stage.dir("d");
    for name in ["a", "b", "c"] {
        stage.file(name, b"content");
    }
    rustix::fs::symlink("target", stage.at("l")).unwrap();
    rustix::fs::link(stage.at("a"), dir.join("second name")).unwrap();
    assert_eq!(used() - start, 5, "a directory, three files, a symbolic link");
    assert_eq!(
        df(&stage, &["--output=iused,iavail"]),
        [used(), statvfs(stage.path()).unwrap().f_ffree]
    );
    let held = crate::stage::open(stage.at("b"), OFlags::RDONLY).unwrap();
    rustix::fs::unlink(stage.at("b")).unwrap();
    assert_eq!(used() - start, 5, "open, so still there");
    drop(held);
    for name in ["c", "l"] {
        rustix::fs::unlink(stage.at(name)).unwrap();
    }
    eventually("only the directory and a file are left", || used() - start == 2);
}

#[test]
fn descriptors_and_paths_report_the_same_space() {
    let stage = stage!();
    let fd = crate::stage::open(stage.path(), OFlags::RDONLY).unwrap();
    let (by_path, by_descriptor) = (statvfs(stage.path()).unwrap(), rustix::fs::fstatvfs(&fd).unwrap());
    assert_eq!(
        (by_path.f_blocks, by_path.f_fsid),
        (by_descriptor.f_blocks, by_descriptor.f_fsid)
    );
}
