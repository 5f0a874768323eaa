//! Carries out a request on the filesystem.
//!
//! A [`Call`] holds the caller, and turns operations of the wire into operations of [`Fs`]. It waits at most 200 ms for free space. In a durable
//! pool it also waits for the disk, on threads of `aside` where the thread that takes requests must not wait.
//!
//! ENOSYS is the answer, once, to FLUSH (nothing to do in memory), OPENDIR (no handle needed) and ACCESS: the kernel sends no more of them; nor
//! INTERRUPT, which is refused before the first request. FSYNC and FSYNCDIR are answered each time, because after ENOSYS the kernel reports success even when the server
//! is dead. Where the kernel holds the bytes that success is true, and the answer is ENOSYS.
//!
//! A lookup pins an inode until FORGET; an open counts, and keeps it, until RELEASE. The two come by different ways, in any order.

mod attributes;
mod data;
mod directories;
mod names;
mod open;
mod room;
mod xattrs;

use crate::aside::Way;
use crate::device::Device;
use crate::host::Host;
use crate::negotiate::Agreed;
use crate::passthrough::Connection;
use crate::statistics::Counters;
use crate::wire::flags::set_attr;
use crate::wire::{Full, InHeader, Reply, Request};
use crate::writers::Writers;
use homenode_engine::cache::Fetch;
use homenode_engine::fs::{self, Asking, FoundMap, Fs, Ino, Inode, MAP_XATTR, Unlinked};
use homenode_engine::{AccessKind, BLOCK_BYTES, Clock, CpuId, FileAccess, Memory, NodeId};
use homenode_shared::Slot;
use room::Hope;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Everything that all calls of a mount share.
#[derive(Debug)]
pub(crate) struct Service<M: Memory, C: Clock, H> {
    pub(crate) fs: Arc<Fs<M, C>>,
    pub(crate) host: Arc<H>,
    pub(crate) agreed: Agreed,
    pub(crate) device: Weak<Device>,
    /// The connection, where the kernel moves bytes itself.
    pub(crate) passthrough: Option<Connection>,
    pub(crate) writers: Writers,
    /// Whether all CPUs belong to one node: then no thread is asked where it runs.
    has_one_node: bool,
    /// Whether files have labels (SELinux's): the kernel sets them, or somebody has set one.
    pub(crate) has_labels: AtomicBool,
    /// Maps of files under way, by their requests' numbers.
    maps: Mutex<HashMap<u64, FoundMap>>,
    /// Sizes of files before those requests that make them longer and are under way.
    extended: Mutex<HashMap<u64, u64>>,
    /// Threads that read the device.
    threads: usize,
    /// Number of these threads that wait, for room or for the disk.
    waiting: AtomicUsize,
    /// Whether it is worth to wait for room.
    hope: Mutex<Hope>,
}

impl<M: Memory, C: Clock, H: Host> Service<M, C, H> {
    /// For a mount whose device `threads` threads read.
    pub(crate) fn new(
        fs: Arc<Fs<M, C>>,
        host: Arc<H>,
        agreed: Agreed,
        (device, passthrough): (Weak<Device>, Option<Connection>),
        threads: usize,
    ) -> Self {
        let node = |cpu: usize| u32::try_from(cpu).map(|cpu| fs.pool().cpu_node(CpuId(cpu)));
        let has_one_node = (1..host.possible_cpus()).all(|cpu| node(cpu) == node(0));
        fs.begin_mount();
        Self {
            fs,
            host,
            agreed,
            device,
            passthrough,
            writers: Writers::default(),
            has_one_node,
            has_labels: AtomicBool::new(Path::new("/sys/fs/selinux/enforce").exists()),
            maps: Mutex::default(),
            extended: Mutex::default(),
            threads,
            waiting: AtomicUsize::new(0),
            hope: Mutex::default(),
        }
    }
}

