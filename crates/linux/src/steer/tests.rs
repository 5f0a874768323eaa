use super::*;
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// A file on /dev/shm that has no name any more; none where there is no such filesystem.
fn file() -> Option<File> {
    let file = tempfile::tempfile_in("/dev/shm").ok();
    if file.is_none() {
        crate::skip("no file can be made on /dev/shm");
    }
    file
}

fn bytes_in(map: &[(NodeId, u64)]) -> u64 {
    map.iter().map(|(_, bytes)| bytes).sum()
}

#[test]
fn a_map_counts_pages_with_data_and_fills_no_hole() {
    let Some(file) = file() else { return };
    assert_eq!(map(file.as_fd()).unwrap(), []);
    file.set_len(64 << 20).unwrap();
    assert_eq!(map(file.as_fd()).unwrap(), []);
    for at in [0, 5 << 20, (5 << 20) + 8192, (64 << 20) - 1] {
        file.write_all_at(b"x", at).unwrap();
    }
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    let before = blocks();
    assert_eq!(bytes_in(&map(file.as_fd()).unwrap()), 4 * 4096);
    assert_eq!(blocks(), before);
    for size in [5000, (64 << 20) + 100, 3 << 40] {
        file.set_len(0).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        file.set_len(size).unwrap();
        assert_eq!(bytes_in(&map(file.as_fd()).unwrap()), 4096, "{size} bytes");
        assert_eq!(blocks(), 8, "the hole at the end is not filled");
    }
    file.write_all_at(b"x", 2 << 40).unwrap();
    assert_eq!(
        bytes_in(&map(file.as_fd()).unwrap()),
        2 * 4096,
        "in a window of its own"
    );
}

#[test]
fn a_map_counts_pages_that_were_allocated_and_never_written() {
    let Some(file) = file() else { return };
    if cached_pages(file.as_fd(), 0, 1).is_err() {
        return crate::skip("cachestat(2) is Linux 6.5 and newer");
    }
    file.set_len(3 << 40).unwrap();
    let allocate = |at, bytes| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, at, bytes).unwrap();
    // Within 2 MiB beside a written page, whole 2 MiB, and behind a long hole.
    for (at, bytes) in [(8192, 4096), (4 << 20, 5 << 20), (2 << 40, 12_288)] {
        allocate(at, bytes);
    }
    file.write_all_at(b"x", 0).unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    let before = blocks();
    assert_eq!(bytes_in(&map(file.as_fd()).unwrap()), before * 512);
    assert_eq!(blocks(), before, "the holes between them are not filled");
}

#[test]
fn the_next_pages_are_found_behind_any_hole() {
    let Some(file) = file() else { return };
    let next = |from, end| next_pages(file.as_fd(), from, end).unwrap();
    file.set_len(8 << 40).unwrap();
    assert_eq!(next(0, i64::MAX as u64), None);
    for at in [3 << 40, (3 << 40) + (1 << 30), (5 << 40) + (6 << 20) + 4096] {
        file.write_all_at(b"x", at).unwrap();
    }
    for (from, end, found) in [
        (0, 8 << 40, Some(3 << 40)),
        (0, 3 << 40, None),
        (4096, (3 << 40) + 1, Some(3 << 40)),
        ((3 << 40) + (2 << 20), 8 << 40, Some((3 << 40) + (1 << 30))),
        ((3 << 40) + (2 << 30), u64::MAX, Some((5 << 40) + (6 << 20))),
        ((5 << 40) + (6 << 20) + 1, u64::MAX, Some((5 << 40) + (6 << 20) + 1)),
        ((5 << 40) + (8 << 20), u64::MAX, None),
    ] {
        assert_eq!(next(from, end), found, "from {from} to {end}");
    }
}

