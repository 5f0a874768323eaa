//! Files of the kernel behind inodes: room shared with volumes, attributes that change unasked, and what goes with the inode.

use crate::support::{
    BLOCK, Caller, RUN, TestFs, add_member, assert_empty, kernel_filesystem, new_file, remove_member,
};
use homenode_engine::NodeId;
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{
    Access, Error, Inode, Placement, SetAttr, SetTime, VolumeError, XattrMode, fallocate_mode as mode,
};
use homenode_engine::pool::PoolError;
use std::sync::Arc;

const MEMBER_BLOCKS: u64 = 64 * RUN;

fn set(attr: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut set = SetAttr::default();
    attr(&mut set);
    set
}

/// Takes all names and pins of a file away.
fn remove(fs: &TestFs, name: &str, inode: &Arc<Inode>) {
    fs.unlink(&fs.root(), name.as_bytes()).expect("it is there");
    fs.unpin(inode, 1);
}

#[test]
fn attributes_are_the_backing_files_and_changes_are_seen_at_once() {
    let (fs, clock, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    let later = fs.attr(&inode).ctime_ns + 100;
    store.write_unasked(0, 5000, b"abc", later).unwrap();
    let attr = fs.attr(&inode);
    assert_eq!(
        (attr.size, attr.blocks, attr.mtime_ns, attr.ctime_ns),
        (5003, 8, later, later)
    );
    clock.advance_ns(300);
    let changed = fs.set_attr(&inode, &set(|set| set.mode = Some(0o600))).unwrap();
    assert_eq!((changed.mtime_ns, changed.ctime_ns), (later, later + 200));
    let touched = fs
        .set_attr(&inode, &set(|set| set.atime = Some(SetTime::At(-5))))
        .unwrap();
    assert_eq!((touched.atime_ns, touched.mtime_ns), (-5, later));
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

/// Notes a writer; whether the kernel had to forget attributes.
fn forgets(inode: &Inode) -> bool {
    let mut forgot = false;
    inode.note_writer(|| forgot = true);
    forgot
}

#[test]
fn attributes_last_while_nobody_may_write() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.open(&inode, Access::Read).unwrap();
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    assert!(fs.attr(&inode).changes_unseen, "such an answer may come late");
    assert!(forgets(&inode), "the kernel may have been told that they last");
    assert!(!forgets(&inode), "and forgets them once");
    fs.open(&inode, Access::Write).unwrap();
    store.set_writers(0, true);
    assert!(fs.lasting_attr(&inode).changes_unseen);
    fs.release(&inode, Access::Write);
    assert!(
        fs.lasting_attr(&inode).changes_unseen,
        "a mapping has outlived the open"
    );
    store.set_writers(0, false);
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    assert!(forgets(&inode));
    fs.open(&inode, Access::Write).unwrap();
    assert!(
        fs.lasting_attr(&inode).changes_unseen,
        "it is open, whatever the store says"
    );
}

#[test]
fn registration_is_made_once_a_connection_and_goes_with_the_inode() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    let id = |connection| inode.backing_id(connection, |_| Ok(store.register(0, connection)));
    assert_eq!((id(1), id(1), store.state(0)), (Some(Ok(1)), Some(Ok(1)), (false, 1)));
    assert_eq!(
        (id(2), store.state(0)),
        (Some(Ok(1)), (false, 1)),
        "the old one is dropped"
    );
    assert_eq!(
        inode.backing_id(3, |_| Err(Error::NoDescriptor)),
        Some(Err(Error::NoDescriptor))
    );
    assert_eq!(store.state(0), (false, 1));
    fs.open(&inode, Access::Read).unwrap();
    remove(&fs, "file", &inode);
    assert_eq!(store.state(0), (false, 1), "it is open");
    fs.release(&inode, Access::Read);
    assert_eq!(store.state(0), (true, 0));
    assert_empty(&fs);
    assert_eq!(
        fs.root().backing_id(1, |_| Err(Error::Io)),
        None,
        "a directory has no such file"
    );
}

#[test]
fn file_that_finds_no_name_leaves_nothing_behind() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let _first = new_file(&fs, "file");
    let root = fs.root();
    let again = fs.create(&root, b"file", crate::support::regular(0o644));
    assert_eq!(again.unwrap_err(), Error::Exists);
    drop(store);
    fs.check_invariants();
}

