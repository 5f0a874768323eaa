//! Opens of inodes: counted by access, they keep what has no name, and releases without an open do no harm.

use crate::support::{Caller, TestFs, assert_empty, filesystem, new_file, regular};
use homenode_engine::fs::{Access, Error, Inode, Opens};
use std::sync::Arc;

/// A new file that its name alone keeps.
fn named(fs: &TestFs) -> Arc<Inode> {
    let inode = new_file(fs, "file");
    fs.unpin(&inode, 1);
    inode
}

fn counts(fs: &TestFs, inode: &Inode) -> (u32, u32, u64) {
    let Opens { all, writers } = fs.opens(inode);
    fs.check_invariants();
    (all, writers, fs.open_count())
}

#[test]
fn opens_are_counted_by_access() {
    let (fs, _) = filesystem(1, 512);
    let inode = named(&fs);
    for (access, expected) in [
        (Access::Read, (1, 0, 1)),
        (Access::Write, (2, 1, 2)),
        (Access::Write, (3, 2, 3)),
    ] {
        fs.open(&inode, access).expect("it is there");
        assert_eq!(counts(&fs, &inode), expected);
    }
    fs.release(&inode, Access::Write);
    assert_eq!(counts(&fs, &inode), (2, 1, 2));
    fs.release(&inode, Access::Read);
    fs.release(&inode, Access::Write);
    assert_eq!(counts(&fs, &inode), (0, 0, 0));
    fs.unlink(&fs.root(), b"file").expect("it has a name");
    assert_empty(&fs);
}

#[test]
fn an_open_file_without_a_name_lives_until_its_last_release() {
    let (fs, _) = filesystem(1, 512);
    let inode = named(&fs);
    let caller = Caller::on_cpu(&fs, 0);
    fs.write(&caller.asking(), &inode, 0, &[7; 5000], false)
        .expect("there is room");
    fs.open(&inode, Access::Read).expect("it is there");
    fs.open(&inode, Access::Write).expect("it is there");
    fs.unlink(&fs.root(), b"file").expect("it has a name");
    fs.pin(&inode).expect("it is open");
    fs.release(&inode, Access::Write);
    fs.unpin(&inode, 1);
    assert!(fs.has_unlinked());
    let mut byte = [0];
    assert_eq!(fs.read(&caller.asking(), &inode, 4999, &mut byte), Ok(1));
    assert_eq!(byte, [7]);
    fs.release(&inode, Access::Read);
    assert!(!fs.has_unlinked());
    assert_eq!(fs.open(&inode, Access::Read), Err(Error::Stale));
    assert_empty(&fs);
}

#[test]
fn releases_without_an_open_change_nothing() {
    let (fs, _) = filesystem(1, 512);
    let inode = named(&fs);
    fs.release(&inode, Access::Write);
    assert_eq!(counts(&fs, &inode), (0, 0, 0));
    fs.open(&inode, Access::Write).expect("it is there");
    fs.release(&inode, Access::Read);
    assert_eq!(counts(&fs, &inode), (0, 0, 0), "writers never outnumber all");
    let unnamed = fs.tmpfile(&fs.root(), regular(0o600)).expect("always possible");
    fs.release(&unnamed, Access::Read);
    assert!(fs.inode(unnamed.ino()).is_some(), "its pin keeps it");
    fs.unpin(&unnamed, 1);
    fs.release(&unnamed, Access::Read);
    fs.unlink(&fs.root(), b"file").expect("it has a name");
    assert_empty(&fs);
}

#[test]
fn threads_that_open_and_release_leave_no_open_behind() {
    const ROUNDS: usize = 20_000;
    let (fs, _) = filesystem(1, 512);
    let inode = named(&fs);
    std::thread::scope(|scope| {
        for access in [Access::Read, Access::Write] {
            let (fs, inode) = (&fs, &inode);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    fs.open(inode, access).expect("its name keeps it");
                    fs.release(inode, access);
                }
            });
        }
    });
    assert_eq!(counts(&fs, &inode), (0, 0, 0));
    fs.unlink(&fs.root(), b"file").expect("it has a name");
    assert_empty(&fs);
}