#[test]
fn at_most_1_gib_is_counted_at_once_behind_a_hole_of_512_gib() {
    let (start, end) = (512_u64 << 30, 1024_u64 << 30);
    for size in [end, i64::MAX as u64] {
        let most = Cell::new(0);
        let count = |at: u64, bytes: u64| {
            let taken = (at + bytes).min(end).saturating_sub(at.max(start)) / 4096;
            most.set(most.get().max(taken));
            Ok(taken)
        };
        let found = next_counted(0, size, count);
        assert_eq!(found.unwrap(), Some(start));
        assert!(most.get() <= 1 << 18, "{} pages were counted at once", most.get());
    }
    let counts = Cell::new(0);
    let count = |_, _| {
        counts.set(counts.get() + 1);
        Ok(0)
    };
    let nothing = next_counted(0, i64::MAX as u64, count);
    assert_eq!(nothing.unwrap(), None);
    assert!(counts.get() < 20_000, "{} counts", counts.get());
}

#[test]
fn data_far_behind_a_hole_is_counted_a_few_times() {
    for start in [3_u64 << 39, 1 << 62, (1 << 62) + (7 << 50) + HUGE] {
        let end = start + (16 << 30);
        let (all, counts) = (Cell::new(0), Cell::new(0));
        let count = |at: u64, bytes: u64| {
            let taken = (at + bytes).min(end).saturating_sub(at.max(start)) / 4096;
            all.set(all.get() + taken);
            counts.set(counts.get() + 1);
            Ok(taken)
        };
        let found = next_counted(0, i64::MAX as u64, count);
        assert_eq!(found.unwrap(), Some(start));
        let data = (end - start) / 4096;
        assert!(
            all.get() <= 3 * data && counts.get() < 20_000,
            "{} pages of {data} in {} counts",
            all.get(),
            counts.get()
        );
    }
}

#[test]
fn a_file_whose_name_is_no_text_has_a_map() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        crate::skip("no file can be made on /dev/shm");
        return;
    };
    let path = directory.path().join(OsStr::from_bytes(b"caf\xe9"));
    std::fs::write(&path, vec![1; 4 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(bytes_in(&map(file.as_fd()).unwrap()), 4 << 20);
}

#[test]
fn moving_ends_beside_one_who_makes_the_file_longer() {
    let Some(file) = file() else { return };
    file.write_all_at(b"x", 0).unwrap();
    file.write_all_at(b"x", WINDOW_BYTES).unwrap();
    let mut windows = 1;
    let mut grow = |_, _| {
        windows += 1;
        assert!(windows < 100, "it goes on as long as the file grows");
        file.write_all_at(b"x", windows * WINDOW_BYTES).unwrap();
    };
    move_pages(file.as_fd(), None, NodeId(0), &mut grow).unwrap();
    assert_eq!(windows, 4, "for two windows, and at the end");
}

#[test]
fn a_map_of_a_file_beyond_2_mib_is_complete() {
    let Some(file) = file() else { return };
    file.write_all_at(&vec![7; (5 << 20) + 100], 0).unwrap();
    assert_eq!(bytes_in(&map(file.as_fd()).unwrap()), (5 << 20) + 4096);
}

#[test]
fn a_file_opened_read_only_can_be_mapped_and_moved() {
    let Some(file) = file() else { return };
    file.write_all_at(&[7; 10_000], 0).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let reader = File::open(path).unwrap();
    let nodes = map(reader.as_fd()).unwrap();
    assert_eq!(bytes_in(&nodes), 3 * 4096);
    assert_eq!(move_pages(reader.as_fd(), None, nodes[0].0, &mut |_, _| {}).unwrap(), 0);
}

#[test]
fn policies_are_set_changed_and_taken_away() {
    let Some(file) = file() else { return };
    for policy in [Placement::Interleave, Placement::Node(NodeId(0)), Placement::Local] {
        place(file.as_fd(), policy, None).unwrap();
        place(file.as_fd(), policy, Some(&[NodeId(0)])).unwrap();
        file.write_all_at(b"x", 0).unwrap();
    }
    assert!(place(file.as_fd(), Placement::Node(NodeId(1023)), None).is_err());
}

#[test]
fn moving_a_file_to_its_own_node_moves_nothing() {
    let Some(file) = file() else { return };
    file.write_all_at(&vec![7; 3 << 20], 0).unwrap();
    let mut last = (0, 0);
    let moved = move_pages(file.as_fd(), None, map(file.as_fd()).unwrap()[0].0, &mut |done, all| {
        last = (done, all)
    });
    assert_eq!((moved.unwrap(), last), (0, (3 << 20, 3 << 20)));
}
