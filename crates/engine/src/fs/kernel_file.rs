//! A file's bytes in a backing file of the kernel, which reads, writes and maps them without asking.
//!
//! Size, blocks and times are the backing file's: they change unseen, so nothing is kept here. Reads and writes come here
//! only from the library, and from requests that the kernel does not pass through. Choice: docs/decisions/012-kernel-bodies.md.

mod huge;
mod promise;
mod steering;
mod survey;

use super::block_file::FILE_BYTES_MAX;
use super::inode::Body;
use super::words::FileLines;
use super::{Attr, BlockFile, Error, Fs, Ino, Inode, Operation, Result, Whence};
use crate::backing::{BackingFile, BackingStatus, Registration};

use crate::pool::Pool;
use crate::{BLOCK_BYTES, Clock, Memory, NodeId};
use homenode_shared::Words;
use parking_lot::Mutex;
pub use promise::Promised;
pub(super) use promise::Promising;
use promise::{Given, MARGIN_BLOCKS, Promise};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
pub use survey::Survey;

/// Pieces of 2 MiB with blocks that one step of freeing takes: a few milliseconds of pages of 4 KiB.
const STEP_PIECES: u64 = 16;
/// Blocks that are freed at once.
const STEP_BLOCKS: u64 = STEP_PIECES * huge::HUGE_BYTES / BLOCK_BYTES as u64;
/// Most blocks of a file that are counted at once: 1 GiB, 2 ms of pages of 4 KiB. Of a larger one the search takes milliseconds.
const COUNTED_BLOCKS: u64 = (1 << 30) / BLOCK_BYTES as u64;
/// Factor on the number of steps of a cut. A file with one block in each piece has a 65th of its blocks left for the last step.
const STEPS_SPARE: u64 = 64;
/// Blocks in which one step of a seek finds that there is no hole: 1 GiB, 2 ms of pages of 4 KiB.
const SEEK_BLOCKS: u64 = (1 << 30) / BLOCK_BYTES as u64;
/// Blocks of an aligned 2 MiB, in which one step of a seek finds data.
const HUGE_BLOCKS: u64 = huge::HUGE_BYTES / BLOCK_BYTES as u64;
/// Blocks in which a seek looks first.
const LOOK_BLOCKS: u64 = 16;
/// Set in the progress of a fallocate that books room, besides the bytes that are booked; without it they are allocated.
const BOOKING: u64 = 1 << 63;
/// Bits of a truncation's progress that tell the place, in units of [`huge::HUGE_BYTES`]; those above count the steps.
const PLACE_BITS: u32 = 42;
/// Most steps that fit beside the place.
const STEPS_MAX: u64 = (1 << (u64::BITS - PLACE_BITS)) - 1;

/// Bytes on each node, ascending by node.
type Lies = Box<[(NodeId, u64)]>;

/// Where the bytes lie, if that is known.
#[derive(Debug, Default)]
struct Found {
    lies: Option<Lies>,
    /// Blocks at that look of a file with holes. Reading a hole through a mapping takes a block, and a reader may do it.
    blocks: Option<u64>,
    /// Changes that the server knows of.
    changes: u64,
}

/// Times of a prepared file until something changes them: in 1823, when no other file was written.
pub(super) const UNBORN_NS: i64 = -(1 << 62) + 1;

