//! mkdir(2), rmdir(2) and working directories.

use crate::actor::apart;
use crate::observe::{links, look, moved, names, permissions};
use crate::stage::{assert_errno, mode, open, stage};
use rustix::fs::{OFlags, mkdir, rmdir};
use std::path::Path;

#[test]
fn a_new_directory_links_its_parent() {
    let stage = stage!();
    assert_eq!(links(stage.path()), 2);
    let dir = stage.at("dir");
    mkdir(&dir, mode(0o755)).unwrap();
    assert_eq!((links(stage.path()), links(&dir)), (3, 2));
    assert_eq!(look(dir.join("..")).st_ino, look(stage.path()).st_ino);
    assert_eq!(look(dir.join(".")).st_ino, look(&dir).st_ino);
    stage.file("file", []);
    assert_eq!(links(stage.path()), 3, "files do not count");
    rmdir(&dir).unwrap();
    assert_eq!(links(stage.path()), 2);
}

#[test]
fn mkdir_refuses_what_exists() {
    let stage = stage!();
    stage.file("file", []);
    stage.dir("dir");
    rustix::fs::symlink("nowhere", stage.at("dangling")).unwrap();
    for name in ["file", "dir", "dangling", ".", "..", "dir/"] {
        assert_errno!(mkdir(stage.at(name), mode(0o755)), EXIST);
    }
    assert_errno!(mkdir(stage.at("none/dir"), mode(0o755)), NOENT);
    assert_errno!(mkdir(stage.at("file/dir"), mode(0o755)), NOTDIR);
    mkdir(stage.at("slash/"), mode(0o755)).unwrap();
}

#[test]
fn the_umask_applies_to_a_new_directory() {
    let stage = stage!();
    apart(|| {
        for (mask, asked, given) in [
            (0o022, 0o777, 0o755),
            (0, 0o1777, 0o1777),
            (0o077, 0o777, 0o700),
            (0, 0, 0),
        ] {
            rustix::process::umask(mode(mask));
            let path = stage.at(format!("{mask:o}-{asked:o}"));
            mkdir(&path, mode(asked)).unwrap();
            assert_eq!(permissions(&path), given, "umask {mask:o}, asked for {asked:o}");
        }
        // mkdir(2): beyond the permissions only the sticky bit is honoured.
        mkdir(stage.at("special"), mode(0o7755)).unwrap();
        assert_eq!(permissions(stage.at("special")), 0o1755);
    });
}

#[test]
fn only_empty_directories_are_removed() {
    let stage = stage!();
    let dir = stage.dir("dir");
    for name in ["file", ".hidden"] {
        let path = dir.join(name);
        std::fs::write(&path, []).unwrap();
        assert_errno!(rmdir(&dir), NOTEMPTY);
        std::fs::remove_file(path).unwrap();
    }
    mkdir(dir.join("sub"), mode(0o755)).unwrap();
    assert_errno!(rmdir(&dir), NOTEMPTY);
    rmdir(dir.join("sub")).unwrap();
    rmdir(&dir).unwrap();
    assert_errno!(rmdir(&dir), NOENT);
}

#[test]
fn rmdir_refuses_other_objects() {
    let stage = stage!();
    let dir = stage.dir("dir");
    stage.file("file", []);
    rustix::fs::symlink("dir", stage.at("link")).unwrap();
    assert_errno!(rmdir(stage.at("file")), NOTDIR);
    assert_errno!(rmdir(stage.at("link")), NOTDIR);
    assert_errno!(rmdir(stage.at("link/")), NOTDIR);
    assert_errno!(rmdir(dir.join(".")), INVAL);
    assert_errno!(rmdir(dir.join("..")), NOTEMPTY);
    assert_errno!(rmdir(stage.at("none")), NOENT);
    assert_errno!(rustix::fs::unlink(&dir), ISDIR);
    rmdir(stage.at("dir/")).unwrap();
}

#[test]
fn a_removed_working_directory_is_empty_and_takes_no_entries() {
    let stage = stage!();
    let dir = stage.dir("dir");
    apart(|| {
        rustix::process::chdir(&dir).unwrap();
        rmdir(&dir).unwrap();
        assert_errno!(open("new", OFlags::RDWR | OFlags::CREATE), NOENT);
        assert_errno!(mkdir("new", mode(0o755)), NOENT);
        assert_errno!(rustix::process::getcwd(Vec::new()), NOENT);
        assert_eq!(look(".").st_nlink, 0);
        // Whether a dead directory still has "." and ".." differs; there is nothing else in it.
        assert_eq!(names("."), [""; 0]);
        assert_eq!(look("..").st_ino, look(stage.path()).st_ino);
    });
    assert_eq!(links(stage.path()), 2);
}

#[test]
fn a_removed_directory_refuses_links_and_renames() {
    let stage = stage!();
    let dir = stage.dir("dir");
    let file = stage.file("file", []);
    let held = open(&dir, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    rmdir(&dir).unwrap();
    let none = rustix::fs::AtFlags::empty();
    assert_errno!(rustix::fs::linkat(rustix::fs::CWD, &file, &held, "link", none), NOENT);
    assert_errno!(rustix::fs::renameat(rustix::fs::CWD, &file, &held, "moved"), NOENT);
    assert_errno!(rustix::fs::symlinkat("x", &held, "symlink"), NOENT);
    assert_eq!(links(&file), 1);
}

#[test]
fn a_working_directory_follows_its_rename() {
    let stage = stage!();
    let dir = stage.dir("dir");
    apart(|| {
        rustix::process::chdir(&dir).unwrap();
        rustix::fs::rename(&dir, stage.at("renamed")).unwrap();
        drop(open("inside", OFlags::RDWR | OFlags::CREATE).unwrap());
        assert_eq!(
            Path::new(rustix::process::getcwd(Vec::new()).unwrap().to_str().unwrap()),
            stage.at("renamed")
        );
    });
    assert_eq!(names(stage.at("renamed")), ["inside"]);
}

#[test]
fn changes_of_entries_update_the_parents_times() {
    let stage = stage!();
    let dir = stage.at("dir");
    assert_eq!(moved([stage.path()], || mkdir(&dir, mode(0o755)).unwrap()), ["mc"]);
    assert_eq!(
        moved([stage.path()], || assert!(mkdir(&dir, mode(0o755)).is_err())),
        [""]
    );
    let inner = dir.join("inner");
    assert_eq!(
        moved([stage.path(), &dir], || mkdir(&inner, mode(0o755)).unwrap()),
        ["", "mc"]
    );
    assert_eq!(moved([&dir], || assert!(rmdir(stage.at("dir")).is_err())), [""]);
    rmdir(&inner).unwrap();
    let [parent, gone] = moved([stage.path(), &dir], || rmdir(&dir).unwrap());
    assert_eq!(parent, "mc");
    assert!(gone.ends_with('c'), "{gone}");
}

#[test]
fn a_deep_tree_can_be_walked() {
    let stage = stage!();
    apart(|| {
        rustix::process::chdir(stage.path()).unwrap();
        // Far deeper than PATH_MAX allows to name at once.
        let name = "d".repeat(100);
        for _ in 0..60 {
            mkdir(&name, mode(0o755)).unwrap();
            rustix::process::chdir(&name).unwrap();
        }
        drop(open("bottom", OFlags::RDWR | OFlags::CREATE).unwrap());
        for _ in 0..60 {
            rustix::process::chdir("..").unwrap();
        }
        assert_eq!(look(".").st_ino, look(stage.path()).st_ino);
    });
}
