//! Members are added, drained and removed while files are in use.

use crate::support::{BLOCK, Caller, RUN, TestFs, add_member, assert_empty, filesystem, new_file, pattern};
use crate::support::{remove_member, seeded, threads};
use fastrand::Rng;
use homenode_engine::fs::{Error, Inode, fallocate_mode as mode};
use homenode_engine::pool::{MemberStatus, PoolError};
use homenode_engine::{MemberId, NodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn member(fs: &TestFs, id: MemberId) -> MemberStatus {
    let members = fs.pool().status().members;
    members.into_iter().find(|member| member.id == id).expect("in the pool")
}

fn drain(fs: &TestFs, id: MemberId) -> Result<u64, PoolError> {
    fs.drain(id, &mut |moved, all| assert!(moved <= all))
}

fn write_pattern(fs: &TestFs, caller: &Caller, inode: &Inode, blocks: u64) -> Vec<u8> {
    let data = pattern::bytes(inode.ino().0, (blocks * BLOCK) as usize);
    assert_eq!(fs.write(&caller.asking(), inode, 0, &data, false), Ok(data.len()));
    data
}

fn assert_reads(fs: &TestFs, caller: &Caller, inode: &Inode, wanted: &[u8]) {
    let mut data = vec![0; wanted.len()];
    assert_eq!(fs.read(&caller.asking(), inode, 0, &mut data), Ok(wanted.len()));
    assert!(data == wanted, "other bytes than were written");
}

#[test]
fn a_drained_member_is_empty_and_can_be_removed() {
    let (fs, _) = filesystem(2, 2 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "a");
    // A whole run, and blocks.
    let data = write_pattern(&fs, &caller, &inode, RUN + 10);
    assert_eq!(fs.map(&inode), [(NodeId(0), (RUN + 10) * BLOCK)]);
    // With what is granted to CPUs.
    assert!(matches!(
        fs.pool().remove(MemberId(0)),
        Err(PoolError::NotEmpty(MemberId(0), RUN..))
    ));

    assert_eq!(drain(&fs, MemberId(0)), Ok((RUN + 10) * BLOCK));
    assert_eq!(fs.map(&inode), [(NodeId(1), (RUN + 10) * BLOCK)]);
    assert!(member(&fs, MemberId(0)).draining);
    assert_eq!(fs.statfs().blocks, 2 * RUN, "a draining member counts");
    fs.check_invariants();
    remove_member(&fs, MemberId(0));
    assert_reads(&fs, &caller, &inode, &data);
    assert_eq!(
        fs.pool().remove(MemberId(0)),
        Err(PoolError::UnknownMember(MemberId(0)))
    );
    assert_eq!(drain(&fs, MemberId(0)), Err(PoolError::UnknownMember(MemberId(0))));

    // A new one takes over, under a new number.
    assert_eq!(add_member(&fs, NodeId(0), 100), MemberId(2));
    assert_eq!(fs.statfs().blocks, 2 * RUN + 100);
    let other = new_file(&fs, "b");
    write_pattern(&fs, &caller, &other, 10);
    assert_eq!(fs.map(&other), [(NodeId(0), 10 * BLOCK)]);
    fs.check_invariants();
}

#[test]
fn whole_runs_stay_whole_on_a_member_that_has_few_of_them() {
    let (fs, _) = filesystem(2, 10 * RUN);
    let [here, there] = [0, 1].map(|node| Caller::on_node(&fs, node));
    let moving = new_file(&fs, "moving");
    let data = write_pattern(&fs, &here, &moving, RUN);
    let full = new_file(&fs, "full");
    write_pattern(&fs, &there, &full, 8 * RUN);
    for block in (1..64).step_by(2) {
        let punched = fs.fallocate(
            &there.asking(),
            &full,
            mode::PUNCH_HOLE | mode::KEEP_SIZE,
            block * BLOCK,
            BLOCK,
        );
        assert_eq!(punched, Ok(()));
    }
    let nodes = fs.map_nodes_used();
    assert_eq!(drain(&fs, MemberId(0)), Ok(RUN * BLOCK));
    assert_eq!(fs.map(&moving), [(NodeId(1), RUN * BLOCK)]);
    assert_eq!(fs.map_nodes_used(), nodes, "the run is one");
    assert_reads(&fs, &there, &moving, &data);
    fs.check_invariants();
}

#[test]
fn an_undrained_member_cannot_be_removed() {
    let (fs, _) = filesystem(2, 100);
    assert!(matches!(
        fs.pool().remove(MemberId(1)),
        Err(PoolError::NotEmpty(MemberId(1), 0))
    ));
    assert_eq!(fs.pool().status().members.len(), 2);
}

#[test]
fn the_last_member_cannot_be_drained() {
    let (fs, _) = filesystem(2, 100);
    assert_eq!(drain(&fs, MemberId(0)), Ok(0));
    assert_eq!(drain(&fs, MemberId(1)), Err(PoolError::Last(MemberId(1))));
    assert!(!member(&fs, MemberId(1)).draining);
    remove_member(&fs, MemberId(0));
    assert_eq!(drain(&fs, MemberId(1)), Err(PoolError::Last(MemberId(1))));
    fs.check_invariants();
}

#[test]
fn a_drain_without_room_fails_and_the_member_stays_in_service() {
    let (fs, _) = filesystem(2, 1000);
    let caller = Caller::on_node(&fs, 0);
    let (a, b) = (new_file(&fs, "a"), new_file(&fs, "b"));
    let data = write_pattern(&fs, &caller, &a, 900);
    let more = write_pattern(&fs, &Caller::on_node(&fs, 1), &b, 101);
    assert_eq!(drain(&fs, MemberId(0)), Err(PoolError::NoSpace(MemberId(0))));
    assert!(!member(&fs, MemberId(0)).draining);
    fs.check_invariants();
    assert_reads(&fs, &caller, &a, &data);
    assert_reads(&fs, &caller, &b, &more);
    // It takes blocks again: all of them.
    let rest = vec![1; 999 * BLOCK as usize];
    assert_eq!(
        fs.append(&caller.asking(), &a, &rest, false)
            .map(|(_, written)| written),
        Ok(rest.len())
    );
    assert_eq!(fs.statfs().free, 0);

    // Room for what is reserved must be kept too.
    let (fs, _) = filesystem(2, 1000);
    let caller = Caller::on_node(&fs, 0);
    let a = new_file(&fs, "a");
    fs.fallocate(&caller.asking(), &a, 0, 0, 1001 * BLOCK)
        .expect("the pool has room");
    assert_eq!(drain(&fs, MemberId(0)), Err(PoolError::NoSpace(MemberId(0))));
    let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
    fs.fallocate(&caller.asking(), &a, punch, 0, BLOCK)
        .expect("punching takes no block");
    assert_eq!(drain(&fs, MemberId(0)), Ok(0));
    fs.check_invariants();
    let data = vec![1; 1000 * BLOCK as usize];
    assert_eq!(fs.write(&caller.asking(), &a, BLOCK, &data, false), Ok(data.len()));
    fs.check_invariants();
}

#[test]
fn no_write_fails_while_a_drain_runs_out_of_room() {
    let (fs, _) = filesystem(2, 1000);
    let fs = Arc::new(fs);
    let inode = new_file(&fs, "a");
    write_pattern(&fs, &Caller::on_node(&fs, 0), &inode, 990);
    let over = Arc::new(AtomicBool::new(false));
    let writer = {
        let (fs, over) = (Arc::clone(&fs), Arc::clone(&over));
        Box::new(move || {
            let caller = Caller::on_node(&fs, 1);
            let other = new_file(&fs, "b");
            for _ in 0..500 {
                let data = vec![1; 600 * BLOCK as usize];
                assert_eq!(fs.write(&caller.asking(), &other, 0, &data, false), Ok(data.len()));
                let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
                fs.fallocate(&caller.asking(), &other, punch, 0, 600 * BLOCK)
                    .expect("punching takes no block");
            }
            over.store(true, Ordering::Relaxed);
        })
    };
    let drainer = {
        let fs = Arc::clone(&fs);
        Box::new(move || {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(drain(&fs, MemberId(1)), Err(PoolError::NoSpace(MemberId(1))));
            }
        })
    };
    // The other one's 990 blocks leave room for 10.
    write_pattern(&fs, &Caller::on_node(&fs, 1), &new_file(&fs, "c"), 11);
    threads::run_all::<()>(vec![writer, drainer]);
    fs.check_invariants();
}

