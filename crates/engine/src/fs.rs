//! The filesystem: inodes, directories and the data path over the pool (mbsfs of MBS-LVM, section 3).
//!
//! Locks, in this order: the rename lock, or those of volumes; directories, ancestors first; states of inodes, by ascending
//! number; a file's appending lock, its exclusive lock; then the pool's. Reads and writes of placed blocks take none of them.

mod acl;
pub(crate) mod attr;
mod attributes;
mod block_file;
mod capability;
mod commit;
mod directory;
mod durable;
mod error;
mod file;
mod inode;
mod kernel_file;
mod members;
mod metadata;
mod namespace;
mod open;
pub(crate) mod placement;
mod rename;
mod repair;
mod restore;
mod snapshot;
mod table;
mod unlinked;
mod volume;
mod words;
mod xattr;

pub use attr::{Attr, NewInode, RenameMode, SetAttr, SetTime, StatFs, Whence, XattrMode};
pub use block_file::{Advice, READS_MAX, ReadAt};
pub use capability::{BodyKind, Operation};
pub use error::{Error, Result};
pub use file::{FoundMap, fallocate_mode};
pub use inode::Inode;
pub use kernel_file::{PreparedFile, Promised, Survey};
pub use namespace::DirEntry;
pub(crate) use namespace::TARGET_BYTES_MAX;
pub use open::{Access, Opens};
pub use placement::{Placement, UnknownPlacement};
pub use repair::{Mended, Remedy, Repair};
pub use restore::{OpenError, Replayed};
pub use unlinked::{Unlinked, UnlinkedCount};
pub use volume::{Stretch, VOLUME_BYTES_MAX, Volume, VolumeError, VolumeStatus};
pub(crate) use volume::{check_name as check_volume_name, check_size as check_volume_size, room_of as room_of_volume};
pub use words::{WORDS_NAME, WORDS_XATTR};
pub(crate) use xattr::VALUE_BYTES_MAX;
pub use xattr::{MAP_XATTR, POLICY_XATTR, RESERVE_VALUE, RESERVE_XATTR, map_value};

use crate::log::{Attributes, Change, Journal};
use crate::pool::{Machine, Pool, SLOTS};
use crate::{Clock, CpuId, Memory, NodeId};
use block_file::BlockFile;
pub(crate) use block_file::FILE_BYTES_MAX;
use commit::Held;
pub(crate) use directory::{LAST_OF_HASH, check_name, first_key};
use homenode_shared::{Nodes, Slot, Slots};
use inode::{Body, State};
use kernel_file::{Growing, Promising, Steering};
use metadata::{Metadata, inode_bytes, name_bytes, node_bytes, xattr_bytes};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use table::Table;
use unlinked::{Standing, UnlinkedFiles};
use volume::Volumes;
use words::AllWords;

/// Who asks: given with every operation that may touch data.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The calling thread's slot (claimed once per thread from [`Fs::slots`]).
    pub slot: &'a Slot,
    /// The CPU that executes the copy: picks the grant and the row of the access matrix.
    pub cpu: CpuId,
    /// The asking node; called only when blocks are to be placed.
    pub node: &'a dyn Fn() -> NodeId,
    /// The user who asks; `None` when nobody can tell, as of mapped pages that the kernel writes back.
    pub user: Option<u32>,
    /// Whether the thread may wait for disks. Where it may not, and would in [`Fs::read`], [`Fs::write`] or [`Fs::seek`], they end with
    /// [`Error::Away`], and what was written already is written again by whoever tries again. So for threads that have fetches to end
    /// ([`Fs::begin_fetches`]): whatever they waited for might wait for those.
    pub waits: bool,
}

impl std::fmt::Debug for Asking<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking")
            .field("slot", &self.slot.index())
            .field("cpu", &self.cpu)
            .finish_non_exhaustive()
    }
}

/// Number of an inode. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// The root directory, which needs no name.
fn new_root(now_ns: i64) -> Inode {
    let body = Body::Directory(Box::new(directory::Directory::new(Ino::ROOT)));
    let root = Inode::new(Ino::ROOT, attr::DIRECTORY, 0, body, now_ns);
    root.state.lock().links = 2;
    root
}

