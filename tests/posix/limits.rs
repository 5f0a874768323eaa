//! Names, paths, offsets: what is just allowed and what is just not.

use crate::observe::{names, size};
use crate::stage::{assert_errno, content, create, edit, open, read_at, stage, write_at};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

#[test]
fn a_name_has_255_bytes_at_most() {
    let stage = stage!();
    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    let mode = crate::stage::mode(0o755);
    stage.file(&longest, b"x");
    assert_eq!(names(stage.path()), [&*longest]);
    rustix::fs::rename(stage.at(&longest), stage.at("m".repeat(255))).unwrap();
    assert_errno!(open(stage.at(&too_long), OFlags::RDWR | OFlags::CREATE), NAMETOOLONG);
    assert_errno!(open(stage.at(&too_long), OFlags::RDONLY), NAMETOOLONG);
    assert_errno!(rustix::fs::mkdir(stage.at(&too_long), mode), NAMETOOLONG);
    assert_errno!(rustix::fs::symlink("x", stage.at(&too_long)), NAMETOOLONG);
    assert_errno!(
        rustix::fs::link(stage.at("m".repeat(255)), stage.at(&too_long)),
        NAMETOOLONG
    );
    assert_errno!(
        rustix::fs::rename(stage.at("m".repeat(255)), stage.at(&too_long)),
        NAMETOOLONG
    );
    assert_errno!(rustix::fs::unlink(stage.at(&too_long)), NAMETOOLONG);
    assert_errno!(rustix::fs::rmdir(stage.at(&too_long)), NAMETOOLONG);
    assert_errno!(rustix::fs::stat(stage.at(&too_long)), NAMETOOLONG);
    assert_eq!(names(stage.path()), ["m".repeat(255)]);
}

#[test]
fn a_path_has_4095_bytes_at_most() {
    let stage = stage!();
    stage.file("f", b"content");
    let slashes = 4095 - stage.path().as_os_str().len() - 1;
    let longest = format!("{}{}f", stage.path().display(), "/".repeat(slashes));
    assert_eq!(longest.len(), 4095);
    assert_eq!(content(&longest), b"content");
    assert_errno!(open(format!("/{longest}"), OFlags::RDONLY), NAMETOOLONG);
}

#[test]
fn a_name_may_hold_any_byte_but_slash_and_nul() {
    let stage = stage!();
    for byte in (1..=255_u8).filter(|&byte| byte != b'/') {
        let name = [b'a', byte, b'z'];
        let path = stage.file(OsStr::from_bytes(&name), [byte]);
        assert_eq!(content(path), [byte]);
    }
    let mut found: Vec<_> = std::fs::read_dir(stage.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes()[1])
        .collect();
    found.sort_unstable();
    assert!(found.iter().copied().eq((1..=255).filter(|&byte| byte != b'/')));
}

#[test]
fn names_differ_by_case_and_by_any_bit() {
    let stage = stage!();
    for name in [
        "name",
        "Name",
        "NAME",
        "n\u{e4}me",
        "na\u{308}me",
        " name",
        "name ",
        "...",
        "..name",
    ] {
        stage.file(name, name);
    }
    assert_eq!(names(stage.path()).len(), 9);
    assert_eq!(content(stage.at("Name")), b"Name");
    assert_eq!(content(stage.at("...")), b"...");
}

#[test]
fn negative_offsets_are_refused() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    let fd = edit(&path);
    assert_errno!(rustix::io::pread(&fd, &mut [0; 1], u64::MAX), INVAL);
    assert_errno!(rustix::io::pwrite(&fd, b"x", u64::MAX), INVAL);
    assert_errno!(seek(&fd, SeekFrom::Current(-1)), INVAL);
    assert_errno!(seek(&fd, SeekFrom::End(-8)), INVAL);
    assert_eq!(seek(&fd, SeekFrom::End(-7)), Ok(0));
    assert_errno!(seek(&fd, SeekFrom::Data(u64::MAX)), NXIO);
}

#[test]
fn offsets_up_to_the_largest_length() {
    let stage = stage!();
    let path = stage.file("f", []);
    let fd = edit(&path);
    // Beyond the filesystem's largest length EFBIG is right; whatever is written is read back.
    let largest = i64::MAX as u64;
    for offset in [1 << 32, (1 << 43) - 1, largest - 10_000, largest - 1] {
        match rustix::io::pwrite(&fd, b"x", offset) {
            Ok(count) => {
                assert_eq!((count, size(&path)), (1, offset + 1));
                assert_eq!(read_at(&fd, offset, 1), b"x");
            }
            Err(error) => assert_eq!((error, offset > 1 << 43), (Errno::FBIG, true), "offset {offset}"),
        }
    }
    assert_errno!(rustix::io::pwrite(&fd, b"xy", largest), INVAL);
    assert_errno!(rustix::io::pread(&fd, &mut [0; 2], largest), INVAL);
}

#[test]
fn a_write_over_the_largest_length_is_short() {
    let stage = stage!();
    let path = stage.file("f", []);
    let fd = edit(&path);
    let mut largest = 0_u64;
    for shift in (0..63).rev() {
        if rustix::fs::ftruncate(&fd, largest | 1 << shift).is_ok() {
            largest |= 1 << shift;
        }
    }
    rustix::fs::ftruncate(&fd, 0).unwrap();
    if largest == i64::MAX as u64 {
        // The kernel's own limit: there is no offset behind it.
        assert_errno!(rustix::io::pwrite(&fd, &[7; 100], largest - 10), INVAL);
        return;
    }
    assert_eq!(rustix::io::pwrite(&fd, &[7; 100], largest - 10), Ok(10));
    assert_eq!(read_at(&fd, largest - 10, 100), [7; 10]);
    assert_errno!(rustix::io::pwrite(&fd, b"x", largest), FBIG);
}

#[test]
fn reading_at_and_behind_the_end() {
    let stage = stage!();
    let fd = create(stage.at("f"));
    assert_eq!(rustix::io::read(&fd, &mut [0; 10]), Ok(0));
    write_at(&fd, 0, b"12345");
    let mut bytes = [b'!'; 10];
    assert_eq!(rustix::io::pread(&fd, &mut bytes, 3), Ok(2));
    assert_eq!(&bytes[..3], b"45!");
    for offset in [5, 6, 4096, 1 << 40] {
        assert_eq!(rustix::io::pread(&fd, &mut bytes, offset), Ok(0));
    }
}
