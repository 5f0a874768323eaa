//! Blocks that are read from disks into frames of a filesystem's cache, for requests of a device.
//!
//! Invariant: a fetch that was begun is ended, whatever becomes of its read: others wait for its blocks. So a thread that has some under way must not
//! wait for anything that needs one of those blocks, a free frame or a gate: first [`FrameReads::end_all`].

use super::reads::{ReadEnd, Reads};
use homenode_engine::blk::Tag;
use homenode_engine::cache::Fetch;
use homenode_engine::fs::{Asking, Fs, Inode};
use homenode_engine::{Clock, MemberId, Memory};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Reads into frames of `fs`, each for a request.
#[derive(Debug)]
pub struct FrameReads<M: Memory, C: Clock> {
    // Dropped before the frames.
    reads: Reads<(Fetch, Tag)>,
    fs: Arc<Fs<M, C>>,
}

/// Event that [`FrameReads::take`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// A read for this request has ended; the disk's member where that did not give all of its bytes.
    Read(Tag, Option<MemberId>),
    /// The kernel has not carried a read for this request out.
    Refused(Tag),
    /// The pause is over.
    Pause,
}

impl<M: Memory, C: Clock> FrameReads<M, C> {
    /// For frames of `fs`.
    ///
    /// # Errors
    /// The kernel makes no ring.
    pub fn new(fs: Arc<Fs<M, C>>) -> io::Result<Self> {
        Ok(Self {
            reads: Reads::new()?,
            fs,
        })
    }

    /// Readable while [`FrameReads::take`] has something to tell; `None` when nothing more is begun.
    #[must_use]
    pub fn bell(&self) -> Option<RawFd> {
        self.reads.bell()
    }

    /// Reads under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.reads.under_way()
    }

    /// Begins to read what is away of `bytes` of a file. Returns the number of reads: 0 where others read it, no frame is free, or
    /// blocks are being taken away. [`FrameReads::enter`] gives them to the kernel.
    pub fn begin(&mut self, asking: &Asking<'_>, inode: &Inode, bytes: Range<u64>, tag: Tag) -> usize {
        if self.reads.bell().is_none() {
            return 0;
        }
        let mut begun = 0;
        for fetch in self.fs.begin_fetches(asking, inode, bytes) {
            // SAFETY: the pieces are frames that are nobody else's until the fetch is ended, which is when the read's end is told. They
            // stay mapped while the filesystem is there, which is dropped behind the ring.
            match unsafe { self.reads.begin((fetch, tag), |(fetch, _)| fetch.transfer()) } {
                Ok(()) => begun += 1,
                Err((fetch, _)) => self.fs.end_fetch(fetch, false),
            }
        }
        begun
    }

    /// Makes the bell ring in 50 µs, or a millisecond for a long pause, if it is not to do so already. False when the kernel has no room for that.
    pub fn pause(&mut self, is_long: bool) -> bool {
        self.reads.pause(is_long)
    }

    /// Gives the kernel what was begun.
    pub fn enter(&mut self) {
        self.reads.enter();
    }

    /// Ends the fetches whose reads have ended, and tells that.
    pub fn take(&mut self, mut came: impl FnMut(Came)) {
        let fs = &self.fs;
        let is_over = self.reads.take(|(fetch, tag), end| {
            let failed = (end == ReadEnd::Failed).then(|| fetch.member());
            fs.end_fetch(fetch, end == ReadEnd::Whole);
            came(match end {
                ReadEnd::Refused => Came::Refused(tag),
                _ => Came::Read(tag, failed),
            });
        });
        if is_over {
            came(Came::Pause);
        }
    }

    /// Waits until no read is under way, and tells what has come.
    pub fn end_all(&mut self, mut came: impl FnMut(Came)) {
        while self.under_way() > 0 {
            self.reads.wait();
            self.take(&mut came);
        }
    }
}

impl<M: Memory, C: Clock> Drop for FrameReads<M, C> {
    fn drop(&mut self) {
        self.reads.close();
        self.take(|_| {});
    }
}
