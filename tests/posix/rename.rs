//! rename(2) in all its shapes.

use crate::observe::{links, look, moved, names};
use crate::stage::{assert_errno, content, edit, open, read_at, stage};
use rustix::fs::{CWD, OFlags, RenameFlags, rename, renameat_with};
use rustix::io::Errno;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn rename_with(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, from.as_ref(), CWD, to.as_ref(), flags)
}

fn inode(path: impl AsRef<Path>) -> u64 {
    look(path).st_ino
}

#[test]
fn a_file_keeps_its_identity() {
    let stage = stage!();
    let from = stage.file("from", b"content");
    let number = inode(&from);
    rename(&from, stage.at("to")).unwrap();
    assert_eq!(names(stage.path()), ["to"]);
    assert_eq!(
        (inode(stage.at("to")), content(stage.at("to"))),
        (number, b"content".to_vec())
    );
}

#[test]
fn a_file_replaces_a_file() {
    let stage = stage!();
    let (from, to) = (stage.file("from", b"new"), stage.file("to", b"old"));
    let held = edit(&to);
    rename(&from, &to).unwrap();
    assert_eq!(names(stage.path()), ["to"]);
    assert_eq!(content(&to), b"new");
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_nlink, 0);
    assert_eq!(read_at(&held, 0, 10), b"old");
}

#[test]
fn replacing_one_of_two_links_keeps_the_other() {
    let stage = stage!();
    let (from, to) = (stage.file("from", b"new"), stage.file("to", b"old"));
    rustix::fs::link(&to, stage.at("other")).unwrap();
    rename(&from, &to).unwrap();
    assert_eq!(links(stage.at("other")), 1);
    assert_eq!(content(stage.at("other")), b"old");
}

#[test]
fn a_directory_replaces_an_empty_directory_only() {
    let stage = stage!();
    let (from, empty, full) = (stage.dir("from"), stage.dir("empty"), stage.dir("full"));
    stage.file("from/child", []);
    stage.file("full/child", []);
    assert_errno!(rename(&from, &full), NOTEMPTY);
    rename(&from, &empty).unwrap();
    assert_eq!(names(stage.path()), ["empty", "full"]);
    assert_eq!(names(&empty), ["child"]);
    assert_eq!(links(stage.path()), 4);
}