#[test]
fn files_and_volumes_share_one_total() {
    let (fs, _, store) = kernel_filesystem(2, MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    let all = 2 * MEMBER_BLOCKS;
    assert_eq!((store.limit(), fs.statfs().free), (all, all));
    let inode = new_file(&fs, "file");
    let volume = fs.create_volume("v", all * BLOCK, Placement::Local).unwrap();
    fs.write_volume(&asking, &volume, 0, &[1; BLOCK as usize]).unwrap();
    assert_eq!((fs.statfs().free, fs.pool().status().used), (all - 1, 1));
    let most = all - RUN * 8;
    assert_eq!(
        store.write_unasked(0, 0, &vec![2; (most * BLOCK) as usize], 0),
        Ok((most * BLOCK) as usize)
    );
    assert_eq!(fs.statfs().free, all - most - 1);
    fs.check_invariants();
    // The volume takes what is left and no more.
    let mut taken = 1;
    while fs
        .write_volume(&asking, &volume, taken * BLOCK, &[1; BLOCK as usize])
        .is_ok()
    {
        taken += 1;
    }
    assert_eq!((taken, fs.statfs().free), (all - most, 0));
    assert_eq!(store.write_unasked(0, most * BLOCK, b"x", 0), Err(Error::NoSpace));
    fs.check_invariants();
    // A member's memory goes back when none of its blocks is in use, and the room is a file's then.
    fs.remove_volume(&volume).unwrap();
    assert_eq!(store.write_unasked(0, most * BLOCK, b"x", 0), Ok(1));
    fs.check_invariants();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
    assert_eq!(store.limit(), all);
}

#[test]
fn drain_beside_a_volume_moves_it_and_takes_room_once() {
    let (fs, _, store) = kernel_filesystem(2, MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 1);
    let volume = fs.create_volume("v", MEMBER_BLOCKS * BLOCK, Placement::Local).unwrap();
    let third = MEMBER_BLOCKS / 3;
    fs.write_volume(&caller.asking(), &volume, 0, &vec![1; (third * BLOCK) as usize])
        .unwrap();
    let _inode = new_file(&fs, "file");
    store
        .write_unasked(0, 0, &vec![2; (third * BLOCK) as usize], 0)
        .unwrap();
    let member = fs.pool().status().members[1].id;
    fs.drain(member, &mut |_, _| {}).unwrap();
    remove_member(&fs, member);
    assert_eq!(fs.statfs().free, MEMBER_BLOCKS - 2 * third);
    // All of that but what has memory already, for the volume's next blocks, is the files'.
    let populated = fs.pool().status().members[0].populated;
    assert!(
        store.limit() >= MEMBER_BLOCKS - populated,
        "{} of {populated}",
        store.limit()
    );
    fs.check_invariants();
}

#[test]
fn one_connection_at_a_time_registers_files() {
    let (fs, _, _) = kernel_filesystem(1, MEMBER_BLOCKS);
    let claim = fs.claim_passing();
    assert!(claim.is_some() && fs.claim_passing().is_none());
    drop(claim);
    assert!(fs.claim_passing().is_some());
}

#[test]
fn promise_that_finds_no_room_is_given_up() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    fs.fallocate(&caller.asking(), &inode, 0, 0, 10_000 * BLOCK).unwrap();
    // Faster than anybody looks.
    store
        .write_unasked(1, 0, &vec![1; ((MEMBER_BLOCKS - 5000) * BLOCK) as usize], 0)
        .unwrap();
    fs.keep_promises();
    assert!(!fs.keep_promises(), "it is not asked for again and again");
    assert_eq!(fs.pool().status().reserved, 0);
    fs.check_invariants();
}

#[test]
fn members_come_and_go_with_the_total() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let first = fs.pool().status().members[0].id;
    let _inode = new_file(&fs, "file");
    assert_eq!(fs.drain(first, &mut |_, _| {}), Err(PoolError::Last(first)));
    let second = add_member(&fs, NodeId(0), MEMBER_BLOCKS);
    assert_eq!(store.limit(), 2 * MEMBER_BLOCKS);
    let bytes = vec![1; ((MEMBER_BLOCKS + 1) * BLOCK) as usize];
    store.write_unasked(0, 0, &bytes, 0).unwrap();
    assert_eq!(fs.drain(second, &mut |_, _| {}), Err(PoolError::NoSpace(second)));
    assert_eq!(store.limit(), 2 * MEMBER_BLOCKS);
    let inode = fs.lookup(&fs.root(), b"file").unwrap();
    fs.set_attr(&inode, &set(|set| set.size = Some(MEMBER_BLOCKS * BLOCK)))
        .unwrap();
    assert_eq!(fs.drain(second, &mut |_, _| {}), Ok(0));
    remove_member(&fs, second);
    assert_eq!((store.limit(), fs.statfs().free), (MEMBER_BLOCKS, 0));
    fs.check_invariants();
}

