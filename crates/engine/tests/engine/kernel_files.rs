//! Files of the kernel behind inodes: room shared with volumes, attributes that change unasked, and what goes with the inode.

use crate::support::{
    BLOCK, Caller, RUN, TestFs, TestStore, add_member, assert_empty, filesystem, kernel_filesystem, new_file, regular,
    remove_member,
};
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{
    Access, Error, Inode, POLICY_XATTR, Placement, SetAttr, SetTime, VolumeError, XattrMode, fallocate_mode as mode,
};
use homenode_engine::pool::PoolError;
use homenode_engine::{Clock, MemberId, NodeId};
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

/// The kernel's stamps may be ahead of the clock that the filesystem has, by a tick.
#[test]
fn changes_are_later_than_the_kernels_stamps_that_were_seen() {
    let (fs, clock, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    let mut seen = clock.now_ns() + 1000;
    store.write_unasked(0, 0, b"x", seen).unwrap();
    assert_eq!(fs.attr(&inode).ctime_ns, seen);
    let root = fs.root();
    let changes: [&dyn Fn(); 4] = [
        &|| fs.link(&inode, &root, b"second").unwrap(),
        &|| fs.unlink(&root, b"second").unwrap(),
        &|| assert!(fs.set_attr(&inode, &set(|set| set.mode = Some(0o600))).is_ok()),
        &|| assert!(fs.set_attr(&inode, &set(|set| set.mtime = Some(SetTime::Now))).is_ok()),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        change();
        let attr = fs.attr(&inode);
        assert!(
            attr.ctime_ns > seen && attr.ctime_ns < seen + 100,
            "{number}: {attr:?}, {seen}"
        );
        seen += 200;
        store.write_unasked(0, 0, b"x", seen).unwrap();
        assert_eq!(fs.attr(&inode).ctime_ns, seen);
    }
    assert!(seen > clock.now_ns());
    remove(&fs, "file", &inode);
    assert_empty(&fs);
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
fn forgets(fs: &TestFs, inode: &Inode) -> bool {
    let mut forgot = false;
    fs.note_writer(inode, true, || forgot = true);
    forgot
}

#[test]
fn attributes_last_while_writers_cannot_map() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    fs.open(&inode, Access::Write).unwrap();
    store.set_writers(0, true);
    fs.note_writer(&inode, false, || panic!("what it writes the kernel sees"));
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    assert!(forgets(&fs, &inode), "another open may map");
    fs.open(&inode, Access::Write).unwrap();
    fs.release(&inode, Access::Write);
    assert!(
        fs.lasting_attr(&inode).changes_unseen,
        "a writer is open: whose it is, is not known"
    );
    fs.release(&inode, Access::Write);
    store.set_writers(0, false);
    assert!(!fs.lasting_attr(&inode).changes_unseen);
}

#[test]
fn attributes_last_while_nobody_may_write() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.open(&inode, Access::Read).unwrap();
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    assert!(fs.attr(&inode).changes_unseen, "such an answer may come late");
    assert!(forgets(&fs, &inode), "the kernel may have been told that they last");
    assert!(!forgets(&fs, &inode), "and forgets them once");
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
    assert!(forgets(&fs, &inode));
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
    assert_eq!(fs.keep_promises(), 10_000 - 4096, "a step of 16 MiB found room");
    assert_eq!(fs.keep_promises(), 0, "it is not asked for again and again");
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
    store.set_leaving(true);
    fs.unpin(&full, 1);
    assert!(store.limit() > MEMBER_BLOCKS, "something runs on the file");
    store.set_leaving(false);
    fs.settle_ahead();
    assert_eq!((store.limit(), fs.statfs().free), (MEMBER_BLOCKS, MEMBER_BLOCKS - 1));
    remove(&fs, "other", &other);
    assert_empty(&fs);
}