/// Bytes in a file of the kernel.
#[derive(Debug)]
pub(super) struct KernelFile {
    file: Box<dyn BackingFile>,
    /// The kernel's number for it, on the connection that asked last.
    registration: Mutex<Option<Box<dyn Registration>>>,
    /// Some process has opened it, and may read holes through a mapping.
    was_opened: AtomicBool,
    /// Whether some process may write without a request.
    may_be_written: AtomicBool,
    /// Whether some process may have it mapped for writing; the kernel is told that attributes last while none may.
    may_be_mapped: AtomicBool,
    /// Held while the two above change.
    changing_writers: Mutex<()>,
    /// Where the bytes lie, as long as nothing can have changed that.
    found: Mutex<Found>,
    promise: Mutex<Promise>,
    /// Blocks that are promised, as they were counted last.
    promised: AtomicU64,
    /// Blocks that the pool counts for it, as it has no name; `None` when it is gone.
    ahead: Mutex<Option<u64>>,
    /// Change of the nodes that take pages after which the file was placed last.
    placed: Mutex<u64>,
    /// Whether it is listed as one that may have grown.
    is_growing: AtomicBool,
    /// Time of the last change of the backing file that was told to anybody.
    seen_ns: AtomicI64,
    /// Words by which clients that copy see what becomes of it.
    lines: FileLines,
    /// Whose file of words it is.
    words_reader: OnceLock<u32>,
}

pub(super) use huge::Growing;
pub(super) use steering::Steering;

impl KernelFile {
    pub(super) fn new(file: Box<dyn BackingFile>) -> Self {
        Self {
            file,
            registration: Mutex::default(),
            was_opened: AtomicBool::new(false),
            may_be_written: AtomicBool::new(false),
            may_be_mapped: AtomicBool::new(false),
            changing_writers: Mutex::default(),
            found: Mutex::default(),
            promise: Mutex::default(),
            promised: AtomicU64::new(0),
            ahead: Mutex::new(Some(0)),
            placed: Mutex::default(),
            is_growing: AtomicBool::new(false),
            seen_ns: AtomicI64::new(i64::MIN),
            lines: FileLines::default(),
            words_reader: OnceLock::new(),
        }
    }

    /// Lines of clients that copy.
    pub(super) fn lines(&self) -> &FileLines {
        &self.lines
    }

    /// The user for whom it holds words, and who alone may read them.
    pub(super) fn words_reader(&self) -> Option<u32> {
        self.words_reader.get().copied()
    }

    /// Makes the file, which is new, hold so many lines of words for `user`.
    pub(super) fn hold_words(&self, user: u32, lines: u32) -> Result<Words> {
        let words = self.file.words(lines)?;
        self.words_reader.set(user).map_err(|_| Error::Exists)?;
        Ok(words)
    }

    /// Blocks of each range of blocks that take no room.
    pub(super) fn holes(&self, ranges: &[Range<u64>]) -> Result<Vec<u64>> {
        self.file.holes(ranges)
    }

    /// Notes an open that may write, and may map what it writes if it may read, too (`can_map`). Calls `forget` when the kernel may keep
    /// attributes that such a mapping changes; other opens wait until that is done.
    fn note_writer(&self, can_map: bool, forget: impl FnOnce()) {
        let _alone = self.changing_writers.lock();
        // SeqCst: before this writer looks where pages go. Relaxed below: the lock orders changes, and a reader without it may be a
        // moment late, as its answer is.
        self.may_be_written.store(true, Ordering::SeqCst);
        self.forget_where();
        if can_map && !self.may_be_mapped.swap(true, Ordering::Relaxed) {
            forget();
        }
    }

    /// Has attributes last from now on when nobody may write any more: neither by an open that `is_open` counts, nor by a mapping that
    /// has outlived its open. An open is counted before it is noted, so it is seen here, or finds that attributes last.
    fn settle_writers(&self, is_open: impl FnOnce() -> bool) {
        let _alone = self.changing_writers.lock();
        if self.may_be_written() && !is_open() && self.file.has_writers() == Ok(false) {
            self.may_be_mapped.store(false, Ordering::Relaxed);
            self.may_be_written.store(false, Ordering::Relaxed);
        }
    }

    /// Whether some process may write without a request.
    fn may_be_written(&self) -> bool {
        // SeqCst: after the nodes that take pages have changed, a writer that is not seen here sees that change.
        self.may_be_written.load(Ordering::SeqCst)
    }

    /// Whether its attributes may change without a word of the kernel: it knows of its own writes, not of stores to a mapping.
    pub(super) fn changes_unseen(&self) -> bool {
        self.may_be_mapped.load(Ordering::Relaxed)
    }

