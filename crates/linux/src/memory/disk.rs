//! Members that are disks: devices, partitions and files that are reached by requests, past the page cache.
//!
//! A request is one call of preadv(2) or pwritev(2) on the frames themselves; it goes on where the kernel has stopped early. Durable is what was
//! flushed: RWF_DSYNC makes the kernel flush a device twice. Flushes are made one at a time, each for all who asked before it began, so that no flush
//! hides that the one before it failed: a disk tells of bytes that it lost only once.
//!
//! Writes of scattered blocks are made at the same time, by a ring that one thread uses at a time.
//!
//! Frames and the log's last block change while they are written. Where that is an error, as on btrfs, which takes a checksum before, a copy is written.
//!
//! Cost: a system call for a read, one more for a write, which asks whether the file is whole; neither memory nor a lock is taken for reads and single
//! writes.

use super::durable::{Aligned, MemberFile, MemberFileError, identity, wants_stable_bytes};
use super::table::Table;
use crate::copy;
use crate::driver::{ReadEnd, Reads, Writes, beside};
use homenode_engine::cache::Fetch;
use homenode_engine::{BLOCK_BYTES, Block, Disks, FrameWrite, MemberId};
use io_uring::opcode;
use io_uring::types::Fd;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::FileType;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most frames of a request.
const FRAMES_MAX: usize = <super::NodeMemory as Disks>::BLOCKS_MAX;

/// How long the end of a read is waited for at a time: the descriptor may be closed meanwhile, and what the thread wants may have come by another way.
const WAIT_MS: i32 = 2;

#[derive(Debug)]
pub(super) struct DiskMember {
    file: MemberFile,
    flushes: Flushes,
    begun: Mutex<Begun>,
    /// `None` where the kernel makes no ring.
    together: OnceLock<Option<Mutex<Writes>>>,
    /// The kernel serves that ring no more.
    has_closed_ring: AtomicBool,
    /// Bytes of a write on their way, where those must not change meanwhile.
    stage: Option<Mutex<Aligned>>,
    /// Requests that failed.
    errors: AtomicU64,
    /// It is a file that somebody has cut off.
    was_cut: AtomicBool,
}

impl DiskMember {
    pub(super) fn new(file: MemberFile) -> Self {
        let wants_stable_bytes = wants_stable_bytes(&file.file);
        Self::with_stage(file, wants_stable_bytes)
    }

    fn with_stage(file: MemberFile, has_stage: bool) -> Self {
        Self {
            file,
            stage: has_stage.then(|| Mutex::new(Aligned::zeros(FRAMES_MAX * BLOCK_BYTES))),
            flushes: Flushes::default(),
            begun: Mutex::new(Begun::Unmade),
            together: OnceLock::new(),
            has_closed_ring: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            was_cut: AtomicBool::new(false),
        }
    }

    /// Descriptor of the device or file, for as long as this lives.
    pub(super) fn descriptor(&self) -> i32 {
        self.file.file.as_raw_fd()
    }

    /// Name of the device or file.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// See [`identity`].
    pub(super) fn identity(&self, id: MemberId) -> Result<u128, MemberFileError> {
        identity(id, &self.file)
    }

    /// Requests that failed since the member was attached.
    pub(super) fn errors(&self) -> u64 {
        // Relaxed: a figure.
        self.errors.load(Ordering::Relaxed)
    }

    /// Begins reads; returns those that the kernel does not take.
    ///
    /// # Safety
    /// The memory that they name is nobody else's, and stays mapped until their ends were told, or [`DiskMember::close`] is back.
    pub(super) unsafe fn begin_reads(&self, fetches: Vec<Fetch>) -> Vec<Fetch> {
        let mut begun = self.begun.lock();
        if matches!(*begun, Begun::Unmade) {
            *begun = Reads::new().map_or_else(
                |error| {
                    tracing::warn!(%error, "{}: nothing is read ahead", self.path().display());
                    Begun::Never
                },
                |reads| Begun::Reads(Box::new(reads)),
            );
        }
        let Begun::Reads(reads) = &mut *begun else {
            return fetches;
        };
        let begin = |fetch| {
            // SAFETY: the caller promises the same.
            unsafe { reads.begin(fetch, Fetch::transfer) }.err()
        };
        let refused = fetches.into_iter().filter_map(begin).collect();
        reads.enter();
        refused
    }

    /// Whether reads were begun whose ends were not told.
    pub(super) fn has_reads(&self) -> bool {
        matches!(&*self.begun.lock(), Begun::Reads(reads) if reads.under_way() > 0)
    }

