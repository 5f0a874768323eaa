//! Memory of names, attributes and extended attributes: counted, limited by user, and given back.

use crate::support::{
    BLOCK, Caller, RUN, TestFs, add_member, assert_empty, directory, empty_filesystem, regular, sized,
};
use homenode_engine::NodeId;
use homenode_engine::fs::{Access, Asking, Error, Inode, NewInode, RenameMode, SetAttr, XattrMode, fallocate_mode};
use std::sync::Arc;

const LIMIT: u64 = 8 << 20;
const USER: u32 = 1000;

fn limited() -> TestFs {
    let (fs, _) = empty_filesystem(1);
    fs.set_metadata_limit(LIMIT);
    fs
}

fn file_of(uid: u32) -> NewInode {
    NewInode { uid, ..regular(0o644) }
}

fn asking_as(caller: &Caller, user: Option<u32>) -> Asking<'_> {
    Asking {
        waits: true,
        user,
        ..caller.asking()
    }
}

/// Makes files with an extended attribute of 64 KiB until that is refused.
fn fill_with_xattrs(fs: &TestFs, dir: &Arc<Inode>, uid: u32) -> u32 {
    for number in 0.. {
        let name = format!("{uid} {number}");
        let made = fs.create(dir, name.as_bytes(), file_of(uid));
        let set =
            made.and_then(|inode| fs.set_xattr_as(uid, &inode, b"user.big", &[7; 60 << 10], XattrMode::Create, false));
        if let Err(error) = set {
            assert_eq!(error, Error::NoMetadata);
            return number;
        }
        assert!(number < 10_000, "the limit was not enforced");
    }
    unreachable!("the loop ends by returning")
}

#[test]
fn each_user_may_take_half_of_the_remaining_metadata() {
    let fs = limited();
    let root = fs.root();
    for (uid, divisor) in [(USER, 2), (USER + 1, 4), (USER + 2, 8)] {
        let before = fs.metadata_bytes().0;
        fill_with_xattrs(&fs, &root, uid);
        let took = fs.metadata_bytes().0 - before;
        let share = LIMIT / divisor;
        assert!(took <= share && took > share * 8 / 10, "{uid} took {took} of {share}");
    }
    fill_with_xattrs(&fs, &root, 0);
    let (used, limit) = fs.metadata_bytes();
    assert!(
        used <= limit && used > limit - (70 << 10),
        "root took {used} of {limit}"
    );
    assert!(
        fs.statfs().files_free < 200,
        "statfs tells that little is left: {:?}",
        fs.statfs()
    );
    fs.check_invariants();
    crate::namespace_model::remove_all(&fs, &root);
    assert_empty(&fs);
}

#[test]
fn names_and_link_targets_count_as_metadata() {
    let fs = limited();
    let root = fs.root();
    let inode = fs.create(&root, b"linked", file_of(USER)).expect("the pool has room");
    let links = (0..).take_while(|i: &u32| {
        let name = format!("{i:0200}");
        fs.link_as(USER, &inode, &root, name.as_bytes()).is_ok()
    });
    assert!((links.count() as u64) < LIMIT / 200);
    let targets = (0..).take_while(|i: &u32| {
        let name = format!("target {i}");
        fs.symlink(&root, name.as_bytes(), &[b't'; 4000], USER + 1, 0).is_ok()
    });
    assert!((targets.count() as u64) < LIMIT / 4000);
    fs.check_invariants();
}

