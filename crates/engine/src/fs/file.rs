//! Operations on bytes, whatever kind of body holds them: size, read, write, truncate, allocate, seek, copy, map, move.
//!
//! Nothing outside of this file and the bodies' own looks into a body. Each operation asks the table of capabilities
//! (`super::capability`), then the kind of body carries it out; a new kind is a variant of [`Body`], and every `match` here that
//! must serve it fails to compile. The quick way ([`Fs::read_whole`], [`Fs::write_whole`]) asks no table: a body that is not the
//! pool's blocks has none. Choice: docs/decisions/008-bodies.md.

use super::block_file::{BlockFile, FILE_BYTES_MAX};
use super::inode::Body;
use super::kernel_file::KernelFile;
use super::xattr::RESERVE_XATTR;
use super::{Asking, BodyKind, Error, Fs, Inode, Operation, Result, Whence};

use crate::log::{Effect, Room};
use crate::{BLOCK_BYTES, Block, Clock, CpuId, Memory, NodeId};
use homenode_shared::{BlockMap, SlotNumber};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// fallocate(2)'s mode bits.
pub mod fallocate_mode {
    /// FALLOC_FL_KEEP_SIZE
    pub const KEEP_SIZE: u32 = 0x01;
    /// FALLOC_FL_PUNCH_HOLE
    pub const PUNCH_HOLE: u32 = 0x02;
    /// FALLOC_FL_COLLAPSE_RANGE
    pub const COLLAPSE_RANGE: u32 = 0x08;
    /// FALLOC_FL_ZERO_RANGE
    pub const ZERO_RANGE: u32 = 0x10;
    /// FALLOC_FL_INSERT_RANGE
    pub const INSERT_RANGE: u32 = 0x20;
    /// FALLOC_FL_UNSHARE_RANGE: nothing is shared, so as plain allocation.
    pub const UNSHARE_RANGE: u32 = 0x40;
}

/// Progress of [`Fs::map_step`].
#[derive(Debug, Default)]
pub struct FoundMap {
    /// Bytes on each node.
    pub by_node: BTreeMap<NodeId, u64>,
    /// Size of a kernel file when it began.
    end: u64,
}