impl<M: Memory, C: Clock, H> Service<M, C, H> {
    /// Has the kernel forget the attributes of an inode, and those of answers that are on their way.
    pub(crate) fn forget_attributes(&self, ino: Ino) {
        if let Some(device) = self.device.upgrade()
            && let Err(error) = device.forget_attributes(ino)
        {
            tracing::warn!(%error, "attributes of inode {} may be out of date", ino.0);
        }
    }
}

impl<M: Memory, C: Clock, H> Drop for Service<M, C, H> {
    fn drop(&mut self) {
        self.fs.end_mount();
    }
}

/// Time for which an operation that found the pool full is tried again. On a busy machine the threads that free the space,
/// the kernel's and the server's, run tens of milliseconds later.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_millis(200);
/// The pause before each try.
pub(crate) const ROOM_WAIT: Duration = Duration::from_millis(1);

/// Blocks of a file that others may wait for until they are free: a millisecond or two.
const FREED_BLOCKS: u64 = 8192;
/// Effort to remove a file, in times of a block to free.
const REMOVAL_BLOCKS: u64 = 64;
/// Bytes of a synchronous write that others may wait for.
const SHORT_BYTES: usize = 128 << 10;

/// A reader of the device waits, if it is one, and is counted; its call says so meanwhile.
struct Waiting<'a>(Option<(&'a AtomicUsize, &'a Cell<bool>)>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some((waiting, waits)) = self.0 {
            waits.set(false);
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A request under way.
pub(crate) struct Call<'a, M: Memory, C: Clock, H> {
    pub(crate) service: &'a Service<M, C, H>,
    pub(crate) slot: &'a Slot,
    pub(crate) counters: &'a Counters,
    pub(crate) header: &'a InHeader,
    pub(crate) origin: Origin,
    /// Set when the request is to be carried out again.
    pub(crate) later: Cell<Option<Later>>,
    /// Reads to carry out with [`Later::Fetch`].
    pub(crate) fetches: &'a RefCell<Vec<Fetch>>,
    /// Whether the thread may wait, and is counted as one that does.
    pub(crate) waits: Cell<bool>,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The device, one of whose readers at least goes on serving.
    Device {
        /// Whether another thread than a reader carries it out, which may wait.
        is_aside: bool,
        /// How far it came there.
        done: u64,
    },
    /// The ring of this CPU, whose thread has others to serve.
    Ring {
        cpu: CpuId,
        /// Whether another thread than the ring's carries it out, which may wait for the disk.
        is_aside: bool,
        /// Since it was first carried out, and not to its end.
        waited: Option<Duration>,
        /// Whether it is carried out for the first time.
        is_new: bool,
        /// How far it came.
        done: u64,
        /// Whether the thread of the ring can read bytes from disks for it.
        may_fetch: bool,
        /// Whether it has begun to read some: others may wait for those.
        is_reading: bool,
    },
}

/// Why a request is to be carried out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Later {
    /// There is no room yet.
    Room,
    /// It waits for the disk, or takes long: by another thread ([`crate::aside`]).
    Disk(Way),
    /// When bytes were read from a disk.
    Fetch,
    /// A step of it is done, and it has come so far: others are served before the next step.
    Step(u64),
}

/// Linux's number of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl From<fs::Error> for Errno {
    fn from(error: fs::Error) -> Self {
        Self(error.errno())
    }
}

impl From<Full> for Errno {
    /// Answers of fixed size always fit: the kernel asked for more than was negotiated.
    fn from(_: Full) -> Self {
        Self(libc::EINVAL)
    }
}

