use super::*;
extern crate std;
use std::vec;

#[test]
fn starts_without_free_blocks_and_quickly() {
    let mut buddy = Buddy::new(1 << 28);
    assert_eq!(buddy.allocate(0), None);
    assert_eq!(buddy.allocate_up_to(512), None);
    assert_eq!(buddy.largest_order(), None);
    buddy.free(0, 1 << 28);
    assert_eq!(buddy.largest_order(), Some(MAX_ORDER));
    assert_eq!(buddy.free_blocks(), 1 << 28);
}

#[test]
fn takes_the_smallest_sufficient_run_at_the_lowest_address() {
    let mut buddy = Buddy::new(4096);
    buddy.free(0, 4096);
    assert_eq!(buddy.allocate(0), Some(0));
    // What is left of the broken run is used up before the next is touched.
    assert_eq!(buddy.allocate(0), Some(1));
    assert_eq!(buddy.allocate(2), Some(4));
    assert_eq!(buddy.allocate(1), Some(2));
    assert_eq!(buddy.allocate(11), Some(2048));
    buddy.check_invariants();
    buddy.free(0, 8);
    buddy.free(2048, 2048);
    buddy.check_invariants();
    assert_eq!(buddy.largest_order(), Some(12));
}

#[test]
fn joins_across_separate_frees() {
    let mut buddy = Buddy::new(1024);
    buddy.free(1, 1022);
    buddy.check_invariants();
    assert_eq!(buddy.largest_order(), Some(8));
    buddy.free(1023, 1);
    buddy.free(0, 1);
    assert_eq!(buddy.largest_order(), Some(10));
}

#[test]
fn an_odd_end_stays_usable() {
    let mut buddy = Buddy::new((1 << MAX_ORDER) + 3);
    buddy.free(0, buddy.blocks());
    buddy.check_invariants();
    assert_eq!(buddy.allocate(MAX_ORDER), Some(0));
    assert_eq!(buddy.allocate(1), Some(1 << MAX_ORDER));
    assert_eq!(buddy.allocate(0), Some((1 << MAX_ORDER) + 2));
    assert_eq!(buddy.free_blocks(), 0);
}

#[test]
fn up_to_prefers_broken_runs_below_2_mib() {
    let mut buddy = Buddy::new(2048);
    buddy.free(0, 3);
    buddy.free(512, 1536);
    // 2 + 1 blocks are left of a broken run: they go first.
    assert_eq!(buddy.allocate_up_to(100), Some((0, 2)));
    assert_eq!(buddy.allocate_up_to(100), Some((2, 1)));
    assert_eq!(buddy.allocate_up_to(100), Some((512, 64)));
    assert_eq!(buddy.allocate_up_to(511), Some((768, 256)));
    assert_eq!(buddy.allocate_up_to(513), Some((1024, 512)));
    assert_eq!(buddy.allocate_up_to(u64::MAX), Some((1536, 512)));
    assert_eq!(buddy.allocate_up_to(u64::MAX), Some((640, 128)));
    assert_eq!(buddy.allocate_up_to(1), Some((576, 1)));
    assert_eq!(buddy.allocate_up_to(0), None);
    buddy.check_invariants();
}

#[test]
fn up_to_takes_huge_runs_aligned() {
    let mut buddy = Buddy::new(4096);
    buddy.free(1, 4095);
    assert_eq!(buddy.allocate_up_to(512), Some((512, 512)));
    assert_eq!(buddy.allocate_up_to(1500), Some((1024, 1024)));
    assert_eq!(buddy.allocate_up_to(1 << 40), Some((2048, 2048)));
    assert_eq!(buddy.allocate_up_to(1 << 40), Some((256, 256)));
}

#[test]
#[should_panic(expected = "free already")]
fn freeing_a_block_inside_a_free_run_panics() {
    let mut buddy = Buddy::new(1024);
    buddy.free(0, 1024);
    buddy.free(77, 1);
}

#[test]
#[should_panic(expected = "free already")]
fn freeing_a_run_around_a_free_block_panics() {
    let mut buddy = Buddy::new(1024);
    buddy.free(77, 1);
    buddy.free(0, 1024);
}

#[test]
#[should_panic(expected = "only 1024 exist")]
fn freeing_beyond_the_end_panics() {
    Buddy::new(1024).free(1020, 5);
}

#[test]
fn freeing_gigabytes_block_by_block_restores_whole_runs() {
    let blocks = 1 << 16;
    let mut buddy = Buddy::new(blocks);
    buddy.free(0, blocks);
    let taken: vec::Vec<u64> = core::iter::from_fn(|| buddy.allocate(0)).collect();
    assert!(
        taken.iter().copied().eq(0..blocks),
        "single blocks come in ascending order"
    );
    for block in taken.iter().filter(|block| *block % 2 == 1) {
        buddy.free(*block, 1);
    }
    buddy.check_invariants();
    assert_eq!(buddy.largest_order(), Some(0));
    for block in taken.iter().filter(|block| *block % 2 == 0) {
        buddy.free(*block, 1);
    }
    buddy.check_invariants();
    assert_eq!(buddy.largest_order(), Some(16));
}
