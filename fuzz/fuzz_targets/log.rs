//! Any bytes as the log of a durable pool and as its superblock: a tree, faults of the tree, or a refusal, never a panic.
//!
//! Input: a superblock, when there are enough bytes, whose checksum is made right; and the records of one group.
#![no_main]

use homenode_engine::BLOCK_BYTES;
use homenode_engine::log::{Superblock, Tables};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((block, _)) = bytes.split_first_chunk::<BLOCK_BYTES>() {
        let mut block = *block;
        let crc = crc32c::crc32c(&block[..BLOCK_BYTES - 4]);
        block[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(superblock) = Superblock::decode(&block) {
            let again = Superblock::decode(&superblock.encode());
            assert_eq!(again, Ok(superblock), "a superblock does not survive encoding");
        }
    }
    if let Ok(tables) = Tables::of_records(bytes) {
        let _ = tables.check(&|first, blocks| first.index() + blocks < 1 << 20);
    }
});
