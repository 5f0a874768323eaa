//! Times: which call moves which, utimensat(2), and relatime.

use crate::actor::{ALICE, BOB, as_user};
use crate::observe::{TICK, Times, moved, now_ns, tick};
use crate::stage::{assert_errno, create, edit, open, read_at, stage, write_at};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, OFlags, Timespec, Timestamps, Uid, XattrFlags, utimensat};
use rustix::fs::{UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use std::path::Path;
use std::time::SystemTime;

fn at(tv_sec: i64, tv_nsec: i64) -> Timespec {
    Timespec { tv_sec, tv_nsec }
}

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: UTIME_NOW,
};
const OMIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: UTIME_OMIT,
};

fn set(path: impl AsRef<Path>, last_access: Timespec, last_modification: Timespec) -> Result<(), Errno> {
    let times = Timestamps {
        last_access,
        last_modification,
    };
    utimensat(CWD, path.as_ref(), &times, AtFlags::SYMLINK_NOFOLLOW)
}

#[test]
fn a_new_file_has_the_current_birth_time() {
    let stage = stage!();
    let start_ns = now_ns() - 20_000_000;
    for path in [stage.file("file", []), stage.dir("dir")] {
        let Times {
            access_ns,
            modify_ns,
            change_ns,
        } = Times::of(&path);
        assert!(start_ns <= change_ns && change_ns <= now_ns());
        assert!(start_ns <= access_ns && access_ns <= now_ns());
        assert!(start_ns <= modify_ns && modify_ns <= now_ns());
        // Where the kernel asks a FUSE server for it (6.6 or newer).
        if let Ok(born) = std::fs::metadata(&path).unwrap().created() {
            let born_ns = born.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
            let born_ns = i128::try_from(born_ns).unwrap();
            assert!(start_ns <= born_ns && born_ns <= now_ns());
        }
    }
}

#[test]
fn creating_a_file_updates_its_parents_times_and_opening_does_not() {
    let stage = stage!();
    let path = stage.at("f");
    assert_eq!(moved([stage.path()], || drop(create(&path))), ["mc"]);
    let again = || drop(open(&path, OFlags::RDWR | OFlags::CREATE).unwrap());
    assert_eq!(moved([stage.path(), &path], again), ["", ""]);
}

#[test]
fn writing_updates_modification_and_change_time() {
    let stage = stage!();
    let path = stage.file("f", [1; 8192]);
    let fd = edit(&path);
    assert_eq!(moved([&path], || write_at(&fd, 0, b"over")), ["mc"]);
    assert_eq!(moved([&path], || write_at(&fd, 100_000, b"far")), ["mc"]);
    assert_eq!(
        moved([&path], || assert_eq!(rustix::io::pwrite(&fd, b"", 0), Ok(0))),
        [""]
    );
    assert_eq!(moved([&path], || drop(edit(&path))), [""]);
    let direct = open(&path, OFlags::RDWR | OFlags::DIRECT).unwrap();
    assert_eq!(moved([&path], || write_at(&direct, 0, &[2; 4096])), ["mc"]);
}

#[test]
fn changing_length_or_space_updates_modification_and_change_time() {
    let stage = stage!();
    let path = stage.file("f", [1; 8192]);
    let fd = edit(&path);
    assert_eq!(moved([&path], || rustix::fs::ftruncate(&fd, 100).unwrap()), ["mc"]);
    assert_eq!(moved([&path], || rustix::fs::ftruncate(&fd, 9000).unwrap()), ["mc"]);
    // POSIX: ftruncate marks both even if the length stays; so does Linux.
    assert_eq!(moved([&path], || rustix::fs::ftruncate(&fd, 9000).unwrap()), ["mc"]);
    assert_eq!(
        moved([&path], || drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap())),
        ["mc"]
    );
    assert_eq!(
        moved([&path], || drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap())),
        ["mc"],
        "empty already"
    );
    let grow = || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 10_000).unwrap();
    let [grown] = moved([&path], grow);
    assert!(stage.is_reference() || grown == "mc", "fallocate that grows: {grown}");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let [punched] = moved([&path], || rustix::fs::fallocate(&fd, hole, 0, 4096).unwrap());
    assert!(stage.is_reference() || punched == "mc", "a punched hole: {punched}");
}