/// Storage of a body's bytes.
enum Bytes<'a> {
    /// Blocks of the pool; a volume's within its size.
    Blocks(&'a BlockFile),
    /// A file of the kernel.
    Kernel(&'a KernelFile),
}

impl Inode {
    /// The kind of its body.
    #[must_use]
    pub fn kind(&self) -> BodyKind {
        match &self.body {
            Body::File(_) => BodyKind::File,
            Body::Kernel(_) => BodyKind::KernelFile,
            Body::Volume(_) => BodyKind::Volume,
            Body::Directory(_) => BodyKind::Directory,
            Body::Symlink(_) => BodyKind::Symlink,
            Body::Special => BodyKind::Special,
        }
    }

    /// The body's blocks in the pool, if it has such.
    #[inline(always)]
    pub(super) fn blocks(&self) -> Option<&BlockFile> {
        match &self.body {
            Body::File(file) | Body::Volume(file) => Some(file),
            Body::Kernel(_) | Body::Directory(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// The body's file of the kernel, if it has one.
    pub(super) fn kernel_file(&self) -> Option<&KernelFile> {
        match &self.body {
            Body::Kernel(file) => Some(file),
            _ => None,
        }
    }

    /// Returns the storage of the body's bytes, to carry `operation` out on, or the table's error.
    fn bytes_for(&self, operation: Operation) -> Result<Bytes<'_>> {
        self.kind().supports(operation)?;
        Ok(match &self.body {
            Body::File(file) | Body::Volume(file) => Bytes::Blocks(file),
            Body::Kernel(file) => Bytes::Kernel(file),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => {
                unreachable!("the table supports operations on bytes for bodies with bytes only")
            }
        })
    }

    /// Bytes of the body, and the pool's blocks that it takes.
    pub(super) fn size_and_blocks(&self) -> (u64, u64) {
        match &self.body {
            Body::File(file) | Body::Volume(file) => (file.size.load(Ordering::Acquire), file.blocks.sum()),
            // Asked for with its times: see `Fs::attr`.
            Body::Kernel(file) => {
                let status = file.status();
                (status.size, status.blocks)
            }
            Body::Symlink(target) => (target.len() as u64, 0),
            // As tmpfs: something that grows with the entries.
            Body::Directory(directory) => (directory.size_bytes(), 0),
            Body::Special => (0, 0),
        }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// [`Fs::read`] in the common case, in few instructions: the bytes lie within the file and one behind the other in the
    /// pool. False: use [`Fs::read`]. `slot` is a slot of the calling thread's.
    ///
    /// # Errors
    /// [`Error::Io`] when bytes of a pool without a cache or a log cannot be had. Other pools give false then. An error keeps nothing of the caller's for
    /// another try while the bytes are copied.
    #[inline(always)]
    pub fn read_whole(
        &self,
        slot: SlotNumber,
        cpu: impl Fn() -> CpuId,
        inode: &Inode,
        offset: u64,
        to: &mut [u8],
    ) -> Result<bool> {
        let Some(file) = inode.blocks() else { return Ok(false) };
        self.read_whole_blocks(slot, cpu, inode, file, offset, to)
    }

    /// [`Fs::write`] in the common case, as [`Fs::read_whole`].
    ///
    /// # Errors
    /// [`Error::Io`], as [`Fs::read_whole`].
    #[inline(always)]
    pub fn write_whole(
        &self,
        slot: SlotNumber,
        cpu: impl Fn() -> CpuId,
        inode: &Inode,
        offset: u64,
        from: &[u8],
    ) -> Result<bool> {
        let Some(file) = inode.blocks() else { return Ok(false) };
        self.write_whole_blocks(slot, cpu, inode, file, offset, from)
    }

    /// Reads into `to` from byte `offset` on; gives the bytes read, short only at the end of the file.
    ///
    /// # Errors
    /// The errno of the body's kind when it cannot be read.
    pub fn read(&self, asking: &Asking<'_>, inode: &Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        if self.read_whole(asking.slot.number(), || asking.cpu, inode, offset, to)? {
            return Ok(to.len());
        }
        let count = self.read_untouched(asking, inode, offset, to)?;
        if count > 0 && inode.kernel_file().is_none() {
            self.touch_accessed(inode, true);
        }
        Ok(count)
    }

    /// [`Fs::read`] that leaves the access time as it is (O_NOATIME).
    ///
    /// # Errors
    /// As [`Fs::read`].
    pub fn read_untouched(&self, asking: &Asking<'_>, inode: &Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        match inode.bytes_for(Operation::Read)? {
            Bytes::Blocks(file) => self.read_blocks(asking, inode, file, offset, to),
            Bytes::Kernel(file) => file.read(offset, to),
        }
    }

    /// Shows `act` where the bytes from byte `offset` on are, `most` of them, or fewer: those that lie one behind the other. `None` for a hole, and for
    /// no bytes at the end of the file. `act` must not use the filesystem; it is called once.
    ///
    /// # Errors
    /// As [`Fs::read`]; what `act` gave is dropped then.
    pub fn lend<R>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        offset: u64,
        most: usize,
        act: impl FnMut(&M, Option<(Block, usize)>, usize) -> R,
    ) -> Result<R> {
        match inode.bytes_for(Operation::Read)? {
            Bytes::Blocks(file) => self.lend_blocks(asking, inode, file, offset, most, act),
            Bytes::Kernel(_) => Err(Error::NotSupported),
        }
    }

    /// Writes `from` at byte `offset`; gives the bytes written, short only when the pool is full. `kill_priv` as in
    /// [`super::SetAttr`].
    ///
    /// # Errors
    /// [`Error::NoSpace`] when nothing could be written, [`Error::TooBig`] beyond the largest file or a volume's size, or what
    /// the body's kind answers when it cannot be written.
    pub fn write(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        offset: u64,
        from: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        if !kill_priv && self.write_whole(asking.slot.number(), || asking.cpu, inode, offset, from)? {
            return Ok(from.len());
        }
        match inode.bytes_for(Operation::Write)? {
            Bytes::Blocks(file) => {
                let (effect, bytes) = self.effect_of_write(asking, inode, file, offset, from.len())?;
                in_parts(offset, from, |offset, from| {
                    self.with_freed((asking.slot, asking.waits), effect, bytes, || {
                        if inode.is_volume() {
                            self.write_blocks_within(asking, inode, file, offset, from)
                        } else {
                            self.write_blocks(asking, inode, file, offset, from, kill_priv)
                        }
                    })
                })
            }
            Bytes::Kernel(file) => self.write_kernel(inode, kill_priv, || file.write(offset, from)),
        }
    }

    /// Writes `from` at the end of the file; gives the offset it went to and the bytes written. Appends do not mix.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub fn append(&self, asking: &Asking<'_>, inode: &Inode, from: &[u8], kill_priv: bool) -> Result<(u64, usize)> {
        match inode.bytes_for(Operation::Append)? {
            Bytes::Blocks(file) => {
                let (effect, bytes) = self.effect_of_write(asking, inode, file, FILE_BYTES_MAX, from.len())?;
                self.with_freed((asking.slot, asking.waits), effect, bytes, || {
                    self.append_blocks(asking, inode, file, from, kill_priv)
                })
            }
            Bytes::Kernel(file) => self.write_kernel(inode, kill_priv, || file.append(from)),
        }
    }

    /// Sets the size; what lies beyond a smaller one is freed, a larger one reserves nothing.
    pub(super) fn truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        let mut done = 0;
        while let Some(next) = self.truncate_step(inode, size, done)? {
            done = next;
        }
        Ok(())
    }

    /// Comes one step nearer to the size `size`, in a few milliseconds, from the progress `done`, 0 at first; gives the progress, `None` at the
    /// end. Until then the file has a size between the old one and the new one, and others read and write it; of a file of the kernel what
    /// is to go reads as zeros more and more.
    ///
    /// # Errors
    /// As [`Fs::set_attr`] with a size.
    pub fn truncate_step(&self, inode: &Inode, size: u64, done: u64) -> Result<Option<u64>> {
        let _room = self.admit_size(inode, size, 0)?;
        match inode.bytes_for(Operation::Truncate)? {
            Bytes::Blocks(file) => self.truncate_blocks(inode, file, size, done),
            Bytes::Kernel(_) if size > FILE_BYTES_MAX => Err(Error::TooBig),
            Bytes::Kernel(file) => file.truncate_step(&self.pool, size, done),
        }
    }

    /// [`Fs::admit_bytes`] for a new size. A size that frees nothing may not use the last room of the log, which is for removals.
    pub(super) fn admit_size(&self, inode: &Inode, size: u64, bytes: u64) -> Result<Option<Room<'_>>> {
        let frees = || {
            let file = inode.blocks()?;
            let _closed = inode.close(file, &self.slots);
            // A larger size frees nothing, whatever is reserved behind it.
            (size <= file.size.load(Ordering::Relaxed)).then_some(())?;
            file.map.last(&self.nodes, BlockMap::LIMIT)
        };
        match self.admit_bytes(Effect::Keeps, bytes) {
            Err(Error::NoSpace | Error::Io)
                if frees().is_some_and(|last| last >= size.div_ceil(BLOCK_BYTES as u64)) =>
            {
                self.admit_bytes(Effect::Frees, bytes)
            }
            admitted => admitted,
        }
    }

    /// Whether what makes the file longer is to be reserved, as its [`RESERVE_XATTR`](super::RESERVE_XATTR) asks for.
    pub fn reserves_extension(&self, inode: &Inode) -> bool {
        inode.state.lock().xattr(RESERVE_XATTR).is_some() && inode.bytes_for(Operation::Reserve).is_ok()
    }

    /// Extends a file to `size`, and reserves what that adds, where it [is to be](Fs::reserves_extension); otherwise, and
    /// where `size` is no larger than the file, nothing. Returns whether it has set the size.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the space cannot be promised; the others of [`Fs::fallocate`].
    pub fn reserve_extension(&self, asking: &Asking<'_>, inode: &Inode, size: u64) -> Result<bool> {
        if !self.reserves_extension(inode) {
            return Ok(false);
        }
        let before = self.attr(inode).size;
        match size.checked_sub(before) {
            None | Some(0) => Ok(false),
            Some(more) => self.fallocate(asking, inode, 0, before, more).map(|()| true),
        }
    }

    /// fallocate(2); `mode` is made of [`fallocate_mode`]'s bits. Others go on between its steps ([`Fs::fallocate_step`]).
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooBig`], [`Error::Invalid`] for ranges a mode does not take, [`Error::NotSupported`]
    /// for bits it does not know, or what the body's kind answers.
    pub fn fallocate(&self, asking: &Asking<'_>, inode: &Inode, mode: u32, offset: u64, bytes: u64) -> Result<()> {
        let mut done = 0;
        while let Some(so_far) = self.fallocate_step(asking, inode, mode, offset, bytes, done)? {
            done = so_far;
        }
        Ok(())
    }

    /// Carries out one step of [`Fs::fallocate`], a few milliseconds long, from the progress `done`, 0 at first; gives the progress, `None` at the
    /// end. Collapse and insert are one step.
    ///
    /// # Errors
    /// As [`Fs::fallocate`].
    pub fn fallocate_step(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        mode: u32,
        offset: u64,
        bytes: u64,
        done: u64,
    ) -> Result<Option<u64>> {
        let operation = Operation::of_fallocate(mode);
        let body = inode.bytes_for(operation.unwrap_or(Operation::Reserve))?;
        if bytes == 0 {
            return Err(Error::Invalid);
        }
        let end = offset
            .checked_add(bytes)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(Error::TooBig)?;
        let operation = operation.ok_or(Error::NotSupported)?;
        let effect = match operation {
            Operation::PunchHole | Operation::CollapseRange => Effect::Splits,
            // What it has is overwritten, and its holes stay.
            Operation::ZeroRangeKeepSize if inode.is_volume() => Effect::Frees,
            _ => Effect::Adds,
        };
        match body {
            Bytes::Blocks(file) => {
                if done == 0 && operation.reserves() && !inode.is_volume() {
                    self.check_fits(file, &(offset..end))?;
                }
                self.with_freed((asking.slot, asking.waits), effect, 0, || {
                    self.allocate_blocks(asking, inode, file, operation, offset..end, done)
                })
            }
            Bytes::Kernel(file) => self.allocate_kernel(inode, file, operation, &(offset..end), done),
        }
    }

    /// lseek(2)'s SEEK_DATA and SEEK_HOLE. A reserved block is a hole, in a file of the kernel until it is allocated.
    ///
    /// # Errors
    /// [`Error::NoData`] at or beyond the end, or when no data follows.
    pub fn seek(&self, asking: &Asking<'_>, inode: &Inode, offset: u64, whence: Whence) -> Result<u64> {
        let mut at = offset;
        loop {
            match self.seek_step(asking, inode, at, whence)? {
                ControlFlow::Break(found) => return Ok(found),
                ControlFlow::Continue(next) => at = next,
            }
        }
    }

    /// Carries out one step of [`Fs::seek`]: breaks with what was found, or tells where the next step goes on.
    ///
    /// # Errors
    /// The errors of [`Fs::seek`].
    pub fn seek_step(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        offset: u64,
        whence: Whence,
    ) -> Result<ControlFlow<u64, u64>> {
        match inode.bytes_for(Operation::Seek)? {
            Bytes::Blocks(file) => self.seek_blocks(asking, inode, file, offset, whence),
            Bytes::Kernel(file) => file.seek_step(offset, whence),
        }
    }

    /// copy_file_range(2): copies up to `bytes` bytes; gives how many, short at the end of `from` or when the pool is full.
    ///
    /// # Errors
    /// As read and write; [`Error::Invalid`] when the ranges overlap in one file.
    pub fn copy_range(
        &self,
        asking: &Asking<'_>,
        from: &Inode,
        from_offset: u64,
        to: &Inode,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        to.kind().supports(Operation::CopyTo)?;
        from.kind().supports(Operation::CopyFrom)?;
        // To the end as it is now: what is copied behind it must not be copied again.
        let (size, _) = from.size_and_blocks();
        let bytes = bytes.min(size.saturating_sub(from_offset));
        let overlap = from_offset < to_offset.saturating_add(bytes) && to_offset < from_offset.saturating_add(bytes);
        if from.ino == to.ino && bytes > 0 && overlap {
            return Err(Error::Invalid);
        }
        // A stage of one run: a slot names one inode at a time.
        let mut stage = vec![0; usize::try_from(bytes).map_or(STAGE_BYTES, |bytes| bytes.min(STAGE_BYTES))];
        let mut done = 0;
        while done < bytes {
            let most = usize::try_from(bytes - done).map_or(stage.len(), |left| left.min(stage.len()));
            // What was copied is told, whatever follows: the kernel knows the file's size by that.
            let read = match self.read(asking, from, from_offset + done, &mut stage[..most]) {
                Ok(0) => break,
                Err(_) if done > 0 => break,
                read => read?,
            };
            let written = match self.write(asking, to, to_offset + done, &stage[..read], false) {
                Err(_) if done > 0 => break,
                written => written?,
            };
            done += written as u64;
            if written < read {
                break;
            }
        }
        Ok(done)
    }

    /// Carries out one step of [`Fs::map`], some milliseconds long: adds to `found` what lies from `from` on, 0 at first; gives where the next
    /// step begins, `None` at the end.
    ///
    /// # Errors
    /// [`Error::NotSupported`] where there are no bytes, and those of the backing file.
    pub fn map_step(&self, inode: &Inode, from: u64, found: &mut FoundMap) -> Result<Option<u64>> {
        match inode.bytes_for(Operation::Map)? {
            Bytes::Kernel(file) => {
                if from == 0 {
                    // As large as it is now: it may grow as fast as it is looked at.
                    found.end = file.status().size;
                }
                let next = file.map_part(from, &mut found.by_node)?;
                Ok(next.filter(|next| *next < found.end))
            }
            Bytes::Blocks(file) => Ok(self.map_some_blocks(inode, file, from, &mut found.by_node)),
        }
    }

    /// Bytes of the body on each node, ascending by node; nodes with none left out.
    pub fn map(&self, inode: &Inode) -> Vec<(NodeId, u64)> {
        let (mut found, mut next) = (FoundMap::default(), Some(0));
        while let Some(from) = next {
            match self.map_step(inode, from, &mut found) {
                Ok(then) => next = then,
                Err(_) => return Vec::new(),
            }
        }
        found.by_node.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Moves the body's blocks to members of `node` while it is in use; gives the bytes moved. Writers wait for 2 MiB at
    /// a time at most. `progress` hears bytes looked at, and all of them.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the node's members are full, [`Error::Invalid`] when it has none; what moved stays moved.
    pub fn move_to(&self, inode: &Inode, node: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let body = inode.bytes_for(Operation::Move)?;
        if !self.pool.has_member_on(node) {
            return Err(Error::Invalid);
        }
        match body {
            Bytes::Blocks(file) => self.move_blocks(inode, file, node, progress),
            Bytes::Kernel(file) => {
                let moved = self.move_kernel_pages(file, None, node, progress);
                self.steer_files(true);
                moved
            }
        }
    }
}

/// Bytes copied at a time by copy_range.
const STAGE_BYTES: usize = 2 << 20;

/// Writes what `write` left of `from`, until that fails: so it meets the error, and what is freed then may be enough for the rest.
fn in_parts(offset: u64, from: &[u8], write: impl Fn(u64, &[u8]) -> Result<usize>) -> Result<usize> {
    let mut done = write(offset, from)?;
    while done > 0 && done < from.len() {
        match write(offset + done as u64, &from[done..]) {
            Ok(count) if count > 0 => done += count,
            // All of it is written again then, by a thread that waits.
            Err(Error::Away) => return Err(Error::Away),
            _ => break,
        }
    }
    Ok(done)
}
