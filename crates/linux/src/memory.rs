//! The members of a pool: memory of every node and durable files, mapped into this process, and disks.
//!
//! Owns the mappings and the table the copies look them up in. A DRAM member lies in a file on a private tmpfs of its own
//! (2 MiB pages, bound to the home, never swapped, visible in no mount table), or in a memfd where mounting is not
//! permitted. Nothing is present until it is populated, and that only while the home keeps a reserve, because a bound
//! allocation on a full node calls the OOM killer.
//!
//! Invariants: a copy takes no lock and costs one table lookup and a bounds check besides its bytes; a wrong block
//! panics and reaches no memory outside its member; addresses of removed members are not used again.

mod backing;
pub(crate) mod cgroup;
mod devdax;
mod disk;
mod durable;
mod error;
pub(crate) mod headroom;
mod lent;
pub(crate) mod mapping;
mod table;

pub use backing::{Backing, Swap};
pub use durable::{MemberFile, MemberFileError, MemberReader, RoomError, TakenRoom, identity, witness};
pub use error::Error;
pub use headroom::{allowed_nodes, free_bytes, group_free_bytes, total_bytes};
pub use lent::Lent;

use crate::copy;
use cgroup::Limits;
use disk::{DiskMember, Frames};
use durable::{DurableMember, MissingMember};
use headroom::{Groups, Headroom};
use homenode_engine::cache::Fetch;
use homenode_engine::pool::MemberKind;
use homenode_engine::{
    BLOCK_BYTES, Block, Disks, FrameWrite, Meanwhile, MemberId, Memory, MemoryError, NodeId, Starved, Transfer,
};
use homenode_shared::is_lost;
use mapping::{HUGE_BYTES, Mapping};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use table::Table;

/// Most bytes of a file that are written to the log instead of where they lie: one forced write of so much is faster than two.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// Pause between looks whether a removed member is still in use.
const POLL: Duration = Duration::from_millis(1);

/// The memory of every node that is in the pool.
#[derive(Debug)]
pub struct NodeMemory {
    table: Table,
    members: RwLock<Members>,
    /// See [`Memory::inline_bytes_max`].
    inline_bytes_max: AtomicUsize,
}

/// Whether the bytes of a durable member can be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// All of them, as far as anybody has looked.
    #[default]
    Sound,
    /// Some could not be read, and are errors (EIO) until the pool is opened again.
    Damaged,
    /// The pool was opened without the member.
    Missing,
}

#[derive(Debug, Default)]
struct Members {
    present: BTreeMap<MemberId, Arc<Member>>,
    /// Members whose bytes are kept.
    durable: BTreeMap<MemberId, Arc<DurableMember>>,
    /// Members that are reached by requests; the table does not have them.
    disks: BTreeMap<MemberId, Arc<DiskMember>>,
    /// Members of a pool of which not all are there.
    missing: BTreeMap<MemberId, MissingMember>,
    /// Removed members: without memory, but their addresses are kept so that nothing else ever lies there.
    vacant: Vec<Arc<Member>>,
    /// Addresses of removed durable members, kept likewise.
    vacant_durable: Vec<Mapping>,
    nodes: BTreeMap<NodeId, Arc<Headroom>>,
    /// Memory control groups of this process; made with the first member.
    groups: Option<Arc<Groups>>,
}

#[derive(Debug)]
struct Member {
    mapping: Mapping,
    home: NodeId,
    bytes: u64,
    /// Bytes populated so far.
    populated: AtomicU64,
    backing: Backing,
    headroom: Arc<Headroom>,
}

impl NodeMemory {
    /// Memory without members. The first in a process chooses how copies are made: [`copy::choice`].
    #[must_use]
    pub fn new() -> Self {
        let _ = copy::choice();
        Self {
            table: Table::new(),
            members: RwLock::default(),
            inline_bytes_max: AtomicUsize::new(0),
        }
    }

    /// Makes `bytes` of the memory of `home` addressable as `member`. None of it is present yet: see
    /// [`Memory::populate`].
    ///
    /// # Errors
    /// See [`Error`]; nothing is left behind.
    pub fn add(&self, member: MemberId, home: NodeId, bytes: u64) -> Result<Backing, Error> {
        self.add_on(member, home, bytes, backing::tmpfs)
    }

