//! A full pool: what is left is found wherever it lies, and what is freed can be used at once.

use crate::support::{BLOCK, Caller, RUN, TestFs, add_member, assert_empty, empty_filesystem, filesystem, sized};
use crate::support::{new_file, pattern, seeded, threads};
use fastrand::Rng;
use homenode_engine::fs::{Error, Inode, fallocate_mode as mode};
use homenode_engine::{MemberId, NodeId};
use std::sync::Arc;

/// Appends one block.
fn append(fs: &TestFs, caller: &Caller, inode: &Inode) -> Result<usize, Error> {
    let block = [7; BLOCK as usize];
    fs.append(&caller.asking(), inode, &block, false)
        .map(|(_, written)| written)
}

/// Appends blocks until the pool is full; gives how many.
fn fill(fs: &TestFs, caller: &Caller, inode: &Inode) -> u64 {
    for blocks in 0.. {
        match append(fs, caller, inode) {
            Ok(written) => assert_eq!(written as u64, BLOCK),
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                return blocks;
            }
        }
    }
    unreachable!("a pool has an end")
}

fn truncate(fs: &TestFs, inode: &Inode, size: u64) {
    fs.set_attr(inode, &sized(size)).expect("the inode is a file");
}

#[test]
fn the_last_write_is_short_and_the_next_fails() {
    let (fs, _) = filesystem(2, 700);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "a");
    let data = pattern::bytes(1, 1500 * BLOCK as usize);
    let written = fs
        .write(&caller.asking(), &inode, 100, &data, false)
        .expect("some of it fits");
    assert_eq!(
        written as u64,
        1400 * BLOCK - 100,
        "every block of both members is used"
    );
    assert_eq!(fs.attr(&inode).size, 1400 * BLOCK);
    let at_end = fs.write(&caller.asking(), &inode, 1400 * BLOCK, &data, false);
    assert_eq!(at_end, Err(Error::NoSpace));
    assert_eq!(
        fs.attr(&inode).size,
        1400 * BLOCK,
        "a write that failed does not grow the file"
    );
    let over = fs.write(&caller.asking(), &inode, 5, &data[..9000], false);
    assert_eq!(over, Ok(9000), "overwriting needs no space");
    let other = new_file(&fs, "b");
    assert_eq!(append(&fs, &caller, &other), Err(Error::NoSpace));
    assert_eq!(fs.attr(&other).size, 0);
    fs.check_invariants();
}

#[test]
fn freed_space_is_usable_at_once_by_every_cpu() {
    let (fs, _) = filesystem(2, 600);
    let callers: Vec<_> = (0..8).map(|cpu| Caller::on_cpu(&fs, cpu)).collect();
    let (a, b) = (new_file(&fs, "a"), new_file(&fs, "b"));
    assert_eq!(fill(&fs, &callers[0], &a), 1200);
    for caller in &callers {
        truncate(&fs, &a, fs.attr(&a).size - BLOCK);
        assert_eq!(append(&fs, caller, &b), Ok(BLOCK as usize));
        assert_eq!(append(&fs, caller, &b), Err(Error::NoSpace));
    }
    let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
    fs.fallocate(&callers[0].asking(), &a, punch, 0, 10 * BLOCK)
        .expect("punching takes no block");
    assert_eq!(fill(&fs, &callers[5], &b), 10);
    fs.check_invariants();
    for (inode, name) in [(a, b"a"), (b, b"b")] {
        fs.unlink(&fs.root(), name).expect("the name exists");
        fs.unpin(&inode, 1);
    }
    assert_empty(&fs);
}

/// 64 CPUs hold grants of up to 2 MiB each when the first one finds no more: it takes theirs.
#[test]
fn blocks_granted_to_other_cpus_are_used_before_a_write_fails() {
    let (fs, _) = empty_filesystem(16);
    for node in 0..4 {
        add_member(&fs, NodeId(node), 4 * RUN + 3);
    }
    let callers: Vec<_> = (0..64).map(|cpu| Caller::on_cpu(&fs, cpu)).collect();
    let inode = new_file(&fs, "a");
    let mut blocks = 0;
    while callers
        .iter()
        .all(|caller| append(&fs, caller, &inode).map(|_| blocks += 1).is_ok())
    {}
    assert_eq!(blocks, 4 * (4 * RUN + 3), "all blocks are used");
    assert_eq!(fs.statfs().free, 0);
    fs.check_invariants();
}

