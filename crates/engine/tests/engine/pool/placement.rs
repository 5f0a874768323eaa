//! Where blocks go: the asking node, the nearest candidate, a policy; and what is counted.

use crate::support::{
    BLOCK, Caller, RUN, TestFs, add_member, directory, empty_filesystem, filesystem, new_file, regular, sized,
};
use homenode_engine::fs::{Error, Inode, POLICY_XATTR, RESERVE_VALUE, RESERVE_XATTR, XattrMode, fallocate_mode};
use homenode_engine::pool::{Access, Ahead, MemberStatus, Spill};
use homenode_engine::{MemberId, NodeId};
use std::sync::Arc;

fn status_of(fs: &TestFs, member: u16) -> MemberStatus {
    let members = fs.pool().status().members;
    members
        .into_iter()
        .find(|status| status.id == MemberId(member))
        .expect("the member is in the pool")
}

fn append(fs: &TestFs, caller: &Caller, inode: &Inode, blocks: u64) {
    let data = vec![1; (blocks * BLOCK) as usize];
    let written = fs.append(&caller.asking(), inode, &data, false);
    assert_eq!(written.map(|(_, written)| written), Ok(data.len()));
}

fn set_policy(fs: &TestFs, inode: &Inode, policy: &str) -> Result<(), Error> {
    fs.set_xattr(inode, POLICY_XATTR, policy.as_bytes(), XattrMode::Either, false)
}

#[test]
fn bytes_lie_on_the_writers_node() {
    let (fs, _) = filesystem(4, 4 * RUN);
    let inode = new_file(&fs, "a");
    for node in 0..4 {
        append(&fs, &Caller::on_node(&fs, node), &inode, u64::from(node) + 1);
    }
    let wanted: Vec<_> = (0..4)
        .map(|node| (NodeId(node), (u64::from(node) + 1) * BLOCK))
        .collect();
    assert_eq!(fs.map(&inode), wanted);
    assert_eq!(fs.pool().status().spills, []);
}

/// fio's default: one thread lays out every file with fallocate, others write them.
#[test]
fn fallocate_does_not_choose_the_home() {
    let (fs, _) = filesystem(2, 4 * RUN);
    let inode = new_file(&fs, "a");
    let bytes = 2 * RUN * BLOCK;
    fs.fallocate(&Caller::on_node(&fs, 0).asking(), &inode, 0, 0, bytes)
        .expect("the pool has room");
    let data = vec![1; bytes as usize];
    let written = fs.write(&Caller::on_node(&fs, 1).asking(), &inode, 0, &data, false);
    assert_eq!(written, Ok(data.len()));
    assert_eq!(fs.map(&inode), [(NodeId(1), bytes)]);
    fs.check_invariants();
}

