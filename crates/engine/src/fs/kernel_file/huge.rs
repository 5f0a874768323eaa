//! Huge pages for files of the kernel that grew by small writes: the kernel gives those small pages.
//!
//! Files that were opened for writing are listed. One that has rested for a second is put in huge pages, a step at a time, where it has data
//! without holes; files of less than 2 MiB stay in small pages, and so do interleaved ones, whose nodes take turns by the page.
//!
//! Cost: a stat of at most 2,048 listed files a look; a file leaves the list when it is done and has no writer.

use super::KernelFile;
use crate::fs::{Error, Fs, Ino, Inode, Placement};

use crate::{Clock, Memory};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering;

/// Bytes of a huge page.
pub(super) const HUGE_BYTES: u64 = 2 << 20;
/// Bytes of one step: a few milliseconds.
const STEP_BYTES: u64 = 4 * HUGE_BYTES;
/// Time without a write after which a file rests.
const REST_NS: u64 = 1_000_000_000;
/// Files that one look asks for their size.
const LOOK_MAX: usize = 2048;

/// Files that may have grown.
#[derive(Debug, Default)]
pub(in crate::fs) struct Growing(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    /// Bytes from the start that are in huge pages as far as they can be.
    files: BTreeMap<Ino, u64>,
    /// Where the next look begins.
    next: Option<Ino>,
}

/// Outcome of a look at a file.
enum Found {
    /// Nothing to do now.
    Waits,
    /// Nothing to do until it is opened for writing again.
    Done,
    /// A step was done, up to this byte.
    Step(u64),
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Lists a file that is opened for writing.
    pub(super) fn note_growing(&self, inode: &Inode, file: &KernelFile) {
        // Relaxed: who takes a file off the list clears this first, with the list locked, and then looks for writers again.
        if !file.is_growing.swap(true, Ordering::Relaxed) {
            self.growing.0.lock().files.insert(inode.ino, 0);
        }
    }

    /// Takes a file that is gone off the list.
    pub(in crate::fs) fn forget_growing(&self, ino: Ino, file: &KernelFile) {
        // Relaxed: nobody opens it any more, and who took it off before has found no writer.
        if file.is_growing.load(Ordering::Relaxed) {
            self.growing.0.lock().files.remove(&ino);
        }
    }

    /// Panics when a listed file is gone: a look may come to few files, and nobody is charged for the list. At rest only.
    pub(in crate::fs) fn check_growing(&self) {
        for ino in self.growing.0.lock().files.keys() {
            assert!(self.table.find(*ino).is_some(), "{ino:?} is listed, and gone");
        }
    }

    /// Puts a part of a listed file that rests in huge pages; returns whether there was one. Call this again and again.
    pub fn collapse_rested(&self) -> bool {
        let found: Vec<(Ino, u64)> = {
            let mut list = self.growing.0.lock();
            let from = list.next.take().map_or(Bound::Unbounded, Bound::Included);
            let (behind, before) = (list.files.range((from, Bound::Unbounded)), list.files.iter());
            let all = behind.chain(before).take(list.files.len().min(LOOK_MAX));
            let found: Vec<_> = all.map(|(ino, done)| (*ino, *done)).collect();
            list.next = found.last().map(|(ino, _)| Ino(ino.0 + 1));
            found
        };
        for (ino, done) in found {
            let inode = self.table.find(ino);
            let file = inode.as_deref().and_then(|inode| Some((inode, inode.kernel_file()?)));
            let found = file.map_or(Found::Done, |(inode, file)| self.collapse_step(inode, file, done));
            match found {
                Found::Waits => {}
                Found::Done => {
                    let mut list = self.growing.0.lock();
                    list.files.remove(&ino);
                    if let Some((inode, file)) = file {
                        file.is_growing.store(false, Ordering::Relaxed);
                        // One that came meanwhile has found it listed.
                        if self.opens(inode).writers > 0 && !file.is_growing.swap(true, Ordering::Relaxed) {
                            list.files.insert(ino, 0);
                        }
                    }
                }
                Found::Step(done) => {
                    let mut list = self.growing.0.lock();
                    if let Some(entry) = list.files.get_mut(&ino) {
                        *entry = done;
                    }
                    // One with many pieces does not keep others waiting.
                    list.next = Some(Ino(ino.0 + 1));
                    return true;
                }
            }
        }
        false
    }

    fn collapse_step(&self, inode: &Inode, file: &KernelFile, done: u64) -> Found {
        // Nobody is told of it: clients that copy need not know.
        let status = file.file.status().unwrap_or_default();
        let done = done.min(status.size);
        let end = status.size / HUGE_BYTES * HUGE_BYTES;
        if inode.policy.load() == Some(Placement::Interleave) {
            return Found::Done;
        }
        if done >= end {
            return if self.opens(inode).writers == 0 {
                Found::Done
            } else {
                Found::Waits
            };
        }
        // A time that utimensat(2) has set may lie far ahead.
        if self.now_ns().abs_diff(status.mtime_ns) < REST_NS {
            return Found::Waits;
        }
        // Holes may be longer than all memory.
        let done = match file.file.next_taken(done, end) {
            Ok(Some(taken)) => taken / HUGE_BYTES * HUGE_BYTES,
            Ok(None) => return Found::Step(end),
            Err(_) => return Found::Waits,
        };
        let until = end.min(done + STEP_BYTES);
        match file.file.collapse(done..until) {
            Err(Error::NotSupported) => Found::Done,
            // What is in use just now stays as it is.
            _ => {
                file.forget_where();
                Found::Step(until)
            }
        }
    }
}