#[test]
fn a_prepared_file_is_born_when_it_gets_its_name() {
    let (fs, clock, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let one = fs.prepare_file(7, |_| Ok(store.register(0, 7))).unwrap();
    let other = fs.prepare_file(7, |_| Ok(store.register(1, 7))).unwrap();
    clock.advance_ns(1_000);
    let now_ns = clock.now_ns();
    let inode = fs.create_with(&fs.root(), b"file", regular(0o644), Some(one)).unwrap();
    fs.pin(&inode).unwrap();
    let attr = fs.attr(&inode);
    assert_eq!((attr.atime_ns, attr.mtime_ns, attr.btime_ns), (now_ns, now_ns, now_ns));
    let known = inode.backing_id(7, |_| panic!("the kernel knows it already"));
    assert_eq!(known, Some(Ok(1)));
    store.write_unasked(0, 0, b"x", now_ns + 1).unwrap();
    let attr = fs.attr(&inode);
    assert_eq!((attr.atime_ns, attr.mtime_ns), (now_ns, now_ns + 1));
    // A name that is taken: the file is given up.
    let refused = fs.create_with(&fs.root(), b"file", regular(0o644), Some(other));
    assert_eq!(refused.map(|_| ()), Err(Error::Exists));
    assert_eq!(store.state(1), (true, 0));
    remove(&fs, "file", &inode);
    assert_eq!(store.state(0), (true, 0));
    assert_empty(&fs);
}

#[test]
fn room_ahead_that_others_took_is_theirs_until_they_free_it_and_no_more_is_given() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let goes = new_file(&fs, "goes");
    let (filler, other) = (new_file(&fs, "filler"), new_file(&fs, "other"));
    fill(&store, 0, 0, 1000);
    fill(&store, 1, 0, MEMBER_BLOCKS - 1000);
    fs.unlink(&fs.root(), b"goes").unwrap();
    assert_eq!(store.limit(), MEMBER_BLOCKS + 1000);
    fill(&store, 2, 0, 1000);
    // The file goes, and its room is taken once more before it is given back.
    store.set_leaving(true);
    fs.unpin(&goes, 1);
    let more = vec![1; (700 * BLOCK) as usize];
    store.write_unasked(2, 1000 * BLOCK, &more, 0).unwrap();
    store.set_leaving(false);
    fs.settle_ahead();
    assert_eq!(store.used_blocks(), MEMBER_BLOCKS + 700);
    assert_eq!(
        store.limit(),
        MEMBER_BLOCKS + 956,
        "what was taken, and 1 MiB that writers may have taken meanwhile"
    );
    remove(&fs, "other", &other);
    fs.settle_ahead();
    assert_eq!(store.limit(), MEMBER_BLOCKS);
    remove(&fs, "filler", &filler);
    assert_empty(&fs);
}

#[test]
fn removals_need_not_wait_where_there_is_room() {
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let (kept, filler) = (new_file(&fs, "kept"), new_file(&fs, "filler"));
    fill(&store, 0, 0, 10_000);
    fill(&store, 1, 0, 2 * 16_384 - 10_000);
    fs.unlink(&fs.root(), b"kept").unwrap();
    assert!(fs.pool().is_ahead_short());
    remove(&fs, "filler", &filler);
    assert!(!fs.pool().is_ahead_short(), "though a file without a name is kept");
    fs.unpin(&kept, 1);
    fs.settle_ahead();
    assert_empty(&fs);
}

#[test]
fn room_ahead_stays_for_a_file_that_loses_its_name_while_another_goes() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let _filler = new_file(&fs, "filler");
    fill(&store, 0, 0, MEMBER_BLOCKS - 100);
    let (asks, asked) = std::sync::mpsc::channel::<Arc<Inode>>();
    let (answers, answered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let forgetting = &fs;
        scope.spawn(move || {
            for inode in asked {
                forgetting.unpin(&inode, 1);
                answers.send(()).expect("the test waits for it");
            }
        });
        for round in 0..3000 {
            let (goes, comes) = (new_file(&fs, "goes"), new_file(&fs, "comes"));
            store.write_unasked(2 * round + 1, 0, &[1], 0).unwrap();
            store.write_unasked(2 * round + 2, 0, &[1], 0).unwrap();
            fs.unlink(&fs.root(), b"goes").unwrap();
            asks.send(goes).unwrap();
            fs.unlink(&fs.root(), b"comes").unwrap();
            answered.recv().unwrap();
            assert!(
                store.limit() > MEMBER_BLOCKS,
                "round {round}: no room ahead of the second file"
            );
            fs.unpin(&comes, 1);
            fs.settle_ahead();
            assert_eq!(store.limit(), MEMBER_BLOCKS, "round {round}");
        }
        drop(asks);
    });
    fs.check_invariants();
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
    let mut done = fs.truncate_step(&inode, 10, 0).unwrap();
    let blocks = fs.attr(&inode).blocks / 8;
    assert!(done.is_some() && 8192 < blocks && blocks < bytes / BLOCK, "{blocks}");
    while let Some(progress) = done {
        assert_eq!(fs.attr(&inode).size, bytes);
        let before = store.used_blocks();
        done = fs.truncate_step(&inode, 10, progress).unwrap();
        assert!(before - store.used_blocks() <= 8192, "a step is long");
    }
    assert_eq!((fs.attr(&inode).size, fs.attr(&inode).blocks), (10, 8));
}

