//! Where pages come, and are moved.

use super::{MEMBER_BLOCKS, fill, forgets};
use crate::support::{BLOCK, TestStore, filesystem, kernel_filesystem, new_file, sized};
use homenode_engine::fs::{Access, Inode, POLICY_XATTR, Placement, Survey, XattrMode};
use homenode_engine::pool::PoolError;
use homenode_engine::{MemberId, NodeId};
use std::cell::Cell;
use std::sync::Arc;

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

#[test]
fn writers_use_candidates_once_a_node_is_fat() {
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
    assert_eq!(store.placement(1), None, "node 0 still has room");
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
    fs.set_attr(&greedy, &sized(MEMBER_BLOCKS / 2 * BLOCK)).unwrap();
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
fn a_drain_moves_pages_to_the_nearest_node_with_room() {
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
    assert!(!fs.pool().status().members[2].draining, "the member is not in service");
    fs.check_invariants();
}

#[test]
fn a_drain_ends_although_a_writer_keeps_adding_pages() {
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
        assert!(rounds < 1000, "the drain does not end");
        clock.advance_ns(100_000_000);
        let blocks = if rounds % 2 == 0 { 100 } else { 50 };
        fs.set_attr(&inode, &sized(0)).unwrap();
        fill(&store, 0, 0, blocks);
    });
    assert_eq!(drained, Err(PoolError::Pinned(MemberId(0), 100 * BLOCK)));
    assert!(!fs.pool().status().members[0].draining, "the member is not in service");
    store.set_putting_back(false);
    let left = fs.attr(&inode).blocks * 512;
    assert_eq!(fs.drain(MemberId(0), &mut |_, _| {}), Ok(left));
    fs.check_invariants();
}

/// A read of a hole through a mapping takes a block, and no writer is noted.
#[test]
fn blocks_that_readers_take_are_drained() {
    let (fs, _, store) = kernel_filesystem(2, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.set_attr(&inode, &sized(100 * BLOCK)).unwrap();
    assert_eq!(fs.backing_by_node(), []);
    fill(&store, 0, 0, 100);
    assert_eq!(fs.drain(MemberId(0), &mut |_, _| {}), Ok(100 * BLOCK));
    assert_eq!(fs.backing_by_node(), [(NodeId(1), 100 * BLOCK)]);
}

#[test]
fn attributes_of_an_opened_file_with_holes_do_not_last() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.set_attr(&inode, &sized(BLOCK)).unwrap();
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    fs.open(&inode, Access::Read).unwrap();
    assert!(fs.lasting_attr(&inode).changes_unseen);
    fs.release(&inode, Access::Read);
    assert!(fs.lasting_attr(&inode).changes_unseen, "a mapping may outlive its open");
    fill(&store, 0, 0, 1);
    assert!(!fs.lasting_attr(&inode).changes_unseen, "it has no hole");
}

#[test]
fn bytes_by_node_follow_writers() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    let told = || fs.backing_by_node();
    assert_eq!(told(), []);
    store.write_unasked(0, 0, &[1; 3 * BLOCK as usize], 0).unwrap();
    assert_eq!(told(), [], "no writer was noted");
    assert!(forgets(&fs, &inode));
    assert_eq!(told(), [(NodeId(0), 3 * BLOCK)]);
    store.write_unasked(0, 3 * BLOCK, &[1], 0).unwrap();
    assert_eq!(told(), [(NodeId(0), 3 * BLOCK)], "the file is closed");
    assert!(forgets(&fs, &inode));
    store.set_writers(0, true);
    assert_eq!(told(), [(NodeId(0), 4 * BLOCK)]);
    store.write_unasked(0, 4 * BLOCK, &[1], 0).unwrap();
    assert_eq!(told(), [(NodeId(0), 5 * BLOCK)], "a writer may come at any time");
    store.set_writers(0, false);
    assert_eq!(told(), [(NodeId(0), 5 * BLOCK)]);
    fs.set_attr(&inode, &sized(BLOCK)).unwrap();
    assert_eq!(told(), [(NodeId(0), BLOCK)]);
}

/// A look that stops in the midst of a file keeps nothing of what a writer does then.
#[test]
fn a_file_that_grows_between_two_parts_of_a_survey_is_looked_at_anew() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    assert!(forgets(&fs, &inode));
    store.set_writers(0, true);
    store.write_unasked(0, 0, &[1; 4 * BLOCK as usize], 0).unwrap();
    let (mut survey, asked) = (Survey::default(), Cell::new(0));
    fs.survey(&mut survey, || asked.replace(asked.get() + 1) < 3);
    assert_eq!(survey.by_node(), [(NodeId(0), 2 * BLOCK)]);
    store.write_unasked(0, 4 * BLOCK, &[1; 4 * BLOCK as usize], 0).unwrap();
    store.set_writers(0, false);
    fs.survey(&mut survey, || true);
    assert_eq!(fs.backing_by_node(), [(NodeId(0), 8 * BLOCK)]);
}

/// Its files are open for writing, and a call looks at a part of one.
#[test]
fn a_survey_goes_on_where_it_stopped() {
    const FILES: u64 = 70;
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    for file in 0..FILES as usize {
        let inode = new_file(&fs, &format!("file{file}"));
        assert!(forgets(&fs, &inode));
        store.set_writers(file, true);
        store.write_unasked(file, 0, &[1; 3 * BLOCK as usize], 0).unwrap();
    }
    let (mut survey, mut told) = (Survey::default(), Vec::new());
    for call in 0_u64.. {
        let asked = Cell::new(0);
        fs.survey(&mut survey, || asked.replace(asked.get() + 1) < 3);
        // Nothing is looked at after a no.
        assert!(asked.get() <= 4);
        told = survey.by_node();
        let bytes = told.first().map_or(0, |(_, bytes)| *bytes);
        assert!(bytes <= (call + 1) * 3 * 3 * BLOCK, "{bytes} bytes by call {call}");
        if bytes == FILES * 3 * BLOCK {
            break;
        }
        assert!(call < 3 * FILES, "it does not end");
    }
    // What it has found is told until the next one has come to its end.
    fs.survey(&mut survey, || false);
    assert_eq!(survey.by_node(), told);
    store.write_unasked(0, 3 * BLOCK, &[1], 0).unwrap();
    fs.survey(&mut survey, || true);
    assert_eq!(survey.by_node(), [(NodeId(0), (FILES * 3 + 1) * BLOCK)]);
}