#[test]
fn a_rename_does_not_replace_another_kind() {
    let stage = stage!();
    let (file, dir) = (stage.file("file", []), stage.dir("dir"));
    rustix::fs::symlink("dir", stage.at("link")).unwrap();
    assert_errno!(rename(&file, &dir), ISDIR);
    assert_errno!(rename(&dir, &file), NOTDIR);
    assert_errno!(rename(&dir, stage.at("link")), NOTDIR);
    rename(&file, stage.at("link")).unwrap();
    assert_eq!(names(stage.path()), ["dir", "link"]);
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn a_directory_cannot_move_below_itself() {
    let stage = stage!();
    let dir = stage.dir("dir");
    stage.dir("dir/sub");
    stage.dir("dir/sub/deep");
    assert_errno!(rename(&dir, stage.at("dir/new")), INVAL);
    assert_errno!(rename(&dir, stage.at("dir/sub/deep/new")), INVAL);
    assert_errno!(rename(&dir, stage.at("dir/sub")), INVAL);
    assert_errno!(rename(stage.at("dir/sub/deep"), &dir), NOTEMPTY);
    assert_errno!(rename_with(&dir, stage.at("dir/sub"), RenameFlags::EXCHANGE), INVAL);
    assert_errno!(rename_with(stage.at("dir/sub"), &dir, RenameFlags::EXCHANGE), INVAL);
}

#[test]
fn renames_of_dots_and_missing_names_are_refused() {
    let stage = stage!();
    let (file, dir) = (stage.file("file", []), stage.dir("dir"));
    assert_errno!(rename(dir.join("."), stage.at("new")), BUSY);
    assert_errno!(rename(dir.join(".."), stage.at("new")), BUSY);
    assert_errno!(rename(&dir, stage.at("dir/.")), BUSY);
    assert_errno!(rename(stage.at("none"), stage.at("new")), NOENT);
    assert_errno!(rename(&file, stage.at("none/new")), NOENT);
    assert_errno!(rename(&file, stage.at("file/new")), NOTDIR);
    assert_errno!(rename(&file, stage.at("new/")), NOTDIR);
    rename(&dir, stage.at("new/")).unwrap();
    assert_errno!(rename(&file, "/proc/none"), XDEV);
}

#[test]
fn renaming_a_link_over_its_own_file_keeps_both_names() {
    let stage = stage!();
    let one = stage.file("one", []);
    let two = stage.at("two");
    rustix::fs::link(&one, &two).unwrap();
    assert_eq!(moved([stage.path(), &one], || rename(&one, &two).unwrap()), ["", ""]);
    assert_eq!(names(stage.path()), ["one", "two"]);
    assert_eq!(links(&one), 2);
    rename(&one, &one).unwrap();
    rename_with(&one, &two, RenameFlags::EXCHANGE).unwrap();
    assert_errno!(rename_with(&one, &two, RenameFlags::NOREPLACE), EXIST);
}

#[test]
fn noreplace_replaces_nothing() {
    let stage = stage!();
    let (from, to) = (stage.file("from", b"from"), stage.file("to", b"to"));
    rustix::fs::symlink("nowhere", stage.at("dangling")).unwrap();
    for target in ["to", "dangling", "from"] {
        assert_errno!(rename_with(&from, stage.at(target), RenameFlags::NOREPLACE), EXIST);
    }
    assert_eq!(content(&to), b"to");
    rename_with(&from, stage.at("new"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(stage.path()), ["dangling", "new", "to"]);
}

#[test]
fn exchange_swaps_any_two_objects() {
    let stage = stage!();
    let (a, b) = (stage.dir("a"), stage.dir("b"));
    stage.file("a/file", b"file");
    stage.dir("b/dir");
    stage.file("b/dir/child", []);
    let (file, dir) = (a.join("file"), b.join("dir"));
    let (file_number, dir_number) = (inode(&file), inode(&dir));
    let moved = moved([&a, &b, &file, &dir], || {
        rename_with(&file, &dir, RenameFlags::EXCHANGE).unwrap()
    });
    assert_eq!(moved, ["mc", "mc", "c", "c"]);
    assert_eq!((inode(&file), inode(&dir)), (dir_number, file_number));
    assert_eq!((links(&a), links(&b)), (3, 2));
    assert_eq!(inode(file.join("..")), inode(&a));
    assert_eq!(names(&file), ["child"]);
    assert_eq!(content(&dir), b"file");
    assert_errno!(rename_with(&file, stage.at("none"), RenameFlags::EXCHANGE), NOENT);
    assert_errno!(rename_with(stage.at("none"), &file, RenameFlags::EXCHANGE), NOENT);
}

#[test]
fn exchange_within_a_directory_of_directory_and_link() {
    let stage = stage!();
    let dir = stage.dir("dir");
    rustix::fs::symlink("x", stage.at("link")).unwrap();
    rename_with(&dir, stage.at("link"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(links(stage.path()), 3);
    assert_eq!(rustix::fs::readlink(&dir, Vec::new()).unwrap().to_bytes(), b"x");
    rename_with(&dir, stage.at("link"), RenameFlags::EXCHANGE).unwrap();
}

#[test]
fn exclusive_rename_flags_are_refused() {
    let stage = stage!();
    let (a, b) = (stage.file("a", []), stage.file("b", []));
    assert_errno!(
        rename_with(&a, &b, RenameFlags::EXCHANGE | RenameFlags::NOREPLACE),
        INVAL
    );
    assert_errno!(
        rename_with(&a, &b, RenameFlags::EXCHANGE | RenameFlags::WHITEOUT),
        INVAL
    );
    assert_errno!(rename_with(&a, &b, RenameFlags::from_bits_retain(1 << 20)), INVAL);
    assert_eq!(names(stage.path()), ["a", "b"]);
}

#[test]
fn a_whiteout_is_left_where_the_name_was() {
    let stage = stage!();
    let (a, b) = (stage.file("a", b"a"), stage.file("b", b"b"));
    stage.dir("dir");
    stage.dir("dir/inside");
    let whiteouts = |expected: &[&str]| {
        let all = names(stage.path()).into_iter().filter(|name| {
            let stat = look(stage.at(name));
            (stat.st_mode, stat.st_rdev, stat.st_nlink, stat.st_size) == (libc::S_IFCHR, 0, 1, 0)
        });
        assert_eq!(all.collect::<Vec<_>>(), expected);
    };
    assert_errno!(
        rename_with(&a, &b, RenameFlags::NOREPLACE | RenameFlags::WHITEOUT),
        EXIST
    );
    assert_errno!(rename_with(stage.at("none"), &b, RenameFlags::WHITEOUT), NOENT);
    assert_errno!(rename_with(&a, stage.at("dir"), RenameFlags::WHITEOUT), ISDIR);
    whiteouts(&[]);
    rename_with(&a, &b, RenameFlags::WHITEOUT).unwrap();
    assert_eq!(content(&b), b"a");
    whiteouts(&["a"]);
    rename_with(
        stage.at("dir"),
        stage.at("moved"),
        RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
    )
    .unwrap();
    assert_eq!(names(stage.at("moved")), ["inside"]);
    whiteouts(&["a", "dir"]);
    assert_eq!(links(stage.path()), 3, "a directory moved, and none went");
    // Into another directory, and over a whiteout.
    rename_with(&b, stage.at("moved/b"), RenameFlags::WHITEOUT).unwrap();
    rename_with(stage.at("moved/b"), &a, RenameFlags::WHITEOUT).unwrap();
    assert_eq!(content(&a), b"a");
    whiteouts(&["b", "dir"]);
}

#[test]
fn a_moved_directory_updates_its_parent_link() {
    let stage = stage!();
    let (a, b) = (stage.dir("a"), stage.dir("b"));
    stage.dir("a/moving");
    stage.dir("a/moving/inside");
    let held = open(a.join("moving/inside"), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    rename(a.join("moving"), b.join("moved")).unwrap();
    assert_eq!((links(&a), links(&b)), (2, 3));
    assert_eq!(inode(b.join("moved/..")), inode(&b));
    let above = rustix::fs::statat(&held, "../..", rustix::fs::AtFlags::empty()).unwrap();
    assert_eq!(above.st_ino, inode(&b));
    // Over an empty directory: the target's link goes, the source's comes.
    stage.dir("a/target");
    rename(b.join("moved"), a.join("target")).unwrap();
    assert_eq!((links(&a), links(&b)), (3, 2));
    assert_eq!(inode(a.join("target/..")), inode(&a));
}

#[test]
fn a_rename_updates_times() {
    let stage = stage!();
    let (a, b) = (stage.dir("a"), stage.dir("b"));
    let file = stage.file("a/file", []);
    let to = b.join("file");
    assert_eq!(
        moved([&a, &b, &file], || rename(&file, &to).unwrap()),
        ["mc", "mc", "c"]
    );
    let old = stage.file("a/old", []);
    assert_eq!(
        moved([&a, &b, &to, &old], || rename(&to, &old).unwrap()),
        ["mc", "mc", "c", "c"]
    );
    assert_eq!(
        moved([&a], || assert!(rename(a.join("none"), a.join("x")).is_err())),
        [""]
    );
}

#[test]
fn a_replaced_name_is_never_missing() {
    let stage = stage!();
    let target = stage.file("target", b"full");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(content(&target), b"full");
            }
        });
        for round in 0..500 {
            let from = stage.file(round.to_string(), b"full");
            rename(&from, &target).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    assert_eq!(names(stage.path()), ["target"]);
}

#[test]
fn crossing_renames_neither_deadlock_nor_make_loops() {
    let stage = stage!();
    stage.dir("a");
    stage.dir("b");
    // a under b and b under a, over and over: at most one can hold at a time.
    std::thread::scope(|scope| {
        for (mover, host) in [("a", "b"), ("b", "a")] {
            let (top, below) = (stage.at(mover), stage.at(host).join(mover));
            scope.spawn(move || {
                for _ in 0..1000 {
                    let _ = rename(&top, &below);
                    let _ = rename(&below, &top);
                }
            });
        }
    });
    assert_eq!(names(stage.path()), ["a", "b"]);
    assert_eq!(
        (links(stage.at("a")), links(stage.at("b")), links(stage.path())),
        (2, 2, 4)
    );
}
