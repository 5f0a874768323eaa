//! Threads that write beyond a file's end at the same time, and appenders among them.

use crate::support::threads::run_all;
use crate::support::{BLOCK, Bytes, Caller, DISKS, durable_on, filesystem_on, new_file};
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
