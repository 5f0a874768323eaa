//! Volumes: block devices of the pool, thin, with a name and a size of their own.
//!
//! A volume is an inode with a body of its own kind, blocks within a size, that no directory names: its one link is its entry in the table here. So its blocks
//! come from the same monitor and grants as a file's, lie where its policy says, move when a member is drained, and are
//! counted by statfs; and nobody reaches it through the tree, nor by its number.
//!
//! Invariants: its size is whole blocks, and changes only in [`Fs::resize_volume`] and [`Fs::remove_volume`]; it has no block
//! beyond the 2 MiB that the size ends in, and beyond the size only what a cut could not split off; a removed one has size 0 for ever, so who still
//! holds it reads and writes nothing. Locks: a volume's changes, the table's, its state, then those of its inode.

mod data;
mod error;
mod straight;

pub use error::VolumeError;
pub use straight::Stretch;

use super::block_file::BlockFile;
use super::commit::Held;
use super::directory::NAME_BYTES_MAX;
use super::inode::Body;
use super::{Fs, Inode, Placement, attr};
use crate::log::{Attributes, Change, Effect};
use crate::{BLOCK_BYTES, Clock, Memory, NodeId};
use homenode_shared::RUN_BLOCKS;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Largest volume, in bytes: a larger one has bytes that no signed 64-bit offset reaches. The pool's own size is no limit:
/// a volume takes space when it is written, and members may be added until then.
pub const VOLUME_BYTES_MAX: u64 = i64::MAX as u64 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;

/// All volumes by name.
pub(super) type Volumes = Mutex<BTreeMap<Box<str>, Arc<Volume>>>;

/// A volume. It is there until it is removed; who holds this afterwards holds one of no bytes.
#[derive(Debug)]
pub struct Volume {
    name: Box<str>,
    inode: Arc<Inode>,
    /// Held while the volume is resized, attached or removed. Threads that find volumes, or look at them, do not take it.
    changing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Somebody relies on its size.
    Attached,
    Removed,
}

/// Status of a volume: its properties, and the pool's space that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Its name.
    pub name: Box<str>,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// The pool's space that it takes, in bytes.
    pub used_bytes: u64,
    /// Where new blocks of it go.
    pub placement: Placement,
    /// Bytes on each node, ascending by node; nodes with none left out. Less than `used_bytes` where the look at them took too long.
    pub map: Vec<(NodeId, u64)>,
    /// Whether it is attached.
    pub attached: bool,
}