#[test]
fn rename_that_leaves_a_whiteout_counts_both_names() {
    let fs = limited();
    let root = fs.root();
    let used = || fs.metadata_bytes().0;
    let rename = |from: &[u8], to: &[u8]| fs.rename_with_whiteout(&root, from, &root, to, RenameMode::Replace, (0, 0));
    let empty = used();
    for _ in 0..3 {
        fs.create(&root, b"a", file_of(0)).expect("there is room");
        rename(b"a", b"b").expect("there is room");
        rename(b"b", b"a").expect("in place of a whiteout");
        for name in [b"a", b"b"] {
            fs.unlink(&root, name).expect("it is there");
        }
        assert_eq!(used(), empty);
    }
    fs.create(&root, b"a", file_of(0)).expect("there is room");
    let before = used();
    rename(b"a", b"b").expect("there is room");
    let whiteout = used() - before;
    // Room for one whiteout more, and not for a longer name.
    fs.set_metadata_limit(used() + whiteout);
    assert_eq!(rename(b"b", &[b'c'; 200]), Err(Error::NoMetadata));
    fs.set_metadata_limit(used() + 3 * whiteout);
    rename(b"b", &[b'c'; 200]).expect("there is room");
    fs.check_invariants();
}

#[test]
fn operations_that_free_memory_work_at_the_limit() {
    let fs = limited();
    let root = fs.root();
    let dir = fs.create(&root, b"dir", directory(0o777)).expect("the pool has room");
    let made = fill_with_xattrs(&fs, &root, 0);
    fs.set_metadata_limit(1);
    let first = fs.lookup(&root, b"0 0").expect("the file was created");
    // Moves, a replacing name, a shorter name, a smaller value, another owner: none takes more than it frees.
    fs.rename(&root, b"0 0", &dir, b"0 0", RenameMode::Replace)
        .expect("as long a name");
    fs.rename(&dir, b"0 0", &root, b"0 1", RenameMode::Replace)
        .expect("in place of another");
    fs.rename(&root, b"0 1", &root, b"0", RenameMode::Replace)
        .expect("a shorter name");
    fs.rename(&root, b"0", &root, b"0 2", RenameMode::Exchange)
        .expect("two names for two");
    fs.set_xattr(&first, b"user.big", b"small", XattrMode::Replace, false)
        .expect("less than before");
    let set = SetAttr {
        uid: Some(USER),
        ..SetAttr::default()
    };
    fs.set_attr(&first, &set).expect("all it has moves with it");
    assert_eq!(
        fs.rename(&root, b"0 2", &root, b"0 2 and more", RenameMode::Replace),
        Err(Error::NoMetadata)
    );
    assert_eq!(fs.create(&root, b"new", file_of(0)).map(drop), Err(Error::NoMetadata));
    assert!(fs.lookup(&root, b"new").is_err(), "a refused create left a name");
    fs.check_invariants();
    assert!(made > 3);
    crate::namespace_model::remove_all(&fs, &root);
    assert_empty(&fs);
}

/// Writes a byte at offsets far from each other until that is refused.
fn write_sparsely(fs: &TestFs, caller: &Caller, inode: &Inode) -> Result<u64, Error> {
    for number in 0..1 << 20 {
        // An odd factor: every block of the first 2^50, in no order that nodes could share.
        let block = number * 0x9e37_79b9_7f4b % (1 << 50);
        let asking = asking_as(caller, Some(USER));
        if let Err(error) = fs.write(&asking, inode, block * BLOCK, b"x", false) {
            assert_eq!(error, Error::NoMetadata);
            return Ok(number);
        }
    }
    Err(Error::TooBig)
}