#[test]
fn changing_attributes_updates_the_change_time_alone() {
    let stage = stage!();
    let path = stage.file("f", []);
    let none = XattrFlags::empty();
    assert_eq!(
        moved([&path], || rustix::fs::setxattr(&path, "user.x", b"1", none).unwrap()),
        ["c"]
    );
    assert_eq!(
        moved([&path], || rustix::fs::removexattr(&path, "user.x").unwrap()),
        ["c"]
    );
    assert_eq!(
        moved([&path], || assert!(rustix::fs::removexattr(&path, "user.x").is_err())),
        [""]
    );
    assert_eq!(moved([&path], || rustix::fs::chown(&path, None, None).unwrap()), ["c"]);
}

#[test]
fn looking_up_updates_no_time() {
    let stage = stage!();
    let path = stage.file("f", b"x");
    let look = || {
        let _ = rustix::fs::stat(&path).unwrap();
        let _ = rustix::fs::statvfs(&path).unwrap();
        let mut list = [0; 1000];
        let _ = rustix::fs::listxattr(&path, &mut list).unwrap();
        rustix::fs::access(&path, rustix::fs::Access::READ_OK).unwrap();
    };
    assert_eq!(moved([&path, stage.path()], look), ["", ""]);
}

#[test]
fn reading_updates_an_old_access_time() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    set(&path, at(1_000_000, 0), at(2_000_000, 0)).unwrap();
    let read = |expected: &[u8]| {
        let fd = open(&path, OFlags::RDONLY).unwrap();
        // What the kernel reads from its own cache, no file server learns of: there the time moves with the first read that
        // reaches the file.
        rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(read_at(&fd, 0, 7), expected);
    };
    assert_eq!(moved([&path], || read(b"content")), ["a"]);
    // It is newer than the modification now, and younger than a day: relatime leaves it.
    assert_eq!(moved([&path], || read(b"content")), [""]);
    tick();
    write_at(&edit(&path), 0, b"CONTENT");
    assert_eq!(moved([&path], || read(b"CONTENT")), ["a"]);
    let day_old = at(i64::try_from(now_ns() / 1_000_000_000).unwrap() - 90_000, 0);
    set(&path, day_old, at(1, 0)).unwrap();
    assert_eq!(moved([&path], || read(b"CONTENT")), ["a"], "older than a day");
}

#[test]
fn listing_a_directory_updates_its_access_time() {
    let stage = stage!();
    let dir = stage.dir("dir");
    stage.file("dir/f", []);
    set(&dir, at(1_000_000, 0), at(2_000_000, 0)).unwrap();
    assert_eq!(moved([&dir], || assert_eq!(crate::observe::names(&dir), ["f"])), ["a"]);
}

#[test]
fn noatime_updates_no_access_time() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    set(&path, at(1_000_000, 0), at(2_000_000, 0)).unwrap();
    let read = || {
        let fd = open(&path, OFlags::RDONLY | OFlags::NOATIME).unwrap();
        assert_eq!(read_at(&fd, 0, 7), b"content");
    };
    assert_eq!(moved([&path], read), [""]);
    rustix::fs::chmod(&path, crate::stage::mode(0o666)).unwrap();
    as_user(BOB, &[], || {
        assert_errno!(open(&path, OFlags::RDONLY | OFlags::NOATIME), PERM)
    });
}

