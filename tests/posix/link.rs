//! Hard links.

use crate::observe::{links, look, moved, names};
use crate::stage::{assert_errno, content, edit, stage, write_at};
use rustix::fs::{AtFlags, CWD, link, linkat, unlink};

#[test]
fn names_of_one_file_share_everything() {
    let stage = stage!();
    let one = stage.file("one", b"content");
    let two = stage.at("two");
    link(&one, &two).unwrap();
    assert_eq!((links(&one), links(&two)), (2, 2));
    assert_eq!(look(&one).st_ino, look(&two).st_ino);
    write_at(&edit(&two), 0, b"CON");
    assert_eq!(content(&one), b"CONtent");
    unlink(&one).unwrap();
    assert_eq!(links(&two), 1);
    assert_eq!(content(&two), b"CONtent");
}

#[test]
fn link_refuses_directories_and_existing_names() {
    let stage = stage!();
    let file = stage.file("file", []);
    let dir = stage.dir("dir");
    assert_errno!(link(&dir, stage.at("new")), PERM);
    assert_errno!(link(&file, &dir), EXIST);
    assert_errno!(link(&file, &file), EXIST);
    assert_errno!(link(stage.at("none"), stage.at("new")), NOENT);
    assert_errno!(link(&file, stage.at("none/new")), NOENT);
    assert_errno!(link(&file, stage.at("file/new")), NOTDIR);
    assert_errno!(link(&file, "/dev/homenode-none"), XDEV);
    assert_eq!(links(&file), 1);
    assert_eq!(names(stage.path()), ["dir", "file"]);
}

#[test]
fn a_symbolic_link_can_have_two_names() {
    let stage = stage!();
    let file = stage.file("file", []);
    let symlink = stage.at("symlink");
    rustix::fs::symlink("file", &symlink).unwrap();
    link(&symlink, stage.at("hard")).unwrap();
    assert_eq!((links(&symlink), links(&file)), (2, 1));
    linkat(CWD, &symlink, CWD, stage.at("followed"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!((links(&symlink), links(&file)), (2, 2));
}

#[test]
fn all_other_kinds_can_be_linked() {
    let stage = stage!();
    let fifo = stage.at("fifo");
    crate::special::make_fifo(&fifo);
    link(&fifo, stage.at("second")).unwrap();
    assert_eq!(links(&fifo), 2);
}

#[test]
fn links_update_times() {
    let stage = stage!();
    let file = stage.file("file", []);
    let dir = stage.dir("dir");
    let two = dir.join("two");
    assert_eq!(
        moved([&file, &dir, stage.path()], || link(&file, &two).unwrap()),
        ["c", "mc", ""]
    );
    assert_eq!(moved([&file, &dir], || unlink(&two).unwrap()), ["c", "mc"]);
    assert_eq!(
        moved([&file, stage.path()], || assert!(link(&file, &file).is_err())),
        ["", ""]
    );
}

#[test]
fn many_links_of_one_file() {
    const COUNT: u64 = 2000;
    let stage = stage!();
    let file = stage.file("file", b"x");
    for index in 1..COUNT {
        link(&file, stage.at(index.to_string())).unwrap();
    }
    assert_eq!(links(&file), COUNT);
    for index in 1..COUNT {
        unlink(stage.at(index.to_string())).unwrap();
    }
    assert_eq!(links(&file), 1);
}

#[test]
fn concurrent_links_and_unlinks_are_counted() {
    let stage = stage!();
    let file = stage.file("file", []);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (stage, file) = (&stage, &file);
            scope.spawn(move || {
                for round in 0..200 {
                    let name = stage.at(format!("{thread}-{round}"));
                    link(file, &name).unwrap();
                    if round % 2 == 0 {
                        unlink(&name).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(links(&file), 1 + 4 * 100);
}
