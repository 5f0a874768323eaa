//! open(2): what each flag allows, creates, refuses and cuts.

use crate::actor::apart;
use crate::observe::{links, names, permissions, size};
use crate::stage::{assert_errno, content, create, edit, mode, open, read_at, stage, truncate, write_at};
use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

#[test]
fn exclusive_creation_refuses_any_existing_object() {
    let stage = stage!();
    let exclusive = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    stage.file("file", []);
    stage.dir("dir");
    rustix::fs::symlink("nowhere", stage.at("dangling")).unwrap();
    for name in ["file", "dir", "dangling"] {
        assert_errno!(open(stage.at(name), exclusive), EXIST);
    }
    assert!(open(stage.at("new"), exclusive).is_ok());
    assert_eq!(names(stage.path()), ["dangling", "dir", "file", "new"]);
}

#[test]
fn exactly_one_of_many_creators_wins() {
    let stage = stage!();
    for round in 0..50 {
        let path = stage.at(round.to_string());
        let try_one = || open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).map(drop);
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(try_one)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        assert!(
            results
                .iter()
                .all(|result| result.is_ok() || *result == Err(Errno::EXIST)),
            "{results:?}"
        );
    }
}

#[test]
fn creation_through_a_dangling_link_makes_its_target() {
    let stage = stage!();
    rustix::fs::symlink("target", stage.at("link")).unwrap();
    drop(open(stage.at("link"), OFlags::RDWR | OFlags::CREATE).unwrap());
    assert_eq!(names(stage.path()), ["link", "target"]);
}

#[test]
fn truncation_empties_and_keeps_the_inode() {
    let stage = stage!();
    let path = stage.file("f", [7; 10_000]);
    let held = edit(&path);
    drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
    assert_eq!(size(&path), 0);
    assert_eq!(read_at(&held, 0, 10), b"");
    write_at(&held, 9000, b"x");
    assert_eq!(content(&path)[..9000], [0; 9000], "old bytes came back");
}

#[test]
fn missing_parts_of_a_path_are_refused() {
    let stage = stage!();
    stage.file("file", []);
    assert_errno!(open(stage.at("none"), OFlags::RDONLY), NOENT);
    assert_errno!(open(stage.at("none/f"), OFlags::RDWR | OFlags::CREATE), NOENT);
    assert_errno!(open(stage.at("file/f"), OFlags::RDWR | OFlags::CREATE), NOTDIR);
    assert_errno!(open(stage.at("file/"), OFlags::RDONLY), NOTDIR);
    assert_errno!(open(stage.at("new/"), OFlags::RDWR | OFlags::CREATE), ISDIR);
    assert_errno!(open("", OFlags::RDONLY), NOENT);
    stage.file("none", b"made");
    assert_eq!(
        content(stage.at("none")),
        b"made",
        "the name was looked up in vain before"
    );
}

#[test]
fn directories_are_opened_for_reading_only() {
    let stage = stage!();
    let dir = stage.dir("dir");
    let file = stage.file("file", []);
    assert_errno!(open(&dir, OFlags::WRONLY), ISDIR);
    assert_errno!(open(&dir, OFlags::RDWR), ISDIR);
    assert_errno!(open(&dir, OFlags::RDONLY | OFlags::CREATE), ISDIR);
    assert_errno!(open(&file, OFlags::RDONLY | OFlags::DIRECTORY), NOTDIR);
    let fd = open(&dir, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    assert_errno!(rustix::io::read(&fd, &mut [0; 10]), ISDIR);
    assert_errno!(rustix::io::write(&fd, b"x"), BADF);
    assert_errno!(rustix::fs::ftruncate(&fd, 0), INVAL);
    assert_errno!(truncate(&dir, 0), ISDIR);
}

#[test]
fn nofollow_does_not_follow_links() {
    let stage = stage!();
    stage.file("file", b"content");
    stage.dir("dir");
    rustix::fs::symlink("file", stage.at("to-file")).unwrap();
    rustix::fs::symlink("dir", stage.at("to-dir")).unwrap();
    assert_errno!(open(stage.at("to-file"), OFlags::RDONLY | OFlags::NOFOLLOW), LOOP);
    assert_errno!(
        open(
            stage.at("to-dir"),
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECTORY
        ),
        NOTDIR
    );
    assert!(
        open(stage.at("to-dir/../file"), OFlags::RDONLY | OFlags::NOFOLLOW).is_ok(),
        "only the last part counts"
    );
    assert!(open(stage.at("to-dir"), OFlags::RDONLY | OFlags::DIRECTORY).is_ok());
}

#[test]
fn a_path_descriptor_only_names_the_file() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    let held = open(&path, OFlags::PATH).unwrap();
    assert_errno!(rustix::io::read(&held, &mut [0; 10]), BADF);
    assert_errno!(rustix::fs::ftruncate(&held, 0), BADF);
    assert_errno!(rustix::fs::fchmod(&held, mode(0o600)), BADF);
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_size, 7);
    rustix::fs::rename(&path, stage.at("g")).unwrap();
    let reopened = open(format!("/proc/self/fd/{}", held.as_raw_fd()), OFlags::RDWR).unwrap();
    write_at(&reopened, 0, b"CON");
    assert_eq!(content(stage.at("g")), b"CONtent");
}

