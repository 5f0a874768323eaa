//! The one way in which names, attributes and extended attributes change.
//!
//! An operation locks what it changes in a [`Held`], checks, and gives the new values to [`Fs::commit`], which cannot fail:
//! it puts them in place, tells the log, opens the locks, and evicts what has lost its last name.
//!
//! Links and the times that a change of names moves follow from the names here. Elsewhere change only: blocks and sizes (with the
//! file's gate), and the times of reads and writes.

use super::attr::{DIRECTORY, TYPE_MASK};
use super::directory::Entries;
use super::inode::{Body, Inode, State};
use super::{Fs, Ino};
use crate::log::{Attributes, Change, Log};
use crate::{Clock, Memory};
use parking_lot::{MutexGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Directories and inodes that an operation has locked.
///
/// Locks, in this order: the tree's shape; directories, an ancestor first; states, by ascending number.
#[derive(Default)]
pub(super) struct Held<'a> {
    directories: [Option<(Ino, RwLockWriteGuard<'a, Entries>)>; 2],
    states: [Option<(&'a Inode, MutexGuard<'a, State>)>; 4],
    /// What gets a name.
    targets: [Option<&'a Arc<Inode>>; 2],
    /// Last, so that it is let go of last.
    shape: Option<MutexGuard<'a, ()>>,
}

impl<'a> Held<'a> {
    /// The state of one inode alone.
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

    /// Says what changes of names may name.
    pub(super) fn set_targets(&mut self, targets: [Option<&'a Arc<Inode>>; 2]) {
        self.targets = targets;
    }

    /// Locks the states of `inodes`; one that is named twice is locked once.
    pub(super) fn lock_states<const N: usize>(&mut self, mut inodes: [Option<&'a Inode>; N]) {
        debug_assert!(self.states.iter().all(Option::is_none));
        inodes.sort_unstable_by_key(|inode| inode.map(|inode| inode.ino));
        let mut places = self.states.iter_mut();
        let mut last = None;
        for inode in inodes.into_iter().flatten() {
            if last.replace(inode.ino) != Some(inode.ino) {
                let place = places.next().expect("an operation changes four inodes at most");
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
        &self.states[0].as_ref().expect("one inode is held").1
    }

    fn named(&mut self, ino: Ino) -> (&'a Inode, &mut State) {
        let mut all = self.states.iter_mut().flatten();
        let (inode, state) = all.find(|(held, _)| held.ino == ino).expect("a changed inode is held");
        (inode, state)
    }

    /// Puts one change in place. Gives by how much the number of files without a name rises.
    fn apply(&mut self, change: &Change<'_>, now_ns: i64) -> i64 {
        match *change {
            Change::Inode { ino, attributes } => {
                let (inode, state) = self.named(ino);
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
                let mut targets = self.targets.iter().flatten();
                let target = targets.find(|target| target.ino == ino);
                let inode = Arc::clone(target.expect("what gets a name is a target"));
                let met = self.entries(dir).put(name, inode);
                let fewer = met.map_or(0, |met| self.unlink(dir, &met, now_ns));
                return fewer + self.link(dir, ino, now_ns);
            }
            Change::NoName { dir, name } => {
                let inode = self.entries(dir).remove(name).expect("a name that goes is there");
                return self.unlink(dir, &inode, now_ns);
            }
            Change::Xattr { ino, name, value } => {
                let (inode, state) = self.named(ino);
                state.xattrs.get_or_insert_default().insert(name.into(), value.into());
                inode.touch_changed(now_ns);
            }
            Change::NoXattr { ino, name } => {
                let (inode, state) = self.named(ino);
                if let Some(all) = &mut state.xattrs {
                    all.remove(name);
                }
                state.xattrs.take_if(|all| all.is_empty());
                inode.touch_changed(now_ns);
            }
        }
        0
    }

    /// `ino` has one name more, in `dir`.
    fn link(&mut self, dir: Ino, ino: Ino, now_ns: i64) -> i64 {
        let (inode, state) = self.named(ino);
        let before = state.is_unlinked_file(inode);
        state.links += links_of_a_name(inode);
        if let Ok(directory) = inode.directory() {
            directory.set_parent(dir);
            self.state(dir).links += 1;
        }
        inode.touch_changed(now_ns);
        self.named(dir).0.touch_modified(now_ns);
        -i64::from(before)
    }

    /// `inode` has one name less, in `dir`.
    fn unlink(&mut self, dir: Ino, inode: &Inode, now_ns: i64) -> i64 {
        let state = self.state(inode.ino);
        state.links -= links_of_a_name(inode);
        let after = state.is_unlinked_file(inode);
        if inode.is_directory() {
            self.state(dir).links -= 1;
        }
        inode.touch_changed(now_ns);
        self.named(dir).0.touch_modified(now_ns);
        i64::from(after)
    }

    /// What nothing keeps any more; marked as evicted.
    fn take_gone(&mut self) -> Option<&'a Inode> {
        let mut all = self.states.iter_mut().flatten();
        // A replaced file or a removed one: an operation takes one last name at most.
        all.find_map(|(inode, state)| state.evict().then_some(*inode))
    }
}

/// Up to four changes that belong together.
pub(super) struct Changes<'a> {
    all: [Change<'a>; 4],
    count: usize,
}

impl<'a> Changes<'a> {
    /// The first.
    pub(super) fn of(change: Change<'a>) -> Self {
        Self {
            all: [change; 4],
            count: 1,
        }
    }

    /// One more.
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
    fn put(&mut self, inode: &Inode, attributes: &Attributes) {
        debug_assert_eq!(attributes.mode & TYPE_MASK, inode.mode() & TYPE_MASK);
        debug_assert!(attributes.mode & TYPE_MASK != DIRECTORY || inode.is_directory());
        self.uid = attributes.uid;
        self.gid = attributes.gid;
        // Relaxed: both are read alone by those who do not hold the state.
        inode.mode.store(attributes.mode, Ordering::Relaxed);
        inode.policy.store(attributes.placement);
    }

    fn is_unlinked_file(&self, inode: &Inode) -> bool {
        self.is_unlinked() && matches!(inode.body, Body::File(_))
    }
}

impl<M: Memory, C: Clock, L: Log> Fs<M, C, L> {
    /// Puts `changes` in place and tells the log; then lets go of all that is held.
    pub(super) fn commit(&self, mut held: Held<'_>, now_ns: i64, changes: &[Change<'_>]) {
        let unnamed: i64 = changes.iter().map(|change| held.apply(change, now_ns)).sum();
        self.log.append(changes);
        let gone = held.take_gone();
        drop(held);
        // Relaxed: a figure that is looked at again and again.
        match unnamed.cmp(&0) {
            std::cmp::Ordering::Less => self.unlinked.fetch_sub(unnamed.unsigned_abs(), Ordering::Relaxed),
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Greater => self.unlinked.fetch_add(unnamed.unsigned_abs(), Ordering::Relaxed),
        };
        if let Some(inode) = gone {
            self.evict(inode);
        }
    }
}