/// All that a file has may lie at its very end, and its writers need not wait.
#[test]
fn truncate_ends_though_writers_go_on_and_frees_sparse_files_by_steps() {
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let inode = new_file(&fs, "file");
    let (far, bytes) = (1 << 62, 100 << 20);
    store.write_unasked(0, far, &vec![1; bytes as usize], 0).unwrap();
    let (mut done, mut steps) = (fs.truncate_step(&inode, 0, 0).unwrap(), 1);
    while let Some(progress) = done {
        // Ahead of each step, and behind.
        store.write_unasked(0, far + (steps << 30), b"x", 0).unwrap();
        store.write_unasked(0, steps * BLOCK, b"x", 0).unwrap();
        let before = store.used_blocks();
        done = fs.truncate_step(&inode, 0, progress).unwrap();
        assert!(before - store.used_blocks() <= 8192 + 2 * steps, "a step is long");
        steps += 1;
    }
    assert!((4..5000).contains(&steps), "{steps}");
    assert_eq!((fs.attr(&inode).size, store.used_blocks()), (0, 0));
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
    assert_eq!(fs.keep_promises(), 0, "there is none");
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    let promised = 1000;
    fs.fallocate(&caller.asking(), &inode, 0, 0, promised * BLOCK).unwrap();
    assert_eq!(fs.keep_promises(), 0);
    assert_eq!(store.used_blocks(), 0, "there is room");
    let taken = MEMBER_BLOCKS - promised - 500;
    store
        .write_unasked(1, 0, &vec![1; (taken * BLOCK) as usize], 0)
        .unwrap();
    assert_eq!(fs.keep_promises(), 0);
    assert_eq!(store.used_blocks(), taken + promised);
    // What is allocated, and is a hole until it is written, is not promised once more.
    fs.fallocate(&caller.asking(), &inode, 0, 0, promised * BLOCK).unwrap();
    assert_eq!(fs.pool().status().reserved, 0);
    assert_eq!(fs.attr(&inode).blocks, promised * BLOCK / 512);
    assert_eq!(
        store.write_unasked(1, taken * BLOCK, &vec![1; (600 * BLOCK) as usize], 0),
        Ok((500 * BLOCK) as usize)
    );
    assert_eq!(
        store.write_unasked(0, 0, &vec![2; (promised * BLOCK) as usize], 0),
        Ok((promised * BLOCK) as usize)
    );
    assert_eq!((fs.keep_promises(), fs.pool().status().reserved), (0, 0));
    fs.check_invariants();
}

