//! A file's bytes in a backing file of the kernel, which reads, writes and maps them without asking.
//!
//! Size, blocks and times are the backing file's: they change unseen, so nothing is kept here. Reads and writes come here
//! only from the library, and from requests that the kernel does not pass through. Choice: docs/decisions/012-kernel-bodies.md.

use super::{Attr, Error, Fs, Inode, Operation, Placement, Result, Whence};
use crate::backing::{BackingFile, BackingStatus, Registration};
use crate::log::Log;
use crate::{BLOCK_BYTES, Clock, Memory, NodeId};
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks that one step of truncating frees, about: a few milliseconds of pages of 4 KiB.
const STEP_BLOCKS: u64 = (32 << 20) / BLOCK_BYTES as u64;
/// Bytes that one step of allocating takes, a few milliseconds.
const STEP_BYTES: u64 = 16 << 20;

/// Whether the kernel may keep attributes.
#[derive(Debug)]
struct IsKept(bool);

/// Bytes in a file of the kernel.
#[derive(Debug)]
pub(super) struct KernelFile {
    file: Box<dyn BackingFile>,
    /// The kernel's number for it, on the connection that asked last.
    registration: Mutex<Option<Box<dyn Registration>>>,
    /// Whether somebody may write unasked. Changes under the lock of `unseen`.
    may_be_written: AtomicBool,
    /// Whether the kernel was told that attributes last, since somebody wrote.
    unseen: Mutex<IsKept>,
    /// Held by appenders of the library.
    appending: Mutex<()>,
}

impl KernelFile {
    pub(super) fn new(file: Box<dyn BackingFile>) -> Self {
        Self {
            file,
            registration: Mutex::default(),
            may_be_written: AtomicBool::new(false),
            unseen: Mutex::new(IsKept(true)),
            appending: Mutex::default(),
        }
    }

    /// Notes an open that may write; true when the kernel may keep attributes, and is to forget them.
    fn note_writer(&self) -> bool {
        let mut is_kept = self.unseen.lock();
        // Relaxed, here and below: the lock orders changes, and whoever reads without it may be a moment late, as its answer is.
        self.may_be_written.store(true, Ordering::Relaxed);
        std::mem::replace(&mut is_kept.0, false)
    }

    /// Has attributes last from now on when nobody may write any more: neither by an open that `is_open` counts, nor by a mapping that
    /// has outlived its open. An open is counted before it is noted, so it is seen here, or finds that attributes last.
    fn settle_writers(&self, is_open: impl FnOnce() -> bool) {
        if !self.changes_unseen() {
            return;
        }
        let mut is_kept = self.unseen.lock();
        if !is_open() && self.file.has_writers() == Ok(false) {
            self.may_be_written.store(false, Ordering::Relaxed);
            is_kept.0 = true;
        }
    }

    /// Whether its attributes may change without a request.
    pub(super) fn changes_unseen(&self) -> bool {
        self.may_be_written.load(Ordering::Relaxed)
    }

    /// What the backing file tells; zeros when it is gone.
    pub(super) fn status(&self) -> BackingStatus {
        self.file.status().unwrap_or_default()
    }

    pub(super) fn set_times(&self, atime_ns: Option<i64>, mtime_ns: Option<i64>) -> Result<()> {
        self.file.set_times(atime_ns, mtime_ns)
    }

