//! Symbolic links.

use crate::actor::ALICE;
use crate::observe::{look, moved, permissions, size};
use crate::stage::{assert_errno, content, mode, open, stage};
use rustix::fs::{AtFlags, CWD, Gid, OFlags, Uid, chownat, readlink, readlinkat_raw, symlink};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

#[test]
fn a_link_keeps_its_text_and_size() {
    let stage = stage!();
    for (name, target) in [
        ("short", "x"),
        ("dots", "../././/odd//path"),
        ("absolute", "/etc/passwd"),
    ] {
        let path = stage.at(name);
        symlink(target, &path).unwrap();
        assert_eq!(readlink(&path, Vec::new()).unwrap().to_str().unwrap(), target);
        assert_eq!(size(&path), target.len() as u64);
        assert_eq!(look(&path).st_mode, 0o120_777);
    }
}

#[test]
fn a_links_text_may_have_any_length_up_to_the_longest_path() {
    let stage = stage!();
    for length in [1, 59, 60, 255, 256, 1000, 4095] {
        let path = stage.at(length.to_string());
        let target: String = "0123456789/".chars().cycle().take(length).collect();
        symlink(&*target, &path).unwrap();
        assert_eq!(readlink(&path, Vec::new()).unwrap().to_str().unwrap(), target);
        assert_eq!(size(&path), length as u64);
    }
    assert_errno!(symlink(&*"x".repeat(4096), stage.at("too-long")), NAMETOOLONG);
    assert_errno!(symlink("", stage.at("empty")), NOENT);
    assert_errno!(symlink("x", stage.at("1")), EXIST);
}

#[test]
fn a_links_text_need_not_be_utf8() {
    let stage = stage!();
    let target = std::ffi::OsStr::from_bytes(b"\xff\xfe\x01");
    symlink(target, stage.at("link")).unwrap();
    assert_eq!(
        readlink(stage.at("link"), Vec::new()).unwrap().to_bytes(),
        target.as_bytes()
    );
}

#[test]
fn readlink_cuts_at_the_buffer() {
    let stage = stage!();
    let path = stage.at("link");
    symlink("0123456789", &path).unwrap();
    let mut buffer = [b'!'; 10];
    assert_eq!(readlinkat_raw(CWD, &path, &mut buffer[..4]).unwrap(), 4);
    assert_eq!(&buffer, b"0123!!!!!!");
    assert_errno!(readlinkat_raw(CWD, &path, &mut buffer[..0]), INVAL);
    assert_errno!(readlink(stage.file("file", []), Vec::new()), INVAL);
    assert_errno!(readlink(stage.path(), Vec::new()), INVAL);
    assert_errno!(readlink(stage.at("none"), Vec::new()), NOENT);
}

#[test]
fn loops_are_found() {
    let stage = stage!();
    symlink("self", stage.at("self")).unwrap();
    symlink("b", stage.at("a")).unwrap();
    symlink("a", stage.at("b")).unwrap();
    for name in ["self", "a", "self/below"] {
        assert_errno!(open(stage.at(name), OFlags::RDONLY), LOOP);
        assert_errno!(rustix::fs::stat(stage.at(name)), LOOP);
    }
    assert_errno!(rustix::fs::chmod(stage.at("a"), mode(0o600)), LOOP);
    assert_eq!(look(stage.at("self")).st_size, 4);
}

#[test]
fn forty_links_are_followed_and_no_more() {
    let stage = stage!();
    stage.file("0", b"end");
    for index in 1..=41 {
        symlink(&*(index - 1).to_string(), stage.at(index.to_string())).unwrap();
    }
    assert_eq!(content(stage.at("40")), b"end");
    assert_errno!(open(stage.at("41"), OFlags::RDONLY), LOOP);
}

#[test]
fn paths_lead_through_links() {
    let stage = stage!();
    stage.dir("dir");
    let file = stage.file("dir/file", b"content");
    symlink("dir", stage.at("link")).unwrap();
    symlink(&*file, stage.at("absolute")).unwrap();
    symlink("../dir/file", stage.at("dir/up")).unwrap();
    for path in ["link/file", "absolute", "link/up", "link/./../dir/file"] {
        assert_eq!(content(stage.at(path)), b"content", "{path}");
    }
    symlink("dir/file/", stage.at("slash")).unwrap();
    assert_errno!(open(stage.at("slash"), OFlags::RDONLY), NOTDIR);
}

#[test]
fn a_link_has_its_own_owner() {
    let stage = stage!();
    let file = stage.file("file", []);
    let path = stage.at("link");
    symlink("file", &path).unwrap();
    let (uid, gid) = (Some(Uid::from_raw(ALICE)), Some(Gid::from_raw(ALICE)));
    let times = moved([&path, &file], || {
        chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW).unwrap()
    });
    assert_eq!(times, ["c", ""]);
    assert_eq!((look(&path).st_uid, look(&path).st_gid), (ALICE, ALICE));
    assert_eq!((look(&file).st_uid, permissions(&file)), (0, 0o644));
    rustix::fs::chown(&path, uid, None).unwrap();
    assert_eq!(look(&file).st_uid, ALICE, "chown follows");
}

#[test]
fn making_a_link_updates_the_parents_times() {
    let stage = stage!();
    assert_eq!(
        moved([stage.path()], || symlink("x", stage.at("link")).unwrap()),
        ["mc"]
    );
}

#[test]
fn a_replaced_link_shows_its_new_text() {
    let stage = stage!();
    let path = stage.at("link");
    for round in 0..50 {
        let (new, target) = (stage.at("new"), PathBuf::from(format!("target-{round}")));
        symlink(&target, &new).unwrap();
        rustix::fs::rename(&new, &path).unwrap();
        assert_eq!(
            readlink(&path, Vec::new()).unwrap().to_bytes(),
            target.as_os_str().as_bytes()
        );
    }
}
