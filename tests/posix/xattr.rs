//! Extended attributes.

use crate::actor::{ALICE, BOB, as_user};
use crate::stage::{assert_errno, edit, mode, run, stage};
use rustix::fs::{
    XattrFlags, fgetxattr, fsetxattr, getxattr, getxattr_query, lgetxattr, listxattr, listxattr_query, lsetxattr,
    removexattr, setxattr,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const ANY: XattrFlags = XattrFlags::empty();

fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 65_536];
    let length = getxattr(path, name, &mut buffer[..])?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Names, without those that other parts of the system add.
fn list(path: &Path) -> BTreeSet<String> {
    let mut buffer = vec![0; 65_536];
    let length = listxattr(path, &mut buffer[..]).unwrap();
    let names = String::from_utf8(buffer[..length].to_vec()).unwrap();
    names
        .split_terminator('\0')
        .filter(|name| *name != "security.selinux")
        .map(str::to_owned)
        .collect()
}

#[test]
fn values_are_kept_replaced_and_removed() {
    let stage = stage!();
    for path in [stage.file("file", []), stage.dir("dir")] {
        setxattr(&path, "user.name", b"value", ANY).unwrap();
        assert_eq!(value(&path, "user.name").unwrap(), b"value");
        setxattr(&path, "user.name", b"", ANY).unwrap();
        assert_eq!(value(&path, "user.name").unwrap(), b"");
        setxattr(&path, "user.binary", b"\0\xff\0", ANY).unwrap();
        assert_eq!(value(&path, "user.binary").unwrap(), b"\0\xff\0");
        assert_eq!(list(&path), ["user.binary", "user.name"].map(str::to_owned).into());
        removexattr(&path, "user.name").unwrap();
        assert_errno!(value(&path, "user.name"), NODATA);
        assert_errno!(removexattr(&path, "user.name"), NODATA);
        assert_eq!(list(&path), ["user.binary".to_owned()].into());
    }
}

#[test]
fn create_and_replace() {
    let stage = stage!();
    let path = stage.file("f", []);
    assert_errno!(setxattr(&path, "user.x", b"1", XattrFlags::REPLACE), NODATA);
    setxattr(&path, "user.x", b"1", XattrFlags::CREATE).unwrap();
    assert_errno!(setxattr(&path, "user.x", b"2", XattrFlags::CREATE), EXIST);
    setxattr(&path, "user.x", b"3", XattrFlags::REPLACE).unwrap();
    assert_eq!(value(&path, "user.x").unwrap(), b"3");
    assert_errno!(setxattr(&path, "user.x", b"4", XattrFlags::from_bits_retain(64)), INVAL);
}

#[test]
fn small_buffers_are_refused_and_empty_ones_return_the_length() {
    let stage = stage!();
    let path = stage.file("f", []);
    setxattr(&path, "user.x", b"12345", ANY).unwrap();
    assert_eq!(getxattr_query(&path, "user.x"), Ok(5));
    assert_errno!(getxattr(&path, "user.x", &mut [0; 4][..]), RANGE);
    assert_eq!(getxattr(&path, "user.x", &mut [0; 5][..]), Ok(5));
    let length = listxattr_query(&path).unwrap();
    assert!(length >= 7);
    assert_errno!(listxattr(&path, &mut vec![0; length - 1][..]), RANGE);
    assert_eq!(listxattr(&path, &mut vec![0; length][..]), Ok(length));
}

#[test]
fn names_and_values_at_their_limits() {
    let stage = stage!();
    let path = stage.file("f", []);
    let longest = format!("user.{}", "n".repeat(250));
    setxattr(&path, &*longest, b"x", ANY).unwrap();
    assert_eq!(value(&path, &longest).unwrap(), b"x");
    assert!(list(&path).contains(&longest));
    assert_errno!(setxattr(&path, format!("{longest}n"), b"x", ANY), RANGE);
    assert_errno!(setxattr(&path, "user.", b"x", ANY), INVAL);
    assert_errno!(setxattr(&path, "", b"x", ANY), RANGE);
    assert_errno!(setxattr(&path, "user.large", &[1; 65_537], ANY), TOOBIG);
    // One value of the largest size fits, or there is a clear refusal; nothing in between.
    match setxattr(&path, "user.large", &[1; 65_536], ANY) {
        Ok(()) => assert!(value(&path, "user.large").unwrap() == [1; 65_536]),
        Err(error) => assert!(matches!(error, Errno::NOSPC | Errno::TOOBIG), "{error}"),
    }
    setxattr(&path, "user.page", &[2; 4000], ANY).unwrap();
    assert_eq!(value(&path, "user.page").unwrap(), [2; 4000]);
}

#[test]
fn many_attributes_of_one_file() {
    let stage = stage!();
    let path = stage.file("f", []);
    for index in 0..200 {
        setxattr(&path, format!("user.n{index}"), format!("v{index}").as_bytes(), ANY).unwrap();
    }
    assert_eq!(list(&path).len(), 200);
    for index in 0..200 {
        assert_eq!(
            value(&path, &format!("user.n{index}")).unwrap(),
            format!("v{index}").as_bytes()
        );
    }
}