    fn add_on(&self, id: MemberId, home: NodeId, bytes: u64, preferred: Preferred) -> Result<Backing, Error> {
        if usize::from(id.0) >= MemberId::LIMIT {
            return Err(Error::Number(id));
        }
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(Error::Size { member: id, bytes });
        }
        let mut members = self.members.write();
        members.check_free(id)?;
        members.check_room(home, bytes)?;
        let failed = |doing| {
            move |source| Error::Map {
                member: id,
                home,
                bytes,
                doing,
                source,
            }
        };
        let too_large = Error::Size { member: id, bytes };
        let Ok(length) = usize::try_from(bytes) else {
            return Err(too_large);
        };
        let Some(mapped_bytes) = length.checked_next_multiple_of(HUGE_BYTES) else {
            return Err(too_large);
        };
        let mapping = Mapping::reserve(mapped_bytes).map_err(failed("reserving addresses"))?;
        let backing = back(&mapping, home, mapped_bytes as u64, preferred).map_err(|(doing, e)| failed(doing)(e))?;
        // Only the size of core dumps depends on it.
        let _ = mapping.advise(libc::MADV_DONTDUMP);
        self.table.insert(id, mapping.base(), length);
        let headroom = members.headroom(home);
        let member = Member {
            mapping,
            home,
            bytes,
            populated: AtomicU64::new(0),
            backing,
            headroom,
        };
        members.present.insert(id, Arc::new(member));
        Ok(backing)
    }

    /// Maps a file as the durable member `id` of `kind`.
    ///
    /// # Errors
    /// See [`Error`]; nothing is left behind.
    pub fn attach(&self, id: MemberId, kind: MemberKind, file: MemberFile) -> Result<(), Error> {
        self.attach_for(id, kind, file, false)
    }

    /// Maps a file as the durable member `id` of `kind`, which is only read: what is stored stays in this process.
    ///
    /// # Errors
    /// See [`Error`]; nothing is left behind.
    pub fn attach_to_read(&self, id: MemberId, kind: MemberKind, file: MemberFile) -> Result<(), Error> {
        if file.is_devdax() {
            let path = file.path().to_owned();
            return Err(Error::DeviceToRead { path });
        }
        self.attach_for(id, kind, file, true)
    }

    fn attach_for(&self, id: MemberId, kind: MemberKind, file: MemberFile, reads_only: bool) -> Result<(), Error> {
        let mut members = self.members.write();
        members.check_free(id)?;
        let path = file.path().to_owned();
        let member = DurableMember::map(file, kind, reads_only).map_err(|source| Error::MapFile { path, source })?;
        let bytes = usize::try_from(member.bytes()).expect("the member is mapped, so its size fits a usize");
        self.table.insert(id, member.mapping.base(), bytes);
        if kind == MemberKind::File && !reads_only {
            self.inline_bytes_max.store(INLINE_BYTES_MAX, Ordering::Relaxed);
        }
        members.durable.insert(id, Arc::new(member));
        Ok(())
    }

    /// Makes a disk, or a file that is reached past the page cache, the durable member `id`: see [`Disks`].
    ///
    /// # Errors
    /// [`Error::Number`], [`Error::Present`].
    ///
    /// # Panics
    /// When [`MemberFile::kind`] is not [`MemberKind::Block`].
    pub fn attach_disk(&self, id: MemberId, file: MemberFile) -> Result<(), Error> {
        assert!(file.is_direct(), "{} would be mapped", file.path().display());
        let mut members = self.members.write();
        members.check_free(id)?;
        members.disks.insert(id, Arc::new(DiskMember::new(file)));
        Ok(())
    }

    /// Makes `bytes` bytes addressable as the durable member `id`, which is not there: each of them is an error.
    ///
    /// # Errors
    /// See [`Error`]; nothing is left behind.
    pub fn attach_missing(&self, id: MemberId, bytes: u64) -> Result<(), Error> {
        let too_large = Error::Size { member: id, bytes };
        let mut members = self.members.write();
        members.check_free(id)?;
        let Ok(length) = usize::try_from(bytes) else {
            return Err(too_large);
        };
        let member = MissingMember::new(length).map_err(|_| too_large)?;
        self.table.insert(id, member.mapping.base(), length);
        members.missing.insert(id, member);
        Ok(())
    }

    /// The file behind a durable member.
    #[must_use]
    pub fn file(&self, member: MemberId) -> Option<PathBuf> {
        let members = self.members.read();
        let mapped = members.durable.get(&member).map(|member| member.path());
        let path = mapped.or_else(|| members.disks.get(&member).map(|disk| disk.path()));
        path.map(Path::to_owned)
    }

    /// Whether the bytes of a member can be had; memory always can.
    #[must_use]
    pub fn health(&self, member: MemberId) -> Health {
        let members = self.members.read();
        if members.missing.contains_key(&member) {
            return Health::Missing;
        }
        if members.disks.get(&member).is_some_and(|disk| disk.errors() > 0) {
            return Health::Damaged;
        }
        let bytes = |member: &DurableMember| usize::try_from(member.bytes()).expect("mapped sizes fit a usize");
        let durable = members.durable.get(&member);
        match durable.map(|member| there(member.mapping.base(), bytes(member))) {
            Some(Err(MemoryError)) => Health::Damaged,
            _ => Health::Sound,
        }
    }

    /// Requests to a disk that failed since it was attached; 0 of other members.
    #[must_use]
    pub fn errors(&self, member: MemberId) -> u64 {
        self.disk(member).map_or(0, |disk| disk.errors())
    }

    /// Counts a request to a disk that failed, made by others.
    pub fn note_error(&self, member: MemberId) {
        if let Ok(disk) = self.disk(member) {
            disk.note_error();
        }
    }

    fn durable(&self, member: MemberId) -> Result<Arc<DurableMember>, MemoryError> {
        self.members.read().durable.get(&member).cloned().ok_or(MemoryError)
    }

    fn disk(&self, member: MemberId) -> Result<Arc<DiskMember>, MemoryError> {
        self.members.read().disks.get(&member).cloned().ok_or(MemoryError)
    }

    /// Gives the memory of `member` back, or its file. The caller guarantees that nobody names its blocks any more: a copy that
    /// does panics, or, when it began before, faults.
    ///
    /// # Errors
    /// [`Error::Absent`], or [`Error::Unmap`]: the member is gone then, but its memory is not.
    pub fn remove(&self, member: MemberId) -> Result<(), Error> {
        let mut members = self.members.write();
        if let Some(removed) = members.durable.remove(&member) {
            self.table.clear(member);
            let has_file = |member: &Arc<DurableMember>| member.kind() == MemberKind::File;
            if !members.durable.values().any(has_file) {
                self.inline_bytes_max.store(0, Ordering::Relaxed);
            }
            // A sync that looked it up before may wait for its disk: others must not wait for that as well.
            drop(members);
            let (mapping, vacated) = alone(removed).vacate();
            self.members.write().vacant_durable.push(mapping);
            return vacated.map_err(|source| Error::Unmap { member, source });
        }
        if let Some(removed) = members.disks.remove(&member) {
            // As above.
            drop(members);
            removed.close(&mut drop);
            drop(alone(removed));
            return Ok(());
        }
        let removed = members.present.remove(&member).ok_or(Error::Absent(member))?;
        self.table.clear(member);
        // Memory of many small pages takes seconds, and others populate theirs meanwhile.
        drop(members);
        let vacated = removed.mapping.vacate();
        self.members.write().vacant.push(removed);
        vacated.map_err(|source| Error::Unmap { member, source })
    }

    /// [`identity`] of a durable member; `None` when there is no such member.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn identity(&self, member: MemberId) -> Result<Option<u128>, MemberFileError> {
        let mapped = self.durable(member).ok().map(|found| found.identity(member));
        let identity = mapped.or_else(|| self.disk(member).ok().map(|disk| disk.identity(member)));
        identity.transpose()
    }

    /// The address of `bytes` bytes from `offset` behind the start of `block`, for copies by other means. What goes for
    /// [`crate::copy`] goes for them: others use the bytes at the same time, so no reference to them may be made.
    ///
    /// # Panics
    /// When they are not all within the block's member.
    #[must_use]
    pub fn address(&self, block: Block, offset: usize, bytes: usize) -> *mut u8 {
        self.table.range(block, offset, bytes)
    }

    /// Lends bytes from `offset` behind the start of `block` to `act`, who must not keep them.
    ///
    /// # Panics
    /// When they are not all within the block's member.
    pub fn lend<R>(&self, block: Block, offset: usize, bytes: usize, act: impl FnOnce(Lent<'_>) -> R) -> R {
        let start = self.table.range(block, offset, bytes);
        // SAFETY: `range` answers for mapped bytes; the caller uses blocks that are in use, as for copies, and `act` cannot keep what it is given.
        act(unsafe { Lent::new(start, bytes) })
    }

    /// Returns the backing of `member`; none when the member is not here.
    #[must_use]
    pub fn backing(&self, member: MemberId) -> Option<Backing> {
        self.members.read().present.get(&member).map(|member| member.backing)
    }

    /// Bytes of `member` that this process reaches through pages of 2 MiB, from /proc/self/smaps (slow: it walks the
    /// page tables); none when it is not here or the file cannot be read.
    #[must_use]
    pub fn huge_bytes(&self, member: MemberId) -> Option<u64> {
        let member = self.members.read().present.get(&member)?.clone();
        member.mapping.huge_bytes()
    }
}