/// A filesystem on one pool.
#[derive(Debug)]
pub struct Fs<M: Memory, C: Clock> {
    pool: Pool<M>,
    clock: C,
    /// The log of a durable pool.
    journal: Option<Box<Journal>>,
    slots: Arc<Slots>,
    /// Blocks are located in these slots, as there is a cache.
    is_cached: bool,
    nodes: Nodes,
    table: Table,
    root: Arc<Inode>,
    /// Held by renames across directories: the tree's shape changes under it only.
    renaming: Mutex<()>,
    volumes: Volumes,
    /// Files without a link that something keeps, or whose blocks are just being freed.
    unlinked: UnlinkedFiles,
    metadata: Arc<Metadata>,
    /// Files of the kernel to which room is promised.
    promising: Mutex<Promising>,
    /// When all promises were counted last.
    promises_counted_ns: AtomicI64,
    /// Blocks of promises that found no room, and the time of the first ones.
    broken_promises: Mutex<Option<(u64, i64)>>,
    /// Whether volumes have given blocks up that files could have.
    has_discarded: AtomicBool,
    /// Nodes that take pages of files of the kernel.
    steering: Steering,
    /// Files of the kernel that may have grown.
    growing: Growing,
    /// Opens of all inodes that are not released.
    opens: AtomicU64,
    /// Mounts whose kernel remembers inodes ([`Fs::pin`]).
    mounts: Mutex<usize>,
    /// Held by the connection that registers backing files.
    passing: Mutex<Weak<()>>,
    /// Words of files of the kernel.
    words: AllWords,
    /// Reading moves no access times, neither of directories nor of anything else.
    keeps_access_times: AtomicBool,
    /// Reading moves no access times of directories.
    keeps_directory_times: AtomicBool,
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// An empty filesystem on a pool without members; owner and mode of the root as given.
    pub fn new(machine: &Machine, memory: M, clock: C, root: NewInode) -> Self {
        let now_ns = clock.now_ns();
        let fs = Self::without_log(machine, memory, clock, Arc::new(new_root(now_ns)), 1);
        fs.put_root(root);
        fs
    }

    /// A filesystem whose inodes are numbered behind `last`, none but the root in it yet.
    fn without_log(machine: &Machine, memory: M, clock: C, root: Arc<Inode>, last: u64) -> Self {
        let cached = memory.slots();
        let fs = Self {
            is_cached: cached.is_some(),
            slots: cached.unwrap_or_else(|| Slots::new(SLOTS)),
            pool: Pool::new(machine, memory),
            journal: None,
            nodes: Nodes::new(machine.nodes.len()),
            table: Table::new(machine.files_max, last),
            root,
            clock,
            renaming: Mutex::new(()),
            volumes: Volumes::default(),
            unlinked: UnlinkedFiles::default(),
            metadata: Arc::new(Metadata::new(machine.files_max)),
            promising: Mutex::default(),
            promises_counted_ns: AtomicI64::new(0),
            broken_promises: Mutex::default(),
            has_discarded: AtomicBool::new(false),
            steering: Steering::default(),
            growing: Growing::default(),
            opens: AtomicU64::new(0),
            mounts: Mutex::default(),
            passing: Mutex::default(),
            words: AllWords::default(),
            keeps_access_times: AtomicBool::new(false),
            keeps_directory_times: AtomicBool::new(false),
        };
        fs.nodes
            .set_allowance(Box::new(metadata::MapAllowance(Arc::clone(&fs.metadata))));
        fs
    }

    /// Puts the root in the table, and gives it attributes.
    fn put_root(&self, root: NewInode) {
        self.table.put_counted(self.root());
        let attributes = Attributes {
            mode: attr::DIRECTORY | root.mode & attr::PERMISSIONS,
            uid: root.uid,
            gid: root.gid,
            rdev: 0,
            placement: None,
        };
        let change = Change::Inode {
            ino: Ino::ROOT,
            attributes,
        };
        self.commit(Held::state_of(&self.root), self.now_ns(), &[change])
            .expect("metadata has no limit before the pool is opened");
    }

    /// Where each thread claims its slot.
    pub fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// The pool below.
    pub fn pool(&self) -> &Pool<M> {
        &self.pool
    }

    /// The root directory.
    pub fn root(&self) -> Arc<Inode> {
        Arc::clone(&self.root)
    }

    /// The live inode of that number (FUSE's nodeid). Volumes are reached by their names only.
    pub fn inode(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.table.find(ino).filter(|inode| !inode.is_volume())
    }

    /// Keeps the inode though it may be unlinked: each lookup that the kernel remembers is one pin.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is gone already.
    pub fn pin(&self, inode: &Inode) -> Result<()> {
        let mut state = inode.state.lock();
        if state.evicted {
            return Err(Error::Stale);
        }
        state.pins += 1;
        Ok(())
    }

    /// Takes `pins` pins back; the inode goes with the last one when nothing links to it.
    pub fn unpin(&self, inode: &Inode, pins: u64) {
        self.unpin_telling(inode, pins, || ());
    }

    /// Takes pins back ([`Self::unpin`]); calls `at_end` when the inode goes, before its blocks are freed.
    pub fn unpin_telling(&self, inode: &Inode, pins: u64, at_end: impl FnOnce()) {
        self.let_go(inode, |state| state.pins = state.pins.saturating_sub(pins), at_end);
    }

