//! Files of the kernel behind inodes: room shared with volumes, attributes that change unasked, and what goes with the inode.

mod ahead;
mod homes;
mod promises;
mod steps;

use crate::support::{
    BLOCK, Caller, RUN, TestFs, TestStore, add_member, assert_empty, kernel_filesystem, new_file, regular,
    remove_member, sized,
};
use homenode_engine::fs::{Access, Error, Inode, Placement, SetAttr, SetTime, VolumeError};
use homenode_engine::pool::PoolError;
use homenode_engine::{Clock, NodeId};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MEMBER_BLOCKS: u64 = 64 * RUN;

fn set(attr: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut set = SetAttr::default();
    attr(&mut set);
    set
}

/// Takes all names and pins of a file away.
fn remove(fs: &TestFs, name: &str, inode: &Arc<Inode>) {
    fs.unlink(&fs.root(), name.as_bytes()).expect("the name exists");
    fs.unpin(inode, 1);
}

/// Writes so many blocks at the start of a file, all on one node.
fn fill(store: &TestStore, file: usize, node: u16, blocks: u64) {
    store.put_on(file, node);
    let bytes = vec![1; usize::try_from(blocks * BLOCK).expect("a few MiB")];
    store.write_unasked(file, 0, &bytes, 0).expect("the pool has room");
}

#[test]
fn a_file_takes_about_one_of_the_free_inodes() {
    let (fs, ..) = kernel_filesystem(1, MEMBER_BLOCKS);
    fs.set_metadata_limit(1 << 20);
    let before = fs.statfs().files_free;
    (0..100).for_each(|nth| drop(new_file(&fs, &nth.to_string())));
    let taken = before - fs.statfs().files_free;
    assert!((80..120).contains(&taken), "{taken} of {before}");
}

/// The kernel's stamps may be ahead of the clock that the filesystem has, by a tick.
#[test]
fn changes_are_stamped_later_than_seen_kernel_stamps() {
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
fn attributes_follow_the_backing_file_at_once() {
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
fn attributes_stay_cached_while_writers_cannot_map() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    fs.open(&inode, Access::Write).unwrap();
    store.set_writers(0, true);
    fs.note_writer(&inode, false, || panic!("a writer without mappings was asked for"));
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
fn attributes_stay_cached_without_writers() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.open(&inode, Access::Read).unwrap();
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    assert!(fs.attr(&inode).changes_unseen, "a late answer was cached");
    assert!(forgets(&fs, &inode), "the kernel may have been told that they last");
    assert!(!forgets(&fs, &inode), "attributes are forgotten once");
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
    assert!(fs.lasting_attr(&inode).changes_unseen, "an open file counts as written");
}

#[test]
fn a_file_is_registered_once_a_connection_until_its_inode_goes() {
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
    assert_eq!(store.state(0), (false, 1), "the file is open");
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
fn a_file_whose_name_is_taken_leaves_nothing_behind() {
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
    fs.discard_volume(&asking, &volume, 0, all * BLOCK).unwrap();
    fs.lend_discarded();
    assert_eq!(store.limit(), all);
    fs.remove_volume(&volume).unwrap();
    assert_eq!(store.write_unasked(0, most * BLOCK, b"x", 0), Ok(1));
    fs.check_invariants();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
    assert_eq!(store.limit(), all);
}

/// That takes seconds where its pages are small.
#[test]
fn nobody_waits_for_memory_that_is_given_back() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let volume = fs.create_volume("v", MEMBER_BLOCKS * BLOCK, Placement::Local).unwrap();
    fs.write_volume(&caller.asking(), &volume, 0, &[1; BLOCK as usize])
        .unwrap();
    fs.discard_volume(&caller.asking(), &volume, 0, MEMBER_BLOCKS * BLOCK)
        .unwrap();
    let (has_begun, go_on) = fs.pool().memory().below().hold_depopulating();
    std::thread::scope(|scope| {
        scope.spawn(|| fs.lend_discarded());
        has_begun.recv().unwrap();
        let told = scope.spawn(|| fs.statfs().free);
        let begin = Instant::now();
        while !told.is_finished() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_told = told.is_finished();
        go_on.send(()).unwrap();
        assert!(is_told, "statfs waits");
        assert_eq!(told.join().unwrap(), MEMBER_BLOCKS);
    });
    assert_eq!(store.limit(), MEMBER_BLOCKS);
    fs.check_invariants();
}

#[test]
fn a_drain_moves_a_volume_and_takes_its_space_once() {
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
fn members_change_the_total() {
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
    fs.set_attr(&inode, &sized(MEMBER_BLOCKS * BLOCK)).unwrap();
    assert_eq!(fs.drain(second, &mut |_, _| {}), Ok(0));
    remove_member(&fs, second);
    assert_eq!((store.limit(), fs.statfs().free), (MEMBER_BLOCKS, 0));
    fs.check_invariants();
}

#[test]
fn a_prepared_file_gets_its_birth_time_with_its_name() {
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
fn kernel_memory_of_a_file_counts_as_its_owners_metadata() {
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