/// The drain finds the file in the table; the file is removed before, while or after its blocks are moved.
#[test]
fn files_are_removed_while_their_member_is_drained() {
    let seed = seeded::seed();
    let (fs, _) = filesystem(2, 3 * RUN);
    let fs = Arc::new(fs);
    for turn in 0..150 {
        let inode = new_file(&fs, "a");
        write_pattern(&fs, &Caller::on_node(&fs, 0), &inode, RUN - 1);
        let home = member_on(&fs, NodeId(0));
        let drainer = {
            let fs = Arc::clone(&fs);
            Box::new(move || {
                drain(&fs, home).expect("the pool has room");
                remove_member(&fs, home);
                add_member(&fs, NodeId(0), 3 * RUN);
            })
        };
        let remover = {
            let (fs, mut random) = (Arc::clone(&fs), Rng::with_seed(seed ^ turn));
            Box::new(move || {
                std::thread::sleep(Duration::from_micros(random.u64(..800)));
                fs.unlink(&fs.root(), b"a").expect("the name exists");
                fs.unpin(&inode, 1);
            })
        };
        threads::run_all::<()>(vec![drainer, remover]);
        assert_empty(&fs);
    }
}

fn member_on(fs: &TestFs, node: NodeId) -> MemberId {
    let members = fs.pool().status().members;
    members
        .iter()
        .find(|member| member.home == node)
        .expect("each node has a member")
        .id
}

#[test]
fn a_file_moves_to_a_node_and_back() {
    let (fs, _) = filesystem(3, 2 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "a");
    let data = write_pattern(&fs, &caller, &inode, RUN + 50);
    let bytes = (RUN + 50) * BLOCK;
    let mut heard = 0;
    let moved = fs.move_to(&inode, NodeId(2), &mut |done, all| {
        assert!(done <= all && all == bytes);
        heard = done;
    });
    assert_eq!((moved, heard), (Ok(bytes), bytes));
    assert_eq!(fs.map(&inode), [(NodeId(2), bytes)]);
    assert_reads(&fs, &caller, &inode, &data);
    assert_eq!(
        fs.move_to(&inode, NodeId(2), &mut |_, _| {}),
        Ok(0),
        "nothing is left to move"
    );
    assert_eq!(fs.move_to(&inode, NodeId(9), &mut |_, _| {}), Err(Error::Invalid));
    assert_eq!(
        fs.move_to(&fs.root(), NodeId(1), &mut |_, _| {}),
        Err(Error::IsDirectory)
    );

    let full = new_file(&fs, "full");
    write_pattern(&fs, &Caller::on_node(&fs, 1), &full, 2 * RUN - 20);
    assert_eq!(fs.move_to(&inode, NodeId(1), &mut |_, _| {}), Err(Error::NoSpace));
    assert_reads(&fs, &caller, &inode, &data);
    fs.check_invariants();
}