/// The nodes have less memory than their members were to have: what there is, is used, whatever CPU it was granted to.
#[test]
fn all_memory_of_starved_nodes_is_used() {
    let (fs, _) = filesystem(2, 3 * RUN);
    fs.pool().memory().below().set_limit_blocks(MemberId(0), RUN);
    fs.pool().memory().below().set_limit_blocks(MemberId(1), 2 * RUN);
    let callers: Vec<_> = (0..8).map(|cpu| Caller::on_cpu(&fs, cpu)).collect();
    let inode = new_file(&fs, "a");
    for caller in &callers {
        append(&fs, caller, &inode).expect("the pool has room");
    }
    assert_eq!(fill(&fs, &callers[5], &inode) + 8, 3 * RUN);
    fs.check_invariants();
    fs.pool().memory().below().set_starved(MemberId(0), false);
    assert_eq!(fill(&fs, &callers[5], &inode), 2 * RUN, "the node has memory again");
    fs.check_invariants();
}

#[test]
fn threads_together_use_every_block() {
    let (fs, _) = filesystem(4, 900);
    let fs = Arc::new(fs);
    let job = |cpu: u32| -> Box<dyn FnOnce() -> u64 + Send> {
        let fs = Arc::clone(&fs);
        Box::new(move || {
            let caller = Caller::on_cpu(&fs, cpu);
            let inode = new_file(&fs, &cpu.to_string());
            fill(&fs, &caller, &inode)
        })
    };
    let blocks = threads::run_all((0..8).map(job).collect());
    assert_eq!(blocks.iter().sum::<u64>(), 4 * 900);
    fs.check_invariants();
}

/// Eight threads that together never hold more than the pool has must never be told that it is full, though a few grants
/// are as large as the whole pool.
#[test]
fn no_write_fails_while_space_is_free() {
    const BLOCKS: u64 = 64;
    const THREADS: u64 = 8;
    const EACH: u64 = BLOCKS / THREADS;
    let seed = seeded::seed();
    let (fs, _) = filesystem(1, BLOCKS);
    // The first threads take all there is, for as long as this lasts.
    fs.pool().memory().below().set_populate_delay_ms(20);
    let fs = Arc::new(fs);
    let job = |thread: u64| -> Box<dyn FnOnce() + Send> {
        let fs = Arc::clone(&fs);
        Box::new(move || {
            let mut random = Rng::with_seed(seed ^ thread);
            let caller = Caller::on_cpu(&fs, thread as u32);
            let inode = new_file(&fs, &thread.to_string());
            for _ in 0..3000 {
                let blocks = 1 + random.u64(..EACH);
                let data = vec![1; (blocks * BLOCK) as usize];
                let written = fs.write(&caller.asking(), &inode, 0, &data, false);
                assert_eq!(
                    written,
                    Ok(data.len()),
                    "HOMENODE_SEED={seed}: {:?}",
                    fs.pool().status()
                );
                truncate(&fs, &inode, random.u64(..blocks) * BLOCK);
            }
        })
    };
    threads::run_all((0..THREADS).map(job).collect());
    fs.check_invariants();
}