#[test]
fn what_is_booked_of_a_file_stays_small() {
    let (fs, _, store) = kernel_filesystem(1, 8 * MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    // Every other block, far more of them than are booked.
    for block in 0..3000 {
        fs.fallocate(&asking, &inode, 0, 2 * block * BLOCK, BLOCK).unwrap();
    }
    assert_eq!(fs.attr(&inode).blocks, 3000 * BLOCK / 512);
    assert!(store.used_blocks() > 1500, "{}", store.used_blocks());
    // A hole within a block takes nothing back, however often.
    for _ in 0..64 {
        fs.fallocate(&asking, &inode, mode::PUNCH_HOLE | mode::KEEP_SIZE, 100, 50)
            .unwrap();
    }
    assert_eq!(fs.attr(&inode).blocks, 3000 * BLOCK / 512);
    fs.check_invariants();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

#[test]
fn large_files_are_punched_and_given_up_by_steps() {
    let (fs, _, store) = kernel_filesystem(1, 2 * MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    let blocks = MEMBER_BLOCKS;
    store
        .write_unasked(0, 0, &vec![1; (blocks * BLOCK) as usize], 0)
        .unwrap();
    let (start, bytes) = (5 * BLOCK, u64::MAX / 4);
    let (mut done, mut steps) = (Some(0), 0);
    while let Some(so_far) = done {
        let used = store.used_blocks();
        let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
        done = fs.fallocate_step(&asking, &inode, punch, start, bytes, so_far).unwrap();
        assert!(used - store.used_blocks() <= 2 * (32 << 20) / BLOCK, "a step is long");
        steps += 1;
    }
    assert!(steps > 2, "{steps}");
    assert_eq!((store.used_blocks(), fs.attr(&inode).size), (5, blocks * BLOCK));
    store
        .write_unasked(0, 0, &vec![1; (blocks * BLOCK) as usize], 0)
        .unwrap();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

#[test]
fn a_fallocate_that_fails_leaves_what_was_promised_before() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    fs.fallocate(&asking, &inode, 0, 0, 10 * BLOCK).unwrap();
    // Room is there when it is booked, and gone when it is taken.
    store.refuse_allocating(true);
    let taken = (MEMBER_BLOCKS - 10 - 2000) * BLOCK;
    store.write_unasked(1, 0, &vec![1; taken as usize], 0).unwrap();
    assert_eq!(fs.fallocate(&asking, &inode, 0, 0, 1000 * BLOCK), Err(Error::NoSpace));
    store.refuse_allocating(false);
    assert_eq!(fs.pool().status().reserved, 10);
    fs.check_invariants();
}

#[test]
fn policy_reaches_the_backing_file() {
    let (fs, _, store) = kernel_filesystem(2, MEMBER_BLOCKS);
    let policy =
        |inode: &Inode, text: &str| fs.set_xattr(inode, POLICY_XATTR, text.as_bytes(), XattrMode::Either, false);
    let plain = new_file(&fs, "plain");
    assert_eq!(store.placement(0), None);
    policy(&plain, "interleave").unwrap();
    assert_eq!(store.placement(0), Some((Placement::Interleave, None)));
    fs.remove_xattr(&plain, POLICY_XATTR).unwrap();
    assert_eq!(store.placement(0), Some((Placement::Local, None)));
    policy(&fs.root(), "node:1").unwrap();
    let _inheriting = new_file(&fs, "inheriting");
    assert_eq!(store.placement(1), Some((Placement::Node(NodeId(1)), None)));
}

/// Writes so many blocks at the start of a file, all on one node.
fn fill(store: &TestStore, file: usize, node: u16, blocks: u64) {
    store.put_on(file, node);
    let bytes = vec![1; usize::try_from(blocks * BLOCK).expect("a few MiB")];
    store.write_unasked(file, 0, &bytes, 0).expect("the pool has room");
}

#[test]
fn writers_turn_to_candidates_once_a_node_is_fat() {
    let (fs, _, store) = kernel_filesystem(3, MEMBER_BLOCKS);
    let open = |name: &str| {
        let inode = new_file(&fs, name);
        fs.open(&inode, Access::Write).unwrap();
        forgets(&fs, &inode);
        inode
    };
    let (greedy, open_before) = (open("greedy"), open("before"));
    let bound = open("bound");
    let policy = |inode: &Inode, text: &[u8]| fs.set_xattr(inode, POLICY_XATTR, text, XattrMode::Either, false);
    policy(&bound, b"node:0").unwrap();
    fill(&store, 0, 0, MEMBER_BLOCKS * 97 / 100);
    fs.steer_files(false);
    assert_eq!(store.placement(1), None, "there is room yet");
    fill(&store, 0, 0, MEMBER_BLOCKS * 99 / 100);
    fs.steer_files(false);
    let others = Some(vec![NodeId(1), NodeId(2)]);
    assert_eq!(store.placement(1), Some((Placement::Local, others.clone())));
    assert_eq!(
        store.placement(2),
        Some((Placement::Node(NodeId(1)), others.clone())),
        "the nearest to node 0"
    );
    assert!(fs.pool().status().members[0].fat);
    let open_later = open("later");
    assert_eq!(store.placement(3), Some((Placement::Local, others)));
    fs.set_attr(&greedy, &set(|set| set.size = Some(MEMBER_BLOCKS / 2 * BLOCK)))
        .unwrap();
    fs.steer_files(false);
    for (file, inode) in [(1, &open_before), (3, &open_later)] {
        assert_eq!(
            store.placement(file),
            Some((Placement::Local, None)),
            "{:?}",
            inode.ino()
        );
    }
    assert_eq!(store.placement(2), Some((Placement::Node(NodeId(0)), None)));
    let _never_steered = open("fresh");
    assert_eq!(store.placement(4), None);
    fs.check_invariants();
}

#[test]
fn file_that_grew_and_rests_is_put_in_huge_pages_step_by_step() {
    const MIB: u64 = 1 << 20;
    let (fs, clock, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let files = [
        new_file(&fs, "large"),
        new_file(&fs, "small"),
        new_file(&fs, "never written"),
    ];
    for inode in &files[..2] {
        fs.open(inode, Access::Write).unwrap();
        forgets(&fs, inode);
    }
    let now = fs.attr(&files[0]).ctime_ns;
    store.write_unasked(0, 0, &[1; 13 << 20], now).unwrap();
    store.write_unasked(1, 0, &[1; 1 << 20], now).unwrap();
    store.write_unasked(2, 0, &[1; 4 << 20], now).unwrap();
    assert!(!fs.collapse_rested(), "it was written just now");
    clock.advance_ns(2_000_000_000);
    assert!(fs.collapse_rested() && fs.collapse_rested() && !fs.collapse_rested());
    assert_eq!(store.collapsed(0), [0..8 * MIB, 8 * MIB..12 * MIB]);
    let later = now + 2_000_000_000;
    store.write_unasked(0, 13 * MIB, &[1; 2 << 20], later).unwrap();
    assert!(!fs.collapse_rested());
    clock.advance_ns(2_000_000_000);
    assert!(fs.collapse_rested() && !fs.collapse_rested());
    assert_eq!(store.collapsed(0).first(), Some(&(12 * MIB..14 * MIB)));
    for inode in &files[..2] {
        fs.release(inode, Access::Write);
    }
    assert!(!fs.collapse_rested());
    store.write_unasked(0, 0, &[1; 40 << 20], later).unwrap();
    assert!(!fs.collapse_rested(), "nobody has opened it since");
    forgets(&fs, &files[0]);
    assert!(fs.collapse_rested(), "from the start");
    assert_eq!((store.collapsed(1), store.collapsed(2)), (vec![], vec![]));
}

#[test]
fn nodes_without_a_member_take_no_pages() {
    let (fs, _) = filesystem(2, MEMBER_BLOCKS);
    let store = TestStore::on_nodes(3);
    assert!(fs.pool().lend_to(Arc::new(store.clone())));
    fs.steer_files(false);
    let inode = new_file(&fs, "file");
    forgets(&fs, &inode);
    assert_eq!(
        store.placement(0),
        Some((Placement::Local, Some(vec![NodeId(0), NodeId(1)])))
    );
}

#[test]
fn drain_moves_pages_to_the_nearest_node_that_has_room() {
    let (fs, _, store) = kernel_filesystem(3, MEMBER_BLOCKS);
    let (first, other) = (new_file(&fs, "first"), new_file(&fs, "other"));
    for inode in [&first, &other] {
        forgets(&fs, inode);
        store.set_writers(0, true);
    }
    fill(&store, 0, 0, 100);
    fill(&store, 1, 2, 50);
    store.set_full(&[NodeId(1)]);
    assert_eq!(fs.drain(MemberId(0), &mut |_, _| {}), Ok(100 * BLOCK));
    assert_eq!(fs.map(&first), [(NodeId(2), 100 * BLOCK)]);
    assert_eq!(
        store.placement(0),
        Some((Placement::Local, Some(vec![NodeId(1), NodeId(2)])))
    );
    store.set_full(&[NodeId(0), NodeId(1)]);
    assert_eq!(
        fs.drain(MemberId(2), &mut |_, _| {}),
        Err(PoolError::NoSpace(MemberId(2)))
    );
    assert!(!fs.pool().status().members[2].draining, "it serves on");
    fs.check_invariants();
}

#[test]
fn drain_ends_though_a_writer_puts_pages_back_for_ever() {
    let (fs, clock, store) = kernel_filesystem(2, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    forgets(&fs, &inode);
    store.set_writers(0, true);
    fill(&store, 0, 0, 100);
    store.set_putting_back(true);
    let mut rounds = 0;
    // Less and more of it, in turns.
    let drained = fs.drain(MemberId(0), &mut |_, _| {
        rounds += 1;
        assert!(rounds < 1000, "it goes on for ever");
        clock.advance_ns(100_000_000);
        let blocks = if rounds % 2 == 0 { 100 } else { 50 };
        fs.set_attr(&inode, &set(|set| set.size = Some(0))).unwrap();
        fill(&store, 0, 0, blocks);
    });
    assert_eq!(drained, Err(PoolError::Pinned(MemberId(0), 100 * BLOCK)));
    assert!(!fs.pool().status().members[0].draining, "it serves on");
    store.set_putting_back(false);
    let left = fs.attr(&inode).blocks * 512;
    assert_eq!(fs.drain(MemberId(0), &mut |_, _| {}), Ok(left));
    fs.check_invariants();
}

#[test]
fn bytes_by_node_follow_changes_and_stop_when_told() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    let told = || fs.backing_by_node(|| true);
    assert_eq!(told(), []);
    store.write_unasked(0, 0, &[1; 3 * BLOCK as usize], 0).unwrap();
    assert_eq!(told(), [], "nobody was noted as a writer");
    assert!(forgets(&fs, &inode));
    assert_eq!(told(), [(NodeId(0), 3 * BLOCK)]);
    store.write_unasked(0, 3 * BLOCK, &[1], 0).unwrap();
    assert_eq!(told(), [(NodeId(0), 3 * BLOCK)], "nobody has it open any more");
    assert!(forgets(&fs, &inode));
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
