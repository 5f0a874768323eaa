//! Opens of inodes: counted by access, they keep what has no name, and releases without an open do no harm.

use crate::support::{Caller, TestFs, assert_empty, filesystem, new_file, regular};
use homenode_engine::fs::{Access, Error, Inode, Opens, Unlinked};
use std::cell::Cell;
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
        fs.open(&inode, access).expect("the inode exists");
        assert_eq!(counts(&fs, &inode), expected);
    }
    fs.release(&inode, Access::Write);
    assert_eq!(counts(&fs, &inode), (2, 1, 2));
    fs.release(&inode, Access::Read);
    fs.release(&inode, Access::Write);
    assert_eq!(counts(&fs, &inode), (0, 0, 0));
    fs.unlink(&fs.root(), b"file").expect("the inode has a name");
    assert_empty(&fs);
}

#[test]
fn an_unnamed_open_file_lives_until_its_last_release() {
    let (fs, _) = filesystem(1, 512);
    let inode = named(&fs);
    let caller = Caller::on_cpu(&fs, 0);
    fs.write(&caller.asking(), &inode, 0, &[7; 5000], false)
        .expect("the pool has room");
    fs.open(&inode, Access::Read).expect("the inode exists");
    fs.open(&inode, Access::Write).expect("the inode exists");
    let unlinked = || {
        let Unlinked { open, closed, .. } = fs.unlinked();
        [open, closed].map(|count| (count.files, count.moves))
    };
    assert_eq!(unlinked(), [(0, 0); 2]);
    fs.unlink(&fs.root(), b"file").expect("the inode has a name");
    fs.pin(&inode).expect("the file is open");
    fs.release(&inode, Access::Write);
    assert_eq!(unlinked(), [(1, 1), (0, 0)], "the file is open");
    fs.release(&inode, Access::Read);
    assert_eq!(unlinked(), [(0, 2), (1, 1)], "the file is only pinned");
    fs.open(&inode, Access::Read).expect("it is pinned");
    assert_eq!(unlinked(), [(1, 3), (0, 2)]);
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
fn the_end_of_a_file_is_told_once_while_its_blocks_are_its_own() {
    for is_last_open in [false, true] {
        let (fs, _) = filesystem(1, 512);
        let inode = new_file(&fs, "file");
        fs.pin(&inode).expect("the inode exists");
        let caller = Caller::on_cpu(&fs, 0);
        fs.write(&caller.asking(), &inode, 0, &[7; 5000], false)
            .expect("the pool has room");
        fs.open(&inode, Access::Read).expect("the inode exists");
        fs.unlink(&fs.root(), b"file").expect("the inode has a name");
        let used = || fs.pool().status().used;
        let (held, told) = (used(), Cell::new(0));
        let tell = || {
            assert_eq!((used(), fs.attr(&inode).size), (held, 5000));
            told.set(told.get() + 1);
        };
        fs.unpin_telling(&inode, 1, tell);
        if is_last_open {
            fs.unpin_telling(&inode, 1, tell);
        } else {
            fs.release_telling(&inode, Access::Read, tell);
        }
        assert_eq!(told.get(), 0, "something keeps the file");
        if is_last_open {
            fs.release_telling(&inode, Access::Read, tell);
        } else {
            fs.unpin_telling(&inode, 1, tell);
        }
        assert_eq!(told.get(), 1);
        assert_empty(&fs);
    }
}

#[test]
fn releases_without_an_open_change_nothing() {
    let (fs, _) = filesystem(1, 512);
    let inode = named(&fs);
    fs.release(&inode, Access::Write);
    assert_eq!(counts(&fs, &inode), (0, 0, 0));
    fs.open(&inode, Access::Write).expect("the inode exists");
    fs.release(&inode, Access::Read);
    assert_eq!(counts(&fs, &inode), (0, 0, 0), "writers never outnumber all");
    let unnamed = fs.tmpfile(&fs.root(), regular(0o600)).expect("it always succeeds");
    fs.release(&unnamed, Access::Read);
    assert!(fs.inode(unnamed.ino()).is_some(), "a pinned inode was removed");
    fs.unpin(&unnamed, 1);
    fs.release(&unnamed, Access::Read);
    fs.unlink(&fs.root(), b"file").expect("the inode has a name");
    assert_empty(&fs);
}

#[test]
fn concurrent_opens_and_releases_balance() {
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
    fs.unlink(&fs.root(), b"file").expect("the inode has a name");
    assert_empty(&fs);
}

/// Who asked itself has its answer when it changes something; others may not have theirs.
#[test]
fn attributes_on_their_way_are_those_of_other_threads() {
    let (fs, _) = filesystem(1, 512);
    let inode = new_file(&fs, "file");
    assert!(!inode.take_told(1), "nobody was told");
    inode.note_told(1);
    assert!(!inode.take_told(1) && inode.take_told(2) && !inode.take_told(2));
    inode.note_told(1);
    inode.note_told(2);
    assert!(inode.take_told(1) && !inode.take_told(2));
    // A thread that is not known may be any.
    inode.note_told(0);
    assert!(inode.take_told(0) && !inode.take_told(0));
}