    /// See [`Disks::left_frame`].
    pub(super) fn left_frame(&self, at: Block) -> Option<u32> {
        match &mut *self.begun.lock() {
            Begun::Reads(reads) => reads.left(|fetch| fetch.frame_of(at)),
            _ => None,
        }
    }

    /// Tells reads that have ended; if none has and it `waits`, it waits for one, or some time. By one thread at a time.
    pub(super) fn take_reads(&self, waits: bool, ended: &mut dyn FnMut(Fetch, bool)) {
        let mut all = self.take_ended();
        if all.is_empty() && waits {
            let bell = match &*self.begun.lock() {
                Begun::Reads(reads) if reads.under_way() > 0 => reads.bell(),
                _ => None,
            };
            if let Some(bell) = bell {
                wait_for(bell);
                all = self.take_ended();
            }
        }
        // With nothing locked.
        all.into_iter().for_each(|(fetch, is_read)| ended(fetch, is_read));
    }

    fn take_ended(&self) -> Vec<(Fetch, bool)> {
        let mut all = Vec::new();
        if let Begun::Reads(reads) = &mut *self.begun.lock() {
            reads.take(|fetch, end| all.push((fetch, end == ReadEnd::Whole)));
        }
        all
    }

    /// Waits until the kernel has ended all reads, and calls `ended` with those whose ends were not told; none is begun any more.
    pub(super) fn close(&self, ended: &mut dyn FnMut(Fetch)) {
        let begun = std::mem::replace(&mut *self.begun.lock(), Begun::Never);
        if let Begun::Reads(mut reads) = begun {
            reads.close();
            reads.take(|fetch, _| ended(fetch));
        }
    }

    /// Reads the blocks from index `first` on.
    ///
    /// # Panics
    /// When they are not all within the member.
    pub(super) fn read<const MOST: usize>(&self, first: u64, to: Frames<'_, MOST>) -> io::Result<()> {
        self.counted(self.transfer(Operation::Read, first, to))
    }

    /// Writes the blocks from index `first` on.
    ///
    /// # Panics
    /// When they are not all within the member.
    pub(super) fn write(&self, first: u64, from: Frames<'_>) -> io::Result<()> {
        self.counted(self.check_whole().and_then(|()| self.write_uncounted(first, from)))
    }

    fn write_uncounted(&self, first: u64, from: Frames<'_>) -> io::Result<()> {
        match &self.stage {
            None => self.transfer(Operation::Write, first, from),
            Some(stage) => self.transfer(Operation::Write, first, from.staged(&mut stage.lock())),
        }
    }

    /// Most writes of [`DiskMember::write_each`].
    pub(super) fn writes_at_a_time(&self) -> usize {
        self.ring().map_or(1, |_| Writes::DEPTH.into())
    }

    fn ring(&self) -> Option<&Mutex<Writes>> {
        let make = || Some(Mutex::new(Writes::new().ok()?));
        // Relaxed: who sees it late has a batch fail, and tries again.
        let ring = self.together.get_or_init(make).as_ref();
        ring.filter(|_| !self.has_closed_ring.load(Ordering::Relaxed))
    }