#[test]
fn room_comes_ahead_of_a_full_file_without_a_name_and_goes_with_it() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let (full, other) = (new_file(&fs, "full"), new_file(&fs, "other"));
    let bytes = vec![1; (MEMBER_BLOCKS * BLOCK) as usize];
    store.write_unasked(0, 0, &bytes, 0).unwrap();
    assert_eq!(store.write_unasked(1, 0, b"x", 0), Err(Error::NoSpace));
    fs.unlink(&fs.root(), b"full").unwrap();
    assert_eq!(store.write_unasked(1, 0, b"x", 0), Ok(1));
    assert!(store.limit() <= MEMBER_BLOCKS + 16_384);
    assert_eq!(fs.statfs().free, 0);
    fs.unpin(&full, 1);
    assert_eq!((store.limit(), fs.statfs().free), (MEMBER_BLOCKS, MEMBER_BLOCKS - 1));
    remove(&fs, "other", &other);
    assert_empty(&fs);
}

#[test]
fn no_room_comes_ahead_where_there_is_enough() {
    let (fs, _, store) = kernel_filesystem(1, 16_384 + MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    store
        .write_unasked(0, 0, &vec![1; (MEMBER_BLOCKS * BLOCK) as usize], 0)
        .unwrap();
    remove(&fs, "file", &inode);
    assert_eq!(store.limit(), 16_384 + MEMBER_BLOCKS);
}

#[test]
fn truncate_comes_in_steps() {
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let inode = new_file(&fs, "file");
    let bytes = 100 << 20;
    store.write_unasked(0, 0, &vec![1; bytes as usize], 0).unwrap();
    assert_eq!(fs.truncate_step(&inode, 10), Ok(true));
    let size = fs.attr(&inode).size;
    assert!(10 < size && size < bytes, "{size}");
    while fs.truncate_step(&inode, 10).unwrap() {}
    assert_eq!((fs.attr(&inode).size, fs.attr(&inode).blocks), (10, 8));
}

#[test]
fn fallocate_promises_room_and_places_nothing() {
    const BLOCKS: u64 = 4 * MEMBER_BLOCKS;
    let (fs, _, store) = kernel_filesystem(1, BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    let (inode, other) = (new_file(&fs, "file"), new_file(&fs, "other"));
    let half = BLOCKS / 2 * BLOCK;
    fs.fallocate(&asking, &inode, 0, 0, half).unwrap();
    assert_eq!((fs.attr(&inode).size, fs.attr(&inode).blocks), (half, half / 512));
    assert_eq!((store.used_blocks(), fs.statfs().free), (0, BLOCKS / 2));
    assert_eq!(fs.map(&inode), []);
    // Again, in part: nothing more.
    fs.fallocate(&asking, &inode, mode::KEEP_SIZE, BLOCK, half).unwrap();
    assert_eq!((fs.attr(&inode).size, fs.statfs().free), (half, BLOCKS / 2 - 1));
    assert_eq!(fs.fallocate(&asking, &other, 0, 0, half), Err(Error::NoSpace));
    assert_eq!(fs.attr(&other).blocks, 0);
    // Writing takes from the promise.
    store.write_unasked(0, 0, &[1; 10 * BLOCK as usize], 0).unwrap();
    assert_eq!(fs.attr(&inode).blocks, half / 512 + 8);
    assert_eq!(fs.statfs().free, BLOCKS / 2 - 1);
    fs.check_invariants();
    // No volume gets what is promised.
    let volume = fs.create_volume("v", BLOCKS * BLOCK, Placement::Local).unwrap();
    let mut taken = 0;
    while fs
        .write_volume(&asking, &volume, taken * BLOCK, &[1; BLOCK as usize])
        .is_ok()
    {
        taken += 1;
    }
    assert_eq!(taken, BLOCKS / 2 - 1);
    fs.remove_volume(&volume).unwrap();
    // Punching, cutting and removing take promises back.
    fs.fallocate(
        &asking,
        &inode,
        mode::PUNCH_HOLE | mode::KEEP_SIZE,
        half - 100 * BLOCK,
        100 * BLOCK,
    )
    .unwrap();
    assert_eq!(fs.statfs().free, BLOCKS / 2 + 99);
    fs.set_attr(&inode, &set(|set| set.size = Some(20 * BLOCK))).unwrap();
    assert_eq!(fs.statfs().free, BLOCKS - 20);
    remove(&fs, "file", &inode);
    remove(&fs, "other", &other);
    assert_empty(&fs);
}

#[test]
fn fallocate_allocates_in_steps_where_little_room_is_left() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    let bytes = (MEMBER_BLOCKS - 10) * BLOCK;
    let first = fs.fallocate_step(&asking, &inode, 0, 0, bytes, 0).unwrap();
    assert!(first.is_some_and(|done| 0 < done && done < bytes), "{first:?}");
    assert_eq!((fs.statfs().free, fs.attr(&inode).size), (10, 0));
    let mut done = first;
    while let Some(so_far) = done {
        done = fs.fallocate_step(&asking, &inode, 0, 0, bytes, so_far).unwrap();
    }
    // What is allocated already needs no room.
    fs.fallocate(&asking, &inode, 0, 0, bytes).unwrap();
    assert_eq!((store.used_blocks(), fs.statfs().free), (MEMBER_BLOCKS - 10, 10));
    assert_eq!(fs.attr(&inode).size, bytes);
    assert_eq!(fs.fallocate(&asking, &inode, 0, bytes, 11 * BLOCK), Err(Error::NoSpace));
    assert_eq!(
        (fs.statfs().free, fs.attr(&inode).size),
        (10, bytes),
        "nothing has changed"
    );
}

#[test]
fn promises_are_made_real_before_others_take_the_room() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    assert!(!fs.keep_promises(), "there is none");
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    let promised = 1000;
    fs.fallocate(&caller.asking(), &inode, 0, 0, promised * BLOCK).unwrap();
    assert!(fs.keep_promises());
    assert_eq!(store.used_blocks(), 0, "there is room");
    let taken = MEMBER_BLOCKS - promised - 500;
    store
        .write_unasked(1, 0, &vec![1; (taken * BLOCK) as usize], 0)
        .unwrap();
    assert!(fs.keep_promises());
    assert_eq!(store.used_blocks(), taken + promised);
    assert_eq!(
        store.write_unasked(1, taken * BLOCK, &vec![1; (600 * BLOCK) as usize], 0),
        Ok((500 * BLOCK) as usize)
    );
    assert_eq!(
        store.write_unasked(0, 0, &vec![2; (promised * BLOCK) as usize], 0),
        Ok((promised * BLOCK) as usize)
    );
    assert!(!fs.keep_promises());
    fs.check_invariants();
}

