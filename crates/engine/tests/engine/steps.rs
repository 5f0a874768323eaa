//! Long operations come in steps, and the file can be used between two of them.

use crate::support::{BLOCK, Bytes, Caller, DISKS, RUN, TestFs, filesystem_on, new_file};
use homenode_engine::NodeId;
use homenode_engine::fs::{Error, Inode, Placement, Whence, fallocate_mode as mode};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Blocks of the file: several steps of every kind.
const BLOCKS: u64 = 40 * RUN;
/// Most blocks that one step frees.
const FREED_MAX: u64 = 8192 + RUN;
/// Most bytes that one step zeroes.
const ZEROED_MAX: u64 = 2 * RUN * BLOCK;

fn full_file(fs: &TestFs, caller: &Caller) -> Arc<Inode> {
    let inode = new_file(fs, "file");
    let run = vec![7; (RUN * BLOCK) as usize];
    for at in (0..BLOCKS).step_by(RUN as usize) {
        let written = fs.write(&caller.asking(), &inode, at * BLOCK, &run, false);
        assert_eq!(written, Ok(run.len()));
    }
    inode
}

/// Reads a byte and overwrites another, which nothing that is under way may hold up.
fn use_file(fs: &TestFs, caller: &Caller, inode: &Inode) {
    let mut byte = [0];
    assert_eq!(fs.read(&caller.asking(), inode, 0, &mut byte), Ok(1));
    assert_eq!(fs.write(&caller.asking(), inode, 1, &[3], false), Ok(1));
}

#[test]
fn a_range_is_zeroed_and_punched_in_bounded_steps() {
    [Bytes::Memory, DISKS].into_iter().for_each(zero_and_punch);
}

fn zero_and_punch(bytes: Bytes) {
    for (mode, keeps_blocks) in [(mode::ZERO_RANGE, true), (mode::PUNCH_HOLE | mode::KEEP_SIZE, false)] {
        let (fs, _) = filesystem_on(bytes, 1, BLOCKS + RUN);
        let caller = Caller::on_node(&fs, 0);
        let inode = full_file(&fs, &caller);
        let (start, bytes) = (BLOCK + 5, (BLOCKS - 2) * BLOCK);
        let (mut done, mut steps) = (0, 0);
        loop {
            let (used, zeroed) = (fs.pool().status().used, fs.pool().memory().below().zeroed_bytes());
            let next = fs.fallocate_step(&caller.asking(), &inode, mode, start, bytes, done);
            assert!(used - fs.pool().status().used <= FREED_MAX);
            assert!(fs.pool().memory().below().zeroed_bytes() - zeroed <= ZEROED_MAX);
            use_file(&fs, &caller, &inode);
            steps += 1;
            match next.expect("the pool has room") {
                Some(so_far) => assert!(so_far > done),
                None => break,
            }
            done = next.expect("looked at").expect("looked at");
        }
        assert!(steps >= 3, "{steps} steps");
        let mut all = vec![1; (BLOCKS * BLOCK) as usize];
        assert_eq!(fs.read(&caller.asking(), &inode, 0, &mut all), Ok(all.len()));
        let range = start as usize..(start + bytes) as usize;
        assert!(all[range.clone()].iter().all(|byte| *byte == 0));
        assert!(all[range.end..].iter().all(|byte| *byte == 7), "what lies behind stays");
        assert_eq!(&all[..4], &[7, 3, 7, 7], "bytes before the range changed");
        assert_eq!(fs.pool().status().used == BLOCKS, keeps_blocks);
        fs.check_invariants();
    }
}

