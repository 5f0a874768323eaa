//! A client that copies beside a server and other programs: all interleavings.

use super::*;
use crate::sync::{AtomicBool, AtomicU32, Mutex, beside};
use loom::sync::Arc;

/// A file of one or two bytes: the second is in the same page, as stores through a mapping reach it beyond the file's end.
struct World {
    line: Line,
    /// The second byte.
    byte: AtomicU32,
    /// The kernel's inode, and its lock.
    inode: Mutex<Inode>,
    /// The client has returned from its write.
    is_written: AtomicBool,
}

struct Inode {
    size: u32,
    /// Stands for a time that each write stamps anew.
    stamps: u32,
}

/// Counters and file size that the client has read before.
#[derive(Clone, Copy)]
struct Known {
    cuts: u64,
    size: u32,
    asks: u64,
}

const OLD: u32 = 1;
const NEW: u32 = 2;

fn world() -> (Arc<World>, Known) {
    let world = World {
        line: Line::default(),
        byte: AtomicU32::new(OLD),
        inode: Mutex::new(Inode { size: 2, stamps: 1 }),
        is_written: AtomicBool::new(false),
    };
    let Seen { cuts, asks } = world.line.look().expect("nothing is cut yet");
    (Arc::new(world), Known { cuts, size: 2, asks })
}

impl World {
    /// pwrite(2).
    fn write_by_kernel(&self, value: u32) {
        let mut inode = self.inode.lock();
        // Relaxed: other programs store to the page without the lock.
        self.byte.store(value, Ordering::Relaxed);
        inode.size = 2;
        inode.stamps += 1;
    }

    /// pread(2) of the second byte; `None` beyond the end.
    fn read_by_kernel(&self) -> Option<u32> {
        let inode = self.inode.lock();
        (inode.size == 2).then(|| self.byte.load(Ordering::Relaxed))
    }

    /// The server's part of truncate(2) to one byte.
    fn truncate(&self) {
        let cut = self.line.cut();
        {
            let mut inode = self.inode.lock();
            inode.size = 1;
            self.byte.store(0, Ordering::Relaxed);
        }
        drop(cut);
    }

    fn punch(&self) {
        let cut = self.line.cut();
        {
            let _inode = self.inode.lock();
            self.byte.store(0, Ordering::Relaxed);
        }
        drop(cut);
    }

    fn extend(&self) {
        self.inode.lock().size = 2;
    }

    /// stat(2): the stamp.
    fn stat(&self) -> u32 {
        self.line.raise_asks();
        self.inode.lock().stamps
    }

    /// The client's pwrite(2) of the second byte.
    fn write(&self, known: Known, value: u32) {
        if let Some(seen) = self.line.look()
            && (seen.cuts, seen.asks) == (known.cuts, known.asks)
            && known.size == 2
        {
            self.byte.store(value, Ordering::Relaxed);
            if self.line.is_written_since(seen) {
                return;
            }
        }
        self.write_by_kernel(value);
    }

    /// The client's pread(2) of it.
    fn read(&self, known: Known) -> Option<u32> {
        if let Some(seen) = self.line.look()
            && seen.cuts == known.cuts
            && known.size == 2
        {
            let value = self.byte.load(Ordering::Relaxed);
            if self.line.is_read_since(seen) {
                return Some(value);
            }
        }
        self.read_by_kernel()
    }
}

/// A write that has returned before a truncation is cut off by it: what the file is extended by later is zeros.
#[test]
fn write_before_truncation_is_cut_off_by_it() {
    loom::model(|| {
        let (world, known) = world();
        let client = beside(world.clone(), move |world| {
            world.write(known, NEW);
            // Release: what the program tells others when it has written.
            world.is_written.store(true, Ordering::Release);
        });
        world.truncate();
        let was_written = world.is_written.load(Ordering::Acquire);
        let size = world.inode.lock().size;
        world.extend();
        if was_written && size == 1 {
            assert_eq!(
                world.read_by_kernel(),
                Some(0),
                "bytes come back that a truncation has taken"
            );
        }
        client.join().expect("the thread does not panic");
        // It came before or after.
        assert!(world.read_by_kernel().is_some());
    });
}

/// A write is in the file afterwards unless the truncation came after it.
#[test]
fn write_that_returns_is_lost_only_by_a_later_truncation() {
    loom::model(|| {
        let (world, known) = world();
        let cutter = beside(world.clone(), move |world| world.truncate());
        world.write(known, NEW);
        let after = world.read_by_kernel();
        cutter.join().expect("the thread does not panic");
        match world.read_by_kernel() {
            // Written after it, or again.
            Some(value) => assert_eq!(value, NEW),
            // Cut off after it.
            None => assert!(matches!(after, Some(NEW | 0) | None)),
        }
    });
}

/// A hole that was punched reads as zeros, with a client that writes beside it and one that reads after it.
#[test]
fn punched_hole_reads_as_zeros_unless_written_after_it() {
    loom::model(|| {
        let (world, known) = world();
        let is_punched = Arc::new(AtomicBool::new(false));
        let cutter = beside((world.clone(), is_punched.clone()), move |(world, is_punched)| {
            let was_written = world.is_written.load(Ordering::Acquire);
            world.punch();
            is_punched.store(true, Ordering::Release);
            was_written
        });
        let punched_before = is_punched.load(Ordering::Acquire);
        let read = world.read(known);
        world.write(known, NEW);
        world.is_written.store(true, Ordering::Release);
        let was_written = cutter.join().expect("the thread does not panic");
        let left = world.read_by_kernel();
        if punched_before {
            assert_eq!((read, left), (Some(0), Some(NEW)));
        }
        if was_written {
            assert_eq!((read, left), (Some(OLD), Some(0)));
        }
        assert!(matches!(read, Some(OLD | 0)) && matches!(left, Some(NEW | 0)));
    });
}

/// Two looks at a file that show the same time show the same bytes.
#[test]
fn bytes_change_only_with_the_time() {
    loom::model(|| {
        let (world, known) = world();
        let client = beside(world.clone(), move |world| {
            world.write(known, NEW);
        });
        let time = world.stat();
        let bytes = world.read_by_kernel();
        client.join().expect("the thread does not panic");
        let (time_after, bytes_after) = (world.stat(), world.read_by_kernel());
        assert!(
            bytes == bytes_after || time != time_after,
            "bytes changed and the time did not"
        );
    });
}

/// A client that has learned of a file knows nothing of the one that has the line afterwards.
#[test]
fn a_line_of_another_file_is_not_trusted() {
    loom::model(|| {
        let (world, known) = world();
        let server = beside(world.clone(), move |world| {
            world.line.pass_on();
            // Release: the next file's bytes are behind the line from here on.
            world.byte.store(NEW, Ordering::Release);
        });
        let read = world.line.look().and_then(|seen| {
            let value = world.byte.load(Ordering::Relaxed);
            (seen.cuts == known.cuts && world.line.is_read_since(seen)).then_some(value)
        });
        server.join().expect("the thread does not panic");
        assert!(matches!(read, None | Some(OLD)), "bytes of another file");
    });
}
