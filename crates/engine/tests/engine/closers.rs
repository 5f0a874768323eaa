//! A thread that takes blocks from a file, and many that read the file, more of them than CPUs.

use crate::support::{BLOCK, Bytes, Caller, DISKS, filesystem_on, new_file, tend};
use homenode_engine::fs::fallocate_mode::{KEEP_SIZE, PUNCH_HOLE};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const READERS: usize = 64;
/// Both sides: far more than they need, far less than it took when threads that waited passed one lock in turn.
const ROUNDS: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(60);

/// Neither side waits for the other for long.
#[test]
fn punching_and_many_readers_both_make_progress() {
    race(Bytes::Memory);
}

#[test]
fn punching_and_many_readers_both_make_progress_below_a_cache() {
    race(DISKS);
    // Not all that they read and punch fits.
    race(Bytes::Disks { frames: 4 });
}

fn race(bytes: Bytes) {
    let (fs, _) = filesystem_on(bytes, 1, 64);
    let inode = new_file(&fs, "a");
    let caller = Caller::on_node(&fs, 0);
    let bytes = vec![7; (4 * BLOCK) as usize];
    fs.write(&caller.asking(), &inode, 0, &bytes, false).expect("room");
    let over = AtomicBool::new(false);
    let start = Barrier::new(READERS + 1);
    let reads: Vec<AtomicU64> = (0..READERS).map(|_| AtomicU64::new(0)).collect();
    let all_read = |count: u64| reads.iter().all(|reads| reads.load(Ordering::Relaxed) >= count);
    let (mut punches, mut elapsed) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        for reads in &reads {
            let (fs, inode, over, start) = (&fs, &inode, &over, &start);
            scope.spawn(move || {
                let caller = Caller::on_node(fs, 0);
                start.wait();
                while !over.load(Ordering::Relaxed) {
                    let mut word = [0; 8];
                    let read = fs.read(&caller.asking(), inode, 2 * BLOCK, &mut word);
                    assert_eq!((read, word), (Ok(8), [7; 8]));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        start.wait();
        let began = Instant::now();
        // Each punch is followed by another at once.
        while elapsed < PATIENCE && !(punches >= ROUNDS && all_read(ROUNDS)) {
            tend(&fs);
            let punched = fs.fallocate(&caller.asking(), &inode, KEEP_SIZE | PUNCH_HOLE, 0, BLOCK);
            assert_eq!(punched, Ok(()));
            punches += 1;
            elapsed = began.elapsed();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(punches >= ROUNDS, "{punches} punches in {elapsed:?}");
    assert!(
        all_read(ROUNDS),
        "readers starve: {reads:?} after {punches} punches in {elapsed:?}"
    );
}