#[test]
fn a_range_is_reserved_in_bounded_steps() {
    const RUNS: u64 = 1000;
    for (mode, size) in [(0, RUNS * RUN * BLOCK), (mode::KEEP_SIZE, (RUNS - 1) * RUN * BLOCK + 1)] {
        let (fs, _) = filesystem_on(Bytes::Memory, 1, RUNS * RUN + RUN);
        let caller = Caller::on_node(&fs, 0);
        let inode = new_file(&fs, "file");
        // A node of the map each.
        for run in 0..RUNS {
            let written = fs.write(&caller.asking(), &inode, run * RUN * BLOCK, &[7], false);
            assert_eq!(written, Ok(1));
        }
        let (mut done, mut steps) = (0, 1);
        while let Some(so_far) = fs
            .fallocate_step(&caller.asking(), &inode, mode, 0, RUNS * RUN * BLOCK, done)
            .expect("the pool has room")
        {
            assert!(so_far > done);
            use_file(&fs, &caller, &inode);
            (done, steps) = (so_far, steps + 1);
        }
        assert!(steps >= 5, "{steps} steps");
        let status = fs.pool().status();
        assert_eq!((status.used, status.reserved), (RUNS, RUNS * (RUN - 1)));
        assert_eq!(fs.attr(&inode).size, size);
        fs.check_invariants();
    }
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let (fs, _) = filesystem_on(Bytes::Memory, 1, 8 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "file");
    assert_eq!(fs.write(&caller.asking(), &inode, 0, &[7], false), Ok(1));
    let granted = || fs.pool().status().members[0].used;
    let before = granted();
    for mode in [0, mode::KEEP_SIZE, mode::ZERO_RANGE] {
        let reserved = fs.fallocate(&caller.asking(), &inode, mode, 0, 8 * RUN * BLOCK + BLOCK);
        assert_eq!(reserved, Err(Error::NoSpace));
    }
    assert_eq!((granted(), fs.attr(&inode).size), (before, 1));
    // Another block of the grant lies behind the first.
    assert_eq!(fs.fallocate(&caller.asking(), &inode, 0, 0, 8 * RUN * BLOCK), Ok(()));
    fs.check_invariants();
}

/// Blocks of the file behind the range hide at first that its holes do not fit.
#[test]
fn a_range_that_does_not_fit_keeps_its_bytes() {
    let (fs, _) = filesystem_on(Bytes::Memory, 1, 4 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "file");
    let run = vec![7; (RUN * BLOCK) as usize];
    for at in [0, 8, 9] {
        let written = fs.write(&caller.asking(), &inode, at * RUN * BLOCK, &run, false);
        assert_eq!(written, Ok(run.len()));
    }
    let zeroed = fs.fallocate(&caller.asking(), &inode, mode::ZERO_RANGE, 0, 3 * RUN * BLOCK);
    assert_eq!(zeroed, Err(Error::NoSpace));
    let mut bytes = [0; 100];
    assert_eq!(fs.read(&caller.asking(), &inode, 0, &mut bytes), Ok(100));
    assert_eq!(bytes, [7; 100]);
    fs.check_invariants();
}