    pub(super) fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.file.read(offset, to)
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        self.file.write(offset, from)
    }

    /// Writes at the end; gives the offset and the bytes written.
    pub(super) fn append(&self, from: &[u8]) -> Result<(u64, usize)> {
        let _turn = self.appending.lock();
        let offset = self.file.status()?.size;
        Ok((offset, self.file.write(offset, from)?))
    }

    pub(super) fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        self.file.seek(offset, whence)
    }

    pub(super) fn map(&self) -> Vec<(NodeId, u64)> {
        self.file.map().unwrap_or_default()
    }

    pub(super) fn place(&self, placement: Option<Placement>) -> Result<()> {
        self.file.place(placement)
    }

    pub(super) fn move_to(&self, node: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        self.file.move_to(node, progress)
    }

    /// Comes a step nearer to the size `size`; tells whether there is more to do.
    pub(super) fn truncate_step(&self, size: u64) -> Result<bool> {
        let now = self.file.status()?;
        let steps = now.blocks.div_ceil(STEP_BLOCKS);
        let is_last = now.size <= size || steps <= 1;
        // As if its blocks were evenly spread.
        let next = if is_last {
            size
        } else {
            now.size - (now.size - size).div_ceil(steps)
        };
        self.file.set_size(next)?;
        Ok(next > size)
    }

    /// Carries out the step of allocating or punching `range` that follows its first `done` bytes; gives the bytes done then, `None` for
    /// all. `room` tells the blocks that are free.
    pub(super) fn allocate_step(
        &self,
        operation: Operation,
        range: &Range<u64>,
        done: u64,
        room: impl Fn() -> u64,
    ) -> Result<Option<u64>> {
        let bytes = range.end - range.start;
        let keeps_size = match operation {
            Operation::Reserve => false,
            Operation::ReserveKeepSize => true,
            Operation::PunchHole => {
                // Quick beside allocating, and a hole of a terabyte has no more to free than there is.
                self.file.punch(range.start, bytes)?;
                return Ok(None);
            }
            _ => return Err(Error::NotSupported),
        };
        // What may not fit goes in one call, which the kernel undoes by itself.
        let in_steps = done > 0 || bytes > STEP_BYTES && self.missing_blocks(range)? <= room();
        let step = if in_steps {
            (bytes - done).min(STEP_BYTES)
        } else {
            bytes
        };
        let is_last = done + step == bytes;
        self.file.allocate(range.start + done, step, keeps_size || !is_last)?;
        Ok((!is_last).then_some(done + step))
    }

    /// Blocks of `range` without data: those that were only allocated count.
    fn missing_blocks(&self, range: &Range<u64>) -> Result<u64> {
        let (mut at, mut missing) = (range.start, 0);
        while at < range.end {
            let data = match self.file.seek(at, Whence::Data) {
                Ok(data) => data.min(range.end),
                Err(Error::NoData) => range.end,
                Err(error) => return Err(error),
            };
            missing += (data - at).div_ceil(BLOCK_BYTES as u64);
            at = if data < range.end {
                self.file.seek(data, Whence::Hole)?
            } else {
                data
            };
        }
        Ok(missing)
    }

    /// The number by which the kernel knows the file on `connection`; `register` gets one where there is none.
    fn id(&self, connection: u64, register: impl FnOnce(OwnedFd) -> Result<Box<dyn Registration>>) -> Result<i32> {
        let mut registration = self.registration.lock();
        let known = registration.as_ref().and_then(|known| known.id_on(connection));
        if let Some(id) = known {
            return Ok(id);
        }
        let new = register(self.file.descriptor()?)?;
        let id = new.id_on(connection).ok_or(Error::Io)?;
        *registration = Some(new);
        Ok(id)
    }

    /// Gives up the file and its registration, when nothing keeps the inode any more.
    pub(super) fn discard(&self) {
        self.file.discard();
        drop(self.registration.lock().take());
    }
}

impl Inode {
    /// Notes that somebody may write to the inode without a request from now on, by an open that is counted; true when the kernel was told before that
    /// attributes last, and has to forget them.
    #[must_use]
    pub fn note_writer(&self) -> bool {
        self.kernel_file().is_some_and(KernelFile::note_writer)
    }

    /// The number by which the kernel knows the inode's backing file on `connection`; `None` when it has no such file. `register`
    /// gets a number where there is none yet.
    ///
    /// # Errors
    /// Those of `register`, and ENFILE when the process has no descriptor left.
    pub fn backing_id(
        &self,
        connection: u64,
        register: impl FnOnce(OwnedFd) -> Result<Box<dyn Registration>>,
    ) -> Option<Result<i32>> {
        self.kernel_file().map(|file| file.id(connection, register))
    }
}

impl<M: Memory, C: Clock, L: Log> Fs<M, C, L> {
    /// [`Fs::attr`] for an answer that the kernel drops if an open for writing is answered before it arrives.
    pub fn lasting_attr(&self, inode: &Inode) -> Attr {
        if let Some(file) = inode.kernel_file() {
            file.settle_writers(|| self.opens(inode).writers > 0);
        }
        self.attr(inode)
    }

    /// Runs `write`, which writes to a kernel body; then takes privileges away if `kill_priv`.
    pub(super) fn write_kernel<T>(
        &self,
        inode: &Inode,
        kill_priv: bool,
        write: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let written = write()?;
        if kill_priv {
            self.kill_privileges(inode);
        }
        Ok(written)
    }
}