#[test]
fn sparse_files_stay_within_their_owners_metadata() {
    let fs = limited();
    add_member(&fs, NodeId(0), 16 * RUN);
    let (root, caller) = (fs.root(), Caller::on_cpu(&fs, 0));
    let mine = fs.create(&root, b"mine", file_of(USER)).expect("the pool has room");
    let written = write_sparsely(&fs, &caller, &mine).expect("the limit is reached");
    let took = fs.metadata_bytes().0;
    assert!(took <= LIMIT / 2 && took > LIMIT / 3, "{written} blocks took {took}");
    assert!(fs.pool().status().used < 16 * RUN, "the pool is not what is full");
    let by_user = fs.metadata_by_user();
    assert!(by_user[0].0 == USER && by_user[0].1 > took * 9 / 10, "{by_user:?}");
    assert_eq!(by_user.iter().map(|(_, bytes)| bytes).sum::<u64>(), took);
    // Root is not bound by the owner's share, and others make files.
    fs.write(&caller.asking(), &mine, 1 << 41, b"y", false)
        .expect("root may take all metadata memory");
    let other = fs
        .create(&root, b"other", file_of(USER + 1))
        .expect("half of the remaining memory is left");
    fs.write(&caller.asking(), &other, 1 << 40, b"x", false)
        .expect("half of the remaining memory is left");
    // Taking away needs room of nobody.
    let run = vec![7; 2 << 20];
    let whole = fs.create(&root, b"whole", file_of(0)).expect("root has no limit");
    fs.write(&caller.asking(), &whole, 0, &run, false)
        .expect("root may take all metadata memory");
    fs.set_metadata_limit(1);
    let hole = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
    fs.fallocate(&caller.asking(), &whole, hole, 4096, 4096)
        .expect("where no node may be had the bytes become zeros");
    let mut back = [1; 12288];
    fs.read(&caller.asking(), &whole, 0, &mut back).expect("a file inode");
    assert!(back[..4096] == [7; 4096] && back[4096..8192] == [0; 4096] && back[8192..] == [7; 4096]);
    fs.set_attr(&whole, &sized(5000)).expect("shrinking needs no room");
    fs.set_attr(&whole, &sized(2 << 20)).expect("growing places nothing");
    let mut back = vec![1; 2 << 20];
    fs.read(&caller.asking(), &whole, 0, &mut back).expect("a file inode");
    assert!(back[4096..].iter().all(|byte| *byte == 0), "cut bytes came back");
    fs.check_invariants();
    crate::namespace_model::remove_all(&fs, &root);
    assert_empty(&fs);
}

#[test]
fn users_writing_to_roots_files_leave_half_of_the_metadata() {
    let fs = limited();
    add_member(&fs, NodeId(0), 16 * RUN);
    let (root, caller) = (fs.root(), Caller::on_cpu(&fs, 0));
    let open_to_all = fs.create(&root, b"open to all", regular(0o666));
    let open_to_all = open_to_all.expect("the pool has room");
    let by = |user: Option<u32>| asking_as(&caller, user);
    let write = |asking: &Asking<'_>, number: u64| {
        let block = number * 0x9e37_79b9_7f4b % (1 << 50);
        fs.write(asking, &open_to_all, block * BLOCK, b"x", false)
    };
    let number = (1..)
        .find(|number| write(&by(Some(USER)), *number).is_err())
        .expect("the limit is reached");
    assert_eq!(write(&by(Some(USER)), number), Err(Error::NoMetadata));
    assert_eq!(
        write(&by(None), number),
        Err(Error::NoMetadata),
        "a store by an unknown user"
    );
    let took = fs.metadata_bytes().0;
    assert!(took <= LIMIT / 2 && took > LIMIT / 3, "{took} of {LIMIT}");
    let value = [7; 60 << 10];
    let set = |user| fs.set_xattr_as(user, &open_to_all, b"user.big", &value, XattrMode::Either, false);
    assert_eq!(set(USER), Err(Error::NoMetadata));
    let name = [b'n'; 255];
    let links = (0..100).filter(|i| fs.link_as(USER, &open_to_all, &root, &name[*i..]).is_ok());
    assert!(links.count() < 30, "less than what was left of the half");
    fs.create(&root, b"mine", file_of(USER))
        .expect("a user has his own half");
    write(&by(Some(0)), number).expect("root may take all metadata memory");
    set(0).expect("root may take all metadata memory");
    fs.check_invariants();
}