#[test]
fn policy_reaches_the_backing_file() {
    let (fs, _, store) = kernel_filesystem(2, MEMBER_BLOCKS);
    let policy = |inode: &Inode, text: &str| {
        fs.set_xattr(
            inode,
            homenode_engine::fs::POLICY_XATTR,
            text.as_bytes(),
            XattrMode::Either,
            false,
        )
    };
    let plain = new_file(&fs, "plain");
    assert_eq!(store.placement(0), None);
    policy(&plain, "interleave").unwrap();
    assert_eq!(store.placement(0), Some(Placement::Interleave));
    fs.remove_xattr(&plain, homenode_engine::fs::POLICY_XATTR).unwrap();
    assert_eq!(store.placement(0), None);
    policy(&fs.root(), "node:1").unwrap();
    let _inheriting = new_file(&fs, "inheriting");
    assert_eq!(store.placement(1), Some(Placement::Node(NodeId(1))));
}

#[test]
fn bytes_by_node_follow_changes_and_stop_when_told() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    let told = || fs.backing_by_node(|| true);
    assert_eq!(told(), []);
    store.write_unasked(0, 0, &[1; 3 * BLOCK as usize], 0).unwrap();
    assert_eq!(told(), [], "nobody was noted as a writer");
    assert!(forgets(&inode));
    assert_eq!(told(), [(NodeId(0), 3 * BLOCK)]);
    store.write_unasked(0, 3 * BLOCK, &[1], 0).unwrap();
    assert_eq!(told(), [(NodeId(0), 3 * BLOCK)], "nobody has it open any more");
    assert!(forgets(&inode));
    store.set_writers(0, true);
    assert_eq!(told(), [(NodeId(0), 4 * BLOCK)]);
    store.write_unasked(0, 4 * BLOCK, &[1], 0).unwrap();
    assert_eq!(told(), [(NodeId(0), 5 * BLOCK)], "a writer may come at any time");
    store.set_writers(0, false);
    assert_eq!(told(), [(NodeId(0), 5 * BLOCK)]);
    fs.set_attr(&inode, &set(|set| set.size = Some(BLOCK))).unwrap();
    assert_eq!(told(), [(NodeId(0), BLOCK)]);
    assert_eq!(fs.backing_by_node(|| false), []);
}

#[test]
fn kernel_memory_of_a_file_is_its_owners_metadata() {
    let (fs, _, _) = kernel_filesystem(1, MEMBER_BLOCKS);
    let before = fs.metadata_bytes().0;
    let _inode = new_file(&fs, "file");
    let taken = fs.metadata_bytes().0 - before;
    assert!((2400..3500).contains(&taken), "{taken}");
    assert!(
        fs.create_volume("v", BLOCK, Placement::Node(NodeId(7)))
            .is_err_and(|error| error == VolumeError::NoMemberOn(NodeId(7)))
    );
}
