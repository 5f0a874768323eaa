//! Directories with the sticky bit: only the owner of an entry, of the directory or root takes an entry away.

use crate::actor::{ALICE, BOB, as_user};
use crate::observe::names;
use crate::stage::{Stage, assert_errno, mode, stage};
use rustix::fs::{CWD, Gid, RenameFlags, Uid, chmod, chown, rename, renameat_with, rmdir, unlink};
use std::path::PathBuf;

/// A sticky directory of root that all may write, with a file and a directory of ALICE.
fn sticky(stage: &Stage) -> PathBuf {
    chmod(stage.path(), mode(0o777)).unwrap();
    let dir = stage.dir("sticky");
    chmod(&dir, mode(0o1777)).unwrap();
    as_user(ALICE, &[], || {
        std::fs::write(dir.join("file"), []).unwrap();
        std::fs::create_dir(dir.join("dir")).unwrap();
    });
    dir
}

#[test]
fn another_user_removes_nothing_from_a_sticky_directory() {
    let stage = stage!();
    let dir = sticky(&stage);
    as_user(BOB, &[ALICE], || {
        assert_errno!(unlink(dir.join("file")), PERM);
        assert_errno!(rmdir(dir.join("dir")), PERM);
        assert_errno!(rename(dir.join("file"), dir.join("new")), PERM);
        assert_errno!(rename(dir.join("file"), stage.at("new")), PERM);
        std::fs::write(dir.join("own"), []).unwrap();
        assert_errno!(rename(dir.join("own"), dir.join("file")), PERM);
        let exchange = renameat_with(CWD, dir.join("own"), CWD, dir.join("file"), RenameFlags::EXCHANGE);
        assert_errno!(exchange, PERM);
    });
    assert_eq!(names(&dir), ["dir", "file", "own"]);
}

#[test]
fn owners_remove_their_files_from_a_sticky_directory() {
    let stage = stage!();
    let dir = sticky(&stage);
    as_user(BOB, &[], || {
        std::fs::write(dir.join("own"), []).unwrap();
        rename(dir.join("own"), dir.join("renamed")).unwrap();
        unlink(dir.join("renamed")).unwrap();
    });
    as_user(ALICE, &[], || {
        rename(dir.join("file"), dir.join("renamed")).unwrap();
        rmdir(dir.join("dir")).unwrap();
    });
    unlink(dir.join("renamed")).unwrap();
}

#[test]
fn the_owner_of_a_sticky_directory_removes_everything() {
    let stage = stage!();
    let dir = sticky(&stage);
    chown(&dir, Some(Uid::from_raw(BOB)), Some(Gid::from_raw(BOB))).unwrap();
    as_user(BOB, &[], || {
        unlink(dir.join("file")).unwrap();
        rmdir(dir.join("dir")).unwrap();
    });
}

#[test]
fn write_permission_suffices_without_the_sticky_bit() {
    let stage = stage!();
    let dir = sticky(&stage);
    chmod(&dir, mode(0o777)).unwrap();
    as_user(BOB, &[], || {
        unlink(dir.join("file")).unwrap();
        rmdir(dir.join("dir")).unwrap();
    });
}
