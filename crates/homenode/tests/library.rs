//! The library as a program uses it.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Allocate, FileType, FsError, NodeId, OpenOptions, Pool, PoolOptions, Size};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use support::{errno, pool};

const MIB: u64 = 1 << 20;
const MIB_LEN: usize = 1 << 20;

const ENOENT: i32 = 2;
const EBADF: i32 = 9;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const ENODEV: i32 = 19;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENAMETOOLONG: i32 = 36;
const ENOTEMPTY: i32 = 39;
const ELOOP: i32 = 40;

#[test]
fn written_bytes_are_read_back() {
    let pool = pool(16);
    let file = pool.create_file("file").unwrap();
    assert_eq!(file.write_at(b"hello", 10).unwrap(), 5);
    let mut text = [1; 20];
    assert_eq!(file.read_at(&mut text, 0).unwrap(), 15);
    assert_eq!(&text[..15], b"\0\0\0\0\0\0\0\0\0\0hello");
    assert_eq!(file.read_at(&mut text, 15).unwrap(), 0);
    assert!(!file.read_exact_at(&mut text, 0).unwrap());
    assert_eq!(file.append(b"!").unwrap(), (15, 1));
    file.set_len(12).unwrap();
    assert_eq!(file.metadata().len(), 12);
    assert_eq!(file.map(), [(NodeId(0), 4096)]);
    assert_eq!(file.metadata().blocks_512(), 8);
    file.sync().unwrap();
}

/// All that is lent of a file, piece by piece.
fn lent(file: &homenode::File) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let at = bytes.len();
        let count = file
            .with_bytes(at as u64, MIB_LEN, |lent| {
                let mut piece = vec![0; lent.len()];
                lent.copy_to(0, &mut piece);
                if at.is_multiple_of(8) && lent.len() >= 8 {
                    assert_eq!(lent.word(0).to_le(), u64::from_le_bytes(piece[..8].try_into().unwrap()));
                }
                bytes.extend(piece);
                lent.len()
            })
            .unwrap();
        if count == 0 {
            return bytes;
        }
    }
}

#[test]
fn bytes_are_lent_where_they_lie() {
    let pool = pool(16);
    let file = pool.create_file("file").unwrap();
    assert!(lent(&file).is_empty());
    let written: Vec<u8> = (0..100_000_u32).map(|at| (at / 3).to_le_bytes()[0]).collect();
    file.write_all_at(&written, 5000).unwrap();
    file.write_all_at(b"behind a hole", 300_001).unwrap();
    let all = lent(&file);
    assert_eq!(all.len(), 300_014);
    assert!(all[..5000].iter().all(|byte| *byte == 0) && all[5000..105_000] == written);
    assert_eq!(all[300_001..], *b"behind a hole");
    let blind = pool.open("file", &OpenOptions::new().write(true)).unwrap();
    assert_eq!(errno(blind.with_bytes(0, 1, |_| ())), EBADF);
}

#[test]
fn open_options_are_followed() {
    let pool = pool(4);
    let read = OpenOptions::new().read(true);
    let write = OpenOptions::new().write(true);
    assert_eq!(errno(pool.open("a", &read)), ENOENT);
    let file = pool.open("a", &write.create_new(true).mode(0o600)).unwrap();
    assert_eq!(file.metadata().mode() & 0o7777, 0o600);
    assert_eq!(errno(pool.open("a", &write.create_new(true))), EEXIST);
    assert_eq!(errno(file.read_at(&mut [0], 0)), EBADF);
    file.write_all_at(b"text", 0).unwrap();
    let reader = pool.open("/a", &read).unwrap();
    assert_eq!(errno(reader.write_at(b"x", 0)), EBADF);
    assert_eq!(errno(reader.set_len(0)), EBADF);
    let appender = pool.open("a", &OpenOptions::new().append(true)).unwrap();
    appender.write_at(b"more", 0).unwrap();
    let mut text = [0; 8];
    assert!(reader.read_exact_at(&mut text, 0).unwrap());
    assert_eq!(&text, b"textmore");
    pool.open("a", &write.truncate(true)).unwrap();
    assert_eq!(reader.metadata().len(), 0);
    for contradiction in [
        OpenOptions::new(),
        read.create(true),
        read.truncate(true),
        OpenOptions::new().append(true).truncate(true),
    ] {
        assert_eq!(errno(pool.open("a", &contradiction)), EINVAL, "{contradiction:?}");
    }
    pool.create_dir("d").unwrap();
    assert_eq!(errno(pool.open("d", &write)), EISDIR);
    assert_eq!(errno(pool.open("new/", &write.create(true))), EISDIR);
    assert_eq!(errno(pool.open("a/", &read)), ENOTDIR);
    pool.open("d/", &read).unwrap();
    let by_number = pool.open_inode(reader.ino()).unwrap();
    assert_eq!(by_number.ino(), reader.ino());
    assert_eq!(errno(pool.open_inode(u64::MAX)), FsError::Stale.errno());
}