    pub(super) fn note_opened(&self) {
        // Relaxed: the kernel asks for attributes again after an mmap(2), which follows the open.
        self.was_opened.store(true, Ordering::Relaxed);
    }

    /// Returns the status of the backing file; zeros on an error, as when the file is gone.
    pub(super) fn status(&self) -> BackingStatus {
        self.lines.raise_asks();
        let status = self.file.status().unwrap_or_default();
        // Relaxed: an answer beside a change tells of before or after.
        if self.seen_ns.load(Ordering::Relaxed) < status.ctime_ns {
            self.seen_ns.fetch_max(status.ctime_ns, Ordering::Relaxed);
        }
        status
    }

    /// [`Inode::stamp`] of what is not in the backing file. Since Linux 6.13 the next change there is later than both.
    pub(super) fn stamp(&self, now_ns: i64) -> i64 {
        now_ns.max(self.seen_ns.load(Ordering::Relaxed).saturating_add(1))
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
        let appended = self.file.append(from);
        self.forget_where();
        appended
    }

    /// Carries out one step of a seek, a few milliseconds long: breaks with what was found, or tells where the next step goes on. Blocks that take
    /// room count as data, written or not: lseek(2) visits all data to find a hole, and all that nobody has written to find data.
    pub(super) fn seek_step(&self, offset: u64, whence: Whence) -> Result<ControlFlow<u64, u64>> {
        match self.counted_step(offset, whence) {
            Ok(step) => step.ok_or(Error::NoData),
            // The kernel does not count.
            Err(_) => self.file.seek(offset, whence).map(ControlFlow::Break),
        }
    }

    /// [`KernelFile::seek_step`] by counts of blocks; `None` where there is no data.
    fn counted_step(&self, offset: u64, whence: Whence) -> Result<Option<ControlFlow<u64, u64>>> {
        let size = self.file.status()?.size;
        let start = match whence {
            _ if offset >= size => None,
            Whence::Data => self.file.next_taken(offset, size)?,
            Whence::Hole => Some(offset),
        };
        let Some(start) = start else { return Ok(None) };
        let first = start / BLOCK_BYTES as u64;
        let most = match whence {
            Whence::Data => HUGE_BLOCKS - first % HUGE_BLOCKS,
            Whence::Hole => SEEK_BLOCKS,
        };
        let end = (first + most).min(size.div_ceil(BLOCK_BYTES as u64));
        Ok(match self.first_block(first..end, whence)? {
            Some(block) => Some(ControlFlow::Break((block * BLOCK_BYTES as u64).max(start))),
            None if end * BLOCK_BYTES as u64 >= size => (whence == Whence::Hole).then_some(ControlFlow::Break(size)),
            None => Some(ControlFlow::Continue(end * BLOCK_BYTES as u64)),
        })
    }

    /// The first block of a range that takes room, or that takes none.
    fn first_block(&self, mut range: Range<u64>, whence: Whence) -> Result<Option<u64>> {
        let has_some = |range: &Range<u64>| {
            let holes = self.file.holes(slice::from_ref(range))?[0];
            Ok::<_, Error>(match whence {
                Whence::Data => holes < range.end - range.start,
                Whence::Hole => holes > 0,
            })
        };
        // Each part is twice as long as the one before, so that a near block is found by a look at what is near.
        let end = range.end;
        range.end = end.min(range.start + LOOK_BLOCKS);
        while !has_some(&range)? {
            if range.end == end {
                return Ok(None);
            }
            let blocks = range.end - range.start;
            range = range.end..end.min(range.end + 2 * blocks);
        }
        while range.end - range.start > 1 {
            let middle = range.start.midpoint(range.end);
            let half = range.start..middle;
            range = if has_some(&half)? { half } else { middle..range.end };
        }
        Ok(Some(range.start))
    }

    /// Adds the bytes on each node of a part of the file; gives where the next part begins.
    pub(super) fn map_part(&self, from: u64, by_node: &mut BTreeMap<NodeId, u64>) -> Result<Option<u64>> {
        self.file.map_part(from, by_node)
    }

