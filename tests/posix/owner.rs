//! chmod(2), chown(2), and what clears and inherits set-id bits.

use crate::actor::{ALICE, BOB, STAFF, as_user};
use crate::observe::{look, moved, permissions};
use crate::stage::{assert_errno, create, edit, mode, open, stage, write_at};
use rustix::fs::{FallocateFlags, Gid, OFlags, Uid, chmod, chown};
use std::path::Path;

fn give(path: &Path, user: u32, group: u32) {
    chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).unwrap();
}

fn owners(path: &Path) -> (u32, u32) {
    let stat = look(path);
    (stat.st_uid, stat.st_gid)
}

#[test]
fn every_mode_is_kept() {
    let stage = stage!();
    let (file, dir) = (stage.file("file", []), stage.dir("dir"));
    for bits in [0, 0o1, 0o7777, 0o4755, 0o2755, 0o1777, 0o644] {
        for path in [&file, &dir] {
            assert_eq!(moved([path], || chmod(path, mode(bits)).unwrap()), ["c"]);
            assert_eq!(permissions(path), bits);
        }
        let fd = create(stage.at(bits.to_string()));
        rustix::fs::fchmod(&fd, mode(bits)).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o7777, bits);
    }
    assert_errno!(chmod(stage.at("none"), mode(0)), NOENT);
}

#[test]
fn only_the_owner_may_chmod() {
    let stage = stage!();
    let file = stage.file("file", []);
    give(&file, ALICE, ALICE);
    as_user(BOB, &[ALICE], || assert_errno!(chmod(&file, mode(0o600)), PERM));
    as_user(ALICE, &[], || chmod(&file, mode(0o600)).unwrap());
    assert_eq!(permissions(&file), 0o600);
}

#[test]
fn set_group_id_is_cleared_for_a_caller_outside_the_group() {
    let stage = stage!();
    let file = stage.file("file", []);
    give(&file, ALICE, STAFF);
    as_user(ALICE, &[], || chmod(&file, mode(0o2755)).unwrap());
    assert_eq!(permissions(&file), 0o755);
    as_user(ALICE, &[STAFF], || chmod(&file, mode(0o2755)).unwrap());
    assert_eq!(permissions(&file), 0o2755);
}

#[test]
fn chown_follows_the_callers_privileges() {
    let stage = stage!();
    let file = stage.file("file", []);
    assert_eq!(moved([&file], || give(&file, ALICE, STAFF)), ["c"]);
    assert_eq!(owners(&file), (ALICE, STAFF));
    chown(&file, None, Some(Gid::from_raw(BOB))).unwrap();
    assert_eq!(owners(&file), (ALICE, BOB), "None leaves it");
    let (alice, bob) = (Some(Uid::from_raw(ALICE)), Some(Uid::from_raw(BOB)));
    let (staff, own) = (Some(Gid::from_raw(STAFF)), Some(Gid::from_raw(ALICE)));
    as_user(ALICE, &[STAFF], || {
        assert_errno!(chown(&file, bob, None), PERM);
        assert_errno!(chown(&file, None, Some(Gid::from_raw(777))), PERM);
        chown(&file, None, staff).unwrap();
        chown(&file, alice, own).unwrap();
    });
    assert_eq!(owners(&file), (ALICE, ALICE));
    as_user(BOB, &[ALICE], || assert_errno!(chown(&file, None, own), PERM));
}

#[test]
fn new_objects_belong_to_their_creator() {
    let stage = stage!();
    chmod(stage.path(), mode(0o777)).unwrap();
    as_user(ALICE, &[STAFF], || {
        stage.file("file", []);
        stage.dir("dir");
        rustix::fs::symlink("x", stage.at("link")).unwrap();
    });
    for name in ["file", "dir", "link"] {
        assert_eq!(owners(&stage.at(name)), (ALICE, ALICE), "{name}");
    }
}

#[test]
fn new_entries_inherit_the_group_of_a_set_group_id_directory() {
    let stage = stage!();
    let dir = stage.dir("dir");
    give(&dir, ALICE, STAFF);
    chmod(&dir, mode(0o2777)).unwrap();
    as_user(BOB, &[], || {
        std::fs::write(dir.join("file"), []).unwrap();
        std::fs::create_dir(dir.join("sub")).unwrap();
        rustix::fs::symlink("x", dir.join("link")).unwrap();
        crate::special::make_fifo(&dir.join("fifo"));
        // Not a member of the group: its new program cannot be set-group-id.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        drop(rustix::fs::open(dir.join("program"), flags, mode(0o2755)).unwrap());
    });
    for name in ["file", "sub", "link", "fifo", "program"] {
        assert_eq!(owners(&dir.join(name)), (BOB, STAFF), "{name}");
    }
    assert_eq!(permissions(dir.join("sub")) & 0o2000, 0o2000, "directories hand it on");
    assert_eq!(permissions(dir.join("file")) & 0o2000, 0);
    assert_eq!(permissions(dir.join("program")), 0o755);
}

/// A file of ALICE and STAFF, mode 06777, with 8 KiB in it.
macro_rules! program {
    ($stage:expr) => {{
        let path = $stage.file("program", [1; 8192]);
        give(&path, ALICE, STAFF);
        chmod(&path, mode(0o6777)).unwrap();
        path
    }};
}

#[test]
fn writing_clears_set_ids() {
    let stage = stage!();
    let path = program!(stage);
    as_user(BOB, &[], || write_at(&edit(&path), 0, b"patched"));
    assert_eq!(permissions(&path), 0o777);
    chmod(&path, mode(0o6777)).unwrap();
    let direct = || open(&path, OFlags::WRONLY | OFlags::DIRECT).unwrap();
    as_user(BOB, &[], || write_at(&direct(), 0, &[2; 4096]));
    assert_eq!(permissions(&path), 0o777, "O_DIRECT");
}

