//! The filesystem: inodes, directories and the data path over the pool (mbsfs of MBS-LVM, section 3).
//!
//! Locks, in this order: the rename lock, or those of volumes; directories, ancestors first; an inode's life, xattrs; a file's appending lock,
//! its exclusive lock; then the pool's. Reads and writes of placed blocks take none of them.

mod acl;
mod attr;
mod attributes;
mod data;
mod directory;
mod error;
mod extents;
mod inode;
mod namespace;
mod placement;
mod rename;
mod table;
mod volume;
mod xattr;

pub use attr::{Attr, NewInode, RenameMode, SetAttr, SetTime, StatFs, Whence, XattrMode};
pub use error::{Error, Result};
pub use extents::fallocate_mode;
pub use inode::Inode;
pub use namespace::DirEntry;
pub use placement::{Placement, UnknownPlacement};
pub use volume::{Stretch, VOLUME_BYTES_MAX, Volume, VolumeError, VolumeStatus};
pub use xattr::{MAP_XATTR, POLICY_XATTR};

use crate::pool::{Machine, Pool};
use crate::{Clock, CpuId, Memory, NodeId};
use homenode_shared::{Nodes, Slot, Slots};
use inode::{Body, Life};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use table::Table;
use volume::Volumes;

/// Threads that can work on one filesystem at a time.
const SLOTS: usize = 4096;

/// Who asks: given with every operation that may touch data.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The calling thread's slot (claimed once per thread from [`Fs::slots`]).
    pub slot: &'a Slot,
    /// The CPU that executes the copy: picks the grant and the row of the access matrix.
    pub cpu: CpuId,
    /// The asking node; called only when blocks are to be placed.
    pub node: &'a dyn Fn() -> NodeId,
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

/// One filesystem on one pool.
#[derive(Debug)]
pub struct Fs<M: Memory, C: Clock> {
    pool: Pool<M>,
    clock: C,
    slots: Arc<Slots>,
    nodes: Nodes,
    table: Table,
    root: Arc<Inode>,
    /// Held by renames across directories: the tree's shape changes under it only.
    renaming: Mutex<()>,
    volumes: Volumes,
    /// Files without a link that something pins, or whose blocks are just being freed.
    unlinked: AtomicU64,
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// An empty filesystem on a pool without members; owner and mode of the root as given.
    pub fn new(machine: &Machine, memory: M, clock: C, root: NewInode) -> Self {
        let table = Table::new(machine.files_max);
        let now_ns = clock.now_ns();
        let body = Body::Directory(Box::new(directory::Directory::new(Ino::ROOT)));
        let root = NewInode {
            mode: attr::DIRECTORY | root.mode & attr::PERMISSIONS,
            ..root
        };
        let root = table.add(root, body, now_ns).expect("a pool may have an inode");
        debug_assert_eq!(root.ino, Ino::ROOT);
        root.life.lock().links = 2;
        Self {
            pool: Pool::new(machine, memory, SLOTS),
            clock,
            slots: Slots::new(SLOTS),
            nodes: Nodes::new(machine.nodes.len()),
            table,
            root,
            renaming: Mutex::new(()),
            volumes: Volumes::default(),
            unlinked: AtomicU64::new(0),
        }
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

    /// Keeps the inode though it may be unlinked: an open file is one pin, each lookup the kernel remembers is one.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is gone already.
    pub fn pin(&self, inode: &Inode) -> Result<()> {
        let mut life = inode.life.lock();
        if life.evicted {
            return Err(Error::Stale);
        }
        life.pins += 1;
        Ok(())
    }

    /// Takes `pins` pins back; the inode goes with the last one when nothing links to it.
    pub fn unpin(&self, inode: &Inode, pins: u64) {
        self.change_life(inode, |life| life.pins = life.pins.saturating_sub(pins));
    }

    /// Whether files without a name are still open, or were until just now: their space may soon be free.
    pub fn has_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Relaxed) > 0
    }

    /// What statfs(2) tells.
    pub fn statfs(&self) -> StatFs {
        let status = self.pool.status();
        let files = self.table.files_max();
        let files_free = files.saturating_sub(self.table.len());
        StatFs {
            blocks: status.capacity,
            free: status.free(),
            files,
            files_free,
        }
    }

    /// Changes links or pins, and evicts the inode when neither is left.
    fn change_life<R>(&self, inode: &Inode, change: impl FnOnce(&mut Life) -> R) -> R {
        let mut life = inode.life.lock();
        let before = life.is_unlinked();
        let result = change(&mut life);
        let evict = life.links == 0 && life.pins == 0 && !life.evicted;
        life.evicted |= evict;
        let after = life.is_unlinked();
        drop(life);
        let Body::File(file) = &inode.body else {
            if evict {
                self.table.remove(inode.ino);
            }
            return result;
        };
        // Relaxed: a figure that is looked at again and again.
        if !before && after {
            self.unlinked.fetch_add(1, Ordering::Relaxed);
        }
        if evict {
            self.table.remove(inode.ino);
            self.discard(inode, file);
        }
        // Last: until then its space is not free.
        if before && !after {
            self.unlinked.fetch_sub(1, Ordering::Relaxed);
        }
        result
    }

    /// Nodes of 4 KiB that all block maps use together: 0 when no file has more than its first block.
    pub fn map_nodes_used(&self) -> usize {
        self.nodes.used()
    }

    fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    /// Panics when the filesystem's books do not agree. At rest only.
    pub fn check_invariants(&self) {
        let (mut placed, mut reserved) = (0, 0);
        self.table.for_each(|inode| {
            if let Body::File(file) = &inode.body {
                let (p, r) = self.count_blocks(file);
                assert_eq!(p + r, file.blocks.sum(), "st_blocks of inode {} is off", inode.ino.0);
                placed += p;
                reserved += r;
            }
        });
        let status = self.pool.status();
        assert_eq!(
            status.used, placed,
            "blocks used by the pool and mapped by files differ"
        );
        assert_eq!(
            status.reserved, reserved,
            "blocks reserved in the pool and in files differ"
        );
        self.check_volumes();
        self.pool.check_invariants();
    }
}