impl<M: Memory, C: Clock, H: Host> Call<'_, M, C, H> {
    /// Carries out `request` and writes the payload of its answer to `reply`.
    pub(crate) fn carry_out(&self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<(), Errno> {
        if matches!(&request, Request::GetXattr { name, .. } if *name == MAP_XATTR) {
            self.admit_map()?;
        }
        let frees_long = || self.frees_long(&request).then_some(Later::Disk(Way::Long));
        let _waiting = match self.disk_wait(&request).or_else(frees_long) {
            None => None,
            Some(later) => match self.wait_here() {
                Some(waiting) => Some(waiting),
                None => {
                    self.later.set(Some(later));
                    return Err(Errno(libc::EAGAIN));
                }
            },
        };
        match request {
            Request::Forget(input) => {
                self.forget(self.header.nodeid, input.nlookup);
                Ok(())
            }
            Request::BatchForget(forgets) => {
                for one in forgets {
                    self.forget(one.nodeid, one.nlookup);
                }
                Ok(())
            }
            Request::Read(input) => self.read(&input, reply),
            Request::Write { input, data } => self.write(&input, data, reply),
            Request::Lookup { name } => self.lookup(name, reply),
            Request::GetAttr(input) => self.get_attr(&input, reply),
            Request::StatX(_) => self.stat_x(reply),
            Request::SetAttr(input) => self.set_attr(&input, reply),
            Request::ReadLink => self.read_link(reply),
            Request::SymLink { name, target } => self.sym_link(name, target, reply),
            Request::MkNod { input, name } => self.make_node(&input, name, reply),
            Request::MkDir { input, name } => self.make_dir(&input, name, reply),
            Request::Unlink { name } => self.unlink(name),
            Request::RmDir { name } => self.remove_dir(name),
            Request::Rename { input, name, new_name } => self.rename(&input, name, new_name),
            Request::Link { input, name } => self.link(&input, name, reply),
            Request::Open(input) => self.open(&input, reply),
            Request::Create { input, name } => self.create(&input, name, reply),
            Request::TmpFile(input) => self.temporary_file(&input, reply),
            Request::ReadDir(input) => self.read_dir(&input, reply),
            Request::ReadDirPlus(input) => self.read_dir_plus(&input, reply),
            Request::StatFs => self.stat_fs(reply),
            Request::SetXattr { input, name, value } => self.set_xattr(&input, name, value),
            Request::GetXattr { input, name } => self.get_xattr(&input, name, reply),
            Request::ListXattr(input) => self.list_xattrs(&input, reply),
            Request::RemoveXattr { name } => self.remove_xattr(name),
            Request::FAllocate(input) => self.allocate(&input),
            Request::LSeek(input) => self.seek(&input, reply),
            // The caller copies by itself, within the kernel: pages are then its own, on its node and in its memory control group.
            Request::CopyFileRange(_) | Request::CopyFileRange64(_) if self.service.passthrough.is_some() => {
                Err(Errno(libc::ENOSYS))
            }
            Request::CopyFileRange(input) => self.copy_range(&input, reply),
            Request::CopyFileRange64(input) => self.copy_range_64(&input, reply),
            // The kernel has the bytes and the server does not: fsync has nothing to ask for, now or later.
            Request::FSync(_) | Request::FSyncDir(_) if self.service.passthrough.is_some() => Err(Errno(libc::ENOSYS)),
            Request::FSync(_) | Request::FSyncDir(_) => self.sync(),
            Request::SyncFs => Ok(self.fs().sync_all(self.slot)?),
            Request::Release(input) => self.release(&input),
            Request::ReleaseDir(_) | Request::Destroy => Ok(()),
            // The kernel checks permissions itself; there is nothing to flush or to interrupt; nobody offered the rest.
            Request::OpenDir(_)
            | Request::Flush(_)
            | Request::Access(_)
            | Request::Interrupt(_)
            | Request::Unserved(_) => Err(Errno(libc::ENOSYS)),
            // Answered before the threads started: the kernel sends one.
            Request::Init(_) => Err(Errno(libc::EIO)),
        }
    }

    /// Makes the inode durable. Aside it only settles the inode: the thread there forces the log, for others as well.
    fn sync(&self) -> Result<(), Errno> {
        if !self.fs().is_durable() {
            return Ok(());
        }
        let inode = self.inode()?;
        match self.origin {
            _ if self.is_aside() => Ok(self.fs().begin_sync(self.slot, &inode)?),
            _ => Ok(self.fs().sync(self.slot, &inode)?),
        }
    }

    /// Whether making the file longer reserves what that adds.
    fn reserves(&self) -> bool {
        self.inode().is_ok_and(|inode| self.fs().reserves_extension(&inode))
    }

    /// Whether the thread is one of those that wait for disks.
    fn is_aside(&self) -> bool {
        matches!(
            self.origin,
            Origin::Device { is_aside: true, .. } | Origin::Ring { is_aside: true, .. }
        )
    }

    /// Why the request is to be carried out by another thread, if it may wait for the disk.
    fn disk_wait(&self, request: &Request<'_>) -> Option<Later> {
        let fs = self.fs();
        // Changes of names wait for locks, whose holders may wait for what this thread reads.
        let is_reading = matches!(self.origin, Origin::Ring { is_reading: true, .. });
        // Little is made durable by the thread itself where that waits for no device.
        let sync = |bytes: usize| match self.inode() {
            Ok(inode) if bytes > SHORT_BYTES || fs.begins_long(&inode) => Some(Way::Long),
            inode => {
                let waits = inode.is_ok_and(|inode| fs.waits_to_sync(&inode)) || fs.may_wait(false);
                waits.then_some(Way::Short)
            }
        };
        let way = match request {
            _ if !fs.is_durable() => return None,
            Request::FSync(_) | Request::FSyncDir(_) => sync(0)?,
            Request::Write { input, data } if input.flags & libc::O_DSYNC.cast_unsigned() != 0 => {
                // It may find the pool full, too.
                sync(data.len()).or_else(|| fs.may_wait(true).then_some(Way::Long))?
            }
            // It may ask for more than a pool has that is far from full; and collapse makes the file durable.
            Request::SyncFs | Request::FAllocate(_) => Way::Long,
            // They wait with a file's gate closed, or for one.
            Request::CopyFileRange(_) | Request::CopyFileRange64(_) if fs.reads_disks() => Way::Long,
            Request::SetAttr(input) if input.valid & set_attr::SIZE != 0 && (fs.reads_disks() || self.reserves()) => {
                Way::Long
            }
            Request::GetXattr { name, .. } if *name == MAP_XATTR && fs.reads_disks() => Way::Long,
            Request::Write { .. } | Request::CopyFileRange(_) | Request::CopyFileRange64(_) if fs.may_wait(true) => {
                Way::Long
            }
            Request::Create { .. }
            | Request::MkNod { .. }
            | Request::MkDir { .. }
            | Request::SymLink { .. }
            | Request::TmpFile(_)
            | Request::Link { .. }
            | Request::Rename { .. }
            | Request::SetXattr { .. } => match fs.may_wait(true) {
                true => Way::Long,
                false if is_reading => Way::Read,
                false => return None,
            },
            Request::Unlink { .. } | Request::RmDir { .. } | Request::RemoveXattr { .. } | Request::SetAttr(_) => {
                match fs.may_wait(false) {
                    true => Way::Long,
                    false if is_reading => Way::Read,
                    false => return None,
                }
            }
            _ => return None,
        };
        Some(Later::Disk(way))
    }

    /// Whether the request is to be carried out by another thread, if it may be, since it frees files that take long.
    fn frees_long(&self, request: &Request<'_>) -> bool {
        // Rings of a pool of memory have nobody beside them.
        if matches!(self.origin, Origin::Ring { .. }) && !self.fs().is_durable() {
            return false;
        }
        let effort = |nodeid, pins, opens| {
            let inode = self.fs().inode(Ino(nodeid));
            let going = inode.and_then(|inode| self.fs().blocks_going(&inode, pins, opens));
            going.map_or(0, |blocks| blocks + REMOVAL_BLOCKS)
        };
        match *request {
            Request::Forget(input) => effort(self.header.nodeid, input.nlookup, 0) > FREED_BLOCKS,
            Request::Release(_) => effort(self.header.nodeid, 0, 1) > FREED_BLOCKS,
            Request::BatchForget(mut forgets) => {
                let mut all = 0;
                forgets.any(|one| {
                    all += effort(one.nodeid, one.nlookup, 0);
                    all > FREED_BLOCKS
                })
            }
            _ => false,
        }
    }

    /// Whether this thread may wait, for as long as it keeps what is returned.
    fn wait_here(&self) -> Option<Waiting<'_>> {
        match self.origin {
            _ if self.is_aside() => Some(Waiting(None)),
            Origin::Ring { .. } => None,
            Origin::Device { .. } if self.waits.get() => Some(Waiting(None)),
            Origin::Device { .. } => {
                let waiting = Waiting(Some((&self.service.waiting, &self.waits)));
                let others_serve = self.service.waiting.fetch_add(1, Ordering::Relaxed) + 1 < self.service.threads;
                self.waits.set(others_serve);
                others_serve.then_some(waiting)
            }
        }
    }

    fn fs(&self) -> &Fs<M, C> {
        &self.service.fs
    }

    /// The inode the request is about.
    fn inode(&self) -> Result<Arc<Inode>, Errno> {
        self.inode_of(self.header.nodeid)
    }

    fn inode_of(&self, nodeid: u64) -> Result<Arc<Inode>, Errno> {
        self.fs().inode(Ino(nodeid)).ok_or(Errno(libc::ESTALE))
    }

    /// Attributes of an inode have changed by a request after which the kernel asks for them again, but would take older ones that are on their
    /// way for an answer.
    fn note_changed(&self, inode: &Inode) {
        if inode.take_told(self.header.pid) {
            self.service.forget_attributes(inode.ino());
        }
    }

    /// Takes `lookups` pins off an inode. The root is never pinned: it has no name to look up.
    fn forget(&self, nodeid: u64, lookups: u64) {
        if let Some(inode) = self.fs().inode(Ino(nodeid)).filter(|inode| inode.ino() != Ino::ROOT) {
            self.fs().unpin_telling(&inode, lookups, || self.note_end(&inode));
        }
    }

    /// Notes that all bytes of a file are about to give their memory back, with the file.
    fn note_end(&self, inode: &Inode) {
        self.note_going(|| {
            let blocks = 0..self.fs().attr(inode).size.next_multiple_of(BLOCK_BYTES as u64);
            inode.is_file().then_some((inode.ino().0, blocks))
        });
    }

    /// The asking side of an operation; `node` tells the node that blocks are placed for ([`Self::node`]).
    fn asking<'b>(&'b self, node: &'b dyn Fn() -> NodeId) -> Asking<'b> {
        Asking {
            slot: self.slot,
            cpu: self.service.host.current_cpu(),
            node,
            user: Some(self.header.uid),
            waits: self.is_aside() || self.waits.get() || !self.fs().reads_disks(),
        }
    }

    /// Carries out an operation that may wait for disks. Where this thread may not, what `fetches` begins to read comes first, or else another
    /// thread is to carry it out.
    fn with_disk<T>(
        &self,
        asking: &Asking<'_>,
        way: Way,
        fetches: impl FnOnce() -> Vec<Fetch>,
        mut operation: impl FnMut(&Asking<'_>) -> fs::Result<T>,
    ) -> fs::Result<T> {
        let result = operation(asking);
        if !matches!(result, Err(fs::Error::Away)) {
            return result;
        }
        if let Origin::Ring { may_fetch: true, .. } = self.origin {
            let fetches = fetches();
            if !fetches.is_empty() {
                self.fetches.replace(fetches);
                self.later.set(Some(Later::Fetch));
                return result;
            }
        }
        let Some(_waiting) = self.wait_here() else {
            self.later.set(Some(Later::Disk(way)));
            return result;
        };
        operation(&Asking { waits: true, ..*asking })
    }

    /// Runs `operation`, which copies bytes of the request's file, and counts them for the thread that asks, where somebody wants to know.
    fn counted<R>(&self, thread: u32, asking: &Asking<'_>, operation: impl FnOnce() -> R) -> R {
        if thread == 0 || self.service.has_one_node || !self.counters.tasks.counts() {
            return operation();
        }
        let pool = self.fs().pool();
        let look = |sums: &mut [u64]| pool.add_homes_from(self.slot, asking.cpu, sums);
        let file = Ino(self.header.nodeid);
        self.counters
            .tasks
            .count(thread, file, pool.nodes().len(), look, operation)
    }

    /// Notes what was done with the request's file, where somebody wants to know.
    fn note_access(&self, node: &dyn Fn() -> NodeId, offset: u64, bytes: usize, kind: AccessKind) {
        self.counters.accesses.note(|| {
            Some(FileAccess {
                at_ns: 0,
                node: node(),
                file: self.header.nodeid,
                offset,
                bytes: bytes as u64,
                kind,
            })
        });
    }

    /// Notes that bytes of a file are about to give their memory back; those up to its end with the rest of their block.
    fn note_freed(&self, freed: impl FnOnce() -> Option<(u64, Range<u64>)>) {
        // It was noted with the first step. What waits for no disk comes aside behind that.
        let is_later = match self.origin {
            Origin::Ring { done, .. } => done > 0,
            Origin::Device { is_aside, done } => done > 0 || is_aside && !self.fs().is_durable(),
        };
        if !is_later {
            self.note_going(freed);
        }
    }

    /// [`Self::note_freed`] of a request that has no steps.
    fn note_going(&self, freed: impl FnOnce() -> Option<(u64, Range<u64>)>) {
        self.counters.accesses.note(|| {
            let (file, bytes) = freed().filter(|(_, bytes)| !bytes.is_empty())?;
            Some(FileAccess {
                at_ns: 0,
                node: self.own_node(),
                file,
                offset: bytes.start,
                bytes: bytes.end - bytes.start,
                kind: AccessKind::Free,
            })
        });
    }

    /// Runs `operation`, and for a moment again when it finds the pool full, or the memory for names and inodes, while removed files are about to give
    /// it back ([`room`]).
    fn with_room<T>(&self, operation: impl FnMut() -> fs::Result<T>) -> Result<T, Errno> {
        let threads = u32::try_from(self.service.threads).unwrap_or(u32::MAX);
        let mut paused_from = None;
        self.with_room_while(operation, |unlinked| {
            let mut hope = self.service.hope.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            // A thread that asks again has paused; a ring's thread asks once.
            let paused = paused_from.replace(now).map_or(Duration::ZERO, |from| now - from);
            let lasts = hope.lasts(unlinked, now);
            hope.count_pause(paused, threads, now) && lasts
        })
    }

    /// Runs `operation`, and for a moment again while it finds no room and `may_come` says that there may be some soon, by the files without
    /// a name before the attempt.
    ///
    /// At least one of the threads that read the device goes on serving, and hears of closes. A ring's thread never waits
    /// here; it asks again later.
    fn with_room_while<T>(
        &self,
        mut operation: impl FnMut() -> fs::Result<T>,
        mut may_come: impl FnMut(&Unlinked) -> bool,
    ) -> Result<T, Errno> {
        let mut attempt = || {
            // Looked at first: space that is freed meanwhile deserves another try.
            let unlinked = self.fs().unlinked();
            let result = operation();
            let is_full = matches!(
                result,
                Err(fs::Error::NoSpace | fs::Error::NoMetadata | fs::Error::NoInodes)
            );
            let settled = !is_full || !may_come(&unlinked);
            (result, settled)
        };
        let (mut result, mut settled) = attempt();
        if settled {
            return Ok(result?);
        }
        if let Origin::Ring { waited, .. } = self.origin {
            let in_time = waited.unwrap_or_default() < ROOM_TIMEOUT;
            self.later.set(in_time.then_some(Later::Room));
            return Ok(result?);
        }
        let waiting = self.wait_here();
        let start = Instant::now();
        while !settled && waiting.is_some() && start.elapsed() < ROOM_TIMEOUT {
            std::thread::sleep(ROOM_WAIT);
            (result, settled) = attempt();
        }
        Ok(result?)
    }

    /// Waits a moment where removed files pile up, of which the kernel's word to forget has not been read yet, or is being carried out:
    /// the room that can be given ahead of them is limited, and the kernel's writers do not wait for it. After a whole wait in vain none follows
    /// for a while.
    fn let_forgets_pass(&self) -> Result<(), Errno> {
        let Some(connection) = &self.service.passthrough else {
            return Ok(());
        };
        let pool = self.fs().pool();
        // On the classic device, whose threads all read, any request may be waiting.
        let is_unread = || matches!(self.origin, Origin::Ring { .. }) && connection.has_request();
        let hope = || self.service.hope.lock().unwrap_or_else(PoisonError::into_inner);
        let is_awaited = || !hope().is_vain(Instant::now());
        let is_behind = || pool.is_ahead_short() && (pool.is_discarding() || is_unread()) && is_awaited();
        let is_passed = || if is_behind() { Err(fs::Error::NoSpace) } else { Ok(()) };
        let start = Instant::now();
        let passed = self.with_room_while(is_passed, Unlinked::is_any);
        if self.later.get().is_some() {
            return passed;
        }
        let waited = match self.origin {
            // A new one that does not wait came when others do.
            Origin::Ring { waited, is_new, .. } => waited.filter(|_| !is_new).unwrap_or_default(),
            Origin::Device { .. } => start.elapsed(),
        };
        if passed.is_err() && waited >= ROOM_TIMEOUT {
            hope().note_vain(Instant::now());
        }
        Ok(())
    }

    /// Carries a long operation out by steps: `step` takes how far it came and gives how far it comes, `None` at the end. A ring's thread and
    /// one aside do one step and then serve others. A reader of the device does all of them, unless it is the last one that reads: then another thread does.
    fn in_steps(&self, mut step: impl FnMut(u64) -> Result<Option<u64>, Errno>) -> Result<(), Errno> {
        let (Origin::Ring { done, .. } | Origin::Device { is_aside: true, done }) = self.origin else {
            let Some(mut done) = step(0)? else { return Ok(()) };
            let Some(_waiting) = self.wait_here() else {
                self.later.set(Some(Later::Disk(Way::Long)));
                return Err(Errno(libc::EAGAIN));
            };
            while let Some(so_far) = step(done)? {
                done = so_far;
            }
            return Ok(());
        };
        match step(done)? {
            None => Ok(()),
            Some(so_far) => {
                self.later.set(Some(Later::Step(so_far)));
                Err(Errno(libc::EAGAIN))
            }
        }
    }

    /// Frees what lies beyond `size`, where that takes long.
    fn shrink(&self, inode: &Inode, size: u64) -> Result<(), Errno> {
        self.note_freed(|| {
            let end = self.fs().attr(inode).size;
            (size < end).then(|| (inode.ino().0, size..end.next_multiple_of(BLOCK_BYTES as u64)))
        });
        self.in_steps(|done| Ok(self.fs().truncate_step(inode, size, done)?))
    }

    /// The node of the thread that made the call.
    fn own_node(&self) -> NodeId {
        self.node(self.header.pid)
    }

    /// The node thread `tid` (0: nobody known) asks from: a ring is that of the caller's CPU. Where it cannot be known, that
    /// of the serving CPU, which the scheduler chooses near the caller.
    fn node(&self, tid: u32) -> NodeId {
        let host = &self.service.host;
        let asking = match self.origin {
            Origin::Ring { cpu, .. } if tid == self.header.pid => Some(cpu),
            _ if tid == 0 || self.service.has_one_node => None,
            _ => host.thread_cpu(tid),
        };
        self.fs().pool().cpu_node(asking.unwrap_or_else(|| host.current_cpu()))
    }

    /// The node of the serving CPU: the caller's, where a ring carries the request.
    fn serving_node(&self) -> NodeId {
        self.fs().pool().cpu_node(self.service.host.current_cpu())
    }

    /// Remembers the caller as the inode's writer, for when the kernel writes its mapped pages back.
    fn note_writer(&self, nodeid: u64) {
        if self.header.pid != 0 && !self.service.has_one_node {
            self.service.writers.note(nodeid, self.header.pid);
        }
    }
}