impl Default for NodeMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory for NodeMemory {
    #[inline(always)]
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.table.range(from, offset, to.len());
        // SAFETY: `range` answers for them.
        unsafe { copy_out(from, to) }
    }

    #[inline(always)]
    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let to = self.table.range(to, offset, from.len());
        // SAFETY: `range` answers for them.
        unsafe { copy_in(to, from) }
    }

    #[inline(always)]
    fn load_meanwhile(
        &self,
        place: Block,
        offset: usize,
        to: &mut [u8],
        meanwhile: impl Meanwhile,
    ) -> Result<(), MemoryError> {
        let from = self.table.range(place, offset, to.len());
        announce(from, to.len(), false);
        meanwhile.act(place);
        // SAFETY: as in `load`. The range was mapped before `meanwhile`, and is still: a member is only removed when nobody names its blocks any
        // more, which this copy does.
        unsafe { copy_out(from, to) }
    }

    #[inline(always)]
    fn load_if(
        &self,
        place: Block,
        offset: usize,
        to: &mut [u8],
        confirm: impl FnOnce() -> bool,
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        let from = self.table.find(place, offset, to.len()).ok()?;
        announce(from, to.len(), false);
        if !confirm() {
            return None;
        }
        meanwhile.act(place);
        // SAFETY: as in `load_meanwhile`: the place is the block's, as `confirm` said.
        Some(unsafe { copy_out(from, to) })
    }

    #[inline(always)]
    fn store_meanwhile(
        &self,
        place: Block,
        offset: usize,
        from: &[u8],
        meanwhile: impl Meanwhile,
    ) -> Result<(), MemoryError> {
        let to = self.table.range(place, offset, from.len());
        announce(to, from.len(), true);
        meanwhile.act(place);
        // SAFETY: as in `load_meanwhile` and `store`.
        unsafe { copy_in(to, from) }
    }

    #[inline(always)]
    fn store_if(
        &self,
        place: Block,
        offset: usize,
        from: &[u8],
        confirm: impl FnOnce() -> bool,
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        let to = self.table.find(place, offset, from.len()).ok()?;
        announce(to, from.len(), true);
        if !confirm() {
            return None;
        }
        meanwhile.act(place);
        // SAFETY: as in `load_if` and `store`.
        Some(unsafe { copy_in(to, from) })
    }

    fn store_clean(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        // A fault for each page takes longer than the call, and where the page cache has large folios it makes all of one dirty.
        if self.inline_bytes_max.load(Ordering::Relaxed) > 0 {
            let member = self.durable(to.member())?;
            if member.takes_writes() {
                let start = self.table.range(to, offset, from.len()).addr() - member.mapping.base().addr();
                return member.write(from, start as u64).map_err(|_| MemoryError);
            }
        }
        self.store(to, offset, from)
    }

    #[inline]
    fn announce(&self, at: Block, offset: usize, bytes: usize, to_write: bool) {
        announce(self.table.guess(at, offset), bytes, to_write);
    }

    #[inline]
    fn zero(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let at = self.table.range(at, offset, bytes);
        there(at, bytes)?;
        // SAFETY: `range` answers for `bytes` mapped bytes at `at`.
        unsafe { copy::zero(at, bytes) };
        there(at, bytes)
    }

    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError> {
        // More blocks than an address has bits for are within no member: `range` panics.
        let bytes = usize::try_from(blocks)
            .unwrap_or(usize::MAX)
            .saturating_mul(BLOCK_BYTES);
        let (from, to) = (self.table.range(from, 0, bytes), self.table.range(to, 0, bytes));
        there(from, bytes).and(there(to, bytes))?;
        // SAFETY: `range` answers for `bytes` mapped bytes at both.
        unsafe { copy::within(to, from, bytes) };
        there(from, bytes).and(there(to, bytes))
    }

    #[inline]
    fn is_there(&self, at: Block, offset: usize, bytes: usize) -> bool {
        there(self.table.range(at, offset, bytes), bytes).is_ok()
    }

    fn persist(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let member = self.durable(at.member())?;
        let start = usize::try_from(at.index()).map_err(|_| MemoryError)? * BLOCK_BYTES + offset;
        member.persist(start, bytes).map_err(|_| MemoryError)
    }

    fn persist_each(&self, stretches: &[(Block, usize)]) -> Result<(), MemoryError> {
        let [(first, _), ..] = stretches else { return Ok(()) };
        let member = self.durable(first.member())?;
        let start = |at: &Block| usize::try_from(at.index()).map(|index| index * BLOCK_BYTES);
        let ranges = stretches.iter().map(|(at, bytes)| Ok((start(at)?, *bytes)));
        let ranges: Result<Vec<_>, std::num::TryFromIntError> = ranges.collect();
        member
            .persist_each(&ranges.map_err(|_| MemoryError)?)
            .map_err(|_| MemoryError)
    }

    fn persist_all(&self, member: MemberId) -> Result<(), MemoryError> {
        let member = self.durable(member)?;
        member.persist_all().map_err(|_| MemoryError)
    }

    fn inline_bytes_max(&self) -> usize {
        self.inline_bytes_max.load(Ordering::Relaxed)
    }

    fn depopulate(&self, member: MemberId) -> bool {
        let Some(member) = self.members.read().present.get(&member).cloned() else {
            return false;
        };
        // Takes the pages of the file away, not only this mapping's view of them.
        let is_gone = member.mapping.advise(libc::MADV_REMOVE).is_ok();
        if is_gone {
            member.populated.store(0, Ordering::Relaxed);
        }
        is_gone
    }

    fn populate(&self, member: MemberId, first: u64, blocks: u64) -> Result<(), Starved> {
        let Some(member) = self.members.read().present.get(&member).cloned() else {
            return Err(Starved);
        };
        let (offset, bytes) = member.range(first, blocks);
        if !member.headroom.take(bytes as u64) {
            return Err(Starved);
        }
        // Whatever the errno (ENOMEM, EHWPOISON, EFAULT ...), the pages did not come: the node has none for us now.
        member.mapping.populate(offset, bytes).map_err(|_| Starved)?;
        // Relaxed: a figure for `check_room`, which orders nothing.
        member.populated.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Most frames of a request.
const BLOCKS_MAX: usize = <NodeMemory as Disks>::BLOCKS_MAX;

impl Disks for NodeMemory {
    fn is_disk(&self, member: MemberId) -> bool {
        self.members.read().disks.contains_key(&member)
    }

    fn read(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        let (disk, at, table) = (self.disk(first.member())?, first.index(), &self.table);
        let read = match frames {
            // The list of many takes longer to make than this.
            [_] => disk.read(at, Frames::<1>::of(table, frames)),
            _ => disk.read(at, Frames::<BLOCKS_MAX>::of(table, frames)),
        };
        read.map_err(|_| MemoryError)
    }

    fn transfer(&self, first: Block, frames: &[Block]) -> Option<Transfer> {
        let disk = self.disk(first.member()).ok()?;
        let pieces = match frames {
            [_] => Frames::<1>::of(&self.table, frames).addresses(),
            _ => Frames::<BLOCKS_MAX>::of(&self.table, frames).addresses(),
        };
        Some(Transfer {
            descriptor: disk.descriptor(),
            offset: first.index() * BLOCK_BYTES as u64,
            pieces,
            alive: disk,
        })
    }

    fn begin_reads(&self, member: MemberId, fetches: Vec<Fetch>) -> Vec<Fetch> {
        let Ok(disk) = self.disk(member) else {
            return fetches;
        };
        // SAFETY: they name frames of members in memory, which are nobody else's until the fetch is ended, and which are unmapped when the disks are
        // closed: see `drop`.
        unsafe { disk.begin_reads(fetches) }
    }

    fn has_reads(&self, member: MemberId) -> bool {
        self.disk(member).is_ok_and(|disk| disk.has_reads())
    }

    fn left_frame(&self, at: Block) -> Option<u32> {
        self.disk(at.member()).ok()?.left_frame(at)
    }

    fn take_reads(&self, member: MemberId, waits: bool, ended: &mut dyn FnMut(Fetch, bool)) {
        if let Ok(disk) = self.disk(member) {
            disk.take_reads(waits, ended);
        }
    }

    fn close_reads(&self, member: MemberId, ended: &mut dyn FnMut(Fetch)) {
        if let Ok(disk) = self.disk(member) {
            disk.close(ended);
        }
    }

    fn write(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        let disk = self.disk(first.member())?;
        let written = disk.write(first.index(), Frames::of(&self.table, frames));
        written.map_err(|_| MemoryError)
    }

    fn writes_at_a_time(&self, member: MemberId) -> usize {
        self.disk(member).map_or(1, |disk| disk.writes_at_a_time())
    }

    fn write_each(&self, writes: &mut [FrameWrite<'_>]) {
        if let Some(write) = writes.first()
            && let Ok(disk) = self.disk(write.first.member())
        {
            disk.write_each(&self.table, writes);
        }
    }

    fn flush(&self, member: MemberId) -> Result<(), MemoryError> {
        self.disk(member)?.flush().map_err(|_| MemoryError)
    }
}

impl Drop for NodeMemory {
    fn drop(&mut self) {
        // Reads under way store into members, and keep their disk.
        self.members
            .get_mut()
            .disks
            .values()
            .for_each(|disk| disk.close(&mut drop));
    }
}

/// Asks the processor for the bytes of a copy that is about to come, if copies of that many gain by it.
#[inline]
fn announce(at: *const u8, bytes: usize, to_write: bool) {
    if copy::gains(bytes, to_write) {
        copy::announce(at, bytes, to_write);
    }
}

/// Copies bytes of members to `to`, which is no part of the pool.
///
/// # Safety
/// `from` has as many mapped bytes as `to`.
#[inline(always)]
unsafe fn copy_out(from: *const u8, to: &mut [u8]) -> Result<(), MemoryError> {
    there(from, to.len())?;
    // SAFETY: the caller's; and `to` is ours.
    unsafe { copy::load(to.as_mut_ptr(), from, to.len()) };
    there(from, to.len())
}

/// Copies `from`, which is no part of the pool, to members.
///
/// # Safety
/// `to` has as many mapped bytes as `from`.
#[inline(always)]
unsafe fn copy_in(to: *mut u8, from: &[u8]) -> Result<(), MemoryError> {
    there(to, from.len())?;
    // SAFETY: the caller's.
    unsafe { copy::store(to, from.as_ptr(), from.len()) };
    there(to, from.len())
}

/// Whether bytes that were just copied are a member's, and not zeros in the place of what a file did not give. Asked before, too: each page that is touched
/// once more takes memory, and a mapping.
#[inline]
fn there(start: *const u8, bytes: usize) -> Result<(), MemoryError> {
    if is_lost(start, bytes) {
        Err(MemoryError)
    } else {
        Ok(())
    }
}

impl Member {
    /// The bytes of a run of blocks.
    ///
    /// # Panics
    /// When they are not all within the member.
    fn range(&self, first: u64, blocks: u64) -> (usize, usize) {
        let all = self.bytes / BLOCK_BYTES as u64;
        assert!(
            first <= all && blocks <= all - first,
            "{blocks} blocks from {first} are not within {all}"
        );
        let bytes = |blocks| {
            usize::try_from(blocks)
                .unwrap_or(usize::MAX)
                .saturating_mul(BLOCK_BYTES)
        };
        (bytes(first), bytes(blocks))
    }

    /// Bytes that were promised and are not present yet.
    fn owed_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.populated.load(Ordering::Relaxed))
    }
}

