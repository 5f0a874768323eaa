//! rename, in its three modes, and with a whiteout in place of the name that moves.

use super::attr::CHARACTER_DEVICE;
use super::commit::Held;
use super::directory::{Entries, Place, check_new_name};
use super::inode::Body;
use super::metadata::ROOT;
use super::namespace::mark_removed;
use super::{Error, Fs, Ino, Inode, NewInode, RenameMode, Result};
use crate::log::Change;
use crate::{Clock, Memory};
use parking_lot::RwLockWriteGuard;
use std::sync::Arc;

/// The entries of one or two directories, locked.
enum Pair<'a> {
    One(RwLockWriteGuard<'a, Entries>),
    Two {
        from: RwLockWriteGuard<'a, Entries>,
        to: RwLockWriteGuard<'a, Entries>,
    },
}

impl Pair<'_> {
    fn from(&mut self) -> &mut Entries {
        match self {
            Self::One(entries) => entries,
            Self::Two { from, .. } => from,
        }
    }

    fn to(&mut self) -> &mut Entries {
        match self {
            Self::One(entries) => entries,
            Self::Two { to, .. } => to,
        }
    }
}

/// Two inodes that a rename is likely to be about, and for each whether it is above the directory where the other one is.
#[derive(Default)]
struct Walked([Option<(Ino, bool)>; 2]);

/// A rename that passed its checks: what it moves, what it meets, and the keys of both names.
struct Checked {
    inode: Arc<Inode>,
    met: Option<Arc<Inode>>,
    old_key: u64,
    new_key: u64,
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Renames `name` in `from` to `new_name` in `to`.
    ///
    /// # Errors
    /// As rename(2): [`Error::NotFound`], [`Error::Exists`], [`Error::NotEmpty`], [`Error::IsDirectory`],
    /// [`Error::NotDirectory`], and [`Error::Invalid`] for a directory into itself.
    pub fn rename(
        &self,
        from: &Arc<Inode>,
        name: &[u8],
        to: &Arc<Inode>,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_with((from, name), (to, new_name), mode, None, None)
    }

    /// [`Fs::rename`] by a user.
    ///
    /// # Errors
    /// The errors of [`Fs::rename`].
    pub fn rename_as(
        &self,
        user: u32,
        from: &Arc<Inode>,
        name: &[u8],
        to: &Arc<Inode>,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_with((from, name), (to, new_name), mode, Some(user), None)
    }

    /// [`Fs::rename`] that leaves a whiteout as `name`: the character device 0:0, of the owner and group given. An overlay hides
    /// by it what a lower layer has of that name.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an exchange too; those of [`Fs::create`].
    pub fn rename_with_whiteout(
        &self,
        from: &Arc<Inode>,
        name: &[u8],
        to: &Arc<Inode>,
        new_name: &[u8],
        mode: RenameMode,
        (uid, gid): (u32, u32),
    ) -> Result<()> {
        if mode == RenameMode::Exchange {
            return Err(Error::Invalid);
        }
        let new = NewInode {
            uid,
            gid,
            ..NewInode::of_root(CHARACTER_DEVICE)
        };
        // It gets its name with the rename. Its own memory is counted before: nothing is refused once the rename has begun.
        from.directory()?;
        let whiteout = self.make(from, None, new, Body::Special)?;
        let renamed = self.rename_with((from, name), (to, new_name), mode, Some(uid), Some(&whiteout));
        self.unpin(&whiteout, 1);
        renamed
    }

    fn rename_with(
        &self,
        (from, name): (&Arc<Inode>, &[u8]),
        (to, new_name): (&Arc<Inode>, &[u8]),
        mode: RenameMode,
        user: Option<u32>,
        whiteout: Option<&Arc<Inode>>,
    ) -> Result<()> {
        let _room = self.admit(true)?;
        // A guess, made without the locks: a wrong one costs a sync another round.
        let may_need = || {
            let is_unsettled = |inode: Arc<Inode>| inode.blocks().is_some_and(|file| self.is_unsettled(file));
            mode == RenameMode::Replace
                && self.lookup(from, name).is_ok_and(is_unsettled)
                && self.lookup(to, new_name).is_ok()
        };
        let log = self.journal.as_ref().filter(|_| may_need());
        let _naming = log.map(|journal| journal.naming.read());
        check_new_name(new_name)?;
        // The shape of the tree changes under this lock only; renames within one directory leave it.
        let shape = (from.ino != to.ino).then(|| self.renaming.lock());
        // Before anybody waits for the directories: any user can make a tree as deep as there is memory.
        let walked = match shape {
            Some(_) => self.walk((from, name), (to, new_name)),
            None => Walked::default(),
        };
        let mut pair = self.lock_pair(from, to)?;
        let Checked {
            inode,
            met,
            old_key,
            new_key,
        } = self.check_rename(&mut pair, (from, name), (to, new_name), mode, &walked)?;
        if met.as_ref().is_some_and(|met| met.ino == inode.ino) {
            return Ok(());
        }
        let mut held = Held::default();
        if let Some(shape) = shape {
            held.hold_shape(shape);
        }
        match pair {
            Pair::One(entries) => held.hold_directory(from.ino, entries),
            Pair::Two { from: a, to: b } => {
                held.hold_directory(from.ino, a);
                held.hold_directory(to.ino, b);
            }
        }
        held.set_targets([Some(&inode), whiteout.or(met.as_ref())]);
        // Others than root count as the owner: a name is longer by little.
        if user == Some(ROOT) {
            held.set_asker(inode.asker(user));
        }
        // What replaces a file is there when the file is gone (as ext4's auto_da_alloc).
        if mode == RenameMode::Replace && met.is_some() && inode.blocks().is_some_and(|file| self.is_unsettled(file)) {
            held.set_needs(inode.ino);
        }
        held.set_new_key(new_key);
        held.set_old_key(old_key);
        held.lock_states([
            Some(&**from),
            Some(&**to),
            Some(&*inode),
            met.as_deref(),
            whiteout.map(|whiteout| &**whiteout),
        ]);
        let (from, to) = (from.ino, to.ino);
        let arrives = Change::Name {
            dir: to,
            name: new_name,
            ino: inode.ino,
        };
        let met_moves = met.as_ref().filter(|_| mode == RenameMode::Exchange);
        let leaves = match whiteout.or(met_moves) {
            Some(follower) => Change::Name {
                dir: from,
                name,
                ino: follower.ino,
            },
            None => Change::NoName { dir: from, name },
        };
        // The new name first: an inode that moves is never without one.
        self.commit(held, self.now_ns(), &[arrives, leaves])
    }