#[test]
fn the_umask_applies_to_a_new_file() {
    let stage = stage!();
    apart(|| {
        for (mask, asked, given) in [
            (0o022, 0o666, 0o644),
            (0, 0o7777, 0o7777),
            (0o777, 0o666, 0),
            (0o027, 0o777, 0o750),
        ] {
            rustix::process::umask(mode(mask));
            let path = stage.at(format!("{mask:o}-{asked:o}"));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            drop(rustix::fs::open(&path, flags, mode(asked)).unwrap());
            assert_eq!(permissions(&path), given, "umask {mask:o}, asked for {asked:o}");
            // The mode counts for new files only.
            drop(rustix::fs::open(&path, flags, mode(0o111)).unwrap());
            assert_eq!(permissions(&path), given);
        }
    });
}

#[test]
fn a_file_created_without_write_permission_is_still_written_by_its_creator() {
    let stage = stage!();
    let path = stage.at("f");
    crate::actor::as_user(crate::actor::ALICE, &[], || {
        assert_errno!(open(&path, OFlags::RDWR | OFlags::CREATE), ACCESS);
    });
    rustix::fs::chmod(stage.path(), mode(0o777)).unwrap();
    crate::actor::as_user(crate::actor::ALICE, &[], || {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, mode(0)).unwrap();
        write_at(&fd, 0, b"written");
        assert_eq!(read_at(&fd, 0, 7), b"written");
        assert_errno!(open(&path, OFlags::RDONLY), ACCESS);
    });
    assert_eq!(content(&path), b"written");
}

fn unnamed(dir: PathBuf, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(dir, OFlags::TMPFILE | OFlags::CLOEXEC | flags, mode(0o600))
}

fn give_name(fd: &OwnedFd, path: PathBuf) -> Result<(), Errno> {
    let from = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[test]
fn an_unnamed_file_can_get_a_name() {
    let stage = stage!();
    let fd = unnamed(stage.path().to_owned(), OFlags::RDWR).unwrap();
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_nlink, 0);
    assert_eq!(names(stage.path()), [""; 0]);
    write_at(&fd, 0, b"hidden");
    give_name(&fd, stage.at("named")).unwrap();
    assert_eq!((links(stage.at("named")), permissions(stage.at("named"))), (1, 0o600));
    assert_eq!(content(stage.at("named")), b"hidden");
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_nlink, 1);
    assert_errno!(give_name(&fd, stage.at("named")), EXIST);
    give_name(&fd, stage.at("again")).unwrap();
    assert_eq!(links(stage.at("again")), 2);
}

#[test]
fn an_unnamed_exclusive_file_stays_unnamed() {
    let stage = stage!();
    let fd = unnamed(stage.path().to_owned(), OFlags::RDWR | OFlags::EXCL).unwrap();
    assert_errno!(give_name(&fd, stage.at("named")), NOENT);
    assert_errno!(unnamed(stage.path().to_owned(), OFlags::RDONLY), INVAL);
    assert_errno!(unnamed(stage.file("file", []), OFlags::RDWR), NOTDIR);
}

#[test]
fn descriptors_allow_only_their_access_mode() {
    let stage = stage!();
    let path = stage.at("f");
    let both = create(&path);
    let read_only = open(&path, OFlags::RDONLY).unwrap();
    let write_only = open(&path, OFlags::WRONLY).unwrap();
    assert_errno!(rustix::io::write(&read_only, b"x"), BADF);
    assert_errno!(rustix::fs::ftruncate(&read_only, 0), INVAL);
    assert_errno!(
        rustix::fs::fallocate(&read_only, rustix::fs::FallocateFlags::empty(), 0, 1),
        BADF
    );
    assert_errno!(rustix::io::read(&write_only, &mut [0; 1]), BADF);
    write_at(&write_only, 0, b"x");
    assert_eq!(read_at(&both, 0, 1), b"x");
}

#[test]
fn a_running_program_cannot_be_written() {
    let stage = stage!();
    let path = stage.at("sleeper");
    std::fs::copy("/bin/sleep", &path).unwrap();
    rustix::fs::chmod(&path, mode(0o755)).unwrap();
    // A child that another test forked while the copy was open for writing may hold it a moment longer.
    let mut child = loop {
        match std::process::Command::new(&path).arg("60").spawn() {
            Ok(child) => break child,
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => continue,
            Err(error) => panic!("{error}"),
        }
    };
    let refused = open(&path, OFlags::WRONLY).map(drop);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(refused, Err(Errno::TXTBSY));
}