    /// Forgets where the bytes lie, after they have changed.
    fn forget_where(&self) {
        let mut found = self.found.lock();
        found.lies = None;
        found.changes += 1;
    }

    pub(super) fn move_pages(
        &self,
        from: Option<NodeId>,
        to: NodeId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        let moved = self.file.move_pages(from, to, progress);
        self.forget_where();
        moved
    }

    /// Comes a step nearer to the size `size`, from the progress `done`, 0 at first; gives the progress, `None` at the end. What lies beyond
    /// is freed first, and reads as zeros then; the size changes last.
    pub(super) fn truncate_step<M: Memory>(&self, pool: &Pool<M>, size: u64, done: u64) -> Result<Option<u64>> {
        self.lines.cut(|| {
            let now = self.file.status()?;
            if now.size < size {
                // A cut of what others have written since.
                self.file.set_size(size)?;
                return Ok(None);
            }
            self.shorten_step(pool, &now, size, done)
        })
    }

    fn shorten_step<M: Memory>(
        &self,
        pool: &Pool<M>,
        now: &BackingStatus,
        size: u64,
        done: u64,
    ) -> Result<Option<u64>> {
        let (steps, place) = (done >> PLACE_BITS, done & ((1 << PLACE_BITS) - 1));
        // The steps must end: writers go on, and may put new bytes ahead of each step.
        let most = STEPS_MAX.min(STEPS_SPARE * now.blocks.div_ceil(STEP_PIECES));
        let from = size.max(place * huge::HUGE_BYTES);
        if now.blocks > STEP_BLOCKS && steps < most && !self.has_few_from(now, from) {
            let end = self.punch_some(pool, &(from..FILE_BYTES_MAX))?;
            if end < FILE_BYTES_MAX {
                return Ok(Some(((steps + 1) << PLACE_BITS) | (end / huge::HUGE_BYTES)));
            }
        }
        self.freeing(pool, size.div_ceil(BLOCK_BYTES as u64)..u64::MAX, || {
            self.file.set_size(size)?;
            self.forget_where();
            Ok(None)
        })
    }

    /// Whether it is known that at most [`STEP_BLOCKS`] lie from the byte `from` on: the steps' search looks at all that a file could have there.
    fn has_few_from(&self, now: &BackingStatus, from: u64) -> bool {
        let behind = from.div_ceil(BLOCK_BYTES as u64)..FILE_BYTES_MAX / BLOCK_BYTES as u64;
        let all = behind.end.saturating_sub(behind.start);
        // Else more must lie there: no more fit before it.
        now.blocks <= behind.start + STEP_BLOCKS
            && now.blocks <= COUNTED_BLOCKS
            && self
                .file
                .holes(slice::from_ref(&behind))
                .is_ok_and(|holes| all - holes[0] <= STEP_BLOCKS)
    }

    /// Frees a range of bytes, or the start of one that takes long; gives the byte up to which it came.
    pub(super) fn punch_step<M: Memory>(&self, pool: &Pool<M>, range: &Range<u64>) -> Result<u64> {
        self.lines.cut(|| self.punch_some(pool, range))
    }

    fn punch_some<M: Memory>(&self, pool: &Pool<M>, range: &Range<u64>) -> Result<u64> {
        let block = BLOCK_BYTES as u64;
        let end = match self.file.status()?.blocks {
            ..=STEP_BLOCKS => range.end,
            _ => self.step_end(range)?,
        };
        // Within one block nothing is gone.
        let start = range.start.div_ceil(block);
        self.freeing(pool, start..(end / block).max(start), || {
            self.file.punch(range.start, end - range.start)?;
            self.forget_where();
            Ok(end)
        })
    }