    /// Locks both directories: the second one without a wait, or else an ancestor before what is below it. To find the ancestor takes two walks up to
    /// the root, and any user can make a tree as deep as there is memory.
    fn lock_pair<'a>(&self, from: &'a Arc<Inode>, to: &'a Arc<Inode>) -> Result<Pair<'a>> {
        const TRIES: u32 = 4;
        let (from_entries, to_entries) = (&from.directory()?.entries, &to.directory()?.entries);
        if from.ino == to.ino {
            return Ok(Pair::One(from_entries.write()));
        }
        for _ in 0..TRIES {
            let from = from_entries.write();
            if let Some(to) = to_entries.try_write() {
                return Ok(Pair::Two { from, to });
            }
            drop(from);
            let to = to_entries.write();
            if let Some(from) = from_entries.try_write() {
                return Ok(Pair::Two { from, to });
            }
        }
        let from_first = self.is_within(to, from) || (!self.is_within(from, to) && from.ino < to.ino);
        Ok(if from_first {
            let from = from_entries.write();
            Pair::Two {
                from,
                to: to_entries.write(),
            }
        } else {
            let to = to_entries.write();
            Pair::Two {
                from: from_entries.write(),
                to,
            }
        })
    }

    /// Walks up from both directories, for [`Fs::check_rename`]. With the rename lock held.
    fn walk(&self, (from, name): (&Arc<Inode>, &[u8]), (to, new_name): (&Arc<Inode>, &[u8])) -> Walked {
        let look = |dir, name, other| {
            let inode = self.lookup(dir, name).ok()?;
            let is_above = inode.is_directory() && self.is_within(other, &inode);
            Some((inode.ino, is_above))
        };
        Walked([look(from, name, to), look(to, new_name, from)])
    }

    fn check_rename(
        &self,
        pair: &mut Pair<'_>,
        (from, name): (&Arc<Inode>, &[u8]),
        (to, new_name): (&Arc<Inode>, &[u8]),
        mode: RenameMode,
        walked: &Walked,
    ) -> Result<Checked> {
        if pair.from().removed || pair.to().removed {
            return Err(Error::NotFound);
        }
        let (old_key, inode) = pair.from().find_with_key(name).ok_or(Error::NotFound)?;
        let inode = Arc::clone(inode);
        let (new_key, met) = match pair.to().place(new_name) {
            Place::Taken(key, met) => (key, Some(Arc::clone(met))),
            Place::Free(key) => (key, None),
            Place::Full => return Err(Error::NoSpace),
        };
        // Another inode may have the name by now.
        let is_within = |dir: &Arc<Inode>, inode: &Inode, walked: Option<(Ino, bool)>| match walked {
            Some((ino, is_above)) if ino == inode.ino => is_above,
            _ => self.is_within(dir, inode),
        };
        if inode.is_directory() && from.ino != to.ino && is_within(to, &inode, walked.0[0]) {
            return Err(Error::Invalid);
        }
        // Never within one directory; nor could it be asked there, where the tree does not keep its shape.
        let met_is_above = |met: &Inode| met.is_directory() && from.ino != to.ino && is_within(from, met, walked.0[1]);
        match (&met, mode) {
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            (Some(_), RenameMode::NoReplace) => return Err(Error::Exists),
            (Some(met), RenameMode::Exchange) if met_is_above(met) => return Err(Error::Invalid),
            (Some(met), RenameMode::Replace) if met.ino != inode.ino => {
                match (inode.is_directory(), met.is_directory()) {
                    // A directory that holds the one to be moved is not empty; its lock may be one of the pair's.
                    (_, true) if met_is_above(met) => return Err(Error::NotEmpty),
                    (true, true) => mark_removed(met)?,
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    (false, false) => {}
                }
            }
            _ => {}
        }
        Ok(Checked {
            inode,
            met,
            old_key,
            new_key,
        })
    }
}
