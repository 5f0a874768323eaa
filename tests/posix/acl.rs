//! POSIX access control lists, set and read with the usual tools.

use crate::actor::{ALICE, BOB, STAFF, apart, as_user};
use crate::observe::{moved, permissions};
use crate::stage::{assert_errno, edit, mode, open, run, stage};
use rustix::fs::{Access, OFlags, access, chmod};
use std::path::Path;
use std::process::Command;

/// setfacl(1).
fn set(path: &Path, arguments: &[&str]) {
    run(Command::new("setfacl").args(arguments).arg(path));
}

/// getfacl(1): entries, one a word, without comments.
fn list(path: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("getfacl");
    command.args(["--numeric", "--omit-header", "--absolute-names", "--no-effective"]);
    let entries = run(command.args(arguments).arg(path));
    entries.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn may(path: &Path, right: Access) -> bool {
    access(path, right).is_ok()
}

#[test]
fn a_mode_reads_as_a_list_of_three_entries() {
    let stage = stage!();
    let path = stage.file("f", []);
    chmod(&path, mode(0o640)).unwrap();
    assert_eq!(list(&path, &[]), "user::rw- group::r-- other::---");
    set(&path, &["-m", "u::r,g::rw,o::x"]);
    assert_eq!(permissions(&path), 0o461);
}

#[test]
fn a_list_can_admit_a_named_user() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    chmod(&path, mode(0o600)).unwrap();
    as_user(ALICE, &[], || assert_errno!(open(&path, OFlags::RDONLY), ACCESS));
    let entry = format!("u:{ALICE}:rw");
    assert_eq!(moved([&path], || set(&path, &["-m", &entry])), ["c"]);
    assert_eq!(permissions(&path), 0o660, "the group's bits show the mask");
    assert_eq!(
        list(&path, &[]),
        format!("user::rw- user:{ALICE}:rw- group::--- mask::rw- other::---")
    );
    as_user(ALICE, &[], || {
        drop(edit(&path));
        assert!(may(&path, Access::READ_OK | Access::WRITE_OK));
    });
    as_user(BOB, &[], || assert_errno!(open(&path, OFlags::RDONLY), ACCESS));
    set(&path, &["-x", &format!("u:{ALICE}")]);
    as_user(ALICE, &[], || assert_errno!(open(&path, OFlags::RDONLY), ACCESS));
}

#[test]
fn a_list_can_exclude_a_named_user() {
    let stage = stage!();
    let path = stage.file("f", []);
    set(&path, &["-m", &format!("u:{BOB}:---,o::rw")]);
    as_user(BOB, &[], || assert_errno!(open(&path, OFlags::RDONLY), ACCESS));
    as_user(ALICE, &[], || drop(edit(&path)));
}

#[test]
fn groups_add_up_and_the_mask_limits_them() {
    let stage = stage!();
    let path = stage.file("f", []);
    chmod(&path, mode(0o600)).unwrap();
    set(&path, &["-m", &format!("g:{STAFF}:rw,g:{ALICE}:r")]);
    as_user(ALICE, &[], || {
        assert!(may(&path, Access::READ_OK));
        assert!(!may(&path, Access::WRITE_OK));
    });
    as_user(ALICE, &[STAFF], || {
        assert!(may(&path, Access::READ_OK | Access::WRITE_OK))
    });
    set(&path, &["-m", "m::r"]);
    assert_eq!(permissions(&path), 0o640);
    as_user(BOB, &[STAFF], || {
        assert!(may(&path, Access::READ_OK));
        assert_errno!(open(&path, OFlags::WRONLY), ACCESS);
    });
}

