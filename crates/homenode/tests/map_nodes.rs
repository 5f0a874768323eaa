//! A pool whose block maps may take no more memory.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use homenode::{Allocate, File, NodeId, Pool, PoolOptions, Size};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const ENOSPC: i32 = 28;
/// Writes single blocks far apart until no map node is left; gives the last one.
fn take_all_map_nodes(file: &File) -> u64 {
    let mut last = 0;
    for i in 0..20_000u64 {
        let at = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2) / BLOCK * BLOCK;
        match file.write_at(b"x", at) {
            Ok(_) => last = at,
            Err(error) => {
                assert_eq!(error.errno(), ENOSPC);
                return last;
            }
        }
    }
    panic!("20,000 sparse blocks fit into 16 MiB of nodes");
}

#[test]
fn collapse_and_insert_without_map_nodes_change_nothing() {
    let options = PoolOptions::new()
        .size_per_node(Size::Bytes(120 * MIB))
        .metadata(Size::Bytes(16 * MIB))
        .node(NodeId(0));
    let pool = Pool::create(&options).unwrap();
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
    let last = take_all_map_nodes(&sparse);
    assert!(pool.status().free_bytes > 8 * MIB, "the pool is not what is full");
    // A few nodes, and not enough.
    sparse.allocate(Allocate::PunchHole, last, BLOCK).unwrap();
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