#[test]
fn writing_through_an_older_descriptor_clears_set_ids() {
    let stage = stage!();
    let path = program!(stage);
    let fd = as_user(BOB, &[], || edit(&path));
    as_user(BOB, &[], || write_at(&fd, 0, b"once"));
    assert_eq!(permissions(&path), 0o777);
    chmod(&path, mode(0o6777)).unwrap();
    as_user(BOB, &[], || write_at(&fd, 4096, b"again"));
    assert_eq!(permissions(&path), 0o777, "bits set after the first write");
}

#[test]
fn privileged_writers_keep_set_ids() {
    let stage = stage!();
    let path = program!(stage);
    write_at(&edit(&path), 0, b"by root");
    assert_eq!(permissions(&path), 0o6777);
}

#[test]
fn truncating_and_allocating_clear_set_ids() {
    let stage = stage!();
    let path = program!(stage);
    let again = || chmod(&path, mode(0o6777)).unwrap();
    as_user(BOB, &[], || crate::stage::truncate(&path, 100).unwrap());
    assert_eq!(permissions(&path), 0o777, "truncate");
    again();
    as_user(BOB, &[], || rustix::fs::ftruncate(edit(&path), 50).unwrap());
    assert_eq!(permissions(&path), 0o777, "ftruncate");
    again();
    as_user(BOB, &[], || drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap()));
    assert_eq!(permissions(&path), 0o777, "O_TRUNC");
    again();
    as_user(BOB, &[], || {
        rustix::fs::fallocate(edit(&path), FallocateFlags::empty(), 0, 100_000).unwrap()
    });
    if !stage.is_reference() {
        // tmpfs does not ask in fallocate.
        assert_eq!(permissions(&path), 0o777, "fallocate");
    }
}

#[test]
fn set_group_id_without_group_execute_survives_a_write() {
    let stage = stage!();
    let path = program!(stage);
    chmod(&path, mode(0o6767)).unwrap();
    as_user(BOB, &[], || write_at(&edit(&path), 0, b"x"));
    // Such a file is no set-group-id program. Since Linux 6.2 its bit goes if a stranger to the group writes; a FUSE server is
    // not told who is a stranger, and keeps it as Linux did before.
    let kept = if stage.is_reference() { 0o767 } else { 0o2767 };
    assert_eq!(permissions(&path), kept);
}

#[test]
fn chown_clears_set_ids_of_programs() {
    let stage = stage!();
    let path = program!(stage);
    as_user(ALICE, &[STAFF], || {
        chown(&path, None, Some(Gid::from_raw(ALICE))).unwrap()
    });
    assert_eq!(permissions(&path), 0o777);
    chmod(&path, mode(0o6777)).unwrap();
    give(&path, BOB, STAFF);
    assert_eq!(permissions(&path), 0o777, "even for root");
    let dir = stage.dir("dir");
    chmod(&dir, mode(0o6777)).unwrap();
    give(&dir, BOB, STAFF);
    assert_eq!(permissions(&dir), 0o6777, "directories keep them");
}

/// chown(2) that names neither says nothing to the kernel about who may.
#[test]
fn an_empty_chown_by_another_user_changes_nothing() {
    let stage = stage!();
    let (program, directory) = (stage.file("program", b"x"), stage.dir("directory"));
    give(&program, ALICE, STAFF);
    chmod(&program, mode(0o4755)).unwrap();
    chmod(&directory, mode(0o2775)).unwrap();
    as_user(BOB, &[], || {
        assert_errno!(chown(&program, None, None), PERM);
        let _ = chown(&directory, None, None);
    });
    assert_eq!(permissions(&program), 0o4755);
    chown(&directory, None, None).unwrap();
    assert_eq!(permissions(&directory), 0o2775);
    // By its owner it is a change, as any.
    as_user(ALICE, &[], || chown(&program, None, None).unwrap());
    assert_eq!(permissions(&program), 0o755);
}

#[test]
fn a_set_user_id_program_runs_as_its_owner() {
    let stage = stage!();
    let path = stage.at("program");
    std::fs::copy("/usr/bin/id", &path).unwrap();
    give(&path, ALICE, STAFF);
    let who = |option: &str| loop {
        // A child that another test forked while the program was being written may hold it a moment longer.
        match std::process::Command::new(&path).arg(option).output() {
            Ok(output) => break String::from_utf8(output.stdout).unwrap().trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
            Err(error) => panic!("{error}"),
        }
    };
    chmod(&path, mode(0o755)).unwrap();
    assert_eq!((who("-u"), who("-g")), ("0".to_owned(), "0".to_owned()));
    chmod(&path, mode(0o6755)).unwrap();
    assert_eq!((who("-u"), who("-g")), (ALICE.to_string(), STAFF.to_string()));
    // Nobody asks for its attributes between the write and the start.
    chmod(&path, mode(0o6777)).unwrap();
    let end = look(&path).st_size.unsigned_abs();
    as_user(BOB, &[], || write_at(&edit(&path), end, b"x"));
    assert_eq!((who("-u"), who("-g")), ("0".to_owned(), "0".to_owned()));
}

#[test]
fn a_link_of_another_directory_changes_with_its_file() {
    let stage = stage!();
    let file = stage.file("file", []);
    stage.dir("dir");
    rustix::fs::link(&file, stage.at("dir/other")).unwrap();
    chmod(stage.at("dir/other"), mode(0o640)).unwrap();
    give(&file, BOB, BOB);
    assert_eq!(permissions(&file), 0o640);
    assert_eq!(owners(&stage.at("dir/other")), (BOB, BOB));
}