impl Members {
    /// Fails when a durable member cannot have this number.
    fn check_free(&self, id: MemberId) -> Result<(), Error> {
        if usize::from(id.0) >= MemberId::LIMIT {
            return Err(Error::Number(id));
        }
        let is_taken = self.present.contains_key(&id)
            || self.durable.contains_key(&id)
            || self.disks.contains_key(&id)
            || self.missing.contains_key(&id);
        if is_taken {
            return Err(Error::Present(id));
        }
        Ok(())
    }

    /// Whether `home` can give `bytes` besides what its members are still to get.
    fn headroom(&mut self, home: NodeId) -> Arc<Headroom> {
        let groups = self
            .groups
            .get_or_insert_with(|| Arc::new(Groups::new(Limits::of_this_process())));
        let new = || Arc::new(Headroom::new(home, Arc::clone(groups)));
        Arc::clone(self.nodes.entry(home).or_insert_with(new))
    }

    fn check_room(&self, home: NodeId, bytes: u64) -> Result<(), Error> {
        let read = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Error::UnknownNode(home),
            _ => Error::Node { node: home, source },
        };
        let total = total_bytes(home).map_err(read)?;
        if total == 0 {
            return Err(Error::Memoryless(home));
        }
        let owed: u64 = self
            .present
            .values()
            .filter(|member| member.home == home)
            .map(|member| member.owed_bytes())
            .sum();
        let free = free_bytes(home).map_err(read)?.saturating_sub(owed);
        if bytes > free {
            Err(Error::Room {
                node: home,
                bytes,
                free,
                total,
            })
        } else {
            Ok(())
        }
    }
}