impl Volume {
    /// A volume that nobody has attached.
    pub(super) fn new(name: &str, inode: Arc<Inode>) -> Self {
        Self {
            name: name.into(),
            inode,
            changing: Mutex::default(),
            state: Mutex::new(State::Idle),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For [`Fs::read_whole`] and [`Fs::write_whole`], which keep within its size.
    #[must_use]
    #[inline]
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Its size now, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        // Acquire: as whoever reads below it.
        self.file().size.load(Ordering::Acquire)
    }

    fn file(&self) -> &BlockFile {
        self.inode.blocks().expect("a volume has blocks of the pool")
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Makes a volume of `size_bytes` bytes, all zero. It takes no space until it is written.
    ///
    /// # Errors
    /// A name or a size that a volume cannot have, a name that is taken, a node without a member, or too many inodes.
    pub fn create_volume(&self, name: &str, size_bytes: u64, placement: Placement) -> Result<Arc<Volume>, VolumeError> {
        let _room = self.admit(true)?;
        check_name(name)?;
        check_size(size_bytes)?;
        if let Placement::Node(node) = placement
            && !self.pool.has_member_on(node)
        {
            return Err(VolumeError::NoMemberOn(node));
        }
        let mut volumes = self.volumes.lock();
        let Entry::Vacant(entry) = volumes.entry(name.into()) else {
            return Err(VolumeError::Exists);
        };
        let ino = self.table.reserve().ok_or_else(|| self.metadata.refuse_inode())?;
        let now_ns = self.clock.now_ns();
        let body = Body::Volume(BlockFile::of_size(size_bytes));
        let inode = Arc::new(Inode::new(ino, attr::BLOCK_DEVICE, 0, body, now_ns));
        let attributes = Attributes {
            mode: attr::BLOCK_DEVICE,
            uid: 0,
            gid: 0,
            rdev: 0,
            placement: Some(placement),
        };
        let mut held = Held::state_of(&inode);
        held.state(ino).links = 1;
        self.table.put(Arc::clone(&inode));
        let bytes = size_bytes;
        let changes = [
            Change::Inode { ino, attributes },
            Change::Size { ino, bytes },
            Change::Volume { name, ino },
        ];
        if let Err(error) = self.commit(held, now_ns, &changes) {
            self.table.remove(ino);
            return Err(error.into());
        }
        let volume = Arc::new(Volume::new(name, inode));
        entry.insert(Arc::clone(&volume));
        Ok(volume)
    }

    /// The volume of that name.
    ///
    /// # Errors
    /// [`VolumeError::Unknown`].
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>, VolumeError> {
        self.volumes.lock().get(name).cloned().ok_or(VolumeError::Unknown)
    }

    /// All volumes, by name. Asks `goes_on` now and then while it looks where their blocks lie; when that says no, the maps have less than the
    /// volumes use.
    pub fn volumes(&self, goes_on: impl Fn() -> bool) -> Vec<VolumeStatus> {
        let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        let status = volumes.iter().map(|volume| self.volume_status(volume, &goes_on));
        // One of no bytes was removed meanwhile.
        status.filter(|status| status.size_bytes > 0).collect()
    }

    /// Returns the status of a volume, as [`Fs::volumes`] does. Exact while nobody writes to the volume.
    pub fn volume_status(&self, volume: &Volume, goes_on: impl Fn() -> bool) -> VolumeStatus {
        let (mut map, mut next) = (BTreeMap::new(), Some(0));
        while let Some(from) = next.filter(|_| goes_on()) {
            next = self.map_some_blocks(&volume.inode, volume.file(), from, &mut map);
        }
        VolumeStatus {
            name: volume.name.clone(),
            size_bytes: volume.size_bytes(),
            used_bytes: volume.file().blocks.sum() * BLOCK_BYTES as u64,
            placement: volume.inode.policy.load().unwrap_or(Placement::Local),
            map: map.into_iter().collect(),
            attached: *volume.state.lock() == State::Attached,
        }
    }

    /// Sets a volume's size. What is added reads as zeros; what is cut off is free at once, and gone: where that has data, only
    /// if it `may_discard`. That goes in steps of a few milliseconds, and others use the volume between them.
    ///
    /// # Errors
    /// [`VolumeError::HoldsData`], [`VolumeError::Attached`], [`VolumeError::Unknown`] when it is removed, or a size that a volume
    /// cannot have. Nothing is changed then. After an error of the log or the memory it may have a size in between.
    pub fn resize_volume(&self, volume: &Volume, size_bytes: u64, may_discard: bool) -> Result<(), VolumeError> {
        check_size(size_bytes)?;
        let _alone = volume.changing.lock();
        volume.state.lock().require_idle()?;
        while !self.resize_step(volume, size_bytes, may_discard)? {}
        self.pool.lend_all();
        Ok(())
    }

    /// Comes a step nearer to a size; returns whether the volume has it.
    fn resize_step(&self, volume: &Volume, size_bytes: u64, may_discard: bool) -> Result<bool, VolumeError> {
        let _room = self.admit_bytes(Effect::Splits, 0)?;
        let file = volume.file();
        let closed = volume.inode.close(file, &self.slots);
        if !may_discard && size_bytes < volume.size_bytes() {
            let bytes = self.placed_from(file, size_bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
            if bytes > 0 {
                return Err(VolumeError::HoldsData { bytes });
            }
        }
        let next = self.step_towards(&closed, file, size_bytes);
        self.cut(&closed, file, next)?;
        Ok(next == size_bytes)
    }

    /// Removes a volume. Its space is free at once.
    ///
    /// # Errors
    /// [`VolumeError::Attached`], [`VolumeError::Unknown`] when it is removed already.
    pub fn remove_volume(&self, volume: &Volume) -> Result<(), VolumeError> {
        let alone = volume.changing.lock();
        let _room = self.admit(false)?;
        let mut volumes = self.volumes.lock();
        let mut state = volume.state.lock();
        state.require_idle()?;
        *state = State::Removed;
        volumes.remove(&*volume.name);
        self.tell(self.now_ns(), &[Change::NoVolume { name: &volume.name }]);
        // What follows takes long where there is much to free.
        drop(state);
        drop(volumes);
        drop(alone);
        let mut inode = volume.inode.state.lock();
        inode.links = 0;
        let gone = inode.evict(&volume.inode);
        drop(inode);
        if let Some(charged) = gone {
            self.evict(&volume.inode, charged);
        }
        self.pool.lend_all();
        Ok(())
    }

    /// Keeps a volume, and its size, as they are until [`Fs::detach_volume`]. One may at a time.
    ///
    /// # Errors
    /// [`VolumeError::Attached`], [`VolumeError::Unknown`] when it is removed.
    pub fn attach_volume(&self, volume: &Volume) -> Result<(), VolumeError> {
        let _alone = volume.changing.lock();
        let mut state = volume.state.lock();
        state.require_idle()?;
        *state = State::Attached;
        Ok(())
    }

    /// Undoes [`Fs::attach_volume`]; by the one who attached it.
    ///
    /// # Panics
    /// When it is not attached.
    pub fn detach_volume(&self, volume: &Volume) {
        let mut state = volume.state.lock();
        assert_eq!(*state, State::Attached, "only an attached volume is detached");
        *state = State::Idle;
    }

    /// Panics when the table and the volumes do not agree. At rest only.
    pub(super) fn check_volumes(&self) {
        for (name, volume) in &*self.volumes.lock() {
            assert_eq!(*name, volume.name);
            assert_ne!(*volume.state.lock(), State::Removed, "{name} is removed");
            assert_eq!(volume.inode.state.lock().links, 1, "{name} has one link");
            let size_bytes = volume.size_bytes();
            check_size(size_bytes).expect("sizes are checked when they are set");
            let beyond = self.placed_from(volume.file(), room_of(size_bytes));
            assert_eq!(beyond, 0, "{name} has blocks beyond its end");
        }
    }
}

impl State {
    fn require_idle(self) -> Result<(), VolumeError> {
        match self {
            Self::Idle => Ok(()),
            Self::Attached => Err(VolumeError::Attached),
            Self::Removed => Err(VolumeError::Unknown),
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), VolumeError> {
    let problem = match name {
        "" => "is empty",
        "." | ".." => "is `.` or `..`",
        _ if name.len() > NAME_BYTES_MAX => "is longer than 255 bytes",
        _ if name.contains('/') => "contains a slash",
        _ if name.contains(char::is_control) => "contains a control character",
        _ => return Ok(()),
    };
    Err(VolumeError::Name(problem))
}

/// File blocks below which all blocks of a volume of so many bytes lie: a run of 2 MiB stays where no map node can be had to split it.
pub(crate) fn room_of(bytes: u64) -> u64 {
    (bytes / BLOCK_BYTES as u64).next_multiple_of(RUN_BLOCKS)
}

pub(crate) fn check_size(bytes: u64) -> Result<(), VolumeError> {
    if bytes > VOLUME_BYTES_MAX {
        Err(VolumeError::TooLarge(bytes))
    } else if bytes == 0 {
        Err(VolumeError::NoSize)
    } else if !bytes.is_multiple_of(BLOCK_BYTES as u64) {
        Err(VolumeError::Misaligned(bytes))
    } else {
        Ok(())
    }
}