    /// Carries out writes, of which there are no more frames in all than of one; notes which were written whole.
    ///
    /// # Panics
    /// When some are not within the member, or there are too many frames.
    pub(super) fn write_each(&self, table: &Table, writes: &mut [FrameWrite<'_>]) {
        if let ([_, _, ..], Some(ring)) = (&*writes, self.ring()) {
            if self.check_whole().is_ok() {
                self.write_together(&mut ring.lock(), table, writes);
            }
            let failed = writes.iter().filter(|write| !write.is_written).count();
            // Relaxed: a figure.
            self.errors.fetch_add(failed as u64, Ordering::Relaxed);
            return;
        }
        for write in writes {
            let from: Frames<'_> = Frames::of(table, write.frames);
            write.is_written = self.write(write.first.index(), from).is_ok();
        }
    }

    fn write_together(&self, ring: &mut Writes, table: &Table, writes: &mut [FrameWrite<'_>]) {
        let (mut pieces, mut count) = ([NONE; FRAMES_MAX], 0);
        let mut ends = [0; FRAMES_MAX];
        for (write, end) in writes.iter().zip(&mut ends) {
            self.check_within(write.first.index(), write.frames.len() as u64);
            count += add_pieces(table, write.frames, &mut pieces[count..]);
            *end = count;
        }
        let mut stage = self.stage.as_ref().map(Mutex::lock);
        if let Some(stage) = &mut stage {
            let mut staged = copy_pieces(&pieces[..count], stage.bytes_mut());
            for piece in &mut pieces[..count] {
                piece.iov_base = staged.cast();
                staged = staged.wrapping_byte_add(piece.iov_len);
            }
        }
        let mut from = 0;
        let lists = writes.iter().zip(ends).map(|(write, end)| {
            let list = &pieces[std::mem::replace(&mut from, end)..end];
            (write.first.index() * BLOCK_BYTES as u64, list)
        });
        let mut written = [None; FRAMES_MAX];
        // SAFETY: the pieces lie in ranges that the table answered for, as in `Frames::transfer`, or in the stage, which is locked until the kernel has
        // ended all writes.
        let is_served = unsafe {
            ring.all(self.descriptor(), lists, |nth, bytes| {
                written[nth] = Some(bytes.unwrap_or(0))
            })
        };
        self.has_closed_ring.fetch_or(!is_served, Ordering::Relaxed);
        drop(stage);
        for (write, bytes) in writes.iter_mut().zip(written) {
            write.is_written = match bytes {
                Some(bytes) => bytes == write.frames.len() * BLOCK_BYTES,
                // The ring did not carry it out.
                None => self
                    .write_uncounted(write.first.index(), Frames::of(table, write.frames))
                    .is_ok(),
            };
        }
    }

    /// Makes all durable that was written before. After a failure it fails for ever.
    pub(super) fn flush(&self) -> io::Result<()> {
        // The kernel asks nothing of a device without a volatile cache.
        self.counted(self.flushes.join(|| {
            self.check_whole()?;
            beside::fdatasync(&self.file.file)
        }))
    }

    /// Refuses a file that was cut off, also when it has become longer again, with zeros in place of what was lost.
    fn check_whole(&self) -> io::Result<()> {
        let stat = rustix::fs::fstat(&self.file.file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let is_cut = is_file && stat.st_size.cast_unsigned() < self.file.blocks() * BLOCK_BYTES as u64;
        // Relaxed: it only becomes true.
        if is_cut || self.was_cut.load(Ordering::Relaxed) {
            self.was_cut.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn check_within(&self, first: u64, blocks: u64) {
        let all = self.file.blocks();
        assert!(
            first <= all && blocks <= all - first,
            "{blocks} blocks from {first} are not within the {all} of {}",
            self.path().display()
        );
    }

    fn counted(&self, done: io::Result<()>) -> io::Result<()> {
        done.inspect_err(|_| self.note_error())
    }

    /// Counts a request that failed.
    pub(super) fn note_error(&self) {
        // Relaxed: a figure.
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    fn transfer<const MOST: usize>(
        &self,
        operation: Operation,
        first: u64,
        mut frames: Frames<'_, MOST>,
    ) -> io::Result<()> {
        self.check_within(first, (frames.bytes() / BLOCK_BYTES) as u64);
        let mut at = first * BLOCK_BYTES as u64;
        while frames.bytes() > 0 {
            match frames.transfer(operation, &self.file, at) {
                // It ends too early, as one that was cut off.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    frames.advance(bytes);
                    at += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Reads for those who go on meanwhile.
#[derive(Debug)]
enum Begun {
    /// The ring is made with the first one.
    Unmade,
    Reads(Box<Reads<Fetch>>),
    /// The kernel makes no ring, or the disk goes.
    Never,
}

/// Waits until a descriptor is readable, [`WAIT_MS`] or a signal's time.
fn wait_for(descriptor: RawFd) {
    let mut polled = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: there is one.
    unsafe { libc::poll(&raw mut polled, 1, WAIT_MS) };
}

#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
}

const NONE: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// Lists the memory of frames, one piece where they lie one behind the other; returns how many pieces there are.
///
/// # Panics
/// When there are more than there is room for, or one is no block of a member in memory.
fn add_pieces(table: &Table, frames: &[Block], to: &mut [libc::iovec]) -> usize {
    assert!(frames.len() <= to.len(), "{} frames in a request", frames.len());
    let mut count = 0;
    for frame in frames {
        let start = table.range(*frame, 0, BLOCK_BYTES).cast();
        match to[..count].last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == start => last.iov_len += BLOCK_BYTES,
            _ => {
                to[count] = libc::iovec {
                    iov_base: start,
                    iov_len: BLOCK_BYTES,
                };
                count += 1;
            }
        }
    }
    count
}

/// Copies the bytes of pieces one behind the other; gives where they begin.
fn copy_pieces(pieces: &[libc::iovec], stage: &mut [u8]) -> *mut u8 {
    let start = stage.as_mut_ptr();
    let mut rest = stage;
    for piece in pieces {
        let (to, behind) = rest.split_at_mut(piece.iov_len);
        // SAFETY: the piece lies in a range that the table answered for, as in `Frames::transfer`, of frames, which are mapped while somebody writes
        // them. Others change their bytes by the same module.
        unsafe { copy::load(to.as_mut_ptr(), piece.iov_base.cast(), piece.iov_len) };
        rest = behind;
    }
    start
}

/// Memory of a request of `MOST` frames at most: those that lie one behind the other are one piece.
pub(super) struct Frames<'a, const MOST: usize = FRAMES_MAX> {
    pieces: [libc::iovec; MOST],
    left: Range<usize>,
    /// Gave the addresses out, which stay reserved as long as it lives.
    _table: &'a Table,
}

impl<'a, const MOST: usize> Frames<'a, MOST> {
    /// Memory of these frames.
    ///
    /// # Panics
    /// When there are too many, or one is no block of a member in memory.
    pub(super) fn of(table: &'a Table, frames: &[Block]) -> Self {
        let mut pieces = [NONE; MOST];
        let count = add_pieces(table, frames, &mut pieces);
        Self {
            pieces,
            left: 0..count,
            _table: table,
        }
    }

    /// A copy of all bytes, as one piece.
    fn staged(&self, stage: &'a mut Aligned) -> Self {
        let mut pieces = [NONE; MOST];
        pieces[0] = libc::iovec {
            iov_base: copy_pieces(self.pieces(), stage.bytes_mut()).cast(),
            iov_len: self.bytes(),
        };
        Self {
            pieces,
            left: 0..1,
            _table: self._table,
        }
    }

    /// Address and bytes of each piece.
    pub(super) fn addresses(&self) -> Vec<(usize, usize)> {
        let pieces = self.pieces().iter();
        pieces.map(|piece| (piece.iov_base.addr(), piece.iov_len)).collect()
    }

    fn pieces(&self) -> &[libc::iovec] {
        &self.pieces[self.left.clone()]
    }

    /// Bytes that are left.
    fn bytes(&self) -> usize {
        self.pieces().iter().map(|piece| piece.iov_len).sum()
    }

    /// Goes on behind `bytes` bytes.
    fn advance(&mut self, mut bytes: usize) {
        while let Some(piece) = self.pieces[self.left.clone()].first_mut() {
            if bytes < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(bytes);
                piece.iov_len -= bytes;
                return;
            }
            bytes -= piece.iov_len;
            self.left.start += 1;
        }
    }

    /// Reads or writes bytes of what is left, from byte `at` of the file on; returns how many.
    fn transfer(&self, operation: Operation, file: &MemberFile, at: u64) -> io::Result<usize> {
        let fd = file.file.as_raw_fd();
        let count = u32::try_from(self.left.len()).expect("at most MOST");
        let pieces = self.pieces().as_ptr();
        let entry = || match operation {
            Operation::Read => opcode::Readv::new(Fd(fd), pieces, count).offset(at).build(),
            Operation::Write => opcode::Writev::new(Fd(fd), pieces, count).offset(at).build(),
        };
        // SAFETY: as for the calls below; the list of pieces outlives the call.
        if let Some(moved) = unsafe { beside::carry_out(entry) } {
            return moved;
        }
        let count = i32::try_from(count).expect("at most MOST");
        let at = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        let moved = match operation {
            // SAFETY: there are `count` pieces. Each lies in a range that the table answered for: addresses that are a member's, mapped, or reserved
            // when it was removed (EFAULT), while the table lives. No reference to their bytes exists, here or elsewhere.
            Operation::Read => unsafe { libc::preadv(fd, pieces, count, at) },
            // SAFETY: as above; the kernel only reads the pieces.
            Operation::Write => unsafe { libc::pwritev(fd, pieces, count, at) },
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }
}

/// Flushes of one disk, one at a time.
#[derive(Debug, Default)]
struct Flushes {
    state: Mutex<FlushState>,
    /// Told when one has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct FlushState {
    begun: u64,
    ended: u64,
    has_failed: bool,
}

impl Flushes {
    /// Returns when a flush has ended that began after the call, made by this thread or another one; fails for ever once one has failed.
    fn join(&self, flush: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let own = state.begun + 1;
        while state.ended < own && !state.has_failed {
            if state.begun > state.ended {
                self.ended.wait(&mut state);
                continue;
            }
            state.begun += 1;
            let flushed = MutexGuard::unlocked(&mut state, &flush);
            state.ended = state.begun;
            state.has_failed = flushed.is_err();
            self.ended.notify_all();
            flushed?;
        }
        if state.has_failed {
            Err(io::ErrorKind::Other.into())
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
