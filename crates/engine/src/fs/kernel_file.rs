//! A file's bytes in a backing file of the kernel, which reads, writes and maps them without asking.
//!
//! Size, blocks and times are the backing file's: they change unseen, so nothing is kept here. Reads and writes come here
//! only from the library, and from requests that the kernel does not pass through. Choice: docs/decisions/012-kernel-bodies.md.

mod promise;

use super::{Attr, Error, Fs, Inode, Operation, Placement, Result, Whence};
use crate::backing::{BackingFile, BackingStatus, Registration};
use crate::log::Log;
use crate::pool::Pool;
use crate::{BLOCK_BYTES, Clock, Memory, NodeId};
use parking_lot::Mutex;
use promise::Promise;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks that one step of truncating frees, about: a few milliseconds of pages of 4 KiB.
const STEP_BLOCKS: u64 = (32 << 20) / BLOCK_BYTES as u64;

/// Bytes on each node, ascending by node.
type Lies = Box<[(NodeId, u64)]>;

/// Where the bytes lie, if that is known.
#[derive(Debug, Default)]
struct Found {
    lies: Option<Lies>,
    /// Changes that the server knows of.
    changes: u64,
}

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
    /// Where the bytes lie, as long as nothing can have changed that.
    found: Mutex<Found>,
    promise: Mutex<Promise>,
    /// Blocks that are promised, as they were counted last.
    promised: AtomicU64,
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
            found: Mutex::default(),
            promise: Mutex::default(),
            promised: AtomicU64::new(0),
            appending: Mutex::default(),
        }
    }

    /// Notes an open that may write. Calls `forget` when the kernel may keep attributes; other opens wait until that is done.
    fn note_writer(&self, forget: impl FnOnce()) {
        let mut is_kept = self.unseen.lock();
        // Relaxed, here and below: the lock orders changes, and whoever reads without it may be a moment late, as its answer is.
        self.may_be_written.store(true, Ordering::Relaxed);
        self.forget_where();
        if std::mem::replace(&mut is_kept.0, false) {
            forget();
        }
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
        let written = self.file.write(offset, from);
        self.forget_where();
        written
    }

    /// Writes at the end; gives the offset and the bytes written.
    pub(super) fn append(&self, from: &[u8]) -> Result<(u64, usize)> {
        let _turn = self.appending.lock();
        let offset = self.file.status()?.size;
        Ok((offset, self.write(offset, from)?))
    }

    pub(super) fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        self.file.seek(offset, whence)
    }

    pub(super) fn map(&self) -> Vec<(NodeId, u64)> {
        self.file.map().unwrap_or_default()
    }

    /// [`KernelFile::map`], as it was found before if nobody can have changed it since.
    fn known_map(&self) -> Lies {
        let before = {
            let found = self.found.lock();
            if let Some(lies) = &found.lies {
                return lies.clone();
            }
            found.changes
        };
        let lies: Lies = self.map().into();
        let mut found = self.found.lock();
        // A writer that comes now forgets it; one that came before has set the flag.
        if found.changes == before && !self.changes_unseen() {
            found.lies = Some(lies.clone());
        }
        lies
    }

    /// Forgets where the bytes lie, after they have changed.
    fn forget_where(&self) {
        let mut found = self.found.lock();
        found.lies = None;
        found.changes += 1;
    }

    pub(super) fn place(&self, placement: Option<Placement>) -> Result<()> {
        self.file.place(placement)
    }

    pub(super) fn move_to(&self, node: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let moved = self.file.move_to(node, progress);
        self.forget_where();
        moved
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
        self.forget_where();
        Ok(next > size)
    }

    /// Frees a range of bytes.
    pub(super) fn punch(&self, range: &Range<u64>) -> Result<()> {
        self.file.punch(range.start, range.end - range.start)?;
        self.forget_where();
        Ok(())
    }

    /// Makes the file at least `bytes` bytes large.
    pub(super) fn grow_to(&self, bytes: u64) -> Result<()> {
        if self.file.status()?.size < bytes {
            self.file.set_size(bytes)?;
        }
        Ok(())
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

    /// Gives up the file, its promises and its registration, when nothing keeps the inode any more.
    pub(super) fn discard<M: Memory>(&self, pool: &Pool<M>) {
        self.unpromise(pool, &(0..u64::MAX));
        self.file.discard();
        drop(self.registration.lock().take());
    }
}

impl Inode {
    /// Notes that somebody may write to the inode without a request from now on, by an open that is counted. Calls `forget` when the
    /// kernel was told before that attributes last: it has to forget them.
    pub fn note_writer(&self, forget: impl FnOnce()) {
        if let Some(file) = self.kernel_file() {
            file.note_writer(forget);
        }
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
            return Attr {
                changes_unseen: file.changes_unseen(),
                ..self.attr(inode)
            };
        }
        self.attr(inode)
    }

    /// Bytes of all backing files on each node, ascending by node. Looks at files while `goes_on`, and takes what was found
    /// before where nobody can have changed it; so the sum may be less than what the files take.
    pub fn backing_by_node(&self, goes_on: impl Fn() -> bool) -> Vec<(NodeId, u64)> {
        let mut nodes = BTreeMap::<NodeId, u64>::new();
        self.table.for_each(|inode| {
            let Some(file) = inode.kernel_file().filter(|_| goes_on()) else {
                return;
            };
            file.settle_writers(|| self.opens(inode).writers > 0);
            for (node, bytes) in file.known_map() {
                *nodes.entry(node).or_default() += bytes;
            }
        });
        nodes.into_iter().collect()
    }

    /// [`Fs::truncate_step`] of a kernel body.
    pub(super) fn truncate_kernel(&self, file: &KernelFile, size: u64) -> Result<bool> {
        let grows = file.file.status()?.size < size;
        let is_unfinished = file.truncate_step(size)?;
        if !grows && !is_unfinished {
            file.unpromise(&self.pool, &(size.div_ceil(BLOCK_BYTES as u64)..u64::MAX));
        }
        Ok(is_unfinished)
    }

    /// [`Fs::fallocate_step`] of a kernel body: promises room, or frees it.
    pub(super) fn allocate_kernel(
        &self,
        inode: &Inode,
        file: &KernelFile,
        operation: Operation,
        range: &Range<u64>,
        done: u64,
    ) -> Result<Option<u64>> {
        match operation {
            Operation::Reserve | Operation::ReserveKeepSize => {
                if done == 0 {
                    self.promise(inode, file, range)?;
                }
                let block = BLOCK_BYTES as u64;
                let next = self.allocate_if_full(file, range, done).inspect_err(|_| {
                    file.unpromise(&self.pool, &(range.start / block..range.end.div_ceil(block)));
                })?;
                if next.is_none() && operation == Operation::Reserve {
                    file.grow_to(range.end)?;
                }
                inode.touch_changed(self.now_ns());
                Ok(next)
            }
            Operation::PunchHole => {
                let block = BLOCK_BYTES as u64;
                file.punch(range)?;
                let gone = range.start.div_ceil(block)..range.end / block;
                file.unpromise(&self.pool, &gone);
                Ok(None)
            }
            _ => Err(Error::NotSupported),
        }
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