#[test]
fn policies_are_followed() {
    let (fs, _) = filesystem(4, 4 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let pinned = new_file(&fs, "pinned");
    set_policy(&fs, &pinned, "node:3").expect("the node has a member");
    append(&fs, &caller, &pinned, 20);
    assert_eq!(fs.map(&pinned), [(NodeId(3), 20 * BLOCK)]);
    assert_eq!(fs.pool().status().spills, [], "asked for, not spilt");

    let striped = new_file(&fs, "striped");
    set_policy(&fs, &striped, "interleave").expect("the call always succeeds");
    append(&fs, &caller, &striped, 8 * RUN);
    let wanted: Vec<_> = (0..4).map(|node| (NodeId(node), 2 * RUN * BLOCK)).collect();
    assert_eq!(fs.map(&striped), wanted);

    set_policy(&fs, &pinned, "local").expect("the call always succeeds");
    append(&fs, &caller, &pinned, 20);
    assert_eq!(fs.map(&pinned), [(NodeId(0), 20 * BLOCK), (NodeId(3), 20 * BLOCK)]);
    for wrong in ["node:4", "node:", "node:-1", "node:70000", "nearest", ""] {
        assert_eq!(set_policy(&fs, &pinned, wrong), Err(Error::Invalid), "{wrong:?}");
    }
}

#[test]
fn policies_are_inherited_by_files_and_directories() {
    let (fs, _) = filesystem(2, RUN);
    let root = fs.root();
    let above = fs.create(&root, b"above", directory(0o755)).expect("the name is new");
    set_policy(&fs, &above, "node:1").expect("the node has a member");
    let below = fs.create(&above, b"below", directory(0o755)).expect("the name is new");
    let file = fs.create(&below, b"file", regular(0o644)).expect("the name is new");
    assert_eq!(fs.xattr(&file, POLICY_XATTR), Ok(b"node:1".to_vec()));
    append(&fs, &Caller::on_node(&fs, 0), &file, 1);
    assert_eq!(fs.map(&file), [(NodeId(1), BLOCK)]);

    // What cannot have the attribute does not list it.
    let others = [
        fs.symlink(&below, b"link", b"target", 0, 0).expect("the name is new"),
        fs.create(&below, b"fifo", crate::support::of_mode(0o010_644))
            .expect("the name is new"),
    ];
    for other in others {
        assert_eq!(fs.xattr_names(&other), b"");
        assert_eq!(fs.xattr(&other, POLICY_XATTR), Err(Error::NoAttribute));
    }
    fs.remove_xattr(&below, POLICY_XATTR).expect("the attribute is set");
    let later = fs.create(&below, b"later", regular(0o644)).expect("the name is new");
    assert_eq!(fs.xattr(&later, POLICY_XATTR), Err(Error::NoAttribute));
}

/// The latencies of the test machine: from node 2 the next nodes are 3, then 0, then 1.
#[test]
fn a_full_member_spills_to_the_nearest_candidate() {
    const BLOCKS: u64 = 1000;
    let (fs, _) = filesystem(4, BLOCKS);
    let caller = Caller::on_node(&fs, 2);
    let inode = new_file(&fs, "a");
    let mut used = [0; 4];
    let mut homes = Vec::new();
    for _ in 0..4 * BLOCKS {
        append(&fs, &caller, &inode, 1);
        let now = [0, 1, 2, 3].map(|member| status_of(&fs, member).used);
        let home = (0..4)
            .find(|home| now[*home] > used[*home])
            .expect("a block was placed");
        used = now;
        if homes.last() != Some(&home) {
            let before = homes.last().map(|before| status_of(&fs, *before as u16));
            assert!(before.is_none_or(|before| before.fat), "left before it was fat");
            homes.push(home);
        }
    }
    assert_eq!(homes[..4], [2, 3, 0, 1], "the nearest first");
    assert_eq!(used, [BLOCKS; 4], "all members are used in the end");
    let spills = fs.pool().status().spills;
    assert!(spills.iter().all(|spill| spill.from == NodeId(2)));
    let mut spilt: Vec<_> = spills.iter().map(|spill| (spill.home.0, spill.bytes / BLOCK)).collect();
    spilt.sort_unstable();
    assert_eq!(spilt, [(0, BLOCKS), (1, BLOCKS), (3, BLOCKS)]);
    fs.check_invariants();
}

#[test]
fn a_member_is_a_candidate_again_only_when_enough_is_free() {
    const BLOCKS: u64 = 10 * RUN;
    let (fs, _) = filesystem(2, BLOCKS);
    // CPUs of node 0, each with grants of its own.
    let [a, b, c] = [0, 2, 4].map(|cpu| Caller::on_cpu(&fs, cpu));
    let inode = new_file(&fs, "a");
    append(&fs, &a, &inode, BLOCKS * 99 / 100);
    assert!(status_of(&fs, 0).fat, "more than 98 % are used");
    let free_down_to = |blocks: u64| {
        fs.set_attr(&inode, &sized(blocks * BLOCK))
            .expect("the inode is a file");
    };
    free_down_to(BLOCKS * 96 / 100);
    assert!(status_of(&fs, 0).fat, "96 % are used: still fat");
    let other = new_file(&fs, "b");
    append(&fs, &b, &other, 1);
    assert_eq!(fs.map(&other), [(NodeId(1), BLOCK)], "a fat member is passed over");
    free_down_to(BLOCKS * 90 / 100);
    assert!(!status_of(&fs, 0).fat);
    append(&fs, &c, &other, 1);
    assert_eq!(fs.map(&other), [(NodeId(0), BLOCK), (NodeId(1), BLOCK)]);
}

#[test]
fn a_starved_node_spills_until_it_has_memory_again() {
    let (fs, _) = filesystem(3, 3 * RUN);
    let memory = fs.pool().memory().below();
    let caller = Caller::on_node(&fs, 1);
    let inode = new_file(&fs, "a");
    append(&fs, &caller, &inode, 1);
    memory.set_starved(MemberId(1), true);
    // What is populated is used up first.
    append(&fs, &caller, &inode, RUN - 1);
    assert_eq!(fs.map(&inode), [(NodeId(1), RUN * BLOCK)]);
    append(&fs, &caller, &inode, 10);
    assert_eq!(fs.map(&inode), [(NodeId(1), RUN * BLOCK), (NodeId(2), 10 * BLOCK)]);
    assert!(status_of(&fs, 1).fat);
    let spill = Spill {
        from: NodeId(1),
        home: NodeId(2),
        bytes: 10 * BLOCK,
    };
    assert_eq!(fs.pool().status().spills, [spill]);
    assert_eq!(
        fs.pool().populate_ahead(MemberId(1), RUN),
        Ahead::Starved,
        "no use in asking again at once"
    );

    memory.set_starved(MemberId(1), false);
    fs.pool().populate_ahead(MemberId(1), RUN);
    assert!(!status_of(&fs, 1).fat);
    let other = new_file(&fs, "b");
    append(&fs, &Caller::on_cpu(&fs, 4), &other, 1);
    assert_eq!(fs.map(&other), [(NodeId(1), BLOCK)]);
    fs.check_invariants();
}

/// A node without memory for more still has what was populated ahead: its writers get that first.
#[test]
fn populated_memory_of_a_starved_node_is_used_before_spilling() {
    let (fs, _) = filesystem(3, 8 * RUN);
    fs.pool().memory().below().set_limit_blocks(MemberId(1), 2 * RUN);
    while fs.pool().populate_ahead(MemberId(1), 4 * RUN) == Ahead::More {}
    assert_eq!(fs.pool().populate_ahead(MemberId(1), 4 * RUN), Ahead::Starved);
    assert!(!status_of(&fs, 1).fat);
    let (caller, inode) = (Caller::on_node(&fs, 1), new_file(&fs, "a"));
    for at in 0..2 * RUN {
        append(&fs, &caller, &inode, 1);
        // As the populating thread does meanwhile.
        if at % 100 == 0 {
            assert_eq!(fs.pool().populate_ahead(MemberId(1), 4 * RUN), Ahead::Starved);
        }
    }
    assert_eq!(fs.map(&inode), [(NodeId(1), 2 * RUN * BLOCK)]);
    assert!(status_of(&fs, 1).fat);
    append(&fs, &caller, &inode, 1);
    assert_eq!(fs.map(&inode), [(NodeId(1), 2 * RUN * BLOCK), (NodeId(2), BLOCK)]);
    fs.check_invariants();
}

#[test]
fn a_pool_of_starved_nodes_is_full_until_memory_returns() {
    let (fs, _) = filesystem(2, RUN);
    let memory = fs.pool().memory().below();
    (0..2).for_each(|member| memory.set_starved(MemberId(member), true));
    let (caller, inode) = (Caller::on_node(&fs, 0), new_file(&fs, "a"));
    let one = [1; BLOCK as usize];
    assert_eq!(fs.write(&caller.asking(), &inode, 0, &one, false), Err(Error::NoSpace));
    fs.check_invariants();
    (0..2).for_each(|member| memory.set_starved(MemberId(member), false));
    append(&fs, &caller, &inode, 2 * RUN);
    fs.check_invariants();
}

#[test]
fn memory_is_populated_ahead_of_use_and_no_further() {
    let (fs, _) = filesystem(1, 5 * RUN + 7);
    let pool = fs.pool();
    assert_eq!(
        pool.memory().below().populated_blocks(),
        0,
        "not at once: that takes long"
    );
    assert_eq!(pool.populate_ahead(MemberId(0), 2 * RUN), Ahead::More);
    assert_eq!(pool.populate_ahead(MemberId(0), 2 * RUN), Ahead::Enough);
    assert_eq!(pool.populate_ahead(MemberId(0), 2 * RUN), Ahead::Enough);
    assert_eq!(status_of(&fs, 0).populated, 2 * RUN);
    let (caller, inode) = (Caller::on_node(&fs, 0), new_file(&fs, "a"));
    append(&fs, &caller, &inode, RUN);
    pool.populate_ahead(MemberId(0), 2 * RUN);
    assert_eq!(status_of(&fs, 0).populated, 3 * RUN);
    while pool.populate_ahead(MemberId(0), u64::MAX) == Ahead::More {}
    assert_eq!(status_of(&fs, 0).populated, 5 * RUN + 7);
    assert_eq!(pool.populate_ahead(MemberId(0), 1), Ahead::Whole);
    assert_eq!(pool.populate_ahead(MemberId(9), 1), Ahead::Whole, "no such member");
}

#[test]
fn a_first_write_zeroes_only_bytes_it_does_not_cover() {
    let (fs, _) = filesystem(1, 4 * RUN);
    let (caller, inode) = (Caller::on_node(&fs, 0), new_file(&fs, "a"));
    let zeroed = |offset: u64, bytes: usize| {
        let before = fs.pool().memory().below().zeroed_bytes();
        let written = fs.write(&caller.asking(), &inode, offset, &vec![1; bytes], false);
        assert_eq!(written, Ok(bytes));
        fs.pool().memory().below().zeroed_bytes() - before
    };
    assert_eq!(zeroed(0, 100), 3996);
    assert_eq!(zeroed(50, 4000), 0, "overwritten");
    assert_eq!(zeroed(BLOCK, BLOCK as usize), 0);
    assert_eq!(zeroed(3 * BLOCK - 10, 20), 2 * BLOCK - 20, "zeroes at both ends");
    assert_eq!(zeroed(RUN * BLOCK, (RUN * BLOCK) as usize), 0, "a whole run");
    assert_eq!(zeroed(5 * BLOCK + 1, 3 * BLOCK as usize), BLOCK);
}

#[test]
fn the_access_matrix_counts_bytes_by_cpu_node_and_home() {
    let (fs, _) = filesystem(2, RUN);
    let (local, remote) = (Caller::on_node(&fs, 0), Caller::on_node(&fs, 1));
    let inode = new_file(&fs, "a");
    append(&fs, &local, &inode, 3);
    let mut data = [0; 5000];
    fs.read(&remote.asking(), &inode, 100, &mut data).expect("a file inode");
    fs.write(&remote.asking(), &inode, 0, &data[..10], false)
        .expect("overwriting takes no block");
    fs.read(&local.asking(), &inode, 0, &mut data[..7]).expect("a file");
    let mut accesses = fs.pool().status().accesses;
    accesses.iter_mut().for_each(|access| {
        assert!(access.operations > 0);
        access.operations = 0;
    });
    let row = |from, read_bytes, written_bytes| Access {
        from: NodeId(from),
        home: NodeId(0),
        operations: 0,
        read_bytes,
        written_bytes,
    };
    assert_eq!(accesses, [row(0, 7, 3 * BLOCK), row(1, 5000, 10)]);
}

/// A node that has CPUs only, and one whose number is not the lowest.
#[test]
fn a_node_without_memory_uses_the_nearest() {
    let (fs, _) = empty_filesystem(3);
    add_member(&fs, NodeId(1), RUN);
    add_member(&fs, NodeId(0), RUN);
    let inode = new_file(&fs, "a");
    append(&fs, &Caller::on_node(&fs, 2), &inode, 1);
    assert_eq!(
        fs.map(&inode),
        [(NodeId(0), BLOCK)],
        "from node 2, node 0 is the next on the ring"
    );
    assert_eq!(set_policy(&fs, &Arc::clone(&inode), "node:2"), Err(Error::Invalid));
}

#[test]
fn a_node_that_gets_a_member_is_used_at_once() {
    let (fs, _) = empty_filesystem(2);
    add_member(&fs, NodeId(0), 4 * RUN);
    let caller = Caller::on_node(&fs, 1);
    let inode = new_file(&fs, "a");
    append(&fs, &caller, &inode, 1);
    add_member(&fs, NodeId(1), 4 * RUN);
    append(&fs, &caller, &inode, 1);
    assert_eq!(fs.map(&inode), [(NodeId(0), BLOCK), (NodeId(1), BLOCK)]);
    fs.check_invariants();
}

#[test]
fn a_file_written_in_order_lies_in_whole_runs() {
    let (fs, _) = filesystem(1, 80 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let other = new_file(&fs, "other");
    append(&fs, &caller, &other, 3);
    let inode = new_file(&fs, "a");
    for _ in 0..4 * RUN / 64 {
        append(&fs, &caller, &inode, 64);
    }
    // (In a pool this large a grant is a whole run.) Closing the gate frees the nodes of what became runs: the file's one
    // node above its four runs is left. The other file has none.
    let behind = 4 * RUN * BLOCK;
    fs.fallocate(
        &caller.asking(),
        &inode,
        fallocate_mode::KEEP_SIZE | fallocate_mode::PUNCH_HOLE,
        behind,
        BLOCK,
    )
    .expect("the range is empty");
    assert_eq!(fs.map_nodes_used(), 1);
    fs.check_invariants();
    let mut back = vec![0; (4 * RUN * BLOCK) as usize];
    assert_eq!(fs.read(&caller.asking(), &inode, 0, &mut back), Ok(back.len()));
    assert!(back.iter().all(|byte| *byte == 1));
}

/// Room for stores through mappings, which ask for it when it is too late to refuse them.
#[test]
fn extensions_reserve_where_the_directory_says_so() {
    let (fs, _) = filesystem(1, 4 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let root = fs.root();
    let set = |inode: &Inode, value: &[u8]| fs.set_xattr(inode, RESERVE_XATTR, value, XattrMode::Either, false);
    let plain = new_file(&fs, "plain");
    assert_eq!(set(&root, b"all"), Err(Error::Invalid));
    let unknown = fs.set_xattr(
        &root,
        b"user.homenode.reserved",
        RESERVE_VALUE,
        XattrMode::Either,
        false,
    );
    assert_eq!(unknown, Err(Error::Invalid));
    set(&root, RESERVE_VALUE).unwrap();
    let (file, below) = (
        new_file(&fs, "a"),
        fs.create(&root, b"below", directory(0o755)).unwrap(),
    );
    for inode in [&file, &below] {
        assert_eq!(fs.xattr(inode, RESERVE_XATTR), Ok(RESERVE_VALUE.to_vec()));
    }
    let extend = |inode: &Arc<Inode>, bytes: u64| {
        fs.reserve_extension(&caller.asking(), inode, bytes)?;
        fs.set_attr(inode, &sized(bytes)).map(|attr| (attr.size, attr.blocks))
    };
    let sectors = |blocks: u64| blocks * BLOCK / 512;
    assert_eq!(extend(&plain, 3 * RUN * BLOCK), Ok((3 * RUN * BLOCK, 0)));
    assert_eq!(extend(&file, RUN * BLOCK), Ok((RUN * BLOCK, sectors(RUN))));
    assert_eq!(extend(&file, 3 * RUN * BLOCK), Ok((3 * RUN * BLOCK, sectors(3 * RUN))));
    assert_eq!(extend(&file, 9 * RUN * BLOCK), Err(Error::NoSpace));
    assert_eq!(fs.attr(&file).size, 3 * RUN * BLOCK, "nothing has changed");
    // Others cannot take what is reserved.
    let other = vec![1; (2 * RUN * BLOCK) as usize];
    let written = fs.write(&caller.asking(), &plain, 0, &other, false).unwrap();
    assert!(written as u64 <= RUN * BLOCK, "{written}");
    let all = vec![2; (3 * RUN * BLOCK) as usize];
    assert_eq!(fs.write(&caller.asking(), &file, 0, &all, false), Ok(all.len()));
    assert_eq!(extend(&file, BLOCK), Ok((BLOCK, sectors(1))));
    fs.remove_xattr(&file, RESERVE_XATTR).unwrap();
    assert_eq!(extend(&file, RUN * BLOCK), Ok((RUN * BLOCK, sectors(1))));
    fs.check_invariants();
}
