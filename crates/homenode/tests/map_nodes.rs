//! A pool whose table of map nodes is full: in a process of its own, with few addresses.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use homenode::{Allocate, File, NodeId, Pool, PoolOptions, Size};
use std::process::Command;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const ENOSPC: i32 = 28;
/// Set in the process that has few addresses.
const INNER: &str = "HOMENODE_TEST_FEW_ADDRESSES";
/// In KiB: enough for the process, its pool and a table of 65,536 map nodes, and not for the next larger table.
const ADDRESSES_KIB: &str = "520000";

/// Runs the test `name` once more with few addresses; whether that is this process.
fn has_few_addresses(name: &str) -> bool {
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let status = Command::new("sh")
        .args(["-c", "ulimit -v $1 && exec \"$0\" --exact --nocapture \"$2\""])
        .arg(program)
        .args([ADDRESSES_KIB, name])
        .env(INNER, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{name} failed with few addresses");
    false
}

/// Writes single blocks far apart until no map node is left; where they are.
fn take_all_map_nodes(file: &File) -> Option<Vec<u64>> {
    let mut written = Vec::new();
    for i in 0..20_000u64 {
        let at = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2) / BLOCK * BLOCK;
        match file.write_at(b"x", at) {
            Ok(_) => written.push(at),
            Err(error) => {
                assert_eq!(error.errno(), ENOSPC);
                return Some(written);
            }
        }
    }
    None
}

#[test]
fn collapse_and_insert_without_map_nodes_change_nothing() {
    if !has_few_addresses("collapse_and_insert_without_map_nodes_change_nothing") {
        return;
    }
    let options = PoolOptions::new().size_per_node(Size::Bytes(120 * MIB)).node(NodeId(0));
    let pool = match Pool::create(&options) {
        Ok(pool) => pool,
        Err(error) => {
            println!("SKIPPED: the table of map nodes left no addresses for the pool: {error}");
            return;
        }
    };
    let file = pool.create_file("file").unwrap();
    let mut bytes = vec![0; 40 << 20];
    for (number, block) in (1u64..).zip(bytes.chunks_mut(4096)) {
        block
            .chunks_mut(8)
            .for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    }
    file.write_all_at(&bytes, 0).unwrap();
    let blocks = file.metadata().blocks_512();
    let sparse = pool.create_file("sparse").unwrap();
    let Some(written) = take_all_map_nodes(&sparse) else {
        println!("SKIPPED: the table of map nodes is not full after 20,000 sparse blocks");
        return;
    };
    assert!(pool.status().free_bytes() > 8 * MIB, "the pool is not what is full");
    // A few nodes, and not enough.
    sparse
        .allocate(Allocate::PunchHole, written[written.len() - 1], BLOCK)
        .unwrap();
    for how in [Allocate::CollapseRange, Allocate::InsertRange] {
        let error = file.allocate(how, BLOCK, BLOCK).unwrap_err();
        assert_eq!(error.errno(), ENOSPC, "{how:?}");
        assert_eq!(
            (file.metadata().len(), file.metadata().blocks_512()),
            (40 * MIB, blocks)
        );
        let mut read = vec![0; bytes.len()];
        assert!(file.read_exact_at(&mut read, 0).unwrap());
        assert!(read == bytes, "{how:?} changed bytes");
    }
    sparse.set_len(0).unwrap();
    file.allocate(Allocate::CollapseRange, BLOCK, BLOCK).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(pool.status().used_bytes, 0, "no block is lost");
}