    /// Blocks that go with the inode when `pins` pins and `opens` opens are taken back; `None` when something else keeps it.
    pub fn blocks_going(&self, inode: &Inode, pins: u64, opens: u32) -> Option<u64> {
        let goes = inode.state.lock().goes_without(pins, opens);
        goes.then(|| inode.size_and_blocks().1)
    }

    /// Keeps the inode though it may be unlinked, until [`Fs::unkeep`].
    ///
    /// # Errors
    /// [`Error::Stale`] when it is gone already.
    pub fn keep(&self, inode: &Inode) -> Result<()> {
        let mut state = inode.state.lock();
        if state.evicted {
            return Err(Error::Stale);
        }
        state.kept += 1;
        Ok(())
    }

    /// Takes one [`Fs::keep`] back; the inode goes with the last one when nothing else keeps it.
    pub fn unkeep(&self, inode: &Inode) {
        self.let_go(inode, |state| state.kept -= 1, || ());
    }

    /// A mount begins, which may pin inodes until [`Fs::end_mount`].
    pub fn begin_mount(&self) {
        *self.mounts.lock() += 1;
    }

    /// A mount has ended: the kernel does not say which pins it still had. With the last mount all go.
    pub fn end_mount(&self) {
        // Held all the time: the next mount's pins come later.
        let mut mounts = self.mounts.lock();
        *mounts -= 1;
        if *mounts == 0 {
            self.table.for_each(|inode| {
                // A fallocate that ended between two of its steps, as its thread did.
                if let Some(file) = inode.kernel_file() {
                    file.abandon_steps(&self.pool);
                }
                self.unpin(inode, u64::MAX);
            });
        }
    }

    /// Takes back what keeps an inode, and evicts the inode when nothing is left that does, after a call of `at_end`.
    fn let_go(&self, inode: &Inode, take_back: impl FnOnce(&mut State), at_end: impl FnOnce()) {
        let mut state = inode.state.lock();
        let before = state.standing(inode);
        take_back(&mut state);
        let gone = state.evict(inode);
        let is_going = gone.is_some() && before != Standing::Named;
        let after = if is_going {
            Standing::Going
        } else {
            state.standing(inode)
        };
        self.unlinked.moved(before, after);
        drop(state);
        if let Some(charged) = gone {
            at_end();
            self.evict(inode, charged);
            if is_going {
                // Last: until then its space is not free.
                self.unlinked.moved(Standing::Going, Standing::Named);
            }
        }
    }

    /// Frees what an inode has that nothing keeps, and whose owner `uid` was charged with `charged` bytes.
    fn evict(&self, inode: &Inode, (uid, charged): (u32, u64)) {
        self.table.remove(inode.ino);
        self.metadata.give_back(uid, charged, 1);
        match &inode.body {
            Body::File(file) | Body::Volume(file) => self.discard(inode, file),
            Body::Kernel(file) => {
                self.forget_growing(inode.ino, file);
                file.discard(&self.pool, inode.ino);
            }
            Body::Directory(_) | Body::Symlink(_) | Body::Special => {}
        }
    }

    /// Files without a name: their space may soon be free.
    pub fn unlinked(&self) -> Unlinked {
        self.unlinked.look()
    }

    /// Whether there are files without a name.
    pub fn has_unlinked(&self) -> bool {
        self.unlinked().is_any()
    }

    /// Returns the filesystem's space and inodes, as statfs(2).
    pub fn statfs(&self) -> StatFs {
        self.count_promises_for_call();
        let status = self.pool.status();
        let live = self.table.len();
        let (used_bytes, limit_bytes) = self.metadata_bytes();
        let room = limit_bytes.saturating_sub(used_bytes) / metadata::file_bytes(self.pool.store().is_some());
        let files_free = self.table.files_max().saturating_sub(live).min(room);
        StatFs {
            blocks: status.capacity,
            free: status.free(),
            files: live + files_free,
            files_free,
        }
    }

    /// Whether the log of a durable pool could not be written: nothing can be changed until the pool is opened again.
    pub fn has_failed(&self) -> bool {
        let journal = self.journal.as_ref();
        journal.is_some_and(|journal| journal.has_failed() && !journal.is_read_only())
    }

    /// Limits the memory that names, attributes and block maps may take; without a call there is no limit. What is above a
    /// lower limit stays.
    pub fn set_metadata_limit(&self, bytes: u64) {
        self.metadata.set_limit(bytes);
        let nodes = usize::try_from(bytes).unwrap_or(usize::MAX) / Nodes::NODE_BYTES;
        self.nodes.set_limit(nodes);
    }

    /// Changes of names and attributes, and writes, that were refused because they take more of that memory than their user may have.
    pub fn metadata_refused(&self) -> u64 {
        self.metadata.refused()
    }

