//! Threads that write beyond a file's end at the same time, and appenders among them; and what lies behind the end.

use crate::support::threads::run_all;
use crate::support::{BLOCK, Bytes, Caller, DISKS, RUN, TestFs, durable_on, filesystem_on, new_file};
use crate::troubled::in_time;
use homenode_engine::fs::{Inode, fallocate_mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const THREADS: u64 = 8;
/// No divisor of a block: threads meet in blocks.
const PIECE: u64 = 9000;
const PIECES: u64 = 2000;

fn stamp(nth: u64) -> Vec<u8> {
    let stamp = u8::try_from(nth % 251 + 1).expect("at most 251");
    vec![stamp; PIECE as usize]
}

type Job<T> = Box<dyn FnOnce() -> T + Send>;

#[test]
fn concurrent_writes_beyond_the_end_keep_each_others_bytes() {
    let pools = [
        filesystem_on(Bytes::Memory, 1, 8192).0,
        filesystem_on(DISKS, 1, 8192).0,
        durable_on(256, 1, 8192),
    ];
    for fs in pools.map(Arc::new) {
        let inode = new_file(&fs, "a");
        let job = |thread| -> Job<()> {
            let (fs, inode) = (Arc::clone(&fs), Arc::clone(&inode));
            Box::new(move || {
                let caller = Caller::on_node(&fs, 0);
                for nth in (thread..PIECES).step_by(THREADS as usize) {
                    let written = fs.write(&caller.asking(), &inode, nth * PIECE, &stamp(nth), false);
                    assert_eq!(written, Ok(PIECE as usize));
                }
            })
        };
        run_all((0..THREADS).map(job).collect());
        let caller = Caller::on_node(&fs, 0);
        for nth in 0..PIECES {
            let mut piece = vec![0; PIECE as usize];
            let read = fs.read(&caller.asking(), &inode, nth * PIECE, &mut piece);
            assert_eq!((read, piece), (Ok(PIECE as usize), stamp(nth)), "piece {nth}");
        }
    }
}

#[test]
fn appends_overwrite_nothing_that_is_written_beyond_the_end() {
    /// Differs from the bytes that are appended.
    const MARK: u8 = 255;
    const APPENDS: u64 = 80;
    // So many that an append takes a while.
    let bytes = vec![1; 30 * BLOCK as usize + 100];
    for fs in [filesystem_on(Bytes::Memory, 1, 20_000).0, durable_on(64, 1, 20_000)].map(Arc::new) {
        let inode = new_file(&fs, "a");
        let job = |thread| -> Job<Vec<u64>> {
            let (fs, inode, bytes) = (Arc::clone(&fs), Arc::clone(&inode), bytes.clone());
            Box::new(move || {
                let caller = Caller::on_node(&fs, 0);
                let mut marks = Vec::new();
                for nth in 0..APPENDS {
                    if thread > 0 {
                        let appended = fs.append(&caller.asking(), &inode, &bytes, false);
                        assert!(appended.is_ok_and(|(_, written)| written == bytes.len()));
                        continue;
                    }
                    // Where an append is under way, or just behind it.
                    let at = fs.attr(&inode).size + nth % 2 * 500;
                    assert_eq!(fs.write(&caller.asking(), &inode, at, &[MARK], false), Ok(1));
                    marks.push(at);
                }
                marks
            })
        };
        let marks = run_all((0..THREADS).map(job).collect()).concat();
        let caller = Caller::on_node(&fs, 0);
        for at in marks {
            let mut byte = [0];
            assert_eq!(fs.read(&caller.asking(), &inode, at, &mut byte), Ok(1));
            assert_eq!(byte, [MARK], "at {at}");
        }
    }
}

#[test]
fn a_write_into_a_file_that_is_cut_meanwhile_wipes_nothing_of_another() {
    let fs = Arc::new(durable_on(64, 1, 1024));
    let inode = new_file(&fs, "a");
    let caller = Caller::on_node(&fs, 0);
    for nth in 0..1500 {
        fs.write(&caller.asking(), &inode, 0, &vec![9; 20 * BLOCK as usize], false)
            .expect("room");
        let start = Arc::new(AtomicBool::new(false));
        let other = {
            let (fs, inode, start) = (Arc::clone(&fs), Arc::clone(&inode), Arc::clone(&start));
            std::thread::spawn(move || {
                let caller = Caller::on_node(&fs, 0);
                while !start.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                fs.write(&caller.asking(), &inode, 15 * BLOCK, &[7; 100], false)
                    .expect("room");
            })
        };
        // The other is ready as a rule, and comes while the file is cut.
        std::thread::sleep(Duration::from_micros(nth % 100));
        start.store(true, Ordering::Relaxed);
        fs.truncate_step(&inode, 10, 0).expect("its size shrinks");
        fs.write(&caller.asking(), &inode, 100, &[8; 3000], false)
            .expect("room");
        other.join().expect("it writes");
        let mut bytes = [0; 3000];
        fs.read(&caller.asking(), &inode, 100, &mut bytes).expect("it is there");
        assert_eq!(bytes, [8; 3000], "round {nth}");
    }
}

const RUN_BYTES: u64 = RUN * BLOCK;

/// A file of whole runs that is cut where no run can be split, so that bytes stay behind its size.
fn cut_in_a_run(fs: &TestFs, caller: &Caller, runs: u64, size: u64) -> Arc<Inode> {
    let inode = new_file(fs, "a");
    for run in 0..runs {
        fs.write(
            &caller.asking(),
            &inode,
            run * RUN_BYTES,
            &vec![7; RUN_BYTES as usize],
            false,
        )
        .expect("room");
    }
    fs.set_metadata_limit(0);
    fs.truncate_step(&inode, size, 0).expect("cutting needs no memory");
    fs.set_metadata_limit(u64::MAX);
    inode
}

#[test]
fn what_a_cut_left_does_not_come_back_at_another_place() {
    const MIB: u64 = 1 << 20;
    let (collapse, insert) = (fallocate_mode::COLLAPSE_RANGE, fallocate_mode::INSERT_RANGE);
    let cut = RUN_BYTES + MIB;
    for (mode, size) in [(collapse, cut), (insert, cut - MIB / 2), (0, cut), (0, cut + 100)] {
        for frames in [64, 4096] {
            let fs = durable_on(frames, 1, 16 * RUN);
            let caller = Caller::on_node(&fs, 0);
            let inode = cut_in_a_run(&fs, &caller, 2, size);
            // A hole in what is left changes nothing.
            let (hole, behind) = (fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE, size + 2 * BLOCK);
            fs.fallocate(&caller.asking(), &inode, hole, size, behind - size)
                .expect("it is made");
            if mode > 0 {
                fs.fallocate(&caller.asking(), &inode, mode, 0, MIB).expect("room");
            }
            let size = fs.attr(&inode).size;
            fs.truncate_step(&inode, 4 * RUN_BYTES, 0)
                .expect("growing places nothing");
            let mut bytes = vec![1; (4 * RUN_BYTES - size) as usize];
            fs.read(&caller.asking(), &inode, size, &mut bytes)
                .expect("the disk works");
            assert!(bytes.iter().all(|byte| *byte == 0), "cut bytes came back");
        }
    }
}

#[test]
fn zeroing_past_an_end_inside_a_block_ends() {
    let fs = durable_on(64, 1, 4096);
    let caller = Caller::on_node(&fs, 0);
    let (inode, other) = (new_file(&fs, "a"), new_file(&fs, "b"));
    fs.write(&caller.asking(), &inode, 0, &[7; 5000], false).expect("room");
    let mut bytes = vec![1; 300 * BLOCK as usize];
    fs.write(&caller.asking(), &other, 0, &bytes, false).expect("room");
    // The first file's blocks make room for the other's.
    for _ in 0..2 {
        fs.read(&caller.asking(), &other, 0, &mut bytes)
            .expect("the disk works");
    }
    let mode = fallocate_mode::ZERO_RANGE | fallocate_mode::KEEP_SIZE;
    in_time("zeroing", move || {
        let caller = Caller::on_node(&fs, 0);
        fs.fallocate(&caller.asking(), &inode, mode, 100, 1 << 20)
            .expect("room");
        let mut bytes = [1; 5000];
        assert_eq!(fs.read(&caller.asking(), &inode, 0, &mut bytes), Ok(5000));
        assert!(bytes[..100] == [7; 100] && bytes[100..].iter().all(|byte| *byte == 0));
        assert_eq!(fs.attr(&inode).size, 5000);
    });
}
