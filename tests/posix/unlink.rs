//! unlink(2), and files that live on without a name.

use crate::mount;
use crate::observe::{links, look, names};
use crate::stage::{Stage, assert_errno, create, edit, eventually, open, read_at, stage, write_at};
use rustix::fs::{AtFlags, CWD, OFlags, unlink, unlinkat};
use std::os::fd::AsRawFd;

#[test]
fn files_and_other_kinds_can_be_unlinked() {
    let stage = stage!();
    stage.file("file", []);
    rustix::fs::symlink("file", stage.at("link")).unwrap();
    crate::special::make_fifo(&stage.at("fifo"));
    unlink(stage.at("link")).unwrap();
    assert_eq!(names(stage.path()), ["fifo", "file"], "the link goes, not its target");
    unlink(stage.at("fifo")).unwrap();
    unlink(stage.at("file")).unwrap();
    assert_errno!(unlink(stage.at("file")), NOENT);
}

#[test]
fn unlink_refuses_bad_paths() {
    let stage = stage!();
    stage.file("file", []);
    let dir = stage.dir("dir");
    assert_errno!(unlink(&dir), ISDIR);
    assert_errno!(unlink(stage.at("file/x")), NOTDIR);
    assert_errno!(unlink(stage.at("file/")), NOTDIR);
    assert_errno!(unlink(stage.at("none/x")), NOENT);
    assert_errno!(unlinkat(CWD, stage.at("file"), AtFlags::REMOVEDIR), NOTDIR);
    assert_eq!(names(stage.path()), ["dir", "file"]);
}

#[test]
fn an_open_file_outlives_its_name() {
    let stage = stage!();
    let path = stage.at("f");
    let fd = create(&path);
    write_at(&fd, 0, b"before");
    unlink(&path).unwrap();
    let stat = rustix::fs::fstat(&fd).unwrap();
    assert_eq!((stat.st_nlink, stat.st_size), (0, 6));
    write_at(&fd, 6, b" after");
    rustix::fs::ftruncate(&fd, 11).unwrap();
    assert_eq!(read_at(&fd, 0, 100), b"before afte");
    rustix::fs::fchmod(&fd, crate::stage::mode(0o600)).unwrap();
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o7777, 0o600);
    rustix::fs::fsetxattr(&fd, "user.name", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    // Bytes of the server, not of the page cache.
    rustix::fs::fsync(&fd).unwrap();
    rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let again = open(format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDWR).unwrap();
    drop(fd);
    assert_eq!(read_at(&again, 0, 100), b"before afte");
}

#[test]
fn a_new_file_of_a_removed_name_is_another_file() {
    let stage = stage!();
    let path = stage.file("f", b"old");
    let old = edit(&path);
    let number = look(&path).st_ino;
    unlink(&path).unwrap();
    stage.file("f", b"new!");
    assert_ne!(look(&path).st_ino, number, "the old one is still open");
    assert_eq!(read_at(&old, 0, 10), b"old");
    assert_eq!(links(&path), 1);
}

#[test]
fn the_last_close_frees_the_space() {
    let Some(mount) = mount::small("64M") else { return };
    let stage = Stage::on(&mount);
    let free = || rustix::fs::statvfs(stage.path()).unwrap().f_bfree;
    let before = free();
    let removed = || {
        let fd = create(stage.at("f"));
        unlink(stage.at("f")).unwrap();
        fd
    };
    let unnamed = || open(stage.path(), OFlags::TMPFILE | OFlags::RDWR).unwrap();
    for fd in [removed(), unnamed()] {
        write_at(&fd, 0, &vec![1; 8 << 20]);
        assert!(before - free() >= 2048, "an open file without a name holds its blocks");
        drop(fd);
        eventually("the blocks are free again", || free() == before);
    }
}

#[test]
fn many_files_open_at_once_without_names() {
    let stage = stage!();
    let files: Vec<_> = (0..200_u8)
        .map(|index| {
            let path = stage.at("same-name");
            let fd = create(&path);
            write_at(&fd, 0, &[index; 5000]);
            unlink(&path).unwrap();
            fd
        })
        .collect();
    for (index, fd) in files.iter().enumerate() {
        assert!(read_at(fd, 0, 6000).iter().all(|&byte| usize::from(byte) == index));
    }
}