#[test]
fn attributes_follow_the_inode() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    setxattr(&path, "user.x", b"1", ANY).unwrap();
    let fd = edit(&path);
    rustix::fs::rename(&path, stage.at("g")).unwrap();
    rustix::fs::link(stage.at("g"), stage.at("h")).unwrap();
    crate::stage::truncate(stage.at("g"), 0).unwrap();
    assert_eq!(value(&stage.at("h"), "user.x").unwrap(), b"1");
    fsetxattr(&fd, "user.y", b"2", ANY).unwrap();
    let mut byte = [0];
    assert_eq!(fgetxattr(&fd, "user.x", &mut byte[..]), Ok(1));
    assert_eq!(list(&stage.at("g")).len(), 2);
}

#[test]
fn attribute_name_classes_are_enforced() {
    let stage = stage!();
    let path = stage.file("f", []);
    rustix::fs::chmod(&path, mode(0o666)).unwrap();
    setxattr(&path, "trusted.x", b"root's", ANY).unwrap();
    setxattr(&path, "security.x", b"shown to all", ANY).unwrap();
    assert_eq!(value(&path, "trusted.x").unwrap(), b"root's");
    assert!(list(&path).is_superset(&["security.x", "trusted.x"].map(str::to_owned).into()));
    as_user(BOB, &[], || {
        assert_errno!(value(&path, "trusted.x"), NODATA);
        assert_errno!(setxattr(&path, "trusted.x", b"", ANY), PERM);
        assert_errno!(removexattr(&path, "trusted.x"), PERM);
        assert_eq!(value(&path, "security.x").unwrap(), b"shown to all");
        assert_errno!(setxattr(&path, "security.x", b"", ANY), PERM);
    });
    assert_errno!(setxattr(&path, "unknown.x", b"1", ANY), OPNOTSUPP);
    assert_errno!(setxattr(&path, "noclass", b"1", ANY), OPNOTSUPP);
}

#[test]
fn user_attributes_need_permission_on_the_file() {
    let stage = stage!();
    let path = stage.file("f", []);
    setxattr(&path, "user.x", b"1", ANY).unwrap();
    rustix::fs::chmod(&path, mode(0o600)).unwrap();
    as_user(BOB, &[], || {
        assert_errno!(value(&path, "user.x"), ACCESS);
        assert_errno!(setxattr(&path, "user.x", b"2", ANY), ACCESS);
    });
    rustix::fs::chmod(&path, mode(0o644)).unwrap();
    as_user(BOB, &[], || {
        assert_eq!(value(&path, "user.x").unwrap(), b"1");
        assert_errno!(setxattr(&path, "user.x", b"2", ANY), ACCESS);
        assert_errno!(removexattr(&path, "user.x"), ACCESS);
    });
}

#[test]
fn user_attributes_are_for_files_and_directories() {
    let stage = stage!();
    let link = stage.at("link");
    rustix::fs::symlink("nowhere", &link).unwrap();
    assert_errno!(lsetxattr(&link, "user.x", b"1", ANY), PERM);
    assert_errno!(lgetxattr(&link, "user.x", &mut [0; 10][..]), NODATA);
    lsetxattr(&link, "trusted.x", b"1", ANY).unwrap();
    assert_eq!(lgetxattr(&link, "trusted.x", &mut [0; 10][..]), Ok(1));
    let fifo = stage.at("fifo");
    crate::special::make_fifo(&fifo);
    assert_errno!(setxattr(&fifo, "user.x", b"1", ANY), PERM);
    setxattr(&fifo, "trusted.x", b"1", ANY).unwrap();
}

#[test]
fn user_attributes_of_a_sticky_directory_belong_to_its_owner() {
    let stage = stage!();
    let dir = stage.dir("dir");
    rustix::fs::chmod(&dir, mode(0o1777)).unwrap();
    as_user(ALICE, &[], || assert_errno!(setxattr(&dir, "user.x", b"1", ANY), PERM));
    setxattr(&dir, "user.x", b"1", ANY).unwrap();
}

#[test]
fn writing_removes_file_capabilities() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    // VFS_CAP_REVISION_2 with CAP_NET_RAW permitted.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::chmod(&path, mode(0o777)).unwrap();
    setxattr(&path, "security.capability", &capability, ANY).unwrap();
    assert_eq!(value(&path, "security.capability").unwrap(), capability);
    as_user(BOB, &[], || crate::stage::write_at(&edit(&path), 0, b"x"));
    assert_errno!(value(&path, "security.capability"), NODATA);
    setxattr(&path, "security.capability", &capability, ANY).unwrap();
    as_user(BOB, &[], || crate::stage::truncate(&path, 3).unwrap());
    assert_errno!(value(&path, "security.capability"), NODATA);
    setxattr(&path, "security.capability", &capability, ANY).unwrap();
    rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(ALICE)), None).unwrap();
    assert_errno!(value(&path, "security.capability"), NODATA);
}

#[test]
fn getfattr_and_setfattr_agree() {
    let stage = stage!();
    let path = stage.file("f", []);
    let run = |tool: &str, arguments: &[&str]| run(Command::new(tool).args(arguments).arg(&path));
    run("setfattr", &["-n", "user.tool", "-v", "text"]);
    assert!(run("getfattr", &["--absolute-names", "-d"]).contains("user.tool=\"text\""));
    run("setfattr", &["-x", "user.tool"]);
    assert_eq!(run("getfattr", &["--absolute-names", "-d"]), "");
}