    /// Returns the byte behind the first [`STEP_PIECES`] pieces of `range` (bytes) with blocks; its end when it has no more than those.
    fn step_end(&self, range: &Range<u64>) -> Result<u64> {
        let mut end = range.start;
        for _ in 0..STEP_PIECES {
            match self.file.next_taken(end, range.end)? {
                Some(taken) => end = range.end.min((taken / huge::HUGE_BYTES + 1) * huge::HUGE_BYTES),
                None => return Ok(range.end),
            }
        }
        Ok(end)
    }

    /// Makes the file at least `bytes` bytes large. As a cut, as it is one of what others write meanwhile besides the mount.
    pub(super) fn grow_to(&self, bytes: u64) -> Result<()> {
        self.lines.cut(|| match self.file.status()?.size {
            size if size < bytes => self.file.set_size(bytes),
            _ => Ok(()),
        })
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
    pub(super) fn discard<M: Memory>(&self, pool: &Pool<M>, ino: Ino) {
        let _discarding = pool.note_discarding();
        // First: the steps that follow have no promises to count.
        self.promise_nothing(pool, &mut self.promise.lock());
        // A large file by steps: the kernel counts what it frees only when all of it is free. Nobody can reach the file any more.
        let mut done = 0;
        while let Ok(now) = self.file.status()
            && now.blocks > STEP_BLOCKS
            && let Ok(Some(next)) = self.lines.cut(|| self.shorten_step(pool, &now, 0, done))
        {
            done = next;
        }
        self.give_up();
        // Last: until then its blocks are not free.
        pool.take_back_ahead(ino, self.ahead.lock().take().unwrap_or(0));
    }

    /// Gives up the file, and the kernel's number for it, though an inode has it.
    fn give_up(&self) {
        self.file.discard();
        drop(self.registration.lock().take());
    }

    /// Takes room back that was given ahead of the file, which has a name again.
    pub(super) fn take_back_ahead<M: Memory>(&self, pool: &Pool<M>, ino: Ino) {
        let blocks = self.ahead.lock().as_mut().map_or(0, std::mem::take);
        if blocks > 0 {
            pool.take_back_ahead(ino, blocks);
        }
    }

    /// Gives writers room ahead of the file, which has no name: once for all its blocks when it is not open.
    pub(super) fn give_ahead<M: Memory>(&self, pool: &Pool<M>, ino: Ino, is_open: bool) {
        if let Some(ahead) = self.ahead.lock().as_mut().filter(|ahead| **ahead == 0) {
            let blocks = || self.status().blocks;
            match is_open {
                true => pool.give_ahead_of_close(ino, blocks),
                false => *ahead = pool.give_ahead(ino, blocks),
            }
        }
    }
}

impl Inode {
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

/// A body that no inode has yet, which the kernel knows already.
#[derive(Debug)]
pub struct PreparedFile(Box<KernelFile>);

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Makes a body for [`Fs::create_with`] and has `register` make it known on `connection`: so a file is made faster when it is
    /// wanted.
    ///
    /// # Errors
    /// [`Error::NotSupported`] where files are not the kernel's; those of `register`, and of making a file.
    pub fn prepare_file(
        &self,
        connection: u64,
        register: impl FnOnce(OwnedFd) -> Result<Box<dyn Registration>>,
    ) -> Result<PreparedFile> {
        let store = self.pool.store().ok_or(Error::NotSupported)?;
        let file = Box::new(KernelFile::new(store.create()?));
        file.set_times(Some(UNBORN_NS), Some(UNBORN_NS))?;
        file.id(connection, register)?;
        Ok(PreparedFile(file))
    }

    /// The body of a new regular file: a backing file where the pool lends its room to a store of those, `prepared` if there is one.
    pub(super) fn new_file(&self, prepared: Option<PreparedFile>) -> Result<Body> {
        if let Some(PreparedFile(file)) = prepared {
            return Ok(Body::Kernel(file));
        }
        match self.pool.store() {
            None => Ok(Body::File(BlockFile::default())),
            Some(store) => Ok(Body::Kernel(Box::new(KernelFile::new(store.create()?)))),
        }
    }