#[test]
fn chmod_changes_the_mask() {
    let stage = stage!();
    let path = stage.file("f", []);
    set(&path, &["-m", &format!("u:{ALICE}:rwx,g::r")]);
    chmod(&path, mode(0o740)).unwrap();
    assert_eq!(
        list(&path, &[]),
        format!("user::rwx user:{ALICE}:rwx group::r-- mask::r-- other::---")
    );
    as_user(ALICE, &[], || assert!(!may(&path, Access::WRITE_OK)));
    chmod(&path, mode(0o770)).unwrap();
    as_user(ALICE, &[], || assert!(may(&path, Access::WRITE_OK)));
    assert_eq!(
        list(&path, &[]),
        format!("user::rwx user:{ALICE}:rwx group::r-- mask::rwx other::---")
    );
    set(&path, &["-b"]);
    assert_eq!(list(&path, &[]), "user::rwx group::r-- other::---");
    assert_eq!(permissions(&path), 0o740);
}

#[test]
fn defaults_are_inherited() {
    let stage = stage!();
    let dir = stage.dir("dir");
    set(&dir, &["-d", "-m", &format!("u::rwx,g::rx,o::-,u:{ALICE}:rwx")]);
    apart(|| {
        // Where there are defaults the umask has no say.
        rustix::process::umask(mode(0o077));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        drop(rustix::fs::open(dir.join("file"), flags, mode(0o666)).unwrap());
        rustix::fs::mkdir(dir.join("sub"), mode(0o777)).unwrap();
        rustix::fs::symlink("x", dir.join("link")).unwrap();
    });
    let user = format!("user:{ALICE}:rwx");
    assert_eq!(
        list(&dir.join("file"), &[]),
        format!("user::rw- {user} group::r-x mask::rw- other::---")
    );
    assert_eq!(permissions(dir.join("file")), 0o660);
    let inherited = format!("user::rwx {user} group::r-x mask::rwx other::---");
    assert_eq!(list(&dir.join("sub"), &["--access"]), inherited);
    assert_eq!(
        list(&dir.join("sub"), &["--default"]),
        inherited,
        "directories hand them on"
    );
    as_user(ALICE, &[], || drop(edit(dir.join("file"))));
    as_user(BOB, &[], || {
        assert_errno!(open(dir.join("file"), OFlags::RDONLY), ACCESS)
    });
}

#[test]
fn minimal_defaults_set_the_mode_alone() {
    let stage = stage!();
    let dir = stage.dir("dir");
    set(&dir, &["-d", "-m", "u::rwx,g::-,o::r"]);
    std::fs::write(dir.join("file"), []).unwrap();
    assert_eq!(permissions(dir.join("file")), 0o604);
    assert_eq!(list(&dir.join("file"), &[]), "user::rw- group::--- other::r--");
    set(&dir, &["-k"]);
    apart(|| {
        rustix::process::umask(mode(0o022));
        std::fs::write(dir.join("plain"), []).unwrap();
    });
    assert_eq!(permissions(dir.join("plain")), 0o644);
}

#[test]
fn only_the_owner_sets_lists_and_only_on_suitable_files() {
    let stage = stage!();
    let path = stage.file("f", []);
    let script = format!("u:{BOB}:rwx");
    let refused = as_user(BOB, &[], || {
        let mut value = [0; 100];
        rustix::fs::getxattr(&path, "system.posix_acl_access", &mut value[..]).map(drop)
    });
    assert_errno!(refused, NODATA);
    set(&path, &["-m", &script]);
    let mut value = [0; 100];
    let length = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut value[..]).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    let again = |value: &[u8]| rustix::fs::setxattr(&path, "system.posix_acl_access", value, none);
    as_user(BOB, &[], || assert_errno!(again(&value[..length]), PERM));
    again(&value[..length]).unwrap();
    assert_errno!(again(b"nonsense"), OPNOTSUPP);
    assert_errno!(again(&value[..length - 1]), INVAL);
    let default = rustix::fs::setxattr(&path, "system.posix_acl_default", &value[..length], none);
    assert_errno!(default, ACCESS);
    assert_eq!(list(&path, &[]).split(' ').count(), 5);
}

#[test]
fn a_copy_keeps_the_list() {
    let stage = stage!();
    let path = stage.file("f", []);
    set(&path, &["-m", &format!("u:{ALICE}:rw,g:{STAFF}:r")]);
    run(Command::new("cp").arg("-a").args([&path, &stage.at("copy")]));
    assert_eq!(list(&path, &[]), list(&stage.at("copy"), &[]));
}