/// The member itself, when calls have ended that looked it up before it was removed: each with one forced write at most.
fn alone<T>(mut member: Arc<T>) -> T {
    loop {
        match Arc::try_unwrap(member) {
            Ok(member) => return member,
            Err(shared) => member = shared,
        }
        std::thread::sleep(POLL);
    }
}

/// How to make a member's file when everything is permitted; a test puts one here that is refused.
type Preferred = fn(Option<NodeId>, u64) -> io::Result<backing::Tmpfs>;

/// Puts memory of `home` behind `mapping`; an error says what was being done.
fn back(
    mapping: &Mapping,
    home: NodeId,
    bytes: u64,
    preferred: Preferred,
) -> Result<Backing, (&'static str, io::Error)> {
    // A kernel without NUMA has one node and no way to name it.
    let bind_to = headroom::has_nodes().then_some(home);
    let failed = |doing| move |error| (doing, error);
    let backing = match preferred(bind_to, bytes) {
        Ok(tmpfs) => {
            mapping
                .attach(tmpfs.file.as_fd())
                .map_err(failed("mapping a file of its tmpfs"))?;
            let swap = if tmpfs.noswap { Swap::NoSwap } else { lock(mapping) };
            if tmpfs.huge {
                Backing::HugeTmpfs { swap }
            } else {
                Backing::Tmpfs { swap }
            }
        }
        Err(refusal) => {
            let file = backing::memfd(bytes).map_err(failed("making a memfd"))?;
            mapping.attach(file.as_fd()).map_err(failed("mapping a memfd"))?;
            if let Some(home) = bind_to {
                mapping.bind(home).map_err(failed("binding a memfd to its home"))?;
            }
            Backing::Memfd {
                swap: lock(mapping),
                refusal: refusal.raw_os_error().unwrap_or(0),
            }
        }
    };
    // Populating then takes the trouble to make a free huge page where none is; where there are none it is refused.
    let _ = mapping.advise(libc::MADV_HUGEPAGE);
    Ok(backing)
}

fn lock(mapping: &Mapping) -> Swap {
    if mapping.lock().is_ok() {
        Swap::Locked
    } else {
        Swap::Swappable
    }
}

#[cfg(test)]
mod played;
#[cfg(test)]
mod tests;