    /// Notes that some process may write to the inode without a request from now on, by an open that is counted; `can_map` tells that it may
    /// read as well, without which nothing can be mapped. Calls `forget` when the kernel was told before that attributes last and
    /// a mapping may change them: it has to forget them.
    pub fn note_writer(&self, inode: &Inode, can_map: bool, forget: impl FnOnce()) {
        if let Some(file) = inode.kernel_file() {
            file.note_writer(can_map, forget);
            self.place_for_writer(inode, file);
            self.note_growing(inode, file);
        }
    }

    /// [`Fs::attr`] for an answer that the kernel drops if an open that can map and write is answered before it arrives.
    pub fn lasting_attr(&self, inode: &Inode) -> Attr {
        if let Some(file) = inode.kernel_file() {
            if file.changes_unseen() {
                file.settle_writers(|| self.opens(inode).writers > 0);
            }
            // Looked at first: of what is promised then, blocks that were taken since the last count are told twice.
            let is_promised = !file.is_promised_nothing();
            let attr = self.attr(inode);
            // A mapping may outlive its open.
            let may_fill = attr.blocks * 512 < attr.size && file.was_opened.load(Ordering::Relaxed);
            return Attr {
                changes_unseen: file.changes_unseen() || may_fill || is_promised,
                ..attr
            };
        }
        self.attr(inode)
    }

    /// Gives up the backing files that nobody has open, whose memory else stays while anybody holds anything of a mount. Open ones go with the last holder: a
    /// write to one may hold the kernel's lock of it for ever.
    pub fn give_up_files(&self) {
        if self.pool.store().is_some() {
            self.table.for_each(|inode| {
                let file = inode.kernel_file().filter(|_| self.opens(inode).all == 0);
                file.inspect(|file| file.give_up());
            });
        }
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
                let whole = range.start / BLOCK_BYTES as u64..range.end.div_ceil(BLOCK_BYTES as u64);
                let next = self.reserve_step(inode, file, range, file.begin_steps(done));
                let grown = match next {
                    Ok(None) if operation == Operation::Reserve => file.grow_to(range.end),
                    _ => Ok(()),
                };
                let next = grown
                    .and(next)
                    .inspect_err(|_| file.take_back(&self.pool, &mut file.promise.lock(), whole))?;
                if next.is_none() {
                    file.end_steps();
                }
                inode.touch_changed(self.now_ns());
                Ok(next)
            }
            Operation::PunchHole => {
                let from = range.end.min(range.start + done);
                let end = file.punch_step(&self.pool, &(from..range.end))?;
                Ok((end < range.end).then_some(end - range.start))
            }
            _ => Err(Error::NotSupported),
        }
    }

    /// Comes a step nearer to room for `range` (bytes), from the progress `done`, 0 at first; returns the progress, `None` at the end. All of the
    /// range is booked first, then allocated where little room is left.
    fn reserve_step(&self, inode: &Inode, file: &KernelFile, range: &Range<u64>, done: u64) -> Result<Option<u64>> {
        let block = BLOCK_BYTES as u64;
        let bytes = (done & !BOOKING).min(range.end - range.start);
        let rest = (range.start + bytes) / block..range.end.div_ceil(block);
        let is_time = || self.pool.is_time_for_promises(MARGIN_BLOCKS);
        let is_allocating = done != 0 && done & BOOKING == 0;
        if is_allocating && (is_time() || !file.can_book(&rest)) {
            self.find_step_room(file, range, bytes)?;
            return self.allocate_step(file, range, bytes);
        }
        // Also after a step that allocated: what was booked before may have been given up since.
        let step = file.countable(&rest);
        let given = self.promise(inode.ino, file, &step, &rest)?;
        if given == Given::Booked && step.end < rest.end {
            return Ok(Some(BOOKING | (step.end * block - range.start)));
        }
        if given == Given::Unbooked || is_time() {
            let from = if is_allocating { bytes } else { 0 };
            return self.allocate_step(file, range, from);
        }
        Ok(None)
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
