//! Who may do what: permissions of owner, group and others, search permission, access(2).

use crate::actor::{ALICE, BOB, STAFF, as_user};
use crate::observe::names;
use crate::stage::{Stage, assert_errno, edit, mode, open, stage, truncate};
use rustix::fs::{Access, AtFlags, CWD, Gid, OFlags, Uid, access, accessat, chmod, chown};
use std::path::{Path, PathBuf};

/// A file of ALICE and STAFF.
fn owned(stage: &Stage, bits: u32) -> PathBuf {
    let path = stage.file("file", b"content");
    chown(&path, Some(Uid::from_raw(ALICE)), Some(Gid::from_raw(STAFF))).unwrap();
    chmod(&path, mode(bits)).unwrap();
    path
}

/// What the calling user may do, found out by doing it and by access(2).
fn rights(path: &Path) -> String {
    let tries = [
        ('r', Access::READ_OK, open(path, OFlags::RDONLY).is_ok()),
        ('w', Access::WRITE_OK, open(path, OFlags::WRONLY).is_ok()),
    ];
    let granted = tries.into_iter().filter(|(letter, right, works)| {
        assert_eq!(
            accessat(CWD, path, *right, AtFlags::EACCESS).is_ok(),
            *works,
            "access disagrees about {letter}"
        );
        assert_eq!(access(path, *right).is_ok(), *works, "access disagrees about {letter}");
        *works
    });
    granted.map(|(letter, ..)| letter).collect()
}

#[test]
fn the_first_class_that_fits_decides() {
    let stage = stage!();
    for (bits, owner, group, other) in [
        (0o640, "rw", "r", ""),
        (0o046, "", "r", "rw"),
        (0o426, "r", "w", "rw"),
        (0o000, "", "", ""),
        (0o666, "rw", "rw", "rw"),
    ] {
        let path = owned(&stage, bits);
        assert_eq!(as_user(ALICE, &[STAFF], || rights(&path)), owner, "{bits:o}");
        assert_eq!(as_user(BOB, &[STAFF], || rights(&path)), group, "{bits:o}");
        assert_eq!(as_user(BOB, &[], || rights(&path)), other, "{bits:o}");
        assert_eq!(rights(&path), "rw", "root");
    }
}

#[test]
fn execution_needs_an_execute_bit_even_for_root() {
    let stage = stage!();
    let path = owned(&stage, 0o666);
    assert_errno!(access(&path, Access::EXEC_OK), ACCESS);
    chmod(&path, mode(0o676)).unwrap();
    access(&path, Access::EXEC_OK).unwrap();
    as_user(ALICE, &[], || assert_errno!(access(&path, Access::EXEC_OK), ACCESS));
    as_user(BOB, &[STAFF], || access(&path, Access::EXEC_OK).unwrap());
    assert_errno!(access(stage.at("none"), Access::EXISTS), NOENT);
    access(&path, Access::EXISTS).unwrap();
}

#[test]
fn every_directory_of_a_path_needs_search_permission() {
    let stage = stage!();
    let dir = stage.dir("dir");
    let inside = stage.file("dir/file", []);
    chmod(&inside, mode(0o666)).unwrap();
    chmod(&dir, mode(0o766)).unwrap();
    as_user(BOB, &[], || {
        assert_errno!(rustix::fs::stat(&inside), ACCESS);
        assert_errno!(open(&inside, OFlags::RDONLY), ACCESS);
        assert_errno!(rustix::fs::unlink(&inside), ACCESS);
        assert_eq!(names(&dir), ["file"], "the directory can be listed");
    });
    chmod(&dir, mode(0o711)).unwrap();
    as_user(BOB, &[], || {
        rustix::fs::stat(&inside).unwrap();
        drop(edit(&inside));
        assert_errno!(open(&dir, OFlags::RDONLY), ACCESS);
        assert_errno!(open(dir.join("new"), OFlags::RDWR | OFlags::CREATE), ACCESS);
    });
}

#[test]
fn changing_a_directory_needs_its_write_permission() {
    let stage = stage!();
    let dir = stage.dir("dir");
    let inside = stage.file("dir/file", []);
    let outside = stage.file("outside", []);
    chown(&inside, Some(Uid::from_raw(BOB)), None).unwrap();
    as_user(BOB, &[], || {
        assert_errno!(std_errno(std::fs::create_dir(dir.join("new"))), ACCESS);
        assert_errno!(rustix::fs::unlink(&inside), ACCESS);
        assert_errno!(rustix::fs::rename(&inside, dir.join("other")), ACCESS);
        assert_errno!(rustix::fs::symlink("x", dir.join("new")), ACCESS);
        assert_errno!(rustix::fs::link(&inside, dir.join("new")), ACCESS);
        assert_errno!(rustix::fs::rename(&outside, dir.join("new")), ACCESS);
    });
    chmod(&dir, mode(0o777)).unwrap();
    as_user(BOB, &[], || {
        rustix::fs::rename(&inside, dir.join("other")).unwrap();
        rustix::fs::unlink(dir.join("other")).unwrap();
    });
}

fn std_errno<T>(result: std::io::Result<T>) -> Result<T, rustix::io::Errno> {
    result.map_err(|error| rustix::io::Errno::from_io_error(&error).expect("the kernel refused"))
}

#[test]
fn moving_a_directory_elsewhere_needs_write_permission_on_it() {
    let stage = stage!();
    chmod(stage.path(), mode(0o777)).unwrap();
    let (from, to) = (stage.dir("from"), stage.dir("to"));
    stage.dir("from/dir");
    for dir in [&from, &to] {
        chmod(dir, mode(0o777)).unwrap();
    }
    // Its ".." would change.
    as_user(BOB, &[], || {
        assert_errno!(rustix::fs::rename(from.join("dir"), to.join("dir")), ACCESS);
        rustix::fs::rename(from.join("dir"), from.join("renamed")).unwrap();
    });
}

#[test]
fn truncate_needs_write_permission() {
    let stage = stage!();
    let path = owned(&stage, 0o644);
    as_user(BOB, &[], || assert_errno!(truncate(&path, 0), ACCESS));
    as_user(ALICE, &[], || truncate(&path, 0).unwrap());
}

#[test]
fn permissions_count_at_open_and_not_later() {
    let stage = stage!();
    let path = owned(&stage, 0o666);
    let fd = as_user(BOB, &[], || edit(&path));
    chmod(&path, mode(0)).unwrap();
    as_user(BOB, &[], || {
        crate::stage::write_at(&fd, 0, b"still");
        assert_errno!(open(&path, OFlags::RDONLY), ACCESS);
    });
}

#[test]
fn access_asks_for_the_real_user() {
    let stage = stage!();
    let path = owned(&stage, 0o600);
    let alice = Uid::from_raw(ALICE);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let root = Uid::from_raw(0);
            rustix::thread::set_thread_res_uid(root, alice, root).unwrap();
            access(&path, Access::READ_OK).unwrap();
            accessat(CWD, &path, Access::READ_OK, AtFlags::EACCESS).unwrap();
            rustix::thread::set_thread_res_uid(Uid::from_raw(0), root, root).unwrap();
            rustix::thread::set_thread_res_uid(Uid::from_raw(BOB), root, root).unwrap();
            assert_errno!(access(&path, Access::READ_OK), ACCESS);
            accessat(CWD, &path, Access::READ_OK, AtFlags::EACCESS).unwrap();
        });
        thread.join().unwrap();
    });
}