#[test]
fn paths_and_links() {
    let pool = pool(4);
    pool.create_dir_all("a/b/c").unwrap();
    pool.create_dir_all("/a//b/c/").unwrap();
    pool.create_file("a/b/file").unwrap().write_all_at(b"x", 0).unwrap();
    for path in [
        "a/b/file",
        "/a/b/file",
        "a/./b/../b/file",
        "//a//b///file",
        "../../a/b/file",
        "a/b/c/../file",
    ] {
        assert_eq!(pool.metadata(path).unwrap().len(), 1, "{path}");
    }
    assert_eq!(errno(pool.metadata("")), ENOENT);
    assert_eq!(errno(pool.metadata("a/b/file/x")), ENOTDIR);
    assert_eq!(errno(pool.metadata("n".repeat(256))), ENAMETOOLONG);
    assert!(pool.metadata("/").unwrap().is_dir());

    pool.symlink("b/file", "a/relative").unwrap();
    pool.symlink("/a/b", "absolute").unwrap();
    assert_eq!(pool.metadata("a/relative").unwrap().len(), 1);
    assert_eq!(pool.metadata("absolute/file").unwrap().len(), 1);
    assert!(pool.symlink_metadata("absolute").unwrap().is_symlink());
    assert!(
        pool.symlink_metadata("absolute/").unwrap().is_dir(),
        "a trailing slash follows"
    );
    assert_eq!(pool.read_link("a/relative").unwrap(), PathBuf::from("b/file"));
    assert_eq!(errno(pool.read_link("a")), EINVAL);

    // A dangling link makes what it points to.
    pool.symlink("made", "a/dangling").unwrap();
    assert_eq!(
        errno(pool.open("a/dangling", &OpenOptions::new().write(true).create_new(true))),
        EEXIST
    );
    pool.create_file("a/dangling").unwrap();
    assert!(pool.symlink_metadata("a/made").unwrap().is_file());

    pool.symlink("loop", "loop").unwrap();
    assert_eq!(errno(pool.metadata("loop")), ELOOP);
    assert_eq!(errno(pool.create_file("loop")), ELOOP);
    pool.create_file("l40").unwrap();
    for number in (0..40).rev() {
        pool.symlink(format!("l{}", number + 1), format!("l{number}")).unwrap();
    }
    assert!(pool.metadata("l0").unwrap().is_file(), "40 links are followed");
    pool.symlink("l0", "l-1").unwrap();
    assert_eq!(errno(pool.metadata("l-1")), ELOOP);

    pool.hard_link("a/b/file", "second").unwrap();
    assert_eq!(pool.metadata("second").unwrap().nlink(), 2);
    assert_eq!(
        pool.metadata("second").unwrap().ino(),
        pool.metadata("a/b/file").unwrap().ino()
    );
}

#[test]
fn renaming_and_removing() {
    let pool = pool(4);
    pool.create_dir_all("d/e").unwrap();
    pool.create_file("f").unwrap();
    pool.create_file("g").unwrap().write_all_at(b"g", 0).unwrap();
    pool.rename("g", "f").unwrap();
    assert_eq!(pool.metadata("f").unwrap().len(), 1);
    assert_eq!(errno(pool.metadata("g")), ENOENT);
    assert_eq!(errno(pool.rename_new("f", "d")), EEXIST);
    assert_eq!(errno(pool.rename("d", "d/e/x")), EINVAL);
    assert_eq!(errno(pool.rename("f", "d")), EISDIR);
    assert_eq!(errno(pool.rename("f/", "h")), ENOTDIR);
    assert_eq!(errno(pool.rename("/", "h")), EBUSY);
    assert_eq!(errno(pool.rename("f", "..")), EBUSY);
    pool.exchange("f", "d/e").unwrap();
    assert!(pool.metadata("f").unwrap().is_dir());
    assert!(pool.metadata("d/e").unwrap().is_file());

    assert_eq!(errno(pool.remove_file("f")), EISDIR);
    assert_eq!(errno(pool.remove_file("d/e/")), ENOTDIR);
    assert_eq!(errno(pool.remove_dir("d/e")), ENOTDIR);
    assert_eq!(errno(pool.remove_dir("d")), ENOTEMPTY);
    let open = pool.open("d/e", &OpenOptions::new().read(true)).unwrap();
    pool.remove_file("d/e").unwrap();
    let mut byte = [0];
    assert_eq!(open.read_at(&mut byte, 0).unwrap(), 1, "an open file outlives its name");
    pool.remove_dir("d").unwrap();
    pool.remove_dir("f/").unwrap();
    assert_eq!(pool.read_dir("/").unwrap().count(), 0);
}