#[test]
fn a_file_shrinks_beside_one_who_makes_it_longer() {
    let (fs, _) = filesystem_on(Bytes::Memory, 1, 2 * BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let inode = full_file(&fs, &caller);
    // More than a step takes away.
    let more = vec![8; (20 * RUN * BLOCK) as usize];
    let (mut done, mut steps) = (0, 0);
    while let Some(next) = fs.truncate_step(&inode, 5, done).expect("the size can be set") {
        done = next;
        steps += 1;
        assert!(steps < 10, "it goes on as long as the file grows");
        fs.append(&caller.asking(), &inode, &more, false)
            .expect("the pool has room");
    }
    assert_eq!(fs.attr(&inode).size, 5);
    fs.check_invariants();
}

#[test]
fn a_file_shrinks_in_bounded_steps() {
    [Bytes::Memory, DISKS].into_iter().for_each(shrink);
}

fn shrink(bytes: Bytes) {
    let (fs, _) = filesystem_on(bytes, 1, BLOCKS + RUN);
    let caller = Caller::on_node(&fs, 0);
    let inode = full_file(&fs, &caller);
    let mut steps = 0;
    loop {
        let (used, size) = (fs.pool().status().used, fs.attr(&inode).size);
        let more = fs
            .truncate_step(&inode, 5000, 0)
            .expect("a run needs one map node")
            .is_some();
        assert!(used - fs.pool().status().used <= FREED_MAX);
        let now = fs.attr(&inode).size;
        assert!((5000..size).contains(&now));
        use_file(&fs, &caller, &inode);
        fs.check_invariants();
        steps += 1;
        if !more {
            break;
        }
    }
    assert!(steps >= 3, "{steps} steps");
    assert_eq!(fs.attr(&inode).size, 5000);
    assert_eq!(fs.pool().status().used, 2);
    assert_eq!(fs.truncate_step(&inode, 5000, 0), Ok(None), "a further step was needed");
}

#[test]
fn the_end_of_scattered_data_is_sought_in_steps() {
    const WRITTEN: u64 = 20_000;
    let (fs, _) = filesystem_on(Bytes::Memory, 1, 2 * WRITTEN);
    let caller = Caller::on_node(&fs, 0);
    let [inode, other] = ["file", "other"].map(|name| new_file(&fs, name));
    // Turn by turn, so that neighbours are not one piece.
    for nth in 0..WRITTEN {
        for inode in [&inode, &other] {
            let written = fs.write(&caller.asking(), inode, nth * BLOCK, &[1; BLOCK as usize], false);
            assert_eq!(written, Ok(BLOCK as usize));
        }
    }
    let (mut at, mut steps) = (0, 1);
    let found = loop {
        match fs.seek_step(&caller.asking(), &inode, at, Whence::Hole).unwrap() {
            ControlFlow::Break(found) => break found,
            ControlFlow::Continue(next) => (at, steps) = (next, steps + 1),
        }
    };
    assert_eq!(found, WRITTEN * BLOCK);
    assert!(steps > 2, "{steps} steps");
    assert_eq!(fs.seek(&caller.asking(), &inode, 5, Whence::Hole), Ok(found));
}

#[test]
fn a_volumes_map_ends_when_time_is_over() {
    let (fs, _) = filesystem_on(Bytes::Memory, 1, BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let volume = fs.create_volume("v", 4 * BLOCKS * BLOCK, Placement::Local).unwrap();
    for nth in 0..BLOCKS / 4 {
        fs.write_volume(&caller.asking(), &volume, 2 * nth * BLOCK, &[1; BLOCK as usize])
            .unwrap();
    }
    let looks = Cell::new(0);
    let listed = fs.volumes(|| looks.replace(looks.get() + 1) < 2);
    let found: u64 = listed[0].map.iter().map(|(_, bytes)| bytes).sum();
    assert!(found > 0 && found < listed[0].used_bytes, "{listed:?}");
    let all = fs.volume_status(&volume, || true);
    assert_eq!(all.map, [(NodeId(0), all.used_bytes)]);
}

#[test]
fn a_map_of_many_runs_counts_each_block_once() {
    const WRITTEN: u64 = 1500;
    let (fs, _) = filesystem_on(DISKS, 1, BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "file");
    for nth in 0..WRITTEN {
        let at = 3 * nth * BLOCK;
        assert_eq!(
            fs.write(&caller.asking(), &inode, at, &[1; BLOCK as usize], false),
            Ok(BLOCK as usize)
        );
    }
    assert_eq!(fs.map(&inode), [(NodeId(0), WRITTEN * BLOCK)]);
}

/// Behind the end of the file, a node of the map for each block.
#[test]
fn what_is_reserved_beyond_the_end_is_freed_in_bounded_steps() {
    const NODES: u64 = 1000;
    for (bytes, size) in [(Bytes::Memory, 0), (Bytes::Memory, BLOCK + 1), (DISKS, 1)] {
        let (fs, _) = filesystem_on(bytes, 1, 4 * RUN);
        let caller = Caller::on_node(&fs, 0);
        let inode = new_file(&fs, "file");
        let data = vec![7; size as usize];
        assert_eq!(fs.write(&caller.asking(), &inode, 0, &data, false), Ok(data.len()));
        for node in 1..=NODES {
            fs.fallocate(&caller.asking(), &inode, mode::KEEP_SIZE, node * RUN * BLOCK, BLOCK)
                .expect("the pool has room");
        }
        let (mut done, mut steps, mut nodes) = (Some(0), 0, fs.map_nodes_used());
        assert!(nodes as u64 >= NODES);
        while let Some(so_far) = done {
            assert_eq!(fs.attr(&inode).size, size, "until all behind it is gone");
            done = fs.truncate_step(&inode, 0, so_far).expect("the log has room");
            assert!(nodes - fs.map_nodes_used() <= 64, "a step is long");
            (steps, nodes) = (steps + 1, fs.map_nodes_used());
        }
        assert!(steps >= 30, "{steps} steps");
        assert_eq!((fs.attr(&inode).size, fs.attr(&inode).blocks, nodes), (0, 0, 0));
        fs.check_invariants();
    }
}
