//! The one way in which names, attributes and extended attributes change.
//!
//! An operation locks what it changes in a [`Held`], checks, and gives the new values to [`Fs::commit`]: it counts the memory
//! they take, puts them in place, tells the log, opens the locks, and evicts what has lost its last name.
//!
//! Links and the times that a change of names moves follow from the names here. Elsewhere change only: blocks and sizes (with the
//! file's gate), and the times of reads and writes.

use super::attr::{DIRECTORY, TYPE_MASK};
use super::directory::Entries;
use super::inode::{Inode, State};
use super::kernel_file::KernelFile;
use super::metadata::{Metadata, ROOT, inode_bytes, name_bytes, node_bytes, xattr_bytes};
use super::unlinked::{Standing, UnlinkedFiles};
use super::{Fs, Ino, Result};
use crate::log::{Attributes, Change};
use crate::{Clock, Memory};
use homenode_shared::{Asker, Nodes};
use parking_lot::{MutexGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Changes that belong together at most.
const CHANGES_MAX: usize = 5;

/// Books that changes of names are entered in.
#[derive(Clone, Copy)]
struct Books<'a> {
    metadata: &'a Metadata,
    unlinked: &'a UnlinkedFiles,
}

/// Directories and inodes that an operation has locked.
///
/// Locks, in this order: the tree's shape; directories, an ancestor first; states, by ascending number.
#[derive(Default)]
pub(super) struct Held<'a> {
    directories: [Option<(Ino, RwLockWriteGuard<'a, Entries>)>; 2],
    states: [Option<(&'a Inode, MutexGuard<'a, State>)>; 5],
    /// The user who adds to an inode.
    asker: Asker,
    /// Inodes that get a name.
    targets: [Option<&'a Arc<Inode>>; 2],
    /// The keys of the names that change: the first target's new one, and the one that goes or gets the second target.
    keys: [Option<u64>; 2],
    /// A file whose changes must be settled before this operation's are.
    needs: Option<Ino>,
    /// Last, so that it is let go of last.
    shape: Option<MutexGuard<'a, ()>>,
}

impl<'a> Held<'a> {
    pub(super) fn state_of(inode: &'a Inode) -> Self {
        let mut held = Self::default();
        held.lock_states([Some(inode)]);
        held
    }

    /// Keeps the lock of the tree's shape.
    pub(super) fn hold_shape(&mut self, shape: MutexGuard<'a, ()>) {
        self.shape = Some(shape);
    }

    /// Keeps a directory's lock.
    pub(super) fn hold_directory(&mut self, dir: Ino, entries: RwLockWriteGuard<'a, Entries>) {
        let free = self.directories.iter_mut().find(|place| place.is_none());
        *free.expect("an operation changes two directories at most") = Some((dir, entries));
    }

    /// Sets the user who asks to add to an inode.
    pub(super) fn set_asker(&mut self, asker: Asker) {
        self.asker = asker;
    }

    /// Sets the file whose changes must be settled before this operation's are.
    pub(super) fn set_needs(&mut self, ino: Ino) {
        self.needs = Some(ino);
    }

    /// Sets the inodes that changes of names may name.
    pub(super) fn set_targets(&mut self, targets: [Option<&'a Arc<Inode>>; 2]) {
        self.targets = targets;
    }

    /// Sets the key of the first target's new name.
    pub(super) fn set_new_key(&mut self, key: u64) {
        self.keys[0] = Some(key);
    }

    /// Sets the key of the name that goes, or gets the second target.
    pub(super) fn set_old_key(&mut self, key: u64) {
        self.keys[1] = Some(key);
    }

    /// Locks the states of `inodes`; one that is named twice is locked once.
    pub(super) fn lock_states<const N: usize>(&mut self, mut inodes: [Option<&'a Inode>; N]) {
        debug_assert!(self.states.iter().all(Option::is_none));
        inodes.sort_unstable_by_key(|inode| inode.map(|inode| inode.ino));
        let mut places = self.states.iter_mut();
        let mut last = None;
        for inode in inodes.into_iter().flatten() {
            if last.replace(inode.ino) != Some(inode.ino) {
                let place = places.next().expect("an operation changes five inodes at most");
                *place = Some((inode, inode.state.lock()));
            }
        }
    }

    /// The entries of a directory that is held.
    pub(super) fn entries(&mut self, dir: Ino) -> &mut Entries {
        let mut all = self.directories.iter_mut().flatten();
        let found = all.find(|(held, _)| *held == dir);
        &mut found.expect("a changed directory is held").1
    }

    /// The state of an inode that is held.
    pub(super) fn state(&mut self, ino: Ino) -> &mut State {
        self.named(ino).1
    }

    /// The state of the only inode that is held.
    pub(super) fn only(&self) -> &State {
        &self.states[0].as_ref().expect("the commit holds one inode").1
    }

    /// The inode that gets a name, and the name's key.
    fn target(&self, ino: Ino) -> (&'a Arc<Inode>, u64) {
        let mut targets = self.targets.iter().flatten().zip(self.keys);
        let found = targets.find(|(target, _)| target.ino == ino);
        let (target, key) = found.expect("what gets a name is a target");
        (target, key.expect("the key of a new name is set"))
    }

    fn named(&mut self, ino: Ino) -> (&'a Inode, &mut State) {
        let mut all = self.states.iter_mut().flatten();
        let (inode, state) = all.find(|(held, _)| held.ino == ino).expect("a changed inode is held");
        (inode, state)
    }

    /// Counts the memory that `changes` are going to take. A group that takes no more than it frees, and makes no inode, always finds room.
    fn charge(&mut self, metadata: &Metadata, changes: &[Change<'_>], nodes: &Nodes) -> Result<()> {
        let mut charged = [(ROOT, 0, 0); CHANGES_MAX];
        let mut freed = 0;
        for (change, charged) in changes.iter().zip(&mut charged) {
            let mut inodes = 0;
            let (ino, bytes) = match *change {
                Change::Inode { ino, attributes } => {
                    let (inode, state) = self.named(ino);
                    let is_new = state.charged == 0;
                    if is_new {
                        inode.uid.store(attributes.uid, Ordering::Relaxed);
                        inodes = 1;
                    }
                    (ino, if is_new { inode_bytes(&inode.body) } else { 0 })
                }
                Change::Name { dir, name, ino } => {
                    let key = self.target(ino).1;
                    let is_taken = self.entries(dir).has(key);
                    freed += if is_taken { name_bytes(name) } else { 0 };
                    (ino, name_bytes(name))
                }
                Change::NoName { name, .. } => {
                    freed += name_bytes(name);
                    continue;
                }
                Change::Xattr { ino, name, value } => {
                    let before = self.state(ino).xattr(name);
                    freed += before.map_or(0, |before| xattr_bytes(name, before));
                    (ino, xattr_bytes(name, value))
                }
                _ => continue,
            };
            let (inode, state) = self.named(ino);
            if !state.evicted {
                state.charged += bytes;
                metadata.add(inode.uid(), bytes, inodes);
                *charged = (inode.uid(), bytes, inodes);
            }
        }
        let taken: u64 = charged.iter().map(|(_, bytes, _)| bytes).sum();
        let asker = self.asker;
        let is_within = |(uid, bytes, _): &(u32, u64, u64)| {
            *bytes == 0
                || metadata.is_within(*uid, asker, node_bytes(nodes.used()), &|| {
                    node_bytes(nodes.used_by(*uid))
                })
        };
        let has_inode = |(uid, _, inodes): &(u32, u64, u64)| *inodes == 0 || metadata.has_inode(*uid, asker);
        let has_inodes = charged.iter().all(has_inode);
        if has_inodes && (taken <= freed || charged.iter().all(is_within)) {
            return Ok(());
        }
        for (change, (uid, bytes, inodes)) in changes.iter().zip(charged) {
            if let Change::Inode { ino, .. } | Change::Name { ino, .. } | Change::Xattr { ino, .. } = *change {
                self.state(ino).charged -= bytes;
                metadata.give_back(uid, bytes, inodes);
            }
        }
        Err(match has_inodes {
            true => metadata.refuse(),
            false => metadata.refuse_inode(),
        })
    }

    /// Puts one change in place. Returns whether a file that something keeps has lost its last name.
    fn apply(&mut self, books: Books<'_>, change: &Change<'_>, now_ns: i64) -> bool {
        let metadata = books.metadata;
        match *change {
            Change::Inode { ino, attributes } => {
                let (inode, state) = self.named(ino);
                metadata.transfer(inode.uid(), attributes.uid, state.charged);
                state.put(inode, &attributes);
                inode.touch_changed(now_ns);
            }
            Change::Times {
                ino,
                atime_ns,
                mtime_ns,
                ctime_ns,
            } => {
                let inode = self.named(ino).0;
                let set = |time: &AtomicI64, to: Option<i64>| {
                    if let Some(ns) = to {
                        time.store(ns, Ordering::Relaxed);
                    }
                };
                set(&inode.atime_ns, atime_ns);
                set(&inode.mtime_ns, mtime_ns);
                set(&inode.ctime_ns, ctime_ns);
            }
            Change::Name { dir, name, ino } => {
                let (target, key) = self.target(ino);
                let met = self.entries(dir).put(key, name, Arc::clone(target));
                let has_unnamed = met.is_some_and(|met| self.unlink(books, dir, name, &met, now_ns));
                self.link(books, dir, ino, now_ns);
                return has_unnamed;
            }
            Change::NoName { dir, name } => {
                let key = self.keys[1].expect("keys are set for removed names before the commit");
                let inode = self.entries(dir).remove(key).expect("a name that goes is there");
                return self.unlink(books, dir, name, &inode, now_ns);
            }
            Change::Xattr { ino, name, value } => {
                let (inode, state) = self.named(ino);
                let before = state.xattrs.get_or_insert_default().insert(name.into(), value.into());
                state.give_back(inode, metadata, before.map_or(0, |before| xattr_bytes(name, &before)));
                inode.touch_changed(now_ns);
            }
            Change::NoXattr { ino, name } => {
                let (inode, state) = self.named(ino);
                let before = state.xattrs.as_mut().and_then(|all| all.remove(name));
                state.give_back(inode, metadata, before.map_or(0, |before| xattr_bytes(name, &before)));
                state.xattrs.take_if(|all| all.is_empty());
                inode.touch_changed(now_ns);
            }
            // Their own modules put these in place: only the log is to hear of them.
            Change::Target { .. }
            | Change::Extent { .. }
            | Change::NoExtents { .. }
            | Change::Size { .. }
            | Change::Grown { .. }
            | Change::Volume { .. }
            | Change::NoVolume { .. } => {}
        }
        false
    }

    /// `ino` has one name more, in `dir`.
    fn link(&mut self, books: Books<'_>, dir: Ino, ino: Ino, now_ns: i64) {
        let (inode, state) = self.named(ino);
        let before = state.standing(inode);
        state.links += links_of_a_name(inode);
        books.unlinked.moved(before, state.standing(inode));
        if let Ok(directory) = inode.directory() {
            directory.set_parent(dir);
            self.state(dir).links += 1;
        }
        inode.touch_changed(now_ns);
        self.named(dir).0.touch_modified(now_ns);
    }

    /// `inode` has one name less, in `dir`. Returns whether it is a file that something keeps without a name.
    fn unlink(&mut self, books: Books<'_>, dir: Ino, name: &[u8], inode: &Inode, now_ns: i64) -> bool {
        let state = self.state(inode.ino);
        state.give_back(inode, books.metadata, name_bytes(name));
        let before = state.standing(inode);
        state.links -= links_of_a_name(inode);
        let after = state.standing(inode);
        books.unlinked.moved(before, after);
        if inode.is_directory() {
            self.state(dir).links -= 1;
        }
        inode.touch_changed(now_ns);
        self.named(dir).0.touch_modified(now_ns);
        after != Standing::Named
    }

    /// The file of the kernel that lives without a name, if there is one among the inodes, and whether it is open.
    fn unnamed_kernel_file(&self) -> Option<(Ino, &'a KernelFile, bool)> {
        let mut unnamed = self.states.iter().flatten().filter(|(_, state)| state.is_unlinked());
        unnamed.find_map(|(inode, state)| Some((inode.ino, inode.kernel_file()?, state.opens.all > 0)))
    }

    /// The inode that nothing keeps any more, marked as evicted, and what [`State::evict`] gives of it.
    fn take_gone(&mut self) -> Option<(&'a Inode, (u32, u64))> {
        let mut all = self.states.iter_mut().flatten();
        // A replaced file or a removed one: an operation takes one last name at most.
        all.find_map(|(inode, state)| state.evict(inode).map(|charged| (*inode, charged)))
    }
}

/// Changes that belong together.
pub(super) struct Changes<'a> {
    all: [Change<'a>; CHANGES_MAX],
    count: usize,
}

impl<'a> Changes<'a> {
    /// A group of one change.
    pub(super) fn of(change: Change<'a>) -> Self {
        Self {
            all: [change; CHANGES_MAX],
            count: 1,
        }
    }

    pub(super) fn add(&mut self, change: Change<'a>) {
        self.all[self.count] = change;
        self.count += 1;
    }

    /// All of them, in order.
    pub(super) fn as_slice(&self) -> &[Change<'a>] {
        &self.all[..self.count]
    }
}

/// A directory's name counts twice, as its `.` is another.
fn links_of_a_name(inode: &Inode) -> u32 {
    if inode.is_directory() { 2 } else { 1 }
}

impl State {
    /// Sets attributes; the type bits of a mode are for ever.
    pub(super) fn put(&mut self, inode: &Inode, attributes: &Attributes) {
        debug_assert_eq!(attributes.mode & TYPE_MASK, inode.mode() & TYPE_MASK);
        debug_assert!(attributes.mode & TYPE_MASK != DIRECTORY || inode.is_directory());
        self.gid = attributes.gid;
        // Relaxed: each is read alone by those who do not hold the state.
        inode.uid.store(attributes.uid, Ordering::Relaxed);
        inode.mode.store(attributes.mode, Ordering::Relaxed);
        inode.policy.store(attributes.placement);
    }

    /// Counts `bytes` less. All of an evicted inode's are given back, and it is charged no more.
    fn give_back(&mut self, inode: &Inode, metadata: &Metadata, bytes: u64) {
        if !self.evicted {
            self.charged -= bytes;
            metadata.give_back(inode.uid(), bytes, 0);
        }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Puts `changes` in place and tells the log; then lets go of all that is held.
    ///
    /// # Errors
    /// [`Error::NoMetadata`] when they take more memory than the user may have. Nothing is changed then; what frees memory
    /// does not fail.
    pub(super) fn commit(&self, mut held: Held<'_>, now_ns: i64, changes: &[Change<'_>]) -> Result<()> {
        let metadata = &self.metadata;
        held.charge(metadata, changes, &self.nodes)?;
        let unlinked = &self.unlinked;
        let mut has_unnamed = false;
        for change in changes {
            has_unnamed |= held.apply(Books { metadata, unlinked }, change, now_ns);
        }
        self.tell_with(now_ns, changes, held.needs);
        let gone = held.take_gone();
        let unnamed_file = held.unnamed_kernel_file();
        drop(held);
        if has_unnamed && let Some((ino, file, is_open)) = unnamed_file {
            file.give_ahead(&self.pool, ino, is_open);
        }
        if let Some((inode, charged)) = gone {
            self.evict(inode, charged);
        }
        Ok(())
    }
}
