//! Open state of inodes: how many opens there are, and how many of them may write.
//!
//! The counts lie in the inode's locked state beside links and pins, and keep the inode as those do. There is no table of
//! open files: an open carries its access itself (FUSE's `fh`, the library's handle), and a release tells it again. A
//! release without an open changes nothing. Cost: 8 bytes an inode, nothing an open.

use super::inode::State;
use super::unlinked::Standing;
use super::{Error, Fs, Inode, Result};

use crate::{Clock, Memory};
use std::sync::atomic::Ordering;

/// The access of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads.
    Read,
    /// Writes; may read as well.
    Write,
}

/// Opens of one inode that are not released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opens {
    /// Number of all opens.
    pub all: u32,
    /// Number of opens that may write.
    pub writers: u32,
}

impl Opens {
    /// Adds an open; `None` when the count is full.
    fn with(self, access: Access) -> Option<Self> {
        Some(Self {
            all: self.all.checked_add(1)?,
            writers: self.writers + u32::from(access == Access::Write),
        })
    }

    /// Takes an open away; the writers never outnumber all.
    fn without(self, access: Access) -> Self {
        let all = self.all.saturating_sub(1);
        let writers = self.writers.saturating_sub(u32::from(access == Access::Write));
        Self {
            all,
            writers: writers.min(all),
        }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Opens an inode: counts it and keeps the inode, unlinked or not, until [`Fs::release`]. A writer is noted after
    /// that ([`Fs::note_writer`]).
    ///
    /// # Errors
    /// [`Error::Stale`] when the inode is gone, [`Error::Busy`] when it is open 2³² times.
    pub fn open(&self, inode: &Inode, access: Access) -> Result<()> {
        let mut state = inode.state.lock();
        if state.evicted {
            return Err(Error::Stale);
        }
        let before = state.standing(inode);
        state.opens = state.opens.with(access).ok_or(Error::Busy)?;
        self.unlinked.moved(before, state.standing(inode));
        // Relaxed, here and below: a figure for status.
        self.opens.fetch_add(1, Ordering::Relaxed);
        inode.kernel_file().inspect(|file| file.note_opened());
        Ok(())
    }

    /// Takes back one open of that access. The inode goes with the last one when nothing else keeps it.
    pub fn release(&self, inode: &Inode, access: Access) {
        self.release_telling(inode, access, || ());
    }

    /// Takes back one open ([`Self::release`]); calls `at_end` when the inode goes, before its blocks are freed.
    pub fn release_telling(&self, inode: &Inode, access: Access, at_end: impl FnOnce()) {
        let (mut is_last, mut is_unlinked) = (false, false);
        let take_back = |state: &mut State| {
            if state.opens.all > 0 {
                self.opens.fetch_sub(1, Ordering::Relaxed);
            }
            state.opens = state.opens.without(access);
            is_last = state.opens.all == 0;
            is_unlinked = state.is_unlinked();
        };
        self.let_go(inode, take_back, at_end);
        if is_last && let Some(file) = inode.blocks() {
            // Unless somebody has the gate closed, who may wait for a disk: it saves a few nodes, now or at the next close.
            self.settle(inode, file, false);
        }
        if is_last && let Some(file) = inode.kernel_file() {
            file.lines().clear_unless(|| self.opens(inode).all > 0);
            if is_unlinked {
                file.give_ahead(&self.pool, inode.ino, false);
                if !inode.state.lock().is_unlinked() {
                    // It has a name since, or is gone.
                    file.take_back_ahead(&self.pool, inode.ino);
                }
            }
        }
    }

    /// Opens of one inode.
    pub fn opens(&self, inode: &Inode) -> Opens {
        inode.state.lock().opens
    }

    /// Opens of all inodes together.
    pub fn open_count(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Panics when the opens of all inodes do not add up to the sum that is kept, or files without a name to their counts. At rest only.
    pub(super) fn check_opens(&self) {
        let mut sum = 0;
        let (mut open, mut closed) = (0, 0);
        self.table.for_each(|inode| {
            let standing = inode.state.lock().standing(inode);
            open += u64::from(standing == Standing::Open);
            closed += u64::from(standing == Standing::Closed);
            let Opens { all, writers } = self.opens(inode);
            assert!(writers <= all, "inode {} has more writers than opens", inode.ino.0);
            sum += u64::from(all);
        });
        assert_eq!(sum, self.open_count(), "opens of inodes and of the filesystem differ");
        let counted = self.unlinked();
        let counted = [counted.open, counted.closed, counted.going].map(|count| count.files);
        assert_eq!(
            [open, closed, 0],
            counted,
            "files without a name and their counts differ"
        );
    }
}
