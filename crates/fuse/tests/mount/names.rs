//! Names and directories.

use crate::support::Mounted;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[test]
fn names_come_and_go() {
    let Some(mounted) = Mounted::new() else { return };
    let path = |name| mounted.path(name);
    fs::create_dir(path("dir")).unwrap();
    fs::write(path("dir/a"), b"a").unwrap();
    assert_eq!(
        fs::create_dir(path("dir")).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        fs::remove_dir(path("dir")).unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
    fs::hard_link(path("dir/a"), path("b")).unwrap();
    assert_eq!(fs::metadata(path("dir/a")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(path("dir/a")).unwrap().ino(),
        fs::metadata(path("b")).unwrap().ino()
    );
    fs::rename(path("b"), path("dir/c")).unwrap();
    assert_eq!(fs::metadata(path("b")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(path("b"), b"b").unwrap();
    assert_eq!(
        fs::read(path("b")).unwrap(),
        b"b",
        "a name that was looked up in vain can be made"
    );

    assert_eq!(
        renameat_with(CWD, path("b"), CWD, path("dir/c"), RenameFlags::NOREPLACE),
        Err(Errno::EXIST)
    );
    renameat_with(CWD, path("b"), CWD, path("dir/c"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(path("b")).unwrap(), fs::read(path("dir/c")).unwrap()),
        (b"a".to_vec(), b"b".to_vec())
    );
    fs::rename(path("dir/c"), path("b")).unwrap();
    assert_eq!(fs::read(path("b")).unwrap(), b"b");
    assert_eq!(
        fs::metadata(path("dir/a")).unwrap().nlink(),
        1,
        "a replaced name is a lost link"
    );

    std::os::unix::fs::symlink("dir/a", path("link")).unwrap();
    assert_eq!(fs::read(path("link")).unwrap(), b"a");
    assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("dir/a"));
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());

    fs::remove_file(path("dir/a")).unwrap();
    fs::remove_dir(path("dir")).unwrap();
    let left: BTreeSet<OsString> = fs::read_dir(&mounted.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["b", "link"].map(OsString::from).into());
    let long = "n".repeat(256);
    assert_eq!(
        File::create(path(&long)).unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    File::create(path(&long[1..])).unwrap();
    mounted.finish();
}

#[test]
fn large_directories_can_be_emptied_while_read() {
    let Some(mounted) = Mounted::new() else { return };
    let dir = mounted.path("many");
    fs::create_dir(&dir).unwrap();
    for number in 0..3000 {
        File::create(dir.join(format!("file {number:05}"))).unwrap();
    }
    let names = || {
        fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(names().len(), 3000);
    for entry in fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        assert_eq!(entry.metadata().unwrap().len(), 0);
    }
    File::create(dir.join("one more")).unwrap();
    assert_eq!(names().len(), 3001, "a cached directory notices");
    for entry in fs::read_dir(&dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(names().len(), 0);
    fs::remove_dir(&dir).unwrap();
    mounted.finish();
}