#[test]
fn reserved_space_can_be_written_in_a_full_pool() {
    let (fs, _) = filesystem(2, RUN + 100);
    let callers: Vec<_> = (0..8).map(|cpu| Caller::on_cpu(&fs, cpu)).collect();
    let (kept, other) = (new_file(&fs, "kept"), new_file(&fs, "other"));
    // Grants are out when the room is reserved.
    for caller in &callers {
        append(&fs, caller, &other).expect("the pool has room");
    }
    let asking = callers[0].asking();
    let bytes = 700 * BLOCK;
    fs.fallocate(&asking, &kept, mode::KEEP_SIZE, 3 * BLOCK, bytes)
        .expect("the pool has room");
    assert_eq!(fs.attr(&kept).blocks, 700 * 8, "st_blocks counts what is reserved");
    assert_eq!(fs.map(&kept), [], "a block was placed");
    assert_eq!(fill(&fs, &callers[1], &other) + 8 + 700, 2 * (RUN + 100));
    assert_eq!(fs.fallocate(&asking, &kept, 0, 0, BLOCK), Err(Error::NoSpace));
    fs.check_invariants();

    // By every CPU, in pieces of every size; the whole run in it too.
    let mut at = 3 * BLOCK;
    for (turn, caller) in callers.iter().cycle().enumerate().take(100) {
        let data = vec![turn as u8; 5000];
        assert_eq!(fs.write(&caller.asking(), &kept, at, &data, false), Ok(5000));
        at += 5000;
    }
    let data = vec![1; (3 * BLOCK + bytes - at) as usize];
    assert_eq!(fs.write(&callers[3].asking(), &kept, at, &data, false), Ok(data.len()));
    assert_eq!(fs.attr(&kept).blocks, 700 * 8);
    let behind = fs.write(&callers[3].asking(), &kept, 3 * BLOCK + bytes, &data[..1], false);
    assert_eq!(behind, Err(Error::NoSpace));
    assert_eq!(fs.statfs().free, 0);
    fs.check_invariants();
}

#[test]
fn unwritten_reservations_are_freed_with_the_file() {
    let (fs, _) = filesystem(1, 1000);
    let caller = Caller::on_node(&fs, 0);
    let (asking, inode) = (&caller.asking(), new_file(&fs, "a"));
    fs.fallocate(asking, &inode, 0, 0, 600 * BLOCK).expect("there is room");
    assert_eq!((fs.attr(&inode).size, fs.statfs().free), (600 * BLOCK, 400));
    fs.write(asking, &inode, 100 * BLOCK, &[1; 3 * BLOCK as usize], false)
        .expect("the blocks are reserved");
    assert_eq!(fs.statfs().free, 400, "reserved blocks were taken twice");
    truncate(&fs, &inode, 50 * BLOCK);
    assert_eq!(fs.statfs().free, 950);
    let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
    fs.fallocate(asking, &inode, punch, 0, 20 * BLOCK)
        .expect("punching takes no block");
    assert_eq!(fs.statfs().free, 970);
    assert_eq!(fs.fallocate(asking, &inode, 0, 0, 1001 * BLOCK), Err(Error::NoSpace));
    assert_eq!(fs.statfs().free, 970, "a refused reservation took blocks");
    fs.unlink(&fs.root(), b"a").expect("the name exists");
    fs.unpin(&inode, 1);
    assert_empty(&fs);
}

/// `truncate -s 1T` on a small pool.
#[test]
fn extending_a_file_reserves_nothing() {
    let (fs, _) = filesystem(1, 10);
    let inode = new_file(&fs, "a");
    truncate(&fs, &inode, 1 << 40);
    assert_eq!((fs.attr(&inode).size, fs.attr(&inode).blocks), (1 << 40, 0));
    assert_eq!(fs.statfs().free, 10);
    let mut byte = [1];
    let caller = Caller::on_node(&fs, 0);
    assert_eq!(fs.read(&caller.asking(), &inode, (1 << 40) - 1, &mut byte), Ok(1));
    assert_eq!(byte, [0]);
}

/// A node of the map for each place that a program tries.
#[test]
fn writes_that_find_no_space_leave_no_memory_behind() {
    let (fs, _) = filesystem(1, 2 * RUN);
    let caller = Caller::on_node(&fs, 0);
    fill(&fs, &caller, &new_file(&fs, "filler"));
    let inode = new_file(&fs, "sparse");
    truncate(&fs, &inode, 1 << 40);
    let before = fs.map_nodes_used();
    for nth in 0..1000 {
        let written = fs.write(&caller.asking(), &inode, nth * RUN * BLOCK, &[7], false);
        assert_eq!(written, Err(Error::NoSpace));
    }
    assert_eq!(fs.map_nodes_used(), before);
    fs.check_invariants();
}