#[test]
fn times_are_set_to_the_nanosecond() {
    let stage = stage!();
    let path = stage.file("f", []);
    for (seconds, ns) in [
        (1, 1),
        (1_700_000_000, 999_999_999),
        (0, 0),
        (-1, 5),
        (-86_400 * 365, 0),
        (1 << 33, 7),
    ] {
        set(&path, at(seconds, ns), at(seconds + 10, ns)).unwrap();
        let Times {
            access_ns, modify_ns, ..
        } = Times::of(&path);
        let expected = i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        assert_eq!((access_ns, modify_ns), (expected, expected + 10_000_000_000));
    }
    let change = Times::of(&path).change_ns;
    assert!(
        change > 1_600_000_000_000_000_000,
        "the change time is never set by hand: {change}"
    );
    assert_errno!(set(&path, at(0, 1_000_000_000), at(0, 0)), INVAL);
    assert_errno!(set(&path, at(0, -5), at(0, 0)), INVAL);
}

#[test]
fn utimensat_accepts_now_and_omit() {
    let stage = stage!();
    let path = stage.file("f", []);
    assert_eq!(moved([&path], || set(&path, NOW, NOW).unwrap()), ["amc"]);
    assert_eq!(moved([&path], || set(&path, NOW, OMIT).unwrap()), ["ac"]);
    assert_eq!(moved([&path], || set(&path, OMIT, NOW).unwrap()), ["mc"]);
    assert_eq!(moved([&path], || set(&path, OMIT, OMIT).unwrap()), [""]);
    let before = Times::of(&path);
    set(&path, OMIT, at(77, 0)).unwrap();
    let after = Times::of(&path);
    assert_eq!((after.access_ns, after.modify_ns), (before.access_ns, 77_000_000_000));
}

#[test]
fn times_of_links_directories_and_descriptors_can_be_set() {
    let stage = stage!();
    let path = stage.file("f", []);
    let link = stage.at("link");
    rustix::fs::symlink("f", &link).unwrap();
    let dir = stage.dir("dir");
    set(&link, at(5, 0), at(6, 0)).unwrap();
    set(&dir, at(7, 0), at(8, 0)).unwrap();
    assert_eq!(Times::of(&link).modify_ns, 6_000_000_000);
    assert_eq!(Times::of(&dir).access_ns, 7_000_000_000);
    assert_ne!(Times::of(&path).modify_ns, 6_000_000_000);
    let times = Timestamps {
        last_access: at(1, 0),
        last_modification: at(2, 0),
    };
    rustix::fs::futimens(open(&path, OFlags::RDONLY).unwrap(), &times).unwrap();
    assert_eq!(Times::of(&path).modify_ns, 2_000_000_000);
}

#[test]
fn only_permitted_users_may_set_times() {
    let stage = stage!();
    let path = stage.file("f", []);
    rustix::fs::chown(&path, Some(Uid::from_raw(ALICE)), Some(Gid::from_raw(ALICE))).unwrap();
    rustix::fs::chmod(&path, crate::stage::mode(0o666)).unwrap();
    as_user(ALICE, &[], || set(&path, at(1, 0), at(1, 0)).unwrap());
    as_user(BOB, &[], || {
        assert_errno!(set(&path, at(1, 0), at(1, 0)), PERM);
        assert_errno!(set(&path, NOW, at(1, 0)), PERM);
        assert_errno!(set(&path, NOW, OMIT), PERM);
        set(&path, NOW, NOW).unwrap();
        set(&path, OMIT, OMIT).unwrap();
    });
    rustix::fs::chmod(&path, crate::stage::mode(0o644)).unwrap();
    as_user(BOB, &[], || assert_errno!(set(&path, NOW, NOW), ACCESS));
}

#[test]
fn a_written_time_stays_when_the_file_is_closed() {
    let stage = stage!();
    let path = stage.at("f");
    let fd = create(&path);
    write_at(&fd, 0, &[1; 100_000]);
    let times = Timestamps {
        last_access: at(10, 0),
        last_modification: at(20, 0),
    };
    rustix::fs::futimens(&fd, &times).unwrap();
    drop(fd);
    std::thread::sleep(TICK);
    // cp -p and tar rely on it.
    assert_eq!(Times::of(&path).modify_ns, 20_000_000_000);
}
