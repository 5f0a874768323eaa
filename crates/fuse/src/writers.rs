//! Remembers the thread that last wrote to an inode or opened it for writing.
//!
//! A write-back request names no thread. The table remembers, for as many inodes as it has cells, the thread that last
//! wrote directly; where that thread runs is looked up only if blocks are placed. It is a hint: inodes share cells, and a
//! wrong or lost one costs locality, never correctness. A cell is stored to only when it changes, so that writers on
//! different nodes do not exchange its cache line with every request.

use std::sync::atomic::{AtomicU64, Ordering};

const CELLS: usize = 4096;

/// The table.
#[derive(Debug)]
pub(crate) struct Writers {
    /// Low half of the inode's number, then the thread. 0: nobody.
    cells: Box<[AtomicU64]>,
}

impl Default for Writers {
    fn default() -> Self {
        Self {
            cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Writers {
    /// Thread `tid` writes to inode `ino`.
    pub(crate) fn note(&self, ino: u64, tid: u32) {
        let value = ino << 32 | u64::from(tid);
        let cell = self.cell(ino);
        // Relaxed: a hint that orders nothing.
        if cell.load(Ordering::Relaxed) != value {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// The thread that last wrote to inode `ino`, if it is known.
    pub(crate) fn last(&self, ino: u64) -> Option<u32> {
        let value = self.cell(ino).load(Ordering::Relaxed);
        let tid = (value & 0xFFFF_FFFF) as u32;
        (value >> 32 == ino & 0xFFFF_FFFF && tid != 0).then_some(tid)
    }

    fn cell(&self, ino: u64) -> &AtomicU64 {
        // Numbers of inodes are dense: the low bits spread them well.
        &self.cells[usize::try_from(ino % CELLS as u64).expect("ino % CELLS fits a usize")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_remembered_until_another_inode_takes_its_cell() {
        let writers = Writers::default();
        assert_eq!(writers.last(7), None);
        writers.note(7, 42);
        assert_eq!(writers.last(7), Some(42));
        writers.note(7 + CELLS as u64, 43);
        assert_eq!(writers.last(7), None);
        assert_eq!(writers.last(7 + CELLS as u64), Some(43));
    }
}