    /// Memory that names, attributes and block maps take, and their limit, in bytes.
    pub fn metadata_bytes(&self) -> (u64, u64) {
        let used = self.metadata.used() + node_bytes(self.nodes.used());
        (used, self.metadata.limit())
    }

    /// Users with the bytes of that memory that each is charged with, the greatest first.
    pub fn metadata_by_user(&self) -> Vec<(u32, u64)> {
        let mut all = self.metadata.by_user();
        for (uid, nodes) in self.nodes.by_user() {
            *all.entry(uid).or_default() += node_bytes(nodes);
        }
        let mut users: Vec<_> = all.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        users.sort_by_key(|(uid, bytes)| (Reverse(*bytes), *uid));
        users
    }

    /// Nodes of 4 KiB that all block maps use together: 0 when no file has more than its first block.
    pub fn map_nodes_used(&self) -> usize {
        self.nodes.used()
    }

    fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    /// Says whether reading leaves access times as they are: `all` (noatime), or those of `directories` (nodiratime). Without a call, times move as
    /// with relatime. Files of the kernel follow their store.
    pub fn keep_access_times(&self, all: bool, directories: bool) {
        // Relaxed, here and below: each stands alone.
        self.keeps_access_times.store(all, Ordering::Relaxed);
        self.keeps_directory_times.store(directories, Ordering::Relaxed);
    }

    /// Notes that an inode was read.
    #[inline(always)]
    fn touch_accessed(&self, inode: &Inode, is_turn: bool) {
        if !self.keeps_access_times.load(Ordering::Relaxed) && inode.is_access_due(is_turn) {
            self.move_access_time(inode);
        }
    }

    /// A function of its own, as it is seldom called: it would take registers from every read.
    #[cold]
    #[inline(never)]
    fn move_access_time(&self, inode: &Inode) {
        if !(self.keeps_directory_times.load(Ordering::Relaxed) && inode.is_directory()) {
            inode.move_access_time(self.now_ns());
        }
    }

    /// The right to register backing files, for as long as what it gives lives; `None` while another connection has it.
    pub fn claim_passing(&self) -> Option<Arc<()>> {
        let mut passing = self.passing.lock();
        let is_free = passing.strong_count() == 0;
        is_free.then(|| {
            let claim = Arc::new(());
            *passing = Arc::downgrade(&claim);
            claim
        })
    }

    /// Takes room back that was given ahead of files that are gone, where that could not be done at once. Call this again and again.
    pub fn settle_ahead(&self) {
        self.pool.settle_ahead();
    }

    /// Inodes that there may be.
    pub fn files_max(&self) -> u64 {
        self.table.files_max()
    }

    /// Whether there is a regular file whose bytes are in the pool's blocks.
    pub fn has_pool_files(&self) -> bool {
        let mut found = false;
        self.table
            .for_each(|inode| found |= matches!(inode.body, Body::File(_)));
        found
    }

    /// Panics when the filesystem's books do not agree. At rest only.
    pub fn check_invariants(&self) {
        let (mut placed, mut reserved, mut charged) = (0, 0, 0);
        let mut names: HashMap<Ino, u64> = HashMap::new();
        self.table.for_each(|inode| {
            if let Ok(directory) = inode.directory() {
                for (entry, _) in directory.entries.read().from(0) {
                    *names.entry(entry.inode.ino).or_default() += name_bytes(&entry.name);
                }
            }
        });
        self.table.for_each(|inode| {
            let state = inode.state.lock();
            let xattrs = state.xattrs.iter().flat_map(|all| all.iter());
            let xattrs: u64 = xattrs.map(|(name, value)| xattr_bytes(name, value)).sum();
            let own = inode_bytes(&inode.body) + names.get(&inode.ino).unwrap_or(&0) + xattrs;
            assert_eq!(own, state.charged, "bytes of metadata of inode {}", inode.ino.0);
            charged += state.charged;
            drop(state);
            if let Some(file) = inode.blocks() {
                let (p, r) = self.count_blocks(file);
                assert_eq!(p + r, file.blocks.sum(), "st_blocks of inode {} is off", inode.ino.0);
                placed += p;
                reserved += r;
            }
            if let Some(file) = inode.kernel_file() {
                reserved += file.promised_blocks(&self.pool);
            }
        });
        let status = self.pool.status();
        assert_eq!(
            status.used,
            placed + self.log_blocks(),
            "blocks used by the pool and mapped by files differ"
        );
        assert_eq!(
            status.reserved,
            reserved
                + self
                    .journal
                    .as_ref()
                    .map_or(0, |journal| journal.quarantined_blocks().1),
            "blocks reserved in the pool and in files differ"
        );
        self.metadata.check_invariants(charged);
        self.check_volumes();
        self.check_opens();
        self.check_growing();
        self.pool.check_invariants();
    }
}
