//! Freed memory goes back to the kernel: in a process of its own, since it looks at what the process holds.

#![cfg(target_env = "gnu")]

use homenode_linux::heap::Heap;

/// Each looks at the memory of the whole process, which is this file's alone.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

const COUNT: usize = 1000;
const BYTES: usize = 60_000;

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).expect("Linux tells it")
}

/// In a thread, so that its arena is not the main one. Each block that is freed has a small one behind it that is not,
/// so nothing lies at the arena's end.
#[test]
fn freed_memory_between_used_blocks_returns_to_the_kernel() {
    let _alone = ALONE.lock();
    let left_kib = std::thread::spawn(|| {
        let mut heap = Heap::new();
        let before = resident_kib();
        let both: Vec<(Vec<u8>, Box<u64>)> = (0..COUNT).map(|i| (vec![1; BYTES], Box::new(i as u64))).collect();
        let (large, small): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        let full = resident_kib();
        assert!(
            full - before > COUNT * BYTES / 1024 * 9 / 10,
            "{before} then {full}: not measured"
        );
        heap.give_back((full - before) as u64 * 1024);
        drop(large);
        // It falls still.
        heap.give_back(0);
        heap.give_back(0);
        let left = resident_kib().saturating_sub(before);
        drop(small);
        left
    })
    .join()
    .expect("the thread does not panic");
    assert!(left_kib < COUNT * BYTES / 1024 / 4, "{left_kib} KiB stay");
}

/// The end of an arena that is not the main one: the allocator itself keeps twice as much there as the largest block that was ever freed.
#[test]
fn freed_memory_at_the_end_of_an_arena_returns_to_the_kernel() {
    let _alone = ALONE.lock();
    let left_kib = std::thread::spawn(|| {
        let mut heap = Heap::new();
        drop(std::hint::black_box(vec![1_u8; 24 << 20]));
        let before = resident_kib();
        let large: Vec<Vec<u8>> = (0..COUNT / 2).map(|_| vec![1; BYTES]).collect();
        let full = resident_kib();
        assert!(
            full - before > COUNT / 2 * BYTES / 1024 * 9 / 10,
            "{before} then {full}: not measured"
        );
        heap.give_back((full - before) as u64 * 1024);
        drop(large);
        // It falls still.
        heap.give_back(0);
        heap.give_back(0);
        resident_kib().saturating_sub(before)
    })
    .join()
    .expect("the thread does not panic");
    assert!(left_kib < COUNT / 2 * BYTES / 1024 / 4, "{left_kib} KiB stay");
}

/// A walk through the arenas passes every freed block.
#[test]
fn blocks_that_cannot_be_given_back_are_walked_through_once() {
    let _alone = ALONE.lock();
    let mut heap = Heap::new();
    let all: Vec<_> = (0..2_000_000_u64).map(Box::new).collect();
    let kept: Vec<_> = all.into_iter().filter(|number| **number % 2 == 0).collect();
    (0..3).for_each(|_| heap.give_back(1 << 20));
    let begin = std::time::Instant::now();
    (0..100).for_each(|_| heap.give_back(1 << 20));
    let taken = begin.elapsed();
    // Never freed: another test's thread takes this arena over, and the allocator would give its end back while that test measures.
    std::mem::forget(kept);
    assert!(taken.as_millis() < 50, "{taken:?}");
}