#[test]
fn directories_list_each_name_once() {
    let pool = pool(4);
    pool.create_dir("d").unwrap();
    let names: BTreeSet<String> = (0..1000).map(|number| format!("name-{number}")).collect();
    for name in &names {
        pool.create_file(format!("d/{name}")).unwrap();
    }
    let mut listed = BTreeSet::new();
    for entry in pool.read_dir("d").unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.file_type(), FileType::File);
        assert_eq!(
            entry.ino(),
            pool.metadata(PathBuf::from("d").join(entry.name())).unwrap().ino()
        );
        assert!(
            listed.insert(entry.name().to_str().unwrap().to_owned()),
            "{entry:?} came twice"
        );
    }
    assert_eq!(listed, names);
    assert_eq!(errno(pool.read_dir("d/name-1")), ENOTDIR);
}

#[test]
fn attributes() {
    let pool = pool(4);
    pool.create_file("f").unwrap();
    pool.set_permissions("f", 0o4711).unwrap();
    assert_eq!(pool.metadata("f").unwrap().mode(), 0o104_711);
    pool.set_owner("f", Some(12), None).unwrap();
    assert_eq!(pool.metadata("f").unwrap().uid(), 12);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123_456_789);
    pool.set_times("f", None, Some(time)).unwrap();
    assert_eq!(pool.metadata("f").unwrap().modified(), time);
    pool.set_xattr("f", "user.color", b"red").unwrap();
    assert_eq!(pool.xattr("f", "user.color").unwrap(), b"red");
    assert_eq!(pool.xattr_names("f").unwrap(), ["user.color"]);
    pool.remove_xattr("f", "user.color").unwrap();
    assert_eq!(errno(pool.xattr("f", "user.color")), FsError::NoAttribute.errno());
}

#[test]
fn holes_and_reserved_space() {
    let pool = pool(8);
    let file = pool.create_file("f").unwrap();
    file.set_len(100 * MIB).unwrap();
    assert_eq!(file.metadata().blocks_512(), 0, "a hole takes nothing");
    file.write_all_at(&[1; 4096], MIB).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), Some(MIB));
    assert_eq!(file.seek_hole(MIB).unwrap(), Some(MIB + 4096));
    assert_eq!(file.seek_data(2 * MIB).unwrap(), None);
    file.allocate(Allocate::PunchHole, MIB, 4096).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), None);

    let reserved = pool.create_file("r").unwrap();
    reserved.allocate(Allocate::Reserve, 0, 4 * MIB).unwrap();
    assert_eq!(pool.status().reserved_bytes, 4 * MIB);
    assert_eq!(reserved.map(), [], "promised, not placed");
    assert_eq!(errno(file.allocate(Allocate::Reserve, 0, 5 * MIB)), ENOSPC);
    reserved.write_all_at(&[2; 4096], 0).unwrap();
    assert_eq!(reserved.map(), [(NodeId(0), 4096)]);
}

#[test]
fn a_file_that_grows_keeps_what_is_reserved_behind_its_end() {
    let pool = pool(8);
    for has_attribute in [false, true] {
        let file = pool.create_file("f").unwrap();
        if has_attribute {
            pool.set_xattr("f", "user.homenode.reserve", b"extend").unwrap();
        }
        file.allocate(Allocate::ReserveKeepSize, 0, 2 * MIB).unwrap();
        for (size, expected) in [(4096, 2 * MIB), (9000, 2 * MIB), (9000, 3 * 4096)] {
            file.set_len(size).unwrap();
            assert_eq!(file.metadata().blocks_512() * 512, expected, "{has_attribute}");
        }
        drop(file);
        pool.remove_file("f").unwrap();
    }
}

#[test]
fn a_full_pool_returns_enospc_and_frees_space_at_once() {
    let pool = pool(8);
    let file = pool.create_file("f").unwrap();
    let error = file.write_all_at(&vec![1; 9 * MIB_LEN], 0).unwrap_err();
    assert_eq!(error.errno(), ENOSPC, "{error}");
    assert_eq!(pool.status().free_bytes, 0);
    assert_eq!(
        pool.create_file("g").unwrap().write_at(b"x", 0).unwrap_err().errno(),
        ENOSPC
    );
    pool.remove_file("f").unwrap();
    drop(file);
    assert_eq!(pool.status().used_bytes, 0);
    pool.create_file("g")
        .unwrap()
        .write_all_at(&vec![1; 8 * MIB_LEN], 0)
        .unwrap();
}

