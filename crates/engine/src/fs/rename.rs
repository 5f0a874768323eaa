//! rename, in its three modes.

use super::directory::{Entries, check_name};
use super::namespace::mark_removed;
use super::{Error, Fs, Inode, RenameMode, Result};
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

/// A rename that passed its checks: what it moves, and what it meets.
struct Checked {
    inode: Arc<Inode>,
    met: Option<Arc<Inode>>,
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
        check_name(new_name)?;
        // The shape of the tree changes under this lock only; renames within one directory leave it.
        let shape = (from.ino != to.ino).then(|| self.renaming.lock());
        let mut pair = self.lock_pair(from, to)?;
        let Checked { inode, met } = self.check_rename(&mut pair, (from, name), (to, new_name), mode)?;
        if met.as_ref().is_some_and(|met| met.ino == inode.ino) {
            return Ok(());
        }
        match (&met, mode) {
            (Some(met), RenameMode::Exchange) => {
                pair.from().replace(name, Arc::clone(met));
                pair.to().replace(new_name, Arc::clone(&inode));
            }
            (Some(_), _) => {
                pair.to().replace(new_name, Arc::clone(&inode));
                pair.from().remove(name);
            }
            (None, _) => {
                pair.to().insert(new_name, Arc::clone(&inode))?;
                pair.from().remove(name);
            }
        }
        adopt(&inode, from, to);
        if let (Some(met), RenameMode::Exchange) = (&met, mode) {
            adopt(met, to, from);
        }
        drop(pair);
        drop(shape);
        let now_ns = self.now_ns();
        inode.touch_changed(now_ns);
        from.touch_modified(now_ns);
        to.touch_modified(now_ns);
        match met {
            Some(met) if mode == RenameMode::Exchange => met.touch_changed(now_ns),
            Some(met) if met.is_directory() => self.directory_gone(to, &met),
            Some(met) => {
                met.touch_changed(now_ns);
                self.change_life(&met, |life| life.links -= 1);
            }
            None => {}
        }
        Ok(())
    }

    /// Locks both directories, an ancestor before what is below it.
    fn lock_pair<'a>(&self, from: &'a Arc<Inode>, to: &'a Arc<Inode>) -> Result<Pair<'a>> {
        let (from_entries, to_entries) = (&from.directory()?.entries, &to.directory()?.entries);
        if from.ino == to.ino {
            return Ok(Pair::One(from_entries.write()));
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

    fn check_rename(
        &self,
        pair: &mut Pair<'_>,
        (from, name): (&Arc<Inode>, &[u8]),
        (to, new_name): (&Arc<Inode>, &[u8]),
        mode: RenameMode,
    ) -> Result<Checked> {
        if pair.from().removed || pair.to().removed {
            return Err(Error::NotFound);
        }
        let inode = pair.from().find(name).cloned().ok_or(Error::NotFound)?;
        let met = pair.to().find(new_name).cloned();
        if inode.is_directory() && from.ino != to.ino && self.is_within(to, &inode) {
            return Err(Error::Invalid);
        }
        // Never within one directory; nor could it be asked there, where the tree does not keep its shape.
        let met_is_above = |met: &Inode| met.is_directory() && from.ino != to.ino && self.is_within(from, met);
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
        Ok(Checked { inode, met })
    }
}

/// `to` is now the directory of `inode`, which was in `from`.
fn adopt(inode: &Inode, from: &Inode, to: &Inode) {
    if from.ino == to.ino {
        return;
    }
    if let Ok(directory) = inode.directory() {
        directory.set_parent(to.ino);
        from.life.lock().links -= 1;
        to.life.lock().links += 1;
    }
}