/// When stores to a mapping are written back, the user who made them is not known.
#[test]
fn stores_to_mappings_of_roots_files_are_kept_beside_a_user_who_takes_half_of_the_metadata() {
    let fs = limited();
    add_member(&fs, NodeId(0), 16 * RUN);
    let (root, caller) = (fs.root(), Caller::on_cpu(&fs, 0));
    let make = |name: &[u8], mode| fs.create(&root, name, regular(mode)).expect("the pool has room");
    let (private, shared) = (make(b"private", 0o600), make(b"shared", 0o660));
    fill_with_xattrs(&fs, &root, USER);
    let value = [7; 60 << 10];
    for name in (b'a'..=b'z').map(|letter| [&b"user."[..], &[letter]].concat()) {
        fs.set_xattr_as(0, &private, &name, &value, XattrMode::Create, false)
            .expect("root may take all metadata memory");
        if 2 * fs.metadata_bytes().0 > LIMIT {
            break;
        }
    }
    let stores = asking_as(&caller, None);
    let write = |file, block| fs.write(&stores, file, block * BLOCK, b"x", false);
    assert_eq!(
        write(&shared, 100),
        Err(Error::NoMetadata),
        "a user of the group may have stored"
    );
    write(&private, 100).expect("root alone can have stored");
    fs.check_invariants();
}

/// Room that is promised for a run takes no node; what is left of it after a punch does.
#[test]
fn punching_reserved_ranges_stays_within_the_owners_metadata() {
    let fs = limited();
    add_member(&fs, NodeId(0), 4096 * 4);
    let (root, caller) = (fs.root(), Caller::on_cpu(&fs, 0));
    let mine = fs.create(&root, b"mine", file_of(USER)).expect("the pool has room");
    for run in 0..4 * LIMIT / 4096 {
        let (offset, bytes) = (run * RUN * BLOCK, RUN * BLOCK);
        let hole = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
        let asking = asking_as(&caller, Some(USER));
        if fs
            .fallocate(&asking, &mine, fallocate_mode::KEEP_SIZE, offset, bytes)
            .is_err()
        {
            break;
        }
        fs.fallocate(&caller.asking(), &mine, hole, offset + BLOCK, bytes - BLOCK)
            .expect("taking away never fails for want of memory");
    }
    let took = fs.metadata_bytes().0;
    assert!(took <= LIMIT / 2, "{took} of {LIMIT}");
    fs.check_invariants();
    crate::namespace_model::remove_all(&fs, &root);
    assert_empty(&fs);
}

#[test]
fn a_small_file_needs_no_map_node() {
    let fs = limited();
    add_member(&fs, NodeId(0), 16 * RUN);
    let (root, caller) = (fs.root(), Caller::on_cpu(&fs, 0));
    let before = fs.metadata_bytes().0;
    for number in 0..1000 {
        let inode = fs
            .create(&root, format!("{number:04}").as_bytes(), regular(0o644))
            .expect("the pool has room");
        fs.write(&caller.asking(), &inode, 0, &[1; 8192], false)
            .expect("the pool has room");
    }
    let bytes = (fs.metadata_bytes().0 - before) / 1000;
    assert!(bytes < 600, "a file of two blocks takes {bytes} bytes");
}

#[test]
fn waiting_map_nodes_are_freed_when_a_sequential_write_needs_them() {
    let (fs, _) = empty_filesystem(1);
    add_member(&fs, NodeId(0), 40 * RUN);
    let (root, caller) = (fs.root(), Caller::on_cpu(&fs, 0));
    let inode = fs
        .create(&root, b"in order", file_of(USER))
        .expect("the limit was not enforced");
    fs.open(&inode, Access::Write).expect("the inode exists");
    fs.set_metadata_limit(64 << 10);
    let asking = asking_as(&caller, Some(USER));
    let bytes = vec![7; 1 << 20];
    for number in 0..76 {
        let written = fs.write(&asking, &inode, number << 20, &bytes, false);
        // A write that meets the limit ends early, as at the end of the pool: its rest follows.
        let done = written.expect("nodes that wait are given up first");
        let rest = fs.write(&asking, &inode, (number << 20) + done as u64, &bytes[done..], false);
        assert_eq!(rest, Ok(bytes.len() - done));
    }
    fs.release(&inode, Access::Write);
    assert!(
        fs.map_nodes_used() <= 2,
        "{} nodes after the last close",
        fs.map_nodes_used()
    );
    fs.check_invariants();
}