#[test]
fn members_come_and_go() {
    let pool = pool(8);
    let file = pool.create_file("f").unwrap();
    let content: Vec<u8> = (0..5 * MIB).map(|at| (at % 253) as u8).collect();
    file.write_all_at(&content, 0).unwrap();
    let first = pool.status().members[0].id;
    assert_eq!(errno(pool.remove(first)), EBUSY);
    assert_eq!(errno(pool.drain(first, &mut |_, _| {})), EBUSY);
    let second = pool.add_member(NodeId(0), Size::Bytes(8 * MIB)).unwrap();
    assert_eq!(pool.status().capacity_bytes, 16 * MIB);

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let other = pool.create_file("other").unwrap();
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                other.write_all_at(&[round; 70_000], 0).unwrap();
                let mut back = [0; 70_000];
                assert!(other.read_exact_at(&mut back, 0).unwrap());
                assert!(back.iter().all(|&byte| byte == round));
                other.set_len(0).unwrap();
            }
        });
        let mut told = (0, 0);
        let moved = pool.drain(first, &mut |done, total| told = (done, total)).unwrap();
        assert!(moved >= 5 * MIB && told.0 <= told.1, "{moved} {told:?}");
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(pool.status().members[0].used_bytes, 0);
    pool.remove(first).unwrap();
    let status = pool.status();
    assert_eq!(status.members.len(), 1);
    assert_eq!(status.members[0].id, second);
    let mut back = vec![0; content.len()];
    assert!(file.read_exact_at(&mut back, 0).unwrap());
    assert_eq!(back, content);
    assert_eq!(errno(pool.remove(first)), EINVAL);
}

#[test]
fn impossible_pools_are_refused() {
    let options = |size| PoolOptions::new().size_per_node(size);
    assert_eq!(errno(Pool::create(&options(Size::Bytes(4096)))), EINVAL);
    assert_eq!(errno(Pool::create(&options(Size::Bytes(1 << 50)))), 12);
    assert_eq!(errno(Pool::create(&PoolOptions::new().node(NodeId(999)))), ENODEV);
    let pool = pool(4);
    let file = pool.create_file("f").unwrap();
    assert_eq!(errno(file.move_to(NodeId(999))), ENODEV);
    let elsewhere = self::pool(4).create_file("f").unwrap();
    assert_eq!(errno(file.copy_from(&elsewhere, 0, 0, 1)), EXDEV);
}

#[test]
fn memory_is_populated_only_as_far_as_asked() {
    let pool = Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(64 * MIB)).node(NodeId(0))).unwrap();
    pool.wait_populated().unwrap();
    let populated = pool.status().members[0].populated_bytes;
    assert!(
        (16 * MIB..=20 * MIB).contains(&populated),
        "{populated}: a quarter is kept ready"
    );
    let file = pool.create_file("f").unwrap();
    file.write_all_at(&vec![1; 16 * MIB_LEN], 0).unwrap();
    pool.wait_populated().unwrap();
    let populated = pool.status().members[0].populated_bytes;
    assert!(populated >= 32 * MIB, "{populated}: the window follows the writer");
    let whole = PoolOptions::new()
        .size_per_node(Size::Bytes(16 * MIB))
        .node(NodeId(0))
        .populate_ahead(Size::percent(100));
    let whole = Pool::create(&whole).unwrap();
    whole.wait_populated().unwrap();
    assert_eq!(whole.status().members[0].populated_bytes, 16 * MIB);
}

/// Slots are claimed by threads that come and go, in pools that come and go, by more threads than there are slots.
#[test]
fn threads_and_pools_come_and_go() {
    for _ in 0..3 {
        let pools = [pool(4), pool(4)];
        for round in 0..50 {
            thread::scope(|scope| {
                for thread in 0..8_u64 {
                    let pools = &pools;
                    scope.spawn(move || {
                        for pool in pools.iter().chain(pools) {
                            let file = pool
                                .open("f", &OpenOptions::new().read(true).write(true).create(true))
                                .unwrap();
                            file.write_all_at(&[round; 1000], thread * 1000).unwrap();
                            let mut back = [0; 1000];
                            assert!(file.read_exact_at(&mut back, thread * 1000).unwrap());
                            assert_eq!(back, [round; 1000]);
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn errors_name_the_operation_and_its_object() {
    let pool = pool(4);
    let text = pool
        .open("dir/missing", &OpenOptions::new().read(true))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("open") && text.contains("dir/missing") && text.contains("no such file"),
        "{text}"
    );
    let error: std::io::Error = pool.remove_dir("nothing").unwrap_err().into();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().contains("nothing"), "{error}");
}
